"""The one-dimensional transforms of F(2, 3) and F(4, 3), unrolled: vector arithmetic without loops.

tests/algorithms/cook_toom.py derives their matrices, and a test compares them. Each function reads vectors from
``source[at + i * step]`` and writes vectors to ``target[to + j * pitch]``, so the same function transforms the
columns and then the rows of a tile.
"""

from __future__ import annotations

from typing import Any

from convforge.backends.cpu.jit import jit
from convforge.backends.cpu.simd import load, store


@jit
def input_2(source: Any, at: Any, step: Any, target: Any, to: Any, pitch: Any) -> None:
    """B^T of F(2, 3): four values in, four out."""
    d0, d1 = load(source, at), load(source, at + step)
    d2, d3 = load(source, at + 2 * step), load(source, at + 3 * step)
    store(target, to, d2 - d0)
    store(target, to + pitch, d1 + d2)
    store(target, to + 2 * pitch, d2 - d1)
    store(target, to + 3 * pitch, d3 - d1)


@jit
def filter_2(source: Any, at: Any, step: Any, target: Any, to: Any, pitch: Any) -> None:
    """G of F(2, 3): three taps in, four values out."""
    g0, g1, g2 = load(source, at), load(source, at + step), load(source, at + 2 * step)
    even, odd = (g0 + g2) * 0.5, g1 * 0.5
    store(target, to, g0 * -1.0)
    store(target, to + pitch, even + odd)
    store(target, to + 2 * pitch, even - odd)
    store(target, to + 3 * pitch, g2)


@jit
def output_2(source: Any, at: Any, step: Any, target: Any, to: Any, pitch: Any) -> None:
    """A^T of F(2, 3): four products in, two outputs."""
    m0, m1 = load(source, at), load(source, at + step)
    m2, m3 = load(source, at + 2 * step), load(source, at + 3 * step)
    store(target, to, m0 + m1 + m2)
    store(target, to + pitch, m1 - m2 + m3)


@jit
def input_4(source: Any, at: Any, step: Any, target: Any, to: Any, pitch: Any) -> None:
    """B^T of F(4, 3) at the points 0, 1, -1, 1/2, -2 and infinity: six values in, six out."""
    d0, d1 = load(source, at), load(source, at + step)
    d2, d3 = load(source, at + 2 * step), load(source, at + 3 * step)
    d4, d5 = load(source, at + 4 * step), load(source, at + 5 * step)
    odd, even = d3 - d1, d4 - d2
    store(target, to, odd * 1.5 + (d2 * -2.0 + (d0 + d4)))
    store(target, to + pitch, d3 * 2.5 + (d2 * 0.5 + (d4 - d1)))
    store(target, to + 2 * pitch, d2 * -2.5 + (d3 * 0.5 + (d4 + d1)))
    store(target, to + 3 * pitch, odd * 2.0 + even)
    store(target, to + 4 * pitch, odd * -0.5 + even)
    store(target, to + 5 * pitch, even * 1.5 + (d3 * -2.0 + (d1 + d5)))


@jit
def filter_4(source: Any, at: Any, step: Any, target: Any, to: Any, pitch: Any) -> None:
    """G of F(4, 3): three taps in, six values out."""
    g0, g1, g2 = load(source, at), load(source, at + step), load(source, at + 2 * step)
    even, odd = (g0 + g2) * (1.0 / 3.0), g1 * (1.0 / 3.0)
    store(target, to, g0)
    store(target, to + pitch, even + odd)
    store(target, to + 2 * pitch, odd - even)
    store(target, to + 3 * pitch, (g0 * 4.0 + (g1 * 2.0 + g2)) * (-4.0 / 15.0))
    store(target, to + 4 * pitch, (g2 * 4.0 + (g1 * -2.0 + g0)) * (1.0 / 15.0))
    store(target, to + 5 * pitch, g2)


@jit
def output_4(source: Any, at: Any, step: Any, target: Any, to: Any, pitch: Any) -> None:
    """A^T of F(4, 3): six products in, four outputs."""
    m0, m1 = load(source, at), load(source, at + step)
    m2, m3 = load(source, at + 2 * step), load(source, at + 3 * step)
    m4, m5 = load(source, at + 4 * step), load(source, at + 5 * step)
    even, odd = m1 + m2, m1 - m2
    store(target, to, m0 + even + (m3 + m4))
    store(target, to + pitch, m4 * -2.0 + (m3 * 0.5 + odd))
    store(target, to + 2 * pitch, m4 * 4.0 + (m3 * 0.25 + even))
    store(target, to + 3 * pitch, m4 * -8.0 + (m3 * 0.125 + (odd + m5)))
