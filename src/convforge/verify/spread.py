"""How far a NaN or Inf in the picture reaches: as far as the method declares, and no further."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Plan
from convforge.problem import Problem
from convforge.problem.types import is_integer
from convforge.verify.bounds import error_bound
from convforge.verify.inputs import make_inputs, output_dtype
from convforge.verify.plans import upload_inputs
from convforge.verify.truth import truth
from convforge.verify.verdict import Verdict, reproduction, within

# A method that declares "tile" may carry a NaN this many outputs beyond the windows that hold it: no tile is larger.
TILE_REACH = 16


def check_nan_spread(plan: Plan, kind: str = "nan", seed: int = 0) -> Verdict:
    """Plant a NaN or an Inf in the middle of x, and look where it comes out.

    Outputs whose window holds it must not be finite where the truth is not. All others must be right, but for those
    that the method's `nan_spread` excuses: "tile", those within :data:`TILE_REACH`; "picture", those of its picture.

    Parameters
    ----------
    plan : Plan
        Of a problem of floats; integers hold no NaN, and pass.
    kind : {"nan", "inf"}
    seed : int
    """
    problem: Problem = plan.problem
    if is_integer(problem.input.dtype) or not problem.outputs:
        return Verdict(True, 0.0, 0.0, 0.0)
    inputs = make_inputs(problem, kind, seed)
    right = truth(problem, inputs)
    runtime, there = plan.runtime, upload_inputs(plan.runtime, inputs)
    out = runtime.upload(np.full(problem.out_shape, 7, output_dtype(problem)))
    plan(plan.buffers(there.x, plan.prepare(there.w), there.operands, out))
    got = runtime.download(out)

    bound = error_bound(problem, plan.algorithm.precision, right, inputs)
    good = within(problem, plan.algorithm.precision, got.astype(np.float64), right, bound)
    planted = ~np.isfinite(right.value)
    if not problem.multiplies:
        planted = np.isnan(right.value)
    wrong = ~good & ~(_excused(problem, plan.algorithm.nan_spread, planted) & ~planted)
    if not wrong.any():
        return Verdict(True, 0.0, 0.0, 0.0)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    fault = f"{kind} does not arrive" if planted[index] else f"{kind} spreads beyond {plan.algorithm.nan_spread!r}"
    message = (
        f"{plan.algorithm.name} [{plan.config}] {problem}: at {index} expected {float(right.value[index])!r}, got "
        f"{got[index].item()!r}; it declares nan_spread={plan.algorithm.nan_spread!r}\n  reproduce: "
        f"{reproduction(problem, inputs)}"
    )
    return Verdict(False, math.inf, math.inf, math.inf, fault, message)


def _excused(problem: Problem, spread: str, planted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Outputs that may be anything, given those that hold the NaN by definition."""
    excused = np.zeros_like(planted)
    if spread == "exact" or planted.ndim != 4:
        return excused
    layout = problem.results[0].layout
    seen: Any = excused if layout == "NCHW" else excused.transpose(0, 3, 1, 2)
    if spread == "picture":
        seen[0] = True
        return excused
    where = planted if layout == "NCHW" else planted.transpose(0, 3, 1, 2)
    rows, columns = np.flatnonzero(where.any(axis=(0, 1, 3))), np.flatnonzero(where.any(axis=(0, 1, 2)))
    if rows.size:
        seen[
            0,
            :,
            max(rows[0] - TILE_REACH, 0) : rows[-1] + TILE_REACH + 1,
            max(columns[0] - TILE_REACH, 0) : columns[-1] + TILE_REACH + 1,
        ] = True
    return excused
