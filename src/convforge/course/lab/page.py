"""The lab as one HTML page that works offline, and as Markdown for a repository or a hand-in.

Both have the same contents: the answers first, then how each was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from convforge.course.lab import charts, published
from convforge.course.lab.book import Book, Chapter, in_this_language
from convforge.course.lab.glossary import glossary
from convforge.course.lab.sources import kernels
from convforge.course.lab.words import (
    answer,
    caution_words,
    roofline_tables,
    roofline_words,
    said,
    stale_words,
    study_name,
    title_of,
)
from convforge.course.language import gettext, in_language
from convforge.course.pages.charts import Panel, unvalidated
from convforge.course.pages.looks import Ink
from convforge.course.pages.page import html, resource, template
from convforge.course.report import machine, numbers, tables
from convforge.course.report.headline import headline
from convforge.course.report.records import Entry
from convforge.course.report.summary import gates
from convforge.course.report.table import Cell, Column, Table, optional
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.words import clock_name

# Rows of a table of the Markdown; the page and the data hold all.
MOST_ROWS = 40


def render(book: Book, *, title: str = "", code: str = "en", pages: Sequence[tuple[str, str]] = ()) -> str:
    """The page as text; the same book gives the same text.

    Parameters
    ----------
    book : Book
    title : str
        Of the page; by default it names the device.
    code : {"en", "zh"}
        The language of all its texts and charts.
    pages : sequence of (name, address)
        The same page in other languages.
    """
    with in_language(code), unvalidated():
        book = in_this_language(book)
        ink = charts.ink_of(book, "page")
        ratios = charts.whole_panels(book, "ratio", ink)
        chapters = [_chapter(chapter) | _numbers(chapter, ink) for chapter in book.chapters]
        return html(
            "lab.html.j2",
            {":root": ink},
            css=resource("lab", "lab.css") + _code_colours(),
            title=title or title_of(book),
            pages=pages,
            ink=ink,
            chapters=chapters,
            absent=[study_name(study.name) for study in book.absent],
            # Single cases have a row each, and so a chart that is not beside others.
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
    """The report in the language of this place.

    Parameters
    ----------
    book : Book
    title : str
    drawn : mapping
        Study, or "roofline", -> captions and addresses of its charts.
    """
    chapters = [_chapter(chapter) | _times(chapter) for chapter in book.chapters]
    text = template("lab.md.j2").render(
        title=title, chapters=chapters, drawn=drawn, most_rows=MOST_ROWS, **_contents(book)
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _contents(book: Book) -> dict[str, Any]:
    """The parts that page and Markdown share, but for the chapters."""
    return {
        "headline": headline(book.whole),
        "cautions": caution_words(book),
        "summary": tables.summary_table(book.whole),
        "roofline_words": roofline_words(book),
        "roofline_tables": roofline_tables(book),
        "beside": [_beside(found) for found in published.beside(book)],
        "error_table": tables.error_table(book.whole),
        "facts": machine.facts(book.whole)[:2],
        "glossary": glossary(book),
    }


def _chapter(chapter: Chapter) -> dict[str, Any]:
    return {
        "key": f"study-{chapter.study.name}",
        "study": chapter.study.name,
        "name": study_name(chapter.study.name),
        "asks": gettext(chapter.study.asks),
        "answer": answer(chapter),
        "answers": said(chapter.answers),
        "supported": said(chapter.supported),
        "doubtful": said(chapter.doubtful),
    }


def _numbers(chapter: Chapter, ink: Ink) -> dict[str, Any]:
    """Charts and tables of a chapter of the page."""
    return {
        "stale": stale_words(entry.stale for entry in chapter.listed.timed),
        "charts": charts.chapter_panels(chapter, ink),
        "results": tables.result_table(chapter.listed, occupancy=chapter.study.view == "blocks"),
        "steps": tables.step_table(chapter.shown),
    }


def _times(chapter: Chapter) -> dict[str, Any]:
    """The table of a chapter of the Markdown.

    Of each method on a case the fastest; of shapes of block and mistaken clocks all, as the study is about them.
    """
    blocks = chapter.study.view == "blocks"
    clocks = [entry for entry in chapter.listed.timed if entry.result.precision == MISTAKEN]
    entries = [*(chapter.shown.timed if blocks else chapter.shown.best), *clocks]
    columns = (
        Column(gettext("case")), Column(gettext("method")), Column(gettext("config")),
        Column(gettext("time, ms"), True), Column(gettext("spread"), True), Column("GFLOP/s", True),
        *([tables.occupied()] if blocks else []),
    )  # fmt: skip
    rows = tuple(_row(entry, blocks) for entry in entries)
    return {"stale": stale_words(entry.stale for entry in entries), "times": Table("times", "", columns, rows)}


def _row(entry: Entry, occupancy: bool) -> tuple[Cell, ...]:
    r, timing = entry.result, entry.timing
    assert timing is not None
    signs = ("~" if timing.noisy else "") + ("*" if entry.stale else "")
    return (
        Cell(r.case),
        Cell(r.algorithm),
        Cell(clock_name(r.config)),
        Cell(signs + numbers.three(1e3 * timing.median_s), timing.median_s),
        Cell(f"±{numbers.percent(timing.spread)}", timing.spread),
        optional(entry.gflops, numbers.three),
        *([optional(entry.occupancy, numbers.percent)] if occupancy else []),
    )


def _beside(found: published.Beside) -> dict[str, Any]:
    orders, theirs = (
        {sound: said(f for f in findings if f.supported is sound) for sound in (True, False)}
        for findings in (found.orders, found.theirs)
    )
    return {
        "name": found.published.name,
        "about": gettext(found.published.about),
        "doubts": found.doubts,
        "table": found.table,
        "matched": found.matched,
        "orders": orders[True],
        "supported": theirs[True],
        "doubtful": orders[False] + theirs[False],
    }


def _names(panels: Iterable[Panel]) -> set[str]:
    return {name for panel in panels for name in panel.names}


def _runs(book: Book) -> Table:
    columns = (
        Column(gettext("study")), Column(gettext("run")), Column(gettext("started")),
        Column(gettext("rows"), True), Column(gettext("timed"), True), Column(gettext("finished")),
        Column(gettext("copy, GB/s"), True, gettext("before / after the run")),
        Column(gettext("float32 FMA, GFLOP/s"), True, gettext("before / after the run")),
        Column(gettext("commit"), meaning=gettext("+: with uncommitted changes")),
    )  # fmt: skip
    rows = []
    for chapter in book.chapters:
        run, timed = chapter.run, sum(r.time is not None for r in chapter.run.results)
        commit = gettext("not known") if run.commit is None else run.commit[:10] + (" +" if run.dirty else "")
        rows.append(
            (
                Cell(chapter.study.name),
                Cell(run.run),
                Cell(run.started[:16].replace("T", " ")),
                Cell(str(len(run.results)), len(run.results)),
                Cell(str(timed), timed),
                Cell(gettext("yes") if run.complete else gettext("no")),
                _ceilings([c.copy_bytes_per_s for _, c in run.ceilings]),
                _ceilings([c.fma_flops_per_s for _, c in run.ceilings]),
                Cell(commit),
            )
        )
    return Table("runs", gettext("The runs behind this page"), columns, tuple(rows))


def _ceilings(found: Sequence[float]) -> Cell:
    """The ceilings measured before a run and after it, in 1e9 a second."""
    text = " / ".join(numbers.three(value / 1e9) for value in found)
    return Cell(text, max(found)) if found else Cell(numbers.MISSING)


def _highlighted(files: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Source files as HTML with classes for their colours, each with its name."""
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
