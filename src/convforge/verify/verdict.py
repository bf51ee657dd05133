"""Verdict on a result: correct or not, its errors, the name of its fault, and a line that reproduces the inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import Runtime
from convforge.problem import Problem
from convforge.problem.types import finfo, is_integer, limits
from convforge.verify.bounds import EXACT, Bound, bound_of, error_bound, half_spacing, rounded, within_range
from convforge.verify.gate import Gate
from convforge.verify.host_memory import HostMemory
from convforge.verify.inputs import Inputs, make_inputs, output_dtype
from convforge.verify.rows import rows_of
from convforge.verify.truth import Floats, Truth, launch
from convforge.verify.truth import truth as compute_truth

# Fewest outputs for which the compiled pass of scans.py is worth its compile time.
LARGE = 1 << 21

Figures = tuple[float, float, float]  # relative RMS error, largest error, largest error / bound


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check."""

    ok: bool
    rms: float  # RMS error / RMS of the truth; Inf if an output is not finite but should be
    max_error: float  # absolute
    bound_ratio: float  # largest error / bound, with the result's rounding in the bound; > 1 if an output exceeds it
    fault: str | None = None  # name of the fault, such as "flipped filter"
    message: str = ""  # index, expected and got, and the line that reproduces it


RIGHT = Verdict(True, 0.0, 0.0, 0.0)


class Judge:
    """Checker of results on one set of inputs; computes the truth once if it is not given, perhaps on a GPU."""

    def __init__(
        self, problem: Problem, inputs: Inputs, truth: Truth | None = None, runtime: Runtime | None = None
    ) -> None:
        self.problem, self.inputs, self._runtime = problem, inputs, runtime
        self.memory = HostMemory()
        self.truth = compute_truth(problem, inputs, runtime) if truth is None else truth
        self._dtype = output_dtype(problem)
        self._bounds: dict[str, Bound] = {}  # of large results: for "strict" and the last class
        self.gate = Gate(problem, inputs, self.truth) if problem.multiplies else None  # None: no products

    @cached_property
    def other_inputs(self) -> Inputs:
        """Inputs of the same kind with other numbers; they reveal a plan that returns an earlier result again.

        If all channels share one filter, they still do. Float weights that were chosen for their rank keep this rank.
        Some methods accept no other weights.
        """
        kind, seed = "normal" if self.inputs.kind == "given" else self.inputs.kind, self.inputs.seed + 1
        others, w = make_inputs(self.problem, kind, seed), self.inputs.w
        if w is not None and others.w is not None and w.ndim == 4 and w.size:
            if self.inputs.own_weights and not is_integer(others.w.dtype.name):
                rng = np.random.default_rng(seed)  # scale rows and columns, equally in all filters
                others.w[...] = rng.uniform(0.5, 1.5, (w.shape[2], 1)) * rng.uniform(0.5, 1.5, w.shape[3]) * w
            elif (w == w[:1, :1]).all():
                others.w[...] = others.w[:1, :1].copy()
        return others

    @cached_property
    def other(self) -> Judge:
        return Judge(self.problem, self.other_inputs, runtime=self._runtime)

    def verdict(self, precision: str, got: NDArray[Any]) -> Verdict:
        """Compare a result of the output's shape, layout and type with the truth.

        Every element must be between truth - bound and truth + bound, both rounded to the output's dtype. Then the RMS
        errors must pass the gate of the class `precision`, a key of :data:`convforge.problem.PRECISIONS`.
        """
        shape = self.problem.out_shape
        if got.shape != shape or got.dtype != self._dtype:
            message = f"{self.problem}: got {got.dtype}{list(got.shape)}, expected {self._dtype}{list(shape)}"
            return Verdict(False, math.inf, math.inf, math.inf, "wrong shape or type", message)
        if not got.size:
            return RIGHT
        figures = self._scanned(precision, got) if got.size >= LARGE else None
        if figures is not None and (self.gate is None or self.gate.excess(precision, got) is None):
            return Verdict(True, *figures)
        return self._in_full(precision, got)

    def _scanned(self, precision: str, got: NDArray[Any]) -> Figures | None:
        """Compute the figures of a large correct result; None if only :meth:`_in_full` can decide about it."""
        if precision not in self._bounds:
            bound = bound_of(self.problem, precision, self.truth, self.inputs)
            if bound.more is not None:
                bound = bound._replace(more=np.broadcast_to(bound.more, got.shape).copy())
            self._bounds = {name: kept for name, kept in self._bounds.items() if name == "strict"} | {precision: bound}
        return _scan(got, self.truth, self._bounds[precision], _largest_sum(self.problem))

    def near_enough(self, precision: str, got: NDArray[Any]) -> NDArray[np.bool_]:
        bound = error_bound(self.problem, precision, self.truth, self.inputs)
        return within(self.problem, precision, got.astype(np.float64), self.truth, bound)

    def _in_full(self, precision: str, got: NDArray[Any]) -> Verdict:
        """Compute the verdict on a result of any size, correct or wrong, also with infinities and NaNs."""
        problem, truth = self.problem, self.truth
        bound = error_bound(problem, precision, truth, self.inputs)
        values = got.astype(np.float64)
        good = within(problem, precision, values, truth, bound)
        errors = _errors(values, truth, got.dtype)
        figures = _figures(errors, truth, bound, good, got.dtype)
        excess = self.gate.excess(precision, got) if self.gate is not None and good.all() else None
        if good.all() and excess is None:
            return Verdict(True, *figures)
        from convforge.verify.faults import name_fault

        fault = name_fault(problem, got, truth, self.inputs)
        if excess is not None:
            good = ~rows_of(problem).outputs_in(excess.band, excess.channel)
        index = _worst(errors, good)
        where = f"{problem}: at {index} expected {float(truth.value[index])!r}, got {values[index].item()!r}"
        count = f"{int((~good).sum())} of {good.size} outputs break the bound" if excess is None else str(excess)
        message = f"{where}; {count}\n  looks like: {fault}\n  reproduce: {reproduction(problem, self.inputs)}"
        return Verdict(False, *figures, fault, message)


