"""The page: one HTML file that holds all it needs and asks no network for anything.

A content security policy says so to the browser: it runs the page's two scripts, known by their digests, and loads
nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from convforge.benchmark.records import Run
from convforge.course.language import gettext, in_language, ngettext
from convforge.course.language import language as language_here
from convforge.course.report import machine, tables
from convforge.course.report.charts import panel_spec
from convforge.course.report.headline import Headline, headline
from convforge.course.report.palette import Look
from convforge.course.report.panels import Kind, Panel, panels, roofline_entries
from convforge.course.report.pictures import figures
from convforge.course.report.records import View, view
from convforge.course.report.summary import cautions, gates
from convforge.course.report.table import Table
from convforge.course.report.theme import INKS, Ink, ink_of, unvalidated

# Outlines of Vega's symbols in a square from -1 to 1.
OUTLINES = {
    "circle": "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z",
    "square": "M-.9-.9H.9V.9H-.9Z",
    "diamond": "M0-1.2L1.2 0 0 1.2-1.2 0Z",
    "cross": "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
    "triangle-up": "M0-1.1L1.1 .9H-1.1Z",
    "triangle-down": "M0 1.1L1.1-.9H-1.1Z",
    "triangle-right": "M1.1 0L-.9 1.1V-1.1Z",
    "triangle-left": "M-1.1 0L.9 1.1V-1.1Z",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the page: where it stands, what it is called, its spec as JSON that HTML can hold."""

    key: str
    title: str
    description: str
    spec: str
    hides: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Charts side by side, and the table of their numbers."""

    title: str
    charts: tuple[Chart, ...]
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class LegendItem:
    """A method in the legend: variable of its colour, look, whether it has a line in some chart."""

    name: str
    colour: str
    look: Look
    outline: str


@dataclass(frozen=True)
class Section:
    """All that the page says of one run."""

    key: str
    view: View
    name: str
    machine_name: str
    headline: Headline
    cautions: list[str]
    legend: tuple[LegendItem, ...]
    summary: Table
    ratios: Row
    series: tuple[tuple[str, Row, Row], ...]
    cases: tuple[Row, ...]
    roofline: Row
    results: Table
    steps: Table
    errors: Row
    gates: list[tuple[str, str]]
    troubles: Table
    facts: list[machine.Facts]
    ceilings: Table | None
    ceiling_words: str


def render(
    runs: Sequence[Run],
    *,
    title: str | None = None,
    pictures: Sequence[tuple[str, Path]] = (),
    left_out: Sequence[Run] = (),
    language: str = "en",
) -> str:
    """The page as text; the same runs give the same text.

    Parameters
    ----------
    runs : sequence of Run
        One or more, the most important first.
    title : str, optional
        Of the page; by default the suite and the machine.
    pictures : sequence of (caption, path)
        Shown after the first run's summary.
    left_out : sequence of Run
        Older runs, named at the end.
    language : {"en", "zh"}
        Of all that the page says; names, units and what a run stores as free text stay as they are.

    Raises
    ------
    ValueError
        No run, a run without results, a result that is not sound, or an unknown language.
    """
    if not runs or any(not run.results for run in runs):
        raise ValueError("a report needs runs with at least one result each")
    with in_language(language):
        return _render(runs, title, pictures, left_out)


def _render(
    runs: Sequence[Run], title: str | None, pictures: Sequence[tuple[str, Path]], left_out: Sequence[Run]
) -> str:
    with unvalidated():
        sections = [_section(f"run{i}", view(run)) for i, run in enumerate(runs)]
    style, script, bundle = text("page.css"), text("page.js"), chart_script()
    names = dict.fromkeys(s.name for s in sections)
    page: str = template("page.html.j2").render(
        title=title or " · ".join(names),
        sections=sections,
        figures=figures(pictures),
        left_out=list(left_out),
        style=_variables(sections) + style,
        script=script,
        bundle=bundle,
        digests=" ".join(f"'{digest(part)}'" for part in (bundle, script)),
    )
    return page


def write(path: Path, text: str) -> int:
    """Write a page; a page that stands there is replaced only when the new one is complete. Returns its bytes.

    Raises
    ------
    OSError
        The folder cannot be made, or the file not written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "is a folder; name a file, such as report.html", str(path))
    raw = text.encode()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return len(raw)


