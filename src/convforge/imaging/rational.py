"""Kernels of whole numbers over one divisor, such as means and binomials, which can be summed exactly."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import lcm

import numpy as np
import numpy.typing as npt

LARGEST_DIVISOR = 2**24
"""Of float64 numbers; the mean over the largest kernel, 4095 x 4095, is below it."""

LARGEST_DIVISOR_F32 = 2**14
"""Of float32 numbers, which lie near to some fraction of any larger divisor."""

# Upper limits of the denominator, tried in this order.
_DENOMINATORS = (2**8, 2**12, LARGEST_DIVISOR_F32, 2**18, 2**21, LARGEST_DIVISOR)


def over_a_divisor(values: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.float64], int] | None:
    """Return whole numbers k and a divisor n so that k / n, rounded to the dtype, is `values`; None if there are none.

    `values` are finite float32 or float64. They may differ from k / n by two roundings, such as in a product of two
    rows of 1/5. n is from 1 to `LARGEST_DIVISOR` (`LARGEST_DIVISOR_F32` for float32), and the smallest divisor or a
    small multiple of it.

    Examples
    --------
    >>> over_a_divisor(np.array([[1, 2, 1]]) / 4)
    (array([[1., 2., 1.]]), 4)
    >>> over_a_divisor(np.array([[np.sqrt(2), 1]])) is None
    True
    """
    found = _divisor(values.tobytes(), values.dtype.str)
    return None if found is None else (np.rint(values.astype(np.float64) * found), found)


@lru_cache(maxsize=64)
def _divisor(data: bytes, dtype: str) -> int | None:
    values = np.frombuffer(data, dtype)
    tolerance = 2 * float(np.finfo(values.dtype).eps)
    largest = LARGEST_DIVISOR if values.dtype == np.float64 else LARGEST_DIVISOR_F32
    numbers, divisor = values.astype(np.float64), 1
    while divisor <= largest:
        off = np.abs(np.rint(numbers * divisor) / divisor - numbers) > tolerance * np.abs(numbers)
        if not off.any():
            return divisor
        value = float(numbers[off.argmax()])
        near = (Fraction(value).limit_denominator(limit) for limit in _DENOMINATORS if limit <= largest)
        fraction = next((f for f in near if abs(float(f) - value) <= tolerance * abs(value)), None)
        if fraction is None or divisor % fraction.denominator == 0:
            return None
        divisor = lcm(divisor, fraction.denominator)
    return None
