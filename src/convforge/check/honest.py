"""How far honest sums lie from the truth: loops of FMAs on the same data, over sampled rows of the output.

A row (n, p) of the output holds every channel and column; arrays of rows are (items, K, Q), of a matrix product
(items, 1, N).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.check.bounds import ACTIVATION_ROUNDINGS, unit_roundoff
from convforge.check.inputs import Inputs
from convforge.check.truth import Floats, activate, conv2d_sums, epilogue, from_rows, gemm_sums, some_rows
from convforge.problem import Conv2dProblem, GemmProblem

# ulp^2 / 12, the variance of a rounding error, over (u t)^2: its mean where mantissas are spread as Benford's law says.
ROUNDING_VARIANCE = 0.18

# The loops are run on at most this many FLOPs' worth of output rows, border rows included.
SAMPLED_FLOPS = 2e8

# Classes whose errors follow the largest pixel of a tile.
BY_TILE = ("winograd", "separable")


@dataclass(frozen=True, slots=True)
class Band:
    """Outputs that are judged together: masks over the sampled rows and over the columns."""

    name: str
    rows: NDArray[np.bool_]
    columns: NDArray[np.bool_]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Both, shape (items, 1, Q)."""
        return (self.rows[:, None] & self.columns[None, :])[:, None, :]

    def sums(self, values: Floats, chosen: NDArray[np.bool_] | None) -> Floats:
        """Sums by channel over the band's outputs, or those of them that are chosen."""
        if chosen is not None:
            return np.asarray(np.where(chosen & self.mask, values, 0).sum(axis=(0, 2)))
        columns = values if self.columns.all() else values[:, :, self.columns]
        return np.asarray(columns.sum(axis=2)[self.rows].sum(axis=0))


@dataclass(frozen=True, slots=True)
class Baseline:
    """What honest loops make of rows.

    Attributes
    ----------
    reference : array of float64, shape (items, K, Q)
        The truth, within the output type's range.
    loops : dict of str to tuple of arrays
        Style of the sums -> errors of the loop from the first tap to the last, and of that from the last to the first:
        on smooth or widely spread pixels one of them errs several times as much as the other. The rounding of the
        result to a type narrower than the sums' is left out.
    variance : array
        What theory expects of a sequential loop's squared errors, whether it has FMAs or rounds products first.
    known : array of bool, or None
        Where all of these are finite; None for everywhere.
    """

    reference: Floats
    loops: dict[str, tuple[Floats, Floats]]
    variance: Floats
    known: NDArray[np.bool_] | None


def true_rows(problem: Conv2dProblem | GemmProblem, inputs: Inputs, items: NDArray[np.int64]) -> Floats:
    """The truth of some rows, before it is rounded to the output's type."""
    if isinstance(problem, GemmProblem):
        return gemm_sums(problem, inputs, items, "truth")[0][:, None, :]
    return epilogue(problem, inputs, items, *conv2d_sums(problem, inputs, items, "truth"))[0]


def baseline(
    problem: Conv2dProblem | GemmProblem,
    inputs: Inputs,
    items: NDArray[np.int64],
    reference: Floats,
    styles: tuple[str, ...],
) -> Baseline:
    """Run the loops; `styles` are those of :func:`convforge.check.truth.conv2d_sums`, "sequential" first."""
    reference, loops, variances = within_range(problem, reference), {}, []
    for style in styles:
        errors = []
        for backward in (False, True):
            value, variance = _finished(problem, inputs, items, style, backward)
            with np.errstate(invalid="ignore"):
                errors.append(within_range(problem, value) - reference)
            if style == "sequential":
                variances.append(variance)
        loops[style] = (errors[0], errors[1])
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.mean(variances, axis=0)
    known = np.isfinite(expected)
    for pair in loops.values():
        known &= np.isfinite(pair[0]) & np.isfinite(pair[1])
    return Baseline(reference, loops, expected, None if known.all() else known)


