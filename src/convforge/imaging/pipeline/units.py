"""Units of a large image: windows of whole output shards, the input that each reads, and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.imaging.axes import Axes
from convforge.imaging.image import Array
from convforge.imaging.windowed import Layout, Region, WindowReader
from convforge.problem import Conv2dProblem
from convforge.problem.borders import border_indices

# A unit grows up to this size of its result: a smaller one reads more halo, a larger one gains little and is more work
# to repeat after a kill.
LARGEST_RESULT = 32 * 2**20


@dataclass(frozen=True)
class Division:
    """The division of a filter's result into units of one shape; those at the end of an axis may be smaller.

    `problem` is that of the whole image as one stack (T, H, W, C). `letters_in` and `letters_out` name every axis of
    the source and of the result; they are equal but for a band axis that the filter removes.
    """

    problem: Conv2dProblem
    letters_in: str
    shape_in: tuple[int, ...]
    letters_out: str
    shape_out: tuple[int, ...]
    unit: tuple[int, ...]  # shape of a unit of the result

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of units along each axis."""
        return tuple(-(-size // side) for size, side in zip(self.shape_out, self.unit, strict=True))

    def __len__(self) -> int:
        return math.prod(self.grid)

    def region(self, number: int) -> Region:
        """Return the window of the result that a unit computes."""
        at = np.unravel_index(number, self.grid)
        starts = [int(i) * side for i, side in zip(at, self.unit, strict=True)]
        ends = [min(start + side, size) for start, side, size in zip(starts, self.unit, self.shape_out, strict=True)]
        return tuple(map(slice, starts, ends))

    def window(self, region: Region) -> Window:
        """Return the input that a window of the result reads."""
        sizes, wanted = dict(zip(self.letters_in, self.shape_in, strict=True)), self._wanted(region)
        return Window(
            self.letters_in,
            tuple(wanted.get(letter, slice(0, size)) for letter, size in sizes.items()),
            self._read(wanted["Y"], 0),
            self._read(wanted["X"], 1),
        )

    def _wanted(self, region: Region) -> dict[str, slice]:
        """Return a window of the result by letter; bands that the filter adds up or turns to gray have none."""
        wanted = dict(zip(self.letters_out, region, strict=True))
        bands = Axes(self.letters_in).bands
        sizes_in, sizes_out = (
            dict(zip(letters, shape, strict=True))
            for letters, shape in ((self.letters_in, self.shape_in), (self.letters_out, self.shape_out))
        )
        if bands and sizes_in[bands] != sizes_out.get(bands):
            wanted.pop(bands, None)
        return wanted

    def _read(self, part: slice, axis: int) -> NDArray[np.int64]:
        """Return the image index of every row (axis 0) or column (1) that a window reads; -1 is outside."""
        p = self.problem
        size, taps, step = ((p.h, p.r, p.stride[0]), (p.w, p.s, p.stride[1]))[axis]
        before, after = p.padding[2 * axis : 2 * axis + 2]
        indices = border_indices(size, before, after, p.padding_mode)
        return indices[part.start * step : (part.stop - 1) * step + taps]

    def problem_of(self, stack: tuple[int, ...]) -> Conv2dProblem:
        """Return the problem of a unit whose input, with the border's pixels, is a stack of this shape."""
        n, h, w, c = stack
        bands = c if self.problem.groups == self.problem.c else 1  # each by itself, or all summed
        return self.problem.replace(
            n=n, h=h, w=w, c=c, k=bands, groups=bands, padding=(0, 0, 0, 0), padding_mode="zeros", padding_value=0.0
        )

    @property
    def shape_read(self) -> tuple[int, ...]:
        """Shape of the window of the source that a whole unit reads, with the border's pixels."""
        wanted = self._wanted(tuple(slice(0, side) for side in self.unit))
        p = self.problem
        sizes = dict(zip(self.letters_in, self.shape_in, strict=True))
        sizes |= {letter: part.stop for letter, part in wanted.items()}
        sizes["Y"] = (sizes["Y"] - 1) * p.stride[0] + p.r
        sizes["X"] = (sizes["X"] - 1) * p.stride[1] + p.s
        return tuple(sizes[letter] for letter in self.letters_in)

    def grown(self) -> Iterator[Division]:
        """Yield larger divisions, each with units of twice the size: squares of pixels, then bands, then pages."""
        unit = dict(zip(self.letters_out, self.unit, strict=True))
        sizes = dict(zip(self.letters_out, self.shape_out, strict=True))
        base, bands = dict(unit), Axes(self.letters_out).bands
        while True:
            square = sorted("XY", key=lambda letter: unit[letter])
            order = [*square, *bands, *reversed(Axes(self.letters_out).pages)]
            letter = next((letter for letter in order if unit[letter] < sizes[letter]), None)
            if letter is None:
                return
            whole = -(-sizes[letter] // base[letter]) * base[letter]
            unit[letter] = min(2 * unit[letter], whole)
            yield replace(self, unit=tuple(unit.values()))


@dataclass(frozen=True)
class Window:
    """The input of a unit: a region of the source, and for Y and X the image index of each row and column."""

    letters: str
    region: Region  # its Y and X are the result's
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    def read(self, reader: WindowReader) -> Array:
        """Return the pixels (T, h, w, B) that the window reads, each once, as :meth:`padded` expects them."""
        rows, columns = _runs(self.rows), _runs(self.columns)
        parts = [[reader.read(self._at(y, x)) for x in columns] for y in rows]
        y, x = self.letters.index("Y"), self.letters.index("X")
        joined = [part[0] if len(part) == 1 else np.concatenate(part, axis=x) for part in parts]
        array = joined[0] if len(joined) == 1 else np.concatenate(joined, axis=y)
        return np.ascontiguousarray(Axes(self.letters).stack(array))

    def padded(self, stack: Array, outside: float) -> Array:
        """Return a stack of :meth:`read` with the border's pixels: (T, H, W, B)."""
        for axis, indices in ((1, self.rows), (2, self.columns)):
            known = np.unique(indices[indices >= 0])
            if known.size == indices.size and (known == indices).all():
                continue
            stack = np.take(stack, np.searchsorted(known, np.maximum(indices, known[0])), axis=axis)
            stack[(slice(None),) * axis + (indices < 0,)] = outside
        return stack

    def _at(self, rows: slice, columns: slice) -> Region:
        own = {"Y": rows, "X": columns}
        return tuple(own.get(letter, part) for letter, part in zip(self.letters, self.region, strict=True))


def _runs(indices: NDArray[np.int64]) -> list[slice]:
    """Return the runs of adjacent indices in ascending order, without -1.

    Examples
    --------
    >>> _runs(np.array([9, 0, 1, 2, -1]))
    [slice(0, 3, None), slice(9, 10, None)]
    """
    known = np.unique(indices[indices >= 0])
    starts = np.flatnonzero(np.diff(known, prepend=-2) > 1)
    ends = np.append(starts[1:], known.size) - 1
    return [slice(int(known[start]), int(known[end]) + 1) for start, end in zip(starts, ends, strict=True)]


def decoded(region: tuple[int, ...], layout: Layout) -> int:
    """Return the most samples in the chunks that a window of this shape touches, wherever it begins.

    Examples
    --------
    >>> decoded((6, 10), Layout((100, 10), np.dtype(np.uint8), chunks=(4, 10)))
    120
    """
    if layout.chunks is None:
        return math.prod(region)
    touched = 1
    for side, chunk, size in zip(region, layout.chunks, layout.shape, strict=True):
        touched *= min(-(-(side - 1) // chunk) + 1, -(-size // chunk)) * chunk
    return touched


def bytes_of(dtype: Any, *shape: int) -> int:
    return math.prod(shape) * int(np.dtype(dtype).itemsize)
