"""`convforge.filter` against scipy.ndimage: borders, anchors, types, stacks, bands, strides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from tests.kinds import module

import convforge
from convforge.errors import UnsupportedProblem
from convforge.imaging.filtering import plan_filter
from convforge.imaging.photographs import photograph
from convforge.imaging.weights import kernel_array
from convforge.problem import PADDING_ALIASES, PADDING_MODES

RANDOM = np.random.default_rng(5)
SCIPY_MODES = {
    "zeros": "constant",
    "constant": "constant",
    "reflect": "mirror",
    "symmetric": "reflect",
    "replicate": "nearest",
    "circular": "wrap",
}
LAPLACIAN = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]])
PIXELS = RANDOM.normal(size=(11, 14)).astype(np.float32)
BYTES = RANDOM.integers(0, 256, (11, 14, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Begin each test with the same random numbers, whichever tests ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(6).bit_generator.state


def correlated(plane: Any, kernel: Any, border: str = "reflect", cval: float = 0.0) -> np.ndarray[Any, Any]:
    """One plane by SciPy in float64."""
    plane, kernel = np.asarray(plane, np.float64), np.asarray(kernel, np.float64)
    return ndimage.correlate(plane, kernel, mode=SCIPY_MODES[border], cval=cval)


def bands_correlated(image: Any, kernel: Any, border: str = "reflect") -> np.ndarray[Any, Any]:
    """Each band of (..., H, W, C)."""
    image = np.asarray(image, np.float64)
    pages = image.reshape(-1, *image.shape[-3:])
    done = [[correlated(page[..., c], kernel, border) for c in range(page.shape[-1])] for page in pages]
    return np.moveaxis(np.array(done), 1, -1).reshape(image.shape)


def saturated(values: Any, dtype: Any) -> np.ndarray[Any, Any]:
    ends = np.iinfo(dtype)
    return np.clip(np.rint(values), ends.min, ends.max).astype(dtype)


# Borders and anchors.


def test_the_table_of_borders_is_what_is_tested() -> None:
    assert set(SCIPY_MODES) == set(PADDING_MODES)
    for border, mode in SCIPY_MODES.items():
        assert PADDING_MODES[border][0].split(",")[0] == mode


@pytest.mark.parametrize("size", [(3, 3), (1, 5), (4, 2), (2, 2), (7, 6), (9, 13)], ids=str)
@pytest.mark.parametrize("border", PADDING_MODES)
def test_borders_and_the_anchor_of_even_kernels(border: str, size: tuple[int, int]) -> None:
    kernel = RANDOM.normal(size=size)
    cval = 1.75 if border == "constant" else 0.0
    result = convforge.filter(PIXELS, kernel, border=border, cval=cval)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, correlated(PIXELS, kernel.astype(np.float32), border, cval), atol=2e-5)


@pytest.mark.parametrize(("word", "mode"), PADDING_ALIASES.items())
def test_words_of_other_libraries_mean_what_they_mean_there(word: str, mode: str) -> None:
    kernel = RANDOM.normal(size=(5, 4)).astype(np.float32)
    cval = 1.5 if mode == "constant" else 0.0
    result = convforge.filter(PIXELS, kernel, border=word, cval=cval)
    np.testing.assert_array_equal(result, convforge.filter(PIXELS, kernel, border=mode, cval=cval))
    if word.startswith("BORDER") and mode not in ("circular", "constant"):  # which filter2D of OpenCV has not
        cv2 = pytest.importorskip("cv2")
        theirs = cv2.filter2D(PIXELS, cv2.CV_32F, kernel, borderType=getattr(cv2, word))
        np.testing.assert_allclose(result, theirs, atol=1e-4)
    elif word in ("mirror", "nearest", "wrap") or word.startswith("grid-"):
        theirs = ndimage.correlate(PIXELS, kernel, mode=word, cval=cval)
        np.testing.assert_allclose(result, theirs, atol=1e-4)
    if mode != "constant":  # of which conv2d has zeros alone
        ours = convforge.conv2d(PIXELS[None], kernel[None, None], padding=((2, 2), (2, 1)), padding_mode=word)[0]
        np.testing.assert_allclose(ours, result, atol=1e-4)


def test_reflect_is_numpys_and_pytorchs_and_never_scipys() -> None:
    """The one word that libraries use for two things: SciPy's and OpenCV's BORDER_REFLECT repeat the edge pixel."""
    ours = convforge.filter(PIXELS, np.ones((5, 5)), border="reflect")
    theirs = np.lib.stride_tricks.sliding_window_view(np.pad(PIXELS, 2, "reflect"), (5, 5)).sum((-2, -1))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert not np.allclose(ours, ndimage.correlate(PIXELS, np.ones((5, 5)), mode="reflect"))


@pytest.mark.parametrize("border", PADDING_MODES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 3), (5, 1)], ids=str)
def test_an_image_smaller_than_the_kernel(border: str, shape: tuple[int, int]) -> None:
    image = RANDOM.normal(size=shape).astype(np.float32)
    kernel = RANDOM.integers(-3, 4, (7, 8)).astype(np.float32)
    result = convforge.filter(image, kernel, border=border)
    np.testing.assert_allclose(result, correlated(image, kernel, border), atol=1e-4)


def test_the_kernel_is_not_flipped() -> None:
    image = np.zeros((5, 5), np.float32)
    image[2, 2] = 1
    result = convforge.filter(image, np.arange(1, 10).reshape(3, 3))
    assert result[1:4, 1:4].tolist() == [[9, 8, 7], [6, 5, 4], [3, 2, 1]]


@settings(deadline=None, max_examples=60)
@given(
    h=st.integers(1, 9),
    w=st.integers(1, 9),
    r=st.integers(1, 6),
    s=st.integers(1, 6),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    border=st.sampled_from(list(PADDING_MODES)),
    seed=st.integers(0, 2**20),
)
def test_any_size_kernel_stride_and_border(
    h: int, w: int, r: int, s: int, stride: tuple[int, int], border: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    image = random.integers(-8, 9, (h, w)).astype(np.float32)
    kernel = random.integers(-8, 9, (r, s)).astype(np.float32)
    cval = 3.0 if border == "constant" else 0.0
    result = convforge.filter(image, kernel, border=border, cval=cval, stride=stride)
    # Whole numbers: no sum is rounded, so the results are equal to the last bit.
    np.testing.assert_array_equal(result, correlated(image, kernel, border, cval)[:: stride[0], :: stride[1]])


# Shapes.


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("channels", ["each", "sum"])
def test_bands(bands: int, channels: str) -> None:
    image = RANDOM.integers(0, 256, (9, 12, bands), dtype=np.uint8)
    expected = bands_correlated(image, LAPLACIAN)
    if channels == "sum":
        expected = expected.sum(axis=-1)
    result = convforge.filter(image, LAPLACIAN, channels=channels, algorithm="direct_naive")
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, saturated(expected, np.uint8))


@pytest.mark.parametrize("bands", [1, 3])
@pytest.mark.parametrize("channels", ["each", "sum"])
@pytest.mark.parametrize("stride", [1, (2, 3)])
def test_stacks(bands: int, channels: str, stride: Any) -> None:
    stack = RANDOM.integers(0, 256, (4, 9, 12, bands), dtype=np.uint8)
    step = (stride, stride) if isinstance(stride, int) else stride
    expected = bands_correlated(stack, LAPLACIAN)[:, :: step[0], :: step[1]]
    if channels == "sum":
        expected = expected.sum(axis=-1)
    result = convforge.filter(stack, LAPLACIAN, channels=channels, stride=stride, algorithm="direct_naive")
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, saturated(expected, np.uint8))


def test_an_empty_stack() -> None:
    assert convforge.filter(np.empty((0, 5, 6, 3), np.uint8), LAPLACIAN).shape == (0, 5, 6, 3)
    assert convforge.filter(np.empty((0, 5, 6, 3), np.uint8), LAPLACIAN, channels="sum").shape == (0, 5, 6)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2, 1::3],
        lambda a: a[::-1, ::-1],
        lambda a: a[..., ::-1],
        lambda a: a.transpose(1, 0, 2),
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a[..., 1],
        lambda a: a[3:4, 2:3],
    ],
    ids=["steps", "reversed", "bands reversed", "transposed", "broadcast", "one band", "one pixel"],
)
def test_images_that_are_views(view: Any) -> None:
    image = view(BYTES)
    before = image.copy()
    np.testing.assert_array_equal(
        convforge.filter(image, LAPLACIAN, algorithm="direct_naive"),
        convforge.filter(np.ascontiguousarray(image), LAPLACIAN, algorithm="direct_naive"),
    )
    np.testing.assert_array_equal(image, before, "the image is left as it was")


def test_read_only_and_big_endian_images() -> None:
    image = np.arange(42, dtype=np.float32).reshape(6, 7) ** 2
    expected = convforge.filter(image, LAPLACIAN)
    image.flags.writeable = False
    np.testing.assert_array_equal(convforge.filter(image, LAPLACIAN), expected)
    swapped = convforge.filter(image.astype(">f4"), LAPLACIAN)
    np.testing.assert_array_equal(swapped, expected)
    assert swapped.dtype == np.float32, "the result is in the machine's own order"


# Element types.


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float16", "float32", "float64"])
def test_element_types(dtype: str) -> None:
    if dtype.startswith("float"):
        image = RANDOM.integers(-20, 20, (6, 9)).astype(dtype)
    else:
        ends = np.iinfo(dtype)
        image = RANDOM.integers(ends.min, ends.max, (6, 9), endpoint=True, dtype=dtype)
    result = convforge.filter(image, LAPLACIAN, algorithm="direct_naive")
    assert result.dtype == dtype
    expected = correlated(image, LAPLACIAN)
    np.testing.assert_array_equal(result, expected if dtype.startswith("float") else saturated(expected, dtype))


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32", "float64", np.int16, np.dtype("float32")])
def test_a_wider_type_keeps_every_sum(dtype: Any) -> None:
    result = convforge.filter(BYTES, LAPLACIAN, out_dtype=dtype, algorithm="direct_naive")
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(result, bands_correlated(BYTES, LAPLACIAN))
    assert result.min() < 0


def test_a_type_may_be_pytorchs() -> None:
    torch = module("torch")
    for image in (BYTES, torch.from_numpy(BYTES)):
        result = convforge.filter(image, LAPLACIAN, out_dtype=torch.int16, algorithm="direct_naive")
        assert str(result.dtype).removeprefix("torch.") == "int16"
        np.testing.assert_array_equal(np.asarray(result), bands_correlated(BYTES, LAPLACIAN))
    with pytest.raises(TypeError, match=r"out_dtype=torch.int64 is no type of results here; choose .*int32"):
        convforge.filter(BYTES, LAPLACIAN, out_dtype=torch.int64)


def test_a_kernel_may_be_a_tensor_that_numpy_reads() -> None:
    torch = module("torch")
    np.testing.assert_array_equal(
        convforge.filter(BYTES, torch.from_numpy(LAPLACIAN)), convforge.filter(BYTES, LAPLACIAN)
    )
    for kernel in (torch.ones(3, 3, requires_grad=True), torch.ones(3, 3).bfloat16()):
        with pytest.raises(TypeError, match=r"the kernel is no array that NumPy reads, of shape \(R, S\): .+"):
            convforge.filter(BYTES, kernel)


@pytest.mark.parametrize("cval", [7, 7.0, np.float32(7), np.uint8(7)])
@pytest.mark.parametrize("kernel", [LAPLACIAN, LAPLACIAN / 16])
def test_a_value_outside_is_a_number_of_any_kind(cval: Any, kernel: Any) -> None:
    options: dict[str, Any] = {"out_dtype": np.float32, "algorithm": "direct_naive"}
    result = convforge.filter(BYTES, kernel, border="constant", cval=cval, **options)
    planes = [correlated(BYTES[..., band], kernel, "constant", 7.0) for band in range(BYTES.shape[2])]
    np.testing.assert_array_equal(result, np.stack(planes, axis=-1))


def test_integers_round_half_to_even_and_saturate() -> None:
    image = np.array([[0, 1, 2, 3, 5, 255]], np.uint8)
    assert convforge.filter(image, np.array([[0.5]])).tolist() == [[0, 0, 1, 2, 2, 128]]
    assert convforge.filter(image, np.array([[2]])).tolist() == [[0, 2, 4, 6, 10, 255]]
    assert convforge.filter(image, np.array([[-1]])).tolist() == [[0] * 6]
    found = convforge.filter(image, np.array([[-1.5]]), out_dtype="int8", algorithm="direct_naive")
    assert found.tolist() == [[0, -2, -3, -4, -8, -128]]


def test_floats_to_integers_saturate_and_nan_is_zero() -> None:
    image = np.array([[np.nan, np.inf, -np.inf, 254.5, 255.5, -0.4, 1e30]], np.float32)
    result = convforge.filter(image, np.ones((1, 1)), out_dtype=np.uint8, algorithm="direct_naive")
    assert result.tolist() == [[0, 255, 0, 254, 255, 0, 255]]


def test_int32_is_summed_without_loss() -> None:
    image = np.array([[2**31 - 1, 2**31 - 2, -(2**31)]], np.int32)
    result = convforge.filter(image, np.array([[0.25, 0.5, 0.25]]), border="replicate", algorithm="direct_naive")
    expected = saturated(correlated(image, [[0.25, 0.5, 0.25]], "replicate"), np.int32)
    np.testing.assert_array_equal(result, expected)


def test_integer_sums_that_float32_would_round_are_exact() -> None:
    image = RANDOM.integers(0, 2**16, (7, 9), dtype=np.uint16)
    kernel = RANDOM.integers(-127, 128, (5, 5))
    result = convforge.filter(image, kernel, out_dtype=np.int32, algorithm="direct_naive")
    np.testing.assert_array_equal(result, correlated(image, kernel))
    assert np.abs(result).max() > 2**24


@pytest.mark.thorough
@pytest.mark.parametrize(
    "taps", [np.full((3, 3), 200), np.ones((31, 31)), np.full((3, 3), 30000), np.full((3, 3), 70001)]
)
@pytest.mark.parametrize("channels", [pytest.param("each", marks=pytest.mark.thorough), "sum"])
def test_whole_numbers_stay_exact_whatever_type_sums_them(taps: Any, channels: str) -> None:
    """Large pixels under taps that are none of int8's, many, too large for int32 sums, and too large for int16."""
    image, taps = RANDOM.integers(60000, 2**16, (40, 41, 3), dtype=np.uint16), taps.astype(np.int64)
    taps[0, 0] += 1
    result = convforge.filter(image, taps, channels=channels, out_dtype=np.float64)
    expected = bands_correlated(image, taps)
    np.testing.assert_array_equal(result, expected if channels == "each" else expected.sum(axis=-1))


