"""Kernels of implicit GEMM on the CPU with vectors along the pixels, for few outputs; see also cpu_outputs.py.

Change since im2col: the expanded matrix is never written. Its row of tap t is the tile, from element `offsets[t]` on.
Change since direct_rows: the sums of a block, outputs by a few vectors of pixels, stay in registers over all taps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import gather_strip, store_row
from convforge.algorithms.implicit_gemm.cpu_outputs import put_two
from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import borrow, fma, lanes_of, load, splat, store, zeros


@jit
def implicit_gemm(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, strip: Any, block: Any, offsets: Any,
                  begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of one group and a part of its outputs (n, group, strip, part).

    `w` is the output of :func:`pack_weights`, flat. `values` only gives the epilogue's type. `offsets` are the offsets
    in the tile of the taps (c, r, s) of a block of channels.
    """
    # The last block reads past the last pixel, by less than a block; these sums are not stored.
    tile = np.zeros(strip.tile_c * strip.plane + block.width, w.dtype)
    sums = np.empty(block.kept * block.rows * block.segments * block.pitch, w.dtype)
    value = np.empty(g.Q, values.dtype)
    work(x, w, out, g, epilogue, strip, block, offsets, tile, sums, value, begin, end)


@jit
def work(x: Any, w: Any, out: Any, g: Any, epilogue: Any, strip: Any, block: Any, offsets: Any, tile: Any, sums: Any,
         value: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Compute work items [begin, end) of :func:`implicit_gemm`, with its buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    tile, sums, value = borrow(tile), borrow(sums), borrow(value)
    strips = (g.P + strip.tile_p - 1) // strip.tile_p
    for item in range(begin, end):
        part, rest = item % block.parts, item // block.parts
        at, rest = rest % strips, rest // strips
        group, n = rest % block.groups, rest // block.groups
        p0, p1 = at * strip.tile_p, min((at + 1) * strip.tile_p, g.P)
        first, last = part * block.blocks // block.parts, (part + 1) * block.blocks // block.parts
        for c0 in range(0, g.channels, strip.tile_c):
            c1 = min(c0 + strip.tile_c, g.channels)
            for c in range(c0, c1):
                gather_strip(tile, (c - c0) * strip.plane, x, n, group * g.channels + c, p0, p1, g, strip)
            for b in range(first, last):
                kept = 0 if block.kept == 1 else b - first
                multiply(tile, offsets, w, group, b, c0, c1, sums, kept, p1 - p0, g, strip, block)
                if c1 == g.channels:
                    finish(sums, kept, value, out, n, group, b, p0, p1, g, epilogue, strip, block)


@inlined
def multiply(tile: Any, offsets: Any, w: Any, group: Any, b: Any, c0: Any, c1: Any, sums: Any, kept: Any, height: Any,
             g: Any, strip: Any, block: Any) -> None:  # fmt: skip
    """Add the products of channels [c0, c1) to the sums of block `b` of outputs, which start at 0 if c0 = 0.

    With one segment, all rows of the strip are one run of positions, and the sums between the rows are not used. With
    several segments, each output row is a separate run.
    """
    taps = g.R * g.S
    segments = 1 if block.segments == 1 else height
    length = (height - 1) * strip.row_pitch + g.Q if block.segments == 1 else g.Q
    at = ((group * block.blocks + b) * g.channels + c0) * taps * block.rows
    for segment in range(segments):
        base = segment * g.stride_h * strip.row_pitch
        into = (kept * block.rows * block.segments + segment) * block.pitch
        for j in range(0, length, block.width):
            if c0 == 0:
                for i in range(block.rows):
                    for z in range(0, block.width, lanes_of(sums)):
                        store(sums, into + i * block.segments * block.pitch + j + z, zeros(sums))
            block_product(tile, base + j, offsets, w, at, (c1 - c0) * taps, sums, into + j, block)


@inlined
def block_product(tile: Any, base: Any, offsets: Any, w: Any, at: Any, depth: Any, sums: Any, into: Any,
                  block: Any) -> None:  # fmt: skip
    """Add `depth` taps to one block of sums, by the function for the block's shape."""
    row = block.segments * block.pitch
    if block.rows == 3:
        three_by_four(tile, base, offsets, w, at, depth, sums, into, row)
    else:
        one_by_eight(tile, base, offsets, w, at, depth, sums, into)


@inlined
def finish(sums: Any, kept: Any, value: Any, out: Any, n: Any, group: Any, b: Any, p0: Any, p1: Any, g: Any,
           epilogue: Any, strip: Any, block: Any) -> None:  # fmt: skip
    """Pass block `b` of outputs, the `kept`-th block in `sums`, through the epilogue, row by row."""
    row = block.segments * block.pitch
    step = strip.row_pitch if block.segments == 1 else block.pitch
    for i in range(min(block.rows, g.outputs - b * block.rows)):
        k = group * g.outputs + b * block.rows + i
        for p in range(p0, p1):
            start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
            at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
            store_row(sums, (kept * block.rows + i) * row + (p - p0) * step, g.Q, value, k, out.flat, start,
                      out.place[4], epilogue, at, epilogue.place[4])  # fmt: skip


@jit
def pack_weights(taps: Any, packed: Any, begin: Any, end: Any) -> None:
    """Pack (groups, outputs, taps) as (groups, blocks, taps, outputs), zero-padded. Work item = a block of outputs."""
    outputs, blocks, rows, depth = taps.shape[1], packed.shape[1], packed.shape[3], packed.shape[2]
    for item in range(begin, end):
        target, first = packed[item // blocks, item % blocks].reshape(-1), item % blocks * rows
        there = min(rows, outputs - first)
        source = taps[item // blocks, first : first + there].reshape(-1)
        for t in range(depth):
            for i in range(rows):
                target[rows * t + i] = source[i * depth + t] if i < there else 0


@jit
def three_by_four(tile: Any, base: Any, offsets: Any, w: Any, at: Any, depth: Any, sums: Any,
                  into: Any, row: Any) -> None:  # fmt: skip
    """Add `depth` taps to the sums of three outputs by four vectors of pixels."""
    lanes = lanes_of(tile)
    two = 2 * lanes
    a0, b0, c0, d0 = load(sums, into), load(sums, into + lanes), load(sums, into + two), load(sums, into + two + lanes)
    into1, into2 = into + row, into + 2 * row
    a1, b1 = load(sums, into1), load(sums, into1 + lanes)
    c1, d1 = load(sums, into1 + two), load(sums, into1 + two + lanes)
    a2, b2 = load(sums, into2), load(sums, into2 + lanes)
    c2, d2 = load(sums, into2 + two), load(sums, into2 + two + lanes)
    for t in range(depth):
        from_ = base + offsets[t]
        a, b, c, d = (
            load(tile, from_),
            load(tile, from_ + lanes),
            load(tile, from_ + two),
            load(tile, from_ + two + lanes),
        )
        factor = splat(w, at)
        a0, b0, c0, d0 = fma(factor, a, a0), fma(factor, b, b0), fma(factor, c, c0), fma(factor, d, d0)
        factor = splat(w, at + 1)
        a1, b1, c1, d1 = fma(factor, a, a1), fma(factor, b, b1), fma(factor, c, c1), fma(factor, d, d1)
        factor = splat(w, at + 2)
        a2, b2, c2, d2 = fma(factor, a, a2), fma(factor, b, b2), fma(factor, c, c2), fma(factor, d, d2)
        at += 3
    put_two(sums, into, lanes, a0, b0)
    put_two(sums, into + two, lanes, c0, d0)
    put_two(sums, into1, lanes, a1, b1)
    put_two(sums, into1 + two, lanes, c1, d1)
    put_two(sums, into2, lanes, a2, b2)
    put_two(sums, into2 + two, lanes, c2, d2)


@jit
def one_by_eight(tile: Any, base: Any, offsets: Any, w: Any, at: Any, depth: Any, sums: Any,
                 into: Any) -> None:  # fmt: skip
    """Add `depth` taps to the sums of one output by eight vectors of pixels."""
    lanes = lanes_of(tile)
    two, four, six = 2 * lanes, 4 * lanes, 6 * lanes
    a, b, c, d = load(sums, into), load(sums, into + lanes), load(sums, into + two), load(sums, into + two + lanes)
    e, f = load(sums, into + four), load(sums, into + four + lanes)
    g, h = load(sums, into + six), load(sums, into + six + lanes)
    for t in range(depth):
        from_ = base + offsets[t]
        factor = splat(w, at + t)
        a, b = fma(factor, load(tile, from_), a), fma(factor, load(tile, from_ + lanes), b)
        c, d = fma(factor, load(tile, from_ + two), c), fma(factor, load(tile, from_ + two + lanes), d)
        e, f = fma(factor, load(tile, from_ + four), e), fma(factor, load(tile, from_ + four + lanes), f)
        g, h = fma(factor, load(tile, from_ + six), g), fma(factor, load(tile, from_ + six + lanes), h)
    put_two(sums, into, lanes, a, b)
    put_two(sums, into + two, lanes, c, d)
    put_two(sums, into + four, lanes, e, f)
    put_two(sums, into + six, lanes, g, h)
