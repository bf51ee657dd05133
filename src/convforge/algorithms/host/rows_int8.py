"""Parts of the CPU kernels for 8-bit integers: read pixels as int16 without their zero point, and finish int32 sums.

As in rows.py, only this file handles borders, layouts and strides. The epilogue takes eight sums at a time in float64,
in the order of operations of :func:`convforge.algorithms.host.rows.store_row`, so its results have the same bits.
"""

from __future__ import annotations

from typing import Any

from convforge.backends.cpu.jit import inlined, jit, jit_exact
from convforge.backends.cpu.simd import get, lanes_of, load_as, put, store
from convforge.backends.cpu.simd_pairs import (
    copy_eight,
    join_pairs,
    load_ints,
    load_reals,
    plus,
    splat_real,
    store_reals,
    store_rounded,
    subtract,
    times,
    where_above,
    where_below,
    widen_four,
)

# A product with a sum below this stays finite, and so do the products with the residual and the activation's parameter.
LARGE = 1e60


@jit
def gather_pixels(tile: Any, x: Any, n: Any, c0: Any, channels: Any, p0: Any, p1: Any, g: Any, pitch: Any) -> None:
    """Read the pixels of output rows [p0, p1) into a tile (row, column, channel) of int16, `pitch` from row to row.

    The channels are `channels` from `c0` on, of image `n`.
    """
    rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
    for i in range(rows):
        gather_pixel_row(tile, i * pitch, channels, x, n, c0, channels, g.rows[p0 * g.stride_h + i], g)


