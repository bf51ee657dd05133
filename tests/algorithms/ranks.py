"""Filters of every rank, and what is wrong with the factors that a device made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.separable.factors import ROUNDINGS, factor


def filters_of_every_rank(shape: tuple[int, int, int, int], dtype: str, acc_dtype: str) -> NDArray[Any]:
    """Filters of shape (K, C, R, S): the kinds below in turn, each other than the last of its kind."""
    rng = np.random.default_rng(11)
    K, C, R, S = shape
    kinds = (_blur, _spike, _random, _almost_of_rank_three, _zero, _smooth, _tiny, _huge)
    w = np.reshape([kinds[i % len(kinds)](rng, R, S, acc_dtype) for i in range(K * C)], shape)
    if np.dtype(dtype).kind in "ui":
        w, limits = np.rint(20 * w), np.iinfo(dtype)
        return np.clip(w, limits.min, limits.max).astype(dtype)
    largest = float(np.finfo(dtype).max)
    return np.clip(w, -largest, largest).astype(dtype)


def _blur(rng: np.random.Generator, R: int, S: int, _: str) -> NDArray[Any]:
    down, along = (np.exp(-0.5 * ((np.arange(taps) - taps // 2) / (taps / 6)) ** 2) for taps in (R, S))
    return np.outer(down, along) * rng.uniform(0.5, 2)


def _spike(_: np.random.Generator, R: int, S: int, __: str) -> NDArray[Any]:
    """Whole numbers of rank 2, as the Laplacian of eight neighbours."""
    w = np.ones((R, S))
    w[R // 2, S // 2] -= w.size
    return w


def _random(rng: np.random.Generator, R: int, S: int, _: str) -> NDArray[Any]:
    return rng.standard_normal((R, S))


def _almost_of_rank_three(rng: np.random.Generator, R: int, S: int, acc_dtype: str) -> NDArray[Any]:
    """Three products, and so much else that it is noise to singular vectors, which miss least, but not to others."""
    w = rng.standard_normal((R, 3)) @ np.diag([1, 0.1, 0.01]) @ rng.standard_normal((3, S))
    rest = rng.standard_normal((R, S))
    share = 0.95 if acc_dtype == "float32" else 0.8  # NumPy's singular values carry some rounding, too
    size = share * ROUNDINGS * np.finfo(acc_dtype).eps * np.linalg.norm(w)
    return w + rest * (size / np.linalg.norm(rest))


def _zero(_: np.random.Generator, R: int, S: int, __: str) -> NDArray[Any]:
    return np.zeros((R, S))


def _smooth(_: np.random.Generator, R: int, S: int, __: str) -> NDArray[Any]:
    """Hilbert's matrix: its singular values fall steadily, with no gap between them and the noise."""
    return 1 / (1 + np.add.outer(np.arange(R), np.arange(S)))


def _tiny(rng: np.random.Generator, R: int, S: int, acc_dtype: str) -> NDArray[Any]:
    return _blur(rng, R, S, acc_dtype) * (1e-38 if acc_dtype == "float32" else 1e-308)


def _huge(rng: np.random.Generator, R: int, S: int, acc_dtype: str) -> NDArray[Any]:
    return _random(rng, R, S, acc_dtype) / 10 * (1e38 if acc_dtype == "float32" else 1e307)


def fault_of_factors(w: NDArray[Any], tensors: dict[str, Any], acc_dtype: str) -> str | None:
    """Return the difference of a device's factors from NumPy's decomposition, or None.

    `w` is (K, C, R, S) in cross-correlation order; `tensors` has "rows", "columns", "ranks" and "errors".
    """
    noise = ROUNDINGS * float(np.finfo(acc_dtype).eps)
    # Both decompositions are done in float64: to its own precision, that of large filters is not resolved by either.
    # NumPy counts rounding as rank then, and factors miss some more.
    blurred = np.dtype(acc_dtype) == np.float64 and max(w.shape[2:]) > 31
    noise *= float(np.sqrt(max(w.shape[2:]))) if blurred else 1.0
    for place in np.ndindex(*w.shape[:2]):
        one = w[place].astype("f8")
        host = factor(one[None, None], acc_dtype)
        rank, said = int(tensors["ranks"][place]), float(tensors["errors"][place])
        if rank > int(host.ranks[0, 0]) or (rank < int(host.ranks[0, 0]) and not blurred):
            return f"filter {place} has rank {rank}; NumPy finds {host.ranks[0, 0]}"
        down, along = (tensors[name][place][:rank].astype("g") for name in ("columns", "rows"))
        rest, norm = np.einsum("ir,is->rs", down, along) - one, np.linalg.norm(one.astype("g"))
        error = float(np.linalg.norm(rest) / (norm or 1))
        if not abs(said - error) <= 1e-3 * error + float(np.finfo("f8").eps):
            return f"filter {place}: the error is {error}; {said} is said"
        # Where the factors' type can hold no better ones (numbers near the smallest), about the same will do.
        allowed = noise if host.error <= noise else 2 * host.error
        if not error <= allowed:
            return f"filter {place} of rank {rank}: the factors miss {error}; NumPy's miss {host.error}"
    return None
