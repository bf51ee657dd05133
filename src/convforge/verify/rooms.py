"""Host memory that large results are brought into, kept from one to the next.

Touching fresh memory for the first time can take many times as long as the copy into it, and results of one case are
all of one size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import Runtime


class Rooms:
    """Pieces of host memory by name; what stands in one is lost when it is used again."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[np.uint8]] = {}

    def room(self, name: str, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` bytes of memory, what they hold being anything."""
        kept = self._kept.get(name)
        if kept is None or kept.size < nbytes:
            kept = self._kept[name] = np.empty(nbytes, np.uint8)
        return kept[:nbytes]

    def bring(self, runtime: Runtime, array: Any, name: str) -> NDArray[Any]:
        """A device's array on the host: in this room, or the array itself where the device is the host."""
        found: NDArray[Any] = runtime.download(array, room=lambda nbytes: self.room(name, nbytes))
        return found

    def copy(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """A contiguous copy of an array in this room."""
        copied = self.room(name, array.nbytes).view(array.dtype).reshape(array.shape)
        copied[...] = array
        return copied
