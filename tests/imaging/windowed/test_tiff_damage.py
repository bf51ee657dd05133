"""Damaged, truncated and lying TIFF files give an ImageError with the file's name, and never fill the memory."""

from __future__ import annotations

import io
import logging
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.windowed import slides
from tests.imaging.windowed.windows import PLAIN, each, noise, whole, within

from convforge.imaging.files import declared_of, read_image
from convforge.imaging.formats.tiff import is_structured
from convforge.imaging.image import ImageError
from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.tiff.codec_headers import declared_size


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("tifffile"), "disabled", True)


def made(**options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, noise(40, 56, 3), **PLAIN | {"photometric": "rgb"} | options)
    return file.getvalue()


def with_tag(content: bytes, code: int, value: int, count: int | None = None) -> bytes:
    """Change the inline value, or the count, of a tag in the first directory of a classic little-endian TIFF."""
    (at,) = struct.unpack_from("<I", content, 4)
    (number,) = struct.unpack_from("<H", content, at)
    changed = bytearray(content)
    for entry in range(at + 2, at + 2 + 12 * number, 12):
        if struct.unpack_from("<H", content, entry)[0] == code:
            if count is not None:
                struct.pack_into("<I", changed, entry + 4, count)
            kind = struct.unpack_from("<H", content, entry + 2)[0]
            struct.pack_into("<H" if kind == 3 and count is None else "<I", changed, entry + 8, value)
    return bytes(changed)


def refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=words) as caught:
        whole(open_windows(path))
    assert str(path) in str(caught.value)


TILES = {"tile": (16, 32), "compression": "zlib"}


@pytest.mark.parametrize("length", [4, 7, 8, 20, 100, 300, 2000])
def test_truncated(tmp_path: Path, length: int) -> None:
    refused(tmp_path, made(**TILES)[:length], "truncated or damaged|is no TIFF")


def test_a_chain_without_end(tmp_path: Path) -> None:
    content = bytearray(made(**TILES))
    (at,) = struct.unpack_from("<I", content, 4)
    (number,) = struct.unpack_from("<H", content, at)
    struct.pack_into("<I", content, at + 2 + 12 * number, at)
    refused(tmp_path, bytes(content), "its chain of pages does not end")
    struct.pack_into("<I", content, at + 2 + 12 * number, 2**31)
    refused(tmp_path, bytes(content), "beyond its")


@pytest.mark.parametrize(
    "code, value, count",
    [
        (256, 2**30, None), (257, 2**30, None), (322, 2**14, None), (323, 2**14, None), (322, 0, None),
        (277, 4000, None), (324, 8, 2**31), (325, 8, 1), (256, 0, None), (259, 999, None), (262, 8, 2**20),
    ],
)  # fmt: skip
def test_a_lying_header(tmp_path: Path, code: int, value: int, count: int | None) -> None:
    refused(tmp_path, with_tag(made(**TILES), code, value, count), "a.tif: ")


def test_data_of_another_size(tmp_path: Path) -> None:
    content = made(tile=(16, 32), compression="jpeg")
    small = io.BytesIO()
    tifffile.imwrite(small, noise(16, 16, 3), photometric="rgb", compression="jpeg", **PLAIN)
    small.seek(0)
    with tifffile.TiffFile(small) as file:
        at, count = file.pages.first.dataoffsets[0], file.pages.first.databytecounts[0]
        other = small.getvalue()[at : at + count]
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        at = file.pages.first.dataoffsets[0]
    refused(tmp_path, content[:at] + other + content[at + len(other) :], "is expected|cannot be decoded|reshaped")


