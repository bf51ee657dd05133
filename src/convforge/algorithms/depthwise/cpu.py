"""CPU kernels of depthwise convolution: vectors along the columns of a plane, or along the channels of a pixel.

Since direct_rows: eight vectors of sums stay in registers over all taps of a channel. These vectors may be anywhere
in the strip, so narrow planes keep the processor as busy as wide ones. In NHWC a vector holds neighbouring
channels, each with its own filter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import copy_run, gather_strip, half_to_float, store_pixels, store_row
from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import alias, borrow, fma, get, lanes_of, load, load_as, put, splat, store, zeros

# Values that pass the epilogue at a time if it is the same for all channels of a pixel.
RUN = 512


@jit
def along_columns(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, strip: Any, block: Any, offsets: Any,
                  corners: Any, places: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of rows of one channel (n, c, strip).

    `w` has K * R * S weights; `values` only gives the type of the epilogue. For a block of outputs, `offsets` has the
    offset in the tile of each tap (r, s), `corners` the position in the tile of the first tap of each vector, and
    `places` the offset in the output at which each vector is stored.
    """
    # Vectors at the end of a narrow row extend beyond the row.
    lanes = lanes_of(w)
    tile = np.zeros(strip.plane + lanes, w.dtype)
    weights = np.empty(g.R * g.S * lanes, w.dtype)
    sums = np.empty(block.rows * g.Q + lanes, w.dtype)
    value = np.empty(block.rows * g.Q, values.dtype)
    walk_planes(x, w, out, g, epilogue, strip, block, offsets, corners, places, tile, weights, sums, value, begin, end)


@jit
def walk_planes(x: Any, w: Any, out: Any, g: Any, epilogue: Any, strip: Any, block: Any, offsets: Any, corners: Any,
                places: Any, tile: Any, weights: Any, sums: Any, value: Any, begin: Any,
                end: Any) -> None:  # fmt: skip
    """Process work items [begin, end) of :func:`along_columns` in the caller's buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    corners, places, tile, weights = borrow(corners), borrow(places), borrow(tile), borrow(weights)
    sums, value, target = borrow(sums), borrow(value), alias(out.flat, sums)
    lanes, taps, strips = lanes_of(w), g.R * g.S, (g.P + strip.tile_p - 1) // strip.tile_p
    for item in range(begin, end):
        at, rest = item % strips, item // strips
        c, n = rest % block.channels, rest // block.channels
        p0, p1 = at * strip.tile_p, min((at + 1) * strip.tile_p, g.P)
        gather_strip(tile, 0, x, n, c, p0, p1, g, strip)
        for k in range(c * g.outputs, (c + 1) * g.outputs):
            for t in range(taps):
                store(weights, t * lanes, splat(w, k * taps + t))
            for p in range(p0, p1, block.rows):
                last = min(p + block.rows, p1)
                base, vectors = (p - p0) * g.stride_h * strip.row_pitch, (last - p) * block.row_vectors
                if block.put_directly:
                    start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
                    add_taps(tile, base, corners, 0, vectors, offsets, weights, 0, taps, target, start, places, 1)
                else:
                    add_taps(tile, base, corners, 0, vectors, offsets, weights, 0, taps, sums, 0, places, 1)
                    finish_plane(sums, value, out, n, k, p, last, g, epilogue)


@inlined
def finish_plane(sums: Any, value: Any, out: Any, n: Any, k: Any, p0: Any, p1: Any, g: Any, epilogue: Any) -> None:
    """Apply the epilogue to output rows [p0, p1) of channel `k`, in one run if they are contiguous."""
    whole = out.place[3] == g.Q * out.place[4] and (
        epilogue.residual.size == 0 or epilogue.place[3] == g.Q * epilogue.place[4]
    )
    rows = p1 - p0 if whole else 1
    for p in range(p0, p1, rows):
        start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
        at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
        store_row(
            sums, (p - p0) * g.Q, rows * g.Q, value, k, out.flat, start, out.place[4], epilogue, at, epilogue.place[4]
        )


@jit
def along_channels(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, strip: Any, block: Any, offsets: Any,
                   corners: Any, places: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of rows of some channels (n, strip, channels); parameters as in :func:`along_columns`.

    A vector holds channels of one pixel. Each vector has its own plane in the tile; `strip` describes one plane. If
    there are fewer channels than lanes, a vector instead holds several whole pixels of a row. Vectors that begin with
    the same channel then have the same weights, and are adjacent in `corners` and `places`.

    `w` has one weight per lane for each vector of channels (or each first channel), each of its filters and each tap.
    """
    lanes = lanes_of(w)
    tile = np.zeros((1 if block.interleaved else block.item_vectors) * strip.plane, w.dtype)
    width = block.channels if block.interleaved else block.item_vectors * lanes
    sums = np.empty(block.rows * g.Q * width, w.dtype)
    value = np.empty(max(width, RUN), values.dtype)
    walk_pixels(x, w, out, g, epilogue, strip, block, offsets, corners, places, tile, sums, value, begin, end)


