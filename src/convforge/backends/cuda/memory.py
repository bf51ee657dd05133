"""GPU memory that is kept for the next request of the same size on the same stream.

What was returned on a stream may be handed out again on that stream at once: the work that used it is ordered before
the work that will. It takes no call of the driver, and so may happen while a graph is captured.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.driver import checked

# Requests are rounded up to a multiple of this, which is also how they are aligned.
GRAIN = 512


class Block:
    """A piece of GPU memory; it returns to its pool when nothing refers to it any more."""

    __slots__ = ("__weakref__", "address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class Pool:
    """Blocks of one GPU that are free to use again, by stream and size. Safe from many threads.

    Parameters
    ----------
    limit_bytes : int
        Beyond this much free memory, what comes back is given back to the driver.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._free: dict[tuple[int, int], list[int]] = {}
        self._free_bytes = 0
        # What came back while a graph was made or run: the graph's launches use that memory again.
        self._held: list[tuple[int, int, int]] = []
        self._holders = 0
        self._lock = threading.RLock()

    def take(self, nbytes: int, stream: int) -> Block:
        """A block of at least `nbytes` bytes for work on `stream`."""
        from cuda.bindings import driver

        size = -(-nbytes // GRAIN) * GRAIN
        with self._lock:
            address = self._again(size, stream)
        if not address:
            status, pointer = driver.cuMemAlloc(size)
            if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                self.clear()
                status, pointer = driver.cuMemAlloc(size)
            if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise MemoryError(f"the GPU has no {size} bytes left")
            address = int(checked((status, pointer)))
        block = Block(address, nbytes)
        weakref.finalize(block, self._give_back, address, size, stream).atexit = False
        return block

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep what comes back meanwhile from the driver, whatever the limit: a graph that was captured uses it."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                held = [] if self._holders else self._held
                self._held = self._held if self._holders else []
            for address, size, stream in held:
                self._give_back(address, size, stream)

    def _again(self, size: int, stream: int) -> int:
        """The address of memory that came back; 0 where there is none of this size."""
        for i, (address, *kind) in enumerate(self._held):
            if kind == [size, stream]:
                del self._held[i]
                return address
        free = self._free.get((stream, size))
        if not free:
            return 0
        self._free_bytes -= size
        return free.pop()

    def clear(self) -> None:
        """Give all that is free back to the driver, but for what is held."""
        from cuda.bindings import driver

        with self._lock:
            addresses = [address for free in self._free.values() for address in free]
            self._free.clear()
            self._free_bytes = 0
        for address in addresses:
            driver.cuMemFree(address)  # waits for the work that uses it

    def _give_back(self, address: int, size: int, stream: int) -> None:
        with self._lock:
            if self._holders:
                self._held.append((address, size, stream))
                return
            keep = self._free_bytes + size <= self._limit_bytes
            if keep:
                self._free.setdefault((stream, size), []).append(address)
                self._free_bytes += size
        if not keep:
            from cuda.bindings import driver

            driver.cuMemFree(address)


class _Pinned:
    """Page-locked host memory in the form of NumPy's array interface; given back when no array looks at it any more."""

    def __init__(self, nbytes: int) -> None:
        from cuda.bindings import driver

        status, pointer = driver.cuMemHostAlloc(nbytes, driver.CU_MEMHOSTALLOC_PORTABLE)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"the host has no {nbytes} bytes left that can be page-locked")
        address = int(checked((status, pointer)))
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
        weakref.finalize(self, driver.cuMemFreeHost, address).atexit = False


def pinned(nbytes: int) -> NDArray[np.uint8]:
    """Page-locked host memory, to and from which the GPU copies by itself; aligned to a page.

    Page-locking takes about a millisecond for every few megabytes: keep what is used again.

    Raises
    ------
    MemoryError
        The host has no such piece.
    """
    return np.asarray(_Pinned(nbytes)) if nbytes else np.empty(0, np.uint8)
