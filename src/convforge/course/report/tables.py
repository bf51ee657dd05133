"""The tables of a run's page: their columns, the explanations of these, and their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from convforge.benchmark.verdicts import Verdict
from convforge.course.language import gettext, language
from convforge.course.report import numbers
from convforge.course.report.records import Entry, View
from convforge.course.report.summary import (
    Duel,
    Group,
    Trouble,
    accuracies,
    arithmetic,
    every_duel,
    groups,
    troubles,
)
from convforge.course.report.table import Cell, Column, Field, Table, number, optional, table, text
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.words import clock_name, weights_words
from convforge.timing.timer import Timing

MANY = 6
# Most letters shown of a reason. A compiler's message can fill pages, and its first lines name the fault.
LONGEST_REASON = 320
# Verdict of a case without ranked methods.
NO_VERDICT = Verdict()


# Columns used by several tables.


def occupied() -> Column:
    meaning = gettext("resident warps over the most that one can hold, in the launch whose threads take most registers")
    return Column(gettext("occupancy"), True, meaning)


def _cases(entry_of: Callable[[Any], Entry] = lambda entry: entry, *, named: bool = True) -> Iterable[Field]:
    """Columns for case, size and stride of an item."""
    if named:
        yield text(gettext("case"), lambda item: entry_of(item).result.case)
    size = Column(gettext("size"), True)
    yield size, lambda item: Cell(entry_of(item).size_text, entry_of(item).result.least_bytes)
    yield _stride(lambda item: entry_of(item).stride)


def _stride(of: Callable[[Any], str]) -> Field:
    """Column of strides, sorted by the first axis, then the second."""

    def cell(item: Any) -> Cell:
        steps = [int(step) for step in of(item).split("x") if step]
        return Cell(of(item) or numbers.MISSING, steps[0] + steps[-1] / 1e6 if steps else None)

    return Column(gettext("stride"), True), cell


def _spread(timing_of: Callable[[Any], Timing]) -> Field:
    column = Column(gettext("spread"), True, gettext("half the interquartile range over the median"))
    return column, lambda item: Cell(f"±{numbers.percent(timing_of(item).spread)}", timing_of(item).spread)


def _copied(view: View) -> list[Field]:
    meaning = gettext(
        "the bytes that the case must move over the time, over what a copy of as many moves in a second, half of them "
        "read and half written, over a ring like the case's"
    )
    column = number(gettext("of a copy"), lambda e: view.run.of_copy(e.result, e.timing), numbers.percent, meaning)
    return [column] if view.run.copies else []


def _of_the_roof(view: View, meaning: str = "") -> Field:
    return number(gettext("of the roof"), view.of_the_roof, numbers.percent, meaning)


def _time(entry: Entry) -> str:
    return numbers.MISSING if entry.seconds is None else numbers.seconds(entry.seconds)


def _marked(timing: Timing | None, *, stale: bool = False, look: str = "") -> Cell:
    """Milliseconds, with "~" for a noisy time and "*" if the sources have changed since."""
    if timing is None:
        return Cell(numbers.MISSING)
    signs = "~" * timing.noisy + "*" * stale
    return Cell(signs + numbers.three(1e3 * timing.median_s), timing.median_s, look)


def whose(ours: bool) -> str:
    """Return the word for ours or a peer's."""
    return gettext("ours") if ours else gettext("peer")


def status(name: str) -> str:
    """Return the word for the status of a result."""
    words = {
        "ok": gettext("ok"), "failed": gettext("failed"), "error": gettext("error"), "skipped": gettext("skipped"),
        "refused": gettext("refused"),
    }  # fmt: skip
    return words.get(name, name)


def step_name(name: str) -> str:
    """Name a step of a call; a kernel keeps its own name."""
    return {"expansion": gettext("expansion"), "product": gettext("product")}.get(name, name)


# Comparison with the peers.


