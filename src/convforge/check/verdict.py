"""The verdict on a result: right or not, by how much, what the fault looks like, and the line that reproduces it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.check.bounds import error_bound, half_spacing, rounded
from convforge.check.gate import gate
from convforge.check.inputs import Inputs, output_dtype, output_shape
from convforge.check.truth import Floats, Truth
from convforge.problem import Conv2dProblem, GemmProblem, Problem
from convforge.problem.types import is_integer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check found.

    Attributes
    ----------
    ok : bool
    rms : float
        RMS error over the RMS of the truth; Inf where a finite number should stand and none does.
    max_error : float
        Largest absolute error.
    bound_ratio : float
        Largest error over its elementwise bound, rounding of the result included; above 1 where the bound is broken.
    fault : str or None
        What the wrong result looks like, such as "flipped filter"; None if it is right.
    message : str
        Index, expected and got, and the line that reproduces it; empty if it is right.
    """

    ok: bool
    rms: float
    max_error: float
    bound_ratio: float
    fault: str | None = None
    message: str = ""


def compare(problem: Problem, precision: str, got: NDArray[Any], truth: Truth, inputs: Inputs) -> Verdict:
    """Hold a result against the truth.

    Every element must lie between the truth less its bound and the truth plus its bound, both rounded to the output's
    type: with a bound of zero it must be the correctly rounded truth. Then the RMS errors must pass the class's gate.

    Parameters
    ----------
    problem : Problem
    precision : str
        Class of the arithmetic that computed `got`: a key of :data:`convforge.problem.PRECISIONS`.
    got : array of the output's shape, in its physical layout and type
    truth : Truth
    inputs : Inputs
        What both were computed from.

    Examples
    --------
    >>> from convforge.check import make_inputs, truth
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n1c2h8w9_k3r3s3_p1_f32_nchw")
    >>> inputs = make_inputs(problem)
    >>> right = truth(problem, inputs)
    >>> compare(problem, "strict", right.value.astype("float32"), right, inputs).ok
    True
    >>> compare(problem, "strict", 1.001 * right.value.astype("float32"), right, inputs).fault
    'scaled by a constant: 1.001'
    """
    if got.shape != output_shape(problem) or got.dtype != output_dtype(problem):
        return Verdict(False, math.inf, math.inf, math.inf, "wrong shape or type",
                       f"{problem}: got {got.dtype}{list(got.shape)}, expected {output_dtype(problem)}"
                       f"{list(output_shape(problem))}")  # fmt: skip
    if not got.size:
        return Verdict(True, 0.0, 0.0, 0.0)
    bound = error_bound(problem, precision, truth, inputs)
    values = got.astype(np.float64)
    good = within(problem, precision, values, truth, bound)
    errors = _errors(values, truth, got.dtype)
    rms, max_error, ratio = _figures(errors, truth, bound, good, got.dtype)
    excess = None
    if good.all() and isinstance(problem, (Conv2dProblem, GemmProblem)):
        excess = gate(problem, precision, got, truth, inputs)
    if good.all() and excess is None:
        return Verdict(True, rms, max_error, ratio)
    from convforge.check.faults import name_fault

    fault = name_fault(problem, got, truth, inputs)
    index = _worst(errors, bound, good)
    where = f"{problem}: at {index} expected {float(truth.value[index])!r}, got {values[index].item()!r}"
    count = f"{int((~good).sum())} of {good.size} outputs break the bound" if excess is None else str(excess)
    message = f"{where}; {count}\n  looks like: {fault}\n  reproduce: {reproduction(problem, inputs)}"
    return Verdict(False, rms, max_error, ratio, fault, message)


def reproduction(problem: Problem, inputs: Inputs) -> str:
    """The line of Python that makes the same inputs again."""
    if inputs.kind == "given":
        return f'parse_problem("{problem}") with the inputs that were given'
    return f'make_inputs(parse_problem("{problem}"), "{inputs.kind}", seed={inputs.seed})'


def within(problem: Problem, precision: str, values: Floats, truth: Truth, bound: Floats) -> NDArray[np.bool_]:
    """Which elements are as near the truth as they must be."""
    dtype = output_dtype(problem)
    expected = truth.value
    with np.errstate(invalid="ignore"):
        good = (rounded(expected - bound, dtype) <= values) & (values <= rounded(expected + bound, dtype))
    finite = np.isfinite(expected)
    if not finite.all():
        # A class that keeps Inf and NaN must say which; the others may turn an Inf into a NaN.
        if precision == "strict" or dtype.kind != "f":
            right = rounded(expected, dtype)
            same = (values == right) | (np.isnan(values) & np.isnan(right))
        else:
            same = ~np.isfinite(values)
        good = np.where(finite, good, same)
    sums = problem.acc_dtype if isinstance(problem, Conv2dProblem) else dtype.name
    if not is_integer(sums) and isinstance(problem, (Conv2dProblem, GemmProblem)):
        # Partial sums that overflow may do so in one order of summation and not in another.
        overflow = truth.magnitude > float(np.finfo(sums).max)
        good |= overflow & finite & ~np.isfinite(values)
    return good


def _errors(values: Floats, truth: Truth, dtype: np.dtype[Any]) -> Floats:
    """Absolute errors; 0 where both are the same Inf or NaN, or where the truth is beyond the type's range."""
    expected = truth.value
    if dtype.kind != "f":
        expected = np.clip(expected, float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))
    reached = rounded(expected, dtype)
    with np.errstate(invalid="ignore"):
        errors = np.abs(values - expected)
    same = (values == reached) & ~np.isfinite(reached) | (np.isnan(values) & np.isnan(expected))
    return np.where(same | ~np.isfinite(expected), 0.0, np.where(np.isnan(errors), np.inf, errors))


def _figures(
    errors: Floats, truth: Truth, bound: Floats, good: NDArray[np.bool_], dtype: np.dtype[Any]
) -> tuple[float, float, float]:
    """Relative RMS error, largest error, largest ratio to the bound."""
    finite = np.where(np.isfinite(truth.value), truth.value, 0.0)
    size = float(np.sqrt(np.mean(finite**2)))
    rms = float(np.sqrt(np.mean(errors**2))) / (size if size > 0 else 1.0)
    slack = np.where(np.isfinite(bound), bound, np.inf) + half_spacing(finite, dtype)
    ratio = float(np.max(errors / slack))
    if not good.all():
        ratio = max(ratio, math.nextafter(1.0, 2.0))
    return rms, float(errors.max()), ratio


def _worst(errors: Floats, bound: Floats, good: NDArray[np.bool_]) -> tuple[int, ...]:
    """Index of the wrong element with the largest error; of any element where only the gate was not passed."""
    score = np.where(np.isfinite(errors), errors, np.finfo(np.float64).max)
    if not good.all():
        score = np.where(good, -1.0, score)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(score)), good.shape))
