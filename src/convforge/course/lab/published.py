"""The published tables A to D, each figure beside this machine's, and what the same rules find in both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from convforge.benchmark.records import Result
from convforge.course.lab.book import Book
from convforge.course.lab.orders import orders
from convforge.course.language import gettext
from convforge.course.report import numbers
from convforge.course.report.records import Entry
from convforge.course.report.table import Cell, Column, Table, optional
from convforge.course.studies import STUDIES, Finding, Study
from convforge.course.studies.published import TABLES, Published
from convforge.course.studies.readings import device_backend
from convforge.problem import Conv2dProblem, Problem, parse_problem

# Published table -> the study whose rules read it.
READ_BY = {"A": "size", "B": "gemm", "C": "stride", "D": "stride"}
# As it was published: GFLOP/s, or milliseconds.
IN_RATES = frozenset({"D"})


@dataclass(frozen=True, slots=True)
class Beside:
    """A published table beside ours.

    Attributes
    ----------
    published : Published
    study : Study
        Whose rules read it.
    table : Table
    theirs : tuple of Finding
        What rests on doubtful figures is not supported.
    orders : tuple of Finding
        Whether the order of each two of their methods holds here; see :mod:`convforge.course.lab.orders`.
    matched : int
        Cases that were timed here too.
    """

    published: Published
    study: Study
    table: Table
    theirs: tuple[Finding, ...]
    orders: tuple[Finding, ...]
    matched: int


def beside(book: Book) -> list[Beside]:
    """Every published table beside this machine's figures."""
    return [_beside(book, published) for published in TABLES.values()]


def doubt_words(published: Published) -> tuple[str, ...]:
    """What is doubtful of a table, each with the methods whose figures are."""
    words = gettext("{doubt} ({methods})")
    return tuple(
        words.format(doubt=gettext(doubt.words), methods=gettext(", ").join(doubt.methods))
        for doubt in published.doubts
    )


def _beside(book: Book, published: Published) -> Beside:
    study = STUDIES[READ_BY[published.name]]
    backend, unit = device_backend(book.run), "GFLOP/s" if published.name in IN_RATES else "ms"
    here = _by_problem(book)
    columns = (
        Column(gettext("case")),
        Column(gettext("method")),
        Column(gettext("theirs, {unit}").format(unit=unit), True),
        Column(
            gettext("over their fastest"),
            True,
            gettext("time over that of the fastest method of the case in the same table"),
        ),
        Column(gettext("here, {unit}").format(unit=unit), True),
        Column(
            gettext("over the fastest here"),
            True,
            gettext("time over that of the fastest method of the case, in one run"),
        ),
    )
    rows: list[tuple[Cell, ...]] = []
    both: dict[str, tuple[list[Result], dict[str, Entry]]] = {}
    for published_rows in _cases(published):
        found = here.get(_shape(parse_problem(published_rows[0].problem)), {})
        if published_rows[0].backend != backend:
            found = {}
        both[published_rows[0].case] = published_rows, found
        rows += _rows(published_rows, found, rates=unit == "GFLOP/s")
    caption = gettext("Published table {name} beside this machine").format(name=published.name)
    table = Table(f"published-{published.name}", caption, columns, tuple(rows), filtered=True)
    doubted = {method for doubt in published.doubts for method in doubt.methods}
    matched = sum(bool(found) for _, found in both.values())
    return Beside(published, study, table, tuple(published.findings(study)), tuple(orders(both, doubted)), matched)


def _cases(published: Published) -> list[list[Result]]:
    """A table's figures by case."""
    cases: dict[str, list[Result]] = {}
    for r in published.run.results:
        cases.setdefault(r.case, []).append(r)
    return list(cases.values())


def _rows(theirs: list[Result], here: dict[str, Entry], *, rates: bool) -> Iterator[tuple[Cell, ...]]:
    """A row a method of theirs, and one for the fastest here where they did not have it."""
    # One method alone has no fastest to be held against: the host's loop, for one.
    flops, best = theirs[0].flops, min(_seconds(r) for r in theirs) if len(theirs) > 1 else None
    first = min(here.values(), key=lambda e: e.seconds or 0.0, default=None)

    def cells(seconds: float | None, fastest: float | None) -> tuple[Cell, Cell]:
        if seconds is None:
            return Cell(numbers.MISSING), Cell(numbers.MISSING)
        value = flops / seconds / 1e9 if rates else 1e3 * seconds
        return Cell(numbers.three(value), value), optional(fastest and seconds / fastest, numbers.ratio)

    names = [r.algorithm for r in theirs]
    more = [first.result.algorithm] if first is not None and first.result.algorithm not in names else []
    for name, r in zip([*names, *more], [*theirs, None], strict=False):
        own = here.get(name)
        label = gettext("{method} (host)").format(method=name) if r is not None and r.backend == "cpu" else name
        yield (
            Cell(theirs[0].case),
            Cell(label, look="best" if own is not None and own is first else ""),
            *cells(None if r is None else _seconds(r), best),
            *cells(None if own is None else own.seconds, None if first is None else first.seconds),
        )


def _seconds(r: Result) -> float:
    assert r.time is not None
    return r.time.median_s


def _by_problem(book: Book) -> dict[Problem, dict[str, Entry]]:
    """Shape of a problem -> method -> its fastest entry."""
    found: dict[Problem, dict[str, Entry]] = {}
    for entry in sorted(book.whole.best, key=lambda e: e.seconds or 0.0):
        shape = _shape(parse_problem(entry.result.problem))
        found.setdefault(shape, {}).setdefault(entry.result.algorithm, entry)
    return found


def _shape(problem: Problem) -> Problem:
    """A problem without its padding, which the published figures have or lack without saying why."""
    return replace(problem, padding=(0, 0, 0, 0)) if isinstance(problem, Conv2dProblem) else problem
