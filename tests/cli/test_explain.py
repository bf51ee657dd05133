"""`convforge explain`: the method that is chosen and why, every other method, the workspace limit, bad use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.commands import Ran

from convforge import algorithms, parse_problem
from convforge.execution import find_plan

WINOGRAD = "n1c16h64w64_k32r3s3_f32_nchw_math-winograd"


@pytest.fixture
def run(run: Callable[..., Ran], wide: None) -> Callable[..., Ran]:
    """Run `convforge explain WORDS...` in a wide terminal."""
    return lambda *words: run("explain", *words)


def chosen(ran: Ran) -> tuple[str, str, str]:
    """The method that auto takes, its config, and why."""
    found = re.findall(r"^auto takes (\w+) \((.*?)\): (.+)$", ran.out, re.MULTILINE)
    assert len(found) == 1, ran.out
    name, config, why = found[0]
    return name, config, why


@pytest.mark.parametrize(
    "problem, name, why",
    [
        ("n1c8h32w32_k16r1s1_f32_nchw", "gemm_1x1", "a 1x1 filter is a matrix product"),
        ("n1c1h64w64_k1r3s3_p1_f32_nchw", "direct_rows", "bound by memory"),
        ("n1c16h32w32_k32r3s3_p1_f32_nchw", "implicit_gemm", "32 outputs of 144 products each"),
        ("n1c1h64w64_k1r7s7_f32_nchw_math-separable", "separable", "7 + 7 products instead of 49"),
        (WINOGRAD, "winograd_f4", "a quarter of the products"),
        ("n1c1h64w64_k1r31s31_f32_nchw_math-fft", "fft", "do not grow with the filter"),
        ("m64n64k64", "gemm_blas", "fastest"),
        ("max_n1c4h16w16_r3s3", "max_pool_rows", "fastest"),
        ("relu4096", "relu", "fastest"),
    ],
)
def test_the_chosen_method_and_why(done: Callable[..., Ran], problem: str, name: str, why: str) -> None:
    ran = done(problem)
    took, config, reason = chosen(ran)
    assert took == name
    assert why in reason
    plan = find_plan(parse_problem(problem), "auto", None, None, None)
    assert (took, config) == (plan.algorithm.name, str(plan.config)), "what a call takes"
    assert name in ran.rows


def test_the_problem_is_told_in_full(done: Callable[..., Ran]) -> None:
    lines = done("n2c3h20w30_k4r3s5_st2").out.splitlines()
    assert lines[0].startswith("n2c3h20w30_k4r3s5_st2_p0_f32_nchw on ")
    assert lines[1].strip() == "x (2, 3, 20, 30) -> out (2, 4, 9, 13)"
    flops, least = 2 * (2 * 4 * 9 * 13) * (3 * 3 * 5), 4 * (2 * 3 * 20 * 30 + 4 * 3 * 3 * 5 + 2 * 4 * 9 * 13)
    assert f"{flops / 1e3:.3g} kFLOP, at least {least / 1e3:.3g} kB moved: {flops / least:.1f} FLOP a byte" in lines[2]
    assert lines[2].endswith("n2c3h32w32_k4r3s5_st2_p0_f32_nchw"), "the tuning key: sizes rounded up"


@pytest.mark.parametrize(
    "problem", ["n1c8h16w16_k8r3s3_st2_d2_f32_nchw", "m8n8k8", "max_n1c4h16w16_r3s3_u8", "relu64_f64"]
)
def test_every_method_is_there_with_what_it_takes_or_why_not(done: Callable[..., Ran], problem: str) -> None:
    ran = done(problem)
    listed = {found.name: found for found in algorithms(problem)}
    assert list(ran.rows) == list(listed), "every method of the operation, in the list's order, and no other"
    for name, (arithmetic, _, workspace, launches, _, note) in ran.rows.items():
        assert arithmetic == listed[name].precision + ("" if listed[name].ours else ", peer")
        if not workspace:
            assert launches == ""
            assert len(note.split()) > 3, f"{name} says why not in a sentence"
        else:
            assert re.fullmatch(r"[\d.]+ [kMG]?B", workspace), name
            assert int(launches) >= 1
        if arithmetic.startswith("strict"):
            assert note == (listed[name].refusal or "")
            assert (workspace == "") is (listed[name].refusal is not None), name


def test_refusals_name_what_is_in_the_way(done: Callable[..., Ran]) -> None:
    rows = done("n1c8h16w16_k8r3s3_st2_f32_nchw").rows
    assert rows["gemm_1x1"][-1] == "the filter is 3x3, not 1x1"
    assert "the stride is (2, 2)" in rows["winograd_f4"][-1]
    rows = done("n1c8h16w16_k8r5s5_u8-i8-i32-i32_nchw").rows
    assert "this one is 5x5" in rows["winograd_f2"][-1]
    for name in ("fft", "separable"):
        assert "int32 sums would not be exact" in rows[name][-1]


def test_a_narrower_arithmetic_is_marked_as_such(done: Callable[..., Ran]) -> None:
    rows = done("n1c8h16w16_k8r3s3_p1_f32_nchw").rows
    for name, precision in (("winograd_f2", "winograd"), ("fft", "fft"), ("separable", "separable")):
        assert rows[name][0] == precision
        assert rows[name][-1] == f"only where '{precision}' is asked for"
    assert rows["direct_rows"][-1] == ""


def test_the_workspace_limit_changes_the_choice(done: Callable[..., Ran]) -> None:
    problem = parse_problem(WINOGRAD)
    free = done(WINOGRAD)
    needed = find_plan(problem, "winograd_f4", None, None, None).workspace_bytes
    assert needed > 0, "or this test shows nothing"
    assert chosen(free)[0] == "winograd_f4"
    assert chosen(done(WINOGRAD, "--workspace-limit", needed))[0] == "winograd_f4", "the limit itself is allowed"
    for limit in (str(needed - 1), "0", "1kB", "0.25MiB"):
        name, _, reason = chosen(done(WINOGRAD, "--workspace-limit", limit))
        assert name == "implicit_gemm", limit
        assert "32 outputs of 144 products" in reason, "the reason is that of the method taken"
        assert find_plan(problem, name, None, None, None).workspace_bytes == 0


def test_a_limit_may_leave_the_method_and_change_its_config(done: Callable[..., Ran]) -> None:
    problem = WINOGRAD.replace("winograd", "fft")
    default = find_plan(parse_problem(problem), "fft", None, None, None)
    limit = default.workspace_bytes - 1
    fitting = find_plan(parse_problem(problem), "fft", None, None, limit)
    assert fitting.config != default.config, "or this test shows nothing"
    assert chosen(done(problem))[:2] == ("fft", str(default.config))
    assert chosen(done(problem, "--workspace-limit", limit))[:2] == ("fft", str(fitting.config))


def test_the_row_of_the_chosen_method_shows_the_config_it_is_taken_with(done: Callable[..., Ran]) -> None:
    problem = WINOGRAD.replace("winograd", "fft")
    limit = find_plan(parse_problem(problem), "fft", None, None, None).workspace_bytes - 1
    ran = done(problem, "--workspace-limit", limit)
    assert ran.rows["fft"][1] == chosen(ran)[1]


def test_what_the_limit_passes_over_says_so(done: Callable[..., Ran]) -> None:
    rows = done(WINOGRAD, "--workspace-limit", "0").rows
    for name in ("winograd_f4", "im2col"):
        assert "limit" in rows[name][-1]
    assert "limit" not in rows["direct_rows"][-1]


def test_an_arithmetic_that_was_asked_for_needs_no_asking(done: Callable[..., Ran]) -> None:
    rows = done(WINOGRAD).rows
    assert rows["winograd_f4"][-1] == ""
    assert rows["fft"][-1] == "only where 'fft' is asked for"


def test_nothing_is_computed(done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.contract import Plan
    from convforge.backends.cpu.runtime import CpuRuntime

    def refuse(*words: Any, **more: Any) -> Any:
        raise AssertionError("explain must compute and time nothing")

    for kind, name in ((Plan, "__call__"), (Plan, "prepare"), (CpuRuntime, "launch"), (CpuRuntime, "time")):
        monkeypatch.setattr(kind, name, refuse)
    for problem in ("n1c16h32w32_k32r3s3_p1_f32_nchw", "m64n64k64", "max_n1c4h16w16_r3s3", "relu4096"):
        assert chosen(done(problem))[0] in done(problem).rows


def test_a_narrow_terminal_leaves_nothing_out(done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = done("n1c8h16w16_k8r3s3_st2_f32_nchw").out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    lines = [line.strip("│").split("│") for line in out.splitlines() if line.startswith("│")]
    names = "".join(line[0].strip() for line in lines)
    for found in algorithms("n1c8h16w16_k8r3s3_st2_f32_nchw"):
        assert found.name in names


@pytest.mark.parametrize(
    "words, says",
    [
        (("photo.png",), ("'photo.png' is not a problem", "n1c3h64w64_k8r3s3_st1_p1_f32_nchw", "m512n512k512_f32")),
        (("",), ("'' is not a problem",)),
        (("n1c3h64w64",), ("'n1c3h64w64' is not a problem",)),
        (("n1c3h64w64_k8r3s3_f33_nchw",), ("'f33'", "unknown")),
        (("n1c3h64w64_k8r3s3_st0",), ("stride=(0, 0)", "at least 1")),
        (("n1c3h64w64_k8r3s3_g2",), ("groups", "3")),
        (("n1c3h4w4_k8r5s5",), ("height of 5", "padding")),
        (("m8n8k8_f16",), ("float16", "float32 or float64")),
        (("m8n8k8", "--workspace-limit", "lots"), ("'lots' is no size", "64MB")),
        (("m8n8k8", "--workspace-limit", "-1"), ("'-1' is no size",)),
        (("m8n8k8", "--device", "gpu"), ("'gpu'", "'cpu'")),
        (("m8n8k8", "--limit", "3"), ("--limit",)),
        ((), ("problem",)),
    ],
)
def test_bad_use(refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]) -> None:
    refused(2, *words, says=says)


def test_a_problem_that_nothing_takes_ends_with_every_reason(run: Callable[..., Ran]) -> None:
    ran = run("n1c3h8w8_k4r3s3_bf16_nchw")
    assert ran.code == 2
    first, *reasons = ran.err.splitlines()
    assert first == "convforge: nothing that was allowed can compute n1c3h8w8_k4r3s3_st1_p0_bf16_nchw:"
    said = dict(line.strip().split(": ", 1) for line in reasons)
    assert said["gemm_1x1"] == "the filter is 3x3, not 1x1"
    assert said["direct_naive"] == "NumPy has no bfloat16; cast to float32"
    assert "Traceback" not in ran.err
