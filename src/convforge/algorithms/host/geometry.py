"""A convolution's sizes, strides and border tables as CPU kernels see them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, border_indices


class Geometry(NamedTuple):
    """Plain numbers, and one table of indices an axis.

    Attributes
    ----------
    channels, outputs : int
        Input channels and output channels of one group.
    P, Q, R, S : int
    stride_h, stride_w, dilation_h, dilation_w : int
    rows, columns : 1-D int array
        :func:`convforge.problem.border_indices` of the whole padded picture, by axis.
    left, width : int
        Columns of padding at the left, columns of the picture.
    outside, zero : number
        The value outside the picture, and the zero point of x; in the accumulation type.
    """

    channels: int
    outputs: int
    P: int
    Q: int
    R: int
    S: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    left: int
    width: int
    outside: Any
    zero: Any


@lru_cache(maxsize=256)
def geometry(problem: Conv2dProblem) -> Geometry:
    """What kernels need to know of the problem."""
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
