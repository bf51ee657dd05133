"""Checks of a plan: poisoned outputs, guard bands, other inputs, awkward strides, and how far a NaN spreads."""

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
from convforge.verify.bounds import error_bound
from convforge.verify.host_memory import HostMemory, holds, same
from convforge.verify.inputs import Inputs, make_inputs, output_dtype
from convforge.verify.rows import only_border
from convforge.verify.truth import truth
from convforge.verify.verdict import RIGHT, Judge, Verdict, reproduction, within

# Two poisons, byte by byte: as floats, the first is a NaN and the second a number; as integers they differ.
POISONS = (0xFF, 0x5A)

# Bytes on either side of an output or a workspace that must not change: more than a plane of a small image, so that a
# kernel which continues into the next plane is found before it harms the process.
GUARD = 1 << 16

# Beyond this many FLOPs the run on other inputs is only compared with the run on the first.
SECOND_TRUTH_FLOPS = 100_000_000

# A method that declares "tile" may carry a NaN this many outputs beyond the windows that hold it: no tile is larger.
TILE_REACH = 16


def check_plan(plan: Plan, judge: Judge | None = None, prepared: PreparedFilter | None = None) -> Verdict:
    """Run a plan several times and compare it with the truth; the verdict is that of the first run or failure.

    Two poisons of the output show unwritten elements; guard bands around output and workspace show writes outside of
    them. The runs are: the inputs, twice; other inputs, for which a stored result is wrong; the first again, into an
    output with gaps. The inputs must not change.

    Parameters
    ----------
    plan : Plan
    judge : Judge, optional
        Judges the plan's problem and holds the inputs; by default, random normal ones.
    prepared : PreparedFilter, optional
        Of the judge's weights; by default, the plan prepares them.
    """
    problem: Problem = plan.problem
    judge = judge or Judge(problem, make_inputs(problem))
    inputs, bench = judge.inputs, _Bench(plan, judge.memory)
    there = bench.upload(inputs)
    prepared = plan.prepare(there.w) if prepared is None else prepared

    first = bench.run(there, prepared, POISONS[0], "first")
    again = bench.run(there, prepared, POISONS[1], "again")
    if stray := bench.outside():
        return _failed(plan, inputs, stray)
    if (unwritten := holds(first, POISONS[0]) & holds(again, POISONS[1])).any():
        index = tuple(int(i) for i in np.argwhere(unwritten)[0])
        at_border = isinstance(problem, Conv2dProblem) and only_border(problem, unwritten)
        fault = "border skipped: output not written there" if at_border else "output not written"
        count = f"{int(unwritten.sum())} of {unwritten.size} outputs"
        return _failed(plan, inputs, fault, f"{count}, the first at {index}, are not written")
    if names := bench.changed(there, inputs):
        return _failed(plan, inputs, "input modified", f"{', '.join(names)} changed")
    verdict_of_first = _judge(plan, first, judge)
    if not verdict_of_first.ok:
        return verdict_of_first
    if not same(first, again) and not (verdict := _judge(plan, again, judge)).ok:
        return verdict
    for verdict in _on_other_inputs(plan, bench, judge, there, prepared, first):
        if not verdict.ok:
            return verdict
    return verdict_of_first


def check_nan_spread(plan: Plan, kind: str = "nan", seed: int = 0) -> Verdict:
    """Plant a NaN or an Inf (`kind` "nan" or "inf") in the middle of x, and check which outputs it reaches.

    Outputs whose window holds it must not be finite where the truth is not. All others must be right, unless the
    method's `nan_spread` excuses them: "tile", those within :data:`TILE_REACH`; "picture", those of its image. Plans
    for integers pass.
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
    """Copies of a call's inputs on a device; `layout` is that of the weights."""
    w = None if inputs.w is None else upload_weights(runtime, inputs.w, layout)
    operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    return dataclasses.replace(inputs, x=runtime.upload(inputs.x), w=w, operands=operands)


