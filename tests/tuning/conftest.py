"""A folder of tuned choices for each test, and leave to measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from convforge.tuning import CHOICES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of this test's choices."""
    monkeypatch.setattr(CHOICES, "folder", tmp_path / "tuned")
    monkeypatch.delenv("CONVFORGE_TUNE", raising=False)
    CHOICES.forget()
    yield tmp_path / "tuned"
    monkeypatch.undo()
    CHOICES.forget()
