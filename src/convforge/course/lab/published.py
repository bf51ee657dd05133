"""The published tables A to D next to this machine's figures: findings from both, and differences in the order.

For each pair of methods in a table, the published order is compared with the measured order, case by case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from convforge.benchmark.records import Result
from convforge.course.lab.book import Book
from convforge.course.language import gettext
from convforge.course.report import numbers
from convforge.course.report.records import Entry
from convforge.course.report.table import Cell, Column, Table, optional
from convforge.course.studies import STUDIES, Datum, Finding, Study
from convforge.course.studies.published import TABLES, Published
from convforge.course.studies.readings import device_backend
from convforge.problem import Conv2dProblem, Problem, parse_problem
from convforge.timing.ranking import order

# Published table -> the study with the rules that read it.
READ_BY = {"A": "size", "B": "gemm", "C": "stride", "D": "stride"}
# Tables published in GFLOP/s; the others are in milliseconds.
IN_RATES = frozenset({"D"})

RULE = "order-here"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published table next to this machine's figures, with the findings of a study's rules."""

    published: Published
    study: Study
    table: Table
    theirs: list[Finding]  # from the published figures; those from doubtful figures are not supported
    orders: list[Finding]  # for each pair of methods, published and here
    matched: int  # number of cases that were also timed here

    @property
    def doubts(self) -> list[str]:
        """Doubts about the table, each with the methods that have the doubtful figures."""
        words, comma = gettext("{doubt} ({methods})"), gettext(", ")
        doubts = self.published.doubts
        return [words.format(doubt=gettext(d.words), methods=comma.join(d.methods)) for d in doubts]


class Pair(NamedTuple):
    """Two methods on one case, in the published table and here."""

    theirs: Sequence[Result]
    here: Sequence[Entry]

    @property
    def ratios(self) -> tuple[float, float]:
        """Time of the second method divided by the first's, published and here."""
        a, b = self.theirs
        mine, other = (entry.seconds or 0.0 for entry in self.here)
        return _seconds(b) / _seconds(a), other / mine

    @property
    def order(self) -> str:
        """Order here: "same", "turned" (reversed), "level" if equal in either table, or "unsure" if too noisy."""
        a, b = (entry.timing for entry in self.here)
        assert a is not None
        assert b is not None
        there, verdict = self.ratios[0], order(a, b)
        if verdict == "unsure":
            return "unsure"
        if there == 1 or verdict == "level":
            return "level"
        return "same" if (verdict == "faster") == (there > 1) else "turned"


def comparisons(book: Book) -> list[Comparison]:
    """Compare every published table with this machine's figures."""
    return [_comparison(book, published) for published in TABLES.values()]


def _comparison(book: Book, published: Published) -> Comparison:
    study = STUDIES[READ_BY[published.name]]
    backend, unit = device_backend(book.run), "GFLOP/s" if published.name in IN_RATES else "ms"
    columns = (
        Column(gettext("case")),
        Column(gettext("method")),
        Column(gettext("theirs, {unit}").format(unit=unit), True),
        Column(gettext("over their fastest"), True,
               gettext("time over that of the fastest method of the case in the same table")),
        Column(gettext("here, {unit}").format(unit=unit), True),
        Column(gettext("over the fastest here"), True,
               gettext("time over that of the fastest method of the case, in one run")),
    )  # fmt: skip
    here: dict[Problem, dict[str, Entry]] = {}  # problem without padding -> method -> its fastest entry
    for entry in sorted(book.whole.best, key=lambda e: e.seconds or 0.0):
        shape = _shape(parse_problem(entry.result.problem))
        here.setdefault(shape, {}).setdefault(entry.result.algorithm, entry)
    # Case -> its published results, and this machine's by method.
    both: dict[str, tuple[list[Result], dict[str, Entry]]] = {}
    for r in published.run.results:
        found = here.get(_shape(parse_problem(r.problem)), {}) if r.backend == backend else {}
        both.setdefault(r.case, ([], found))[0].append(r)
    rows = [row for theirs, found in both.values() for row in _rows(theirs, found, rates=unit == "GFLOP/s")]
    caption = gettext("Published table {name} beside this machine").format(name=published.name)
    return Comparison(
        published,
        study,
        Table(f"published-{published.name}", caption, columns, tuple(rows), filtered=True),
        theirs=list(published.findings(study)),
        orders=list(_orders(both, {method for doubt in published.doubts for method in doubt.methods})),
        matched=sum(bool(found) for _, found in both.values()),
    )


