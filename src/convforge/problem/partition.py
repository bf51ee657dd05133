"""Partition of a problem into sub-problems, each with its halo; im2col's chunks and the FFT's tiles use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convforge.problem.borders import border_indices

if TYPE_CHECKING:
    from convforge.problem.conv2d import Conv2dProblem


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of the output, and the part of the image that it reads.

    The tile is `gathered` if the border mode reads pixels outside the view (a mirrored or wrapped row), or if the tile
    is outside the image. Its sub-problem then has no padding, and the input must be gathered through
    :func:`convforge.problem.border_indices` at `padded_rows` and `padded_columns`.
    """

    p0: int  # the output rows [p0, p1) and columns [q0, q1)
    p1: int
    q0: int
    q1: int
    h0: int  # rows and columns of the image, halo included: the view ``x[..., h0:h1, w0:w1]``
    h1: int
    w0: int
    w1: int
    problem: Conv2dProblem  # sub-problem on that view, with its part of the padding
    gathered: bool
    padded_rows: tuple[int, int]  # [first, last + 1) that it reads, as positions in the padded image
    padded_columns: tuple[int, int]


def split(problem: Conv2dProblem, tile_p: int, tile_q: int) -> Iterator[Tile]:
    """Cut the output of `problem` into tiles, row by row; the last of each axis may be smaller.

    Raises ``ValueError`` for tiles without a pixel.
    """
    top, bottom, left, right = problem.padding
    (stride_h, stride_w), mode = problem.stride, problem.padding_mode
    for p0, p1, q0, q1 in boxes(problem, tile_p, tile_q):
        rows = (p0 * stride_h, (p1 - 1) * stride_h + problem.extent_h)
        columns = (q0 * stride_w, (q1 - 1) * stride_w + problem.extent_w)
        h0, h1, pad_h = _read(problem.h, top, bottom, *rows, mode)
        w0, w1, pad_w = _read(problem.w, left, right, *columns, mode)
        if gathered := pad_h is None or pad_w is None:
            plain: dict[str, Any] = {"padding": (0, 0, 0, 0), "padding_mode": "zeros", "padding_value": 0.0}
            inner = problem.replace(h=rows[1] - rows[0], w=columns[1] - columns[0], **plain)
        else:
            inner = problem.replace(h=h1 - h0, w=w1 - w0, padding=(*pad_h, *pad_w))
        yield Tile(p0, p1, q0, q1, h0, h1, w0, w1, inner, gathered, rows, columns)


def boxes(problem: Conv2dProblem, tile_p: int, tile_q: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (p0, p1, q0, q1) of each tile of :func:`split`, in its order, without halos: fast for many tiles."""
    if tile_p < 1 or tile_q < 1:
        raise ValueError(f"a tile of {tile_p} x {tile_q} outputs has no pixel; both must be at least 1")
    for p0 in range(0, problem.p, tile_p):
        for q0 in range(0, problem.q, tile_q):
            yield p0, min(p0 + tile_p, problem.p), q0, min(q0 + tile_q, problem.q)


def _read(
    size: int, before: int, after: int, first: int, stop: int, mode: str
) -> tuple[int, int, tuple[int, int] | None]:
    """Return (start, stop, padding) of the view that positions [first, stop) read; padding is None if gathered."""
    begin, end = first - before, stop - before
    if begin >= 0 and end <= size:
        return begin, end, (0, 0)
    inside = max(begin, 0), min(end, size)
    # Padding of the view has the same values as padding of the image only in modes that do not mirror or wrap.
    if mode in ("zeros", "constant", "replicate") and inside[0] < inside[1]:
        return *inside, (max(-begin, 0), max(end - size, 0))
    read = border_indices(size, before, after, mode)[first:stop]
    read = read[read >= 0]
    return (int(read.min()), int(read.max()) + 1, None) if read.size else (0, 0, None)
