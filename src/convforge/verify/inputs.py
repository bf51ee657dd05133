"""Make inputs for checks: reproducible by a seed, in the problem's dtypes, with different channels and filters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, Problem
from convforge.problem.types import is_integer, limits

# Random float64 numbers generated at a time: few enough to stay in the cache.
CHUNK = 1 << 16

# Period of a repeated array: a prime number, so that no two rows or planes are equal.
DIFFERENT = (1 << 16) + 1

# Kind -> its purpose.
KINDS: dict[str, str] = {
    "normal": "random normal numbers; the full range of an integer type; with integers, scales and biases of any size",
    "typical": "normal, with scales and biases that bring sums of integers into the result's range, as in a network",
    "repeated": "typical, the same numbers again and again: soon made, for large arrays of which a sample is checked",
    "integers": "small whole numbers, so that every sum is exact in any order",
    "impulse": "one pixel of 1 in each image, filters of 1, 2, 3, ...: tells correlation from convolution",
    "nan": "normal, with a NaN in the middle of the last channel of the first image",
    "inf": "normal, with an infinity there",
}

# Kinds whose scales and biases are those of a network: kernels may compute outliers by a slow way.
TYPICAL = ("typical", "repeated")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arrays of one call, in the problem's layouts and dtypes."""

    x: NDArray[Any]  # for a matrix product, A as stored
    w: NDArray[Any] | None  # for a matrix product, B as stored; None for a problem without weights
    operands: dict[str, Any]  # arrays that the epilogue uses: "scale", "bias", "residual"; "amax", which it sets
    kind: str = "given"  # `kind` and `seed` are the arguments of make_inputs, which reproduce a failure
    seed: int = 0
    own_weights: bool = False  # True: the caller replaced the weights, because a method needs their rank


def make_inputs(problem: Problem, kind: str = "normal", seed: int = 0) -> Inputs:
    """Make inputs for a problem, of a kind of :data:`KINDS`; the same seed gives the same numbers.

    Raises ValueError if the kind is unknown, or if it is "nan" or "inf" and x is an integer array.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> inputs = make_inputs(parse_problem("n1c2h4w5_k3r3s3_p1_f16_nhwc"))
    >>> inputs.x.shape, inputs.x.dtype.name, inputs.w.shape
    ((1, 4, 5, 2), 'float16', (3, 2, 3, 3))
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} of inputs is unknown; choose one of {', '.join(KINDS)}")
    rng = np.random.default_rng(seed)
    pixels, weights = problem.input, problem.weights
    if kind in ("nan", "inf") and is_integer(pixels.dtype):
        raise ValueError(f"kind={kind!r} goes with float images alone; x is {pixels.dtype}")
    if kind == "impulse":
        x = np.zeros(pixels.shape, pixels.dtype)
        for n, image in enumerate(_channels(problem, x)):
            if image.size:
                image[n % image.shape[0]][tuple(size // 2 for size in image.shape[1:])] = 1
        w = None if weights is None else (np.arange(weights.size) % 97 + 1).reshape(weights.shape).astype(weights.dtype)
    else:
        x = _random(rng, pixels.shape, pixels.dtype, kind, 8)
        w = None if weights is None else _random(rng, weights.shape, weights.dtype, kind, 4)
    if w is not None and isinstance(problem, Conv2dProblem) and problem.w_bound:
        w = np.fmod(w, problem.w_bound + 1)
    if kind in ("nan", "inf") and x.size:
        image = _channels(problem, x)[0]
        image[-1][tuple(size // 2 for size in image.shape[1:])] = np.nan if kind == "nan" else np.inf
    return Inputs(x, w, _operands(rng, problem, kind), kind, seed)


def output_dtype(problem: Problem) -> np.dtype[Any]:
    return np.dtype(problem.out_dtype)


def _channels(problem: Problem, x: NDArray[Any]) -> NDArray[Any]:
    """View x as (images, channels, ...)."""
    if x.ndim == 4:
        return x if problem.input.layout == "NCHW" else x.transpose(0, 3, 1, 2)
    return x.reshape(1, *x.shape) if x.ndim > 1 else x.reshape(1, 1, -1)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str, largest: int) -> NDArray[Any]:
    if kind == "repeated" and (count := math.prod(shape)) > DIFFERENT:
        return np.resize(_random(rng, (DIFFERENT,), dtype, "typical", largest), count).reshape(shape)
    if is_integer(dtype):
        low, high = limits(dtype)
        if kind == "integers":
            low, high = max(low, -largest), min(high, largest)
        return rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    if kind == "integers":
        return rng.integers(-largest, largest, shape, endpoint=True).astype(dtype)
    flat = np.empty(math.prod(shape), dtype)
    for begin in range(0, flat.size, CHUNK):
        part = flat[begin : begin + CHUNK]
        part[:] = rng.standard_normal(part.size)  # the same numbers as one call for the whole array
    return flat.reshape(shape)


def _operands(rng: np.random.Generator, problem: Problem, kind: str) -> dict[str, Any]:
    """Make the epilogue's arrays. Exact kinds get multiples of 1/4 as scales: products stay exact, and ties occur."""
    if not isinstance(problem, Conv2dProblem):
        return {}
    dtype, ends, found = problem.operand_dtype, problem.epilogue, dict[str, Any]()
    exact, typical = kind in ("integers", "impulse"), kind in TYPICAL
    if ends.scale != "none":
        shape = () if ends.scale == "tensor" else (problem.k,)
        quarters = rng.integers(1, 6, shape) / 4
        scale: Any = np.asarray(quarters if exact else np.exp(rng.standard_normal(shape) / 2) / 4, dtype)
        if is_integer(problem.acc_dtype) and not exact:  # brings sums of full-range integers into the output's range
            scale = (scale * (ends.out_scale * 64.0 / max(problem.largest_sum**0.5, 1.0))).astype(dtype)
            sizes = rng.integers(-40, 40, shape, endpoint=True) * (rng.random(shape) < 0.25)
            scale = scale if typical else scale * 2.0**sizes
        found["scale"] = scale
    if ends.bias and is_integer(problem.acc_dtype) and typical:
        found["bias"] = rng.integers(-64, 64, problem.k, endpoint=True).astype(dtype)
    elif ends.bias and is_integer(problem.acc_dtype) and not exact:
        found["bias"] = _any_size(rng, (problem.k,), problem.out_dtype).astype(dtype)
    elif ends.bias:
        found["bias"] = _random(rng, (problem.k,), dtype, "integers" if exact else "normal", 5)
    if ends.residual and problem.out_dtype == "int32" and not exact:
        found["residual"] = _any_size(rng, problem.out_shape, "int32")
    elif ends.residual:
        found["residual"] = _random(rng, problem.out_shape, problem.out_dtype, "integers" if exact else "normal", 7)
    if ends.amax:
        found["amax"] = np.array(np.nan, np.float32)  # the call sets it
    return found


def _any_size(rng: np.random.Generator, shape: tuple[int, ...], out_dtype: str) -> NDArray[np.int32]:
    """Draw int32 numbers with uniform bit lengths, limits included; 3 of 4 fit a narrower output dtype."""
    # Nearly all uniform int32 numbers are so large that adding the convolution's sum would make no difference.
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    bits = rng.uniform(0, 33, shape)  # more than 31 bits are clipped to a limit
    if is_integer(out_dtype) and out_dtype != "int32":
        bits = np.where(rng.random(shape) < 0.75, bits * np.iinfo(out_dtype).bits / 33, bits)
    return np.clip(np.rint(rng.choice([-1.0, 1.0], shape) * 2.0**bits), low, high).astype(np.int32)
