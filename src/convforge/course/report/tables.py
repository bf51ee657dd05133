"""The tables of a run: what stands in each row and column, and what the columns mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convforge.benchmark.verdicts import Verdict
from convforge.course.language import gettext, language
from convforge.course.report import numbers
from convforge.course.report.records import Entry, View
from convforge.course.report.summary import (
    Accuracy,
    Duel,
    Group,
    Trouble,
    accuracies,
    arithmetic,
    every_duel,
    groups,
    troubles,
)
from convforge.course.report.table import Cell, Column, Table, optional
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.words import clock_name, weights_words
from convforge.timing.timer import Timing

MANY = 6
# Letters of a reason that a page shows: a compiler's message may fill pages, and its first lines name the fault.
LONGEST_REASON = 320
# Of a case on which nothing competes.
NO_VERDICT = Verdict()


def of_a_copy() -> str:
    """What the column of this name means."""
    return gettext(
        "the bytes that the case must move over the time, over what a copy of as many moves in a second, half of them "
        "read and half written, over a ring like the case's"
    )


def host_to_host() -> str:
    """What the column of this name means."""
    return gettext(
        "from host arrays to a host array in pageable memory, by the host's clock: both copies, preparation, call"
    )


def whose(ours: bool) -> str:
    """Ours or a peer's, in a word."""
    return gettext("ours") if ours else gettext("peer")


def status(name: str) -> str:
    """What became of a row, in a word."""
    words = {
        "ok": gettext("ok"),
        "failed": gettext("failed"),
        "error": gettext("error"),
        "skipped": gettext("skipped"),
        "refused": gettext("refused"),
    }
    return words.get(name, name)


def summary_table(view: View) -> Table:
    """A row for each family and stride, and for the single cases of each kind."""
    columns = (
        Column(gettext("problem"), wide=True),
        Column(gettext("stride"), True),
        Column(gettext("cases"), True),
        Column(
            gettext("ratio, mean"),
            True,
            gettext("geometric mean of the best peer's time over our best time; above 1 ours is ahead"),
        ),
        Column(gettext("lowest"), True, gettext("the case where ours does worst")),
        Column(
            gettext("ahead / level / behind"),
            True,
            gettext("level: a tie, medians within 5 % and closer than the spreads"),
        ),
        Column(gettext("our best, most often")),
        Column(gettext("at the largest case, ours / peer"), wide=True),
        Column(gettext("verdict there")),
    )
    rows = tuple(_group_row(view, group) for group in groups(view))
    return Table("summary", gettext("Our best against the best peer, by stride"), columns, rows)


def _group_row(view: View, group: Group) -> tuple[Cell, ...]:
    ahead, level, behind = group.counts
    top, worst = group.largest, group.worst
    there = gettext("{case}: {time} / {peer_time} ({peer})").format(
        case=top.ours.result.case, time=_time(top.ours), peer_time=_time(top.peer), peer=top.peer.label
    )
    lowest = worst.ours.size_text if view.is_series(worst.ours) else worst.ours.result.case
    return (
        Cell(view.short(group.family)),
        Cell(group.stride or "–", _number(group.stride)),
        Cell(str(len(group.duels)), len(group.duels)),
        Cell(numbers.ratio(group.mean), group.mean, "strong"),
        Cell(f"{numbers.ratio(worst.ratio)} ({lowest})", worst.ratio, worst.tone),
        Cell(f"{ahead} / {level} / {behind}", ahead - behind),
        Cell(group.usual),
        Cell(there, top.ours.seconds),
        Cell(top.words, top.ratio, top.tone),
    )


def verdict_table(view: View) -> Table:
    """A row for each case that ours and a peer were timed on."""
    columns = (
        Column(gettext("case")),
        Column(gettext("size"), True),
        Column(gettext("stride"), True),
        Column(gettext("our best")),
        Column(gettext("time"), True),
        Column(gettext("best peer")),
        Column(gettext("its time"), True),
        Column(gettext("ratio"), True),
        Column(gettext("verdict")),
    )
    return Table(
        "verdicts", gettext("Who is faster, case by case"), columns, tuple(_duel_row(d) for d in every_duel(view))
    )


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
        Cell(d.words, d.ratio, d.tone),
    )


