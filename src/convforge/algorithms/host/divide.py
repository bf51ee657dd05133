"""The host side of conv.cuh: the factor and shift that replace a division."""

from __future__ import annotations

import ctypes

LIMIT_BITS = 30  # of numbers that are divided


class Divisor(ctypes.Structure):
    """struct Divisor of conv.cuh."""

    _fields_ = (("by", ctypes.c_int), ("factor", ctypes.c_uint), ("shift", ctypes.c_int))


def divisor(by: int) -> Divisor:
    """The divisor for a number from 1 to 2^30 (Granlund and Montgomery, 1994).

    The factor exceeds 2^shift / by by less than 1, so that the quotient of a number below 2^30 exceeds the true one by
    less than 2^30 / 2^shift, which is at most 1 / by.

    Examples
    --------
    >>> seven = divisor(7)
    >>> (2**30 - 1) * seven.factor >> seven.shift == (2**30 - 1) // 7
    True
    """
    shift = LIMIT_BITS + (by - 1).bit_length()
    return Divisor(by, -(-(1 << shift) // by), shift)
