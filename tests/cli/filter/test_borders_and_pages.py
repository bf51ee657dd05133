"""`convforge filter`: borders, strides, small images, pages, gray, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, SMALL, SOBEL_X, correlated, kept, saturated

from convforge.imaging.files import Metadata, read_image


@pytest.mark.parametrize(
    "border, mode", [("reflect", "mirror"), ("symmetric", "reflect"), ("replicate", "nearest"), ("circular", "wrap")]
)
def test_borders(tmp_path: Path, done: Callable[..., Ran], border: str, mode: str) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    done(source, target, "--kernel", "emboss", "--border", border)
    emboss = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]
    np.testing.assert_array_equal(read_image(target).pixels, saturated(correlated(SMALL, emboss, mode)))


def test_a_constant_border(tmp_path: Path, done: Callable[..., Ran], refused: Callable[..., str]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    ran = done(source, target, "--kernel", "laplacian", "--border", "constant", "--cval", 200)
    expected = saturated(correlated(SMALL, LAPLACIAN, "constant", 200))
    np.testing.assert_array_equal(read_image(target).pixels, expected)
    assert "border constant 200" in ran.line("kernel")
    done(source, target, "--kernel", "laplacian", "--border", "zeros")
    np.testing.assert_array_equal(read_image(target).pixels, saturated(correlated(SMALL, LAPLACIAN, "constant")))
    words = (source, target, "--kernel", "laplacian", "--cval", 7)
    refused(2, *words, says=("--cval 7", "constant", "reflect"))
    refused(2, *words, "--border", "constant", "--cval", "0.5", says=("0.5", "uint8"))
    refused(2, *words, "--border", "constant", "--cval", "nan", says=("--cval nan", "finite"))


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 3), (4, 1)])
@pytest.mark.parametrize("stride", [1, 3])
def test_an_image_smaller_than_the_kernel(
    tmp_path: Path, done: Callable[..., Ran], size: tuple[int, int], stride: int
) -> None:
    pixels = RANDOM.integers(0, 256, size, dtype=np.uint8)
    source, target = kept(tmp_path, "a.png", pixels), tmp_path / "b.png"
    matrix = RANDOM.integers(-1, 2, (7, 5))
    text = "; ".join(" ".join(map(str, row)) for row in matrix)
    done(source, target, "--kernel", text, "--stride", stride)
    expected = saturated(correlated(pixels, matrix))[::stride, ::stride]
    np.testing.assert_array_equal(read_image(target).pixels, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("text, steps", [("3", (3, 3)), ("2x1", (2, 1)), ("1x4", (1, 4)), ("50", (50, 50))])
def test_stride_divides_size_alpha_and_resolution(
    tmp_path: Path, done: Callable[..., Ran], text: str, steps: tuple[int, int]
) -> None:
    alpha = RANDOM.integers(0, 256, (23, 31), dtype=np.uint8)
    said = Metadata((300.0, 600.0), "inch", "Leaf no. 7, verso")
    source = kept(tmp_path, "a.tif", SMALL, alpha=alpha, metadata=said)
    ran = done(source, tmp_path / "b.tif", "--kernel", "laplacian", "--stride", text)
    result = read_image(tmp_path / "b.tif")
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
    result = read_image(tmp_path / "b.tif")
    np.testing.assert_array_equal(result.pixels, saturated(sums.sum(axis=-1) if channels == "sum" else sums))
    np.testing.assert_array_equal(result.alpha, alpha[:, ::2, ::2])
    assert "4 pages" in ran.line("out")


def test_gray(tmp_path: Path, done: Callable[..., Ran], refused: Callable[..., str]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    luma = np.rint(SMALL @ np.array([0.299, 0.587, 0.114]))
    for channels in ("each", "sum"):
        done(source, target, "--kernel", "laplacian", "--gray", "--channels", channels)
        np.testing.assert_array_equal(read_image(target).pixels, saturated(correlated(luma, LAPLACIAN)))
    stack = kept(tmp_path, "pages.tif", np.stack([SMALL, SMALL[::-1]]), pages=True)
    done(stack, tmp_path / "b.tif", "--kernel", "laplacian", "--gray")
    result = read_image(tmp_path / "b.tif").pixels
    np.testing.assert_array_equal(result[0], saturated(correlated(luma, LAPLACIAN)))
    assert result.shape == (2, 23, 31)
    gray = kept(tmp_path, "gray.png", SMALL[..., 0])
    done(gray, target, "--kernel", "identity", "--gray")
    np.testing.assert_array_equal(read_image(target).pixels, SMALL[..., 0])
    three = kept(tmp_path, "three.tif", SMALL[..., 0][:, :3].T.repeat(3, 0)[:9].reshape(3, 3, 23), pages=True)
    done(three, tmp_path / "b.tif", "--kernel", "identity", "--gray")
    five = kept(tmp_path, "five.tif", SMALL.repeat(2, -1)[..., :5])
    refused(2, five, tmp_path / "b.tif", "--kernel", "box:3", "--gray", says=("--gray", "5 bands"))


def test_in_place(tmp_path: Path, done: Callable[..., Ran]) -> None:
    path = kept(tmp_path, "a.png", SMALL)
    done(path, path, "--kernel", "laplacian")
    np.testing.assert_array_equal(read_image(path).pixels, saturated(correlated(SMALL, LAPLACIAN)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]
