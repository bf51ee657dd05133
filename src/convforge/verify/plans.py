"""A plan, run as a stranger would run it: poisoned outputs, guard bands, other inputs, awkward strides."""

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
from convforge.verify.bits import PIECE, filled, same
from convforge.verify.inputs import Inputs, make_inputs, output_dtype
from convforge.verify.rooms import Rooms
from convforge.verify.rows import border_of
from convforge.verify.truth import to_rows
from convforge.verify.verdict import Judge, Verdict, reproduction

# Two poisons, byte by byte: as floats, the first is a NaN and the second a number; as integers they differ.
POISONS = (0xFF, 0x5A)

# Bytes on either side of an output or a workspace that must stay as they were: more than a plane of a small picture, so
# that a kernel which goes on to the next one is found out before it harms the process.
GUARD = 1 << 16

# Beyond this many FLOPs the run on other inputs is only compared with the run on the first.
SECOND_TRUTH_FLOPS = 100_000_000


def check_plan(plan: Plan, judge: Judge | None = None, prepared: PreparedFilter | None = None) -> Verdict:
    """Run a plan several times and hold it against the truth.

    The output is poisoned, twice and differently, so that an element that is not written shows. Guard bands around
    output and workspace show writes outside of them. The runs go: the inputs, twice; other inputs, which a stored
    result cannot answer; the first again, into an output with gaps. The inputs must stay as they were.

    Parameters
    ----------
    plan : Plan
    judge : Judge, optional
        Of the plan's problem, with the inputs to run on; by default, random normal ones.
    prepared : PreparedFilter, optional
        Of the judge's weights; by default, what the plan makes of them.

    Returns
    -------
    Verdict
        On the first run, or of the first thing that went wrong.
    """
    problem: Problem = plan.problem
    judge = Judge(problem, make_inputs(problem)) if judge is None else judge
    inputs = judge.inputs
    bench = _Bench(plan, judge.rooms)
    there = bench.upload(inputs)
    prepared = plan.prepare(there.w) if prepared is None else prepared

    first = bench.run(there, prepared, POISONS[0], "first")
    again = bench.run(there, prepared, POISONS[1], "again")
    if stray := bench.outside():
        return _failed(plan, inputs, stray)
    if (unwritten := _unwritten(first, again)) is not None:
        index = tuple(int(i) for i in np.argwhere(unwritten)[0])
        fault = "border skipped: output not written there" if _at_border(problem, unwritten) else "output not written"
        return _failed(
            plan,
            inputs,
            fault,
            f"{int(unwritten.sum())} of {unwritten.size} outputs, the first at {index}, are not written",
        )
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


_NAMES = ("x", "w", "scale", "bias", "residual")


def _arrays(inputs: Inputs) -> tuple[Any, ...]:
    return (inputs.x, inputs.w, *(inputs.operands.get(name) for name in _NAMES[2:]))


def _on_other_inputs(
    plan: Plan, bench: _Bench, judge: Judge, there: Inputs, prepared: PreparedFilter, first: NDArray[Any]
) -> Iterator[Verdict]:
    """Other inputs, then the first again into an output with gaps."""
    problem: Problem = plan.problem
    inputs = judge.inputs
    others = judge.other_inputs
    others_there = bench.upload(others)
    result = bench.run(others_there, plan.prepare(others_there.w), POISONS[0], "again")
    if problem.flops <= SECOND_TRUTH_FLOPS:
        other = judge.other
        verdict = _judge(plan, result, other)
        if not verdict.ok and same(result, first) and not np.array_equal(judge.truth.value, other.truth.value):
            verdict = _failed(plan, others, "stale result", "other inputs gave the result of the call before")
        yield verdict
    elif others.kind in ("normal", "integers") and same(result, first):
        yield _failed(plan, others, "stale result", "other inputs gave the result of the call before")
    if not plan.takes_gaps:
        return
    with_gaps = bench.run_with_gaps(there, prepared, POISONS[1])
    if fault := bench.outside():
        yield _failed(plan, inputs, fault, "with an output that has gaps between its elements")
    if not same(first, with_gaps):
        verdict = _judge(plan, with_gaps, judge)
        if not verdict.ok:
            yield dataclasses.replace(
                verdict, message=f"{verdict.message}\n  with an output that has gaps between its elements"
            )


def _judge(plan: Plan, got: NDArray[Any], judge: Judge) -> Verdict:
    verdict = judge.verdict(plan.algorithm.precision, got)
    if verdict.ok:
        return verdict
    return dataclasses.replace(verdict, message=f"{plan.algorithm.name} [{plan.config}] {verdict.message}")


def _failed(plan: Plan, inputs: Inputs, fault: str, detail: str = "") -> Verdict:
    message = f"{plan.algorithm.name} [{plan.config}] {plan.problem}: {detail or fault}"
    message += f"\n  looks like: {fault}\n  reproduce: {reproduction(plan.problem, inputs)}"
    return Verdict(False, math.inf, math.inf, math.inf, fault, message)


