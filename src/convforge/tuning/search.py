"""The search: measure the best few candidates within a budget, then measure the closest ones again in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from convforge.algorithms import AnyAlgorithm, algorithms, refusal
from convforge.algorithms.contract import Config
from convforge.backends.facts import DeviceFacts
from convforge.peers import every_algorithm
from convforge.problem import Problem
from convforge.timing.ranking import rank
from convforge.timing.timer import Timing
from convforge.tuning.choices import Tried
from convforge.tuning.cost import predicted_s

FINAL_SHARE = 0.3  # share of the budget for the final
CLOSE = 1.15  # candidates up to this multiple of the fastest time may enter the final


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of a search."""

    budget_s: float  # wall clock, checked between candidates
    methods: int  # number of methods, best predicted first, that are measured in their default config
    configs: int  # number of further configs of each promising method
    promising: float  # a method is promising if its default takes at most this multiple of the fastest default
    finalists: int


# Level -> its effort. "max" measures all candidates.
EFFORTS: dict[str, Effort] = {"auto": Effort(2.0, 4, 8, 1.5, 3), "max": Effort(120.0, 1000, 1000, math.inf, 4)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method in one config, with the method's predicted seconds; `is_default` for its first config."""

    algorithm: AnyAlgorithm
    config: Config
    predicted_s: float
    is_default: bool = False


class Trial(Protocol):
    """Protocol of measuring the candidates of one problem."""

    at_once: int = 1  # number of candidates that are compiled together

    def make_ready(self, candidates: Sequence[Candidate]) -> None:
        """Compile the kernels of several candidates in parallel; by default do nothing."""
        return

    def time(self, candidate: Candidate, budget_s: float) -> Tried:
        """Run, check and time a candidate; return its time or its fault."""
        ...

    def final(self, candidates: Sequence[Candidate], budget_s: float) -> list[Timing | str]:
        """Time candidates again in turns; return for each its timing or its fault."""
        ...


def methods_for(problem: Problem, facts: DeviceFacts, *, peers: bool = False) -> list[tuple[AnyAlgorithm, float]]:
    """Return the methods (with `peers` also other libraries') that support a problem, sorted by predicted seconds."""
    able = [
        (a, predicted_s(a, problem, facts))
        for a in (every_algorithm() if peers else algorithms())
        if refusal(a, problem, facts) is None
    ]
    return sorted(able, key=lambda found: found[1])


def candidates_for(
    problem: Problem, facts: DeviceFacts, first: str = "", *, peers: bool = False
) -> list[list[Candidate]]:
    """Return the candidates of each method, its default config first; the method named `first` comes first."""
    ranked = sorted(methods_for(problem, facts, peers=peers), key=lambda found: found[0].name != first)
    return [
        [Candidate(a, config, seconds, i == 0) for i, config in enumerate(a.configs(problem, facts))]
        for a, seconds in ranked
    ]


def search(
    candidates: Sequence[Sequence[Candidate]], trial: Trial, effort: Effort, *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Tried]:  # fmt: skip
    """Measure the best methods' defaults, then further configs of promising methods, then the finalists again.

    `candidates` come from :func:`candidates_for`; the very first is always measured. Returns the chosen candidate
    first, then the others by their time, then those without a time.
    """
    begin, found = clock(), dict[Candidate, Tried]()

    def left() -> float:
        return (1 - FINAL_SHARE) * effort.budget_s - (clock() - begin)

    def measure(wanted: Sequence[Candidate]) -> None:
        waiting = [candidate for candidate in wanted if candidate not in found]
        for i, candidate in enumerate(waiting):
            if found and left() <= 0:
                return
            if i % trial.at_once == 0:
                trial.make_ready(waiting[i : i + trial.at_once])
            found[candidate] = trial.time(candidate, max(left(), 0.0) / (len(waiting) - i))

    peers = [configs[0] for configs in candidates if not configs[0].algorithm.ours]
    ours = [configs[0] for configs in candidates if configs[0].algorithm.ours]
    measure([*ours[: effort.methods], *peers])
    measure(_further(candidates, found, effort))
    return _decided(found, trial, effort, FINAL_SHARE * effort.budget_s)


def _further(
    candidates: Sequence[Sequence[Candidate]], found: Mapping[Candidate, Tried], effort: Effort
) -> list[Candidate]:
    """Return further configs of the promising methods, the fastest method first."""
    times = {c: math.inf if t.seconds is None else t.seconds for c, t in found.items()}
    most = effort.promising * min(times.values(), default=math.inf)
    promising = [configs for configs in candidates if times.get(configs[0], math.inf) <= most]
    promising.sort(key=lambda configs: times.get(configs[0], math.inf))
    return [candidate for configs in promising for candidate in configs[1 : 1 + effort.configs]]


def _decided(found: Mapping[Candidate, Tried], trial: Trial, effort: Effort, budget_s: float) -> list[Tried]:
    """Run the final among the closest; ties go to the smaller workspace, then to the method earlier in the list."""
    results = dict(found)
    timed = sorted((c for c in found if found[c].seconds is not None), key=lambda c: found[c].seconds or 0.0)
    close = [c for c in timed if (found[c].seconds or 0.0) <= CLOSE * (found[timed[0]].seconds or 0.0)]
    tied: list[Candidate] = timed[:1]
    if len(close) > 1:
        finalists = close[: effort.finalists]
        timings: dict[Candidate, Timing] = {}
        for candidate, outcome in zip(finalists, trial.final(finalists, budget_s), strict=True):
            if isinstance(outcome, str):
                results[candidate] = replace(results[candidate], seconds=None, fault=outcome, wrong=True)
            else:
                timings[candidate] = outcome
                results[candidate] = replace(results[candidate], seconds=outcome.median_s, spread=outcome.spread)
        ranking = rank(timings, timings.__getitem__)
        leaders = [*ranking.leaders] or [*ranking.unsure[:1]]
        tied = leaders or [c for c in timed if results[c].seconds is not None][:1]
    if len(tied) > 1:
        results |= {c: replace(results[c], tied=True) for c in tied}
    steps = {a.key: step for step, a in enumerate(every_algorithm())}  # simpler methods come first
    order = list(found)
    tied.sort(key=lambda c: (results[c].workspace_bytes or 0, steps.get(c.algorithm.key, len(steps)), order.index(c)))
    rest = sorted((c for c in timed if c not in tied), key=lambda c: results[c].seconds or math.inf)
    ranked = [results[c] for c in (*tied, *rest) if results[c].seconds is not None]
    return [*ranked, *(t for t in results.values() if t.seconds is None)]
