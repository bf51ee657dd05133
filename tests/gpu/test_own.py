"""Readers' kernels on a GPU: right, wrong, endless, out of bounds, and timed beside the ladder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.course.grader.kernels import NAIVE, PLANTED, SHARED, planted
from tests.gpu.present import need_gpu

from convforge.course.grader import DEFAULT, TIMED, Limits, Report, check_kernel, check_program

need_gpu()

# What a GPU shows otherwise: variables that are not set hold anything, and a loop that has no effect may be left out.
UNSEEN = {"unset sum", "endless"}


def checked(folder: Path, text: str, timed: str = "") -> Report:
    file = folder / "own.cu"
    file.write_text(text, encoding="utf-8")
    return check_kernel(file, DEFAULT, device="cuda", limits=Limits(seconds=5), timed=timed)


@pytest.mark.parametrize("text", [NAIVE, SHARED], ids=["naive", "shared"])
def test_a_right_kernel_is_right_and_timed(tmp_path: Path, text: str) -> None:
    report = checked(tmp_path, text, TIMED)
    assert report.status == "right", report.to_text()
    assert [time.name for time in report.times][:2] == ["your kernel", "direct_naive"]
    for time in report.times:
        assert time.seconds is not None or time.name == "cudnn", report.to_text()


@pytest.mark.parametrize("name", sorted(set(PLANTED) - UNSEEN))
def test_a_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    report = checked(tmp_path, planted(NAIVE, PLANTED[name]))
    assert report.faults == [PLANTED[name][2]], report.to_text()


def test_an_endless_kernel_is_stopped(tmp_path: Path) -> None:
    report = checked(
        tmp_path, NAIVE.replace("float sum = 0.0f;", "float sum = 0.0f;\n    while (K) atomicAdd(y, 1.0f);")
    )
    assert report.results[0].status == "time", report.to_text()
    assert checked(tmp_path, NAIVE).status == "right", "the GPU can be used again"


def test_an_address_that_is_no_memory_ends_one_case_alone(tmp_path: Path) -> None:
    text = NAIVE.replace("+ q] = sum;", "+ q + (N > 1 ? 1LL << 40 : 0)] = sum;")
    report = checked(tmp_path, text)
    wrong = [result for result in report.results if result.status != "right"]
    assert [result.case.problem.n for result in wrong] == [3, 2], report.to_text()
    assert {result.faults for result in wrong} == {("address outside of all memory",)}


def test_a_launch_that_no_gpu_makes_is_said(tmp_path: Path) -> None:
    file = tmp_path / "own.cu"
    file.write_text(NAIVE, encoding="utf-8")
    report = check_kernel(file, DEFAULT[:1], device="cuda", launch="block=2048 grid=1,P,N*K")
    assert report.faults == ["a launch that this GPU does not make"], report.to_text()


def test_a_program_stands_beside_the_ladder_of_the_gpu() -> None:
    program = Path(__file__).parents[2] / "examples" / "student_conv.py"
    report = check_program(str(program), DEFAULT[:1], timed=TIMED)
    assert "direct_tiled" in [time.name for time in report.times]
    assert any("calls on cuda" in note for note in report.notes)
