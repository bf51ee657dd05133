"""The time budget: decides which rows may run, and for how long.

If all rows fit, each gets time in proportion to its predicted cost. If not, the most expensive rows are skipped until
the rest fit: a slow method loses its largest cases, and fast methods lose nothing. First calls do not count against the
budget: they compile, which happens once per machine and is no property of a method.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from convforge.benchmark.formats import seconds
from convforge.benchmark.row import Row
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, GemmProblem, Problem

# Predicted cost of a row: a fixed part, checking each output, and the fewest calls that a row makes. These are a first
# call, a timed one, those of the check, a lap over the ring, and for each of two timings one call that finds the batch
# size and three samples. A quick row has one timing of five samples.
ROW_S = 0.05
ROW_S_PER_OUTPUT = 20e-9
ROW_CALLS, QUICK_ROW_CALLS = 18, 10
# Assumed rates of an average method on one core, used until a method was measured.
NOMINAL_PER_S = 4e9  # FLOP/s, and bytes/s
# Cost of a case in addition to its rows: inputs, truth and limits of each output, on two host cores (used until a case
# was measured), and the calls of its fastest method in the final. A final takes at most FINAL_LIMIT_S.
CASE_S_PER_OUTPUT = 200e-9
SEEN_OUTPUTS = 10**5
FINAL_CALLS = 20
# Share of the remaining time that is given away: predictions are rough, and small rows go first.
CERTAIN = 0.8
FINAL_LIMIT_S = 5.0
# Most seconds of a row if there is no budget.
ROW_LIMIT_S = 30.0
PROBE_FLOPS = 2 * 10**7
# Shorter calls are dominated by their fixed cost, so no prediction is scaled up from them.
SCALABLE_S, SCALABLE_GPU_S = 1e-3, 2e-5
SCALABLE_FLOPS = 10**6


def weight(problem: Problem) -> float:
    """Seconds of one call of this problem by an average method (:data:`NOMINAL_PER_S`)."""
    return (problem.flops + problem.least_bytes) / NOMINAL_PER_S


class Budget:
    """Decides which rows may run, and for how long.

    Without `total_s`, each row may take :data:`ROW_LIMIT_S`. `rows` are all rows of the run.
    """

    def __init__(
        self, total_s: float | None, rows: Sequence[Row], forecast: Forecast, quick: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.total_s = total_s
        self.calls = QUICK_ROW_CALLS if quick else ROW_CALLS  # fewest calls of a row
        self._forecast = forecast
        self._clock = clock
        self._case_s_per_output = CASE_S_PER_OUTPUT
        self._end = math.inf if total_s is None else clock() + total_s
        self._rows: dict[tuple[str, ...], _Sizes] = {}
        self._finals: dict[str, list[_Sizes]] = {}  # by name of the case
        for row in rows:
            if row.refusal is None:
                sizes = self._rows[row.place] = _Sizes.of(row)
                self._finals.setdefault(row.case.name, []).append(sizes)

    @property
    def remaining_s(self) -> float:
        """Seconds of the total that are left."""
        return max(self._end - self._clock(), 0.0)

    @property
    def spent(self) -> Reason:
        """The reason for skipping a row when no time is left."""
        return Reason("the budget of {budget} was spent", budget=f"{self.total_s:g} s")

    def refusal(self, row: Row, call_s: float | None = None) -> Reason | None:
        """Return the reason to skip a row. None: this row and all later rows that cost no more fit into the budget."""
        cost = self._cost(_Sizes.of(row), call_s)
        if self.total_s is None:
            long = Reason("its row would take about {time}", time=seconds(cost))
            limit = Reason("no row may take longer than {limit}", limit=f"{ROW_LIMIT_S:g} s")
            return None if cost <= ROW_LIMIT_S else Reason.joined([long, limit])
        others = [self._cost(sizes) for key, sizes in self._rows.items() if key != row.place]
        needed = cost + sum(other for other in others if other <= cost) + self._cases_s(cost)
        left = self.remaining_s
        if needed <= CERTAIN * left:
            return None
        if left <= 0:
            return self.spent
        return Reason(
            "its row and the cheaper ones to come need about {needed}, {cost} of it for this row; {left} of {budget} "
            "are left",
            needed=seconds(needed), cost=seconds(cost), left=seconds(left), budget=f"{self.total_s:g} s",
        )  # fmt: skip

    def share(self, row: Row) -> float:
        """Seconds that a row may take: its predicted cost, and its part of the spare time."""
        if self.total_s is None:
            return ROW_LIMIT_S
        cost, costs = self._cost(_Sizes.of(row)), sum(map(self._cost, self._rows.values()))
        share = cost * max((CERTAIN * self.remaining_s - self._cases_s()) / max(costs, cost), 1.0)
        return min(share, self.remaining_s)

    def case_share(self, rows: Sequence[Row]) -> float:
        """Seconds for the truth of a case: the shares of its rows, or an equal part of the time left if longer."""
        part = self.remaining_s / max(len(self._finals), 1)
        return min(self.remaining_s, max(part, sum(map(self.share, rows))))

    def learn_case(self, row: Row, seconds: float) -> None:
        """Record the seconds that the inputs, truth and limits of a row's case took."""
        if row.problem.outputs >= SEEN_OUTPUTS:
            self._case_s_per_output = seconds / row.problem.outputs

    def final_share(self, case: str) -> float:
        """Seconds that the final of a case may take. The case then no longer counts as pending."""
        cost = self._final_s(self._finals.pop(case, []))
        costs = cost + self._cases_s() + sum(map(self._cost, self._rows.values()))
        return min(cost * max(self.remaining_s / max(costs, 1e-9), 1.0), self.remaining_s, FINAL_LIMIT_S)

    def forgive(self, seconds: float) -> None:
        """Extend the budget by the time of a compilation, which happens once per machine."""
        self._end += seconds

    def done(self, row: Row) -> None:
        """Remove a finished row: the other rows share the rest of its time."""
        self._rows.pop(row.place, None)

    def _cost(self, sizes: _Sizes, call_s: float | None = None) -> float:
        """The fewest seconds that a row takes, if a call takes `call_s` or by default its forecast."""
        calls_s = self.calls * (self._call_s(sizes) if call_s is None else call_s)
        return ROW_S + ROW_S_PER_OUTPUT * sizes.outputs + calls_s

    def _call_s(self, sizes: _Sizes) -> float:
        rate = self._forecast.seconds_per_flop(*sizes.keys)
        return sizes.nominal_s if rate is None else sizes.flops * rate

    def _cases_s(self, most: float = math.inf) -> float:
        """Seconds for inputs, truths and finals of all pending cases that have a row of at most `most` seconds."""
        return sum(self._final_s(rows) for rows in self._finals.values() if min(map(self._cost, rows)) <= most)

    def _final_s(self, rows: Sequence[_Sizes]) -> float:
        if not rows:
            return 0.0
        return ROW_S + self._case_s_per_output * rows[0].outputs + FINAL_CALLS * min(map(self._call_s, rows))