def test_whole_kernels_too_large_for_int32_sums() -> None:
    image = np.full((3, 3), 65535, np.uint16)
    result = convforge.filter(image, np.array([[40000, -39999]]), algorithm="direct_naive")
    np.testing.assert_array_equal(result, image)


# Kernels and methods.


def test_named_kernels_matrices_and_files(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", LAPLACIAN)
    expected = convforge.filter(BYTES, LAPLACIAN, out_dtype=np.int16, algorithm="direct_naive")
    for kernel in ("laplacian", "1 1 1; 1 -8 1; 1 1 1", str(tmp_path / "k.npy")):
        found = convforge.filter(BYTES, kernel, out_dtype=np.int16, algorithm="direct_naive")
        np.testing.assert_array_equal(found, expected)


def test_edges_of_a_photograph() -> None:
    image = photograph("astronaut")
    result = convforge.filter(image, "laplacian", channels="sum", out_dtype=np.int32)
    np.testing.assert_array_equal(result, bands_correlated(image, LAPLACIAN).sum(axis=-1))


@pytest.mark.parametrize("name", [a.name for a in convforge.algorithms() if a.operation == "conv2d" and a.ours])
@pytest.mark.parametrize("border", ["reflect", "zeros"])
def test_every_method_agrees_or_says_why_not(name: str, border: str) -> None:
    image = RANDOM.normal(size=(33, 37, 3)).astype(np.float32)
    kernel = np.outer([1.0, 2, 1], [1, 0, -1]).astype(np.float32)
    reasons = {name: ""}
    try:
        result = convforge.filter(image, kernel, border=border, algorithm=name)
    except UnsupportedProblem as refusal:
        result, reasons = None, refusal.reasons
    if result is None:
        assert list(reasons) == [name]
        assert len(reasons[name].split()) > 3, "a sentence, not a code"
        return
    np.testing.assert_allclose(result, bands_correlated(image, kernel, border), atol=5e-5)


@pytest.mark.parametrize(
    "name", ["fft", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("separable", "winograd_f4"))]
)
def test_a_method_that_rounds_takes_bytes_and_whole_numbers(name: str) -> None:
    """Asked for by name; it sums floats, so the kernel is one of floats."""
    kernel = np.outer([1, 2, 1], [1, 0, -1])
    result = convforge.filter(BYTES, kernel, algorithm=name, out_dtype=np.float32)
    np.testing.assert_allclose(result, bands_correlated(BYTES, kernel), atol=0.01)


