"""Tables of a run (rows are cases, columns are methods), and the run as CSV.

A cell is ``ms / nominal GFLOP/s``. Our best is bold, the best peer italic. "~" marks a noisy time, "*" one with sources
that have changed since.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from convforge.benchmark.formats import error, milliseconds, natural, percent, some, three
from convforge.benchmark.frame import data_frame, each, frame, labeller, marked_ms, stride_of
from convforge.benchmark.records import Result, Run, StepTime
from convforge.benchmark.table import Cell, Table, caption, doubts, markdown, rich_table, table
from convforge.benchmark.verdicts import TERMS, Verdict, judge
from convforge.problem import parse_problem

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType

_MARKS = (
    "Bold: our best; italics: the best peer; ~ noisy; * sources changed since. Methods with an arithmetic in "
    "parentheses are less exact: they run only if you name them and are not ranked. " + TERMS
)
LEGEND = (
    "ms / nominal GFLOP/s (the direct method's operations, whatever the method does); weights prepared on every call. "
    + _MARKS
)
COPY_LEGEND = (
    "ms / share of a copy; weights prepared on every call. The share is that of the bandwidth of our copy kernel over "
    "as many bytes as the case must move at least, half read and half written, over a ring like the case's. " + _MARKS
)
TRANSFER = (
    "With transfer: ms from host arrays to a host array in pageable memory, by the host's clock: copies to and from "
    "the device, preparation of the weights, the call."
)
# Most characters of a reason in a note; the CSV has the whole reason.
LONGEST_REASON = 260
# Most cases with steps in a note; the table of steps and the CSV have all.
MOST_STEPPED = 3

Label = Callable[[Result], str]


def tables_of(
    run: Run, results: Sequence[Result] | None = None, *, best: bool = False, copy: bool = False
) -> tuple[Table, ...]:
    """The tables of a run, one per operation.

    `results` selects rows and columns, by default all; the fastest is always decided among all results of a case.
    `best` shows only a method's fastest config. `copy` adds a column of the copy, and shows shares of it, not GFLOP/s.
    """
    found = frame(run, results)
    if best:
        found = found.sort_values("seconds", kind="stable").drop_duplicates(["case", "algorithm"]).sort_index()
    return tuple(_table(run, rows, copy) for _, rows in found.groupby("operation", sort=False))


def _table(run: Run, rows: DataFrame, copy: bool) -> Table:
    label = labeller(rows.result)
    rows = rows.assign(label=rows.result.map(label))
    timed = rows[rows.seconds.notna()]
    # Our methods, then peers, in the order of the file; methods without a time are in the notes.
    labels = list(timed.sort_values("ours", ascending=False, kind="stable").label.unique())
    transferred = any(r.transfer_time for r in timed.result)
    lines: list[dict[str, str | Cell]] = []
    for case in sorted(rows.case.unique(), key=natural):
        of_case, verdict = rows[rows.case == case], judge(run, case)
        cells = {r.label: _cell(run, r.result, verdict, copy) for r in each(of_case)}
        lines.append(cells | {
            "case": case, "stride": stride_of(parse_problem(of_case.problem.iloc[0])), "a copy": _copy_text(run, case),
            "with transfer": _with_transfer(of_case.result, label), "fastest": verdict.words(label),
        })  # fmt: skip
    if lines:
        errors = rows.groupby("label").rms.max().dropna().map(error)
        lines.append({"case": "largest RMS error", **dict.fromkeys(labels, "-"), **errors[errors.index.isin(labels)]})
    columns = ("case", "stride", *labels, *["a copy"] * copy, *["with transfer"] * transferred, "fastest")
    notes = [*[TRANSFER] * transferred, *_step_notes(run, rows), *way_notes(rows.result, label)]
    notes += [] if copy else _copy_notes(run, timed)
    return table(columns, lines, (*notes, *_notes(rows)))


def markdown_table(run: Run, results: Sequence[Result] | None = None, *, best: bool = False, copy: bool = False) -> str:
    """The tables of :func:`tables_of` as Markdown, with device and date of the measurement, and notes."""
    return markdown([run], tables_of(run, results, best=best, copy=copy), COPY_LEGEND if copy else LEGEND)


def rich_tables(run: Run, width: int) -> RenderableType:
    """The tables of a run for a terminal of `width` characters."""
    from rich.console import Group
    from rich.text import Text

    found = tables_of(run)
    notes = [Text(note) for shown in found for note in shown.notes]
    warnings = [Text(note, style="bold yellow") for note in doubts(run)]
    blocks = (rich_table(shown, width) for shown in found)
    return Group(*blocks, Text(LEGEND, style="dim"), *notes, Text(caption(run)), *warnings)


def _cell(run: Run, r: Result, verdict: Verdict, copy: bool) -> Cell:
    timing = run.timing(r)
    if timing is None:
        return Cell("-" if r.status == "ok" else r.status)
    share = run.of_copy(r, timing)
    beside = three(r.flops / timing.median_s / 1e9) if not copy else "-" if share is None else percent(share)
    look = "best" if r is verdict.best_ours else "rival" if r is verdict.best_peer else ""
    return Cell(f"{marked_ms(timing, stale=run.is_stale(r))} / {beside}", look=look)


def _copy_text(run: Run, case: str) -> str:
    copy = run.copy_of(case)
    return "-" if copy is None else f"{marked_ms(copy.time)} / {three(copy.bytes_per_s / 1e9)} GB/s"


def _with_transfer(results: Iterable[Result], label: Label) -> str:
    """The shortest time of our methods from host array to host array, with the method's name."""
    found = [(r.transfer_time, label(r)) for r in results if r.ours and r.transfer_time is not None]
    timing, name = min(found, key=lambda pair: pair[0].median_s, default=(None, ""))
    return "-" if timing is None else f"{marked_ms(timing)} ({name})"


