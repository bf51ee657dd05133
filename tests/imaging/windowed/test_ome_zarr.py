"""OME-Zarr images: what is read of them, and results whose metadata are true again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import RANDOM, content, kept, recipe, zarr_array
from tests.imaging.windowed.ome import attributes, checked, filled, group, layout_of, ome_zarr, scales

import convforge
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.windowed import Layout, format_of, open_windows
from convforge.imaging.windowed.npy import NpyReader
from convforge.imaging.windowed.zarr import FORMAT

PLANES = RANDOM.integers(0, 65536, (2, 61, 53), dtype=np.uint16)
LEVELS = [PLANES, PLANES[:, ::2, ::2], PLANES[:, ::4, ::4]]
SHAPES = ((2, 31, 27), (2, 16, 14))
OMERO = {
    "channels": [
        {"label": label, "color": "00FF00", "window": {"min": 0, "max": 9, "start": 0, "end": 9}}
        for label in ("a", "b")
    ]
}


def result_of(source: Path, target: Path, layout: Layout | None = None) -> Path:
    """Write a result of this layout, by default of the source's."""
    reader = open_windows(source)
    arranged = FORMAT.arranged(layout or reader.layout, target, reader)
    writer = FORMAT.create(target, arranged, reader)
    filled(writer)
    writer.finish()
    return target


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_level_0_is_read_with_axes_spacing_and_channels(tmp_path: Path, version: str) -> None:
    source = ome_zarr(tmp_path / "a.ome.zarr", LEVELS, "cyx", version=version, omero=OMERO)
    reader = open_windows(source)
    layout = reader.layout
    assert (layout.shape, layout.axes, layout.levels) == (PLANES.shape, "CYX", SHAPES)
    assert (layout.spacing, layout.channels, layout.chunks) == ((None, 0.5, 0.5), ("a", "b"), (1, 16, 16))
    np.testing.assert_array_equal(reader.read((slice(1, 2), slice(3, 40), slice(0, 53))), PLANES[1:2, 3:40])


@pytest.mark.parametrize(
    ("unit", "distance"), [("nanometer", 5e-4), ("micrometer", 0.5), ("millimeter", 500.0), ("parsec", None), (7, None)]
)
def test_spacing_is_in_micrometres(tmp_path: Path, unit: Any, distance: float | None) -> None:
    axes = [{"name": name, "type": "space", "unit": unit} for name in "yx"]
    whole = [{"type": "scale", "scale": [3, 1.0]}]
    more = {"axes": axes, "coordinateTransformations": whole}
    source = ome_zarr(tmp_path / "a.zarr", [PLANES[0]], "yx", multiscale=more)
    found = open_windows(source).layout.spacing
    assert found == (() if distance is None else pytest.approx((3 * distance, distance)))


@pytest.mark.parametrize("version", ["0.1", "0.2", "0.3"])
def test_older_versions_imply_their_axes(tmp_path: Path, version: str) -> None:
    levels = [level[None, :, None] for level in LEVELS]
    source = ome_zarr(tmp_path / "a.zarr", levels, "tczyx", version=version)
    assert open_windows(source).layout.axes == "TCZYX"
    result = result_of(source, tmp_path / "b.zarr")
    assert checked(result)["version"] == version
    layout = layout_of((1, 1, 61, 53), "TZYX", levels=((1, 1, 31, 27), (1, 1, 16, 14)), chunks=(1, 1, 16, 16))
    reduced = checked(result_of(source, tmp_path / "c.zarr", replace(layout, shards=layout.chunks)))
    assert reduced["version"] == ("0.3" if version == "0.3" else "0.4")  # before 0.3 the five axes are fixed


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_result_has_the_metadata_and_the_grids_of_its_source(tmp_path: Path, version: str) -> None:
    more = {"omero": OMERO, "group": {"by": "me"}}
    source = ome_zarr(tmp_path / "a.ome.zarr", LEVELS, "cyx", version=version, **more)
    for name in ("b.ome.zarr", "c.zarr"):
        result = result_of(source, tmp_path / name)
        before, after = attributes(source), attributes(result)
        multiscale = (before["ome"] if version == "0.5" else before)["multiscales"][0]
        del multiscale["type"]  # the method of the source's levels
        assert before == after
        for level in range(3):
            file = f"{level}/zarr.json" if version == "0.5" else f"{level}/.zarray"
            assert json.loads((source / file).read_text()) == json.loads((result / file).read_text())
            assert (content(result / str(level)) == 1 + level).all()
        checked(result)
        assert FORMAT.lost(open_windows(source), open_windows(result).layout) == ()


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_stride_widens_scales_and_keeps_the_place(tmp_path: Path, version: str) -> None:
    source = ome_zarr(tmp_path / "a.zarr", LEVELS, "cyx", version=version, group={"by": "me"})
    spacing = {True: (None, 1.0, 1.5), False: ()}
    for known in (True, False):
        layout = layout_of(
            (2, 31, 18), "CYX", "float32", levels=((2, 16, 9), (2, 8, 5)), chunks=(1, 16, 16), shards=(1, 16, 16),
            spacing=spacing[known],
        )  # fmt: skip
        result = result_of(source, tmp_path / f"{known}.zarr", layout)
        multiscale = checked(result)
        assert scales(multiscale) == [[1, 1, 1.5], [1, 2, 3], [1, 4, 6]]
        shifts = [level["coordinateTransformations"][1]["translation"] for level in multiscale["datasets"]]
        assert shifts == [[7, 7, 7], [7, 7.5, 7.75], [7, 8.5, 9.25]]  # half a sample, and one and a half, of level 0
        assert "by" not in attributes(result)
        assert FORMAT.lost(open_windows(source), layout) == ("attributes",)


