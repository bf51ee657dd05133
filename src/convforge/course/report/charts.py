"""The charts of a run: speed ratios to the peers, times and rates by size, single cases, roofline, errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from convforge.benchmark.records import Run
from convforge.course.language import gettext, in_language
from convforge.course.pages.charts import (
    HEIGHT,
    ROW,
    Datasets,
    Panel,
    Spec,
    around,
    dots,
    level_line,
    linear_axis,
    lines,
    log_axis,
    method_points,
    method_scales,
    name_axis,
    place_axis,
    png,
    shown_only,
    svg,
    themed,
    time_axis,
    tooltips,
    unvalidated,
)
from convforge.course.pages.looks import Ink, Theme, looks
from convforge.course.report import numbers
from convforge.course.report.records import NARROW, Entry, View, view
from convforge.course.report.summary import Duel, arithmetic, duels
from convforge.course.report.tables import status
from convforge.timing.timer import Timing

Kind = Literal["ratio", "time", "gflops", "cases", "roofline", "errors"]
KINDS: tuple[Kind, ...] = ("ratio", "time", "gflops", "cases", "roofline", "errors")
STRIDE_LOOKS = {"1": ("circle", [1, 0]), "2": ("square", [6, 3]), "3": ("triangle-up", [2, 2])}
TIME_FIELDS = ("method", "size", "time", "spread", "rate", "of_the_roof", "error", "note")
RATIO_FIELDS = ("case", "stride", "ours", "our_time", "best_peer", "peer_time", "verdict")


def chart_png(run: Run, kind: Kind, *, theme: Theme = "light", scale: float = 2.0, language: str = "en") -> bytes:
    """Draw a chart of a run as PNG, offline.

    Parameters
    ----------
    run : Run
    kind : {"ratio", "time", "gflops", "cases", "roofline", "errors"}
    theme : {"light", "dark"}
    scale : float
        File pixels per pixel of the chart.
    language : {"en", "zh"}
        Language of titles, axes and legends.

    Raises
    ------
    ValueError
        The run has no data for this chart, or `kind` or `language` is unknown.
    """
    return png(chart_spec(run, kind, theme=theme, language=language), scale)


def chart_svg(run: Run, kind: Kind, *, theme: Theme = "light", language: str = "en") -> str:
    """Draw a chart of a run as SVG, offline; see :func:`chart_png`."""
    return svg(chart_spec(run, kind, theme=theme, language=language))


def chart_spec(run: Run, kind: Kind, *, theme: Theme = "light", language: str = "en") -> Spec:
    """Return the Vega-Lite spec behind :func:`chart_png`: all panels of a kind with one legend."""
    import altair as alt

    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; choose one of {', '.join(KINDS)}")
    with in_language(language), unvalidated():
        shown, data = view(run), Datasets()
        ink = ink_of(shown, theme)
        families: dict[str, list[Panel]] = {}
        for family, panel in panels(shown, kind, ink):
            families.setdefault(family, []).append(panel)
            data.update(panel.data)
        if not families:
            raise ValueError(f"run {run.run} holds nothing for a chart of {kind}")
        rows = []
        for family, found in families.items():
            charts = [p.chart.properties(width=280 if len(found) > 1 else 620, title=p.title) for p in found]
            title = alt.TitleParams(family, anchor="start", fontSize=14) if family else alt.Undefined
            rows.append(alt.hconcat(*charts, title=title))
        return themed(alt.vconcat(*rows), data, ink)


def ink_of(shown: View, theme: Theme) -> Ink:
    """Return a theme with a look for each method of a run."""
    ours = {e.result.algorithm: e.result.ours for e in shown.entries}
    names = dict.fromkeys([*shown.methods, *(e.result.algorithm for e in shown.entries if e.result.error)])
    return Ink(theme, looks((name, ours[name]) for name in names))


def panels(shown: View, kind: Kind, ink: Ink) -> Iterator[tuple[str, Panel]]:
    """Yield the panels of a kind, each with the title of its row of charts."""
    if kind == "time" or kind == "gflops":
        yield from _series_panels(shown, ink, kind)
        return
    make = {"ratio": _ratio_panels, "cases": _case_panels, "roofline": _roofline_panels, "errors": _error_panels}
    yield from (("", panel) for panel in make[kind](shown, ink))


def point(shown: View, entry: Entry) -> dict[str, Any]:
    """Return the chart's row of a timed entry: texts for the tooltip, and numbers for its position."""
    timing, r, rate, share = entry.timing, entry.result, entry.gflops, shown.of_the_roof(entry)
    assert timing is not None
    notes = {gettext("noisy"): timing.noisy, gettext("hot in the cache"): not timing.cold,
             gettext("GFLOP/s nominal"): entry.nominal}  # fmt: skip
    return {
        "method": r.algorithm, "case": r.case, "size": entry.size_text, **timing_fields(timing), "gflops": rate,
        "rate": numbers.MISSING if rate is None else f"{numbers.three(rate)} GFLOP/s",
        "of_the_roof": numbers.MISSING if share is None else numbers.percent(share),
        "error": numbers.MISSING if r.error is None or r.error.rms is None else numbers.tiny(r.error.rms),
        "note": gettext(", ").join(note for note, said in notes.items() if said) or numbers.MISSING,
    }  # fmt: skip