def _rows(theirs: list[Result], here: Mapping[str, Entry], *, rates: bool) -> Iterator[tuple[Cell, ...]]:
    """One row per published method, and one for the fastest here if it was not published."""
    # A single method, such as the host's loop, has no other to compare with.
    flops, best = theirs[0].flops, min(map(_seconds, theirs)) if len(theirs) > 1 else None
    first = min(here.values(), key=lambda e: e.seconds or 0.0, default=None)

    def cells(seconds: float | None, fastest: float | None) -> tuple[Cell, Cell]:
        if seconds is None:
            return Cell(numbers.MISSING), Cell(numbers.MISSING)
        value = flops / seconds / 1e9 if rates else 1e3 * seconds
        return Cell(numbers.three(value), value), optional(fastest and seconds / fastest, numbers.ratio)

    methods: dict[str, Result | None] = {r.algorithm: r for r in theirs}
    if first is not None:
        methods.setdefault(first.result.algorithm, None)
    for name, r in methods.items():
        own = here.get(name)
        label = gettext("{method} (host)").format(method=name) if r is not None and r.backend == "cpu" else name
        yield (
            Cell(theirs[0].case),
            Cell(label, look="best" if own is not None and own is first else ""),
            *cells(None if r is None else _seconds(r), best),
            *cells(None if own is None else own.seconds, None if first is None else first.seconds),
        )


def _shape(problem: Problem) -> Problem:
    """Return a problem without padding, because the published figures do not always state it."""
    return replace(problem, padding=(0, 0, 0, 0)) if isinstance(problem, Conv2dProblem) else problem


def _orders(cases: Mapping[str, tuple[list[Result], Mapping[str, Entry]]], doubted: set[str]) -> Iterator[Finding]:
    """Yield a finding for each pair of methods timed on the same cases in both; unsupported if one is in `doubted`."""
    names = dict.fromkeys(r.algorithm for theirs, _ in cases.values() for r in theirs)
    for pair in combinations(names, 2):
        found = {}
        for case, (theirs, here) in cases.items():
            there = {r.algorithm: r for r in theirs}
            if all(name in there and name in here for name in pair):
                found[case] = Pair([there[name] for name in pair], [here[name] for name in pair])
        if found:
            yield _order(found, supported=doubted.isdisjoint(pair))


def _order(found: Mapping[str, Pair], *, supported: bool) -> Finding:
    unsure = [case for case, pair in found.items() if pair.order == "unsure"]
    sure = {case: pair for case, pair in found.items() if case not in unsure}
    found = sure or found
    led = sum(pair.ratios[0] > 1 for pair in found.values())
    if 2 * led < len(found):  # name the method first that is faster on most cases
        found = {case: Pair(pair.theirs[::-1], pair.here[::-1]) for case, pair in found.items()}
        led = sum(pair.ratios[0] > 1 for pair in found.values())
    a, b = (r.algorithm for r in next(iter(found.values())).theirs)
    if not sure:
        return Finding(RULE, "order/unsure", {"a": a, "b": b, "unsure": unsure}, supported=False)
    every = [pair.order for pair in found.values()]
    form = {"same": "holds", "turned": "turns"}.get(every[0], "mixed") if len(set(every)) == 1 else "mixed"
    case = max(found, key=lambda name: found[name].theirs[0].least_bytes)
    theirs, here = found[case].ratios
    values = {
        "a": a, "b": b, "unsure": unsure, "led": led, "n": len(found), "case": case, "theirs": theirs, "here": here,
        **{name: every.count(name) for name in ("same", "turned", "level")},
    }  # fmt: skip
    data = []
    for name, pair in found.items():
        data += [Datum(name, r.algorithm, r.config, "published_time", _seconds(r)) for r in pair.theirs]
        data += [Datum.of(name, e.result.algorithm, e.result.config, e.timing) for e in pair.here if e.timing]
    return Finding(RULE, f"order/{form}", values, tuple(data), supported)


def _seconds(r: Result) -> float:
    assert r.time is not None
    return r.time.median_s
