"""Limit the RMS error per output channel, separately for border rows, border columns and the inside (the "gate").

An elementwise bound must admit the worst case, which real data never reach. So it also admits arithmetic a thousand
times less precise than promised. The gate compares a result with a reference on the same data:

- `strict`, `separable` and `winograd`: a loop that computes one FMA after the other.
- `tf32`, `fp16`, `bf16`, `fp8` and `fp8_fast`: the truth of rounded factors, for the closest rounding. Only the error
  of the sums remains. It reveals narrower factors, and also narrower sums, which err less than correctly rounded
  factors.
- `strict` on 16-bit floats: products are exact, and the rounding of the result hides the error of the sums. The error
  is the distance of the truth from the numbers that round to the result.

Tensor cores sum in FP32, but truncate partial sums where others round. For the last two items, a loop that truncates
is correct too. Its error is mostly proportional to the output, with one factor for all outputs. So errors without
their component proportional to the output are compared as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, Problem
from convforge.problem.types import finfo, is_integer
from convforge.verify.bounds import (
    beyond_rounding,
    fft_energy,
    fft_levels,
    sums_of_groups,
    unit_roundoff,
    within_range,
)
from convforge.verify.factors import ROUNDINGS, Factors, rounded, roundings
from convforge.verify.honest import Baseline, Honest, apart_from_scale, sampled_items
from convforge.verify.inputs import Inputs, output_dtype
from convforge.verify.rows import Band, rows_of
from convforge.verify.truth import Floats, Truth, to_rows

# Precision class -> allowed RMS error in units of the sequential loop's. tests/verify/test_gates.py measured, over 1 to
# 18432 products, on normal, positive, smooth and widely spread numbers: direct sums and three FP16 products 0.1 to 1.9,
# separable 0.3 to 2.4, F(2x2, 3x3) 0.2 to 6, F(4x4, 3x3) 0.5 to 31. The largest values occur with one channel, where a
# sequential sum of nine products has almost no error. Transforms or passes in TF32 reach hundreds and more.
ALLOWED: dict[str, float] = {"strict": 2.0, "separable": 6.0, "winograd": 64.0}

# Class -> largest ratio of a correct method, without random fluctuation in small bands; by default half of ALLOWED.
USUAL: dict[str, float] = {"strict": math.sqrt(2)}

# Style of tensor cores' sums -> multiple of this loop's error that is allowed in addition to twice the sequential
# loop's, and the usual multiple. Models of tensor cores reach 0.3 (Hopper), 0.62 (Ampere) and 1.0 (Volta) times the
# error of a loop that truncates the sum after every product, and 1 times that of the loops of one and two levels.
TENSOR: dict[str, tuple[float, float]] = {"cut": (2.0, 1.3), "two levels": (2.5, 1.6), "one level": (2.5, 1.6)}

# Class of narrow factors -> style of its tensor cores' sums, where it is not "cut".
STYLES: dict[str, str] = {"fp8": "two levels", "fp8_fast": "one level"}

# A result is more exact than its class requires if its error is at most this share of the rounded factors' error.
FINER = 0.25

# Fewest independent outputs for which errors without their component proportional to the output are compared too.
ENOUGH = 8

# A rounding is accepted if it leaves at most this share of the allowed error; correct sums of many products leave up to
# a half.
LITTLE = 0.5

# Rows used to rank the roundings; most FLOPs for which all rows are used; number of roundings that are tried.
FEW_ROWS, FEW_FLOPS, TRIED = 4, 2e7, 6

# The FFT's RMS error grows as u sqrt(log N) times the image's norm (Gentleman and Sande, Fast Fourier transforms for
# fun and profit, AFIPS 1966; measured over many libraries at 0.3 to 0.8 u sqrt(log2 N), fftw.org/accuracy).
FFT_CONSTANT = 4.0

# A false alarm has at most the probability exp(-RARE) for each channel and band. In a band of few outputs an RMS error
# fluctuates: with m errors of equal variance it exceeds 1 + sqrt(2 t / m) times its expectation with a probability
# of at most exp(-t) (B. Laurent and P. Massart, Adaptive estimation of a quadratic functional by model selection, Ann.
# Statist. 28, 2000, lemma 1).
RARE = 20.0


class Measured(NamedTuple):
    """The RMS error of one channel in one band."""

    channel: int
    band: str
    rms: float
    allowed: float
    note: str = ""  # method of measurement

    @property
    def ratio(self) -> float:
        """RMS error divided by the allowed error; the gate rejects a result above 1."""
        return self.rms / self.allowed if self.allowed > 0 else math.inf if self.rms > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"RMS error {self.rms:.3g} of channel {self.channel}, {self.band}, is {self.ratio:.3g} times what is "
            f"allowed ({self.allowed:.3g}){self.note and f': {self.note}'}"
        )


class Gate:
    """Check of RMS errors of sums of products, for one set of inputs; caches values that do not depend on results.

    With `items`, results and `truth` hold only the output rows `items` (n * P + p): (items, K, Q) or (items, 1, N).
    Without `items`, results and `truth` are whole outputs, and the gate samples rows.
    """

    def __init__(self, problem: Problem, inputs: Inputs, truth: Truth, items: NDArray[np.int64] | None = None) -> None:
        self._problem, self._inputs, self._output_rows = problem, inputs, rows_of(problem)
        self._truth, self._items, self._dtype = truth, items, output_dtype(problem)
        self._baselines: dict[tuple[str, str], Baseline] = {}  # style of sums, rounding of factors -> baseline
        self._likely: dict[str, str] = {}  # class -> rounding closest to the last result

    def excess(self, precision: str, got: NDArray[Any]) -> Measured | None:
        """Find the worst channel and band with an RMS error above the limit of class `precision`; None if all pass."""
        found = self.measured(precision, got)
        return found if found is not None and found.ratio > 1 else None

    def measured(self, precision: str, got: NDArray[Any]) -> Measured | None:
        """Find the channel and band with the largest ratio of error to allowed error, in a whole output or its rows.

        Returns None for an empty output, and for integer sums, because the bound requires them to be exact. Raises
        ValueError for a class without a gate.
        """
        problem = self._problem
        if not self._truth.value.size or is_integer(problem.acc_dtype):
            return None
        if precision == "fft" and isinstance(problem, Conv2dProblem):
            return self._measured_fft(problem, got)
        values = self._rows(got).astype(np.float64)
        if precision in ROUNDINGS:
            return self._measured_narrow(precision, values)
        if precision not in ALLOWED:
            raise ValueError(f"no gate is known for precision {precision!r}, so no result of it can be accepted")
        return self._judge(precision, self._strict, values)

    def _rows(self, whole: NDArray[Any]) -> NDArray[Any]:
        return whole if self._items is not None else self._output_rows.taken(whole, self._rows_seen)

    @cached_property
    def _rows_seen(self) -> NDArray[np.int64]:
        return sampled_items(self._problem) if self._items is None else self._items

    @cached_property
    def _bands(self) -> tuple[Band, ...]:
        return self._output_rows.bands(self._rows_seen)

    @cached_property
    def _is_stored_whole(self) -> bool:
        """True if sums are stored without rounding to a narrower dtype."""
        return not is_integer(self._dtype.name) and finfo(self._dtype).nmant >= finfo(self._problem.acc_dtype).nmant

    @cached_property
    def _strict(self) -> Baseline:
        problem = self._problem
        factors = {operand.dtype for operand in problem.operands if operand.role in ("input", "weights")}
        halves = factors <= {"float16", "bfloat16"} and problem.acc_dtype == "float32"
        styles = ("sequential", "cut") if halves else ("sequential",)
        return Baseline(problem, self._inputs, self._rows_seen, self._rows(self._truth.value), styles)

    def _true(self, problem: Problem, inputs: Inputs, items: NDArray[np.int64]) -> Floats:
        """Compute rows `items` of the truth of these factors, clipped to the output dtype's range."""
        return within_range(rows_of(problem).true(inputs, items).value, self._dtype)

    def _error(self, values: Floats, reference: Floats) -> Floats:
        """Signed errors; for rounded results, the distance of the truth from the numbers that round to the result."""
        with np.errstate(invalid="ignore"):
            if self._is_stored_whole:
                return values - reference
            return beyond_rounding(values, reference, self._dtype.name)

    def _measured_narrow(self, precision: str, values: Floats) -> Measured | None:
        """Find the remaining error for the best of the most likely roundings of the factors."""
        # With very many products, a few rows do not reveal the rounding, so try others until little error remains.
        least: Measured | None = None
        for baseline in self._tried(precision, values):
            found = self._judge(precision, baseline, values)
            if found is None:
                return None
            if least is None or found.ratio < least.ratio:
                least, self._likely[precision] = found, baseline.rounding
            if found.ratio <= LITTLE:
                return found
        return least if least is not None and least.ratio <= 1 else self._finer(precision, values) or least

    def _tried(self, precision: str, values: Floats) -> Iterator[Baseline]:
        """Yield baselines of roundings: first the one closest to the last result, then the few closest to this one."""
        before, style = self._likely.get(precision), STYLES.get(precision, "cut")
        if before is not None:
            yield self._baselines[style, before]
        for problem, inputs, rounding in self._nearest(precision, values):
            if (style, rounding) not in self._baselines:
                reference = self._true(problem, inputs, self._rows_seen)
                made = Baseline(problem, inputs, self._rows_seen, reference, ("sequential", style), rounding)
                self._baselines[style, rounding] = made
            if rounding != before:
                yield self._baselines[style, rounding]

    def _nearest(self, precision: str, values: Floats) -> list[Factors]:
        """List the roundings with the truths closest to a result in a few rows, the most likely first."""
        # For positive numbers, truncated sums are below the truths of all roundings. So compare full errors, and also
        # errors without their component proportional to the output.
        items, rows = self._rows_seen, self._output_rows.images * self._output_rows.height
        step = 1 if self._problem.flops * items.size <= FEW_FLOPS * rows else max(items.size // FEW_ROWS, 1)
        few = Band("", np.ones(items[::step].size, bool), np.ones(values.shape[2], bool))
        found, errors = [], []
        for factors in roundings(self._problem, self._inputs, precision):
            reference = self._true(factors.problem, factors.inputs, items[::step])
            error = self._error(values[::step], reference)
            known = np.isfinite(error) & np.isfinite(reference)
            along = few.sums(reference**2, known)
            apart = apart_from_scale(few, error, reference, along, known)
            errors.append((float(few.sums(error**2, known).sum()), float(apart.sum())))
            found.append(factors)
        orders = np.argsort(np.array(errors), axis=0, kind="stable")  # a column for each kind of error
        return [found[i] for i in list(dict.fromkeys(orders.ravel().tolist()))[:TRIED]]

    def _finer(self, precision: str, values: Floats) -> Measured | None:
        """Find the worst band of a result that is closer to the truth than rounded factors; None if a band is not."""
        factors = rounded(self._problem, self._inputs, precision)
        truth = within_range(self._rows(self._truth.value), self._dtype)
        coarse = self._true(factors.problem, factors.inputs, self._rows_seen)
        with np.errstate(invalid="ignore"):
            errors, allowed = self._error(values, truth) ** 2, (FINER * (coarse - truth)) ** 2
        known = np.isfinite(errors) & np.isfinite(allowed)
        found = []
        for band in self._bands:
            count = np.maximum((known & band.mask).sum(axis=(0, 2)), 1)
            rms, most = (np.sqrt(band.sums(squares, known) / count) for squares in (errors, allowed))
            if (rms > most).any():
                return None
            found.append(_largest(band.name, rms, most, f"more exact than {factors.rounding}"))
        return _worst(found)

    def _judge(self, precision: str, baseline: Baseline, values: Floats) -> Measured | None:
        error, chosen = self._error(values, baseline.reference), baseline.known
        if not np.isfinite(error).all():  # the elementwise bound checks non-finite outputs
            chosen = np.isfinite(error) if chosen is None else chosen & np.isfinite(error)
        kinds = (False, True) if len(baseline.loops) > 1 and self._is_stored_whole else (False,)
        bands = itertools.product(self._bands, kinds)
        return _worst(_worst_channel(baseline, band, error, chosen, precision, apart) for band, apart in bands)

    def _measured_fft(self, problem: Conv2dProblem, got: NDArray[Any]) -> Measured | None:
        """Find the worst image and channel; one RMS for each, because the FFT spreads errors over the whole image."""
        rows, reference, items = got, self._truth.value, self._items
        if items is None:
            rows, reference = to_rows(problem, got), to_rows(problem, reference)
            items = np.arange(problem.n * problem.p)
        image = items // problem.p
        found = []
        for n in np.unique(image):
            values, truth = rows[image == n].astype(np.float64), within_range(reference[image == n], self._dtype)
            error = self._error(values, truth)
            finite = np.isfinite(error)
            count = np.maximum(finite.sum(axis=(0, 2)), 1)
            rms = np.sqrt((np.where(finite, error, 0.0) ** 2).sum(axis=(0, 2)) / count)
            found.append(_largest(f"image {n}", rms, self._fft_allowed[n]))
        return _worst(found)

    @cached_property
    def _fft_allowed(self) -> Floats:
        """Allowed RMS error of each image and channel, shape (N, K)."""
        problem: Any = self._problem
        inputs, magnitude, u = self._inputs, self._truth.magnitude, unit_roundoff(problem.acc_dtype)
        assert inputs.w is not None
        # By Parseval the energy of an output channel is at most (sum over c of ||x_c|| ||w_kc||_1)^2.
        absolute = np.abs(inputs.w.astype(np.float64)).sum(axis=(2, 3))
        ends = problem.epilogue
        norm = sums_of_groups(problem, np.sqrt(fft_energy(problem, inputs)), absolute) / (ends.divisor * ends.out_scale)
        if ends.scale != "none":
            norm = norm * np.abs(np.asarray(inputs.operands["scale"], np.float64))
        dense = problem.p * problem.q * problem.stride[0] * problem.stride[1]
        allowed = FFT_CONSTANT * u * math.sqrt(fft_levels(problem)) * norm / math.sqrt(dense)
        # The epilogue adds roundings.
        largest = float(np.where(np.isfinite(magnitude), magnitude, 0).max(initial=0.0))
        return np.asarray(allowed + 4 * u * largest, np.float64)


def _largest(band: str, rms: Floats, allowed: Floats, note: str = "") -> Measured:
    worst = int(np.argmax(rms / np.maximum(allowed, np.finfo(np.float64).tiny)))
    return Measured(worst, band, float(rms[worst]), float(allowed[worst]), note)


def _worst(found: Iterable[Measured | None]) -> Measured | None:
    return max((each for each in found if each is not None), key=lambda each: each.ratio, default=None)


def _worst_channel(
    baseline: Baseline, band: Band, error: Floats, chosen: NDArray[np.bool_] | None, precision: str, apart: bool
) -> Measured | None:
    """Find the worst channel of a band; `apart` excludes the error component proportional to the output."""
    honest, reference = baseline.honest(band, precision, chosen), baseline.reference
    if not honest.outputs.any():
        return None
    along = honest.along
    squares = apart_from_scale(band, error, reference, along, chosen) if apart else band.sums(error**2, chosen)
    limits = _allowed(honest, precision, honest.independent, apart)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(squares > 0, squares / limits, 0)
    rounding = baseline.rounding
    notes = ["without what is proportional to the output"] * apart + [f"with {rounding}"] * bool(rounding)
    found: Measured | None = None
    for channel in np.argsort(-ratio):
        if found is not None and not ratio[channel] > 1:
            break
        limit = limits[channel]
        if ratio[channel] > 1:
            # Equal outputs have equal errors, so they count as one independent output.
            seen = np.broadcast_to(band.mask, reference.shape) if chosen is None else chosen & band.mask
            independent = np.minimum(honest.independent, np.unique(reference[:, channel][seen[:, channel]]).size)
            if apart and independent[channel] < ENOUGH:
                continue
            limit = _allowed(honest, precision, independent, apart)[channel]
        rms, allowed = (float(np.sqrt(sums / max(honest.outputs[channel], 1))) for sums in (squares[channel], limit))
        this = Measured(int(channel), band.name, rms, allowed, ", ".join(notes))
        if found is None or this.ratio > found.ratio:
            found = this
    return found


def _allowed(honest: Honest, precision: str, independent: Floats, apart: bool) -> Floats:
    """Allowed sum of squared errors per channel: the limit of the class, or more if few outputs fluctuate."""
    luck = 1 + np.sqrt(2 * RARE / np.maximum(independent, 1))
    total = np.zeros_like(honest.along)
    for style, squares, squares_apart in honest.squares:
        if style == "sequential":
            name = precision if precision in ALLOWED else "strict"
            factor, usual = ALLOWED[name], USUAL.get(name, ALLOWED[name] / 2)
        else:
            factor, usual = TENSOR[style]
        total += np.maximum(factor, usual * luck) ** 2 * (squares_apart if apart else squares)
    return total
