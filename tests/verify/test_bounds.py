"""Bounds and gate: honest arithmetic always passes, coarser arithmetic never does."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import fft
from tests.strategies import DTYPES, conv2d_problems

from convforge.problem import Conv2dProblem, Epilogue, border_indices, parse_problem
from convforge.verify import KINDS, Inputs, compare, make_inputs, truth
from convforge.verify.bounds import error_bound, gamma, rounded
from convforge.verify.rows import border_of
from convforge.verify.truth import activate, to_rows

FLOATS = [types for types in DTYPES if types[3] != "int32"]


def padded(problem: Conv2dProblem, inputs: Inputs) -> np.ndarray:
    """The padded image in the accumulation type, (N, C, padded H, padded W)."""
    x = inputs.x if problem.x_layout == "NCHW" else inputs.x.transpose(0, 3, 1, 2)
    top, bottom, left, right = problem.padding
    rows = border_indices(problem.h, top, bottom, problem.padding_mode)
    columns = border_indices(problem.w, left, right, problem.padding_mode)
    wide = x[:, :, rows][..., columns].astype(problem.acc_dtype)
    wide[:, :, rows < 0] = problem.outside
    wide[..., columns < 0] = problem.outside
    return wide


def factors(problem: Conv2dProblem, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Every product's factors in the accumulation type: pixels (N, G, P, Q, T) and weights (G, K/G, T)."""
    w = inputs.w[:, :, ::-1, ::-1] if problem.mode == "convolution" else inputs.w
    wide = padded(problem, inputs)
    span = (problem.extent_h, problem.extent_w)
    windows = np.lib.stride_tricks.sliding_window_view(wide, span, (2, 3))
    windows = windows[:, :, :: problem.stride[0], :: problem.stride[1], :: problem.dilation[0], :: problem.dilation[1]]
    taps = windows.transpose(0, 2, 3, 1, 4, 5).reshape(problem.n, problem.p, problem.q, problem.groups, problem.taps)
    weights = w.astype(problem.acc_dtype).reshape(problem.groups, problem.k_per_group, problem.taps)
    return taps.transpose(0, 3, 1, 2, 4), weights


