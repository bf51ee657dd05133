"""`convforge tune`: what it measures, writes and says; and what `convforge explain` says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Ran
from tests.tuning.played import Table, entry, fastest

from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import parse_problem
from convforge.tuning import CHOICES, decide, remembered
from convforge.tuning.choices import Tried, bucket_of, environment_of, read

TEXT = "n1c8h24w24_k8r3s3_st1_p1_f32_nchw"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of each test's choices, in a wide terminal."""
    monkeypatch.setattr(CHOICES, "folder", tmp_path / "tuned")
    monkeypatch.delenv("CONVFORGE_TUNE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    CHOICES.forget()
    yield tmp_path / "tuned"
    monkeypatch.undo()
    CHOICES.forget()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Replace the device's measurements: im2col is fastest, direct_naive is wrong."""
    times: dict[Any, Any] = {"im2col": 1e-6, "direct_naive": "row 3 is wrong"}
    found = Table(times)
    monkeypatch.setattr("convforge.tuning.trial.DeviceTrial", lambda *words: found)
    return found


def test_a_problem_is_measured_and_written(run: Callable[..., Ran], table: Table, tmp_path: Path) -> None:
    out = tmp_path / "tuned.json"
    ran = run("tune", TEXT, "-o", out)
    assert ran.code == 0, ran.err
    assert re.search(r"n1c8h32w32_k8r3s3_st1_p1_f32_nchw +im2col \S+ +1\.00 us +\d+\n", ran.out)
    assert ": direct_naive : row 3 is wrong" in ran.out
    assert ran.err == f"{out} holds 1 buckets; CONVFORGE_TUNED={out} uses them\n"
    (one,) = read(out)
    assert (one.level, one.problem, one.tried[0].algorithm) == ("max", TEXT, "im2col")
    assert json.loads(out.read_text())["tuned"][0]["environment"]["device"] == cpu_facts().name
    assert decide(parse_problem(TEXT), cpu_runtime()).algorithm.name == "im2col", "it is remembered here, too"


def test_a_file_is_merged_and_what_is_remembered_is_not_measured_again(
    run: Callable[..., Ran], table: Table, tmp_path: Path
) -> None:
    out = tmp_path / "tuned.json"
    run("tune", TEXT, "-o", out, "--level", "auto")
    measured = len(table.timed)
    ran = run("tune", TEXT, "n1c8h20w28_k8r3s3_p1_f32_nchw", "m8n8k8", "-o", out, "--level", "auto")
    assert ran.err.startswith(f"{out} holds 2 buckets"), ran
    assert {c.algorithm.operation for c in table.timed[measured:]} == {"gemm"}
    run("tune", TEXT, "--level", "auto", "--again")
    assert table.timed[-1].algorithm.operation == "conv2d"


def test_a_shipped_file_is_used(run: Callable[..., Ran], table: Table, tmp_path: Path) -> None:
    out = tmp_path / "tuned.json"
    run("tune", TEXT, "-o", out)
    for path in CHOICES.folder.rglob("*.json"):  # type: ignore[union-attr]
        path.unlink()
    CHOICES.forget()
    assert decide(parse_problem(TEXT), cpu_runtime()).untuned
    CHOICES.load(out)
    choice = decide(parse_problem(TEXT), cpu_runtime())
    assert choice.algorithm.name == "im2col"
    assert choice.reason.endswith(f"by {out}")


def test_a_suite_is_measured(run: Callable[..., Ran], table: Table) -> None:
    ran = run("tune", "smoke", "--level", "auto", "--budget", "1s")
    assert ran.code == 0, ran.err
    assert "n1c8h32w32_k8r3s3_st1_p1_f32_nhwc" in ran.out
    assert re.search(r"relu65536_f32 +by rule +- +1\n", ran.out), "a single candidate is not measured"


def test_a_limit_is_part_of_what_is_remembered(run: Callable[..., Ran], table: Table) -> None:
    run("tune", TEXT, "--workspace-limit", "4kB")
    problem = parse_problem(TEXT)
    assert remembered(problem, cpu_runtime(), "auto", 4000) is not None
    assert remembered(problem, cpu_runtime()) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), ("SUITE|PROBLEM",)),
        (("nosuch",), ("'nosuch' is no suite",)),
        ((TEXT, "--level", "most"), ("--level 'most' is unknown", "auto, max")),
        ((TEXT, "--budget", "soon"), ("--budget 'soon'",)),
        ((TEXT, "--device", "gpu"), ("'gpu'", "'cpu'")),
        ((TEXT, "--device", "emulator"), ("its times say nothing about a GPU",)),
    ],
)
def test_bad_use(refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]) -> None:
    said = refused(2, "tune", *words, says=())
    assert all(word.lower() in said.lower() for word in says), said


def test_a_file_that_is_none_of_tuned_choices_is_left_alone_before_anything_is_measured(
    refused: Callable[..., str], table: Table, tmp_path: Path
) -> None:
    path = tmp_path / "photo.json"
    path.write_text("{}")
    refused(2, "tune", TEXT, "-o", path, says=("holds no tuned choices",))
    assert table.timed == []
    assert path.read_text() == "{}"


def test_explain_says_that_nothing_is_tuned_and_what_was(run: Callable[..., Ran], table: Table) -> None:
    before = run("explain", TEXT, "--no-time").out
    assert "nothing is measured yet of problems like it" in before
    run("tune", TEXT, "--level", "auto")
    after = run("explain", TEXT, "--no-time").out
    assert "nothing is measured yet" not in after
    assert re.search(r"^auto takes im2col: measured: the fastest of \d+, for n1c8h32w32_k8r3s3_", after, re.MULTILINE)
    assert re.search(rf"^  \d+ candidates were tried .*at level auto on {TEXT}$", after, re.MULTILINE)
    header = next(line for line in after.splitlines() if line.startswith("method"))
    assert header.split()[-2:] == ["place", "tuned"]
    row = next(line for line in after.splitlines() if line.startswith("im2col"))
    assert row.split()[-2:] == ["1.00", "us"]


def test_explain_says_ties_and_what_was_wrong(run: Callable[..., Ran]) -> None:
    problem, where = parse_problem(TEXT), environment_of("conv2d", cpu_facts())
    tied = [fastest(name, tied=True) for name in ("direct_rows", "im2col")]
    wrong = Tried("implicit_gemm", "", True, 1e-3, fault="row 0 is wrong", wrong=True)
    CHOICES.remember(entry(bucket_of(problem), where, *tied, wrong))
    out = run("explain", TEXT, "--no-time").out
    assert "auto takes direct_rows: measured: in a tie with im2col, of 2" in out
    assert "im2col: tied with the fastest when it was tuned, with no config" in out
    assert "implicit_gemm: no time when it was tuned, and never chosen: row 0 is wrong" in out


def test_explain_says_that_a_choice_is_another_librarys(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    problem, where = parse_problem(TEXT), environment_of("conv2d", cpu_facts())
    CHOICES.remember(entry(bucket_of(problem, peers=True), where, fastest("torch_conv2d", ours=False)))
    assert "torch_conv2d: measured" not in run("explain", TEXT, "--no-time").out
    monkeypatch.setenv("CONVFORGE_PEERS", "1")
    out = run("explain", TEXT, "--no-time").out
    assert re.search(r"auto takes torch_conv2d: measured: .*; it is another library's", out)
