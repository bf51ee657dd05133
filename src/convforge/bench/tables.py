"""Tables of a run: in the terminal, as Markdown, as CSV. Rows are cases, columns are methods.

A cell reads ``ms / nominal GFLOP/s``. Our best is bold, the best peer is in italics; "~" marks a noisy time, "*" one
whose sources have changed since.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from convforge.backends.facts import cores_in_words
from convforge.bench.records import Result, Run
from convforge.bench.verdicts import Verdict, judge
from convforge.measure.timer import Timing
from convforge.problem import ElementwiseProblem, GemmProblem, parse_problem

if TYPE_CHECKING:
    from rich.console import RenderableType

Mark = Literal["", "ours", "peer"]
LEGEND = (
    "ms / nominal GFLOP/s (the direct method's operations, whatever the method does); weights prepared on every call. "
    "Bold: our best; italics: the best peer; ~ noisy; * sources changed since; a method with its arithmetic in "
    "parentheses must be asked for by name and does not compete."
)

TRANSFER = (
    "With transfer: ms from host arrays to a host array in pageable memory, by the host's clock: copies to and from "
    "the device, preparation of the weights, the call."
)


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


def tables_of(
    run: Run,
    *,
    methods: Sequence[str] = (),
    cases: Sequence[str] = (),
    sizes: Sequence[int] = (),
    strides: Sequence[int] = (),
    prepared: bool = False,
    transfer: bool = False,
) -> tuple[Table, ...]:
    """The tables of a run, one an operation.

    Parameters
    ----------
    methods, cases : sequence of str
        Patterns of names; all where empty.
    sizes, strides : sequence of int
        As in :func:`convforge.bench.suites.select`.
    prepared : bool
        Show the times with weights prepared once.
    transfer : bool
        Show the times from host arrays to a host array.
    """
    if prepared and transfer:
        raise ValueError("prepared and transfer exclude each other: a time with transfer prepares the weights")
    pick: Pick = _prepared if prepared else _transfer if transfer else Run.timing
    chosen = [r for r in run.results if _wanted(r, methods, cases, sizes, strides)]
    operations = dict.fromkeys(r.operation for r in chosen)
    return tuple(_table(run, [r for r in chosen if r.operation == name], pick) for name in operations)


Pick = Callable[[Run, Result], Timing | None]


def _prepared(run: Run, r: Result) -> Timing | None:
    return r.prepared_time


def _transfer(run: Run, r: Result) -> Timing | None:
    return r.transfer_time


def _table(run: Run, chosen: Sequence[Result], pick: Pick) -> Table:
    label = _labeller(chosen)
    timed = [r for r in chosen if r.time is not None]
    # Ours, then the peers, in the order of the file; methods that timed nothing stand in the notes.
    labels = list(dict.fromkeys(label(r) for ours in (True, False) for r in timed if r.ours is ours))
    transferred = pick is not _transfer and any(r.transfer_time for r in timed)
    more = ("with transfer",) if transferred else ()
    rows = []
    for case in sorted({r.case for r in chosen}, key=_natural):
        verdict = judge(run, case)
        results = {label(r): r for r in chosen if r.case == case}
        first = next(iter(results.values()))
        cells = [_cell(run, results.get(name), verdict, pick) for name in labels]
        cells += [_with_transfer(results.values(), label)] if transferred else []
        rows.append((Cell(case), Cell(_stride(first.problem)), *cells, Cell(verdict.words(label))))
    errors = [Cell(_largest_error(r for r in chosen if label(r) == name)) for name in labels]
    if rows:
        rows.append((Cell("largest RMS error"), Cell(""), *errors, *(Cell("") for _ in more), Cell("")))
    notes = [TRANSFER] if transferred or pick is _transfer else []
    return Table(("case", "stride", *labels, *more, "fastest"), tuple(rows), (*notes, *_notes(chosen)))


def markdown_table(
    run: Run,
    *,
    methods: Sequence[str] = (),
    cases: Sequence[str] = (),
    sizes: Sequence[int] = (),
    strides: Sequence[int] = (),
    prepared: bool = False,
    transfer: bool = False,
) -> str:
    """The table of a run as Markdown, with where and when it was measured, and its notes."""
    lines: list[str] = []
    wrap = {"": "{}", "ours": "**{}**", "peer": "_{}_"}
    found = tables_of(run, methods=methods, cases=cases, sizes=sizes, strides=strides, prepared=prepared,
                      transfer=transfer)  # fmt: skip
    for shown in found:
        figures = len(shown.columns) - shown.lead - 1
        lines += [_line(shown.columns), _line(["---"] * shown.lead + ["---:"] * figures + ["---"])]
        lines += [_line([wrap[cell.mark].format(_escape(cell.text)) for cell in row]) for row in shown.rows]
        lines.append("")
    lines += [_caption(run), ""]
    lines += [f"- {_escape(note)}" for note in (LEGEND, *_warnings(run), *(n for shown in found for n in shown.notes))]
    return "\n".join(lines) + "\n"


def rich_tables(run: Run, width: int) -> RenderableType:
    """The tables of a run for a terminal `width` characters wide: as many blocks of columns as it takes."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    styles = {"": "", "ours": "bold green", "peer": "italic cyan"}
    blocks: list[RenderableType] = []
    found = tables_of(run)
    for shown in found:
        for columns in _blocks(shown, width):
            block = RichTable(show_edge=False, pad_edge=False)
            for i in columns:
                left = i < shown.lead or i == len(shown.columns) - 1
                block.add_column(Text(shown.columns[i]), justify="left" if left else "right", overflow="fold")
            for row in shown.rows:
                block.add_row(*(Text(row[i].text, style=styles[row[i].mark]) for i in columns))
            blocks += [block, Text("")]
    notes = [Text(note) for shown in found for note in shown.notes]
    warnings = [Text(note, style="bold yellow") for note in _warnings(run)]
    return Group(*blocks, Text(LEGEND, style="dim"), *notes, Text(_caption(run)), *warnings)


