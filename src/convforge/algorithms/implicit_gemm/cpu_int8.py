"""Kernels of implicit GEMM of 8-bit integers on the CPU: vectors along the outputs, and pairs of products.

Change since cpu_outputs.py: the tile has int16, and two neighbouring values of it are a pair. One instruction
multiplies a pair by those of eight outputs and adds both products, in int32, so a step takes twice the products of a
float32 step. The zero point of x is subtracted when pixels are read, so padding is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import store_row
from convforge.algorithms.host.rows_int8 import (
    copy_elements,
    fill_factors,
    finish_run,
    gather_pixels,
    gather_planes,
    is_linear,
)
from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import borrow, get, lanes_of, load, put, store, transpose, zeros
from convforge.backends.cpu.simd_pairs import multiply_pairs, splat_pair


@jit
def pairs_by_pixels(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, tile_shape: Any, block: Any,
                    offsets: Any, corners: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of one group and a part of its outputs (n, group, strip, part).

    `w` is the output of :func:`pack_pairs`. `values` only gives the type of the epilogue. `offsets` are the offsets in
    the tile of each pair of taps from a pixel's first tap, and `corners` those of the first taps of the pixels.
    """
    most = block.pitch
    tile = np.empty(tile_shape.size, np.int16)
    sums = np.empty(most * block.rows, np.int32)
    turned = np.empty(most * block.rows + 8, np.int32)  # vectors may pass the last pixel
    done = np.empty(most * block.rows + 8, out.flat.dtype)
    added = np.empty(most * block.rows + 8 if epilogue.residual.size else 0, out.flat.dtype)
    factors, shifts = np.empty(block.rows, np.float64), np.empty(block.rows, np.float64)
    value = np.empty(most, values.dtype)
    work(x, w, out, g, epilogue, tile_shape, block, offsets, corners, tile, sums, turned, done, added, factors, shifts,
         value, begin, end)  # fmt: skip