def timing_fields(timing: Timing) -> dict[str, Any]:
    """Return the fields of a row for its time: median and quartiles in ms, and texts."""
    low, high = np.quantile(timing.samples, (0.25, 0.75))
    return {
        "ms": 1e3 * timing.median_s,
        "low": 1e3 * float(low),
        "high": 1e3 * float(high),
        "time": numbers.seconds(timing.median_s),
        "spread": f"±{numbers.percent(timing.spread)}",
    }


def size_title(operation: str) -> str:
    """Return the axis title for sizes, which are those of images, matrices or arrays."""
    titles = {"gemm": gettext("M = N = K, the sides of the matrices"), "relu": gettext("elements")}
    return titles.get(operation, gettext("size of the image, pixels a side"))


def _series_panels(shown: View, ink: Ink, kind: Literal["time", "gflops"]) -> Iterator[tuple[str, Panel]]:
    """Yield one panel per stride. Panels of a family share their scales, so that strides can be compared."""
    text = gettext("GFLOP/s by size, {problem}, {stride}, a line a method")
    if kind == "time":
        text = gettext("time a call by size, {problem}, {stride}, a line a method")
    for number, family in enumerate(shown.series):
        members = [e for e in shown.best if e.family == family and e.size is not None]
        rows = [(e, point(shown, e) | {"place": e.size, "size": str(e.size)}) for e in members]
        every = [row for _, row in rows]
        if kind == "gflops" and not any(row["gflops"] for row in every):
            continue
        x = place_axis(size_title(members[0].result.operation), every)
        rates = [row["gflops"] or 0.0 for row in every]
        y = time_axis(every) if kind == "time" else linear_axis("gflops", "GFLOP/s", rates)
        for stride in sorted({e.stride for e in members}):
            title = gettext("stride {n}").format(n=stride) if stride else gettext("all")
            own = [(e, row) for e, row in rows if e.stride == stride]
            data = Datasets()
            limit = _limit(data, shown, ink, [e for e, _ in own], x, y, 1.06 * max(rates)) if kind == "gflops" else []
            yield family, lines(
                f"{kind}-{number}-{stride or 'all'}", title, text.format(problem=family, stride=title),
                [row for _, row in own], x, y, ink, TIME_FIELDS, quartiles=kind == "time", data=data, below=limit,
            )  # fmt: skip


def _limit(data: Datasets, shown: View, ink: Ink, chosen: Iterable[Entry], x: Any, y: Any, highest: float) -> list[Any]:
    """Layers with the roof at each size, if the chart's range includes it."""
    roofs = {e.size: shown.roof(e) for e in chosen if e.size is not None}
    rows = [
        {"place": size, "size": str(size), "gflops": roof, "what": gettext("roof"),
         "rate": f"{numbers.three(roof)} GFLOP/s"}
        for size, roof in sorted(roofs.items()) if roof is not None and roof <= highest
    ]  # fmt: skip
    if len(rows) < 2:
        return []
    line = data.chart(rows).mark_line(strokeWidth=1, color=ink("ink"), opacity=0.55)
    word = data.chart(rows[-1:]).mark_text(align="right", dy=-7, fontSize=11, color=ink("muted"))
    return [
        line.encode(x=x, y=y, tooltip=tooltips(("what", "size", "rate"))),
        word.encode(x=x, y=y, text="what:N"),
    ]


def _ratio_panels(shown: View, ink: Ink) -> Iterator[Panel]:
    import altair as alt

    found = duels(shown)
    domain = around([0.8, 1.25, *(d.ratio for d in found)], 1.08)
    axis = ("ratio", gettext("time of the best peer ÷ ours"), domain, "ratio")
    for n, family in enumerate(shown.series):
        own = [d for d in found if d.ours.family == family and d.ours.size is not None]
        if own:
            text = gettext("ratio to the best peer by size, {problem}, a line a stride; above 1 ours is ahead")
            yield _ratio_lines(f"ratio-{n}", shown.short(family), text.format(problem=family), own, axis, ink)
    single = sorted((d for d in found if not shown.is_series(d.ours)), key=lambda d: -d.ratio)
    if single:
        data, x = Datasets(), log_axis("x", *axis, above=True)
        y = name_axis("case", [d.case for d in single])
        points = _ratio_points(data.chart([_ratio_row(d) for d in single]), ink).encode(x=x, y=y)
        text = gettext("ratio to the best peer by case; right of 1 ours is ahead")
        chart = alt.layer(level_line(data, ink, x=x), points).properties(height=ROW * len(single))
        yield Panel("ratio-cases", gettext("single cases"), text, chart, data, by_method=False)


