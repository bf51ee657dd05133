"""Measure the rounding errors of correct ("honest") sums: reference loops of FMAs on the same data, in sampled rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Problem
from convforge.verify.bounds import within_range
from convforge.verify.inputs import Inputs, output_dtype
from convforge.verify.rows import Band, rows_of
from convforge.verify.truth import Floats

# The loops run on evenly spaced output rows of about this many FLOPs; border rows are added.
SAMPLED_FLOPS = 2e8

# Precision classes with errors that grow with the largest pixel of a tile.
BY_TILE = ("winograd", "separable")


class Honest(NamedTuple):
    """Squared errors of the reference loops in one band; each array has one element per output channel."""

    outputs: NDArray[np.int64]  # number of outputs in the band
    independent: Floats  # effective number of independent outputs
    # Per style of sums: name, sum of squared errors, and this sum without the errors proportional to the output.
    squares: tuple[tuple[str, Floats, Floats], ...]
    along: Floats  # sum of squares of the truth


class Baseline:
    """Errors of the reference loops on rows (items, K, Q): loop minus `reference`, both in the output dtype's range.

    `styles` are styles of :func:`convforge.verify.truth.conv2d_sums`, "sequential" first. `rounding` names the
    rounding that was applied to the factors.
    """

    def __init__(
        self, problem: Problem, inputs: Inputs, items: NDArray[np.int64], reference: Floats,
        styles: tuple[str, ...], rounding: str = "",
    ) -> None:  # fmt: skip
        rows, out = rows_of(problem), output_dtype(problem)
        self.rounding, self.reference = rounding, within_range(reference, out)
        # Style -> errors of the loop in forward and in backward order of taps. On smooth or widely spread pixels, one
        # order errs several times as much as the other. Rounding to a narrower output is not included.
        self.loops: dict[str, list[Floats]] = {}
        variances = []
        with np.errstate(invalid="ignore", over="ignore"):
            for style in styles:
                results = [rows.by_loop(inputs, items, style, backward) for backward in (False, True)]
                self.loops[style] = [within_range(value, out) - self.reference for value, _ in results]
                variances += [variance for _, variance in results if style == "sequential"]
            # Expected squared errors of a sequential loop, with FMAs or with products rounded first.
            self.variance = np.mean(variances, axis=0)
        known = np.isfinite(self.variance)
        for errors in self.loops.values():
            known &= np.isfinite(errors).all(axis=0)
        self.known = None if known.all() else known  # mask: all of these are finite; None: everywhere
        self._kept: dict[tuple[str, bool], Honest] = {}

    def honest(self, band: Band, precision: str, chosen: NDArray[np.bool_] | None) -> Honest:
        by_tile = precision in BY_TILE
        if chosen is not self.known:
            return self._computed(band, by_tile, chosen)
        if (band.name, by_tile) not in self._kept:
            self._kept[band.name, by_tile] = self._computed(band, by_tile, chosen)
        return self._kept[band.name, by_tile]

    def _computed(self, band: Band, by_tile: bool, chosen: NDArray[np.bool_] | None) -> Honest:
        everywhere = np.ones(self.reference.shape, bool) if chosen is None else chosen
        count = (everywhere & band.mask).sum(axis=(0, 2))
        along, total = band.sums(self.reference**2, chosen), band.sums(self.variance, chosen)
        found = []
        for style, errors in self.loops.items():
            squares = np.mean([band.sums(error**2, chosen) for error in errors], axis=0)
            apart = np.mean([apart_from_scale(band, error, self.reference, along, chosen) for error in errors], axis=0)
            if style == "sequential":
                squares, apart = np.maximum(squares, total), np.maximum(apart, total)
                if by_tile:
                    # A tile's error grows with its largest pixel. So errors at a border are as large as inside,
                    # although the windows there have fewer pixels.
                    mean = np.maximum(np.mean([error**2 for error in errors], axis=0), self.variance)
                    sums = np.where(everywhere, mean, 0).sum(axis=(0, 2))
                    squares = np.maximum(squares, sums / np.maximum(everywhere.sum(axis=(0, 2)), 1) * count)
            found.append((style, squares, apart))
        fourth = band.sums(self.variance**2, chosen)
        with np.errstate(invalid="ignore", divide="ignore"):
            independent = np.where(fourth > 0, total**2 / fourth, count)
        return Honest(count, independent, tuple(found), along)


def sampled_items(problem: Problem) -> NDArray[np.int64]:
    """Choose rows to sample: all rows of a small problem; border rows and evenly spaced rows of a large one."""
    seen = rows_of(problem)
    rows = seen.images * seen.height
    affordable = int(SAMPLED_FLOPS * rows / max(problem.flops, 1))
    if affordable >= rows:
        return np.arange(rows)
    return np.unique(np.concatenate([seen.edges(), np.linspace(0, rows - 1, max(affordable, 16)).astype(np.int64)]))


def apart_from_scale(
    band: Band, error: Floats, reference: Floats, along: Floats, chosen: NDArray[np.bool_] | None
) -> Floats:
    """Sum of squared errors per channel, after the component proportional to the output is subtracted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        proportional = np.where(along > 0, band.sums(error * reference, chosen) ** 2 / along, 0)
    return np.maximum(band.sums(error**2, chosen) - proportional, 0)
