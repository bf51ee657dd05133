"""Axes by letters: arrays and stacks are read by them, and unclear ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from convforge.imaging.axes import LETTERS, Axes, AxesError, readings
from convforge.imaging.files import Image, ImageError, read_image, write_image

RANDOM = np.random.default_rng(21)


def numbers(shape: tuple[int, ...], dtype: str = "uint16") -> np.ndarray[Any, Any]:
    """Another number everywhere."""
    return RANDOM.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def saved(folder: Path, array: Any) -> Path:
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def asked(path: Path, **options: Any) -> str:
    """Return the sentence that asks for a file's axes."""
    with pytest.raises(AxesError) as caught:
        read_image(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


# Letters of an array, and the same axes with pages first and bands last, by NumPy.
READ = {
    "YX": ((8, 9), "YX"),
    "YXC": ((8, 9, 5), "YXC"),
    "YXS": ((8, 9, 5), "YXS"),
    "CYX": ((5, 8, 9), "YXC"),
    "ZYX": ((5, 8, 9), "ZYX"),
    "TYX": ((5, 8, 9), "TYX"),
    "IYX": ((5, 8, 9), "IYX"),
    "YXZ": ((8, 9, 5), "ZYX"),
    "TZYX": ((2, 5, 8, 9), "TZYX"),
    "TCYX": ((2, 5, 8, 9), "TYXC"),
    "CZYX": ((5, 2, 8, 9), "ZYXC"),
    "CYXZ": ((5, 8, 9, 2), "ZYXC"),
    "TYXC": ((2, 8, 9, 5), "TYXC"),
    "TZYXC": ((2, 3, 8, 9, 5), "TZYXC"),
    "TZCYX": ((2, 3, 5, 8, 9), "TZYXC"),
    "TCZYX": ((2, 5, 3, 8, 9), "TZYXC"),
    "CZYXS": ((2, 3, 8, 9, 5), "CZYXS"),
    "ITZCYXS": ((2, 1, 3, 2, 8, 9, 5), "ITZCYXS"),
}


@pytest.mark.parametrize("letters", READ)
def test_a_npy_array_is_read_by_its_letters_and_written_with_the_same_axes(tmp_path: Path, letters: str) -> None:
    shape, order = READ[letters]
    array = numbers(shape)
    got = read_image(saved(tmp_path, array), axes=letters.lower())
    stacked = np.einsum(array, [ord(a) - 65 for a in letters], [ord(a) - 65 for a in order])
    pages = len(order) - len(order[order.index("Y") :])
    want = stacked.reshape(-1, *stacked.shape[pages:]) if pages else stacked
    np.testing.assert_array_equal(got.pixels, want)
    assert (got.pages, got.bands) == (pages > 0, 5 if order[-1] in "CS" else 1)
    write_image(tmp_path / "b.npy", got)
    again = np.load(tmp_path / "b.npy")
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype


def test_one_band_and_one_page_keep_their_axes(tmp_path: Path) -> None:
    for letters, shape in (("CYX", (1, 8, 9)), ("ZYX", (1, 8, 9)), ("TCYX", (1, 1, 8, 9)), ("YXC", (8, 9, 1))):
        image = read_image(saved(tmp_path, numbers(shape)), axes=letters)
        write_image(tmp_path / "b.npy", image)
        assert np.load(tmp_path / "b.npy").shape == shape


def test_summed_bands_leave_no_axis(tmp_path: Path) -> None:
    image = read_image(saved(tmp_path, numbers((2, 5, 8, 9))), axes="TCYX")
    write_image(tmp_path / "b.npy", image.filtered(image.pixels.sum(-1)))
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), image.pixels.sum(-1))


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 1), (8, 9, 2), (8, 9, 3), (8, 9, 4), (2, 8, 9, 1), (5, 8, 9, 3)])
def test_clear_shapes_need_no_letters(tmp_path: Path, shape: tuple[int, ...]) -> None:
    got = read_image(saved(tmp_path, numbers(shape)))
    assert got.pages == (len(shape) == 4)
    np.testing.assert_array_equal(got.pixels.reshape(shape), np.load(tmp_path / "a.npy"))


@pytest.mark.parametrize("shape", [(200, 25, 25), (3, 20, 30), (20, 30, 5), (2, 3, 20, 30), (1, 2, 3, 8, 3), (1,) * 6])
def test_other_shapes_are_asked_about(tmp_path: Path, shape: tuple[int, ...]) -> None:
    message = asked(saved(tmp_path, numbers(shape)))
    assert f"its shape {shape} can be read in several ways; write --axes" in message
    assert len(readings(shape)) > 1
    for letters in readings(shape):
        assert f"--axes {letters} for" in message
        assert read_image(tmp_path / "a.npy", axes=letters).pixels.size == np.prod(shape)


def test_the_readings_in_words(tmp_path: Path) -> None:
    assert asked(saved(tmp_path, np.zeros((200, 25, 24), np.uint8))).endswith(
        "; write --axes ZYX for 200 planes of 24 x 25 pixels, --axes CYX for 24 x 25 pixels of 200 bands, or --axes "
        "YXC for 25 x 200 pixels of 24 bands (axes= in Python)"
    )


