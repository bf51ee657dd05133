"""Kernels of im2col on the CPU: the expansion, and the store of products through the epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import gather_strip, store_row
from convforge.backends.cpu.jit import jit


@jit
def expand(x: Any, columns: Any, g: Any, strip: Any, offsets: Any, n0: Any, p0: Any, p1: Any, begin: Any,
           end: Any) -> None:  # fmt: skip
    """Work item = one channel of one image (n, c): its R * S rows of the expanded matrix.

    The channel's rows are gathered once, halo included, and each tap's row of the matrix is copied from them.
    `columns` (images, C * R * S, (p1 - p0) * Q) are the matrices of images n0, n0 + 1, ... for output rows [p0, p1);
    `offsets` are the offsets of the taps (r, s) in the strip of one channel.
    """
    taps = g.R * g.S
    channels = columns.shape[1] // taps
    tile = np.empty(strip.plane, columns.dtype)
    for item in range(begin, end):
        n, c = item // channels, item % channels
        gather_strip(tile, 0, x, n0 + n, c, p0, p1, g, strip)
        for tap in range(taps):
            target = columns[n, c * taps + tap]
            for p in range(p1 - p0):
                source = tile[p * g.stride_h * strip.row_pitch + offsets[tap] :]
                row = target[p * g.Q : (p + 1) * g.Q]
                for q in range(g.Q):
                    row[q] = source[q]


@jit
def store(products: Any, out: Any, g: Any, epilogue: Any, values: Any, n0: Any, p0: Any, p1: Any, begin: Any,
          end: Any) -> None:  # fmt: skip
    """Pass products through the epilogue. Work item = rows [p0, p1) of one output channel of one image (n, k).

    `products` have the shape (images, K, (p1 - p0) * Q).
    """
    K = products.shape[1]
    value = np.empty(g.Q, values.dtype)
    for item in range(begin, end):
        n, k = item // K, item % K
        row = products[n, k]
        for p in range(p0, p1):
            start = out.place[0] + (n0 + n) * out.place[1] + k * out.place[2] + p * out.place[3]
            at = epilogue.place[0] + (n0 + n) * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
            store_row(
                row, (p - p0) * g.Q, g.Q, value, k, out.flat, start, out.place[4], epilogue, at, epilogue.place[4]
            )