class _Bench:
    """Buffers on the plan's device, with guard bands around them."""

    def __init__(self, plan: Plan, rooms: Rooms) -> None:
        self.plan = plan
        self.rooms = rooms
        self.runtime = plan.runtime
        self.shape, self.dtype = plan.problem.out_shape, output_dtype(plan.problem)
        self._guards: list[tuple[str, Any, int]] = []
        self._gap_written = False

    def upload(self, inputs: Inputs) -> Inputs:
        """The same inputs on the device, in copies."""
        weights = self.plan.problem.weights
        return upload_inputs(self.runtime, inputs, weights.layout if weights else "")

    def changed(self, there: Inputs, inputs: Inputs) -> list[str]:
        """Which of the inputs differ from what was uploaded."""
        pairs = zip(_NAMES, _arrays(there), _arrays(inputs), strict=True)
        return [
            name for name, a, b in pairs if a is not None and not same(self.rooms.bring(self.runtime, a, "gaps"), b)
        ]

    def run(self, inputs: Inputs, prepared: PreparedFilter, poison: int, room: str) -> NDArray[Any]:
        """One call; the output comes back, from a device into this room."""
        size = math.prod(self.shape) * self.dtype.itemsize
        inner = self._guarded("output", size, poison)
        out = inner.view(self.dtype).reshape(self.shape)
        self._call(inputs, prepared, out, poison)
        return self.rooms.bring(self.runtime, out, room)

    def run_with_gaps(self, inputs: Inputs, prepared: PreparedFilter, poison: int) -> NDArray[Any]:
        """One call into every second column of a larger array whose rows are longer still; returns a copy."""
        padded = (*self.shape[:-1], 2 * self.shape[-1] + 3)
        inner = self._guarded("output", math.prod(padded) * self.dtype.itemsize, poison)
        whole = inner.view(self.dtype).reshape(padded)
        columns, bits = (..., slice(1, 2 * self.shape[-1], 2)), np.dtype(f"u{self.dtype.itemsize}")
        self._call(inputs, prepared, whole[columns], poison)
        written = self.rooms.bring(self.runtime, whole, "gaps")
        result = self.rooms.copy(written[columns], "again")
        lines = written.reshape(-1, padded[-1])
        for begin in range(0, len(lines), step := max(PIECE // (padded[-1] * self.dtype.itemsize), 1)):
            gaps = lines[begin : begin + step].copy()
            gaps[:, 1 : 2 * self.shape[-1] : 2].view(bits)[...] = np.frombuffer(bytes([poison] * bits.itemsize), bits)
            self._gap_written |= not filled(gaps, poison)
        return result

    def _call(self, inputs: Inputs, prepared: PreparedFilter, out: Any, poison: int) -> None:
        workspace = None
        if self.plan.workspace_bytes:
            workspace = self._guarded("workspace", self.plan.workspace_bytes, poison)
        self.plan(self.plan.buffers(inputs.x, prepared, inputs.operands, out, workspace))
        self.runtime.synchronize()

    def _guarded(self, name: str, nbytes: int, poison: int) -> Any:
        """Poisoned bytes, aligned as the runtime aligns them, between two bands of the same poison."""
        raw = self.runtime.allocate(nbytes + 2 * GUARD)
        self.runtime.fill(raw, poison)
        self._guards += [(name, raw[:GUARD], poison), (name, raw[GUARD + nbytes :], poison)]
        return raw[GUARD : GUARD + nbytes]

    def outside(self) -> str | None:
        """What was written around, if anything; the bands are then forgotten."""
        guards, self._guards = self._guards, []
        for name, band, poison in guards:
            if not filled(self.runtime.download(band), poison):
                return f"writes outside its {name}"
        return "writes outside its output" if self._gap_written else None


def upload_inputs(runtime: Runtime, inputs: Inputs, layout: str = "") -> Inputs:
    """Copies of a call's inputs on a device; `layout` is that of the weights."""
    w = None if inputs.w is None else upload_weights(runtime, inputs.w, layout)
    operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    return dataclasses.replace(inputs, x=runtime.upload(inputs.x), w=w, operands=operands)


def _unwritten(first: NDArray[Any], again: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Elements that hold the poison of both runs; None where there are none."""
    bits = np.dtype(f"u{first.itemsize}")
    poisons = [np.frombuffer(bytes([poison]) * first.itemsize, bits)[0] for poison in POISONS]
    whole = first.view(bits), again.view(bits)
    flat = [array.reshape(-1) for array in whole]
    step = PIECE // first.itemsize
    for begin in range(0, first.size, step):
        part = slice(begin, begin + step)
        if ((flat[0][part] == poisons[0]) & (flat[1][part] == poisons[1])).any():
            return np.asarray((whole[0] == poisons[0]) & (whole[1] == poisons[1]))
    return None


def _at_border(problem: Problem, unwritten: NDArray[np.bool_]) -> bool:
    """Whether what is not written lies at the border alone, and something lies inside."""
    if not isinstance(problem, Conv2dProblem):
        return False
    rows, columns = border_of(problem)
    inside = to_rows(problem, unwritten).reshape(problem.n, problem.p, problem.k, problem.q)[:, ~rows][..., ~columns]
    return inside.size > 0 and not inside.any()
