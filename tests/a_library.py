"""A library of arrays that does not exist: its device is the emulator, its memory and its stream are its own.

What a GPU's arrays go through (no copy to and fro, the caller's stream and memory) runs so on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from convforge.backends.runtime import CallerStream
from convforge.call import libraries
from convforge.problem.types import numpy_dtype


class There:
    """An array of the library; `lies` is where plans see it."""

    def __init__(self, lies: Any) -> None:
        self.lies = lies


def aligned(nbytes: int) -> Any:
    """Bytes that begin where a GPU's memory would, at a multiple of 512, and hold what no result holds."""
    raw = np.full(nbytes + 512, 0x7F, np.uint8)
    first = -raw.ctypes.data % 512
    return raw[first : first + nbytes]


class ALibrary:
    """See :class:`convforge.call.libraries.contract.Library`. Streams have numbers; the current one is `current`."""

    kind = "an array that is there"
    arrays: tuple[type, ...] = (There,)

    def __init__(self) -> None:
        self.current = 7
        self.capturing = False
        self.taken: list[int] = []
        self.made = 0

    def device(self, array: Any, name: str) -> str:
        return "emulator"

    def check(self, array: Any, name: str) -> None:
        pass

    def dtype(self, array: Any) -> str:
        return str(array.lies.dtype)

    def view(self, array: Any, written: bool = False) -> Any:
        return array.lies

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> There:
        self.made += 1
        return There(aligned(math.prod(shape) * numpy_dtype(dtype).itemsize).view(numpy_dtype(dtype)).reshape(shape))

    def empty_like(self, array: Any) -> There:
        return There(np.empty_like(array.lies))

    def cast(self, array: Any, dtype: str) -> There:
        return There(np.array(array.lies, dtype, order="C"))

    def from_host(self, array: Any, device: str) -> There:
        return There(array.copy())

    def copy(self, target: Any, source: Any) -> None:
        target.lies[...] = source.lies

    def signature(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        return self._signature(arrays)

    def _signature(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        if not all(type(array) is There for array in arrays):
            return None
        places = [self.address(array) for array in arrays]
        found = [(array.lies.shape, array.lies.strides, array.lies.dtype) for array in arrays]
        return [*found, *[place % 256 for place in places]], places

    def guard(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        wanted = self._signature(arrays)

        def places(*others: Any) -> list[int] | None:
            found = self._signature(others)
            return None if found is None or wanted is None or found[0] != wanted[0] else found[1]

        return places

    def address(self, array: Any) -> int:
        return int(array.lies.__array_interface__["data"][0])

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        return partial(self.empty, shape, dtype, device)

    def handles(self, device: str) -> Any:
        return lambda: self.current

    def stream(self, device: str) -> CallerStream:
        return CallerStream(self.current, partial(self.take, device=device), self.capturing)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        self.taken.append(nbytes)
        block = aligned(nbytes)
        return block.ctypes.data, block

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        return array


@contextmanager
def a_library() -> Iterator[ALibrary]:
    """The library, known to convforge for as long as the context lasts."""
    library = ALibrary()
    libraries._ADAPTERS[__name__] = lambda module: library
    try:
        yield library
    finally:
        del libraries._ADAPTERS[__name__]
        for cached in (libraries._made, libraries._library, libraries.cached_library):
            cached.cache_clear()