class _Sizes(NamedTuple):
    """Features of a row that determine its predicted cost."""

    keys: tuple[tuple[str, ...], ...]
    flops: int
    outputs: int
    nominal_s: float

    @classmethod
    def of(cls, row: Row) -> _Sizes:
        return cls(row.forecast_keys, row.problem.flops, row.problem.outputs, weight(row.problem))


def smaller(problem: Problem, most_flops: int = PROBE_FLOPS) -> Problem | None:
    """Return a problem of the same kind that is small enough to try, or None if there is none.

    If 64 or 16 divides a width or a side of a matrix product, it also divides the smaller one: some methods require it.
    """
    shrink = _SMALLER.get(problem.operation)
    return None if shrink is None else shrink(problem, most_flops)


def _smaller_product(problem: GemmProblem, most_flops: int) -> GemmProblem:
    side = math.floor((most_flops / 2) ** (1 / 3))
    m, n, k = (_divided_like(size, min(size, side), min(size, 1)) for size in problem.sides)
    return replace(problem, m=m, n=n, k=k)


def _smaller_convolution(problem: Conv2dProblem, most_flops: int) -> Conv2dProblem:
    small = problem.replace(n=min(problem.n, 1))
    shrink = math.sqrt(min(most_flops / max(small.flops, 1), 1.0)) * 0.95
    if shrink < 0.95:
        least_h, least_w = (
            min(size, extent + max(small.padding))
            for size, extent in ((small.h, small.extent_h), (small.w, small.extent_w))
        )
        small = small.replace(
            h=max(int(small.h * shrink), least_h),
            w=_divided_like(small.w, max(int(small.w * shrink), least_w), least_w),
        )
    # Layers with many channels: the image is as small as the filter allows. Reduce the groups, then the filters.
    if small.flops > most_flops and small.groups > 1:
        groups = max(1, small.groups * most_flops // small.flops)
        small = small.replace(groups=groups, c=groups * small.c_per_group, k=groups * small.k_per_group)
    if small.flops > most_flops:
        each = max(1, small.k_per_group * most_flops // small.flops)
        small = small.replace(k=small.groups * each)
    return small


# Operation -> function that makes a smaller problem from a problem and the most FLOPs.
_SMALLER: dict[str, Callable[[Any, int], Problem]] = {"conv2d": _smaller_convolution, "gemm": _smaller_product}


def _divided_like(original: int, size: int, least: int) -> int:
    """Round `size`, to no less than `least`, so that 64 or 16 divides it if that divides the original."""
    unit = next(unit for unit in (64, 16, 1) if original % unit == 0 and unit <= max(size, 16))
    rounded = size // unit * unit
    return rounded if rounded >= least else rounded + unit


# Returns the seconds of one call of a problem, or None if the method refuses that problem.
Probe = Callable[[Problem], float | None]


class Forecast:
    """Predicts how long one call takes, from earlier measurements or from a smaller problem (probe).

    Times are stored under two keys: the config's, and the method's, which serves configs that were not measured. The
    method's time is that of its first config, so that one slow config does not count for the others.
    """

    def __init__(self, backend: str = "cpu") -> None:
        self._scalable_s = SCALABLE_GPU_S if backend == "cuda" else SCALABLE_S
        self._seen: dict[tuple[str, ...], tuple[int, float, str]] = {}  # FLOPs, seconds, problem

    def seconds_per_flop(self, *keys: tuple[str, ...]) -> float | None:
        """Seconds per FLOP of the largest measured problem, under the first key that has one; None without one."""
        found = self._found(keys)
        return None if found is None else found[1] / found[0]

    def learn(self, key: tuple[str, ...], problem: Problem, seconds: float) -> None:
        """Store the seconds of one call of `problem` under `key`."""
        if seconds >= self._scalable_s and problem.flops >= SCALABLE_FLOPS:
            self._seen[key] = (problem.flops, seconds, str(problem))

    def predict(
        self, keys: Sequence[tuple[str, ...]], problem: Problem, probe: Probe, most: float = math.inf
    ) -> tuple[float, dict[str, str]] | None:
        """Predict the seconds of a call, and return their source: time `known`, as text, of the measured `problem`.

        Return None if the problem is too small to matter, or if the probe is refused. The time of a probe is stored
        under the last key. Small problems use few cores: so if more than `most` seconds are predicted, a probe with
        sixteen times the FLOPs is tried, and so on, as long as that should take at most a quarter of `most`.
        """
        seen = self._found(keys)
        if seen is None and problem.flops >= 4 * PROBE_FLOPS:
            seen = self._tried(keys[-1], smaller(problem), probe)
        while seen is not None:
            flops, known, source = seen
            predicted = known * problem.flops / flops
            larger = smaller(problem, 16 * flops) if predicted > most and 16 * known <= most / 4 else None
            able = larger is not None and flops < larger.flops < problem.flops
            seen = self._tried(keys[-1], larger, probe) if able else None
            if seen is None:
                return predicted, {"known": seconds(known), "problem": source}
        return None

    def _found(self, keys: Sequence[tuple[str, ...]]) -> tuple[int, float, str] | None:
        return next((self._seen[key] for key in keys if key in self._seen), None)

    def _tried(self, key: tuple[str, ...], problem: Problem | None, probe: Probe) -> tuple[int, float, str] | None:
        if problem is None or problem.flops < 1 or (taken := probe(problem)) is None:
            return None
        self._seen[key] = (problem.flops, taken, str(problem))
        return self._seen[key]
