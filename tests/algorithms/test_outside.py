"""Outputs whose windows lie in a padding of zeros are exactly the epilogue of zero, by every method."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.judged import allowed

from convforge.algorithms import algorithms, refusal
from convforge.algorithms.host.outside import outside
from convforge.call.dispatch import runtime_of
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

TRANSFORMED = {("cpu", "fft"), ("cpu", "winograd_f2"), ("cpu", "winograd_f4"), ("emulator", "fft"),
               ("emulator", "fft_fused")}  # fmt: skip
METHODS = [
    pytest.param(a, marks=[needs_emulator] if a.backend == "emulator" else [], id=f"{a.backend}-{a.name}")
    for a in algorithms()
    if a.operation == "conv2d" and a.backend in ("cpu", "emulator")
]
# One side, two, all; strides, dilation past the image on its way, windows that step over the image, layouts, epilogues.
PROBLEMS = (
    "n2c2h6w7_k3r3s3_st1_p4x0x0x0_f32_nchw",
    "n1c3h5w6_k2r3s3_st1_p0x3x6x3_f32_nhwc_+bias",
    "n1c2h9w8_k2r3s3_st1_p5x4x3x7_g2_f32_nchw_+bias+relu",
    "n2c4h8w9_k4r5s4_st2x3_p9x8x7x10_g4_f32_nhwc",
    "n1c2h4w12_k2r3s2_st1x2_p8x9x4x5_d3x4_g2_f32_nchw_+bias",
    "n1c2h2w3_k2r2s2_st1_p6_d5x4_g2_f32_nchw",
    "n1c2h7w6_k4r3s3_st1_p4_g2_f32_nchw_+scale:channel+bias+residual+sigmoid",
    "n1c1h7w8_k1r5s5_st1_p6_f64_nchw",
    "n1c2h6w8_k2r3s3_st1_p4_g2_f16_nhwc_+bias",
    "n1c2h6w8_k2r3s3_st1_p4_g2_u8-f32-u8-f32_nhwc_+bias",
    "n1c2h6w8_k2r3s3_st1_p4_constant0.0_g2_f32_nchw",
)  # fmt: skip
# Those that have no such outputs: other borders, and a padding that every window reaches beyond.
ORDINARY = (
    "n1c2h6w8_k2r3s3_st1_p4_reflect_g2_f32_nchw", "n1c2h6w8_k2r3s3_st1_p4_constant2.0_g2_f32_nchw",
    "n1c2h6w8_k2r3s3_st1_p2_g2_f32_nchw", "n1c2h6w8_k2r3s3_st2_p2x2x0x0_g2_f32_nchw_flip",
)  # fmt: skip


def by_definition(problem: Conv2dProblem) -> Any:
    """Of each output pixel (P, Q), whether no tap of its window is on the image."""
    found = np.ones((problem.p, problem.q), bool)
    for p, q in np.ndindex(found.shape):
        for r, s in np.ndindex(problem.r, problem.s):
            row = p * problem.stride[0] + r * problem.dilation[0] - problem.padding[0]
            column = q * problem.stride[1] + s * problem.dilation[1] - problem.padding[2]
            found[p, q] &= not (0 <= row < problem.h and 0 <= column < problem.w)
    return found


def computed(method: Any, problem: Conv2dProblem, inputs: Any) -> Any:
    """The output by a method as (N, K, P, Q), where nothing but what it stored is a number."""
    runtime = runtime_of(method.backend)
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    there = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    dtype = np.dtype(problem.out_dtype)
    out = runtime.upload(np.full(problem.out_shape, np.nan if dtype.kind == "f" else 77, dtype))
    plan({"x": runtime.upload(inputs.x), "w": plan.prepare(runtime.upload(inputs.w)), **there, "out": out})
    result = runtime.download(out)
    return result if problem.out_layout == "NCHW" else result.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("text", [*PROBLEMS, *ORDINARY])
def test_the_outputs_are_those_of_the_definition(text: str) -> None:
    problem = parse_problem(text)
    rows, columns = outside(problem)
    expected = by_definition(problem)
    if text in ORDINARY:
        assert not rows.any()
        assert not columns.any()
        assert problem.padding_mode != "zeros" or not expected.any()
    else:
        assert expected.any()
        np.testing.assert_array_equal(rows[:, None] | columns, expected)


FIRST = [text for text in PROBLEMS if text.endswith(("_f32_nchw", "_f32_nhwc"))]
LATER = [text for text in PROBLEMS if text not in FIRST]


@pytest.mark.one_in(21)
@pytest.mark.parametrize(
    "texts", [FIRST, pytest.param(LATER, marks=pytest.mark.thorough)], ids=["plain", "other types and epilogues"]
)
@pytest.mark.parametrize("method", METHODS)
def test_they_are_the_epilogue_of_zero(method: Any, texts: list[str]) -> None:
    """Noise of the transforms would be there: images are large numbers. The other outputs stay right."""
    facts, accepted = runtime_of(method.backend).facts, 0
    for text in texts:
        problem = allowed(parse_problem(text), method)
        if refusal(method, problem, facts) is not None:
            continue
        accepted += 1
        inputs = make_inputs(problem)
        large = inputs.x if problem.x_dtype in ("uint8", "float16") else inputs.x * np.asarray(1e6, problem.x_dtype)
        loud, silent = (dataclasses.replace(inputs, x=x) for x in (large, np.zeros_like(inputs.x)))
        lies_outside = by_definition(problem)
        found, expected = (computed(method, problem, given)[:, :, lies_outside] for given in (loud, silent))
        np.testing.assert_array_equal(found, expected, err_msg=text)
        if problem.epilogue.is_plain:
            assert not found.any(), text
        runtime = runtime_of(method.backend)
        verdict = check_plan(method.plan(problem, method.configs(problem, facts)[0], runtime), Judge(problem, inputs))
        assert verdict.ok, verdict.message
    assert accepted or (method.backend, method.name) not in TRANSFORMED


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "texts", [FIRST, pytest.param(LATER, marks=pytest.mark.thorough)], ids=["plain", "other types and epilogues"]
)
@pytest.mark.parametrize("method", [m for m in METHODS if (m.values[0].backend, m.values[0].name) in TRANSFORMED])
def test_only_problems_with_such_outputs_take_the_step(method: Any, texts: list[str]) -> None:
    runtime = runtime_of(method.backend)
    for some, times in ((texts, 1), (ORDINARY, 0)):
        for text in some:
            problem = allowed(parse_problem(text), method)
            if refusal(method, problem, runtime.facts) is None:
                plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
                assert [launch.kernel for launch in plan.launches].count("store_outside") == times, text


@pytest.mark.thorough
@pytest.mark.parametrize("method", [m for m in METHODS if (m.values[0].backend, m.values[0].name) in TRANSFORMED])
def test_a_nan_does_not_reach_them(method: Any) -> None:
    problem = allowed(parse_problem("n1c2h9w8_k2r3s3_st1_p5x4x3x7_g2_f32_nchw"), method)
    runtime = runtime_of(method.backend)
    inputs = make_inputs(problem)
    x = inputs.x.copy()
    x[:, :, 0, 0], x[:, :, -1, -1] = np.nan, np.inf
    found = computed(method, problem, dataclasses.replace(inputs, x=x))[:, :, by_definition(problem)]
    assert found.size
    assert not found.any()
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    verdict = check_nan_spread(plan)
    assert verdict.ok, verdict.message
