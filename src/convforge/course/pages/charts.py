"""Charts as Vega-Lite specs, made with Altair; the same specs give the page, SVG and PNG, without a network.

A chart draws rows, which are dicts. "method" selects a row's colour, dash and shape; "place" is its position on the
horizontal axis of a line chart; the fields of a tooltip are texts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from convforge.course.language import gettext
from convforge.course.pages.looks import FONT, Ink

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]

# Height in pixels of a line chart, and of a row of a dot chart.
HEIGHT = 240
ROW = 22
# Candidate ticks within a decade, from sparse to dense.
MANTISSAS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(tenths / 10 for tenths in range(10, 100)))
# Number formats of axes; "seconds" expects milliseconds.
LABELS = {
    "seconds": (
        "datum.value < 0.001 ? format(datum.value * 1e6, '~g') + ' ns' : datum.value < 1 ? "
        "format(datum.value * 1e3, '~g') + ' us' : datum.value < 1000 ? format(datum.value, '~g') + ' ms' : "
        "format(datum.value / 1e3, '~g') + ' s'"
    ),
    "ratio": "format(datum.value, '~g') + 'x'",
    "plain": "format(datum.value, '~g')",
    "power": "format(datum.value, '~e')",
    "thousands": "format(datum.value, ',')",
}
# Names of tooltip fields for readers; the field is the name with underscores.
_NAMES = (
    "method", "case", "problem", "size", "stride", "time", "spread", "rate", "of the roof", "note", "what", "ours",
    "our time", "best peer", "peer time", "verdict", "FLOPs a byte", "share of the bound", "status", "config",
    "occupancy", "registers", "by", "of all steps",
)  # fmt: skip
TOOLTIPS = {name.replace(" ", "_"): name for name in _NAMES}
TOOLTIPS |= {"error": "RMS error", "class": "arithmetic", "shape": "shape of the block"}


class Datasets(dict[str, list[dict[str, Any]]]):
    """Rows of charts by name, stored separately because Altair copies a chart at every step, including its rows.

    Names are digests of the rows, so that one spec can hold several charts.
    """

    def chart(self, rows: Rows) -> alt.Chart:
        name = "rows-" + hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]
        self[name] = list(rows)
        return alt.Chart(alt.NamedData(name=name))


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its rows, without theme and width."""

    key: str  # unique in its run or chapter
    title: str  # distinguishes it from neighbouring charts, such as "stride 2"
    description: str  # alternative text for readers who cannot see the chart
    chart: Any
    data: Datasets
    by_method: bool = True  # True if the page's legend can hide its marks

    @property
    def names(self) -> list[str]:
        """Names in the field "method" of its rows."""
        return list(dict.fromkeys(str(row["method"]) for rows in self.data.values() for row in rows if "method" in row))


def themed(chart: Any, data: Datasets, ink: Ink) -> Spec:
    """Return the spec of a chart with its rows and the common theme."""
    return {**chart.to_dict(), "datasets": dict(sorted(data.items())), "config": _config(ink)}


def panel_spec(panel: Panel, ink: Ink) -> Spec:
    """Return a panel's spec for the page: as wide as its container, with its legend in the page's HTML."""
    chart = panel.chart.properties(width="container", description=panel.description)
    return {**themed(chart, panel.data, ink), "autosize": {"type": "fit-x", "contains": "padding"}}


def unvalidated() -> AbstractContextManager[None]:
    """Return a context without Altair's schema checks, which take seconds per page; tests check the same specs."""
    return debug_mode(False)


def svg(spec: Spec) -> str:
    """Render a chart as SVG, offline."""
    return str(vl_convert.vegalite_to_svg(spec))


def png(spec: Spec, scale: float = 2.0) -> bytes:
    """Render a chart as PNG, offline; `scale` is file pixels per pixel of the chart."""
    return bytes(vl_convert.vegalite_to_png(spec, scale=scale))


