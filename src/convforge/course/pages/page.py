"""HTML pages, each a self-contained file that needs no network.

A content security policy enforces this: the browser runs only the page's two scripts, identified by their digests, and
loads nothing else. Templates extend `base.html.j2` and use the macros of `macros.html.j2`.
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

# Outlines of Vega's symbols, in a square from -1 to 1.
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
    """Render the page of the template `name` with the values `shown`.

    `inks` maps a CSS selector to the ink with the method colours below it; `css` is appended to the stylesheet.
    """
    scripts = [chart_script(), resource("pages", "page.js")]
    style = css_variables(inks) + resource("pages", "page.css") + css
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    digests = " ".join(f"'sha256-{digest}'" for digest in hashes)  # script digests for the page's security policy
    return str(template(name).render(style=style, scripts=scripts, digests=digests, **shown))


def write(path: Path, text: str) -> int:
    """Write a file and its folder; the old file is replaced once the new one is complete. Returns the bytes written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "is a folder; name a file, such as report.html", str(path))
    with replacing(path) as file:
        return file.write(text.encode())


def json_for_html(value: Any) -> str:
    r"""Return JSON for a script element, escaped so that no text can end that element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def template(name: str) -> Any:
    """Return a template, which is translated when it is rendered."""
    return _environment().get_template(name)


def resource(package: str, name: str) -> str:
    """Return the text of a resource file in a package of the course."""
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
    """Return Vega, Vega-Lite and Vega-Embed (from vl-convert) as one script that defines ``vegaEmbed``."""
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("\r\n", "\n")
    # Escape text that would end the script element or open a comment in it.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