@inlined
def gather_pixel_row(tile: Any, into: Any, apart: Any, x: Any, n: Any, c0: Any, channels: Any, h: Any,
                     g: Any) -> None:  # fmt: skip
    """Read image row `h`, negative if outside, with its padding; pixels are `apart` elements apart in the tile."""
    count = (g.Q - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    plane = x.place[0] + n * x.place[1] + c0 * x.place[2] + h * x.place[3]
    a, b = count, count  # columns [a, b) are inside the image, where the table is the identity
    if h >= 0:
        a, b = min(g.left, count), min(g.left + g.width, count)
        first = plane - g.left * x.place[4]
        contiguous = x.place[2] == 1 or channels == 1
        if contiguous and x.place[4] == channels and apart == channels:
            widen_run(tile, into + a * channels, x.flat, first + a * channels, (b - a) * channels, g.zero)
        elif contiguous:
            for j in range(a, b):
                widen_run(tile, into + j * apart, x.flat, first + j * x.place[4], channels, g.zero)
        else:
            for z in range(channels):
                for j in range(a, b):
                    value = get(x.flat, first + j * x.place[4] + z * x.place[2])
                    put(tile, into + j * apart + z, value - g.zero)
    for side in range(2):
        for j in range(b if side else 0, count if side else a):
            for z in range(channels):
                put(tile, into + j * apart + z, border_value(x, plane + z * x.place[2], h, j, g))


@jit
def gather_planes(tile: Any, x: Any, n: Any, c0: Any, channels: Any, p0: Any, p1: Any, g: Any, pitch: Any,
                  plane_pitch: Any) -> None:  # fmt: skip
    """Like :func:`gather_pixels`, but into a tile (pair of channels, row, column, 2).

    The last channel of an odd number is read twice; the weights of the second one are 0.
    """
    count = (g.Q - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
    for i in range(rows):
        h = g.rows[p0 * g.stride_h + i]
        a, b = count, count
        if h >= 0:
            a, b = min(g.left, count), min(g.left + g.width, count)
        for c in range(0, channels, 2):
            into = c // 2 * plane_pitch + i * pitch
            plane = x.place[0] + n * x.place[1] + (c0 + c) * x.place[2] + h * x.place[3]
            other = plane + (x.place[2] if c + 1 < channels else 0)
            if x.place[4] == 1:
                join_runs(tile, into + 2 * a, x.flat, plane + a - g.left, other + a - g.left, b - a, g.zero)
            else:
                for j in range(a, b):
                    put(tile, into + 2 * j, get(x.flat, plane + (j - g.left) * x.place[4]) - g.zero)
                    put(tile, into + 2 * j + 1, get(x.flat, other + (j - g.left) * x.place[4]) - g.zero)
            for side in range(2):
                for j in range(b if side else 0, count if side else a):
                    put(tile, into + 2 * j, border_value(x, plane, h, j, g))
                    put(tile, into + 2 * j + 1, border_value(x, other, h, j, g))


@inlined
def border_value(x: Any, row: Any, h: Any, j: Any, g: Any) -> Any:
    """The value of padded column `j` of image row `h`, which begins at `row`; a negative index is outside the image."""
    outside = h < 0 or g.columns[j] < 0
    return (g.outside if outside else get(x.flat, row + g.columns[j] * x.place[4])) - g.zero


@inlined
def widen_run(tile: Any, at: Any, flat: Any, start: Any, n: Any, zero: Any) -> None:
    """Set ``tile[at + j] = flat[start + j] - zero`` for 0 <= j < n."""
    lanes, done = lanes_of(tile), 0
    if n >= lanes:  # the last vector overlaps the previous one
        for j in range(0, n - lanes + 1, lanes):
            store(tile, at + j, subtract(load_as(flat, start + j, tile), zero))
        store(tile, at + n - lanes, subtract(load_as(flat, start + n - lanes, tile), zero))
        done = n
    elif n >= 4:
        for j in range(0, n - 3, 4):
            widen_four(tile, at + j, flat, start + j, zero)
        widen_four(tile, at + n - 4, flat, start + n - 4, zero)
        done = n
    for j in range(done, n):
        put(tile, at + j, get(flat, start + j) - zero)


@inlined
def join_runs(tile: Any, at: Any, flat: Any, first: Any, second: Any, n: Any, zero: Any) -> None:
    """Set the pairs ``tile[at + 2 j]`` to ``flat[first + j] - zero`` and ``flat[second + j] - zero``, 0 <= j < n."""
    half = lanes_of(tile) // 2
    done = 0
    if n >= half:
        for j in range(0, n - half + 1, half):
            store_pairs(tile, at, flat, first, second, j, zero)
        store_pairs(tile, at, flat, first, second, n - half, zero)
        done = n
    for j in range(done, n):
        put(tile, at + 2 * j, get(flat, first + j) - zero)
        put(tile, at + 2 * j + 1, get(flat, second + j) - zero)


@inlined
def store_pairs(tile: Any, at: Any, flat: Any, first: Any, second: Any, j: Any, zero: Any) -> None:
    a, b = load_ints(flat, first + j), load_ints(flat, second + j)
    store(tile, at + 2 * j, join_pairs(subtract(a, zero), subtract(b, zero)))


@inlined
def copy_elements(target: Any, into: Any, step: Any, source: Any, at: Any, source_step: Any, n: Any) -> None:
    """Set ``target[into + i * step] = source[at + i * source_step]`` for 0 <= i < n."""
    done = 0
    if step == 1 and source_step == 1:
        for i in range(0, n - 7, 8):
            copy_eight(target, into + i, source, at + i)
        done = n - n % 8
    for i in range(done, n):
        put(target, into + i * step, get(source, at + i * source_step))


@jit_exact
def finish_run(sums: Any, first: Any, n: Any, factors: Any, shifts: Any, period: Any, added: Any, done: Any,
               e: Any) -> None:  # fmt: skip
    """Set ``done[i]`` to sum ``first + i`` after the epilogue `e`; `n` and `period` are multiples of eight.

    Factors and shifts are those of scale and bias: element i % period belongs to sum i. `added` is the residual, of
    size 0 if there is none. A number is cut to the limits of its type before it is rounded, which are integers.
    """
    zero_point, alpha, nothing = splat_real(e.out_zero_point), splat_real(e.alpha), splat_real(0.0)
    low, high, residual_factor = splat_real(e.low), splat_real(e.high), splat_real(e.residual_scale)
    code, has_residual, has_zero_point, integer = e.code, added.size > 0, e.out_zero_point != 0, e.integer
    z = 0
    if code == 0 and integer and not has_residual and not has_zero_point:  # the usual layer: a loop without branches
        for at in range(0, n, 8):
            v = plus(times(load_reals(sums, first + at), load_reals(factors, z)), load_reals(shifts, z))
            z = z + 8 if z + 8 < period else 0
            store_rounded(done, at, where_above(where_below(v, low, low), high, high))
        return
    for at in range(0, n, 8):
        v = plus(times(load_reals(sums, first + at), load_reals(factors, z)), load_reals(shifts, z))
        z = z + 8 if z + 8 < period else 0
        if has_residual:
            v = plus(v, times(residual_factor, load_reals(added, at)))
        if code == 1:
            v = where_below(v, nothing, nothing)
        elif code == 2:
            v = where_below(v, nothing, times(v, alpha))
        elif code == 3:
            v = where_above(where_below(v, nothing, nothing), alpha, alpha)
        if has_zero_point:
            v = plus(v, zero_point)
        if integer:
            store_rounded(done, at, where_above(where_below(v, low, low), high, high))
        else:
            store_reals(done, at, v)


@inlined
def is_linear(e: Any) -> Any:
    """True if :func:`finish_run` computes this epilogue, for factors that are not too large."""
    return e.code <= 3 and e.divisor == 1 and e.out_scale == 1 and not e.half


@inlined
def fill_factors(factors: Any, shifts: Any, first: Any, count: Any, step: Any, e: Any) -> Any:
    """Set factors and shifts of `count` outputs from `first` on, `step` apart; the last ones fill the arrays.

    Without a scale the factor is 1. Without a bias the shift is -0, because x + -0 is x for every x. Returns True
    unless one of them is NaN or so large that a result may become NaN, which is stored as the integer 0.
    """
    modest = True
    for i in range(factors.size):
        k = first + min(i, count - 1) * step
        factors[i] = e.scale[k if e.scale.size > 1 else 0] if e.scale.size else 1.0
        shifts[i] = e.bias[k] if e.bias.size else -0.0
        modest = modest and abs(factors[i]) < LARGE and abs(shifts[i]) < LARGE
    return modest
