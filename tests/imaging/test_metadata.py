"""Metadata: kept from format to format where it is true, and named where it is not kept."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile
from tests.imaging.blocks import block

from convforge.imaging.files import Image, Metadata, not_kept, read_image, write_image
from convforge.imaging.formats.exif import read_block

RGB = np.random.default_rng(4).integers(0, 256, (24, 32, 3), dtype=np.uint8)
CAMERA, PLACE = 34665, 34853
NEVER = {"MakerNote", "thumbnail"}


def photo(path: Path, exif: bytes, **options: Any) -> Path:
    """A JPEG or PNG with a block of EXIF."""
    PIL.Image.fromarray(RGB).save(path, exif=exif if path.suffix == ".png" else b"Exif\0\0" + exif, **options)
    return path


def tags(path: Path) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any]]:
    """The tags of a file as Pillow reads them: the main ones, those of the camera, and of the place."""
    with PIL.Image.open(path) as image:
        found = image.getexif()
        return dict(found), dict(found.get_ifd(CAMERA)), dict(found.get_ifd(PLACE))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("target", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("source", [".jpg", ".png", ".tif"])
def test_exif_goes_from_format_to_format(tmp_path: Path, source: str, target: str, order: str) -> None:
    first = tmp_path / f"a{source}"
    if source == ".tif":
        write_image(first, read_image(photo(tmp_path / "a.png", block(order))))
    else:
        photo(first, block(order))
    image = read_image(first)
    write_image(tmp_path / f"b{target}", image)
    main, camera, place = tags(tmp_path / f"b{target}")
    assert main[272] == "M1"
    assert main[306] == "2024:05:06 07:08:09"
    assert main[315] == "Ada Lovelace"
    assert main[33432] == "nobody"
    assert 274 not in main
    assert camera[33434] == 1 / 250
    assert camera[34855] == 400
    assert camera[36867] == "2024:05:06 07:08:09"
    assert camera[37510] == b"UNICODE\0" + "größer".encode("utf-16-le")
    assert 37500 not in camera
    assert (camera.get(40962, 32), camera.get(40963, 24)) == (32, 24)
    assert (place[1], place[2]) == ("N", (51, 30, 26))
    assert "Maker & Söhne".encode() in (tmp_path / f"b{target}").read_bytes()
    again = read_image(tmp_path / f"b{target}").metadata
    assert again.exif == image.metadata.exif
    assert again.left == ()
    assert set(not_kept(tmp_path / f"b{target}", image)) == (NEVER if source != ".tif" else set())
    (lost,) = (word for word in not_kept("b.npy", image) if word.startswith("EXIF"))
    assert lost == "EXIF (Make, Model, Software and 12 more)"


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_pixels_are_turned_and_the_tag_is_gone(tmp_path: Path, suffix: str, orientation: int) -> None:
    from PIL import ImageOps

    photo(tmp_path / "a.png", block("<", orientation))
    image = read_image(tmp_path / "a.png")
    with PIL.Image.open(tmp_path / "a.png") as opened:
        upright = np.asarray(ImageOps.exif_transpose(opened))
    write_image(tmp_path / f"b{suffix}", image)
    with PIL.Image.open(tmp_path / f"b{suffix}") as opened:
        assert opened.getexif().get(274, 1) == 1
        shown = np.asarray(ImageOps.exif_transpose(opened))
        assert shown.shape == upright.shape
        assert np.abs(shown.astype(int) - upright).mean() < (12 if suffix == ".jpg" else 1e-9)
    turned = {"SubjectArea", "FocalPlaneXResolution", "FocalPlaneResolutionUnit"} if orientation > 1 else set()
    assert set(not_kept(f"b{suffix}", image)) == NEVER | turned
    camera = tags(tmp_path / f"b{suffix}")[1]
    assert (37396 in camera, 41486 in camera) == (orientation == 1, orientation == 1)


def test_a_stride_leaves_behind_what_is_counted_in_pixels(tmp_path: Path) -> None:
    image = read_image(photo(tmp_path / "a.png", block(">", thumbnail=False)))
    same = image.filtered(image.pixels)
    assert same.metadata == image.metadata
    small = image.filtered(image.pixels[::2, ::2], stride=(2, 2))
    assert set(small.metadata.left) == {
        "MakerNote", "SubjectArea", "FocalPlaneXResolution", "FocalPlaneResolutionUnit"
    }  # fmt: skip
    write_image(tmp_path / "b.jpg", small)
    camera = tags(tmp_path / "b.jpg")[1]
    assert camera.keys().isdisjoint({37396, 41486, 41488})
    assert (camera[40962], camera[40963]) == (16, 12)


@pytest.mark.filterwarnings("ignore:Truncated File Read:UserWarning")  # by Pillow, as it looks for a resolution
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("cut", [3, 7, 30, 600, 1000])
def test_damaged_exif_costs_no_image(tmp_path: Path, suffix: str, cut: int) -> None:
    image = read_image(photo(tmp_path / f"a{suffix}", block("<")[:cut]))
    assert image.pixels.shape == RGB.shape
    assert image.metadata.exif is None
    assert "damaged EXIF" in image.metadata.left


def test_directories_that_point_in_circles_end() -> None:
    data = bytearray(block("<"))
    at = data.index(struct.pack("<HHI", CAMERA, 4, 1)) + 8
    data[at : at + 4] = struct.pack("<I", 8)  # the camera's directory is the main one
    main, _ = read_block(bytes(data))
    assert isinstance(main[CAMERA], dict)
    assert CAMERA not in main[CAMERA]


def test_what_a_jpeg_holds_beside_is_named(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", block("<", thumbnail=False), xmp=b"<x:xmpmeta/>", comment=b"taken at noon")
    assert set(read_image(tmp_path / "a.jpg").metadata.left) == {"MakerNote", "XMP"}
    assert read_image(tmp_path / "a.jpg").metadata.description == "taken at noon"
    body = (tmp_path / "a.jpg").read_bytes()
    for marker, data, word in (
        (0xED, b"Photoshop 3.0\0x", "IPTC and Photoshop data"), (0xE2, b"MPF\0x", "further images (MPF)"),
        (0xEB, b"JP\0x", "APP11 data"),
    ):  # fmt: skip
        (tmp_path / "b.jpg").write_bytes(body[:2] + struct.pack(">BBH", 255, marker, 2 + len(data)) + data + body[2:])
        assert word in read_image(tmp_path / "b.jpg").metadata.left
    PIL.Image.fromarray(RGB).convert("CMYK").save(tmp_path / "c.jpg")
    assert read_image(tmp_path / "c.jpg").metadata.left == ("CMYK colours, which became RGB",)


def test_a_block_that_no_jpeg_holds(tmp_path: Path) -> None:
    notes = io.BytesIO()
    tags = [(315, "s", 0, "x" * 70000, True)]
    tifffile.imwrite(notes, RGB, photometric="rgb", software=False, metadata=None, extratags=tags)
    (tmp_path / "a.tif").write_bytes(notes.getvalue())
    image = read_image(tmp_path / "a.tif")
    assert not_kept("b.jpg", image) == ("tags (Artist), longer than a JPEG holds",)
    write_image(tmp_path / "b.jpg", image)
    assert read_image(tmp_path / "b.jpg").metadata.exif is None
    write_image(tmp_path / "b.png", image)
    assert not_kept("b.png", image) == ()
    assert read_image(tmp_path / "b.png").metadata.exif == image.metadata.exif


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A gray image of one pixel with these chunks."""
    every = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)), *chunks, (b"IDAT", zlib.compress(b"\0\x07"))]
    packed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in [*every, (b"IEND", b"")]
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_chunks_beside_the_pixels_bring_no_words_of_libpng(tmp_path: Path) -> None:
    wrong = ((b"eXIf", b"?"), (b"iCCP", b"x\0\0?"), (b"gAMA", b"\0"), (b"pHYs", b"\0"), (b"sBIT", b"\x63"))
    (tmp_path / "a.png").write_bytes(png(*wrong))
    code = "import sys; from convforge.imaging.files import read_image; print(read_image(sys.argv[1]).pixels.tolist())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = subprocess.run(  # a process of its own: libpng's words come when it ends
        [sys.executable, "-c", code, tmp_path / "a.png"], env=environment, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("[[7]]\n", "")


