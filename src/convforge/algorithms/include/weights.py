"""Weights as every CPU method first takes them: cross-correlation order, accumulation type, a copy of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem


def correlation_filter(problem: Conv2dProblem, w: NDArray[np.generic], dtype: str = "") -> NDArray[np.generic]:
    """The filter, flipped where the problem's mode is "convolution", cast to `dtype` (the accumulation type).

    Parameters
    ----------
    w : (K, C / groups, R, S) array

    Returns
    -------
    contiguous (K, C / groups, R, S) array that shares no memory with `w`
    """
    if problem.mode == "convolution":
        w = w[:, :, ::-1, ::-1]
    return np.array(w, dtype or problem.acc_dtype, order="C", copy=True)
