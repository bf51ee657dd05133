"""A pool of GPU memory: a free block serves the next request of the same size on the same stream.

The stream orders all work on a block. Reuse needs no driver call, so it is allowed under graph capture.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.driver import checked

# Requests are rounded up to a multiple of this, which is also their alignment.
GRAIN = 512


class Block:
    """A block of GPU memory; it returns to its pool when nothing refers to it any more."""

    __slots__ = ("__weakref__", "address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class Pool:
    """Free blocks of one GPU by stream and size; beyond `limit_bytes` they return to the driver. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._free: dict[tuple[int, int], list[int]] = {}
        self._free_bytes = 0
        # Blocks returned while a graph is captured or run: the graph's launches still use their memory.
        self._held: list[tuple[int, int, int]] = []
        self._holders = 0
        self._lock = threading.RLock()

    def take(self, nbytes: int, stream: int) -> Block:
        """Return a block of at least `nbytes` bytes for work on `stream`."""
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
        """In this `with` block, keep freed blocks in the pool, even above its limit: a captured graph uses them."""
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
        """Take a returned block of this size for this stream; return its address, or 0 if there is none."""
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
        """Return all free blocks to the driver, except held ones."""
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
    """Page-locked host memory with NumPy's array interface, freed with the last array over it."""

    def __init__(self, nbytes: int) -> None:
        from cuda.bindings import driver

        address = int(_page_locked(nbytes, driver.cuMemHostAlloc(nbytes, driver.CU_MEMHOSTALLOC_PORTABLE)))
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
        weakref.finalize(self, driver.cuMemFreeHost, address).atexit = False


def pinned(nbytes: int) -> NDArray[np.uint8]:
    """Allocate page-locked host memory, aligned to a page; slow. ``MemoryError`` if there is too little."""
    return np.asarray(_Pinned(nbytes)) if nbytes else np.empty(0, np.uint8)


def page_lock(array: NDArray[np.uint8]) -> None:
    """Page-lock memory that exists, for all GPUs. ``MemoryError`` if there is too little."""
    from cuda.bindings import driver

    flags = driver.CU_MEMHOSTREGISTER_PORTABLE
    _page_locked(array.nbytes, driver.cuMemHostRegister(array.ctypes.data, array.nbytes, flags))


def _page_locked(nbytes: int, answer: tuple[Any, ...]) -> Any:
    """Return the value of the driver's answer to a wish for page-locked memory."""
    from cuda.bindings import driver

    if answer[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(f"the host has no {nbytes} bytes left that can be page-locked")
    return checked(answer)
