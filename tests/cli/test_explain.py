"""`convforge explain`: the method that is chosen and why, every other one, limits, times, refusals, bad use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.cli.commands import Ran

from convforge import algorithms, parse_problem
from convforge.algorithms import algorithms as our_algorithms
from convforge.algorithms.pieces import pieces
from convforge.backends.cpu import cpu_runtime
from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.recording import Recording
from convforge.backends.runtime import LaunchInfo
from convforge.call.dispatch import find_plan
from convforge.cli import survey
from convforge.timing.ceilings import Ceilings

WINOGRAD = "n1c16h64w64_k32r3s3_f32_nchw_math-winograd"


@pytest.fixture
def run(run: Callable[..., Ran], wide: None) -> Callable[..., Ran]:
    """Run `convforge explain WORDS...` in a wide terminal; nothing is timed unless the words say so."""
    return lambda *words: run("explain", *words, *(() if "--time" in words else ("--no-time",)))


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Ceilings:
    """Ceilings that are known: 20 GB/s and 100 GFLOP/s."""
    import convforge.timing.ceilings as room

    found = Ceilings(20e9, 100e9)
    monkeypatch.setattr(room, "measure_ceilings", lambda runtime, repeats=0: found)
    return found


def table(ran: Ran) -> dict[str, dict[str, str]]:
    """The one table: method -> column -> cell."""
    lines = ran.out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("method"))
    columns = re.split(r" {2,}", lines[first].strip())
    found: dict[str, dict[str, str]] = {}
    for line in lines[first + 2 :]:
        cells = re.split(r" {2,}", line.strip())
        if len(cells) != len(columns):
            break
        assert cells[0] not in found, f"{cells[0]} occurs twice in\n{ran.out}"
        found[cells[0]] = dict(zip(columns, cells, strict=True))
    return found


def notes(ran: Ran, word: str) -> dict[str, str]:
    """Return the lines that begin "method: word": method -> the rest."""
    return dict(re.findall(rf"^(\w+): {word}(.+)$", ran.out, re.MULTILINE))


def chosen(ran: Ran) -> tuple[str, str, str]:
    """The method that auto takes, its config, and why."""
    found = re.findall(r"^auto takes (\w+): (.+)\n(?:  with (.+)\n)?", ran.out, re.MULTILINE)
    assert len(found) == 1, ran.out
    name, why, config = found[0]
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
    assert name in table(ran)


def test_the_problem_is_told_in_full(done: Callable[..., Ran]) -> None:
    lines = [line.strip() for line in done("n2c3h20w30_k4r3s5_st2").out.splitlines()]
    assert lines[0] == "n2c3h20w30_k4r3s5_st2_p0_f32_nchw"
    assert lines[1] == f"on {cpu_facts().name}, {cpu_facts().cores} cores"
    assert lines[2] == "x (2, 3, 20, 30) -> out (2, 4, 9, 13)"
    flops, least = 2 * (2 * 4 * 9 * 13) * (3 * 3 * 5), 4 * (2 * 3 * 20 * 30 + 4 * 3 * 3 * 5 + 2 * 4 * 9 * 13)
    assert lines[3] == f"{flops / 1e3:.3g} kFLOP, at least {least / 1e3:.3g} kB moved: {flops / least:.1f} FLOP a byte"
    assert lines[4] == "tuning key n2c3h32w32_k4r3s5_st2_p0_f32_nchw_v8x4", "sizes rounded up, vectors named"


@pytest.mark.parametrize(
    "problem", ["n1c8h16w16_k8r3s3_st2_d2_f32_nchw", "m8n8k8", "max_n1c4h16w16_r3s3_u8", "relu64_f64"]
)
def test_every_method_is_there_with_what_it_takes_or_why_not(done: Callable[..., Ran], problem: str) -> None:
    ran = done(problem)
    ours = {found.name: found for found in algorithms(problem) if found.ours}
    rows, refused = table(ran), notes(ran, "refuses: ")
    assert sorted([*rows, *refused]) == sorted(ours), "every method of ours, once"
    assert list(rows) == [name for name in ours if name in rows], "in the list's order"
    for name, reason in refused.items():
        assert len(reason.split()) > 3, f"{name} says why not in a sentence"
        assert ours[name].precision != "strict" or reason == ours[name].refusal
    for name, row in rows.items():
        assert list(row) == ["method", "launches", "tile", "workspace", "place"]
        assert re.fullmatch(r"[\d.]+ [kMG]?B", row["workspace"]), name
        assert int(row["launches"]) >= 1
    assert sorted(int(row["place"].removesuffix(".")) for row in rows.values()) == [*range(1, len(rows) + 1)]
    assert "predicted" not in ran.out, "the cost model's seconds predict no time"
    peers = [found.name for found in algorithms(problem) if not found.ours]
    assert f"other libraries with --peers: {', '.join(peers)}" in ran.out


def test_peers_are_listed_where_they_are_asked_for(done: Callable[..., Ran]) -> None:
    ran = done("m8n8k8", "--peers")
    assert sorted([*table(ran), *notes(ran, "refuses: ")]) == sorted(found.name for found in algorithms("m8n8k8"))
    assert "--peers" not in ran.out


def test_only_the_methods_that_are_named(done: Callable[..., Ran]) -> None:
    ran = done("n1c8h16w16_k8r5s5_f32_nchw", "--methods", "direct*, winograd_f2,scipy_ndimage")
    assert [*table(ran), *notes(ran, "refuses: ")] == ["direct_naive", "direct_rows", "scipy_ndimage", "winograd_f2"]


def test_refusals_name_what_is_in_the_way(done: Callable[..., Ran]) -> None:
    said = notes(done("n1c8h16w16_k8r3s3_st2_f32_nchw"), "refuses: ")
    assert said["gemm_1x1"] == "the filter is 3x3, not 1x1"
    assert "the stride is (2, 2)" in said["winograd_f4"]
    said = notes(done("n1c8h16w16_k8r5s5_u8-i8-i32-i32_nchw"), "refuses: ")
    assert "this one is 5x5" in said["winograd_f2"]
    for name in ("fft", "separable"):
        assert "int32 sums would not be exact" in said[name]


def test_a_narrower_arithmetic_is_marked_as_such(done: Callable[..., Ran]) -> None:
    said = notes(done("n1c8h16w16_k8r3s3_p1_f32_nchw"), "only where ")
    assert said == {
        "winograd_f2": "'winograd' is asked for",
        "winograd_f4": "'winograd' is asked for",
        "fft": "'fft' is asked for",
        "separable": "'separable' is asked for",
    }


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
    detailed = done(problem, "--workspace-limit", limit, "--verbose", "--methods", "fft")
    assert f"  config {chosen(ran)[1]}\n" in detailed.out


def test_what_the_limit_passes_over_says_so(done: Callable[..., Ran]) -> None:
    ran = done(WINOGRAD, "--workspace-limit", "0")
    said = notes(ran, "refuses: ")
    for name in ("winograd_f4", "im2col"):
        assert "the limit is 0" in said[name]
    assert table(ran)["direct_rows"]["workspace"] == "0 B"


def test_an_arithmetic_that_was_asked_for_needs_no_asking(done: Callable[..., Ran]) -> None:
    said = notes(done(WINOGRAD), "only where ")
    assert "winograd_f4" not in said
    assert said["fft"] == "'fft' is asked for"


def test_without_times_nothing_is_computed(done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.contract import Plan
    from convforge.backends.cpu.runtime import CpuRuntime

    def refuse(*words: Any, **more: Any) -> Any:
        raise AssertionError("--no-time must compute and time nothing")

    for kind, name in ((Plan, "__call__"), (Plan, "prepare"), (CpuRuntime, "launch"), (CpuRuntime, "time")):
        monkeypatch.setattr(kind, name, refuse)
    for problem in ("n1c16h32w32_k32r3s3_p1_f32_nchw", "m64n64k64", "max_n1c4h16w16_r3s3", "relu4096"):
        assert chosen(done(problem))[0] in table(done(problem))


def test_a_narrow_terminal_leaves_nothing_out(done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = done("n1c8h16w16_k8r3s3_st2_f32_nchw").out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    for found in algorithms("n1c8h16w16_k8r3s3_st2_f32_nchw"):
        assert found.name in out


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
        (("m8n8k8_i16",), ("int16", "float32, float64")),
        (("m8n8k8", "--workspace-limit", "lots"), ("'lots' is no size", "64MB")),
        (("m8n8k8", "--workspace-limit", "-1"), ("'-1' is no size",)),
        (("m8n8k8", "--device", "gpu"), ("'gpu'", "'cpu'")),
        (("m8n8k8", "--limit", "3"), ("--limit",)),
        (("m8n8k8", "--budget", "soon"), ("--budget 'soon'",)),
        (("m8n8k8", "--methods", "gemm_bias"), ("'gemm_bias'", "did you mean 'gemm_blas'")),
        ((), ("problem",)),
    ],
)
def test_bad_use(refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]) -> None:
    refused(2, *words, says=says)


def test_a_problem_that_nothing_takes_ends_with_every_reason(run: Callable[..., Ran]) -> None:
    ran = run("n1c3h8w8_k4r3s3_f8e4m3_nchw")
    assert ran.code == 2
    first, *reasons = ran.err.splitlines()
    assert first == "convforge: nothing that was allowed can compute n1c3h8w8_k4r3s3_st1_p0_f8e4m3_nchw:"
    said = dict(line.strip().split(": ", 1) for line in reasons)
    assert said["direct_naive"] == "it does not take float8_e4m3fn; cast to float16, bfloat16 or float32"
    assert "Traceback" not in ran.err


def test_times_beside_the_limit_and_what_makes_it(done: Callable[..., Ran], still: Ceilings) -> None:
    ran = done("n1c3h40w40_k4r3s3_p1_f32_nchw", "--time", "--budget", "10m")
    flops, least = 2 * 4 * 40 * 40 * 27, 4 * (3 * 40 * 40 + 4 * 27 + 4 * 40 * 40)
    assert f"limit {1e6 * flops / 100e9:.3g} us, by arithmetic" in ran.out
    assert f"memory {1e6 * least / 20e9:.3g} us for {least / 1e3:.3g} kB at 20 GB/s (copy)" in ran.out
    assert "at 100 GFLOP/s (float32 FMA)" in ran.out
    rows = table(ran)
    assert list(rows["direct_rows"])[:3] == ["method", "time", "of limit"]
    seconds = {}
    for name, row in rows.items():
        found = re.fullmatch(r"~?([\d.]+) (us|ms|s)", row["time"])
        assert found, f"{name}: {row['time']}"
        seconds[name] = float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]
        share = 100 * flops / 100e9 / seconds[name]
        assert float(row["of limit"].removesuffix(" %")) == pytest.approx(share, rel=0.05, abs=0.6)
    fastest = re.findall(r"^fastest now: (.+)$", ran.out, re.MULTILINE)
    strict = min((name for name in rows if not re.match("winograd|fft|separable", name)), key=seconds.__getitem__)
    assert strict in fastest[0]
    assert "checked against float64 first" in ran.out


def test_a_wrong_result_is_given_no_time(
    done: Callable[..., Ran], still: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.gemm import GemmBlocked

    honest = GemmBlocked.plan

    def plan(self: Any, *words: Any) -> Any:
        made = honest(self, *words)
        monkeypatch.setattr(made, "execute", lambda buffers, stream: buffers["c"].fill(0))
        return made

    monkeypatch.setattr(GemmBlocked, "plan", plan)
    ran = done("m24n24k24", "--time")
    rows = table(ran)
    assert (rows["gemm_blocked"]["time"], rows["gemm_blocked"]["of limit"]) == ("failed", "-")
    assert "gemm_blocked" in notes(ran, "failed: ")
    assert re.fullmatch(r"~?[\d.]+ us", rows["gemm_blas"]["time"])
    assert "gemm_blocked" not in re.findall(r"^fastest now: .+$", ran.out, re.MULTILINE)[0]


def test_what_does_not_fit_the_budget_says_so(done: Callable[..., Ran], still: Ceilings) -> None:
    ran = done("m700n700k700", "--time", "--budget", "1ms")
    for name, row in table(ran).items():
        assert row["time"] == "skipped", name
    assert "fastest now: -" in ran.out
    assert set(notes(ran, "skipped: ")) == set(table(ran))
    assert "a longer --budget" in ran.out


@pytest.mark.parametrize(
    "problem, bound, arithmetic",
    [("m512n512k512", "arithmetic", True), ("m512n1k512", "memory", True), ("m64n64k64_f64", "memory", False),
     ("max_n1c4h16w16_r3s3", "memory", False), ("n1c8h16w16_k8r3s3_u8-i8-i32-i32_nchw", "memory", False)],
)  # fmt: skip
def test_the_limit_is_memory_or_arithmetic(problem: str, bound: str, arithmetic: bool) -> None:
    limit = survey.roofline(parse_problem(problem), Ceilings(20e9, 100e9))
    assert limit.bound == bound
    assert (limit.arithmetic_s is not None) is arithmetic, "the peak of float32 says nothing about other sums"
    assert limit.seconds == max(limit.memory_s, limit.arithmetic_s or 0)


@needs_emulator
def test_the_emulator_has_launches_but_no_times(done: Callable[..., Ran]) -> None:
    ran = done("n1c3h20w40_k3r3s3_p1_f32_nchw", "--device", "emulator", "--time", "--verbose")
    assert "the emulator's times say nothing about a GPU" in ran.out
    assert "fastest" not in ran.out
    rows = table(ran)
    assert list(rows["direct_shared"]) == ["method", "launches", "shared", "workspace"]
    assert rows["direct_shared"]["shared"] != "0 B"
    plan = find_plan(parse_problem("n1c3h20w40_k3r3s3_p1_f32_nchw"), "direct_naive", None, "emulator", None)
    (info,) = plan.launches
    grid, block = (" x ".join(map(str, sizes)) for sizes in (info.grid, info.block))
    assert f"  direct_naive: grid {grid}, block {block}\n" in ran.out


def test_registers_and_occupancy_of_a_gpus_launches() -> None:
    plain = LaunchInfo("first", (4, 2), (32, 8), 1024, registers=40, spills=0, occupancy=0.75)
    spilling = replace(plain, kernel="second", registers=255, spills=96, occupancy=0.125)
    plan: Any = type("Planned", (), {"launches": (plain, plain, spilling)})
    entry = survey.Entry(None, None, plan)  # type: ignore[arg-type]
    assert survey._registers(entry) == "255 +96 B", "the most, and what spills"
    assert survey._occupancy(entry) == "12 %", "the least"
    assert survey.launch_lines(plan.launches, "cuda") == [
        "2 x first: grid 4 x 2, block 32 x 8, 1.02 kB of shared memory, 40 registers, 0 B spilled, occupancy 75 %",
        "second: grid 4 x 2, block 32 x 8, 1.02 kB of shared memory, 255 registers, 96 B spilled, occupancy 12 %",
    ]


def test_the_ways_of_a_call_on_a_gpu(done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convforge.call.dispatch.runtime_of", lambda device: Recording(H200))
    problem = "n2c64h28w28_k64r3s3_st1_p1_f32_nhwc"
    ways: dict[str, list[str]] = {}
    for algorithm in our_algorithms():
        if algorithm.backend == "cuda" and algorithm.name in ("implicit_gemm_split", "implicit_gemm_tf32"):
            asked: Any = parse_problem(problem).replace(precision=algorithm.precision)  # type: ignore[attr-defined]
            config = algorithm.configs(asked, H200)[0]
            ways[algorithm.name] = [f"{name}: {words}" for name, _, words in algorithm.ways(asked, config)]
    words = ("--device", "cuda", "--methods", "implicit_gemm_split,implicit_gemm_tf32,direct_naive")
    brief, detailed = (" ".join(done(problem, *words, *more).out.split()) for more in ((), ("--verbose",)))
    assert "auto takes implicit_gemm_split" in brief
    assert len(ways["implicit_gemm_split"]) == 4
    for way in ways["implicit_gemm_split"]:
        assert brief.count(way) == 1
        assert detailed.count(way) == (2 if way in ways["implicit_gemm_tf32"] else 1), "of each method once"
    assert all(way in detailed for way in ways["implicit_gemm_tf32"])
    assert "thread_stores" not in brief, "of the method that is taken alone"


# Vast problems.


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "problem",
    ["n1c64h100000w100000_k64r3s3_p1_f32_nchw", "n1000000c1h100w100_k1r3s3_p1_f32_nchw", "n9000c1h1100w1100_k1r31s31"],
)
def test_a_vast_problem_is_explained_without_its_plans(done: Callable[..., Ran], problem: str) -> None:
    ran = done(problem)
    unplanned = notes(ran, "not planned: ")
    assert unplanned
    assert all(re.fullmatch(r"its plan has \d{6,} pieces, .*; ask for less", said) for said in unplanned.values())
    assert {"direct_rows", "direct_naive"} <= set(table(ran))
    assert chosen(ran)[0] in table(ran)


def test_a_vast_problem_whose_own_plan_is_vast_is_refused(run: Callable[..., Ran]) -> None:
    ran = run("n1c1h100000w100000_k1r3s3_p1_f32_nchw_math-fft")
    assert ran.code == 2
    assert re.search(r"math-fft gets fft: its plan has \d+ pieces", ran.err)


@pytest.mark.parametrize(
    "problem",
    ["n3c4h150w170_k5r3s3_p1_f32_nchw", "n70c1h90w20_k1r5s5_st2_f64_nhwc", "n1c2h33w900_k8r3s3_g2_f16_nchw"],
)
def test_pieces_are_told_as_plans_have_them(problem: str) -> None:
    """No plan of any method on the CPU has more than a few launches for each predicted piece."""
    asked: Any = parse_problem(problem)
    for algorithm in [a for a in our_algorithms() if (a.operation, a.backend) == ("conv2d", "cpu")]:
        if algorithm.refuses(asked.replace(precision=algorithm.precision), cpu_facts()):
            continue
        for config in algorithm.configs(asked, cpu_facts()):
            launches = len(algorithm.plan(asked, config, cpu_runtime()).launches)
            predicted = pieces(algorithm, asked, config)
            assert launches <= 3 * predicted + cpu_facts().cores, f"{algorithm.name} {config}"
