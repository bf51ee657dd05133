"""Arrays in, arrays out: what users hand us becomes an array that plans can read; the result is of the same kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.problem.types import SHORT_NAMES

# NumPy derives a dtype's name anew on every call, which takes microseconds.
_NAMES = {np.dtype(name): name for name in SHORT_NAMES if name != "bfloat16"}


def dtype_name(array: NDArray[Any]) -> str:
    """NumPy's name of the element type of an array that :func:`as_array` has let in."""
    return _NAMES[array.dtype]


def as_array(value: Any, name: str, ranks: tuple[int, ...] | None = None) -> NDArray[Any]:
    """The array that the user gave as argument `name`, checked; never copied unless its bytes are in foreign order.

    Raises
    ------
    TypeError
        It is no NumPy array, or of an element type that convforge does not take.
    ValueError
        Its number of axes is not among `ranks`.
    """
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array; got {type(value).__name__}: convert it with numpy.asarray")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; fill it first, as in {name}.filled(0)")
    array = np.asarray(value)
    if array.dtype not in _NAMES:
        if array.dtype.newbyteorder("=") in _NAMES:
            return as_array(array.astype(array.dtype.newbyteorder("=")), name, ranks)
        raise TypeError(
            f"{name} has dtype {array.dtype}, which convforge does not take; cast it to one of "
            f"{', '.join(d for d in SHORT_NAMES if d != 'bfloat16')}"
        )
    if ranks is not None and array.ndim not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        raise ValueError(f"{name} has {array.ndim} axes, shape {array.shape}; it must have {wanted}")
    return array


def output_array(
    out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[NDArray[Any], ...]
) -> tuple[NDArray[Any], bool]:
    """The array to write into, and whether it overlaps an input, so that the plan must write elsewhere first.

    Raises
    ------
    TypeError
        `out` is no NumPy array.
    ValueError
        It has another shape or dtype, or is read-only.
    """
    if out is None:
        return np.empty(shape, dtype), False
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array; got {type(out).__name__}")
    if out.shape != shape or out.dtype != np.dtype(dtype):
        raise ValueError(f"out has shape {out.shape} and dtype {out.dtype}; the result has {shape} and {dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; give a writable array")
    return out, any(np.may_share_memory(out, array) for array in inputs)
