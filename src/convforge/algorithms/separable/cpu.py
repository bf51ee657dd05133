"""CPU kernels of the separable method: a column pass and a row pass, in a tile that stays in cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import gather_row, store_row
from convforge.backends.cpu.jit import jit
from convforge.backends.cpu.simd import alias, borrow, fma, get, lanes_of, load, splat, store, zeros


@jit
def separable(x: Any, horizontal: Any, vertical: Any, ranks: Any, out: Any, g: Any, epilogue: Any, values: Any,
              sizes: Any, taps: Any, used: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a tile of one output channel (n, k, strip of rows, strip of columns), computed row by row.

    For each factor of the rank, the column pass makes one row of intermediate sums; the row pass then filters that
    row. Image rows come from a ring of gathered rows; or directly from the image, if the filter has few rows and the
    image has the right type and contiguous rows. From the ring, the column pass makes as many output rows at once as
    `sizes.group` says: they read most of the same rows.

    `horizontal` has K * channels * rank * S factors and `vertical` K * channels * rank * R, with room for the largest
    rank; `ranks` is (K, channels). `taps`, of shape (rank * S,), has the offset of each horizontal tap from the row of
    the first factor. `used` is True for each remainder modulo stride_h of rows that any output reads. `values` only
    gives the type of the epilogue.
    """
    x, out, g, epilogue = borrow(x), borrow(out), borrow(g), borrow(epilogue)
    horizontal, vertical, taps = borrow(horizontal), borrow(vertical), borrow(taps)
    K, rank, pitch = ranks.shape[0], sizes.rank, sizes.pitch
    ring = np.zeros(sizes.ring_rows * pitch, vertical.dtype)
    middle = np.zeros(sizes.group * rank * pitch, vertical.dtype)
    places = np.empty(g.R + sizes.group - 1, np.int64)
    sums = np.zeros((1 if g.channels == 1 else sizes.tile_p) * (sizes.tile_q + sizes.lanes), vertical.dtype)
    value = np.empty(sizes.tile_q, values.dtype)
    source, target = alias(x.flat, ring), alias(out.flat, sums)
    for item in range(begin, end):
        n, k = item // (K * sizes.strips), item // sizes.strips % K
        p0 = item % sizes.strips // sizes.strips_q * sizes.tile_p
        q0 = item % sizes.strips_q * sizes.tile_q
        rows, columns = min(sizes.tile_p, g.P - p0), min(sizes.tile_q, g.Q - q0)
        for c in range(g.channels):
            plane = x.place[0] + n * x.place[1] + (k // g.outputs * g.channels + c) * x.place[2]
            rank, gathered = ranks[k, c], 0
            first_v = (k * g.channels + c) * sizes.rank * g.R
            first_h = (k * g.channels + c) * sizes.rank * g.S
            for p in range(rows):
                row = p % sizes.group  # of the group
                if sizes.in_place and find_rows(places, (p0 + p) * g.stride_h, g, x.place[3]):
                    filter_in_place(middle, source, plane, places, vertical, first_v, rank, q0, columns, g, sizes)
                elif row == 0:
                    group = min(sizes.group, rows - p)
                    top = p * g.stride_h
                    bottom = top + sizes.extent_h + group - 1
                    for at in range(max(gathered, top), bottom):
                        if used[at % g.stride_h]:
                            gather(ring, at % sizes.ring_rows * pitch, x, plane, p0 * g.stride_h + at, q0, columns, g,
                                   sizes)  # fmt: skip
                    gathered = bottom
                    for r in range(g.R + group - 1):
                        places[r] = (top + r * g.dilation_h) % sizes.ring_rows * pitch
                    column_pass(middle, ring, places, vertical, first_v, rank, group, g, sizes)
                start = out.place[0] + n * out.place[1] + k * out.place[2]
                start += (p0 + p) * out.place[3] + q0 * out.place[4]
                made = row * sizes.rank * pitch
                if sizes.put_directly and columns >= sizes.lanes:
                    weighted_sum(target, start, middle, made, taps, 0, horizontal, first_h, rank * g.S, columns, False)
                    continue
                at = 0 if g.channels == 1 else p * (sizes.tile_q + sizes.lanes)
                weighted_sum(sums, at, middle, made, taps, 0, horizontal, first_h, rank * g.S, columns, c > 0)
                if c == g.channels - 1:
                    other = epilogue.place[0] + n * epilogue.place[1] + k * epilogue.place[2]
                    other += (p0 + p) * epilogue.place[3] + q0 * epilogue.place[4]
                    store_row(
                        sums, at, columns, value, k, out.flat, start, out.place[4], epilogue, other, epilogue.place[4]
                    )


@jit
def column_pass(middle: Any, ring: Any, places: Any, factors: Any, first: Any, rank: Any, group: Any, g: Any,
                sizes: Any) -> None:  # fmt: skip
    """Make the intermediate sums of `group` output rows; `places` are the ring's rows that they read, in order."""
    n = sizes.pitch - sizes.lanes
    for i in range(rank):
        at, factor = i * sizes.pitch, first + i * g.R
        if group == 4:  # all rows of a group
            four_weighted_sums(middle, at, sizes.rank * sizes.pitch, ring, places, factors, factor, g.R, n)
        else:
            for row in range(group):
                weighted_sum(middle, at + row * sizes.rank * sizes.pitch, ring, 0, places, row, factors, factor, g.R,
                             n, False)  # fmt: skip


@jit
def four_weighted_sums(target: Any, to: Any, pitch: Any, source: Any, places: Any, factors: Any, first: Any,
                       taps: Any, n: Any) -> None:  # fmt: skip
    """:func:`weighted_sum` for four rows: target row j, at ``to + j * pitch``, reads ``places[j]`` to
    ``places[j + taps - 1]``.

    Each vector of the source is loaded once for all of them. `taps` is at least 4, and after `n` elements all arrays
    have room for one more vector. A sum has its products in the order of the taps, as in :func:`weighted_sum`.
    """
    lanes = lanes_of(target)
    q = 0
    while q < n:
        q = max(min(q, n - 2 * lanes), 0)
        a0, b0, a1, b1 = zeros(target), zeros(target), zeros(target), zeros(target)
        a2, b2, a3, b3 = zeros(target), zeros(target), zeros(target), zeros(target)
        for t in range(3):  # rows that the last targets do not read
            x, y = load(source, get(places, t) + q), load(source, get(places, t) + q + lanes)
            factor = splat(factors, first + t)
            a0, b0 = fma(factor, x, a0), fma(factor, y, b0)
            if t >= 1:
                factor = splat(factors, first + t - 1)
                a1, b1 = fma(factor, x, a1), fma(factor, y, b1)
            if t >= 2:
                factor = splat(factors, first + t - 2)
                a2, b2 = fma(factor, x, a2), fma(factor, y, b2)
        for t in range(3, taps):
            x, y = load(source, get(places, t) + q), load(source, get(places, t) + q + lanes)
            factor = splat(factors, first + t)
            a0, b0 = fma(factor, x, a0), fma(factor, y, b0)
            factor = splat(factors, first + t - 1)
            a1, b1 = fma(factor, x, a1), fma(factor, y, b1)
            factor = splat(factors, first + t - 2)
            a2, b2 = fma(factor, x, a2), fma(factor, y, b2)
            factor = splat(factors, first + t - 3)
            a3, b3 = fma(factor, x, a3), fma(factor, y, b3)
        for t in range(taps, taps + 3):  # rows that the first targets do not read
            x, y = load(source, get(places, t) + q), load(source, get(places, t) + q + lanes)
            if t <= taps:
                factor = splat(factors, first + t - 1)
                a1, b1 = fma(factor, x, a1), fma(factor, y, b1)
            if t <= taps + 1:
                factor = splat(factors, first + t - 2)
                a2, b2 = fma(factor, x, a2), fma(factor, y, b2)
            factor = splat(factors, first + t - 3)
            a3, b3 = fma(factor, x, a3), fma(factor, y, b3)
        store(target, to + q, a0)
        store(target, to + q + lanes, b0)
        store(target, to + pitch + q, a1)
        store(target, to + pitch + q + lanes, b1)
        store(target, to + 2 * pitch + q, a2)
        store(target, to + 2 * pitch + q + lanes, b2)
        store(target, to + 3 * pitch + q, a3)
        store(target, to + 3 * pitch + q + lanes, b3)
        q += 2 * lanes


@jit
def gather(ring: Any, slot: Any, x: Any, plane: Any, position: Any, q0: Any, columns: Any, g: Any, sizes: Any) -> None:
    """Copy the pixels of padded row `position` that the `columns` outputs from column `q0` on read."""
    h = g.rows[position]
    start = plane + h * x.place[3] if h >= 0 else -1
    count = (columns - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    gather_row(ring, slot, sizes.phase_pitch, x.flat, start, x.place[4], g.columns, q0 * g.stride_w, g.left, g.width,
               count, g.stride_w, sizes.phases, g.outside, g.zero, x.half)  # fmt: skip


@jit
def find_rows(places: Any, top: Any, g: Any, step: Any) -> Any:
    """Store the offsets of the rows that a filter at padded row `top` reads; False if one is outside the image."""
    for r in range(g.R):
        h = g.rows[top + r * g.dilation_h]
        if h < 0:
            return False
        places[r] = h * step
    return True


@jit
def filter_in_place(middle: Any, flat: Any, plane: Any, places: Any, factors: Any, first: Any, rank: Any, q0: Any,
                    columns: Any, g: Any, sizes: Any) -> None:  # fmt: skip
    """Apply the column pass of every factor to image rows in place; the table gives the border's columns."""
    count = columns + g.dilation_w * (g.S - 1)
    a = min(max(g.left - q0, 0), count)
    b = min(max(g.left + g.width - q0, a), count)
    for i in range(rank):
        at, factor = i * sizes.pitch, first + i * g.R
        if b - a >= sizes.lanes:
            weighted_sum(middle, at + a, flat, plane + q0 + a - g.left, places, 0, factors, factor, g.R, b - a, False)
        else:
            filter_border(middle, at, a, b, a, a, flat, plane, places, factors, factor, q0, g)
        filter_border(middle, at, 0, a, a, b, flat, plane, places, factors, factor, q0, g)
        filter_border(middle, at, b, count, a, b, flat, plane, places, factors, factor, q0, g)


@jit
def filter_border(middle: Any, at: Any, begin: Any, end: Any, a: Any, b: Any, flat: Any, plane: Any, places: Any,
                  factors: Any, factor: Any, q0: Any, g: Any) -> None:  # fmt: skip
    """Filter columns [begin, end) of a row one by one; copy those that repeat one of the finished columns [a, b)."""
    for j in range(begin, end):
        column = g.columns[q0 + j]
        same = column + g.left - q0
        if column >= 0 and a <= same and same < b:
            middle[at + j] = middle[at + same]
        else:
            total = factors.dtype.type(0)
            for r in range(g.R):
                pixel = g.outside if column < 0 else flat[plane + places[r] + column]
                total += factors[factor + r] * pixel
            middle[at + j] = total


@jit
def weighted_sum(target: Any, to: Any, source: Any, at: Any, places: Any, begin: Any, factors: Any, first: Any,
                 taps: Any, n: Any, add: Any) -> None:  # fmt: skip
    """target[to + q] = sum over t of factors[first + t] * source[at + get(places, begin + t) + q], for 0 <= q < `n`.

    The sums of a block of eight vectors stay in registers over all taps. If `add` is set, or `n` is less than a
    vector, it reads and writes whole vectors, so the arrays must have room for them.
    """
    lanes = lanes_of(target)
    q = 0
    while q + 8 * lanes <= n:
        s0, s1, s2, s3 = zeros(target), zeros(target), zeros(target), zeros(target)
        s4, s5, s6, s7 = zeros(target), zeros(target), zeros(target), zeros(target)
        if add:
            s0, s1 = load(target, to + q), load(target, to + q + lanes)
            s2, s3 = load(target, to + q + 2 * lanes), load(target, to + q + 3 * lanes)
            s4, s5 = load(target, to + q + 4 * lanes), load(target, to + q + 5 * lanes)
            s6, s7 = load(target, to + q + 6 * lanes), load(target, to + q + 7 * lanes)
        for t in range(taps):
            factor, i = splat(factors, first + t), at + get(places, begin + t) + q
            s0, s1 = fma(factor, load(source, i), s0), fma(factor, load(source, i + lanes), s1)
            s2, s3 = fma(factor, load(source, i + 2 * lanes), s2), fma(factor, load(source, i + 3 * lanes), s3)
            s4, s5 = fma(factor, load(source, i + 4 * lanes), s4), fma(factor, load(source, i + 5 * lanes), s5)
            s6, s7 = fma(factor, load(source, i + 6 * lanes), s6), fma(factor, load(source, i + 7 * lanes), s7)
        store(target, to + q, s0)
        store(target, to + q + lanes, s1)
        store(target, to + q + 2 * lanes, s2)
        store(target, to + q + 3 * lanes, s3)
        store(target, to + q + 4 * lanes, s4)
        store(target, to + q + 5 * lanes, s5)
        store(target, to + q + 6 * lanes, s6)
        store(target, to + q + 7 * lanes, s7)
        q += 8 * lanes
    while q < n:
        if not add and n >= lanes:
            q = min(q, n - lanes)  # recompute some sums, so that nothing after the row is overwritten
        total = load(target, to + q) if add else zeros(target)
        for t in range(taps):
            total = fma(splat(factors, first + t), load(source, at + get(places, begin + t) + q), total)
        store(target, to + q, total)
        q += lanes