def summary_table(view: View) -> Table:
    """Return a row for each family and stride, and for each kind of single cases."""
    counted = gettext("level: a tie, medians within 5 % and closer than the spreads")
    mean = gettext("geometric mean of the best peer's time over our best time; above 1 ours is ahead")
    at_largest = gettext("{case}: {time} / {peer_time} ({peer})")

    def lowest(g: Group) -> Cell:
        worst = g.worst
        case = worst.ours.size_text if view.is_series(worst.ours) else worst.case
        return Cell(f"{numbers.ratio(worst.ratio)} ({case})", worst.ratio, worst.tone)

    def largest(g: Group) -> Cell:
        top, ours, peer = g.largest, _time(g.largest.ours), _time(g.largest.peer)
        words = at_largest.format(case=top.case, time=ours, peer_time=peer, peer=top.peer.label)
        return Cell(words, top.ours.seconds)

    fields = (
        text(gettext("problem"), lambda g: view.short(g.family), wide=True),
        _stride(lambda g: g.stride),
        number(gettext("cases"), lambda g: len(g.duels)),
        (Column(gettext("ratio, mean"), True, mean), lambda g: Cell(numbers.ratio(g.mean), g.mean, "strong")),
        (Column(gettext("lowest"), True, gettext("the case where ours does worst")), lowest),
        (Column(gettext("ahead / level / behind"), True, counted),
         lambda g: Cell(" / ".join(map(str, g.counts)), g.counts[0] - g.counts[2])),
        text(gettext("our best, most often"), lambda g: g.usual),
        (Column(gettext("at the largest case, ours / peer"), wide=True), largest),
        (Column(gettext("verdict there")), lambda g: _verdict(g.largest)),
    )  # fmt: skip
    return table("summary", gettext("Our best against the best peer, by stride"), groups(view), fields)


def _verdict(d: Duel) -> Cell:
    return Cell(d.words, d.ratio, d.tone)


def verdict_table(view: View) -> Table:
    """Return a row for each case with times of ours and a peer."""
    fields = (
        *_cases(lambda d: d.ours),
        text(gettext("our best"), lambda d: d.ours.label),
        number(gettext("time"), lambda d: d.ours.seconds, numbers.seconds),
        text(gettext("best peer"), lambda d: d.peer.label),
        number(gettext("its time"), lambda d: d.peer.seconds, numbers.seconds),
        number(gettext("ratio"), lambda d: d.ratio, numbers.ratio),
        (Column(gettext("verdict")), _verdict),
    )
    return table("verdicts", gettext("Who is faster, case by case"), every_duel(view), fields)


# Times.


def result_table(view: View, *, occupancy: bool = False) -> Table:
    """Return a row for each time, with occupancy if requested."""
    weighted = len({e.result.weights for e in view.timed}) > 1
    transferred = any(e.result.transfer_time is not None for e in view.timed)

    def look(e: Entry) -> str:
        verdict = view.verdicts.get(e.result.case, NO_VERDICT)
        return "best" if e.result is verdict.best_ours else "rival" if e.result is verdict.best_peer else ""

    def prepared(e: Entry) -> float | None:
        return None if e.result.prepared_time is None else 1e3 * e.result.prepared_time.median_s

    time = gettext("median of a call, weights prepared inside; ~ noisy, * sources changed since")
    nominal = gettext("operations of the direct method over the time; nominal for Winograd, FFT, separable")
    first = gettext("plan, compile or load from the cache, prepare, call; in no time")
    from_host = gettext(
        "from host arrays to a host array in pageable memory, by the host's clock: both copies, preparation, call"
    )
    # Each column, and True if the run has data for it.
    columns: list[tuple[Field, bool]] = [
        *((field, True) for field in _cases()),
        (text(gettext("filters"), lambda e: weights_words(e.result.weights)), weighted),
        ((Column(gettext("method")), lambda e: Cell(_method(e), look=look(e))), True),
        (text(gettext("whose"), lambda e: whose(e.result.ours)), True),
        ((Column(gettext("time, ms"), True, time), lambda e: _marked(e.timing, stale=e.stale, look=look(e))), True),
        (_spread(lambda e: e.timing), True),
        (number("GFLOP/s", lambda e: e.gflops, numbers.three, nominal), True),
        (_of_the_roof(view, gettext("share of what copy bandwidth and FMA peak allow at this intensity")), True),
        *((field, True) for field in _copied(view)),
        ((occupied(), lambda e: optional(e.occupancy, numbers.percent)), occupancy),
        (number(gettext("prepared, ms"), prepared, numbers.three, gettext("weights prepared once, before")), True),
        ((Column(gettext("with copies, ms"), True, from_host), lambda e: _marked(e.result.transfer_time)),
         transferred),
        (number(gettext("RMS error"), lambda e: e.result.error and e.result.error.rms, numbers.tiny,
                gettext("over the RMS of the float64 truth")), True),
        (number(gettext("workspace"), lambda e: e.result.workspace_bytes, numbers.byte_count), True),
        (number(gettext("first call"), lambda e: e.result.first_call_s, numbers.seconds, first), True),
        (text(gettext("remarks"), lambda e: gettext("; ").join(_remarks(view, e)), wide=True), True),
    ]  # fmt: skip
    fields = [field for field, there in columns if there]
    return table("results", gettext("Every time that was measured"), view.timed, fields, filtered=True)