def occupied() -> Column:
    """The column of occupancy."""
    meaning = gettext("resident warps over the most that one can hold, in the launch whose threads take most registers")
    return Column(gettext("occupancy"), True, meaning)


def result_table(view: View, *, occupancy: bool = False) -> Table:
    """A row for each time, with its occupancy where asked."""
    columns = (
        Column(gettext("case")),
        Column(gettext("size"), True),
        Column(gettext("stride"), True),
        *([Column(gettext("filters"))] if _weighted(view) else []),
        Column(gettext("method")),
        Column(gettext("whose")),
        Column(
            gettext("time, ms"),
            True,
            gettext("median of a call, weights prepared inside; ~ noisy, * sources changed since"),
        ),
        Column(gettext("spread"), True, gettext("half the interquartile range over the median")),
        Column(
            "GFLOP/s",
            True,
            gettext("operations of the direct method over the time; nominal for Winograd, FFT, separable"),
        ),
        Column(
            gettext("of the roof"), True, gettext("share of what copy bandwidth and FMA peak allow at this intensity")
        ),
        *([Column(gettext("of a copy"), True, of_a_copy())] if view.run.copies else []),
        *([occupied()] if occupancy else []),
        Column(gettext("prepared, ms"), True, gettext("weights prepared once, before")),
        *([Column(gettext("host to host, ms"), True, host_to_host())] if _transferred(view) else []),
        Column(gettext("RMS error"), True, gettext("over the RMS of the float64 truth")),
        Column(gettext("workspace"), True),
        Column(gettext("first call"), True, gettext("plan, compile or load from the cache, prepare, call; in no time")),
        Column(gettext("remarks"), wide=True),
    )
    rows = tuple(_result_row(view, entry, occupancy) for entry in view.timed)
    return Table("results", gettext("Every time that was measured"), columns, rows, filtered=True)


def _result_row(view: View, entry: Entry, occupancy: bool) -> tuple[Cell, ...]:
    r, timing, limit = entry.result, entry.timing, view.roof(entry)
    assert timing is not None
    verdict = view.verdicts.get(r.case, NO_VERDICT)
    best = "best" if r is verdict.best_ours else "rival" if r is verdict.best_peer else ""
    signs = ("~" if timing.noisy else "") + ("*" if entry.stale else "")
    share = entry.gflops / limit if entry.gflops and limit else None
    prepared = None if r.prepared_time is None else r.prepared_time.median_s
    rms = None if r.error is None else r.error.rms
    return (
        Cell(r.case),
        Cell(entry.size_text, r.least_bytes),
        Cell(entry.stride or "–", _number(entry.stride)),
        *([Cell(weights_words(r.weights))] if _weighted(view) else []),
        Cell(_method(entry), look=best),
        Cell(whose(r.ours)),
        Cell(signs + numbers.three(1e3 * timing.median_s), timing.median_s, best),
        Cell(f"±{numbers.percent(timing.spread)}", timing.spread),
        optional(entry.gflops, numbers.three),
        optional(share, numbers.percent),
        *([optional(view.run.of_copy(r, timing), numbers.percent)] if view.run.copies else []),
        *([optional(entry.occupancy, numbers.percent)] if occupancy else []),
        optional(None if prepared is None else 1e3 * prepared, numbers.three),
        *([_transfer_cell(r.transfer_time)] if _transferred(view) else []),
        optional(rms, numbers.tiny),
        optional(r.workspace_bytes, numbers.byte_count),
        optional(r.first_call_s, numbers.seconds),
        Cell(gettext("; ").join(_remarks(view, entry))),
    )


def _weighted(view: View) -> bool:
    """Whether its cases differ in what their filters are."""
    return len({entry.result.weights for entry in view.timed}) > 1


