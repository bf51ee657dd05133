"""CPU kernels of the direct method: `naive`, one output at a time, and `rows`, strips of rows from a cached tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import accumulate, gather_strip, half_to_float, store_row
from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import borrow


@jit
def naive(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, begin: Any, end: Any) -> None:
    """Work item = one output row (n, k, p). Computes one output at a time, with table look-ups for every factor.

    `w` is (K, C / groups, R, S), in the accumulation type and in cross-correlation order. `values` only gives the type
    of the epilogue.
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
            at = (
                epilogue.place[0]
                + n * epilogue.place[1]
                + k * epilogue.place[2]
                + p * epilogue.place[3]
                + q * epilogue.place[4]
            )
            store_row(sums, 0, 1, value, k, out.flat, start, out.place[4], epilogue, at, epilogue.place[4])


@jit
def rows(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, strip: Any, sum_shape: Any, tile_like: Any,
         offsets: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of `tile_p` output rows of one group (n, group, strip); parameters as in :func:`naive`.

    Gathers the strip's input, halo included, into a tile that stays in cache; only this step depends on border,
    element type, layout and stride. Every tap is then an offset into the tile, and one pass over a row of sums
    adds several taps with unit stride.

    `w` is (K, channels * R * S). `sum_shape` is the number of output channels and rows with sums in memory at a time.
    `tile_like` only gives the tile's type. `offsets` has the offset in the tile of each tap (c, r, s) of a block.
    """
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    groups = w.shape[0] // g.outputs
    strips = (g.P + strip.tile_p - 1) // strip.tile_p
    tile = np.empty(strip.tile_c * strip.plane, tile_like.dtype)
    sums = np.empty((sum_shape[0], sum_shape[1], g.Q), w.dtype)
    value = np.empty(g.Q, values.dtype)
    for item in range(begin, end):
        n, group, at = item // (groups * strips), item // strips % groups, item % strips
        p0, p1 = at * strip.tile_p, min((at + 1) * strip.tile_p, g.P)
        if strip.tile_c == g.channels:
            strip_whole(tile, sums[0, 0], value, x, w, out, n, group, p0, p1, g, epilogue, strip, offsets)
        else:
            strip_blocked(tile, sums, value, x, w, out, n, group, p0, p1, g, epilogue, strip, offsets)


@inlined
def strip_whole(tile: Any, row: Any, value: Any, x: Any, w: Any, out: Any, n: Any, group: Any, p0: Any, p1: Any,
                g: Any, epilogue: Any, strip: Any, offsets: Any) -> None:  # fmt: skip
    """Compute a strip with all channels in the tile: finish and store each row of sums while it is in L1."""
    for c in range(g.channels):
        gather_strip(tile, c * strip.plane, x, n, group * g.channels + c, p0, p1, g, strip)
    for k in range(group * g.outputs, (group + 1) * g.outputs):
        for p in range(p0, p1):
            row[:] = 0
            accumulate(row, tile[(p - p0) * g.stride_h * strip.row_pitch :], offsets, w[k])
            store(row, value, out, n, k, p, g, epilogue)


@inlined
def strip_blocked(tile: Any, sums: Any, value: Any, x: Any, w: Any, out: Any, n: Any, group: Any, p0: Any, p1: Any,
                  g: Any, epilogue: Any, strip: Any, offsets: Any) -> None:  # fmt: skip
    """Compute a strip of many channels: add one block of channels at a time to the sums of a block of outputs."""
    taps, last = g.R * g.S, (group + 1) * g.outputs
    for k0 in range(group * g.outputs, last, sums.shape[0]):
        k1 = min(k0 + sums.shape[0], last)
        sums[:] = 0
        for c0 in range(0, g.channels, strip.tile_c):
            c1 = min(c0 + strip.tile_c, g.channels)
            for c in range(c0, c1):
                gather_strip(tile, (c - c0) * strip.plane, x, n, group * g.channels + c, p0, p1, g, strip)
            for k in range(k0, k1):
                for p in range(p0, p1):
                    accumulate(sums[k - k0, p - p0], tile[(p - p0) * g.stride_h * strip.row_pitch :], offsets,
                               w[k, c0 * taps : c1 * taps])  # fmt: skip
        for k in range(k0, k1):
            for p in range(p0, p1):
                store(sums[k - k0, p - p0], value, out, n, k, p, g, epilogue)


@inlined
def store(row: Any, value: Any, out: Any, n: Any, k: Any, p: Any, g: Any, epilogue: Any) -> None:
    """Apply the epilogue to row p of output channel k of image n, and store it."""
    start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
    at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
    store_row(row, 0, g.Q, value, k, out.flat, start, out.place[4], epilogue, at, epilogue.place[4])
