"""Some channels, depths and times of an array in a file, as an array that is read in windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes
from convforge.imaging.image import Array
from convforge.imaging.selection import Selection, SelectionError
from convforge.imaging.windowed.contract import Layout, Place, Region, WindowReader


class Selected:
    """The planes of an array that a selection picks; its region is not applied.

    Parameters
    ----------
    reader : WindowReader
    selection : Selection
    letters : str
        The letters of all axes of the reader's array, as `windowed.result.letters_of` returns them.

    Attributes
    ----------
    file : WindowReader
        The reader of the whole array.
    layout : Layout
        That of the picked planes; `axes` names them all. Where an index picks one, the axis is left out. Opacity is no
        channel: it stays the last band, so that a single channel with opacity keeps its band axis.

    Raises
    ------
    SelectionError
        The array has no such axis, index or channel, or no pixel of the region.
    """

    def __init__(self, reader: WindowReader, selection: Selection, letters: str) -> None:
        self.file = reader
        whole = reader.layout
        sizes = dict(zip(letters, whole.shape, strict=True))
        bands = Axes(letters).bands
        if whole.alpha and bands:
            sizes[bands] -= 1
        try:
            selection.rows_columns(sizes["Y"], sizes["X"])
            picks = selection.picks(sizes, whole.channels)
        except SelectionError as error:
            raise SelectionError(f"{reader.path}: {error}") from error
        self._indices: list[Sequence[int]] = []  # along each axis of the file
        self._dropped: list[int] = []  # axes of the file that the selection leaves out
        for axis, (letter, size) in enumerate(zip(letters, whole.shape, strict=True)):
            pick = picks.get(letter, range(size))
            found: Sequence[int] = [pick] if isinstance(pick, int) else pick
            if letter == bands and letter in picks and whole.alpha:
                found = [*found, size - 1]
            elif isinstance(pick, int):
                self._dropped.append(axis)
            self._indices.append(found)
        self.layout = self._layout(letters, picks.get("C" if "C" in letters else "S"))

    @property
    def path(self) -> Place:
        return self.file.path

    @property
    def attributes(self) -> dict[str, Any]:
        return self.file.attributes

    def fingerprint(self) -> str:
        return self.file.fingerprint()

    def read(self, region: Region) -> Array:
        parts = iter(region)
        wanted = [
            indices if axis in self._dropped else indices[next(parts)] for axis, indices in enumerate(self._indices)
        ]
        array = self._joined([_runs(indices) for indices in wanted], ())
        return np.ascontiguousarray(array.squeeze(tuple(self._dropped)))

    def shape_in_file(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the largest window of the file that is read at once for a window of this shape.

        Axes that are left out have the size 1, and so have axes whose indices are not adjacent, which are read one by
        one.
        """
        sizes = iter(shape)
        in_file = [1 if axis in self._dropped else next(sizes) for axis in range(len(self._indices))]
        return tuple(
            size if len(_runs(indices)) == 1 else 1 for size, indices in zip(in_file, self._indices, strict=True)
        )

    def _joined(self, runs: list[list[slice]], at: Region) -> Array:
        """Return the windows of all combinations of runs, joined along their axes."""
        axis = len(at)
        if axis == len(runs):
            return self.file.read(at)
        parts = [self._joined(runs, (*at, run)) for run in runs[axis]]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)

    def _layout(self, letters: str, channel: int | range | None) -> Layout:
        whole = self.file.layout

        def kept(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(value for axis, value in enumerate(values) if axis not in self._dropped)

        counts = [len(indices) for indices in self._indices]
        steps = [indices.step if isinstance(indices, range) else 1 for indices in self._indices]
        spacing = [None if gap is None else gap * step for gap, step in zip(whole.spacing, steps, strict=False)]
        levels = (
            kept([-(-level * count // size) for level, count, size in zip(shape, counts, whole.shape, strict=True)])
            for shape in whole.levels
        )
        names = whole.channels
        if names and channel is not None:
            names = tuple(names[at] for at in ([channel] if isinstance(channel, int) else channel) if at < len(names))
        return replace(
            whole,
            shape=kept(counts),
            axes="".join(kept(letters)),
            chunks=None if whole.chunks is None else kept(whole.chunks),
            shards=None if whole.shards is None else kept(whole.shards),
            levels=tuple(levels),
            spacing=kept(spacing),
            channels=names,
            origin=kept([indices[0] for indices in self._indices]),
            steps=kept(steps),
        )


def _runs(indices: Sequence[int]) -> list[slice]:
    """Return slices of adjacent indices, in the given order.

    Examples
    --------
    >>> _runs(range(4, 9)), _runs([1, 2, 7])
    ([slice(4, 9, None)], [slice(1, 3, None), slice(7, 8, None)])
    """
    if isinstance(indices, range) and (indices.step == 1 or len(indices) == 1):
        return [slice(indices[0], indices[-1] + 1)]
    breaks = [at for at, (one, two) in enumerate(itertools.pairwise(indices), start=1) if two != one + 1]
    return [slice(indices[a], indices[b - 1] + 1) for a, b in itertools.pairwise([0, *breaks, len(indices)])]
