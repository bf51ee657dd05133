"""The page's tables: cells with a text to read and a value to sort by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from convforge.measure.timer import Timing
from convforge.report import numbers
from convforge.report.records import Entry, View, roof
from convforge.report.summary import Accuracy, Duel, Group, Trouble, accuracies, duels, groups, troubles

MANY = 6
OF_A_COPY = (
    "the bytes that the case must move over the time, over what a copy of as many moves in a second, half of them "
    "read and half written, over a ring like the case's"
)
HOST_TO_HOST = (
    "from host arrays to a host array in pageable memory, by the host's clock: both copies, preparation, call"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes
    ----------
    text : str
    sort : float, str or None
        What it is sorted by; None: nothing stands here, it goes last either way.
    look : str
        Class of the stylesheet.
    """

    text: str
    sort: float | str | None = None
    look: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, whether it holds numbers, what it means where the name does not say, if it is prose."""

    name: str
    numeric: bool = False
    meaning: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes
    ----------
    key : str
        Unique in its run.
    caption : str
    columns : tuple of Column
    rows : tuple of tuple of Cell
    filtered : bool
        Whether it gets a filter box.
    """

    key: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    filtered: bool = False


def summary_table(view: View) -> Table:
    """A row for each family and stride."""
    columns = (
        Column("problem", wide=True),
        Column("stride", True),
        Column("cases", True),
        Column("ratio, mean", True, "geometric mean of the best peer's time over our best time; above 1 ours is ahead"),
        Column("lowest", True, "the case where ours does worst"),
        Column("ahead / level / behind", True, "level: closer than the spreads of the two"),
        Column("our best, most often"),
        Column("at the largest case, ours / peer", True),
        Column("against"),
        Column("verdict there"),
    )
    rows = tuple(_group_row(view, group) for group in groups(view))
    return Table("summary", "Our best against the best peer, by stride", columns, rows)


def _group_row(view: View, group: Group) -> tuple[Cell, ...]:
    ahead, level, behind = group.counts
    top, worst = group.largest, group.worst
    return (
        Cell(view.short(group.family)),
        Cell(group.stride or "–", _number(group.stride)),
        Cell(str(len(group.duels)), len(group.duels)),
        Cell(numbers.ratio(group.mean), group.mean, "strong"),
        Cell(f"{numbers.ratio(worst.ratio)} ({worst.ours.size_text})", worst.ratio, worst.tone),
        Cell(f"{ahead} / {level} / {behind}", ahead - behind),
        Cell(group.usual),
        Cell(f"{_time(top.ours)} / {_time(top.peer)}", top.ours.seconds),
        Cell(top.peer.label),
        Cell(top.words, look=top.tone),
    )


def verdict_table(view: View) -> Table:
    """A row for each case that ours and a peer were timed on."""
    columns = (
        Column("case"),
        Column("size", True),
        Column("stride", True),
        Column("our best"),
        Column("time", True),
        Column("best peer"),
        Column("its time", True),
        Column("ratio", True),
        Column("verdict"),
    )
    return Table("verdicts", "Who is faster, case by case", columns, tuple(_duel_row(d) for d in duels(view)))


def _duel_row(d: Duel) -> tuple[Cell, ...]:
    return (
        Cell(d.ours.result.case),
        Cell(d.ours.size_text, d.ours.result.least_bytes),
        Cell(d.ours.stride or "–", _number(d.ours.stride)),
        Cell(d.ours.label),
        Cell(_time(d.ours), d.ours.seconds),
        Cell(d.peer.label),
        Cell(_time(d.peer), d.peer.seconds),
        Cell(numbers.ratio(d.ratio), d.ratio),
        Cell(d.words, look=d.tone),
    )


def result_table(view: View) -> Table:
    """A row for each time."""
    columns = (
        Column("case"),
        Column("size", True),
        Column("stride", True),
        Column("method"),
        Column("whose"),
        Column("time, ms", True, "median of a call, weights prepared inside; ~ noisy, * sources changed since"),
        Column("spread", True, "half the interquartile range over the median"),
        Column("GFLOP/s", True, "operations of the direct method over the time; nominal for Winograd, FFT, separable"),
        Column("of the roof", True, "share of what copy bandwidth and FMA peak allow at this intensity"),
        *([Column("of a copy", True, OF_A_COPY)] if view.run.copies else []),
        Column("prepared, ms", True, "weights prepared once, before"),
        *([Column("host to host, ms", True, HOST_TO_HOST)] if _transferred(view) else []),
        Column("RMS error", True, "over the RMS of the float64 truth"),
        Column("workspace", True),
        Column("first call", True, "plan, compile or load from the cache, prepare, call; in no time"),
        Column("remarks", wide=True),
    )
    rows = tuple(_result_row(view, entry) for entry in view.timed)
    return Table("results", "Every time that was measured", columns, rows, filtered=True)


