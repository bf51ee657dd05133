"""The lab as one HTML page that works offline: the answers first, then how each was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from convforge.course.lab import charts, orders, published, sources
from convforge.course.lab.book import Book, Chapter, in_this_language
from convforge.course.lab.glossary import glossary
from convforge.course.lab.words import (
    Figure,
    answer,
    caution_words,
    figures,
    roofline_tables,
    roofline_words,
    stale_words,
    study_name,
    title_of,
)
from convforge.course.language import gettext, in_language
from convforge.course.report import machine, numbers, tables
from convforge.course.report.charts import panel_spec
from convforge.course.report.headline import headline
from convforge.course.report.page import (
    OUTLINES,
    Chart,
    LegendItem,
    Row,
    chart_script,
    digest,
    json_for_html,
    template,
    text,
)
from convforge.course.report.panels import Panel
from convforge.course.report.summary import gates
from convforge.course.report.table import Cell, Column, Table
from convforge.course.report.theme import INKS, Ink, unvalidated
from convforge.course.studies import Finding, Study

# The key of the chart of cases that are of no series: a row a case, so it stands by itself.
SINGLE = "ratio-cases"


@dataclass(frozen=True, slots=True)
class Said:
    """A finding as the page shows it: its sentence, the rule that made it, the figures it rests on."""

    sentence: str
    rule: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the page; `key` is the id of its element."""

    key: str
    name: str
    study: Study
    answer: str
    stale: str
    answers: tuple[Said, ...]
    supported: tuple[Said, ...]
    doubtful: tuple[Said, ...]
    charts: Row
    results: Table
    steps: Table
    legend: tuple[LegendItem, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """A published table as the page shows it."""

    name: str
    about: str
    doubts: tuple[str, ...]
    orders: tuple[Said, ...]
    supported: tuple[Said, ...]
    doubtful: tuple[Said, ...]
    table: Table
    matched: int


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel as the page shows it: each of its files as HTML."""

    name: str
    summary: str
    measured: Table
    files: tuple[tuple[str, str], ...]
    stale: bool


@dataclass(frozen=True, slots=True)
class Legend:
    """What the legend's macro asks for."""

    key: str
    legend: tuple[LegendItem, ...]


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
        return _render(in_this_language(book), title, pages)


def _render(book: Book, title: str, pages: Sequence[tuple[str, str]]) -> str:
    whole, ink = book.whole, charts.ink_of(book, "page")
    shared = charts.whole_panels(book, ink)
    roofline = charts.roofline(book, ink)
    one_case, nearest = roofline_tables(book)
    script, bundle = text("page.js"), chart_script()
    rendered: str = template("lab.html.j2").render(
        title=title or title_of(book),
        pages=pages,
        headline=headline(whole),
        cautions=caution_words(book),
        sections=[_section(chapter, ink) for chapter in book.chapters],
        absent=[study_name(study.name) for study in book.absent],
        summary=tables.summary_table(whole),
        ratios=Row("", _charts([p for p in shared["ratio"] if p.key != SINGLE], ink, hides=False)),
        singles=Row("", _charts([p for p in shared["ratio"] if p.key == SINGLE], ink, hides=False)),
        verdicts=tables.verdict_table(whole),
        roofline=[
            (Row("", _charts([panel], ink)), one_case if panel.key == "one-case" else nearest) for panel in roofline
        ],
        roofline_words=roofline_words(book),
        roofline_legend=Legend("roof", _items(roofline, ink)),
        beside=[_beside(found) for found in published.beside(book)],
        kernels=[_source(kernel) for kernel in sources.kernels(book)],
        errors=Row("", _charts(shared["errors"], ink), tables.error_table(whole)),
        gates=gates(whole),
        glossary=glossary(book),
        troubles=tables.trouble_table(whole),
        facts=machine.facts(whole)[:2],
        runs=_runs(book),
        ceiling_words=machine.ceiling_words(whole),
        style=_variables(ink) + text("page.css") + text("lab.css", "lab") + _highlighting(),
        script=script,
        bundle=bundle,
        digests=" ".join(f"'{digest(part)}'" for part in (bundle, script)),
    )
    return rendered


def _section(chapter: Chapter, ink: Ink) -> Section:
    drawn = charts.chapter_panels(chapter, ink)
    return Section(
        key=f"study-{chapter.study.name}",
        name=study_name(chapter.study.name),
        study=chapter.study,
        answer=answer(chapter),
        stale=stale_words(chapter.listed.timed),
        answers=tuple(_said(chapter.study, finding) for finding in chapter.answers),
        supported=tuple(_said(chapter.study, finding) for finding in chapter.supported),
        doubtful=tuple(_said(chapter.study, finding) for finding in chapter.doubtful),
        charts=Row("", _charts(drawn, ink)),
        results=tables.result_table(chapter.listed, occupancy=chapter.study.view == "blocks"),
        steps=tables.step_table(chapter.shown),
        legend=_items(drawn, ink),
    )


def _said(study: Study, finding: Finding) -> Said:
    return Said(study.sentence(finding), finding.rule, tuple(figures(finding)))


def _said_order(finding: Finding) -> Said:
    return Said(orders.sentence(finding), finding.rule, tuple(figures(finding)))


def _beside(found: published.Beside) -> Beside:
    about = found.published
    held = {s: tuple(_said_order(f) for f in found.orders if f.supported is s) for s in (True, False)}
    return Beside(
        about.name,
        gettext(about.about),
        published.doubt_words(about),
        held[True],
        tuple(_said(found.study, finding) for finding in found.theirs if finding.supported),
        (*held[False], *(_said(found.study, finding) for finding in found.theirs if not finding.supported)),
        found.table,
        found.matched,
    )


def _source(kernel: sources.Kernel) -> Source:
    files = tuple((name, _highlighted(name, code)) for name, code in kernel.files)
    return Source(kernel.name, gettext(kernel.summary), kernel.measured, files, kernel.stale)


def _charts(drawn: Iterable[Panel], ink: Ink, *, hides: bool = True) -> tuple[Chart, ...]:
    return tuple(
        Chart(panel.key, panel.title, panel.description, json_for_html(panel_spec(panel, ink)), hides)
        for panel in drawn
    )


def _items(drawn: Iterable[Panel], ink: Ink) -> tuple[LegendItem, ...]:
    """The legend of panels: what has a line in one of them, in the order of the looks."""
    found = {name for panel in drawn for name in charts.names_in(panel)}
    return tuple(
        LegendItem(name, f"--m{i}", look, OUTLINES[look.shape])
        for i, (name, look) in enumerate(ink.methods.items())
        if name in found
    )


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
                _ceilings(c.copy_bytes_per_s for _, c in run.ceilings),
                _ceilings(c.fma_flops_per_s for _, c in run.ceilings),
                Cell(commit),
            )
        )
    return Table("runs", gettext("The runs behind this page"), columns, tuple(rows))


