"""The README is a landing page: short, with one chart, and it shows what is slower beside what is faster."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
# Characters of a first screen, of 40 lines or so.
SCREEN = 2400


def blocks(language: str) -> list[list[str]]:
    """The lines of each block of a language, blank lines left out."""
    found = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [[line for line in body.splitlines() if line.strip()] for body in found]


def table_rows() -> list[list[str]]:
    """The cells of every table of figures, row by row, its head first."""
    lines = [line for line in TEXT.splitlines() if line.startswith("|") and "![" not in line and "`--" not in line]
    return [line.strip("|").split("|") for line in lines if not set(line) <= set("|-: ")]


def test_the_first_screen_has_the_figure_its_chart_what_is_slower_and_the_install_lines() -> None:
    screen = TEXT[:SCREEN]
    for part in ("view=sentence", "docs/images/ahead.png", "behind", "pip install .", "pip install '.[cuda13]'"):
        assert part in screen, f"the first screen lacks {part!r}"
    assert (ROOT / "docs/images/ahead.png").exists()


def test_examples_are_short() -> None:
    (python,) = blocks("python")
    assert len(python) <= 10
    assert all(len(lines) <= 10 for lines in blocks("console"))


def test_there_is_one_table_of_at_most_five_rows_and_five_columns() -> None:
    rows = table_rows()
    assert 2 <= len(rows) <= 1 + 5
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows[0]) <= 5
    assert any("slower" in cell for row in rows for cell in row)
