"""Tables of the choices by rule, by the cost model and by the search, evaluated on a run's stored times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
    "The time of the choice over that of our fastest of the same run; nothing was measured for this table. The "
    "search is played on the stored times, at level auto."
)


class Recorded(Trial):
    """A trial (:class:`convforge.tuning.search.Trial`) that returns the stored results of one case.

    `times` maps (method, config) to the timing that counts. If a method's current default config has no result, its
    first stored config is used: it was the default when the results were stored.
    """

    def __init__(self, results: Sequence[Result], times: Mapping[tuple[str, str], Timing]) -> None:
        self._results = {(r.algorithm, r.config): r for r in results}
        self._times = times
        self._defaults = {r.algorithm: r.config for r in reversed(results)}

    def seconds(self, algorithm: str, config: str) -> float | None:
        """The stored seconds of a method's default config."""
        key = self.key(algorithm, config, default=True)
        return None if key is None else self._times[key].median_s

    def time(self, candidate: Candidate, budget_s: float) -> Tried:
        """See :class:`convforge.tuning.search.Trial`."""
        method = candidate.algorithm
        tried = Tried(method.name, str(candidate.config), method.ours, predicted_s=candidate.predicted_s)
        if (key := self._of(candidate)) is None:
            return replace(tried, fault="no time of it is stored")
        timing, workspace = self._times[key], self._results[key].workspace_bytes
        return replace(tried, seconds=timing.median_s, spread=timing.spread, workspace_bytes=workspace)

    def final(self, candidates: Sequence[Candidate], budget_s: float) -> list[Timing | str]:
        """See :class:`convforge.tuning.search.Trial`."""
        keys = map(self._of, candidates)
        return ["no time of it is stored" if key is None else self._times[key] for key in keys]

    def _of(self, candidate: Candidate) -> tuple[str, str] | None:
        return self.key(candidate.algorithm.name, str(candidate.config), default=candidate.is_default)

    def key(self, algorithm: str, config: str, *, default: bool) -> tuple[str, str] | None:
        """The (method, config) under which a config's time is stored, or None."""
        stored = (algorithm, self._defaults.get(algorithm, ""))
        keys = [(algorithm, config), *[stored] * default]
        return next((key for key in keys if key in self._times), None)


class Chosen(NamedTuple):
    """Time of each choice of one case, divided by the time of our fastest."""

    case: str
    by_rule: float
    by_model: float
    by_search: float


def choices_of(run: Run, results: Sequence[Result]) -> list[Chosen]:
    """The choices of each case for which at least two of our methods were timed, in the precision of the case.

    In a run on a GPU, times of the CPU do not count. A case is left out if no method that a rule prefers was timed:
    that run used other methods.
    """
    facts = DeviceFacts.from_table(run.machine["facts"])
    found = []
    for case in dict.fromkeys(r.case for r in results):
        problem = parse_problem(next(r.problem for r in results if r.case == case))
        able = [r for r in results if (r.case, r.backend) == (case, facts.backend) and r.ours and r.allowed]
        times = {(r.algorithm, r.config): t for r in able if (t := run.timing(r)) is not None}
        if len({algorithm for algorithm, _ in times}) > 1 and (chosen := _chosen(case, problem, facts, able, times)):
            found.append(chosen)
    return found


def choice_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """Return the table of :func:`choice_table`, or no table if the run has no comparable case."""
    found = choices_of(run, results)
    return [choice_table(found)] if found else []


def choice_table(found: Sequence[Chosen]) -> Table:
    """The table: a row each for the rules, the cost model alone, and the search."""
    rows = []
    for field, name in (("by_rule", "by rule"), ("by_model", "by the cost model alone"), ("by_search", "by search")):
        near, far, worst, case = spread_of({one.case: getattr(one, field) for one in found})
        rows.append((name, percent(near), percent(far), ratio(worst), case))
    columns = ("choice", f"within {100 * NEAR - 100:.0f} %", f"within {FAR}x", "the worst", "of case")
    return table(columns, rows, [f"{len(found)} cases."], lead=1)


def _chosen(
    case: str, problem: Problem, facts: DeviceFacts, able: Sequence[Result], times: Mapping[tuple[str, str], Timing]
) -> Chosen | None:
    """The choices of a case among the timed methods; None if no rule prefers one of them."""
    recorded, best = Recorded(able, times), min(t.median_s for t in times.values())

    def is_stored(algorithm: Any) -> bool:
        return algorithm.name in {name for name, _ in times} and refusal(algorithm, problem, facts) is None

    def over_best(methods: Iterable[tuple[Any, Any]]) -> float:
        first = next((a for a, _ in methods if is_stored(a)), None)
        seconds = first and recorded.seconds(first.name, str(first.configs(problem, facts)[0]))
        return float("inf") if seconds is None else seconds / best

    by_rule = next((a for a, _ in preferred(problem, facts) if is_stored(a)), None)
    if by_rule is None:
        return None
    candidates = [c for c in candidates_for(problem, facts, by_rule.name) if is_stored(c[0].algorithm)]
    tried = search(candidates, recorded, EFFORTS["auto"], clock=lambda: 0.0)
    found = tried[0].seconds if tried else None
    by_search = float("inf") if found is None else found / best
    return Chosen(case, over_best(preferred(problem, facts)), over_best(methods_for(problem, facts)), by_search)
