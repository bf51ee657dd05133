"""The charts of the studies: the records of each along its axis.

Charts that the report already has (GFLOP/s by size, ratios, errors, the roofline) are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from convforge.benchmark.config_tables import shape_of
from convforge.course.lab.book import Book, Chapter
from convforge.course.language import gettext
from convforge.course.pages import charts as drawing
from convforge.course.pages.charts import Panel, around, lines, log_axis, place_axis
from convforge.course.pages.looks import Ink, Theme, looks
from convforge.course.report import charts as report
from convforge.course.report import numbers
from convforge.course.report.charts import Kind, size_title
from convforge.course.report.headline import largest_case
from convforge.course.report.records import Entry
from convforge.course.report.tables import step_name
from convforge.course.studies.block_size import alike
from convforge.course.studies.partition import by_partition
from convforge.course.studies.readings import Reading, Series, by_case, device_backend, readings, series
from convforge.course.studies.timer import MISTAKEN
from convforge.course.studies.words import clock_name, workload_words

# Most series of a study to draw: those with the most places, and of these the largest.
MOST_PANELS = 6
# Highest rate over lowest from which the axis is logarithmic; on a linear one, small rates would touch the axis.
FAR_APART = 20
# Smallest share that has its figure written into its bar.
LEGIBLE_SHARE = 0.07

Draw = Callable[[Chapter, Ink], Iterable[Panel]]


def ink_of(book: Book, theme: Theme) -> Ink:
    """Return a theme with one look for each method in all charts of a book."""
    names = {e.result.algorithm: e.result.ours for c in book.chapters for e in c.shown.entries}
    return Ink(theme, looks((name, ours) for ours in (True, False) for name, own in names.items() if own is ours))


def chapter_panels(chapter: Chapter, ink: Ink) -> list[Panel]:
    """Return the panels of a chapter; empty if its records have nothing to draw."""
    return list(_DRAWN[chapter.study.name](chapter, ink))


def whole_panels(book: Book, kind: Kind, ink: Ink) -> list[Panel]:
    """Return the report's panels of a kind, for all chapters together."""
    return [panel for _, panel in report.panels(book.whole, kind, ink)]


