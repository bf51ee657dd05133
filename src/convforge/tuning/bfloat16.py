"""bfloat16 for the search: NumPy has no such type, so 16-bit words carry it, and the truth is that of the same numbers.

A problem in bfloat16 is asked twice: in float32, where inputs and truth are made, and in float16, whose arrays are as
large as its own, where the ring is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import Runtime
from convforge.check import Sample
from convforge.problem import Problem

_ARRAYS = ("x_dtype", "w_dtype", "out_dtype", "dtype")
# Half a unit in the last place over the number, at most: eight bits of mantissa.
HALF_ULP = 2.0**-8


def is_in_bfloat16(problem: Problem) -> bool:
    """Whether its arrays are: x, weights and output, which users give in one type."""
    names = [field.name for field in dataclasses.fields(problem) if field.name in _ARRAYS]
    return {getattr(problem, name) for name in names} == {"bfloat16"}


def in_other_type(problem: Any, dtype: str) -> Any:
    """The same problem with another type in bfloat16's place."""
    names = [field.name for field in dataclasses.fields(problem) if getattr(problem, field.name) == "bfloat16"]
    return dataclasses.replace(problem, **dict.fromkeys(names, dtype))


def words(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, ties to even; the values are finite.

    Examples
    --------
    >>> [hex(word) for word in words(np.array([1.0, -2.0, 1.00390625], np.float32))]
    ['0x3f80', '0xc000', '0x3f80']
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def numbers(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers that bfloat16 bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Bfloat16Sample(Sample):
    """Sampled outputs in bfloat16, held against the truth of the problem in float32."""

    stored = "bfloat16"

    def _brought(self, out: Any, runtime: Runtime) -> NDArray[Any]:
        return numbers(np.ascontiguousarray(super()._brought(out, runtime)).view(np.uint16))

    def _bound(self, precision: str) -> NDArray[np.float64]:
        bound = super()._bound(precision)
        return np.asarray(bound + HALF_ULP * (np.abs(self._truth.value) + bound))
