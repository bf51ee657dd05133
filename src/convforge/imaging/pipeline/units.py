"""Units of a large image: windows of whole output shards, the input that each reads, and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.imaging.axes import Axes
from convforge.imaging.image import Array, ImageError
from convforge.imaging.pipeline.recipe import Depth
from convforge.imaging.windowed import Layout, Region, Windows, read_into
from convforge.problem import Conv2dProblem
from convforge.problem.borders import indices_between

# A unit grows up to this size of its result: smaller ones read more halo; larger ones take more memory, which is
# page-locked for a GPU at the start of a run, and fewer of them are in work at its end.
LARGEST_RESULT = 32 * 2**20

# The most units of a pass. An image of 100 gigapixels has about 10^4, one of a petabyte 3 * 10^7; more are a sign of
# damaged metadata. In memory the journal takes about 100 bytes for each.
MOST_UNITS = 10**7


class Side(NamedTuple):
    """Input of a filter along one axis: the size of the image, taps, stride, and the border before and after."""

    size: int
    taps: int
    step: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Reach:
    """Positions of one axis that a window reads, from `first` to before `last`; those outside are the border's."""

    first: int
    last: int
    size: int  # of the image
    mode: str  # of the border

    @property
    def count(self) -> int:
        return self.last - self.first

    @property
    def is_inside(self) -> bool:
        return self.first >= 0 and self.last <= self.size

    @property
    def inside(self) -> slice:
        """Pixels of the image among them."""
        return slice(max(self.first, 0), min(self.last, self.size))

    @property
    def run(self) -> slice:
        """Places of these pixels in the window."""
        return slice(self.inside.start - self.first, self.inside.stop - self.first)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The image index of every position; -1 is outside."""
        return indices_between(self.size, self.first, self.last, self.mode)

    @property
    def is_direct(self) -> bool:
        """True if the border repeats pixels that the window has, or has none."""
        if self.is_inside:
            return True
        known = self.indices[self.indices >= 0]
        return bool(self.inside.start <= known.min() and known.max() < self.inside.stop)


@dataclass(frozen=True)
class Division:
    """The division of a filter's result into units of one shape; those at the end of an axis may be smaller.

    `problem` is that of the whole image as one stack (T, H, W, C). `letters_in` and `letters_out` name every axis of
    the source and of the result; they are equal but for a band axis that the filter removes. `origin` is the row and
    column of the filter's result at which the written result begins, where only a part of it is wanted.
    """

    problem: Conv2dProblem
    letters_in: str
    shape_in: tuple[int, ...]
    letters_out: str
    shape_out: tuple[int, ...]
    unit: tuple[int, ...]  # shape of a unit of the result
    depth: Depth | None = None
    origin: tuple[int, int] = (0, 0)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of units along each axis."""
        return tuple(-(-size // side) for size, side in zip(self.shape_out, self.unit, strict=True))

    def __len__(self) -> int:
        return math.prod(self.grid)

    def check_count(self) -> None:
        """Raise ``ImageError`` if there are more units than any image has."""
        if (count := math.prod(self.grid)) > MOST_UNITS:  # len() of more than 2^63 fails
            raise ImageError(
                f"a result of {' x '.join(map(str, self.shape_out))} samples has {count} units, more than "
                f"{MOST_UNITS}; check the shape in the file's metadata, or filter a part of it (--region, --z, --time)"
            )

    @cached_property
    def sides(self) -> dict[str, Side]:
        """Input of the filter along Y and X, and along Z if it has a depth."""
        p, sizes = self.problem, dict(zip(self.letters_in, self.shape_in, strict=True))
        sides = {
            "Y": Side(p.h, p.r, p.stride[0], p.padding[0], p.padding[1]),
            "X": Side(p.w, p.s, p.stride[1], p.padding[2], p.padding[3]),
        }
        if self.depth is not None:
            taps, before, after, step = self.depth
            sides["Z"] = Side(sizes["Z"], len(taps), step, before, after)
        return sides

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
            {letter: wanted.get(letter, slice(0, size)) for letter, size in sizes.items()},
            {letter: self._reach(letter, wanted[letter]) for letter in self.sides},
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

    def _reach(self, letter: str, part: slice) -> Reach:
        """Return the rows, columns or planes that a window of the result reads."""
        side = self.sides[letter]
        begin = dict(zip("YX", self.origin, strict=True)).get(letter, 0)
        first = (begin + part.start) * side.step - side.before
        last = (begin + part.stop - 1) * side.step - side.before + side.taps
        return Reach(first, last, side.size, self.problem.padding_mode)

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
        sizes = dict(zip(self.letters_in, self.shape_in, strict=True))
        sizes |= {letter: part.stop for letter, part in wanted.items()}
        for letter, side in self.sides.items():
            sizes[letter] = (sizes[letter] - 1) * side.step + side.taps
        return tuple(sizes[letter] for letter in self.letters_in)

    def grown(self) -> Iterator[Division]:
        """Yield larger divisions, each with units of twice the size.

        Squares of pixels grow first, then bands, then pages; where the filter reads several planes, Z grows first.
        """
        unit = dict(zip(self.letters_out, self.unit, strict=True))
        sizes = dict(zip(self.letters_out, self.shape_out, strict=True))
        base, bands = dict(unit), Axes(self.letters_out).bands
        while True:
            square = sorted("XY", key=lambda letter: unit[letter])
            first = "Z" if self.depth is not None and unit["Z"] < 2 * len(self.depth.taps) else ""
            order = [*first, *square, *bands, *reversed(Axes(self.letters_out).pages)]
            letter = next((letter for letter in order if unit[letter] < sizes[letter]), None)
            if letter is None:
                return
            whole = -(-sizes[letter] // base[letter]) * base[letter]
            unit[letter] = min(2 * unit[letter], whole)
            yield replace(self, unit=tuple(unit.values()))


@dataclass(frozen=True)
class Window:
    """The input of a unit: a region of the source, and what it reads along Y and X, and along Z if it has a depth."""

    letters: str
    region: Mapping[str, slice]  # its Y, X and Z are the result's
    reaches: Mapping[str, Reach]

    def read(self, reader: Windows) -> Array:
        """Return the pixels (T, h, w, B) that the window reads, each once, as :meth:`padded` expects them."""
        array = self._joined(reader, dict(self.region), [letter for letter in self.letters if letter in self.reaches])
        return np.ascontiguousarray(Axes(self.letters).stack(array))

    def is_direct(self) -> bool:
        """True if :meth:`fill` can read it: its axes are those of a stack, and the border repeats its inside."""
        axes = Axes(self.letters)
        in_order = self.letters == f"{axes.pages}YX{axes.bands}"
        return in_order and all(reach.is_direct for reach in self.reaches.values())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape (T, H, W, B) of :meth:`padded`."""
        axes, sizes = Axes(self.letters), {letter: part.stop - part.start for letter, part in self.region.items()}
        sizes |= {letter: reach.count for letter, reach in self.reaches.items()}
        return math.prod(sizes[letter] for letter in axes.pages), sizes["Y"], sizes["X"], sizes.get(axes.bands, 1)

    def fill(self, reader: Windows, out: Array, outside: float) -> None:
        """Read a direct window with the border's pixels into an array of :attr:`shape`: the inside, then its copies."""
        region, inside, sizes = [], [], []
        for letter, part in self.region.items():
            reach = self.reaches.get(letter)
            size = part.stop - part.start
            region.append(part if reach is None else reach.inside)
            inside.append(slice(0, size) if reach is None else reach.run)
            sizes.append(size if reach is None else reach.count)
        whole = out.reshape(sizes)
        read_into(reader, tuple(region), whole[tuple(inside)])
        for axis, letter in enumerate(self.letters):
            reach = self.reaches.get(letter)
            if reach is not None and not reach.is_inside:
                _repeat(whole, axis, reach, inside, outside)
                inside[axis] = slice(None)

    def _joined(self, reader: Windows, region: dict[str, slice], axes: list[str]) -> Array:
        """Read every run of indices along the first of the axes, and join them."""
        if not axes:
            return reader.read(tuple(region.values()))
        letter, *others = axes
        parts = [self._joined(reader, {**region, letter: run}, others) for run in _runs(self.reaches[letter].indices)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.letters.index(letter))

    def padded(self, stack: Array, outside: float) -> Array:
        """Return a stack of :meth:`read` with the border's pixels: (T, H, W, B)."""
        for letter, reach in self.reaches.items():
            if letter == "Z":
                known = np.unique(reach.indices[reach.indices >= 0]).size
                lines = stack.reshape(self.around_z(known), known, -1)
                stack = _spread(lines, 1, reach, outside).reshape(-1, *stack.shape[1:])
            else:
                stack = _spread(stack, "YX".index(letter) + 1, reach, outside)
        return stack

    def around_z(self, planes: int) -> int:
        """Return the number of pages before Z of a stack whose Z axis has so many planes."""
        pages = Axes(self.letters).pages
        before = pages[: pages.index("Z")]
        return math.prod(self.region[letter].stop - self.region[letter].start for letter in before)


def _spread(array: Array, axis: int, reach: Reach, outside: float) -> Array:
    """Return an array whose axis holds every known index once, in ascending order, with one element for each position.

    Examples
    --------
    >>> _spread(np.array([10, 11, 12, 13]), 0, Reach(-2, 4, 4, "reflect"), 0.0)
    array([12, 11, 10, 11, 12, 13])
    """
    if reach.is_inside:
        return array
    indices, run = reach.indices, reach.run
    known = np.unique(indices[indices >= 0])
    at = np.searchsorted(known, np.maximum(indices, known[0]))
    rest = np.r_[0 : run.start, run.stop : indices.size]
    before: tuple[Any, ...] = (slice(None),) * axis
    out: Array = np.empty((*array.shape[:axis], indices.size, *array.shape[axis + 1 :]), array.dtype)
    out[(*before, run)] = array[(*before, slice(at[run.start], at[run.start] + run.stop - run.start))]
    out[(*before, rest)] = np.take(array, at[rest], axis=axis)
    out[(*before, indices < 0)] = outside
    return out


def _repeat(array: Array, axis: int, reach: Reach, inside: list[slice], outside: float) -> None:
    """Fill the border along an axis with copies of the window's own pixels; along the others it is that of `inside`."""
    indices, run = reach.indices, reach.run
    before, behind = tuple(inside[:axis]), tuple(inside[axis + 1 :])
    beside: Any  # an index array, which stubs of NumPy know only in other places
    for beside in (np.arange(run.start), np.arange(run.stop, indices.size)):
        wanted: Any = indices[beside]
        known, unknown = wanted >= 0, beside[wanted < 0]
        array[(*before, beside[known], *behind)] = array[(*before, wanted[known] - reach.first, *behind)]
        array[(*before, unknown, *behind)] = outside


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


def size_text(nbytes: int, *, up: bool = False) -> str:
    """Return a number of bytes as the option `--memory` takes it; with `up` in whole megabytes, rounded up.

    Examples
    --------
    >>> size_text(64_000_000), size_text(1500), size_text(1_200_001, up=True)
    ('64MB', '1500 bytes', '2MB')
    """
    return f"{-(-nbytes // 10**6)}MB" if up or (nbytes and nbytes % 10**6 == 0) else f"{nbytes} bytes"
