"""The contract of an array library's adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from convforge.backends.runtime import CallerStream

# A call's signature, and the addresses of its arrays on a GPU; see :meth:`Library.signature`.
Signature = tuple[list[Any], list[int]]


class Library(Protocol):
    """A library's arrays; adapters derive from it for its defaults."""

    kind: str  # name of its arrays in messages, with an article
    arrays: tuple[type, ...]  # its classes of arrays

    def device(self, array: Any, name: str) -> str:
        """Device of an array: "cpu" or "cuda:0"; ``ValueError`` for another kind."""
        ...

    def check(self, array: Any, name: str) -> None:
        """Raise an error that says why the array's elements cannot be read in place, or return."""
        ...

    def dtype(self, array: Any) -> str:
        """Element type of an array; for supported ones, convforge's name."""
        return str(array.dtype)

    def view(self, array: Any, written: bool = False) -> Any:
        """The same memory as a NumPy array or a DeviceArray; `written` if a plan writes to it."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> Any:
        """A new array of the library, uninitialised or of zeros."""
        ...

    def empty_like(self, array: Any) -> Any:
        """A new, uninitialised array of the same shape, dtype and order of axes in memory."""
        ...

    def cast(self, array: Any, dtype: str) -> Any:
        """A contiguous copy in one of convforge's types."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copy elements between two arrays of the same shape."""
        target[...] = source

    def stream(self, device: str) -> CallerStream:
        """The caller's current stream on a GPU."""
        ...

    def signature(self, arrays: Sequence[Any]) -> Signature | None:
        """All that a plan reads of arrays besides their elements, and the addresses of a GPU's arrays.

        On a GPU the signature has shape, strides, dtype, device and the address modulo 256; on the host only shape and
        dtype, because a plan reads the rest on every call. None, the default, if a call must not be cached: one of the
        arrays is not the library's, or not plain.
        """
        return None

    def guard(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        """Return a function from arrays of this signature to their addresses, and to None for others (GPU only).

        None, the default, if the library has nothing quicker than :meth:`signature`.
        """
        return None

    def address(self, array: Any) -> int:
        return int(self.view(array).__array_interface__["data"][0])

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        """Return a function that makes such arrays as :meth:`empty` does, called while their GPU is current."""
        return partial(self.empty, shape, dtype, device)

    def handles(self, device: str) -> Callable[[], int]:
        """Return a function that returns the driver's handle of the caller's current stream."""
        return lambda: int(self.stream(device).handle)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        """Allocate memory of the library for work on the current stream; return its address and its owner."""
        block = self.empty((nbytes,), "uint8", device)
        return self.address(block), block

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        """Return an array of :meth:`empty`, which work on the stream writes, in the caller's form."""
        return array
