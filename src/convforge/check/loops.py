"""The definition of convolution and of the matrix product as plain loops in float64: kernels of :mod:`.truth`.

Nothing here is shared with the methods that it judges. Compiled without contraction or reordering: what is written is
what is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.backends.cpu.jit import jit_exact

# How a product is added to a row of sums, and what is kept beside it.
PLAIN = 0  # in float64; beside it the sum of absolute values
COMPENSATED = 1  # as if in twice float64's precision; beside it the sum of absolute values
SEQUENTIAL32 = 2  # one float32 FMA after the other; beside it the sum of squared partial sums
SEQUENTIAL64 = 3  # one float64 FMA after the other; beside it the sum of squared partial sums


@jit_exact
def convolve(x: Any, w: Any, rows: Any, columns: Any, outside: Any, zero: Any, stride: Any, dilation: Any, P: Any,
             items: Any, style: Any, backward: Any, totals: Any, beside: Any, begin: Any,
             end: Any) -> None:  # fmt: skip
    """totals[i, k, q] = sum over c, r, s of x[n, c, rows[p*stride + r*dilation], columns[q*stride + s*dilation]] * w.

    Parameters
    ----------
    x : (N, C, H, W) array of float32 or float64
    w : (K, C / groups, R, S) array of float64
        In cross-correlation order.
    rows, columns : 1-D int array
        Where each padded row and column lies in the picture; -1 for `outside`.
    zero : float
        Subtracted from every pixel.
    stride, dilation : pair of int
    items : 1-D int array
        Output rows wanted: n * P + p.
    backward : bool
        Sum from the last tap to the first.
    totals, beside : (items, K, Q) array of float64
        What they hold, the style says. Zero on entry.
    """
    K, channels, R, S = w.shape
    Q = totals.shape[2]
    groups = x.shape[1] // channels
    outputs = K // groups
    pixels, low = np.empty(Q), np.empty((outputs, Q))
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
                            add_products(style, totals[i, k], beside[i, k], low[j], w[k, c, r, s], pixels)
            if style == COMPENSATED:
                for j in range(outputs):
                    add_low(totals[i, group * outputs + j], low[j])


@jit_exact
def multiply(a: Any, b: Any, items: Any, style: Any, backward: Any, totals: Any, beside: Any, begin: Any,
             end: Any) -> None:  # fmt: skip
    """totals[i, n] = sum over k of a[items[i], k] * b[k, n]; the others as in :func:`convolve`."""
    low = np.empty(b.shape[1])
    for i in range(begin, end):
        low[:] = 0
        for i_k in range(b.shape[0]):
            k = b.shape[0] - 1 - i_k if backward else i_k
            add_products(style, totals[i], beside[i], low, a[items[i], k], b[k])
        if style == COMPENSATED:
            add_low(totals[i], low)


@jit_exact
def maximum(x: Any, r: Any, s: Any, stride: Any, dilation: Any, padding: Any, out: Any, begin: Any, end: Any) -> None:
    """out[n, c, p, q] = the largest of x over a window; a NaN in the window wins.

    `x` and `out` are (N, C, H, W) and (N, C, P, Q); an item is a plane (n, c).
    """
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
def add_products(style: Any, totals: Any, beside: Any, low: Any, weight: Any, pixels: Any) -> None:
    """Add weight * pixels[q] to each sum of a row."""
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
            product = weight * pixels[q]
            totals[q] = np.float32(totals[q] + product)
            beside[q] += totals[q] * totals[q] if product != 0 else 0.0
    else:
        for q in range(totals.size):
            product, product_error = two_product(weight, pixels[q])
            total, sum_error = two_sum(totals[q], product)
            totals[q] = total + (sum_error + product_error)
            beside[q] += totals[q] * totals[q] if product != 0 else 0.0


@jit_exact
def add_low(totals: Any, low: Any) -> None:
    """Add the rounding errors that were gathered; where a sum is Inf or NaN they mean nothing."""
    for q in range(totals.size):
        if np.isfinite(totals[q]):
            totals[q] += low[q]


@jit_exact
def two_sum(a: Any, b: Any) -> Any:
    """a + b = sum + error, exactly (D. E. Knuth, The Art of Computer Programming 2, 4.2.2, theorem B)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


@jit_exact
def two_product(a: Any, b: Any) -> Any:
    """a * b = product + error, exactly (T. J. Dekker, A floating-point technique for extending the available precision,
    Numer. Math. 18 (1971), with Veltkamp's splitting); short of overflow and underflow.
    """
    product = a * b
    a_high, a_low = split(a)
    b_high, b_low = split(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


@jit_exact
def split(a: Any) -> Any:
    """A float64 as the sum of two numbers of at most 26 bits."""
    scaled = 134217729.0 * a  # 2^27 + 1
    high = scaled - (scaled - a)
    return high, a - high
