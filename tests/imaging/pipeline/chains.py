"""Random files of all formats of windows, random commands, and their results by the image in memory."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.imaging.pipeline.large import kept, recipe, zarr_array
from tests.imaging.windowed.ome import ome_zarr
from tests.imaging.windowed.windows import whole

from convforge.imaging.axes import Axes, image_of
from convforge.imaging.pipeline.lanes import Clock
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.selection import Selection
from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.tiff import TiffReader
from convforge.imaging.windowed.zarr import ZarrReader

SIZES = {"T": 2, "C": 3, "Z": 4, "S": 3, "I": 5}
TARGETS = (".npy", ".zarr", ".ome.zarr", ".tif", ".ome.tif", ".btf")
TYPES_OF_OME_TIFF = {"uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64"}


class Made(NamedTuple):
    path: Path
    array: Any
    letters: str
    alpha: bool = False


def noise(chance: random.Random, shape: Sequence[int], dtype: str) -> Any:
    random_ = np.random.default_rng(chance.randrange(2**31))
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return random_.normal(0, 40, shape).astype(kind)
    bounds = np.iinfo(kind)
    return random_.integers(max(bounds.min, -(2**52)), min(bounds.max, 2**52), shape, kind, endpoint=True)


def make(folder: Path, chance: random.Random, dtype: str) -> Made:
    """Write a random file."""
    height, width = chance.randrange(20, 90), chance.randrange(20, 90)
    kind = chance.choice(("npy", "zarr", "ome.zarr", "tif", "tif", "ome.tif", "imagej"))
    letters = {
        "npy": ("YX", "YXC", "ZYX", "TCYX"), "zarr": ("YX", "YXC", "ZYX", "CYX", "TZYX"),
        "ome.zarr": ("YX", "ZYX", "CYX", "TCZYX", "CZYX"), "tif": ("YX", "YXS", "SYX", "YXA", "ZYX", "TZYX", "ZYXS"),
        "ome.tif": ("YX", "ZYX", "TCYX", "YXS"), "imagej": ("ZYX", "TZYX", "CYX", "YXS"),
    }[kind]  # fmt: skip
    axes, alpha = chance.choice(letters), False
    sizes: dict[str, int] = {**SIZES, "Y": height, "X": width}
    if axes == "YXA":
        axes, alpha, sizes["S"] = "YXS", True, 4
    if kind == "imagej":
        dtype = chance.choice(("uint8", "uint16", "float32")) if "S" not in axes else "uint8"
    if kind == "ome.tif" and dtype not in TYPES_OF_OME_TIFF:
        dtype = "uint16"
    array = noise(chance, [sizes[letter] for letter in axes], dtype)
    place = folder / f"source.{'tif' if kind == 'imagej' else kind}"
    if kind == "npy":
        return Made(kept(place, array), array, axes)
    if kind == "zarr":
        grid = [chance.choice((8, 16, 20)) if letter in "YX" else chance.choice((1, 2)) for letter in axes]
        shards = [side * chance.choice((1, 2, 3)) for side in grid] if chance.random() < 0.5 else None
        return Made(zarr_array(place, array, chunks=grid, shards=shards, names=[*axes.lower()]), array, axes)
    if kind == "ome.zarr":
        version = chance.choice(("0.4", "0.5"))
        levels = [array[..., :: 2**level, :: 2**level] for level in range(chance.choice((1, 2, 3)))]
        return Made(ome_zarr(place, levels, axes.lower(), version=version), array, axes)
    _write_tiff(place, chance, array, axes, kind=kind, alpha=alpha)
    return Made(place, array, axes, alpha)


def _write_tiff(place: Path, chance: random.Random, array: Any, axes: str, *, kind: str, alpha: bool) -> None:
    from tifffile import TiffWriter

    options: dict[str, Any] = {"photometric": "rgb" if "S" in axes else "minisblack"}
    if "S" in axes and kind != "imagej":
        options["planarconfig"] = "separate" if axes == "SYX" else "contig"
    options |= {"extrasamples": ["unassalpha"]} if alpha else {}
    if kind == "imagej":
        with TiffWriter(place, imagej=True) as writer:
            writer.write(array, **options, metadata={"axes": axes, "spacing": 2.0, "unit": "um"}, resolution=(2, 2))
        return
    grids: tuple[dict[str, Any], ...] = ({"tile": (16, 32)}, {"rowsperstrip": 7}, {"rowsperstrip": 1000})
    options |= chance.choice(grids)
    options |= chance.choice(({}, {"compression": "zlib"}, {"compression": "zlib", "predictor": array.itemsize < 8}))
    options.update({"predictor": None} if array.dtype == np.float16 else {})
    levels = chance.choice((0, 0, 1, 2))
    order = chance.choice("<>")
    with TiffWriter(place, bigtiff=chance.random() < 0.5, byteorder=order, ome=kind == "ome.tif") as writer:
        subifds = chance.random() < 0.5 or kind == "ome.tif" or axes[0] in "TZ"
        metadata = {"axes": axes} if subifds else None  # tifffile's own note allows no pages of another size
        writer.write(array, **options, subifds=levels if subifds and levels else None, metadata=metadata)
        for level in range(1, levels + 1):
            y = axes.index("Y")
            small = array[(*[slice(None)] * y, slice(None, None, 2**level), slice(None, None, 2**level))]
            writer.write(np.ascontiguousarray(small), **options, subfiletype=1, metadata=metadata)


def order(chance: random.Random, made: Made) -> dict[str, Any]:
    """Return random options of the recipe."""
    options: dict[str, Any] = {
        "stride": chance.choice(((1, 1), (1, 1), (2, 2), (1, 3))),
        "border": chance.choice(("reflect", "replicate", "zeros", "circular")),
        "axes": made.letters,
    }
    if "C" in made.letters or ("S" in made.letters and not made.alpha):
        options["channels"] = chance.choice(("each", "each", "sum"))
    words: dict[str, Any] = {}
    if chance.random() < 0.4:
        words["region"] = chance.choice(("3:17,2:19", "5:,:-4", "-12:-3,:"))
    for letter, name in (("Z", "z"), ("T", "time"), ("C", "channel")):
        if letter in made.letters and chance.random() < 0.3:
            words[name] = chance.choice(("1", "1:2", "::2"))
    options["selection"] = Selection.of(**words)
    return options


def wanted(made: Made, kernel: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the result by the image in memory, and its axes."""
    array, letters, selection = made.array, made.letters, options["selection"]
    region: Any = None
    if selection is not None:
        picks = selection.picks(dict(zip(letters, array.shape, strict=True)))
        for letter, pick in picks.items():
            array = array.take([pick] if isinstance(pick, int) else pick, axis=letters.index(letter))
        array = array[tuple(0 if isinstance(picks.get(letter), int) else slice(None) for letter in letters)]
        letters = "".join(letter for letter in letters if not isinstance(picks.get(letter), int))
        sizes = dict(zip(letters, array.shape, strict=True))
        region = selection.in_result(sizes["Y"], sizes["X"], options["stride"]) if selection.region else None
    steps = recipe(kernel, **{**options, "selection": None, "axes": None})
    axes = Axes(letters)
    colours = array[..., :-1] if made.alpha else array
    found = steps(image_of(np.ascontiguousarray(colours), axes), Clock())[0]
    pixels = found.pixels if found.pages else found.pixels[np.newaxis]
    pixels = pixels if pixels.ndim == 4 else pixels[..., np.newaxis]
    before = axes.sizes(array.shape)
    pages = tuple(before[letter] for letter in axes.pages)
    if made.alpha:
        down, across = options["stride"]
        pixels = np.concatenate([pixels, array[np.newaxis, ::down, ::across, 3:]], axis=-1)
    elif axes.bands and pixels.shape[-1] != before[axes.bands]:
        letters = letters.replace(axes.bands, "")
    result = Axes(letters).unstack(np.ascontiguousarray(pixels), pages)
    if region is not None:
        result = result[tuple({"Y": region[0], "X": region[1]}.get(letter, slice(None)) for letter in letters)]
    return result, letters