def _finished(
    problem: Conv2dProblem | GemmProblem, inputs: Inputs, items: NDArray[np.int64], style: str, backward: bool
) -> tuple[Floats, Floats]:
    """Rows by one kind of sums with the epilogue behind them, and the variance that theory expects of sequential ones.

    The result is not rounded to a type narrower than the sums'.
    """
    if isinstance(problem, GemmProblem):
        sums, squares = gemm_sums(problem, inputs, items, style, backward=backward)
        return sums[:, None, :], ROUNDING_VARIANCE * unit_roundoff(problem.dtype) ** 2 * squares[:, None, :]
    dtype = np.dtype(problem.acc_dtype)
    u = unit_roundoff(problem.acc_dtype)
    sums, squares = conv2d_sums(problem, inputs, items, style, backward=backward)
    ends, operands = problem.epilogue, inputs.operands
    value: NDArray[Any] = sums.astype(dtype)
    variance = ROUNDING_VARIANCE * u * u * squares
    with np.errstate(all="ignore"):
        if ends.divisor != 1:
            value = value / dtype.type(ends.divisor)
            variance = variance / ends.divisor**2 + 2 * _rounding(value, u)
        if ends.scale != "none":
            scale = np.asarray(operands.scale, dtype).reshape(-1, 1)
            value = value * scale
            variance = variance * scale.astype(np.float64) ** 2 + 2 * _rounding(value, u)
        if ends.bias:
            value = value + np.asarray(operands.bias, dtype).reshape(-1, 1)
            variance = variance + 2 * _rounding(value, u)
        if ends.residual:
            value = value + some_rows(problem, np.asarray(operands.residual), items).astype(dtype)
            variance = variance + 2 * _rounding(value, u)
        if ends.activation not in ("identity", "relu", "clipped_relu"):
            variance = variance * 1.3 + ACTIVATION_ROUNDINGS * _rounding(value, u)
            if ends.activation in ("sigmoid", "tanh"):
                variance = variance + ACTIVATION_ROUNDINGS * ROUNDING_VARIANCE * u * u
            if ends.activation == "leaky_relu":
                variance = variance * max(1.0, (ends.alpha or 0.0) ** 2)
        value = activate(value, ends.activation, ends.alpha)
    return value.astype(np.float64), variance


def _rounding(value: NDArray[Any], u: float) -> Floats:
    return ROUNDING_VARIANCE * u * u * value.astype(np.float64) ** 2


def within_range(problem: Conv2dProblem | GemmProblem, values: Floats) -> Floats:
    """Values as an integer output saturates them, which is no error; those of a float output as they are."""
    out = np.dtype(problem.out_dtype if isinstance(problem, Conv2dProblem) else problem.dtype)
    if out.kind == "f":
        return values
    return np.clip(values, float(np.iinfo(out).min), float(np.iinfo(out).max))


def sampled_items(problem: Conv2dProblem | GemmProblem) -> NDArray[np.int64]:
    """Rows to look at: all of a small problem; of a large one border rows, and others evenly spread."""
    if isinstance(problem, GemmProblem):
        return _sampled(problem.m, problem.flops, np.empty(0, np.int64))
    return _sampled(problem.n * problem.p, problem.flops, _edge_rows(problem))


def _edge_rows(problem: Conv2dProblem) -> NDArray[np.int64]:
    """Border rows of the first and the last picture, at most eight of each edge."""
    border = np.flatnonzero(border_of(problem)[0])
    few = np.unique(np.concatenate([border[:8], border[-8:]]))
    last = (problem.n - 1) * problem.p
    return np.unique(np.concatenate([few, few + last]))


def _sampled(rows: int, flops: int, always: NDArray[np.int64]) -> NDArray[np.int64]:
    affordable = int(SAMPLED_FLOPS * rows / max(flops, 1))
    if affordable >= rows:
        return np.arange(rows)
    return np.unique(np.concatenate([always, np.linspace(0, rows - 1, max(affordable, 16)).astype(np.int64)]))


def border_of(problem: Conv2dProblem) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which output rows, and which columns, have a window that leaves the picture, or lie at the output's edge."""
    found = []
    for outputs, stride, before, size, extent in (
        (problem.p, problem.stride[0], problem.padding[0], problem.h, problem.extent_h),
        (problem.q, problem.stride[1], problem.padding[2], problem.w, problem.extent_w),
    ):
        start = np.arange(outputs) * stride - before
        border = (start < 0) | (start + extent > size)
        border[[0, -1]] = True
        found.append(border)
    return found[0], found[1]


