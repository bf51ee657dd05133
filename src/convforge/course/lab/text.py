"""The lab as Markdown: the same answers, findings and tables, for a repository or a hand-in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from convforge.benchmark.table import escaped, markdown_line
from convforge.course.lab import orders, published
from convforge.course.lab.book import Book, Chapter
from convforge.course.lab.glossary import glossary
from convforge.course.lab.words import answer, caution_words, roofline_tables, roofline_words, stale_words
from convforge.course.language import gettext
from convforge.course.report import machine, numbers, tables
from convforge.course.report.headline import headline
from convforge.course.report.records import Entry
from convforge.course.report.table import Cell, Column, Table, optional
from convforge.course.studies import Finding, Study
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.words import clock_name

# Rows of a table; all stand in the page and in the data.
MOST_ROWS = 40


def markdown(book: Book, *, title: str, drawn: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The report in the language of this place.

    Parameters
    ----------
    book : Book
    title : str
    drawn : mapping
        Study, or "roofline", -> captions and addresses of its charts.
    """
    first = headline(book.whole)
    lines = [f"# {escaped(title)}", "", f"**{first.figure}** {escaped(first.caption)}", ""]
    lines += [f"{escaped(sentence)}\n" for sentence in first.sentences]
    lines += [f"## {gettext('The questions, and what the measurements answer')}", ""]
    lines += [markdown_line((gettext("question"), gettext("answer"))), "|---|---|"]
    lines += [markdown_line((gettext(c.study.asks), escaped(answer(c)))) for c in book.chapters]
    lines += ["", *_list(caution_words(book))]
    for chapter in book.chapters:
        lines += _chapter(chapter, drawn.get(chapter.study.name, ()))
    lines += _libraries(book)
    lines += _roofline(book, drawn.get("roofline", ()))
    lines += _published(book)
    lines += [f"## {gettext('Errors')}", "", *_table(tables.error_table(book.whole))]
    lines += [f"## {gettext('Machine')}", ""]
    for group in machine.facts(book.whole)[:2]:
        lines += _list(_named(name, value) for name, value in group.pairs)
    lines += [f"## {gettext('Names, units and words')}", ""]
    lines += _list(_named(name, words) for name, words in glossary(book))
    return "\n".join(lines).rstrip() + "\n"


def _chapter(chapter: Chapter, pictures: Sequence[tuple[str, str]]) -> Iterator[str]:
    study = chapter.study
    yield from (f"## {gettext(study.asks)}", "")
    yield from (f"**{escaped(study.sentence(finding))}** `{finding.rule}`\n" for finding in chapter.answers)
    yield from (f"{stale}\n" for stale in [escaped(stale_words(_listed(chapter)))] if stale)
    yield from _pictures(pictures)
    yield from _findings(study, chapter.supported)
    if chapter.doubtful:
        yield from _before(gettext("What the data does not support, and what to be wary of"))
        yield from _findings(study, chapter.doubtful)
    yield from _table(_times(chapter))


def _times(chapter: Chapter) -> Table:
    blocks = chapter.study.view == "blocks"
    columns = (
        Column(gettext("case")), Column(gettext("method")), Column(gettext("config")),
        Column(gettext("time, ms"), True), Column(gettext("spread"), True), Column("GFLOP/s", True),
        *([tables.occupied()] if blocks else []),
    )  # fmt: skip
    return Table("times", "", columns, tuple(_row(entry, blocks) for entry in _listed(chapter)))


def _listed(chapter: Chapter) -> list[Entry]:
    """Of each method on a case the fastest; of shapes of block and mistaken clocks all, as the study is about them."""
    clocks = [entry for entry in chapter.listed.timed if entry.result.precision == MISTAKEN]
    return [*(chapter.shown.timed if chapter.study.view == "blocks" else chapter.shown.best), *clocks]


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


def _findings(study: Study, findings: Iterable[Finding]) -> list[str]:
    said = [f"- {escaped(study.sentence(finding))} `{finding.rule}`" for finding in findings]
    return [*said, ""] if said else []


def _orders(findings: Iterable[Finding]) -> list[str]:
    said = [f"- {escaped(orders.sentence(finding))} `{finding.rule}`" for finding in findings]
    return [*said, ""] if said else []


def _libraries(book: Book) -> Iterator[str]:
    table = tables.summary_table(book.whole)
    if table.rows:
        yield from (f"## {gettext('Against the libraries')}", "", *_table(table))


def _roofline(book: Book, pictures: Sequence[tuple[str, str]]) -> Iterator[str]:
    if said := roofline_words(book):
        yield from (f"## {gettext('Roofline')}", "", escaped(said), "", *_pictures(pictures))
        for table in roofline_tables(book):
            yield from (*_before(table.caption), *_table(table))


def _published(book: Book) -> Iterator[str]:
    yield from (f"## {gettext('Published tables, beside this machine')}", "")
    for found in published.beside(book):
        about = _named(found.published.name, gettext(found.published.about))
        yield from (f"### {escaped(about)}", "")
        yield from _list(published.doubt_words(found.published))
        yield from (*_table(found.table, len(found.table.rows)), "")
        held = [finding for finding in found.orders if finding.supported]
        yield from _before(gettext("Whether their order holds here")) if held else ()
        yield from _orders(held)
        for supported, words in (
            (True, gettext("What follows from these figures, as they were published")),
            (False, gettext("What rests on the doubtful ones, or does not follow")),
        ):
            findings = [finding for finding in found.theirs if finding.supported is supported]
            doubtful = [finding for finding in found.orders if not (finding.supported or supported)]
            yield from _before(words) if findings or doubtful else ()
            yield from (*_orders(doubtful), *_findings(found.study, findings))


def _table(table: Table, most: int = MOST_ROWS) -> list[str]:
    if not table.rows:
        return []
    lines = [markdown_line(column.name for column in table.columns)]
    lines.append(markdown_line("---:" if column.numeric else "---" for column in table.columns))
    lines += [markdown_line(escaped(cell.text) for cell in row) for row in table.rows[:most]]
    more = len(table.rows) - most
    return [
        *lines,
        "",
        *([gettext("{n} more rows stand in the page and in the data.").format(n=more), ""] if more > 0 else []),
    ]


def _pictures(pictures: Sequence[tuple[str, str]]) -> list[str]:
    return [f"![{escaped(caption)}]({address})\n" for caption, address in pictures]


def _before(words: str) -> list[str]:
    """Words above a list or a table."""
    return [gettext("{words}:").format(words=words), ""]


def _named(name: str, words: str) -> str:
    return gettext("{name}: {words}").format(name=name, words=words)


def _list(items: Iterable[str]) -> list[str]:
    said = [f"- {escaped(item)}" for item in items]
    return [*said, ""] if said else []