@jit
def walk_pixels(x: Any, w: Any, out: Any, g: Any, epilogue: Any, strip: Any, block: Any, offsets: Any, corners: Any,
                places: Any, tile: Any, sums: Any, value: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Process work items [begin, end) of :func:`along_channels` in the caller's buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    corners, places, tile, sums, value = borrow(corners), borrow(places), borrow(tile), borrow(sums), borrow(value)
    target, width = alias(out.flat, sums), block.channels if block.interleaved else block.item_vectors * lanes_of(w)
    lanes, taps, strips = lanes_of(w), g.R * g.S, (g.P + strip.tile_p - 1) // strip.tile_p
    # Steps between consecutive vectors of an item: in the tile, in a pixel of the output, in the lists.
    plane, beside, listed = strip.plane, lanes, 0
    chunk = block.rows * block.row_vectors
    if block.interleaved:  # the input of all vectors of a chunk stays in L1
        plane, beside, listed, chunk = 0, 0, chunk, 64
    blocks = (block.channels + width - 1) // width
    for item in range(begin, end):
        b, rest = item % blocks, item // blocks
        at, n = rest % strips, rest // strips
        p0, p1 = at * strip.tile_p, min((at + 1) * strip.tile_p, g.P)
        c0, c1 = b * width, min((b + 1) * width, block.channels)
        if block.interleaved:
            gather_interleaved(tile, x, n, p0, p1, g, strip, block.channels)
            vectors = block.item_vectors
        else:
            gather_pixels(tile, x, n, c0, c1, p0, p1, g, strip)
            vectors = (c1 - c0 + lanes - 1) // lanes
        for p in range(p0, p1, block.rows):
            last = min(p + block.rows, p1)
            base, count = (p - p0) * g.stride_h * strip.row_pitch, (last - p) * block.row_vectors
            for j in range(g.outputs):
                k = c0 * g.outputs + j
                start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
                for first in range(0, count, chunk):
                    some = min(chunk, count - first)
                    for v in range(vectors):
                        filters = ((b * block.item_vectors + v) * g.outputs + j) * taps * lanes
                        if block.put_directly:
                            add_taps(tile, base + v * plane, corners, v * listed + first, some, offsets, w, filters,
                                     taps, target, start + v * beside, places,
                                     1 if block.interleaved else out.place[4])  # fmt: skip
                        else:
                            add_taps(tile, base + v * plane, corners, v * listed + first, some, offsets, w, filters,
                                     taps, sums, v * beside, places, 1 if block.interleaved else width)  # fmt: skip
                if not block.put_directly:
                    finish_pixels(sums, width, value, out, n, k, c1 - c0, p, last, g, epilogue)


@inlined
def finish_pixels(sums: Any, pitch: Any, value: Any, out: Any, n: Any, k: Any, channels: Any, p0: Any, p1: Any, g: Any,
                  epilogue: Any) -> None:  # fmt: skip
    """Apply the epilogue to the pixels of output rows [p0, p1), in one run if they are contiguous."""
    whole = out.place[3] == g.Q * out.place[4] and (
        epilogue.residual.size == 0 or epilogue.place[3] == g.Q * epilogue.place[4]
    )
    rows = p1 - p0 if whole else 1
    for p in range(p0, p1, rows):
        start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
        at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
        store_pixels(sums, (p - p0) * g.Q * pitch, pitch, rows * g.Q, channels, value, k, g.outputs, out.flat, start,
                     out.place, epilogue, at)  # fmt: skip


@inlined
def gather_pixels(tile: Any, x: Any, n: Any, c0: Any, c1: Any, p0: Any, p1: Any, g: Any, strip: Any) -> None:
    """Gather channels [c0, c1) of the input of output rows [p0, p1); vector v of each pixel goes to plane v."""
    lanes = lanes_of(tile)
    count = (g.Q - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
    whole = (c1 - c0) // lanes if x.place[2] == 1 and not x.half and g.zero == 0 else 0
    for i in range(rows):
        h = g.rows[p0 * g.stride_h + i]
        for j in range(count):
            at, column = i * strip.row_pitch + j * lanes, g.columns[j]
            start = x.place[0] + n * x.place[1] + c0 * x.place[2] + h * x.place[3] + column * x.place[4]
            if h < 0 or column < 0:
                start = -1
            else:
                for v in range(whole):
                    store(tile, at + v * strip.plane, load_as(x.flat, start + v * lanes, tile))
            for z in range(0 if start < 0 else whole * lanes, c1 - c0):
                gather_one(tile, at + z // lanes * strip.plane + z % lanes, x, start, z, g)


@inlined
def gather_one(tile: Any, at: Any, x: Any, start: Any, channel: Any, g: Any) -> None:
    """Gather one channel of the pixel at `start`; a negative `start` is outside the image."""
    if start < 0:
        put(tile, at, g.outside - g.zero)
    elif x.half:
        put(tile, at, half_to_float(np.uint16(get(x.flat, start + channel * x.place[2]))))
    else:
        put(tile, at, get(x.flat, start + channel * x.place[2]) - g.zero)


@inlined
def gather_interleaved(tile: Any, x: Any, n: Any, p0: Any, p1: Any, g: Any, strip: Any, channels: Any) -> None:
    """Gather all channels of the input of output rows [p0, p1), pixel by pixel; columns of a phase are contiguous."""
    count = (g.Q - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
    side_by_side = x.place[2] == 1 and x.place[4] == channels and g.stride_w == 1 and not x.half and g.zero == 0
    for i in range(rows):
        h, row = g.rows[p0 * g.stride_h + i], i * strip.row_pitch
        plane = x.place[0] + n * x.place[1] + h * x.place[3]
        a, b = 0, 0  # columns [a, b) are copied together
        if side_by_side and h >= 0:
            a, b = min(g.left, count), min(g.left + g.width, count)
            copy_run(tile, row + a * channels, x.flat, plane + (a - g.left) * channels, (b - a) * channels, 1)
        for side in range(2):
            for j in range(0 if side == 0 else b, a if side == 0 else count):
                column = g.columns[j]
                start = -1 if h < 0 or column < 0 else plane + column * x.place[4]
                at = row + j % g.stride_w * strip.phase_pitch + j // g.stride_w * channels
                for z in range(channels):
                    gather_one(tile, at + z, x, start, z, g)


@jit
def add_taps(tile: Any, base: Any, corners: Any, listed: Any, count: Any, offsets: Any, w: Any, at: Any, taps: Any,
             target: Any, to: Any, places: Any, pitch: Any) -> None:  # fmt: skip
    """Sum vectors `listed` to `listed` + `count` of outputs, eight at a time in registers; may sum the last one twice.

    Tap t of vector i reads the vector at ``tile[base + corners[i] + offsets[t]]`` and multiplies it by that at
    ``w[at + t * lanes]``. The sum is stored at ``target[to + places[i] * pitch]``.
    """
    lanes = lanes_of(w)
    for first in range(0, count, 8):
        i = listed + max(min(first, count - 8), 0)
        last = listed + count - 1 - i
        i1, i2, i3 = i + min(1, last), i + min(2, last), i + min(3, last)
        i4, i5, i6, i7 = i + min(4, last), i + min(5, last), i + min(6, last), i + min(7, last)
        x0, x1, x2, x3 = base + corners[i], base + corners[i1], base + corners[i2], base + corners[i3]
        x4, x5, x6, x7 = base + corners[i4], base + corners[i5], base + corners[i6], base + corners[i7]
        s0, s1, s2, s3 = zeros(w), zeros(w), zeros(w), zeros(w)
        s4, s5, s6, s7 = zeros(w), zeros(w), zeros(w), zeros(w)
        for t in range(taps):
            factor, offset = load(w, at + t * lanes), get(offsets, t)
            s0, s1 = fma(factor, load(tile, x0 + offset), s0), fma(factor, load(tile, x1 + offset), s1)
            s2, s3 = fma(factor, load(tile, x2 + offset), s2), fma(factor, load(tile, x3 + offset), s3)
            s4, s5 = fma(factor, load(tile, x4 + offset), s4), fma(factor, load(tile, x5 + offset), s5)
            s6, s7 = fma(factor, load(tile, x6 + offset), s6), fma(factor, load(tile, x7 + offset), s7)
        store(target, to + places[i] * pitch, s0)
        store(target, to + places[i1] * pitch, s1)
        store(target, to + places[i2] * pitch, s2)
        store(target, to + places[i3] * pitch, s3)
        store(target, to + places[i4] * pitch, s4)
        store(target, to + places[i5] * pitch, s5)
        store(target, to + places[i6] * pitch, s6)
        store(target, to + places[i7] * pitch, s7)
