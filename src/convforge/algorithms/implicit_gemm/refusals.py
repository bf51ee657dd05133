"""Refusals that several implicit GEMMs have in common."""

from __future__ import annotations

from collections.abc import Collection

from convforge.errors import Reason
from convforge.problem import Conv2dProblem


def types_refusal(problem: Conv2dProblem, taken: Collection[str]) -> Reason | None:
    """Give the reason why a method of these types cannot take those of x, w and the result; None if it can."""
    types = {problem.x_dtype, problem.w_dtype}
    if len(types) == 1 and problem.x_dtype in taken and problem.out_dtype in (*types, "float32"):
        return None
    return Reason(
        "x and w must be of one type of {names}, and the result of that or float32; these are {types}",
        names=", ".join(taken), types=", ".join(sorted({*types, problem.out_dtype})),
    )  # fmt: skip