def test_metadata_follow_dropped_axes(tmp_path: Path) -> None:
    source = ome_zarr(tmp_path / "a.zarr", [level[None] for level in LEVELS], "tcyx", omero=OMERO)
    layout = layout_of((1, 61, 53), "TYX", levels=((1, 31, 27), (1, 16, 14)), chunks=(1, 16, 16), shards=(1, 16, 16))
    result = result_of(source, tmp_path / "b.zarr", layout)
    multiscale = checked(result)
    assert [axis["name"] for axis in multiscale["axes"]] == ["t", "y", "x"]
    assert scales(multiscale) == [[3, 0.5, 0.5], [3, 1, 1], [3, 2, 2]]
    assert "omero" not in attributes(result)["ome"]
    assert FORMAT.lost(open_windows(source), layout) == ("settings of the channels (omero)",)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_metadata_follow_a_selection(tmp_path: Path, version: str) -> None:
    """A part of the image, of every second channel, with a stride of 2 along the rows."""
    levels = [level[[0, 1, 0]] for level in LEVELS]
    channels = {"channels": [{**OMERO["channels"][0], "label": name} for name in "abc"], "rdefs": {"model": "color"}}
    source = ome_zarr(tmp_path / "a.zarr", levels, "cyx", version=version, omero=channels)
    layout = layout_of(
        (2, 9, 20), "CYX", levels=((2, 5, 10), (2, 3, 5)), channels=("a", "c"), chunks=(1, 16, 16), shards=(1, 16, 16),
        origin=(0, 4, 10), steps=(2, 2, 1),
    )  # fmt: skip
    multiscale = checked(result_of(source, tmp_path / "b.zarr", layout))
    assert scales(multiscale) == [[2, 1, 0.5], [2, 2, 1], [2, 4, 2]]
    shifts = [level["coordinateTransformations"][1]["translation"] for level in multiscale["datasets"]]
    assert shifts == [[7, 9, 12], [7, 9.5, 12.25], [7, 10.5, 12.75]]
    reader = open_windows(tmp_path / "b.zarr")
    assert reader.layout.channels == ("a", "c")
    assert FORMAT.lost(open_windows(source), layout) == ()
    lost = FORMAT.lost(open_windows(source), replace(layout, channels=()))
    assert lost == ("settings of the channels (omero)",)


def test_labels_and_other_members_are_named_as_lost(tmp_path: Path) -> None:
    source = ome_zarr(tmp_path / "a.zarr", LEVELS, "cyx", group={"image-label": {}})
    group(source / "labels", 3, {"ome": {"labels": ["nuclei"]}})
    (source / "tables").mkdir()
    lost = FORMAT.lost(open_windows(source), open_windows(source).layout)
    assert lost == ("labels", "tables")
    ome_zarr(source / "labels" / "nuclei", LEVELS, "cyx")
    with pytest.raises(ImageError, match=r"labels: is a Zarr group; name an image in it, such as .*/labels/nuclei"):
        open_windows(source / "labels")
    assert not FORMAT.is_own(source)  # a result that replaced it would remove the labels
    assert FORMAT.is_own(source / "labels" / "nuclei")


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"plate": {"wells": [{"path": "B/3"}]}}, "B/3/0"),
        ({"plate": {"wells": [{"path": "../../etc"}]}}, "A/1/0"),
        ({"plate": 5}, "A/1/0"),
        ({"well": {"images": [{"path": "f1"}]}}, "f1"),
        ({"well": {}}, "0"),
        ({"bioformats2raw.layout": 3}, "0"),
        ({"multiscales": [{"datasets": [{"path": "s0"}]}, {}]}, "s0"),
        ({"multiscales": []}, ""),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_a_group_of_several_images_names_one(tmp_path: Path, found: Any, named: str, version: int) -> None:
    path = group(tmp_path / "a.zarr", version, {"ome": found} if version == 3 else found)
    hint = f"an image in it, such as {path}/{named}" if named else "an array in it"
    with pytest.raises(ImageError, match=f"^{path}: is a Zarr group; name {hint}$"):
        open_windows(path)