@pytest.mark.parametrize(
    ("letters", "says"),
    [
        ("QYX", ["'Q' is no letter of an axis", *LETTERS]),
        ("", ["YX, ZYX or YXC"]),
        ("XY", ["adjacent and in this order"]),
        ("YZX", ["adjacent and in this order"]),
        ("ZZYX", ["a letter occurs twice"]),
        ("YXZT", ["at most one letter may follow YX"]),
    ],
)
def test_letters_that_name_no_image(letters: str, says: list[str]) -> None:
    with pytest.raises(AxesError) as caught:
        Axes(letters)
    assert f"axes {letters!r}: " in str(caught.value)
    for word in says:
        assert word in str(caught.value)


def test_letters_that_do_not_fit_the_file(tmp_path: Path) -> None:
    message = asked(saved(tmp_path, numbers((200, 25, 24))), axes="TZYX")
    assert "axes 'TZYX' name 4 axes, and the array has 3: its shape is (200, 25, 24); write --axes ZYX" in message
    write_image(tmp_path / "a.png", Image(np.zeros((4, 5, 3), np.uint8)))
    assert "axes 'ZYXC' name 4 axes" in asked(tmp_path / "a.png", axes="ZYXC")
    assert "each pixel of the file has 3 bands" in asked(tmp_path / "a.png", axes="ZYX")
    for letters in ("YXC", "YXS"):
        assert read_image(tmp_path / "a.png", axes=letters).bands == 3
    write_image(tmp_path / "a.jpg", Image(np.zeros((4, 5), np.uint8)))
    assert "axes 'ZYX' name 3 axes" in asked(tmp_path / "a.jpg", axes="ZYX")
    with pytest.raises(ImageError, match="it must be at least 1"):
        read_image(tmp_path / "a.png", axes="YX", max_pixels=0)


def test_the_limit_on_pixels_goes_by_the_letters(tmp_path: Path) -> None:
    path = saved(tmp_path, numbers((8, 10, 12)))
    assert read_image(path, axes="ZYX", max_pixels=8 * 10 * 12).page_count == 8
    assert read_image(path, axes="CYX", max_pixels=2 * 10 * 12).bands == 8
    with pytest.raises(ImageError, match="beyond the limit of 239"):
        read_image(path, axes="CYX", max_pixels=2 * 10 * 12 - 1)


# Stacks in TIFF files.


def test_pages_that_may_be_rows_are_asked_about(tmp_path: Path) -> None:
    pixels = numbers((60, 50, 5))
    tifffile.imwrite(tmp_path / "a.tif", pixels)  # 60 pages of 5 x 50 pixels
    message = asked(tmp_path / "a.tif")
    assert "--axes ZYX for 60 planes of 5 x 50 pixels" in message
    assert "--axes YXC for 50 x 60 pixels of 5 bands" in message
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif", axes="YXC").pixels, pixels)
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif", axes="ZYX").pixels, pixels)
    tifffile.imwrite(tmp_path / "b.tif", pixels, metadata={"axes": "ZYX"})
    assert read_image(tmp_path / "b.tif").page_count == 60, "named axes are not asked for"


@pytest.mark.parametrize("kind", ["ome", "imagej", "shaped", "truncated"])
def test_a_tiff_that_divides_its_pages(tmp_path: Path, kind: str) -> None:
    pixels = numbers((2, 3, 5, 20, 30))
    name = tmp_path / ("a.ome.tif" if kind == "ome" else "a.tif")
    letters = "TZCYX"
    options: dict[str, Any] = {
        "metadata": {"axes": letters},
        "imagej": kind == "imagej",
        "truncate": kind == "truncated",
    }
    tifffile.imwrite(name, pixels, photometric="minisblack", **options)
    assert read_image(name).pixels.shape == (30, 20, 30)
    got = read_image(name, axes=letters)
    np.testing.assert_array_equal(got.pixels, np.moveaxis(pixels, 2, -1).reshape(6, 20, 30, 5))
    assert read_image(name, axes="CYX").bands == 30
    write_image(tmp_path / "b.npy", got)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), pixels)


def test_a_plain_tiff_has_one_axis_of_pages(tmp_path: Path) -> None:
    pixels = numbers((6, 20, 30))
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", metadata=None)
    assert read_image(tmp_path / "a.tif").page_count == 6
    assert read_image(tmp_path / "a.tif", axes="CYX").bands == 6
    assert "axes 'TZYX' name 4 axes, and the array has 3" in asked(tmp_path / "a.tif", axes="TZYX")


def test_alpha_stays_where_the_letters_leave_the_planes(tmp_path: Path) -> None:
    pixels = numbers((4, 20, 30, 3), "uint8")
    image = Image(pixels, alpha=numbers((4, 20, 30), "uint8"), pages=True)
    write_image(tmp_path / "a.tif", image)
    got = read_image(tmp_path / "a.tif", axes="ZYXS")
    np.testing.assert_array_equal(got.pixels, pixels)
    np.testing.assert_array_equal(got.alpha, image.alpha)
    assert "the image has alpha" in asked(tmp_path / "a.tif", axes="CYXT")


def test_an_undivided_stack_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = numbers((6, 20, 30))
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", truncate=True)
    decode, times = tifffile.TiffPageSeries.asarray, []

    def counted(series: Any, **options: Any) -> Any:
        times.append(series)
        return decode(series, **options)

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", counted)
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif").pixels, pixels)
    assert len(times) == 1
