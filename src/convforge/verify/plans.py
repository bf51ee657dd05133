"""Check a plan: poisoned outputs, guard bands, other inputs, outputs with gaps, and how far a NaN spreads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Plan, PreparedFilter
from convforge.backends.runtime import Runtime, upload_weights
from convforge.problem import Conv2dProblem, Problem
from convforge.problem.types import is_integer
from convforge.verify.amax import amax_fault, has_amax
from convforge.verify.bounds import error_bound
from convforge.verify.host_memory import holds, same
from convforge.verify.inputs import Inputs, make_inputs, output_dtype
from convforge.verify.rows import only_border
from convforge.verify.truth import truth
from convforge.verify.verdict import RIGHT, Judge, Verdict, reproduction, within

# Two fill bytes (poisons) for outputs: a float of the first is NaN, of the second a number; as integers they differ.
POISONS = (0xFF, 0x5A)

# Bytes before and after an output or a workspace that must not change: more than a plane of a small image, so that a
# kernel that continues into the next plane is detected before it damages the process.
GUARD = 1 << 16

# Above this many FLOPs, the run on other inputs is compared only with the run on the first inputs, not with a truth.
SECOND_TRUTH_FLOPS = 100_000_000

# Largest tile: a method with nan_spread "tile" may spread a NaN this many outputs beyond the windows that contain it.
TILE_REACH = 16


def check_plan(plan: Plan, judge: Judge | None = None, prepared: PreparedFilter | None = None) -> Verdict:
    """Run a plan several times and compare it with the truth; the verdict is that of the first run or failure.

    Two poisons reveal output elements that are not written; guard bands reveal writes outside output and workspace.
    The runs use: the judge's inputs, twice; other inputs, to reveal a plan that returns an earlier result; the judge's
    inputs again, with an output that has gaps between its elements. The inputs must not change.

    Parameters
    ----------
    plan : Plan
    judge : Judge, optional
        Checker for the plan's problem, with the inputs; by default, with random normal inputs.
    prepared : PreparedFilter, optional
        The judge's weights after `plan.prepare`; by default, the plan prepares them.
    """
    judge = judge or Judge(plan.problem, make_inputs(plan.problem))
    right: Verdict | None = None
    for verdict in _Check(plan, judge).verdicts(prepared):
        if not verdict.ok:
            return verdict
        right = right or verdict
    return right or RIGHT


def check_nan_spread(plan: Plan, kind: str = "nan", seed: int = 0) -> Verdict:
    """Plant a NaN or an Inf (`kind` "nan" or "inf") in the middle of x, and check which outputs it reaches.

    An output must not be finite where the truth is not. All other outputs must be correct, unless the method's
    `nan_spread` exempts them: "tile" those within :data:`TILE_REACH`, "image" those of the same image. Integer plans
    pass.
    """
    problem: Problem = plan.problem
    if is_integer(problem.input.dtype) or not problem.outputs:
        return RIGHT
    inputs = make_inputs(problem, kind, seed)
    right = truth(problem, inputs)
    runtime, there = plan.runtime, upload_inputs(plan.runtime, inputs)
    out = runtime.upload(np.full(problem.out_shape, 7, output_dtype(problem)))
    plan(plan.buffers(there.x, plan.prepare(there.w), there.operands, out))
    got = runtime.download(out)

    precision, spread = plan.algorithm.precision, plan.algorithm.nan_spread
    if has_amax(problem):
        amax = float(runtime.download(there.operands["amax"]))
        if fault := amax_fault(problem, precision, right, inputs, got, amax):
            return _failed(plan, inputs, "wrong amax", fault)
    bound = error_bound(problem, precision, right, inputs)
    good = within(problem, precision, got.astype(np.float64), right, bound)
    planted = ~np.isfinite(right.value) if problem.multiplies else np.isnan(right.value)
    wrong = ~good & ~(_excused(problem, spread, planted) & ~planted)
    if not wrong.any():
        return RIGHT
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    fault = f"{kind} does not arrive" if planted[index] else f"{kind} spreads beyond {spread!r}"
    values = f"expected {float(right.value[index])!r}, got {got[index].item()!r}"
    return _failed(plan, inputs, fault, f"at {index} {values}; it declares nan_spread={spread!r}")


def upload_inputs(runtime: Runtime, inputs: Inputs, layout: str = "") -> Inputs:
    """Copy the inputs of a call to a device; `layout` is the layout of the weights."""
    w = None if inputs.w is None else upload_weights(runtime, inputs.w, layout)
    operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    return dataclasses.replace(inputs, x=runtime.upload(inputs.x), w=w, operands=operands)


def _failed(plan: Plan, inputs: Inputs, fault: str, detail: str = "") -> Verdict:
    message = f"{plan.algorithm.name} [{plan.config}] {plan.problem}: {detail or fault}"
    message += f"\n  looks like: {fault}\n  reproduce: {reproduction(plan.problem, inputs)}"
    return Verdict(False, math.inf, math.inf, math.inf, fault, message)


class _Check:
    """Run a plan into poisoned buffers on its device, with guard bands around them."""

    def __init__(self, plan: Plan, judge: Judge) -> None:
        self.plan, self.judge, self.runtime, self.memory = plan, judge, plan.runtime, judge.memory
        self.shape, self.dtype = plan.problem.out_shape, output_dtype(plan.problem)
        self._guards: list[tuple[str, Any, int]] = []
        self._gap_written = False
        self._amax: float | None = None  # of the last call

    def verdicts(self, prepared: PreparedFilter | None) -> Iterator[Verdict]:
        """Yield the verdict on each run in turn, and failures that are found between runs."""
        plan, problem, judge = self.plan, self.plan.problem, self.judge
        there = self._uploaded(judge.inputs)
        prepared = plan.prepare(there.w) if prepared is None else prepared
        first = self._run(there, prepared, POISONS[0], "first")
        amax = self._amax
        again = self._run(there, prepared, POISONS[1], "again")
        if self._amax != amax and not (amax is not None and math.isnan(amax)):
            yield _failed(plan, judge.inputs, "wrong amax", f"amax is {amax!r}, and in the next call {self._amax!r}")
        if stray := self._outside():
            yield _failed(plan, judge.inputs, stray)
        if (unwritten := holds(first, POISONS[0]) & holds(again, POISONS[1])).any():
            index = tuple(int(i) for i in np.argwhere(unwritten)[0])
            at_border = isinstance(problem, Conv2dProblem) and only_border(problem, unwritten)
            fault = "border skipped: output not written there" if at_border else "output not written"
            count = f"{int(unwritten.sum())} of {unwritten.size} outputs"
            yield _failed(plan, judge.inputs, fault, f"{count}, the first at {index}, are not written")
        held, given = ({"x": i.x, "w": i.w, **i.operands} for i in (there, judge.inputs))
        read = {name: array for name, array in given.items() if array is not None and name != "amax"}
        arrays = ((n, self.memory.bring(self.runtime, held[n], "gaps"), b) for n, b in read.items())
        if changed := [name for name, a, b in arrays if not same(a, b)]:
            yield _failed(plan, judge.inputs, "input modified", f"{', '.join(changed)} changed")
        yield self._judged(first, judge, amax)
        if not same(first, again):
            yield self._judged(again, judge, self._amax)

        others = judge.other_inputs
        there_too = self._uploaded(others)
        result = self._run(there_too, plan.prepare(there_too.w), POISONS[0], "again")
        is_stale, stale = same(result, first), ("stale result", "other inputs gave the result of the call before")
        if problem.flops <= SECOND_TRUTH_FLOPS:
            verdict = self._judged(result, judge.other, self._amax)
            if not verdict.ok and is_stale and not np.array_equal(judge.truth.value, judge.other.truth.value):
                verdict = _failed(plan, others, *stale)
            yield verdict
        elif others.kind in ("normal", "integers") and is_stale:
            yield _failed(plan, others, *stale)

        if plan.takes_gaps:
            with_gaps = self._run_with_gaps(there, prepared, POISONS[1])
            where = "with an output that has gaps between its elements"
            if stray := self._outside():
                yield _failed(plan, judge.inputs, stray, where)
            if not same(first, with_gaps):
                verdict = self._judged(with_gaps, judge, self._amax)
                yield dataclasses.replace(verdict, message=f"{verdict.message}\n  {where}")

    def _judged(self, got: NDArray[Any], judge: Judge, amax: float | None) -> Verdict:
        precision = self.plan.algorithm.precision
        verdict = judge.verdict(precision, got)
        fault = None
        if verdict.ok and amax is not None:
            fault = amax_fault(judge.problem, precision, judge.truth, judge.inputs, got, amax)
        if fault is not None:
            return _failed(self.plan, judge.inputs, "wrong amax", fault)
        message = f"{self.plan.algorithm.name} [{self.plan.config}] {verdict.message}"
        return verdict if verdict.ok else dataclasses.replace(verdict, message=message)

    def _uploaded(self, inputs: Inputs) -> Inputs:
        weights = self.plan.problem.weights
        return upload_inputs(self.runtime, inputs, weights.layout if weights else "")

    def _run(self, inputs: Inputs, prepared: PreparedFilter, poison: int, piece: str) -> NDArray[Any]:
        """Call the plan and download the output into the host buffer `piece`."""
        inner = self._guarded("output", math.prod(self.shape) * self.dtype.itemsize, poison)
        out = inner.view(self.dtype).reshape(self.shape)
        self._call(inputs, prepared, out, poison)
        return self.memory.bring(self.runtime, out, piece)

    def _run_with_gaps(self, inputs: Inputs, prepared: PreparedFilter, poison: int) -> NDArray[Any]:
        """Call the plan into every second column of an array with longer rows; return a contiguous copy."""
        padded = (*self.shape[:-1], 2 * self.shape[-1] + 3)
        inner = self._guarded("output", math.prod(padded) * self.dtype.itemsize, poison)
        whole = inner.view(self.dtype).reshape(padded)
        last = 2 * self.shape[-1]
        self._call(inputs, prepared, whole[..., 1:last:2], poison)
        written = self.memory.bring(self.runtime, whole, "gaps")
        self._gap_written |= not (
            holds(written[..., ::2], poison).all() and holds(written[..., last + 1], poison).all()
        )
        return self.memory.copy(written[..., 1:last:2], "again")

    def _call(self, inputs: Inputs, prepared: PreparedFilter, out: Any, poison: int) -> None:
        nbytes = self.plan.workspace_bytes
        workspace = self._guarded("workspace", nbytes, poison) if nbytes else None
        self.plan(self.plan.buffers(inputs.x, prepared, inputs.operands, out, workspace))
        self.runtime.synchronize()
        if has_amax(self.plan.problem):
            self._amax = float(self.runtime.download(inputs.operands["amax"]))

    def _guarded(self, name: str, nbytes: int, poison: int) -> Any:
        raw = self.runtime.allocate(nbytes + 2 * GUARD)
        self.runtime.fill(raw, poison)
        self._guards += [(name, raw[:GUARD], poison), (name, raw[GUARD + nbytes :], poison)]
        return raw[GUARD : GUARD + nbytes]

    def _outside(self) -> str | None:
        """Name the fault if a guard band was overwritten; forget all guard bands."""
        guards, self._guards = self._guards, []
        for name, band, poison in guards:
            if not holds(self.runtime.download(band), poison).all():
                return f"writes outside its {name}"
        return "writes outside its output" if self._gap_written else None


def _excused(problem: Problem, spread: str, planted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of outputs that may have any value; `planted` marks the outputs that hold the NaN by definition."""
    excused = np.zeros_like(planted)
    if spread == "exact" or planted.ndim != 4:
        return excused
    order = (0, 1, 2, 3) if problem.results[0].layout == "NCHW" else (0, 3, 1, 2)
    seen, where = excused.transpose(order), planted.transpose(order)
    if spread == "image":
        seen[0] = True
        return excused
    rows, columns = np.flatnonzero(where.any(axis=(0, 1, 3))), np.flatnonzero(where.any(axis=(0, 1, 2)))
    if rows.size:
        top, left = max(rows[0] - TILE_REACH, 0), max(columns[0] - TILE_REACH, 0)
        seen[0, :, top : rows[-1] + TILE_REACH + 1, left : columns[-1] + TILE_REACH + 1] = True
    return excused