def json_for_html(value: Any) -> str:
    r"""JSON that can stand inside a script element: no text in it can end that element.

    Examples
    --------
    >>> print(json_for_html({"name": "</script>"}))
    {"name":"\u003c/script\u003e"}
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def chart_script() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script that defines ``vegaEmbed``; it comes with vl-convert."""
    import vl_convert

    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("\r\n", "\n")
    # What would end the element early, or open a comment in it.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _section(key: str, shown: View) -> Section:
    ink = ink_of(shown, "page")
    roofline = roofline_entries(shown)
    return Section(
        key=key,
        view=shown,
        name=gettext("{suite} on {machine}").format(suite=shown.run.suite, machine=machine.machine_name(shown)),
        machine_name=machine.machine_name(shown),
        headline=headline(shown),
        cautions=cautions(shown),
        legend=tuple(
            LegendItem(name, f"--m{i}", look, OUTLINES[look.shape])
            for i, (name, look) in enumerate(ink.methods.items())
            if name in shown.methods
        ),
        summary=tables.summary_table(shown),
        ratios=Row("", _charts(shown, ink, "ratio"), tables.verdict_table(shown)),
        series=tuple(_families(shown, ink)),
        cases=tuple(
            Row(chart.title, (chart,), tables.case_table(shown, chart.title)) for chart in _charts(shown, ink, "cases")
        ),
        roofline=Row("", _charts(shown, ink, "roofline"), tables.roofline_table(shown, roofline)),
        results=tables.result_table(shown),
        steps=tables.step_table(shown),
        errors=Row("", _charts(shown, ink, "errors"), tables.error_table(shown)),
        gates=gates(shown),
        troubles=tables.trouble_table(shown),
        facts=machine.facts(shown),
        ceilings=machine.ceiling_table(shown),
        ceiling_words=machine.ceiling_words(shown),
    )


def _charts(shown: View, ink: Ink, kind: Kind) -> tuple[Chart, ...]:
    return tuple(_chart(panel, ink, kind) for _, panel in panels(shown, kind, ink))


def _chart(panel: Panel, ink: Ink, kind: Kind) -> Chart:
    spec = json_for_html(panel_spec(panel, ink))
    return Chart(panel.key, panel.title, panel.description, spec, hides=kind != "ratio")


def _families(shown: View, ink: Ink) -> Iterable[tuple[str, Row, Row]]:
    """Of each family its charts of time with the numbers, and its charts of GFLOP/s."""
    kinds: tuple[Kind, Kind] = ("time", "gflops")
    found: dict[tuple[Kind, str], list[Chart]] = {}
    for kind in kinds:
        for family, panel in panels(shown, kind, ink):
            found.setdefault((kind, family), []).append(_chart(panel, ink, kind))
    for family in shown.series:
        times, rates = (tuple(found.get((kind, family), ())) for kind in kinds)
        yield family, Row(gettext("Time a call"), times, tables.series_table(shown, family)), Row("GFLOP/s", rates)


def _variables(sections: Iterable[Section]) -> str:
    """The stylesheet's colours: of the page, and of each run's methods."""
    pages = [("--" + name, light, dark) for name, (light, dark) in INKS.items()]
    blocks = [(":root", pages)]
    for section in sections:
        methods = ink_of(section.view, "page").methods.values()
        blocks.append((f"#{section.key}", [(f"--m{i}", look.light, look.dark) for i, look in enumerate(methods)]))
    light = "".join(f"{where}{{{''.join(f'{n}:{a};' for n, a, _ in found)}}}" for where, found in blocks)
    dark = "".join(f"{where}{{{''.join(f'{n}:{b};' for n, _, b in found)}}}" for where, found in blocks)
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"


def template(name: str) -> Any:
    """One of the report's templates, its texts in the language that it is rendered in."""
    return _environment().get_template(name)


@cache
def _environment() -> Any:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

    environment: Any = Environment(
        loader=ChoiceLoader([PackageLoader("convforge.course", room) for room in ("report", "lab")]),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    environment.globals["language"] = language_here
    environment.install_gettext_callables(gettext, ngettext, newstyle=True)
    return environment


def text(name: str, room: str = "report") -> str:
    """A file of the package's pages."""
    return resources.files(f"convforge.course.{room}").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def digest(script: str) -> str:
    """What the page's security policy knows a script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