def _result_row(view: View, entry: Entry) -> tuple[Cell, ...]:
    r, timing, limit = entry.result, entry.timing, view.roof(entry)
    assert timing is not None
    verdict = view.verdicts[r.case]
    best = "best" if r is verdict.best_ours else "rival" if r is verdict.best_peer else ""
    signs = ("~" if timing.noisy else "") + ("*" if entry.stale else "")
    share = entry.gflops / limit if entry.gflops and limit else None
    prepared = None if r.prepared_time is None else r.prepared_time.median_s
    rms = None if r.error is None else r.error.rms
    return (
        Cell(r.case),
        Cell(entry.size_text, r.least_bytes),
        Cell(entry.stride or "–", _number(entry.stride)),
        Cell(entry.label, look=best),
        Cell("ours" if r.ours else "peer"),
        Cell(signs + numbers.three(1e3 * timing.median_s), timing.median_s, best),
        Cell(f"±{numbers.percent(timing.spread)}", timing.spread),
        _optional(entry.gflops, numbers.three),
        _optional(share, numbers.percent),
        *([_optional(view.run.of_copy(r, timing), numbers.percent)] if view.run.copies else []),
        _optional(None if prepared is None else 1e3 * prepared, numbers.three),
        *([_transfer_cell(r.transfer_time)] if _transferred(view) else []),
        _optional(rms, numbers.tiny),
        _optional(r.workspace_bytes, numbers.byte_count),
        _optional(r.first_call_s, numbers.seconds),
        Cell("; ".join(_remarks(view, entry))),
    )


def _transferred(view: View) -> bool:
    return any(entry.result.transfer_time is not None for entry in view.timed)


def _transfer_cell(timing: Timing | None) -> Cell:
    if timing is None:
        return Cell(numbers.MISSING)
    return Cell(("~" if timing.noisy else "") + numbers.three(1e3 * timing.median_s), timing.median_s)


def _remarks(view: View, entry: Entry) -> Iterable[str]:
    r, timing, verdict = entry.result, entry.timing, view.verdicts[entry.result.case]
    assert timing is not None
    if r in verdict.fastest:
        yield "fastest" if len(verdict.fastest) == 1 else "fastest (tie)"
    if not r.ours and r is verdict.best_peer:
        yield "best peer"
    if r.precision != "strict":
        yield f"{r.precision} arithmetic{', GFLOP/s nominal' if entry.nominal else ''}"
    if not timing.cold:
        yield "hot in the cache"
    if r.note:
        yield r.note


def step_table(view: View) -> Table:
    """A row for each step of each call whose steps were timed."""
    columns = (
        Column("case"),
        Column("size", True),
        Column("stride", True),
        Column("method"),
        Column("step"),
        Column("launches", True),
        Column("time, ms", True, "median of the step's launches alone, one after the other; ~ noisy"),
        Column("spread", True, "half the interquartile range over the median"),
        Column("of all steps", True),
        Column("moves at least", True, "bytes, each read and written once"),
        Column("of the copy ceiling", True, "those bytes over the time, over what a copy moves in a second"),
        Column("remarks", wide=True),
    )
    rows = tuple(row for entry in view.timed for row in _step_rows(view, entry))
    return Table("steps", "The steps of a call, each by itself", columns, rows)


def _step_rows(view: View, entry: Entry) -> Iterable[tuple[Cell, ...]]:
    r = entry.result
    total = sum(step.time.median_s for step in r.steps)
    for step in r.steps:
        timing = step.time
        yield (
            Cell(r.case),
            Cell(entry.size_text, r.least_bytes),
            Cell(entry.stride or "–", _number(entry.stride)),
            Cell(entry.label),
            Cell(step.name),
            Cell(str(step.launches), step.launches),
            Cell(("~" if timing.noisy else "") + numbers.three(1e3 * timing.median_s), timing.median_s),
            Cell(f"±{numbers.percent(timing.spread)}", timing.spread),
            Cell(numbers.percent(timing.median_s / total), timing.median_s / total),
            _optional(step.least_bytes, numbers.byte_count),
            _optional(view.run.copy_share(step), numbers.percent),
            Cell("" if timing.cold else "hot in the cache"),
        )


def series_table(view: View, family: str) -> Table:
    """The numbers behind a family's charts: a row for each stride and size, a column for each method."""
    members = [e for e in view.best if e.family == family and e.size is not None]
    methods = [m for m in view.methods if any(e.result.algorithm == m for e in members)]
    places = sorted({(e.stride, e.size or 0) for e in members})
    found = {(e.stride, e.size or 0, e.result.algorithm): e for e in members}
    rows = tuple(
        (
            Cell(stride or "–", _number(stride)),
            Cell(str(size), size),
            *(_time_and_rate(found.get((stride, size, method))) for method in methods),
        )
        for stride, size in places
    )
    columns = (Column("stride", True), Column("size", True), *(Column(m, True, "ms / GFLOP/s") for m in methods))
    return Table(f"series-{view.series.index(family)}", f"{family}: ms / GFLOP/s", columns, rows)