CSV_COLUMNS = (
    "case", "problem", "operation", "stride", "algorithm", "config", "backend", "ours", "precision", "status", "reason",
    "ms", "spread", "noisy", "gflops", "prepared_ms", "prepared_spread", "transfer_ms", "transfer_spread", "cold",
    "ring", "samples", "first_call_ms", "prepare_ms", "workspace_bytes", "rms_error", "max_error", "bound_ratio",
    "flops", "least_bytes", "stale", "fastest", "note",
)  # fmt: skip


def csv_table(run: Run) -> str:
    """Every result of a run as CSV, a line each, whatever its status."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    verdicts = {case: judge(run, case) for case in run.cases}
    for r in run.results:
        writer.writerow(
            {name: getattr(r, name) for name in CSV_COLUMNS if hasattr(r, name)}
            | _timing_columns("", run.timing(r))
            | _timing_columns("prepared_", r.prepared_time)
            | _timing_columns("transfer_", r.transfer_time)
            | {
                "stride": _stride(r.problem),
                "gflops": _gflops(r, run.timing(r)),
                "first_call_ms": _ms(r.first_call_s),
                "prepare_ms": _ms(r.prepare_s),
                "rms_error": r.error.rms if r.error else None,
                "max_error": r.error.max if r.error else None,
                "bound_ratio": r.error.bound_ratio if r.error else None,
                "fastest": r in verdicts[r.case].fastest,
            }
        )
    return text.getvalue()


def _timing_columns(prefix: str, timing: Timing | None) -> dict[str, object]:
    if timing is None:
        return {}
    found: dict[str, object] = {f"{prefix}ms": _ms(timing.median_s), f"{prefix}spread": f"{timing.spread:.4g}"}
    if not prefix:
        found |= {"noisy": timing.noisy, "cold": timing.cold, "ring": timing.ring, "samples": len(timing.samples)}
    return found


def _wanted(
    r: Result, methods: Sequence[str], cases: Sequence[str], sizes: Sequence[int], strides: Sequence[int]
) -> bool:
    problem = parse_problem(r.problem)
    if isinstance(problem, GemmProblem | ElementwiseProblem):
        own_sizes: set[int] = {problem.m if isinstance(problem, GemmProblem) else problem.size}
        own_strides: set[int] = set()
    else:
        own_sizes, own_strides = {problem.h, problem.w}, set(problem.stride)
    return (
        _matches(r.algorithm, methods)
        and _matches(r.case, cases)
        and (not sizes or bool(own_sizes & set(sizes)))
        and (not strides or bool(own_strides & set(strides)))
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _labeller(results: Iterable[Result]) -> Callable[[Result], str]:
    """How columns are named: by method; with its config where a case has it in several, and any narrower arithmetic."""
    several = {key for key, count in Counter((r.case, r.algorithm) for r in results).items() if count > 1}
    with_config = {algorithm for _, algorithm in several}

    def label(r: Result) -> str:
        name = r.label if r.algorithm in with_config else r.algorithm
        asked = getattr(parse_problem(r.problem), "precision", "strict")
        return name if r.precision in ("strict", asked) else f"{name} ({r.precision})"

    return label


def _cell(run: Run, r: Result | None, verdict: Verdict, pick: Pick) -> Cell:
    if r is None:
        return Cell("")
    timing = pick(run, r)
    if timing is None:
        return Cell("-" if r.status == "ok" else r.status)
    mark: Mark = "ours" if r is verdict.best_ours else "peer" if r is verdict.best_peer else ""
    gflops = r.flops / timing.median_s / 1e9
    signs = ("~" if timing.noisy else "") + ("*" if r.stale else "")
    return Cell(f"{signs}{_three(1e3 * timing.median_s)} / {_three(gflops)}", mark)


def _with_transfer(results: Iterable[Result], label: Callable[[Result], str]) -> Cell:
    """The shortest time from host to host of a method of ours, and which it is."""
    found = [(r.transfer_time, r) for r in results if r.ours and r.transfer_time is not None]
    if not found:
        return Cell("-")
    timing, best = min(found, key=lambda pair: pair[0].median_s)
    return Cell(f"{'~' if timing.noisy else ''}{_three(1e3 * timing.median_s)} ({label(best)})")


def _warnings(run: Run) -> Iterator[str]:
    """What makes the figures doubtful."""
    if words := run.moved:
        yield f"The machine did not hold still: {words}. Measure again before you trust these figures."
    if not run.complete:
        yield "The run is not complete."


def _notes(results: Iterable[Result]) -> Iterator[str]:
    """What was refused, failed or skipped, and which times are of another kind."""
    without: dict[tuple[str, str], list[Result]] = {}
    hot: list[str] = []
    few: list[str] = []
    for r in results:
        if r.status != "ok":
            without.setdefault((r.algorithm, r.status), []).append(r)
        elif r.time is not None:
            hot += [] if r.time.cold else [r.case]
            few += [f"{r.case} {r.algorithm}"] if r.time.few else []
    if hot:
        yield f"Hot in the cache, too small to fill a ring: {_some(hot)}."
    if few:
        yield f"Fewer samples than asked for, as the budget ended: {_some(few)}."
    alike: dict[str, list[str]] = {}
    for (algorithm, status), found in without.items():
        reasons = list(dict.fromkeys(r.reason or "" for r in found))
        more = f" (and {len(reasons) - 1} more reasons: see the CSV)" if len(reasons) > 1 else ""
        said = f"{status} on {_some(r.case for r in found)}: {_short(reasons[0])}{more}"
        alike.setdefault(said, []).append(algorithm)
    for said, algorithms in alike.items():
        yield f"{', '.join(algorithms)} {said}"


def _some(names: Iterable[str]) -> str:
    every = list(dict.fromkeys(names))
    return ", ".join(every) if len(every) <= 4 else f"{', '.join(every[:3])} and {len(every) - 3} more"


def _short(text: str, most: int = 200) -> str:
    """A reason in a line or two; the whole of it stands in the CSV."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _caption(run: Run) -> str:
    commit = (
        "no commit known" if run.commit is None else f"commit {run.commit[:10]}{' with changes' if run.dirty else ''}"
    )
    facts = run.machine.get("facts", {})
    cores = cores_in_words(facts.get("cores", "?"), facts.get("backend", ""))
    best = run.best_ceilings
    said = f"Measured {run.started[:10]} on {facts.get('name', run.device)}, {cores}, {commit}"
    if best is None:
        return f"{said}."
    return f"{said}; copy {best.copy_bytes_per_s / 1e9:.3g} GB/s, FMA {best.fma_flops_per_s / 1e9:.3g} GFLOP/s."


