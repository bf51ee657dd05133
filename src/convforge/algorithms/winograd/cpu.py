"""CPU kernels of Winograd's method: filter and input transforms, packed products with the inverse transform.

Tiles are numbered through the whole batch, row by row. A panel is a run of tiles that fills two vectors. All
transforms and products are vectorised along the panel, so their loops do not depend on the image's width.

    V[panel][transform point][channel][tile of the panel]          the transformed input
    U[block of outputs][transform point][output][channel]          the transformed filter
    M[transform point][output of the block][tile of the panel]     their products, which stay in L1 and L2
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.epilogue import EpilogueArguments
from convforge.algorithms.host.rows import half_to_float, store_row
from convforge.algorithms.winograd.transforms import filter_2, filter_4, input_2, input_4, output_2, output_4
from convforge.backends.cpu.jit import jit
from convforge.backends.cpu.simd import borrow, fma, get, load, put, splat, store, zeros


@jit
def transform_filters(w: Any, u: Any, sizes: Any, channels: Any, flip: Any, begin: Any, end: Any) -> None:
    """Work item = an output channel: transform its filters by G into U, one vector of input channels at a time.

    `w` is (K, C / groups * 9). Lanes without a channel become zeros; rows of U without an output are not written.
    `flip`: the mode is convolution.
    """
    w, u = borrow(w), borrow(u)
    a, lanes = sizes.alpha, sizes.lanes
    taps, once, twice = np.zeros(9 * lanes, u.dtype), np.empty(3 * a * lanes, u.dtype), np.empty(a * a * lanes, u.dtype)
    point = sizes.filter_pitch
    for item in range(begin, end):
        group, k = item // sizes.outputs, item % sizes.outputs
        base = (group * sizes.blocks_k + k // sizes.block_k) * a * a * point + k % sizes.block_k * sizes.channel_pitch
        for c0 in range(0, channels, lanes):
            n = min(lanes, channels - c0)
            source = w[item, c0 * 9 :]
            for i in range(9):
                row = taps[(8 - i if flip else i) * lanes :]
                for c in range(n):
                    row[c] = source[c * 9 + i]
                row[n:lanes] = 0
            for s in range(3):
                if a == 6:
                    filter_4(taps, s * lanes, 3 * lanes, once, s * lanes, 3 * lanes)
                else:
                    filter_2(taps, s * lanes, 3 * lanes, once, s * lanes, 3 * lanes)
            for i in range(a):
                if a == 6:
                    filter_4(once, i * 3 * lanes, lanes, twice, i * a * lanes, lanes)
                else:
                    filter_2(once, i * 3 * lanes, lanes, twice, i * a * lanes, lanes)
            for i in range(a * a):
                store(u, base + i * point + c0, load(twice, i * lanes))


@jit
def transform_input(x: Any, v: Any, g: Any, sizes: Any, first: Any, begin: Any, end: Any) -> None:
    """Work item = a panel and a block of channels: transform its tiles by B^T into V, from panel `first` on."""
    x, v, g = borrow(x), borrow(v), borrow(g)
    width = 2 * sizes.lanes
    patch = np.zeros(sizes.alpha * sizes.alpha * width, v.dtype)
    once, runs = np.empty_like(patch), np.empty((width, 4), np.int64)
    row = np.empty(sizes.m * width + 2, v.dtype)
    for item in range(begin, end):
        panel, block = item // sizes.blocks_c, item % sizes.blocks_c
        count = find_runs(runs, (first + panel) * width, sizes)
        for c in range(block * sizes.block_c, min((block + 1) * sizes.block_c, sizes.all_channels)):
            gather_panel(patch, row, x, c, runs, count, g, sizes)
            at = (panel * sizes.groups + c // g.channels) * sizes.panel_pitch + c % g.channels * width
            input_panel(patch, once, v, at, sizes)


@jit
def find_runs(runs: Any, tile: Any, sizes: Any) -> Any:
    """Cut a panel into runs within rows of tiles; store n, row, column and length of each, return their number."""
    last, count = min(tile + 2 * sizes.lanes, sizes.tiles), 0
    while tile < last:
        row, tx = tile // sizes.tiles_w, tile % sizes.tiles_w
        runs[count, 0], runs[count, 1] = row // sizes.tiles_h, row % sizes.tiles_h
        runs[count, 2], runs[count, 3] = tx, min(sizes.tiles_w - tx, last - tile)
        tile += runs[count, 3]
        count += 1
    return count


@jit
def gather_panel(patch: Any, row: Any, x: Any, c: Any, runs: Any, count: Any, g: Any, sizes: Any) -> None:
    """Gather one channel of a panel: ``patch[(row of the tile * alpha + column) * width + tile]``."""
    a, m, width, step, slot = sizes.alpha, sizes.m, 2 * sizes.lanes, x.place[4], 0
    for at in range(count):
        n, ty, tx, run = runs[at, 0], runs[at, 1], runs[at, 2], runs[at, 3]
        plane, first, wanted = x.place[0] + n * x.place[1] + c * x.place[2], m * tx, m * run + 2
        # Columns [left, right) of the run are inside the image, [0, known) inside the padded image.
        known = min(wanted, g.columns.size - first)
        left = min(max(g.left - first, 0), known)
        right = min(max(g.left + g.width - first, left), known)
        for i in range(a):
            h = g.rows[m * ty + i] if m * ty + i < g.rows.size else -2
            if h < 0:
                for j in range(wanted):
                    put(row, j, g.outside if h == -1 else g.zero)
            else:
                start = plane + h * x.place[3]
                if left > 0:
                    read_looked_up(row, 0, left, x.flat, start, step, g.columns, first, g.outside, x.half)
                if x.half:
                    read_looked_up(row, left, right, x.flat, start, step, g.columns, first, g.outside, x.half)
                else:
                    inside = start + (first + left - g.left) * step
                    if step == 1:
                        for j in range(right - left):
                            put(row, left + j, get(x.flat, inside + j))
                    else:
                        for j in range(right - left):
                            put(row, left + j, get(x.flat, inside + j * step))
                if right < known:
                    read_looked_up(row, right, known, x.flat, start, step, g.columns, first, g.outside, x.half)
                # Zeros beyond the padded image affect no output that is stored.
                for j in range(known, wanted):
                    put(row, j, 0)
            spread(row, patch, i * a * width + slot, width, run, m)
        slot += run


@jit
def read_looked_up(row: Any, begin: Any, end: Any, flat: Any, start: Any, step: Any, columns: Any, first: Any,
                   outside: Any, half: Any) -> None:  # fmt: skip
    """Copy elements [begin, end) of a row of the padded image, with columns from the border's table."""
    for j in range(begin, end):
        column = columns[first + j]
        if column < 0:
            put(row, j, outside)
        elif half:
            put(row, j, half_to_float(np.uint16(flat[start + column * step])))
        else:
            put(row, j, flat[start + column * step])