def levels_of(path: Path) -> list[tuple[Any, str]]:
    """Return the array in a file and its reduced copies, with the letters of their axes."""
    reader = open_windows(path)
    letters = reader.layout.axes
    if isinstance(reader, ZarrReader):
        return [(whole(level), letters) for level in reader.levels]
    found = [(whole(reader), letters)]
    if isinstance(reader, TiffReader):
        from tifffile import TiffFile

        with TiffFile(path) as file:
            levels = file.series[0].levels  # tifffile takes copies with all planes of Z for images of their own
            arrays = [level.asarray() for level in (levels if len(levels) > 1 else file.series)]
        assert np.array_equal(arrays[0].reshape(found[0][0].shape), found[0][0])
        shapes = [array.shape for array, _ in found] + [*reader.layout.levels]
        found = [(array.reshape(shape), letters) for array, shape in zip(arrays, shapes, strict=True)]
    return found


def check_levels(levels: list[tuple[Any, str]]) -> None:
    """Every copy holds the means of blocks of the copy before, rounded."""
    for (larger, letters), (smaller, _) in pairwise(levels):
        mean = larger.astype(np.float64)
        for axis, letter in enumerate(letters):
            if letter not in "YX" or larger.shape[axis] == smaller.shape[axis]:
                continue
            by = round(larger.shape[axis] / smaller.shape[axis])
            length = smaller.shape[axis] * by
            at = np.minimum(np.arange(length), larger.shape[axis] - 1)
            mean = np.take(mean, at, axis=axis)
            mean = mean.reshape(*mean.shape[:axis], -1, by, *mean.shape[axis + 1 :]).mean(axis=axis + 1)
        room = 0.5 + 1e-9 * np.abs(mean) if smaller.dtype.kind in "iu" else 1e-3 * (1 + np.abs(mean))
        assert (np.abs(smaller.astype(np.float64) - mean) <= room).all()