def _method(entry: Entry) -> str:
    """The method as a row names it; where ways of timing are compared, the way too."""
    r = entry.result
    return f"{r.algorithm}, {clock_name(r.config)}" if r.precision == MISTAKEN else entry.label


def _transferred(view: View) -> bool:
    return any(entry.result.transfer_time is not None for entry in view.timed)


def _transfer_cell(timing: Timing | None) -> Cell:
    if timing is None:
        return Cell(numbers.MISSING)
    return Cell(("~" if timing.noisy else "") + numbers.three(1e3 * timing.median_s), timing.median_s)


def _remarks(view: View, entry: Entry) -> Iterable[str]:
    r, timing, verdict = entry.result, entry.timing, view.verdicts.get(entry.result.case, NO_VERDICT)
    assert timing is not None
    if r in verdict.fastest:
        yield gettext("fastest") if len(verdict.fastest) == 1 else gettext("fastest (tie)")
    if not r.ours and r is verdict.best_peer:
        yield gettext("best peer")
    if r.precision == MISTAKEN:
        yield gettext("one of the clocks that are compared")
    elif r.precision != "strict":
        words = gettext("{name} arithmetic, GFLOP/s nominal") if entry.nominal else gettext("{name} arithmetic")
        yield words.format(name=arithmetic(r.precision))
    if not timing.cold:
        yield gettext("hot in the cache")
    if r.note:
        yield r.note.render(gettext)


def step_table(view: View) -> Table:
    """A row for each step of each call whose steps were timed."""
    columns = (
        Column(gettext("case")),
        Column(gettext("size"), True),
        Column(gettext("stride"), True),
        Column(gettext("method")),
        Column(gettext("step")),
        Column(gettext("launches"), True),
        Column(gettext("time, ms"), True, gettext("median of the step's launches alone, one after the other; ~ noisy")),
        Column(gettext("spread"), True, gettext("half the interquartile range over the median")),
        Column(gettext("of all steps"), True),
        Column(gettext("moves at least"), True, gettext("bytes, each read and written once")),
        Column(
            gettext("of the copy ceiling"),
            True,
            gettext("those bytes over the time, over what a copy moves in a second"),
        ),
        Column(gettext("remarks"), wide=True),
    )
    rows = tuple(row for entry in view.timed for row in _step_rows(view, entry))
    return Table("steps", gettext("The steps of a call, each by itself"), columns, rows)


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
            Cell(step_name(step.name)),
            Cell(str(step.launches), step.launches),
            Cell(("~" if timing.noisy else "") + numbers.three(1e3 * timing.median_s), timing.median_s),
            Cell(f"±{numbers.percent(timing.spread)}", timing.spread),
            Cell(numbers.percent(timing.median_s / total), timing.median_s / total),
            optional(step.least_bytes, numbers.byte_count),
            optional(view.run.copy_share(step), numbers.percent),
            Cell("" if timing.cold else gettext("hot in the cache")),
        )


def step_name(name: str) -> str:
    """A step of a call in words; a kernel by its name."""
    return {"expansion": gettext("expansion"), "product": gettext("product")}.get(name, name)


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
    columns = (
        Column(gettext("stride"), True),
        Column(gettext("size"), True),
        *(Column(m, True, gettext("ms / GFLOP/s")) for m in methods),
    )
    return Table(
        f"series-{view.series.index(family)}", gettext("{what}: ms / GFLOP/s").format(what=family), columns, rows
    )


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
    columns = (
        Column(gettext("case")),
        Column(gettext("problem")),
        *(Column(m, True, gettext("ms / GFLOP/s")) for m in methods),
    )
    return Table(
        f"cases-{operation}",
        gettext("Single cases of {operation}: ms / GFLOP/s").format(operation=operation),
        columns,
        rows,
    )