@dataclass
class Described:
    """A source that knows spacing and channels, as a microscope's TIFF does."""

    array: Any
    letters: str
    spacing: tuple[float | None, ...] = ()
    channels: tuple[str, ...] = ()
    path: Path = Path("a.tif")
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(
            self.array.shape, self.array.dtype, self.letters, levels=((9, 9),), spacing=self.spacing,
            channels=self.channels, chunks=(5,) * self.array.ndim,
        )  # fmt: skip

    def read(self, region: Any) -> Any:
        return self.array[region]

    def fingerprint(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("letters", "shape", "stored"),
    [
        ("YX", (1300, 700), "YX"),
        ("YXS", (600, 520, 3), "SYX"),
        ("ZCYX", (2, 3, 20, 30), "CZYX"),
        ("ZTYX", (2, 3, 9, 8), "TZYX"),
    ],
)
def test_a_new_image_is_of_version_0_5(tmp_path: Path, letters: str, shape: Any, stored: str) -> None:
    image = RANDOM.integers(0, 255, shape, dtype=np.uint8)
    names = ("r", "g", "b") if set(letters) & set("CS") else ()
    spacing = tuple({"Y": 0.25, "X": 0.5}.get(letter) for letter in letters)
    source = Described(image, letters, spacing, names)
    target = tmp_path / "My cells.OME.zarr.incomplete"
    layout = FORMAT.arranged(source.layout, target, source)
    writer = FORMAT.create(target, layout, source)
    everything = tuple(slice(0, size) for size in shape)
    writer.write(everything, image)
    np.testing.assert_array_equal(writer.read(everything), image)
    multiscale = checked(target)
    assert multiscale["name"] == "My cells"
    names_found = [axis["name"] for axis in multiscale["axes"]]
    assert names_found == [{"S": "c"}.get(letter, letter.lower()) for letter in stored]
    order = [letters.index(letter) for letter in stored]
    np.testing.assert_array_equal(content(target / "0"), image.transpose(order))
    for scale, level in zip(scales(multiscale), range(10), strict=False):
        wanted = {"Y": 0.25 * 2**level, "X": 0.5 * 2**level}
        assert scale == [wanted.get(letter, 1) for letter in stored]
    sizes = dict(zip(letters, (layout.levels or [shape])[-1], strict=True))
    assert max(sizes["Y"], sizes["X"]) <= 512
    again = open_windows(target)
    assert again.layout.channels == names
    assert dict(zip(again.layout.axes, again.layout.spacing, strict=True))["Y"] == 0.25
    for level in writer.levels:
        grid = zip(level.layout.shards, level.layout.chunks, strict=True)  # type: ignore[arg-type]
        assert all(shard % chunk == 0 for shard, chunk in grid)


def test_a_plain_target_has_neither_levels_nor_spacing(tmp_path: Path) -> None:
    source = Described(PLANES[0], "YX", (1.0, 1.0), ("gfp",))
    layout = FORMAT.arranged(source.layout, tmp_path / "a.zarr", source)
    assert (layout.levels, layout.spacing, layout.channels) == ((), (), ())
    FORMAT.create(tmp_path / "a.zarr", layout, source)
    assert json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())["node_type"] == "array"
    lost = FORMAT.lost(source, layout)
    assert lost == ("reduced copies (the pyramid)", "spacing", "names of channels")
    assert FORMAT.lost(source, replace(layout, alpha=True))[-2] == "the role of the last band as opacity"


def test_axes_that_ome_zarr_lacks_are_refused(tmp_path: Path) -> None:
    source = Described(PLANES, "IYX")
    with pytest.raises(ImageError, match=r"OME-Zarr has the axes t, c, z, y and x, and the result has IYX"):
        FORMAT.arranged(source.layout, tmp_path / "a.ome.zarr", source)