def compare(problem: Problem, precision: str, got: NDArray[Any], truth: Truth, inputs: Inputs) -> Verdict:
    """Compare one result with the truth.

    Examples
    --------
    >>> from convforge.verify import make_inputs, truth
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n1c2h8w9_k3r3s3_p1_f32_nchw")
    >>> inputs = make_inputs(problem)
    >>> right = truth(problem, inputs)
    >>> compare(problem, "strict", right.value.astype("float32"), right, inputs).ok
    True
    >>> compare(problem, "strict", 1.001 * right.value.astype("float32"), right, inputs).fault
    'scaled by a constant: 1.001'
    """
    return Judge(problem, inputs, truth).verdict(precision, got)


def reproduction(problem: Problem, inputs: Inputs) -> str:
    """Line of Python that makes the same inputs."""
    if inputs.kind == "given":
        return f'parse_problem("{problem}") with the inputs that were given'
    return f'make_inputs(parse_problem("{problem}"), "{inputs.kind}", seed={inputs.seed})'


def _scan(got: NDArray[Any], truth: Truth, bound: Bound, largest_sum: float) -> Figures | None:
    """Compute the figures of a result in a compiled pass; None if an element exceeds its bound or is not finite."""
    from convforge.verify import scans

    more = np.empty(0) if bound.more is None else bound.more
    flat, value, magnitude, more = (np.ascontiguousarray(a).reshape(-1) for a in (got, *truth, more))
    if is_integer(got.dtype.name):
        form, rounding = (0, 0, *map(float, limits(got.dtype.name))), (0.0, 0.5)
    else:
        info = finfo(got.dtype)
        form = (int(info.nmant), int(info.minexp), -float(info.max), float(info.max))
        rounding = (float(info.eps) / 2, float(info.smallest_subnormal))
        flat = flat.astype(np.float32) if got.itemsize == 2 else flat
    figures = np.empty((-(-flat.size // scans.BLOCK), 4))
    args = (flat, value, magnitude, more, float(bound.factor), float(bound.constant), largest_sum, form, *rounding)
    launch(scans.compare, len(figures), flat.size, (*args, figures))
    squares, size = (float(total) for total in figures[:, :2].sum(axis=0))
    if np.isnan(squares):
        return None
    return math.sqrt(squares / flat.size) / _size(size, flat.size), *map(float, figures[:, 2:].max(axis=0))  # type: ignore[return-value]


def warm_up(problem: Problem) -> None:
    """Compile the pass that compares results of a large problem; this takes seconds, once per machine."""
    if problem.outputs >= LARGE:
        few = np.ones(1)
        _scan(few.astype(output_dtype(problem)), Truth(few, few), EXACT, math.inf)


def _size(squares: float, count: int) -> float:
    """RMS of values from their sum of squares; 1 if all are 0, which makes relative errors absolute."""
    return math.sqrt(squares / count) or 1.0


def _largest_sum(problem: Problem) -> float:
    """Largest magnitude that cannot overflow; above it, overflow depends on the order of summation."""
    overflows = problem.multiplies and not is_integer(problem.acc_dtype)
    return float(np.finfo(problem.acc_dtype).max) if overflows else math.inf


def within(problem: Problem, precision: str, values: Floats, truth: Truth, bound: Floats) -> NDArray[np.bool_]:
    dtype = output_dtype(problem)
    expected = truth.value
    with np.errstate(invalid="ignore", over="ignore"):
        good = (rounded(expected - bound, dtype) <= values) & (values <= rounded(expected + bound, dtype))
    finite = np.isfinite(expected)
    if not finite.all():
        # Strict arithmetic keeps Inf and NaN distinct; the other classes may turn an Inf into a NaN.
        same = ~np.isfinite(values)
        if precision == "strict" or is_integer(dtype.name):
            right = rounded(expected, dtype)
            same = (values == right) | (np.isnan(values) & np.isnan(right))
        good = np.where(finite, good, same)
    return np.asarray(good | (truth.magnitude > _largest_sum(problem)) & finite & ~np.isfinite(values))


def _errors(values: Floats, truth: Truth, dtype: np.dtype[Any]) -> Floats:
    """Absolute errors; 0 where the truth is not finite, or exceeds the dtype's range and the result is the same Inf."""
    expected = within_range(truth.value, dtype)
    reached = rounded(expected, dtype)
    with np.errstate(invalid="ignore"):
        errors = np.abs(values - expected)
    same = (values == reached) & ~np.isfinite(reached) | (np.isnan(values) & np.isnan(expected))
    return np.where(same | ~np.isfinite(expected), 0.0, np.where(np.isnan(errors), np.inf, errors))


def _figures(errors: Floats, truth: Truth, bound: Floats, good: NDArray[np.bool_], dtype: np.dtype[Any]) -> Figures:
    finite = np.where(np.isfinite(truth.value), truth.value, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        rms = float(np.sqrt(np.mean(errors**2))) / _size(float(np.sum(finite**2)), finite.size)
        slack = np.where(np.isfinite(bound), bound, np.inf) + half_spacing(finite, dtype)
        ratio = float(np.max(errors / slack))
    if not good.all():
        ratio = max(ratio, math.nextafter(1.0, 2.0))
    return rms, float(errors.max()), ratio


def _worst(errors: Floats, good: NDArray[np.bool_]) -> tuple[int, ...]:
    score = np.where(np.isfinite(errors), errors, np.finfo(np.float64).max)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(good, -1.0, score))), good.shape))
