"""What each study is drawn as: its records along its axis, in the report's look.

Charts that the report has already (time by size, GFLOP/s by size, errors, the roofline) are taken from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convforge.benchmark.config_tables import shape_of
from convforge.course.lab.book import Book, Chapter
from convforge.course.language import gettext
from convforge.course.report import numbers
from convforge.course.report.headline import largest_case
from convforge.course.report.palette import looks, named_looks
from convforge.course.report.panels import (
    SECONDS_LABEL,
    TIME_FIELDS,
    Kind,
    Panel,
    one_case_panel,
    panels,
    point,
    quartiles,
    roofline_panel,
)
from convforge.course.report.records import Entry
from convforge.course.report.tables import step_name
from convforge.course.report.theme import (
    Datasets,
    Ink,
    Theme,
    log_ticks,
    method_points,
    method_scales,
    shown_only,
    tooltips,
)
from convforge.course.studies.partition import by_partition
from convforge.course.studies.readings import Reading, Series, by_case, device_backend, readings, series
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.tried import alike
from convforge.course.studies.words import clock_name, workload_words
from convforge.timing.timer import Timing

# Series of one study that are drawn: those with the most places, of equals the largest.
MOST_PANELS = 6
# From this ratio of the highest to the lowest rate on, small ones would lie on the axis of a linear scale.
FAR_APART = 20
# A step's share is written into its bar where it has room.
LEGIBLE_SHARE = 0.07

Draw = Callable[[Chapter, Ink], Iterable[Panel]]


def ink_of(book: Book, theme: Theme) -> Ink:
    """A theme with one look for each method, and for whatever else a chart tells apart, on all charts of a book."""
    names = {e.result.algorithm: e.result.ours for c in book.chapters for e in c.shown.entries}
    ours_first = {name: ours for ours in (True, False) for name, mine in names.items() if mine is ours}
    found = looks(ours_first.items())
    for chapter in book.chapters:
        own = named_looks(_EXTRA_NAMES.get(chapter.study.name, _no_names)(chapter))
        found = {**own, **found}
    return Ink(theme, found)


def _no_names(chapter: Chapter) -> Sequence[str]:
    return ()


def chapter_panels(chapter: Chapter, ink: Ink) -> list[Panel]:
    """The panels of a chapter; none where its records hold nothing to draw."""
    return list(_DRAWN[chapter.study.name](chapter, ink))


def whole_panels(book: Book, ink: Ink) -> dict[str, list[Panel]]:
    """The panels that are about all chapters together: "ratio" and "errors" of the bench's report."""
    kinds: tuple[Kind, ...] = ("ratio", "errors")
    return {kind: [panel for _family, panel in panels(book.whole, kind, ink)] for kind in kinds}


def names_in(panel: Panel) -> list[str]:
    """Names that have a line, a bar or a point in a panel."""
    return list(dict.fromkeys(str(row["method"]) for rows in panel.data.values() for row in rows if "method" in row))


@dataclass(frozen=True, slots=True)
class Axis:
    """A horizontal axis of places: its title, and whether it is logarithmic."""

    title: str
    log: bool

    def encoding(self, places: Sequence[int]) -> Any:
        """As Altair's encoding of the field ``place``."""
        import altair as alt

        low, high = min(places), max(places)
        if self.log:
            scale = alt.Scale(type="log", base=2, domain=[low / 1.15, high * 1.15], nice=False)
        else:
            margin = 0.08 * max(high - low, 1)
            scale = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
        axis = alt.Axis(values=list(places), format="d", labelFlush=False)
        return alt.X("place:Q", title=self.title, scale=scale, axis=axis)


def _axis(name: str) -> Axis:
    return {
        "size": Axis(gettext("size of the picture, pixels a side"), True),
        "stride": Axis(gettext("stride"), False),
        "filter": Axis(gettext("side of the filter"), True),
        "channels": Axis(gettext("channels, and as many filters"), True),
        "inputs": Axis(gettext("input channels"), True),
    }[name]


