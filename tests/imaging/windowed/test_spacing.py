"""A spacing that the user names is that of the result, whatever the file says; strides and regions count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.pipeline.large import kept, recipe, zarr_array
from tests.imaging.windowed.ome import checked, ome_zarr, scales

import convforge
from convforge.imaging.files import Metadata, not_kept, read_image, write_image
from convforge.imaging.image import Image
from convforge.imaging.pipeline.lanes import Clock
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.selection import Selection
from convforge.imaging.spacing import spaced, spacing_by
from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.slices import SliceFolder

VOLUME = np.arange(6 * 24 * 32, dtype=np.uint16).reshape(6, 24, 32)
OME = {"PhysicalSizeX": 9.0, "PhysicalSizeY": 9.0, "PhysicalSizeZ": 9.0}
GIVEN = {"Z": 2.5, "Y": 0.5, "X": 0.25}
# Every second plane, every third row and every second column, from row 3 on.
PART = {"spacing": GIVEN, "stride": (3, 2), "selection": Selection.of(region="3:,:", z="::2")}
WANTED = (5.0, 1.5, 0.5)


def made(folder: Path, kind: str) -> Path:
    """A volume whose file has another spacing, or none."""
    path = folder / f"a.{'tif' if kind in ('imagej', 'inch') else kind}"
    if kind == "npy":
        return kept(path, VOLUME)
    if kind == "zarr":
        return zarr_array(path, VOLUME, chunks=[1, 8, 8], names=list("zyx"))
    if kind == "ome.zarr":
        return ome_zarr(path, [VOLUME, VOLUME[:, ::2, ::2]], "zyx")
    sizes = OME if kind == "ome.tif" else {}
    options: dict[str, Any] = {"ome": kind == "ome.tif", "imagej": kind == "imagej", "resolution": (300, 300)}
    unit = {"unit": "nm", "spacing": 700.0} if kind == "imagej" else {}
    tifffile.imwrite(path, VOLUME, **options, metadata={"axes": "ZYX", **sizes, **unit}, resolutionunit="inch")
    return path


@pytest.mark.parametrize("target", ["b.ome.zarr", "b.ome.tif", "b.tif"])
@pytest.mark.parametrize("kind", ["npy", "zarr", "ome.zarr", "ome.tif", "imagej", "inch"])
def test_the_result_has_the_spacing_that_is_given(tmp_path: Path, kind: str, target: str) -> None:
    axes = {"axes": "ZYX"} if kind == "npy" else {}
    source = made(tmp_path, kind)
    for options, wanted in (({"spacing": GIVEN}, (2.5, 0.5, 0.25)), (PART, WANTED)):
        outcome = LargeFilter(source, tmp_path / target, recipe("box:3", **axes, **options))()
        assert "spacing" not in outcome.lost
        assert open_windows(tmp_path / target).layout.spacing == pytest.approx(wanted)
        if target == "b.ome.zarr":
            multiscale = checked(tmp_path / target)
            assert [axis["unit"] for axis in multiscale["axes"]] == ["micrometer"] * 3
            assert scales(multiscale)[0] == pytest.approx(wanted)
            _, *moved = multiscale["datasets"][0]["coordinateTransformations"]
            begin = [one["translation"] for one in moved] or [[0, 0, 0]]
            first = [7 * gap / old for gap, old in zip(GIVEN.values(), (2, 0.5, 0.5), strict=True)]  # as in ome_zarr
            first = first if kind == "ome.zarr" else [0, 0, 0]
            rows = 3 * GIVEN["Y"] if "stride" in options else 0  # of the region
            assert begin == [pytest.approx([first[0], first[1] + rows, first[2]])]
            continue
        with tifffile.TiffFile(tmp_path / target) as file:
            first = file.pages[0].aspage()
            (pixels, samples), per = first.tags["XResolution"].value, int(first.tags["ResolutionUnit"].value)
            assert {1: 1.0, 3: 1e4}[per] * samples / pixels == pytest.approx(wanted[2])
            if file.is_ome:
                pixel = tifffile.xml2dict(file.ome_metadata or "")["OME"]["Image"]["Pixels"]
                assert [pixel[f"PhysicalSize{letter}"] for letter in "ZYX"] == pytest.approx(wanted)


def test_an_axis_that_is_not_named_keeps_the_spacing_of_the_file(tmp_path: Path) -> None:
    for kind, target in (("imagej", "b.tif"), ("ome.tif", "b.ome.tif"), ("ome.zarr", "b.ome.zarr")):
        source = made(tmp_path, kind)
        before = open_windows(source).layout.spacing[1:]
        LargeFilter(source, tmp_path / target, recipe("box:3", spacing={"Z": 3.0}))()
        assert open_windows(tmp_path / target).layout.spacing == pytest.approx((3.0, *before))
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert "\nunit=micron\nspacing=3.0\n" in file.pages[0].aspage().description


@pytest.mark.parametrize("version", ["0.3", "0.4", "0.5"])
def test_levels_and_positions_of_ome_zarr_follow_the_spacing(tmp_path: Path, version: str) -> None:
    """The scale of all levels is 2 along X, which is taken into the scale of each; nanometres stay nanometres."""
    whole = [{"type": "scale", "scale": [1, 1, 2]}, {"type": "translation", "translation": [0, 0, 100]}]
    source = ome_zarr(
        tmp_path / "a.zarr", [VOLUME, VOLUME[:, ::2, ::2]], "zyx", version=version,
        multiscale={"coordinateTransformations": whole} if version >= "0.4" else {},
    )  # fmt: skip
    file = source / ("zarr.json" if version == "0.5" else ".zattrs")
    text = file.read_text()
    at = text.index("micrometer", text.index('"y"')) if version >= "0.4" else 0
    file.write_text(text[:at] + text[at:].replace("micrometer", "nanometer", 1))
    run = LargeFilter(source, tmp_path / "b.zarr", recipe("identity", spacing={"Y": 0.25, "X": 0.25}))
    run()
    assert open_windows(tmp_path / "b.zarr").layout.spacing == (
        (2.0, 0.25, 0.25) if version >= "0.4" else (None, 0.25, 0.25)
    )
    multiscale = checked(tmp_path / "b.zarr")
    if version == "0.3":  # it has no spacing
        assert scales(multiscale) == [[1, 0.25, 0.25], [1, 0.5, 0.5]]
        return
    assert scales(multiscale) == [[2, 250, 0.25], [2, 500, 0.5]]
    shifts = [level["coordinateTransformations"][1]["translation"] for level in multiscale["datasets"]]
    # Sample 14 of 0.5 units, and a quarter of a sample of level 0 more in level 1, as before.
    assert np.allclose(shifts, [[7, 14 * 250, 14 * 0.25], [7, 14.5 * 250, 14.5 * 0.25]])
    assert [entry[entry["type"]] for entry in multiscale["coordinateTransformations"]] == [[1, 1, 1], [0, 0, 25]]


@pytest.mark.parametrize("target", ["b.npy", "b.zarr"])
def test_what_a_format_cannot_hold_is_named(tmp_path: Path, target: str) -> None:
    outcome = LargeFilter(made(tmp_path, "zarr"), tmp_path / target, recipe("box:3", spacing=GIVEN))()
    assert outcome.lost == ("spacing",)


def test_a_spacing_of_an_axis_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = kept(tmp_path / "a.npy", VOLUME[0])
    run = LargeFilter(source, tmp_path / "b.ome.zarr", recipe("box:3", spacing=GIVEN))
    assert run.notes == (f"The spacing along Z is not used: the axes of {source} are YX.",)


def test_a_run_with_another_spacing_is_not_resumed(tmp_path: Path) -> None:
    def watch(done: int, total: int, label: str) -> None:
        if done:
            raise KeyboardInterrupt

    source = made(tmp_path, "npy")
    for spacing, error in ((GIVEN, KeyboardInterrupt), ({**GIVEN, "Z": 1.0}, ValueError)):
        steps = recipe("box:3", axes="ZYX", spacing=spacing)
        with pytest.raises(error, match="--spacing" if error is ValueError else None):
            LargeFilter(source, tmp_path / "b.ome.zarr", steps, memory=60_000, workers=1)(watch)


def test_an_image_in_memory_gets_a_resolution() -> None:
    note = "ImageJ=1.54f\nimages=2\nunit=nm\nspacing=700\nloop=false"
    metadata = Metadata((1, 1), "none", note)
    done = spaced(Image(VOLUME[:2], pages=True, metadata=metadata), GIVEN).metadata
    assert (done.resolution, done.unit) == ((40000, 20000), "centimeter")
    assert done.description == "ImageJ=1.54f\nimages=2\nloop=false"
    assert done.left == ("spacing along Z",)
    assert spaced(Image(VOLUME[0]), {"Z": 2.0}).metadata == Metadata()


def test_a_file_has_one_spacing_however_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    (tmp_path / "slices").mkdir()
    for at in (path, tmp_path / "slices" / "0.tif", tmp_path / "slices" / "1.tif"):
        tifffile.imwrite(
            at, VOLUME[0], resolution=(1e4 / 0.32512345, 1e4 / 0.25), resolutionunit="centimeter", metadata=None
        )
    wanted = {"X": 0.325123, "Y": 0.25}  # in six digits
    assert spacing_by(read_image(path).metadata) == wanted
    for at in (path, tmp_path / "slices"):
        found = open_windows(at).layout.spacing_by_letter
        assert {letter: found[letter] for letter in "XY"} == wanted


def test_filter_large_takes_the_spacing_with_any_kernel(tmp_path: Path) -> None:
    convforge.filter_large(
        made(tmp_path, "ome.tif"), tmp_path / "b.ome.tif", np.ones((3, 3)), spacing={"X": np.float32(0.25), "Y": 1}
    )
    assert open_windows(tmp_path / "b.ome.tif").layout.spacing == (9.0, 1.0, 0.25)


SLICES = {".tif": "ZYX", ".png": "YX", ".jpg": "YX", ".npy": ""}


@pytest.mark.parametrize("suffix", SLICES)
def test_slices_keep_the_spacing_that_their_format_holds(tmp_path: Path, suffix: str) -> None:
    source, target = made(tmp_path, "zarr"), SliceFolder.of(tmp_path / "out", suffix)
    for options, values in (({"spacing": GIVEN}, tuple(GIVEN.values())), (PART, WANTED)):
        outcome = LargeFilter(source, target, recipe("identity", **options, out_dtype=np.dtype(np.uint8)))()
        assert outcome.lost == {".tif": (), ".npy": ("spacing",)}.get(suffix, ("spacing along Z",))
        found = open_windows(tmp_path / "out").layout
        wanted = {letter: value for letter, value in zip("ZYX", values, strict=True) if letter in SLICES[suffix]}
        assert found.spacing_by_letter == pytest.approx(wanted, rel=1e-4)  # JPEG has whole pixels by the centimetre


def test_slices_of_tiff_are_understood_as_those_of_imagej(tmp_path: Path) -> None:
    convforge.filter_large(made(tmp_path, "zarr"), tmp_path / "out", "identity", spacing=GIVEN, slices=".tif")
    with tifffile.TiffFile(tmp_path / "out" / "0005.tif") as file:
        assert file.imagej_metadata == {"ImageJ": "1.11a", "unit": "micron", "spacing": 2.5}
        tags = file.pages[0].aspage().tags
        assert [tags[name].value for name in ("XResolution", "YResolution")] == [(4, 1), (2, 1)]
        assert tags["ResolutionUnit"].value == 1  # the unit of the description
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out" / "0005.tif"), VOLUME[5])
    convforge.filter_large(tmp_path / "out", tmp_path / "b.ome.zarr", "identity")
    assert open_windows(tmp_path / "b.ome.zarr").layout.spacing == (2.5, 0.5, 0.25)


def test_slices_of_other_programs_tell_their_spacing(tmp_path: Path) -> None:
    """Those of ImageJ, those of OME-TIFF, each with the metadata of the whole stack, and damaged OME-XML."""
    tifffile.imwrite(tmp_path / "whole.ome.tif", VOLUME, metadata={"axes": "ZYX", **OME})
    with tifffile.TiffFile(tmp_path / "whole.ome.tif") as file:
        xml = file.ome_metadata or ""
    by_cm = {"resolution": (1e4, 2e4), "resolutionunit": 3}
    described: dict[str, tuple[dict[str, Any], Any]] = {
        "imagej": (
            {"imagej": True, "metadata": {"unit": "nm", "spacing": 700.0}, "resolution": (0.01, 0.02)},
            (0.7, 0.05, 0.1),
        ),
        "ome": ({"description": xml, "metadata": None, **by_cm}, (9.0, 9.0, 9.0)),
        "damaged": ({"description": xml[:-20], "metadata": None, **by_cm}, (None, 0.5, 1.0)),
        "silent": ({}, ()),
    }
    for name, (options, wanted) in described.items():
        (tmp_path / name).mkdir()
        for at, plane in enumerate(VOLUME):
            tifffile.imwrite(tmp_path / name / f"{at}.tif", plane, **options)
        assert open_windows(tmp_path / name).layout.spacing == pytest.approx(wanted), name


def test_pixels_of_one_micrometre_are_those_of_imagej(tmp_path: Path) -> None:
    """ImageJ writes no resolution then, or that of one pixel."""
    given = {"Z": 2.0, "Y": 1.0, "X": 1.0}
    convforge.filter_large(made(tmp_path, "zarr"), tmp_path / "out", "identity", spacing=given, slices=".tif")
    assert open_windows(tmp_path / "out").layout.spacing == (2.0, 1.0, 1.0)


def test_samples_too_near_for_a_format_are_told(tmp_path: Path) -> None:
    """JPEG counts at most 65535 pixels by the centimetre, PNG 2^31 by the metre."""
    source = made(tmp_path, "zarr")
    for suffix, gap, lost in ((".jpg", 0.15, "spacing"), (".png", 0.15, "spacing along Z"), (".png", 4e-4, "spacing")):
        steps = recipe("box:3", spacing={"Z": 1.0, "Y": gap, "X": gap}, out_dtype=np.dtype(np.uint8))
        assert LargeFilter(source, SliceFolder.of(tmp_path / "out", suffix), steps)().lost == (lost,)
    image = Image(VOLUME[0].astype(np.uint8), metadata=Metadata((66667, 66667), "centimeter"))
    assert not_kept("b.jpg", image) == ("resolution, beyond what a JPEG holds",)
    write_image(tmp_path / "b.jpg", image)
    assert read_image(tmp_path / "b.jpg").metadata == Metadata()


def test_a_photograph_gets_the_spacing(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", Image(VOLUME[0]))
    for suffix in (".png", ".tif"):
        target = tmp_path / f"b{suffix}"
        steps = recipe("box:3", spacing=GIVEN, stride=(2, 2))
        write_image(target, steps(steps.read(tmp_path / "a.png"), Clock())[0])
        assert read_image(target).metadata.resolution == pytest.approx((20000, 10000))
