"""`convforge report`: what it writes and says, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from tests.course.report import runs
from typer.testing import CliRunner

from convforge.cli.report import report

app = typer.Typer()
app.command("report")(report)


def test_it_writes_the_page_and_says_where(tmp_path: Path) -> None:
    source = runs.write(tmp_path / "results" / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])
    out = tmp_path / "out" / "page.html"
    done = CliRunner().invoke(app, [str(source.parent), "--out", str(out), "--title", "Mine & yours"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{out}: ")
    assert done.output.endswith("KiB, 66 results of 1 run\n")
    assert "<h1>Mine &amp; yours</h1>" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["none.jsonl", "empty"])
def test_a_wrong_input_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(tmp_path / name), "--out", str(out)])
    assert isinstance(done.exception, ValueError)
    assert name in str(done.exception)
    assert not out.exists()


@pytest.mark.parametrize("name", ["a.jsonl", "photo.png"])
def test_no_other_file_becomes_a_page(tmp_path: Path, name: str) -> None:
    source = runs.write(tmp_path / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])
    before = source.read_bytes()
    done = CliRunner().invoke(app, [str(source), "--out", str(tmp_path / name)])
    assert isinstance(done.exception, ValueError)
    assert "give a name that ends in .html" in str(done.exception)
    assert source.read_bytes() == before
    assert not (tmp_path / "photo.png").exists()


def test_a_file_that_is_no_picture_is_named_and_a_link_to_nothing_is_passed_over(tmp_path: Path) -> None:
    source = runs.write(tmp_path / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "gone.png").symlink_to(tmp_path / "nothing.png")
    (shown / "empty.png").write_bytes(b"")
    done = CliRunner().invoke(app, [str(source), "--images", str(shown), "--out", str(tmp_path / "p.html")])
    assert str(done.exception) == f"{shown / 'empty.png'} is no image that the page can show; mend it, or move it"


def test_a_folder_without_pictures_is_named(tmp_path: Path) -> None:
    source = runs.write(tmp_path / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])
    done = CliRunner().invoke(app, [str(source), "--images", str(tmp_path), "--out", str(tmp_path / "p.html")])
    assert isinstance(done.exception, ValueError)
    assert "holds no image" in str(done.exception)


def test_the_page_is_written_in_the_language_that_is_asked_for(tmp_path: Path) -> None:
    source = runs.write(tmp_path / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])
    out = tmp_path / "p.html"
    done = CliRunner().invoke(app, [str(source), "--language", "zh", "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = out.read_text(encoding="utf-8")
    assert '<html lang="zh">' in page
    assert "本库最快" in page
    done = CliRunner().invoke(app, [str(source), "--language", "fr", "--out", str(tmp_path / "q.html")])
    assert str(done.exception) == "language='fr' is unknown; choose one of en, zh"
    assert not (tmp_path / "q.html").exists()
