"""Tables of a run: in the terminal, as Markdown, as CSV. Rows are cases, columns are methods.

A cell reads ``ms / nominal GFLOP/s``. Our best is bold, the best peer is in italics; "~" marks a noisy time, "*" one
whose sources have changed since.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from convforge.benchmark.cells import Cell, Mark, Table, caption, doubts, labeller, markdown, natural, some, three
from convforge.benchmark.copy_tables import LEGEND as COPY_LEGEND
from convforge.benchmark.copy_tables import copy_cell, copy_notes, percent
from convforge.benchmark.records import Result, Run
from convforge.benchmark.step_tables import step_notes
from convforge.benchmark.verdicts import TERMS, Verdict, judge
from convforge.benchmark.way_notes import way_notes
from convforge.problem import parse_problem
from convforge.timing.timer import Timing

if TYPE_CHECKING:
    from rich.console import RenderableType

LEGEND = (
    "ms / nominal GFLOP/s (the direct method's operations, whatever the method does); weights prepared on every call. "
    "Bold: our best; italics: the best peer; ~ noisy; * sources changed since; a method with its arithmetic in "
    "parentheses must be asked for by name and does not compete. " + TERMS
)

TRANSFER = (
    "With transfer: ms from host arrays to a host array in pageable memory, by the host's clock: copies to and from "
    "the device, preparation of the weights, the call."
)


def tables_of(
    run: Run,
    results: Sequence[Result] | None = None,
    *,
    best: bool = False,
    prepared: bool = False,
    transfer: bool = False,
    copy: bool = False,
) -> tuple[Table, ...]:
    """The tables of a run, one an operation.

    Parameters
    ----------
    results : sequence of Result, optional
        Which of the run's make rows and columns, as :func:`convforge.benchmark.cells.select` gives; all by default.
        Who is fastest is judged by all that the run has of a case.
    best : bool
        Of a method's configs on a case, show the fastest alone.
    prepared : bool
        Show the times with weights prepared once.
    transfer : bool
        Show the times from host arrays to a host array.
    copy : bool
        Show the share of a copy of the same bytes in place of GFLOP/s, and the copy itself.
    """
    if transfer and copy:
        raise ValueError("transfer and copy exclude each other: a copy is timed on the device alone")
    if prepared and transfer:
        raise ValueError("prepared and transfer exclude each other: a time with transfer prepares the weights")
    pick: Pick = _prepared if prepared else _transfer if transfer else Run.timing
    chosen = run.results if results is None else results
    if best:
        chosen = _fastest_configs(run, chosen)
    operations = dict.fromkeys(r.operation for r in chosen)
    return tuple(_table(run, [r for r in chosen if r.operation == name], pick, copy) for name in operations)


Pick = Callable[[Run, Result], Timing | None]


def _prepared(run: Run, r: Result) -> Timing | None:
    return r.prepared_time


def _transfer(run: Run, r: Result) -> Timing | None:
    return r.transfer_time


def _table(run: Run, chosen: Sequence[Result], pick: Pick, copy: bool) -> Table:
    label = labeller(chosen)
    timed = [r for r in chosen if r.time is not None]
    # Ours, then the peers, in the order of the file; methods that timed nothing stand in the notes.
    labels = list(dict.fromkeys(label(r) for ours in (True, False) for r in timed if r.ours is ours))
    transferred = pick is not _transfer and any(r.transfer_time for r in timed)
    more = (("a copy",) if copy else ()) + (("with transfer",) if transferred else ())
    rows = []
    for case in sorted({r.case for r in chosen}, key=natural):
        verdict = judge(run, case)
        results = {label(r): r for r in chosen if r.case == case}
        first = next(iter(results.values()))
        cells = [_cell(run, results.get(name), verdict, pick, copy) for name in labels]
        cells += [copy_cell(run, case)] if copy else []
        cells += [_with_transfer(results.values(), label)] if transferred else []
        rows.append((Cell(case), Cell(_stride(first.problem)), *cells, Cell(verdict.words(label))))
    errors = [Cell(_largest_error(r for r in chosen if label(r) == name)) for name in labels]
    if rows:
        rows.append((Cell("largest RMS error"), Cell(""), *errors, *(Cell("") for _ in more), Cell("")))
    notes = [TRANSFER] if transferred or pick is _transfer else []
    notes += step_notes(run, chosen, label)
    notes += way_notes(chosen, label)
    notes += [] if copy or pick is _transfer else copy_notes(run, timed, label)
    return Table(("case", "stride", *labels, *more, "fastest"), tuple(rows), (*notes, *_notes(chosen)))


def _fastest_configs(run: Run, results: Sequence[Result]) -> list[Result]:
    """Of each method's results on a case the fastest; one without a time where there is no other."""
    fastest: dict[tuple[str, str], Result] = {}
    for r in sorted(results, key=lambda r: timing.median_s if (timing := run.timing(r)) else math.inf):
        fastest.setdefault((r.case, r.algorithm), r)
    return [r for r in results if fastest[(r.case, r.algorithm)] is r]


def markdown_table(
    run: Run,
    results: Sequence[Result] | None = None,
    *,
    best: bool = False,
    prepared: bool = False,
    transfer: bool = False,
    copy: bool = False,
) -> str:
    """The table of a run as Markdown, with where and when it was measured, and its notes."""
    found = tables_of(run, results, best=best, prepared=prepared, transfer=transfer, copy=copy)
    return markdown(run, found, COPY_LEGEND if copy else LEGEND)


