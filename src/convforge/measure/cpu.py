"""Kernels of the CPU's ceilings: copying memory, and multiply-adds that stay in registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.backends.cpu.jit import jit

FMA_STEPS = 8  # multiply-adds of each element in one pass of `multiply_add`


@jit
def copy(source: Any, target: Any, block: Any, begin: Any, end: Any) -> None:
    """Work item = `block` elements of a float32 copy."""
    source, target = source[begin * block : end * block], target[begin * block : end * block]
    for i in range(source.size):
        target[i] = source[i]


@jit
def multiply_add(values: Any, passes: Any, begin: Any, end: Any) -> None:
    """Work item = one row of float32 `values` (rows, elements) that stays in L1, taken through `passes` passes.

    Two elements a vector lane go through eight dependent multiply-adds each between load and store. The iterations of
    the vector loop are independent, and the processor overlaps as many as its reorder buffer holds: with longer chains
    it holds too few, and the latency of an FMA shows.
    """
    a, b = np.float32(0.999), np.float32(0.001)
    half = values.shape[1] // 2
    for row in range(begin, end):
        first, second = values[row, :half], values[row, half:]
        for _ in range(passes):
            for i in range(half):
                u, v = first[i], second[i]
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                u, v = u * a + b, v * a + b
                first[i], second[i] = u, v