def roofline_table(view: View, entries: Sequence[Entry], key: str = "roofline", caption: str = "") -> Table:
    """The numbers behind a chart under the roof."""
    columns = (
        Column(gettext("method")),
        Column(gettext("problem"), wide=True),
        Column(gettext("size"), True),
        Column(gettext("stride"), True),
        Column(gettext("FLOPs a byte"), True),
        Column("GFLOP/s", True),
        Column(gettext("roof, GFLOP/s"), True),
        Column(gettext("of the roof"), True),
        *([Column(gettext("of a copy"), True, of_a_copy())] if view.run.copies else []),
        Column(gettext("counted")),
    )
    rows = []
    for e in entries:
        intensity, rate, limit = e.intensity, e.gflops, view.roof(e)
        rows.append(
            (
                Cell(e.label),
                Cell(e.family),
                Cell(e.size_text, e.result.least_bytes),
                Cell(e.stride or "–", _number(e.stride)),
                optional(intensity, numbers.three),
                optional(rate, numbers.three),
                optional(limit, numbers.three),
                optional(rate / limit if rate and limit else None, numbers.percent),
                *([optional(view.run.of_copy(e.result, e.timing), numbers.percent)] if view.run.copies else []),
                Cell(gettext("nominal") if e.nominal else gettext("as done")),
            )
        )
    return Table(key, caption or gettext("Roofline"), columns, tuple(rows))


def error_table(view: View) -> Table:
    """A row for each method, class of arithmetic and type: errors of several types have no common scale."""
    columns = (
        Column(gettext("method")),
        Column(gettext("type")),
        Column(gettext("RMS error, largest"), True),
        Column(gettext("RMS error, median"), True),
        Column(
            gettext("of the elementwise bound"),
            True,
            gettext("largest error over its bound; above 100 % the result is refused"),
        ),
        Column(gettext("arithmetic")),
        Column(gettext("checked"), True),
        Column(gettext("whose")),
    )
    return Table("errors", gettext("Errors by method"), columns, tuple(_accuracy_row(a) for a in accuracies(view)))


def _accuracy_row(a: Accuracy) -> tuple[Cell, ...]:
    broken = "behind" if a.largest_bound_ratio is not None and a.largest_bound_ratio > 1 else ""
    bound = optional(a.largest_bound_ratio, numbers.percent)
    return (
        Cell(a.method),
        Cell(a.types),
        optional(a.largest_rms, numbers.tiny),
        optional(a.median_rms, numbers.tiny),
        Cell(bound.text, bound.sort, broken),
        Cell(arithmetic(a.precision)),
        Cell(str(a.checked), a.checked),
        Cell(whose(a.ours)),
    )


def trouble_table(view: View) -> Table:
    """A row for each reason why something has no time."""
    columns = (
        Column(gettext("method")),
        Column(gettext("whose")),
        Column(gettext("status")),
        Column(gettext("cases"), True),
        Column(gettext("reason"), wide=True),
        Column(gettext("which"), wide=True),
    )
    return Table(
        "no-time", gettext("What has no time, and why"), columns, tuple(_trouble_row(t) for t in troubles(view))
    )


def _trouble_row(t: Trouble) -> tuple[Cell, ...]:
    comma = gettext(", ")
    which = comma.join(t.cases)
    if len(t.cases) > MANY:
        words = gettext("{cases} and {n} more")
        which = words.format(cases=comma.join(t.cases[: MANY - 1]), n=len(t.cases) - MANY + 1)
    reason = t.reason.render(gettext)
    if len(reason) > LONGEST_REASON:
        reason = reason[:LONGEST_REASON].rstrip() + " …"
    return (
        Cell(t.method),
        Cell(whose(t.ours)),
        Cell(status(t.status), look="behind" if t.status in ("failed", "error") else ""),
        Cell(str(len(t.cases)), len(t.cases)),
        Cell(
            gettext("such as: {reason}").format(reason=reason) if t.reasons > 1 else reason,
            lang=_foreign(reason, str(t.reason)),
        ),
        Cell(which),
    )


def _foreign(said: str, text: str) -> str:
    """The language of a stored text that has no words in the page's."""
    return "en" if text.startswith(said.removesuffix(" …")) and language() != "en" else ""


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
    first, _, second = text.partition("x")
    return float(first) + float(second or first) / 1e6
