"""Factorise a filter as a sum of outer products, of a column and a row each, by its singular values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from convforge.algorithms.traits import Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

# Singular values with a root sum of squares below this many roundings of the filter's norm count as rounding noise of
# the filter: a filter that was computed as an outer product has two or three roundings in every element.
ROUNDINGS = 4

# Integer filters of rank 1 with magnitudes below this have integer factors.
WHOLE = 2.0**31


class Factors(NamedTuple):
    """Factors with w[k, c] = sum over i < ranks[k, c] of outer(vertical[k, c, i], horizontal[k, c, i])."""

    vertical: NDArray[np.floating]  # (K, C, rank, R); zero beyond a filter's own rank
    horizontal: NDArray[np.floating]  # (K, C, rank, S)
    ranks: NDArray[np.int64]  # (K, C); at least 1, so that NaN pixels give NaN even under a zero filter
    error: float  # largest error of a filter by its rounded factors, relative to its Frobenius norm


def factor(w: NDArray[np.generic], dtype: DTypeLike) -> Factors:
    """Split filters into the fewest outer products of 1-D filters that equal them in the precision of `dtype`.

    `w` is (K, C, R, S). `dtype` is the type of the factors and sums; its rounding error decides the rank. Computes in
    float64 and rounds once. Integer filters of rank 1, such as box, binomial and derivative filters, get integer,
    hence exact, factors. Raises ``ValueError`` if the filter holds NaN or Inf.

    Examples
    --------
    >>> sobel = np.array([[[[1, 0, -1], [2, 0, -2], [1, 0, -1]]]], np.float32)
    >>> found = factor(sobel, np.float32)
    >>> found.ranks, found.vertical[0, 0, 0], found.horizontal[0, 0, 0], found.error
    (array([[1]]), array([1., 2., 1.], dtype=float32), array([ 1.,  0., -1.], dtype=float32), 0.0)
    """
    exact: NDArray[np.float64] = w.astype(np.float64)
    if not np.isfinite(exact).all():
        raise ValueError("the filter holds NaN or Inf, which has no singular value decomposition; use a direct method")
    # Scale by a power of two to magnitudes near 1, so that no square or product of two elements over- or underflows.
    exponents = np.frexp(np.abs(exact).max(axis=(-2, -1), keepdims=True))[1]
    exact = np.ldexp(exact, -exponents)
    noise = ROUNDINGS * float(np.finfo(dtype).eps)
    # If the error of one product is only rounding noise, skip the SVD: no decomposition has fewer products.
    ones = np.ones(exact.shape[:2], np.int64)
    vertical, horizontal, lost = _rounded(
        *_crosses(exact, ones[..., None, None] > 0, exponents), exact, exponents, dtype
    )
    if exact.size and lost.max() <= noise:
        return Factors(vertical, horizontal, ones, float(lost.max()))
    columns, weights, rows = np.linalg.svd(exact, full_matrices=False)
    # tails[..., i]: the error that remains after i products.
    tails = np.sqrt(np.cumsum(weights[..., ::-1] ** 2, axis=-1)[..., ::-1])
    ranks = np.maximum((tails > noise * tails[..., :1]).sum(axis=-1), 1)
    rank = int(ranks.max())
    kept = (np.arange(rank) < ranks[..., None])[..., None]
    crossed = _rounded(*_crosses(exact, kept, exponents), exact, exponents, dtype)
    optimal = _rounded(np.swapaxes(columns, -1, -2)[..., :rank, :] * kept,
                       rows[..., :rank, :] * weights[..., :rank, None] * kept, exact, exponents, dtype)  # fmt: skip
    better = (crossed[2] <= np.maximum(optimal[2], noise))[..., None, None]
    vertical, horizontal = (np.where(better, a, b) for a, b in zip(crossed[:2], optimal[:2], strict=True))
    lost = np.where(better[..., 0, 0], crossed[2], optimal[2])
    return Factors(vertical, horizontal, ranks.astype(np.int64), float(lost.max()))


def _crosses(
    w: NDArray[np.float64], kept: NDArray[np.bool_], exponents: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Subtract outer products of the pivot's column and row, pivot by pivot (elimination with complete pivoting).

    Singular vectors have the rounding errors of a whole SVD. These factors have that of one division per element, and
    none if ``ldexp(w, exponents)`` is an integer filter of rank 1. Otherwise a column is scaled so that its smallest
    element is 1, unless that is much smaller than its largest.
    """
    rest, (K, C, R, S), rank = w.copy(), w.shape, kept.shape[2]
    vertical, horizontal = np.zeros((K, C, rank, R)), np.zeros((K, C, rank, S))
    k, c = np.arange(K)[:, None], np.arange(C)
    for i in range(rank):
        pivots = np.abs(rest).reshape(K, C, -1).argmax(-1)
        column, row, pivot = rest[k, c, :, pivots % S], rest[k, c, pivots // S], rest[k, c, pivots // S, pivots % S]
        sizes = np.abs(column)
        smallest = np.where(pivot == 0, 1.0, np.where(sizes > 0, sizes, np.inf).min(-1))
        unit = np.where(np.abs(pivot) <= 4096 * smallest, smallest, pivot)
        if i == 0:
            unit = _whole_unit(w, exponents, column, row, pivot, unit)
        unit = unit[..., None]
        whole = (pivot != 0)[..., None]
        vertical[:, :, i] = np.divide(column, unit, where=whole, out=np.zeros((K, C, R)))
        horizontal[:, :, i] = np.divide(row * unit, pivot[..., None], where=whole, out=np.zeros((K, C, S)))
        rest -= vertical[:, :, i, :, None] * horizontal[:, :, i, None]
    return vertical * kept, horizontal * kept


def _whole_unit(
    w: NDArray[np.float64],
    exponents: NDArray[np.int32],
    column: NDArray[np.float64],
    row: NDArray[np.float64],
    pivot: NDArray[np.float64],
    unit: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Divisor of the column that gives integer factors if an integer filter has rank 1, else `unit`.

    The pivot's row, divided by its greatest common divisor, then divides every row (Gauss's lemma).
    """
    numbers = np.ldexp(w, exponents)
    whole = ((numbers == np.rint(numbers)) & (np.abs(numbers) < WHOLE)).all(axis=(-2, -1))
    common = np.gcd.reduce(np.where(whole[..., None], np.ldexp(row, exponents[..., 0]), 0).astype(np.int64), axis=-1)
    whole &= common > 0
    better = np.where(whole, pivot / np.maximum(common, 1), 1.0)
    whole &= (np.fmod(column, better[..., None]) == 0).all(axis=-1)
    return np.where(whole, better, unit)


def _rounded(
    vertical: NDArray[np.float64],
    horizontal: NDArray[np.float64],
    w: NDArray[np.float64],
    exponents: NDArray[np.int32],
    dtype: DTypeLike,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """Round the factors of ``ldexp(w, exponents)`` to `dtype`; return them and each error, relative to the norm."""
    down, along = vertical.astype(dtype), np.ldexp(horizontal, exponents).astype(dtype)
    seen = np.ldexp(along.astype(np.float64), -exponents)
    back = np.einsum("kcir,kcis->kcrs", down.astype(np.float64), seen)
    norms = np.linalg.norm(w, axis=(-2, -1))
    return down, along, np.linalg.norm(back - w, axis=(-2, -1)) / np.where(norms == 0, 1.0, norms)


def integer_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why factors cannot compute a problem with integer sums, or None."""
    if not is_integer(problem.acc_dtype):
        return None
    return Reason("the factors of an integer filter are no integers in general, so int32 sums would not be exact")


def two_passes(method: Any, problem: Conv2dProblem) -> Work:
    """`work_for` of both methods: that of a filter of rank 1, the minimum."""
    return Work(problem.flops * (problem.r + problem.s) / max(problem.r * problem.s, 1), problem.least_bytes)


def less_arithmetic(method: Any, problem: Conv2dProblem, facts: DeviceFacts) -> Preference:
    """`preference_for` of both methods."""
    why = f"two passes of {problem.r} + {problem.s} products instead of {problem.r * problem.s}"
    return Preference(Rank.LESS_ARITHMETIC, why)