def bands_of(problem: Conv2dProblem | GemmProblem, items: NDArray[np.int64]) -> tuple[Band, ...]:
    """The inside, border rows and border columns of sampled rows; a matrix product has no border."""
    if isinstance(problem, GemmProblem):
        return (Band("inside", np.ones(items.size, bool), np.ones(problem.n, bool)),)
    rows, columns = border_of(problem)
    row, every = rows[items % problem.p], np.ones_like(columns)
    return (Band("inside", ~row, ~columns), Band("border rows", row, every), Band("border columns", ~row, columns))


def outputs_in(problem: Conv2dProblem | GemmProblem, band: str, channel: int) -> NDArray[np.bool_]:
    """The outputs of one channel in a band, or in "picture N", as a mask of the output's shape and layout."""
    if isinstance(problem, GemmProblem):
        mask = np.zeros((problem.m, problem.n), bool)
        mask[:, channel] = True
        return mask
    items = np.arange(problem.n * problem.p)
    rows = np.zeros((items.size, problem.k, problem.q), bool)
    if band.startswith("picture"):
        rows[items // problem.p == int(band.split()[1]), channel] = True
    else:
        rows[:, channel] = next(each for each in bands_of(problem, items) if each.name == band).mask[:, 0]
    return np.asarray(from_rows(problem, rows))


@dataclass(frozen=True, slots=True)
class Honest:
    """What a band's errors may be, by channel.

    Attributes
    ----------
    count : array of int
        Outputs.
    independent : array
        How many of them count as independent.
    squares : tuple of (style, array, array)
        Sums of squared errors of the loops, and of those without their proportional part.
    along : array
        Sum of the squared truth.
    """

    count: NDArray[np.int64]
    independent: Floats
    squares: tuple[tuple[str, Floats, Floats], ...]
    along: Floats


class Way:
    """The baseline of one way of rounding the factors, and what follows from it for each band."""

    def __init__(self, loops: Baseline, bands: tuple[Band, ...], words: str = "") -> None:
        self.baseline, self.words = loops, words
        self._bands = bands
        self._kept: dict[tuple[int, bool], Honest] = {}

    def honest(self, number: int, precision: str, chosen: NDArray[np.bool_] | None) -> Honest:
        """The sums of honest loops over the chosen outputs of a band."""
        by_tile = precision in BY_TILE
        if chosen is not self.baseline.known:
            return self._computed(number, by_tile, chosen)
        if (number, by_tile) not in self._kept:
            self._kept[number, by_tile] = self._computed(number, by_tile, chosen)
        return self._kept[number, by_tile]

    def _computed(self, number: int, by_tile: bool, chosen: NDArray[np.bool_] | None) -> Honest:
        band, base = self._bands[number], self.baseline
        everywhere = np.ones(base.reference.shape, bool) if chosen is None else chosen
        count = (everywhere & band.mask).sum(axis=(0, 2))
        along, total = band.sums(base.reference**2, chosen), band.sums(base.variance, chosen)
        found = []
        for style, errors in base.loops.items():
            squares = np.mean([band.sums(error**2, chosen) for error in errors], axis=0)
            apart = np.mean([apart_from_scale(band, error, base.reference, along, chosen) for error in errors], axis=0)
            if style == "sequential":
                squares, apart = np.maximum(squares, total), np.maximum(apart, total)
                if by_tile:
                    # A tile's error follows the largest of its pixels: at a border, where windows hold fewer, it is
                    # the inside's.
                    mean = np.maximum(np.mean([error**2 for error in errors], axis=0), base.variance)
                    sums = np.where(everywhere, mean, 0).sum(axis=(0, 2))
                    squares = np.maximum(squares, sums / np.maximum(everywhere.sum(axis=(0, 2)), 1) * count)
            found.append((style, squares, apart))
        fourth = band.sums(base.variance**2, chosen)
        with np.errstate(invalid="ignore", divide="ignore"):
            independent = np.where(fourth > 0, total**2 / fourth, count)
        return Honest(count, independent, tuple(found), along)


def apart_from_scale(
    band: Band, error: Floats, reference: Floats, along: Floats, chosen: NDArray[np.bool_] | None
) -> Floats:
    """The sum of squares of errors without the part that is proportional to the output."""
    with np.errstate(invalid="ignore", divide="ignore"):
        proportional = np.where(along > 0, band.sums(error * reference, chosen) ** 2 / along, 0)
    return np.maximum(band.sums(error**2, chosen) - proportional, 0)
