"""Host side of conv.cuh: tiles of neighbouring planes, and their layout in shared memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from convforge.algorithms.host.conv import LIMIT_BITS, Divisor, divisor
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES


class _PlaneTiles(ctypes.Structure):
    _fields_ = (("across", Divisor), ("down", Divisor))


@dataclass(frozen=True, slots=True)
class PlaneTiles:
    """Division of all outputs into tiles: p x q outputs on each of `planes` neighbouring planes."""

    across: int
    down: int
    count: int
    planes: int

    struct = _PlaneTiles

    @classmethod
    def of(cls, problem: Conv2dProblem, p: int, q: int, planes: int) -> PlaneTiles:
        across, down = max(1, -(-problem.q // q)), max(1, -(-problem.p // p))
        return cls(across, down, max(1, across * down * -(-problem.n * problem.k // planes)), planes)

    @property
    def refusal(self) -> Reason | None:
        """The reason why there are too many tiles for a launch; None if a launch can count them."""
        if self.count < 2**LIMIT_BITS:
            return None
        return Reason(
            "{count} tiles of {planes} planes are more than a launch counts", count=self.count, planes=self.planes
        )

    def divisors(self) -> _PlaneTiles:
        """struct PlaneTiles of conv.cuh."""
        return _PlaneTiles(divisor(self.across), divisor(self.down))


def window(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Pixels along an axis that `outputs` neighbouring outputs read."""
    return (outputs - 1) * stride + dilation * (taps - 1) + 1


def tile_height(problem: Conv2dProblem, outputs: int) -> int:
    """Rows of pixels that `outputs` neighbouring rows of outputs read."""
    return window(outputs, problem.r, problem.stride[0], problem.dilation[0])


def tile_width(problem: Conv2dProblem, outputs: int) -> int:
    """Columns of pixels that `outputs` neighbouring columns of outputs read."""
    return window(outputs, problem.s, problem.stride[1], problem.dilation[1])


def whole_vectors(elements: int, nbytes: int) -> int:
    """Round `elements` of `nbytes` bytes each up to whole vectors."""
    return -(-elements * nbytes // VECTOR_BYTES) * VECTOR_BYTES // nbytes


def odd_vectors(elements: int, nbytes: int) -> int:
    """Round `elements` of `nbytes` bytes each up to an odd number of vectors."""
    return (-(-elements * nbytes // VECTOR_BYTES) | 1) * VECTOR_BYTES // nbytes
