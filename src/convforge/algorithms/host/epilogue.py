"""The epilogue for CPU kernels: numbers and arrays, from the problem and the operands of a call."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Buffers
from convforge.algorithms.host.views import not_read_only, view
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

Place = tuple[int, int, int, int, int]


class EpilogueArguments(NamedTuple):
    """The arguments of :func:`convforge.algorithms.host.rows.store_row`."""

    plain: bool  # True: there is no epilogue, sums are only cast
    divisor: Any  # sums are divided by it; 1 if there is none
    scale: NDArray[np.generic]  # 1-D, in the epilogue's type; of size 0 if absent, like bias and residual
    bias: NDArray[np.generic]
    residual: NDArray[np.generic]  # 1-D, in the output's type
    place: Place  # offset and strides of the residual
    code: int  # index of the activation; alpha is its parameter
    alpha: Any
    half: bool  # the output is float16
    integer: bool  # the output is an integer type
    whole: bool  # the output and the sums are integers
    low: Any  # smallest value of an integer output; high is the largest
    high: Any
    residual_scale: Any  # multiplies the residual; 1 if there is none
    out_scale: Any  # divides the activation's value; 1 if there is none
    out_zero_point: Any  # added after that; 0 if there is none


def values_dtype(problem: Conv2dProblem) -> np.dtype[np.generic]:
    """Type in which the epilogue computes: float64 for int32 sums, which it holds exactly; else that of the sums."""
    return np.dtype("float64" if is_integer(problem.acc_dtype) else problem.acc_dtype)


def epilogue_arguments(problem: Conv2dProblem, buffers: Buffers) -> EpilogueArguments:
    """The epilogue of `problem` with the operands of one call."""
    return _without_operands(problem) if problem.epilogue.is_plain else _arguments(problem, buffers)


@lru_cache(maxsize=256)
def _without_operands(problem: Conv2dProblem) -> EpilogueArguments:
    """Epilogue without operands; cached, because it is the same for every call."""
    return _arguments(problem, {})


def _arguments(problem: Conv2dProblem, buffers: Buffers) -> EpilogueArguments:
    epilogue = problem.epilogue
    values = values_dtype(problem)
    out = np.dtype(problem.out_dtype)
    integer = is_integer(problem.out_dtype)
    plain = epilogue.is_plain
    whole = integer and plain and is_integer(problem.acc_dtype)
    limits = (np.iinfo(out).min, np.iinfo(out).max) if integer else (0, 0)
    # float32 cannot hold int32's limits.
    limit = np.dtype("int32") if whole else np.dtype("float64") if out == np.int32 else values
    residual, place = np.empty(0, np.uint16 if out == np.float16 else out), (0, 0, 0, 0, 0)
    if epilogue.residual:
        seen = view(buffers["residual"], problem.out_layout)
        residual, place = seen.flat, seen.place
    return EpilogueArguments(
        plain=plain,
        divisor=values.type(epilogue.divisor),
        scale=_vector(buffers["scale"] if epilogue.scale != "none" else None, values),
        bias=_vector(buffers["bias"] if epilogue.bias else None, values),
        residual=residual,
        place=place,
        code=epilogue.activation_code,
        alpha=values.type(epilogue.alpha or 0.0),
        half=out == np.float16,
        integer=integer,
        whole=whole,
        low=limit.type(limits[0]),
        high=limit.type(limits[1]),
        residual_scale=values.type(epilogue.residual_scale),
        out_scale=values.type(epilogue.out_scale),
        out_zero_point=values.type(epilogue.out_zero_point),
    )


def _vector(operand: Any, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    return np.empty(0, dtype) if operand is None else not_read_only(np.ascontiguousarray(operand, dtype).reshape(-1))
