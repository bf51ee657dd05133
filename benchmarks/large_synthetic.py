"""A synthetic image of any size without a store: what the pipeline of large images reaches by itself.

The source repeats a random square, so that a window costs one copy. The result is compared with that of the window in
memory, for some units, and dropped.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import convforge
from convforge.imaging.image import Array
from convforge.imaging.pipeline.lanes import Clock
from convforge.imaging.pipeline.large import LargeFilter, Outcome
from convforge.imaging.pipeline.recipe import Recipe
from convforge.imaging.weights import kernel_array
from convforge.imaging.windowed import Layout, Place, Region, Url, WindowFormat, WindowReader

PERIOD, REPEATS = 2048, 6  # pixels; windows of up to (REPEATS - 1) periods are one copy
SHARD = 2048
BORDER = "reflect"


class SyntheticReader:
    """An image of rows and columns that repeats a random square.

    An array that holds a window of the same shape, at the same place of the square, is not filled again: so the copies
    of a store's pixels are not measured, only what comes after them.
    """

    def __init__(self, path: Place, layout: Layout) -> None:
        self._held: dict[int, tuple[int, ...]] = {}
        self.path, self.layout, self.attributes = path, layout, dict[str, Any]()
        random = np.random.default_rng(20)
        if layout.dtype.kind == "f":
            square = random.random((PERIOD, PERIOD)).astype(layout.dtype)
        else:
            square = random.integers(0, np.iinfo(layout.dtype).max, (PERIOD, PERIOD), layout.dtype, endpoint=True)
        self._pattern = np.tile(square, (REPEATS, REPEATS))

    def read(self, region: Region) -> Array:
        if max(part.stop - part.start for part in region) <= (REPEATS - 1) * PERIOD:
            starts = [part.start % PERIOD for part in region]
            window = [slice(at, at + part.stop - part.start) for at, part in zip(starts, region, strict=True)]
            return np.array(self._pattern[tuple(window)])
        return np.asarray(self._pattern[np.ix_(*(np.arange(part.start, part.stop) % PERIOD for part in region))])

    def read_into(self, region: Region, out: Array) -> None:
        window = (*(part.start % PERIOD for part in region), *out.shape)
        place = out.__array_interface__["data"][0]
        if self._held.get(place) != window:
            out[...] = self.read(region)
            self._held[place] = window

    def fingerprint(self) -> str:
        return "synthetic"


@dataclass
class Dropped:
    """A writer that keeps the first windows, for the check, and drops the others."""

    layout: Layout
    keeps: int = 3
    kept: dict[tuple[tuple[int, int], ...], Array] = field(default_factory=dict)
    levels: tuple[Any, ...] = ()
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def write(self, region: Region, array: Array) -> None:
        with self._turn:
            if len(self.kept) < self.keeps:
                self.kept[tuple((part.start, part.stop) for part in region)] = np.array(array)

    def read(self, region: Region) -> Array:
        return self.kept[tuple((part.start, part.stop) for part in region)]

    def finish(self) -> None:
        pass


def stream(
    shape: tuple[int, int], dtype: str, kernel: str | Array, device: str, *, memory: int | None = None,
    workers: int | None = None, clock: Clock | None = None,
) -> Outcome:  # fmt: skip
    """Filter a synthetic image of rows and columns, and check some units of the result.

    Parameters
    ----------
    shape : (int, int)
    dtype, device : str
        "cuda" stands for all GPUs.
    kernel : str or array of shape (R, S)
    memory, workers : int, optional
        As in :func:`convforge.filter_large`.
    clock : Clock, optional
        Gets the busy seconds of each stage.

    Raises
    ------
    RuntimeError
        A unit differs from the result of its window in memory.

    Examples
    --------
    >>> stream((3000, 2500), "uint8", "box:3", "cpu").units
    1
    """
    source, target = Url(f"synthetic://{dtype}/source.synthetic"), Url(f"synthetic://{dtype}/result.synthetic")
    layout = Layout(shape, np.dtype(dtype), "YX", shards=(SHARD, SHARD))
    reader, writers = SyntheticReader(source, layout), list[Dropped]()

    def create(place: Place, wanted: Layout, known: WindowReader) -> Dropped:
        writers.append(Dropped(wanted))
        return writers[-1]

    def arranged(one: Layout, place: Place, known: WindowReader) -> Layout:
        return replace(one, shards=(SHARD, SHARD))

    made = WindowFormat(
        "synthetic", (".synthetic",), Path.is_file, lambda place: reader, arranged, create, create,
        schemes=frozenset({"synthetic"}), written_schemes=frozenset({"synthetic"}),
    )  # fmt: skip
    recipe = Recipe(
        taps=kernel_array(kernel), channels="each", border=BORDER, cval=0.0, stride=(1, 1), device=device,
        algorithm="auto", out_dtype=None, magnitude=False, scale=1.0, gray=False,
    )  # fmt: skip
    run = LargeFilter(source, target, recipe, memory=memory, workers=workers, formats=(made,))
    outcome = run(clock=clock)
    _check(reader, writers[0], recipe, run.devices[0])
    return outcome


def _check(reader: SyntheticReader, written: Dropped, recipe: Recipe, device: str) -> None:
    halo = max(recipe.taps.shape)
    for (rows, columns), found in written.kept.items():
        parts = [slice(max(start - halo, 0), min(stop + halo, size))
                 for (start, stop), size in zip((rows, columns), reader.layout.shape, strict=True)]  # fmt: skip
        wanted = convforge.filter(reader.read(tuple(parts)), recipe.taps, border=BORDER, device=device)
        top, left = rows[0] - parts[0].start, columns[0] - parts[1].start
        inside = np.asarray(wanted)[top : top + found.shape[0], left : left + found.shape[1]]
        away = float(np.abs(found.astype(np.float64) - inside).max())
        if away > (1e-4 if found.dtype.kind == "f" else 1):
            raise RuntimeError(f"rows {rows} and columns {columns} differ from the filter of their window by {away}")