@jit
def spread(row: Any, patch: Any, to: Any, width: Any, run: Any, m: Any) -> None:
    """patch[to + i * width + j] = row[m * j + i]: copy one row of `run` tiles, column by column."""
    if m == 4:
        for j in range(run):
            put(patch, to + j, get(row, 4 * j))
            put(patch, to + width + j, get(row, 4 * j + 1))
            put(patch, to + 2 * width + j, get(row, 4 * j + 2))
            put(patch, to + 3 * width + j, get(row, 4 * j + 3))
            put(patch, to + 4 * width + j, get(row, 4 * j + 4))
            put(patch, to + 5 * width + j, get(row, 4 * j + 5))
    else:
        for j in range(run):
            put(patch, to + j, get(row, 2 * j))
            put(patch, to + width + j, get(row, 2 * j + 1))
            put(patch, to + 2 * width + j, get(row, 2 * j + 2))
            put(patch, to + 3 * width + j, get(row, 2 * j + 3))


@jit
def input_panel(patch: Any, once: Any, v: Any, at: Any, sizes: Any) -> None:
    """Compute B^T d B of one channel of a panel, from `patch` into V."""
    a, lanes, width = sizes.alpha, sizes.lanes, 2 * sizes.lanes
    for i in range(a):
        for half in range(0, width, lanes):
            if a == 6:
                input_4(patch, i * width + half, a * width, once, i * width + half, a * width)
            else:
                input_2(patch, i * width + half, a * width, once, i * width + half, a * width)
    for i in range(a):
        for half in range(0, width, lanes):
            to = at + i * a * sizes.point_pitch + half
            if a == 6:
                input_4(once, i * a * width + half, width, v, to, sizes.point_pitch)
            else:
                input_2(once, i * a * width + half, width, v, to, sizes.point_pitch)


