"""The tuner on a GPU: what it measures is right and remembered, and a stream that is captured is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu, need_gpu

from convforge import conv2d
from convforge.call import dispatch
from convforge.problem import parse_problem, tuning_key
from convforge.tuning import CHOICES, decide, remembered, tune
from convforge.tuning.cost import rates_of
from convforge.verify import check_plan

need_gpu()

PROBLEMS = [
    "n1c3h512w512_k3r3s3_p1_f32_nchw", "n1c3h512w512_k3r3s3_p1_f32_nhwc", "n8c64h28w28_k64r3s3_p1_f32_nchw",
    "n8c96h28w28_k96r3s3_p1_g96_f16_nhwc", "n1c3h512w512_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc",
    "n1c1h512w512_k1r21s21_p10_f32_nchw_math-fft", "m512n512k512_f32", "max_n8c64h56w56_r3s3_st2_p1_f32_nchw",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where this test's choices lie, and leave to measure."""
    monkeypatch.setattr(CHOICES, "folder", tmp_path)
    monkeypatch.delenv("CONVFORGE_TUNE", raising=False)
    CHOICES.forget()
    yield
    monkeypatch.undo()
    CHOICES.forget()


@pytest.mark.parametrize("text", PROBLEMS)
def test_every_candidate_that_is_measured_is_right(text: str) -> None:
    problem = parse_problem(text)
    found = tune(problem, gpu())
    assert found is not None
    assert found.fault == ""
    assert [f"{tried.algorithm} {tried.config}: {tried.fault}" for tried in found.tried if tried.fault] == []
    assert found.tried[0].seconds is not None
    choice = decide(problem, gpu())
    assert (choice.algorithm.name, str(choice.config)) == (found.tried[0].algorithm, found.tried[0].config)
    assert not choice.untuned


def test_a_call_tunes_its_bucket_once() -> None:
    x, w = np.ones((1, 3, 200, 200), np.float32), np.ones((3, 3, 3, 3), np.float32)
    problem = parse_problem("n1c3h200w200_k3r3s3_p1_f32_nchw")
    expected = conv2d(x, w, padding=1)
    assert remembered(problem, gpu()) is None
    np.testing.assert_array_equal(conv2d(x, w, padding=1, device="cuda", tune=False), expected)
    assert remembered(problem, gpu()) is None
    np.testing.assert_array_equal(conv2d(x, w, padding=1, device="cuda"), expected)
    found = remembered(problem, gpu())
    assert found is not None
    conv2d(x[..., :196], w, padding=1, device="cuda")
    assert remembered(problem, gpu()) is found


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("n1c3h512w512_k3r3s3_p1_f32_nchw", {"h": 300, "w": 388}),
        ("n1c3h511w511_k3r5s5_p2_reflect_f32_nchw", {"h": 300, "w": 389}),
        ("n8c64h28w28_k64r3s3_p1_f32_nchw", {"n": 5, "h": 20, "w": 24}),
        ("n32c480h14w14_k480r5s5_p2_g480_f32_nchw", {"n": 21}),
        ("n8c48h112w112_k48r7s7_p3_g48_f16_nchw", {"n": 6, "h": 100, "w": 96}),
        ("n1c1h512w512_k1r21s21_p10_f32_nchw_math-fft", {"h": 400, "w": 420}),
        ("n1c3h512w512_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc", {"h": 260, "w": 400}),
    ],
)
def test_a_new_size_in_a_known_bucket_neither_measures_nor_compiles(
    text: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*words: Any, **more: Any) -> None:
        raise AssertionError("nothing may be measured or compiled")

    problem: Any = parse_problem(text)
    other = problem.replace(**sizes)
    assert tuning_key(other) == tuning_key(problem) != str(other)
    assert check_plan(dispatch.find_plan(problem, "auto", None, "cuda", None)).ok
    monkeypatch.setattr("convforge.backends.cuda.runtime.compile_kernel", never)
    monkeypatch.setattr("convforge.tuning.search.search", never)
    plan = dispatch.find_plan(other, "auto", None, "cuda", None)
    assert plan.problem == other
    verdict = check_plan(plan)
    assert verdict.ok, verdict.message


def test_a_stream_that_is_captured_is_neither_measured_nor_broken() -> None:
    from cuda.bindings import driver
    from cuda.core import Device

    from convforge.backends.cuda.driver import checked

    runtime, problem = gpu(), parse_problem("n1c3h100w100_k3r3s3_p1_f32_nchw")
    dispatch.find_plan(problem, "heuristic", None, "cuda", None)  # compiles
    device = Device(runtime.device)
    device.set_current()
    stream = device.create_stream()
    assert not runtime.is_capturing(stream)
    handle = driver.CUstream(int(stream.handle))
    checked(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        assert runtime.is_capturing(stream)
        assert not runtime.is_capturing()
        dispatch.find_plan(problem, "auto", None, "cuda", None, stream=stream)
    finally:
        graph = checked(driver.cuStreamEndCapture(handle))
    driver.cuGraphDestroy(graph)
    assert remembered(problem, runtime) is None
    dispatch.find_plan(problem, "auto", None, "cuda", None, stream=stream)
    assert remembered(problem, runtime) is not None


def test_the_driver_states_what_the_cost_model_goes_by() -> None:
    facts = gpu().facts
    assert facts.clock_hz > 5e8
    assert facts.memory_bytes_per_s > 1e10
    assert facts.driver
    assert rates_of(facts).flops_per_s > 1e11
