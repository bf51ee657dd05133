"""Quantised convolution, exactly: beside ONNX's own tests and reference, and beside the definition in whole numbers."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.emulated import needs_emulator

import convforge
from convforge import Quantization
from convforge.call.arrays import home_of
from convforge.call.quantized import QuantizedWeights
from convforge.problem.types import limits

NAIVE: Any = {"algorithm": "direct_naive"}  # the method that compiles fastest; one test asks them all
DEVICES = ["cpu", pytest.param("emulator", marks=needs_emulator)]


def draws(seed: int, x: tuple[int, ...], w: tuple[int, ...], x_dtype: str = "uint8", w_dtype: str = "int8") -> Any:
    """Arrays of all values that the types hold, and a bias."""
    rng = np.random.default_rng(seed)
    low, high = limits(x_dtype)
    w_low, w_high = limits(w_dtype)
    bias = rng.integers(-50_000, 50_000, w[0], np.int32)
    return rng.integers(low, high + 1, x, x_dtype), rng.integers(w_low, w_high + 1, w, w_dtype), bias


def exact_sums(x: Any, w: Any, bias: Any, q: Quantization, **options: Any) -> Any:
    """The sums, exactly: a float64 convolution of whole numbers."""
    plain = (x.astype(np.float64) - q.x_zero_point, w - q.w_zero_point.reshape(-1, 1, 1, 1).astype(np.float64))
    sums = convforge.conv2d(*plain, algorithm="direct_naive", **options)
    sums += 0 if bias is None else bias.reshape(-1, 1, 1)
    return sums


def defined(
    x: Any, w: Any, bias: Any, q: Quantization, dtype: str, *, activation: Any = None, residual: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """The definition in fractions, for activations of linear pieces."""
    sums = exact_sums(x, w, bias, q, **options)
    if q.output is None:
        return sums.astype(np.int32)
    multipliers = [Fraction(float(m)) for m in np.broadcast_to(q.multiplier, w.shape[0])]
    added = Fraction(float(q.residual_multiplier))
    name, alpha = (activation, 0.0) if activation is None or isinstance(activation, str) else activation
    slope, most = Fraction(alpha), Fraction(alpha / float(q.out_scale))
    act: Any = {
        None: lambda y: y, "identity": lambda y: y, "relu": lambda y: max(y, Fraction()),
        "leaky_relu": lambda y: y if y > 0 else y * slope, "clipped_relu": lambda y: min(max(y, Fraction()), most),
    }[name]  # fmt: skip
    found, (low, high) = np.empty(sums.shape, dtype), limits(dtype)
    for at, value in np.ndenumerate(sums):
        exact = multipliers[at[1]] * int(value)
        if residual is not None:
            exact += added * (int(residual[at]) - q.residual_zero_point)
        found[at] = min(max(round(act(exact) + q.zero_point), low), high)  # Python rounds fractions half to even
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operator", ["QLinearConv", "ConvInteger"])
def test_onnxs_own_tests(operator: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(f"onnx.backend.test.case.node.{operator.lower()}")
    cases: list[Any] = []
    monkeypatch.setattr(module, "expect", lambda node, inputs, outputs, name: cases.append((node, inputs, outputs)))
    for name, export in vars(getattr(module, operator)).items():
        if name.startswith("export"):
            export()
    assert cases
    for node, inputs, (expected,) in cases:
        pads = {a.name: list(a.ints) for a in node.attribute}.get("pads", [0, 0, 0, 0])
        padding = ((pads[0], pads[2]), (pads[1], pads[3]))
        if operator == "QLinearConv":
            x, x_scale, x_zero, w, w_scale, w_zero, scale, zero = inputs
            q = Quantization(x=(x_scale, x_zero), w=(w_scale, w_zero), output=(scale, zero))
        else:
            x, w, x_zero, *w_zero = inputs
            q = Quantization(x=(1.0, x_zero), w=(1.0, w_zero[0] if w_zero else 0))
        y = convforge.conv2d(x, w, padding=padding, quantization=q, device=device, **NAIVE)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_reference_of_onnx(x_dtype: str, per_channel: bool, device: str) -> None:
    reference = pytest.importorskip("onnx.reference")
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(7)
    for seed, (groups, stride, dilation) in enumerate([(1, 1, 1), (2, 2, 1), (4, 1, 2)]):
        x, w, bias = draws(seed, (2, 4, 11, 12), (8, 4 // groups, 3, 3), x_dtype)
        scales = np.exp(rng.uniform(-9, -2, 8 if per_channel else ())).astype(np.float32)
        zero, y_zero, x_scale = (limits(x_dtype)[0] + 100), np.array(7, x_dtype), np.float32(0.13)
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
        node = helper.make_node(
            "QLinearConv", names, ["y"], group=groups, strides=[stride] * 2, dilations=[dilation] * 2, pads=[1, 0, 2, 1]
        )
        values = (x, x_scale, np.array(zero, x_dtype), w, scales, np.zeros_like(scales, np.int8), np.float32(0.9),
                  y_zero, bias)  # fmt: skip
        (expected,) = reference.ReferenceEvaluator(node).run(None, dict(zip(names, values, strict=True)))
        q = Quantization(x=(x_scale, zero), w=(scales, 0), output=(0.9, 7))
        y = convforge.conv2d(
            x, w, bias, stride, ((1, 2), (0, 1)), dilation, groups, quantization=q, device=device, **NAIVE
        )  # fmt: skip
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)
        assert len(np.unique(y)) > 20, "not all saturated"


ZEROS = st.sampled_from(["none", "128", "each"])


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), x_zero=st.integers(0, 255), zeros=ZEROS, power=st.integers(-19, -1),
       quantised=st.booleans(), layout=st.sampled_from(["NCHW", "NHWC"]))  # fmt: skip
def test_the_definition(seed: int, x_zero: int, zeros: str, power: int, quantised: bool, layout: str) -> None:
    """Multipliers that are powers of two have many ties."""
    x, w, bias = draws(seed, (1, 3, 6, 7), (4, 3, 2, 3), w_dtype="uint8" if zeros != "none" else "int8")
    w_zeros: Any = {"none": 0, "128": 128, "each": np.arange(4) * 80}[zeros]
    scales = np.float32(2.0**power) * np.array([1, 1.5, 1, 3], np.float32)
    output: Any = (0.5, 3) if quantised else None
    q = Quantization(x=(0.5, x_zero), w=(scales, w_zeros), output=output)
    expected = defined(x, w, bias, q, "uint8", stride=2)
    given_x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" else x
    y = convforge.conv2d(given_x, w, bias, 2, layout=layout, quantization=q, **NAIVE)
    np.testing.assert_array_equal(y.transpose(0, 3, 1, 2) if layout == "NHWC" else y, expected)


PIECES = [None, "relu", "identity", ("leaky_relu", 0.125), ("clipped_relu", 6.0), ("clipped_relu", 0.8)]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["uint8", "int8"]),
       zeros=st.tuples(*3 * [st.integers(0, 255)]), activation=st.sampled_from(PIECES), power=st.integers(-15, -4),
       has_residual=st.booleans(), binary=st.booleans())  # fmt: skip
def test_activations_and_residuals_by_the_definition(
    seed: int, dtype: str, zeros: tuple[int, ...], activation: Any, power: int, has_residual: bool, binary: bool
) -> None:
    """Binary scales give many ties; with others, no number but a whole one is near a tie."""
    x, w, bias = draws(seed, (1, 3, 6, 7), (4, 3, 2, 3), dtype)
    low = limits(dtype)[0]
    added = draws(seed + 1, (1, 4, 5, 5), (1, 1, 1, 1), dtype)[0] if has_residual else None
    scales = np.float32(2.0**power) * np.array([1, 1.5, 0.75, 3], np.float32)
    scale, of_residual = (0.5, 0.75) if binary else (0.37, 0.21)
    q = Quantization(
        x=(0.5, low + zeros[0]), w=(scales, 0), output=(scale, low + zeros[1]),
        residual=(of_residual, low + zeros[2]) if has_residual else None,
    )  # fmt: skip
    given: Any = {"activation": activation, "residual": added}
    y = convforge.conv2d(x, w, bias, quantization=q, **given, **NAIVE)
    np.testing.assert_array_equal(y, defined(x, w, bias, q, dtype, **given))


CURVES: dict[str, Any] = {
    "sigmoid": lambda y: 1 / (1 + np.exp(-y)), "tanh": np.tanh, "silu": lambda y: y / (1 + np.exp(-y)),
    "gelu": lambda y: y * np.vectorize(math.erfc)(-y * math.sqrt(0.5)) / 2,
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", CURVES)
def test_other_activations_have_the_real_number(activation: str, device: str) -> None:
    x, w, bias = draws(11, (1, 3, 6, 7), (4, 3, 2, 3))
    added = draws(12, (1, 4, 5, 5), (1, 1, 1, 1))[0]
    q = Quantization(
        x=(0.02, 101), w=(np.array([1, 2, 3, 4]) * 1e-3, 0), output=(1 / 60, 119), residual=(0.03, 70)
    )  # fmt: skip
    y = convforge.conv2d(
        x, w, bias, quantization=q, activation=activation, residual=added, device=device, **NAIVE
    )  # fmt: skip
    sums = exact_sums(x, w, bias, q)
    real = sums * q.real_multiplier.reshape(-1, 1, 1) + float(np.float32(0.03)) * (added - 70.0)
    exact = np.clip(CURVES[activation](real) / float(np.float32(1 / 60)) + 119, 0, 255)
    assert np.abs(y - exact).max() <= 0.5 + 1e-9
    assert len(np.unique(y)) > 20


@pytest.mark.one_in(5)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("zero", "activation"), [(0, None), (7, "relu"), (3, ("leaky_relu", 0.25))])
def test_every_method_that_takes_it_gives_the_same_bits(zero: int, activation: Any, device: str) -> None:
    x, w, bias = draws(3, (2, 8, 10, 12), (8, 1, 3, 3))
    scales: Any = {"x": (0.02, 130), "w": (np.linspace(0.01, 0.2, 8), 0), "output": (0.3, zero)}
    added = draws(4, x.shape, (1, 1, 1, 1))[0] if activation else None
    q = Quantization(**scales, residual=(0.7, 33) if activation else None)
    given: Any = {"activation": activation, "residual": added}
    expected = defined(x, w, bias, q, "uint8", padding=1, groups=8, **given)
    found = {}
    for info in convforge.algorithms(device=device):
        if info.operation == "conv2d" and info.ours:
            try:
                y = convforge.conv2d(
                    x, w, bias, 1, 1, 1, 8, quantization=q, algorithm=info.name, device=device, **given
                )
            except convforge.UnsupportedProblem:
                continue
            found[info.name] = y
    assert len(found) >= 3
    for name, y in found.items():
        np.testing.assert_array_equal(y, expected, err_msg=name)


@pytest.mark.parametrize("mode", ["zeros", "constant", "BORDER_CONSTANT"])
def test_padding_is_the_number_zero(mode: str) -> None:
    x, w = np.full((1, 1, 1, 1), 200, np.uint8), np.ones((1, 1, 3, 3), np.int8)
    q = Quantization(x=(1.0, 200), w=(1.0, 0))
    assert not convforge.conv2d(x, w, padding=1, padding_mode=mode, quantization=q).any()


def test_other_arguments_of_conv2d() -> None:
    """Borders, a flipped filter, an image without a batch axis, an output array, and no images at all."""
    x, w, bias = draws(9, (2, 4, 7, 8), (3, 4, 3, 3), "int8")
    q = Quantization(x=(0.02, -7), w=(np.array([0.01, 0.02, 0.003]), 0), output=(0.2, np.int8(-3)))
    options: Any = {"padding": 1, "padding_mode": "reflect", "mode": "convolution"}
    expected = defined(x, w, bias, q, "int8", **options)
    options |= NAIVE
    out = np.empty_like(expected)
    assert convforge.conv2d(x, w, bias, quantization=q, out=out, **options) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(convforge.conv2d(x[1], w, bias, quantization=q, **options), expected[1])
    assert convforge.conv2d(x[:0], w, bias, padding=1, quantization=q, **NAIVE).shape == (0, 3, 7, 8)


def test_one_filter_takes_both_types_of_x() -> None:
    x, w, bias = draws(10, (1, 4, 6, 6), (3, 4, 3, 3))
    q = Quantization(x=(0.02, 5), w=(0.01, 0), output=(0.2, 3))
    layer = convforge.Filter(w, bias, quantization=q, **NAIVE)
    for given_x in (x, x.view(np.int8), x):
        y = layer(given_x)
        assert y.dtype == given_x.dtype, "no type is named"
        np.testing.assert_array_equal(y, defined(given_x, w, bias, q, given_x.dtype.name))
    typed = Quantization(x=q.x, w=q.w, output=(0.2, np.int8(3)))
    assert convforge.conv2d(x, w, bias, quantization=typed, **NAIVE).dtype == np.int8, "as in ONNX"


def test_floats_are_the_scaled_sums() -> None:
    x, w, bias = draws(5, (1, 4, 6, 6), (3, 4, 3, 3))
    for dtype in ("float32", "float16", "float64"):
        q = Quantization(x=(0.01, 128), w=([0.5, 0.25, 0.001], 0), output=dtype)
        y = convforge.conv2d(x, w, bias, quantization=q, activation="relu", **NAIVE)
        sums = Quantization(x=q.x, w=q.w)
        whole = convforge.conv2d(x, w, bias, quantization=sums, **NAIVE)
        relu = convforge.conv2d(x, w, bias, quantization=sums, activation="relu", **NAIVE)
        np.testing.assert_array_equal(relu, np.maximum(whole, 0))
        expected = np.maximum(whole * q.multiplier.astype(np.float64).reshape(-1, 1, 1), 0).astype(dtype)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, expected)


def test_a_relu_is_the_saturation_at_the_zero_point() -> None:
    x, w, bias = draws(6, (1, 4, 6, 6), (3, 4, 3, 3))
    for dtype, zero in (("uint8", 0), ("int8", -128)):
        q = Quantization(x=(0.01, 128), w=(0.02, 0), output=(0.05, zero, dtype))
        y = convforge.conv2d(x, w, bias, quantization=q, **NAIVE)
        np.testing.assert_array_equal(convforge.conv2d(x, w, bias, quantization=q, activation="relu", **NAIVE), y)
        assert (y == zero).any()
        held = QuantizedWeights(q, home_of(w=w), w, bias, ("clipped_relu", 12.75))
        assert held.fields("uint8", "zeros")["activation"] is None
        wide, short = ("clipped_relu", 12.8), ("clipped_relu", 12.6)  # 255 * 0.05 = 12.75
        np.testing.assert_array_equal(convforge.conv2d(x, w, bias, quantization=q, activation=wide, **NAIVE), y)
        assert convforge.conv2d(x, w, bias, quantization=q, activation=short, **NAIVE).max() < y.max()


def residual_layer() -> tuple[Any, ...]:
    x, w, bias = draws(13, (2, 4, 7, 8), (3, 4, 3, 3))
    added = draws(14, (2, 3, 7, 8), (1, 1, 1, 1))[0]
    return x, w, bias, added, Quantization(x=(0.02, 5), w=(0.01, 0), output=(0.2, 3), residual=(0.3, 117))


def test_a_filter_takes_another_residual_in_each_call() -> None:
    x, w, bias, added, q = residual_layer()
    options: Any = {"padding": 1, "quantization": q, "activation": "relu", **NAIVE}
    layer = convforge.Filter(w, bias, **options)
    for shift in range(4):  # the first calls of each shape are not those of the call cache
        now = added + np.uint8(shift)
        expected = convforge.conv2d(x, w, bias, residual=now, **options)
        np.testing.assert_array_equal(layer(x, residual=now), expected)
        np.testing.assert_array_equal(layer(x[1], residual=now[1]), expected[1])
        channels_last = np.ascontiguousarray(now.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(layer(x, residual=channels_last), expected)
        assert layer(x, now, residual=now) is now, "the result replaces the residual"
        np.testing.assert_array_equal(now, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_result_in_floats_adds_a_residual_of_floats(dtype: str) -> None:
    x, w, bias, _, q = residual_layer()
    added = np.random.default_rng(2).standard_normal((2, 3, 7, 8)).astype(dtype)
    sums = exact_sums(x, w, bias, q, padding=1) * float(q.real_multiplier)
    for residual, value in ((None, added.astype(np.float64)), ((0.25, 3), 0.25 * (added.astype(np.float64) - 3))):
        into_floats = Quantization(x=q.x, w=q.w, output=dtype, residual=residual)
        y = convforge.conv2d(
            x, w, bias, padding=1, quantization=into_floats, activation="relu", residual=added, **NAIVE
        )  # fmt: skip
        assert y.dtype == dtype
        np.testing.assert_allclose(y, np.maximum(sums + value, 0), rtol=np.finfo(dtype).eps, atol=1e-12)


def test_sums_in_int32_add_a_residual_as_it_is() -> None:
    x, w, bias, _, q = residual_layer()
    added = np.full((2, 3, 7, 8), 2**31 - 1, np.int32)
    added[0] = np.random.default_rng(3).integers(-(2**30), 2**30, (3, 7, 8))
    sums = Quantization(x=q.x, w=q.w)
    y = convforge.conv2d(x, w, bias, padding=1, quantization=sums, residual=added, **NAIVE)
    expected = exact_sums(x, w, bias, sums, padding=1) + added
    np.testing.assert_array_equal(y, np.clip(expected, -(2**31), 2**31 - 1).astype(np.int32))


def test_a_residual_without_quantization() -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((2, 4, 7, 8), (3, 4, 3, 3)))
    added = rng.integers(-99, 99, (2, 3, 7, 8)).astype(np.float32)
    expected = np.maximum(convforge.conv2d(x, w, padding=1, **NAIVE) + added, 0)
    y = convforge.conv2d(x, w, padding=1, activation="relu", residual=added, **NAIVE)
    np.testing.assert_array_equal(y, expected)
    layer = convforge.Filter(w, padding=1, activation="relu", **NAIVE)
    for _ in range(3):
        np.testing.assert_array_equal(layer(x, residual=added), expected)
        np.testing.assert_array_equal(
            layer(x), np.maximum(expected * 0 + convforge.conv2d(x, w, padding=1, **NAIVE), 0)
        )


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_filter_prepares_once_for_arrays_of_every_library(library: str) -> None:
    module = pytest.importorskip(library)
    make: Any = {"numpy": np.asarray, "torch": getattr(module, "from_numpy", None)}.get(library)
    make = make or module.numpy.asarray
    x, w, bias = draws(8, (2, 4, 9, 9), (6, 4, 3, 3), w_dtype="uint8")
    q = Quantization(x=(0.02, 130), w=(np.linspace(0.001, 0.02, 6), 128), output=(0.3, 5))
    expected = defined(x, w, bias, q, "uint8", padding=1)
    layer = convforge.Filter(make(w), make(bias), padding=1, quantization=q)
    if library == "numpy":
        layer = pickle.loads(pickle.dumps(layer))
    for _ in range(3):
        y = layer(make(x))
        assert type(y) is type(make(x))
        np.testing.assert_array_equal(np.asarray(y), expected)
    np.testing.assert_array_equal(np.asarray(convforge.conv2d(make(x), make(w), make(bias), padding=1, quantization=q)),
                                  expected)  # fmt: skip


X, W = np.zeros((1, 2, 4, 4), np.uint8), np.zeros((3, 2, 3, 3), np.int8)
Y = np.zeros((1, 3, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Quantization(x=(0.0, 0), w=(1.0, 0)), ValueError, "must be positive and finite"),
        (lambda: Quantization(x=(1.0, 0), w=([1.0, np.nan], 0)), ValueError, "must be positive and finite"),
        (lambda: Quantization(x=(1.0, 0.5), w=(1.0, 0)), TypeError, "must be a whole number"),
        (lambda: Quantization(x=1.0, w=(1.0, 0)), TypeError, "must be a pair"),
        (lambda: Quantization(x=([1.0, 2.0], 0), w=(1.0, 0)), ValueError, "one scale and one zero point"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output="int8"), ValueError, "is unknown; choose float16"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=(1.0, 0, "int4")), ValueError, "the type must be one of"),
        (lambda: convforge.conv2d(X, W, quantization=(1.0, 0)), TypeError, "must be a convforge.Quantization"),
        (lambda: call(x=(1.0, -1)), ValueError, "the zero point -1 of x must be a value of uint8"),
        (lambda: call(w=(1.0, 200)), ValueError, "the zero point 200 of w must be a value of int8"),
        (lambda: call(output=(1.0, 300)), ValueError, "the zero point 300 of output must be a value of uint8"),
        (lambda: call(w=([1.0, 1.0], 0)), ValueError, "there are 3 output channels"),
        (lambda: call(bias=np.zeros(3, np.float32)), TypeError, "it must be int32"),
        (lambda: call(bias=np.zeros(2, np.int32)), ValueError, "there are 3 output channels"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=([0.1], 3)), ValueError, "one scale and one zero point"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=(0.1, [3])), ValueError, "one scale and one zero point"),
        (lambda: Quantization(x=(1e-30, 0), w=(1e-30, 0)), ValueError, "must be positive and finite"),
        (lambda: Quantization(x=(1e30, 0), w=(1e30, 0), output=(1e-9, 0)), ValueError, "must be positive and finite"),
        (lambda: convforge.Filter(W, quantization=Quantization(x=(1.0, 0), w=([1.0, 1.0], 0))), ValueError,
         "there are 3 output channels"),
        (lambda: convforge.conv2d(np.zeros((1, 4096, 4, 4), np.uint8), np.zeros((1, 4096, 3, 3), np.uint8),
                                  quantization=Quantization(x=(1.0, 0), w=(1.0, 3))), ValueError, "can exceed int32"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), residual=(1.0, 0)), ValueError, "sums in int32 have no scale"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=(1.0, 0), residual=1.0), TypeError, "must be a pair"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=(1.0, 0), residual=([1.0], 0)), ValueError,
         "the residual and the output have one scale"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=(1.0, 0), residual=(-1.0, 0)), ValueError,
         "of residual must be positive"),
        (lambda: Quantization(x=(1.0, 0), w=(1.0, 0), output=(1e-9, 0), residual=(1e30, 0)), ValueError,
         "must be positive and finite"),
        (lambda: call(output=(1.0, 0), residual=(1.0, 256), added=Y), ValueError,
         "the zero point 256 of residual must be a value of uint8"),
        (lambda: call(output=(1.0, 0), residual=(1.0, 2)), ValueError, "give the call a residual too"),
        (lambda: convforge.Filter(W, quantization=Quantization(x=(1.0, 0), w=(1.0, 0), output=(1.0, 0),
                                                               residual=(1.0, 2)))(X), ValueError,
         "give the call a residual too"),
        (lambda: call(output=(1.0, 0), added=Y), ValueError, r"Quantization\(residual=\)"),
        (lambda: call(added=Y.astype(np.int32)[0]), ValueError, r"residual has shape \(3, 2, 2\); the result has"),
        (lambda: call(added=Y), ValueError, "residual is uint8 and the result is int32; cast the residual"),
        (lambda: convforge.Filter(W, residual=Y), TypeError, "residual and amax, which a call takes"),
        (lambda: call(output=(1.0, 3), activation="swish"), ValueError, "activation='swish' is unknown"),
        (lambda: convforge.conv2d(X.astype(np.int16), W, quantization=Quantization(x=(1.0, 0), w=(1.0, 0))),
         TypeError, "with quantization it must be one of uint8, int8"),
    ],
)  # fmt: skip
def test_mistakes_are_named(make: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


def call(
    x: Any = (1.0, 0), w: Any = (1.0, 0), output: Any = None, bias: Any = None, residual: Any = None, added: Any = None,
    activation: Any = None,
) -> Any:  # fmt: skip
    """Convolve zeros by these numbers."""
    q = Quantization(x=x, w=w, output=output, residual=residual)
    return convforge.conv2d(X, W, bias, quantization=q, residual=added, activation=activation)


@needs_emulator
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("output", [None, "float16", (0.25, 0), (0.25, 0, "float8_e5m2")], ids=str)
def test_floats_of_8_bits(output: Any, library: str) -> None:
    """Scales and a bias that are real numbers; results in floats, or in 8-bit floats, which saturate."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((2, 16, 7, 8), (24, 16, 3, 3)))
    bias, scales = rng.standard_normal(24).astype(np.float32), np.linspace(0.5, 20, 24)
    q = Quantization(x=(0.5, 0), w=(scales, 0), output=output)
    given: Any = (x, w, bias)
    if library == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(one.view(np.uint8)).view(torch.float8_e4m3fn) for one in (x, w)]
        given.append(torch.from_numpy(bias))
    options: Any = {"padding": 1, "precision": "fp8", "device": "emulator", "activation": "relu"}
    y = convforge.conv2d(*given, quantization=q, **options)
    dtype = (
        {None: "float32", "float16": "float16"}.get(output, "float8_e4m3fn") if len(output or "") != 3 else output[2]
    )
    assert str(y.dtype).removeprefix("torch.") == dtype
    got = (y if library == "numpy" else y.float().numpy()).astype(np.float64)
    sums = convforge.conv2d(x.astype(np.float64), w.astype(np.float64), padding=1, algorithm="direct_naive")
    real = sums * (1 if output is None else q.multiplier.reshape(-1, 1, 1).astype(np.float64))
    real += bias.reshape(-1, 1, 1) / (0.25 if isinstance(output, tuple) else 1)
    most, digits = {"float16": (65504, 11), "float8_e4m3fn": (448, 4), "float8_e5m2": (57344, 3)}.get(dtype, (1e38, 24))
    expected = np.clip(real, 0, most)
    assert (np.abs(got - expected) <= 2.0**-digits * expected + 0.01 * np.abs(expected).max() / 448 + 0.01).all()
    assert dtype != "float8_e4m3fn" or (got == 448).any()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"q": Quantization(x=(1.0, 3), w=(1.0, 0))}, ValueError, "zero point 3 of x must be 0"),
        ({"q": Quantization(x=(1.0, 0), w=(1.0, 0), output=(1.0, 0, "int8"))}, TypeError, "the result is int8"),
        ({"bias": np.zeros(4, np.int32)}, TypeError, "must be a float type"),
        ({"w": np.zeros((4, 3, 1, 1), np.int8)}, TypeError, "both must be integers or 8-bit floats"),
    ],
)
def test_floats_of_8_bits_are_refused(change: Any, error: type[Exception], words: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    form = ml_dtypes.float8_e4m3fn
    given = {"w": np.zeros((4, 3, 1, 1), form), "bias": None, "q": Quantization(x=(1.0, 0), w=(1.0, 0)), **change}
    with pytest.raises(error, match=words):
        convforge.conv2d(
            np.zeros((1, 3, 4, 4), form), given["w"], given["bias"], quantization=given["q"], precision="fp8"
        )


@pytest.mark.parametrize("zero", [3, 131])
@pytest.mark.parametrize(
    "options",
    [
        NAIVE,
        *(
            pytest.param({"algorithm": name, "device": "emulator"}, marks=needs_emulator)
            for name in ("implicit_gemm_int8_mma", "implicit_gemm_int8")
        ),
    ],
)
def test_weights_with_zero_points_and_many_taps(options: Any, zero: int) -> None:
    """Their differences are bounded by 255, not by int16, so that a layer of 1152 taps fits into int32."""
    rng = np.random.default_rng(zero)
    x, w, bias = draws(zero, (1, 128, 5, 6), (4, 128, 3, 3), w_dtype="uint8")
    q = Quantization(x=(0.02, 77), w=(np.full(4, 0.01), rng.integers(zero, zero + 9, 4)), output=(9.0, 100))
    y = convforge.conv2d(x, w, bias, padding=1, quantization=q, **options)
    np.testing.assert_array_equal(y, defined(x, w, bias, q, "uint8", padding=1))