def _largest_error(results: Iterable[Result]) -> str:
    errors = [r.error.rms for r in results if r.error is not None and r.error.rms is not None and r.status == "ok"]
    return f"{max(errors):.1e}" if errors else "-"


def _stride(problem: str) -> str:
    parsed = parse_problem(problem)
    if isinstance(parsed, GemmProblem | ElementwiseProblem):
        return ""
    a, b = parsed.stride
    return str(a) if a == b else f"{a}x{b}"


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts numbers inside names by value: 64 before 1024."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _three(value: float) -> str:
    """Three significant digits, never with an exponent.

    >>> _three(0.0012345), _three(12.345), _three(12345.0)
    ('0.00123', '12.3', '12345')
    """
    if value >= 100:
        return f"{value:.0f}"
    digits = 2
    while value and value < 10 ** (2 - digits) and digits < 12:
        digits += 1
    return f"{value:.{digits if value < 10 else 1}f}"


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.6g}"


def _gflops(r: Result, timing: Timing | None) -> str | None:
    return None if timing is None else f"{r.flops / timing.median_s / 1e9:.5g}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    for sign in "\\|*_`[]<>":
        text = text.replace(sign, f"\\{sign}")
    return text


def _blocks(shown: Table, width: int) -> Iterator[list[int]]:
    """Indices of columns that stand side by side: the case's, then as many methods as the width holds."""

    def wide(i: int) -> int:
        return max(len(shown.columns[i]), *(len(row[i].text) for row in shown.rows), 0) + 3

    lead, last = list(range(shown.lead)), len(shown.columns) - 1
    room = width - sum(wide(i) for i in lead)
    block: list[int] = []
    for i in range(shown.lead, last + 1):
        # The last column is text that can be folded.
        if block and sum(wide(j) for j in block) + (min(wide(i), 24) if i == last else wide(i)) > room:
            yield lead + block
            block = []
        block.append(i)
    yield lead + block