def _ceilings(found: Iterable[float]) -> Cell:
    """What was measured before a run and after it, in 1e9 a second."""
    values = list(found)
    if not values:
        return Cell(numbers.MISSING)
    return Cell(" / ".join(numbers.three(value / 1e9) for value in values), max(values))


def _variables(ink: Ink) -> str:
    """The stylesheet's colours: of the page, and of everything with a look of its own."""
    pairs = [("--" + name, light, dark) for name, (light, dark) in INKS.items()]
    pairs += [(f"--m{i}", look.light, look.dark) for i, look in enumerate(ink.methods.values())]
    light = "".join(f"{name}:{colour};" for name, colour, _dark in pairs)
    dark = "".join(f"{name}:{colour};" for name, _light, colour in pairs)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _highlighted(name: str, code: str) -> str:
    """A source file as HTML with classes for its colours."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import CudaLexer, PythonLexer

    lexer = CudaLexer() if name.endswith((".cu", ".cuh")) else PythonLexer()
    return str(highlight(code, lexer, HtmlFormatter(cssclass="code", wrapcode=True)))


@cache
def _highlighting() -> str:
    from pygments.formatters import HtmlFormatter

    def rules(style: str) -> str:
        every: str = HtmlFormatter(style=style).get_style_defs(".code")  # type: ignore[no-untyped-call]
        return "\n".join(line for line in every.splitlines() if ".code ." in line)

    light, dark = rules("xcode"), rules("github-dark")
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
