"""What the bench's tables are made of: cells, choices of results, names of columns, and Markdown."""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from convforge.backends.facts import cores_in_words
from convforge.benchmark.records import Result, Run
from convforge.benchmark.suites import sizes_of
from convforge.problem import parse_problem
from convforge.timing.ranking import rank

Mark = Literal["", "ours", "peer"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, and whose best it is."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table without looks.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of tuple of Cell
    notes : tuple of str
        What was refused, failed or skipped and why, and what else a reader must know.
    lead : int
        Columns at the left that say which case it is.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]
    lead: int = 2


def markdown(run: Run, tables: Sequence[Table], legend: str) -> str:
    """Tables of a run as Markdown, with where and when it was measured, and their notes."""
    lines: list[str] = []
    wrap = {"": "{}", "ours": "**{}**", "peer": "_{}_"}
    for shown in tables:
        figures = len(shown.columns) - shown.lead - 1
        lines += [markdown_line(shown.columns), markdown_line(["---"] * shown.lead + ["---:"] * figures + ["---"])]
        lines += [markdown_line([wrap[cell.mark].format(escaped(cell.text)) for cell in row]) for row in shown.rows]
        lines.append("")
    lines += [caption(run), ""]
    lines += [f"- {escaped(note)}" for note in (legend, *doubts(run), *(n for shown in tables for n in shown.notes))]
    return "\n".join(lines) + "\n"


def select(
    run: Run,
    methods: Sequence[str] = (),
    cases: Sequence[str] = (),
    sizes: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> list[Result]:
    """The results of a run that are asked for.

    Parameters
    ----------
    methods, cases : sequence of str
        Patterns of names; all where empty.
    sizes, strides : sequence of int
        As in :func:`convforge.benchmark.suites.select`.
    """
    return [r for r in run.results if _wanted(r, methods, cases, sizes, strides)]


def _wanted(
    r: Result, methods: Sequence[str], cases: Sequence[str], sizes: Sequence[int], strides: Sequence[int]
) -> bool:
    problem = parse_problem(r.problem)
    return (
        _matches(r.algorithm, methods)
        and _matches(r.case, cases)
        and (not sizes or bool(set(sizes_of(problem)) & set(sizes)))
        and (not strides or bool(set(problem.stride) & set(strides)))
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def labeller(results: Iterable[Result]) -> Callable[[Result], str]:
    """How columns are named: by method; with its config where a case has it in several, and any narrower arithmetic."""
    several = {key for key, count in Counter((r.case, r.algorithm) for r in results).items() if count > 1}
    with_config = {algorithm for _, algorithm in several}

    def label(r: Result) -> str:
        name = r.label if r.algorithm in with_config else r.algorithm
        asked = parse_problem(r.problem).precision
        return name if r.precision in ("strict", asked) else f"{name} ({r.precision})"

    return label


def doubts(run: Run) -> Iterator[str]:
    """What makes the figures doubtful."""
    if words := run.moved:
        yield f"The machine did not hold still: {words}. Measure again before you trust these figures."
    if not run.complete:
        yield "The run is not complete."


def caption(run: Run) -> str:
    """Where, when and from which commit a run was measured, and the ceilings there."""
    commit = (
        "no commit known" if run.commit is None else f"commit {run.commit[:10]}{' with changes' if run.dirty else ''}"
    )
    facts = run.machine.get("facts", {})
    cores = cores_in_words(facts.get("cores", "?"), facts.get("backend", ""))
    best = run.best_ceilings
    said = f"Measured {run.started[:10]} on {facts.get('name', run.device)}, {cores}, {commit}"
    said += f"; {words}" if (words := searched(run)) else ""
    if best is None:
        return f"{said}."
    return f"{said}; copy {best.copy_bytes_per_s / 1e9:.3g} GB/s, FMA {best.fma_flops_per_s / 1e9:.3g} GFLOP/s."


def searched(run: Run) -> str:
    """Which configs a run took of our methods, where it looked for the fastest; else nothing."""
    search = run.settings.get("search", 0)
    return f"each of our methods in the fastest of its first {search} configs" if search else ""


def best_of(results: Iterable[Result]) -> Result | None:
    """The fastest of some results; None where none has a time, or it is too noisy to rank."""
    found = [(r.time, r) for r in results if r.time is not None]
    return next((r for _, r in rank(found, lambda pair: pair[0]).leaders), None)


def seconds(r: Result) -> float:
    """A result's time, without end where it has none: what the fastest of several is found by."""
    return math.inf if r.time is None else r.time.median_s


def timed(run: Run, r: Result, share: float | None, best: Result | None) -> Cell:
    """A cell of ms, with a share in parentheses; or why there is no time."""
    if r.time is None:
        return Cell(r.status)
    signs = ("~" if r.time.noisy else "") + ("*" if run.is_stale(r) else "")
    shown = "" if share is None else f" ({100 * share:.0f} %)"
    return Cell(f"{signs}{three(1e3 * r.time.median_s)}{shown}", "ours" if r is best else "")


def some(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    every = list(dict.fromkeys(names))
    return ", ".join(every) if len(every) <= 4 else f"{', '.join(every[:3])} and {len(every) - 3} more"


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts numbers inside names by value: 64 before 1024."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def three(value: float) -> str:
    """Three significant digits, never with an exponent.

    >>> three(0.0012345), three(12.345), three(12345.0)
    ('0.00123', '12.3', '12345')
    """
    if value >= 100:
        return f"{value:.0f}"
    digits = 2
    while value and value < 10 ** (2 - digits) and digits < 12:
        digits += 1
    return f"{value:.{digits if value < 10 else 1}f}"


def markdown_line(cells: Iterable[str]) -> str:
    """A row of a table of Markdown."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """A text whose signs mean nothing in Markdown."""
    for sign in "\\|*_`[]<>":
        text = text.replace(sign, f"\\{sign}")
    return text
