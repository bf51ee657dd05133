"""Slides of scanners and files of microscopes: the image, spacing, names of channels, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.windowed import slides
from tests.imaging.windowed.windows import noise, whole

import convforge
from convforge.imaging.files import declared_of, read_image
from convforge.imaging.image import ImageError
from convforge.imaging.windowed import WindowReader, open_windows
from convforge.imaging.windowed.tiff import FORMAT
from convforge.imaging.windowed.tiff.slides import KINDS

pytest.importorskip("imagecodecs")

SCAN, SMALL = noise(96, 128, 3), noise(48, 32, 3)
MARKERS = noise(96, 128, 4)
VOLUME = noise(5, 40, 50, dtype=np.uint16)
LEVELS = ((48, 64), (24, 32))


def spacing_of(reader: WindowReader) -> dict[str, float | None]:
    return dict(zip(reader.layout.axes, reader.layout.spacing, strict=False))


def filtered(path: Path, array: Any, axes: str) -> list[Any]:
    """Filter a slide; check the result and its reduced copies against the array; return the shapes of the levels."""
    target = path.with_name("result.tif")
    convforge.filter_large(path, target, "box:3")
    bands = {"channels": "each"} if axes.endswith("S") else {}
    with tifffile.TiffFile(target) as file:
        wanted = convforge.filter(array, "box:3", axes=axes, **bands)
        np.testing.assert_array_equal(file.asarray(), wanted)
        assert not any(getattr(file, f"is_{kind}") for kind in KINDS)
        return [level.shape for level in file.series[0].levels]


def test_leica_scn(tmp_path: Path) -> None:
    path = slides.scn(tmp_path / "a.scn", [SCAN[:64, :64], SCAN], SMALL)
    reader = open_windows(path)
    assert (reader.layout.axes, reader.layout.levels) == ("YXS", tuple((*side, 3) for side in LEVELS))
    assert spacing_of(reader) == {"Y": 0.25, "X": 0.25, "S": None}
    np.testing.assert_array_equal(whole(reader), SCAN)
    lost = FORMAT.lost(reader, reader.layout)
    assert {"the image macro of 32 x 48 pixels", "the image area 0 of 64 x 64 pixels"} <= set(lost)
    assert filtered(path, SCAN, "YXS") == [(96, 128, 3), (48, 64, 3), (24, 32, 3)]


def test_leica_scn_of_fluorescence(tmp_path: Path) -> None:
    path = slides.scn(tmp_path / "a.scn", [MARKERS], SMALL, channels=4)
    planes = MARKERS.transpose(2, 0, 1)
    assert open_windows(path).layout.axes == "CYX"
    assert filtered(path, planes, "CYX") == [(4, 96, 128), (4, 48, 64), (4, 24, 32)]
    with pytest.raises(ImageError, match=r"b\.scn: pages are missing; export the image as OME-TIFF first"):
        open_windows(slides.scn(tmp_path / "b.scn", [MARKERS], SMALL, channels=4, without=3))


def test_ventana_bif_is_read_only_if_its_tiles_do_not_overlap(tmp_path: Path, caplog: Any) -> None:
    path = slides.bif(tmp_path / "a.bif", SCAN, SMALL)
    reader = open_windows(path)
    assert spacing_of(reader) == {"Y": 0.25, "X": 0.25, "S": None}
    assert filtered(path, SCAN, "YXS") == [(96, 128, 3), (48, 64, 3), (24, 32, 3)]
    with pytest.raises(
        ImageError, match=r"b\.bif: tiles of this Ventana slide overlap by up to 9 pixels; stitch it fir"
    ):
        open_windows(slides.bif(tmp_path / "b.bif", SCAN, SMALL, overlap=9))
    with pytest.raises(ImageError, match=r"c\.bif: .* may overlap, and its XMP does not tell; stitch"):
        open_windows(slides.bif(tmp_path / "c.bif", SCAN, SMALL, overlap=None))
    assert "stitched" not in caplog.text


def test_qptiff_names_its_channels(tmp_path: Path) -> None:
    names = ["DAPI", "CD3 &amp; CD8", "Cy3", "Cy5"]
    path = slides.qptiff(tmp_path / "a.qptiff", MARKERS, SMALL, names)
    reader = open_windows(path)
    assert (reader.layout.axes, spacing_of(reader)) == ("CYX", {"C": None, "Y": 0.25, "X": 0.25})
    assert reader.layout.channels == ("DAPI", "CD3 & CD8", "Cy3", "Cy5")
    assert filtered(path, MARKERS.transpose(2, 0, 1), "CYX") == [(4, 96, 128), (4, 48, 64), (4, 24, 32)]
    convforge.filter_large(path, tmp_path / "b.ome.tif", "box:3")
    assert open_windows(tmp_path / "b.ome.tif").layout.channels == reader.layout.channels
    same = slides.qptiff(tmp_path / "c.qptiff", MARKERS, SMALL, ["DAPI"] * 4)
    assert open_windows(same).layout.channels == ()


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_zeiss_lsm(tmp_path: Path, channels: int) -> None:
    volume = noise(5, channels, 40, 50)
    path = slides.lsm(tmp_path / "a.lsm", volume, spacing=(2e-6, 0.3e-6, 0.2e-6))
    reader = open_windows(path)
    axes = "ZSYX" if channels > 1 else "ZYX"
    assert reader.layout.axes == axes
    sizes = [spacing_of(reader)[letter] for letter in "ZYX"]
    assert sizes == pytest.approx([2, 0.3, 0.2])
    np.testing.assert_array_equal(whole(reader), volume.squeeze())
    convforge.filter_large(path, tmp_path / "b.npy", "gaussian:2,0.6,0.4um")
    blurred = np.load(tmp_path / "b.npy")
    for channel in range(channels):
        wanted = convforge.filter(volume[:, channel], "gaussian:1,2,2px", axes="ZYX")
        np.testing.assert_array_equal(blurred[:, channel] if channels > 1 else blurred, wanted)


def test_metamorph_stk(tmp_path: Path) -> None:
    path = slides.stk(tmp_path / "a.stk", VOLUME)
    reader = open_windows(path)
    assert reader.layout.axes == "ZYX"
    assert [spacing_of(reader)[letter] for letter in "ZYX"] == pytest.approx([1.5, 0.3, 0.2])
    np.testing.assert_array_equal(whole(reader), VOLUME)
    assert filtered(path, VOLUME, "ZYX") == [(5, 40, 50)]
    path.write_bytes(path.read_bytes()[: -VOLUME.nbytes // 2])
    with pytest.raises(ImageError, match=r"a\.stk: truncated or damaged TIFF"):
        open_windows(path)


def test_philips_tiff(tmp_path: Path) -> None:
    path = slides.philips(tmp_path / "a.tiff", SCAN, SMALL)
    reader = open_windows(path)
    assert spacing_of(reader) == {"Y": 0.25, "X": 0.25, "S": None}
    assert "the image Label of 32 x 48 pixels" in FORMAT.lost(reader, reader.layout)
    assert filtered(path, SCAN, "YXS") == [(96, 128, 3), (48, 64, 3), (24, 32, 3)]


def test_aperio_svs(tmp_path: Path) -> None:
    path = slides.svs(tmp_path / "a.svs", SCAN, compression=33005, compressionargs={"level": 0, "reversible": True})
    reader = open_windows(path)
    assert (reader.layout.levels, spacing_of(reader)["X"]) == (tuple((*side, 3) for side in LEVELS), 0.499)
    np.testing.assert_array_equal(whole(reader), SCAN)
    assert {"the image Label of 30 x 20 pixels", "the image Macro of 30 x 20 pixels"} <= set(
        FORMAT.lost(reader, reader.layout)
    )
    assert filtered(path, SCAN, "YXS") == [(96, 128, 3), (48, 64, 3), (24, 32, 3)]
    path = slides.svs(tmp_path / "b.svs", SCAN, compression=33003)
    page = tmp_path / "b.tif"
    tifffile.imwrite(page, SCAN, compression=33003, photometric="rgb")
    for read, place in ((open_windows, path), (read_image, page), (declared_of, page)):
        with pytest.raises(ImageError, match=r"b\....: YCbCr \(Aperio's JPEG 2000, compression 33003\) colours; conv"):
            read(place)


def test_an_inch_of_a_slide_is_no_size_of_its_pixels(tmp_path: Path) -> None:
    path = slides.svs(tmp_path / "a.svs", SCAN, resolution=(72, 72), resolutionunit="INCH")
    convforge.filter_large(path, tmp_path / "b.tif", "box:3")
    assert spacing_of(open_windows(tmp_path / "b.tif"))["Y"] == pytest.approx(0.499)


def test_tiles_that_a_scanner_left_out(tmp_path: Path) -> None:
    path = slides.svs(tmp_path / "a.svs", SCAN, compression="zlib")
    assert FORMAT.source_notes(open_windows(path)) == ()
    with tifffile.TiffFile(path, mode="r+b") as file:
        counts = file.pages[0].tags["TileByteCounts"]
        counts.overwrite([0 if number in (2, 9) else count for number, count in enumerate(counts.value)])
    reader = open_windows(path)
    wanted = SCAN.copy()
    wanted[:16, 32:48] = wanted[16:32, 16:32] = 0
    np.testing.assert_array_equal(whole(reader), wanted)
    assert FORMAT.source_notes(reader) == (
        f"{path}: 2 of 48 tiles are not stored; they are read as 0, which is black in RGB, and the kernel mixes it "
        "into the pixels beside them; leave out that margin, or filter a part without them (--region)",
    )


@pytest.mark.parametrize("beyond", [0, 2**32 + 12345])
def test_hamamatsu_ndpi(tmp_path: Path, beyond: int) -> None:
    ramp = np.linspace(0, 250, 64 * 80 * 3).reshape(64, 80, 3).astype(np.uint8)
    path = slides.ndpi(tmp_path / "a.ndpi", ramp, beyond=beyond)
    reader = open_windows(path)
    assert spacing_of(reader) == {"Y": 0.25, "X": 0.25, "S": None}
    assert np.abs(whole(reader).astype(int) - ramp).max() < 12
    np.testing.assert_array_equal(whole(reader), tifffile.imread(path))
