"""Tables, and functions that write them as Markdown and to a terminal. HTML: `course/report/macros.html.j2`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convforge.backends.facts import cores_in_words
from convforge.benchmark.records import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

# Look of a cell -> its Markdown delimiter, and its terminal style. HTML pages have more looks.
_MARKDOWN = {"best": "**", "rival": "_"}
_STYLES = {"best": "bold green", "rival": "italic cyan"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    sort: float | str | None = None  # sort key on HTML pages; None sorts last in both directions
    look: str = ""  # "best" (ours), "rival" (the best peer), or another CSS class of the pages
    lang: str = ""  # language code if it differs from the page's


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    numeric: bool = False  # right-aligned
    meaning: str = ""  # explanation if the name is not enough
    wide: bool = False  # contains prose


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its heading and notes."""

    key: str  # unique on its HTML page
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    filtered: bool = False  # has a filter box on an HTML page
    notes: tuple[str, ...] = ()  # reasons of refused, failed and skipped rows, and other remarks

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[str | Cell] | Mapping[str, str | Cell]],
    notes: Iterable[str] = (),
    *,
    lead: int = 2,
) -> Table:
    """Make a table with numeric columns, except the first `lead` columns and the last.

    A row is a sequence of cells, or a mapping from column names to cells; missing names give empty cells.
    """
    columns = (Column(name, lead <= i < len(names) - 1) for i, name in enumerate(names))
    filled = ([row.get(name, "") for name in names] if isinstance(row, Mapping) else row for row in rows)
    cells = (tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in filled)
    return Table("", "", tuple(columns), tuple(cells), notes=tuple(notes))


def markdown(runs: Sequence[Run], tables: Sequence[Table], legend: str) -> str:
    """Tables of some runs as Markdown, with device and date of the measurements, and notes."""
    lines: list[str] = []
    for shown in tables:
        lines += [*markdown_lines(shown), ""]
    lines += [*map(caption, runs), ""]
    warnings = dict.fromkeys(doubt for run in runs for doubt in doubts(run))
    lines += [f"- {escaped(note)}" for note in (legend, *warnings, *(n for shown in tables for n in shown.notes))]
    return "\n".join(lines) + "\n"


def markdown_lines(shown: Table) -> Iterator[str]:
    """The lines of a table in Markdown, without its notes."""
    yield markdown_line(shown.names)
    yield markdown_line("---:" if column.numeric else "---" for column in shown.columns)
    for row in shown.rows:
        marks = (_MARKDOWN.get(cell.look, "") for cell in row)
        yield markdown_line(f"{mark}{escaped(cell.text)}{mark}" for mark, cell in zip(marks, row, strict=True))


def markdown_line(cells: Iterable[str]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Escape the characters that are special in Markdown."""
    return re.sub(r"[\\|*_`\[\]<>]", r"\\\g<0>", text)


def rich_table(shown: Table, width: int) -> RenderableType:
    """Format a table for a terminal of `width` characters, split into several blocks of columns if needed; no notes."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    blocks: list[RenderableType] = []
    for indices in _blocks(shown, width):
        block = RichTable(show_edge=False, pad_edge=False)
        for i in indices:
            column = shown.columns[i]
            block.add_column(Text(column.name), justify="right" if column.numeric else "left", overflow="fold")
        for row in shown.rows:
            block.add_row(*(Text(row[i].text, style=_STYLES.get(row[i].look, "")) for i in indices))
        blocks += [block, Text("")]
    return Group(*blocks)


def _blocks(shown: Table, width: int) -> Iterator[list[int]]:
    """Yield the column indices of each block: the leading text columns, then as many others as fit the width."""
    last = len(shown.columns) - 1
    lead = next((i for i, column in enumerate(shown.columns) if column.numeric), last)
    texts = [shown.names, *([cell.text for cell in row] for row in shown.rows)]
    widths = [max(map(len, column)) + 3 for column in zip(*texts, strict=True)]
    widths[last] = min(widths[last], 24)  # this column's text can be wrapped
    room = width - sum(widths[:lead])
    block: list[int] = []
    for i in range(lead, last + 1):
        if block and sum(widths[j] for j in (*block, i)) > room:
            yield [*range(lead), *block]
            block = []
        block.append(i)
    yield [*range(lead), *block]


def doubts(run: Run) -> Iterator[str]:
    """Yield reasons to doubt the times of a run."""
    if change := run.moved:
        yield f"The machine did not hold still: {change}. Measure again before you trust these figures."
    if not run.complete:
        yield "The run is not complete."


def caption(run: Run) -> str:
    """Caption of a run's table: device, date, commit, and its ceilings."""
    facts, best = run.machine.get("facts", {}), run.best_ceilings
    cores = cores_in_words(facts.get("cores", "?"), facts.get("backend", ""))
    parts = [f"Measured {run.started[:10]} on {run.where}, {cores}, {run.tree or 'no commit known'}", searched(run)]
    if best is not None:
        parts.append(f"copy {best.copy_bytes_per_s / 1e9:.3g} GB/s, FMA {best.fma_flops_per_s / 1e9:.3g} GFLOP/s")
    return f"{'; '.join(filter(None, parts))}."


def searched(run: Run) -> str:
    """Text with the number of configs that a run searched for each method; empty if it did not search."""
    search = run.settings.get("search", 0)
    return f"each of our methods in the fastest of its first {search} configs" if search else ""