def test_auto_takes_two_passes_only_where_the_kernel_factors_to_the_last_bit() -> None:
    line = np.array([1.0, 4, 6, 4, 1]) / 16
    exact, off = np.outer(line, line), np.outer(line, line)
    off[0, 0] += 1e-4
    image = RANDOM.random((20, 21)).astype(np.float32)
    assert plan_filter(image, exact)[0].problem.precision == "separable"
    assert plan_filter(image, off)[0].problem.precision == "strict"
    assert plan_filter(image, "box:3")[0].problem.precision == "strict", "one pass of nine products is faster"
    assert plan_filter(image, exact, algorithm="direct_rows")[0].problem.precision == "strict"
    large, deep = np.outer([3.0, 3, 3, 4, 4], np.full(5, 300)), image.astype(np.uint16)
    for result in (None, np.float64):
        assert plan_filter(deep, large, out_dtype=result)[0].problem.precision == "separable", "whole factors are exact"
    whole = np.ones((5, 5))
    assert plan_filter(BYTES, whole)[0].problem.precision == "strict", "integer sums stay exact"
    for kernel in (exact, off):
        np.testing.assert_allclose(convforge.filter(image, kernel), correlated(image, kernel), atol=1e-6)


@pytest.mark.parametrize("dtype, atol", [
    ("float32", 1e-6),
    *(pytest.param(*found, marks=pytest.mark.thorough) for found in
      (("uint8", 0.51), ("float16", 1e-3), ("float64", 1e-14))),
])  # fmt: skip
def test_a_large_gaussian(dtype: str, atol: float) -> None:
    image = RANDOM.random((40, 50)) * (255 if dtype == "uint8" else 1)
    image = image.astype(dtype)
    from convforge.imaging.kernels import named_kernel

    result = convforge.filter(image, "gaussian:31:5")
    assert result.dtype == dtype
    np.testing.assert_allclose(result, correlated(image, named_kernel("gaussian:31:5").values), atol=atol)


