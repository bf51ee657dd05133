"""Results of honest and of narrower arithmetic for whole problems, made from the models in arithmetic.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tests.verify.arithmetic import (
    A100,
    A100_TF32,
    BF16,
    E4M3,
    E5M2,
    FP16,
    FP32,
    H100,
    HOPPER_FP8,
    HOPPER_FP8_TWO_LEVELS,
    SUMS_OF_11_BITS,
    TF32,
    TF32_AWAY,
    TF32_CUT,
    V100,
    Floats,
    Rounding,
    Sums,
    cut,
    exact,
    nearest,
    pairwise,
    scaled,
    separately_rounded,
    sequential,
    split_products,
    tensor_core,
)

from convforge.problem import Conv2dProblem, GemmProblem, Problem
from convforge.verify import Inputs

DATA = ("normal", "positive", "wide", "smooth")
# Channels, and the side of a filter; 0 for a matrix product.
SIZES = tuple((c, r) for c in (1, 3, 8, 64, 256, 2048) for r in (1, 3, 0))

Model = Callable[[Floats, Floats], Floats]


def problem_of(c: int, r: int, dtype: str = "float32", stored: str = "") -> Problem:
    """A small problem of so many channels: 12 x 13 outputs of 2 filters, or of a matrix product."""
    if not r:
        return GemmProblem(m=30, n=12, k=c, dtype=dtype)
    types = {"x_dtype": dtype, "w_dtype": dtype, "out_dtype": stored or dtype}
    return Conv2dProblem(n=1, c=c, h=12, w=13, k=2, r=r, s=r, padding=(r // 2,) * 4, **types)  # type: ignore[arg-type]


def inputs_of(problem: Any, data: str, rounding: Rounding = FP32) -> Inputs:
    """Seeded numbers of a kind, rounded to what the arrays hold."""
    rng = np.random.default_rng(problem.flops)

    def numbers(shape: tuple[int, ...], of_x: bool) -> Floats:
        if data == "normal":
            return rng.standard_normal(shape)
        if data == "positive":
            return rng.uniform(0.1, 1.0, shape)
        if data == "wide":
            return 10 ** rng.uniform(-3, 3, shape) * rng.choice([-1, 1], shape)
        if not of_x:
            return rng.uniform(0.5, 1.5, shape) / 9
        rows, columns = (np.arange(size) for size in shape[-2:])
        return 100 + 20 * np.sin(rows[:, None] / 3) + 10 * np.cos(columns / 4) + rng.normal(0, 1, shape)

    shapes = (problem.input.shape, problem.weights.shape)
    x, w = (rounding(numbers(shape, i == 0)) for i, shape in enumerate(shapes))
    dtype = problem.input.dtype
    return Inputs(x.astype(dtype), w.astype(dtype), {})


def result(problem: Any, inputs: Inputs, model: Model) -> Floats:
    """The output of a model, before it is rounded to the output's type."""
    assert inputs.w is not None
    if isinstance(problem, GemmProblem):
        return model(inputs.x.astype(np.float64), inputs.w.astype(np.float64))
    ph, pw = problem.padding[0], problem.padding[2]
    wide = np.pad(inputs.x.astype(np.float64), ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (problem.r, problem.s), (2, 3))
    rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, problem.c * problem.r * problem.s)
    columns = inputs.w.astype(np.float64).reshape(problem.k, -1).T
    return model(rows, columns).reshape(problem.p, problem.q, problem.k).transpose(2, 0, 1)[None]


def of_factors(of_a: Rounding, of_b: Rounding, sums: Sums) -> Model:
    """Factors rounded each in its way, products summed."""
    return lambda a, b: sums(of_a(a), of_b(b))


def both(rounding: Rounding, sums: Sums) -> Model:
    """Both factors rounded alike."""
    return of_factors(rounding, rounding, sums)


FP16_SUMS, BF16_SUMS = partial(sequential, rounding=nearest(10)), partial(sequential, rounding=BF16)
LARGEST_FP16 = 2.0**14
H100_TF32 = partial(tensor_core, step=8, extra=2)
DRAINED = partial(tensor_core, step=16, extra=2, drained=64)

THREE_FP16 = partial(split_products, rounding=scaled(FP16, LARGEST_FP16, True), products=3, sums=H100)

