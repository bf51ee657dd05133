"""All that a reader of a page sees: its text, labels and hints, and the words in its charts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

# Attributes that are read, aloud or as a hint.
ATTRIBUTES = ("title", "aria-label", "alt", "placeholder", "data-all", "data-some", "data-undrawn")
EMPTY = frozenset({"meta", "link", "img", "input", "br", "path"})
# Parts of a chart's spec that are shown.
SHOWN = frozenset({"title", "text", "description"})
# Fields of a chart's rows that hold names.
NAMED = frozenset({"method", "case"})


class Said(HTMLParser):
    """The texts of a page; those that are marked as of another language, code, styles and scripts are passed over."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.specs: list[dict[str, Any]] = []
        self.language = ""
        self._open: list[tuple[str, bool, bool]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "html":
            self.language = found.get("lang") or ""
        quiet = tag in ("script", "style", "code") or found.get("lang") not in (None, self.language)
        if not quiet:
            self.texts += [value for name in ATTRIBUTES if (value := found.get(name))]
        if tag not in EMPTY:
            self._open.append((tag, quiet, found.get("type") == "application/json"))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][2]:
            self.specs.append(json.loads(data))
        elif data.strip() and not any(quiet for _, quiet, _ in self._open):
            self.texts.append(data.strip())

    @property
    def everything(self) -> list[str]:
        """Texts of the page and of its charts."""
        return [*self.texts, *(text for spec in self.specs for text in chart_texts(spec))]


def chart_texts(spec: dict[str, Any]) -> list[str]:
    """Texts of a chart: titles of axes, legends and tooltips, its description, and the words in its rows."""
    rows = [row for rows in spec["datasets"].values() for row in rows]
    words = [value for row in rows for name, value in row.items() if isinstance(value, str) and name not in NAMED]
    return [*_shown({name: part for name, part in spec.items() if name != "datasets"}), *dict.fromkeys(words)]


def _shown(part: Any, key: str = "") -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _shown(value, name)
    elif isinstance(part, list):
        for value in part:
            yield from _shown(value, key)
    elif isinstance(part, str) and key in SHOWN:
        yield part