def _values(kind: str) -> tuple[str, str]:
    """Field and title of a vertical axis."""
    return {
        "time": ("ms", gettext("time a call")),
        "rate": ("gflops", "GFLOP/s"),
        "gain": ("gain", gettext("times as fast as direct_naive")),
        "ratio": ("ratio", gettext("time ÷ that of the fastest")),
        "pixel": ("ratio", gettext("time ÷ that of one pixel a thread")),
    }[kind]


def lines(
    key: str, title: str, text: str, rows: Sequence[dict[str, Any]], axis: Axis, kind: str, ink: Ink,
    fields: Sequence[str] = TIME_FIELDS,
) -> Panel:  # fmt: skip
    """A line a method over places; times with their quartiles.

    Scales are logarithmic but for gains, and rates that are near each other.
    """
    import altair as alt

    field, words = _values(kind)
    values = [r[field] for r in rows]
    data = Datasets()
    base = data.chart(list(rows))
    x = axis.encoding(sorted({r["place"] for r in rows}))
    if kind == "gain" or (kind == "rate" and max(values) < FAR_APART * min(values)):
        scale = alt.Scale(domain=[0.0, 1.06 * max(values)], nice=False)
        y = alt.Y(f"{field}:Q", title=words, scale=scale, axis=alt.Axis(tickCount=6))
    else:
        domain = [min(values) / 1.3, max(values) * 1.3]
        label = {"time": SECONDS_LABEL, "rate": "format(datum.value, ',')"}.get(kind, "format(datum.value, '~g') + 'x'")
        y = alt.Y(
            f"{field}:Q", title=words, scale=alt.Scale(type="log", domain=domain, nice=False),
            axis=alt.Axis(labelExpr=label, values=log_ticks(domain)),
        )  # fmt: skip
    scales = method_scales(ink, list(dict.fromkeys(r["method"] for r in rows)))
    layers = [base.mark_line(strokeWidth=2).encode(x=x, y=y, color=scales["color"], strokeDash=scales["dash"])]
    if kind == "time":
        spread = base.mark_rule(strokeWidth=1.5, opacity=0.55, clip=True)
        layers.append(spread.encode(x=x, y=alt.Y("low:Q", title=words), y2="high:Q", color=scales["color"]))
    layers.append(method_points(base, scales, fields).encode(x=x, y=y))
    return Panel(key, title, text, shown_only(ink, alt.layer(*layers)).properties(height=250), data)


