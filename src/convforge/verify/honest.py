"""Errors of honest sums: loops of FMAs on the same data, over sampled rows of the output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Problem
from convforge.verify.bounds import within_range
from convforge.verify.inputs import Inputs, output_dtype
from convforge.verify.rows import Band, rows_of
from convforge.verify.truth import Floats

# The loops are run on at most this many FLOPs' worth of output rows, border rows included.
SAMPLED_FLOPS = 2e8

# Classes whose errors follow the largest pixel of a tile.
BY_TILE = ("winograd", "separable")


@dataclass(frozen=True, slots=True)
class Baseline:
    """Results of honest loops on rows: arrays (items, K, Q)."""

    reference: Floats  # the truth, within the output type's range
    # Style of the sums -> errors of the loop from the first tap to the last, and from the last to the first, because on
    # smooth or widely spread pixels one errs several times as much as the other. Without the rounding of the result to
    # a type narrower than the sums'.
    loops: dict[str, tuple[Floats, Floats]]
    variance: Floats  # expected squared errors of a sequential loop, with FMAs or with products rounded first
    known: NDArray[np.bool_] | None  # True where all of these are finite; None for everywhere


def baseline(
    problem: Problem, inputs: Inputs, items: NDArray[np.int64], reference: Floats, styles: tuple[str, ...]
) -> Baseline:
    """Run the loops; `styles` are those of :func:`convforge.verify.truth.conv2d_sums`, "sequential" first."""
    rows, out = rows_of(problem), output_dtype(problem)
    reference, loops, variances = within_range(reference, out), {}, []
    for style in styles:
        errors = []
        for backward in (False, True):
            value, variance = rows.by_loop(inputs, items, style, backward)
            with np.errstate(invalid="ignore"):
                errors.append(within_range(value, out) - reference)
            if style == "sequential":
                variances.append(variance)
        loops[style] = (errors[0], errors[1])
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.mean(variances, axis=0)
    known = np.isfinite(expected)
    for pair in loops.values():
        known &= np.isfinite(pair[0]) & np.isfinite(pair[1])
    return Baseline(reference, loops, expected, None if known.all() else known)


def sampled_items(problem: Problem) -> NDArray[np.int64]:
    """Rows to sample: all of a small problem; border rows and evenly spread ones of a large problem."""
    seen = rows_of(problem)
    rows = seen.pictures * seen.height
    affordable = int(SAMPLED_FLOPS * rows / max(problem.flops, 1))
    if affordable >= rows:
        return np.arange(rows)
    return np.unique(np.concatenate([seen.edges(), np.linspace(0, rows - 1, max(affordable, 16)).astype(np.int64)]))


@dataclass(frozen=True, slots=True)
class Honest:
    """The errors that a band may have, by channel."""

    count: NDArray[np.int64]  # outputs
    independent: Floats  # effective number of independent outputs
    # Style, sum of the loop's squared errors, and that without their proportional part.
    squares: tuple[tuple[str, Floats, Floats], ...]
    along: Floats  # sum of the squared truth


class Way:
    """The baseline of one way of rounding the factors, and its honest errors in each band."""

    def __init__(self, loops: Baseline, bands: tuple[Band, ...], words: str = "") -> None:
        self.baseline, self.words = loops, words
        self._bands = bands
        self._kept: dict[tuple[int, bool], Honest] = {}

    def honest(self, number: int, precision: str, chosen: NDArray[np.bool_] | None) -> Honest:
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
                    # A tile's error follows its largest pixel, so at a border, where windows have fewer pixels, it is
                    # as large as inside.
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
    """The sum of squared errors without their part proportional to the output."""
    with np.errstate(invalid="ignore", divide="ignore"):
        proportional = np.where(along > 0, band.sums(error * reference, chosen) ** 2 / along, 0)
    return np.maximum(band.sums(error**2, chosen) - proportional, 0)
