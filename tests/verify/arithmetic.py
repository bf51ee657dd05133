"""Models of arithmetic in NumPy: what honest methods of each class compute, and what narrower ones do.

Sums are of products a[m, t] * b[t, k] over t, with matrices of float32 numbers; results are float64 arrays that hold
what a machine would have in its accumulators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Rounding = Callable[[Floats], Floats]
Sums = Callable[[Floats, Floats], Floats]


def _in_units(values: Floats, bits: int, smallest: int, whole: Any) -> Floats:
    """Values as multiples of the last of `bits` explicit bits; below 2^smallest, of that number's last bit."""
    values = np.asarray(values, np.float64)
    exponent = np.maximum(np.frexp(values)[1] - 1, smallest) - bits
    return np.asarray(np.ldexp(whole(np.ldexp(values, -exponent)), exponent))


def nearest(bits: int, smallest: int = -126) -> Rounding:
    """Round to nearest, ties to even."""
    return partial(_in_units, bits=bits, smallest=smallest, whole=np.rint)


def cut(bits: int, smallest: int = -126) -> Rounding:
    """Cut off what does not fit."""
    return partial(_in_units, bits=bits, smallest=smallest, whole=np.trunc)


def away(bits: int, smallest: int = -126) -> Rounding:
    """Round to nearest, ties away from zero."""
    return partial(_in_units, bits=bits, smallest=smallest, whole=lambda v: np.copysign(np.floor(np.abs(v) + 0.5), v))


def exact(values: Floats) -> Floats:
    """Leave the values as they are."""
    return np.asarray(values, np.float64)


def scaled(rounding: Rounding, largest: float, power_of_two: bool = False) -> Rounding:
    """Round after a scale that brings the largest value to `largest`, or to at most that by a power of two."""

    def apply(values: Floats) -> Floats:
        scale = largest / float(np.abs(values).max())
        if power_of_two:
            scale = 2.0 ** np.floor(np.log2(scale))
        return rounding(np.asarray(values, np.float64) * scale) / scale

    return apply


TF32, TF32_AWAY, TF32_CUT = nearest(10), away(10), cut(10)
FP16, BF16, BF16_CUT = nearest(10, -14), nearest(7), cut(7)
E4M3, E5M2 = nearest(3, -6), nearest(2, -14)
FP32 = nearest(23)


def sequential(a: Floats, b: Floats, rounding: Rounding = FP32, backward: bool = False) -> Floats:
    """One fused multiply-add after the other, each rounded."""
    total = np.zeros((a.shape[0], b.shape[1]))
    steps = range(a.shape[1])
    for t in reversed(steps) if backward else steps:
        total = rounding(total + np.multiply.outer(a[:, t], b[t]))
    return total


def separately_rounded(a: Floats, b: Floats, rounding: Rounding) -> Floats:
    """Every product rounded, then every sum."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for t in range(a.shape[1]):
        total = rounding(total + rounding(np.multiply.outer(a[:, t], b[t])))
    return total


def pairwise(a: Floats, b: Floats, rounding: Rounding = FP32) -> Floats:
    """Products added up two by two."""
    sums = [np.multiply.outer(a[:, t], b[t]) for t in range(a.shape[1])]
    while len(sums) > 1:
        paired = [rounding(x + y) for x, y in zip(sums[::2], sums[1::2], strict=False)]
        sums = paired + sums[2 * len(paired) :]
    return rounding(sums[0]) if sums else np.zeros((a.shape[0], b.shape[1]))


def tensor_core(a: Floats, b: Floats, step: int = 8, bits: int = 23, extra: int = 1, drained: int = 0) -> Floats:
    """Sums as tensor cores take them: `step` exact products and the accumulator, aligned, cut off and added at once.

    M. Fasi, N. J. Higham, M. Mikaitis and S. Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Computer
    Science 7, 2021: products are aligned to the largest addend and cut off some `extra` bits below the accumulator's
    `bits`; the sum is cut off too.

    Parameters
    ----------
    drained : int
        Products after which the accumulator is added to another one in FP32, rounded, and set to 0; 0 for never.
    """
    outer = np.zeros((a.shape[0], b.shape[1]))
    total = np.zeros_like(outer)
    for begin in range(0, a.shape[1], step):
        terms = np.einsum("mt,tk->tmk", a[:, begin : begin + step], b[begin : begin + step])
        terms = np.concatenate([terms, total[None]])
        exponent = np.frexp(np.abs(terms).max(axis=0))[1] - 1 - bits - extra
        total = cut(bits)(np.ldexp(np.trunc(np.ldexp(terms, -exponent)).sum(axis=0), exponent))
        if drained and (begin + step) % drained == 0:
            outer, total = FP32(outer + total), np.zeros_like(total)
    return FP32(outer + total)


# Generations of tensor cores: products at once and extra bits, as the paper above measured them or coarser.
V100 = partial(tensor_core, step=4, extra=0)
A100 = partial(tensor_core, step=8, extra=1)
A100_TF32 = partial(tensor_core, step=4, extra=1)
H100 = partial(tensor_core, step=16, extra=2)
# FP8 on Hopper: 13 bits of the accumulator alone take part (DeepSeek-V3 technical report, section 3.3.2).
HOPPER_FP8 = partial(tensor_core, step=32, bits=13, extra=0)
SUMS_OF_11_BITS = partial(tensor_core, step=32, bits=10, extra=0)
HOPPER_FP8_TWO_LEVELS = partial(tensor_core, step=32, bits=13, extra=0, drained=128)


def split(values: Floats, rounding: Rounding, parts: int) -> list[Floats]:
    """Values as a sum of narrow parts, the largest first."""
    left, found = np.asarray(values, np.float64), []
    for _ in range(parts):
        found.append(rounding(left))
        left = left - found[-1]
    return found


def split_products(a: Floats, b: Floats, rounding: Rounding, products: int, sums: Sums, parts: int = 2) -> Floats:
    """FP32 from narrow products, the largest first: hi * hi, hi * lo, lo * hi, ...; small ones are summed apart."""
    of_a, of_b = split(a, rounding, parts), split(b, rounding, parts)
    pairs = sorted(((i, j) for i in range(parts) for j in range(parts)), key=lambda pair: (sum(pair), pair))
    total = np.zeros((a.shape[0], b.shape[1]))
    for i, j in reversed(pairs[1:products]):
        total = FP32(total + sums(of_a[i], of_b[j]))
    return FP32(total + sums(of_a[0], of_b[0]))
