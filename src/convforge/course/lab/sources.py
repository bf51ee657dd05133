"""The kernels as they are in the package, each beside its measured times."""

from __future__ import annotations

from dataclasses import dataclass

from convforge.algorithms import algorithms
from convforge.backends.facts import DeviceFacts
from convforge.backends.sources import PACKAGE, read_file
from convforge.benchmark.digests import code_files, stored_problem
from convforge.course.lab.book import Book
from convforge.course.language import gettext
from convforge.course.report import numbers, tables
from convforge.course.report.records import Entry, View
from convforge.course.report.table import Cell, Column, Table, optional
from convforge.course.studies.readings import device_backend

# Cases of a method beside its source: the largest.
MOST_CASES = 6


@dataclass(frozen=True, slots=True)
class Kernel:
    """A method of ours, and a table of its largest cases; it is stale where some of their times are of an older text.

    Each of its files has a name within the package and a text; code that all methods share is not among them.
    """

    name: str
    summary: str
    files: tuple[tuple[str, str], ...]
    measured: Table
    stale: bool


def kernels(book: Book) -> list[Kernel]:
    """Every method of ours that has a time, in the order of the list of methods."""
    backend, facts = device_backend(book.run), DeviceFacts.from_table(book.run.machine["facts"])
    timed: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in book.whole.best:
        timed.setdefault((backend, entry.result.operation, entry.result.algorithm), []).append(entry)
    found = []
    for method in algorithms():
        if entries := timed.get((method.backend, method.operation, method.name)):
            shown = sorted(entries, key=lambda e: (-e.result.least_bytes, -e.result.flops))[:MOST_CASES]
            code = code_files(method, [stored_problem(method, entry.result.problem) for entry in shown], facts)
            files = tuple(
                (file.relative_to(PACKAGE).as_posix(), read_file(file).decode().replace("\r\n", "\n")) for file in code
            )
            table = _measured(book.whole, method.name, shown)
            summary = gettext(method.summary)
            found.append(Kernel(method.name, summary, files, table, any(entry.stale for entry in shown)))
    return found


def _measured(view: View, name: str, entries: list[Entry]) -> Table:
    columns = (
        Column(gettext("case")),
        Column(gettext("time"), True),
        Column(gettext("spread"), True),
        Column("GFLOP/s", True),
        Column(gettext("of the roof"), True,
               gettext("share of what copy bandwidth and FMA peak allow at this intensity")),
        Column(gettext("registers"), True, gettext("of a thread, in the launch that takes most")),
        tables.occupied(),
        Column(gettext("against the fastest"), True, gettext("its time over that of the fastest method on the case")),
        Column(gettext("config"), wide=True),
    )  # fmt: skip
    rows = tuple(_row(view, entry) for entry in entries)
    return Table(f"kernel-{name}", gettext("Times of {method}").format(method=name), columns, rows)


def _row(view: View, entry: Entry) -> tuple[Cell, ...]:
    r, timing, limit = entry.result, entry.timing, view.roof(entry)
    assert timing is not None
    # Weights may be copied or packed in a launch of their own, before.
    launch = max(r.launches, key=lambda about: about.get("registers") or 0, default={})
    share = entry.gflops / limit if entry.gflops and limit else None
    fastest = view.verdicts[r.case].fastest
    best = view.run.timing(fastest[0]) if fastest else None
    signs = ("~" if timing.noisy else "") + ("*" if entry.stale else "")
    return (
        Cell(r.case),
        Cell(signs + numbers.seconds(timing.median_s), timing.median_s),
        Cell(f"±{numbers.percent(timing.spread)}", timing.spread),
        optional(entry.gflops, numbers.three),
        optional(share, numbers.percent),
        optional(launch.get("registers"), lambda n: f"{n:.0f}"),
        optional(entry.occupancy, numbers.percent),
        optional(None if best is None else timing.median_s / best.median_s, numbers.ratio),
        Cell(r.config or "–"),
    )
