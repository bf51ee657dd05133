"""The lab's folder: the page, the Markdown, the charts as SVG and PNG, the data as CSV and JSON."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from convforge.benchmark.tables import csv_table
from convforge.course.lab import charts, published
from convforge.course.lab.book import Book, in_this_language
from convforge.course.lab.page import markdown, render
from convforge.course.lab.words import answer, title_of
from convforge.course.language import LANGUAGES, in_language, language
from convforge.course.pages.charts import png, svg, themed, unvalidated
from convforge.course.pages.looks import FONT
from convforge.course.pages.page import write
from convforge.course.report.headline import headline

# Width of a chart's plot in a file, in pixels.
WIDTH = 560


class Written(NamedTuple):
    """The files of a lab; `without_png` is True if charts are SVG only, because no font has the language's glyphs."""

    pages: list[Path]
    charts: list[Path]
    data: list[Path]
    without_png: bool


def write_lab(book: Book, folder: Path, *, title: str = "", codes: Sequence[str] = ("en",)) -> Written:
    """Write a lab into a folder, in one or several languages.

    The first language is written to ``lab.html`` and ``lab.md``, others to ``lab-zh.html`` and so on. Charts go to
    ``charts/`` or ``charts-zh/``, the data (without language) to ``data/``. Raises ``ValueError`` for an unknown
    language, ``OSError`` if a file cannot be written.
    """
    endings = {code: "" if i == 0 else f"-{code}" for i, code in enumerate(codes)}
    pages: list[Path] = []
    drawn: list[Path] = []
    for code, ending in endings.items():
        with in_language(code), unvalidated():
            translated = in_this_language(book)
            own_title = title or title_of(translated)
            others = [(LANGUAGES[other], f"lab{endings[other]}.html") for other in codes if other != code]
            page = render(book, title=own_title, code=code, pages=others)
            addresses, paths = _write_charts(translated, folder / f"charts{ending}")
            text = markdown(translated, title=own_title, drawn=addresses)
        drawn += paths
        pages += [folder / f"lab{ending}.html", folder / f"lab{ending}.md"]
        write(pages[-2], page)
        write(pages[-1], text)
    return Written(pages, drawn, _write_data(book, folder / "data"), not all(map(_has_glyphs, codes)))


def _write_charts(book: Book, folder: Path) -> tuple[dict[str, list[tuple[str, str]]], list[Path]]:
    """Write every chart as SVG and PNG; return the captions and addresses of charts by study, and all paths."""
    ink = charts.ink_of(book, "light")
    groups = {chapter.study.name: charts.chapter_panels(chapter, ink) for chapter in book.chapters}
    groups |= {"ratio": charts.whole_panels(book, "ratio", ink), "roofline": charts.roofline(book, ink)}
    addresses: dict[str, list[tuple[str, str]]] = {}
    paths: list[Path] = []
    for name, found in groups.items():
        for panel in found:
            stem = f"{name}-{panel.key}" if name != panel.key else name
            spec = themed(panel.chart.properties(width=WIDTH, title=panel.title), panel.data, ink)
            paths.append(folder / f"{stem}.svg")
            write(paths[-1], svg(spec))
            if _has_glyphs(language()):
                paths.append(folder / f"{stem}.png")
                paths[-1].write_bytes(png(spec))
            addresses.setdefault(name, []).append((panel.title, f"{folder.name}/{paths[-1].name}"))
    return addresses, paths


def _write_data(book: Book, folder: Path) -> list[Path]:
    """Write each study's results as CSV with its stored run, and all findings with their figures as JSON."""
    paths = []
    for chapter in book.chapters:
        paths += [folder / f"{chapter.study.name}.csv", folder / f"{chapter.study.name}.jsonl"]
        write(paths[-2], csv_table(chapter.run))
        if chapter.run.path.resolve() != paths[-1].resolve():
            shutil.copyfile(chapter.run.path, paths[-1])
    paths.append(folder / "lab.json")
    write(paths[-1], json.dumps(to_table(book), indent=1, ensure_ascii=False) + "\n")
    return paths


def to_table(book: Book) -> dict[str, Any]:
    """Return the lab as a dict for JSON: device, headline, studies and published tables, both with their findings."""
    first = headline(book.whole)
    return {
        "device": book.run.device,
        "machine": book.run.machine,
        "headline": {"figure": first.figure, "caption": first.caption, "sentences": list(first.sentences)},
        "studies": [
            {"study": chapter.study.name, "asks": chapter.study.asks, "run": chapter.run.run, "answer": answer(chapter),
             "findings": [f.to_table() for f in chapter.findings]}
            for chapter in book.chapters
        ],
        "published": [
            {"name": found.published.name, "about": found.published.about,
             "doubts": [dataclasses.asdict(doubt) for doubt in found.published.doubts],
             "findings": [f.to_table() for f in found.theirs],
             "orders": [f.to_table() for f in found.orders]}
            for found in published.comparisons(book)
        ],
    }  # fmt: skip


@cache
def _has_glyphs(code: str) -> bool:
    """True if the fonts for PNGs have a language's glyphs: without them, two different characters look the same."""
    import vl_convert

    def drawn(sign: str) -> bytes:
        text = f'<text x="2" y="16" font-family="{FONT}">{sign}</text>'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{text}</svg>'
        return bytes(vl_convert.svg_to_png(svg))

    name = LANGUAGES[code]
    return name.isascii() or drawn(name[0]) != drawn(name[1])
