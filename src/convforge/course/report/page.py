"""The report: one HTML page of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convforge.benchmark.records import Run
from convforge.course.language import gettext, in_language
from convforge.course.pages.charts import unvalidated
from convforge.course.pages.images import figures
from convforge.course.pages.page import html
from convforge.course.report import machine, tables
from convforge.course.report.charts import KINDS, ink_of, panels, roofline_entries
from convforge.course.report.headline import headline
from convforge.course.report.records import View, view
from convforge.course.report.summary import cautions, gates


def render(
    runs: Sequence[Run],
    *,
    title: str | None = None,
    images: Sequence[tuple[str, Path]] = (),
    left_out: Sequence[Run] = (),
    language: str = "en",
) -> str:
    """Render the page as text; the same runs always give the same text.

    Parameters
    ----------
    runs : sequence of Run
        One or more, the most important first.
    title : str, optional
        Of the page; by default the suite and the machine.
    images : sequence of (caption, path)
        Shown after the first run's summary.
    left_out : sequence of Run
        Older runs, named at the end.
    language : {"en", "zh"}
        Of all texts; names, units and free text of a run stay as they are.

    Raises
    ------
    ValueError
        No run, a run without results, a result that is not sound, or an unknown language.
    """
    if not runs or any(not run.results for run in runs):
        raise ValueError("a report needs runs with at least one result each")
    with in_language(language), unvalidated():
        sections = [_section(f"run{i}", view(run)) for i, run in enumerate(runs)]
        return html(
            "report.html.j2",
            {f"#{section['key']}": section["ink"] for section in sections},
            title=title or " · ".join(dict.fromkeys(section["name"] for section in sections)),
            sections=sections,
            figures=figures(images),
            left_out=left_out,
        )


def _section(key: str, shown: View) -> dict[str, Any]:
    """Values of one run for the page, by their names in the template."""
    ink = ink_of(shown, "page")
    found = {kind: list(panels(shown, kind, ink)) for kind in KINDS}
    drawn = {kind: [panel for _, panel in own] for kind, own in found.items()}
    series = [
        (family, *([panel for row, panel in found[kind] if row == family] for kind in ("time", "gflops")),
         tables.series_table(shown, family))
        for family in shown.series
    ]  # fmt: skip
    name = machine.machine_name(shown)
    return {
        "key": key, "run": shown.run, "ink": ink, "methods": shown.methods, "machine_name": name,
        "name": gettext("{suite} on {machine}").format(suite=shown.run.suite, machine=name),
        "headline": headline(shown), "cautions": cautions(shown),
        "summary": tables.summary_table(shown), "ratios": drawn["ratio"], "verdicts": tables.verdict_table(shown),
        "series": series, "cases": [(panel, tables.case_table(shown, panel.title)) for panel in drawn["cases"]],
        "roofline": drawn["roofline"], "roofline_table": tables.roofline_table(shown, roofline_entries(shown)),
        "results": tables.result_table(shown), "steps": tables.step_table(shown),
        "error_table": tables.error_table(shown), "errors": drawn["errors"], "gates": gates(shown),
        "troubles": tables.trouble_table(shown), "facts": machine.facts(shown),
        "ceilings": machine.ceiling_table(shown), "ceiling_words": machine.ceiling_words(shown),
    }  # fmt: skip
