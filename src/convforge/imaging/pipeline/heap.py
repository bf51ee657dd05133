"""Memory that is free in the process's heap, returned to the system.

glibc keeps freed blocks for later, in several heaps. A store that codes a shard in pieces leaves such blocks behind,
and they would take as much memory as the units in work.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from mmap import PAGESIZE
from pathlib import Path
from time import monotonic
from typing import Any

# Bytes of a large block: the most that glibc allows. Smaller ones are used again, until `Heap` returns them.
MAPPED_FROM = 2**25

_M_MMAP_THRESHOLD = -3  # malloc.h

# Seconds between two returns, which stop all threads that allocate.
PAUSE = 0.2

_STATM = Path("/proc/self/statm")  # the second number: resident pages


@cache
def _glibc() -> Any:
    """Return the C library if it is glibc, else None: of others nothing is known to be kept."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "gnu_get_libc_version") else None


class Heap:
    """The process's memory, which may grow by `nbytes` from now on before free blocks are returned."""

    def __init__(self, nbytes: int) -> None:
        self._library = _glibc()
        self._most = resident_bytes() + nbytes
        self._trimmed_at = 0.0

    def trim(self) -> None:
        """Return free memory to the system if the process has too much of it."""
        now = monotonic()
        if self._library is not None and now - self._trimmed_at >= PAUSE and resident_bytes() > self._most:
            self._trimmed_at = now
            self._library.malloc_trim(0)


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory; 0 if the system does not tell them."""
    try:
        return int(_STATM.read_bytes().split()[1]) * PAGESIZE
    except OSError:
        return 0


def return_large_blocks() -> None:
    """Return large blocks to the system as soon as they are freed; this holds for the rest of the process."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
