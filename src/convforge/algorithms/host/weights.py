"""Copies of the weights in cross-correlation order and accumulation type, for the CPU methods."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.host.views import not_read_only
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer


def correlation_filter(problem: Conv2dProblem, w: NDArray[np.generic], dtype: str = "") -> NDArray[np.generic]:
    """Copy the filter (K, C / groups, R, S), contiguous and in `dtype` (default: the accumulation type).

    It is flipped where the problem's mode is "convolution".
    """
    if problem.mode == "convolution":
        w = w[:, :, ::-1, ::-1]
    return np.array(w, dtype or problem.acc_dtype, order="C", copy=True)


def filter_to_pack(problem: Conv2dProblem, w: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Like :func:`correlation_filter`, but the result may be the caller's memory, because packers copy it."""
    if problem.mode == "convolution":
        w = w[:, :, ::-1, ::-1]
    return not_read_only(np.ascontiguousarray(w, dtype))


def float_sums(problem: Conv2dProblem) -> np.dtype[np.generic]:
    """Float type of the sums; for integers, a type that holds every possible sum exactly."""
    if is_integer(problem.acc_dtype):
        return np.dtype("float32" if problem.largest_sum < 2**24 else "float64")
    return np.dtype(problem.acc_dtype)