@jit
def products(u: Any, v: Any, out: Any, g: Any, epilogue: Any, values: Any, sizes: Any, first: Any, panels: Any,
             begin: Any, end: Any) -> None:  # fmt: skip
    """Work item = a block of outputs of a group, and a panel: M = U V at all points, then the epilogue of A^T M A."""
    u, v, out, g, epilogue = borrow(u), borrow(v), borrow(out), borrow(g), borrow(epilogue)
    a, width = sizes.alpha, 2 * sizes.lanes
    m = np.empty(a * a * sizes.block_k * width, u.dtype)
    once, pixels = np.empty(sizes.m * a * width, u.dtype), np.empty(sizes.m * sizes.m * width, u.dtype)
    sums, value = np.empty(sizes.m * width, u.dtype), np.empty(sizes.m * sizes.m * width, values.dtype)
    runs = np.empty((width, 4), np.int64)
    # Without a residual and with float outputs, the epilogue runs on a whole panel before its pixels are put in order.
    direct = not (epilogue.residual.size or epilogue.half or epilogue.integer)
    inner = EpilogueArguments(epilogue.plain, epilogue.divisor, epilogue.scale, epilogue.bias, epilogue.residual,
                              epilogue.place, epilogue.code, epilogue.alpha, False, False, False, epilogue.low,
                              epilogue.high, epilogue.residual_scale, epilogue.out_scale,
                              epilogue.out_zero_point)  # fmt: skip
    block_u = a * a * sizes.filter_pitch
    for item in range(begin, end):
        block, panel = item // panels, item % panels
        group, k0 = block // sizes.blocks_k, block % sizes.blocks_k * sizes.block_k
        multiply(u, block * block_u, v, (panel * sizes.groups + group) * sizes.panel_pitch, m, g.channels, sizes)
        count = find_runs(runs, (first + panel) * width, sizes)
        for i in range(min(sizes.block_k, g.outputs - k0)):
            k = group * g.outputs + k0 + i
            output_panel(m, i * width, once, pixels, sizes)
            if direct:
                if not epilogue.plain:
                    store_row(pixels, 0, pixels.size, value, k, pixels, 0, 1, inner, 0, 1)
                put_panel(pixels, k, runs, count, out, g, sizes)
            else:
                store_panel(pixels, sums, value, k, runs, count, out, g, epilogue, sizes)


@jit
def multiply(u: Any, at_u: Any, v: Any, at_v: Any, m: Any, channels: Any, sizes: Any) -> None:
    """Compute M of a block of outputs and a panel: one matrix product per transform point."""
    width, pitch = 2 * sizes.lanes, sizes.channel_pitch
    for point in range(sizes.alpha * sizes.alpha):
        for k in range(0, sizes.block_k, 6):
            six_rows(u, at_u + point * sizes.filter_pitch + k * pitch, pitch, v, at_v + point * sizes.point_pitch,
                     channels, m, (point * sizes.block_k + k) * width)  # fmt: skip


@jit
def six_rows(a: Any, at: Any, pitch: Any, b: Any, to: Any, depth: Any, c: Any, into: Any) -> None:
    """C (6 x two vectors) = A (6 x depth, rows `pitch` apart) B (depth x two vectors), with sums in registers."""
    lanes = 32 // c.itemsize
    c00, c01, c10, c11 = zeros(c), zeros(c), zeros(c), zeros(c)
    c20, c21, c30, c31 = zeros(c), zeros(c), zeros(c), zeros(c)
    c40, c41, c50, c51 = zeros(c), zeros(c), zeros(c), zeros(c)
    for i in range(depth):
        left, right = load(b, to), load(b, to + lanes)
        factor = splat(a, at + i)
        c00, c01 = fma(factor, left, c00), fma(factor, right, c01)
        factor = splat(a, at + pitch + i)
        c10, c11 = fma(factor, left, c10), fma(factor, right, c11)
        factor = splat(a, at + 2 * pitch + i)
        c20, c21 = fma(factor, left, c20), fma(factor, right, c21)
        factor = splat(a, at + 3 * pitch + i)
        c30, c31 = fma(factor, left, c30), fma(factor, right, c31)
        factor = splat(a, at + 4 * pitch + i)
        c40, c41 = fma(factor, left, c40), fma(factor, right, c41)
        factor = splat(a, at + 5 * pitch + i)
        c50, c51 = fma(factor, left, c50), fma(factor, right, c51)
        to += 2 * lanes
    store(c, into, c00)
    store(c, into + lanes, c01)
    store(c, into + 2 * lanes, c10)
    store(c, into + 3 * lanes, c11)
    store(c, into + 4 * lanes, c20)
    store(c, into + 5 * lanes, c21)
    store(c, into + 6 * lanes, c30)
    store(c, into + 7 * lanes, c31)
    store(c, into + 8 * lanes, c40)
    store(c, into + 9 * lanes, c41)
    store(c, into + 10 * lanes, c50)
    store(c, into + 11 * lanes, c51)