def _on_other_inputs(
    plan: Plan, bench: _Bench, judge: Judge, there: Inputs, prepared: PreparedFilter, first: NDArray[Any]
) -> Iterator[Verdict]:
    inputs, others = judge.inputs, judge.other_inputs
    stale = "stale result", "other inputs gave the result of the call before"
    others_there = bench.upload(others)
    result = bench.run(others_there, plan.prepare(others_there.w), POISONS[0], "again")
    if plan.problem.flops <= SECOND_TRUTH_FLOPS:
        verdict = _judge(plan, result, judge.other)
        if not verdict.ok and same(result, first) and not np.array_equal(judge.truth.value, judge.other.truth.value):
            verdict = _failed(plan, others, *stale)
        yield verdict
    elif others.kind in ("normal", "integers") and same(result, first):
        yield _failed(plan, others, *stale)
    if not plan.takes_gaps:
        return
    with_gaps = bench.run_with_gaps(there, prepared, POISONS[1])
    where = "with an output that has gaps between its elements"
    if fault := bench.outside():
        yield _failed(plan, inputs, fault, where)
    if not same(first, with_gaps):
        verdict = _judge(plan, with_gaps, judge)
        yield dataclasses.replace(verdict, message=f"{verdict.message}\n  {where}")


def _judge(plan: Plan, got: NDArray[Any], judge: Judge) -> Verdict:
    verdict = judge.verdict(plan.algorithm.precision, got)
    message = f"{plan.algorithm.name} [{plan.config}] {verdict.message}"
    return verdict if verdict.ok else dataclasses.replace(verdict, message=message)


def _failed(plan: Plan, inputs: Inputs, fault: str, detail: str = "") -> Verdict:
    message = f"{plan.algorithm.name} [{plan.config}] {plan.problem}: {detail or fault}"
    message += f"\n  looks like: {fault}\n  reproduce: {reproduction(plan.problem, inputs)}"
    return Verdict(False, math.inf, math.inf, math.inf, fault, message)


class _Bench:
    """Buffers on the plan's device, with guard bands around them."""

    def __init__(self, plan: Plan, memory: HostMemory) -> None:
        self.plan, self.runtime, self.memory = plan, plan.runtime, memory
        self.shape, self.dtype = plan.problem.out_shape, output_dtype(plan.problem)
        self._guards: list[tuple[str, Any, int]] = []
        self._gap_written = False

    def upload(self, inputs: Inputs) -> Inputs:
        weights = self.plan.problem.weights
        return upload_inputs(self.runtime, inputs, weights.layout if weights else "")

    def changed(self, there: Inputs, inputs: Inputs) -> list[str]:
        """Names of the inputs that differ from what was uploaded."""
        uploaded = {"x": there.x, "w": there.w, **there.operands}
        pairs = ((n, uploaded[n], b) for n, b in {"x": inputs.x, "w": inputs.w, **inputs.operands}.items())
        return [n for n, a, b in pairs if b is not None and not same(self.memory.bring(self.runtime, a, "gaps"), b)]

    def run(self, inputs: Inputs, prepared: PreparedFilter, poison: int, piece: str) -> NDArray[Any]:
        """Call the plan and download the output into this buffer of host memory."""
        inner = self._guarded("output", math.prod(self.shape) * self.dtype.itemsize, poison)
        out = inner.view(self.dtype).reshape(self.shape)
        self._call(inputs, prepared, out, poison)
        return self.memory.bring(self.runtime, out, piece)

    def run_with_gaps(self, inputs: Inputs, prepared: PreparedFilter, poison: int) -> NDArray[Any]:
        """Call into every second column of a larger array with even longer rows; return a copy."""
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

    def _guarded(self, name: str, nbytes: int, poison: int) -> Any:
        raw = self.runtime.allocate(nbytes + 2 * GUARD)
        self.runtime.fill(raw, poison)
        self._guards += [(name, raw[:GUARD], poison), (name, raw[GUARD + nbytes :], poison)]
        return raw[GUARD : GUARD + nbytes]

    def outside(self) -> str | None:
        """The fault if a guard band was written to; drops the bands."""
        guards, self._guards = self._guards, []
        for name, band, poison in guards:
            if not holds(self.runtime.download(band), poison).all():
                return f"writes outside its {name}"
        return "writes outside its output" if self._gap_written else None


def _excused(problem: Problem, spread: str, planted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Outputs that may have any value, given those that hold the NaN by definition."""
    excused = np.zeros_like(planted)
    if spread == "exact" or planted.ndim != 4:
        return excused
    order = (0, 1, 2, 3) if problem.results[0].layout == "NCHW" else (0, 3, 1, 2)
    seen, where = excused.transpose(order), planted.transpose(order)
    if spread == "picture":
        seen[0] = True
        return excused
    rows, columns = np.flatnonzero(where.any(axis=(0, 1, 3))), np.flatnonzero(where.any(axis=(0, 1, 2)))
    if rows.size:
        top, left = max(rows[0] - TILE_REACH, 0), max(columns[0] - TILE_REACH, 0)
        seen[0, :, top : rows[-1] + TILE_REACH + 1, left : columns[-1] + TILE_REACH + 1] = True
    return excused
