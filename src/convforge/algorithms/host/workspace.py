"""A caller's flat run of bytes seen as the arrays that a plan's steps share, each aligned to a cache line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Bytes of a cache line, and of the widest vector register.
ALIGNMENT = 64

# Shape and element type of one array.
Part = tuple[tuple[int, ...], DTypeLike]


def nbytes(parts: Sequence[Part]) -> int:
    """Bytes of workspace from which :func:`carve` can cut these arrays, wherever the workspace begins.

    Examples
    --------
    >>> nbytes([((3, 5), "float32"), ((7,), "float64")])
    191
    >>> nbytes([])
    0
    """
    used = [size for size in (_padded(part) for part in parts) if size]
    return sum(used) + ALIGNMENT - 1 if used else 0


def carve(workspace: Any, parts: Sequence[Part]) -> list[NDArray[Any]]:
    """Cut a workspace into arrays, one behind the other, each beginning at a multiple of 64 bytes.

    Parameters
    ----------
    workspace : contiguous 1-D array of uint8, or None
        At least ``nbytes(parts)`` bytes; None will do where that is 0.
    parts : sequence of (shape, dtype)

    Returns
    -------
    list of contiguous arrays
        Views of the workspace; what stands in them is whatever the caller left there.

    Raises
    ------
    ValueError
        The workspace is too small.

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
