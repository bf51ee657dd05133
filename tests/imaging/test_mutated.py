"""Damaged files are refused with a clear message, or read; see :mod:`tests.imaging.mutated`."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.imaging.mutated import TARGETS, run
from tests.imaging.pipeline.large import kept

import convforge
from convforge.imaging.files import read_image
from convforge.imaging.image import ImageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has neither alarms nor limits of a process")


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 7), *(pytest.param(1000, seed, marks=pytest.mark.thorough) for seed in range(3))]
)
def test_no_damage_ends_the_process(count: int, seed: int) -> None:
    pytest.importorskip("tensorstore")
    pytest.importorskip("imagecodecs")
    said, faults = run(count, seed)
    assert faults == []
    assert said.total() == count
    assert {what.split(":")[0] for what in said} == set(TARGETS)


@pytest.mark.parametrize("shape", ["(-70, -60)", "(True, 60)", "(70, -60)"])
def test_an_impossible_shape_of_npy_is_refused(tmp_path: Path, shape: str) -> None:
    path = kept(tmp_path / "a.npy", np.zeros((70, 60), np.uint8))
    path.write_bytes(path.read_bytes().replace(b"(70, 60)", shape.encode()))
    for action in (lambda: read_image(path), lambda: convforge.filter_large(path, tmp_path / "b.npy", "box:3")):
        with pytest.raises(ImageError, match=r"a\.npy: damaged, its header has the shape"):
            action()


def test_pages_of_many_extra_samples_are_named_in_short(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(np.zeros((4, 5), np.uint8), photometric="minisblack")
        writer.write(np.zeros((4, 5, 9), np.uint8), photometric="minisblack", extrasamples=[2, *[0] * 7])
    with pytest.raises(ImageError, match=r"page 2 is 5 x 4 pixels of 9 x uint8 with alpha and 7 x another sample; "):
        read_image(tmp_path / "a.tif")


def test_strange_kinds_of_extra_samples_become_unspecified(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = np.arange(2000, dtype=np.uint16).reshape(20, 50, 2)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", extrasamples=[0])
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages[0].tags["ExtraSamples"].overwrite(26645)
    convforge.filter_large(tmp_path / "a.tif", tmp_path / "b.tif", "box:3")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages[0].extrasamples == (0,)
        np.testing.assert_array_equal(file.asarray(), convforge.filter(pixels, "box:3"))


def test_one_sample_that_claims_to_be_rgb_is_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 5), np.uint8), photometric="minisblack")
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages[0].tags["PhotometricInterpretation"].overwrite(2)
    with pytest.raises(ImageError, match=r"a\.tif: damaged, 1 samples cannot be RGB"):
        convforge.filter_large(tmp_path / "a.tif", tmp_path / "b.tif", "box:3")


def test_jpeg_that_names_a_predictor_is_written_without(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = np.full((40, 50, 3), 99, np.uint8)
    options = {"compression": "jpeg", "photometric": "rgb", "tile": (16, 16)}
    tifffile.imwrite(tmp_path / "a.tif", pixels, **options, extratags=[(65000, 3, 1, 2, True)])
    data = (tmp_path / "a.tif").read_bytes()
    entry = struct.pack("<HHIH", 65000, 3, 1, 2)
    assert data.count(entry) == 1
    (tmp_path / "a.tif").write_bytes(data.replace(entry, struct.pack("<HHIH", 317, 3, 1, 2)))
    convforge.filter_large(tmp_path / "a.tif", tmp_path / "b.tif", "box:3")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert (file.pages[0].compression, file.pages[0].predictor) == (7, 1)