def _along(name: str, kind: str) -> Draw:
    """A panel for each series along an axis: time, rate, or gain over direct_naive."""

    def draw(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
        found = [one for one in series(readings(chapter.shown.run, "conv2d"), name) if len(one.points) > 1]
        found = sorted(found, key=lambda one: (-len(one.points), -max(r.result.least_bytes for r in one.every)))
        for i, one in enumerate(found[:MOST_PANELS]):
            rows = list(_rows(chapter, one, kind))
            title = workload_words(one.workload)
            if rows:
                text = gettext("{what} by {axis}, {workload}, a line a method").format(
                    what=_values(kind)[1], axis=_axis(name).title, workload=title
                )
                yield lines(f"{kind}-{name}-{i}", title, text, rows, _axis(name), kind, ink)

    return draw


def _rows(chapter: Chapter, one: Series, kind: str) -> Iterator[dict[str, Any]]:
    base = one.method("direct_naive")
    for place, found in one.points.items():
        for r in found:
            row = {**point(chapter.shown, chapter.shown.entry(r.result)), "place": place, "size": str(place)}
            if kind == "gain" and place not in base:
                continue
            if kind == "rate" and not row["gflops"]:
                continue
            yield row | ({"gain": base[place].seconds / r.seconds} if kind == "gain" else {})


def _report(kind: Kind) -> Draw:
    """The report's own panels of a kind."""

    def draw(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
        for family, panel in panels(chapter.shown, kind, ink):
            # What has no stride stands in one panel, whose title says no more than its family.
            own = "" if family and panel.key.endswith("-all") else panel.title
            title = gettext(", ").join(word for word in (family and chapter.shown.short(family), own) if word)
            yield Panel(panel.key, title, panel.description, panel.chart, panel.data)

    return draw


def _size(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Time by size; on a GPU also when it is worth it: there, from host to host, and on the host."""
    yield from _along("size", "time")(chapter, ink)
    names = _worth_names(chapter)
    if not names:
        return
    rows = []
    host = {r.problem: r for r in _best(readings(chapter.run, "conv2d", backend="cpu"))}
    for r in _best(readings(chapter.run, "conv2d")):
        if r.problem in host:
            rows.append(_timed(names[0], r, r.timing))
            rows.append(_timed(names[2], host[r.problem], host[r.problem].timing))
    there = _best(readings(chapter.run, "conv2d", pick=lambda run, r: r.transfer_time))
    rows += [_timed(names[1], r, r.timing) for r in there if r.problem in host]
    if rows:
        text = gettext("time a call by size: on the device, from host to host through it, and on its host")
        yield lines("worth", gettext("with the copies, and on the host"), text, rows, _axis("size"), "time", ink,
                    ("method", "size", "by", "time", "spread"))  # fmt: skip


def _worth_names(chapter: Chapter) -> list[str]:
    device = device_backend(chapter.run)
    host = any(r.backend == "cpu" for r in chapter.run.results)
    return [gettext("on the GPU"), gettext("host to host"), gettext("on the host")] if device == "cuda" and host else []


def _best(found: Iterable[Reading]) -> list[Reading]:
    """Of each case the fastest whose arithmetic is allowed."""
    strict = [r for r in found if r.strict]
    return [min(rs, key=lambda r: r.seconds) for rs in by_case(strict).values()]


def _timed(name: str, r: Reading, timing: Timing) -> dict[str, Any]:
    low, high = quartiles(timing.samples)
    return {
        "method": name, "by": r.method, "case": r.case, "place": r.problem.h, "size": str(r.problem.h),
        "ms": 1e3 * timing.median_s, "low": 1e3 * low, "high": 1e3 * high,
        "time": numbers.seconds(timing.median_s), "spread": f"±{numbers.percent(timing.spread)}",
    }  # fmt: skip


def _blocks(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Each shape's time over the fastest of its method, by the threads or elements of its block.

    Of configs that differ in their block alone; where a method has several such groups, of the largest.
    """
    for operation in ("conv2d", "gemm"):
        groups: dict[str, dict[str, list[Reading]]] = {}
        for one in alike(chapter.shown.run):
            for case, found in one.cases.items():
                own = [r for r in found if r.result.operation == operation and shape_of(r.result.config)]
                if len(own) > max(1, len(groups.setdefault(case, {}).get(one.method, ()))):
                    groups[case][one.method] = own
        case = max(groups, key=lambda name: (len(groups[name]), _flops(groups[name])), default="")
        rows = [
            _block_row(chapter, r, min(own, key=lambda r: r.seconds))
            for own in groups.get(case, {}).values()
            for r in sorted(own, key=lambda r: r.seconds)
        ]
        if rows:
            yield _block_panel(operation, case, rows, ink)


def _flops(methods: Mapping[str, Sequence[Reading]]) -> int:
    return max((r.result.flops for own in methods.values() for r in own), default=0)


def _block_row(chapter: Chapter, r: Reading, best: Reading) -> dict[str, Any]:
    shape = shape_of(r.result.config)
    assert shape is not None
    launch = r.result.launches[0] if r.result.launches else {}
    occupancy, registers = launch.get("occupancy"), launch.get("registers")
    row = point(chapter.shown, chapter.shown.entry(r.result))
    return row | {
        "place": shape.first * shape.second,
        "shape": str(shape),
        "config": r.result.config,
        "ratio": r.seconds / best.seconds,
        "occupancy": numbers.MISSING if occupancy is None else numbers.percent(occupancy),
        "registers": numbers.MISSING if registers is None else str(registers),
    }


def _block_panel(operation: str, case: str, rows: Sequence[dict[str, Any]], ink: Ink) -> Panel:
    import altair as alt

    data = Datasets()
    base = data.chart(list(rows))
    domain = [1 / 1.06, max(r["ratio"] for r in rows) * 1.1]
    title = (
        gettext("threads of a block")
        if operation == "conv2d"
        else gettext("threads, or elements of the tile, of a block")
    )
    x = Axis(title, True).encoding(sorted({r["place"] for r in rows}))
    y = alt.Y(
        "ratio:Q", title=_values("ratio")[1], scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(labelExpr="format(datum.value, '~g') + 'x'", values=log_ticks(domain)),
    )  # fmt: skip
    scales = method_scales(ink, list(dict.fromkeys(r["method"] for r in rows)))
    fields = ("method", "shape", "config", "time", "spread", "occupancy", "registers")
    points = method_points(base, scales, fields).encode(x=x, y=y)
    text = gettext("time of every shape of block over the fastest of its method, by its threads, on {case}").format(
        case=case
    )
    chart = shown_only(ink, alt.layer(points)).properties(height=280)
    return Panel(f"blocks-{operation}", case, text, chart, data)


def _partitions(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Each partition's time over that of one pixel a thread, by size."""
    rows = [
        _timed(gettext(name), r, r.timing) | {"ratio": r.seconds / same["pixel"].seconds, "by": r.result.config}
        for same in by_partition(chapter.shown.run).values()
        for name, r in same.items()
    ]
    if rows:
        text = gettext("time by what a thread computes, over that of one pixel a thread, by size")
        yield lines("partition", gettext("what a thread computes"), text, rows, _axis("size"), "pixel", ink,
                    ("method", "size", "time", "spread", "by"))  # fmt: skip


def _partition_names(chapter: Chapter) -> list[str]:
    shapes = [shape for r in chapter.run.results if (shape := shape_of(r.config)) is not None]
    names = ["pixel", *dict.fromkeys(shape.partition for shape in shapes if shape.partition)]
    return [gettext(name) for name in names]


def _steps(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """What part of a call each of its steps takes: a bar a case and method."""
    stepped = [r for r in chapter.run.results if r.steps]
    for method in dict.fromkeys(r.algorithm for r in stepped):
        rows = []
        for r in stepped:
            if r.algorithm != method:
                continue
            total = sum(step.time.median_s for step in r.steps)
            for i, step in enumerate(r.steps):
                share = step.time.median_s / total
                said = {"time": numbers.seconds(step.time.median_s), "of_all_steps": numbers.percent(share)}
                rows.append({"method": step_name(step.name), "case": r.case, "share": share, "step": i} | said)
        text = gettext("share of each step in the time of {method}, a bar a case").format(method=method)
        yield _step_panel(f"steps-{method}", method, text, rows, ink)


def _step_panel(key: str, title: str, text: str, rows: list[dict[str, Any]], ink: Ink) -> Panel:
    import altair as alt

    data = Datasets()
    cases = list(dict.fromkeys(str(row["case"]) for row in rows))
    scales = method_scales(ink, list(dict.fromkeys(str(row["method"]) for row in rows)))
    x = alt.X(
        "share:Q", title=gettext("share of the steps' time"), stack="zero",
        axis=alt.Axis(format="~%", orient="top", titleAnchor="end"),
    )  # fmt: skip
    y = alt.Y("case:N", sort=cases, title=None, axis=alt.Axis(labelLimit=190))
    base = data.chart(rows).encode(y=y, order=alt.Order("step:Q"))
    bars = base.mark_bar(height=15, stroke=ink("paper"), strokeWidth=1).encode(
        x=x, color=scales["color"], tooltip=tooltips(("case", "method", "time", "of_all_steps"))
    )
    # In print, and to eyes that see no colour, figures tell a bar's parts apart; their order is the legend's.
    figure: Any = alt.condition(f"datum.share >= {LEGIBLE_SHARE}", alt.Text("of_all_steps:N"), alt.value(""))
    words = base.mark_text(fontSize=10, color=ink("paper")).encode(
        x=x.bandPosition(0.5), detail="method:N", text=figure
    )
    chart = shown_only(ink, alt.layer(bars, words)).properties(height=22 * len(cases))
    return Panel(key, title, text, chart, data)


def _step_names(chapter: Chapter) -> list[str]:
    return list(dict.fromkeys(step_name(step.name) for r in chapter.run.results for step in r.steps))


def _clocks(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """What each clock shows, over the right time: a row a clock."""
    import altair as alt

    every = readings(chapter.run, "conv2d", every_config=True)
    for case, found in by_case(r for r in every if r.result.precision == MISTAKEN).items():
        read = {r.result.config: r for r in found}
        if "clock=right" not in read:
            continue
        right, named = read["clock=right"].seconds, {clock_name(clock): r for clock, r in read.items()}
        rows = [_timed(name, r, r.timing) | {"ratio": r.seconds / right} for name, r in named.items()]
        domain = [min(r["ratio"] for r in rows) / 1.3, max(r["ratio"] for r in rows) * 1.3]
        data = Datasets()
        base = data.chart(rows)
        x = alt.X(
            "ratio:Q", title=gettext("time shown ÷ the right time"),
            scale=alt.Scale(type="log", domain=domain, nice=False),
            axis=alt.Axis(
                labelExpr="format(datum.value, '~g') + 'x'", values=log_ticks(domain), orient="top", titleAnchor="end"
            ),
        )  # fmt: skip
        y = alt.Y("method:N", sort=list(named), title=None, axis=alt.Axis(grid=True, labelLimit=190))
        even = data.chart([{"ratio": 1}]).mark_rule(color=ink("ink"), strokeWidth=1.2).encode(x=x)
        points = method_points(base, method_scales(ink, list(named)), ("method", "case", "time", "spread"))
        chart = alt.layer(even, shown_only(ink, alt.layer(points.encode(x=x, y=y)))).properties(height=24 * len(rows))
        text = gettext("what each way of timing shows over the right time, on {case}").format(case=case)
        yield Panel(f"clocks-{case}", case, text, chart, data)


def _clock_names(chapter: Chapter) -> list[str]:
    return list(dict.fromkeys(clock_name(r.config) for r in chapter.run.results if r.precision == MISTAKEN))


def roofline(book: Book, ink: Ink) -> list[Panel]:
    """All methods on one case, and each where it comes nearest to the roof; none where no ceiling was measured."""
    whole = book.whole
    one = gettext("GFLOP/s of every method on the case that the headline tells of, beside the roof there")
    nearest = gettext(
        "roofline: GFLOP/s against FLOPs a byte, each method where it comes nearest to the measured ceilings"
    )
    found = (
        one_case_panel(whole, on_one_case(book), ink, one),
        roofline_panel(whole, nearest_to_roof(book), ink, nearest),
    )
    titles = {"roofline": gettext("Each method on its own best case")}
    return [replace(panel, title=titles.get(panel.key, panel.title)) for panel in found if panel is not None]


def on_one_case(book: Book) -> list[Entry]:
    """All that have a roof on the case that the headline tells of, the fastest first."""
    case = largest_case(book.whole)
    able = [e for e in book.whole.best if e.result.case == case and e.gflops and book.whole.roof(e)]
    return sorted(able, key=lambda e: e.seconds or 0.0)


def nearest_to_roof(book: Book) -> list[Entry]:
    """Of each method the entry that reaches most of the roof; those whose data stayed in the cache come last."""
    nearest: dict[str, tuple[tuple[bool, float], Entry]] = {}
    for e in book.whole.best:
        if e.timing is not None and (share := _share(book, e)):
            rank = (e.timing.cold, share)
            if e.result.algorithm not in nearest or rank > nearest[e.result.algorithm][0]:
                nearest[e.result.algorithm] = (rank, e)
    return [e for _, e in nearest.values()]


def _share(book: Book, e: Entry) -> float:
    limit = book.whole.roof(e)
    return e.gflops / limit if e.gflops and limit else 0.0


_DRAWN: Mapping[str, Draw] = {
    "size": _size,
    "stride": _along("stride", "time"),
    "block-size": _blocks,
    "filter-size": _along("filter", "time"),
    "memory": _along("filter", "gain"),
    "channels": _along("channels", "rate"),
    "partition": _partitions,
    "gemm": _report("gflops"),
    "breakdown": _steps,
    "accuracy": _report("errors"),
    "timer": _clocks,
}
_EXTRA_NAMES: Mapping[str, Callable[[Chapter], Sequence[str]]] = {
    "size": _worth_names,
    "partition": _partition_names,
    "breakdown": _step_names,
    "timer": _clock_names,
}
