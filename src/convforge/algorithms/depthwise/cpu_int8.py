"""CPU kernels of depthwise convolution of 8-bit integers: vectors of pairs, along columns or along channels.

Change since cpu.py: an element of the tile is a pair of int16, a pixel and the one that the next tap of the same row
reads. One instruction multiplies eight pairs by two weights and adds both products, in int32: a 3x3 filter takes six
of them, not nine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import store_pixels, store_row
from convforge.algorithms.host.rows_int8 import (
    copy_elements,
    fill_factors,
    finish_run,
    gather_pixel_row,
    is_linear,
)
from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import borrow, get, lanes_of, load, load_every_second, put, store, zeros
from convforge.backends.cpu.simd_pairs import join_pairs, load_ints, multiply_pairs, splat_pair


@jit
def along_columns(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, tile_shape: Any, block: Any,
                  offsets: Any, corners: Any, places: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of rows of one channel (n, c, strip).

    `w` has a row of pairs for each output channel; `values` only gives the type of the epilogue. `offsets` has the
    offset in the tile of each pair of taps, `corners` the position of the first tap of each vector of outputs, and
    `places` where its sums go.
    """
    lanes = lanes_of(w)
    row = np.empty(tile_shape.row_size, np.int16)
    tile = np.empty(tile_shape.size, np.int16)
    weights = np.empty(block.taps * lanes, np.int16)
    sums = np.empty(block.rows * g.Q + lanes, np.int32)
    done = np.empty(block.rows * g.Q + lanes, out.flat.dtype)
    added = np.empty(block.rows * g.Q + lanes if epilogue.residual.size else 0, out.flat.dtype)
    factors, shifts = np.empty(lanes // 2, np.float64), np.empty(lanes // 2, np.float64)
    value = np.empty(block.rows * g.Q, values.dtype)
    walk_planes(x, w, out, g, epilogue, tile_shape, block, offsets, corners, places, row, tile, weights, sums, done,
                added, factors, shifts, value, begin, end)  # fmt: skip


@jit
def walk_planes(x: Any, w: Any, out: Any, g: Any, epilogue: Any, tile_shape: Any, block: Any, offsets: Any,
                corners: Any, places: Any, row: Any, tile: Any, weights: Any, sums: Any, done: Any, added: Any,
                factors: Any, shifts: Any, value: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Compute work items [begin, end) of :func:`along_columns`, with its buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    corners, places, row, tile, weights = borrow(corners), borrow(places), borrow(row), borrow(tile), borrow(weights)
    sums, done, added, value = borrow(sums), borrow(done), borrow(added), borrow(value)
    factors, shifts = borrow(factors), borrow(shifts)
    lanes, strips = lanes_of(w), (g.P + tile_shape.tile_p - 1) // tile_shape.tile_p
    for item in range(begin, end):
        at, rest = item % strips, item // strips
        c, n = rest % block.channels, rest // block.channels
        p0, p1 = at * tile_shape.tile_p, min((at + 1) * tile_shape.tile_p, g.P)
        gather_strip(tile, row, sums, x, n, c, 1, p0, p1, g, tile_shape)
        for k in range(c * g.outputs, (c + 1) * g.outputs):
            for t in range(block.taps):
                store(weights, t * lanes, splat_pair(w, (k * block.taps + t) * 2))
            vectors = fill_factors(factors, shifts, k, 1, 0, epilogue) and is_linear(epilogue)
            for p in range(p0, p1, block.rows):
                last = min(p + block.rows, p1)
                add_pairs(tile, (p - p0) * g.stride_h * tile_shape.pitch, corners, (last - p) * block.row_vectors,
                          offsets, weights, 0, block.taps, sums, 0, places, 1)  # fmt: skip
                finish_plane(sums, done, added, factors, shifts, value, vectors, out, n, k, p, last, g, epilogue)


@inlined
def finish_plane(sums: Any, done: Any, added: Any, factors: Any, shifts: Any, value: Any, vectors: Any, out: Any,
                 n: Any, k: Any, p0: Any, p1: Any, g: Any, epilogue: Any) -> None:  # fmt: skip
    """Apply the epilogue to output rows [p0, p1) of channel `k`, in one run if they are contiguous."""
    whole = out.place[3] == g.Q * out.place[4] and (
        epilogue.residual.size == 0 or epilogue.place[3] == g.Q * epilogue.place[4]
    )
    rows = p1 - p0 if whole else 1
    for p in range(p0, p1, rows):
        start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
        at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
        first, count = (p - p0) * g.Q, rows * g.Q
        if not vectors:
            store_row(sums, first, count, value, k, out.flat, start, out.place[4], epilogue, at, epilogue.place[4])
            continue
        if added.size:
            copy_elements(added, 0, 1, epilogue.residual, at, epilogue.place[4], count)
        finish_run(sums, first, (count + 7) // 8 * 8, factors, shifts, 8, added, done, epilogue)
        copy_elements(out.flat, start, out.place[4], done, 0, 1, count)


@jit
def along_channels(x: Any, w: Any, out: Any, g: Any, epilogue: Any, values: Any, tile_shape: Any, block: Any,
                   offsets: Any, corners: Any, places: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a strip of rows of some channels (n, strip, channels); parameters as in :func:`along_columns`.

    A vector holds channels of one pixel. `w` has one pair per lane for each vector of channels, each of its filters
    and each pair of taps.
    """
    width = block.item_channels
    row = np.empty(tile_shape.row_size, np.int16)
    tile = np.empty(tile_shape.size, np.int16)
    sums = np.empty(block.rows * g.Q * width, np.int32)
    done = np.empty(block.rows * g.Q * width, out.flat.dtype)
    added = np.empty(block.rows * g.Q * width if epilogue.residual.size else 0, out.flat.dtype)
    factors, shifts = np.empty(width, np.float64), np.empty(width, np.float64)
    value = np.empty(max(width, 512), values.dtype)
    walk_pixels(x, w, out, g, epilogue, tile_shape, block, offsets, corners, places, row, tile, sums, done, added,
                factors, shifts, value, begin, end)  # fmt: skip


@jit
def walk_pixels(x: Any, w: Any, out: Any, g: Any, epilogue: Any, tile_shape: Any, block: Any, offsets: Any,
                corners: Any, places: Any, row: Any, tile: Any, sums: Any, done: Any, added: Any, factors: Any,
                shifts: Any, value: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Compute work items [begin, end) of :func:`along_channels`, with its buffers."""
    x, w, out, g, epilogue, offsets = borrow(x), borrow(w), borrow(out), borrow(g), borrow(epilogue), borrow(offsets)
    corners, places, row, tile, sums = borrow(corners), borrow(places), borrow(row), borrow(tile), borrow(sums)
    done, added, value, factors, shifts = borrow(done), borrow(added), borrow(value), borrow(factors), borrow(shifts)
    lanes, strips = lanes_of(w), (g.P + tile_shape.tile_p - 1) // tile_shape.tile_p
    width, half = block.item_channels, lanes // 2
    blocks = (block.channels + width - 1) // width
    for item in range(begin, end):
        b, rest = item % blocks, item // blocks
        at, n = rest % strips, rest // strips
        p0, p1 = at * tile_shape.tile_p, min((at + 1) * tile_shape.tile_p, g.P)
        c0, c1 = b * width, min((b + 1) * width, block.channels)
        gather_strip(tile, row, sums, x, n, c0, c1 - c0, p0, p1, g, tile_shape)
        for j in range(g.outputs):
            k = c0 * g.outputs + j
            vectors = fill_factors(factors, shifts, k, c1 - c0, g.outputs, epilogue) and is_linear(epilogue)
            for p in range(p0, p1, block.rows):
                last = min(p + block.rows, p1)
                base = (p - p0) * g.stride_h * tile_shape.pitch
                for v in range((c1 - c0 + half - 1) // half):
                    filters = ((c0 // half + v) * g.outputs + j) * block.taps * lanes
                    add_pairs(tile, base + v * tile_shape.plane, corners, (last - p) * block.row_vectors, offsets, w,
                              filters, block.taps, sums, v * half, places, width)  # fmt: skip
                finish_pixels(sums, width, done, added, factors, shifts, value, vectors, out, n, k, c1 - c0, p, last, g,
                              epilogue)  # fmt: skip


@inlined
def finish_pixels(sums: Any, pitch: Any, done: Any, added: Any, factors: Any, shifts: Any, value: Any, vectors: Any,
                  out: Any, n: Any, k: Any, channels: Any, p0: Any, p1: Any, g: Any,
                  epilogue: Any) -> None:  # fmt: skip
    """Apply the epilogue to the pixels of output rows [p0, p1)."""
    for p in range(p0, p1):
        at = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2] + p * epilogue.place[3]
        if not vectors:
            start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
            store_pixels(sums, (p - p0) * g.Q * pitch, pitch, g.Q, channels, value, k, g.outputs, out.flat, start,
                         out.place, epilogue, at)  # fmt: skip
        elif added.size:
            for q in range(g.Q):
                copy_elements(added, ((p - p0) * g.Q + q) * pitch, 1, epilogue.residual, at + q * epilogue.place[4],
                              g.outputs * epilogue.place[2], channels)  # fmt: skip
    if not vectors:
        return
    finish_run(sums, 0, (p1 - p0) * g.Q * pitch, factors, shifts, pitch, added, done, epilogue)
    for p in range(p0, p1):
        start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3]
        for q in range(g.Q):
            copy_elements(out.flat, start + q * out.place[4], g.outputs * out.place[2], done,
                          ((p - p0) * g.Q + q) * pitch, 1, channels)  # fmt: skip


@inlined
def gather_strip(tile: Any, row: Any, ints: Any, x: Any, n: Any, c0: Any, channels: Any, p0: Any, p1: Any, g: Any,
                 tile_shape: Any) -> None:  # fmt: skip
    """Gather the pairs that output rows [p0, p1) read. Only columns of the phases of first taps begin a pair.

    `row` has one row of pixels; `ints` gives the type int32.
    """
    rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
    for i in range(rows):
        gather_pixel_row(row, 0, tile_shape.apart, x, n, c0, channels, g.rows[p0 * g.stride_h + i], g)
        for phase in range(g.stride_w):
            if tile_shape.phases[phase] >= 0:
                into = i * tile_shape.pitch + tile_shape.phases[phase]
                if tile_shape.apart == 1:
                    join_columns(tile, into, row, ints, phase, tile_shape.columns, g)
                else:
                    join_channels(tile, into, row, phase, channels, g, tile_shape)


@inlined
def join_columns(tile: Any, into: Any, row: Any, ints: Any, phase: Any, columns: Any, g: Any) -> None:
    """Pairs (row[j], row[j + dilation]) for every column j of a phase."""
    half = lanes_of(ints)
    if g.stride_w <= 2:  # the tile and the row have room for whole vectors
        for i in range(0, columns, half):
            j = phase + i * g.stride_w
            if g.stride_w == 1:
                a, b = load_ints(row, j), load_ints(row, j + g.dilation_w)
            else:
                a, b = load_every_second(row, j, ints), load_every_second(row, j + g.dilation_w, ints)
            store(tile, into + 2 * i, join_pairs(a, b))
    else:
        for i in range(columns):
            j = phase + i * g.stride_w
            put(tile, into + 2 * i, get(row, j))
            put(tile, into + 2 * i + 1, get(row, j + g.dilation_w))


@inlined
def join_channels(tile: Any, into: Any, row: Any, phase: Any, channels: Any, g: Any, tile_shape: Any) -> None:
    """Pairs of pixels j and j + dilation for every column j of a phase, in vectors of channels."""
    lanes = lanes_of(tile)
    half = lanes // 2
    for i in range(tile_shape.columns):
        at = (phase + i * g.stride_w) * tile_shape.apart
        for v in range((channels + half - 1) // half):
            a, b = load_ints(row, at + v * half), load_ints(row, at + g.dilation_w * tile_shape.apart + v * half)
            store(tile, into + v * tile_shape.plane + i * lanes, join_pairs(a, b))


@jit
def add_pairs(tile: Any, base: Any, corners: Any, count: Any, offsets: Any, w: Any, at: Any, taps: Any, target: Any,
              to: Any, places: Any, pitch: Any) -> None:  # fmt: skip
    """Sum `count` vectors of outputs, eight at a time in registers; may sum the last ones twice.

    Pair t of vector i is the vector at ``tile[base + corners[i] + offsets[t]]``, times that at ``w[at + t * lanes]``.
    The sum is stored at ``target[to + places[i] * pitch]``.
    """
    lanes = lanes_of(w)
    for first in range(0, count, 8):
        i = max(min(first, count - 8), 0)
        last = count - 1 - i
        i1, i2, i3 = i + min(1, last), i + min(2, last), i + min(3, last)
        i4, i5, i6, i7 = i + min(4, last), i + min(5, last), i + min(6, last), i + min(7, last)
        x0, x1, x2, x3 = base + corners[i], base + corners[i1], base + corners[i2], base + corners[i3]
        x4, x5, x6, x7 = base + corners[i4], base + corners[i5], base + corners[i6], base + corners[i7]
        s0, s1, s2, s3 = zeros(target), zeros(target), zeros(target), zeros(target)
        s4, s5, s6, s7 = zeros(target), zeros(target), zeros(target), zeros(target)
        for t in range(taps):
            factor, offset = load(w, at + t * lanes), get(offsets, t)
            s0 = multiply_pairs(factor, load(tile, x0 + offset), s0)
            s1 = multiply_pairs(factor, load(tile, x1 + offset), s1)
            s2 = multiply_pairs(factor, load(tile, x2 + offset), s2)
            s3 = multiply_pairs(factor, load(tile, x3 + offset), s3)
            s4 = multiply_pairs(factor, load(tile, x4 + offset), s4)
            s5 = multiply_pairs(factor, load(tile, x5 + offset), s5)
            s6 = multiply_pairs(factor, load(tile, x6 + offset), s6)
            s7 = multiply_pairs(factor, load(tile, x7 + offset), s7)
        store(target, to + places[i] * pitch, s0)
        store(target, to + places[i1] * pitch, s1)
        store(target, to + places[i2] * pitch, s2)
        store(target, to + places[i3] * pitch, s3)
        store(target, to + places[i4] * pitch, s4)
        store(target, to + places[i5] * pitch, s5)
        store(target, to + places[i6] * pitch, s6)
        store(target, to + places[i7] * pitch, s7)