def _method(entry: Entry) -> str:
    """Name the method of a row; rows of the timing study also name the clock."""
    r = entry.result
    return f"{r.algorithm}, {clock_name(r.config)}" if r.precision == MISTAKEN else entry.label


def _remarks(view: View, entry: Entry) -> Iterable[str]:
    r, timing, verdict = entry.result, entry.timing, view.verdicts.get(entry.result.case, NO_VERDICT)
    if r in verdict.fastest:
        yield gettext("fastest") if len(verdict.fastest) == 1 else gettext("fastest (tie)")
    if not r.ours and r is verdict.best_peer:
        yield gettext("best peer")
    if r.precision == MISTAKEN:
        yield gettext("one of the clocks that are compared")
    elif r.precision != "strict":
        words = gettext("{name} arithmetic, GFLOP/s nominal") if entry.nominal else gettext("{name} arithmetic")
        yield words.format(name=arithmetic(r.precision))
    if timing is not None and not timing.cold:
        yield gettext("hot in the cache")
    if r.note:
        yield r.note.render(gettext)


def step_table(view: View) -> Table:
    """Return a row for each step of each call with timed steps."""
    steps = [(entry, step) for entry in view.timed for step in entry.result.steps]
    total = {id(entry): sum(step.time.median_s for step in entry.result.steps) for entry, _ in steps}
    alone = gettext("median of the step's launches alone, one after the other; ~ noisy")
    ceiling = gettext("those bytes over the time, over what a copy moves in a second")
    fields = (
        *_cases(lambda s: s[0]),
        text(gettext("method"), lambda s: s[0].label),
        text(gettext("step"), lambda s: step_name(s[1].name)),
        number(gettext("launches"), lambda s: s[1].launches),
        (Column(gettext("time, ms"), True, alone), lambda s: _marked(s[1].time)),
        _spread(lambda s: s[1].time),
        number(gettext("of all steps"), lambda s: s[1].time.median_s / total[id(s[0])], numbers.percent),
        number(gettext("moves at least"), lambda s: s[1].least_bytes, numbers.byte_count,
               gettext("bytes, each read and written once")),
        number(gettext("of the copy ceiling"), lambda s: view.run.copy_share(s[1]), numbers.percent, ceiling),
        text(gettext("remarks"), lambda s: "" if s[1].time.cold else gettext("hot in the cache"), wide=True),
    )  # fmt: skip
    return table("steps", gettext("The steps of a call, each by itself"), steps, fields)


# Numbers behind charts.


def series_table(view: View, family: str) -> Table:
    """Return the numbers behind a family's charts: a row for each stride and size, a column for each method."""
    members = [e for e in view.best if e.family == family and e.size is not None]
    fields = (
        _stride(lambda place: place[0]),
        number(gettext("size"), lambda place: place[1]),
        *_by_method(view, members, lambda e: (e.stride, e.size)),
    )
    caption = gettext("{what}: ms / GFLOP/s").format(what=family)
    places = sorted({(e.stride, e.size or 0) for e in members})
    return table(f"series-{view.series.index(family)}", caption, places, fields)


def case_table(view: View, operation: str) -> Table:
    """Return the numbers behind the chart of single cases."""
    members = [e for e in view.best if not view.is_series(e) and e.result.operation == operation]
    problems = {e.result.case: e.result.problem for e in members}
    by_method = _by_method(view, members, lambda e: e.result.case)
    fields = (text(gettext("case"), str), text(gettext("problem"), problems.__getitem__), *by_method)
    caption = gettext("Single cases of {operation}: ms / GFLOP/s").format(operation=operation)
    return table(f"cases-{operation}", caption, problems, fields)