def _ratio_row(d: Duel) -> dict[str, Any]:
    return {
        "case": d.case, "place": d.ours.size, "stride": d.ours.stride, "ratio": d.ratio, "verdict": d.words,
        "ours": d.ours.label, "our_time": numbers.seconds(d.ours.seconds or 0.0), "tie": d.tone == "level",
        "best_peer": d.peer.label, "peer_time": numbers.seconds(d.peer.seconds or 0.0),
    }  # fmt: skip


def _ratio_points(base: Any, ink: Ink) -> Any:
    """Points for the ratios, hollow for ties."""
    import altair as alt

    fill = alt.condition("datum.tie", alt.value(ink("paper")), alt.value(ink("accent")))
    return base.mark_point(size=58, strokeWidth=1.7, opacity=1).encode(
        color=alt.value(ink("accent")), fill=fill, tooltip=tooltips(RATIO_FIELDS)
    )


def _ratio_lines(key: str, title: str, text: str, found: Sequence[Duel], axis: Any, ink: Ink) -> Panel:
    """Panel of ratios by size, with one line per stride."""
    import altair as alt

    data, rows, accent = Datasets(), [_ratio_row(d) for d in found], ink("accent")
    base, y = data.chart(rows), log_axis("y", *axis)
    x = place_axis(size_title(found[0].ours.result.operation), rows)
    strides = sorted({row["stride"] for row in rows})
    shapes, dashes = zip(*(STRIDE_LOOKS.get(stride, ("circle", [1, 0])) for stride in strides), strict=True)
    legend: Any = None
    if len(strides) > 1:
        legend = alt.Legend(title=gettext("stride"), orient="top", direction="horizontal",
                            symbolFillColor=accent, symbolStrokeColor=accent)  # fmt: skip
    dash = alt.StrokeDash("stride:N", scale=alt.Scale(domain=strides[::-1], range=dashes[::-1]), legend=None)
    shape = alt.Shape("stride:N", scale=alt.Scale(domain=strides, range=shapes), legend=legend)
    line = base.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=alt.value(accent), strokeDash=dash)
    points = _ratio_points(base, ink).encode(x=x, y=y, shape=shape)
    chart = alt.layer(level_line(data, ink, y=y), line, points).properties(height=HEIGHT)
    return Panel(key, title, text, chart, data, by_method=False)


def _case_panels(shown: View, ink: Ink) -> Iterator[Panel]:
    members = [e for e in shown.best if not shown.is_series(e)]
    for operation in dict.fromkeys(e.result.operation for e in members):
        chosen = [e for e in members if e.result.operation == operation]
        rows = [point(shown, e) | {"problem": e.result.problem} for e in chosen]
        rows.sort(key=lambda row: row["ms"])
        domain = around([row["ms"] for row in rows], 1.4)
        x = log_axis("x", "ms", gettext("time a call"), domain, "seconds", above=True)
        text = gettext("time of every method on each single case of {operation}").format(operation=operation)
        yield dots(f"cases-{operation}", operation, text, rows, x, "case", ink, ("method", "problem", *TIME_FIELDS[2:]))


def roofline_entries(shown: View) -> list[Entry]:
    """Return the entries of the roofline: the largest case of each family and stride, where caches matter least."""
    able = [e for e in shown.best if e.gflops and e.intensity and e.result.precision not in NARROW]
    largest: dict[tuple[str, str], int] = {}
    for e in able:
        largest[e.family, e.stride] = max(largest.get((e.family, e.stride), 0), e.result.least_bytes)
    return [e for e in able if e.result.least_bytes == largest[e.family, e.stride]]


def _roofline_panels(shown: View, ink: Ink) -> Iterator[Panel]:
    text = gettext(
        "roofline: GFLOP/s against FLOPs a byte, every method at its largest cases, under the measured ceilings"
    )
    if panel := roofline_panel(shown, roofline_entries(shown), ink, text):
        yield panel


