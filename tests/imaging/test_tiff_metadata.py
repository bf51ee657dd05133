"""Metadata of a TIFF: tags, descriptions of programs, and its storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from convforge.imaging.files import Image, not_kept, read_image, write_image
from convforge.imaging.formats import tiff_tags

STACK = np.random.default_rng(5).integers(0, 256, (2, 3, 4, 20, 30), dtype=np.uint8)
PLANE = STACK[0, 0, 0]
PLAIN: dict[str, Any] = {"photometric": "minisblack", "metadata": None, "software": False}


def through(folder: Path, name: str = "b.tif", **options: Any) -> tuple[Image, tuple[str, ...]]:
    """Read a.tif, write it, and give what was read and what was not kept."""
    image = read_image(folder / "a.tif", **options)
    write_image(folder / name, image)
    return image, not_kept(folder / name, image)


@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_tags_are_kept(tmp_path: Path, byteorder: Any, bigtiff: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = [
        (269, "s", 0, "sheet 3", True), (315, "s", 0, "Müller".encode(), True), (33432, "s", 0, "nobody", True),
        (318, "2I", 2, (3127, 10000, 329, 1000), True), (33550, "d", 3, (1.5, 2.5, 0.0), True),
        (700, "B", 4, b"<x/>", True), (65000, "H", 3, (1, 2, 3), True),
    ]  # fmt: skip
    tifffile.imwrite(
        tmp_path / "a.tif", PLANE, **PLAIN | {"software": "Scanner 3"}, datetime="2020:01:02 03:04:05", extratags=tags,
        byteorder=byteorder, bigtiff=bigtiff,
    )  # fmt: skip
    image, lost = through(tmp_path)
    assert lost == ("XMP", "tag 65000", *(["BigTIFF"] if bigtiff else []))
    want = {
        269: "sheet 3", 305: "Scanner 3", 306: "2020:01:02 03:04:05", 315: "Müller", 318: (3127, 10000, 329, 1000),
        33432: "nobody", 33550: (1.5, 2.5, 0.0),
    }  # fmt: skip
    for big in (False, True):
        monkeypatch.setattr(tiff_tags, "BIG", 0 if big else 2**31)
        write_image(tmp_path / "b.tif", image)
        with tifffile.TiffFile(tmp_path / "b.tif") as file:
            found = {code: file.pages.first.tags.valueof(code) for code in want}
            assert file.is_bigtiff == big
        assert found == want
        assert ("BigTIFF" in not_kept("b.tif", image)) == (bigtiff and not big)
    assert "GeoTIFF's place" in not_kept("b.png", image)
    assert "GeoTIFF's place" in image.filtered(PLANE[::2, ::2], stride=(2, 2)).metadata.left


@pytest.mark.parametrize("big", [False, True])
def test_exif_in_every_kind_of_tiff(tmp_path: Path, big: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import PIL.Image
    from tests.imaging.blocks import block

    monkeypatch.setattr(tiff_tags, "BIG", 0 if big else 2**31)
    PIL.Image.fromarray(PLANE).save(tmp_path / "a.png", exif=block(">"))
    image = read_image(tmp_path / "a.png")
    pages = Image(np.stack([PLANE, PLANE[::-1]]), metadata=image.metadata, pages=True)
    write_image(tmp_path / "a.tif", pages)
    got = read_image(tmp_path / "a.tif")
    assert got.metadata.exif == image.metadata.exif
    np.testing.assert_array_equal(got.pixels, pages.pixels)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert file.pages.first.tags.valueof(34665)["ExposureTime"] == (1, 250)
        assert file.pages.first.tags.valueof(34853)["GPSLatitude"] == (51, 1, 30, 1, 26, 1)
        assert 34665 not in file.pages[1].tags


@pytest.mark.parametrize("name", ["b.tif", "b.ome.tif", "b.OME.TIFF", "b.npy"])
def test_ome_is_named(tmp_path: Path, name: str) -> None:
    tifffile.imwrite(
        tmp_path / "a.ome.tif", STACK, metadata={"axes": "TCZYX"}, tile=(16, 16), bigtiff=True, software=False
    )
    (tmp_path / "a.ome.tif").rename(tmp_path / "a.tif")
    _, lost = through(tmp_path, name)
    assert lost[0] == "OME-XML (axes TCZYX)"
    assert ("tiles of 16 x 16 pixels" in lost) == ("BigTIFF" in lost) == (name != "b.npy")
    assert any("the file is a plain TIFF" in word for word in lost) == (".ome." in name.lower())
    if name != "b.npy":
        with tifffile.TiffFile(tmp_path / name) as file:
            assert not file.is_ome
            assert file.series[0].shape == (24, 20, 30)


@pytest.mark.parametrize("axes", [None, "TZCYX"])
def test_imagejs_description_is_true(tmp_path: Path, axes: str | None) -> None:
    tifffile.imwrite(tmp_path / "a.tif", STACK, imagej=True, metadata={"min": 3.0, "max": 9.0}, software=False)
    image, lost = through(tmp_path, axes=axes)
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        if axes is None:
            assert file.is_imagej
            assert file.series[0].shape == STACK.shape
            assert "max=" not in image.metadata.description
            assert lost == ("range that ImageJ shows",)
        else:
            assert not file.is_imagej
            assert lost == ("ImageJ's description", "axes TZ, whose 6 planes became pages")
    text = "ImageJ=1.11a\nimages=7\nslices=7\n"
    tifffile.imwrite(tmp_path / "a.tif", STACK[0, 0], **PLAIN, description=text)
    assert through(tmp_path)[1] == ("ImageJ's description",)
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.series[0].shape == (4, 20, 30)


def test_tifffiles_note_does_not_lie(tmp_path: Path) -> None:
    tifffile.imwrite(
        tmp_path / "a.tif", STACK, photometric="minisblack", metadata={"axes": "TZCYX", "who": "me"}, software=False
    )
    image, lost = through(tmp_path)
    assert lost == ("axes TZCYX",)
    assert json.loads(image.metadata.description) == {"who": "me"}
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.series[0].shape == (24, 20, 30)
    assert through(tmp_path, "b.npy", axes="TZCYX")[1] == ("description",)
    tifffile.imwrite(tmp_path / "a.tif", PLANE, software=False)
    assert through(tmp_path)[1] == ()


def test_a_description_before_tifffiles_note_is_kept(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", PLANE, description="hello scan")
    image, lost = through(tmp_path)
    assert (image.metadata.description, lost) == ("hello scan", ())
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages.first.description == "hello scan"


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ('{"shape": [4, 20, 30', ("damaged description",)),
        ('{"shape": [7, 20, 30]}', ()),
        ("shape=(7, 20, 30)", ()),
        ("<?xml?><OME broken></OME>", None),
    ],
)
def test_descriptions_that_are_wrong_cost_no_image(
    tmp_path: Path, text: str, lost: tuple[str, ...] | None, capfd: pytest.CaptureFixture[str]
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", STACK[0, 0], **PLAIN, description=text)
    image, found = through(tmp_path)
    np.testing.assert_array_equal(image.pixels, STACK[0, 0])
    assert image.metadata.description == ""
    assert lost is None or found == lost
    assert capfd.readouterr().err == ""


def test_pyramids_masks_and_further_pages_are_named(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(PLANE, subifds=2, description="one", datetime="2020:01:01 00:00:00", **PLAIN)
        writer.write(PLANE[::2, ::2], subfiletype=1, **PLAIN)
        writer.write(PLANE[::4, ::4], subfiletype=1, **PLAIN)
        writer.write(PLANE, description="two", datetime="2020:01:01 00:00:01", **PLAIN)
        writer.write(PLANE[::2, ::2], subfiletype=1, **PLAIN)
        writer.write(PLANE > 9, subfiletype=4, **PLAIN)
    _, lost = through(tmp_path)
    assert lost == (
        "ImageDescription of the pages behind the first", "DateTime of the pages behind the first",
        "3 reduced copies (a pyramid or thumbnails)", "1 mask",
    )  # fmt: skip


def test_a_damaged_directory_of_exif_costs_its_own_tags(tmp_path: Path) -> None:
    from tests.imaging.tiffs import tiff

    data = bytearray(tiff(PLANE[..., np.newaxis], 8, 1, extra=()))
    data[data.index(b"\x1c\x01\x03\0") :][:2]  # PlanarConfiguration, which becomes a pointer beyond the end
    at = data.index(b"\x1c\x01\x03\0")
    data[at : at + 12] = (34665).to_bytes(2, "little") + b"\4\0\1\0\0\0" + (10**6).to_bytes(4, "little")
    (tmp_path / "a.tif").write_bytes(data)
    image, lost = through(tmp_path)
    np.testing.assert_array_equal(image.pixels, PLANE)
    assert lost == ("damaged EXIF",)


def test_a_page_that_tifffile_gives_only_once_is_read(tmp_path: Path) -> None:
    """Once tifffile knows of a series it refuses pages that it has given before."""
    tifffile.imwrite(
        tmp_path / "a.tif", STACK[0, 0, :3], photometric="minisblack", metadata={"axes": "ZYX"}, tile=(16, 16)
    )
    data = bytearray((tmp_path / "a.tif").read_bytes())
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        resolution = file.pages[2].aspage().tags[283].offset
    data[resolution : resolution + 2] = (256).to_bytes(2, "little")  # a second width
    (tmp_path / "a.tif").write_bytes(data)
    np.testing.assert_array_equal(through(tmp_path)[0].pixels, STACK[0, 0, :3])
