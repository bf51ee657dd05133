"""The weights of a filter: the numbers of a kernel, from an array or a text, in the type of their sums."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.forks import no_fork
from convforge.call.libraries.adapters import is_masked
from convforge.imaging.rational import over_a_divisor
from convforge.peers import every_algorithm
from convforge.problem.types import ADDED, is_integer, limits, magnitude

# Smallest side of a kernel of rank 1 for which two 1D passes are faster than one 2D pass; see docs/methods.md.
_SEPARABLE_FROM = 5


def kernel_array(kernel: NDArray[Any] | str | os.PathLike[str]) -> NDArray[np.float64]:
    """Return a kernel as float64 (R, S) from an array or a text; float32(1 / 9) is read as 1 / 9.

    ``ValueError`` or ``TypeError`` unless it is a two-dimensional array of finite real numbers, or a text for one.
    """
    taps, depth = kernel_arrays(kernel)
    if depth is not None:
        raise ValueError(f"the kernel {kernel!r} reaches along Z; convforge.filter and filter_large filter volumes")
    return taps


def kernel_arrays(
    kernel: NDArray[Any] | str | os.PathLike[str],
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return a kernel as :func:`kernel_array` does, and its taps along Z (D,) if it has any."""
    if isinstance(kernel, str | os.PathLike):
        with no_fork():
            from convforge.imaging.kernels import load_kernel

        loaded = load_kernel(os.fspath(kernel))
        return np.array(loaded.values), loaded.depth
    return _array_of(kernel), None


def _array_of(kernel: Any) -> NDArray[np.float64]:
    if is_masked(kernel):
        raise TypeError("the kernel is a masked array, whose mask would be lost; fill it first, as in kernel.filled(0)")
    try:
        array = np.asarray(kernel)
    except (TypeError, ValueError, RuntimeError) as fault:  # rows of different lengths, or an unreadable tensor
        raise TypeError(f"the kernel is no array that NumPy reads, of shape (R, S): {fault}") from None
    if array.dtype.kind not in "iufb" and array.dtype.name not in ADDED:
        hint = "; filter with .real and .imag one by one, convolution is linear" if array.dtype.kind == "c" else ""
        raise TypeError(f"the kernel has dtype {array.dtype}; it must hold real numbers{hint}")
    if array.ndim != 2 or not array.size:
        raise ValueError(f"the kernel has shape {array.shape}; it must be (R, S) with at least one number")
    taps = array.astype(np.float64)
    if not np.isfinite(taps).all():
        raise ValueError("the kernel holds NaN or Inf; every number must be finite")
    found = over_a_divisor(array) if array.dtype == np.float32 else None
    return taps if found is None else found[0] / found[1]


def weights_of(
    taps: NDArray[np.float64], pixels: np.dtype[Any], channels: int, result: str, algorithm: str
) -> tuple[NDArray[Any], int]:
    """Return the kernel in the type of its sums, and the integer that divides each sum.

    Over integer pixels, whole numbers and fractions with a common divisor are summed exactly, in the narrowest type
    that holds every sum. If a sum is below half of the largest consecutive integer of the float type (2**24 in float32,
    2**53 in float64), its one rounded division then rounds to the same integer as the exact quotient.
    """
    if not is_integer(pixels.name):  # sums of 16-bit floats are float32, and so is their kernel
        return _cast(taps, np.float64 if pixels == np.float64 else np.float32), 1
    whole, divisor = (taps, 1) if (taps == np.rint(taps)).all() else over_a_divisor(taps) or (taps, 0)
    largest = float(np.abs(whole).sum()) * channels * magnitude(pixels.name)
    # Methods that are not exact, such as the FFT, compute with fractions and need float sums.
    named = () if algorithm == "auto" else every_algorithm()
    methods = (a for a in named if a.operation == "conv2d" and a.name == algorithm)
    rounds = any(a.precision not in ("strict", "separable") for a in methods)
    rounds = rounds or (algorithm == "separable" and not _has_rank_1(whole, whole.dtype))
    if rounds or not divisor or (divisor > 1 and largest >= 2**52):
        wide = pixels.itemsize > (2 if rounds else 1) or result == "float64"
        return _cast(taps, np.float64 if wide else np.float32), 1
    if divisor > 1 and largest < 2**23 and result != "float64":
        return whole.astype(np.float32), divisor
    two_passes = algorithm == "separable" or (
        divisor > 1 and algorithm == "auto" and two_passes_pay(whole, whole.dtype)
    )
    small = None if two_passes else _small_integers(whole, pixels, channels)
    if small is None:
        small = "float32" if divisor == 1 and largest <= 2**24 and pixels.itemsize <= 2 else "float64"
    return _cast(whole, np.dtype(small)), divisor


def _small_integers(whole: NDArray[np.float64], pixels: np.dtype[Any], channels: int) -> str | None:
    """Return an integer type for the kernel if its sums over these pixels fit int32, else None."""
    for name in ("int8", "int16") if pixels.itemsize <= 2 else ():
        low, high = limits(name)
        fits = low <= whole.min() and whole.max() <= high
        if fits and whole.size * channels * magnitude(name) * magnitude(pixels.name) < 2**31:
            return name
    return None


def _cast(taps: NDArray[np.float64], dtype: Any) -> NDArray[Any]:
    largest = np.inf if np.dtype(dtype).kind == "i" else np.finfo(dtype).max
    if np.abs(taps).max() > largest:
        raise ValueError(
            f"the kernel holds numbers beyond {largest:.3g}, the largest of {np.dtype(dtype)} that it is summed in"
        )
    return taps.astype(dtype)


def two_passes_pay(taps: NDArray[np.float64], dtype: np.dtype[Any]) -> bool:
    """True if a kernel is large, of rank 1, and summed in a float type; `taps` may be a multiple of the kernel."""
    return min(taps.shape) >= _SEPARABLE_FROM and dtype.kind == "f" and _has_rank_1(taps, dtype)


def _has_rank_1(taps: NDArray[np.float64], dtype: np.dtype[Any]) -> bool:
    """True if a kernel is a column times a row, within the machine epsilon of `dtype`."""
    # A matrix of rank 1 is the outer product of the row and column of its largest element, divided by that element.
    r, s = np.unravel_index(np.abs(taps).argmax(), taps.shape)
    if not taps[r, s]:
        return False
    rest = np.abs(taps - np.outer(taps[:, s], taps[r] / taps[r, s])).max()
    return bool(rest <= np.finfo(dtype).eps * np.abs(taps[r, s]))