def test_a_result_is_opened_again(tmp_path: Path) -> None:
    source = open_windows(ome_zarr(tmp_path / "a.zarr", LEVELS, "cyx"))
    target = tmp_path / "b.zarr.incomplete"
    layout = FORMAT.arranged(source.layout, target, source)
    FORMAT.create(target, layout, source)
    before = attributes(target)
    writer = FORMAT.reopen(target, layout, source)
    filled(writer, 3)
    writer.finish()
    assert attributes(target) == before
    assert [int(content(target / str(level)).max()) for level in range(3)] == [3, 4, 5]


# Through the pipeline, bit for bit.


@pytest.mark.parametrize("version", ["0.3", "0.4", "0.5"])
def test_level_0_has_the_bits_of_the_image_in_memory(tmp_path: Path, version: str) -> None:
    source = ome_zarr(tmp_path / "a.zarr", LEVELS, "cyx", version=version, omero=OMERO)
    wanted = convforge.filter(PLANES, "laplacian", axes="CYX")
    run = LargeFilter(source, tmp_path / "b.ome.zarr", recipe("laplacian"), memory=16_000)
    assert len(run.division) > 3
    run()
    np.testing.assert_array_equal(content(run.target / "0"), wanted)
    checked(run.target)
    summed = LargeFilter(source, tmp_path / "c.zarr", recipe("laplacian", channels="sum"), memory=16_000)
    summed()
    wanted = convforge.filter(PLANES, "laplacian", axes="CYX", channels="sum")
    np.testing.assert_array_equal(content(summed.target / "0"), wanted)
    multiscale = checked(summed.target)
    assert len(multiscale["axes"]) == 2
    LargeFilter(source, source, recipe("laplacian"), memory=16_000)()
    np.testing.assert_array_equal(content(source / "0"), convforge.filter(PLANES, "laplacian", axes="CYX"))


@pytest.mark.parametrize(("letters", "shape"), [("YX", (61, 53)), ("YXC", (61, 53, 3)), ("ZTYX", (2, 3, 21, 23))])
def test_npy_and_zarr_become_ome_zarr(tmp_path: Path, letters: str, shape: Any) -> None:
    image = RANDOM.integers(0, 65536, shape, dtype=np.uint16)
    wanted = convforge.filter(image, "laplacian", axes=letters)
    plain = kept(tmp_path / "a.npy", image)
    chunks = [16 if letter in "YX" else 1 for letter in letters]
    array = zarr_array(tmp_path / "a.zarr", image, chunks=chunks, attributes={"by": "me"})
    for source in (plain, array):
        target = tmp_path / f"{source.suffix[1:]}.ome.zarr"
        LargeFilter(source, target, recipe("laplacian", axes=letters), memory=2**20)()
        reader = open_windows(target)
        order = [letters.index(letter) for letter in reader.layout.axes]
        np.testing.assert_array_equal(content(target / "0"), wanted.transpose(order))
        checked(target)
        assert attributes(target).get("by") == (None if source == plain else "me")
    assert NpyReader(plain).attributes == {}
    assert format_of(target / "0") is FORMAT


def test_a_new_image_tells_where_its_samples_lie(tmp_path: Path) -> None:
    """The value of a ramp is the place of a sample, of every level, as zarr-python and the metadata tell it."""
    tifffile = pytest.importorskip("tifffile")
    rows, columns = 0.5 * np.arange(1400), 0.25 * np.arange(1300)
    ramp = np.stack([np.add.outer(rows, 0 * columns), np.add.outer(0 * rows, columns)]).astype(np.float32)
    tifffile.imwrite(
        tmp_path / "a.ome.tif", ramp, photometric="minisblack", tile=(256, 256),
        metadata={"axes": "CYX", "PhysicalSizeY": 0.5, "PhysicalSizeX": 0.25},
    )  # fmt: skip
    for name, options in (("whole", {}), ("part", {"region": "100:,40:1240", "stride": 2}), ("row", {"stride": 3})):
        target = tmp_path / f"{name}.ome.zarr"
        convforge.filter_large(tmp_path / "a.ome.tif", target, np.ones((1, 1)), **options)
        multiscale, group = checked(target), pytest.importorskip("zarr").open_group(target, mode="r")
        for dataset in multiscale["datasets"]:
            scale, *shift = dataset["coordinateTransformations"]
            begin = shift[0]["translation"] if shift else [0.0] * 3
            level = group[dataset["path"]][:]
            for axis in (1, 2):
                line = level[axis - 1, :, 3] if axis == 1 else level[axis - 1, 3]
                places = begin[axis] + scale["scale"][axis] * np.arange(len(line))
                np.testing.assert_allclose(line[:-1], places[:-1], rtol=1e-6)  # the last may repeat a sample
