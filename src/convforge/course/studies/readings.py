"""Timed results of a run as rules read them: one for each method and case, in pairs, and in series along an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from convforge.benchmark.records import Result, Run
from convforge.course.studies.finding import Datum, Finding
from convforge.problem import Conv2dProblem, Problem, parse_problem
from convforge.problem.types import allows
from convforge.timing.ranking import order, rank
from convforge.timing.timer import Timing

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Reading:
    """A timed result."""

    result: Result
    problem: Any
    timing: Timing
    method: str  # the algorithm, with its arithmetic in parentheses if that is opt-in and not part of the name

    @property
    def case(self) -> str:
        return self.result.case

    @property
    def seconds(self) -> float:
        """Median time of a call."""
        return self.timing.median_s

    @property
    def flops_per_s(self) -> float:
        """Nominal FLOP/s."""
        return self.result.flops / self.seconds

    @property
    def strict(self) -> bool:
        """True if the problem allows the method's arithmetic, so that the method is ranked."""
        return allowed(self.result, self.problem)

    def datum(self, what: str = "time") -> Datum:
        """Return the median as a figure of a finding."""
        return Datum.of(self.case, self.method, self.result.config, self.timing, what)


Timed = TypeVar("Timed", Reading, Result)


def allowed(result: Result, problem: Problem) -> bool:
    """True if the problem allows the arithmetic of the result."""
    return allows(problem.precision, result.precision)


def device_backend(run: Run) -> str:
    """Backend of the device that the run is about; a study may also time the host."""
    facts = run.machine.get("facts", {})
    return str(facts.get("backend") or next((r.backend for r in run.results), "cpu"))


def readings(
    run: Run,
    operation: str,
    *,
    backend: str | None = None,
    pick: Callable[[Run, Result], Timing | None] | None = None,
    every_config: bool = False,
) -> list[Reading]:
    """Return the timed results of an operation: the fastest config of each method and case, or every config.

    `backend` defaults to that of the run's device. `pick` chooses the timing; the default is the one of the final
    comparison if there is one, or otherwise the row's.
    """
    backend, timing_of = backend or device_backend(run), pick or Run.timing
    found: dict[tuple[str, ...], Reading] = {}
    for r in run.results:
        timing = timing_of(run, r)
        if r.operation != operation or r.backend != backend or timing is None:
            continue
        problem = parse_problem(r.problem)
        plain = allowed(r, problem) or r.precision in r.algorithm
        method = r.algorithm if plain else f"{r.algorithm} ({r.precision})"
        key = (r.case, r.algorithm, r.config if every_config else "")
        if key not in found or timing.median_s < found[key].seconds:
            found[key] = Reading(r, problem, timing, method)
    return list(found.values())


