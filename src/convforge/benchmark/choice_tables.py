"""The choices by rules, by the cost model and by the search, played on a run's stored times, over the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convforge.algorithms import refusal
from convforge.backends.facts import DeviceFacts
from convforge.benchmark.formats import percent, ratio
from convforge.benchmark.records import Result, Run
from convforge.benchmark.sheet_tables import FAR, NEAR, spread_of
from convforge.benchmark.table import Table, table
from convforge.problem import Problem, parse_problem
from convforge.timing.timer import Timing
from convforge.tuning.choices import Tried
from convforge.tuning.heuristic import preferred
from convforge.tuning.search import EFFORTS, Candidate, Trial, candidates_for, methods_for, search

LEGEND = (
    "The time of what is chosen over that of our fastest of the same run; nothing was measured for this table. The "
    "search is played on the stored times, at level auto."
)


class Recorded(Trial):
    """A trial (:class:`convforge.tuning.search.Trial`) that plays stored results back.

    The results are of one case; `times` maps method and config to the timing that counts. Where a method's default of
    now has no result, the first of its stored configs takes its place: it was the default when they were stored.
    """

    def __init__(self, results: Sequence[Result], times: Mapping[tuple[str, str], Timing]) -> None:
        self._results = {(r.algorithm, r.config): r for r in results if (r.algorithm, r.config) in times}
        self._times = times
        self._defaults: dict[str, str] = {}
        for r in results:
            self._defaults.setdefault(r.algorithm, r.config)

    def key(self, algorithm: str, config: str, *, default: bool) -> tuple[str, str] | None:
        """Method and config under which a config is stored; None where it is not."""
        if (algorithm, config) in self._times:
            return (algorithm, config)
        stored = (algorithm, self._defaults.get(algorithm, ""))
        return stored if default and stored in self._times else None

    def seconds(self, algorithm: str, config: str) -> float | None:
        """The stored time of a method's default config."""
        key = self.key(algorithm, config, default=True)
        return None if key is None else self._times[key].median_s

    def time(self, candidate: Candidate, budget_s: float) -> Tried:
        """See :class:`convforge.tuning.search.Trial`."""
        about: dict[str, Any] = {
            "algorithm": candidate.algorithm.name, "config": str(candidate.config), "ours": candidate.algorithm.ours,
            "predicted_s": candidate.predicted_s,
        }  # fmt: skip
        key = self._key(candidate)
        if key is None:
            return Tried(**about, fault="no time of it is stored")
        timing, result = self._times[key], self._results[key]
        return Tried(
            **about, seconds=timing.median_s, spread=timing.spread, workspace_bytes=result.workspace_bytes
        )  # fmt: skip

    def final(self, candidates: Sequence[Candidate], budget_s: float) -> list[Timing | str]:
        """See :class:`convforge.tuning.search.Trial`."""
        keys = [self._key(candidate) for candidate in candidates]
        return ["no time of it is stored" if key is None else self._times[key] for key in keys]

    def _key(self, candidate: Candidate) -> tuple[str, str] | None:
        return self.key(candidate.algorithm.name, str(candidate.config), default=candidate.is_default)


class Chosen(NamedTuple):
    """Of one case the time of each choice over that of our fastest."""

    case: str
    by_rule: float
    by_model: float
    by_search: float


def choices_of(run: Run, results: Sequence[Result]) -> list[Chosen]:
    """The choices of each case that two methods of ours were timed on, in the precision that it asks for.

    Times of the CPU in a run on a GPU do not count. A case without a time of a method that a rule prefers is left out:
    the run took other methods.
    """
    facts = DeviceFacts.from_table(run.machine["facts"])
    found = []
    for case in dict.fromkeys(r.case for r in results):
        problem = parse_problem(next(r.problem for r in results if r.case == case))
        able = [r for r in results if r.case == case and r.ours and r.precision in ("strict", problem.precision)]
        able = [r for r in able if r.backend == facts.backend]
        times = {(r.algorithm, r.config): t for r in able if (t := run.timing(r)) is not None}
        if len({algorithm for algorithm, _ in times}) > 1:
            found.append(_chosen(case, problem, facts, Recorded(able, times), times))
    return [one for one in found if one is not None]


def choice_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A row each for the rules, the cost model by itself, and the search."""
    found = choices_of(run, results)
    return [choice_table(found)] if found else []


def choice_table(found: Sequence[Chosen]) -> Table:
    """A row each for the rules, the cost model by itself, and the search."""
    rows = []
    for field, name in (("by_rule", "by rule"), ("by_model", "by the cost model alone"), ("by_search", "by search")):
        near, far, worst, case = spread_of({one.case: getattr(one, field) for one in found})
        rows.append((name, percent(near), percent(far), ratio(worst), case))
    columns = ("choice", f"within {100 * NEAR - 100:.0f} %", f"within {FAR}x", "the worst", "of case")
    return table(columns, rows, [f"{len(found)} cases."], lead=1)


def _chosen(
    case: str, problem: Problem, facts: DeviceFacts, recorded: Recorded, times: Mapping[tuple[str, str], Timing]
) -> Chosen | None:
    """The choices of a case, among the methods that have a time; None where no rule prefers one of them."""
    best, stored = min(t.median_s for t in times.values()), {algorithm for algorithm, _ in times}

    def over_best(algorithm: Any) -> float:
        seconds = recorded.seconds(algorithm.name, str(algorithm.configs(problem, facts)[0]))
        return float("inf") if seconds is None else seconds / best

    def is_stored(algorithm: Any) -> bool:
        return algorithm.name in stored and refusal(algorithm, problem, facts) is None

    by_rule = next((a for a, _ in preferred(problem, facts) if is_stored(a)), None)
    if by_rule is None:
        return None
    by_model = next((a for a, _ in methods_for(problem, facts) if is_stored(a)), None)
    candidates = [c for c in candidates_for(problem, facts, by_rule.name) if c[0].algorithm.name in stored]
    tried = search(candidates, recorded, EFFORTS["auto"], clock=lambda: 0.0)
    chosen = tried[0].seconds if tried else None
    never = float("inf")
    of_model = never if by_model is None else over_best(by_model)
    return Chosen(case, over_best(by_rule), of_model, never if chosen is None else chosen / best)
