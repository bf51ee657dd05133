"""Views of the user's arrays for plans, and results in the same library.

A plan reads NumPy arrays, or :class:`DeviceArray` in GPU memory. All arrays of a call are of one library and on one
device, the :class:`Home` of the call; `libraries` has an adapter for each library.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.arrays import DeviceArray, address
from convforge.backends.runtime import CallerStream
from convforge.call.libraries import library_of
from convforge.call.libraries.contract import Library
from convforge.problem.types import ADDED, SHORT_NAMES, numpy_dtype

# Array types that a plan reads and writes.
View = NDArray[Any] | DeviceArray

# Types that every library has; error messages propose casts to these.
READ_DTYPES = tuple(name for name in SHORT_NAMES if name not in ADDED)


def dtype_name(array: View) -> str:
    """Return convforge's name of the element type of a view."""
    return _name(array.dtype)


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """Cached, because NumPy computes a dtype's name on every access, which takes microseconds."""
    return dtype.name


def is_transposed(matrix: Any) -> bool:
    """True if the elements of a column are contiguous and those of a row are not.

    Examples
    --------
    >>> stored = np.zeros((8, 16), np.float16)
    >>> is_transposed(stored.T), is_transposed(stored), is_transposed(stored[:, ::2])
    (True, False, False)
    """
    return 1 not in matrix.shape and matrix.strides[0] == matrix.itemsize != matrix.strides[1]


@dataclass(frozen=True, slots=True)
class Home:
    """The library and device ("cpu", "cuda:0", ...) of a call's arrays."""

    library: Library
    device: str

    @property
    def on_host(self) -> bool:
        return self.device == "cpu"

    def runs_on(self, device: str | None) -> str | None:
        """Return the device that computes a call: the GPU of its arrays; for arrays on the host the requested device.

        Raises ``ValueError`` if another device is requested for arrays on a GPU.
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
        """Check an argument and return its view; copy it only if its byte order is not the machine's.

        Raises ``TypeError`` for an unsupported dtype (the text proposes casts to `dtypes`) or unreadable elements, and
        ``ValueError`` if the number of axes is not in `ranks`, or the argument requires a gradient.
        """
        if value is None:
            raise TypeError(f"{name} must be an array; got None")
        self.library.check(value, name)
        word = self.library.dtype(value)
        if word not in SHORT_NAMES:
            types = ", ".join(dtypes)
            advice = f"cast it to one of {types}"
            if word.startswith("complex"):
                advice = f"convolve its .real and .imag one by one, for convolution is linear, in one of {types}"
            elif word in ("int64", "uint64", "uint32") and {"int32", "float64"} <= set(dtypes):
                advice = f"cast it to int32 where its values fit, else to float64, or to another of {types}"
            raise TypeError(f"{name} has dtype {word}, which convforge does not take; {advice}")
        array = self.library.view(value)
        if ranks is not None and array.ndim not in ranks:
            wanted = " or ".join(str(rank) for rank in ranks)
            raise ValueError(f"{name} has {array.ndim} axes, shape {array.shape}; it must have {wanted}")
        return array

    def kept(self, value: Any, name: str, ranks: tuple[int, ...]) -> Any:
        """Copy an argument that the caller may change later."""
        return self.library.cast(value, dtype_name(self.read(value, name, ranks)))

    def operand(self, view: Any, value: Any, dtype: str) -> Any:
        """Return an operand of the epilogue for kernels: contiguous and of type `dtype`; copy it if necessary."""
        if view is None or self.on_host or (dtype_name(view) == dtype and dense_order(view) == tuple(range(view.ndim))):
            return view
        return self.library.view(self.library.cast(value, dtype))

    def upload(self, array: NDArray[Any]) -> View:
        """Return a view of a NumPy array on the home's device."""
        return array if self.on_host else self.library.view(self.library.from_host(array, self.device))

    def filled(self, view: Any, shape: tuple[int, ...]) -> Any:
        """Return the view; or zeros of `shape`, the problem's shape, if x has no channels or no pixels.

        `view` may have no batch axis.
        """
        shape = shape[len(shape) - view.ndim :]
        if view.shape == shape:
            return view
        return self.library.view(self.library.empty(shape, dtype_name(view), self.device, zeros=True))

    def output(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...] = ()) -> Output:
        """Return the array for a result: the caller's `out`, or a new one of the same library.

        Raises ``TypeError`` or ``ValueError`` if `out` cannot be written to, or has another shape or dtype.
        """
        if out is None:
            fresh = self.library.empty(shape, dtype, self.device)
            return Output(self.library, fresh, self.library.view(fresh), None)
        self.library.check(out, "out")
        target = self.library.view(out, written=True)
        if target.shape != shape or target.dtype != numpy_dtype(dtype):
            raise ValueError(
                f"out has shape {target.shape} and dtype {target.dtype}; the result has {shape} and {dtype}"
            )
        if isinstance(target, np.ndarray) and not target.flags.writeable:
            raise ValueError("out is read-only; give a writable array")
        if repeats(target):
            raise ValueError(
                f"out has strides {target.strides}, so that several results would share one place; copy it"
            )
        if any(overlap(target, array) for array in inputs):
            fresh = self.library.empty(shape, dtype, self.device)
            return Output(self.library, fresh, self.library.view(fresh), out)
        return Output(self.library, out, target, None)

    def number(self, value: Any, name: str, others: tuple[Any, ...]) -> Any:
        """Return the view of an array of one float32 that a call sets; `others` are the other arrays of the call.

        Raises ``TypeError`` or ``ValueError`` if it cannot be written to, has another type or size, or overlaps one.
        """
        self.library.check(value, name)
        view = self.library.view(value, written=True)
        if dtype_name(view) != "float32" or view.size != 1:
            raise ValueError(
                f"{name} has shape {view.shape} and dtype {dtype_name(view)}; it must be one number of float32"
            )
        if isinstance(view, np.ndarray) and not view.flags.writeable:
            raise ValueError(f"{name} is read-only; give a writable array")
        if any(overlap(view, array) for array in others if array is not None):
            raise ValueError(f"{name} shares memory with another array of the call; give it memory of its own")
        return view

    def dense(self, value: Any, view: Any) -> tuple[Any, Any]:
        """Return an array and its view without gaps in memory, with the axes in any order; copy if necessary."""
        if dense_order(view) is not None:
            return value, view
        copy = self.library.cast(value, dtype_name(view))
        return copy, self.library.view(copy)

    def output_like(self, out: Any, value: Any, view: Any) -> Output:
        """Return the array for an elementwise result: `out` if its strides and memory allow it, else a new one."""
        fresh = self.library.empty_like(value)
        if out is None:
            return Output(self.library, fresh, self.library.view(fresh), None)
        there = self.output(out, view.shape, dtype_name(view)).view
        apart = not overlap(there, view) or address(there) == address(view)
        if apart and there.strides == view.strides:
            return Output(self.library, out, there, None)
        return Output(self.library, fresh, self.library.view(fresh), out)