@jit
def work(x: Any, w: Any, out: Any, g: Any, epilogue: Any, tile_shape: Any, block: Any, offsets: Any, corners: Any,
         tile: Any, sums: Any, turned: Any, done: Any, added: Any, factors: Any, shifts: Any, value: Any, begin: Any,
         end: Any) -> None:  # fmt: skip
    """Compute work items [begin, end) of :func:`pairs_by_pixels`, with its buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    corners, tile, sums, turned, done = borrow(corners), borrow(tile), borrow(sums), borrow(turned), borrow(done)
    added, factors, shifts, value = borrow(added), borrow(factors), borrow(shifts), borrow(value)
    strips = (g.P + tile_shape.tile_p - 1) // tile_shape.tile_p
    for item in range(begin, end):
        part, rest = item % block.parts, item // block.parts
        at, rest = rest % strips, rest // strips
        group, n = rest % block.groups, rest // block.groups
        p0, p1 = at * tile_shape.tile_p, min((at + 1) * tile_shape.tile_p, g.P)
        if tile_shape.planes:
            gather_planes(tile, x, n, group * g.channels, g.channels, p0, p1, g, tile_shape.pitch, tile_shape.plane)
        else:
            gather_pixels(tile, x, n, group * g.channels, g.channels, p0, p1, g, tile_shape.pitch)
        for b in range(part * block.blocks // block.parts, (part + 1) * block.blocks // block.parts):
            multiply(tile, corners, (p1 - p0) * g.Q, offsets, w, (group * block.blocks + b) * block.taps, sums, block)
            there = min(block.rows, g.outputs - b * block.rows)
            k = group * g.outputs + b * block.rows
            finish(sums, turned, done, added, factors, shifts, value, out, n, k, there, p0, p1, g, epilogue, block)


@inlined
def multiply(tile: Any, corners: Any, pixels: Any, offsets: Any, w: Any, first: Any, sums: Any, block: Any) -> None:
    """Sum the products of all taps for the pixels of a strip and a block of outputs, `depth` pairs at a time.

    So the weights of these pairs stay in the first cache.
    """
    for t in range(0, block.taps, block.depth):
        depth = min(block.depth, block.taps - t)
        at = (first + t) * 2 * block.rows
        for pixel in range(0, pixels, block.width):
            if t == 0:
                for z in range(0, block.width * block.rows, lanes_of(sums)):
                    store(sums, pixel * block.rows + z, zeros(sums))
            if block.rows == 16:
                two_by_six(tile, corners, pixel, offsets, t, w, at, depth, sums, pixel * block.rows)
            else:
                one_by_eight(tile, corners, pixel, offsets, t, w, at, depth, sums, pixel * block.rows)


@inlined
def finish(sums: Any, turned: Any, done: Any, added: Any, factors: Any, shifts: Any, value: Any, out: Any, n: Any,
           k: Any, there: Any, p0: Any, p1: Any, g: Any, epilogue: Any, block: Any) -> None:  # fmt: skip
    """Pass the sums of a block, `there` outputs from `k` on, through the epilogue."""
    modest = fill_factors(factors, shifts, k, there, 1, epilogue)
    vectors = is_linear(epilogue) and modest
    if vectors and out.place[4] != 1:
        finish_pixels(sums, done, added, factors, shifts, out, n, k, there, p0, p1, g, epilogue, block)
    else:
        finish_planes(sums, turned, done, added, factors, shifts, value, vectors, out, n, k, there, p0, p1, g, epilogue,
                      block)  # fmt: skip


@inlined
def finish_pixels(sums: Any, done: Any, added: Any, factors: Any, shifts: Any, out: Any, n: Any, k: Any, there: Any,
                  p0: Any, p1: Any, g: Any, epilogue: Any, block: Any) -> None:  # fmt: skip
    """The epilogue along the outputs of a pixel, whose sums are contiguous."""
    rows = block.rows
    if added.size:
        for p in range(p0, p1):
            at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
            for q in range(g.Q):
                copy_elements(added, ((p - p0) * g.Q + q) * rows, 1, epilogue.residual, at + q * epilogue.place[4],
                              epilogue.place[2], there)  # fmt: skip
    finish_run(sums, 0, (p1 - p0) * g.Q * rows, factors, shifts, rows, added, done, epilogue)
    for p in range(p0, p1):
        start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
        for q in range(g.Q):
            copy_elements(out.flat, start + q * out.place[4], out.place[2], done, ((p - p0) * g.Q + q) * rows, 1, there)


@inlined
def finish_planes(sums: Any, turned: Any, done: Any, added: Any, factors: Any, shifts: Any, value: Any, vectors: Any,
                  out: Any, n: Any, k: Any, there: Any, p0: Any, p1: Any, g: Any, epilogue: Any,
                  block: Any) -> None:  # fmt: skip
    """The epilogue along the pixels of an output; the sums are transposed first."""
    rows, pitch, pixels, lanes = block.rows, block.pitch, (p1 - p0) * g.Q, lanes_of(sums)
    for pixel in range(0, pixels, lanes):
        for i in range(0, rows, lanes):
            transpose(sums, pixel * rows + i, rows, turned, i * pitch + pixel, pitch)
    whole = out.place[3] == g.Q * out.place[4] and (added.size == 0 or epilogue.place[3] == g.Q * epilogue.place[4])
    high = p1 - p0 if whole else 1
    for i in range(there):
        if vectors:
            fill_factors(factors[:lanes], shifts[:lanes], k + i, 1, 0, epilogue)
        for p in range(p0, p1, high):
            start = out.place[0] + n * out.place[1] + (k + i) * out.place[2] + p * out.place[3]
            at = epilogue.place[0] + n * epilogue.place[1] + (k + i) * epilogue.place[2] + p * epilogue.place[3]
            first, count = i * pitch + (p - p0) * g.Q, high * g.Q
            if not vectors:
                store_row(turned, first, count, value, k + i, out.flat, start, out.place[4], epilogue, at,
                          epilogue.place[4])  # fmt: skip
                continue
            if added.size:
                copy_elements(added, 0, 1, epilogue.residual, at, epilogue.place[4], count)
            finish_run(turned, first, (count + lanes - 1) // lanes * lanes, factors, shifts, lanes, added, done,
                       epilogue)  # fmt: skip
            copy_elements(out.flat, start, out.place[4], done, 0, 1, count)


@jit
def pack_pairs(w: Any, sources: Any, packed: Any, begin: Any, end: Any) -> None:
    """Pack weights (groups, outputs, taps) as int16 (groups, blocks, pairs, outputs, 2). Work item = a block.

    `sources` has the tap of each element of a pair; the weight of tap -1, and those of missing outputs, are 0.
    """
    outputs, taps = w.shape[1], w.shape[2]
    blocks, pairs, rows = packed.shape[1], packed.shape[2], packed.shape[3]
    source, target = borrow(w.reshape(-1)), borrow(packed.reshape(-1))
    for item in range(begin, end):
        first = item % blocks * rows
        there, at = min(rows, outputs - first), (item // blocks * outputs + first) * taps
        for t in range(pairs):
            for side in range(2):
                tap, into = sources[2 * t + side], (item * pairs + t) * 2 * rows + side
                for i in range(rows):
                    put(target, into + 2 * i, get(source, at + i * taps + tap) if i < there and tap >= 0 else 0)


@jit
def two_by_six(tile: Any, corners: Any, pixel: Any, offsets: Any, first: Any, w: Any, at: Any, depth: Any, sums: Any,
               into: Any) -> None:  # fmt: skip
    """Add `depth` pairs of taps, from pair `first` on, to the sums of two vectors of outputs by six pixels."""
    lanes = lanes_of(tile)
    rows = lanes_of(sums) * 2
    p0, p1, p2 = get(corners, pixel), get(corners, pixel + 1), get(corners, pixel + 2)
    p3, p4, p5 = get(corners, pixel + 3), get(corners, pixel + 4), get(corners, pixel + 5)
    into1, into2, into3, into4, into5 = into + rows, into + 2 * rows, into + 3 * rows, into + 4 * rows, into + 5 * rows
    half = lanes_of(sums)
    a0, b0 = load(sums, into), load(sums, into + half)
    a1, b1 = load(sums, into1), load(sums, into1 + half)
    a2, b2 = load(sums, into2), load(sums, into2 + half)
    a3, b3 = load(sums, into3), load(sums, into3 + half)
    a4, b4 = load(sums, into4), load(sums, into4 + half)
    a5, b5 = load(sums, into5), load(sums, into5 + half)
    for t in range(first, first + depth):
        offset = get(offsets, t)
        a, b = load(w, at), load(w, at + lanes)
        pair = splat_pair(tile, p0 + offset)
        a0, b0 = multiply_pairs(pair, a, a0), multiply_pairs(pair, b, b0)
        pair = splat_pair(tile, p1 + offset)
        a1, b1 = multiply_pairs(pair, a, a1), multiply_pairs(pair, b, b1)
        pair = splat_pair(tile, p2 + offset)
        a2, b2 = multiply_pairs(pair, a, a2), multiply_pairs(pair, b, b2)
        pair = splat_pair(tile, p3 + offset)
        a3, b3 = multiply_pairs(pair, a, a3), multiply_pairs(pair, b, b3)
        pair = splat_pair(tile, p4 + offset)
        a4, b4 = multiply_pairs(pair, a, a4), multiply_pairs(pair, b, b4)
        pair = splat_pair(tile, p5 + offset)
        a5, b5 = multiply_pairs(pair, a, a5), multiply_pairs(pair, b, b5)
        at += 2 * lanes
    put_two(sums, into, a0, b0)
    put_two(sums, into1, a1, b1)
    put_two(sums, into2, a2, b2)
    put_two(sums, into3, a3, b3)
    put_two(sums, into4, a4, b4)
    put_two(sums, into5, a5, b5)


@jit
def one_by_eight(tile: Any, corners: Any, pixel: Any, offsets: Any, first: Any, w: Any, at: Any, depth: Any, sums: Any,
                 into: Any) -> None:  # fmt: skip
    """Like :func:`two_by_six`, for one vector of outputs by eight pixels."""
    lanes, rows = lanes_of(tile), lanes_of(sums)
    p0, p1, p2, p3 = get(corners, pixel), get(corners, pixel + 1), get(corners, pixel + 2), get(corners, pixel + 3)
    p4, p5, p6, p7 = get(corners, pixel + 4), get(corners, pixel + 5), get(corners, pixel + 6), get(corners, pixel + 7)
    s0, s1 = load(sums, into), load(sums, into + rows)
    s2, s3 = load(sums, into + 2 * rows), load(sums, into + 3 * rows)
    s4, s5 = load(sums, into + 4 * rows), load(sums, into + 5 * rows)
    s6, s7 = load(sums, into + 6 * rows), load(sums, into + 7 * rows)
    for t in range(first, first + depth):
        offset, a = get(offsets, t), load(w, at)
        s0 = multiply_pairs(splat_pair(tile, p0 + offset), a, s0)
        s1 = multiply_pairs(splat_pair(tile, p1 + offset), a, s1)
        s2 = multiply_pairs(splat_pair(tile, p2 + offset), a, s2)
        s3 = multiply_pairs(splat_pair(tile, p3 + offset), a, s3)
        s4 = multiply_pairs(splat_pair(tile, p4 + offset), a, s4)
        s5 = multiply_pairs(splat_pair(tile, p5 + offset), a, s5)
        s6 = multiply_pairs(splat_pair(tile, p6 + offset), a, s6)
        s7 = multiply_pairs(splat_pair(tile, p7 + offset), a, s7)
        at += lanes
    put_two(sums, into, s0, s1)
    put_two(sums, into + 2 * rows, s2, s3)
    put_two(sums, into + 4 * rows, s4, s5)
    put_two(sums, into + 6 * rows, s6, s7)


@jit
def put_two(sums: Any, at: Any, a: Any, b: Any) -> None:
    store(sums, at, a)
    store(sums, at + lanes_of(sums), b)
