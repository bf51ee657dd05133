"""Partition of a problem into sub-problems, each with its halo; im2col's chunks and the FFT's tiles use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from convforge.problem.borders import border_indices

if TYPE_CHECKING:
    from convforge.problem.conv2d import Conv2dProblem


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of the output, and the part of the image that it reads.

    Attributes
    ----------
    p0, p1, q0, q1 : int
        The output rows [p0, p1) and columns [q0, q1).
    h0, h1, w0, w1 : int
        Rows and columns of the image that the tile reads, halo included: the view ``x[..., h0:h1, w0:w1]``.
    problem : Conv2dProblem
        The sub-problem over that view, with its part of the padding.
    gathered : bool
        The view does not suffice, because the border mode reads elsewhere (a mirrored or wrapped row) or the tile is
        outside the image: the sub-problem has no padding, and its input must be gathered through
        :func:`convforge.problem.border_indices` at `padded_rows` and `padded_columns`.
    """

    p0: int
    p1: int
    q0: int
    q1: int
    h0: int
    h1: int
    w0: int
    w1: int
    problem: Conv2dProblem
    gathered: bool

    @property
    def padded_rows(self) -> tuple[int, int]:
        """First and past-the-last row that the tile reads, in the padded image of the whole problem."""
        first = self.p0 * self.problem.stride[0]
        return first, first + (self.p1 - self.p0 - 1) * self.problem.stride[0] + self.problem.extent_h

    @property
    def padded_columns(self) -> tuple[int, int]:
        """First and past-the-last column that the tile reads, in the padded image of the whole problem."""
        first = self.q0 * self.problem.stride[1]
        return first, first + (self.q1 - self.q0 - 1) * self.problem.stride[1] + self.problem.extent_w


@dataclass(frozen=True, slots=True)
class _Span:
    """One axis of a tile."""

    start: int  # slice of the image
    stop: int
    before: int  # rest of the padding
    after: int
    view: bool  # True if a view suffices


def split(problem: Conv2dProblem, tile_p: int, tile_q: int) -> Iterator[Tile]:
    """Cut the output of `problem` into tiles, row by row; the last of each axis may be smaller.

    Raises ``ValueError`` for tiles without a pixel.

    Examples
    --------
    >>> from convforge.problem import Conv2dProblem
    >>> problem = Conv2dProblem(n=1, c=1, h=8, w=8, k=1, r=3, s=3, padding=(1, 1, 1, 1))
    >>> [(t.h0, t.h1, t.problem.padding) for t in problem.split(4)]
    [(0, 5, (1, 0, 1, 1)), (3, 8, (0, 1, 1, 1))]
    """
    top, bottom, left, right = problem.padding

    @cache
    def rows(p0: int, p1: int) -> _Span:
        first = p0 * problem.stride[0]
        stop = first + (p1 - p0 - 1) * problem.stride[0] + problem.extent_h
        return _span(problem.h, top, bottom, first, stop, problem)

    @cache
    def columns(q0: int, q1: int) -> _Span:
        first = q0 * problem.stride[1]
        stop = first + (q1 - q0 - 1) * problem.stride[1] + problem.extent_w
        return _span(problem.w, left, right, first, stop, problem)

    for box in boxes(problem, tile_p, tile_q):
        yield _tile(problem, box, rows(*box[:2]), columns(*box[2:]))


def boxes(problem: Conv2dProblem, tile_p: int, tile_q: int) -> Iterator[tuple[int, int, int, int]]:
    """The rectangles (p0, p1, q0, q1) of :func:`split`, in its order, without halos: cheap for thousands of tiles."""
    if tile_p < 1 or tile_q < 1:
        raise ValueError(f"a tile of {tile_p} x {tile_q} outputs has no pixel; both must be at least 1")
    for p0 in range(0, problem.p, tile_p):
        for q0 in range(0, problem.q, tile_q):
            yield p0, min(p0 + tile_p, problem.p), q0, min(q0 + tile_q, problem.q)


def _tile(problem: Conv2dProblem, box: tuple[int, int, int, int], rows: _Span, columns: _Span) -> Tile:
    p0, p1, q0, q1 = box
    if rows.view and columns.view:
        inner = problem.replace(
            h=rows.stop - rows.start,
            w=columns.stop - columns.start,
            padding=(rows.before, rows.after, columns.before, columns.after),
        )
    else:
        inner = problem.replace(
            h=(p1 - p0 - 1) * problem.stride[0] + problem.extent_h,
            w=(q1 - q0 - 1) * problem.stride[1] + problem.extent_w,
            padding=(0, 0, 0, 0),
            padding_mode="zeros",
            padding_value=0.0,
        )
    return Tile(
        p0, p1, q0, q1, rows.start, rows.stop, columns.start, columns.stop, inner, not (rows.view and columns.view)
    )  # fmt: skip


def _span(size: int, before: int, after: int, first: int, stop: int, problem: Conv2dProblem) -> _Span:
    """The part of an axis that padded positions [first, stop) read."""
    begin, end = first - before, stop - before
    if begin >= 0 and end <= size:
        return _Span(begin, end, 0, 0, True)
    inside = max(begin, 0), min(end, size)
    # The sub-problem's padding has the same values as the whole one's only in modes that do not mirror or wrap.
    if problem.padding_mode in ("zeros", "constant", "replicate") and inside[0] < inside[1]:
        return _Span(inside[0], inside[1], max(-begin, 0), max(end - size, 0), True)
    read = border_indices(size, before, after, problem.padding_mode)[first:stop]
    read = read[read >= 0]
    if not read.size:
        return _Span(0, 0, 0, 0, False)
    return _Span(int(read.min()), int(read.max()) + 1, 0, 0, False)