# Encoders of each compression: their number, the name in imagecodecs, arguments.
ENCODERS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "jpeg": (7, "jpeg8", {}), "jpeg2000": (34712, "jpeg2k", {"codecformat": "j2k"}), "png": (34933, "png", {}),
    "jp2": (33005, "jpeg2k", {"codecformat": "jp2"}), "webp": (50001, "webp", {}), "lerc": (34887, "lerc", {}),
    "webp lossless": (34927, "webp", {"lossless": True}), "jpegxr": (22610, "jpegxr", {}),
    "lerc zstd": (34887, "lerc", {"compression": "zstd"}), "lerc deflate": (34887, "lerc", {"compression": "deflate"}),
    "jpegxl": (50002, "jpegxl", {}), "jpegxl box": (50002, "jpegxl", {"usecontainer": True}),
}  # fmt: skip


def encoded(codec: str, pixels: Any) -> bytes:
    import imagecodecs

    _, name, options = ENCODERS[codec]
    return bytes(getattr(imagecodecs, f"{name}_encode")(pixels, **options))


def one_tile(path: Path, codec: str, data: bytes, shape: tuple[int, ...] = (16, 32, 3)) -> Path:
    """Write a TIFF of one tile with these data."""
    with tifffile.TiffWriter(path) as writer:
        writer.write(iter([data]), shape=shape, dtype=np.uint8, tile=(16, 32), compression=ENCODERS[codec][0],
                     photometric="rgb" if len(shape) > 2 else "minisblack", **PLAIN)  # fmt: skip
    return path


@pytest.mark.parametrize("codec", ENCODERS)
def test_data_that_declare_a_huge_image(tmp_path: Path, codec: str) -> None:
    large = one_tile(tmp_path / "a.tif", codec, encoded(codec, np.zeros((1000, 1000, 3), np.uint8)))
    with pytest.raises(ImageError, match=r"declare 1000 x 1000 pixels in a segment|cannot be decoded \(they have no"):
        whole(open_windows(large))
    pixels = noise(16, 32, 3)
    good = whole(open_windows(one_tile(tmp_path / "b.tif", codec, encoded(codec, pixels))))
    assert np.abs(good.astype(int) - pixels).mean() < (60 if codec in ("jpeg", "webp", "jpegxl", "jpegxl box") else 1)


def test_data_that_hide_the_size_of_a_huge_image(tmp_path: Path) -> None:
    """Headers that a decoder skips must not hide the header that it takes."""
    zeros = np.zeros((1000, 1000), np.uint8)
    jpeg, small = encoded("jpeg", zeros), encoded("jpeg2000", zeros[:16, :32])
    jp2 = encoded("jp2", zeros)
    at = jp2.index(b"jp2c") - 4
    hidden = {
        "jpeg": jpeg[:2] + b"no marker" + jpeg[2:],
        "jp2": jp2[:at] + struct.pack(">I4s", 8 + len(small), b"xml ") + small + jp2[at:],
        "lerc": encoded("lerc", zeros[:16, :32]) * 3,
    }
    for codec, data in hidden.items():
        path = one_tile(tmp_path / "a.tif", codec, data, (16, 32))
        with pytest.raises(ImageError, match=r"declare (1000 x 1000 pixels|3 samples of 1 bytes, and 1 of 1)"):
            whole(open_windows(path))


