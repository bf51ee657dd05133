"""Cuts a caller's workspace into the arrays that a plan's steps share, each aligned to a cache line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64  # bytes of a cache line, and of the widest vector register

# Shape and element type of one array.
Part = tuple[tuple[int, ...], DTypeLike]


def nbytes(parts: Sequence[Part]) -> int:
    """Bytes of workspace that :func:`carve` needs for these arrays, for any alignment of the workspace.

    Examples
    --------
    >>> nbytes([((3, 5), "float32"), ((7,), "float64")])
    191
    """
    used = [size for size in (_padded(part) for part in parts) if size]
    return sum(used) + ALIGNMENT - 1 if used else 0


def carve(workspace: Any, parts: Sequence[Part]) -> list[NDArray[Any]]:
    """Cut a workspace into contiguous, uninitialised arrays aligned to 64 bytes.

    The workspace is a contiguous 1-D array of uint8 of at least ``nbytes(parts)`` bytes, or None where that is 0.
    Raises ValueError if it is too small.

    Examples
    --------
    >>> a, b = carve(np.zeros(191, np.uint8), [((3, 5), "float32"), ((7,), "float64")])
    >>> a.shape, b.shape, (b.ctypes.data - a.ctypes.data) % 64
    ((3, 5), (7,), 0)
    """
    if workspace is None:
        workspace = np.empty(0, np.uint8)
    need = nbytes(parts)
    if workspace.nbytes < need:
        raise ValueError(f"a workspace of {workspace.nbytes} bytes cannot hold {need}; ask nbytes() for the size")
    at = -workspace.ctypes.data % ALIGNMENT
    arrays = []
    for shape, dtype in parts:
        used = math.prod(shape) * np.dtype(dtype).itemsize
        first = at if used else 0
        arrays.append(workspace[first : first + used].view(dtype).reshape(shape))
        at += _padded((shape, dtype))
    return arrays


def _padded(part: Part) -> int:
    """Bytes of one array, rounded up to whole cache lines."""
    shape, dtype = part
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
