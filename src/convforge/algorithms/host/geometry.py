"""Sizes, strides and border tables of a convolution for CPU kernels, and the layout of an image strip in a tile."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, border_indices
from convforge.problem.types import is_integer, itemsize


class Geometry(NamedTuple):
    """Sizes of a convolution, and a table of border indices for each axis."""

    channels: int  # input channels of one group
    outputs: int  # output channels of one group
    P: int
    Q: int
    R: int
    S: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    rows: NDArray[np.int64]  # :func:`convforge.problem.border_indices` of all padded rows; the same for columns
    columns: NDArray[np.int64]
    left: int  # columns of padding left of the image
    width: int  # columns of the image
    outside: Any  # the value outside the image, in the accumulation type
    zero: Any  # the zero point of x, in the accumulation type


@lru_cache(maxsize=256)
def geometry(problem: Conv2dProblem) -> Geometry:
    top, bottom, left, right = problem.padding
    acc = np.dtype(problem.acc_dtype).type
    return Geometry(
        problem.c_per_group,
        problem.k_per_group,
        problem.p,
        problem.q,
        problem.r,
        problem.s,
        *problem.stride,
        *problem.dilation,
        border_indices(problem.h, top, bottom, problem.padding_mode),
        border_indices(problem.w, left, right, problem.padding_mode),
        left,
        problem.w,
        acc(problem.outside),
        acc(problem.epilogue.x_zero_point),
    )


class Strip(NamedTuple):
    """Layout of a tile of several channels, in elements.

    A phase is the set of columns with the same remainder modulo the stride. Its columns are contiguous, so that
    neighbouring outputs read neighbouring elements.
    """

    tile_p: int  # output rows that read the tile
    tile_c: int  # channels in the tile
    rows: int  # image rows in the tile, halo included
    phases: int
    phase_pitch: int  # from phase to phase
    row_pitch: int  # from row to row
    plane: int  # from channel to channel


def strip(problem: Conv2dProblem, tile_p: int, tile_c: int) -> Strip:
    """Layout of the tile that `tile_p` output rows read from `tile_c` channels."""
    phases = min(problem.stride[1], problem.extent_w)
    columns = (problem.q - 1) * problem.stride[1] + problem.extent_w
    phase_pitch = -(-columns // problem.stride[1])
    rows = (tile_p - 1) * problem.stride[0] + problem.extent_h
    row_pitch = phases * phase_pitch
    return Strip(tile_p, tile_c, rows, phases, phase_pitch, row_pitch, rows * row_pitch)


def tap_offsets(problem: Conv2dProblem, tile: Strip) -> NDArray[np.int64]:
    """Offset of each tap (c, r, s) from the first tap of a tile, in elements; shape (tile_c * R * S,)."""
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