def _config(ink: Ink) -> Spec:
    muted, line, text = ink("muted"), ink("line"), ink("ink")
    return {
        "font": FONT,
        "background": "transparent" if ink.theme == "page" else ink("paper"),
        "view": {"stroke": None},
        "axis": {
            "labelColor": muted, "titleColor": muted, "gridColor": line, "domainColor": line, "tickColor": line,
            "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "gridOpacity": 0.7,
            "labelOverlap": True, "tickSize": 4, "titlePadding": 6,
        },
        "axisX": {"grid": False},
        "title": {"color": text, "fontSize": 12, "fontWeight": 600, "anchor": "start", "offset": 8},
        "legend": {
            "labelColor": text, "titleColor": muted, "labelFontSize": 11, "titleFontWeight": "normal",
            "symbolStrokeWidth": 2, "symbolSize": 55, "labelLimit": 260,
        },
        "concat": {"spacing": 22},
    }  # fmt: skip


# Axes.


def around(values: Iterable[float], factor: float) -> list[float]:
    """Return the domain of a logarithmic axis: the range of values, extended by `factor` at both ends."""
    found = list(values)
    return [min(found) / factor, max(found) * factor]


def log_axis(
    channel: Literal["x", "y"], field: str, title: str, domain: Sequence[float], labels: str = "plain", *,
    above: bool = False, **more: Any,
) -> Any:  # fmt: skip
    """Return a logarithmic axis with few round ticks; a horizontal one is at the top with `above`."""
    more |= {"orient": "top", "titleAnchor": "end"} if above else {}
    encoding: Any = {"x": alt.X, "y": alt.Y}[channel]
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    axis = alt.Axis(labelExpr=LABELS[labels], values=log_ticks(domain), **more)
    return encoding(f"{field}:Q", title=title, scale=scale, axis=axis)


def linear_axis(field: str, title: str, values: Iterable[float]) -> Any:
    """Return a vertical axis from 0 to slightly more than the largest value."""
    scale = alt.Scale(domain=[0.0, 1.06 * max(values)], nice=False)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))


def time_axis(rows: Rows) -> Any:
    """Return the vertical axis of the field "ms"."""
    return log_axis("y", "ms", gettext("time a call"), around([row["ms"] for row in rows], 1.3), "seconds")


def place_axis(title: str, rows: Rows, *, log: bool = True) -> Any:
    """Return the horizontal axis of the field "place", with one tick per place."""
    found = sorted({int(row["place"]) for row in rows})
    if log:
        scale = alt.Scale(type="log", base=2, domain=around(found, 1.15), nice=False)
    else:
        margin = 0.08 * max(found[-1] - found[0], 1)
        scale = alt.Scale(domain=[found[0] - margin, found[-1] + margin], nice=False, zero=False)
    return alt.X("place:Q", title=title, scale=scale, axis=alt.Axis(values=found, format="d", labelFlush=False))


def name_axis(field: str, order: Sequence[str], **more: Any) -> Any:
    """Return the vertical axis of names, with one row per name."""
    return alt.Y(f"{field}:N", sort=list(order), title=None, axis=alt.Axis(labelLimit=190, **({"grid": True} | more)))


def log_ticks(domain: Sequence[float]) -> list[float]:
    """Return three to eight round numbers within a logarithmic axis."""
    low, high = math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1]))
    for mantissas in MANTISSAS:
        found = [float(f"{m}e{e}") for e in range(low, high + 1) for m in mantissas]
        found = [tick for tick in found if domain[0] <= tick <= domain[1]]
        if len(found) >= 4:
            break
    return found[:: max(math.ceil(len(found) / 8), 1)]


# Marks.


