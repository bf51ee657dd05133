"""The gate on RMS errors: per output channel, and apart for border rows, border columns and the inside.

An elementwise bound must admit the worst case, which no real data reach, and so admits arithmetic a thousand times
coarser than was promised. The gate compares with what one FMA after the other does on the same data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.check.bounds import ACTIVATION_ROUNDINGS, fft_energy, fft_levels, rounded, unit_roundoff
from convforge.check.inputs import Inputs
from convforge.check.truth import Floats, Truth, activate, conv2d_sums, gemm_sums, some_rows
from convforge.problem import Conv2dProblem, GemmProblem
from convforge.problem.types import is_integer

# Class -> how many times the sequential loop's RMS error is allowed. Measured here, on random normal data over bands of
# 40 outputs and more: direct rows 0.5 to 1.4 times, separable 0.6 to 2.2, F(2x2, 3x3) 0.6 to 5, F(4x4, 3x3) 2 to 30;
# the largest with a single channel, where a sequential sum of nine products hardly errs. TF32 is in the thousands.
ALLOWED: dict[str, float] = {"strict": 2.0, "separable": 6.0, "winograd": 32.0}

# The FFT's RMS error grows as u sqrt(log N) times the picture's norm (Gentleman and Sande, Fast Fourier transforms for
# fun and profit, AFIPS 1966; measured over many libraries at 0.3 to 0.8 u sqrt(log2 N), fftw.org/accuracy).
FFT_CONSTANT = 4.0

# ulp^2 / 12, the variance of a rounding error, over (u t)^2: its mean where mantissas are spread as Benford's law says.
ROUNDING_VARIANCE = 0.18

# The sequential loop is run on at most this many FLOPs' worth of output rows, border rows included.
SAMPLED_FLOPS = 2e8

# A false alarm has at most the probability exp(-RARE) for each channel and band.
RARE = 20.0


@dataclass(frozen=True, slots=True)
class Excess:
    """Where the gate was not passed: a channel, a band, its RMS error and what was allowed."""

    channel: int
    band: str
    rms: float
    allowed: float

    def __str__(self) -> str:
        return (
            f"RMS error {self.rms:.3g} of channel {self.channel}, {self.band}, is {self.rms / self.allowed:.3g} times "
            f"what is allowed ({self.allowed:.3g})"
        )


class Gate:
    """The gate of a problem on one set of inputs. What does not depend on a result is computed once.

    Notes
    -----
    In a band of few outputs an RMS error is a matter of luck. With m errors of equal variance it exceeds
    1 + sqrt(2 t / m) times its expectation with a probability of at most exp(-t) (B. Laurent and P. Massart, Adaptive
    estimation of a quadratic functional by model selection, Ann. Statist. 28, 2000, lemma 1).
    """

    def __init__(self, problem: Conv2dProblem | GemmProblem, inputs: Inputs, truth: Truth) -> None:
        self._problem, self._inputs, self._truth = problem, inputs, truth
        self._honest: dict[bool, list[_Honest]] = {}

    def excess(self, precision: str, got: NDArray[Any]) -> Excess | None:
        """The worst channel and band whose RMS error exceeds what the class allows; None if none does.

        Parameters
        ----------
        precision : str
            A class without a gate of its own (tf32, fp16, ...) always passes.
        got : array of the output's shape
        """
        problem = self._problem
        if not self._truth.value.size or (isinstance(problem, Conv2dProblem) and is_integer(problem.acc_dtype)):
            return None
        if precision == "fft" and isinstance(problem, Conv2dProblem):
            return _fft_excess(problem, got, self._truth, self._fft_allowed)
        if precision not in ALLOWED:
            return None
        sample = self._sample
        rows = got[sample.items] if isinstance(problem, GemmProblem) else some_rows(problem, got, sample.items)
        with np.errstate(invalid="ignore"):
            error = (rows.astype(np.float64).reshape(sample.reference.shape) - sample.reference) ** 2
        if self._passes(precision, error):
            return None
        return _worst(sample, precision, error)

    @cached_property
    def _sample(self) -> _Sample:
        problem, truth = self._problem, self._truth
        if isinstance(problem, GemmProblem):
            items = _sampled(problem.m, problem.flops, np.empty(0, np.int64))
            loops = [_sequential_gemm(problem, self._inputs, items, backward) for backward in (False, True)]
            reference = truth.value[items][:, None, :]
            bands: tuple[_Band, ...] = (_Band("inside", np.ones(items.size, bool), np.ones(problem.n, bool)),)
        else:
            items = _sampled(problem.n * problem.p, problem.flops, _edge_rows(problem))
            loops = [_sequential(problem, self._inputs, items, backward) for backward in (False, True)]
            reference = _clipped(some_rows(problem, truth.value, items), np.dtype(problem.out_dtype))
            bands = _bands(problem, items)
        # Of both orders, as on smooth or widely spread pixels one of them errs several times as much as the other.
        with np.errstate(invalid="ignore"):
            expected = np.mean([(baseline - reference) ** 2 for baseline, _ in loops], axis=0)
            variance = np.mean([theory for _, theory in loops], axis=0)
        return _Sample(items, reference, expected, variance, np.isfinite(expected) & np.isfinite(variance), bands)

    def _passes(self, precision: str, error: Floats) -> bool:
        """Whether all is finite and every band passes without a closer look: the usual case, and cheap to see."""
        sample, strict = self._sample, precision == "strict"
        if strict not in self._honest:
            self._honest[strict] = [_honest(sample, band, sample.known, strict) for band in sample.bands]
        if not (sample.known.all() and np.isfinite(error).all()):
            return False
        whole = error.sum(axis=2)
        for band, honest in zip(sample.bands, self._honest[strict], strict=True):
            sums = whole if band.columns.all() else error[:, :, band.columns].sum(axis=2)
            allowed = honest.squares * _allowed(ALLOWED[precision], honest.independent) ** 2
            if (sums[band.rows].sum(axis=0) > allowed).any():
                return False
        return True

    @cached_property
    def _fft_allowed(self) -> Floats:
        """The RMS error that is allowed in each picture and channel, shape (N, K)."""
        problem, inputs = self._problem, self._inputs
        assert isinstance(problem, Conv2dProblem)
        assert inputs.w is not None
        out = np.dtype(problem.out_dtype)
        # By Parseval the energy of an output channel is at most (sum over c of ||x_c|| ||w_kc||_1)^2.
        absolute = np.abs(inputs.w.astype(np.float64)).sum(axis=(2, 3))
        energy = np.sqrt(fft_energy(problem, inputs)).reshape(problem.n, problem.groups, -1)
        filters = absolute.reshape(problem.groups, problem.k_per_group, -1)
        norm = np.einsum("ngc,gkc->ngk", energy, filters).reshape(problem.n, problem.k)
        dense = problem.p * problem.q * problem.stride[0] * problem.stride[1]
        u = unit_roundoff(problem.acc_dtype)
        if problem.epilogue.scale != "none":
            norm = norm * np.abs(np.asarray(inputs.operands.scale, np.float64))
        magnitude = self._truth.magnitude
        largest = float(np.where(np.isfinite(magnitude), magnitude, 0).max(initial=0.0))
        # The epilogue and the rounding of the result come on top.
        result = 0.5 if out.kind != "f" else unit_roundoff(problem.out_dtype) * largest
        allowed = FFT_CONSTANT * u * math.sqrt(fft_levels(problem)) * norm / math.sqrt(dense)
        return np.asarray(allowed + 4 * u * largest + result, np.float64)


@dataclass(frozen=True, slots=True)
class _Band:
    """Outputs that are judged together: masks over the sampled rows and over the columns."""

    name: str
    rows: NDArray[np.bool_]
    columns: NDArray[np.bool_]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Both, shape (items, 1, Q)."""
        return (self.rows[:, None] & self.columns[None, :])[:, None, :]


