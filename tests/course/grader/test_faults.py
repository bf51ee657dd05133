"""Every fault that has a name, planted in a small kernel and named; kernels that are right are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.backends.emulated import needs_emulator
from tests.course.grader.kernels import EXAMPLES, NAIVE, PLANTED, PLANTED_SHARED, SHARED, planted

from convforge.course.grader import DEFAULT, Limits, Report, check_kernel
from convforge.course.grader.report import advice

pytestmark = needs_emulator


def checked(folder: Path, text: str, seconds: float = 60, **options: object) -> Report:
    file = folder / "own.cu"
    file.write_text(text, encoding="utf-8")
    return check_kernel(file, DEFAULT, limits=Limits(seconds), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [NAIVE, SHARED], ids=["naive", "shared"])
def test_a_right_kernel_is_right(tmp_path: Path, text: str) -> None:
    report = checked(tmp_path, text)
    assert report.status == "right", report.to_text()
    assert report.passed == len(DEFAULT)
    assert report.faults == []


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    report = checked(tmp_path, planted(NAIVE, PLANTED[name]), 2 if name == "endless" else 60)
    assert report.faults == [PLANTED[name][2]], report.to_text()
    assert report.exit_code == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PLANTED_SHARED)
def test_a_planted_fault_of_shared_memory_is_named(tmp_path: Path, name: str) -> None:
    report = checked(tmp_path, planted(SHARED, PLANTED_SHARED[name]))
    assert report.faults == [PLANTED_SHARED[name][2]], report.to_text()
    assert report.exit_code == 1


# Wrong in ways that have no name.
UNNAMED = {
    "stride of the filter's rows": ("p * stride_h + r - pad_top", "(p + r) * stride_h - pad_top"),
    "R for S": ("* R + r) * S + s]", "* R + r) * R + s]"),
    "NaN in one place": ("+ q] = sum;", "+ q] = p == 2 && q == 3 ? (1e38f * 1e38f) * 0 : sum;"),
    "infinite in one place": ("+ q] = sum;", "+ q] = p == 2 && q == 3 ? 1e38f * 1e38f : sum;"),
    "some not written": ("+ q] = sum;", "+ ((p + q) % 3 ? q : 0)] = sum;"),
    "slightly off": ("+ q] = sum;", "+ q] = sum * 1.0000005f;"),
}  # fmt: skip
WRONG = {
    **{f"naive: {name}": planted(NAIVE, change) for name, change in PLANTED.items() if name != "endless"},
    **{f"shared: {name}": planted(SHARED, change) for name, change in PLANTED_SHARED.items()},
    **{f"unnamed: {name}": planted(NAIVE, (*change, "")) for name, change in UNNAMED.items()},
    "example": (EXAMPLES / "student_wrong.cu").read_text(encoding="utf-8"),
}


@pytest.mark.one_in(31)
@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_row_shows_its_first_wrong_output(tmp_path: Path, name: str) -> None:
    report = checked(tmp_path, WRONG[name])
    lines, rows = report.to_text().splitlines(), report.to_table()["results"]
    assert report.exit_code == 1
    for result, row in zip(report.results, rows, strict=True):
        first = result.first
        assert (first is not None) == (result.status == "wrong") == (row["first_wrong"] is not None), row
        if first is None:
            continue
        assert first.expected == result.case.judge.truth.value[first.index]
        assert first.expected != first.got
        at = next(i for i, line in enumerate(lines) if f"{result.case.name} ({result.case.text})" in line)
        assert str(first) in lines[at + 1], report.to_text()
        assert row["first_wrong"]["index"] == list(first.index)
        assert float(row["first_wrong"]["got"]) == first.got or first.got != first.got
        json.dumps(row, allow_nan=False)


def test_an_output_that_is_only_inexact_shows_the_worst_of_its_band(tmp_path: Path) -> None:
    report = checked(tmp_path, planted(NAIVE, (*UNNAMED["slightly off"], "")))
    (case,) = [result for result in report.results if result.case.kind == "normal"]
    assert case.status == "wrong"
    assert case.message.startswith("each output is nearly right, but the RMS error"), case.message
    assert "the worst at [n, k, p, q] = " in case.message


def test_two_faults_at_once_have_no_name(tmp_path: Path) -> None:
    text = planted(planted(NAIVE, PLANTED["flip"]), PLANTED["off by one"])
    report = checked(tmp_path, text)
    assert report.passed == 0
    assert report.faults == []
    assert "no known fault gives this" in report.to_text()


def test_faults_that_cannot_be_told_apart_are_all_said(tmp_path: Path) -> None:
    from convforge.course.grader import cases_of

    file = tmp_path / "own.cu"
    file.write_text(planted(NAIVE, PLANTED["first channel"]), encoding="utf-8")
    report = check_kernel(file, cases_of("n1c2h6w7_k1r3s3_st1_p1_f32_nchw"))
    assert report.faults == ["the last channel is ignored", "only the first channel counts"]
    assert "which these cases do not tell apart" in report.to_text()


def test_faults_of_different_cases_are_said_to_be_so(tmp_path: Path) -> None:
    divided = NAIVE.replace("blockIdx.z / K", "blockIdx.z / (K - 1)")
    report = checked(tmp_path, divided)
    assert report.faults == ["an integer divided by zero", "writes outside of the output"], report.to_text()
    assert "likely faults, each of some cases" in report.to_text()


def test_the_wrong_example_forgets_the_halo() -> None:
    report = check_kernel(EXAMPLES / "student_wrong.cu", DEFAULT)
    assert report.faults == ["halo missing: pixels outside of the block's own count as 0"], report.to_text()


def test_every_fault_of_a_result_has_advice() -> None:
    names = {change[2] for change in (*PLANTED.values(), *PLANTED_SHARED.values())}
    without = {name for name in names if not advice(name)}
    # What the process or the emulator saw brings its advice in the message.
    assert without == {
        "a loop that does not end", "writes outside of the output", "divergent barrier: not all threads come to it",
        "index outside of dynamic shared memory",
    }  # fmt: skip


def test_the_emulators_errors_come_with_the_line(tmp_path: Path) -> None:
    text = planted(SHARED, PLANTED_SHARED["divergent barrier"])
    line = next(i for i, words in enumerate(text.splitlines(), 1) if "the tile is loaded" in words)
    said = checked(tmp_path, text).to_text()
    assert f"own.cu:{line}" in said
    assert f"line {line}: __syncthreads();  // the tile is loaded" in said
    assert "every thread of a block must come to the same __syncthreads()" in said


def test_a_kernel_of_fixed_tile_is_caught_at_its_index(tmp_path: Path) -> None:
    text = NAIVE.replace("float sum = 0.0f;", "float sum = 0.0f, kept[9];\n    kept[R * S] = 1;")
    report = checked(tmp_path, text)
    assert report.faults == ["index outside of an array"]
    assert "index 9 is outside of 'float [9]'" in report.to_text()
    assert "kept[R * S] = 1;" in report.to_text()


def test_a_check_loads_no_numba(tmp_path: Path) -> None:
    """It would take longer than all of its launches; the largest case is run by several threads."""
    file = tmp_path / "own.cu"
    file.write_text(NAIVE, encoding="utf-8")
    case = {"number": 0, "problem": DEFAULT[8].text, "kind": DEFAULT[8].kind}
    job = {"file": str(file), "kernel": "", "launch": "", "device": "emulator", "cases": [case], "timed": ""}
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    code = "import sys, pathlib\nfrom convforge.course.grader import worker\n"
    code += f"worker.work(pathlib.Path({str(tmp_path)!r}))\n"
    code += "print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
    assert (tmp_path / "events.jsonl").read_text().count('"done"') == 3
