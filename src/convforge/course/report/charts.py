"""Charts as Vega-Lite specs, made with Altair; the same specs give the page, SVG and PNG, without a network."""

from __future__ import annotations

from convforge.benchmark.records import Run
from convforge.course.language import in_language
from convforge.course.report.panels import KINDS, Kind, Panel, panels
from convforge.course.report.records import view
from convforge.course.report.theme import Datasets, Ink, Spec, Theme, ink_of, themed, unvalidated

__all__ = ["KINDS", "Kind", "chart_png", "chart_spec", "chart_svg", "panel_spec"]


def chart_png(run: Run, kind: Kind, *, theme: Theme = "light", scale: float = 2.0, language: str = "en") -> bytes:
    """A chart of a run as PNG, offline.

    Parameters
    ----------
    run : Run
    kind : {"ratio", "time", "gflops", "cases", "roofline", "errors"}
    theme : {"light", "dark"}
    scale : float
        Pixels of the picture per pixel of the page.
    language : {"en", "zh"}
        Of titles, axes and legends.

    Raises
    ------
    ValueError
        The run holds nothing that such a chart could show, or `kind` or `language` is unknown.
    """
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(chart_spec(run, kind, theme=theme, language=language), scale=scale))


def chart_svg(run: Run, kind: Kind, *, theme: Theme = "light", language: str = "en") -> str:
    """A chart of a run as SVG, offline; see :func:`chart_png`."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart_spec(run, kind, theme=theme, language=language)))


def chart_spec(run: Run, kind: Kind, *, theme: Theme = "light", language: str = "en") -> Spec:
    """The Vega-Lite spec behind :func:`chart_png`: all panels of a kind with one legend."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; choose one of {', '.join(KINDS)}")
    with in_language(language):
        return _spec(run, kind, theme)


def _spec(run: Run, kind: Kind, theme: Theme) -> Spec:
    import altair as alt

    shown = view(run)
    ink = ink_of(shown, theme)
    rows: dict[str, list[Panel]] = {}
    data = Datasets()
    with unvalidated():
        for family, panel in panels(shown, kind, ink):
            rows.setdefault(family, []).append(panel)
            data.update(panel.data)
        if not rows:
            raise ValueError(f"run {run.run} holds nothing for a chart of {kind}")
        lines = []
        for family, row in rows.items():
            width = 280 if len(row) > 1 else 620
            charts = [p.chart.properties(width=width, title=p.title) for p in row]
            title = alt.TitleParams(family, anchor="start", fontSize=14) if family else alt.Undefined
            lines.append(alt.hconcat(*charts, title=title))
        return themed(alt.vconcat(*lines), data, ink)


def panel_spec(panel: Panel, ink: Ink) -> Spec:
    """The spec of one panel for the page: as wide as its place, its legend beside it in HTML."""
    chart = panel.chart.properties(width="container", description=panel.description)
    return {**themed(chart, panel.data, ink), "autosize": {"type": "fit-x", "contains": "padding"}}