def test_data_that_declare_many_samples(tmp_path: Path) -> None:
    """Ten kilobytes may hold hundreds of extra channels or frames, or samples of more bytes."""
    imagecodecs = pytest.importorskip("imagecodecs")
    planes = noise(90, 16, 32)
    wide = noise(16, 32, 3, dtype=np.uint16)
    for codec, data, words in (
        (
            "jpegxl",
            bytes(imagecodecs.jpegxl_encode(planes, planar=True)),
            "declare 90 samples of 1 bytes, and 3 of 1 is",
        ),
        ("jpegxl", bytes(imagecodecs.jpegxl_encode(planes)), "have no header that tells their size"),  # frames
        ("jpegxl", encoded("jpegxl", wide), "samples of 2 bytes, and 3 of 1 is"),
        ("lerc", encoded("lerc", noise(16, 32, 90)), "declare 90 samples of 1 bytes, and 3 of 1 is"),
        ("lerc", encoded("lerc", wide), "declare 3 samples of 2 bytes, and 3 of 1 is"),
        ("jpeg2000", encoded("jpeg2000", noise(16, 32, 94)), "declare 94 samples of 1 bytes, and 3 of 1 is"),
        ("png", encoded("png", wide), "declare 3 samples of 2 bytes, and 3 of 1 is"),
    ):
        with pytest.raises(ImageError, match=words):
            whole(open_windows(one_tile(tmp_path / "a.tif", codec, data)))


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("size", [(16, 32), (32, 16), (16, 16), (48, 32), (272, 1040)])
def test_headers_of_jpeg_xl(samples: int, dtype: Any, size: tuple[int, int]) -> None:
    imagecodecs = pytest.importorskip("imagecodecs")
    pixels = (np.random.default_rng(1).random((*size, samples)) * 0.9).astype(np.float32)
    pixels = pixels if dtype is np.float32 else (pixels * 250).astype(dtype)
    turned = {1: pixels[..., 0], 6: pixels.transpose(2, 0, 1)}.get(samples, pixels)
    for boxed in (False, True):
        data = bytes(imagecodecs.jpegxl_encode(turned, usecontainer=boxed, planar=samples == 6 or None))
        found = declared_size(50002, data, 2**20)
        assert found is not None
        assert found[:2] == size
        assert found.samples == {3: 1, 4: 2}.get(samples, samples)  # the number of colours is not told here
        assert found.itemsize == pixels.dtype.itemsize


def test_data_larger_than_a_segment_can_need(tmp_path: Path) -> None:
    """A byte count of a sparse file of a gigabyte is refused, and without compression only the pixels are read."""
    for compression in ("zlib", "lzw", "jpeg", None):
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, noise(16, 32), tile=(16, 32), compression=compression, **PLAIN)
        with tifffile.TiffFile(path, mode="r+b") as file:
            file.pages[0].tags["TileByteCounts"].overwrite(2**30)
        with path.open("r+b") as raw:
            raw.truncate(2**30 + 2**20)
        reader = open_windows(path)
        with within(2**24):
            if compression is None:
                assert whole(reader).any()
            else:
                with pytest.raises(
                    ImageError, match=r"the 1073741824 bytes of pixel data at .* too many for a segment of"
                ):
                    whole(reader)


def with_large_tag(path: Path, code: int, kind: int, count: int, page: int = 0) -> None:
    """Change a tag of a page of a BigTIFF, or its tag 65123, to one of many values in a sparse file of 2 GiB."""
    with tifffile.TiffFile(path) as file:
        tags = file.pages[page].tags
        tag = tags.get(code) or tags[65123]
    with path.open("r+b") as raw:
        raw.seek(tag.offset)
        raw.write(struct.pack("<HHQQ", code, kind, count, 2**20))
        raw.truncate(2**31)


LARGE = [
    ("ImageDescription", 270, 2, 2**30), ("XMP", 700, 1, 2**30), ("TileOffsets", 324, 16, 2**27),
    ("TileByteCounts", 325, 4, 2**20), ("StripByteCounts", 279, 4, 2**20), ("BitsPerSample", 258, 3, 2**28),
    ("SubIFDs", 330, 16, 2**27), ("JPEGTables", 347, 7, 2**30), ("ImageJ's own data", 50839, 1, 2**30),
    ("XResolution", 282, 5, 2**27), ("LSM data", 34412, 1, 2**30),
]  # fmt: skip


