"""conv2d, Filter, max_pool2d, relu, gemm and algorithms, as their users meet them."""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convforge
from convforge import Filter, UnsupportedProblem, algorithms, conv2d, gemm, max_pool2d, relu
from convforge.problem import ACTIVATIONS, PADDING_MODES

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(23)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Begin each test with the same random numbers, whichever tests ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(24).bit_generator.state


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch; its absence is a skip at home and a failure in continuous integration."""
    if importlib.util.find_spec("torch") is None:
        if os.environ.get("CI"):
            pytest.fail("continuous integration installs torch, and it is not here")
        pytest.skip("torch is not installed")
    import torch

    return torch


def whole(*shape: int, dtype: Any = np.float32, low: int = -8, high: int = 9) -> Array:
    """Small whole numbers: their sums are exact in any type, so results are compared to the last bit."""
    return RANDOM.integers(low, high, shape).astype(dtype)


def convolved(
    x: Array, w: Array, stride: tuple[int, int] = (1, 1), pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1), groups: int = 1, border: str = "constant",
) -> Array:  # fmt: skip
    """The definition, in float64, on (N, C, H, W): NumPy's padding, and one product of arrays for each tap."""
    n, c, _, _ = x.shape
    k, _, r, s = w.shape
    sides = ((0, 0), (0, 0), pads[:2], pads[2:])
    padded = np.pad(x.astype(np.float64), sides, mode=border)  # type: ignore[call-overload]
    p = (padded.shape[2] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    q = (padded.shape[3] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    grouped = padded.reshape(n, groups, c // groups, *padded.shape[2:])
    filters = w.astype(np.float64).reshape(groups, k // groups, c // groups, r, s)
    out = np.zeros((n, groups, k // groups, p, q))
    for i in range(r):
        for j in range(s):
            top, left = i * dilation[0], j * dilation[1]
            seen = grouped[..., top : top + (p - 1) * stride[0] + 1 : stride[0], left:]
            seen = seen[..., : (q - 1) * stride[1] + 1 : stride[1]]
            out += np.einsum("ngchw,gkc->ngkhw", seen, filters[..., i, j])
    return out.reshape(n, k, p, q)


X, W = whole(2, 6, 9, 11), whole(4, 6, 3, 3)


# conv2d: arguments, shapes, layouts.


def test_positional_arguments_are_those_of_torch(torch: Any) -> None:
    names = list(inspect.signature(conv2d).parameters)
    assert names[:7] == ["x", "w", "bias", "stride", "padding", "dilation", "groups"]
    defaults = {name: inspect.signature(conv2d).parameters[name].default for name in names[2:7]}
    assert defaults == {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    w, bias = whole(4, 3, 3, 3), whole(4)
    for arguments in ((), (2,), ((1, 3), (2, 1)), (2, 1, 2, 2), (1, "valid", (2, 1), 2), (1, "same", 1, 2)):
        grouped = len(arguments) == 4
        weights = w if grouped else whole(4, 6, 3, 3)
        mine = conv2d(X, weights, bias, *arguments)
        theirs = torch.nn.functional.conv2d(*map(torch.from_numpy, (X, weights, bias)), *arguments)
        np.testing.assert_array_equal(mine, theirs.numpy(), str(arguments))


def test_random_calls_agree_with_torch(torch: Any) -> None:
    for seed in range(25):
        random = np.random.default_rng(seed)
        r, s, c, k, groups = random.integers(1, 5), random.integers(1, 5), 2 * random.integers(1, 4), 4, 2
        x = random.normal(size=(2, c, 12, 13)).astype(np.float32)
        w = random.normal(size=(k, c // groups, r, s)).astype(np.float32)
        stride, padding = tuple(random.integers(1, 4, 2).tolist()), tuple(random.integers(0, 4, 2).tolist())
        arguments = (stride, padding, tuple(random.integers(1, 3, 2).tolist()), groups)
        theirs = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), None, *arguments)
        np.testing.assert_allclose(conv2d(x, w, None, *arguments), theirs.numpy(), atol=2e-5)


def test_worked_values() -> None:
    x = np.tile(np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]] * 3, np.float32)[:5], (3, 1, 1))
    w = np.tile(np.arange(1, 10, dtype=np.float32).reshape(3, 3), (1, 3, 1, 1))
    assert conv2d(x, w, stride=2, padding=1).tolist() == [[[384, 723, 312], [483, 873, 339], [150, 291, 150]]]
    assert conv2d(x, w, stride=3, padding=1).tolist() == [[[384, 570], [318, 603]]]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHW", "HWC"])
def test_layouts(layout: str) -> None:
    x = X[:1] if len(layout) == 3 else X
    expected = convolved(x, W, pads=(1, 1, 1, 1))
    if layout[-1] == "C":
        x, expected = x.transpose(0, 2, 3, 1), expected.transpose(0, 2, 3, 1)
    if len(layout) == 3:
        x, expected = x[0], expected[0]
    result = conv2d(np.ascontiguousarray(x), W, padding=1, layout=layout)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(conv2d(x, W, padding=1, layout=layout), expected, "the same through a view")


def test_a_picture_without_a_batch_axis_in_a_four_letter_layout() -> None:
    np.testing.assert_array_equal(conv2d(X[0], W), convolved(X[:1], W)[0])
    hwc = X[0].transpose(1, 2, 0)
    np.testing.assert_array_equal(conv2d(hwc, W, layout="NHWC"), convolved(X[:1], W)[0].transpose(1, 2, 0))


@pytest.mark.parametrize("stride", [1, 2, 3, (2, 3)])
@pytest.mark.parametrize("size", [(3, 3), (2, 4), (5, 1)])
def test_same_gives_one_output_a_stride(stride: Any, size: tuple[int, int]) -> None:
    steps = (stride, stride) if isinstance(stride, int) else stride
    w = whole(2, 6, *size)
    result = conv2d(X, w, stride=stride, padding="same")
    assert result.shape[2:] == (-(-9 // steps[0]), -(-11 // steps[1]))
    pads = []
    for n, window, step in zip((9, 11), size, steps, strict=True):
        total = max((-(-n // step) - 1) * step + window - n, 0)
        pads += [total // 2, total - total // 2]
    np.testing.assert_array_equal(result, convolved(X, w, steps, (pads[0], pads[1], pads[2], pads[3])))


def test_same_with_dilation(torch: Any) -> None:
    w = whole(2, 6, 3, 5)
    theirs = torch.nn.functional.conv2d(torch.from_numpy(X), torch.from_numpy(w), None, 1, "same", (2, 3))
    np.testing.assert_array_equal(conv2d(X, w, padding="same", dilation=(2, 3)), theirs.numpy())


@pytest.mark.parametrize(
    "padding, pads",
    [
        (2, (2, 2, 2, 2)),
        ((1, 2), (1, 1, 2, 2)),
        ([1, 2], (1, 1, 2, 2)),
        (np.int64(1), (1, 1, 1, 1)),
        ("valid", (0, 0, 0, 0)),
        (((1, 2), (3, 0)), (1, 2, 3, 0)),
        ([[0, 4], [5, 0]], (0, 4, 5, 0)),
        (((9, 7), (8, 12)), (9, 7, 8, 12)),
    ],
)
def test_every_form_of_padding(padding: Any, pads: tuple[int, int, int, int]) -> None:
    np.testing.assert_array_equal(conv2d(X, W, padding=padding, stride=2), convolved(X, W, (2, 2), pads))


@pytest.mark.parametrize(
    "mode, border", [("reflect", "reflect"), ("symmetric", "symmetric"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_padding_modes(mode: str, border: str) -> None:
    pads = (3, 1, 2, 4)
    result = conv2d(X, W, padding=((3, 1), (2, 4)), padding_mode=mode)
    np.testing.assert_array_equal(result, convolved(X, W, pads=pads, border=border))


@pytest.mark.parametrize("groups, outputs", [(1, 5), (2, 4), (3, 6), (6, 6), (6, 12)])
@pytest.mark.parametrize("dilation", [1, (2, 3)])
def test_groups_depthwise_and_dilation(groups: int, outputs: int, dilation: Any) -> None:
    w = whole(outputs, 6 // groups, 3, 2)
    steps = (1, 1) if dilation == 1 else dilation
    result = conv2d(X, w, groups=groups, dilation=dilation, padding=1)
    np.testing.assert_array_equal(result, convolved(X, w, pads=(1, 1, 1, 1), dilation=steps, groups=groups))


def test_convolution_flips_the_filter() -> None:
    impulse = np.zeros((1, 5, 5), np.float32)
    impulse[0, 2, 2] = 1
    w = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    assert conv2d(impulse, w)[0].ravel().tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert conv2d(impulse, w, mode="convolution")[0].ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


# Bias and activations.

FORMULAS: dict[str, Callable[[Array, float], Array]] = {
    "identity": lambda y, a: y,
    "relu": lambda y, a: np.maximum(y, 0),
    "leaky_relu": lambda y, a: np.where(y > 0, y, a * y),
    "clipped_relu": lambda y, a: np.clip(y, 0, a),
    "sigmoid": lambda y, a: 1 / (1 + np.exp(-y)),
    "tanh": lambda y, a: np.tanh(y),
    "silu": lambda y, a: y / (1 + np.exp(-y)),
    "gelu": lambda y, a: y * (1 + np.vectorize(math.erf)(y / np.sqrt(2))) / 2,
}


def test_every_activation_has_its_formula_here() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("parameter", [None, 0.2, 1.5])
def test_activations(name: str, parameter: float | None) -> None:
    default = ACTIVATIONS[name][1]
    if default is None and parameter is not None:
        with pytest.raises(ValueError, match="takes no alpha"):
            conv2d(X, W, activation=(name, parameter))
        return
    x, w, bias = (RANDOM.normal(size=s).astype(np.float32) for s in ((2, 3, 6, 7), (4, 3, 3, 3), (4,)))
    sums = convolved(x, w) + bias[:, None, None]
    alpha = default if parameter is None else parameter
    result = conv2d(x, w, bias, activation=name if parameter is None else (name, parameter))
    np.testing.assert_allclose(result, FORMULAS[name](sums, alpha or 0.0), atol=1e-5)


def test_bias_may_be_of_another_float_type_and_a_view() -> None:
    bias = np.arange(8, dtype=np.float64)[::-2]
    expected = convolved(X, W) + bias[:, None, None]
    np.testing.assert_array_equal(conv2d(X, W, bias), expected)


# Element types.


def test_float16_is_summed_in_float32() -> None:
    x, w = np.full((1, 64, 4, 4), 1.0, np.float16), np.full((1, 64, 3, 3), 1 / 64, np.float16)
    x[0, 0] = 2048.0
    result = conv2d(x, w)
    assert result.dtype == np.float16
    exact = convolved(x, w)
    np.testing.assert_array_equal(result, exact.astype(np.float16), "one rounding, at the end")


def test_float64_stays_float64() -> None:
    x, w = RANDOM.normal(size=(1, 3, 8, 8)), RANDOM.normal(size=(2, 3, 3, 3))
    result = conv2d(x, w, padding=1)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, convolved(x, w, pads=(1, 1, 1, 1)), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("x_dtype, w_dtype", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_integers_are_summed_in_int32(x_dtype: str, w_dtype: str) -> None:
    ends_x, ends_w = np.iinfo(x_dtype), np.iinfo(w_dtype)
    x = RANDOM.integers(ends_x.min, ends_x.max, (2, 5, 7, 8), dtype=x_dtype, endpoint=True)
    w = RANDOM.integers(ends_w.min, ends_w.max, (3, 5, 3, 3), dtype=w_dtype, endpoint=True)
    result = conv2d(x, w, padding=1)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, convolved(x, w, pads=(1, 1, 1, 1)))


def test_integers_with_bias_and_relu() -> None:
    x, w = whole(1, 3, 6, 6, dtype=np.uint8, low=0, high=256), whole(4, 3, 3, 3, dtype=np.int8)
    bias = np.array([100, -100000, 0, 7], np.int32)
    expected = np.maximum(convolved(x, w) + bias[:, None, None], 0)
    np.testing.assert_array_equal(conv2d(x, w, bias, activation="relu"), expected)


def test_integer_pictures_with_float_weights() -> None:
    x, w = whole(1, 2, 6, 6, dtype=np.uint8, low=0, high=256), whole(2, 2, 3, 3) / 4
    result = conv2d(x, w.astype(np.float32))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, convolved(x, w))


def test_inf_and_nan_reach_their_windows_and_no_further() -> None:
    x = np.zeros((1, 1, 9, 9), np.float32)
    x[0, 0, 4, 4] = np.nan
    x[0, 0, 0, 8] = np.inf
    result = conv2d(x, np.ones((1, 1, 3, 3), np.float32), padding=1)[0, 0]
    expected = np.zeros((9, 9), np.float32)
    expected[3:6, 3:6] = np.nan
    expected[0:2, 7:9] = np.inf
    np.testing.assert_array_equal(result, expected)


# How arrays lie in memory.

VIEWS: dict[str, Callable[[Array], Array]] = {
    "rows and columns left out": lambda a: a[:, :, ::2, 1::3],
    "channels left out": lambda a: a[:, ::3],
    "upside down": lambda a: a[:, :, ::-1],
    "all reversed": lambda a: a[::-1, ::-1, ::-1, ::-1],
    "axes swapped": lambda a: a.swapaxes(2, 3),
    "channels last": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "one channel for all": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "one pixel for all": lambda a: np.broadcast_to(a[:, :, :1, :1], a.shape),
    "Fortran order": lambda a: np.asfortranarray(a),
    "a window of a larger picture": lambda a: a[:, :, 2:7, 3:9],
    "a field of records": lambda a: a.astype([("v", "f4"), ("gap", "u1")])["v"],
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "big-endian": lambda a: a.astype(">f4"),
    "read-only": lambda a: np.lib.stride_tricks.as_strided(a, writeable=False),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("algorithm", ["auto", "im2col"])
def test_any_array_will_do(name: str, algorithm: str) -> None:
    x = VIEWS[name](whole(2, 6, 12, 13))
    before = np.array(x)
    w = whole(4, x.shape[1], 3, 2)
    result = conv2d(x, w, padding=1, algorithm=algorithm)
    np.testing.assert_array_equal(result, convolved(np.array(x, np.float32), w, pads=(1, 1, 1, 1)))
    np.testing.assert_array_equal(np.array(x), before, "x is left as it was")
    assert result.dtype == np.float32
    assert result.dtype.isnative


def test_a_file_mapped_into_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    result = conv2d(mapped, W)
    np.testing.assert_array_equal(result, convolved(X, W))
    assert type(result) is np.ndarray


@pytest.mark.parametrize("name", ["all reversed", "axes swapped", "big-endian", "one pixel for all", "unaligned"])
def test_weights_may_lie_anyhow(name: str) -> None:
    w = VIEWS[name](whole(4, 6, 3, 3))
    np.testing.assert_array_equal(conv2d(X, w), convolved(X, np.array(w, np.float32)))


@pytest.mark.parametrize("shape", [(0, 6, 9, 11), (1, 6, 3, 3)])
def test_empty_batches_and_single_outputs(shape: tuple[int, ...]) -> None:
    result = conv2d(np.ones(shape, np.float32), W)
    assert result.shape == (shape[0], 4, shape[2] - 2, shape[3] - 2)
    np.testing.assert_array_equal(result, convolved(np.ones(shape), W))


@pytest.mark.parametrize("name", [a.name for a in algorithms() if a.operation == "conv2d" and a.ours])
def test_an_empty_batch_by_every_method(name: str) -> None:
    for size in (1, 3, 5):
        w = np.ones((4, 6, size, size), np.float32)
        x = np.empty((0, 6, 9, 11), np.float32)
        if next(a for a in algorithms(f"n0c6h9w11_k4r{size}s{size}_f32_nchw") if a.name == name).refusal is None:
            assert conv2d(x, w, algorithm=name).shape == (0, 4, 10 - size, 12 - size)


@pytest.mark.parametrize("mode", [mode for mode in PADDING_MODES if mode != "constant"])
def test_a_picture_of_one_pixel(mode: str) -> None:
    x, w = np.full((1, 1, 1), 3, np.float32), whole(2, 1, 3, 3)
    result = conv2d(x, w, padding=1, padding_mode=mode)
    expected = w[:, 0, 1, 1] if mode == "zeros" else w.sum(axis=(1, 2, 3))
    assert result.ravel().tolist() == (3 * expected).tolist()


# out=


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["auto", "im2col", "direct_naive"])
def test_out_is_written_and_returned(layout: str, algorithm: str) -> None:
    x = X if layout == "NCHW" else np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    expected = conv2d(x, W, padding=1, layout=layout)
    big = np.full((*(2 * n + 2 for n in expected.shape[:-1]), 3 * expected.shape[-1]), np.nan, np.float32)
    for out in (
        np.full_like(expected, np.nan),
        big[tuple(slice(1, 1 + n) for n in expected.shape)],
        big[tuple(slice(0, 2 * n, 2) for n in expected.shape)],
        np.full_like(expected, np.nan)[::-1, ::-1, ::-1, ::-1],
        np.full(expected.shape[::-1], np.nan, np.float32).T,
    ):
        big[...] = np.nan
        result = conv2d(x, W, padding=1, layout=layout, out=out, algorithm=algorithm)
        assert result is out
        np.testing.assert_array_equal(out, expected)
        if out.base is big:
            assert np.isnan(big).sum() == big.size - out.size, "nothing beside it was touched"


def test_out_of_a_picture_without_a_batch_axis() -> None:
    out = np.empty((4, 9, 11), np.float32)
    assert conv2d(X[0], W, padding=1, out=out) is out
    np.testing.assert_array_equal(out, convolved(X[:1], W, pads=(1, 1, 1, 1))[0])


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[:, ::-1], lambda a: a[..., ::-1], lambda a: a[::-1]])
@pytest.mark.parametrize("algorithm", ["auto", "im2col", "direct_naive"])
def test_out_may_overlap_x(algorithm: str, view: Callable[[Array], Array]) -> None:
    x, w = whole(2, 6, 9, 11), whole(6, 6, 3, 3)
    expected = convolved(x, w, pads=(1, 1, 1, 1))
    result = conv2d(x, w, padding=1, out=view(x), algorithm=algorithm)
    np.testing.assert_array_equal(result, expected)


def test_out_may_overlap_a_part_of_x() -> None:
    memory = whole(1, 4, 12, 12)
    x, w = memory[:, :, :9, :9], whole(4, 4, 3, 3)
    expected = convolved(x.copy(), w, pads=(1, 1, 1, 1))
    np.testing.assert_array_equal(conv2d(x, w, padding=1, out=memory[:, :, 2:11, 3:12]), expected)


def test_out_may_overlap_the_weights() -> None:
    memory = whole(4 * 4 * 9)
    x, w, out = whole(4, 7, 7), memory.reshape(4, 4, 3, 3), memory[:100].reshape(4, 5, 5)
    expected = convolved(x[None], w)[0]
    np.testing.assert_array_equal(conv2d(x, w, out=out), expected)


def test_out_may_overlap_the_bias() -> None:
    memory = whole(40)
    bias = memory[:4]
    out = memory[:36].reshape(4, 3, 3)
    x = whole(2, 5, 5)
    w = whole(4, 2, 3, 3)
    expected = convolved(x[None], w)[0] + bias[:, None, None]
    np.testing.assert_array_equal(conv2d(x, w, bias, out=out), expected)


@pytest.mark.parametrize(
    "out, error, says",
    [
        (np.empty((2, 4, 7, 8), np.float32), ValueError, ("(2, 4, 7, 8)", "(2, 4, 7, 9)")),
        (np.empty((2, 4, 7, 9), np.float64), ValueError, ("float64", "float32")),
        (np.empty((2, 4, 7, 9), ">f4"), ValueError, (">f4", "float32")),
        ([0.0], TypeError, ("out", "list")),
        (np.broadcast_to(np.float32(0), (2, 4, 7, 9)), ValueError, ("read-only",)),
    ],
)
def test_an_out_that_does_not_fit(out: Any, error: type[Exception], says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        conv2d(X, W, out=out)
    for word in says:
        assert word in str(caught.value)


# Choosing the method.


@pytest.mark.parametrize("name", [a.name for a in algorithms() if a.operation == "conv2d"])
def test_every_method_by_name(name: str) -> None:
    """Normal numbers, an asymmetric 3x3 filter: right, or refused in a sentence."""
    x, w = RANDOM.normal(size=(1, 3, 20, 22)).astype(np.float32), RANDOM.normal(size=(5, 3, 3, 3)).astype(np.float32)
    reasons: dict[str, str] = {}
    result = None
    try:
        result = conv2d(x, w, padding=1, algorithm=name)
    except UnsupportedProblem as refusal:
        reasons = refusal.reasons
    if result is None:
        assert list(reasons) == [name]
        assert len(reasons[name].split()) > 3, "a sentence, not a code"
    else:
        np.testing.assert_allclose(result, convolved(x, w, pads=(1, 1, 1, 1)), atol=2e-4)


def test_a_workspace_limit_passes_over_what_needs_more() -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        conv2d(X, W, algorithm="im2col", workspace_limit=0)
    assert "workspace of at least" in caught.value.reasons["im2col"]
    assert "the limit is 0" in str(caught.value)
    for name in ("direct_rows", "direct_naive", "auto"):
        np.testing.assert_array_equal(conv2d(X, W, algorithm=name, workspace_limit=0), convolved(X, W))
    wide = whole(32, 16, 3, 3)
    x = whole(1, 16, 20, 20)
    assert _chosen(x, wide, precision="winograd") == "winograd_f4", "or this test shows nothing"
    result = conv2d(x, wide, precision="winograd", workspace_limit=0)  # so strictly, without a workspace
    np.testing.assert_array_equal(result, convolved(x, wide))
    with pytest.raises(UnsupportedProblem, match="limit is 10"):
        conv2d(X, W, algorithm="im2col", config="tile_p=2", workspace_limit=10)
    with pytest.raises(ValueError, match="workspace_limit=-1"):
        conv2d(X, W, workspace_limit=-1)


def _chosen(x: Array, w: Array, **options: str) -> str:
    from convforge.arguments import conv2d_problem
    from convforge.execution import find_plan

    return find_plan(conv2d_problem(x, w, **options)[0], "auto", None, None, None).algorithm.name


@pytest.mark.parametrize(
    "config", ["tile_p=2", "tile_p=2,tile_k=3", "tile_p=100,tile_c=100,tile_k=100", {"tile_p": 1, "tile_c": 2}]
)
def test_a_config_by_text_and_by_mapping(config: Any) -> None:
    np.testing.assert_array_equal(conv2d(X, W, algorithm="direct_rows", config=config), convolved(X, W))


@pytest.mark.parametrize(
    "algorithm, config, says",
    [
        ("direct_rows", "tile_q=2", ("'tile_q'", "did you mean", "tile_p, tile_c, tile_k")),
        ("direct_rows", "tile_p=0", ("tile_p='0'", "at least 1")),
        ("direct_rows", "tile_p=-3", ("tile_p='-3'", "at least 1")),
        ("direct_rows", "tile_p=2.5", ("tile_p='2.5'", "whole")),
        ("direct_rows", "tile_p", ("tile_p=''", "whole")),
        ("direct_rows", {"tile_p": "many"}, ("tile_p='many'", "whole")),
        ("direct_rows", {"tile": 3}, ("'tile'", "tile_p")),
        ("direct_naive", "tile_p=2", ("direct_naive", "'tile_p'")),
        ("im2col", "gemm=gemm_blass", ("gemm_blass", "gemm_blas")),
        ("auto", "tile_p=2", ("tile_p=2", "auto", "by name")),
    ],
)
def test_a_config_that_is_none(algorithm: str, config: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        conv2d(X, W, algorithm=algorithm, config=config)
    for word in says:
        assert word in str(caught.value)


def test_a_config_object_goes_with_its_own_method() -> None:
    from convforge.algorithms.contract import Config
    from convforge.algorithms.direct.direct import RowsConfig

    np.testing.assert_array_equal(conv2d(X, W, algorithm="direct_rows", config=RowsConfig(3, 2, 2)), convolved(X, W))
    with pytest.raises(ValueError, match="takes a RowsConfig; got a Config"):
        conv2d(X, W, algorithm="direct_rows", config=Config())


@pytest.mark.parametrize("field", ["tile_p", "tile_c", "tile_k"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_config_object_with_an_impossible_tile(field: str, value: int) -> None:
    from convforge.algorithms.direct.direct import RowsConfig

    with pytest.raises(ValueError, match=field):
        conv2d(X, W, algorithm="direct_rows", config=RowsConfig(**{field: value}))


def test_algorithms_lists_every_method_with_its_reason() -> None:
    everything = algorithms()
    keys = [(a.operation, a.backend, a.name) for a in everything]
    assert len(set(keys)) == len(keys)
    assert all(a.refusal is None for a in everything), "no problem, no refusal"
    assert {a.operation for a in everything} == {"conv2d", "gemm", "max_pool2d", "relu"}
    assert all(a.summary and a.summary[-1] != "." for a in everything if a.ours)
    listed = {a.name: a.refusal for a in algorithms("n1c3h32w32_k4r3s3_p1_f32_nchw")}
    assert listed["direct_rows"] is None
    assert "3x3" in str(listed["gemm_1x1"])
    problem = convforge.parse_problem("n1c3h32w32_k4r3s3_p1_f32_nchw")
    assert algorithms(problem) == algorithms("n1c3h32w32_k4r3s3_p1_f32_nchw")
    assert {a.operation for a in algorithms(problem)} == {"conv2d"}
    with pytest.raises(ValueError, match="not a problem"):
        algorithms("n1c3")
    with pytest.raises(ValueError, match="tpu"):
        algorithms(device="tpu")


def test_unsupported_problems_say_every_reason() -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        conv2d(X, W, algorithm="gemm_1x1")
    assert isinstance(caught.value, ValueError)
    assert caught.value.problem == "n2c6h9w11_k4r3s3_st1_p0_f32_nchw"
    assert "3x3" in caught.value.reasons["gemm_1x1"]
    assert caught.value.problem in str(caught.value)
    assert caught.value.reasons["gemm_1x1"] in str(caught.value)


# Many threads, and weights that are kept.


def test_calls_from_many_threads_at_once() -> None:
    cases = [(whole(1, c, 20, 21), whole(k, c, 3, 3)) for c in (1, 3, 8) for k in (1, 16)]
    expected = [convolved(x, w, pads=(1, 1, 1, 1)) for x, w in cases]
    shared = Filter(cases[2][1], padding=1)
    wrong: list[str] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for turn in range(8):
            at = (number + turn) % len(cases)
            x, w = cases[at]
            results = {name: conv2d(x, w, padding=1, algorithm=name) for name in ("auto", "im2col", "direct_rows")}
            results["a shared filter"] = shared(x) if x.shape[1] == 3 and w.shape[0] == 1 else expected[at]
            wrong.extend(f"{name} on {x.shape}" for name, y in results.items() if not np.array_equal(y, expected[at]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_filter_is_conv2d_with_kept_weights() -> None:
    w, bias = whole(4, 6, 3, 3), whole(4)
    layer = Filter(w, bias, padding="same", stride=2, activation="relu")
    expected = conv2d(X, w, bias, padding="same", stride=2, activation="relu")
    np.testing.assert_array_equal(layer(X), expected)
    np.testing.assert_array_equal(layer(X[0]), expected[0])
    np.testing.assert_array_equal(
        layer(whole(1, 6, 30, 5) * 0), np.maximum(bias, 0)[:, None, None] + np.zeros((1, 4, 15, 3))
    )
    out = np.empty_like(expected)
    assert layer(X, out=out) is out
    np.testing.assert_array_equal(out, expected)
    w[...], bias[...] = 0, 0
    np.testing.assert_array_equal(layer(X), expected, "the filter has copies of its own")
    own = whole(2, 6, 9, 11)
    square = Filter(whole(6, 6, 3, 3), padding=1)
    expected = square(own)
    np.testing.assert_array_equal(square(own, out=own), expected)


def test_filter_prepares_once_a_kind_of_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.contract import Plan

    prepared: list[str] = []
    prepare = Plan.prepare

    def watched(self: Plan, w: Any, stream: Any = None) -> Any:
        prepared.append(str(self.problem))
        return prepare(self, w, stream)

    monkeypatch.setattr(Plan, "prepare", watched)
    layer = Filter(whole(4, 6, 3, 3), algorithm="direct_rows")
    for _ in range(3):
        layer(X)
    assert len(prepared) == 1
    with pytest.raises(ValueError, match="w is float32 and x is float64"):
        layer(X.astype(np.float64))


def test_filter_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="strid"):
        Filter(W, strid=2)
    with pytest.raises(TypeError, match="out"):
        Filter(W, out=np.empty(3))
    with pytest.raises(TypeError, match="w must be a NumPy array"):
        Filter([[1]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="w has 3 axes"):
        Filter(W[0])


def test_filter_takes_every_keyword_of_conv2d() -> None:
    options = {
        name: parameter.default
        for name, parameter in inspect.signature(conv2d).parameters.items()
        if name not in ("x", "w", "bias", "out")
    }
    np.testing.assert_array_equal(Filter(W, **options)(X), convolved(X, W))


# Mistakes in conv2d: each names the value, the rule, and what to do.


@pytest.mark.parametrize(
    "x, w, options, error, says",
    [
        (X.tolist(), W, {}, TypeError, ("x must be a NumPy array", "list", "numpy.asarray")),
        (X, W.tolist(), {}, TypeError, ("w must be a NumPy array", "list")),
        (X[0, 0], W, {}, ValueError, ("x has 2 axes", "(9, 11)", "3 or 4")),
        (X[None], W, {}, ValueError, ("x has 5 axes", "3 or 4")),
        (X, W[0], {}, ValueError, ("w has 3 axes", "(6, 3, 3)")),
        (X, W[:, :5], {}, ValueError, ("w has 5 channels", "x has 6", "must have 6")),
        (X, W, {"layout": "NHWC"}, ValueError, ("w has 6 channels", "x has 11", "NHWC")),
        (X, W, {"layout": "HWC"}, ValueError, ("'HWC'", "3 axes", "NHWC")),
        (X, W, {"layout": "nchw"}, ValueError, ("'nchw'", "NCHW")),
        (X, W, {"groups": 4}, ValueError, ("groups=4", "6 channels")),
        (X, W, {"groups": 0}, ValueError, ("groups=0", "6 channels")),
        (X, W, {"groups": -1}, ValueError, ("groups=-1",)),
        (X, W, {"groups": 2.0}, TypeError, ("groups=2.0", "whole")),
        (X, W[:, :3], {"groups": 1}, ValueError, ("3 channels", "6")),
        (X, whole(3, 3, 3, 3), {"groups": 2}, ValueError, ("groups=2", "3 output channels")),
        (X, W, {"stride": 0}, ValueError, ("stride", "0", "at least 1")),
        (X, W, {"stride": -2}, ValueError, ("stride", "-2", "at least 1")),
        (X, W, {"stride": 1.0}, TypeError, ("stride=1.0", "whole number")),
        (X, W, {"stride": True}, TypeError, ("stride=True", "whole number")),
        (X, W, {"stride": (1, 2, 3)}, TypeError, ("stride=(1, 2, 3)", "pair")),
        (X, W, {"stride": "2"}, TypeError, ("stride='2'", "whole number")),
        (X, W, {"stride": None}, TypeError, ("stride=None", "whole number")),
        (X, W, {"dilation": 0}, ValueError, ("dilation", "at least 1")),
        (X, W, {"dilation": (1, -1)}, ValueError, ("dilation", "at least 1")),
        (X, W, {"dilation": 1.5}, TypeError, ("dilation=1.5", "whole")),
        (X, W, {"stride": 0, "padding": "same"}, ValueError, ("stride", "at least 1")),
        (X, W, {"padding": -1}, ValueError, ("padding", "negative")),
        (X, W, {"padding": 0.5}, TypeError, ("padding=0.5", "whole")),
        (X, W, {"padding": "full"}, ValueError, ("'full'", "'same'", "'valid'")),
        (X, W, {"padding": "SAME"}, ValueError, ("'SAME'", "'same'")),
        (X, W, {"padding": (1, 2, 3, 4)}, TypeError, ("padding=(1, 2, 3, 4)",)),
        (X, W, {"padding": ((1, 2), 3)}, TypeError, ("padding",)),
        (X, W, {"padding": ((1, 2, 3), (1, 2))}, TypeError, ("padding",)),
        (X, W, {"padding_mode": "mirror"}, ValueError, ("'mirror'", "reflect")),
        (X, W, {"mode": "correlation"}, ValueError, ("'correlation'", "cross-correlation")),
        (X, W, {"precision": "fast"}, ValueError, ("'fast'", "strict")),
        (X, W, {"activation": "rleu"}, ValueError, ("'rleu'", "relu")),
        (X, W, {"activation": ("leaky_relu", float("nan"))}, ValueError, ("nan", "leaky_relu", "finite")),
        (X, W, {"activation": ("clipped_relu", -1.0)}, ValueError, ("-1.0", "clipped_relu", "negative")),
        (X, W, {"activation": 3}, (TypeError, ValueError), ("activation", "3")),
        (X, W, {"activation": ("leaky_relu",)}, (TypeError, ValueError), ("activation", "leaky_relu")),
        (X, W, {"activation": {"leaky_relu": 0.2}}, (TypeError, ValueError), ("activation",)),
        (X, W, {"activation": ("leaky_relu", "steep")}, (TypeError, ValueError), ("leaky_relu", "steep")),
        (X, W, {"algorithm": "direct_row"}, ValueError, ("'direct_row'", "did you mean 'direct_rows'", "im2col")),
        (X, W, {"algorithm": None}, (TypeError, ValueError), ("algorithm", "None")),
        (X, W, {"algorithm": "direct_rows", "config": 5}, (TypeError, ValueError), ("config", "5")),
        (X, W, {"workspace_limit": "64MB"}, (TypeError, ValueError), ("workspace_limit", "64MB")),
        (X, W, {"device": "tpu"}, ValueError, ("'tpu'", "'cpu'")),
        (X, W, {"bias": whole(3)}, ValueError, ("bias", "(3,)", "(4,)")),
        (X, W, {"bias": whole(4, 1)}, ValueError, ("bias", "2 axes")),
        (X, W, {"bias": [1, 2, 3, 4]}, TypeError, ("bias", "list")),
        (X, W, {"bias": 1.0}, TypeError, ("bias", "float")),
        (X, whole(4, 6, 10, 3), {}, ValueError, ("height of 10", "9", "padding")),
        (X, whole(4, 6, 3, 12), {}, ValueError, ("width of 12", "11", "padding")),
        (X, W, {"dilation": 5}, ValueError, ("height of 11", "dilation", "9")),
        (X, whole(4, 6, 0, 3), {}, ValueError, ("r=0", "at least 1")),
        (X, whole(0, 6, 3, 3), {}, ValueError, ("k=0", "at least 1")),
        (X[:, :, :0], W, {}, ValueError, ("h=0", "at least 1")),
        (X[:, :0], W[:, :0], {}, ValueError, ("at least 1",)),
        (X.astype(np.float64), W, {}, ValueError, ("float32", "float64", "cast")),
        (X, W.astype(np.int8), {}, ValueError, ("int8", "float32", "cast")),
        (X.astype(complex), W, {}, TypeError, ("x has dtype complex128", "float32")),
        (X > 0, W, {}, TypeError, ("x has dtype bool", "uint8")),
        (X.astype(object), W, {}, TypeError, ("x has dtype object", "float32")),
        (X.astype(np.int64), W, {}, TypeError, ("x has dtype int64", "float64")),
        (X.astype(np.longdouble), W, {}, TypeError, ("x has dtype", "float64")),
        (np.ones((1, 2, 3, 3), "U1"), W, {}, TypeError, ("x has dtype", "float32")),
        (whole(1, 600, 3, 3, dtype=np.int16), whole(1, 600, 3, 3, dtype=np.int16), {}, ValueError, ("int32", "float")),
        (X.astype(np.uint8), W.astype(np.int8), {"bias": whole(4)}, ValueError, ("bias is float32", "int32")),
        (X, W, {"out": np.empty(3, np.float32)}, ValueError, ("out", "(3,)", "(2, 4, 7, 9)")),
    ],
)  # fmt: skip
def test_mistakes(x: Any, w: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        conv2d(x, w, **options)
    for word in says:
        assert word in str(caught.value)


def test_torch_tensors_are_refused_with_what_to_do(torch: Any) -> None:
    with pytest.raises(TypeError, match=r"x must be a NumPy array; got Tensor: .*numpy\.asarray"):
        conv2d(torch.from_numpy(X), W)  # type: ignore[arg-type]


# max_pool2d


@pytest.mark.parametrize(
    "arguments",
    [
        (2,),
        (3, 2),
        (3, 2, 1),
        ((2, 3), (3, 1), (1, 0)),
        (3, 2, 1, 2),
        ((3, 2), 1, 1, (1, 3)),
        (2, 2, 0, 1, True),
        (3, 2, 1, 1, True),
        (3, 3, 1, 1, True),
        ((3, 2), (2, 4), (1, 1), (2, 1), True),
        (1, 3, 0, 1, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(9, 11), (10, 8), (5, 5)])
def test_pooling_agrees_with_torch(torch: Any, arguments: tuple[Any, ...], size: tuple[int, int]) -> None:
    x = RANDOM.normal(size=(2, 3, *size)).astype(np.float32)
    x[0, 0, 2, 2] = np.nan
    x[1, 1, 0, 0] = np.inf
    x[1, 2] = -np.inf
    x[1, 0] = -np.abs(x[1, 0])  # zeros of the padding must not win
    result = max_pool2d(x, *arguments)
    theirs = torch.nn.functional.max_pool2d(torch.from_numpy(x), *arguments).numpy()
    np.testing.assert_array_equal(result, theirs)


def test_pooling_takes_the_arguments_of_torch_in_their_order() -> None:
    names = list(inspect.signature(max_pool2d).parameters)
    assert names[1:6] == ["kernel_size", "stride", "padding", "dilation", "ceil_mode"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float16", "float64"])
def test_pooling_of_every_type(dtype: str) -> None:
    x = np.array([[[-5, -3, 7], [-9, -8, 100], [-1, -2, -128]]]).astype(dtype)
    result = max_pool2d(x, 3, 1, 1)
    assert result.dtype == dtype
    padded = np.pad(x[0].astype(np.float64), 1, constant_values=-np.inf)
    expected = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).max(axis=(2, 3))
    np.testing.assert_array_equal(result[0], expected)


def test_pooling_layouts_padding_and_out() -> None:
    x = whole(2, 3, 9, 10)
    expected = max_pool2d(x, 3, 2, 1)
    last = x.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(max_pool2d(last, 3, 2, 1, layout="NHWC"), expected.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(max_pool2d(x[0], 3, 2, 1), expected[0])
    assert max_pool2d(x, 3, 2, "same").shape == (2, 3, 5, 5)
    assert max_pool2d(x, 2, 1, ((1, 0), (0, 1))).shape == (2, 3, 9, 10)
    assert max_pool2d(x[:0], 3).shape == (0, 3, 3, 3)
    out = np.full_like(expected, np.nan)[..., ::-1]
    assert max_pool2d(x, 3, 2, 1, out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = x.copy()
    np.testing.assert_array_equal(max_pool2d(own, 3, 1, 1, out=own), max_pool2d(x, 3, 1, 1))


@settings(deadline=None, max_examples=60)
@given(
    h=st.integers(1, 12), w=st.integers(1, 12), r=st.integers(1, 4), s=st.integers(1, 4), step=st.integers(1, 4),
    dilation=st.integers(1, 3), top=st.integers(0, 3), left=st.integers(0, 3), ceil_mode=st.booleans(),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_pooling_by_its_definition(
    h: int, w: int, r: int, s: int, step: int, dilation: int, top: int, left: int, ceil_mode: bool, seed: int
) -> None:
    extent = (dilation * (r - 1) + 1, dilation * (s - 1) + 1)
    pads = (min(top, extent[0] - 1), min(left, extent[1] - 1))
    if extent[0] > h + 2 * pads[0] or extent[1] > w + 2 * pads[1]:
        return
    x = np.random.default_rng(seed).integers(-9, 10, (1, h, w)).astype(np.float32)
    result = max_pool2d(x, (r, s), step, pads, dilation, ceil_mode)
    for p in range(result.shape[1]):
        for q in range(result.shape[2]):
            rows = [i for i in (p * step - pads[0] + dilation * k for k in range(r)) if 0 <= i < h]
            columns = [j for j in (q * step - pads[1] + dilation * k for k in range(s)) if 0 <= j < w]
            expected = x[0][np.ix_(rows, columns)].max() if rows and columns else -np.inf
            assert result[0, p, q] == expected, (p, q)
    for size, n, window, pad in ((result.shape[1], h, extent[0], pads[0]), (result.shape[2], w, extent[1], pads[1])):
        free = n + 2 * pad - window
        assert size == free // step + 1 or (ceil_mode and size == -(-free // step) + 1)


@pytest.mark.parametrize(
    "arguments, options, error, says",
    [
        ((0,), {}, ValueError, ("at least 1",)),
        ((2, 0), {}, ValueError, ("stride", "at least 1")),
        ((2, -1), {}, ValueError, ("stride", "at least 1")),
        ((2.0,), {}, TypeError, ("kernel_size=2.0", "whole")),
        ((2, 1, 2), {}, ValueError, ("padding", "window")),
        ((2, 1, -1), {}, ValueError, ("padding", "negative")),
        ((20,), {}, ValueError, ("20x20", "9x11", "padding")),
        ((3, 1, 0, 0), {}, ValueError, ("dilation", "at least 1")),
        ((3,), {"layout": "CWH"}, ValueError, ("'CWH'", "NCHW")),
        ((3,), {"device": "gpu"}, ValueError, ("'gpu'", "'cpu'")),
        ((3,), {"out": np.empty((2, 6, 3, 3))}, ValueError, ("float64", "float32")),
    ],
)  # fmt: skip
def test_mistakes_in_pooling(arguments: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        max_pool2d(X, *arguments, **options)
    for word in says:
        assert word in str(caught.value)


# relu


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 4, 5, 2)])
def test_relu(dtype: str, shape: tuple[int, ...]) -> None:
    x = RANDOM.integers(-100, 100, shape).astype(np.int8).astype(dtype)
    if not shape:
        x = np.asarray(x)
    result = relu(x)
    assert result.shape == x.shape
    assert result.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(result, np.maximum(x, 0))


def test_relu_keeps_nan_and_inf() -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, -1e-45, 1e-45], np.float32)
    np.testing.assert_array_equal(relu(x), np.array([np.nan, 0, np.inf, 0, 0, 1e-45], np.float32))


def test_relu_in_place_and_into_views() -> None:
    x = whole(4, 6, 7)
    expected = np.maximum(x, 0)
    for view in (lambda a: a, lambda a: a[::-1], lambda a: a.transpose(2, 0, 1), lambda a: a[:, ::2, 1:]):
        own = x.copy()
        assert relu(view(own), out=view(own)).base is own or view(own) is own
        np.testing.assert_array_equal(view(own), view(expected))
    out = np.full((7, 6, 4), np.nan, np.float32).T
    assert relu(x, out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = x.copy()
    np.testing.assert_array_equal(relu(own, out=own[::-1]), expected)
    large = RANDOM.normal(size=2_000_001).astype(np.float32)
    np.testing.assert_array_equal(relu(large), np.maximum(large, 0))
    with pytest.raises(TypeError, match="list"):
        relu([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out has shape"):
        relu(x, out=np.empty(3, np.float32))


# gemm

GEMMS = ["auto", *(a.name for a in algorithms() if a.operation == "gemm" and a.ours)]


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (5, 7, 3), (65, 3, 130), (3, 129, 2), (0, 4, 3), (4, 0, 3), (4, 3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gemm(name: str, m: int, n: int, k: int, dtype: str) -> None:
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype)
    result = gemm(a, b, algorithm=name)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("name", GEMMS)
def test_gemm_of_views(name: str) -> None:
    a, b = whole(9, 14), whole(14, 11)
    for seen_a, seen_b in (
        (a[::2, ::-1], b[::-1, ::3]),
        (np.asfortranarray(a), b.T.copy().T),
        (np.broadcast_to(a[:1], a.shape), np.broadcast_to(b[:, :1], b.shape)),
        (a.astype(">f4"), b.astype(">f4")),
    ):
        result = gemm(seen_a, seen_b, algorithm=name)
        np.testing.assert_array_equal(result, np.array(seen_a, np.float64) @ np.array(seen_b, np.float64))
    for out in (
        np.full((9, 11), np.nan, np.float32), np.full((11, 9), np.nan, np.float32).T,
        np.full((18, 33), np.nan, np.float32)[::2, ::3], np.full((9, 11), np.nan, np.float32)[::-1, ::-1],
    ):  # fmt: skip
        assert gemm(a, b, algorithm=name, out=out) is out
        np.testing.assert_array_equal(out, a.astype(np.float64) @ b)
    square, other = whole(8, 8), whole(8, 8)
    expected = square.astype(np.float64) @ other
    np.testing.assert_array_equal(gemm(square, other, algorithm=name, out=square), expected)
    expected = other.astype(np.float64) @ other
    np.testing.assert_array_equal(gemm(other, other, algorithm=name, out=other), expected)


@pytest.mark.parametrize(
    "a, b, options, error, says",
    [
        (np.ones((2, 3)), np.ones((2, 3)), {}, ValueError, ("3 columns", "2 rows")),
        (np.ones((2, 3)), np.ones((3, 2), np.float32), {}, ValueError, ("float64", "float32", "cast")),
        (np.ones(3), np.ones((3, 2)), {}, ValueError, ("a has 1 axes",)),
        (np.ones((2, 3), np.int32), np.ones((3, 2), np.int32), {}, ValueError, ("int32", "float32 or float64")),
        (np.ones((2, 3), np.float16), np.ones((3, 2), np.float16), {}, ValueError, ("float16", "float32 or float64")),
        ([[1.0]], np.ones((1, 1)), {}, TypeError, ("a must be", "list")),
        (np.ones((2, 3)), np.ones((3, 2)), {"algorithm": "gemm_bias"}, ValueError, ("did you mean 'gemm_blas'",)),
        (np.ones((2, 3)), np.ones((3, 2)), {"out": np.ones((3, 2))}, ValueError, ("(3, 2)", "(2, 2)")),
        (np.ones((2, 3)), np.ones((3, 2)), {"config": "tile=2"}, ValueError, ("auto", "by name")),
        (np.ones((2, 3)), np.ones((3, 2)), {"device": "gpu"}, ValueError, ("'gpu'",)),
    ],
)  # fmt: skip
def test_mistakes_in_gemm(a: Any, b: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        gemm(a, b, **options)
    for word in says:
        assert word in str(caught.value)
