"""Define convolution, matrix product and maximum as plain loops in float64; kernels of :mod:`.truth`.

They share no code with the methods that they check. They are compiled without contraction or reordering, so the machine
computes exactly the written operations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convforge.backends.cpu.jit import jit_exact

# Styles of sums: the arithmetic that adds a product; the figures that are added to `beside`.
PLAIN = 0  # in float64; sums of absolute values
COMPENSATED = 1  # as if in twice float64's precision; sums of absolute values
SEQUENTIAL32 = 2  # one float32 FMA after the other; sums of squares of the rounded numbers: :func:`roundings`
SEQUENTIAL64 = 3  # one float64 FMA after the other; the same figures
CUT32 = 4  # one float32 FMA after the other, truncated instead of rounded; no figures
TWO_LEVELS = 5  # FP8 on Hopper: partial sums of few bits, regularly added to float32 sums; no figures
ONE_LEVEL = 6  # FP8 on Hopper: whole sums of few bits; no figures

# Hopper's FP8 units align this many products with the accumulator and keep 13 fraction bits. With two levels, these
# partial sums are added to FP32 sums after every fourth step (DeepSeek-AI, DeepSeek-V3 technical report, 2024, section
# 3.3.2).
STEP, STEPS_BEFORE_ADDED, PARTIAL_BITS = 32, 4, 13


@jit_exact
def convolve(x: Any, w: Any, rows: Any, columns: Any, outside: Any, zero: Any, stride: Any, dilation: Any, P: Any,
             items: Any, style: Any, backward: Any, totals: Any, beside: Any, begin: Any,
             end: Any) -> None:  # fmt: skip
    """totals[i, k, q] = sum over c, r, s of x[n, c, rows[p*stride + r*dilation], columns[q*stride + s*dilation]] * w.

    `x` is (N, C, H, W) of float32 or float64, with `zero` subtracted from every pixel; `w` is (K, C / groups, R, S) of
    float64 in cross-correlation order. `rows` and `columns` give for each padded row and column its index in the image,
    or -1 for the value `outside`. `items` are output rows n * P + p. `totals` and `beside` are (items, K, Q), float64,
    zero on entry; `style` determines the figures in `beside`. `backward` sums from the last tap to the first.
    """
    K, channels, R, S = w.shape
    Q = totals.shape[2]
    groups = x.shape[1] // channels
    outputs = K // groups
    pixels, low, few = np.empty(Q), np.empty((outputs, Q)), R * S
    for i in range(begin, end):
        n, p = items[i] // P, items[i] % P
        for group in range(groups):
            low[:] = 0
            for i_c in range(channels):
                c = channels - 1 - i_c if backward else i_c
                for i_r in range(R):
                    r = R - 1 - i_r if backward else i_r
                    h = rows[p * stride[0] + r * dilation[0]]
                    for i_s in range(S):
                        s = S - 1 - i_s if backward else i_s
                        for q in range(Q):
                            v = columns[q * stride[1] + s * dilation[1]]
                            pixels[q] = (outside if h < 0 or v < 0 else x[n, group * channels + c, h, v]) - zero
                        for j in range(outputs):
                            k = group * outputs + j
                            t = i_c * few + i_r * S + i_s
                            add_products(style, t, totals[i, k], beside[i, k], low[j], w[k, c, r, s], pixels)
            for j in range(outputs):
                add_rest(style, totals[i, group * outputs + j], low[j])


@jit_exact
def multiply(a: Any, b: Any, items: Any, style: Any, backward: Any, totals: Any, beside: Any, begin: Any,
             end: Any) -> None:  # fmt: skip
    """totals[i, n] = sum over k of a[items[i], k] * b[k, n]; other parameters as in :func:`convolve`."""
    low = np.empty(b.shape[1])
    for i in range(begin, end):
        low[:] = 0
        for i_k in range(b.shape[0]):
            k = b.shape[0] - 1 - i_k if backward else i_k
            add_products(style, i_k, totals[i], beside[i], low, a[items[i], k], b[k])
        add_rest(style, totals[i], low)


@jit_exact
def maximum(x: Any, r: Any, s: Any, stride: Any, dilation: Any, padding: Any, out: Any, begin: Any, end: Any) -> None:
    """out[n, c, p, q] = the largest of x over a window; a NaN in the window wins. An item is a plane (n, c)."""
    C, H, W = x.shape[1:]
    for item in range(begin, end):
        n, c = item // C, item % C
        for p in range(out.shape[2]):
            for q in range(out.shape[3]):
                best = -np.inf
                for i in range(r):
                    for j in range(s):
                        h = p * stride[0] + i * dilation[0] - padding[0]
                        v = q * stride[1] + j * dilation[1] - padding[2]
                        if 0 <= h < H and 0 <= v < W and not best >= x[n, c, h, v] and not np.isnan(best):
                            best = x[n, c, h, v]
                out[n, c, p, q] = best


@jit_exact
def add_products(style: Any, t: Any, totals: Any, beside: Any, low: Any, weight: Any, pixels: Any) -> None:
    """Add weight * pixels[q] to each sum q of a row; `t` counts the products of a sum from 0."""
    if style == PLAIN:
        for q in range(totals.size):
            product = weight * pixels[q]
            totals[q] += product
            beside[q] += abs(product)
    elif style == COMPENSATED:
        # Dot2: T. Ogita, S. M. Rump and S. Oishi, Accurate sum and dot product, SIAM J. Sci. Comput. 26 (2005),
        # algorithm 5.3.
        for q in range(totals.size):
            product, product_error = two_product(weight, pixels[q])
            totals[q], sum_error = two_sum(totals[q], product)
            low[q] += product_error + sum_error
            beside[q] += abs(product)
    elif style == SEQUENTIAL32:
        # float64 holds a product of two float32 exactly. Rounding the sum twice, to float64 and then to float32,
        # differs from an FMA only where the first lands on a tie of the second: one sum in 2^29.
        for q in range(totals.size):
            product, before = weight * pixels[q], totals[q]
            totals[q] = np.float32(before + product)
            beside[q] += roundings(product, before, totals[q], np.float32(product) != product)
    elif style == CUT32:
        for q in range(totals.size):
            totals[q] = cut_to_float32(totals[q] + weight * pixels[q])
    elif style in (TWO_LEVELS, ONE_LEVEL):
        for q in range(totals.size):
            low[q] += cut_beside(weight * pixels[q], low[q], PARTIAL_BITS)
        if (t + 1) % STEP == 0:
            for q in range(totals.size):
                low[q] = cut_to_bits(low[q], PARTIAL_BITS)
        if style == TWO_LEVELS and (t + 1) % (STEP * STEPS_BEFORE_ADDED) == 0:
            for q in range(totals.size):
                totals[q] = np.float32(totals[q] + low[q])
                low[q] = 0
    else:
        for q in range(totals.size):
            product, product_error = two_product(weight, pixels[q])
            before = totals[q]
            total, sum_error = two_sum(before, product)
            totals[q] = total + (sum_error + product_error)
            beside[q] += roundings(product, before, totals[q], product_error != 0)


@jit_exact
def roundings(product: Any, before: Any, total: Any, inexact: Any) -> Any:
    """Sum of squares of the numbers that are rounded when a product is added to a sum, with or without an FMA.

    An FMA rounds only the new sum. Without an FMA the product is rounded first, unless its dtype holds it exactly, or
    it is the first product and so is the sum itself.
    """
    if product == 0:
        return 0.0
    return total * total + (product * product if inexact and before != 0 else 0.0)


@jit_exact
def add_rest(style: Any, totals: Any, low: Any) -> None:
    """Add the separately accumulated partial sums or rounding errors `low`; skip rounding errors of Inf and NaN."""
    if style == COMPENSATED:
        for q in range(totals.size):
            if np.isfinite(totals[q]):
                totals[q] += low[q]
    elif style in (TWO_LEVELS, ONE_LEVEL):
        for q in range(totals.size):
            totals[q] = np.float32(totals[q] + cut_to_bits(low[q], PARTIAL_BITS))


@jit_exact
def cut_to_float32(value: Any) -> Any:
    """Truncate a float64 to float32."""
    near = np.float64(np.float32(value))
    # `near` * 2^-24 is at least half a unit in the last place, so the difference rounds to the next number towards 0.
    return np.float64(np.float32(near - near * 2.0**-24)) if abs(near) > abs(value) else near


@jit_exact
def cut_beside(value: Any, other: Any, bits: Any) -> Any:
    """Truncate a float64 as if aligned with another one: to `bits` explicit mantissa bits of the larger of the two."""
    if value == 0 or not np.isfinite(value):
        return value
    exponent = math.frexp(value)[1]
    if other != 0:
        exponent = max(exponent, math.frexp(other)[1])
    return math.ldexp(np.trunc(math.ldexp(value, bits + 1 - exponent)), exponent - bits - 1)


@jit_exact
def cut_to_bits(value: Any, bits: Any) -> Any:
    """Truncate a float64 to `bits` explicit bits of its mantissa."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(np.trunc(math.ldexp(mantissa, bits + 1)), exponent - bits - 1)


@jit_exact
def two_sum(a: Any, b: Any) -> Any:
    """a + b = sum + error, exactly (D. E. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


@jit_exact
def two_product(a: Any, b: Any) -> Any:
    """a * b = product + error, exactly, except for overflow and underflow."""
    # T. J. Dekker, A floating-point technique for extending the available precision, Numer. Math. 18 (1971), with
    # Veltkamp's splitting.
    product = a * b
    a_high, a_low = split(a)
    b_high, b_low = split(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


@jit_exact
def split(a: Any) -> Any:
    """Split a float64 into the sum of two numbers of at most 26 bits."""
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high