def test_a_mean_keeps_a_constant_float16_image() -> None:
    """The kernel's weights are too small for float16; rounded to it, their sum would not be 1."""
    image = np.ones((5, 6), np.float16)
    result = convforge.filter(image, "box:41", algorithm="direct_naive")
    np.testing.assert_array_equal(result, image)


# Mistakes.


@pytest.mark.parametrize(
    "image, kernel, options, error, says",
    [
        ([[1, 2]], LAPLACIAN, {}, TypeError, ("image", "list", "numpy.asarray")),
        (np.zeros(5), LAPLACIAN, {}, ValueError, ("image", "1 axes", "2 or 3 or 4")),
        (np.zeros((0, 5)), LAPLACIAN, {}, ValueError, ("(0, 5)", "no pixel")),
        (np.zeros((5, 0, 3)), LAPLACIAN, {}, ValueError, ("no pixel",)),
        (np.zeros((5, 5), complex), LAPLACIAN, {}, TypeError, ("image", "complex128", ".real and .imag", "float32")),
        (np.zeros((5, 5), np.int64), LAPLACIAN, {}, TypeError, ("image", "int64", "int32 where its values fit, else")),
        (np.zeros((5, 5), bool), LAPLACIAN, {}, TypeError, ("image", "bool", "uint8")),
        (np.zeros((5, 5), np.uint32), LAPLACIAN, {}, TypeError, ("image", "uint32", "float64")),
        (PIXELS, np.ones(3), {}, ValueError, ("kernel", "(3,)", "(R, S)")),
        (PIXELS, np.ma.masked_array(LAPLACIAN), {}, TypeError, ("kernel is a masked array", "kernel.filled(0)")),
        (PIXELS, [[1, 2], [3]], {}, TypeError, ("the kernel is no array", "(R, S)")),
        (PIXELS, np.ones((3, 0)), {}, ValueError, ("kernel", "(3, 0)")),
        (PIXELS, np.ones((3, 3), complex), {}, TypeError, ("kernel", "complex128", ".real and .imag")),
        (PIXELS, np.array([[1, np.nan]]), {}, ValueError, ("kernel", "NaN", "finite")),
        (PIXELS, np.array([[1, np.inf]]), {}, ValueError, ("kernel", "Inf", "finite")),
        (PIXELS, "lapacian", {}, ValueError, ("'lapacian'", "'laplacian'")),
        (PIXELS, "1 2; 3", {}, ValueError, ("ragged",)),
        (PIXELS, LAPLACIAN, {"channels": "all"}, ValueError, ("'all'", "'each'", "'sum'")),
        (PIXELS, LAPLACIAN, {"border": "mirrored"}, ValueError, ("'mirrored'", "reflect")),
        (PIXELS, LAPLACIAN, {"border": 4}, TypeError, ("border=4", "BORDER_REFLECT_101")),
        (PIXELS, LAPLACIAN, {"anchor": (0, 0)}, TypeError, ("'anchor'", "(R // 2, S // 2)", "pad the kernel")),
        (PIXELS, LAPLACIAN, {"origin": 1}, TypeError, ("'origin'", "pad the kernel")),
        (PIXELS, LAPLACIAN, {"channel_axis": 0}, TypeError, ("'channel_axis'", "axes='CYX' for channel_axis=0")),
        (PIXELS, LAPLACIAN, {"sigma": 2}, TypeError, ("'sigma'", "'gaussian:SIZE:SIGMA'")),
        (PIXELS, LAPLACIAN, {"border": "Nearest"}, ValueError, ("border='Nearest'", "did you mean 'nearest'?")),
        (PIXELS, LAPLACIAN, {"delta": 128}, TypeError, ("'delta'", "+ delta")),
        (PIXELS, LAPLACIAN, {"mode": "mirror"}, TypeError, ("'mode'", "border=")),
        (PIXELS, LAPLACIAN, {"ddepth": -1}, TypeError, ("'ddepth'", "out_dtype=")),
        (PIXELS, LAPLACIAN, {"colour": 1}, TypeError, ("'colour'", "help(convforge.filter)")),
        (PIXELS, "sobel", {}, ValueError, ("'sobel-x' and 'sobel-y'",)),
        (PIXELS, LAPLACIAN, {"border": "constant", "cval": np.nan}, ValueError, ("nan", "finite")),
        *(
            (image, kernel, {"border": "constant", "cval": cval}, error, says)
            for kernel in (LAPLACIAN, LAPLACIAN / 9)  # summed in int32 and in float32: one rule for both
            for image, cval, error, says in (
                (BYTES, 256, ValueError, ("cval=256", "uint8", "0 to 255")),
                (BYTES, -1, ValueError, ("cval=-1", "uint8")),
                (BYTES, 0.5, ValueError, ("cval=0.5", "uint8", "whole")),
                (BYTES, np.inf, ValueError, ("cval=inf", "uint8")),
                (BYTES, np.nan, ValueError, ("cval=nan", "uint8")),
                (BYTES.astype(np.int32), 2**31, ValueError, ("cval=2147483648", "int32")),
                (PIXELS, 1e39, ValueError, ("cval=1e+39", "float32")),
                (PIXELS, 10**400, ValueError, ("float32",)),
                (PIXELS.astype(np.float16), 65536, ValueError, ("cval=65536", "float16")),
                (PIXELS, "a", TypeError, ("cval='a'", "number")),
                (PIXELS, None, TypeError, ("cval=None", "number")),
                (PIXELS, True, TypeError, ("cval=True", "number")),
                (PIXELS, 1j, TypeError, ("cval=1j", "number")),
                (PIXELS, np.ones(2), TypeError, ("cval=array", "number")),
            )
        ),
        (PIXELS, LAPLACIAN, {"cval": "a"}, TypeError, ("cval='a'", "number")),
        (PIXELS, LAPLACIAN, {"stride": 0}, ValueError, ("stride", "at least 1")),
        (PIXELS, LAPLACIAN, {"stride": -1}, ValueError, ("stride", "at least 1")),
        (PIXELS, LAPLACIAN, {"stride": 1.5}, TypeError, ("stride", "1.5", "whole")),
        (PIXELS, LAPLACIAN, {"stride": (1, 2, 3)}, TypeError, ("stride", "pair")),
        (PIXELS, LAPLACIAN, {"out_dtype": "unit8"}, TypeError, ("out_dtype='unit8'", "uint8")),
        (PIXELS, LAPLACIAN, {"out_dtype": ""}, TypeError, ("out_dtype=''", "uint8")),
        (PIXELS, LAPLACIAN, {"out_dtype": 5}, TypeError, ("out_dtype=5", "float32")),
        (PIXELS, LAPLACIAN, {"out_dtype": [1]}, TypeError, ("out_dtype=[1]", "float32")),
        (PIXELS, LAPLACIAN, {"out_dtype": np.ones(1)}, TypeError, ("out_dtype=array", "float32")),
        (PIXELS, LAPLACIAN, {"out_dtype": "torch.float23"}, TypeError, ("torch.float23", "float32")),
        (PIXELS, LAPLACIAN, {"out_dtype": np.int64}, TypeError, ("int64", "int32")),
        (PIXELS, LAPLACIAN, {"out_dtype": "complex64"}, TypeError, ("complex64", "float32")),
        (PIXELS, LAPLACIAN, {"device": "tpu"}, ValueError, ("tpu", "cpu")),
        (PIXELS, LAPLACIAN, {"algorithm": "direct_row"}, ValueError, ("'direct_row'", "'direct_rows'")),
        (PIXELS, LAPLACIAN, {"algorithm": "gemm_1x1"}, UnsupportedProblem, ("gemm_1x1", "3x3")),
    ],
)
def test_mistakes(image: Any, kernel: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        convforge.filter(image, kernel, **options)
    for word in says:
        assert word in str(caught.value)


def test_kernel_array_takes_whole_numbers_and_truths() -> None:
    assert kernel_array(np.eye(2, dtype=bool)).tolist() == [[1, 0], [0, 1]]
    assert kernel_array([[1, 2], [3, 4]]).dtype == np.float64  # type: ignore[arg-type]
