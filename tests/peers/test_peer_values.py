"""Peers of the CPU called by name on arrays and values of every kind: right within their class, or refused in words."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import convforge
from convforge.call.arguments import conv2d_problem
from convforge.errors import UnsupportedProblem
from convforge.peers import PEERS
from convforge.verify import Inputs, compare, truth

CONVOLUTIONS = [peer for peer in PEERS if peer.backend == "cpu" and peer.operation == "conv2d"]
NAMES = [peer.name for peer in CONVOLUTIONS]
PLANES = [name for name in NAMES if not name.startswith("torch")]
BY_NAME = {peer.name: peer for peer in CONVOLUTIONS}
MODULES = {"torch": "torch", "opencv": "cv2", "scipy": "scipy"}


def need(name: str) -> None:
    """Skip where the peer's library is absent; in CI, where all are installed, that is an error."""
    module = MODULES[name.partition("_")[0]]
    if importlib.util.find_spec(module) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{module} is not installed, and CI is to test it")
        pytest.skip(f"{module} is not installed")


def by(name: str, x: NDArray[Any], w: NDArray[Any], **how: Any) -> NDArray[Any]:
    need(name)
    return np.asarray(convforge.conv2d(x, w, algorithm=name, **how))


def checked(name: str, x: NDArray[Any], w: NDArray[Any], bias: Any = None, **how: Any) -> str:
    """Hold a peer's result against the truth; the reason where it refuses."""
    need(name)
    plain_x, plain_w = (np.array(a, a.dtype.newbyteorder("="), order="C") for a in (x, w))
    problem = conv2d_problem(plain_x, plain_w, bias, **how)
    peer = BY_NAME[name]
    if peer.precision != "strict":
        problem = problem.replace(precision=peer.precision)
    inputs = Inputs(plain_x, plain_w, {} if bias is None else {"bias": bias})
    try:
        got = convforge.conv2d(x, w, bias, algorithm=name, **how)
    except UnsupportedProblem as refused:
        return str(refused)
    verdict = compare(problem, peer.precision, np.ascontiguousarray(got), truth(problem, inputs), inputs)
    assert verdict.ok, f"{name}: {verdict.message}"
    return ""


# Arrays.


def read_only(x: NDArray[Any]) -> NDArray[Any]:
    x = x.copy()
    x.flags.writeable = False
    return x