def case_table(view: View, operation: str) -> Table:
    """The numbers behind the chart of single cases."""
    members = [e for e in view.best if not view.is_series(e) and e.result.operation == operation]
    methods = [m for m in view.methods if any(e.result.algorithm == m for e in members)]
    found = {(e.result.case, e.result.algorithm): e for e in members}
    rows = tuple(
        (
            Cell(case),
            Cell(view.by_case[case].result.problem),
            *(_time_and_rate(found.get((case, method))) for method in methods),
        )
        for case in dict.fromkeys(e.result.case for e in members)
    )
    columns = (Column("case"), Column("problem"), *(Column(m, True, "ms / GFLOP/s") for m in methods))
    return Table(f"cases-{operation}", f"Single cases of {operation}: ms / GFLOP/s", columns, rows)


def roofline_table(view: View, entries: Sequence[Entry]) -> Table:
    """The numbers behind the roofline."""
    columns = (
        Column("method"), Column("problem", wide=True), Column("size", True), Column("stride", True),
        Column("FLOPs a byte", True), Column("GFLOP/s", True), Column("roof, GFLOP/s", True),
        Column("of the roof", True), *([Column("of a copy", True, OF_A_COPY)] if view.run.copies else []),
        Column("counted"),
    )  # fmt: skip
    ceilings = view.run.best_ceilings
    rows = []
    for e in entries:
        intensity, rate = e.intensity, e.gflops
        limit = None if ceilings is None or intensity is None else roof(ceilings, intensity)
        rows.append(
            (
                Cell(e.label),
                Cell(e.family),
                Cell(e.size_text, e.result.least_bytes),
                Cell(e.stride or "–", _number(e.stride)),
                _optional(intensity, numbers.three),
                _optional(rate, numbers.three),
                _optional(limit, numbers.three),
                _optional(rate / limit if rate and limit else None, numbers.percent),
                *([_optional(view.run.of_copy(e.result, e.timing), numbers.percent)] if view.run.copies else []),
                Cell("nominal" if e.nominal else "as done"),
            )
        )
    return Table("roofline", "Roofline", columns, tuple(rows))


def error_table(view: View) -> Table:
    """A row for each method and class of arithmetic."""
    columns = (
        Column("method"), Column("whose"), Column("arithmetic"), Column("checked", True),
        Column("RMS error, median", True), Column("RMS error, largest", True),
        Column("of the elementwise bound", True, "largest error over its bound; above 1 the result is refused"),
    )  # fmt: skip
    return Table("errors", "Errors by method", columns, tuple(_accuracy_row(a) for a in accuracies(view)))


def _accuracy_row(a: Accuracy) -> tuple[Cell, ...]:
    broken = "behind" if a.largest_bound_ratio is not None and a.largest_bound_ratio > 1 else ""
    bound = _optional(a.largest_bound_ratio, numbers.fraction)
    return (
        Cell(a.method),
        Cell("ours" if a.ours else "peer"),
        Cell(a.precision),
        Cell(str(a.checked), a.checked),
        _optional(a.median_rms, numbers.tiny),
        _optional(a.largest_rms, numbers.tiny),
        Cell(bound.text, bound.sort, broken),
    )


def trouble_table(view: View) -> Table:
    """A row for each reason why something has no time."""
    columns = (
        Column("method"),
        Column("whose"),
        Column("status"),
        Column("cases", True),
        Column("reason", wide=True),
        Column("which", wide=True),
    )
    return Table("no-time", "What has no time, and why", columns, tuple(_trouble_row(t) for t in troubles(view)))


def _trouble_row(t: Trouble) -> tuple[Cell, ...]:
    which = (
        ", ".join(t.cases)
        if len(t.cases) <= MANY
        else f"{', '.join(t.cases[: MANY - 1])} and {len(t.cases) - MANY + 1} more"
    )
    return (
        Cell(t.method),
        Cell("ours" if t.ours else "peer"),
        Cell(t.status, look="behind" if t.status in ("failed", "error") else ""),
        Cell(str(len(t.cases)), len(t.cases)),
        Cell(f"such as: {t.reason}" if t.reasons > 1 else t.reason),
        Cell(which),
    )


def _time_and_rate(entry: Entry | None) -> Cell:
    if entry is None or entry.timing is None:
        return Cell(numbers.MISSING)
    rate = "" if entry.gflops is None else f" / {numbers.three(entry.gflops)}"
    signs = ("~" if entry.timing.noisy else "") + ("*" if entry.stale else "")
    return Cell(f"{signs}{numbers.three(1e3 * entry.timing.median_s)}{rate}", entry.timing.median_s)


def _time(entry: Entry) -> str:
    return numbers.MISSING if entry.seconds is None else numbers.seconds(entry.seconds)


def _number(text: str) -> float | None:
    """A stride to sort by: its first axis, then its second."""
    if not text:
        return None
    first, _, second = text.partition("×")
    return float(first) + float(second or first) / 1e6


def _optional(value: float | None, write: Callable[[float], str]) -> Cell:
    if value is None:
        return Cell(numbers.MISSING)
    return Cell(write(value), float(value))