@jit
def output_panel(m: Any, at: Any, once: Any, pixels: Any, sizes: Any) -> None:
    """Compute A^T M A of one output channel: ``pixels[(row of the tile * m + column) * width + tile]``."""
    a, tile_m, lanes, width = sizes.alpha, sizes.m, sizes.lanes, 2 * sizes.lanes
    point = sizes.block_k * width
    for i in range(a):
        for half in range(0, width, lanes):
            if a == 6:
                output_4(m, at + i * point + half, a * point, once, i * width + half, a * width)
            else:
                output_2(m, at + i * point + half, a * point, once, i * width + half, a * width)
    for i in range(tile_m):
        for half in range(0, width, lanes):
            if a == 6:
                output_4(once, i * a * width + half, width, pixels, i * tile_m * width + half, width)
            else:
                output_2(once, i * a * width + half, width, pixels, i * tile_m * width + half, width)


@jit
def put_panel(pixels: Any, k: Any, runs: Any, count: Any, out: Any, g: Any, sizes: Any) -> None:
    """Store a panel's finished pixels of output channel `k`, cast to the output's type."""
    m, width, slot = sizes.m, 2 * sizes.lanes, 0
    step = out.place[4]
    for at in range(count):
        n, p, q, run = runs[at, 0], m * runs[at, 1], m * runs[at, 2], runs[at, 3]
        whole = min(run, (g.Q - q) // m)
        for i in range(min(m, g.P - p)):
            start = out.place[0] + n * out.place[1] + k * out.place[2] + (p + i) * out.place[3] + q * out.place[4]
            source = i * m * width + slot
            if m == 4:
                for j in range(whole):
                    put(out.flat, start, get(pixels, source + j))
                    put(out.flat, start + step, get(pixels, source + width + j))
                    put(out.flat, start + 2 * step, get(pixels, source + 2 * width + j))
                    put(out.flat, start + 3 * step, get(pixels, source + 3 * width + j))
                    start += 4 * step
            else:
                for j in range(whole):
                    put(out.flat, start, get(pixels, source + j))
                    put(out.flat, start + step, get(pixels, source + width + j))
                    start += 2 * step
            if whole < run:
                for j in range((g.Q - q) % m):
                    put(out.flat, start + j * step, get(pixels, source + j * width + whole))
        slot += run


@jit
def store_panel(pixels: Any, sums: Any, value: Any, k: Any, runs: Any, count: Any, out: Any, g: Any, epilogue: Any,
                sizes: Any) -> None:  # fmt: skip
    """Apply the epilogue to a panel's sums of output channel `k`, and store them, row by row."""
    m, width, slot = sizes.m, 2 * sizes.lanes, 0
    for at in range(count):
        n, p, q, run = runs[at, 0], m * runs[at, 1], m * runs[at, 2], runs[at, 3]
        for i in range(min(m, g.P - p)):
            for j in range(run):
                for column in range(m):
                    put(sums, m * j + column, get(pixels, (i * m + column) * width + slot + j))
            start = out.place[0] + n * out.place[1] + k * out.place[2] + (p + i) * out.place[3] + q * out.place[4]
            to = (
                epilogue.place[0]
                + n * epilogue.place[1]
                + k * epilogue.place[2]
                + (p + i) * epilogue.place[3]
                + q * epilogue.place[4]
            )
            store_row(
                sums, 0, min(m * run, g.Q - q), value, k, out.flat, start, out.place[4], epilogue, to, epilogue.place[4]
            )
        slot += run
