"""Written images read back: every format, sample type, number of bands, alpha, pages and metadata."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile

from convforge.imaging.files import Image, Metadata, read_image, write_image

ALL_DTYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip


def samples(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random samples over the whole range of the type."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return random.normal(size=shape).astype(kind)
    ends = np.iinfo(kind)
    return random.integers(ends.min, ends.max, shape, dtype=kind, endpoint=True)


def round_trip(path: Path, image: Image) -> Image:
    write_image(path, image)
    return read_image(path)


def assert_same(got: np.ndarray[Any, Any] | None, want: np.ndarray[Any, Any]) -> None:
    assert got is not None
    assert got.dtype == want.dtype
    assert got.flags.c_contiguous
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("bands", [0, 2, 3, 4, 7])
@pytest.mark.parametrize("pages", [0, 1, 3])
@pytest.mark.parametrize("suffix", [".tif", ".npy"])
def test_tiff_and_npy_keep_everything(tmp_path: Path, suffix: str, dtype: str, bands: int, pages: int) -> None:
    shape = ((pages,) if pages else ()) + (5, 9) + ((bands,) if bands else ())
    pixels = samples(shape, dtype)
    write_image(tmp_path / f"a{suffix}", Image(pixels, pages=pages > 0))
    unclear = suffix == ".npy" and bands > 4
    got = read_image(tmp_path / f"a{suffix}", axes=("TYXC" if pages else "YXC") if unclear else None)
    if suffix == ".tif" and pages == 1:  # a TIFF of one page is a plain image
        pixels = pixels[0]
    assert_same(got.pixels, pixels)
    assert got.alpha is None
    assert got.pages == (pixels.ndim > 3 or (pages > 0 and pixels.ndim == 3 and not bands))


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("bands", [0, 3])
@pytest.mark.parametrize("alpha", [False, True])
def test_png(tmp_path: Path, dtype: str, bands: int, alpha: bool) -> None:
    pixels = samples((5, 9, bands) if bands else (5, 9), dtype)
    mask = samples((5, 9), dtype, seed=1) if alpha else None
    got = round_trip(tmp_path / "a.PNG", Image(pixels, alpha=mask))
    assert_same(got.pixels, pixels)
    if mask is None:
        assert got.alpha is None
    else:
        assert_same(got.alpha, mask)


@pytest.mark.parametrize("bands", [1, 3, 5])
@pytest.mark.parametrize("pages", [0, 2])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("premultiplied", [False, True])
def test_tiff_alpha(tmp_path: Path, bands: int, pages: int, dtype: str, premultiplied: bool) -> None:
    front = (pages,) if pages else ()
    pixels = samples((*front, 5, 9) + ((bands,) if bands > 1 else ()), dtype)
    mask = samples((*front, 5, 9), dtype, seed=1)
    metadata = Metadata(premultiplied=premultiplied)
    got = round_trip(tmp_path / "a.tiff", Image(pixels, mask, metadata, pages=pages > 0))
    assert_same(got.pixels, pixels)
    assert_same(got.alpha, mask)
    assert got.metadata.premultiplied == premultiplied
    assert got.bands == bands


def test_npy_takes_alpha_as_its_last_band(tmp_path: Path) -> None:
    write_image(tmp_path / "a.npy", Image(np.zeros((2, 3), np.uint8), alpha=np.full((2, 3), 9, np.uint8)))
    assert_same(np.load(tmp_path / "a.npy"), np.dstack([np.zeros((2, 3)), np.full((2, 3), 9)]).astype(np.uint8))


def test_alpha_follows_the_type_of_the_pixels(tmp_path: Path) -> None:
    mask = np.array([[0, 51, 255]], np.uint8)
    got = round_trip(tmp_path / "a.tif", Image(np.zeros((1, 3), np.float32), alpha=mask))
    np.testing.assert_allclose(got.alpha, [[0, 0.2, 1]], rtol=1e-6)
    got = round_trip(tmp_path / "a.png", Image(np.zeros((1, 3), np.uint16), alpha=mask))
    assert_same(got.alpha, np.array([[0, 51 * 257, 65535]], np.uint16))
    got = round_trip(tmp_path / "b.tif", Image(np.zeros((1, 3), np.int64), alpha=mask))
    assert got.alpha is not None
    assert got.alpha[0, 2] == 2**63 - 1


def test_png_gets_unassociated_colours(tmp_path: Path) -> None:
    image = Image(np.array([[0, 50, 100]], np.uint8), np.array([[0, 128, 255]], np.uint8), Metadata(premultiplied=True))
    assert_same(round_trip(tmp_path / "a.png", image).pixels, np.array([[0, 100, 100]], np.uint8))


@pytest.mark.parametrize("bands", [0, 3])
def test_jpeg_is_close(tmp_path: Path, bands: int) -> None:
    y, x = np.mgrid[:40, :60]
    gray = (2 * x + y).astype(np.uint8)
    pixels = np.dstack([gray, gray[::-1], gray // 2]) if bands else gray
    got = round_trip(tmp_path / "a.jpg", Image(pixels))
    assert got.pixels.dtype == np.uint8
    assert got.pixels.shape == pixels.shape
    assert np.abs(got.pixels.astype(int) - pixels).max() < 12


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
@pytest.mark.parametrize("text", ["leaf no. 7", "Bl\xe4tter", "\u8449\u3063\u3071"])
def test_resolution_description_and_profile_survive(tmp_path: Path, suffix: str, text: str) -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    metadata = Metadata((300, 150), "inch", text, profile)
    got = round_trip(tmp_path / f"a{suffix}", Image(np.zeros((4, 5, 3), np.uint8), metadata=metadata)).metadata
    np.testing.assert_allclose(got.pixels_per("inch"), (300, 150), rtol=1e-4)
    assert got.description == text
    assert got.icc_profile == profile
    # an RGB profile would be a lie about one band
    gray = round_trip(tmp_path / f"b{suffix}", Image(np.zeros((4, 5), np.uint8), metadata=metadata)).metadata
    assert gray.icc_profile is None


def test_metadata_as_other_tools_see_it(tmp_path: Path) -> None:
    image = Image(np.zeros((4, 5), np.uint16), metadata=Metadata((100, 100), "centimeter", "leaf"))
    write_image(tmp_path / "a.png", image)
    write_image(tmp_path / "a.tif", image)
    with PIL.Image.open(tmp_path / "a.png") as opened:
        assert opened.info["dpi"] == pytest.approx((254, 254))
        assert opened.info["Description"] == "leaf"
    with PIL.Image.open(tmp_path / "a.tif") as opened:
        assert opened.info["dpi"] == pytest.approx((254, 254))
        assert opened.tag_v2[270] == "leaf"


@pytest.mark.parametrize("unit", ["inch", "centimeter", "none"])
def test_tiff_resolution_in_its_unit(tmp_path: Path, unit: Any) -> None:
    metadata = Metadata((28.35, 118.11), unit)
    got = round_trip(tmp_path / "a.tif", Image(np.zeros((2, 2), np.uint8), metadata=metadata)).metadata
    assert got.unit == unit
    assert got.resolution == pytest.approx((28.35, 118.11))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_no_resolution_stays_none(tmp_path: Path, suffix: str) -> None:
    assert round_trip(tmp_path / f"a{suffix}", Image(np.zeros((2, 2), np.uint8))).metadata == Metadata()


def test_filtered_carries_the_rest() -> None:
    alpha = np.arange(35, dtype=np.uint8).reshape(5, 7)
    image = Image(np.zeros((5, 7, 3), np.uint8), alpha, Metadata((300, 200), "inch", "leaf"))
    got = image.filtered(np.ones((3, 3), np.float32), stride=(2, 3))
    assert_same(got.alpha, alpha[::2, ::3])
    assert got.metadata == Metadata((100, 100), "inch", "leaf")


# Files as other programs make them.


def test_bands_first_tiff_becomes_bands_last(tmp_path: Path) -> None:
    pixels = samples((5, 9, 6), "uint16")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.moveaxis(pixels, -1, 0), planarconfig="separate", photometric="minisblack")
    assert_same(read_image(path).pixels, pixels)
    tifffile.imwrite(path, np.moveaxis(pixels, -1, 0)[:3], planarconfig="separate", photometric="rgb", tile=(16, 16))
    assert_same(read_image(path).pixels, pixels[..., :3])


@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "packbits", "zstd", "lzma"])
@pytest.mark.parametrize("tile", [None, (16, 32)])
@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_compressed_and_tiled_tiff(
    tmp_path: Path, compression: str | None, tile: tuple[int, int] | None, byteorder: Any, bigtiff: bool
) -> None:
    pixels = samples((2, 50, 70, 3), "uint16")
    path = tmp_path / "named.dat"  # content decides, not the name
    options: Any = {"compression": compression, "tile": tile, "byteorder": byteorder, "bigtiff": bigtiff}
    tifffile.imwrite(path, pixels, photometric="rgb", **options)
    got = read_image(path)
    assert_same(got.pixels, pixels)
    assert got.pages


def test_jpeg_in_tiff_is_rgb(tmp_path: Path) -> None:
    y, x = np.mgrid[:64, :64]
    pixels = np.dstack([x * 2, y * 2, x + y]).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", compression="jpeg")
    assert np.abs(read_image(tmp_path / "a.tif").pixels.astype(int) - pixels).max() < 20


@pytest.mark.parametrize("planes", [3, 5])
def test_imagej_and_undivided_stacks(tmp_path: Path, planes: int) -> None:
    pixels = samples((planes, 8, 9), "uint16")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, pixels, imagej=True)
    assert_same(read_image(path).pixels, pixels)
    assert read_image(path).metadata.description.startswith("ImageJ")
    tifffile.imwrite(path, pixels, photometric="minisblack", truncate=True)  # one directory for all pages
    got = read_image(path)
    assert_same(got.pixels, pixels)
    assert got.pages
    assert got.metadata.description == ""


def test_pyramid_levels_are_left_out(tmp_path: Path) -> None:
    pixels = samples((64, 64, 3), "uint8")
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(pixels, photometric="rgb", metadata=None)
        writer.write(pixels[::2, ::2], photometric="rgb", subfiletype=1, metadata=None)
    assert_same(read_image(tmp_path / "a.tif").pixels, pixels)


def test_sparse_tiles_are_zero(tmp_path: Path) -> None:
    def tiles() -> Any:
        yield np.full((16, 16), 7, np.uint8)
        yield from (None for _ in range(3))

    tifffile.imwrite(
        tmp_path / "a.tif", tiles(), shape=(32, 32), dtype="uint8", tile=(16, 16), photometric="minisblack"
    )
    want = np.zeros((32, 32), np.uint8)
    want[:16, :16] = 7
    assert_same(read_image(tmp_path / "a.tif").pixels, want)


def test_black_and_white_palette_and_inverted_tiff(tmp_path: Path) -> None:
    black = np.arange(80).reshape(8, 10) % 3 == 0
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, black, photometric="minisblack")
    assert_same(read_image(path).pixels, black.astype(np.uint8) * 255)
    tifffile.imwrite(path, black, photometric="miniswhite")
    assert_same(read_image(path).pixels, (~black).astype(np.uint8) * 255)
    gray = samples((8, 10), "uint16")
    tifffile.imwrite(path, gray, photometric="miniswhite")
    assert_same(read_image(path).pixels, 65535 - gray)
    index = samples((8, 10), "uint8")
    table = samples((3, 256), "uint16")
    tifffile.imwrite(path, index, photometric="palette", colormap=table)
    assert_same(read_image(path).pixels, np.moveaxis((table >> 8).astype(np.uint8)[:, index], 0, -1))


@pytest.mark.parametrize("mode", ["1", "P", "PA", "L", "LA", "RGB", "RGBA", "I;16"])
def test_png_of_every_kind_is_expanded(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    if mode == "I;16":
        gray = samples((7, 9), "uint16")
        PIL.Image.fromarray(gray).save(path)
        assert_same(read_image(path).pixels, gray)
        return
    colour = PIL.Image.fromarray(np.kron(samples((4, 4, 3), "uint8"), np.ones((3, 3, 1), np.uint8)))
    image = colour.quantize(4) if mode in ("P", "PA") else colour.convert(mode)
    image.save(path, **({"transparency": 0} if mode == "PA" else {}))
    got = read_image(path)
    want = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(mode, mode)
    with PIL.Image.open(path) as again:
        expected = np.asarray(again.convert(want))
    if want.endswith("A"):
        assert_same(got.alpha, expected[..., -1])
        expected = expected[..., 0] if want == "LA" else expected[..., :3]
    assert_same(got.pixels, expected)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_low_bit_gray_png_spans_black_to_white(tmp_path: Path, bits: int) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 8 // bits, 1, bits, 0, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xf0")) + chunk(b"IEND", b"")
    )
    (tmp_path / "a.png").write_bytes(data)
    got = read_image(tmp_path / "a.png").pixels
    assert got.dtype == np.uint8
    assert (got[0, 0], got[0, -1]) == (255, 0)


@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_come_upright(tmp_path: Path, kind: str, orientation: int) -> None:
    from PIL import ImageOps

    pixels = np.kron(samples((3, 5), "uint8"), np.ones((16, 16), np.uint8))
    path = tmp_path / f"a.{kind}"
    tags = PIL.Image.Exif()
    tags[274] = orientation
    if kind == "tiff":
        tifffile.imwrite(
            path, pixels, extratags=[(274, 3, 1, orientation, True)], resolution=(300, 150), resolutionunit="INCH"
        )
    else:
        PIL.Image.fromarray(pixels).save(path, kind, exif=tags, dpi=(300, 150))
    image = PIL.Image.fromarray(pixels)
    image.getexif()[274] = orientation
    want = np.asarray(ImageOps.exif_transpose(image))
    got = read_image(path)
    assert got.pixels.shape == want.shape
    assert np.abs(got.pixels.astype(int) - want).max() < (12 if kind == "jpeg" else 1)
    resolution = (150, 300) if orientation > 4 else (300, 150)
    np.testing.assert_allclose(got.metadata.pixels_per("inch"), resolution, rtol=1e-3)


def test_cmyk_jpeg_is_rgb(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (16, 16), (200, 30, 30)).convert("CMYK").save(tmp_path / "a.jpg")
    got = read_image(tmp_path / "a.jpg").pixels
    assert np.abs(got[8, 8].astype(int) - (200, 30, 30)).max() < 6


def test_npy_layouts(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.asfortranarray(samples((4, 5, 3), "float32")).astype(">f4"))
    assert_same(read_image(path).pixels, samples((4, 5, 3), "float32"))
    np.save(path, np.eye(3, dtype=bool))
    assert_same(read_image(path).pixels, np.eye(3, dtype=np.uint8) * np.uint8(255))
    np.save(path, np.zeros((4, 5, 1), np.uint8))
    assert read_image(path).pixels.shape == (4, 5)


def test_a_plain_read_equals_pillow() -> None:
    from convforge.imaging.photographs import PHOTOGRAPHS, photograph

    for name in PHOTOGRAPHS:
        pixels = photograph(name)
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3
        assert min(pixels.shape[:2]) >= 512
    buffer = io.BytesIO()
    PIL.Image.fromarray(photograph()).save(buffer, "png")
    np.testing.assert_array_equal(np.asarray(PIL.Image.open(buffer)), photograph())