@dataclass(frozen=True, slots=True)
class Output:
    library: Library
    written: Any
    view: Any
    wanted: Any  # the caller's `out` if it overlaps an input: the result is copied to it

    def finish(self, stream: CallerStream | None) -> Any:
        """Return the result to the caller, after everything has been launched."""
        if self.wanted is None:
            return self.library.give(self.written, stream)
        self.library.copy(self.wanted, self.written)
        return self.wanted


def home_of(**given: Any) -> Home:
    """Find the library and device of a call's arrays, given by argument name; None values are skipped.

    Raises ``TypeError`` if one is no array, ``ValueError`` for two libraries or two devices.
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


def overlap(a: View, b: View) -> bool:
    """True if the address ranges of two arrays overlap."""
    return np.may_share_memory(_described(a), _described(b))


def repeats(array: View) -> bool:
    """True if elements of an array may share memory, as in broadcast arrays or sliding windows.

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


def span(array: View) -> tuple[int, int]:
    """Return the address of an array's first byte, and of the byte after its last."""
    low, high = np.lib.array_utils.byte_bounds(_described(array))
    return int(low), int(high)


def _described(array: View) -> NDArray[Any]:
    """Return a NumPy array of the same shape, strides and address; on a GPU, its elements must not be read."""
    return array.described if isinstance(array, DeviceArray) else array


def flat(array: View) -> Any:
    """Return a 1D view, in memory order, of an array without gaps."""
    return array.transpose(*(dense_order(array) or ())).reshape(-1)


def dense_order(array: View) -> tuple[int, ...] | None:
    """Return the axes by stride, largest first; None if there are gaps between elements."""
    order = tuple(sorted(range(array.ndim), key=lambda axis: (-array.strides[axis], axis)))
    expected = array.itemsize
    for axis in reversed(order):
        if array.shape[axis] > 1:
            if array.strides[axis] != expected:
                return None
            expected *= array.shape[axis]
    return order