def lone_axes(x: NDArray[Any], step: int) -> NDArray[Any]:
    """The same memory, with `step` bytes as the stride of every axis of size 1."""
    strides = [step if size == 1 else stride for size, stride in zip(x.shape, x.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(x, x.shape, strides)


def packed_record(x: NDArray[Any]) -> NDArray[Any]:
    record = np.zeros(x.shape, [("other", np.uint8), ("value", x.dtype)])
    record["value"] = x
    return record["value"]


ARRAYS = {
    "read-only": read_only,
    "negative strides": lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
    "Fortran order": np.asfortranarray,
    "foreign byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "gaps": lambda x: np.repeat(np.repeat(x, 2, 2), 3, 3)[:, :, ::2, ::3],
    "axes in another order": lambda x: np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0),
    "one number": lambda x: np.broadcast_to(x.ravel()[:1].reshape(1, 1, 1, 1), x.shape),
    "one row": lambda x: np.broadcast_to(x[:1, :1, :1], x.shape),
    "one column": lambda x: np.broadcast_to(x[:1, :1, :, :1], x.shape),
    "one channel": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "lone axes backwards": lambda x: lone_axes(x, -x.itemsize),
    "lone axes of half an element": lambda x: lone_axes(x, x.itemsize // 2 + 1),
    "parts of elements between": packed_record,
}  # fmt: skip
SHAPES = [(1, 2, 5, 6), (2, 1, 1, 7), (1, 3, 6, 1), (1, 1, 5, 1)]


@pytest.mark.one_in(7)
@pytest.mark.peer
@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_any_strides_and_byte_order(name: str, array: str) -> None:
    rng = np.random.default_rng(0)
    filters = {"opencv_filter2d_dft": (13, 13)}.get(name, (3, 3))
    padding = tuple(size // 2 for size in filters)
    for shape in SHAPES:
        for dtype, layout in (("float32", "NCHW"), ("float32", "NHWC"), ("uint8", "NCHW")):
            x = np.rint(rng.standard_normal(shape) * 40).astype(dtype)  # whole numbers: strict sums are exact
            w = rng.integers(-3, 4, (2, shape[1], filters[0], 1)) * rng.integers(-3, 4, (1, shape[1], 1, filters[1]))
            x = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
            for mode in ("zeros", "symmetric"):
                how = {"padding": padding, "padding_mode": mode, "layout": layout}
                assert checked(name, ARRAYS[array](x), ARRAYS[array](w.astype(np.float32)), **how) == ""


def test_a_plane_of_one_number_in_memory_is_right() -> None:
    """By hand: the first is 3 * (4 + 5 + 7 + 8), the middle 3 * 36."""
    x = np.broadcast_to(np.float32(3), (1, 1, 3, 3))
    w = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    got = by("scipy_ndimage", x, w, padding=1)
    assert got[0, 0].tolist() == [[72, 99, 60], [81, 108, 63], [36, 45, 24]]


# Borders.


@pytest.mark.peer
@pytest.mark.one_in(15)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "symmetric", "replicate", "circular"])
@pytest.mark.parametrize("name", NAMES)
def test_borders_with_and_without_padding_and_even_filters(name: str, mode: str) -> None:
    rng = np.random.default_rng(1)
    sizes = [(12, 12), (13, 14)] if name == "opencv_filter2d_dft" else [(3, 3), (2, 4)]
    # Sums of these are exact. Else outputs that see one repeated pixel repeat its error, which no mean evens out.
    x = rng.integers(-8, 9, (2, 4, 15, 17)).astype(np.float32)
    for r, s in sizes:
        for groups in (1, 2, 4):
            column, row = (rng.choice([-3, -2, -1, 1, 2, 3], shape) for shape in ((4, 1, r, 1), (1, 1, 1, s)))
            w = np.broadcast_to(column * row, (4, 4 // groups, r, s)).astype(np.float32)
            for padding in (0, (r // 2, s // 2), ((r, 0), (0, s + 1)), ((20, 3), (1, 40))):
                for more in ({}, {"stride": (2, 3)}, {"dilation": (1, 1), "mode": "convolution"}):
                    how = {"padding": padding, "padding_mode": mode, "groups": groups, **more}
                    reason = checked(name, x, w, **how)
                    assert reason == "" or (name == "opencv_filter2d" and "Fourier" in reason)


def test_a_circular_border_that_no_output_reaches() -> None:
    x, w = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), np.ones((1, 1, 3, 3), np.float32)
    for name in ("opencv_filter2d", "opencv_sepfilter2d"):
        assert by(name, x, w, padding_mode="circular")[0, 0].tolist() == [[45, 54], [81, 90]]


@pytest.mark.parametrize("name", ["opencv_filter2d", "scipy_ndimage"])
def test_planes_of_a_pixel(name: str) -> None:
    """To OpenCV an array of one element is a number, not a picture."""
    x, w = np.full((1, 2, 1, 1), 7, np.uint16), np.full((2, 1, 1, 1), 3, np.uint8)
    assert by(name, x, w, groups=2).ravel().tolist() == [21, 21]


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "circular", "replicate"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_borders_wider_than_the_picture(size: int, mode: str) -> None:
    x = np.arange(1, size + 1, dtype=np.float32).reshape(1, 1, size, 1)
    for height in (5, 13, 14):
        w = np.arange(1, height + 1, dtype=np.float32).reshape(1, 1, height, 1)
        for padding in (((12, 0), (0, 0)), ((0, 12), (0, 2)), ((12, 6), (3, 0))):
            how = {"padding": padding, "padding_mode": mode}
            if size + sum(padding[0]) < height:
                continue
            right = convforge.conv2d(x, w, algorithm="direct_naive", **how).tolist()
            for name in ("scipy_ndimage", "opencv_filter2d"):
                assert by(name, x, w, **how).tolist() == right, (name, height, padding)


def test_packed_weights_of_one_channel_and_outputs_one_wide_are_refused() -> None:
    x, w = np.ones((1, 1, 7, 5), np.float32), np.ones((2, 1, 2, 3), np.float32)
    with pytest.raises(UnsupportedProblem, match="outputs 1 wide"):
        by("torch_conv2d_packed", x, w, stride=(1, 5))
    assert by("torch_conv2d", x, w, stride=(1, 5)).ravel().tolist() == [6] * 12


# Values.


@pytest.mark.peer
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", NAMES)
def test_sums_that_fit_do_not_overflow_on_the_way(name: str, layout: str) -> None:
    """Two channels of 3e38 under 0.25 are 1.5e38; added up first they would be infinite."""
    size = 13 if name == "opencv_filter2d_dft" else 1
    shape = (1, 2, 16, 16) if layout == "NCHW" else (1, 16, 16, 2)
    x, w = np.full(shape, 3e38, np.float32), np.full((1, 2, size, size), 0.25 / size**2, np.float32)
    got = by(name, x, w, layout=layout)
    np.testing.assert_allclose(got, 1.5e38, rtol=1e-5)
    wide = np.full((3, 2, 3, 3), 0.25 / 9, np.float32)
    if name != "opencv_filter2d_dft":
        np.testing.assert_allclose(by(name, x, wide, layout=layout, stride=2), 1.5e38, rtol=1e-5)
    if name != "torch_conv2d_packed":  # float32 alone
        np.testing.assert_allclose(by(name, x * np.float64(5e269), w.astype(np.float64), layout=layout), 7.5e307)


@pytest.mark.peer
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_taps_that_are_nan_or_infinite(name: str, bad: float) -> None:
    x, w = np.ones((1, 1, 14, 14), np.float32), np.full((1, 1, 3, 3), 0.5, np.float32)
    if name == "opencv_filter2d_dft":
        w = np.full((1, 1, 13, 13), 0.5, np.float32)
    w[0, 0, 0, 0] = bad
    refuses = {"opencv_sepfilter2d": "no rank", "torch": "zeros of its padding"}
    if name == "scipy_ndimage" and np.isnan(bad):
        refuses["scipy_ndimage"] = "those that are NaN"
    for padding in (0, 1):
        reason = refuses.get(name, refuses["torch"] if name.startswith("torch") and padding else None)
        if reason is not None:
            with pytest.raises(UnsupportedProblem, match=reason):
                by(name, x, w, padding=padding)
            continue
        got = by(name, x, w, padding=padding)
        inside = got[..., 1:, 1:] if padding else got
        assert not np.isfinite(inside).any()


def test_taps_that_scipy_would_take_for_zero_are_refused() -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.full((1, 1, 1, 1), 1e-17, np.float32)
    with pytest.raises(UnsupportedProblem, match=r"takes taps of at most 2\.2e-16 .* this filter has one of 1e-17"):
        by("scipy_ndimage", x, w)


@pytest.mark.parametrize("name", ["opencv_filter2d", "opencv_sepfilter2d", "scipy_ndimage"])
def test_pixels_that_are_nan_under_taps_of_zero_are_refused(name: str) -> None:
    w = np.outer([1, 2, 1], [-1, 0, 1]).astype(np.float32).reshape(1, 1, 3, 3)
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    assert by(name, x, w).ravel().tolist() == [8] * 9
    x[0, 0, 2, 2] = np.nan
    with pytest.raises(UnsupportedProblem, match="a NaN or an infinity wrong under a tap of 0"):
        by(name, x, w)
    ones = np.ones((1, 1, 3, 3), np.float32)
    assert np.isnan(by(name, x, ones)).all()


@pytest.mark.parametrize("name", PLANES)
def test_infinite_taps_of_channels_that_share_a_filter(name: str) -> None:
    x = np.stack([np.full((14, 14), 1, np.float32), np.full((14, 14), -1, np.float32)])[None]
    w = np.full((1, 2, 13, 13) if name == "opencv_filter2d_dft" else (1, 2, 1, 1), np.inf, np.float32)
    if name == "opencv_sepfilter2d":
        with pytest.raises(UnsupportedProblem, match="no rank"):
            by(name, x, w)
        return
    assert np.isnan(by(name, x, w)).all()


# Random problems.


@pytest.mark.one_in(3)
@pytest.mark.peer
@pytest.mark.parametrize("seed", range(60))
def test_random_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2, 3]))
    n, c, k = int(rng.choice([0, 1, 1, 3])), groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 3))
    r, s = (int(size) for size in (rng.integers(1, 6, 2) if rng.random() < 0.8 else (12, 13)))
    dilation = tuple(int(step) for step in rng.choice([1, 1, 2, 3], 2))
    extents = (dilation[0] * (r - 1) + 1, dilation[1] * (s - 1) + 1)
    padding = tuple(tuple(int(side) for side in rng.integers(0, extent + 1, 2)) for extent in extents)
    padding = padding if rng.random() < 0.7 else ((0, 0), (0, 0))
    h, width = (max(int(rng.choice([1, 2, 5, 9, 17])), e - sum(p)) for e, p in zip(extents, padding, strict=True))
    dtype = str(rng.choice(["float32", "float32", "float64", "float16", "uint8", "int8", "int16", "uint16"]))
    w_dtype = dtype if dtype.startswith("float") else str(rng.choice(["int8", "uint8", "float32"]))
    w_dtype = "float32" if dtype.endswith("16") and w_dtype != "float16" else w_dtype  # int32 sums may not hold them
    x = (rng.standard_normal((n, c, h, width)) * 40).astype(dtype)
    w = np.rint(4 * rng.standard_normal((k, c // groups, r, 1))) * np.rint(4 * rng.standard_normal((1, 1, 1, s)))
    if rng.random() < 0.3:
        w = np.broadcast_to(w[:1, :1], w.shape)
    layout = str(rng.choice(["NCHW", "NHWC"]))
    x = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    x = x if not x.size else list(ARRAYS.values())[seed % len(ARRAYS)](x)
    how = {
        "stride": tuple(int(step) for step in rng.choice([1, 1, 2, 5], 2)), "padding": padding, "dilation": dilation,
        "groups": groups, "layout": layout, "mode": str(rng.choice(["cross-correlation", "convolution"])),
        "padding_mode": str(rng.choice(["zeros", "reflect", "symmetric", "replicate", "circular"])),
    }  # fmt: skip
    w = (np.abs(w) % 100 if w_dtype == "uint8" else w).astype(w_dtype)
    for name in NAMES:
        reason = checked(name, x, w, **how)
        assert reason == "" or len(reason) > 60
