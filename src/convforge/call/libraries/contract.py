"""The contract of an array library's adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from convforge.backends.streams import CallerStream


class Library(Protocol):
    """A library's arrays.

    Attributes
    ----------
    kind : str
        What messages call one, with its article.
    arrays : tuple of type
        Its classes of arrays.
    """

    kind: str
    arrays: tuple[type, ...]

    def device(self, array: Any, name: str) -> str:
        """Device of an array: "cpu" or "cuda:0"; ValueError for another kind."""
        ...

    def check(self, array: Any, name: str) -> None:
        """Refuse an array whose elements cannot be read as they lie, in a sentence."""
        ...

    def dtype(self, array: Any) -> str:
        """Its element type; for those that convforge takes, by our name."""
        ...

    def seen(self, array: Any, written: bool = False) -> Any:
        """The same memory as plans see it; to be written to, where that is said."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new array of the library, not yet written."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new array of zeros."""
        ...

    def empty_like(self, array: Any) -> Any:
        """The same as :meth:`empty` of an array's shape and type, whose axes lie in memory in the same order."""
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

    def signed(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        """All that a plan looks at, and the addresses of a GPU's arrays; None where a call goes the whole way.

        So it does where one of them is not the library's.
        A plan looks at an address's remainder of 256. On the host it is shape and type alone: there a plan looks at the
        rest anew on every call.
        """
        ...

    def alike(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        """Return a function from arrays of this signature to their addresses, and to None for others (GPU only).

        None where the library has nothing quicker than :meth:`signed`.
        """
        ...

    def address(self, array: Any) -> int:
        """Address and device of an array on a GPU."""
        ...

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        """A function that makes such arrays as :meth:`empty` does. When it is called, their GPU is the thread's own."""
        ...

    def handles(self, device: str) -> Callable[[], int]:
        """A function that gives the driver's handle of the caller's current stream."""
        ...

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        """Memory of the library for work on the current stream: its address, and what keeps it."""
        ...

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        """An array of :meth:`empty` as the caller gets it, once work on the stream writes it."""
        ...


class Plain:
    """Defaults for a library that has nothing special."""

    def signed(self: Any, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        return None

    def alike(self: Any, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        return None

    def address(self: Any, array: Any) -> int:
        return int(self.seen(array).__array_interface__["data"][0])

    def maker(self: Any, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        return partial(self.empty, shape, dtype, device)

    def handles(self: Any, device: str) -> Callable[[], int]:
        return lambda: int(self.stream(device).handle)

    def take(self: Any, nbytes: int, device: str) -> tuple[int, Any]:
        block = self.empty((nbytes,), "uint8", device)
        return self.address(block), block
