"""The size and the sample type that a header declares are those of the image that is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile

from convforge.imaging.files import AxesError, Image, ImageError, declared_of, read_image, write_image

RANDOM = np.random.default_rng(3)


def check(path: Path, axes: str | None = None) -> None:
    found, image = declared_of(path, axes=axes), read_image(path, axes=axes)
    alpha = 0 if image.alpha is None else image.alpha.nbytes
    assert found.nbytes == image.pixels.nbytes + alpha
    assert found == (
        image.page_count, image.height, image.width, image.bands, image.alpha is not None, image.pixels.dtype,
    )  # fmt: skip


def samples(*shape: int, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    return RANDOM.integers(0, 200, shape).astype(dtype)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("shape", [(9, 14), (9, 14, 3)])
def test_of_gray_and_colours_with_and_without_alpha(
    tmp_path: Path, suffix: str, dtype: str, alpha: bool, shape: tuple[int, ...]
) -> None:
    path = tmp_path / f"a.{suffix}"
    write_image(path, Image(samples(*shape, dtype=dtype), samples(9, 14, dtype=dtype) if alpha else None))
    check(path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("transparent", [False, True])
def test_of_a_png_s_modes(tmp_path: Path, mode: str, transparent: bool) -> None:
    image = PIL.Image.fromarray(samples(9, 14, 3)).convert(mode)
    options = (
        {"transparency": 1 if mode in ("L", "P") else (1, 2, 3)} if transparent and mode in ("L", "P", "RGB") else {}
    )
    image.save(tmp_path / "a.png", **options)
    check(tmp_path / "a.png")


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_of_a_jpeg_s_modes(tmp_path: Path, mode: str) -> None:
    PIL.Image.fromarray(samples(9, 14, 3)).convert(mode).save(tmp_path / "a.jpg")
    check(tmp_path / "a.jpg")


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", ">u2"])
def test_of_a_tiff_s_pages(tmp_path: Path, dtype: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", samples(5, 9, 14, dtype=dtype), photometric="minisblack")
    check(tmp_path / "a.tif")
    tifffile.imwrite(tmp_path / "b.tif", samples(3, 9, 14, dtype=dtype), photometric="rgb", planarconfig="separate")
    check(tmp_path / "b.tif")


def test_of_a_tiff_s_palette_and_its_bits(tmp_path: Path) -> None:
    table = RANDOM.integers(0, 2**16, (3, 256)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", samples(9, 14), photometric="palette", colormap=table)
    check(tmp_path / "a.tif")
    tifffile.imwrite(tmp_path / "b.tif", samples(9, 16, dtype=bool))
    check(tmp_path / "b.tif")


def test_of_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", samples(5, 9, 14, dtype=">f4"))
    for axes in ("ZYX", "cyx"):
        check(tmp_path / "a.npy", axes)
    with pytest.raises(AxesError, match=r"a\.npy"):
        declared_of(tmp_path / "a.npy")


def test_of_no_image(tmp_path: Path) -> None:
    for name, content in {
        "a.png": b"\x89PNG\r\n\x1a\n1234567",
        "b.tif": b"II*\0zzzzzzzzzzzzz",
        "c.jpg": b"text",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=name):
            declared_of(tmp_path / name)
    with pytest.raises(ImageError, match="no such file"):
        declared_of(tmp_path / "none.png")
