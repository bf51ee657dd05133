"""Arrays compared bit for bit, a piece at a time: those of large results take no room beside themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes that are compared at a time: few enough for the cache.
PIECE = 1 << 17


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same shape and the same bits, or are both None.

    Examples
    --------
    >>> nan = np.array([np.nan, 0.0])
    >>> same(nan, nan.copy()), same(nan, np.array([np.nan, -0.0]))
    (True, False)
    """
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    x, y = _bytes(a), _bytes(b)
    if x.size != y.size:
        return False
    return all(_words(x[i : i + PIECE], y[i : i + PIECE]) for i in range(0, x.size, PIECE))


def filled(array: NDArray[Any], byte: int) -> bool:
    """Whether every byte of an array is this one."""
    found = _bytes(array)
    pattern = np.full(min(PIECE, found.size), byte, np.uint8)
    pieces = (found[i : i + PIECE] for i in range(0, found.size, PIECE))
    return all(_words(piece, pattern[: piece.size]) for piece in pieces)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _words(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bool:
    """Whether the bytes are the same, eight at a time as far as that goes."""
    end = x.size // 8 * 8
    return np.array_equal(x[:end].view(np.uint64), y[:end].view(np.uint64)) and np.array_equal(x[end:], y[end:])