def _notes(rows: DataFrame) -> Iterator[str]:
    """Yield notes on hot or few samples, and on refused, failed and skipped rows."""
    timed = [r for r in rows.result if r.time is not None]
    if hot := [r.case for r in timed if not r.time.cold]:
        yield f"Hot in the cache, too small to fill a ring: {some(hot)}."
    if few := [f"{r.case} {r.algorithm}" for r in timed if r.time.few]:
        yield f"Fewer samples than the rule's, as the budget ended: {some(few)}."
    alike: dict[str, list[str]] = {}
    for (algorithm, status), found in rows[rows.status != "ok"].groupby(["algorithm", "status"], sort=False):
        reason, *others = found.reason.unique()
        more = f" (and {len(others)} more reasons: see the CSV)" if others else ""
        short = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 4]} ..."
        alike.setdefault(f"{status} on {some(found.case)}: {short}{more}", []).append(str(algorithm))
    yield from (f"{', '.join(algorithms)} {words}" for words, algorithms in alike.items())


def _copy_notes(run: Run, timed: DataFrame) -> Iterator[str]:
    """A note with the lowest and highest fraction of copy bandwidth of every method, over memory-bound cases.

    A case is memory-bound if copying its bytes takes at least as long as the direct method's operations.
    """
    best = run.best_ceilings
    balance = best.fma_flops_per_s / best.copy_bytes_per_s if best else math.inf  # FLOP per byte
    bound = timed[[r.flops <= balance * r.least_bytes for r in timed.result]].dropna(subset=["of_copy"])
    each = []
    for name, shares in bound.groupby("label", sort=False).of_copy:
        low, high = percent(shares.min()), percent(shares.max())
        each.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    if each:
        yield f"Of a copy of the same bytes, where memory is the limit: {'; '.join(each)}."


def _step_notes(run: Run, rows: DataFrame) -> Iterator[str]:
    """A note for each method with timed steps, about its largest cases."""

    def words(step: StepTime) -> str:
        share, hot = run.copy_share(step), "" if step.time.cold else ", hot in the cache"
        of = "" if share is None else f" ({percent(share)} of the copy ceiling{hot})"
        return f"{step.name} {milliseconds(step.time.median_s)} ms{of}"

    for name, found in rows[rows.result.map(lambda r: bool(r.steps))].groupby("label", sort=False).result:
        largest = sorted(found, key=lambda r: r.flops, reverse=True)
        each = [
            f"on {r.case} " * (len(found) > 1) + ", ".join(map(words, r.steps)) for r in largest[:MOST_STEPPED]
        ]  # fmt: skip
        others = {r.case for r in largest[MOST_STEPPED:]}
        more = f"; and on {some(r.case for r in found if r.case in others)}" if others else ""
        yield f"{name}: {'; '.join(each)}{more}"


