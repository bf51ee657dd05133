"""HTML pages, each one file that holds all it needs and asks no network for anything.

A content security policy tells the browser so: it runs the page's two scripts, known by their digests, and loads
nothing from anywhere. Templates extend `base.html.j2` and use the macros of `macros.html.j2`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from convforge.benchmark.table import escaped, markdown_line
from convforge.course.language import gettext, language, ngettext
from convforge.course.pages.charts import panel_spec
from convforge.course.pages.looks import Ink, css_variables
from convforge.imaging.replacing import replacing

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


def html(name: str, inks: Mapping[str, Ink], *, css: str = "", **shown: Any) -> str:
    """A page as text, of the template `name` and its values `shown`.

    `inks` maps a selector to the ink whose methods have their colours below it; `css` is added to the stylesheet.
    """
    scripts = [chart_script(), resource("pages", "page.js")]
    style = css_variables(inks) + resource("pages", "page.css") + css
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    digests = " ".join(f"'sha256-{digest}'" for digest in hashes)  # names of scripts in the page's security policy
    return str(template(name).render(style=style, scripts=scripts, digests=digests, **shown))


def write(path: Path, text: str) -> int:
    """Write a file in a folder that is made; an older file stays until the new one is complete. Returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "is a folder; name a file, such as report.html", str(path))
    with replacing(path) as file:
        return file.write(text.encode())


def json_for_html(value: Any) -> str:
    r"""JSON for a script element: no text in it can end that element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def template(name: str) -> Any:
    """A template, its texts in the language in which it is rendered."""
    return _environment().get_template(name)


def resource(package: str, name: str) -> str:
    """The text of a file of a package of the course."""
    return (
        resources.files(f"convforge.course.{package}").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")
    )


@cache
def _environment() -> Any:
    environment: Any = Environment(
        loader=ChoiceLoader([PackageLoader("convforge.course", name) for name in ("pages", "report", "lab")]),
        autoescape=select_autoescape(disabled_extensions=("md.j2",), default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    environment.globals |= {
        "language": language, "outlines": OUTLINES, "spec": lambda panel, ink: json_for_html(panel_spec(panel, ink)),
    }  # fmt: skip
    environment.filters |= {"escaped": escaped, "line": markdown_line}
    environment.install_gettext_callables(gettext, ngettext, newstyle=True)
    return environment


@cache
def chart_script() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script that defines ``vegaEmbed``; it comes with vl-convert."""
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("\r\n", "\n")
    # What would end the element early, or open a comment in it.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