def lines(
    key: str, title: str, text: str, rows: Rows, x: Any, y: Any, ink: Ink, fields: Sequence[str], *,
    joined: bool = True, quartiles: bool = False, data: Datasets | None = None, below: Sequence[Any] = (),
) -> Panel:  # fmt: skip
    """Draw one line per method over places.

    `fields` are those of the tooltip. `joined` connects the points; `quartiles` adds a bar from "low" to "high" to each
    point. `data` holds the rows of the charts in `below`, which are drawn first.
    """
    data = Datasets() if data is None else data
    base, scales = data.chart(rows), method_scales(ink, rows)
    layers = []
    if joined:
        line = base.mark_line(strokeWidth=2)
        layers.append(line.encode(x=x, y=y, color=scales["color"], strokeDash=scales["strokeDash"]))
    if quartiles:
        bar = base.mark_rule(strokeWidth=1.5, opacity=0.55, clip=True)
        layers.append(bar.encode(x=x, y=alt.Y("low:Q", title=y["title"]), y2="high:Q", color=scales["color"]))
    layers.append(method_points(base, scales, fields).encode(x=x, y=y))
    chart = shown_only(ink, alt.layer(*layers))
    chart = alt.layer(*below, chart) if below else chart
    return Panel(key, title, text, chart.properties(height=HEIGHT), data)


def dots(
    key: str, title: str, text: str, rows: Rows, x: Any, by: str, ink: Ink, fields: Sequence[str], *,
    data: Datasets | None = None, below: Sequence[Any] = (),
) -> Panel:  # fmt: skip
    """Draw one row per case or method, in the order of `rows`, with one point per method; see :func:`lines`."""
    data = Datasets() if data is None else data
    names = list(dict.fromkeys(str(row[by]) for row in rows))
    points = method_points(data.chart(rows), method_scales(ink, rows), fields).encode(x=x, y=name_axis(by, names))
    chart = shown_only(ink, alt.layer(points))
    chart = alt.layer(*below, chart) if below else chart
    return Panel(key, title, text, chart.properties(height=ROW * len(names)), data)


def level_line(data: Datasets, ink: Ink, **axis: Any) -> Any:
    """Return a line at the ratio 1; `axis` is the encoding x or y."""
    return data.chart([{"ratio": 1}]).mark_rule(color=ink("ink"), strokeWidth=1.2).encode(**axis)


def method_scales(ink: Ink, rows: Rows) -> dict[str, Any]:
    """Return colour, fill, dash and shape scales for the methods in rows; files get one legend, the page none."""
    there = dict.fromkeys(row["method"] for row in rows)
    ink.add(there)
    names = [name for name in ink.methods if name in there]
    found, colours = [ink.methods[name] for name in names], [ink.method(name) for name in names]
    fills = [colour if look.ours else ink("paper") for colour, look in zip(colours, found, strict=True)]
    shapes, dashes = [look.shape for look in found], [list(look.dash) or [1, 0] for look in found]
    legend: Any = None if ink.theme == "page" else alt.Legend(title=None)
    # Reversed, so that Vega-Lite does not draw dashes around the symbols in the legend of the other channels.
    backwards = alt.Scale(domain=names[::-1], range=dashes[::-1])
    return {
        "color": alt.Color("method:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        "fill": alt.Fill("method:N", scale=alt.Scale(domain=names, range=fills), legend=legend),
        "shape": alt.Shape("method:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
        "strokeDash": alt.StrokeDash("method:N", scale=backwards, legend=None),
    }


def method_points(base: Any, scales: dict[str, Any], fields: Sequence[str]) -> Any:
    """Return one point per row, with a tooltip."""
    return base.mark_point(size=48, strokeWidth=1.6, opacity=1).encode(
        color=scales["color"], fill=scales["fill"], shape=scales["shape"], tooltip=tooltips(fields)
    )


def shown_only(ink: Ink, chart: Any) -> Any:
    """Let readers of the page hide methods of a chart: the page's legend sets the parameter "hidden"."""
    if ink.theme != "page":
        return chart
    return chart.transform_filter("indexof(hidden, datum.method) < 0").add_params(alt.param(name="hidden", value=[]))


def tooltips(fields: Sequence[str]) -> list[alt.Tooltip]:
    """Return the tooltip for fields of a row, each with its name for readers."""
    return [alt.Tooltip(f"{field}:N", title=gettext(TOOLTIPS[field])) for field in fields]
