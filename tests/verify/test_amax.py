"""The check of amax: right numbers pass, those of wrong kernels do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

from convforge.algorithms import find
from convforge.backends.cpu import cpu_runtime
from convforge.backends.emulator.runtime import emulator_runtime
from convforge.benchmark.material import Material
from convforge.benchmark.suites import Case
from convforge.problem import parse_problem
from convforge.problem.types import numpy_dtype
from convforge.verify import Judge, Sample, make_inputs, truth
from convforge.verify.amax import amax_fault
from convforge.verify.bounds import rounded

BYTES = "n1c64h9w9_k32r3s3_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8_+scale:tensor+out:0.015625:0+amax:0.5"
HALVES = "n1c64h9w9_k32r3s3_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8_+scale:tensor+amax"


def judged(text: str, change: Any, kind: str = "normal") -> str | None:
    """The fault of an amax that is made from the results in full, beside the results rounded to their type."""
    problem: Any = parse_problem(text)
    judge = Judge(problem, make_inputs(problem, kind))
    unit = problem.epilogue.out_scale * problem.epilogue.amax_scale
    got = rounded(judge.truth.value, numpy_dtype(problem.out_dtype)).astype(numpy_dtype(problem.out_dtype))
    return amax_fault(problem, "fp8", judge.truth, judge.inputs, got, float(change(judge.truth.value, unit)))


@pytest.mark.parametrize("text", [BYTES, HALVES])
def test_the_largest_absolute_value_passes(text: str) -> None:
    assert judged(text, lambda values, unit: np.float32(np.abs(values).max() * unit)) is None


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (BYTES, lambda values, unit: np.abs(values).max()),  # in units of the result
        (BYTES, lambda values, unit: 448 * unit),  # of saturated results
        (BYTES, lambda values, unit: np.abs(values).max() * unit * 2),
        (HALVES, lambda values, unit: np.sort(np.abs(values).ravel())[-2]),  # of all but one
        (HALVES, lambda values, unit: np.abs(values).max() * 1.002),
        (HALVES, lambda values, unit: values.max() if values.max() < -values.min() else values.min()),  # of one sign
        (HALVES, lambda values, unit: 0.0),
        (HALVES, lambda values, unit: np.nan),
    ],
)
def test_another_number_does_not(text: str, change: Any) -> None:
    assert "amax is " in str(judged(text, change))


def test_nan_and_inf_arrive() -> None:
    for kind, right, wrong in (("nan", np.nan, np.inf), ("inf", np.inf, 1.0)):
        text = HALVES.replace("f8e4m3", "f8e5m2")
        assert judged(text, lambda values, unit: right, kind) is None  # noqa: B023
        assert judged(text, lambda values, unit: wrong, kind) is not None  # noqa: B023


def test_of_no_outputs_it_is_0() -> None:
    text = HALVES.replace("n1c", "n0c")
    assert judged(text, lambda values, unit: 0.0) is None
    assert judged(text, lambda values, unit: np.nan) is not None


def test_a_sample_is_not_above_it() -> None:
    problem: Any = parse_problem(HALVES)
    inputs = make_inputs(problem)
    sample, right = Sample(problem, inputs), truth(problem, inputs).value
    out, amax = right.astype(np.float16), float(np.abs(right).max())
    assert sample.fault("fp8", out, cpu_runtime(), amax) is None
    assert "of the sampled outputs alone at least" in str(sample.fault("fp8", out, cpu_runtime(), amax / 2))
    assert "amax is nan" in str(sample.fault("fp8", out, cpu_runtime(), np.nan))


@needs_emulator
def test_a_bench_checks_it() -> None:
    runtime: Any = emulator_runtime()
    problem: Any = parse_problem(HALVES)
    method = find("conv2d", "emulator", "implicit_gemm_fp8_mma")
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    material = Material(Case("one", problem), runtime)
    calls = material.ring.calls(plan)
    material.ring.poison()
    calls()
    assert material.verify("fp8", 1, {}).ok
    slot = material.ring.slots[0]
    slot.operands["amax"][...] = 2 * slot.operands["amax"]
    wrong = material.verify("fp8", 1, {})
    assert (wrong.ok, wrong.fault) == (False, "wrong amax")
    material.ring.poison()
    assert np.isnan(slot.operands["amax"])
