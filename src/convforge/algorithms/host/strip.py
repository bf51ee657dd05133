"""A strip of the padded picture in a tile: how it lies there, and where each tap of a filter reads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize


class Strip(NamedTuple):
    """Layout of a tile of several channels, in elements.

    Attributes
    ----------
    tile_p : int
        Output rows that it serves.
    tile_c : int
        Channels in it.
    rows : int
        Rows of the picture in it, halo included.
    phases, phase_pitch : int
        Columns of one remainder modulo the stride lie together, so that outputs side by side read side by side: how
        many remainders, and how many elements each.
    row_pitch : int
        Elements from row to row.
    plane : int
        Elements from channel to channel.
    """

    tile_p: int
    tile_c: int
    rows: int
    phases: int
    phase_pitch: int
    row_pitch: int
    plane: int


def strip(problem: Conv2dProblem, tile_p: int, tile_c: int) -> Strip:
    """The tile that `tile_p` rows of outputs read of `tile_c` channels."""
    phases = min(problem.stride[1], problem.extent_w)
    columns = (problem.q - 1) * problem.stride[1] + problem.extent_w
    phase_pitch = -(-columns // problem.stride[1])
    rows = (tile_p - 1) * problem.stride[0] + problem.extent_h
    row_pitch = phases * phase_pitch
    return Strip(tile_p, tile_c, rows, phases, phase_pitch, row_pitch, rows * row_pitch)


def tap_offsets(problem: Conv2dProblem, tile: Strip) -> NDArray[np.int64]:
    """Where each tap (c, r, s) of a block of channels reads, from where tap 0 does; shape (tile_c * R * S,)."""
    c = np.arange(tile.tile_c)[:, None, None] * tile.plane
    r = np.arange(problem.r)[:, None] * problem.dilation[0] * tile.row_pitch
    columns = np.arange(problem.s) * problem.dilation[1]
    s = columns % problem.stride[1] * tile.phase_pitch + columns // problem.stride[1]
    return (c + r + s).reshape(-1).astype(np.int64)


def tile_dtype(problem: Conv2dProblem) -> np.dtype[np.generic]:
    """The type of pixels in a tile: int16 for 8-bit pixels of integer sums, else the accumulation type."""
    if is_integer(problem.acc_dtype) and itemsize(problem.x_dtype) == 1 and abs(problem.epilogue.x_zero_point) < 2**14:
        return np.dtype("int16")
    return np.dtype(problem.acc_dtype)