# Class -> honest models by name.
HONEST: dict[str, dict[str, Model]] = {
    "tf32": {
        "rounded, FMA": both(TF32, sequential),
        "rounded, Ampere": both(TF32, A100_TF32),
        "cut off, Hopper": both(TF32_CUT, H100_TF32),
        "ties away, Hopper": both(TF32_AWAY, H100_TF32),
        "x cut off and w rounded, Ampere": of_factors(TF32_CUT, TF32, A100_TF32),
        "strict": both(exact, sequential),
        "three FP16 products": both(exact, THREE_FP16),
    },
    "fp16": {
        "FMA": both(nearest(10), sequential),
        "Ampere": both(nearest(10), A100),
        "scaled, Hopper": both(scaled(FP16, LARGEST_FP16, True), H100),
        "unscaled, Hopper": both(FP16, H100),
        "two by two": both(nearest(10), pairwise),
    },
    "bf16": {
        "FMA": both(BF16, sequential),
        "backward": both(BF16, partial(sequential, backward=True)),
        "Ampere": both(BF16, A100),
        "Hopper": both(BF16, H100),
        "x alone": of_factors(BF16, exact, A100),
    },
    "fp8": {
        "e4m3, two levels": both(scaled(E4M3, 448), HOPPER_FP8_TWO_LEVELS),
        "e4m3, FMA": both(scaled(E4M3, 448), sequential),
        "e4m3 by a power of two, two levels": both(scaled(E4M3, 448, True), HOPPER_FP8_TWO_LEVELS),
        "e5m2 and e4m3, two levels": of_factors(scaled(E5M2, 57344), scaled(E4M3, 448), HOPPER_FP8_TWO_LEVELS),
        "e5m2, Hopper FP16": both(scaled(E5M2, 57344), H100),
    },
    "fp8_fast": {
        "e4m3, one level": both(scaled(E4M3, 448), HOPPER_FP8),
        "e4m3, two levels": both(scaled(E4M3, 448), HOPPER_FP8_TWO_LEVELS),
        "e4m3, FMA": both(scaled(E4M3, 448), sequential),
        "e5m2 and e4m3, one level": of_factors(scaled(E5M2, 57344), scaled(E4M3, 448), HOPPER_FP8),
    },
}  # fmt: skip

# Class -> the next narrower ones.
NARROWER: dict[str, dict[str, Model]] = {
    "tf32": {
        "bf16 factors": both(BF16, H100),
        "bf16 factors cut off": both(cut(7), H100),
        "8 explicit bits": both(nearest(8), H100),
        "FP16 sums": both(TF32, FP16_SUMS),
        "BF16 sums": both(TF32, BF16_SUMS),
        "x in bf16": of_factors(BF16, TF32, H100),
    },
    "fp16": {
        "FP16 sums": both(nearest(10), FP16_SUMS),
        "FP16 products and sums": both(nearest(10), partial(separately_rounded, rounding=nearest(10))),
        "bf16 factors": both(BF16, H100),
        "fp8 factors": both(scaled(E4M3, 448), H100),
    },
    "bf16": {
        "6 bits": both(nearest(5), H100),
        "e4m3 factors": both(scaled(E4M3, 448), H100),
        "e5m2 factors": both(scaled(E5M2, 57344), H100),
        "BF16 sums": both(BF16, BF16_SUMS),
    },
    "fp8": {
        "14-bit sums": both(scaled(E4M3, 448), HOPPER_FP8),
        "FP16 sums": both(scaled(E4M3, 448), FP16_SUMS),
        "e2m1 factors": both(scaled(nearest(1, 0), 6), H100),
    },
    "fp8_fast": {
        "11-bit sums": both(scaled(E4M3, 448), SUMS_OF_11_BITS),
        "FP16 sums": both(scaled(E4M3, 448), FP16_SUMS),
        "e2m1 factors": both(scaled(nearest(1, 0), 6), H100),
    },
}
# Sums of float16 arrays under strict, honest and narrower.
OF_HALVES: tuple[dict[str, Model], dict[str, Model]] = (
    {"FMA": sequential, "Volta": V100, "Ampere": A100, "Hopper": H100, "two by two": pairwise},
    {
        "FP16 sums": FP16_SUMS,
        "FP16 products and sums": partial(separately_rounded, rounding=nearest(10)),
        "BF16 sums": BF16_SUMS,
        "FP16 sums in FP32 blocks": lambda a, b: sum(
            (FP16_SUMS(a[:, i : i + 64], b[i : i + 64]) for i in range(0, a.shape[1], 64)), np.zeros(1)
        ),
    },
)
