"""The contract of an array library's adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from convforge.backends.runtime import CallerStream


class Library(Protocol):
    """A library's arrays; adapters derive from it for its defaults.

    Attributes
    ----------
    kind : str
        Its arrays' name in messages, with an article.
    arrays : tuple of type
        Its classes of arrays.
    """

    kind: str
    arrays: tuple[type, ...]

    def device(self, array: Any, name: str) -> str:
        """Device of an array: "cpu" or "cuda:0"; ``ValueError`` for another kind."""
        ...

    def check(self, array: Any, name: str) -> None:
        """Raise an error that explains why the array's elements cannot be read in place, or return."""
        ...

    def dtype(self, array: Any) -> str:
        """Element type of an array; for those that convforge takes, by our name."""
        ...

    def view(self, array: Any, written: bool = False) -> Any:
        """The same memory as a NumPy array or a DeviceArray; `written` where a plan writes to it."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new array of the library, not yet written."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new array of zeros."""
        ...

    def empty_like(self, array: Any) -> Any:
        """A new array of the same shape, dtype and order of axes in memory, not yet written."""
        ...

    def cast(self, array: Any, dtype: str) -> Any:
        """A contiguous copy in a type of ours."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copy the elements of one array to another of the same shape."""
        ...

    def stream(self, device: str) -> CallerStream:
        """The caller's current stream on a GPU."""
        ...

    def signature(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        """All that a plan reads of arrays besides their elements, and the addresses of a GPU's arrays.

        On a GPU the signature has shape, strides, dtype, device and the address modulo 256; on the host shape and dtype
        alone, because a plan reads the rest on every call. None where a call must not be cached: one of the arrays is
        not the library's, or not plain. By default always None.
        """
        return None

    def guard(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        """Return a function from arrays of this signature to their addresses, and to None for others (GPU only).

        None, the default, where the library has nothing quicker than :meth:`signature`.
        """
        return None

    def address(self, array: Any) -> int:
        """Address of an array on a GPU."""
        return int(self.view(array).__array_interface__["data"][0])

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        """Return a function that makes such arrays as :meth:`empty` does, called while their GPU is current."""
        return partial(self.empty, shape, dtype, device)

    def handles(self, device: str) -> Callable[[], int]:
        """Return a function that gives the driver's handle of the caller's current stream."""
        return lambda: int(self.stream(device).handle)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        """Take memory of the library for work on the current stream; return its address and its owner."""
        block = self.empty((nbytes,), "uint8", device)
        return self.address(block), block

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        """Return an array of :meth:`empty`, which work on the stream writes, as the caller gets it."""
        return array
