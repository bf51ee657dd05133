"""`convforge filter`: every kind of image and sample, kernels as names and files, rounding and scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, SMALL, SOBEL_X, correlated, kept, saturated

from convforge.imaging.files import read_image
from convforge.imaging.photographs import photograph


def test_edges_of_a_photograph_summed_over_its_bands(tmp_path: Path, done: Callable[..., Ran]) -> None:
    pixels = photograph("astronaut")
    source, target = kept(tmp_path, "astronaut.png", pixels), tmp_path / "edges.png"
    ran = done(source, target, "--kernel", "laplacian", "--channels", "sum")
    expected = saturated(correlated(pixels, LAPLACIAN).sum(axis=-1))
    np.testing.assert_array_equal(read_image(target).pixels, expected)
    assert expected.std() > 10, "the expectation itself must hold edges"
    assert ran.line("in") == f"{source}: 512 x 512 pixels, 3 bands, uint8"
    assert ran.line("out") == f"{target}: 512 x 512 pixels, 1 band, uint8"


def test_the_same_kernel_as_a_name_a_matrix_and_files(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source = kept(tmp_path, "a.png", SMALL)
    np.save(tmp_path / "k.npy", SOBEL_X)
    (tmp_path / "k.txt").write_text("# Sobel\n-1 0 1\n-2 0 2\n-1 0 1\n")
    for kernel in ("sobel-x", "-1 0 1; -2 0 2; -1 0 1", tmp_path / "k.npy", tmp_path / "k.txt"):
        done(source, tmp_path / "b.png", "--kernel", kernel)
        result = read_image(tmp_path / "b.png").pixels
        np.testing.assert_array_equal(result, saturated(correlated(SMALL, SOBEL_X)), str(kernel))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("suffix, dtype", [(".png", np.uint8), (".tif", np.uint16), (".tif", np.float32)])
def test_alpha_is_kept_bit_for_bit(
    tmp_path: Path, done: Callable[..., Ran], suffix: str, dtype: Any, stride: int
) -> None:
    top = 1 if dtype == np.float32 else np.iinfo(dtype).max
    pixels, alpha = (SMALL / 255 * top).astype(dtype), (RANDOM.random((23, 31)) * top).astype(dtype)
    source, target = kept(tmp_path, f"a{suffix}", pixels, alpha=alpha), tmp_path / f"b{suffix}"
    ran = done(source, target, "--kernel", "1 1 1; 1 -8 1; 1 1 1", "--stride", stride)
    result = read_image(target)
    assert result.alpha is not None
    assert result.alpha.dtype == dtype
    np.testing.assert_array_equal(result.alpha, alpha[::stride, ::stride])
    expected = correlated(pixels, LAPLACIAN)[::stride, ::stride]
    if dtype == np.float32:
        np.testing.assert_allclose(result.pixels, expected, atol=1e-5)
    else:
        np.testing.assert_array_equal(result.pixels, saturated(expected, np.dtype(dtype).name))
    assert "3 bands and alpha" in ran.line("out")


SHAPES = {
    "gray": ((9, 13), False),
    "rgb": ((9, 13, 3), False),
    "bands": ((9, 13, 5), False),
    "gray pages": ((4, 9, 13), True),
    "rgb pages": ((4, 9, 13, 3), True),
}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
def test_every_kind_of_image_passes_the_identity_unharmed(
    tmp_path: Path, done: Callable[..., Ran], suffix: str, shape: str, dtype: str
) -> None:
    size, pages = SHAPES[shape]
    if suffix == ".png" and (dtype == "float32" or pages or size[-1] == 5):
        pytest.skip("no such PNG")
    pixels = RANDOM.integers(0, 60000 if dtype != "uint8" else 256, size).astype(dtype)
    source, target = kept(tmp_path, f"a{suffix}", pixels, pages=pages), tmp_path / f"b{suffix}"
    axes = "YXC" if suffix == ".npy" and size[-1] == 5 else None  # in a .npy file it could be five rows
    done(source, target, "--kernel", "identity", *(("--axes", axes) if axes else ()))
    result = read_image(target, axes=axes)
    np.testing.assert_array_equal(result.pixels, pixels)
    assert (result.pixels.dtype, result.pages) == (pixels.dtype, pages)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float64", ">u2", ">f4"]
)
@pytest.mark.parametrize("suffix", [".tif", ".npy"])
def test_every_sample_type(tmp_path: Path, done: Callable[..., Ran], suffix: str, dtype: str) -> None:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        pixels = RANDOM.random((6, 7)) < 0.5
    elif kind.kind == "f":
        pixels = RANDOM.normal(size=(6, 7)).astype(dtype)
    else:
        bits = min(8 * kind.itemsize, 53) - (kind.kind == "i")
        low = -(2**bits) if kind.kind == "i" else 0
        pixels = RANDOM.integers(low, 2**bits - 1, (6, 7), endpoint=True).astype(dtype)
    source, target = tmp_path / f"a{suffix}", tmp_path / "b.tif"
    if suffix == ".npy":
        np.save(source, pixels)
    else:
        import tifffile

        tifffile.imwrite(source, pixels, photometric="minisblack")
    done(source, target, "--kernel", "0 0 0; 0 1 0; 0 0 0", "--method", "direct_naive")
    result = read_image(target).pixels
    if kind.kind == "b":
        np.testing.assert_array_equal(result, pixels * np.uint8(255))
    else:
        np.testing.assert_array_equal(result, pixels)
        assert result.dtype == kind.newbyteorder("=")


def test_whole_numbers_that_no_float_holds_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    np.save(tmp_path / "a.npy", np.array([[2**60 + 1, 5], [0, 1]]))
    refused(1, tmp_path / "a.npy", tmp_path / "b.npy", "--kernel", "identity", says=("int64", "2^53"))


def test_uint32_is_summed_exactly_and_saturates(tmp_path: Path, done: Callable[..., Ran]) -> None:
    pixels = RANDOM.integers(0, 2**32, (8, 9)).astype(np.uint32)
    source, target = kept(tmp_path, "a.tif", pixels), tmp_path / "b.tif"
    done(source, target, "--kernel", "laplacian", "--method", "direct_naive")
    np.testing.assert_array_equal(read_image(target).pixels, saturated(correlated(pixels, LAPLACIAN), "uint32"))


def test_jpeg_in_and_out(tmp_path: Path, done: Callable[..., Ran]) -> None:
    smooth = np.hypot(*np.mgrid[-20:20, -30:30]).astype(np.uint8)
    source, target = kept(tmp_path, "a.jpg", np.dstack([smooth, smooth, 99 - smooth])), tmp_path / "b.jpeg"
    done(source, target, "--kernel", "0 2 0; 0 0 0; 0 0 0")
    expected = saturated(correlated(read_image(source).pixels, [[0, 2, 0], [0, 0, 0], [0, 0, 0]]))
    difference = np.abs(read_image(target).pixels.astype(int) - expected)
    assert difference.mean() < 2, "quality 95 is off by less"


def test_integers_saturate_and_out_dtype_keeps_what_would_be_lost(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source, sums = kept(tmp_path, "a.png", SMALL), correlated(SMALL, LAPLACIAN)
    done(source, tmp_path / "b.png", "--kernel", "laplacian")
    np.testing.assert_array_equal(read_image(tmp_path / "b.png").pixels, saturated(sums))
    for dtype in ("int16", "float32", "int32", "float64", "int64"):
        words = ("--kernel", "laplacian", "--out-dtype", dtype, "--method", "direct_naive")
        done(source, tmp_path / "b.tif", *words)
        result = read_image(tmp_path / "b.tif").pixels
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, sums, dtype)
    assert sums.min() < -255, "the image must lose something in 8 bits"


NAIVE = ("--method", "direct_naive")


@pytest.mark.parametrize("scale", [1, 0.5, 0.25, -0.5, 3])
def test_magnitude_and_scale_come_before_the_one_rounding(
    tmp_path: Path, done: Callable[..., Ran], scale: float
) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    sums = correlated(SMALL, SOBEL_X)
    done(source, target, "--kernel", "sobel-x", "--scale", scale, *NAIVE)
    np.testing.assert_array_equal(read_image(target).pixels, saturated(sums * scale))
    done(source, target, "--kernel", "sobel-x", "--abs", "--scale", scale, *NAIVE)
    np.testing.assert_array_equal(read_image(target).pixels, saturated(np.abs(sums) * scale))


def test_a_mean_is_scaled_before_it_is_rounded(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    done(source, target, "--kernel", "box:3", "--scale", 2, *NAIVE)
    mean = correlated(SMALL, np.full((3, 3), 1 / 9))
    np.testing.assert_array_equal(read_image(target).pixels, saturated(2 * mean))
    assert (saturated(2 * mean) != saturated(2 * np.rint(mean))).any(), "rounding twice must show"


def test_a_float_image_becomes_8_bits_by_its_scale(tmp_path: Path, done: Callable[..., Ran]) -> None:
    pixels = RANDOM.random((12, 9)).astype(np.float32)
    pixels[3, 4] = np.nan
    source, target = kept(tmp_path, "a.tif", pixels), tmp_path / "b.png"
    done(source, target, "--kernel", "identity", "--border", "zeros", "--scale", 255, "--out-dtype", "uint8")
    spread = ndimage.maximum_filter(np.isnan(pixels), 3)  # zero times NaN is NaN, which is stored as 0
    expected = np.where(spread, 0, np.rint(np.float64(255) * pixels))
    np.testing.assert_array_equal(read_image(target).pixels, expected)
