"""`convforge filter` keeps metadata, and names those that it does not keep in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import SMALL, kept
from tests.imaging.blocks import block

KERNEL = ("--kernel", "sharpen")


def photo(path: Path, **options: object) -> Path:
    PIL.Image.fromarray(SMALL).save(path, exif=b"Exif\0\0" + block("<", 6, thumbnail=False), **options)
    return path


def test_a_photograph_keeps_its_exif(tmp_path: Path, run: Callable[..., Ran]) -> None:
    source, target = photo(tmp_path / "a.jpg", xmp=b"<x/>"), tmp_path / "b.jpg"
    ran = run(source, target, *KERNEL)
    assert ran.code == 0
    start = f"convforge: {target}: not kept: "
    assert ran.err.startswith(start)
    lost = {"FocalPlaneResolutionUnit", "FocalPlaneXResolution", "MakerNote", "SubjectArea", "XMP"}
    assert set(ran.err.removeprefix(start).strip().split(", ")) == lost
    with PIL.Image.open(target) as image:
        assert image.size == SMALL.shape[:2], "upright"
        tags = image.getexif()
        assert tags[306] == "2024:05:06 07:08:09"
        assert 274 not in tags


@pytest.mark.parametrize("suffix", [".npy", ".tif", ".png"])
def test_another_format_says_what_it_has_no_place_for(tmp_path: Path, run: Callable[..., Ran], suffix: str) -> None:
    ran = run(photo(tmp_path / "a.jpg"), tmp_path / f"b{suffix}", *KERNEL)
    assert ran.code == 0
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"convforge: {tmp_path / f'b{suffix}'}: not kept: ")
    assert ("EXIF (Make, Model, Software" in ran.err) == (suffix == ".npy")


def test_ome_is_kept_in_units_and_its_loss_is_said_otherwise(tmp_path: Path, run: Callable[..., Ran]) -> None:
    stack = np.zeros((2, 3, 4, 20, 30), np.uint16)
    tifffile.imwrite(tmp_path / "a.ome.tif", stack, metadata={"axes": "TCZYX"}, tile=(16, 16), bigtiff=True)
    ran = run(tmp_path / "a.ome.tif", tmp_path / "b.ome.tif", *KERNEL, "--method", "direct_naive")
    assert (ran.code, ran.err) == (0, "")
    with tifffile.TiffFile(tmp_path / "b.ome.tif") as file:
        assert (file.is_ome, file.is_bigtiff, file.pages.first.is_tiled) == (True, True, True)
        assert (file.series[0].axes, file.series[0].shape) == ("TCZYX", stack.shape)
    ran = run(tmp_path / "a.ome.tif", tmp_path / "b.npy", *KERNEL)
    assert (ran.code, "not kept: OME-XML (axes TCZYX)" in ran.err) == (0, True)


def test_a_plain_image_says_nothing(tmp_path: Path, done: Callable[..., Ran]) -> None:
    for suffix in (".png", ".tif", ".npy"):
        done(kept(tmp_path, f"a{suffix}", SMALL), tmp_path / f"b{suffix}", *KERNEL)


def test_a_folder_says_it_once_for_images_that_are_alike(tmp_path: Path, done: Callable[..., Ran]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        photo(folder / f"{name}.jpg")
    photo(folder / "e.jpg", xmp=b"<x/>")
    kept(folder, "plain.png", SMALL)
    ran = done(folder, tmp_path / "out", *KERNEL)
    lines = [line[12:] for line in ran.out.splitlines() if line.startswith("not kept")]
    assert len(lines) == 2
    assert lines[0].endswith(" of a.jpg, b.jpg and 2 more")
    assert "MakerNote" in lines[0]
    assert lines[1].endswith(" of e.jpg")
    assert "XMP" in lines[1]
    assert "plain.png" not in ran.out
