"""The way that times take from the kernel's process to the report; the emulator stands in for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.backends.emulated import needs_emulator
from tests.course.grader.kernels import NAIVE, PLANTED, planted

from convforge.backends.emulator import emulator_runtime
from convforge.course.grader import Report, worker
from convforge.course.grader.judge import CaseResult
from convforge.course.grader.report import Time
from convforge.course.grader.source import read_kernel
from convforge.timing import StoppingRule

PROBLEM = "n1c1h6w7_k1r3s3_st1_p1_f32_nchw"


def timed(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> list[Time]:
    monkeypatch.setitem(worker.LADDER, "emulator", ("direct_naive", "gemm_1x1"))
    monkeypatch.setattr(worker, "RULE", StoppingRule(samples=3, patience_s=0.0, budget_s=0.1))
    (folder / "own.cu").write_text(text, encoding="utf-8")
    own, runtime = read_kernel(folder / "own.cu"), emulator_runtime()
    return list(worker.time_kernel(own, "emulator", runtime, runtime.compile(own.source), PROBLEM))


@needs_emulator
def test_a_right_kernel_stands_beside_the_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, naive, refused = timed(tmp_path, NAIVE, monkeypatch)
    assert (kernel.name, naive.name, refused.name) == ("your kernel", "direct_naive", "gemm_1x1")
    assert kernel.seconds is not None
    assert kernel.seconds > 0
    assert naive.seconds is not None
    assert refused.seconds is None
    assert refused.note


@needs_emulator
def test_what_is_wrong_gets_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = timed(tmp_path, planted(NAIVE, PLANTED["flip"]), monkeypatch)
    assert kernel.seconds is None
    assert "wrong on this problem" in kernel.note
    (stray,) = timed(tmp_path, planted(NAIVE, PLANTED["out of bounds"]), monkeypatch)
    assert "past the end of y" in stray.note


def test_times_are_in_text_and_json() -> None:
    from convforge.course.grader import DEFAULT

    times = (Time("your kernel", 2e-3, 0.01), Time("cudnn", None, note="there is none"))
    report = Report("own.cu", "kernel", "cuda", (CaseResult(DEFAULT[0], "right"),), times=times, timed=PROBLEM)
    assert "  your kernel  2.00 ms +- 1.0 %\n  cudnn        no time: there is none\n" in report.to_text()
    assert report.to_table()["times"][0] == {"name": "your kernel", "seconds": 2e-3, "spread": 0.01, "note": ""}
