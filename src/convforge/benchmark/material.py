"""Data of one case that its methods share: inputs, their truths, and the ring of buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.formats import byte_count
from convforge.benchmark.suites import Case
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, Problem
from convforge.problem.types import is_integer
from convforge.timing.ring import Ring, last_level_cache
from convforge.verify import Judge, make_inputs
from convforge.verify.amax import amax_fault, has_amax
from convforge.verify.host_memory import HostMemory, same

# Cases up to this size get two sets of inputs, used in adjacent slots: then a stale result differs from a fresh one.
TWO_SETS_FLOPS = 2 * 10**9
# Fraction of the device's memory that a case may use.
MEMORY_SHARE = 0.6


class Material:
    """Inputs, judges and ring of one case, on a runtime's device."""

    def __init__(self, case: Case, runtime: Runtime) -> None:
        self.problem = case.problem
        self.runtime = runtime
        sets = [make_inputs(case.problem, kind="typical", seed=seed) for seed in range(_sets(case.problem))]
        if case.weights != "normal":
            assert isinstance(case.problem, Conv2dProblem)
            make = {"gaussian": gaussian_weights, "shared": shared_weights}[case.weights]
            weights = [make(case.problem, seed) for seed in range(len(sets))]
            pairs = [(inputs, w.astype(np.asarray(inputs.w).dtype)) for inputs, w in zip(sets, weights, strict=True)]
            sets = [replace(inputs, w=w, own_weights=True) for inputs, w in pairs]
        self.judges = [Judge(case.problem, inputs, runtime=truth_runtime(runtime)) for inputs in sets]
        self._memory = HostMemory()
        self.ring = Ring(case.problem, sets, runtime)

    def verify(self, precision: str, count: int, accepted: dict[int, Any]) -> Any:
        """Compare the results of the first `count` slots with the truth.

        Return the first wrong verdict, else the one with the largest error; None if nothing new was checked. `accepted`
        maps a set of inputs to a correct output of this method, and is extended here. An output with the same bits as
        the accepted output of these inputs is correct; any other is compared element by element.
        """
        worst = None
        for slot in self.ring.slots[:count]:
            out = self._memory.bring(self.runtime, slot.result, "out")
            if slot.kind in accepted and same(out, accepted[slot.kind]):
                continue
            verdict = self.judges[slot.kind].verdict(precision, out)
            if not verdict.ok:
                return verdict
            if has_amax(self.problem):
                judge, amax = self.judges[slot.kind], float(self.runtime.download(slot.operands["amax"]))
                if fault := amax_fault(self.problem, precision, judge.truth, judge.inputs, out, amax):
                    return replace(verdict, ok=False, fault="wrong amax", message=f"{self.problem}: {fault}")
            if slot.kind not in accepted:  # cleared for each method
                accepted[slot.kind] = self._memory.copy(out, f"accepted {slot.kind}")
            if worst is None or verdict.rms > worst.rms:
                worst = verdict
        return worst


def truth_runtime(runtime: Runtime) -> Runtime | None:
    """The runtime on which judges compute the truth: a GPU's, else None (the host is faster than the emulator)."""
    return runtime if runtime.facts.backend == "cuda" else None


def memory_refusal(problem: Problem, facts: DeviceFacts) -> Reason | None:
    """Return the reason why a case does not fit into the device's memory, or None."""
    x, w, out = problem.input.size, problem.weights.size if problem.weights else 0, problem.outputs
    item = np.dtype(problem.input.dtype).itemsize
    slot = (x + w) * item + out * 4
    # The terms: inputs, and again in float64 for the truth; truth, magnitudes and limits of two precision classes; the
    # ring; a poisoned copy for the check.
    needed = _sets(problem) * ((x + w) * (item + 8) + 56 * out) + max(2 * slot, 2 * last_level_cache(facts)) + 2 * slot
    if not facts.memory_bytes or needed <= MEMORY_SHARE * facts.memory_bytes:
        return None
    return Reason(
        "inputs, truth and ring take about {needed}; of {there} of memory {share} % are for them",
        needed=byte_count(needed), there=byte_count(facts.memory_bytes), share=f"{100 * MEMORY_SHARE:.0f}",
    )  # fmt: skip


def _sets(problem: Problem) -> int:
    return 2 if problem.flops <= TWO_SETS_FLOPS else 1


def gaussian_weights(problem: Conv2dProblem, seed: int = 0) -> Any:
    """Rank-1 filters (K, C / groups, R, S): Gaussians with sigma = size / 6, scaled differently for each channel."""

    def bell(size: int) -> Any:
        at = (np.arange(size) - (size - 1) / 2) / (size / 6)
        return np.exp(-at * at / 2)

    one = np.outer(bell(problem.r), bell(problem.s))
    scale = np.random.default_rng(seed).uniform(0.5, 1.5, (problem.k, problem.c_per_group, 1, 1))
    return scale * (one / one.sum())


def shared_weights(problem: Conv2dProblem, seed: int = 0) -> Any:
    """One full-rank filter with sum one for all channels, so that results stay in the range of the pixels.

    Integer weights are random from -2 to 2; the centre is adjusted so that the sum is one.
    """
    rng, (r, s) = np.random.default_rng(seed), (problem.r, problem.s)
    if is_integer(problem.w_dtype):
        one = rng.integers(-2, 2, (r, s), endpoint=True).astype(np.float64)
        one[r // 2, s // 2] += 1 - one.sum()
    else:
        one = rng.uniform(0.0, 1.0, (r, s))
        one /= one.sum() * problem.c_per_group
    return np.broadcast_to(one, problem.w_shape).copy("C")
