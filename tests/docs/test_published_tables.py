"""Published tables beside ours: theirs as they were published, ours as they are stored, and nothing else."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.course.studies.stored import stored_runs

from convforge.course.studies import find_study
from convforge.course.studies.published import TABLES

ROOT = Path(__file__).parents[2]
EXTENSIONS = ROOT / "docs" / "_ext"


@pytest.fixture(scope="module")
def tables() -> Iterator[Any]:
    sys.path.insert(0, str(EXTENSIONS))
    yield importlib.import_module("published")
    sys.path.remove(str(EXTENSIONS))


def cells(tables: Any, name: str) -> dict[str, dict[str, str]]:
    """Case -> column -> cell, of a table's Markdown."""
    text = tables.beside(name, TABLES[name].run, tables.ours(TABLES[name].run)).replace("\\", "")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def test_every_table_is_on_the_page(tables: Any) -> None:
    page = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{published\} (\w)$", page, re.MULTILINE) == list(TABLES)


@pytest.mark.parametrize(
    "name, case, column, figure",
    [
        ("A", "rgb_to_1_512_s1", "direct_constant, theirs", "0.0500"),
        ("A", "rgb_to_1_2048_s1", "direct_naive on the CPU, theirs", "308"),
        ("B", "square_8192", "gemm_shared, theirs", "142"),
        ("C", "rgb_to_1_4096_s2", "im2col, theirs", "10238"),
        ("C", "rgb_to_1_8192_s1", "im2col, theirs", ""),
        ("D", "rgb_to_3_128_s3", "im2col, theirs", "1.74"),
    ],
)
def test_theirs_are_as_published(tables: Any, name: str, case: str, column: str, figure: str) -> None:
    assert cells(tables, name)[case][column] == figure


@pytest.mark.parametrize("name", ["B", "C", "D"])
def test_ours_are_as_stored(tables: Any, name: str) -> None:
    from convforge.benchmark.formats import three

    runs = [run for run in stored_runs() if run.complete]
    shown = cells(tables, name)
    stored = {
        three(r.flops / r.time.median_s / 1e9 if name == "D" else 1e3 * r.time.median_s)
        for run in runs
        for r in run.results
        if r.status == "ok" and r.time is not None
    }
    ours = [cell for row in shown.values() for column, cell in row.items() if column.endswith("ours") and cell]
    assert len(ours) >= len(shown)
    assert {cell.split(" (")[0] for cell in ours} <= stored


def test_what_is_not_stored_is_left_out(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "stored_runs", tuple)
    assert tables.ours(TABLES["C"].run) == []
    columns = set(next(iter(cells(tables, "C").values())))
    assert columns == {"direct_naive, theirs", "im2col, theirs", "cudnn, theirs", "fastest of ours"}
    assert {row["fastest of ours"] for row in cells(tables, "C").values()} == {""}
    assert "Ours, by the same rules" not in tables.page_of("C", "stride", ["ahead"])


def test_another_padding_is_said(tables: Any) -> None:
    text = tables.beside("A", TABLES["A"].run, tables.ours(TABLES["A"].run))
    assert "up to 3.2 % more outputs" in text
    assert "padding" not in tables.beside("C", TABLES["C"].run, tables.ours(TABLES["C"].run))


def test_what_the_text_of_d_denies_is_among_the_findings(tables: Any) -> None:
    findings = TABLES["D"].findings(find_study("stride"))
    said = tables.sentences(["im2col-against-direct"], findings, supported=True).replace("\\", "")
    assert "At stride 2 im2col is faster than the best direct method on 1 of 5 cases." in said
    assert "  - faster: rgb_to_3_128_s2" in said
    assert tables.sentences(["no-such-rule"], findings) == "- Nothing."


def test_what_rests_on_doubtful_figures_stands_apart(tables: Any) -> None:
    sound, _, doubtful = tables.page_of("B", "gemm", ["ladder-step", "against-library"]).partition(
        "Resting on doubtful"
    )
    assert "is faster than gemm\\_naive" in sound
    assert "best library" in doubtful.partition("Ours, by the same rules")[0]
    assert "best library" not in sound
