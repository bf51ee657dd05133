"""Memory that is free in the process's heap, returned to the system where the C library is glibc.

glibc keeps freed blocks for later, in several heaps. A store that codes a shard in pieces leaves such blocks behind,
and they would take as much memory as the units in work.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from time import monotonic
from typing import Any

# Blocks of at least this many bytes are returned when they are freed.
MAPPED_FROM = 2**20

_M_MMAP_THRESHOLD = -3  # malloc.h

EVERY_SECONDS = 0.2
_trimmed_at = 0.0


@cache
def _glibc() -> Any:
    """Return the C library if it is glibc, else None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "gnu_get_libc_version") else None


def trim() -> None:
    """Return free memory to the system, unless that was done a moment ago: it stops all threads that allocate."""
    global _trimmed_at
    now = monotonic()
    if now - _trimmed_at >= EVERY_SECONDS and (library := _glibc()) is not None:
        _trimmed_at = now
        library.malloc_trim(0)


def return_large_blocks() -> None:
    """Return large blocks to the system as soon as they are freed; this holds for the rest of the process."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)
