"""The look of every chart: page colours, axes, and each method's colour, dash and shape as Altair's encodings.

On the page colours are the stylesheet's variables, so that charts follow a dark, light or printed page by themselves;
in files they are the light or dark values.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from convforge.course.language import gettext
from convforge.course.report.palette import Look, looks
from convforge.course.report.records import View

if TYPE_CHECKING:
    import altair as alt

Theme = Literal["page", "light", "dark"]
Spec = dict[str, Any]

# Ticks of a decade, ever denser.
MANTISSAS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(tenths / 10 for tenths in range(10, 100)))
# Those with Chinese letters stand behind those with Latin ones.
FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', 'Noto Sans SC', sans-serif"
)

# Page colours: name -> light, dark.
INKS = {
    "ink": ("#1b1f24", "#e8ebef"),
    "muted": ("#5b636d", "#a2abb6"),
    "line": ("#d9dde2", "#343b45"),
    "paper": ("#ffffff", "#14181d"),
    "accent": ("#0067b1", "#58a9f5"),
}


@dataclass(frozen=True, slots=True)
class Ink:
    """The colours of one theme."""

    theme: Theme
    methods: dict[str, Look]

    def __call__(self, name: str) -> str:
        """A page colour."""
        if self.theme == "page":
            return f"var(--{name})"
        return INKS[name][self.theme == "dark"]

    def method(self, name: str) -> str:
        """A method's colour."""
        if self.theme == "page":
            return f"var(--m{list(self.methods).index(name)})"
        look = self.methods[name]
        return look.dark if self.theme == "dark" else look.light


def ink_of(shown: View, theme: Theme) -> Ink:
    """A theme with a look for each method of a run."""
    ours = {e.result.algorithm: e.result.ours for e in shown.entries}
    names = dict.fromkeys([*shown.methods, *(e.result.algorithm for e in shown.entries if e.result.error)])
    return Ink(theme, looks((name, ours[name]) for name in names))


class Datasets(dict[str, list[dict[str, Any]]]):
    """The rows of a chart, apart from it: Altair copies a chart at every step, and would copy them with it.

    Names are digests of the rows, so that charts can stand side by side in one spec.
    """

    def chart(self, rows: list[dict[str, Any]]) -> alt.Chart:
        """A chart over rows."""
        import altair as alt

        name = "rows-" + hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]
        self[name] = rows
        return alt.Chart(alt.NamedData(name=name))


def themed(chart: Any, data: Datasets, ink: Ink) -> Spec:
    """A chart's spec with its rows and the look of all charts."""
    spec: Spec = chart.to_dict()
    return {**spec, "datasets": dict(sorted(data.items())), "config": _config(ink)}


def unvalidated() -> AbstractContextManager[None]:
    """Altair without its schema checks, which take seconds a page; the tests check the same specs."""
    from altair.utils.schemapi import debug_mode

    found: AbstractContextManager[None] = debug_mode(False)
    return found


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


def method_scales(ink: Ink, names: Sequence[str]) -> dict[str, Any]:
    """Colour, fill, dash and shape by method; in files with one legend, on the page with none."""
    import altair as alt

    chosen = [ink.methods[n] for n in names]
    colours = [ink.method(n) for n in names]
    legend: Any = None if ink.theme == "page" else alt.Legend(title=None)
    solid = [1, 0]
    return {
        "color": alt.Color("method:N", scale=alt.Scale(domain=list(names), range=colours), legend=legend),
        "dash": alt.StrokeDash(
            "method:N",
            # Backwards, so that Vega-Lite does not put dashes round the symbols of the other channels' legend.
            scale=alt.Scale(domain=list(names)[::-1], range=[list(x.dash) or solid for x in chosen][::-1]),
            legend=None,
        ),
        "shape": alt.Shape(
            "method:N", scale=alt.Scale(domain=list(names), range=[x.shape for x in chosen]), legend=legend
        ),
        "fill": alt.Fill(
            "method:N",
            scale=alt.Scale(
                domain=list(names),
                range=[c if x.ours else ink("paper") for c, x in zip(colours, chosen, strict=True)],
            ),
            legend=legend,
        ),
    }


def method_points(base: Any, scales: dict[str, Any], tooltip: Sequence[str]) -> Any:
    return base.mark_point(size=48, strokeWidth=1.6, opacity=1).encode(
        color=scales["color"], fill=scales["fill"], shape=scales["shape"], tooltip=tooltips(tooltip)
    )


def tooltips(fields: Sequence[str]) -> list[alt.Tooltip]:
    """Fields of a row as a tooltip, each with what it is called."""
    import altair as alt

    titles = _titles()
    return [alt.Tooltip(f"{field}:N", title=titles[field]) for field in fields]


def _titles() -> dict[str, str]:
    """Field of a row -> what a tooltip calls it."""
    return {
        "method": gettext("method"),
        "case": gettext("case"),
        "problem": gettext("problem"),
        "size": gettext("size"),
        "stride": gettext("stride"),
        "time": gettext("time"),
        "spread": gettext("spread"),
        "rate": gettext("rate"),
        "of_the_roof": gettext("of the roof"),
        "error": gettext("RMS error"),
        "note": gettext("note"),
        "what": gettext("what"),
        "ours": gettext("ours"),
        "our_time": gettext("our time"),
        "best_peer": gettext("best peer"),
        "peer_time": gettext("peer time"),
        "verdict": gettext("verdict"),
        "FLOPs_a_byte": gettext("FLOPs a byte"),
        "RMS_error": gettext("RMS error"),
        "class": gettext("arithmetic"),
        "share_of_the_bound": gettext("share of the bound"),
        "status": gettext("status"),
        "config": gettext("config"),
        "shape": gettext("shape of the block"),
        "occupancy": gettext("occupancy"),
        "registers": gettext("registers"),
        "by": gettext("by"),
        "of_all_steps": gettext("of all steps"),
    }


def shown_only(ink: Ink, chart: Any) -> Any:
    """On the page a reader can hide methods; the legend there sets the parameter."""
    import altair as alt

    if ink.theme != "page":
        return chart
    return chart.transform_filter("indexof(hidden, datum.method) < 0").add_params(alt.param(name="hidden", value=[]))


def size_axis(sizes: Sequence[int], operation: str) -> alt.X:
    """The horizontal axis of sizes: what they are the sizes of depends on the operation."""
    import altair as alt

    titles = {
        "gemm": gettext("M = N = K, the sides of the matrices"),
        "relu": gettext("elements"),
    }
    return alt.X(
        "size:Q",
        title=titles.get(operation, gettext("size of the picture, pixels a side")),
        scale=alt.Scale(type="log", base=2, domain=[min(sizes) / 1.15, max(sizes) * 1.15], nice=False),
        axis=alt.Axis(values=list(sizes), format="d", labelFlush=False),
    )


def log_ticks(domain: Sequence[float]) -> list[float]:
    """Three to eight round numbers inside a logarithmic axis.

    Examples
    --------
    >>> log_ticks([0.004, 700]), log_ticks([0.8, 3.3])
    ([0.01, 0.1, 1.0, 10.0, 100.0], [1.0, 1.5, 2.0, 3.0])
    """
    low, high = math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1]))
    found: list[float] = []
    for mantissas in MANTISSAS:
        found = [float(f"{m}e{e}") for e in range(low, high + 1) for m in mantissas]
        found = [tick for tick in found if domain[0] <= tick <= domain[1]]
        if len(found) >= 4:
            break
    return found[:: max(math.ceil(len(found) / 8), 1)]
