"""The panels: what each kind of chart shows of a run, as Altair charts without theme and width."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from convforge.course.language import gettext
from convforge.course.report import numbers
from convforge.course.report.records import NARROW, Entry, View
from convforge.course.report.summary import Duel, arithmetic, duels
from convforge.course.report.tables import status
from convforge.course.report.theme import (
    Datasets,
    Ink,
    log_ticks,
    method_points,
    method_scales,
    shown_only,
    size_axis,
    tooltips,
)

Kind = Literal["ratio", "time", "gflops", "cases", "roofline", "errors"]
KINDS: tuple[Kind, ...] = ("ratio", "time", "gflops", "cases", "roofline", "errors")
STRIDE_LOOKS = {"1": ("circle", ()), "2": ("square", (6, 3)), "3": ("triangle-up", (2, 2))}
SECONDS_LABEL = (
    "datum.value < 0.001 ? format(datum.value * 1e6, '~g') + ' ns' : datum.value < 1 ? "
    "format(datum.value * 1e3, '~g') + ' us' : datum.value < 1000 ? format(datum.value, '~g') + ' ms' : "
    "format(datum.value / 1e3, '~g') + ' s'"
)
TIME_FIELDS = ("method", "size", "time", "spread", "rate", "of_the_roof", "error", "note")


def point(shown: View, entry: Entry) -> dict[str, Any]:
    """What a point of a chart holds; words for the tooltip, numbers for the place."""
    timing, r = entry.timing, entry.result
    assert timing is not None
    roof, rate = shown.roof(entry), entry.gflops
    low, high = quartiles(timing.samples)
    notes = [gettext("noisy")] if timing.noisy else []
    notes += [] if timing.cold else [gettext("hot in the cache")]
    notes += [gettext("GFLOP/s nominal")] if entry.nominal else []
    return {
        "method": r.algorithm,
        "case": r.case,
        "ms": 1e3 * timing.median_s,
        "low": 1e3 * low,
        "high": 1e3 * high,
        "gflops": rate,
        "time": numbers.seconds(timing.median_s),
        "spread": f"±{numbers.percent(timing.spread)}",
        "rate": numbers.MISSING if rate is None else f"{numbers.three(rate)} GFLOP/s",
        "of_the_roof": numbers.MISSING if not roof or rate is None else numbers.percent(rate / roof),
        "error": numbers.MISSING if r.error is None or r.error.rms is None else numbers.tiny(r.error.rms),
        "note": gettext(", ").join(notes) or "–",
    }


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile of samples in seconds.

    Examples
    --------
    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0]), quartiles([2.0])
    ((2.0, 4.0), (2.0, 2.0))
    """
    if len(samples) == 1:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes
    ----------
    key : str
        Unique in its run.
    title : str
        What sets it apart from its neighbours, such as "stride 2".
    description : str
        What it shows, for who cannot see it.
    chart : altair chart
        Without theme and width.
    data : Datasets
        Its rows.
    """

    key: str
    title: str
    description: str
    chart: Any
    data: Datasets


def panels(shown: View, kind: Kind, ink: Ink) -> Iterable[tuple[str, Panel]]:
    """The panels of a kind, each with the title of the row that it stands in."""
    make = {
        "ratio": _ratio_panels,
        "time": lambda s, i: _series_panels(s, i, "time"),
        "gflops": lambda s, i: _series_panels(s, i, "gflops"),
        "cases": _case_panels,
        "roofline": _roofline_panels,
        "errors": _error_panels,
    }
    return make[kind](shown, ink)


def _series_panels(shown: View, ink: Ink, kind: Literal["time", "gflops"]) -> Iterable[tuple[str, Panel]]:
    for family in shown.series:
        members = [e for e in shown.best if e.family == family and e.size is not None]
        if kind == "gflops" and not any(e.gflops for e in members):
            continue
        sizes = sorted({e.size for e in members if e.size is not None})
        rows = [point(shown, e) for e in members]
        # The strides of a family share one vertical scale: they are there to be compared.
        if kind == "time":
            domain = [min(r["ms"] for r in rows) / 1.3, max(r["ms"] for r in rows) * 1.3]
        else:
            domain = [0.0, 1.06 * max(r["gflops"] or 0.0 for r in rows)]
        for stride in sorted({e.stride for e in members}):
            chosen = [e for e in members if e.stride == stride]
            title = gettext("stride {n}").format(n=stride) if stride else gettext("all")
            text = gettext("GFLOP/s by size, {problem}, {stride}, a line a method")
            if kind == "time":
                text = gettext("time a call by size, {problem}, {stride}, a line a method")
            data = Datasets()
            chart = _series(data, shown, ink, chosen, sizes, kind, domain)
            key = f"{kind}-{shown.series.index(family)}-{stride or 'all'}"
            yield family, Panel(key, title, text.format(problem=family, stride=title), chart, data)


def _series(
    data: Datasets, shown: View, ink: Ink, chosen: Sequence[Entry], sizes: Sequence[int], kind: str, domain: list[float]
) -> Any:
    import altair as alt

    names = [n for n in shown.methods if any(e.result.algorithm == n for e in chosen)]
    scales = method_scales(ink, names)
    rows = [{**point(shown, e), "size": e.size} for e in chosen]
    base = data.chart(rows)
    x = size_axis(sizes, chosen[0].result.operation)
    if kind == "time":
        y = alt.Y(
            "ms:Q", title=gettext("time a call"), scale=alt.Scale(type="log", domain=domain, nice=False),
            axis=alt.Axis(labelExpr=SECONDS_LABEL, values=log_ticks(domain)),
        )  # fmt: skip
    else:
        y = alt.Y("gflops:Q", title="GFLOP/s", scale=alt.Scale(domain=domain, nice=False), axis=alt.Axis(tickCount=6))
    line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=scales["color"], strokeDash=scales["dash"])
    layers = [line]
    if kind == "time":
        layers.append(
            base.mark_rule(strokeWidth=1.5, opacity=0.55, clip=True).encode(
                x=x, y=alt.Y("low:Q", title=gettext("time a call")), y2="high:Q", color=scales["color"]
            )
        )
    layers.append(method_points(base, scales, TIME_FIELDS).encode(x=x, y=y))
    chart = shown_only(ink, alt.layer(*layers)).properties(height=230)
    if kind == "gflops" and (limit := _limit(data, shown, ink, chosen, x, y, domain[1])) is not None:
        chart = alt.layer(limit, chart).properties(height=230)
    return chart


def _limit(data: Datasets, shown: View, ink: Ink, chosen: Sequence[Entry], x: Any, y: Any, top: float) -> Any:
    """What memory and arithmetic allow at each size, where that is inside the picture."""
    import altair as alt

    roofs = {e.size: shown.roof(e) for e in chosen if e.size is not None}
    rows = [
        {"size": size, "gflops": roof, "what": gettext("roof"), "rate": f"{numbers.three(roof)} GFLOP/s"}
        for size, roof in sorted(roofs.items())
        if roof is not None and roof <= top
    ]
    if len(rows) < 2:
        return None
    line = data.chart(rows).mark_line(strokeWidth=1, color=ink("ink"), opacity=0.55)
    word = data.chart(rows[-1:]).mark_text(align="right", dy=-7, fontSize=11, color=ink("muted"))
    return alt.layer(
        line.encode(x=x, y=y, tooltip=tooltips(("what", "size", "rate"))), word.encode(x=x, y=y, text="what:N")
    )


def _ratio_panels(shown: View, ink: Ink) -> Iterable[tuple[str, Panel]]:
    import altair as alt

    found = duels(shown)
    rows = [(d, _ratio_row(d)) for d in found]
    if not rows:
        return
    values = [r["ratio"] for _, r in rows]
    domain = [min(0.8, *values) / 1.08, max(1.25, *values) * 1.08]
    y = alt.Y(
        "ratio:Q", title=gettext("time of the best peer ÷ ours"),
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(labelExpr="format(datum.value, '~g') + 'x'", values=log_ticks(domain)),
    )  # fmt: skip
    for family in shown.series:
        members = [(d, r) for d, r in rows if d.ours.family == family and d.ours.size is not None]
        if members:
            data = Datasets()
            chart = _ratio_series(data, ink, members, y).properties(height=230)
            text = gettext("ratio to the best peer by size, {problem}, a line a stride; above 1 ours is ahead")
            key = f"ratio-{shown.series.index(family)}"
            yield "", Panel(key, shown.short(family), text.format(problem=family), chart, data)
    single = [(d, r) for d, r in rows if not shown.is_series(d.ours)]
    if single:
        text = gettext("ratio to the best peer by case; right of 1 ours is ahead")
        data = Datasets()
        chart = _ratio_cases(data, ink, single, domain)
        yield "", Panel("ratio-cases", gettext("single cases"), text, chart, data)


RATIO_FIELDS = ("case", "stride", "ours", "our_time", "best_peer", "peer_time", "verdict")


def _ratio_row(d: Duel) -> dict[str, Any]:
    return {
        "case": d.ours.result.case,
        "size": d.ours.size,
        "stride": d.ours.stride,
        "ratio": d.ratio,
        "ours": d.ours.label,
        "our_time": numbers.seconds(d.ours.seconds or 0.0),
        "best_peer": d.peer.label,
        "peer_time": numbers.seconds(d.peer.seconds or 0.0),
        "verdict": d.words,
        "tie": d.tone == "level",
    }


def _ratio_series(data: Datasets, ink: Ink, members: Sequence[tuple[Duel, dict[str, Any]]], y: Any) -> Any:
    import altair as alt

    rows = [r for _, r in members]
    strides = sorted({r["stride"] for r in rows})
    fallback = ("circle", ())
    shapes = [STRIDE_LOOKS.get(s, fallback)[0] for s in strides]
    dashes = [list(STRIDE_LOOKS.get(s, fallback)[1]) or [1, 0] for s in strides]
    legend: Any = None
    if len(strides) > 1:
        solid = ink("accent")
        legend = alt.Legend(
            title=gettext("stride"),
            orient="top",
            direction="horizontal",
            symbolFillColor=solid,
            symbolStrokeColor=solid,
        )
    colour = alt.value(ink("accent"))
    base = data.chart(rows)
    x = size_axis(sorted({r["size"] for r in rows}), members[0][0].ours.result.operation)
    even = data.chart([{"ratio": 1}]).mark_rule(color=ink("ink"), strokeWidth=1.2).encode(y=y)
    dash = alt.StrokeDash("stride:N", scale=alt.Scale(domain=strides[::-1], range=dashes[::-1]), legend=None)
    shape = alt.Shape("stride:N", scale=alt.Scale(domain=strides, range=shapes), legend=legend)
    line = base.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour, strokeDash=dash)
    points = base.mark_point(size=58, strokeWidth=1.7, opacity=1).encode(
        x=x, y=y, color=colour, shape=shape, fill=_tie_fill(ink), tooltip=tooltips(RATIO_FIELDS)
    )
    return alt.layer(even, line, points)


def _ratio_cases(
    data: Datasets, ink: Ink, members: Sequence[tuple[Duel, dict[str, Any]]], domain: Sequence[float]
) -> Any:
    import altair as alt

    rows = sorted((r for _, r in members), key=lambda r: -r["ratio"])
    base = data.chart(rows)
    x = alt.X(
        "ratio:Q", title=gettext("time of the best peer ÷ ours"),
        scale=alt.Scale(type="log", domain=list(domain), nice=False),
        axis=alt.Axis(
            labelExpr="format(datum.value, '~g') + 'x'", values=log_ticks(domain), orient="top", titleAnchor="end"
        ),
    )  # fmt: skip
    y = alt.Y("case:N", sort=None, title=None, axis=alt.Axis(grid=True, labelLimit=190))
    even = data.chart([{"ratio": 1}]).mark_rule(color=ink("ink"), strokeWidth=1.2).encode(x=x)
    points = base.mark_point(size=58, strokeWidth=1.7, opacity=1).encode(
        x=x, y=y, color=alt.value(ink("accent")), fill=_tie_fill(ink), tooltip=tooltips(RATIO_FIELDS)
    )
    return alt.layer(even, points).properties(height=20 * len(rows))


def _tie_fill(ink: Ink) -> Any:
    """Hollow where the two tie."""
    import altair as alt

    return alt.condition("datum.tie", alt.value(ink("paper")), alt.value(ink("accent")))


def _case_panels(shown: View, ink: Ink) -> Iterable[tuple[str, Panel]]:
    import altair as alt

    members = [e for e in shown.best if not shown.is_series(e)]
    for operation in dict.fromkeys(e.result.operation for e in members):
        chosen = [e for e in members if e.result.operation == operation]
        names = [n for n in shown.methods if any(e.result.algorithm == n for e in chosen)]
        rows = [{**point(shown, e), "size": e.size_text, "problem": e.result.problem} for e in chosen]
        rows.sort(key=lambda r: r["ms"])
        order = list(dict.fromkeys(r["case"] for r in rows))
        data = Datasets()
        base = data.chart(rows)
        domain = [min(r["ms"] for r in rows) / 1.4, max(r["ms"] for r in rows) * 1.4]
        x = alt.X(
            "ms:Q", title=gettext("time a call"), scale=alt.Scale(type="log", domain=domain, nice=False),
            axis=alt.Axis(labelExpr=SECONDS_LABEL, values=log_ticks(domain), orient="top", titleAnchor="end"),
        )  # fmt: skip
        y = alt.Y("case:N", sort=order, title=None, axis=alt.Axis(grid=True, labelLimit=190))
        points = method_points(base, method_scales(ink, names), ("method", "problem", *TIME_FIELDS[2:])).encode(
            x=x, y=y
        )
        chart = shown_only(ink, alt.layer(points)).properties(height=22 * len(order))
        text = gettext("time of every method on each single case of {operation}").format(operation=operation)
        yield "", Panel(f"cases-{operation}", operation, text, chart, data)


def roofline_entries(shown: View) -> list[Entry]:
    """What the roofline shows: of each family and stride the largest case, where caches hide least."""
    able = [e for e in shown.best if e.gflops and e.intensity and e.result.precision not in NARROW]
    largest: dict[tuple[str, str], int] = {}
    for e in able:
        key = (e.family, e.stride)
        largest[key] = max(largest.get(key, 0), e.result.least_bytes)
    return [e for e in able if e.result.least_bytes == largest[(e.family, e.stride)]]


def _roofline_panels(shown: View, ink: Ink) -> Iterable[tuple[str, Panel]]:
    text = gettext(
        "roofline: GFLOP/s against FLOPs a byte, every method at its largest cases, under the measured ceilings"
    )
    panel = roofline_panel(shown, roofline_entries(shown), ink, text)
    yield from [] if panel is None else [("", panel)]


def roofline_panel(shown: View, chosen: Sequence[Entry], ink: Ink, text: str) -> Panel | None:
    """Results of a run under its ceilings; None where there are no results, or no ceilings were measured."""
    import altair as alt

    ceilings = shown.run.best_ceilings
    if ceilings is None or not chosen:
        return None
    bandwidth, peak = ceilings.copy_bytes_per_s / 1e9, ceilings.fma_flops_per_s / 1e9
    intensities = [e.intensity or 1.0 for e in chosen]
    ridge = peak / bandwidth
    left, right = min(*intensities, ridge) / 1.6, max(*intensities, ridge) * 1.9
    rows = [
        point(shown, e)
        | {"size": e.size_text, "stride": e.stride or "–", "problem": e.family, "intensity": e.intensity}
        | {"FLOPs_a_byte": numbers.three(e.intensity or 0.0)}
        for e in chosen
    ]  # fmt: skip
    low = min(r["gflops"] for r in rows) / 1.6
    high = max(peak, *(r["gflops"] for r in rows)) * 1.5
    domains = [left, right], [min(low, bandwidth * left / 1.3), high]
    x = alt.X(
        "intensity:Q", title=gettext("FLOPs a byte, at least (direct method's FLOPs; x, w and out moved once)"),
        scale=alt.Scale(type="log", domain=domains[0], nice=False),
        axis=alt.Axis(format="~g", values=log_ticks(domains[0])),
    )  # fmt: skip
    y = alt.Y(
        "gflops:Q", title="GFLOP/s", scale=alt.Scale(type="log", domain=domains[1], nice=False),
        axis=alt.Axis(format="~g", values=log_ticks(domains[1])),
    )  # fmt: skip
    corner = [{"intensity": i, "gflops": min(bandwidth * i, peak)} for i in (left, ridge, right)]
    data = Datasets()
    roof = data.chart(corner).mark_line(color=ink("ink"), strokeWidth=1.6).encode(x=x, y=y)
    middle = (left * ridge) ** 0.5
    copy = gettext("copy {rate} GB/s").format(rate=numbers.three(bandwidth))
    words = [
        {"intensity": middle, "gflops": bandwidth * middle, "text": copy},
        {"intensity": right / 1.04, "gflops": peak, "text": f"FMA {numbers.three(peak)} GFLOP/s"},
    ]
    texts = [
        data.chart([w])
        .mark_text(align="right", dy=-9, dx=dx, fontSize=11, color=ink("muted"))
        .encode(x=x, y=y, text="text:N")
        for w, dx in zip(words, (-8, 0), strict=True)
    ]
    names = [n for n in shown.methods if any(r["method"] == n for r in rows)]
    fields = ("method", "problem", "size", "stride", "time", "rate", "of_the_roof", "FLOPs_a_byte", "note")
    points = method_points(data.chart(rows), method_scales(ink, names), fields).encode(x=x, y=y)
    chart = alt.layer(roof, *texts, shown_only(ink, alt.layer(points))).properties(height=340)
    return Panel("roofline", gettext("Roofline"), text, chart, data)


def one_case_panel(shown: View, chosen: Sequence[Entry], ink: Ink, text: str) -> Panel | None:
    """Results on one case, a row a method, and the roof there; None where there is no result, or no ceiling."""
    import altair as alt

    limits = [roof for e in chosen if (roof := shown.roof(e))]
    if not limits:
        return None
    rows = [point(shown, e) | {"size": e.size_text, "problem": e.family} for e in chosen]
    rows.sort(key=lambda r: -r["gflops"])
    rates = [limits[0], *(r["gflops"] for r in rows)]
    domain = [min(rates) / 1.4, max(rates) * 1.4]
    x = alt.X(
        "gflops:Q", title="GFLOP/s", scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(format="~g", values=log_ticks(domain), orient="top", titleAnchor="end"),
    )  # fmt: skip
    names = [r["method"] for r in rows]
    y = alt.Y("method:N", sort=names, title=None, axis=alt.Axis(grid=True, labelLimit=190))
    data = Datasets()
    words = [{"gflops": limits[0], "text": gettext("roof")}]
    limit = data.chart(words).mark_rule(color=ink("ink"), strokeWidth=1.4).encode(x=x)
    word = data.chart(words).mark_text(align="right", dx=-5, fontSize=11, color=ink("muted"))
    fields = ("method", "problem", "size", "time", "rate", "of_the_roof", "note")
    points = method_points(data.chart(rows), method_scales(ink, names), fields).encode(x=x, y=y)
    height = 22 * len(rows)
    layers = (limit, word.encode(x=x, y=alt.value(height - 8), text="text:N"), shown_only(ink, alt.layer(points)))
    title = gettext("All methods on one case: {case}").format(case=chosen[0].result.case)
    return Panel("one-case", title, text, alt.layer(*layers).properties(height=height), data)


def _error_panels(shown: View, ink: Ink) -> Iterable[tuple[str, Panel]]:
    import altair as alt

    rows: list[dict[str, Any]] = []
    for e in shown.entries:
        r = e.result
        if r.error is not None and r.error.rms:
            bound = numbers.MISSING if r.error.bound_ratio is None else numbers.three(r.error.bound_ratio)
            rows.append(
                {"method": r.algorithm, "case": r.case, "rms": r.error.rms, "RMS_error": numbers.tiny(r.error.rms),
                 "class": arithmetic(r.precision), "share_of_the_bound": bound, "status": status(r.status)}
            )  # fmt: skip
    if not rows:
        return
    names = [n for n in ink.methods if any(r["method"] == n for r in rows)]
    data = Datasets()
    base = data.chart(rows)
    domain = [min(r["rms"] for r in rows) / 1.5, max(r["rms"] for r in rows) * 1.5]
    x = alt.X(
        "rms:Q", title=gettext("RMS error ÷ RMS of the float64 truth"),
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(format="~e", values=log_ticks(domain), orient="top", titleAnchor="end", grid=True),
    )  # fmt: skip
    y = alt.Y("method:N", sort=names, title=None, axis=alt.Axis(labelLimit=190, domain=False, ticks=False))
    ticks = base.mark_tick(thickness=2, size=14, opacity=0.75).encode(
        x=x, y=y, color=method_scales(ink, names)["color"].legend(None),
        tooltip=tooltips(("method", "case", "RMS_error", "class", "share_of_the_bound", "status")),
    )  # fmt: skip
    chart = shown_only(ink, alt.layer(ticks)).properties(height=22 * len(names))
    text = gettext("RMS error of every checked result, a row a method")
    yield "", Panel("errors", gettext("Errors"), text, chart, data)
