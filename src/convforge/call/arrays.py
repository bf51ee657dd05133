"""Arrays in, arrays out: what users hand us becomes an array that plans can read; the result is of the same kind.

A plan reads a NumPy array, or a :class:`DeviceArray` over memory of a GPU: shape, strides, type and place. All arrays
of a call are of one library and on one device, its :class:`Home`; what is particular to each stands in `libraries`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.streams import CallerStream
from convforge.call.libraries import library_of
from convforge.call.libraries.contract import Library
from convforge.problem.types import ADDED, SHORT_NAMES, numpy_dtype

# An array as plans read it.
Seen = NDArray[Any] | DeviceArray

# What messages tell users to cast to: what every library has.
READ_DTYPES = tuple(name for name in SHORT_NAMES if name not in ADDED)


def dtype_name(array: Seen) -> str:
    """Our name of the element type of an array that a :class:`Home` has let in."""
    return _name(array.dtype)


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """NumPy derives a dtype's name anew on every call, which takes microseconds."""
    return dtype.name


def as_array(value: Any, name: str, ranks: tuple[int, ...] | None = None) -> NDArray[Any]:
    """The host's array that the user gave as argument `name`, checked; see :meth:`Home.read`."""
    home = home_of(**{name: value})
    if not home.on_host:
        raise TypeError(f"{name} is on {home.device}; here it must be on the host: copy it there first")
    array: NDArray[Any] = home.read(value, name, ranks)
    return array


def _instead_of(word: str, dtypes: tuple[str, ...]) -> str:
    """Advice on an element type that is not taken."""
    if word.startswith("complex"):
        return f"convolve its .real and .imag one by one, for convolution is linear, in one of {', '.join(dtypes)}"
    if word in ("int64", "uint64", "uint32") and {"int32", "float64"} <= set(dtypes):
        return f"cast it to int32 where its values fit, else to float64, or to another of {', '.join(dtypes)}"
    return f"cast it to one of {', '.join(dtypes)}"


def lies_transposed(matrix: Any) -> bool:
    """True if the elements of a column are contiguous and those of a row are not.

    Examples
    --------
    >>> stored = np.zeros((8, 16), np.float16)
    >>> lies_transposed(stored.T), lies_transposed(stored), lies_transposed(stored[:, ::2])
    (True, False, False)
    """
    return 1 not in matrix.shape and matrix.strides[0] == matrix.itemsize != matrix.strides[1]


@dataclass(frozen=True, slots=True)
class Home:
    """The library and device of a call's arrays.

    Attributes
    ----------
    library : Library
    device : str
        "cpu", or "cuda:0", "cuda:1", ...
    """

    library: Library
    device: str

    @property
    def on_host(self) -> bool:
        """True if the host reads the arrays."""
        return self.device == "cpu"

    def runs_on(self, device: str | None) -> str | None:
        """Return the device of a call: the arrays' own, or for arrays of the host the one that was asked for.

        Raises
        ------
        ValueError
            Arrays of a GPU are asked to be computed elsewhere.
        """
        if self.on_host:
            return device
        if device is not None and (f"{device}:0" if device == "cuda" else device) != self.device:
            raise ValueError(
                f"device={device!r}, but the arrays are on {self.device}: leave device out, or move the arrays"
            )
        return self.device

    def stream(self) -> CallerStream | None:
        """The caller's current stream; None on the host."""
        return None if self.device == "cpu" else self.library.stream(self.device)

    def read(
        self, value: Any, name: str, ranks: tuple[int, ...] | None = None, dtypes: tuple[str, ...] = READ_DTYPES
    ) -> Any:
        """The array that the user gave as argument `name`, checked; never copied unless its bytes are in foreign order.

        Raises
        ------
        TypeError
            It is of an element type that convforge does not take, or such that its elements cannot be read. The text
            names `dtypes`, which are those to cast to.
        ValueError
            Its number of axes is not among `ranks`, or it wants a gradient.
        """
        if value is None:
            raise TypeError(f"{name} must be an array; got None")
        self.library.check(value, name)
        word = self.library.dtype(value)
        if word not in SHORT_NAMES:
            raise TypeError(f"{name} has dtype {word}, which convforge does not take; {_instead_of(word, dtypes)}")
        array = self.library.seen(value)
        if ranks is not None and array.ndim not in ranks:
            wanted = " or ".join(str(rank) for rank in ranks)
            raise ValueError(f"{name} has {array.ndim} axes, shape {array.shape}; it must have {wanted}")
        return array

    def kept(self, value: Any, name: str, ranks: tuple[int, ...]) -> tuple[Any, Any]:
        """A copy of an argument that the caller may change later, and the same as :meth:`read` has it."""
        seen = self.read(value, name, ranks)
        copy = self.library.cast(value, dtype_name(seen))
        return copy, self.library.seen(copy)

    def operand(self, seen: Any, value: Any, dtype: str) -> Any:
        """A vector of the epilogue as kernels of a device take it: contiguous, of one type; else a copy."""
        if seen is None or self.on_host or (dtype_name(seen) == dtype and dense_order(seen) == tuple(range(seen.ndim))):
            return seen
        return self.library.seen(self.library.cast(value, dtype))

    def filled(self, seen: Any, shape: tuple[int, ...]) -> Any:
        """An array, or zeros in its stead where its problem has another shape: that of no channels has one a group.

        Parameters
        ----------
        shape : tuple of int
            Of the problem's array; `seen` may lack the batch axis.
        """
        shape = shape[len(shape) - seen.ndim :]
        if seen.shape == shape:
            return seen
        return self.library.seen(self.library.zeros(shape, dtype_name(seen), self.device))

    def output(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...] = ()) -> Output:
        """Return the array for a result of this shape and dtype: the caller's `out`, or a new one of the same library.

        Raises
        ------
        TypeError
            `out` cannot be written to.
        ValueError
            It has another shape or dtype, is read-only, or has several elements in one place.
        """
        if out is None:
            fresh = self.library.empty(shape, dtype, self.device)
            return Output(self.library, fresh, self.library.seen(fresh), None)
        self.library.check(out, "out")
        target = self.library.seen(out, written=True)
        if target.shape != shape or target.dtype != numpy_dtype(dtype):
            raise ValueError(
                f"out has shape {target.shape} and dtype {target.dtype}; the result has {shape} and {dtype}"
            )
        if isinstance(target, np.ndarray) and not target.flags.writeable:
            raise ValueError("out is read-only; give a writable array")
        if repeats(target):
            raise ValueError(
                f"out has strides {target.strides}, so that several results would lie in one place; copy it"
            )
        if any(overlap(target, array) for array in inputs):
            fresh = self.library.empty(shape, dtype, self.device)
            return Output(self.library, fresh, self.library.seen(fresh), out)
        return Output(self.library, out, target, None)

    def dense(self, value: Any, seen: Any) -> tuple[Any, Any]:
        """An array whose elements lie side by side, in any order of its axes; a copy where they do not."""
        if dense_order(seen) is not None:
            return value, seen
        copy = self.library.cast(value, dtype_name(seen))
        return copy, self.library.seen(copy)

    def output_like(self, out: Any, value: Any, seen: Any) -> Output:
        """Return the array for an elementwise result: `out` where its layout is the input's, or it is the input."""
        fresh = self.library.empty_like(value)
        if out is None:
            return Output(self.library, fresh, self.library.seen(fresh), None)
        there = self.output(out, seen.shape, dtype_name(seen)).seen
        apart = not overlap(there, seen) or address(there) == address(seen)
        if apart and there.strides == seen.strides:
            return Output(self.library, out, there, None)
        return Output(self.library, fresh, self.library.seen(fresh), out)


