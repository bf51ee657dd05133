"""The truth, held against arithmetic that is plainly right: fractions, SciPy, and values worked by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import signal
from tests.cases import WORKED, worked_inputs
from tests.strategies import conv2d_problems

from convforge.problem import ACTIVATIONS, Epilogue, Pool2dProblem, parse_problem
from convforge.verify import Inputs, compare, make_inputs, truth
from convforge.verify.bounds import rounded


@pytest.mark.parametrize("worked", WORKED, ids=lambda w: w.text)
def test_worked_values(worked):
    problem = parse_problem(worked.text)
    assert truth(problem, worked_inputs(worked)).value.astype(int).tolist() == worked.expected


def exactly(problem, inputs):
    """The convolution in rational numbers, one output after the other, straight from its definition; no epilogue."""
    x = inputs.x if problem.x_layout == "NCHW" else inputs.x.transpose(0, 3, 1, 2)
    w = inputs.w[:, :, ::-1, ::-1] if problem.mode == "convolution" else inputs.w
    names = {"zeros": "constant", "constant": "constant", "reflect": "reflect", "symmetric": "symmetric",
             "replicate": "edge", "circular": "wrap"}  # fmt: skip
    top, bottom, left, right = problem.padding
    options = {"constant_values": problem.outside} if names[problem.padding_mode] == "constant" else {}
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    wide = np.pad(x.astype(np.float64), pads, names[problem.padding_mode], **options) - problem.epilogue.x_zero_point
    out = np.empty((problem.n, problem.k, problem.p, problem.q), object)
    for n, k, p, q in np.ndindex(out.shape):
        total = Fraction(0)
        first = k // problem.k_per_group * problem.c_per_group
        for c, r, s in np.ndindex(w.shape[1:]):
            h = p * problem.stride[0] + r * problem.dilation[0]
            v = q * problem.stride[1] + s * problem.dilation[1]
            total += Fraction(float(wide[n, first + c, h, v])) * Fraction(float(w[k, c, r, s]))
        out[n, k, p, q] = total
    return out if problem.out_layout == "NCHW" else out.transpose(0, 2, 3, 1)


@settings(max_examples=40, deadline=None)
@given(conv2d_problems(largest=6, epilogues=False))
def test_sums_are_those_of_rational_arithmetic(problem):
    inputs = make_inputs(problem)
    exact = exactly(problem, inputs)
    got = truth(problem, inputs)
    error = np.abs((exact - np.vectorize(Fraction, otypes=[object])(got.value)).astype(float)) if exact.size else 0.0
    if problem.acc_dtype == "int32":
        assert np.all(error == 0)
    elif problem.acc_dtype == "float64":  # rounded once, after sums in twice the precision
        assert np.all(error <= 2.0**-53 * np.abs(got.value) + 2.0**-100 * got.magnitude)
    else:
        assert np.all(error <= problem.taps * 2.0**-53 * got.magnitude)
    assert np.all(np.abs(got.value) <= got.magnitude * (1 + 1e-12))


def test_float64_sums_that_cancel_keep_their_digits():
    problem = parse_problem("n1c1h1w4_k1r1s4_f64_nchw")
    x = np.array([1e16, 1.0, -1e16, 1e-8]).reshape(1, 1, 1, 4)
    inputs = Inputs(x, np.ones((1, 1, 1, 4)), {})
    assert truth(problem, inputs).value.item() == 1.00000001
    assert float(np.sum(x)) != 1.00000001  # what plain float64 makes of it


def test_against_scipy_signal():
    problem = parse_problem("n2c3h9w11_k4r3s5_st2x3_p1x2x0x3_flip_f32_nhwc")
    inputs = make_inputs(problem)
    x = np.pad(inputs.x.astype(float).transpose(0, 3, 1, 2), ((0, 0), (0, 0), (1, 2), (0, 3)))
    got = truth(problem, inputs).value
    for n in range(2):
        for k in range(4):
            planes = [signal.convolve2d(x[n, c], inputs.w[k, c].astype(float), "valid") for c in range(3)]
            np.testing.assert_allclose(got[n, :, :, k], sum(planes)[::2, ::3], rtol=1e-12, atol=1e-13)


def test_an_impulse_tells_correlation_from_convolution():
    for flip, expected in (("", [9, 8, 7, 6, 5, 4, 3, 2, 1]), ("_flip", [1, 2, 3, 4, 5, 6, 7, 8, 9])):
        problem = parse_problem(f"n1c1h3w3_k1r3s3_p1{flip}_f32_nchw")
        assert truth(problem, make_inputs(problem, "impulse")).value.reshape(-1).tolist() == expected


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_by_their_formulas(activation):
    formulas = {
        "identity": lambda y: y, "relu": lambda y: max(y, 0.0), "leaky_relu": lambda y: y if y > 0 else 0.01 * y,
        "clipped_relu": lambda y: min(max(y, 0.0), 6.0), "sigmoid": lambda y: 1 / (1 + math.exp(-y)), "tanh": math.tanh,
        "silu": lambda y: y / (1 + math.exp(-y)), "gelu": lambda y: y * math.erfc(-y / math.sqrt(2)) / 2,
    }  # fmt: skip
    problem = parse_problem("n1c1h1w9_k1r1s1_f32_nchw").replace(epilogue=Epilogue(activation=activation))
    x = np.array([-30, -7, -1, -0.25, 0, 0.25, 1, 7, 30], np.float32).reshape(1, 1, 1, 9)
    got = truth(problem, Inputs(x, np.ones((1, 1, 1, 1), np.float32), {})).value
    np.testing.assert_allclose(got.reshape(-1), [formulas[activation](float(v)) for v in x.reshape(-1)], rtol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_keep_nan(activation):
    problem = parse_problem("n1c1h1w1_k1r1s1_f32_nchw").replace(epilogue=Epilogue(activation=activation))
    x = np.full((1, 1, 1, 1), np.nan, np.float32)
    assert np.isnan(truth(problem, Inputs(x, np.ones((1, 1, 1, 1), np.float32), {})).value).all()


def test_the_epilogue_in_its_order():
    problem = parse_problem("n1c1h1w2_k2r1s1_f32_nhwc_+scale:channel+bias+residual+relu")
    inputs = Inputs(
        np.array([3, -5], np.float32).reshape(1, 1, 2, 1), np.array([1, 2], np.float32).reshape(2, 1, 1, 1),
        {"scale": np.array([2, 10], np.float32), "bias": np.array([1, 2], np.float32),
         "residual": np.array([[[[4, 5], [6, 7]]]], np.float32)},
    )  # fmt: skip
    got = truth(problem, inputs)
    assert got.value.tolist() == [[[[11, 67], [0, 0]]]]
    assert got.magnitude.tolist() == [[[[11, 67], [17, 109]]]]


def test_integers_round_half_to_even_and_saturate():
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, np.nan])
    assert rounded(values, np.dtype("uint8")).tolist() == [0, 2, 2, 0, 0, 255, 0, 0]
    assert rounded(values, np.dtype("int8")).tolist() == [0, 2, 2, 0, -2, 127, -128, 0]


@settings(max_examples=25, deadline=None)
@given(conv2d_problems(largest=4, epilogues=False))
def test_pooling_against_a_plain_maximum(problem):
    pads = (min(problem.padding[0], problem.extent_h - 1), min(problem.padding[1], problem.extent_h - 1),
            min(problem.padding[2], problem.extent_w - 1), min(problem.padding[3], problem.extent_w - 1))  # fmt: skip
    try:
        pool = Pool2dProblem(n=problem.n, c=problem.c, h=problem.h, w=problem.w, r=problem.r, s=problem.s,
                             stride=problem.stride, padding=pads)  # fmt: skip
    except ValueError:
        return
    x = make_inputs(pool).x
    wide = np.pad(x.astype(float), ((0, 0), (0, 0), pads[:2], pads[2:]), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (pool.r, pool.s), (2, 3))
    expected = windows[:, :, :: pool.stride[0], :: pool.stride[1]].max(axis=(4, 5))
    np.testing.assert_array_equal(truth(pool, Inputs(x, None, {})).value, expected)


def test_pooling_with_ceil_mode_and_nan():
    pool = Pool2dProblem(n=1, c=1, h=1, w=5, r=1, s=2, stride=(1, 2), ceil_mode=True)
    x = np.array([1, 2, np.nan, 0, -3], np.float32).reshape(1, 1, 1, 5)
    got = truth(pool, Inputs(x, None, {})).value.reshape(-1)
    np.testing.assert_array_equal(got, [2, np.nan, -3])


@pytest.mark.parametrize("text", ["m5n7k9_f32", "m5n7k9_ta_f32", "m5n7k9_tb_f64", "m5n7k9_ta_tb_f64", "m0n4k3_f32",
                                  "m3n4k0_f32"])  # fmt: skip
def test_matrix_products(text):
    problem = parse_problem(text)
    inputs = make_inputs(problem)
    a = inputs.x.T if problem.transpose_a else inputs.x
    b = inputs.w.T if problem.transpose_b else inputs.w
    right = truth(problem, inputs)
    np.testing.assert_allclose(right.value, a.astype(float) @ b.astype(float), rtol=1e-13, atol=1e-14)
    assert compare(problem, "strict", right.value.astype(problem.dtype), right, inputs).ok


def test_relu_keeps_nan():
    problem = parse_problem("relu4_f16")
    inputs = Inputs(np.array([-1, np.nan, 2, 0], np.float16), None, {})
    np.testing.assert_array_equal(truth(problem, inputs).value, [0, np.nan, 2, 0])
