"""Black and white, palettes, bits and extra samples: what a TIFF or PNG means, in every storage order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile
from tests.imaging.tiffs import tiff

from convforge.imaging.files import Image, ImageError, read_image, write_image

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE = 0, 1, 2, 3
UNSPECIFIED, ASSOCIATED, UNASSOCIATED = 0, 1, 2
RANDOM = np.random.default_rng(8)


def storage(test: Any) -> Any:
    """Run a test for every storage order: planes, tiles, bytes."""
    for name, values in (("planar", [False, True]), ("tile", [0, 16]), ("byteorder", ["<", ">"])):
        test = pytest.mark.parametrize(name, values)(test)
    return test


def codes(bits: int, samples: int) -> np.ndarray[Any, Any]:
    """Every code of up to 8 bits in (20, 20, S), in random order; of more, random ones and both ends."""
    made = RANDOM.integers(0, 2**bits, (20, 20, samples))
    made[0, :2] = [[0], [2**bits - 1]]
    return made


def read(path: Path, data: bytes) -> Image:
    path.write_bytes(data)
    return read_image(path)


def eight_bits(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    return np.rint(values * 255 / (2**bits - 1)).astype(np.uint8)


@storage
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("photometric", [WHITE_IS_ZERO, BLACK_IS_ZERO])
@pytest.mark.parametrize("extra", [(), (UNSPECIFIED,), (UNASSOCIATED,), (UNSPECIFIED, UNASSOCIATED)])
def test_gray(
    tmp_path: Path, bits: int, photometric: int, extra: tuple[int, ...], planar: bool, tile: int, byteorder: str
) -> None:
    made = codes(bits, 1 + len(extra))
    data = tiff(made, bits, photometric, extra=extra, planar=planar, tile=tile, byteorder=byteorder)
    got = read(tmp_path / "a.tif", data)
    want = made.astype(np.uint16) if bits == 16 else eight_bits(made, bits)
    top = want.dtype.type(2**16 - 1 if bits == 16 else 255)
    gray = top - want[..., 0] if photometric == WHITE_IS_ZERO else want[..., 0]
    bands = [gray, *(want[..., 1 + i] for i, kind in enumerate(extra) if kind == UNSPECIFIED)]
    assert got.pixels.dtype == want.dtype
    np.testing.assert_array_equal(got.pixels, np.stack(bands, -1) if len(bands) > 1 else gray)
    if UNASSOCIATED in extra:
        np.testing.assert_array_equal(got.alpha, want[..., 1 + extra.index(UNASSOCIATED)])
    else:
        assert got.alpha is None
    write_image(tmp_path / "b.tif", got)
    again = read_image(tmp_path / "b.tif")
    np.testing.assert_array_equal(again.pixels, got.pixels)
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages.first.photometric == BLACK_IS_ZERO, "what was turned is written as what it is now"


@storage
def test_white_is_zero_within_associated_alpha(tmp_path: Path, planar: bool, tile: int, byteorder: str) -> None:
    alpha = codes(8, 1)
    white_is_zero = np.rint(alpha * RANDOM.random(alpha.shape)).astype(int)
    made = np.concatenate([white_is_zero, alpha], -1)
    order: dict[str, Any] = {"planar": planar, "tile": tile, "byteorder": byteorder}
    got = read(tmp_path / "a.tif", tiff(made, 8, WHITE_IS_ZERO, extra=(ASSOCIATED,), **order))
    np.testing.assert_array_equal(got.alpha, alpha[..., 0])
    np.testing.assert_array_equal(got.pixels, (alpha - white_is_zero)[..., 0])
    assert got.metadata.premultiplied


@storage
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("extra", [(), (UNASSOCIATED,), (ASSOCIATED,), (UNSPECIFIED,), (UNSPECIFIED, UNASSOCIATED)])
def test_palette(tmp_path: Path, bits: int, extra: tuple[int, ...], planar: bool, tile: int, byteorder: str) -> None:
    made = codes(bits, 1 + len(extra))
    table = RANDOM.integers(256, 2**16, (3, 2**bits))
    order: dict[str, Any] = {"planar": planar, "tile": tile, "byteorder": byteorder}
    got = read(tmp_path / "a.tif", tiff(made, bits, PALETTE, extra=extra, colormap=table, **order))
    colours = np.moveaxis((table >> 8).astype(np.uint8)[:, made[..., 0]], 0, -1)
    rest = eight_bits(made[..., 1:], bits)
    alpha = next((i for i, kind in enumerate(extra) if kind), None)
    if alpha is None:
        assert got.alpha is None
    else:
        np.testing.assert_array_equal(got.alpha, rest[..., alpha])
        rest = np.delete(rest, alpha, -1)
    np.testing.assert_array_equal(got.pixels, np.concatenate([colours, rest], -1))


def test_a_palette_of_16_bits(tmp_path: Path) -> None:
    made = codes(16, 2)
    table = RANDOM.integers(256, 2**16, (3, 2**16))
    got = read(tmp_path / "a.tif", tiff(made, 16, PALETTE, extra=(UNASSOCIATED,), colormap=table))
    np.testing.assert_array_equal(got.pixels, np.moveaxis((table >> 8)[:, made[..., 0]], 0, -1))
    np.testing.assert_array_equal(got.alpha, made[..., 1])


@storage
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rgb_and_alpha(tmp_path: Path, bits: int, planar: bool, tile: int, byteorder: str) -> None:
    made = codes(bits, 5)
    order: dict[str, Any] = {"planar": planar, "tile": tile, "byteorder": byteorder}
    got = read(tmp_path / "a.tif", tiff(made, bits, RGB, extra=(UNASSOCIATED, UNSPECIFIED), **order))
    want = made if bits == 16 else eight_bits(made, bits)
    np.testing.assert_array_equal(got.pixels, want[..., [0, 1, 2, 4]])
    np.testing.assert_array_equal(got.alpha, want[..., 3])


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("photometric", [WHITE_IS_ZERO, BLACK_IS_ZERO])
def test_codes_of_cameras_stay(tmp_path: Path, bits: int, photometric: int) -> None:
    made = codes(bits, 1)
    got = read(tmp_path / "a.tif", tiff(made, bits, photometric, byteorder=">"))
    assert got.pixels.dtype == np.uint16
    want = 2**bits - 1 - made if photometric == WHITE_IS_ZERO else made
    np.testing.assert_array_equal(got.pixels, want[..., 0])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_white_is_zero_turns_the_whole_range(tmp_path: Path, dtype: str) -> None:
    ends = np.iinfo(dtype)
    x = np.array([[ends.min, ends.min + 100, ends.max // 3, ends.max]], dtype)
    tifffile.imwrite(tmp_path / "a.tif", x, photometric="miniswhite")
    want = [[ends.max - (int(value) - ends.min) for value in x[0]]]
    got = read_image(tmp_path / "a.tif")
    assert got.pixels.dtype == x.dtype
    assert got.pixels.tolist() == want


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_white_is_zero_of_floats_is_refused(tmp_path: Path, dtype: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.ones((2, 3), dtype), photometric="miniswhite")
    with pytest.raises(ImageError, match=f"a.tif: {dtype} samples of which zero is white.*MinIsBlack"):
        read_image(tmp_path / "a.tif")


def test_samples_that_the_file_does_not_speak_of_are_no_colours(tmp_path: Path) -> None:
    made = codes(8, 3)
    got = read(tmp_path / "a.tif", tiff(made, 8, WHITE_IS_ZERO))
    np.testing.assert_array_equal(got.pixels, np.dstack([255 - made[..., 0], made[..., 1:]]))


def keyed() -> Iterator[Any]:
    gray = PIL.Image.fromarray(RANDOM.integers(0, 4, (9, 7), dtype=np.uint8))
    yield pytest.param(gray, 3, "LA", id="gray with a transparent value")
    colour = PIL.Image.fromarray(RANDOM.integers(0, 2, (9, 7, 3), dtype=np.uint8))
    yield pytest.param(colour, (1, 0, 1), "RGBA", id="RGB with a transparent colour")
    for count in (2, 4, 16, 200):
        index = PIL.Image.fromarray(RANDOM.integers(0, count, (9, 7), dtype=np.uint8))
        index.putpalette(RANDOM.integers(0, 256, 3 * count, dtype=np.uint8).tobytes())
        yield pytest.param(index, bytes(range(0, 255, 20))[:count], "RGBA", id=f"palette of {count} with alpha")


@pytest.mark.parametrize(("image", "transparency", "mode"), list(keyed()))
def test_transparency_of_a_png(tmp_path: Path, image: Any, transparency: Any, mode: str) -> None:
    image.save(tmp_path / "a.png", transparency=transparency)
    with PIL.Image.open(tmp_path / "a.png") as again:
        want = np.asarray(again.convert("RGBA"))
    got = read_image(tmp_path / "a.png")
    np.testing.assert_array_equal(got.alpha, want[..., 3])
    np.testing.assert_array_equal(got.pixels, want[..., 0] if mode == "LA" else want[..., :3])


# Pages that are not alike.


def two_pages(path: Path, *pages: tuple[Any, dict[str, Any]]) -> Path:
    with tifffile.TiffWriter(path) as writer:
        for pixels, options in pages:
            writer.write(pixels, **{"photometric": "minisblack", "metadata": None} | options)
    return path


def test_each_page_is_turned_by_its_own_orientation(tmp_path: Path) -> None:
    square = RANDOM.integers(0, 256, (8, 8), dtype=np.uint8)
    wide = RANDOM.integers(0, 256, (5, 8), dtype=np.uint8)
    turns = [({"extratags": [(274, 3, 1, turn, True)]}, turn) for turn in (1, 3, 6)]
    path = two_pages(tmp_path / "a.tif", *((square, options) for options, _ in turns))
    got = read_image(path).pixels
    np.testing.assert_array_equal(got, [square, square[::-1, ::-1], square.T[:, ::-1]])
    np.testing.assert_array_equal(
        read_image(two_pages(path, (wide, turns[2][0]), (wide.T[:, ::-1], turns[0][0]))).pixels,
        [wide.T[:, ::-1]] * 2,
    )
    with pytest.raises(ImageError, match="page 1 is 8 x 5 pixels of 1 x uint8 and page 2 is 5 x 8 pixels"):
        read_image(two_pages(path, (wide, turns[0][0]), (wide, turns[2][0])))


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            {"extrasamples": ["unassalpha"]},
            {"extrasamples": ["unspecified"]},
            "alpha and page 2 .* with another sample",
        ),
        (
            {"extrasamples": ["assocalpha"]},
            {"extrasamples": ["unassalpha"]},
            "associated alpha and page 2 .* with alpha",
        ),
    ],
)
def test_pages_whose_samples_mean_different_things_are_refused(
    tmp_path: Path, first: Any, second: Any, says: str
) -> None:
    pixels = np.zeros((8, 9, 2), np.uint8)
    with pytest.raises(ImageError, match=f"page 1 is 9 x 8 pixels of 2 x uint8 with {says}; split the file"):
        read_image(two_pages(tmp_path / "a.tif", (pixels, first), (pixels, second)))


def test_a_palette_beside_gray_is_refused(tmp_path: Path) -> None:
    pixels = np.zeros((8, 9), np.uint8)
    palette = {"photometric": "palette", "colormap": np.zeros((3, 256), np.uint16)}
    with pytest.raises(ImageError, match="page 1 is 9 x 8 pixels of 1 x uint8 with a palette and page 2 is"):
        read_image(two_pages(tmp_path / "a.tif", (pixels, palette), (pixels, {})))


def test_white_and_black_may_be_zero_page_by_page(tmp_path: Path) -> None:
    pixels = np.full((8, 9), 40, np.uint8)
    got = read_image(two_pages(tmp_path / "a.tif", (pixels, {"photometric": "miniswhite"}), (pixels, {})))
    assert got.pixels[:, 0, 0].tolist() == [215, 40]
