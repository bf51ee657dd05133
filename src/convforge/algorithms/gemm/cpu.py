"""Kernels of the matrix product on the CPU. A, B and C are 2-D arrays (M, K), (K, N) and (M, N), of any strides."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import accumulate
from convforge.backends.cpu.jit import jit


@jit
def loops(a: Any, b: Any, c: Any, begin: Any, end: Any) -> None:
    """Three nested loops, as in textbooks: the inner one walks down a column of B. Work item = a row of C."""
    for m in range(begin, end):
        for n in range(c.shape[1]):
            total = c.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[m, k] * b[k, n]
            c[m, n] = total


@jit
def blocked(a: Any, b: Any, c: Any, tile_m: Any, tile_n: Any, tile_k: Any, begin: Any, end: Any) -> None:
    """Work item = `tile_m` rows of C.

    A block of B, `tile_k` by `tile_n`, is packed to fit the L2 cache. All rows of the item use the block. Products are
    added along a row of the block, a vector at a time.
    """
    M, K, N = a.shape[0], a.shape[1], b.shape[1]
    packed = np.empty(tile_k * tile_n, c.dtype)
    sums = np.empty(tile_m * tile_n, c.dtype)
    factors = np.empty(tile_k, c.dtype)
    offsets = np.arange(tile_k) * tile_n
    for item in range(begin, end):
        m0, m1 = item * tile_m, min((item + 1) * tile_m, M)
        for n0 in range(0, N, tile_n):
            n1 = min(n0 + tile_n, N)
            sums[:] = 0
            for k0 in range(0, K, tile_k):
                k1 = min(k0 + tile_k, K)
                for k in range(k0, k1):
                    row = packed[(k - k0) * tile_n : (k - k0) * tile_n + n1 - n0]
                    source = b[k, n0:n1]
                    for n in range(n1 - n0):
                        row[n] = source[n]
                for m in range(m0, m1):
                    for k in range(k1 - k0):
                        factors[k] = a[m, k0 + k]
                    at = (m - m0) * tile_n
                    accumulate(sums[at : at + n1 - n0], packed, offsets, factors[: k1 - k0])
            for m in range(m0, m1):
                row = sums[(m - m0) * tile_n : (m - m0) * tile_n + n1 - n0]
                target = c[m, n0:n1]
                for n in range(n1 - n0):
                    target[n] = row[n]