def test_texts_and_colours_of_a_png(tmp_path: Path) -> None:
    kept = (
        (b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"Author\0Ada"), (b"zTXt", b"Title\0\0" + zlib.compress(b"x")),
        (b"iTXt", "Source\0\0\0\0\0größer".encode()), (b"tIME", struct.pack(">HBBBBB", 2024, 1, 2, 3, 4, 5)),
    )  # fmt: skip
    left = (
        (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>"), (b"bKGD", b"\0\1"), (b"prVt", b"?"),
        (b"tEXt", b"Raw profile type exif\0..."),
    )  # fmt: skip
    (tmp_path / "a.png").write_bytes(png(*kept, *left))
    image = read_image(tmp_path / "a.png")
    words = ("XMP", "Raw profile type exif", "background colour", "chunk prVt")
    assert not_kept("b.png", image) == words
    write_image(tmp_path / "b.png", image)
    again = read_image(tmp_path / "b.png").metadata
    assert set(again.png) == set(kept)
    assert again.left == ()
    for suffix in (".tif", ".jpg", ".npy"):
        more = ("PNG's Author", "PNG's Title", "PNG's Source", "PNG's gAMA", "PNG's tIME")
        assert not_kept(f"b{suffix}", image) == words + more
        write_image(tmp_path / f"b{suffix}", image)
        assert read_image(tmp_path / f"b{suffix}").pixels.tolist() == [[7]]


def test_a_profile_that_does_not_fit_is_named(tmp_path: Path) -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = Image(RGB, metadata=Metadata(icc_profile=profile))
    for suffix in (".png", ".jpg", ".tif"):
        assert not_kept(f"a{suffix}", image) == ()
        gray = image.filtered(RGB[..., 0])
        assert not_kept(f"a{suffix}", gray) == ("ICC profile (of RGB, and the result has 1 band)",)
    assert not_kept("a.npy", image) == ("ICC profile",)


def test_ratios_of_resolutions_have_no_place_in_a_jpeg() -> None:
    image = Image(RGB, metadata=Metadata((2.0, 1.0), "none"))
    assert not_kept("a.jpg", image) == ("ratio of resolutions",)
    assert not_kept("a.png", image) == not_kept("a.tif", image) == ()
