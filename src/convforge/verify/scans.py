"""Compiled pass over all outputs of a large result, on all CPU threads; a kernel of :mod:`.verdict`.

A work item is a block of BLOCK outputs. The pass is compiled once per output dtype.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convforge.backends.cpu.jit import jit_exact

BLOCK = 1 << 14
FP8_BITS, FLOAT32_BITS, FLOAT64_BITS = 3, 23, 52  # the most that FP8 has


@jit_exact
def compare(got: Any, value: Any, magnitude: Any, more: Any, factor: Any, constant: Any, top: Any, form: Any,
            relative: Any, smallest: Any, figures: Any, begin: Any, end: Any) -> None:  # fmt: skip
    """Compare a result with the truth (`value`, `magnitude`), all flat.

    The bound is ``factor * magnitude + constant``, plus `more` unless that is empty. Magnitudes above `top` may
    overflow. `form` describes the output dtype, see :func:`rounded`. Rounding the result adds an error of
    ``relative * |value|``, at least `smallest`. Writes `figures`, (blocks, 4): sum of squared errors, sum of squares of
    the truth, largest error, largest error / bound. The first is NaN if an output is outside its bound, or if it may be
    correct although it is not finite.
    """
    for block in range(begin, end):
        squares, size, largest, ratio, good = 0.0, 0.0, 0.0, 0.0, True
        for i in range(block * BLOCK, min((block + 1) * BLOCK, got.size)):
            result, v, margin = np.float64(got[i]), value[i], constant
            if factor != 0:
                margin = factor * magnitude[i] + margin
            if more.size:
                margin += more[i]
            low, high = rounded(v - margin, form), rounded(v + margin, form)
            good &= low <= result and result <= high and not magnitude[i] > top
            good &= np.isfinite(low) and np.isfinite(high) and np.isfinite(v)
            error = abs(result - (min(max(v, form[2]), form[3]) if form[0] == 0 else v))
            squares += error * error
            size += v * v
            largest = max(largest, error)
            ratio = max(ratio, error / (margin + max(abs(v) * relative, smallest)))
        figures[block] = squares if good else np.nan, size, largest, ratio


@jit_exact
def rounded(value: Any, form: Any) -> Any:
    """Round to a dtype; `form` is its explicit mantissa bits (0: integers), smallest normal exponent and two limits."""
    bits, exponent, least, most = form
    if bits == 0:
        return min(max(np.rint(value), least), most) if value == value else 0.0
    if bits == FLOAT64_BITS or not np.isfinite(value):
        return value
    if bits == FLOAT32_BITS:
        return np.float64(np.float32(value))
    exponent = max(math.frexp(value)[1] - 1, exponent) - bits
    nearest = math.ldexp(np.rint(math.ldexp(value, -exponent)), exponent)
    if least <= nearest <= most:
        return nearest
    return math.copysign(most if bits <= FP8_BITS else np.inf, value)  # FP8 saturates
