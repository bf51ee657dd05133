"""Contract of the adapter of an array library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from convforge.backends.runtime import CallerStream

# Result of :meth:`Library.signature`: the signature, and the addresses of arrays on a GPU.
Signature = tuple[list[Any], list[int]]


class Library(Protocol):
    """Operations on the arrays of a library; adapters derive from this class for its defaults."""

    kind: str  # name of its arrays in messages, with an article
    arrays: tuple[type, ...]  # its array classes

    def device(self, array: Any, name: str) -> str:
        """Return the device of an array, such as "cpu" or "cuda:0"; ``ValueError`` for other kinds of devices."""
        ...

    def check(self, array: Any, name: str) -> None:
        """Raise an error with the reason if the array's elements cannot be read in place."""
        ...

    def dtype(self, array: Any) -> str:
        """Return the name of the element type of an array; for supported types it is convforge's name."""
        return str(array.dtype)

    def view(self, array: Any, written: bool = False) -> Any:
        """Return a view of the array as a NumPy array or a DeviceArray; `written` if a plan writes to it."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: str, device: str, zeros: bool = False) -> Any:
        """Make an array of the library, uninitialised or of zeros."""
        ...

    def empty_like(self, array: Any) -> Any:
        """Make an uninitialised array of the same shape, dtype and order of axes in memory."""
        ...

    def cast(self, array: Any, dtype: str) -> Any:
        """Return a contiguous copy of the array as `dtype`, one of convforge's types."""
        ...

    def from_host(self, array: NDArray[Any], device: str) -> Any:
        """Make an array of the library on a device from a NumPy array."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copy elements to an array of the same shape."""
        target[...] = source

    def stream(self, device: str) -> CallerStream:
        """Return the caller's current stream on a GPU."""
        ...

    def signature(self, arrays: Sequence[Any]) -> Signature | None:
        """Return the properties of arrays on which a call's plan depends, and the addresses of arrays on a GPU.

        On a GPU the signature has shape, strides, dtype, device and the address modulo 256; on the host only shape and
        dtype, because a plan reads the rest on every call. None, the default, if the call must not be cached, for
        example because an array is of another library or of a subclass.
        """
        return None

    def guard(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        """Return a function that gives the addresses of arrays of this signature, and None for other arrays (GPU only).

        None, the default, if the library has no faster check than :meth:`signature`.
        """
        return None

    def address(self, array: Any) -> int:
        return int(self.view(array).__array_interface__["data"][0])

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        """Return a function that makes arrays as :meth:`empty` does; it is called while their GPU is current."""
        return partial(self.empty, shape, dtype, device)

    def handles(self, device: str) -> Callable[[], int]:
        """Return a function that returns the driver's handle of the caller's current stream."""
        return lambda: int(self.stream(device).handle)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        """Allocate memory of the library for work on the current stream; return its address and its owner."""
        block = self.empty((nbytes,), "uint8", device)
        return self.address(block), block

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        """Return an array from :meth:`empty` to the caller, after work that writes it was queued on the stream."""
        return array