def rich_tables(run: Run, width: int) -> RenderableType:
    """The tables of a run for a terminal `width` characters wide: as many blocks of columns as it takes."""
    from rich.console import Group
    from rich.text import Text

    found = tables_of(run)
    blocks = [rich_table(shown, width) for shown in found]
    notes = [Text(note) for shown in found for note in shown.notes]
    warnings = [Text(note, style="bold yellow") for note in doubts(run)]
    return Group(*blocks, Text(LEGEND, style="dim"), *notes, Text(caption(run)), *warnings)


def rich_table(shown: Table, width: int) -> RenderableType:
    """One table for a terminal `width` characters wide, without its notes."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    styles = {"": "", "ours": "bold green", "peer": "italic cyan"}
    blocks: list[RenderableType] = []
    for columns in _blocks(shown, width):
        block = RichTable(show_edge=False, pad_edge=False)
        for i in columns:
            left = i < shown.lead or i == len(shown.columns) - 1
            block.add_column(Text(shown.columns[i]), justify="left" if left else "right", overflow="fold")
        for row in shown.rows:
            block.add_row(*(Text(row[i].text, style=styles[row[i].mark]) for i in columns))
        blocks += [block, Text("")]
    return Group(*blocks)


CSV_COLUMNS = (
    "case", "problem", "operation", "stride", "algorithm", "config", "backend", "ours", "precision", "status", "reason",
    "ms", "spread", "noisy", "gflops", "prepared_ms", "prepared_spread", "transfer_ms", "transfer_spread", "steps",
    "copy_ms", "of_copy", "cold", "ring", "samples", "first_call_ms", "prepare_ms", "workspace_bytes", "rms_error",
    "max_error", "bound_ratio", "flops", "least_bytes", "stale", "fastest", "too_noisy_to_rank", "note",
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
            | _copy_columns(run, r)
            | {
                "stride": _stride(r.problem),
                "gflops": _gflops(r, run.timing(r)),
                "first_call_ms": _ms(r.first_call_s),
                "prepare_ms": _ms(r.prepare_s),
                "rms_error": r.error.rms if r.error else None,
                "max_error": r.error.max if r.error else None,
                "bound_ratio": r.error.bound_ratio if r.error else None,
                "stale": run.is_stale(r),
                "fastest": r in verdicts[r.case].fastest,
                "too_noisy_to_rank": r in verdicts[r.case].unsure,
                "steps": " ".join(f"{step.name}={_ms(step.time.median_s)}" for step in r.steps),
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


def _copy_columns(run: Run, r: Result) -> dict[str, object]:
    copy, share = run.copy_of(r.case), run.of_copy(r, run.timing(r))
    if copy is None:
        return {}
    return {"copy_ms": _ms(copy.time.median_s), "of_copy": None if share is None else f"{share:.4g}"}


def _cell(run: Run, r: Result | None, verdict: Verdict, pick: Pick, copy: bool) -> Cell:
    if r is None:
        return Cell("")
    timing = pick(run, r)
    if timing is None:
        return Cell("-" if r.status == "ok" else r.status)
    mark: Mark = "ours" if r is verdict.best_ours else "peer" if r is verdict.best_peer else ""
    beside = percent(run.of_copy(r, timing)) if copy else three(r.flops / timing.median_s / 1e9)
    signs = ("~" if timing.noisy else "") + ("*" if run.is_stale(r) else "")
    return Cell(f"{signs}{three(1e3 * timing.median_s)} / {beside}", mark)


def _with_transfer(results: Iterable[Result], label: Callable[[Result], str]) -> Cell:
    """The shortest time from host to host of a method of ours, and which it is."""
    found = [(r.transfer_time, r) for r in results if r.ours and r.transfer_time is not None]
    if not found:
        return Cell("-")
    timing, best = min(found, key=lambda pair: pair[0].median_s)
    return Cell(f"{'~' if timing.noisy else ''}{three(1e3 * timing.median_s)} ({label(best)})")


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
        yield f"Hot in the cache, too small to fill a ring: {some(hot)}."
    if few:
        yield f"Fewer samples than asked for, as the budget ended: {some(few)}."
    alike: dict[str, list[str]] = {}
    for (algorithm, status), found in without.items():
        reasons = list(dict.fromkeys(str(r.reason or "") for r in found))
        more = f" (and {len(reasons) - 1} more reasons: see the CSV)" if len(reasons) > 1 else ""
        said = f"{status} on {some(r.case for r in found)}: {_short(reasons[0])}{more}"
        alike.setdefault(said, []).append(algorithm)
    for said, algorithms in alike.items():
        yield f"{', '.join(algorithms)} {said}"


def _short(text: str, most: int = 260) -> str:
    """A reason in a line or two; the whole of it stands in the CSV."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _largest_error(results: Iterable[Result]) -> str:
    errors = [r.error.rms for r in results if r.error is not None and r.error.rms is not None and r.status == "ok"]
    return f"{max(errors):.1e}" if errors else "-"


def _stride(problem: str) -> str:
    return "x".join(str(step) for step in dict.fromkeys(parse_problem(problem).stride))


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.6g}"


def _gflops(r: Result, timing: Timing | None) -> str | None:
    return None if timing is None else f"{r.flops / timing.median_s / 1e9:.5g}"


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