@pytest.mark.parametrize("name, code, kind, count", LARGE)
def test_tags_of_gigabytes_are_not_read(tmp_path: Path, name: str, code: int, kind: int, count: int) -> None:
    path, mark = tmp_path / "a.tif", {"extratags": [(65123, 3, 1, 1, True)]}
    tifffile.imwrite(path, noise(40, 56), **TILES, bigtiff=True, **PLAIN, **mark)
    with_large_tag(path, code, kind, count)
    slide = tmp_path / "a.svs"
    with tifffile.TiffWriter(slide, bigtiff=True) as writer:
        for number in range(3):
            writer.write(noise(40, 56), **TILES, metadata=None, description=f"Aperio {number}", **mark)
    with_large_tag(slide, code, kind, count, page=2)
    with within(2**24):
        for place in (path, slide):
            with pytest.raises(ImageError, match=f"{place.name}: truncated or damaged TIFF, {name} has {count} values"):
                open_windows(place)
            if count > 2**20:
                for read in (read_image, declared_of):
                    with pytest.raises(
                        ImageError, match=f"{place.name}: truncated or damaged TIFF, {name} has {count}"
                    ):
                        read(place)
                assert not is_structured(place)


def test_a_tag_that_occurs_often_counts_often(tmp_path: Path) -> None:
    texts = [(270, 2, 2**22, "x" * 2**22, True)] * 40
    tifffile.imwrite(tmp_path / "a.tif", noise(40, 56), **PLAIN, extratags=texts)
    with pytest.raises(ImageError, match="ImageDescription has 4194305 values; the tags of a file may hold"):
        open_windows(tmp_path / "a.tif")


def test_a_large_tag_of_an_ndpi(tmp_path: Path) -> None:
    path = slides.ndpi(tmp_path / "a.ndpi", noise(48, 64, 3))
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<HHI", 65420, 4, 1))
    struct.pack_into("<HHII", data, at, 65420, 4, 2**28, 64)
    path.write_bytes(data)
    with path.open("r+b") as raw:
        raw.truncate(2**31)
    with pytest.raises(ImageError, match="tag 65420 has 268435456 values"):
        open_windows(path)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    content = with_tag(with_tag(made(rowsperstrip=40, compression="zlib"), 256, 2**20), 257, 2**14)
    refused(tmp_path, with_tag(content, 278, 2**14), "out of proportion|truncated or damaged")


def seeds() -> list[bytes]:
    found = []
    for codec, tile, big, order in each((None, "lzw", "zlib", "zstd", "jpeg", "jpeg2000", "packbits"), (False, True),
                                        (False, True), "<>"):  # fmt: skip
        grid: dict[str, Any] = {"tile": (16, 32)} if tile else {"rowsperstrip": 16}
        found.append(made(compression=codec, bigtiff=big, byteorder=order, **grid))
    stack = noise(2, 3, 32, 32, dtype=np.uint16)
    for options in ({"ome": True}, {"imagej": True}, {"truncate": True}):
        file = io.BytesIO()
        tifffile.imwrite(file, stack, photometric="minisblack", metadata={"axes": "TZYX"}, **options)
        found.append(file.getvalue())
    return found


WORDS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x40", b"\x7f\xff\xff\xff", b"\0\0\x10\0", b"\0\x10\0\0")


def mutated(content: bytes, random: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(min(len(changed), random.choice((600, len(changed)))))
        kind = random.randrange(5)
        if kind == 0:
            changed[at] = random.randrange(256)
        elif kind == 1:
            changed[at : at + 4] = random.choice(WORDS)
        elif kind == 2:
            del changed[at : at + random.randrange(1, 20)]
        elif kind == 3:
            changed[at:at] = random.randbytes(random.randrange(1, 8))
        else:
            del changed[random.randrange(len(changed)) :]
        changed = changed or bytearray(b"II")
    return bytes(changed)


@pytest.mark.thorough
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    generator, sources = random.Random(5), seeds()
    path, read, refusals = tmp_path / "a.tif", 0, list[str]()
    for _ in range(2000):
        path.write_bytes(mutated(generator.choice(sources), generator))
        try:
            reader = open_windows(path)
            if reader.layout.nbytes < 2**24:
                whole(reader)
            read += 1
        except ImageError as error:
            refusals.append(str(error))
    assert all(str(path) in text for text in refusals)
    assert min(read, len(refusals)) > 100
