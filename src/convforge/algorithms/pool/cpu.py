"""Kernel of max pooling on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import gather_row, store_row
from convforge.backends.cpu.jit import jit


@jit
def max_rows(x: Any, out: Any, g: Any, sizes: Any, epilogue: Any, like: Any, begin: Any, end: Any) -> None:
    """Work item = one output row (n, c, p): take the maximum of R rows, then of S columns. Any NaN gives NaN.

    `g.outside` is the smallest value. `sizes`: channels, phases of the stride, elements of a phase, padded columns that
    are read. `like` only gives the type of comparisons, which represents every value of x exactly.
    """
    channels, phases, phase_pitch, count = sizes
    row = np.empty(phases * phase_pitch, like.dtype)
    best = np.empty(phases * phase_pitch, like.dtype)
    result = np.empty(g.Q, like.dtype)
    for item in range(begin, end):
        n, c, p = item // (channels * g.P), item // g.P % channels, item % g.P
        best[:] = g.outside
        for r in range(g.R):
            h = g.rows[p * g.stride_h + r * g.dilation_h]
            if h < 0:
                continue
            start = x.place[0] + n * x.place[1] + c * x.place[2] + h * x.place[3]
            gather_row(row, 0, phase_pitch, x.flat, start, x.place[4], g.columns, 0, g.left, g.width, count, g.stride_w,
                       phases, g.outside, g.zero, x.half)  # fmt: skip
            for j in range(row.size):
                best[j] = best[j] if best[j] >= row[j] or best[j] != best[j] else row[j]
        result[:] = g.outside
        for s in range(g.S):
            column = s * g.dilation_w
            window = best[column % g.stride_w * phase_pitch + column // g.stride_w :]
            for q in range(g.Q):
                result[q] = result[q] if result[q] >= window[q] or result[q] != result[q] else window[q]
        start = out.place[0] + n * out.place[1] + c * out.place[2] + p * out.place[3]
        store_row(result, 0, g.Q, result, c, out.flat, start, out.place[4], epilogue, 0, 0)
