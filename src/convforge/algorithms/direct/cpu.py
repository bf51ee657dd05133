"""Kernels of the direct method on the CPU: `naive`, one output at a time, and `rows`, strips of rows from a tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.include.rows import accumulate, gather_row, half_to_float, store_row
from convforge.backends.cpu.jit import jit


@jit
def naive(x: Any, w: Any, out: Any, g: Any, ends: Any, values: Any, begin: Any, end: Any) -> None:
    """Work item = one output row (n, k, p); one output after the other, every product's place looked up.

    Parameters
    ----------
    x, out : View
    w : (K, C / groups, R, S) array
        In the accumulation type, in cross-correlation order.
    g : Geometry
    ends : Ends
    values : 1-D array
        Of the epilogue's type; only the type is used.
    """
    K = w.shape[0]
    sums, value = np.empty(1, w.dtype), np.empty(1, values.dtype)
    for item in range(begin, end):
        n, k, p = item // (K * g.P), item // g.P % K, item % g.P
        c0 = k // g.outputs * g.channels
        for q in range(g.Q):
            sums[0] = 0
            for c in range(g.channels):
                for r in range(g.R):
                    h = g.rows[p * g.stride_h + r * g.dilation_h]
                    for s in range(g.S):
                        v = g.columns[q * g.stride_w + s * g.dilation_w]
                        if h < 0 or v < 0:
                            pixel = w.dtype.type(g.outside - g.zero)
                        else:
                            element = x.flat[
                                x.place[0] + n * x.place[1] + (c0 + c) * x.place[2] + h * x.place[3] + v * x.place[4]
                            ]
                            if x.half:
                                pixel = w.dtype.type(half_to_float(np.uint16(element)))
                            else:
                                pixel = w.dtype.type(w.dtype.type(element) - g.zero)
                        sums[0] += w[k, c, r, s] * pixel
            start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3] + q * out.place[4]
            at = ends.place[0] + n * ends.place[1] + k * ends.place[2] + p * ends.place[3] + q * ends.place[4]
            store_row(sums, 0, 1, value, k, out.flat, start, out.place[4], ends, at, ends.place[4])


@jit
def rows(x: Any, w: Any, out: Any, g: Any, ends: Any, values: Any, sizes: Any, tile_like: Any, offsets: Any,
         begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of `tile_p` output rows of one group (n, group, strip).

    The strip's input, halo included, is gathered into a tile that stays in the cache: borders, element type, layout and
    stride are dealt with there. Every tap is then an offset into the tile, and one pass over a row of sums takes
    several taps at once with unit stride: load, multiply, add.

    Parameters
    ----------
    x, out, g, ends, values
        As in :func:`naive`.
    w : (K, channels * R * S) array
        In the accumulation type, in cross-correlation order.
    sizes : Sizes
        Of the tile.
    tile_like : 1-D array
        Of the tile's type; only the type is used.
    offsets : 1-D int array
        Of each tap (c, r, s) of a channel block from the tile's element that tap 0 reads.
    """
    taps, groups = g.R * g.S, w.shape[0] // g.outputs
    strips = (g.P + sizes.tile_p - 1) // sizes.tile_p
    plane = sizes.rows * sizes.row_pitch
    tile = np.empty(sizes.tile_c * plane, tile_like.dtype)
    sums = np.empty(sizes.tile_k * sizes.tile_p * g.Q, w.dtype)
    value = np.empty(g.Q, values.dtype)
    for item in range(begin, end):
        n, group, strip = item // (groups * strips), item // strips % groups, item % strips
        p0, p1 = strip * sizes.tile_p, min((strip + 1) * sizes.tile_p, g.P)
        for k0 in range(group * g.outputs, (group + 1) * g.outputs, sizes.tile_k):
            k1 = min(k0 + sizes.tile_k, (group + 1) * g.outputs)
            sums[: (k1 - k0) * sizes.tile_p * g.Q] = 0
            for c0 in range(0, g.channels, sizes.tile_c):
                c1 = min(c0 + sizes.tile_c, g.channels)
                if k0 == group * g.outputs or sizes.tile_c < g.channels:
                    for c in range(c0, c1):
                        gather_strip(tile, (c - c0) * plane, x, n, group * g.channels + c, p0, p1, g, sizes)
                for k in range(k0, k1):
                    for p in range(p0, p1):
                        at = ((k - k0) * sizes.tile_p + p - p0) * g.Q
                        accumulate(sums[at : at + g.Q], tile[(p - p0) * g.stride_h * sizes.row_pitch :], offsets,
                                   w[k, c0 * taps : c1 * taps])  # fmt: skip
            for k in range(k0, k1):
                for p in range(p0, p1):
                    start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
                    at = ends.place[0] + n * ends.place[1] + k * ends.place[2] + p * ends.place[3]
                    store_row(sums, ((k - k0) * sizes.tile_p + p - p0) * g.Q, g.Q, value, k, out.flat, start,
                              out.place[4], ends, at, ends.place[4])  # fmt: skip


@jit
def gather_strip(tile: Any, base: Any, x: Any, n: Any, c: Any, p0: Any, p1: Any, g: Any, sizes: Any) -> None:
    """Gather what output rows [p0, p1) read of channel `c` of picture `n` into ``tile[base:]``."""
    count = (g.Q - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    for i in range((p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1):
        h = g.rows[p0 * g.stride_h + i]
        start = -1
        if h >= 0:
            start = x.place[0] + n * x.place[1] + c * x.place[2] + h * x.place[3]
        gather_row(tile, base + i * sizes.row_pitch, sizes.phase_pitch, x.flat, start, x.place[4], g.columns, 0, g.left,
                   g.width, count, g.stride_w, sizes.phases, g.outside, g.zero, x.half)  # fmt: skip
