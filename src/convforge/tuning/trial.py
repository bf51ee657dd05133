"""Measurement of candidates on the device, with a ring of buffers, a check of sampled outputs, and the timer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from convforge.algorithms.contract import Plan
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource
from convforge.backends.recording import Recording
from convforge.backends.runtime import Runtime
from convforge.problem import Problem
from convforge.timing import Cycle, Ring, StoppingRule, Timing, interleave, measure
from convforge.tuning.choices import Tried
from convforge.tuning.search import Candidate, Trial
from convforge.verify import Sample, make_inputs

# Rules for a candidate's samples, and for a finalist's.
QUICK = StoppingRule(samples=5, narrow=0.03, patience_s=0.02)
FINAL = StoppingRule(samples=9, narrow=0.01, patience_s=0.2)
# A single call this many times slower than the fastest one so far ends a candidate's timing.
HOPELESS = 3.0


class DeviceTrial(Trial):
    """Measures all candidates of a problem with the same inputs and reference; a wrong result gets no time.

    Candidates share one workspace, because some need gigabytes. Candidates that exceed the limit in bytes are not run.
    """

    def __init__(self, problem: Problem, runtime: Runtime, workspace_limit: int | None = None) -> None:
        self._runtime, self._limit = runtime, workspace_limit
        inputs = make_inputs(problem, "repeated")
        self._sample, self._ring = Sample(problem, inputs), Ring(problem, [inputs], runtime)
        self._plans: dict[Candidate, Plan] = {}
        self._workspace: Any = None
        self._fastest_once = float("inf")
        self._problem = problem
        self.at_once = (os.cpu_count() or 1) if runtime.facts.backend == "cuda" else 1

    def make_ready(self, candidates: Sequence[Candidate]) -> None:
        if len(candidates) < 2:
            return
        self._runtime.compile_ahead(kernels_of(self._problem, candidates, self._runtime.facts))

    def time(self, candidate: Candidate, budget_s: float) -> Tried:
        """See :class:`Trial`. Raises ``RuntimeError`` if a candidate has made the device unusable."""
        algorithm = candidate.algorithm
        about: dict[str, Any] = {
            "algorithm": algorithm.name, "config": str(candidate.config), "ours": algorithm.ours,
            "predicted_s": candidate.predicted_s,
        }  # fmt: skip
        try:
            plan = algorithm.plan(self._problem, candidate.config, self._runtime)
            about["workspace_bytes"] = plan.workspace_bytes
            if self._limit is not None and plan.workspace_bytes > self._limit:
                words = f"it needs a workspace of {plan.workspace_bytes} bytes; the limit is {self._limit}"
                return Tried(**about, fault=words)
            self._plans[candidate] = plan
            if (fault := self._run(candidate)) is not None:
                return Tried(**about, fault=fault, wrong=True)
            timing = self._timed(candidate, budget_s)
            if (fault := self._checked(candidate)) is not None:
                return Tried(**about, fault=f"after timing: {fault}", wrong=True)
        except Exception as fault:  # one candidate's fault must not end the search
            self._plans.pop(candidate, None)
            words = f"{type(fault).__name__}: {' '.join(str(fault).split()) or 'no message'}"
            self._still_works(f"{algorithm.name} [{candidate.config}]: {words}")
            return Tried(**about, fault=words)
        return Tried(**about, seconds=timing.median_s, spread=timing.spread)

    def final(self, candidates: Sequence[Candidate], budget_s: float) -> list[Timing | str]:
        rule = replace(FINAL, budget_s=budget_s)
        self._make_room(max((self._plans[c].workspace_bytes for c in candidates), default=0))
        timings = interleave([self._calls(candidate) for candidate in candidates], self._runtime, rule)
        return [self._run(c) or timing for c, timing in zip(candidates, timings, strict=True)]

    def _still_works(self, words: str) -> None:
        """Raise ``RuntimeError`` if the device no longer works; otherwise later candidates would get the blame."""
        try:
            self._runtime.synchronize()
        except Exception as fault:
            raise RuntimeError(f"{words}; this process can no longer use the device") from fault

    def _calls(self, candidate: Candidate) -> Cycle:
        plan = self._plans[candidate]
        self._make_room(plan.workspace_bytes)
        return self._ring.calls(plan, self._workspace)

    def _make_room(self, nbytes: int) -> None:
        if self._workspace is None or self._workspace.nbytes < nbytes:
            self._workspace = None  # freed before more is allocated
            self._workspace = self._runtime.allocate(nbytes)

    def _run(self, candidate: Candidate) -> str | None:
        """Fill the outputs with poison, call once, and return the error of the result, or None."""
        self._ring.poison()
        self._calls(candidate)()
        self._runtime.synchronize()
        return self._checked(candidate)

    def _checked(self, candidate: Candidate) -> str | None:
        slot, amax = self._ring.slots[0], None
        if "amax" in slot.operands:
            amax = float(self._runtime.download(slot.operands["amax"]))
        return self._sample.fault(candidate.algorithm.precision, slot.result, self._runtime, amax)

    def _timed(self, candidate: Candidate, budget_s: float) -> Timing:
        """Time a candidate; a single call only, if it is much slower than the fastest candidate's single call."""
        once = self._runtime.time(self._calls(candidate), 1)
        if once > HOPELESS * self._fastest_once:
            return Timing((once,), few=True)
        self._fastest_once = min(self._fastest_once, once)
        self._ring.poison()
        rule = replace(QUICK, budget_s=budget_s)
        return measure(self._calls(candidate), self._runtime, rule)


def kernels_of(problem: Problem, candidates: Sequence[Candidate], facts: DeviceFacts) -> list[KernelSource]:
    """Return the kernels that the plans of our own candidates compile."""
    recording = Recording(facts)
    runtime: Any = recording
    for candidate in candidates:
        if candidate.algorithm.ours:
            with suppress(Exception):  # the timing reports it
                candidate.algorithm.plan(problem, candidate.config, runtime)
    return recording.kernels
