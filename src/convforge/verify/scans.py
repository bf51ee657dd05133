"""Passes over every output of a large result: kernels of :mod:`.verdict`, on the CPU's threads.

An item of work is a block of BLOCK outputs. Each pass compiles once for an output type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.backends.cpu.jit import jit_exact

BLOCK = 1 << 14


@jit_exact
def limits(value: Any, magnitude: Any, more: Any, factor: Any, constant: Any, top: Any, whole: Any, least: Any,
           most: Any, relative: Any, smallest: Any, low: Any, high: Any, slack: Any, squares: Any, begin: Any,
           end: Any) -> None:  # fmt: skip
    """Compute limits of the outputs, and their allowed distance from the truth (`value`, `magnitude`).

    The bound is ``factor * magnitude + constant``, plus `more` unless that is empty. Magnitudes above `top` may
    overflow. With `whole`, limits are whole numbers from `least` to `most`. Rounding the result costs ``relative *
    |value|``, and at least `smallest`. Writes `low` and `high`, rounded to the output's type; `slack`, the bound plus
    the rounding; and `squares`, the sum of squares of the truth of each block: NaN where infinities or NaNs may be
    right.
    """
    for block in range(begin, end):
        total, plain = 0.0, True
        for i in range(block * BLOCK, min((block + 1) * BLOCK, value.size)):
            v, margin = value[i], constant
            if factor != 0:
                margin = factor * magnitude[i] + margin
            if more.size:
                margin += more[i]
            below, above = v - margin, v + margin
            if whole:
                below = min(max(np.rint(below), least), most) if below == below else 0.0
                above = min(max(np.rint(above), least), most) if above == above else 0.0
            low[i], high[i] = below, above
            slack[i] = margin + max(abs(v) * relative, smallest)
            plain &= np.isfinite(low[i]) and np.isfinite(high[i]) and np.isfinite(v) and not magnitude[i] > top
            total += v * v
        squares[block] = total if plain else np.nan


@jit_exact
def compare(got: Any, low: Any, high: Any, expected: Any, slack: Any, figures: Any, begin: Any, end: Any) -> None:
    """Write `figures`, (blocks, 3) of float64: sum of squared errors, largest error, largest error over its slack.

    The sum is NaN where an output is outside its limits, as a NaN always is.
    """
    for block in range(begin, end):
        total, largest, ratio, good = 0.0, 0.0, 0.0, True
        for i in range(block * BLOCK, min((block + 1) * BLOCK, got.size)):
            good &= low[i] <= got[i] and got[i] <= high[i]
            error = abs(np.float64(got[i]) - expected[i])
            total += error * error
            largest = max(largest, error)
            ratio = max(ratio, error / slack[i])
        figures[block, 0] = total if good else np.nan
        figures[block, 1], figures[block, 2] = largest, ratio
