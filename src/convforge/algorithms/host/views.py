"""Views of strided arrays as flat elements with an offset and strides in the order N, C, H, W, for CPU kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class View(NamedTuple):
    """A flat array, and the offset and strides of a 4-D array in it."""

    flat: NDArray[np.generic]  # 1-D; uint16 for float16
    place: tuple[int, int, int, int, int]  # offset of (0, 0, 0, 0), then strides of n, c, h and w, in elements
    half: bool  # True: the elements are the bits of float16


def logical(array: NDArray[np.generic], layout: str) -> NDArray[np.generic]:
    """A view of the array with its axes in the order N, C, H, W."""
    return array if layout == "NCHW" else array.transpose(0, 3, 1, 2)


def view(array: NDArray[np.generic], layout: str) -> View:
    """View a 4-D array as flat elements; copy it only if its strides are not multiples of the element size.

    Examples
    --------
    >>> x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    >>> view(x[:, ::-1, 1:], "NCHW").place
    (12, 24, -12, 4, 1)
    """
    a = logical(array, layout)
    size = a.itemsize
    if array.flags.c_contiguous and array.flags.aligned:  # the usual case, faster
        s = a.strides
        half = a.dtype == np.float16
        flat = not_read_only(array.reshape(-1))
        return View(
            flat.view(np.uint16) if half else flat, (0, s[0] // size, s[1] // size, s[2] // size, s[3] // size), half
        )
    if any(stride % size for stride in a.strides) or a.ctypes.data % size:
        a = np.array(a, order="C", copy=True)
    half = a.dtype == np.float16
    if not a.size:
        return View(np.empty(0, np.uint16 if half else a.dtype), (0, 0, 0, 0, 0), half)
    steps = [stride // size for stride in a.strides]
    lowest = a[tuple(slice(None, None, -1) if step < 0 else slice(None) for step in steps)]
    length = 1 + sum((n - 1) * abs(step) for n, step in zip(a.shape, steps, strict=True))
    flat = not_read_only(np.lib.stride_tricks.as_strided(lowest, (length,), (size,), writeable=a.flags.writeable))
    base = sum((n - 1) * -step for n, step in zip(a.shape, steps, strict=True) if step < 0)
    return View(flat.view(np.uint16) if half else flat, (base, steps[0], steps[1], steps[2], steps[3]), half)


class _Memory:
    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # keeps the memory alive
        interface: dict[str, Any] = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def not_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """View memory without the read-only flag, which is part of Numba's types: kernels would be compiled twice."""
    return array if array.flags.writeable else np.asarray(_Memory(array))