def by_case(found: Iterable[Timed]) -> dict[str, list[Timed]]:
    """Group readings or results by case, and keep their order."""
    cases: dict[str, list[Timed]] = {}
    for one in found:
        cases.setdefault(one.case, []).append(one)
    return cases


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names without duplicates, in their order."""
    return list(dict.fromkeys(names))


def fastest(found: Iterable[Reading]) -> Reading:
    """Return the reading with the smallest median."""
    return min(found, key=lambda r: r.seconds)


def data_of(found: Iterable[Reading]) -> tuple[Datum, ...]:
    """Return the times of readings as figures."""
    return tuple(r.datum() for r in found)


def leading(found: Iterable[Reading]) -> tuple[Datum, ...]:
    """Return the times of the two fastest readings as figures."""
    return data_of(sorted(found, key=lambda r: r.seconds)[:2])


def ranked(points: Mapping[Place, Sequence[Reading]]) -> tuple[dict[Place, list[Reading]], list[str]]:
    """Return the readings that share the lead at each place, and the names of the places that are too noisy to rank.

    A finding lists the noisy places under "unsure" and makes no other statement about them.
    """
    leaders: dict[Place, list[Reading]] = {}
    unsure: list[str] = []
    for place, found in points.items():
        ranking = rank(found, lambda r: r.timing)
        if ranking.unsure:
            unsure.append(f"{place} ({', '.join(distinct(r.method for r in ranking.unsure))})")
        else:
            leaders[place] = list(ranking.leaders)
    return leaders, unsure


def spanned(ratios: Mapping[str, float]) -> dict[str, Any]:
    """Return the smallest and the largest ratio, each with its case."""
    least, most = min(ratios, key=lambda c: ratios[c]), max(ratios, key=lambda c: ratios[c])
    return {"least": ratios[least], "least_case": least, "most": ratios[most], "most_case": most}


Holds = Callable[[Reading], bool]


def named(name: str) -> Holds:
    """Return a predicate for the readings of this method."""
    return lambda r: r.method == name


def pairs(points: Mapping[Place, Sequence[Reading]], own: Holds, other: Holds) -> dict[Place, tuple[Reading, Reading]]:
    """Return the fastest readings of two kinds for each place where both were timed."""
    found = {}
    for place, rs in points.items():
        both = [[r for r in rs if holds(r)] for holds in (own, other)]
        if all(both):
            found[place] = (fastest(both[0]), fastest(both[1]))
    return found


@dataclass(frozen=True, slots=True)
class Comparison(Generic[Place]):
    """Comparison of two kinds of readings, place by place."""

    pairs: dict[Place, tuple[Reading, Reading]]  # the own and the other reading, at places that can be ranked
    unsure: list[str]  # the places that are too noisy to rank

    @property
    def gains(self) -> dict[Place, float]:
        """The other's time divided by the own time, for each place."""
        return {place: other.seconds / own.seconds for place, (own, other) in self.pairs.items()}

    @property
    def split(self) -> dict[str, list[Place]]:
        """Places where the own reading is "faster", "slower" and "level"."""
        orders = {place: order(own.timing, other.timing) for place, (own, other) in self.pairs.items()}
        return {name: [p for p, o in orders.items() if o == name] for name in ("faster", "slower", "level")}

    @property
    def form(self) -> str:
        """The order, if it is the same at all places, otherwise "mixed"."""
        return next((name for name, places in self.split.items() if len(places) == len(self.pairs)), "mixed")

    @property
    def data(self) -> tuple[Datum, ...]:
        """All times as figures."""
        return data_of(r for both in self.pairs.values() for r in both)

    def finding(self, rule: str, family: str, values: Mapping[str, Any]) -> Finding:
        """Return a finding of the form "faster", "slower", "level", "mixed", "unsure" or "none"."""
        form = self.form if self.pairs else "unsure" if self.unsure else "none"
        supported = form in ("faster", "slower", "mixed")
        return Finding(rule, f"{family}/{form}", {**values, **self.values}, self.data, supported)

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of a finding about the comparison; `where` lists the places of each order if mixed."""
        gains, split = {str(place): gain for place, gain in self.gains.items()}, self.split
        values = {"n": len(gains), "unsure": self.unsure, "split": split, "wins": len(split["faster"])}
        if gains:
            values |= {"where": split if self.form == "mixed" else {}, "span": spanned(gains),
                       "inverse": spanned({case: 1 / gain for case, gain in gains.items()})}  # fmt: skip
        return values


def versus(found: Iterable[Reading], own: Holds, other: Holds) -> Comparison[str]:
    """Compare the fastest readings of two kinds, case by case."""
    return compare(pairs(by_case(found), own, other))


def compare(both: Mapping[Place, tuple[Reading, Reading]]) -> Comparison[Place]:
    """Compare pairs of readings, leaving out those that are too noisy to rank."""
    certain = {place: ab for place, ab in both.items() if order(ab[0].timing, ab[1].timing) != "unsure"}
    return Comparison(certain, [str(place) for place in both if place not in certain])


@dataclass(frozen=True, slots=True)
class Series:
    """Cases that differ only along one axis."""

    axis: str  # "size", "stride", "filter", "channels" (equal to the number of filters) or "inputs" (channels alone)
    workload: dict[str, Any]  # the parameters that all cases share
    points: dict[int, list[Reading]]  # place -> readings, in ascending order
    apart: dict[str, Any]  # the parameters in which the run's series differ

    @property
    def places(self) -> list[int]:
        return list(self.points)

    @property
    def every(self) -> list[Reading]:
        """Readings at all places."""
        return [reading for point in self.points.values() for reading in point]

    def method(self, name: str) -> dict[int, Reading]:
        """Return the readings of one method along the axis."""
        return {place: r for place, found in self.points.items() for r in found if r.method == name}

    @property
    def methods(self) -> list[str]:
        """Names of all methods, in the order of the file."""
        return distinct(r.method for r in self.every)

    @property
    def load(self) -> dict[str, Any]:
        """Values by which sentences and details name the series."""
        return {"workload": self.workload, "apart": self.apart, "axis": self.axis}

    def best(self, holds: Holds = lambda r: r.strict) -> dict[int, Reading]:
        """Return the fastest reading at each place, by default among the methods with allowed arithmetic."""
        points = {place: [r for r in found if holds(r)] for place, found in self.points.items()}
        return {place: fastest(found) for place, found in points.items() if found}


# Axis -> the convolution fields that vary along it, and the place of a problem on it (None if two sides differ).
_AXES: dict[str, tuple[tuple[str, ...], Callable[[Any], int | None]]] = {
    "size": (("h", "w"), lambda p: int(p.h) if p.h == p.w else None),
    "stride": (("stride",), lambda p: int(p.stride[0]) if p.stride[0] == p.stride[1] else None),
    "filter": (("r", "s", "padding"), lambda p: int(p.r) if p.r == p.s else None),
    "channels": (("c", "k"), lambda p: int(p.c) if p.c == p.k else None),
    "inputs": (("c",), lambda p: int(p.c)),
}


def series(found: Iterable[Reading], axis: str) -> list[Series]:
    """Group convolutions into series along an axis of :class:`Series`; if cases share a place, the first is used."""
    free, place_of = _AXES[axis]
    groups: dict[tuple[Any, ...], dict[int, list[Reading]]] = {}
    kinds: dict[tuple[Any, ...], tuple[Conv2dProblem, str]] = {}
    for r in found:
        p = r.problem
        if not isinstance(p, Conv2dProblem) or (place := place_of(p)) is None:
            continue
        weights = r.result.weights
        rest = (weights, *(getattr(p, f.name) for f in dataclasses.fields(p) if f.name not in free))
        there = groups.setdefault(rest, {}).setdefault(place, [])
        if not there or there[0].case == r.case:
            there.append(r)
        kinds[rest] = p, weights
    several = len({weights for _, weights in kinds.values()}) > 1
    loads = {key: workload(p, free) | ({"weights": weights} if several else {}) for key, (p, weights) in kinds.items()}
    return [Series(axis, loads[key], dict(sorted(points.items())), _apart(loads[key], loads.values()))
            for key, points in groups.items()]  # fmt: skip


def along(run: Run, axis: str, **more: Any) -> list[Series]:
    """Return the series of a run's convolutions along an axis; :func:`readings` explains `more`."""
    return series(readings(run, "conv2d", **more), axis)


