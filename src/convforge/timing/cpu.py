"""Kernels of the CPU's ceilings: copying memory, and multiply-adds that stay in registers."""

from __future__ import annotations

from typing import Any

from convforge.backends.cpu.jit import jit
from convforge.backends.cpu.simd import fma, load, splat, store

FMA_VECTORS = 12  # independent chains: enough to hide an FMA's latency, and few enough for 16 vector registers


@jit
def copy(source: Any, target: Any, block: Any, begin: Any, end: Any) -> None:
    """Work item = `block` elements of a float32 copy."""
    source, target = source[begin * block : end * block], target[begin * block : end * block]
    for i in range(source.size):
        target[i] = source[i]


@jit
def multiply_add(values: Any, factors: Any, steps: Any, begin: Any, end: Any) -> None:
    """Work item = twelve contiguous vectors v of `values`, each `steps` times v = v * factors[0] + factors[1]."""
    a, b = splat(factors, 0), splat(factors, 1)
    lanes = 32 // values.itemsize
    for item in range(begin, end):
        at = item * FMA_VECTORS * lanes
        v0, v1, v2 = load(values, at), load(values, at + lanes), load(values, at + 2 * lanes)
        v3, v4, v5 = load(values, at + 3 * lanes), load(values, at + 4 * lanes), load(values, at + 5 * lanes)
        v6, v7, v8 = load(values, at + 6 * lanes), load(values, at + 7 * lanes), load(values, at + 8 * lanes)
        v9, v10, v11 = load(values, at + 9 * lanes), load(values, at + 10 * lanes), load(values, at + 11 * lanes)
        for _ in range(steps):
            v0, v1, v2, v3 = fma(v0, a, b), fma(v1, a, b), fma(v2, a, b), fma(v3, a, b)
            v4, v5, v6, v7 = fma(v4, a, b), fma(v5, a, b), fma(v6, a, b), fma(v7, a, b)
            v8, v9, v10, v11 = fma(v8, a, b), fma(v9, a, b), fma(v10, a, b), fma(v11, a, b)
        store(values, at, v0)
        store(values, at + lanes, v1)
        store(values, at + 2 * lanes, v2)
        store(values, at + 3 * lanes, v3)
        store(values, at + 4 * lanes, v4)
        store(values, at + 5 * lanes, v5)
        store(values, at + 6 * lanes, v6)
        store(values, at + 7 * lanes, v7)
        store(values, at + 8 * lanes, v8)
        store(values, at + 9 * lanes, v9)
        store(values, at + 10 * lanes, v10)
        store(values, at + 11 * lanes, v11)