@dataclass(frozen=True, slots=True)
class Output:
    """A result's array, and the value that the caller gets for it.

    Attributes
    ----------
    written : array of the caller's library
    seen : array
        The same as plans see it.
    wanted : array or None
        The caller's `out`, where it overlaps an input: the result is copied there.
    """

    library: Library
    written: Any
    seen: Any
    wanted: Any

    def finish(self, stream: CallerStream | None) -> Any:
        """Return the caller's value, once everything has been launched."""
        if self.wanted is None:
            return self.library.give(self.written, stream)
        self.library.copy(self.wanted, self.written)
        return self.wanted


def home_of(**given: Any) -> Home:
    """Find the home of a call's arrays, given by the names of their arguments; None values are skipped.

    Raises
    ------
    TypeError
        One is no array that convforge knows.
    ValueError
        They are of two libraries, or on two devices.
    """
    home, first = None, ""
    for name, value in given.items():
        if value is None:
            continue
        library = library_of(value, name)
        device = library.device(value, name)
        if home is None:
            home, first = Home(library, device), name
        elif home.library is not library or home.device != device:
            raise ValueError(
                f"{first} is {home.library.kind} on {home.device} and {name} is {library.kind} on {device}; all arrays "
                f"of a call must be of one library and on one device: move {name} to where {first} is"
            )
    if home is None:
        raise TypeError(f"{' or '.join(given)} must be an array; got None")
    return home


def overlap(a: Seen, b: Seen) -> bool:
    """True if two arrays may share memory, by their first and last bytes."""
    return np.may_share_memory(_described(a), _described(b))


def repeats(array: Seen) -> bool:
    """True if elements of one array may share memory, as in broadcast axes or sliding windows.

    Examples
    --------
    >>> x = np.zeros(8)
    >>> repeats(x), repeats(x.reshape(2, 4).T[::-1, ::2]), repeats(np.broadcast_to(x, (2, 8)))
    (False, False, True)
    >>> repeats(np.lib.stride_tricks.sliding_window_view(x, 3))
    True
    """
    if not array.size:
        return False
    extent = array.dtype.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1:
            if step < extent:
                return True
            extent += step * (size - 1)
    return False


def address(array: Seen) -> int:
    """Address of an array's first element."""
    return array.address if isinstance(array, DeviceArray) else int(array.__array_interface__["data"][0])


def span(array: Seen) -> tuple[int, int]:
    """The first byte of an array, and the one behind its last."""
    low, high = np.lib.array_utils.byte_bounds(_described(array))
    return int(low), int(high)


def _described(array: Seen) -> NDArray[Any]:
    """Shape, strides and place of an array; elements of a GPU's must not be touched."""
    return array.described if isinstance(array, DeviceArray) else array


def flat(array: Seen) -> Any:
    """A dense array as one run of its elements, as they lie."""
    return array.transpose(*(dense_order(array) or ())).reshape(-1)


def dense_order(array: Seen) -> tuple[int, ...] | None:
    """The axes, slowest first, in which the elements lie side by side; None where they have gaps."""
    order = tuple(sorted(range(array.ndim), key=lambda axis: (-array.strides[axis], axis)))
    expected = array.itemsize
    for axis in reversed(order):
        if array.shape[axis] > 1:
            if array.strides[axis] != expected:
                return None
            expected *= array.shape[axis]
    return order


__all__ = ["Home", "Output", "Seen", "as_array", "dense_order", "dtype_name", "flat", "home_of", "overlap"]
