"""Check the largest absolute value of the results, which some problems have as a second result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, Problem
from convforge.verify.bounds import error_bound, rounded
from convforge.verify.inputs import Inputs
from convforge.verify.truth import Truth

# Relative error of the product with amax_scale, of the division by out_scale, and of the comparison.
FEW_ROUNDINGS = 2.0**-22


def has_amax(problem: Problem) -> bool:
    return isinstance(problem, Conv2dProblem) and problem.epilogue.amax


def amax_fault(
    problem: Any, precision: str, truth: Truth, inputs: Inputs, got: NDArray[Any], amax: float
) -> str | None:  # fmt: skip
    """Describe why `amax` is not the largest absolute value of correct results and of `got`; None if it is.

    Results may err by the bound of their class, and so may the largest. Rounding is monotonic: so the largest absolute
    value of `got`, a correct result, is exactly that of amax after it is divided by the scales and rounded.
    """
    ends = problem.epilogue
    unit = ends.out_scale * ends.amax_scale
    value = np.abs(truth.value)
    if not value.size:
        return None if amax == 0 else f"amax is {amax!r} of no outputs; it must be 0"
    if not np.isfinite(value).all():
        right = np.isnan(amax) if np.isnan(value).any() else not np.isfinite(amax)
        return None if right else f"amax is {amax!r}, and the results have a NaN or Inf"
    bound = error_bound(problem, precision, truth, inputs)
    low, high = (float(limit.max()) * unit for limit in (value - bound, value + bound))
    if not low * (1 - FEW_ROUNDINGS) <= amax <= high * (1 + FEW_ROUNDINGS):
        expected = float(value.max()) * unit
        return f"amax is {amax!r}, and the truth {expected!r}; correct results have one from {low!r} to {high!r}"
    largest = float(np.abs(got.astype(np.float64)).max())
    least, most = (float(rounded(amax / unit * (1 + e), got.dtype)) for e in (-FEW_ROUNDINGS, FEW_ROUNDINGS))
    if not least <= largest <= most:
        return f"amax is {amax!r}, and the largest result {largest * unit!r}, before it is divided by {unit!r}"
    return None
