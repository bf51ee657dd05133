"""The time budget: who may run when not everything fits, and for how long.

Where everything fits, each row gets time in proportion to what it should take. Where it does not, the dearest rows are
skipped until the rest fits: a slow method loses its largest cases, and no fast one pays for it. First calls, which
compile, are not of the budget: they happen once a machine and say nothing about a method.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convforge.benchmark.row import Row, in_words
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, GemmProblem, Problem

# What a row costs whatever its size, what checking costs for every output, and how many calls a row takes at least: a
# first and a timed one, the check's, a lap, and one that finds the batch and three samples for each of two timings. A
# quick row has one timing of five samples.
ROW_S = 0.05
ROW_S_PER_OUTPUT = 20e-9
ROW_CALLS = 18
QUICK_ROW_CALLS = 10
# What a method of medium speed reaches on one core: a guess, until a method was seen.
NOMINAL_FLOPS_PER_S = 4e9
NOMINAL_BYTES_PER_S = 4e9
# What a case costs beside its rows: inputs, truth and limits for every output, on two cores of the host, until a case
# was seen; and so many calls of its fastest method in the final, which never takes longer than its limit.
CASE_S_PER_OUTPUT = 200e-9
SEEN_OUTPUTS = 10**5
FINAL_CALLS = 20
# Costs are forecast roughly, and small rows go first: of what is left, this much is given away.
CERTAIN = 0.8
FINAL_LIMIT_S = 5.0
# Without a budget, no row may take longer.
ROW_LIMIT_S = 30.0
PROBE_FLOPS = 2 * 10**7
# Below this a call's fixed cost hides what its size costs: no prediction is scaled up from it.
SCALABLE_S = 1e-3
SCALABLE_GPU_S = 2e-5
SCALABLE_FLOPS = 10**6


def weight(problem: Problem) -> float:
    """Seconds that one call of this problem should take by a method of medium speed."""
    return problem.flops / NOMINAL_FLOPS_PER_S + problem.least_bytes / NOMINAL_BYTES_PER_S


class Budget:
    """Decides which rows may run, and for how long.

    Parameters
    ----------
    total_s : float or None
        None: no total, only :data:`ROW_LIMIT_S` a row.
    rows : sequence of Row
        All that are to come.
    forecast : Forecast
        What a call of a row should take.
    calls : int
        Calls that a row takes at least.

    Attributes
    ----------
    total_s, calls
        As they were given.
    """

    def __init__(
        self,
        total_s: float | None,
        rows: Sequence[Row],
        forecast: Forecast,
        *,
        calls: int = ROW_CALLS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_s = total_s
        self._forecast = forecast
        self.calls = calls
        self._clock = clock
        self._case_s_per_output = CASE_S_PER_OUTPUT
        self._end = None if total_s is None else clock() + total_s
        self._rows = {row.place: _Sizes.of(row) for row in rows if row.refusal is None}
        self._finals: dict[str, list[_Sizes]] = {}
        for sizes in self._rows.values():
            self._finals.setdefault(sizes.case, []).append(sizes)

    @property
    def remaining_s(self) -> float:
        """Seconds left of the total."""
        return math.inf if self._end is None else max(self._end - self._clock(), 0.0)

    @property
    def spent(self) -> Reason:
        """Reason why nothing runs any more."""
        return Reason("the budget of {budget} was spent", budget=f"{self.total_s:g} s")

    def cost(self, row: Row, call_s: float | None = None) -> float:
        """Seconds that a row takes at least, where a call takes `call_s` or what was forecast."""
        return self._cost(_Sizes.of(row), call_s)

    def allows(self, row: Row, call_s: float | None = None) -> bool:
        """True if a row may run: with it, all later rows that cost no more fit into the rest of the budget."""
        return self.refusal(row, call_s) is None

    def refusal(self, row: Row, call_s: float | None = None) -> Reason | None:
        """Return why a row may not run, with its need and the rest of the budget, or None."""
        cost = self.cost(row, call_s)
        if self._end is None:
            long = Reason("its row would take about {time}", time=in_words(cost))
            limit = Reason("no row may take longer than {limit}", limit=f"{ROW_LIMIT_S:g} s")
            return None if cost <= ROW_LIMIT_S else Reason.joined([long, limit])
        others = [self._cost(sizes) for key, sizes in self._rows.items() if key != row.place]
        needed = cost + sum(other for other in others if other <= cost) + self._cases_s(cost)
        left = self.remaining_s
        if needed <= CERTAIN * left:
            return None
        if left <= 0:
            return self.spent
        return Reason.joined(
            [
                Reason(
                    "its row would take about {time}, with what is cheaper and still to come {needed}",
                    time=in_words(cost),
                    needed=in_words(needed),
                ),
                Reason(
                    "{left} of {budget} are left, {kept} % of them in reserve",
                    left=in_words(left),
                    budget=f"{self.total_s:g} s",
                    kept=f"{100 * (1 - CERTAIN):.0f}",
                ),
            ]
        )

    def share(self, row: Row) -> float:
        """Seconds that a row may take: what it costs, and its part of what will be left over."""
        if self._end is None:
            return ROW_LIMIT_S
        cost, costs = self.cost(row), sum(map(self._cost, self._rows.values()))
        share = cost * max((CERTAIN * self.remaining_s - self._cases_s()) / max(costs, cost), 1.0)
        return min(share, self.remaining_s)

    def case_share(self, rows: Sequence[Row]) -> float:
        """Seconds that a case's truth may take: what its rows may, or its part of what is left where that is more."""
        part = self.remaining_s / max(len(self._finals), 1)
        return min(self.remaining_s, max(part, sum(self.share(row) for row in rows)))

    def learn_case(self, row: Row, seconds: float) -> None:
        """Inputs, truth and limits of a row's case took so long."""
        outputs = _Sizes.of(row).outputs
        if outputs >= SEEN_OUTPUTS:
            self._case_s_per_output = seconds / outputs

    def final_share(self, case: str) -> float:
        """Seconds that the final of a case may take; it is then off the list."""
        cost = self._final_s(self._finals.pop(case, []))
        costs = cost + self._cases_s() + sum(map(self._cost, self._rows.values()))
        return min(cost * max(self.remaining_s / max(costs, 1e-9), 1.0), self.remaining_s, FINAL_LIMIT_S)

    def forgive(self, seconds: float) -> None:
        """Time that is not the budget's: compiling, which happens once a machine."""
        if self._end is not None:
            self._end += seconds

    def done(self, row: Row) -> None:
        """A row has ended: what it left over is the others'."""
        self._rows.pop(row.place, None)

    def _cost(self, sizes: _Sizes, call_s: float | None = None) -> float:
        calls_s = self.calls * (self._call_s(sizes) if call_s is None else call_s)
        return ROW_S + ROW_S_PER_OUTPUT * sizes.outputs + calls_s

    def _call_s(self, sizes: _Sizes) -> float:
        rate = self._forecast.seconds_per_flop(*sizes.keys)
        return sizes.nominal_s if rate is None else sizes.flops * rate

    def _cases_s(self, most: float = math.inf) -> float:
        """Seconds for all that the cases to come take beside their rows, where any row costs no more than `most`."""
        return sum(self._final_s(rows) for rows in self._finals.values() if min(map(self._cost, rows)) <= most)

    def _final_s(self, rows: Sequence[_Sizes]) -> float:
        if not rows:
            return 0.0
        return ROW_S + self._case_s_per_output * rows[0].outputs + FINAL_CALLS * min(map(self._call_s, rows))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Features of a row that its cost follows from."""

    case: str
    keys: tuple[tuple[str, ...], ...]
    flops: int
    outputs: int
    nominal_s: float

    @classmethod
    def of(cls, row: Row) -> _Sizes:
        problem = row.problem
        return cls(row.case.name, row.forecast_keys, problem.flops, problem.outputs, weight(problem))


def smaller(problem: Problem, most_flops: int = PROBE_FLOPS) -> Problem | None:
    """A problem of the same kind that is small enough to try; None where there is none.

    Where 64 or 16 divides a width, or a side of a product, it divides the smaller one too: some methods take no others.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> small = smaller(parse_problem("n8c3h2048w1024_k1r3s3_st1_p1_f32_nchw"))
    >>> small.flops <= PROBE_FLOPS, small.h > small.w
    (True, True)
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
    # Wide layers: the picture is as small as the filter lets it be. Fewer groups, then fewer filters.
    if small.flops > most_flops and small.groups > 1:
        groups = max(1, small.groups * most_flops // small.flops)
        small = small.replace(groups=groups, c=groups * small.c_per_group, k=groups * small.k_per_group)
    if small.flops > most_flops:
        each = max(1, small.k_per_group * most_flops // small.flops)
        small = small.replace(k=small.groups * each)
    return small


# Operation -> a smaller problem of it, given a problem and the most FLOPs.
_SMALLER: dict[str, Callable[[Any, int], Problem]] = {"conv2d": _smaller_convolution, "gemm": _smaller_product}


def _divided_like(original: int, size: int, least: int) -> int:
    """A size near `size`, and no smaller than `least`, that 64 or 16 divides where it divides the original."""
    unit = next(unit for unit in (64, 16, 1) if original % unit == 0 and unit <= max(size, 16))
    rounded = size // unit * unit
    return rounded if rounded >= least else rounded + unit


# Seconds of a call of a problem; None where that problem is refused.
Probe = Callable[[Problem], float | None]


class Forecast:
    """Predicts how long one call takes, from what has been measured so far or from a smaller probe.

    What was seen is kept under keys: a config's, and its method's for configs that were not seen. A method's is what
    its first config took, so that a slow one of many does not speak for the others.
    """

    def __init__(self, scalable_s: float = SCALABLE_S) -> None:
        self._scalable_s = scalable_s
        self._seen: dict[tuple[str, ...], tuple[int, float, str]] = {}

    def seconds_per_flop(self, *keys: tuple[str, ...]) -> float | None:
        """The rate of the largest problem that was seen, under the first key that has one; None before that."""
        found = self._found(keys)
        return None if found is None else found[1] / found[0]

    def learn(self, key: tuple[str, ...], problem: Problem, seconds: float) -> None:
        """`key` took `seconds` for one call of `problem`."""
        if seconds >= self._scalable_s and problem.flops >= SCALABLE_FLOPS:
            self._seen[key] = (problem.flops, seconds, str(problem))

    def predict(
        self, keys: Sequence[tuple[str, ...]], problem: Problem, probe: Probe, most: float = math.inf
    ) -> tuple[float, dict[str, str]] | None:
        """Seconds of a call, and what they were scaled up from: `known`, a time in words, and its `problem`.

        None for problems too small to matter, and for those whose probe is refused. What a probe took is kept under the
        last key.

        A prediction of more than `most` seconds is made again from a probe sixteen times as large, and so on, if that
        should take no more than a quarter of them: small problems keep few cores at work.
        """
        seen = self._found(keys) or self._probed(keys[-1], problem, probe)
        if seen is None:
            return None
        flops, seconds, source = seen
        while seconds * problem.flops / flops > most and 16 * seconds <= most / 4:
            larger = smaller(problem, 16 * flops)
            if larger is None or not flops < larger.flops < problem.flops:
                break
            tried = self._tried(keys[-1], larger, probe)
            if tried is None:
                break
            flops, seconds, source = tried
        return seconds * problem.flops / flops, {"known": f"{1e3 * seconds:.3g} ms", "problem": source}

    def _found(self, keys: Sequence[tuple[str, ...]]) -> tuple[int, float, str] | None:
        return next((self._seen[key] for key in keys if key in self._seen), None)

    def _probed(self, key: tuple[str, ...], problem: Problem, probe: Probe) -> tuple[int, float, str] | None:
        """Time of a much smaller problem."""
        if problem.flops < 4 * PROBE_FLOPS:
            return None
        small = smaller(problem)
        return None if small is None or small.flops < 1 else self._tried(key, small, probe)

    def _tried(self, key: tuple[str, ...], problem: Problem, probe: Probe) -> tuple[int, float, str] | None:
        seconds = probe(problem)
        if seconds is None:
            return None
        self._seen[key] = (problem.flops, seconds, str(problem))
        return self._seen[key]
