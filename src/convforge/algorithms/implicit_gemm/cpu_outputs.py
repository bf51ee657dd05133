"""Kernels of implicit GEMM on the CPU with vectors along the outputs: two vectors by six pixels, in registers.

Change since cpu.py: a vector holds the weights of eight outputs, and each pixel is broadcast. So the pixels need not
be contiguous in the tile, but a block of sums must be transposed before it is stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import gather_strip, store_row
from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import borrow, fma, lanes_of, load, splat, store, transpose, zeros


@jit
def outputs_by_pixels(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, strip: Any, block: Any,
                      offsets: Any, corners: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of one group and a part of its outputs (n, group, strip, part).

    `corners` are the offsets in the tile of each pixel's first tap, padded with the last offset. The other arguments
    are as in :func:`convforge.algorithms.implicit_gemm.cpu.implicit_gemm`.
    """
    lanes = lanes_of(w)
    turned_pitch = (strip.tile_p * g.Q + lanes - 1) // lanes * lanes
    tile = np.empty(strip.tile_c * strip.plane, w.dtype)
    sums = np.zeros((block.kept * block.pitch + lanes) * block.rows, w.dtype)
    turned = np.empty(block.rows * turned_pitch, w.dtype)
    value = np.empty(strip.tile_p * g.Q, values.dtype)
    work(x, w, out, g, epilogue, strip, block, offsets, corners, tile, sums, turned, turned_pitch, value, begin, end)