@dataclass(frozen=True, slots=True)
class _Sample:
    """The output rows that are looked at, and how far one FMA after the other lies from the truth there.

    Attributes
    ----------
    items : array of int
    reference, expected, variance : array of float64, shape (items, K, Q)
        The truth; the sequential loop's squared errors, and the variance that theory expects of it: both the means of
        the loop from the first tap to the last and of that from the last to the first.
    known : array of bool
        Where the last two are finite.
    bands : tuple of _Band
    """

    items: NDArray[np.int64]
    reference: Floats
    expected: Floats
    variance: Floats
    known: NDArray[np.bool_]
    bands: tuple[_Band, ...]


@dataclass(frozen=True, slots=True)
class _Honest:
    """What a band's errors may be, by channel: outputs, sum of squares, and how many of them count as independent."""

    count: NDArray[np.int64]
    squares: Floats
    independent: Floats


def _honest(sample: _Sample, band: _Band, known: NDArray[np.bool_], strict: bool) -> _Honest:
    """The sums of an honest method over the outputs of a band that are `known`."""
    chosen = known & band.mask
    count = chosen.sum(axis=(0, 2))
    total = np.where(chosen, sample.variance, 0).sum(axis=(0, 2))
    squares = np.maximum(np.where(chosen, sample.expected, 0).sum(axis=(0, 2)), total)
    if not strict:
        # A tile's error follows the largest of its pixels: at a border, where windows hold fewer, it is the inside's.
        everywhere = np.where(known, np.maximum(sample.expected, sample.variance), 0).sum(axis=(0, 2))
        squares = np.maximum(squares, everywhere / np.maximum(known.sum(axis=(0, 2)), 1) * count)
    fourth = np.where(chosen, sample.variance**2, 0).sum(axis=(0, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        independent = np.where(fourth > 0, total**2 / fourth, count)
    return _Honest(count, squares, independent)


def _worst(sample: _Sample, precision: str, error: Floats) -> Excess | None:
    """The worst channel and band; errors that are not finite are left out, for the bound has judged them."""
    known = sample.known & np.isfinite(error)
    found: Excess | None = None
    for band in sample.bands:
        excess = _worst_channel(sample, band, known, precision, error)
        if excess and (not found or excess.rms / excess.allowed > found.rms / found.allowed):
            found = excess
    return found


def _worst_channel(
    sample: _Sample, band: _Band, known: NDArray[np.bool_], precision: str, error: Floats
) -> Excess | None:
    honest, chosen = _honest(sample, band, known, precision == "strict"), known & band.mask
    if not honest.count.any():
        return None
    factor = ALLOWED[precision]
    actual = np.where(chosen, error, 0).sum(axis=(0, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt(actual / (_allowed(factor, honest.independent) ** 2 * honest.squares))
    for channel in np.argsort(-np.nan_to_num(ratio, nan=0.0, posinf=np.inf)):
        if not ratio[channel] > 1:
            return None
        # Equal outputs have equal errors: they count once.
        values = np.unique(sample.reference[:, channel][chosen[:, channel]])
        lucky = _allowed(factor, np.minimum(honest.independent[channel], values.size))
        allowed = float(lucky * np.sqrt(honest.squares[channel] / honest.count[channel]))
        rms = float(np.sqrt(actual[channel] / honest.count[channel]))
        if rms > allowed:
            return Excess(int(channel), band.name, rms, allowed)
    return None


def _allowed(factor: float, independent: Any) -> Any:
    """How many times the honest RMS error: the class's factor, or what luck can do where a band has few outputs.

    An honest method's expectation is taken as half the factor, or sqrt(2) where products are rounded by themselves.
    """
    luck = 1 + np.sqrt(2 * RARE / np.maximum(independent, 1))
    return np.maximum(factor, max(factor / 2, math.sqrt(2)) * luck)


def _sequential_gemm(
    problem: GemmProblem, inputs: Inputs, items: NDArray[np.int64], backward: bool
) -> tuple[Floats, Floats]:
    """Rows of a product by one FMA after the other, and the variance that theory expects, shape (items, 1, N)."""
    sums, squares = gemm_sums(problem, inputs, items, "sequential", backward=backward)
    return sums[:, None, :], ROUNDING_VARIANCE * unit_roundoff(problem.dtype) ** 2 * squares[:, None, :]


def _sequential(
    problem: Conv2dProblem, inputs: Inputs, items: NDArray[np.int64], backward: bool
) -> tuple[Floats, Floats]:
    """Output rows by one FMA after the other, rounded to the output's type; and the variance that theory expects."""
    dtype = np.dtype(problem.acc_dtype)
    u = unit_roundoff(problem.acc_dtype)
    sums, squares = conv2d_sums(problem, inputs, items, "sequential", backward=backward)
    ends, operands = problem.epilogue, inputs.operands
    value: NDArray[Any] = sums.astype(dtype)
    variance = ROUNDING_VARIANCE * u * u * squares
    with np.errstate(all="ignore"):
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
        value = activate(value, ends.activation, ends.alpha).astype(np.float64)
        out = np.dtype(problem.out_dtype)
        if out.kind != "f":
            variance = variance + 1 / 12
        elif np.finfo(out).eps > np.finfo(dtype).eps:
            variance = variance + _rounding(value, unit_roundoff(problem.out_dtype))
        return rounded(value, out), variance


def _rounding(value: NDArray[Any], u: float) -> Floats:
    return ROUNDING_VARIANCE * u * u * value.astype(np.float64) ** 2


def _clipped(values: Floats, dtype: np.dtype[Any]) -> Floats:
    """Saturation is no error."""
    if dtype.kind == "f":
        return values
    return np.clip(values, float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))


def _edge_rows(problem: Conv2dProblem) -> NDArray[np.int64]:
    """Border rows of the first and the last picture, at most eight of each edge."""
    border = np.flatnonzero(border_of(problem)[0])
    few = np.unique(np.concatenate([border[:8], border[-8:]]))
    last = (problem.n - 1) * problem.p
    return np.unique(np.concatenate([few, few + last]))


def _sampled(rows: int, flops: int, always: NDArray[np.int64]) -> NDArray[np.int64]:
    """All rows of a small problem; of a large one those given, and others evenly spread."""
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


def _bands(problem: Conv2dProblem, items: NDArray[np.int64]) -> tuple[_Band, ...]:
    rows, columns = border_of(problem)
    row, every = rows[items % problem.p], np.ones_like(columns)
    return (_Band("inside", ~row, ~columns), _Band("border rows", row, every), _Band("border columns", ~row, columns))


def _fft_excess(problem: Conv2dProblem, got: NDArray[Any], truth: Truth, allowed: Floats) -> Excess | None:
    """The FFT spreads its error over the whole picture: one RMS for each picture and channel, (N, K) are allowed."""
    out, axes = np.dtype(problem.out_dtype), (1, 2) if problem.out_layout == "NCHW" else (0, 1)
    rms = np.empty_like(allowed)
    for n in range(problem.n):
        with np.errstate(invalid="ignore"):
            squares = (got[n].astype(np.float64) - _clipped(truth.value[n], out)) ** 2
        finite = np.isfinite(squares)
        count = np.maximum(finite.sum(axis=axes), 1)
        rms[n] = np.sqrt(np.where(finite, squares, 0).sum(axis=axes) / count)
    ratio = rms / np.maximum(allowed, np.finfo(np.float64).tiny)
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    if not ratio[worst] > 1:
        return None
    return Excess(int(worst[1]), f"picture {worst[0]}", float(rms[worst]), float(allowed[worst]))
