"""Reuse host memory for large results, and compare arrays bit for bit.

The first access to newly allocated memory can take many times as long as the copy into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import Runtime


class HostMemory:
    """Named host buffers that are reused; the next use of a name overwrites its buffer."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[np.uint8]] = {}

    def piece(self, name: str, nbytes: int) -> NDArray[np.uint8]:
        kept = self._kept.get(name)
        if kept is None or kept.size < nbytes:
            kept = self._kept[name] = np.empty(nbytes, np.uint8)
        return kept[:nbytes]

    def bring(self, runtime: Runtime, array: Any, name: str) -> NDArray[Any]:
        """Download an array into the buffer `name`; return the array itself if the device is the host."""
        found: NDArray[Any] = runtime.download(array, room=lambda nbytes: self.piece(name, nbytes))
        return found

    def copy(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """Copy an array into the buffer `name`; return the contiguous copy."""
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
    if a.shape != b.shape or a.itemsize != b.itemsize:
        return False
    return np.array_equal(bits(a), bits(b))


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """View the elements as unsigned integers."""
    return np.asarray(array).view(f"u{array.itemsize}")


def holds(array: NDArray[Any], byte: int) -> NDArray[np.bool_]:
    """Mask of the elements in which every byte equals `byte`."""
    return np.asarray(bits(array) == bits(np.full(array.itemsize, byte, np.uint8).view(f"u{array.itemsize}")))
