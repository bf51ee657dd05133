"""The base of all methods that run on a GPU or on the emulator; only their backend differs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from convforge.algorithms.contract import Algorithm, Config, P
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

C = TypeVar("C", bound=Config)


class OnDevice(Algorithm[P, C]):
    """A method whose kernels are CUDA C++; `backend` is "cuda" or "emulator"."""

    def __init__(self, backend: str = "cuda") -> None:
        self.backend = backend


class DeviceConvolution(OnDevice[Conv2dProblem, C]):
    operation = "conv2d"


def types_refusal(problem: Conv2dProblem, taken: Collection[str]) -> Reason | None:
    """The reason why a method of the types `taken` refuses those of x, w and the result; None if it supports them."""
    types = {problem.x_dtype, problem.w_dtype}
    if len(types) == 1 and problem.x_dtype in taken and problem.out_dtype in (*types, "float32"):
        return None
    return Reason(
        "x and w must be of one type of {names}, and the result of that or float32; these are {types}",
        names=", ".join(taken), types=", ".join(sorted({*types, problem.out_dtype})),
    )  # fmt: skip
