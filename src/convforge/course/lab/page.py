"""The lab as one HTML page that works offline, and as Markdown for a repository or a hand-in.

Both have the same contents: first the answers, then the measurements behind each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from convforge.algorithms import algorithms
from convforge.backends.facts import DeviceFacts
from convforge.backends.sources import PACKAGE, read_file
from convforge.benchmark.digests import code_files, stored_problem
from convforge.course.lab import charts, published, words
from convforge.course.lab.book import Book, Chapter, in_this_language
from convforge.course.language import gettext, in_language
from convforge.course.pages.charts import Panel, unvalidated
from convforge.course.pages.looks import Ink
from convforge.course.pages.page import html, resource, template
from convforge.course.report import machine, numbers, tables
from convforge.course.report.headline import headline
from convforge.course.report.records import Entry, View
from convforge.course.report.summary import gates
from convforge.course.report.table import Cell, Column, Field, Table, number, optional, table, text
from convforge.course.studies.readings import device_backend
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.words import clock_name

# Most rows of a table in the Markdown; the page and the data have all rows.
MOST_ROWS = 40
# Most cases shown next to a method's source, largest first.
MOST_CASES = 6


def render(book: Book, *, title: str = "", code: str = "en", pages: Sequence[tuple[str, str]] = ()) -> str:
    """Render the page as text in the language `code`; the same book always gives the same text.

    The default title names the device. `pages` has names and addresses of the same page in other languages.
    """
    with in_language(code), unvalidated():
        book = in_this_language(book)
        ink = charts.ink_of(book, "page")
        ratios = charts.whole_panels(book, "ratio", ink)
        return html(
            "lab.html.j2",
            {":root": ink},
            css=resource("lab", "lab.css") + _code_colours(),
            title=title or words.title_of(book),
            pages=pages,
            ink=ink,
            chapters=[_chapter(chapter) | _numbers(chapter, ink) for chapter in book.chapters],
            absent=[words.study_name(study.name) for study in book.absent],
            # The chart of single cases is tall (a row for each case), so it is placed separately.
            ratios=[[p for p in ratios if p.key != "ratio-cases"], [p for p in ratios if p.key == "ratio-cases"]],
            verdicts=tables.verdict_table(book.whole),
            roofline=charts.roofline(book, ink),
            names=_names,
            kernels=[(kernel, _highlighted(kernel.files)) for kernel in kernels(book)],
            errors=charts.whole_panels(book, "errors", ink),
            gates=gates(book.whole),
            troubles=tables.trouble_table(book.whole),
            runs=_runs(book),
            ceiling_words=machine.ceiling_words(book.whole),
            **_contents(book),
        )


def markdown(book: Book, *, title: str, drawn: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Render the Markdown in the current language; `drawn` has chart captions and addresses, by study or "roofline"."""
    chapters = [_chapter(chapter) | _times(chapter) for chapter in book.chapters]
    text = template("lab.md.j2").render(
        title=title, chapters=chapters, drawn=drawn, most_rows=MOST_ROWS, **_contents(book)
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _contents(book: Book) -> dict[str, Any]:
    """Parts that page and Markdown share, except the chapters."""
    return {
        "headline": headline(book.whole),
        "cautions": words.cautions_of(book),
        "summary": tables.summary_table(book.whole),
        "roofline_words": words.roofline_words(book),
        "roofline_tables": words.roofline_tables(book),
        "comparisons": [_comparison(found) for found in published.comparisons(book)],
        "error_table": tables.error_table(book.whole),
        "facts": machine.facts(book.whole)[:2],
        "glossary": words.glossary(book),
    }


def _chapter(chapter: Chapter) -> dict[str, Any]:
    study = chapter.study
    return {
        "key": f"study-{study.name}",
        "study": study.name,
        "name": words.study_name(study.name),
        "asks": gettext(study.asks),
        "answer": words.answer(chapter),
        "answers": words.finding_texts(chapter.answers),
        "supported": words.finding_texts(chapter.supported),
        "doubtful": words.finding_texts(chapter.doubtful),
    }


def _numbers(chapter: Chapter, ink: Ink) -> dict[str, Any]:
    return {
        "stale": words.stale_words(entry.stale for entry in chapter.listed.timed),
        "charts": charts.chapter_panels(chapter, ink),
        "results": tables.result_table(chapter.listed, occupancy=chapter.study.view == "blocks"),
        "steps": tables.step_table(chapter.shown),
    }


def _times(chapter: Chapter) -> dict[str, Any]:
    """The table of a chapter in the Markdown.

    Shows the fastest config of each method and case; studies of block shapes and clocks show all, as their subject.
    """
    blocks = chapter.study.view == "blocks"
    clocks = [entry for entry in chapter.listed.timed if entry.result.precision == MISTAKEN]
    entries = [*(chapter.shown.timed if blocks else chapter.shown.best), *clocks]
    fields = [
        text(gettext("case"), lambda e: e.result.case),
        text(gettext("method"), lambda e: e.result.algorithm),
        text(gettext("config"), lambda e: clock_name(e.result.config)),
        *_time(gettext("time, ms"), lambda seconds: numbers.three(1e3 * seconds)),
        *([_occupancy()] if blocks else []),
    ]
    return {"stale": words.stale_words(entry.stale for entry in entries), "times": table("times", "", entries, fields)}


def _time(name: str, write: Callable[[float], str]) -> list[Field]:
    """Columns for time, spread and rate of an entry."""

    def time(entry: Entry) -> Cell:
        assert entry.timing is not None
        signs = "~" * entry.timing.noisy + "*" * entry.stale
        return Cell(signs + write(entry.timing.median_s), entry.timing.median_s)

    return [
        (Column(name, True), time),
        number(gettext("spread"), lambda e: e.timing.spread, lambda spread: f"±{numbers.percent(spread)}"),
        number("GFLOP/s", lambda e: e.gflops, numbers.three),
    ]


def _occupancy() -> Field:
    return tables.occupied(), lambda e: optional(e.occupancy, numbers.percent)


def _comparison(found: published.Comparison) -> dict[str, Any]:
    (orders, doubtful_orders), (theirs, doubtful) = (
        [words.finding_texts(f for f in findings if f.supported is sound) for sound in (True, False)]
        for findings in (found.orders, found.theirs)
    )
    return {
        "name": found.published.name,
        "about": gettext(found.published.about),
        "doubts": found.doubts,
        "table": found.table,
        "matched": found.matched,
        "orders": orders,
        "supported": theirs,
        "doubtful": doubtful_orders + doubtful,
    }


def _names(panels: Iterable[Panel]) -> set[str]:
    return {name for panel in panels for name in panel.names}


def _runs(book: Book) -> Table:
    def ceilings(name: str, of: str) -> Field:
        """Column of ceilings before and after the run, in units of 1e9 per second."""

        def cell(chapter: Chapter) -> Cell:
            found = [getattr(ceilings, of) for _, ceilings in chapter.run.ceilings]
            return Cell(" / ".join(numbers.three(v / 1e9) for v in found) or numbers.MISSING, max(found, default=None))

        return Column(name, True, gettext("before / after the run")), cell

    def commit(chapter: Chapter) -> Cell:
        run = chapter.run
        return Cell(gettext("not known") if run.commit is None else run.commit[:10] + " +" * run.dirty)

    fields = (
        text(gettext("study"), lambda c: c.study.name),
        text(gettext("run"), lambda c: c.run.run),
        text(gettext("started"), lambda c: c.run.started[:16].replace("T", " ")),
        number(gettext("rows"), lambda c: len(c.run.results)),
        number(gettext("timed"), lambda c: sum(r.time is not None for r in c.run.results)),
        text(gettext("finished"), lambda c: gettext("yes") if c.run.complete else gettext("no")),
        ceilings(gettext("copy, GB/s"), "copy_bytes_per_s"),
        ceilings(gettext("float32 FMA, GFLOP/s"), "fma_flops_per_s"),
        (Column(gettext("commit"), meaning=gettext("+: with uncommitted changes")), commit),
    )
    return table("runs", gettext("The runs behind this page"), book.chapters, fields)


# The package's kernels, each with its measured times.


class Kernel(NamedTuple):
    """A method of ours, with a table of its largest cases; stale if a source has changed since one of them was timed.

    `files` holds the name within the package and the text of each file, without code that all methods share.
    """

    name: str
    summary: str
    files: tuple[tuple[str, str], ...]
    measured: Table
    stale: bool


def kernels(book: Book) -> list[Kernel]:
    """Return every timed method of ours, in the order of the list of methods."""
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
            measured, stale = _measured(book.whole, method.name, shown), any(entry.stale for entry in shown)
            found.append(Kernel(method.name, gettext(method.summary), files, measured, stale))
    return found


def _measured(view: View, name: str, entries: list[Entry]) -> Table:
    def share(entry: Entry) -> float | None:
        limit = view.roof(entry)
        return entry.gflops / limit if entry.gflops and limit else None

    def registers(entry: Entry) -> float | None:
        # The maximum, because a separate launch before may copy or pack the weights.
        return max((launch.get("registers") or 0 for launch in entry.result.launches), default=0) or None

    def over_best(entry: Entry) -> float | None:
        fastest = view.verdicts[entry.result.case].fastest
        best = view.run.timing(fastest[0]) if fastest else None
        return None if best is None or entry.seconds is None else entry.seconds / best.median_s

    roof = gettext("share of what copy bandwidth and FMA peak allow at this intensity")
    fastest = gettext("its time over that of the fastest method on the case")
    fields = (
        text(gettext("case"), lambda e: e.result.case),
        *_time(gettext("time"), numbers.seconds),
        number(gettext("of the roof"), share, numbers.percent, roof),
        number(gettext("registers"), registers, "{:.0f}".format, gettext("of a thread, in the launch that takes most")),
        _occupancy(),
        number(gettext("against the fastest"), over_best, numbers.ratio, fastest),
        text(gettext("config"), lambda e: e.result.config or numbers.MISSING, wide=True),
    )
    return table(f"kernel-{name}", gettext("Times of {method}").format(method=name), entries, fields)


def _highlighted(files: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import CudaLexer, PythonLexer

    look = HtmlFormatter(cssclass="code", wrapcode=True)
    lexers = {True: CudaLexer(), False: PythonLexer()}
    return [(name, str(highlight(code, lexers[name.endswith((".cu", ".cuh"))], look))) for name, code in files]


@cache
def _code_colours() -> str:
    from pygments.formatters import HtmlFormatter

    def rules(style: str) -> str:
        every: str = HtmlFormatter(style=style).get_style_defs(".code")  # type: ignore[no-untyped-call]
        return "\n".join(line for line in every.splitlines() if ".code ." in line)

    light, dark = rules("xcode"), rules("github-dark")
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
