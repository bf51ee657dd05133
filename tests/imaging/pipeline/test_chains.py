"""Files of all formats of windows through the filter: the bits of the image in memory, and copies that are means."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.chains import check_levels, levels_of, try_one
from tests.imaging.pipeline.large import kept, names, opened, recipe
from tests.imaging.windowed.ome import ome_zarr, zarr_level
from tests.imaging.windowed.windows import noise, whole

import convforge
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.windowed import WindowWriter, open_windows

pytest.importorskip("tensorstore")
tifffile = pytest.importorskip("tifffile")

TYPES = ("uint8", "uint16", "int16", "float32", "float64", "int64", "uint64", "float16")


@pytest.mark.parametrize(
    ("dtype", "seeds"),
    [("uint8", range(25)), *(pytest.param(name, range(60), marks=pytest.mark.thorough) for name in TYPES)],
)
def test_random_commands_give_the_bits_of_the_image_in_memory(tmp_path: Path, dtype: str, seeds: range) -> None:
    done = [try_one(tmp_path, seed, dtype) for seed in seeds]
    assert len(set(done)) > len(seeds) // 2


def test_a_chain_through_all_formats(tmp_path: Path) -> None:
    array = noise(3, 70, 90, dtype=np.uint16)
    chain = ["a.npy", "b.tif", "c.zarr", "d.ome.tif", "e.ome.zarr", "f.btf", "g.npy"]
    kept(tmp_path / "a.npy", array)
    for source, target in pairwise(chain):
        axes = "ZYX" if source == "a.npy" else None
        convforge.filter_large(tmp_path / source, tmp_path / target, "box:3", memory=4 * 10**6, axes=axes)
        array = convforge.filter(array, "box:3", axes="ZYX")
        reader = open_windows(tmp_path / target)
        assert reader.layout.axes in ("ZYX", "")
        np.testing.assert_array_equal(whole(reader), array)
    assert names(tmp_path) == sorted(chain)


@pytest.mark.parametrize("kind", ["ome.zarr", "ome.tif", "imagej.tif"])
def test_volumes_read_their_spacing(tmp_path: Path, kind: str) -> None:
    array = noise(9, 40, 50)
    source = tmp_path / f"a.{kind}"
    options: dict[str, Any] = {"photometric": "minisblack"}
    if kind == "ome.zarr":  # 2 micrometres along Z, 0.5 along Y and X
        ome_zarr(source, [array, array[:, ::2, ::2]], "zyx")
    elif kind == "ome.tif":
        sizes = {f"PhysicalSize{letter}": size for letter, size in zip("ZYX", (2.0, 0.5, 0.5), strict=True)}
        tifffile.imwrite(source, array, metadata={"axes": "ZYX", **sizes}, **options)
    else:
        metadata = {"axes": "ZYX", "spacing": 2.0, "unit": "um"}
        tifffile.imwrite(source, array, imagej=True, resolution=(2, 2), metadata=metadata)
    target = tmp_path / f"b.{kind}"
    convforge.filter_large(source, target, "gaussian:2,1,0.5um", memory=2 * 10**6)
    spacing = {"Z": 2.0, "Y": 0.5, "X": 0.5}
    convforge.filter_large(
        kept(tmp_path / "a.npy", array), tmp_path / "b.npy", "gaussian:2,1,0.5um", axes="ZYX", spacing=spacing
    )
    np.testing.assert_array_equal(whole(open_windows(target)), np.load(tmp_path / "b.npy"))
    assert open_windows(target).layout.spacing == (2.0, 0.5, 0.5)


def _pyramid(path: Path, array: Any) -> Path:
    if path.suffix == ".zarr":
        return ome_zarr(path, [array, array[::2, ::2]], "yx")
    with tifffile.TiffWriter(path) as writer:
        writer.write(array, subifds=1, tile=(16, 16), compression="zlib")
        writer.write(array[::2, ::2].copy(), subfiletype=1, tile=(16, 16), compression="zlib")
    return path


@pytest.mark.parametrize("suffix", [".ome.zarr", ".tif"])
def test_a_pyramid_is_resumed_from_any_unit(tmp_path: Path, suffix: str) -> None:
    """Also between the image and its copy, which is made of what an earlier run has written."""
    array = noise(100, 90)
    source, target = _pyramid(tmp_path / f"a{suffix}", array), tmp_path / f"b{suffix}"

    def run() -> LargeFilter:
        return LargeFilter(source, target, recipe("box:3"), memory=20_000, workers=1)

    whole_image, *_ = (len(step.division) for step in run().passes)
    for last in (1, whole_image - 1, whole_image, whole_image + 1, run().units):

        def watch(done: int, total: int, label: str, last: int = last) -> None:
            if done >= last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run()(watch)
        assert not target.exists()
        outcome = run()()
        assert outcome.resumed >= last
        levels = levels_of(target)
        np.testing.assert_array_equal(levels[0][0], convforge.filter(array, "box:3"))
        check_levels(levels)
        assert names(tmp_path) == [source.name, target.name]
        shutil.rmtree(target) if target.is_dir() else target.unlink()


@pytest.mark.parametrize("suffix", [".ome.zarr", ".tif"])
def test_a_pyramid_may_replace_its_source(tmp_path: Path, suffix: str) -> None:
    array = noise(100, 90)
    path = _pyramid(tmp_path / f"a{suffix}", array)
    for _ in range(2):
        convforge.filter_large(path, path, "box:3", memory=10**6)
        array = convforge.filter(array, "box:3")
        levels = levels_of(path)
        assert len(levels) == 2
        np.testing.assert_array_equal(levels[0][0], array)
        check_levels(levels)
        assert names(tmp_path) == [path.name]


class _NoSharing:
    """Notes the shards that each window writes: none may be written twice."""

    def __init__(self, writer: WindowWriter, shards: Any) -> None:
        self._writer, self._shards, self.layout, self.levels = writer, shards, writer.layout, ()
        self.seen = set[tuple[int, ...]]()

    def read(self, region: Any) -> Any:
        return self._writer.read(region)

    def write(self, region: Any, array: Any) -> None:
        parts = zip(region, self._shards, strict=True)
        touched = [range(part.start // side, (part.stop - 1) // side + 1) for part, side in parts]
        cells = {(y, x) for y in touched[0] for x in touched[1]}
        assert not cells & self.seen
        self.seen |= cells
        self._writer.write(region, array)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("chunk", [8, 16, 24, 48, 512])
def test_levels_have_shards_that_units_hold_whole(tmp_path: Path, version: str, chunk: int) -> None:
    array = noise(200, 180, dtype=np.uint16)
    source, target = tmp_path / "a.ome.zarr", tmp_path / "b.ome.zarr"
    ome_zarr(source, [array, array[::2, ::2], array[::4, ::4]], "yx", version=version)
    shutil.rmtree(source / "1")
    zarr_level(source / "1", array[::2, ::2], "yx", version, chunk=chunk)
    run = LargeFilter(source, target, recipe("box:3"), memory=60_000)
    writer = run.format.create(target, run.result, run.file)
    for step, level in zip(run.passes[1:], writer.levels, strict=True):
        seen = _NoSharing(level, level.layout.shards)
        for number in range(len(step.division)):
            region = step.division.region(number)
            seen.write(region, np.zeros([part.stop - part.start for part in region], np.uint16))
    shutil.rmtree(target)
    run()
    stored = opened(target / "1", version=3 if version == "0.5" else 2)
    assert stored.chunk_layout.write_chunk.shape == (chunk if chunk in (8, 16) else 16,) * 2
    levels = levels_of(target)
    np.testing.assert_array_equal(levels[0][0], convforge.filter(array, "box:3"))
    check_levels(levels)


def test_ome_tiff_has_its_copies_in_subifds(tmp_path: Path) -> None:
    """Of pages of reduced size, readers of OME-XML know nothing."""
    array = noise(100, 90)
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(array, tile=(16, 16))
        writer.write(array[::2, ::2].copy(), subfiletype=1, tile=(16, 16))
    convforge.filter_large(tmp_path / "a.tif", tmp_path / "b.ome.tif", "box:3")
    with tifffile.TiffFile(tmp_path / "b.ome.tif") as file:
        assert [level.shape for level in file.series[0].levels] == [(100, 90), (50, 45)]


def test_tifffile_reads_the_axes_of_a_pyramid_of_pages(tmp_path: Path) -> None:
    array = noise(3, 100, 90)
    ome_zarr(tmp_path / "a.ome.zarr", [array, array[:, ::2, ::2]], "tyx")
    convforge.filter_large(tmp_path / "a.ome.zarr", tmp_path / "b.tif", "box:3")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        (series,) = file.series
        assert (series.axes, [level.shape for level in series.levels]) == ("TYX", [(3, 100, 90), (3, 50, 45)])
        assert json.loads(file.pages[0].description)["shape"] == [3, 100, 90]


def test_copies_of_a_low_and_wide_image_are_found(tmp_path: Path) -> None:
    """9 rows become 5 and 3, which is a third by rows and a fourth by columns."""
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(noise(9, 84), subifds=2)
        for shape in ((5, 42), (3, 21)):
            writer.write(noise(*shape), subfiletype=1)
    assert open_windows(tmp_path / "a.tif").layout.levels == ((5, 42), (3, 21))