def roofline_panel(shown: View, chosen: Sequence[Entry], ink: Ink, text: str) -> Panel | None:
    """Draw results of a run under its ceilings; returns None without results or without measured ceilings."""
    import altair as alt

    ceilings = shown.run.best_ceilings
    if ceilings is None or not chosen:
        return None
    bandwidth, peak = ceilings.copy_bytes_per_s / 1e9, ceilings.fma_flops_per_s / 1e9
    rows = [
        point(shown, e) | {"problem": e.family, "stride": e.stride or numbers.MISSING, "intensity": e.intensity,
                           "FLOPs_a_byte": numbers.three(e.intensity or 0.0)}
        for e in chosen
    ]  # fmt: skip
    ridge, rates, found = peak / bandwidth, [row["gflops"] for row in rows], [row["intensity"] for row in rows]
    left, right = min(ridge, *found) / 1.6, max(ridge, *found) * 1.9
    low, high = min(bandwidth * left / 1.3, min(rates) / 1.6), max(peak, *rates) * 1.5
    title = gettext("FLOPs a byte, at least (direct method's FLOPs; x, w and out moved once)")
    at = {"x": log_axis("x", "intensity", title, [left, right]), "y": log_axis("y", "gflops", "GFLOP/s", [low, high])}
    data = Datasets()
    corners = [{"intensity": i, "gflops": min(bandwidth * i, peak)} for i in (left, ridge, right)]
    roof = data.chart(corners).mark_line(color=ink("ink"), strokeWidth=1.6).encode(**at)
    middle = (left * ridge) ** 0.5
    copy = gettext("copy {rate} GB/s").format(rate=numbers.three(bandwidth))
    words = [
        ({"intensity": middle, "gflops": bandwidth * middle, "text": copy}, -8),
        ({"intensity": right / 1.04, "gflops": peak, "text": f"FMA {numbers.three(peak)} GFLOP/s"}, 0),
    ]
    texts = [
        data.chart([row]).mark_text(align="right", dy=-9, dx=dx, fontSize=11, color=ink("muted"))
        .encode(text="text:N", **at)
        for row, dx in words
    ]  # fmt: skip
    fields = ("method", "problem", "size", "stride", "time", "rate", "of_the_roof", "FLOPs_a_byte", "note")
    points = method_points(data.chart(rows), method_scales(ink, rows), fields).encode(**at)
    chart = alt.layer(roof, *texts, shown_only(ink, alt.layer(points))).properties(height=340)
    return Panel("roofline", gettext("Roofline"), text, chart, data)


def one_case_panel(shown: View, chosen: Sequence[Entry], ink: Ink, text: str) -> Panel | None:
    """Draw one row per method for one case, with the roof there; returns None without results or without a ceiling."""
    import altair as alt

    roof = next((roof for e in chosen if (roof := shown.roof(e))), None)
    if roof is None:
        return None
    rows = sorted((point(shown, e) | {"problem": e.family} for e in chosen), key=lambda row: -row["gflops"])
    domain = around([roof, *(row["gflops"] for row in rows)], 1.4)
    x = log_axis("x", "gflops", "GFLOP/s", domain, above=True)
    data = Datasets()
    limit = data.chart([{"gflops": roof, "text": gettext("roof")}])
    word = limit.mark_text(align="right", dx=-5, fontSize=11, color=ink("muted"))
    below = [
        limit.mark_rule(color=ink("ink"), strokeWidth=1.4).encode(x=x),
        word.encode(x=x, y=alt.value(ROW * len(rows) - 8), text="text:N"),
    ]
    title = gettext("All methods on one case: {case}").format(case=chosen[0].result.case)
    fields = ("method", "problem", "size", "time", "rate", "of_the_roof", "note")
    return dots("one-case", title, text, rows, x, "method", ink, fields, data=data, below=below)


def _error_panels(shown: View, ink: Ink) -> Iterator[Panel]:
    import altair as alt

    checked = [(e.result, e.result.error) for e in shown.entries]
    rows: list[dict[str, Any]] = [
        {"method": r.algorithm, "case": r.case, "rms": error.rms, "error": numbers.tiny(error.rms),
         "class": arithmetic(r.precision), "status": status(r.status),
         "share_of_the_bound": numbers.MISSING if error.bound_ratio is None else numbers.three(error.bound_ratio)}
        for r, error in checked if error is not None and error.rms
    ]  # fmt: skip
    if not rows:
        return
    there = {row["method"] for row in rows}
    names = [name for name in ink.methods if name in there]
    data = Datasets()
    title = gettext("RMS error ÷ RMS of the float64 truth")
    x = log_axis("x", "rms", title, around([row["rms"] for row in rows], 1.5), "power", above=True, grid=True)
    ticks = data.chart(rows).mark_tick(thickness=2, size=14, opacity=0.75).encode(
        x=x, y=name_axis("method", names, domain=False, ticks=False, grid=False),
        color=method_scales(ink, rows)["color"].legend(None),
        tooltip=tooltips(("method", "case", "error", "class", "share_of_the_bound", "status")),
    )  # fmt: skip
    chart = shown_only(ink, alt.layer(ticks)).properties(height=ROW * len(names))
    yield Panel("errors", gettext("Errors"), gettext("RMS error of every checked result, a row a method"), chart, data)
