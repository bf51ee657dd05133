"""The types that the CPU kernels for pairs of int16 take."""

from __future__ import annotations

from convforge.errors import Reason
from convforge.problem import Conv2dProblem

BYTES = ("uint8", "int8")


def pairs_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why kernels of pairs cannot take the types, or None.

    x minus its zero point, and w, must fit int16. The sums of all types here are exact, because a problem's sums do not
    exceed int32.
    """
    taken = (problem.x_dtype in BYTES, problem.w_dtype in (*BYTES, "int16"), problem.acc_dtype == "int32")
    if all(taken):
        return None
    return Reason(
        "x must be uint8 or int8, w one of them or int16, and the sums int32; these are {types}",
        types=", ".join((problem.x_dtype, problem.w_dtype, problem.acc_dtype)),
    )
