"""Pictures of integers under kernels of fractions: the exact quotient, rounded half to even, by every way there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

import convforge
from convforge.algorithms import ON_DEVICE, OURS
from convforge.imaging.filtering import plan_filter
from convforge.imaging.weights import kernel_array

RANDOM = np.random.default_rng(11)
KERNELS: dict[str, tuple[NDArray[np.int64], int]] = {
    "mean of 2x2": (np.ones((2, 2), np.int64), 4),
    "mean of 3x3": (np.ones((3, 3), np.int64), 9),
    "mean of 6x6": (np.ones((6, 6), np.int64), 36),
    "mean of 15x15": (np.ones((15, 15), np.int64), 225),
    "binomial": (np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]), 256),
    "uneven factors": (np.outer([2, 3, -5, 2, 7], [6, 9, 4, 15, 2]), 34),
    "no factors": (np.array([[1, -2, 3, 0], [4, 5, -6, 1], [0, 2, 1, -9]]), 6),
}


def quotients(image: NDArray[Any], whole: NDArray[np.int64], divisor: int) -> tuple[NDArray[np.int64], ...]:
    """The exact sums, and these over the divisor, rounded half to even in integers."""
    r, s = whole.shape
    padded = np.pad(image.astype(np.int64), ((r // 2, r - 1 - r // 2), (s // 2, s - 1 - s // 2)), mode="reflect")
    sums = (np.lib.stride_tricks.sliding_window_view(padded, (r, s)) * whole).sum((2, 3))
    down, rest = np.divmod(sums, divisor)
    return sums, down + ((2 * rest > divisor) | ((2 * rest == divisor) & (down % 2 == 1)))


def picture(dtype: str, kind: str, size: tuple[int, int] = (18, 21)) -> NDArray[Any]:
    """Of two neighbouring values, so that many sums are ties, or of all values there are."""
    info = np.iinfo(dtype)
    low, high = (3, 4) if kind == "ties" else (info.min, info.max)
    return RANDOM.integers(low, high, size, dtype, endpoint=True)


@pytest.mark.parametrize(
    ("device", "dtype", "name"),
    [
        pytest.param("cpu", t, name, marks=pytest.mark.thorough)
        for t in ("uint8", "int8", "int16", "uint16", "int32")
        for name in KERNELS
    ]
    + [("emulator", dtype, name) for dtype in ("uint8", "int16") for name in ("mean of 15x15", "uneven factors")],
)
def test_pixels_are_the_exact_quotient_rounded_half_to_even(device: str, dtype: str, name: str) -> None:
    whole, divisor = KERNELS[name]
    info = np.iinfo(dtype)
    for kind in ("ties", "all"):
        image = picture(dtype, kind)
        sums, rounded = quotients(image, whole, divisor)
        taps = whole / divisor
        assert np.array_equal(convforge.filter(image, taps, device=device), np.clip(rounded, info.min, info.max))
        found = convforge.filter(image, taps, device=device, out_dtype="float64")
        assert np.array_equal(found, sums / divisor)
        # A kernel of float32 means the same fractions.
        again = convforge.filter(image, taps.astype(np.float32), device=device)
        assert np.array_equal(again, np.clip(rounded, info.min, info.max))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("device", "name"),
    [("cpu", name) for name in KERNELS] + [("emulator", name) for name in ("mean of 15x15", "uneven factors")],
)
def test_results_in_float32_are_the_exact_quotient_rounded(device: str, name: str) -> None:
    whole, divisor = KERNELS[name]
    for kind in ("ties", "all"):
        image = picture("uint8", kind)
        sums, _ = quotients(image, whole, divisor)
        found = convforge.filter(image, whole / divisor, device=device, out_dtype="float32")
        assert np.array_equal(found, (sums / divisor).astype("float32"))


EXACT = [
    (a.backend, a.name)
    for a in (*OURS, *ON_DEVICE)
    if a.operation == "conv2d" and a.backend != "cuda" and a.precision in ("strict", "separable")
]
# Numba compiles these for this test alone.
LATER = [("cpu", name) for name in ("depthwise", "im2col", "implicit_gemm")]
# Methods of 1 x 1 filters, of bytes by bytes, of float16, of TF32, of many channels, of planes of one size.
NOT_OF_PICTURES = (
    *("gemm_1x1", "direct_mma", "depthwise_rows", "depthwise_mma", "depthwise_batch"),
    *("implicit_gemm_mma", "implicit_gemm_wgmma", "implicit_gemm_tf32", "implicit_gemm_split"),
    *("implicit_gemm_few_channels", "implicit_gemm_tf32_mma", "implicit_gemm_split_mma"),
    *("implicit_gemm_split_few_channels", "implicit_gemm_few_outputs"),
    *("implicit_gemm_int8", "implicit_gemm_int8_mma", "implicit_gemm_dp4a", "direct_dp4a"),
    *("depthwise_dp4a", "depthwise_int8"),
)


@pytest.mark.parametrize(
    ("device", "algorithm"),
    [
        pytest.param(*found, marks=[pytest.mark.thorough] if found in LATER else [])
        for found in EXACT
        if found[1] not in NOT_OF_PICTURES
    ],
)
def test_every_method_divides_once(device: str, algorithm: str) -> None:
    whole, divisor = KERNELS["mean of 6x6"]
    image = picture("uint8", "ties", (18, 32))
    _, rounded = quotients(image, whole, divisor)
    bands = 4 if "depthwise" in algorithm else 1
    found = convforge.filter(
        np.repeat(image[..., None], bands, axis=-1), whole / divisor, device=device, algorithm=algorithm
    )
    assert np.array_equal(found, np.repeat(rounded[..., None], bands, axis=-1))


def test_a_mean_that_ends_in_a_half_goes_to_the_even_number() -> None:
    image = np.full((6, 6), 3, np.uint8)
    image.ravel()[:18] = 4
    for device in ("cpu", "emulator"):
        assert convforge.filter(image, "box:6", border="zeros", device=device)[3, 3] == 4, device  # 3.5
    image += 1
    assert convforge.filter(image, "box:6", border="zeros")[3, 3] == 4  # 4.5


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["uint16", pytest.param("int16", marks=pytest.mark.thorough)])
def test_other_kernels_over_16_bits_are_summed_in_float64(dtype: str) -> None:
    """float32 sums of a 15 x 15 Gaussian put hundreds of these pixels on the wrong side of a tie."""
    image = picture(dtype, "all", (200, 200))
    taps = kernel_array("gaussian:15:3")
    truth = ndimage.correlate(image.astype(np.float64), taps, mode="mirror")
    wrong = convforge.filter(image, taps) != np.rint(truth)
    assert wrong.sum() == 0
    found = convforge.filter(image, taps, out_dtype="float64")
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-9)


def test_kernels_of_fractions_take_two_passes_in_the_narrowest_type_that_is_exact() -> None:
    for dtype, sums in (("uint8", "float32"), ("uint16", "float64"), ("int32", "float64")):
        problem = plan_filter(np.zeros((20, 20), dtype), "box:15")[0].problem
        assert (problem.precision, problem.acc_dtype, problem.epilogue.divisor) == ("separable", sums, 225)
    small = plan_filter(np.zeros((20, 20), np.uint16), "box:3")[0].problem
    assert (small.precision, small.acc_dtype, small.epilogue.divisor) == ("strict", "float32", 9)
    mixed = plan_filter(np.zeros((20, 20, 3), np.uint16), np.full((9, 9), 1 / 81), channels="sum")[0].problem
    assert mixed.epilogue.divisor == 81