def way_notes(results: Iterable[Result], label: Label) -> list[str]:
    """Notes on the plans that libraries offered: how many there are, how many ran, and why others did not."""
    methods: dict[str, list[Result]] = {}
    for r in results:
        if r.ways:
            methods.setdefault(label(r), []).append(r)
    notes = []
    for name, found in methods.items():
        ways = [way for r in found for way in r.ways]
        count = Counter(outcome for _, outcome, _ in ways)
        parts = [f"{count['run']} run"]
        parts += [f"{count['large']} want more workspace than the limit"] * bool(count["large"])
        if count["failed"]:
            parts.append(f"{count['failed']} failed ({some(why for _, outcome, why in ways if outcome == 'failed')})")
        excluded = f"; {count['excluded']} excluded for their arithmetic" if count["excluded"] else ""
        cases = len({r.case for r in found})
        total = f"{len(ways) - count['excluded']} on {cases} case{'s' * (cases > 1)}"
        notes.append(f"{name}: the fastest of the library's own plans: {total}, {', '.join(parts)}{excluded}.")
    return notes


CSV_COLUMNS = (
    "case", "problem", "operation", "stride", "algorithm", "config", "backend", "ours", "precision", "status", "reason",
    "ms", "spread", "noisy", "gflops", "prepared_ms", "prepared_spread", "transfer_ms", "transfer_spread", "steps",
    "copy_ms", "of_copy", "cold", "ring", "samples", "first_call_ms", "prepare_ms", "workspace_bytes", "rms_error",
    "max_error", "bound_ratio", "flops", "least_bytes", "stale", "fastest", "too_noisy_to_rank", "note",
)  # fmt: skip


def csv_table(run: Run) -> str:
    """Every result of a run as a line of CSV, whatever its status; times and rates have six digits."""
    verdicts = {case: judge(run, case) for case in run.cases}
    rows = (_csv_row(run, r, verdicts[r.case]) for r in run.results)
    return data_frame(rows, CSV_COLUMNS, as_given=True).to_csv(index=False, lineterminator="\n")


def _csv_row(run: Run, r: Result, verdict: Verdict) -> dict[str, Any]:
    timing, copy = run.timing(r), run.copy_of(r.case)
    row: dict[str, Any] = {name: getattr(r, name) for name in CSV_COLUMNS if hasattr(r, name)} | {
        "stride": stride_of(parse_problem(r.problem)), "stale": run.is_stale(r),
        "fastest": r in verdict.fastest, "too_noisy_to_rank": r in verdict.unsure,
        "copy_ms": _six(copy.time.median_s if copy else None, 1e3), "of_copy": _six(run.of_copy(r, timing)),
        "first_call_ms": _six(r.first_call_s, 1e3), "prepare_ms": _six(r.prepare_s, 1e3),
        "steps": " ".join(f"{step.name}={_six(step.time.median_s, 1e3)}" for step in r.steps),
    }  # fmt: skip
    if r.error is not None:
        row |= {"rms_error": r.error.rms, "max_error": r.error.max, "bound_ratio": r.error.bound_ratio}
    for prefix, found in (("", timing), ("prepared_", r.prepared_time), ("transfer_", r.transfer_time)):
        if found is not None:
            row |= {f"{prefix}ms": _six(found.median_s, 1e3), f"{prefix}spread": _six(found.spread)}
    if timing is not None:
        row |= {name: getattr(timing, name) for name in ("noisy", "cold", "ring")}
        row |= {"samples": len(timing.samples), "gflops": _six(r.flops / timing.median_s / 1e9)}
    return row


def _six(value: float | None, scale: float = 1.0) -> str | None:
    return None if value is None else f"{scale * value:.6g}"