def _apart(load: Mapping[str, Any], every: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Entries in which a workload differs from others; channels and filters are listed together."""
    names = {name for name in load if any(other.get(name) != load[name] for other in every)}
    names |= {"c", "k"} if names & {"c", "k"} else set()
    return {name: value for name, value in load.items() if name in names}


def workload(p: Conv2dProblem, free: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parameters of a convolution, except those that vary."""
    stride = p.stride[0] if p.stride[0] == p.stride[1] else f"{p.stride[0]}x{p.stride[1]}"
    # Name -> the varying field that removes it, and the value.
    said = {"n": ("n", p.n), "images": ("h", f"{p.h}x{p.w}"), "c": ("c", p.c), "k": ("k", p.k),
            "groups": ("groups", p.groups), "filter": ("r", f"{p.r}x{p.s}"), "stride": ("stride", stride),
            "layout": ("x_layout", p.x_layout)}  # fmt: skip
    return {name: value for name, (field, value) in said.items() if field not in free and value != "NCHW"}


def stretches(winners: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
    """Split an axis into stretches with the same fastest method; neighbours join if they share one of the fastest.

    The entry "level" of a stretch lists the places where several methods share the lead.

    Examples
    --------
    >>> for stretch in stretches({32: ["a"], 64: ["a", "b"], 128: ["b"]}):
    ...     print(stretch)
    {'methods': ['a'], 'first': 32, 'last': 64, 'level': [64]}
    {'methods': ['b'], 'first': 128, 'last': 128, 'level': []}
    """
    found: list[dict[str, Any]] = []
    for place, methods in winners.items():
        common = [name for name in found[-1]["methods"] if name in methods] if found else []
        if common:
            found[-1] |= {"methods": common, "last": place}
        else:
            found.append({"methods": list(methods), "first": place, "last": place, "level": []})
        if len(methods) > 1:
            found[-1]["level"].append(place)
    return found
