"""Whether two methods of a published table stand in the same order here: theirs against ours, pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from convforge.benchmark.records import Result
from convforge.course.report.records import Entry
from convforge.course.studies import Datum, Finding
from convforge.course.studies.words import render
from convforge.timing.ranking import order

RULE = "order-here"
ENGLISH = {
    "order/holds": "{a} is faster than {b} on {led} of {n:count case} there, and their order is the same here on "
    "{n:each case}: on {case}, the largest, {b} takes {theirs:times} the time of {a} there and {here:times} here.",
    "order/turns": "{a} is faster than {b} on {led} of {n:count case} there, and their order is the other way round "
    "here on {n:each case}: on {case}, the largest, {b} takes {theirs:times} the time of {a} there and {here:times} "
    "here.",
    "order/mixed": "{a} is faster than {b} on {led} of {n:count case} there; their order is the same here on {same}, "
    "the other way round on {turned}, and level on {level}: on {case}, the largest, {b} takes "
    "{theirs:times} the time of {a} there and {here:times} here.",
    "order/unsure": "Whether the order of {a} and {b} is the same here as there cannot be told.",
}


@dataclass(frozen=True, slots=True)
class Both:
    """Two methods on one case, in the published table and here."""

    theirs: tuple[Result, Result]
    here: tuple[Entry, Entry]

    @property
    def ratios(self) -> tuple[float, float]:
        """The second method's time over the first's, there and here."""
        a, b = self.theirs
        mine, other = (entry.seconds or 0.0 for entry in self.here)
        return _seconds(b) / _seconds(a), other / mine

    @property
    def order(self) -> str:
        """Whether their order is the "same" here, "turned", "level" in one of the two, or "unsure": too noisy here."""
        a, b = (entry.timing for entry in self.here)
        assert a is not None
        assert b is not None
        there, verdict = self.ratios[0], order(a, b)
        if verdict == "unsure":
            return "unsure"
        if there == 1 or verdict == "level":
            return "level"
        return "same" if (verdict == "faster") == (there > 1) else "turned"


def orders(cases: Mapping[str, tuple[list[Result], Mapping[str, Entry]]], doubted: set[str]) -> Iterator[Finding]:
    """A finding for each two methods that were timed on the same cases there and here.

    Parameters
    ----------
    cases : mapping
        Case -> its published results, and those of this machine by method.
    doubted : set of str
        Methods whose published figures are doubtful: what rests on them is not supported.
    """
    names = dict.fromkeys(r.algorithm for theirs, _ in cases.values() for r in theirs)
    for pair in combinations(names, 2):
        found = {}
        for case, (theirs, here) in cases.items():
            there = {r.algorithm: r for r in theirs}
            if all(name in there and name in here for name in pair):
                found[case] = Both((there[pair[0]], there[pair[1]]), (here[pair[0]], here[pair[1]]))
        if found:
            yield _finding(found, supported=doubted.isdisjoint(pair))


def sentence(finding: Finding) -> str:
    """What a finding says, in the language of this place."""
    return render(finding, ENGLISH)


def _finding(found: Mapping[str, Both], *, supported: bool) -> Finding:
    unsure = [case for case, both in found.items() if both.order == "unsure"]
    told = {case: both for case, both in found.items() if case not in unsure}
    found = told or found
    led = sum(both.ratios[0] > 1 for both in found.values())
    if 2 * led < len(found):  # the one that is faster on most of them is named first
        found = {case: Both(both.theirs[::-1], both.here[::-1]) for case, both in found.items()}
        led = sum(both.ratios[0] > 1 for both in found.values())
    first = next(iter(found.values()))
    about: dict[str, Any] = {"a": first.theirs[0].algorithm, "b": first.theirs[1].algorithm, "unsure": unsure}
    if not told:
        return Finding(RULE, "order/unsure", about, supported=False)
    every = [both.order for both in found.values()]
    form = {"same": "holds", "turned": "turns"}.get(every[0], "mixed") if len(set(every)) == 1 else "mixed"
    case = max(found, key=lambda name: found[name].theirs[0].least_bytes)
    theirs, here = found[case].ratios
    values = about | {
        "led": led, "n": len(found),
        "case": case, "theirs": theirs, "here": here,
        **{name: every.count(name) for name in ("same", "turned", "level")},
    }  # fmt: skip
    data = [datum for case, both in found.items() for datum in _data(case, both)]
    return Finding(RULE, f"order/{form}", values, tuple(data), supported)


def _data(case: str, both: Both) -> Iterator[Datum]:
    for r in both.theirs:
        yield Datum(case, r.algorithm, r.config, "published_time", _seconds(r))
    for entry in both.here:
        assert entry.timing is not None
        yield Datum.of(case, entry.result.algorithm, entry.result.config, entry.timing)


def _seconds(r: Result) -> float:
    assert r.time is not None
    return r.time.median_s
