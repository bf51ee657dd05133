"""The lab's folder, and the command that measures and writes it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.commands import Ran
from tests.course.lab import books

from convforge.benchmark.store import load_run
from convforge.course.lab import Book, bind, files, find_runs, write_lab
from convforge.course.studies import STUDIES


def breakdown() -> Book:
    """The smallest of the stored books."""
    return bind({"breakdown": books.stored_runs()["breakdown"]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lab")
    names = ("memory", "breakdown")
    write_lab(bind({name: books.stored_runs()[name] for name in names}), found)
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> files.Written:
    """The smallest book in two languages, as where no font has the glyphs of the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_has_glyphs", lambda code: code == "en")
        return write_lab(breakdown(), tmp_path_factory.mktemp("small"), codes=("zh", "en"))


@pytest.fixture(scope="module")
def small(written: files.Written) -> Path:
    """The folder of the smallest book."""
    return written.pages[0].parent


@pytest.mark.thorough
def test_charts_stand_as_svg_and_png_and_the_markdown_shows_them(folder: Path) -> None:
    text = (folder / "lab.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert shown
    for address in shown:
        assert (folder / address).read_bytes().startswith(b"\x89PNG")
        assert (folder / address).with_suffix(".svg").read_text(encoding="utf-8").startswith("<svg")
    assert not re.search(r"\bNone\b|\bnan\b", text)


@pytest.mark.parametrize("name", ["small", pytest.param("folder", marks=pytest.mark.thorough)])
def test_the_data_is_what_the_page_says(name: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(name)
    book = bind(find_runs([folder / "data"]))
    table = json.loads((folder / "data" / "lab.json").read_text(encoding="utf-8"))
    assert [study["study"] for study in table["studies"]] == [c.study.name for c in book.chapters]
    page = (folder / "lab.html").read_text(encoding="utf-8")
    for study, chapter in zip(table["studies"], book.chapters, strict=True):
        assert len(study["findings"]) == len(chapter.findings)
        assert all(finding["rule"] in page for finding in study["findings"])
        with (folder / "data" / f"{study['study']}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(load_run(folder / "data" / f"{study['study']}.jsonl").results)


@pytest.mark.thorough
def test_writing_again_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    write_lab(bind(find_runs([folder / "data"])), folder)
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before


def test_pages_lead_to_each_other_and_charts_without_a_font_of_the_language_stand_as_svg(
    written: files.Written, small: Path
) -> None:
    assert written.without_png
    assert {path.name for path in written.pages} == {"lab.html", "lab.md", "lab-en.html", "lab-en.md"}
    assert {path.suffix for path in written.charts if path.parent.name == "charts-en"} == {".svg", ".png"}
    assert {path.suffix for path in written.charts if path.parent.name == "charts"} == {".svg"}
    assert ".svg)" in (small / "lab.md").read_text(encoding="utf-8")
    assert '<html lang="zh">' in (small / "lab.html").read_text(encoding="utf-8")
    assert '<a href="lab-en.html">English</a>' in (small / "lab.html").read_text(encoding="utf-8")
    assert '<a href="lab.html">中文</a>' in (small / "lab-en.html").read_text(encoding="utf-8")


# The command.


@pytest.mark.thorough
def test_the_small_form_is_measured_on_the_cpu(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("lab", "--quick", "--out", tmp_path)
    assert ran.code == 0, ran.err
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == [n for n in STUDIES if n != "partition"]
    book = bind(find_runs([tmp_path / "results"]))
    assert {chapter.study.name for chapter in book.chapters} == set(STUDIES) - {"partition"}
    assert all(chapter.run.complete for chapter in book.chapters)
    assert {r.status for c in book.chapters for r in c.run.results} <= {"ok", "refused", "skipped"}
    clocks = {r.config for c in book.chapters for r in c.run.results if r.precision == "mistaken"}
    assert clocks == {f"clock={c}" for c in ("right", "no_wait", "host_clock", "allocating", "planning", "same_arrays")}
    assert "10 studies" in ran.out
    assert "None" not in (tmp_path / "lab" / "lab.md").read_text(encoding="utf-8")


def test_stored_results_are_reported(done: Callable[..., Ran], tmp_path: Path) -> None:
    (memory,) = books.STORED.glob("memory-*.jsonl")
    ran = done("lab", "--from", memory, "--out", tmp_path, "--title", "A class's lab")
    assert ", 1 study; beside it lab.md" in ran.out
    assert "A class&#39;s lab" in (tmp_path / "lab" / "lab.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words, says",
    [
        (("--language", "xx"), "--language 'xx' is unknown"),
        (("--from", "nowhere"), "nowhere does not exist"),
        (("--from", "nowhere", "--quick"), "--from measures nothing"),
        (("sise",), "did you mean 'size'"),
        (("--device", "emulator"), "its times say nothing about a GPU"),
    ],
)
def test_bad_use_is_refused(refused: Callable[..., str], words: tuple[str, ...], says: str) -> None:
    refused(2, "lab", *words, says=(says,))
