"""Kernels of im2col on the CPU: the expansion, and the way from the product to the output through the epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.include.rows import gather_row, store_row
from convforge.backends.cpu.jit import jit


@jit
def expand(x: Any, columns: Any, g: Any, n0: Any, p0: Any, p1: Any, begin: Any, end: Any) -> None:
    """Work item = one row of the expanded matrix of one picture (n, c, r, s): tap (c, r, s) under every output.

    Parameters
    ----------
    x : View
    columns : (pictures, C * R * S, (p1 - p0) * Q) array
        The expanded matrices of pictures n0, n0 + 1, ... for output rows [p0, p1).
    g : Geometry
    """
    flat = columns.reshape(-1)
    taps, cells = columns.shape[1], columns.shape[2]
    for item in range(begin, end):
        n, tap = item // taps, item % taps
        c, r, s = tap // (g.R * g.S), tap // g.S % g.R, tap % g.S
        for p in range(p0, p1):
            h = g.rows[p * g.stride_h + r * g.dilation_h]
            start = -1
            if h >= 0:
                start = x.place[0] + (n0 + n) * x.place[1] + c * x.place[2] + h * x.place[3]
            gather_row(flat, item * cells + (p - p0) * g.Q, 0, x.flat, start, x.place[4], g.columns, s * g.dilation_w,
                       g.left, g.width, (g.Q - 1) * g.stride_w + 1, g.stride_w, 1, g.outside, g.zero,
                       x.half)  # fmt: skip


@jit
def store(products: Any, out: Any, g: Any, ends: Any, values: Any, n0: Any, p0: Any, p1: Any, begin: Any,
          end: Any) -> None:  # fmt: skip
    """Work item = one output channel of one picture (n, k): its rows [p0, p1) go through the epilogue.

    Parameters
    ----------
    products : (pictures, K, (p1 - p0) * Q) array
    """
    K = products.shape[1]
    value = np.empty(g.Q, values.dtype)
    for item in range(begin, end):
        n, k = item // K, item % K
        row = products[n, k]
        for p in range(p0, p1):
            start = out.place[0] + (n0 + n) * out.place[1] + k * out.place[2] + p * out.place[3]
            at = ends.place[0] + (n0 + n) * ends.place[1] + k * ends.place[2] + p * ends.place[3]
            store_row(row, (p - p0) * g.Q, g.Q, value, k, out.flat, start, out.place[4], ends, at, ends.place[4])
