"""Chunks of a chunked array: the outputs that each computes, and the pixels that it reads from the chunks of the input.

This module does not import dask: an axis is a tuple of chunk sizes, and a block is an array that indexes like NumPy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from convforge.problem.borders import border_indices

# Modes in which padding of a part of the image has the same values as padding of the whole image.
PADS_A_PART = ("zeros", "constant", "replicate")


class Window(NamedTuple):
    """A filter's window along one axis of the image, in pixels."""

    outputs: int
    before: int  # padding
    after: int
    extent: int  # dilation included
    stride: int
    mode: str  # of the border


class Piece(NamedTuple):
    """Consecutive positions of one axis, all read from one block."""

    at: int  # first position in the array that is read
    length: int
    block: int
    start: int  # first index in the block
    step: int  # 1; -1 for mirrored pixels; 0 for one repeated pixel

    @property
    def source(self) -> slice:
        stop = self.start + self.length * self.step
        if self.step < 0:
            return slice(self.start, None if stop < 0 else stop, -1)
        return slice(self.start, stop if self.step else self.start + 1)

    @property
    def target(self) -> slice:
        return slice(self.at, self.at + self.length)


@dataclass(frozen=True)
class Read:
    """The part of one axis that an output chunk reads.

    The chunk has `outputs` results from index `first` on, and reads `size` positions. Those that no piece covers are
    outside the image, and have the border's value. `padding` is the number of further pixels before and after, which
    the method pads by the border mode.
    """

    first: int
    outputs: int
    size: int
    pieces: tuple[Piece, ...]
    padding: tuple[int, int] = (0, 0)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that are read; the first block if none is, so that there is one to take type and device from."""
        return tuple(sorted({piece.block for piece in self.pieces})) or (0,)

    @property
    def covered(self) -> bool:
        return sum(piece.length for piece in self.pieces) == self.size


@dataclass(frozen=True)
class Part:
    """The reads of one output chunk, one for each axis of the input."""

    reads: tuple[Read, ...]

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """Indices of the blocks that the chunk reads, in the order in which :func:`gather` takes them."""
        return list(product(*(read.blocks for read in self.reads)))


def windowed(chunks: Sequence[int], window: Window) -> list[Read]:
    """Return the reads of the output chunks along an axis that a filter moves along.

    An output belongs to the chunk that its window's centre is in, or to the nearest. A chunk without outputs has no
    read.

    Examples
    --------
    >>> [(read.outputs, read.size, read.blocks) for read in windowed((4, 1, 3), Window(8, 2, 2, 5, 1, "circular"))]
    [(4, 8, (0, 1, 2)), (1, 5, (0, 1, 2)), (3, 7, (0, 1, 2))]
    """
    shift = window.before - window.extent // 2
    ends = [min(max(-(-(end + shift) // window.stride), 0), window.outputs) for end in accumulate(chunks)]
    ends[-1] = window.outputs
    bounds = _bounds(chunks)
    return [_read(bounds, window, p0, p1) for p0, p1 in pairwise((0, *ends)) if p0 < p1]


def one_to_one(chunks: Sequence[int]) -> list[Read]:
    """Return the reads along an axis of which each chunk is computed alone; chunks without elements have none."""
    bounds = _bounds(chunks)
    reads = [Read(bounds[block], n, n, (Piece(0, n, block, 0, 1),)) for block, n in enumerate(chunks) if n]
    return reads or [Read(0, 0, 0, ())]


def together(chunks: Sequence[int], outputs: int) -> list[Read]:
    """Return the one read along an axis of which every output needs all chunks."""
    bounds = _bounds(chunks)
    return [Read(0, outputs, bounds[-1], tuple(_inside(bounds, 0, bounds[-1], 0)))]


def _bounds(chunks: Sequence[int]) -> list[int]:
    return [0, *accumulate(chunks)]


def _read(bounds: Sequence[int], window: Window, p0: int, p1: int) -> Read:
    """Return what outputs [p0, p1) read of an image with blocks [bounds[i], bounds[i + 1])."""
    size = bounds[-1]
    first = p0 * window.stride - window.before
    stop = (p1 - 1) * window.stride + window.extent - window.before
    a, b = max(first, 0), min(stop, size)
    if a < b and (window.mode in PADS_A_PART or (a, b) == (first, stop)):
        return Read(p0, p1 - p0, b - a, tuple(_inside(bounds, a, b, 0)), (a - first, stop - b))
    table = border_indices(size, window.before, window.after, window.mode)
    outside = ((first, min(stop, 0)), (max(first, size), stop))
    indices = [table[low + window.before : max(low, high) + window.before] for low, high in outside]
    before, after = (_mirrored(bounds, index, low - first) for index, (low, _) in zip(indices, outside, strict=True))
    return Read(p0, p1 - p0, stop - first, (*before, *_inside(bounds, a, min(b, size), a - first), *after))


def _inside(bounds: Sequence[int], a: int, b: int, at: int) -> Iterator[Piece]:
    """Yield the pieces of the pixels [a, b) of the image, which are read to position `at`."""
    for block, (low, high) in enumerate(pairwise(bounds)):
        begin, end = max(a, low), min(b, high)
        if begin < end:
            yield Piece(at + begin - a, end - begin, block, begin - low, 1)


def _mirrored(bounds: Sequence[int], indices: Any, at: int) -> Iterator[Piece]:
    """Yield the pieces of positions that read these pixels, -1 for none: runs with one step within one block."""
    blocks = np.searchsorted(bounds, indices, side="right") - 1
    i, n = 0, len(indices)
    while i < n:
        begin, block = i, int(blocks[i])
        step = int(indices[i + 1] - indices[i]) if i + 1 < n else 1
        step = step if abs(step) <= 1 and i + 1 < n and blocks[i + 1] == block else 1
        i += 1
        while i < n and blocks[i] == block and indices[i] - indices[i - 1] == step:
            i += 1
        if indices[begin] >= 0:
            yield Piece(at + begin, i - begin, block, int(indices[begin]) - bounds[block], step)


def gather(part: Part, blocks: Sequence[Any], outside: float) -> Any:
    """Return the array that an output chunk reads, of the blocks' library: a view of a block, or one copy.

    `blocks` are in the order of :attr:`Part.blocks`; `outside` is the value of positions outside the image.
    """
    if all(len(read.pieces) == 1 and read.covered and read.pieces[0].step == 1 for read in part.reads):
        return blocks[0][tuple(read.pieces[0].source for read in part.reads)]
    of: Mapping[tuple[int, ...], Any] = dict(zip(part.blocks, blocks, strict=True))
    whole = np.empty_like(blocks[0], order="C", shape=tuple(read.size for read in part.reads))
    if not all(read.covered for read in part.reads):
        whole[...] = outside
    for pieces in product(*(read.pieces for read in part.reads)):
        block = of[tuple(piece.block for piece in pieces)]
        whole[tuple(piece.target for piece in pieces)] = block[tuple(piece.source for piece in pieces)]
    return whole