def added_up(problem: Conv2dProblem, inputs: Inputs, order: str, seed: int = 0) -> np.ndarray:
    """The output, summed in the accumulation type in some honest order."""
    pixels, weights = factors(problem, inputs)
    products = pixels[:, :, None] * weights[None, :, :, None, None]
    with np.errstate(all="ignore"):
        if order == "reversed":
            products = products[..., ::-1]
        if order == "shuffled":
            products = products[..., np.random.default_rng(seed).permutation(problem.taps)]
        if order == "pairwise":
            sums = products
            while sums.shape[-1] > 1:
                even = sums[..., : sums.shape[-1] // 2 * 2]
                sums = np.concatenate([even[..., ::2] + even[..., 1::2], sums[..., even.shape[-1] :]], axis=-1)
            sums = sums[..., 0]
        else:
            sums = np.zeros(products.shape[:-1], products.dtype)
            for t in range(problem.taps):
                sums += products[..., t]
        sums = sums.reshape(problem.n, problem.k, problem.p, problem.q)
        value = sums if problem.out_layout == "NCHW" else sums.transpose(0, 2, 3, 1)
        shape = (-1, 1, 1) if problem.out_layout == "NCHW" else (-1,)
        ends, operands = problem.epilogue, inputs.operands
        if ends.divisor != 1:
            value = value / value.dtype.type(ends.divisor)
        if ends.scale != "none":
            value = value * np.broadcast_to(operands["scale"], (problem.k,)).reshape(shape).astype(value.dtype)
        if ends.bias:
            value = value + operands["bias"].reshape(shape).astype(value.dtype)
        if ends.residual:
            value = value + operands["residual"].astype(value.dtype) * value.dtype.type(ends.residual_scale)
        value = activate(value, ends.activation, ends.alpha)
        if ends.is_requantized:
            value = value / value.dtype.type(ends.out_scale) + value.dtype.type(ends.out_zero_point)
    return rounded(value, np.dtype(problem.out_dtype)).astype(problem.out_dtype)


def tf32(array: np.ndarray) -> np.ndarray:
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@settings(max_examples=120, deadline=None)
@given(conv2d_problems(dtypes=FLOATS), st.sampled_from(["normal", "integers", "impulse"]),
       st.sampled_from(["forward", "reversed", "shuffled", "pairwise"]), st.integers(0, 99))  # fmt: skip
def test_no_honest_order_of_summation_gives_a_false_alarm(problem, kind, order, seed):
    inputs = make_inputs(problem, kind, seed)
    verdict = compare(problem, "strict", added_up(problem, inputs, order, seed), truth(problem, inputs), inputs)
    assert verdict.ok, verdict.message
    assert verdict.bound_ratio <= 1


@settings(max_examples=60, deadline=None)
@example(c=1, kind="photograph", order="pairwise", seed=85)  # products err as much as sums, which no FMA spares here
@example(c=1, kind="photograph", order="pairwise", seed=267)
@given(st.integers(1, 40), st.sampled_from(["normal", "uniform", "photograph", "lognormal", "constant", "sparse"]),
       st.sampled_from(["forward", "reversed", "pairwise"]), st.integers(0, 99))  # fmt: skip
def test_no_false_alarm_whatever_the_data_look_like(c, kind, order, seed):
    problem = Conv2dProblem(n=1, c=c, h=12, w=15, k=2, r=3, s=3, padding=(1, 1, 1, 1))
    rng = np.random.default_rng(seed)
    shape = problem.x_shape
    x = {
        "normal": rng.standard_normal(shape), "uniform": rng.random(shape), "constant": np.full(shape, 0.1),
        "photograph": 100 + 5 * rng.standard_normal(shape).cumsum(axis=3),
        "lognormal": np.exp(4 * rng.standard_normal(shape)),
        "sparse": rng.standard_normal(shape) * (rng.random(shape) < 0.05),
    }[kind].astype(np.float32)  # fmt: skip
    w = np.full(problem.w_shape, np.float32(1 / 9)) if kind == "constant" else rng.standard_normal(problem.w_shape)
    inputs = Inputs(x, w.astype(np.float32), {})
    verdict = compare(problem, "strict", added_up(problem, inputs, order), truth(problem, inputs), inputs)
    assert verdict.ok, verdict.message


@settings(max_examples=80, deadline=None)
@given(conv2d_problems(epilogues=False, dtypes=FLOATS[:1]))
def test_tf32_in_secret_is_always_caught(problem):
    """Where anything was rounded at all: an impulse alone, say, survives TF32 unharmed."""
    inputs = make_inputs(problem)
    narrow = Inputs(tf32(inputs.x), tf32(inputs.w), inputs.operands)
    right = truth(problem, inputs)
    got = truth(problem, narrow).value.astype(np.float32)
    if got.size and np.abs(got - right.value).max() > 2.0**-16 * right.magnitude.max():
        assert not compare(problem, "strict", got, right, inputs).ok


def test_the_bound_alone_lets_tf32_through_and_the_gate_does_not():
    problem = parse_problem("n1c512h12w12_k4r3s3_p1_f32_nchw")
    inputs = make_inputs(problem)
    right = truth(problem, inputs)
    got = truth(problem, Inputs(tf32(inputs.x), tf32(inputs.w), inputs.operands)).value.astype(np.float32)
    assert np.all(np.abs(got - right.value) <= error_bound(problem, "strict", right, inputs))
    verdict = compare(problem, "strict", got, right, inputs)
    assert not verdict.ok
    assert verdict.bound_ratio < 1
    assert verdict.fault == "TF32-like rounding of the factors"
    assert compare(problem, "tf32", got, right, inputs).ok
    assert compare(problem, "bf16", got, right, inputs).ok


@pytest.mark.parametrize("band", ["border rows", "border columns", "inside"])
def test_the_gate_looks_at_each_channel_and_band_by_itself(band):
    """An error too small for the bound, and too local to show in the whole picture's RMS."""
    problem = parse_problem("n1c64h40w40_k8r3s3_p1_f32_nchw")
    inputs = make_inputs(problem)
    right = truth(problem, inputs)
    rows, columns = border_of(problem)
    mask = {"border rows": rows[:, None] & np.ones(40, bool), "border columns": ~rows[:, None] & columns,
            "inside": ~rows[:, None] & ~columns}[band]  # fmt: skip
    got = right.value.copy()
    got[:, 5, mask] += 4e-5 * np.random.default_rng(1).standard_normal((1, mask.sum()))
    got = got.astype(np.float32)
    assert np.all(np.abs(got - right.value) <= error_bound(problem, "strict", right, inputs))
    verdict = compare(problem, "strict", got, right, inputs)
    assert not verdict.ok
    assert f"channel 5, {band}" in verdict.message


@settings(max_examples=40, deadline=None)
@given(conv2d_problems(dtypes=FLOATS[:1]))
def test_exact_sums_have_no_tolerance(problem):
    inputs = make_inputs(problem, "integers")
    right = truth(problem, inputs)
    ends = problem.epilogue
    if ends.activation not in ("identity", "relu", "clipped_relu"):
        return
    if ends.divisor != 1 and ends != Epilogue(divisor=ends.divisor):
        return  # a quotient with a bias is rounded twice
    if 0.3 in (ends.residual_scale, ends.out_scale):
        return  # no product or quotient with it is exact
    assert not error_bound(problem, "strict", right, inputs).any()
    got = right.value.astype(np.float32)
    assert compare(problem, "strict", got, right, inputs).ok
    if got.size:
        index = (0, 0, 0, 0)
        got[index] = np.nextafter(got[index], np.float32(np.inf))
        assert not compare(problem, "strict", got, right, inputs).ok


def test_nan_and_inf_are_compared_by_kind():
    problem = parse_problem("n1c1h1w4_k1r1s1_f32_nchw")
    x = np.array([np.nan, np.inf, -np.inf, 1], np.float32).reshape(1, 1, 1, 4)
    inputs = Inputs(x, np.ones((1, 1, 1, 1), np.float32), {})
    right = truth(problem, inputs)
    assert compare(problem, "strict", x.copy(), right, inputs).ok
    for place, value in (
        (0, 1.0),
        (0, np.inf),
        (1, np.nan),
        (1, -np.inf),
        (1, 3e38),
        (2, np.inf),
        (3, np.nan),
        (3, np.inf),
    ):
        wrong = x.copy()
        wrong[..., place] = value
        assert not compare(problem, "strict", wrong, right, inputs).ok, (place, value)


def test_sums_that_overflow_may_do_so_in_any_order():
    problem = parse_problem("n1c1h1w3_k1r1s3_f32_nchw")
    x = np.array([3e38, 3e38, -3e38], np.float32).reshape(1, 1, 1, 3)
    inputs = Inputs(x, np.ones((1, 1, 1, 3), np.float32), {})
    right = truth(problem, inputs)
    for value in (np.inf, 3e38):
        assert compare(problem, "strict", np.full((1, 1, 1, 1), value, np.float32), right, inputs).ok


def test_float16_overflow_at_the_last_moment_is_right():
    problem = parse_problem("n1c1h1w1_k1r1s1_f16_nchw")
    inputs = Inputs(np.full((1, 1, 1, 1), 300, np.float16), np.full((1, 1, 1, 1), 300, np.float16), {})
    right = truth(problem, inputs)
    assert compare(problem, "strict", np.full((1, 1, 1, 1), np.inf, np.float16), right, inputs).ok
    assert not compare(problem, "strict", np.full((1, 1, 1, 1), 65504, np.float16), right, inputs).ok


def winograd_2x2(tile: np.ndarray, w: np.ndarray) -> np.ndarray:
    """F(2x2, 3x3) of one 4x4 tile in float32 (Lavin and Gray, section 4.1)."""
    bt = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
    at = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)
    return at @ ((g @ w @ g.T) * (bt @ tile @ bt.T)) @ at.T


