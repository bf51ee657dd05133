"""Large results on the host: reused memory, and comparison bit for bit.

All results of one case have one size. Touching fresh memory for the first time can take many times as long as the copy
into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import Runtime

# Bytes that are compared at a time: few enough for the cache.
PIECE = 1 << 17


class HostMemory:
    """Reused host buffers by name; using a name again overwrites its buffer."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[np.uint8]] = {}

    def piece(self, name: str, nbytes: int) -> NDArray[np.uint8]:
        """An uninitialised buffer of `nbytes`."""
        kept = self._kept.get(name)
        if kept is None or kept.size < nbytes:
            kept = self._kept[name] = np.empty(nbytes, np.uint8)
        return kept[:nbytes]

    def bring(self, runtime: Runtime, array: Any, name: str) -> NDArray[Any]:
        """Download an array into the buffer of this name; return the array itself where the device is the host."""
        found: NDArray[Any] = runtime.download(array, room=lambda nbytes: self.piece(name, nbytes))
        return found

    def copy(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """Copy an array into the buffer of this name; the copy is contiguous."""
        copied = self.piece(name, array.nbytes).view(array.dtype).reshape(array.shape)
        copied[...] = array
        return copied


def same(a: Any, b: Any) -> bool:
    """True if two arrays have the same shape and the same bits, or are both None.

    Examples
    --------
    >>> nan = np.array([np.nan, 0.0])
    >>> same(nan, nan.copy()), same(nan, np.array([np.nan, -0.0]))
    (True, False)
    """
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.nbytes != b.nbytes:
        return False
    x, y = _bytes(a), _bytes(b)
    return all(_equal(x[i : i + PIECE], y[i : i + PIECE]) for i in range(0, x.size, PIECE))


def filled(array: NDArray[Any], byte: int) -> bool:
    """True if every byte of an array equals `byte`."""
    found = _bytes(array)
    pattern = np.full(min(PIECE, found.size), byte, np.uint8)
    pieces = (found[i : i + PIECE] for i in range(0, found.size, PIECE))
    return all(_equal(piece, pattern[: piece.size]) for piece in pieces)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _equal(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> bool:
    """Compare eight bytes at a time, then the rest."""
    end = x.size // 8 * 8
    return np.array_equal(x[:end].view(np.uint64), y[:end].view(np.uint64)) and np.array_equal(x[end:], y[end:])