def _by_method(view: View, members: Sequence[Entry], place_of: Callable[[Entry], Any]) -> Iterable[Field]:
    """Columns of time and rate for each method of some entries."""
    found = {(place_of(e), e.result.algorithm): e for e in members}
    timed = {method for _, method in found}
    for method in (method for method in view.methods if method in timed):
        column = Column(method, True, gettext("ms / GFLOP/s"))
        yield column, lambda place, method=method: _time_and_rate(found.get((place, method)))  # type: ignore[misc]


def _time_and_rate(entry: Entry | None) -> Cell:
    if entry is None or entry.timing is None:
        return Cell(numbers.MISSING)
    time = _marked(entry.timing, stale=entry.stale)
    return time if entry.gflops is None else Cell(f"{time.text} / {numbers.three(entry.gflops)}", time.sort)


def roofline_table(view: View, entries: Sequence[Entry], key: str = "roofline", caption: str = "") -> Table:
    """Return the numbers behind a roofline chart."""
    fields = (
        text(gettext("method"), lambda e: e.label),
        text(gettext("problem"), lambda e: e.family, wide=True),
        *_cases(named=False),
        number(gettext("FLOPs a byte"), lambda e: e.intensity, numbers.three),
        number("GFLOP/s", lambda e: e.gflops, numbers.three),
        number(gettext("roof, GFLOP/s"), view.roof, numbers.three),
        _of_the_roof(view),
        *_copied(view),
        text(gettext("counted"), lambda e: gettext("nominal") if e.nominal else gettext("as done")),
    )
    return table(key, caption or gettext("Roofline"), entries, fields)


# Errors, and rows without a time.


def error_table(view: View) -> Table:
    """Return a row for each method, arithmetic class and type, because errors of different types are not comparable."""
    meaning = gettext("largest error over its bound; above 100 % the result is refused")
    fields = (
        text(gettext("method"), lambda a: a.method),
        text(gettext("type"), lambda a: a.types),
        number(gettext("RMS error, largest"), lambda a: a.largest, numbers.tiny),
        number(gettext("RMS error, median"), lambda a: a.median, numbers.tiny),
        (Column(gettext("of the elementwise bound"), True, meaning),
         lambda a: replace(optional(a.bound, numbers.percent), look="behind" if a.bound > 1 else "")),
        text(gettext("arithmetic"), lambda a: arithmetic(a.precision)),
        number(gettext("checked"), lambda a: a.checked),
        text(gettext("whose"), lambda a: whose(a.ours)),
    )  # fmt: skip
    return table("errors", gettext("Errors by method"), accuracies(view).itertuples(), fields)


def trouble_table(view: View) -> Table:
    """Return a row for each reason why a time is missing."""
    fields = (
        text(gettext("method"), lambda t: t.method),
        text(gettext("whose"), lambda t: whose(t.ours)),
        (Column(gettext("status")),
         lambda t: Cell(status(t.status), look="behind" if t.status in ("failed", "error") else "")),
        number(gettext("cases"), lambda t: len(t.cases)),
        (Column(gettext("reason"), wide=True), _reason),
        text(gettext("which"), _which, wide=True),
    )  # fmt: skip
    return table("no-time", gettext("What has no time, and why"), troubles(view), fields)


def _reason(t: Trouble) -> Cell:
    said, original = t.reason.render(gettext), str(t.reason)
    shown = said if len(said) <= LONGEST_REASON else said[:LONGEST_REASON].rstrip() + " …"
    # A stored text without a translation into the page's language is in English.
    lang = "en" if original.startswith(shown.removesuffix(" …")) and language() != "en" else ""
    return Cell(gettext("such as: {reason}").format(reason=shown) if t.reasons > 1 else shown, lang=lang)


def _which(t: Trouble) -> str:
    comma = gettext(", ")
    if len(t.cases) <= MANY:
        return comma.join(t.cases)
    shown = comma.join(t.cases[: MANY - 1])
    return gettext("{cases} and {n} more").format(cases=shown, n=len(t.cases) - MANY + 1)