@jit
def work(x: Any, w: Any, out: Any, g: Any, epilogue: Any, strip: Any, block: Any, offsets: Any, corners: Any, tile: Any,
         sums: Any, turned: Any, turned_pitch: Any, value: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Compute work items [begin, end) of :func:`outputs_by_pixels`, with its buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    corners, tile, sums, turned, value = borrow(corners), borrow(tile), borrow(sums), borrow(turned), borrow(value)
    strips, taps = (g.P + strip.tile_p - 1) // strip.tile_p, g.R * g.S
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
                kept = (0 if block.kept == 1 else b - first) * block.pitch * block.rows
                weights = ((group * block.blocks + b) * g.channels + c0) * taps * block.rows
                for pixel in range(0, (p1 - p0) * g.Q, block.width):
                    into = kept + pixel * block.rows
                    if c0 == 0:
                        for z in range(0, block.width * block.rows, lanes_of(sums)):
                            store(sums, into + z, zeros(sums))
                    two_by_six(tile, corners, pixel, offsets, w, weights, (c1 - c0) * taps, sums, into)
                if c1 == g.channels:
                    turn(sums, kept, turned, turned_pitch, (p1 - p0) * g.Q)
                    finish(turned, turned_pitch, value, out, n, group, b, p0, p1, g, epilogue, block)


@inlined
def turn(sums: Any, kept: Any, turned: Any, pitch: Any, pixels: Any) -> None:
    """Transpose the sums of a block, so that the pixels of an output are contiguous, not the outputs of a pixel."""
    lanes = lanes_of(sums)
    for pixel in range(0, pixels, lanes):
        at = kept + pixel * 2 * lanes
        transpose(sums, at, 2 * lanes, turned, pixel, pitch)
        transpose(sums, at + lanes, 2 * lanes, turned, lanes * pitch + pixel, pitch)


@inlined
def finish(turned: Any, pitch: Any, value: Any, out: Any, n: Any, group: Any, b: Any, p0: Any, p1: Any, g: Any,
           epilogue: Any, block: Any) -> None:  # fmt: skip
    """Pass block `b` of outputs through the epilogue: the whole strip at once if its rows are contiguous."""
    whole = out.place[3] == g.Q * out.place[4] and (
        epilogue.residual.size == 0 or epilogue.place[3] == g.Q * epilogue.place[4]
    )
    rows = p1 - p0 if whole else 1
    for i in range(min(block.rows, g.outputs - b * block.rows)):
        k = group * g.outputs + b * block.rows + i
        for p in range(p0, p1, rows):
            start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
            at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
            store_row(turned, i * pitch + (p - p0) * g.Q, rows * g.Q, value, k, out.flat, start, out.place[4], epilogue,
                      at, epilogue.place[4])  # fmt: skip


@jit
def pack_vectors(taps: Any, packed: Any, begin: Any, end: Any) -> None:
    """Pack (groups, outputs, taps) as (groups, blocks, taps, outputs), zero-padded. Work item = a block of outputs."""
    outputs, blocks, depth = taps.shape[1], packed.shape[1], packed.shape[2]
    source, target = borrow(taps.reshape(-1)), borrow(packed.reshape(-1))
    lanes = lanes_of(packed)
    rows = 2 * lanes
    for item in range(begin, end):
        first = item % blocks * rows
        at, into = (item // blocks * outputs + first) * depth, item * depth * rows
        for i in range(0, rows, lanes):
            there = min(max(outputs - first - i, 0), lanes)
            squares = depth // lanes * lanes if there == lanes else 0
            for t in range(0, squares, lanes):
                transpose(source, at + i * depth + t, depth, target, into + t * rows + i, rows)
            for t in range(squares, depth):
                for j in range(lanes):
                    target[into + t * rows + i + j] = source[at + (i + j) * depth + t] if j < there else 0


@jit
def two_by_six(tile: Any, corners: Any, pixel: Any, offsets: Any, w: Any, at: Any, depth: Any, sums: Any,
               into: Any) -> None:  # fmt: skip
    """Add taps to the sums of two vectors of outputs by six pixels; ``w[at + rows * t + i]`` is tap t of output i."""
    lanes = lanes_of(tile)
    rows = 2 * lanes
    p0, p1, p2 = corners[pixel], corners[pixel + 1], corners[pixel + 2]
    p3, p4, p5 = corners[pixel + 3], corners[pixel + 4], corners[pixel + 5]
    into1, into2, into3, into4, into5 = into + rows, into + 2 * rows, into + 3 * rows, into + 4 * rows, into + 5 * rows
    a0, b0 = load(sums, into), load(sums, into + lanes)
    a1, b1 = load(sums, into1), load(sums, into1 + lanes)
    a2, b2 = load(sums, into2), load(sums, into2 + lanes)
    a3, b3 = load(sums, into3), load(sums, into3 + lanes)
    a4, b4 = load(sums, into4), load(sums, into4 + lanes)
    a5, b5 = load(sums, into5), load(sums, into5 + lanes)
    for t in range(depth):
        offset = offsets[t]
        a, b = load(w, at), load(w, at + lanes)
        factor = splat(tile, p0 + offset)
        a0, b0 = fma(factor, a, a0), fma(factor, b, b0)
        factor = splat(tile, p1 + offset)
        a1, b1 = fma(factor, a, a1), fma(factor, b, b1)
        factor = splat(tile, p2 + offset)
        a2, b2 = fma(factor, a, a2), fma(factor, b, b2)
        factor = splat(tile, p3 + offset)
        a3, b3 = fma(factor, a, a3), fma(factor, b, b3)
        factor = splat(tile, p4 + offset)
        a4, b4 = fma(factor, a, a4), fma(factor, b, b4)
        factor = splat(tile, p5 + offset)
        a5, b5 = fma(factor, a, a5), fma(factor, b, b5)
        at += rows
    put_two(sums, into, lanes, a0, b0)
    put_two(sums, into1, lanes, a1, b1)
    put_two(sums, into2, lanes, a2, b2)
    put_two(sums, into3, lanes, a3, b3)
    put_two(sums, into4, lanes, a4, b4)
    put_two(sums, into5, lanes, a5, b5)


@jit
def put_two(sums: Any, at: Any, lanes: Any, a: Any, b: Any) -> None:
    store(sums, at, a)
    store(sums, at + lanes, b)
