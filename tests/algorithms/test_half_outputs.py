"""float16 outputs of wider sums are rounded once, by every method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

import convforge
from convforge.algorithms import algorithms, refusal
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import Conv2dProblem, parse_problem

FLOAT64 = "n1c3h2w9_k1r1s1_f16-f16-f16-f64_nchw"
INTEGER = "n1c2h2w9_k1r1s1_i8-i8-f16-i32_nchw_+scale:tensor"
# All round in the same function; these take the longest to compile for types that only they are called with here.
LONG = ("direct_rows", "depthwise", "im2col", "implicit_gemm", "implicit_gemm_int8", "fft", "gemm_1x1")


def methods(text: str) -> Any:
    """All of ours that keep every sum of the problem."""
    strict = [a for a in algorithms() if a.operation == "conv2d" and a.backend == "cpu" and a.precision == "strict"]
    able = [a for a in strict if refusal(a, parse_problem(text), cpu_facts()) is None]
    return pytest.mark.parametrize(
        "algorithm", [pytest.param(a, id=a.name, marks=[pytest.mark.thorough] if a.name in LONG else []) for a in able]
    )


def convolved(algorithm: Any, text: str, x: Any, w: Any, scale: Any = None) -> Any:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    plan = algorithm.plan(problem, algorithm.configs(problem, cpu_facts())[0], cpu_runtime())
    x = np.broadcast_to(np.array(x, problem.x_dtype)[:, None, None], problem.x_shape)
    w = np.array(w, problem.w_dtype).reshape(problem.w_shape)
    out = np.full(problem.out_shape, np.nan, np.float16)
    plan({"x": x, "w": plan.prepare(w), "scale": scale, "out": out})
    assert (out == out[0, 0, 0, 0]).all()
    return float(out[0, 0, 0, 0])


@methods(FLOAT64)
@pytest.mark.parametrize("tiny", [-1, 0, 1])
@pytest.mark.parametrize("size", [1.0, -1.0])
def test_a_sum_beside_a_tie(algorithm: Any, tiny: int, size: float) -> None:
    """1 + 2^-11 lies midway between two halves; 2^-28 decides, and float32 has no room for it."""
    x, w = [1, 2.0**-11, tiny * 2.0**-14], [size, size, size * 2.0**-14]
    assert convolved(algorithm, FLOAT64, x, w) == size * (1 + 2.0**-10 * (tiny > 0))


@methods(INTEGER)
@pytest.mark.parametrize("tiny", [-1, 0, 1])
def test_a_scaled_integer_sum_beside_a_tie(algorithm: Any, tiny: int) -> None:
    """int32 sums are scaled in float64: 2049 is midway between 2048 and 2050."""
    scale = 2049 / 127 * (1 + tiny * 2.0**-40)
    got = convolved(algorithm, INTEGER, [127, 0], [1, 0], scale)
    assert got == (2048 if 127 * scale <= 2049 else 2050)


@needs_emulator
@pytest.mark.parametrize("tiny", [-1, 0, 1])
def test_a_scaled_integer_sum_beside_a_tie_on_a_device(tiny: int) -> None:
    x = np.full((4, 4), 2049 * 2**14 + tiny, np.int32)
    got = convforge.filter(x, np.array([[2.0**-14]]), out_dtype="float16", device="emulator")
    assert (got == (2050 if tiny > 0 else 2048)).all()