def winograd_4x4(tile: np.ndarray, w: np.ndarray) -> np.ndarray:
    """F(4x4, 3x3) of one 6x6 tile in float32 (section 4.3)."""
    bt = np.array([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0],
                   [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]], np.float32)  # fmt: skip
    g = np.array([[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
                  [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]], np.float32)  # fmt: skip
    at = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
    return at @ ((g @ w @ g.T) * (bt @ tile @ bt.T)) @ at.T


def by_tiles(problem: Conv2dProblem, inputs: Inputs, tile: int, transform) -> np.ndarray:
    out = np.zeros(problem.out_shape, np.float32)
    for k, c in np.ndindex(problem.k, problem.c):
        for p in range(0, problem.p, tile):
            for q in range(0, problem.q, tile):
                seen = inputs.x[0, c, p : p + tile + 2, q : q + tile + 2]
                out[0, k, p : p + tile, q : q + tile] += transform(seen, inputs.w[k, c])
    return out


@pytest.mark.parametrize(("tile", "transform"), [(2, winograd_2x2), (4, winograd_4x4)])
@pytest.mark.parametrize("seed", range(5))
def test_winograd_passes_in_its_class(tile, transform, seed):
    problem = parse_problem("n1c6h26w26_k3r3s3_f32_nchw")
    inputs = make_inputs(problem, "normal", seed)
    right = truth(problem, inputs)
    got = by_tiles(problem, inputs, tile, transform)
    verdict = compare(problem, "winograd", got, right, inputs)
    assert verdict.ok, verdict.message
    wrong = got.copy()
    wrong[0, 1, 3, 5] += 0.01
    assert not compare(problem, "winograd", wrong, right, inputs).ok
    coarse = truth(problem, Inputs(tf32(inputs.x), tf32(inputs.w), {})).value.astype(np.float32)
    assert not compare(problem, "winograd", coarse, right, inputs).ok


@settings(max_examples=30, deadline=None)
@given(conv2d_problems(epilogues=False, dtypes=FLOATS[:1]), st.booleans())
def test_the_fft_passes_in_its_class(problem, single):
    inputs = make_inputs(problem)
    assume(problem.groups == 1 and problem.n > 0)
    wide = padded(problem, inputs).astype(np.float32 if single else np.float64)
    w = (inputs.w[:, :, ::-1, ::-1] if problem.mode == "convolution" else inputs.w).astype(wide.dtype)
    spread = np.zeros((problem.k, problem.c, problem.extent_h, problem.extent_w), wide.dtype)
    spread[:, :, :: problem.dilation[0], :: problem.dilation[1]] = w
    size = wide.shape[2:]
    products = np.einsum("nchw,kchw->nkhw", fft.rfft2(wide), np.conj(fft.rfft2(spread, size)))
    whole = fft.irfft2(products, size)
    out = whole[:, :, : problem.padded_h - problem.extent_h + 1 : problem.stride[0],
                : problem.padded_w - problem.extent_w + 1 : problem.stride[1]]  # fmt: skip
    got = np.ascontiguousarray(out if problem.out_layout == "NCHW" else out.transpose(0, 2, 3, 1), np.float32)
    right = truth(problem, inputs)
    verdict = compare(problem, "fft", got, right, inputs)
    assert verdict.ok, verdict.message
    if got.size:
        got[0, 0, 0, 0] += 0.01 * max(np.abs(right.value).max(), 1)
        assert not compare(problem, "fft", got, right, inputs).ok


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 11), st.integers(2, 11), st.integers(1, 4), st.integers(0, 50), st.booleans())
def test_the_separable_passes_in_its_class(r, s, c, seed, sobel):
    problem = Conv2dProblem(n=1, c=c, h=20, w=21, k=2, r=r, s=s)
    inputs = make_inputs(problem, "normal", seed)
    w = inputs.w
    if sobel:
        w = np.broadcast_to(np.outer(np.arange(1, r + 1), np.arange(s) - s // 2), w.shape).astype(np.float32)
    inputs = dataclasses.replace(inputs, w=w.copy())
    u, sigma, v = np.linalg.svd(w)
    got = np.zeros(problem.out_shape, np.float32)
    for k, ch in np.ndindex(problem.k, c):
        for rank in range(min(r, s)):
            column, row = u[k, ch, :, rank] * sigma[k, ch, rank], v[k, ch, rank]
            first = np.zeros((20, 21 - s + 1), np.float32)
            for j in range(s):
                first += row[j] * inputs.x[0, ch, :, j : j + first.shape[1]]
            for i in range(r):
                got[0, k] += column[i] * first[i : i + got.shape[2]]
    right = truth(problem, inputs)
    verdict = compare(problem, "separable", got, right, inputs)
    assert verdict.ok, verdict.message
    assert not compare(problem, "separable", got * np.float32(1.001), right, inputs).ok


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["", "+relu", "+residual", "+clippedrelu:9.0"]),
    st.sampled_from(["i8", "f16", "f32", "i32"]),
    st.sampled_from(["nhwc", "nchw"]),
    st.integers(0, 99),
)
def test_an_epilogue_in_float32_passes_in_its_class(end, out, layout, seed):
    """And steps that are no rounding of float32 do not: a scale in float16, or results that are off by one."""
    text = f"n1c40h9w8_k8r3s3_p1_i8-i8-{out}-i32_{layout}_+scale:channel+bias{end}"
    problem = parse_problem(text)
    inputs = make_inputs(problem, "normal", seed)
    scale = np.exp(np.random.default_rng(seed).standard_normal(8)) / 1e4
    inputs = dataclasses.replace(inputs, operands={**inputs.operands, "scale": scale})
    right = truth(problem, inputs)
    sums = truth(problem.replace(epilogue=Epilogue(), out_dtype="int32"), inputs).value
    shape = (-1, 1, 1) if layout == "nchw" else (-1,)

    def result(kind):
        y = sums.astype(np.float32) * scale.astype(kind).astype(np.float32).reshape(shape)
        y += inputs.operands["bias"].astype(np.float32).reshape(shape)
        if problem.epilogue.residual:
            y += inputs.operands["residual"].astype(np.float32)
        y = activate(y, problem.epilogue.activation, problem.epilogue.alpha)
        return rounded(y.astype(np.float64), np.dtype(problem.out_dtype)).astype(problem.out_dtype)

    assert compare(problem, "epilogue32", result(np.float32), right, inputs).ok
    if out == "f32" and not end:
        assert not compare(problem, "epilogue32", result(np.float16), right, inputs).ok
        assert not compare(problem, "strict", result(np.float32), right, inputs).ok
    if out == "i8":
        exact = rounded(right.value, np.dtype("int8"))
        inner = (np.abs(right.value) < 100) & (np.abs(right.value - np.rint(right.value)) < 0.4)
        if inner.any():
            wrong = np.where(inner, exact + 1, exact).astype(np.int8)
            assert not compare(problem, "epilogue32", wrong, right, inputs).ok