def _along(axis: str, kind: str) -> Draw:
    """Return a function that draws a panel for each series along an axis: time, rate, or gain over direct_naive."""

    def draw(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
        found = [one for one in series(readings(chapter.shown.run, "conv2d"), axis) if len(one.points) > 1]
        found = sorted(found, key=lambda one: (-len(one.points), -max(r.result.least_bytes for r in one.every)))
        for i, one in enumerate(found[:MOST_PANELS]):
            rows, workload = list(_rows(chapter, one, kind)), workload_words(one.workload)
            if not rows:
                continue
            value = {"time": gettext("time a call"), "rate": "GFLOP/s",
                     "gain": gettext("times as fast as direct_naive")}[kind]  # fmt: skip
            place = {"size": size_title("conv2d"), "stride": gettext("stride"),
                     "filter": gettext("side of the filter"),
                     "channels": gettext("channels, and as many filters")}[axis]  # fmt: skip
            words = gettext("{what} by {axis}, {workload}, a line a method")
            text = words.format(what=value, axis=place, workload=workload)
            x = place_axis(place, rows, log=axis != "stride")
            y = drawing.time_axis(rows) if kind == "time" else _value_axis(kind, value, rows)
            yield lines(f"{kind}-{axis}-{i}", workload, text, rows, x, y, ink, report.TIME_FIELDS,
                        quartiles=kind == "time")  # fmt: skip

    return draw


def _value_axis(kind: str, title: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Linear axis for gains and for rates in a small range, otherwise a logarithmic one."""
    field = {"rate": "gflops", "gain": "gain"}[kind]
    values = [row[field] for row in rows]
    if kind == "gain" or max(values) < FAR_APART * min(values):
        return drawing.linear_axis(field, title, values)
    return log_axis("y", field, title, around(values, 1.3), "thousands")


def _rows(chapter: Chapter, one: Series, kind: str) -> Iterator[dict[str, Any]]:
    base = one.method("direct_naive")
    for place, found in one.points.items():
        for r in found:
            row = report.point(chapter.shown, chapter.shown.entry(r.result)) | {"place": place, "size": str(place)}
            if kind == "gain" and place in base:
                yield row | {"gain": base[place].seconds / r.seconds}
            elif kind == "time" or (kind == "rate" and row["gflops"]):
                yield row


def _report(kind: Kind) -> Draw:

    def draw(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
        for family, panel in report.panels(chapter.shown, kind, ink):
            # An operation without strides has only one panel, so the panel's own title is redundant.
            own = "" if family and panel.key.endswith("-all") else panel.title
            words = [word for word in (family and chapter.shown.short(family), own) if word]
            yield replace(panel, title=gettext(", ").join(words))

    return draw


def _size(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Time by size; on a GPU also the time with copies from and to the host, and the time on the host."""
    yield from _along("size", "time")(chapter, ink)
    if device_backend(chapter.run) != "cuda":
        return
    host = {r.problem: r for r in _best(readings(chapter.run, "conv2d", backend="cpu"))}
    there = [r for r in _best(readings(chapter.run, "conv2d")) if r.problem in host]
    copied = _best(readings(chapter.run, "conv2d", pick=lambda run, r: r.transfer_time))
    shown = {gettext("on the GPU"): there, gettext("with copies"): [r for r in copied if r.problem in host],
             gettext("on the host"): [host[r.problem] for r in there]}  # fmt: skip
    rows = [_timed(name, r) for name, found in shown.items() for r in found]
    if rows:
        title = gettext("with the copies, and on the host")
        text = gettext("time a call by size: on the GPU, on the GPU with both copies, and on the host")
        x, y = place_axis(size_title("conv2d"), rows), drawing.time_axis(rows)
        yield lines("worth", title, text, rows, x, y, ink, ("method", "size", "by", "time", "spread"), quartiles=True)


def _best(found: Iterable[Reading]) -> list[Reading]:
    """The fastest reading with allowed arithmetic for each case."""
    strict = [r for r in found if r.strict]
    return [min(rs, key=lambda r: r.seconds) for rs in by_case(strict).values()]


def _timed(name: str, r: Reading) -> dict[str, Any]:
    place = {"place": r.problem.h, "size": str(r.problem.h)}
    return {"method": name, "by": r.method, "case": r.case} | place | report.timing_fields(r.timing)


def _blocks(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Time of each block shape divided by that of the method's fastest, by the threads or elements of the block.

    Compares configs that differ only in their block; if a method has several groups of these, the largest is drawn.
    """
    titles = {"conv2d": gettext("threads of a block"), "gemm": gettext("threads, or elements of the tile, of a block")}
    for operation, title in titles.items():
        groups: dict[str, dict[str, list[Reading]]] = {}
        for one in alike(chapter.shown.run):
            for case, found in one.cases.items():
                own = [r for r in found if r.result.operation == operation and shape_of(r.result.config)]
                if len(own) > max(1, len(groups.setdefault(case, {}).get(one.method, ()))):
                    groups[case][one.method] = own
        flops = {
            name: max((r.result.flops for own in groups[name].values() for r in own), default=0) for name in groups
        }
        case = max(groups, key=lambda name: (len(groups[name]), flops[name]), default="")
        rows = [
            _block_row(chapter, r, min(own, key=lambda r: r.seconds))
            for own in groups.get(case, {}).values()
            for r in sorted(own, key=lambda r: r.seconds)
        ]
        if rows:
            text = gettext("time of every shape of block over the fastest of its method, by its threads, on {case}")
            x = place_axis(title, rows)
            domain = [1 / 1.06, 1.1 * max(row["ratio"] for row in rows)]
            y = log_axis("y", "ratio", gettext("time ÷ that of the fastest"), domain, "ratio")
            fields = ("method", "shape", "config", "time", "spread", "occupancy", "registers")
            yield lines(f"blocks-{operation}", case, text.format(case=case), rows, x, y, ink, fields, joined=False)


def _block_row(chapter: Chapter, r: Reading, best: Reading) -> dict[str, Any]:
    shape = shape_of(r.result.config)
    assert shape is not None
    launch = r.result.launches[0] if r.result.launches else {}
    occupancy, registers = launch.get("occupancy"), launch.get("registers")
    return report.point(chapter.shown, chapter.shown.entry(r.result)) | {
        "place": shape.first * shape.second,
        "shape": str(shape),
        "config": r.result.config,
        "ratio": r.seconds / best.seconds,
        "occupancy": numbers.MISSING if occupancy is None else numbers.percent(occupancy),
        "registers": numbers.MISSING if registers is None else str(registers),
    }


def _partitions(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    rows = [
        _timed(gettext(name), r) | {"ratio": r.seconds / same["pixel"].seconds, "by": r.result.config}
        for same in by_partition(chapter.shown.run).values()
        for name, r in same.items()
    ]
    if rows:
        text = gettext("time by what a thread computes, over that of one pixel a thread, by size")
        x = place_axis(size_title("conv2d"), rows)
        domain = around([row["ratio"] for row in rows], 1.3)
        y = log_axis("y", "ratio", gettext("time ÷ that of one pixel a thread"), domain, "ratio")
        fields = ("method", "size", "time", "spread", "by")
        yield lines("partition", gettext("what a thread computes"), text, rows, x, y, ink, fields)


def _steps(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Share of each step in a call, with a bar for each case and a panel for each method."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for r in chapter.run.results:
        total = sum(step.time.median_s for step in r.steps)
        for i, step in enumerate(r.steps):
            share = step.time.median_s / total
            row = {"method": step_name(step.name), "case": r.case, "share": share, "step": i,
                   "time": numbers.seconds(step.time.median_s), "of_all_steps": numbers.percent(share)}  # fmt: skip
            rows.setdefault(r.algorithm, []).append(row)
    for method, found in rows.items():
        text = gettext("share of each step in the time of {method}, a bar a case").format(method=method)
        yield _step_panel(f"steps-{method}", method, text, found, ink)


def _step_panel(key: str, title: str, text: str, rows: list[dict[str, Any]], ink: Ink) -> Panel:
    data = drawing.Datasets()
    cases = list(dict.fromkeys(str(row["case"]) for row in rows))
    axis = alt.Axis(format="~%", orient="top", titleAnchor="end")
    x = alt.X("share:Q", title=gettext("share of the steps' time"), stack="zero", axis=axis)
    base = data.chart(rows).encode(y=drawing.name_axis("case", cases, grid=False), order=alt.Order("step:Q"))
    bars = base.mark_bar(height=15, stroke=ink("paper"), strokeWidth=1).encode(
        x=x,
        color=drawing.method_scales(ink, rows)["color"],
        tooltip=drawing.tooltips(("case", "method", "time", "of_all_steps")),
    )
    # Figures identify the parts of a bar in print and for colour-blind readers; the legend has the same order.
    figure: Any = alt.condition(f"datum.share >= {LEGIBLE_SHARE}", alt.Text("of_all_steps:N"), alt.value(""))
    words = base.mark_text(fontSize=10, color=ink("paper")).encode(
        x=x.bandPosition(0.5), detail="method:N", text=figure
    )
    chart = drawing.shown_only(ink, alt.layer(bars, words)).properties(height=drawing.ROW * len(cases))
    return Panel(key, title, text, chart, data)


def _clocks(chapter: Chapter, ink: Ink) -> Iterator[Panel]:
    """Time shown by each clock divided by the correct time, with a row for each clock."""
    every = readings(chapter.run, "conv2d", every_config=True)
    for case, found in by_case(r for r in every if r.result.precision == MISTAKEN).items():
        right = next((r.seconds for r in found if r.result.config == "clock=right"), None)
        if right is None:
            continue
        rows = [_timed(clock_name(r.result.config), r) | {"ratio": r.seconds / right} for r in found]
        domain = around([row["ratio"] for row in rows], 1.3)
        x = log_axis("x", "ratio", gettext("time shown ÷ the right time"), domain, "ratio", above=True)
        text = gettext("what each way of timing shows over the right time, on {case}").format(case=case)
        data, fields = drawing.Datasets(), ("method", "case", "time", "spread")
        yield drawing.dots(f"clocks-{case}", case, text, rows, x, "method", ink, fields, data=data,
                           below=[drawing.level_line(data, ink, x=x)])  # fmt: skip


def roofline(book: Book, ink: Ink) -> list[Panel]:
    """Return charts of all methods on one case and of each at its highest share of the roof; empty without ceilings."""
    one = gettext("GFLOP/s of every method on the case that the headline tells of, beside the roof there")
    nearest = gettext(
        "roofline: GFLOP/s against FLOPs a byte, each method where it comes nearest to the measured ceilings"
    )
    found = [report.one_case_panel(book.whole, on_one_case(book), ink, one)]
    if panel := report.roofline_panel(book.whole, nearest_to_roof(book), ink, nearest):
        found.append(replace(panel, title=gettext("Each method on its own best case")))
    return [panel for panel in found if panel is not None]


def on_one_case(book: Book) -> list[Entry]:
    """Return all entries with a roof on the headline's case, the fastest first."""
    case = largest_case(book.whole)
    able = [e for e in book.whole.best if e.result.case == case and e.gflops and book.whole.roof(e)]
    return sorted(able, key=lambda e: e.seconds or 0.0)


def nearest_to_roof(book: Book) -> list[Entry]:
    """Return the entry of each method with the highest share of the roof, preferring those with cold caches."""
    ranks: dict[str, dict[tuple[bool, float], Entry]] = {}
    for e in book.whole.best:
        limit = book.whole.roof(e)
        if e.timing is not None and e.gflops and limit:
            ranks.setdefault(e.result.algorithm, {}).setdefault((e.timing.cold, e.gflops / limit), e)
    return [found[max(found)] for found in ranks.values()]


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
