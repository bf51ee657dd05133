"""The time budget: shared among the rows in proportion to what they should take, so that every row gets something.

First calls, which compile, are not of the budget: they happen once a machine and say nothing about a method.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from convforge.bench.row import Row
from convforge.problem import Conv2dProblem, GemmProblem, Problem

# What a row costs whatever its size, and how many calls it takes at least: check, a lap, twice three samples. Before
# that it takes two: one that compiles, and one that says how long a call is.
ROW_S = 0.05
ROW_CALLS = 16
FIRST_CALLS = 2
# What a method of medium speed reaches on one core; only the proportions of rows depend on it.
NOMINAL_FLOPS_PER_S = 4e9
NOMINAL_BYTES_PER_S = 4e9
# A case's final weighs as much as so many of its rows, and never takes longer than this.
FINAL_ROWS = 1
FINAL_LIMIT_S = 5.0
# Without a budget, no row may take longer.
ROW_LIMIT_S = 30.0
# A row may be predicted to take this many times its share, or this much of all that is left, before it is skipped:
# predictions are rough, and a slow method's row may be one that can be afforded.
LENIENCE = 2.0
AFFORDABLE = 0.02
PROBE_FLOPS = 2 * 10**7
# Below this a call's fixed cost hides what its size costs: no prediction is scaled up from it.
SCALABLE_S = 1e-3
SCALABLE_FLOPS = 10**6


def weight(problem: Problem) -> float:
    """Seconds that a row of this problem should take."""
    one = problem.flops / NOMINAL_FLOPS_PER_S + problem.least_bytes / NOMINAL_BYTES_PER_S
    return ROW_S + ROW_CALLS * one


class Budget:
    """Shares a total among rows.

    Parameters
    ----------
    total_s : float or None
        None: no total, only :data:`ROW_LIMIT_S` a row.
    rows : sequence of Row
        All that are to come.
    """

    def __init__(
        self, total_s: float | None, rows: Sequence[Row], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_s = total_s
        self._clock = clock
        self._end = None if total_s is None else clock() + total_s
        self._left = sum(weight(row.problem) for row in rows if row.refusal is None)
        self._finals = {row.case.name: FINAL_ROWS * weight(row.problem) for row in rows if row.refusal is None}

    @property
    def remaining_s(self) -> float:
        """Seconds left of the total."""
        return math.inf if self._end is None else max(self._end - self._clock(), 0.0)

    def share(self, rows: Sequence[Row]) -> float:
        """Seconds that some of the rows to come may take together."""
        asked = [weight(row.problem) for row in rows if row.refusal is None]
        if self._end is None:
            return ROW_LIMIT_S * len(asked)
        return self._of(sum(asked))

    def final_share(self, case: str) -> float:
        """Seconds that the final of a case may take; it is then off the list."""
        asked = self._finals.get(case, ROW_S)
        share = min(self._of(asked), FINAL_LIMIT_S)
        self._finals.pop(case, None)
        return share

    def _of(self, asked: float) -> float:
        left = self._left + sum(self._finals.values())
        return self.remaining_s * min(asked / left, 1.0) if left > 0 else self.remaining_s

    def allows(self, predicted_s: float, share_s: float) -> bool:
        """Whether rows that should take `predicted_s` seconds, and have a share of `share_s`, may begin."""
        affordable = 0.0 if self._end is None else AFFORDABLE * self.remaining_s
        return predicted_s <= max(LENIENCE * share_s, affordable)

    def forgive(self, seconds: float) -> None:
        """Time that is not the budget's: compiling, which happens once a machine."""
        if self._end is not None:
            self._end += seconds

    def done(self, row: Row) -> None:
        """A row has ended: what it left over is the others'."""
        if row.refusal is None:
            self._left -= weight(row.problem)


def smaller(problem: Problem, most_flops: int = PROBE_FLOPS) -> Problem | None:
    """A problem of the same kind that is small enough to try; None where there is none.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> small = smaller(parse_problem("n8c3h2048w1024_k1r3s3_st1_p1_f32_nchw"))
    >>> small.flops <= PROBE_FLOPS, small.h > small.w
    (True, True)
    """
    if isinstance(problem, GemmProblem):
        side = math.floor((most_flops / 2) ** (1 / 3))
        return replace(problem, m=min(problem.m, side), n=min(problem.n, side), k=min(problem.k, side))
    if not isinstance(problem, Conv2dProblem):
        return None
    small = problem.replace(n=min(problem.n, 1))
    shrink = math.sqrt(min(most_flops / max(small.flops, 1), 1.0)) * 0.95
    if shrink < 0.95:
        small = small.replace(
            h=max(int(small.h * shrink), min(small.h, small.extent_h + max(small.padding))),
            w=max(int(small.w * shrink), min(small.w, small.extent_w + max(small.padding))),
        )
    # Wide layers: the picture is as small as the filter lets it be. Fewer groups, then fewer filters.
    if small.flops > most_flops and small.groups > 1:
        groups = max(1, small.groups * most_flops // small.flops)
        small = small.replace(groups=groups, c=groups * small.c_per_group, k=groups * small.k_per_group)
    if small.flops > most_flops:
        each = max(1, small.k_per_group * most_flops // small.flops)
        small = small.replace(k=small.groups * each)
    return small


class Forecast:
    """Predicts how long one call takes, from what has been measured so far or from a smaller probe."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], tuple[int, float, str]] = {}

    def learn(self, key: tuple[str, ...], problem: Problem, seconds: float) -> None:
        """`key` took `seconds` for one call of `problem`."""
        if seconds >= SCALABLE_S and problem.flops >= SCALABLE_FLOPS:
            self._seen[key] = (problem.flops, seconds, str(problem))

    def predict(
        self, key: tuple[str, ...], problem: Problem, probe: Callable[[Problem], float]
    ) -> tuple[float, str] | None:
        """Seconds of a call and what they were scaled up from; None for problems too small to matter."""
        if key not in self._seen:
            if problem.flops < 4 * PROBE_FLOPS:
                return None
            small = smaller(problem)
            if small is None or small.flops < 1:
                return None
            self._seen[key] = (small.flops, probe(small), str(small))
        flops, seconds, source = self._seen[key]
        return seconds * problem.flops / flops, f"{1e3 * seconds:.3g} ms for {source}"