def test_classes_without_a_bound_say_so():
    problem = parse_problem("n1c1h4w4_k1r3s3_f32_nchw")
    inputs = make_inputs(problem)
    with pytest.raises(ValueError, match="no error bound is known for precision 'int8'"):
        compare(problem, "int8", np.zeros(problem.out_shape, np.float32), truth(problem, inputs), inputs)


def test_gamma():
    assert gamma(0, 2.0**-24) == 0
    assert gamma(1000, 2.0**-24) == pytest.approx(1000 * 2.0**-24, rel=1e-4)
    assert math.isinf(gamma(2**24, 2.0**-24))


def test_a_wrong_shape_or_type_is_refused():
    problem = parse_problem("n1c1h4w4_k1r3s3_f32_nchw")
    inputs = make_inputs(problem)
    right = truth(problem, inputs)
    assert compare(problem, "strict", np.zeros((1, 1, 2, 3), np.float32), right, inputs).fault == "wrong shape or type"
    assert compare(problem, "strict", np.zeros((1, 1, 2, 2), np.float64), right, inputs).fault == "wrong shape or type"


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_seeded_and_unequal(kind):
    problem = parse_problem("n2c3h8w9_k4r3s3_f32_nchw_+scale:channel+bias+residual")
    first, again, other = (make_inputs(problem, kind, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.w, again.w)
    np.testing.assert_array_equal(first.operands["residual"], again.operands["residual"])
    assert not np.array_equal(first.operands["residual"], other.operands["residual"])
    assert len({filters.tobytes() for filters in first.w.reshape(12, 9)}) == 12
    if kind != "impulse":
        assert len({channel.tobytes() for channel in first.x.reshape(6, 72)}) == 6


def test_inputs_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="kind='random' of inputs is unknown; choose one of normal"):
        make_inputs(parse_problem("relu3_f32"), "random")
    with pytest.raises(ValueError, match="float images alone"):
        make_inputs(parse_problem("n1c1h4w4_k1r3s3_u8_nchw"), "nan")


def test_rows_of_either_layout():
    for layout in ("nchw", "nhwc"):
        problem = parse_problem(f"n2c1h4w5_k3r1s1_f32_{layout}")
        out = np.arange(np.prod(problem.out_shape)).reshape(problem.out_shape)
        seen = out if layout == "nchw" else out.transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(to_rows(problem, out)[1 * 4 + 2, 1], seen[1, 1, 2])
