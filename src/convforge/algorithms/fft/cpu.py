"""CPU kernels before, between and after the FFTs: gather tiles, multiply spectra, store the valid outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import gather_row, store_row
from convforge.backends.cpu.jit import jit
from convforge.backends.cpu.simd import borrow

# Frequencies of one work item of `multiply`, so that a row of each operand stays in L1.
BLOCK = 512


@jit
def gather(x: Any, buffer: Any, boxes: Any, g: Any, begin: Any, end: Any) -> None:
    """Work item = a tile and a channel: copy the tile's pixels, halo and border included, zero-padded to the FFT size.

    `buffer` is (tiles, C, size_h, size_w); `boxes` is (tiles, 5) int: n, p0, p1, q0, q1 of each tile.
    """
    x, buffer, g = borrow(x), borrow(buffer), borrow(g)
    channels, size_h, size_w = buffer.shape[1:]
    flat = buffer.reshape(-1)
    for item in range(begin, end):
        tile, c = item // channels, item % channels
        n, p0, p1, q0, q1 = boxes[tile]
        rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
        columns = (q1 - q0 - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
        for i in range(size_h):
            at = (item * size_h + i) * size_w
            if i >= rows:
                flat[at : at + size_w] = 0
                continue
            h = g.rows[p0 * g.stride_h + i]
            start = x.place[0] + n * x.place[1] + c * x.place[2] + h * x.place[3] if h >= 0 else -1
            gather_row(flat, at, 0, x.flat, start, x.place[4], g.columns, q0 * g.stride_w, g.left, g.width, columns, 1,
                       1, g.outside, g.zero, x.half)  # fmt: skip
            flat[at + columns : at + size_w] = 0


@jit
def multiply(spectra: Any, w: Any, products: Any, outputs: Any, begin: Any, end: Any) -> None:
    """Work item = a block of frequencies of an output channel: products[t, k] = sum over c of spectra[t, c] * w[k, c].

    The arrays are complex: `spectra` (tiles, C, F), `w` (K, C / groups, F), `products` (tiles, K, F). `outputs` is the
    number of output channels of a group.
    """
    spectra, w, products = borrow(spectra), borrow(w), borrow(products)
    channels, F = w.shape[1:]
    blocks = (F + BLOCK - 1) // BLOCK
    for item in range(begin, end):
        k, f0 = item // blocks, item % blocks * BLOCK
        f1, c0 = min(f0 + BLOCK, F), k // outputs * channels
        for tile in range(spectra.shape[0]):
            sums, a, b = products[tile, k, f0:f1], spectra[tile, c0, f0:f1], w[k, 0, f0:f1]
            for f in range(sums.size):
                sums[f] = a[f] * b[f]
            for c in range(1, channels):
                a, b = spectra[tile, c0 + c, f0:f1], w[k, c, f0:f1]
                for f in range(sums.size):
                    sums[f] += a[f] * b[f]


@jit
def store(sums: Any, boxes: Any, out: Any, g: Any, epilogue: Any, values: Any, begin: Any, end: Any) -> None:
    """Work item = a tile of an output channel: apply the epilogue to the outputs that did not wrap, and store them.

    `sums` is (tiles, K, size_h, size_w) at stride 1; `values` only gives the type of the epilogue.
    """
    sums, out, g, epilogue = borrow(sums), borrow(out), borrow(g), borrow(epilogue)
    K, size_h, size_w = sums.shape[1:]
    flat, row, value = sums.reshape(-1), np.empty(size_w, sums.dtype), np.empty(size_w, values.dtype)
    for item in range(begin, end):
        tile, k = item // K, item % K
        n, p0, p1, q0, q1 = boxes[tile]
        for p in range(p0, p1):
            at = (item * size_h + (p - p0) * g.stride_h) * size_w
            start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3] + q0 * out.place[4]
            other = (
                epilogue.place[0]
                + n * epilogue.place[1]
                + k * epilogue.place[2]
                + p * epilogue.place[3]
                + q0 * epilogue.place[4]
            )
            if g.stride_w == 1:
                store_row(
                    flat, at, q1 - q0, value, k, out.flat, start, out.place[4], epilogue, other, epilogue.place[4]
                )
            else:
                for q in range(q1 - q0):
                    row[q] = flat[at + q * g.stride_w]
                store_row(row, 0, q1 - q0, value, k, out.flat, start, out.place[4], epilogue, other, epilogue.place[4])