def same(found: Any, letters: str, expected: Any, wanted_letters: str) -> None:
    """Compare arrays whose axes may be in another order, with names of a format, or of one sample."""
    if letters and sorted(letters.replace("S", "C")) == sorted(wanted_letters.replace("S", "C")):
        names = letters.replace("S", "C")
        expected = expected.transpose([wanted_letters.replace("S", "C").index(letter) for letter in names])
    np.testing.assert_array_equal(found.squeeze(), expected.squeeze())
    assert found.dtype == expected.dtype


def try_one(folder: Path, seed: int, dtype: str, *, kernel: str = "gaussian:5:1", device: str = "cpu") -> str:
    """Filter a random file and check the result; return what was done."""
    chance = random.Random(f"{dtype} {seed}")
    made = make(folder, chance, dtype)
    suffix = chance.choice(TARGETS)
    if made.array.dtype.name not in TYPES_OF_OME_TIFF and suffix == ".ome.tif":
        suffix = ".tif"
    options = order(chance, made)
    expected, letters = wanted(made, kernel, {**options, "device": device.split(",")[0]})
    target = folder / f"result{suffix}"
    run = LargeFilter(
        made.path, target, recipe(kernel, device=device, **options), memory=chance.choice((2**24, 2**25)), workers=2
    )
    run()
    said = f"{made.path.name} {made.letters} {made.array.shape} {made.array.dtype} -> {suffix} {options}"
    found = [(np.load(target), "")] if suffix == ".npy" else levels_of(target)
    same(*found[0], expected, letters)
    check_levels([(array, axes or letters) for array, axes in found])
    assert len(found) == 1 + len(run.result.levels), said
    assert {path.name for path in folder.iterdir()} == {made.path.name, target.name}
    for path in (made.path, target):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return said
