"""`convforge filter`, run as people run it: words in, files out, exit codes, one line for each mistake."""

from __future__ import annotations

import errno
import math
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import convforge
from convforge.cli import app as application
from convforge.images.files import Metadata, Picture, read_picture, write_picture
from convforge.images.photographs import photograph

RANDOM = np.random.default_rng(11)
LAPLACIAN = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]])
SOBEL_X = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
SMALL = RANDOM.integers(0, 256, (23, 31, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Begin each test with the same random numbers, whichever tests ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(12).bit_generator.state


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    def line(self, name: str) -> str:
        """What the report says under `name`."""
        found = [line[12:] for line in self.out.splitlines() if line[:12].strip() == name]
        assert len(found) == 1, f"{name!r} stands {len(found)} times in\n{self.out}"
        return found[0]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `convforge filter WORDS...` in this process."""

    def command(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["convforge", "filter", *map(str, words)])
        monkeypatch.setattr(application.app, "registered_commands", [])
        code: Any = 0
        try:
            application.main()
        except SystemExit as stop:
            code = stop.code
        return Ran(code, *capsys.readouterr())

    return command


@pytest.fixture
def done(run: Callable[..., Ran]) -> Callable[..., Ran]:
    """Run a command that must succeed without a word on standard error."""

    def command(*words: object) -> Ran:
        ran = run(*words)
        assert (ran.code, ran.err) == (0, "")
        return ran

    return command


@pytest.fixture
def refused(run: Callable[..., Ran]) -> Callable[..., str]:
    """Run a command that must end with `code` and one clear line; what it says."""

    def command(code: int, *words: object, says: tuple[str, ...]) -> str:
        ran = run(*words)
        assert ran.code == code, ran
        assert ran.out == ""
        assert ran.err.startswith("convforge: ")
        assert ran.err.count("\n") == 1
        assert ran.err.endswith("\n")
        for word in says:
            assert word in ran.err
        return ran.err

    return command


def kept(folder: Path, name: str, pixels: Any, **fields: Any) -> Path:
    """A picture written to a file of its own."""
    path = folder / name
    write_picture(path, Picture(np.asarray(pixels), **fields))
    return path


def correlated(pixels: Any, kernel: Any, mode: str = "mirror", cval: float = 0.0) -> np.ndarray[Any, Any]:
    """Each band of (H, W, B), or (H, W), by SciPy in float64."""
    bands = np.atleast_3d(np.asarray(pixels, np.float64))
    kernel = np.asarray(kernel, np.float64)
    result = [ndimage.correlate(bands[..., b], kernel, mode=mode, cval=cval) for b in range(bands.shape[-1])]
    return np.stack(result, axis=-1).reshape(np.shape(pixels))


def saturated(values: Any, dtype: str = "uint8") -> np.ndarray[Any, Any]:
    ends = np.iinfo(dtype)
    return np.clip(np.rint(values), ends.min, ends.max).astype(dtype)


# What comes out.


def test_edges_of_a_photograph_summed_over_its_bands(tmp_path: Path, done: Callable[..., Ran]) -> None:
    pixels = photograph("astronaut")
    source, target = kept(tmp_path, "astronaut.png", pixels), tmp_path / "edges.png"
    ran = done(source, target, "--kernel", "laplacian", "--channels", "sum")
    expected = saturated(correlated(pixels, LAPLACIAN).sum(axis=-1))
    np.testing.assert_array_equal(read_picture(target).pixels, expected)
    assert expected.std() > 10, "the expectation itself must hold edges"
    assert ran.line("in") == f"{source}: 512 x 512 pixels, 3 bands, uint8"
    assert ran.line("out") == f"{target}: 512 x 512 pixels, 1 band, uint8"


def test_the_same_kernel_as_a_name_a_matrix_and_files(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source = kept(tmp_path, "a.png", SMALL)
    np.save(tmp_path / "k.npy", SOBEL_X)
    (tmp_path / "k.txt").write_text("# Sobel\n-1 0 1\n-2 0 2\n-1 0 1\n")
    for kernel in ("sobel-x", "-1 0 1; -2 0 2; -1 0 1", tmp_path / "k.npy", tmp_path / "k.txt"):
        done(source, tmp_path / "b.png", "--kernel", kernel)
        result = read_picture(tmp_path / "b.png").pixels
        np.testing.assert_array_equal(result, saturated(correlated(SMALL, SOBEL_X)), str(kernel))


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("suffix, dtype", [(".png", np.uint8), (".tif", np.uint16), (".tif", np.float32)])
def test_alpha_is_kept_bit_for_bit(
    tmp_path: Path, done: Callable[..., Ran], suffix: str, dtype: Any, stride: int
) -> None:
    top = 1 if dtype == np.float32 else np.iinfo(dtype).max
    pixels, alpha = (SMALL / 255 * top).astype(dtype), (RANDOM.random((23, 31)) * top).astype(dtype)
    source, target = kept(tmp_path, f"a{suffix}", pixels, alpha=alpha), tmp_path / f"b{suffix}"
    ran = done(source, target, "--kernel", "1 1 1; 1 -8 1; 1 1 1", "--stride", stride)
    result = read_picture(target)
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
def test_every_kind_of_picture_passes_the_identity_unharmed(
    tmp_path: Path, done: Callable[..., Ran], suffix: str, shape: str, dtype: str
) -> None:
    size, pages = SHAPES[shape]
    if suffix == ".png" and (dtype == "float32" or pages or size[-1] == 5):
        pytest.skip("no such PNG")
    pixels = RANDOM.integers(0, 60000 if dtype != "uint8" else 256, size).astype(dtype)
    source, target = kept(tmp_path, f"a{suffix}", pixels, pages=pages), tmp_path / f"b{suffix}"
    done(source, target, "--kernel", "identity")
    result = read_picture(target)
    np.testing.assert_array_equal(result.pixels, pixels)
    assert (result.pixels.dtype, result.pages) == (pixels.dtype, pages)


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
    result = read_picture(target).pixels
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
    np.testing.assert_array_equal(read_picture(target).pixels, saturated(correlated(pixels, LAPLACIAN), "uint32"))


def test_jpeg_in_and_out(tmp_path: Path, done: Callable[..., Ran]) -> None:
    smooth = np.hypot(*np.mgrid[-20:20, -30:30]).astype(np.uint8)
    source, target = kept(tmp_path, "a.jpg", np.dstack([smooth, smooth, 99 - smooth])), tmp_path / "b.jpeg"
    done(source, target, "--kernel", "0 2 0; 0 0 0; 0 0 0")
    expected = saturated(correlated(read_picture(source).pixels, [[0, 2, 0], [0, 0, 0], [0, 0, 0]]))
    difference = np.abs(read_picture(target).pixels.astype(int) - expected)
    assert difference.mean() < 2, "quality 95 is off by less"


# Rounding, magnitudes and scales.


def test_integers_saturate_and_out_dtype_keeps_what_would_be_lost(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source, sums = kept(tmp_path, "a.png", SMALL), correlated(SMALL, LAPLACIAN)
    done(source, tmp_path / "b.png", "--kernel", "laplacian")
    np.testing.assert_array_equal(read_picture(tmp_path / "b.png").pixels, saturated(sums))
    for dtype in ("int16", "float32", "int32", "float64", "int64"):
        words = ("--kernel", "laplacian", "--out-dtype", dtype, "--method", "direct_naive")
        done(source, tmp_path / "b.tif", *words)
        result = read_picture(tmp_path / "b.tif").pixels
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, sums, dtype)
    assert sums.min() < -255, "the picture must lose something in 8 bits"


@pytest.mark.parametrize("scale", [1, 0.5, 0.25, -0.5, 3])
def test_magnitude_and_scale_come_before_the_one_rounding(
    tmp_path: Path, done: Callable[..., Ran], scale: float
) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    sums = correlated(SMALL, SOBEL_X)
    done(source, target, "--kernel", "sobel-x", "--scale", scale)
    np.testing.assert_array_equal(read_picture(target).pixels, saturated(sums * scale))
    done(source, target, "--kernel", "sobel-x", "--abs", "--scale", scale)
    np.testing.assert_array_equal(read_picture(target).pixels, saturated(np.abs(sums) * scale))


def test_a_mean_is_scaled_before_it_is_rounded(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    done(source, target, "--kernel", "box:3", "--scale", 2)
    mean = correlated(SMALL, np.full((3, 3), 1 / 9))
    np.testing.assert_array_equal(read_picture(target).pixels, saturated(2 * mean))
    assert (saturated(2 * mean) != saturated(2 * np.rint(mean))).any(), "rounding twice must show"


def test_a_float_picture_becomes_8_bits_by_its_scale(tmp_path: Path, done: Callable[..., Ran]) -> None:
    pixels = RANDOM.random((12, 9)).astype(np.float32)
    pixels[3, 4] = np.nan
    source, target = kept(tmp_path, "a.tif", pixels), tmp_path / "b.png"
    done(source, target, "--kernel", "identity", "--border", "zeros", "--scale", 255, "--out-dtype", "uint8")
    spread = ndimage.maximum_filter(np.isnan(pixels), 3)  # zero times NaN is NaN, which is stored as 0
    expected = np.where(spread, 0, np.rint(np.float64(255) * pixels))
    np.testing.assert_array_equal(read_picture(target).pixels, expected)


# Sizes, borders, pages, what the file says.


@pytest.mark.parametrize(
    "border, mode", [("reflect", "mirror"), ("symmetric", "reflect"), ("replicate", "nearest"), ("circular", "wrap")]
)
def test_borders(tmp_path: Path, done: Callable[..., Ran], border: str, mode: str) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    done(source, target, "--kernel", "emboss", "--border", border)
    emboss = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]
    np.testing.assert_array_equal(read_picture(target).pixels, saturated(correlated(SMALL, emboss, mode)))


def test_a_constant_border(tmp_path: Path, done: Callable[..., Ran], refused: Callable[..., str]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    ran = done(source, target, "--kernel", "laplacian", "--border", "constant", "--cval", 200)
    expected = saturated(correlated(SMALL, LAPLACIAN, "constant", 200))
    np.testing.assert_array_equal(read_picture(target).pixels, expected)
    assert "border constant 200" in ran.line("kernel")
    done(source, target, "--kernel", "laplacian", "--border", "zeros")
    np.testing.assert_array_equal(read_picture(target).pixels, saturated(correlated(SMALL, LAPLACIAN, "constant")))
    words = (source, target, "--kernel", "laplacian", "--cval", 7)
    refused(2, *words, says=("--cval 7", "constant", "reflect"))
    refused(2, *words, "--border", "constant", "--cval", "0.5", says=("0.5", "uint8"))
    refused(2, *words, "--border", "constant", "--cval", "nan", says=("--cval nan", "finite"))


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 3), (4, 1)])
@pytest.mark.parametrize("stride", [1, 3])
def test_a_picture_smaller_than_the_kernel(
    tmp_path: Path, done: Callable[..., Ran], size: tuple[int, int], stride: int
) -> None:
    pixels = RANDOM.integers(0, 256, size, dtype=np.uint8)
    source, target = kept(tmp_path, "a.png", pixels), tmp_path / "b.png"
    matrix = RANDOM.integers(-1, 2, (7, 5))
    text = "; ".join(" ".join(map(str, row)) for row in matrix)
    done(source, target, "--kernel", text, "--stride", stride)
    expected = saturated(correlated(pixels, matrix))[::stride, ::stride]
    np.testing.assert_array_equal(read_picture(target).pixels, expected)


@pytest.mark.parametrize("text, steps", [("3", (3, 3)), ("2x1", (2, 1)), ("1x4", (1, 4)), ("50", (50, 50))])
def test_stride_divides_size_alpha_and_resolution(
    tmp_path: Path, done: Callable[..., Ran], text: str, steps: tuple[int, int]
) -> None:
    alpha = RANDOM.integers(0, 256, (23, 31), dtype=np.uint8)
    said = Metadata((300.0, 600.0), "inch", "Leaf no. 7, verso")
    source = kept(tmp_path, "a.tif", SMALL, alpha=alpha, metadata=said)
    ran = done(source, tmp_path / "b.tif", "--kernel", "laplacian", "--stride", text)
    result = read_picture(tmp_path / "b.tif")
    assert (result.height, result.width) == (math.ceil(23 / steps[0]), math.ceil(31 / steps[1]))
    np.testing.assert_array_equal(result.pixels, saturated(correlated(SMALL, LAPLACIAN))[:: steps[0], :: steps[1]])
    np.testing.assert_array_equal(result.alpha, alpha[:: steps[0], :: steps[1]])
    assert result.metadata.resolution == pytest.approx((300 / steps[1], 600 / steps[0]), rel=1e-6)
    assert (result.metadata.unit, result.metadata.description) == ("inch", "Leaf no. 7, verso")
    assert f"stride {steps[0]}x{steps[1]}" in ran.line("kernel")


@pytest.mark.parametrize("channels", ["each", "sum"])
def test_pages_are_filtered_one_by_one(tmp_path: Path, done: Callable[..., Ran], channels: str) -> None:
    pixels = RANDOM.integers(0, 256, (4, 9, 13, 3), dtype=np.uint8)
    alpha = RANDOM.integers(0, 256, (4, 9, 13), dtype=np.uint8)
    source = kept(tmp_path, "a.tif", pixels, alpha=alpha, pages=True)
    ran = done(source, tmp_path / "b.tif", "--kernel", "sobel-x", "--channels", channels, "--stride", 2)
    sums = np.stack([correlated(page, SOBEL_X) for page in pixels])[:, ::2, ::2]
    result = read_picture(tmp_path / "b.tif")
    np.testing.assert_array_equal(result.pixels, saturated(sums.sum(axis=-1) if channels == "sum" else sums))
    np.testing.assert_array_equal(result.alpha, alpha[:, ::2, ::2])
    assert "4 pages" in ran.line("out")


def test_gray(tmp_path: Path, done: Callable[..., Ran], refused: Callable[..., str]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    luma = np.rint(SMALL @ np.array([0.299, 0.587, 0.114]))
    for channels in ("each", "sum"):
        done(source, target, "--kernel", "laplacian", "--gray", "--channels", channels)
        np.testing.assert_array_equal(read_picture(target).pixels, saturated(correlated(luma, LAPLACIAN)))
    stack = kept(tmp_path, "pages.tif", np.stack([SMALL, SMALL[::-1]]), pages=True)
    done(stack, tmp_path / "b.tif", "--kernel", "laplacian", "--gray")
    result = read_picture(tmp_path / "b.tif").pixels
    np.testing.assert_array_equal(result[0], saturated(correlated(luma, LAPLACIAN)))
    assert result.shape == (2, 23, 31)
    gray = kept(tmp_path, "gray.png", SMALL[..., 0])
    done(gray, target, "--kernel", "identity", "--gray")
    np.testing.assert_array_equal(read_picture(target).pixels, SMALL[..., 0])
    three = kept(tmp_path, "three.tif", SMALL[..., 0][:, :3].T.repeat(3, 0)[:9].reshape(3, 3, 23), pages=True)
    done(three, tmp_path / "b.tif", "--kernel", "identity", "--gray")
    five = kept(tmp_path, "five.tif", SMALL.repeat(2, -1)[..., :5])
    refused(2, five, tmp_path / "b.tif", "--kernel", "box:3", "--gray", says=("--gray", "5 bands"))


def test_in_place(tmp_path: Path, done: Callable[..., Ran]) -> None:
    path = kept(tmp_path, "a.png", SMALL)
    done(path, path, "--kernel", "laplacian")
    np.testing.assert_array_equal(read_picture(path).pixels, saturated(correlated(SMALL, LAPLACIAN)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


# Methods, and what is said.


@pytest.mark.parametrize("name", [a.name for a in convforge.algorithms() if a.operation == "conv2d"])
def test_every_method_gives_the_same_picture_or_says_why_not(
    tmp_path: Path, run: Callable[..., Ran], name: str
) -> None:
    pixels = RANDOM.random((40, 45)).astype(np.float32)
    source, target = kept(tmp_path, "a.tif", pixels), tmp_path / "b.tif"
    ran = run(source, target, "--kernel", "gaussian:5:1.1", "--method", name)
    if ran.code == 0:
        assert ran.line("method").startswith(name)
        assert "asked for by name" in ran.line("method")
        steps = np.exp(-((np.arange(5) - 2) ** 2) / (2 * 1.1**2))
        kernel = np.outer(steps, steps) / steps.sum() ** 2
        np.testing.assert_allclose(read_picture(target).pixels, correlated(pixels, kernel), atol=3e-6)
    else:
        assert ran.code == 2
        assert re.fullmatch(rf"convforge: --method {name} cannot filter this picture \({name}: .+\)\n", ran.err)
        assert not target.exists()


def test_the_report_names_everything(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    ran = done(source, target, "--kernel", "laplacian", "--channels", "sum", "--method", "im2col", "--abs")
    assert ran.line("kernel") == "laplacian, 3x3, bands summed, border reflect"
    assert ran.line("method").startswith("im2col [pictures=")
    assert ran.line("arithmetic") == "uint8 times int8, summed in int32"
    needed = re.fullmatch(r"(\d+) bytes", ran.line("workspace"))
    assert needed is not None
    assert int(needed[1]) > 9 * 23 * 31, "im2col expands each pixel nine times"
    for name in ("read", "plan", "first call", "filter", "convert", "write"):
        assert re.match(r"[\d.]+ m?s", ran.line(name)), name
    assert "compiled" in ran.line("first call")
    ran = done(source, target, "--kernel", "laplacian", "--method", "direct_rows")
    assert ran.line("workspace") == "0 bytes"
    assert done(source, target, "--kernel", "laplacian").line("method").split(": ", 1)[1], "why auto took it"


def test_a_kernel_that_factors_is_run_as_two_passes_and_its_rank_told(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source = kept(tmp_path, "a.tif", RANDOM.random((40, 45)).astype(np.float32))
    ran = done(source, tmp_path / "b.tif", "--kernel", "gaussian:9:2")
    assert ran.line("method").startswith("separable")
    assert "rank 1" in ran.line("method")


def test_compiling_is_told_apart_and_done_on_a_part_of_a_large_picture(
    tmp_path: Path, done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.contract import Plan

    shapes: list[tuple[int, ...]] = []
    call = Plan.__call__

    def watched(self: Plan, x: Any, *rest: Any, **more: Any) -> Any:
        shapes.append(x.shape)
        return call(self, x, *rest, **more)

    monkeypatch.setattr(Plan, "__call__", watched)
    source = kept(tmp_path, "a.npy", np.zeros((3, 40, 2500, 1), np.float32), pages=True)
    done(source, tmp_path / "b.npy", "--kernel", "laplacian")
    assert shapes == [(1, 40, 1024, 1), (3, 40, 2500, 1)]


# Mistakes and failures.


@pytest.mark.parametrize(
    "words, says",
    [
        (("--kernel", "lapacian"), ("'lapacian'", "did you mean 'laplacian'")),
        (("--kernel", "1 2; 3"), ("ragged",)),
        (("--kernel", "1 nan; 3 4"), ("nan", "finite")),
        (("--kernel", "1 2j; 3 4"), ("complex",)),
        (("--kernel", ""), ("empty",)),
        (("--kernel", "gaussian:4:1"), ("odd",)),
        (("--kernel", "none.npy"), ("none.npy", "does not exist")),
        ((), ("--kernel",)),
        (("--kernel", "box:3", "--method", "direct_row"), ("direct_row", "did you mean 'direct_rows'")),
        (("--kernel", "box:3", "--border", "mirror"), ("'mirror'", "reflect", "symmetric")),
        (("--kernel", "box:3", "--border", "Reflect"), ("'Reflect'", "did you mean 'reflect'")),
        (("--kernel", "box:3", "--channels", "all"), ("'all'", "each", "sum")),
        (("--kernel", "box:3", "--stride", "0"), ("--stride '0'", "at least 1")),
        (("--kernel", "box:3", "--stride", "-2"), ("--stride '-2'", "at least 1")),
        (("--kernel", "box:3", "--stride", "1.5"), ("--stride '1.5'", "whole")),
        (("--kernel", "box:3", "--stride", "2x"), ("--stride '2x'", "HxW")),
        (("--kernel", "box:3", "--out-dtype", "unit8"), ("'unit8'", "did you mean 'uint8'")),
        (("--kernel", "box:3", "--out-dtype", "complex64"), ("'complex64'", "float32")),
        (("--kernel", "box:3", "--scale", "nan"), ("--scale nan", "finite")),
        (("--kernel", "box:3", "--scale", "inf"), ("--scale inf", "finite")),
        (("--kernel", "box:3", "--scale", "two"), ("--scale", "number")),
        (("--kernel", "box:3", "--max-pixels", "0"), ("--max-pixels 0", "at least 1")),
        (("--kernel", "box:3", "--device", "tpu"), ("tpu", "cpu")),
        (("--kernel", "box:3", "--method", "gemm_1x1"), ("gemm_1x1", "3x3")),
        (("--kernel", "box:3", "--out-dtype", "float32"), ("b.png", "float32", ".tif")),
        (("--kernel", "box:3", "--sharpness", "3"), ("--sharpness",)),
    ],
)
def test_bad_use(tmp_path: Path, refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    refused(2, source, target, *words, says=says)
    assert not target.exists()


def test_a_result_that_the_format_has_no_place_for(tmp_path: Path, refused: Callable[..., str]) -> None:
    words = ("--kernel", "box:3")
    alpha = kept(tmp_path, "alpha.png", SMALL, alpha=SMALL[..., 0])
    refused(2, alpha, tmp_path / "b.jpg", *words, says=("no alpha", ".png"))
    pages = kept(tmp_path, "pages.tif", SMALL[None].repeat(2, 0), pages=True)
    refused(2, pages, tmp_path / "b.png", *words, says=("one page", ".tif"))
    bands = kept(tmp_path, "bands.tif", SMALL.repeat(2, -1))
    refused(2, bands, tmp_path / "b.png", *words, says=("6", "--channels sum"))
    deep = kept(tmp_path, "deep.png", SMALL.astype(np.uint16))
    refused(2, deep, tmp_path / "b.jpg", *words, says=("uint16", "--out-dtype uint8"))
    refused(2, deep, tmp_path / "b.gif", *words, says=("'.gif'", ".png"))
    refused(2, deep, tmp_path / "b", *words, says=("no ending",))


def test_a_sum_of_bands_fits_where_the_bands_do_not(tmp_path: Path, done: Callable[..., Ran]) -> None:
    bands = kept(tmp_path, "bands.tif", SMALL.repeat(2, -1)[..., :5])
    done(bands, tmp_path / "b.png", "--kernel", "laplacian", "--channels", "sum")
    expected = saturated(correlated(SMALL.repeat(2, -1)[..., :5], LAPLACIAN).sum(axis=-1))
    np.testing.assert_array_equal(read_picture(tmp_path / "b.png").pixels, expected)


def _bomb() -> bytes:
    """A PNG whose header declares 16000 x 16000 pixels over a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 16000, 16000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("none.png", None, "no such file"),
        ("empty.png", b"", "0 bytes"),
        ("text.png", b"This is no picture.\n", "not a picture"),
        ("head.png", b"\x89PN", "truncated"),
        ("cut.png", slice(0, 900), "truncated"),
        ("bomb.png", _bomb(), "out of proportion"),
        ("cut.npy", b"\x93NUMPY\x01\x00v\x00{'descr'", "truncated"),
        ("objects.npy", np.array([[None, 1]], object), "object"),
        ("complex.npy", np.ones((3, 3), complex), "complex"),
        ("line.npy", np.ones(3), "(3,)"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_failure(
    tmp_path: Path, refused: Callable[..., str], name: str, content: Any, says: str
) -> None:
    source, target = tmp_path / name, kept(tmp_path, "b.png", SMALL)
    before = target.read_bytes()
    if isinstance(content, slice):
        source.write_bytes(before[content])
    elif isinstance(content, bytes):
        source.write_bytes(content)
    elif content is not None:
        np.save(source, content, allow_pickle=True)
    refused(1, source, target, "--kernel", "laplacian", says=(str(source), says))
    assert target.read_bytes() == before, "what was there stays"


def test_more_pixels_than_allowed(tmp_path: Path, refused: Callable[..., str], done: Callable[..., Ran]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    words = (source, target, "--kernel", "laplacian", "--max-pixels")
    refused(1, *words, 23 * 31 - 1, says=("31 x 23", "--max-pixels", str(23 * 31)))
    done(*words, 23 * 31)


def test_a_place_that_cannot_be_written_is_a_failure(tmp_path: Path, refused: Callable[..., str]) -> None:
    source = kept(tmp_path, "a.png", SMALL)
    words = ("--kernel", "laplacian")
    refused(1, source, tmp_path / "none" / "b.png", *words, says=("does not exist", "make it first"))
    refused(1, source, source / "b.png", *words, says=("is not a folder",))
    (tmp_path / "c.png").mkdir()
    refused(1, source, tmp_path / "c.png", *words, says=("is a folder",))
    refused(1, tmp_path, tmp_path / "b.png", *words, says=("is a folder",))
    assert not (tmp_path / "b.png").exists()


def test_a_full_disk_leaves_the_old_picture(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path, "a.png", SMALL)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(1, path, path, "--kernel", "laplacian", says=("a.png", "No space left"))
    np.testing.assert_array_equal(read_picture(path).pixels, SMALL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_too_little_memory_is_a_failure(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.contract import Plan

    def exhausted(*words: Any, **more: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Plan, "__call__", exhausted)
    source = kept(tmp_path, "a.png", SMALL)
    refused(1, source, tmp_path / "b.png", "--kernel", "laplacian", says=("a.png", "memory"))


def test_help_names_every_option(run: Callable[..., Ran]) -> None:
    ran = run("--help")
    assert ran.code == 0
    for word in (
        *("IN", "OUT", "--kernel", "--channels", "--method", "--stride", "--border", "--cval", "--out-dtype"),
        *("--abs", "--scale", "--gray", "--max-pixels", "--device", "laplacian", "gaussian:SIZE:SIGMA"),
    ):
        assert word in ran.out, word
