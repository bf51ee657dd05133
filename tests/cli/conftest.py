"""`convforge`, run in this process as people run it: words in; exit code, standard output and standard error out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.commands import Ran

from convforge.cli import app as application


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `convforge WORDS...` in this process."""

    def command(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["convforge", *map(str, words)])
        code: Any = 0
        try:
            application.main()
        except SystemExit as stop:
            code = stop.code
        return Ran(code, *capsys.readouterr())

    return command


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal so wide that no cell of a table is folded."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture
def done(run: Callable[..., Ran]) -> Callable[..., Ran]:
    """Run a command that must succeed without a word on standard error."""

    def command(*words: object) -> Ran:
        ran = run(*words)
        assert (ran.code, ran.err) == (0, "")
        return ran

    return command


@pytest.fixture
def refused(run: Callable[..., Ran]) -> Callable[..., str]:
    """Run a command that must end with `code` and one clear line; what it says."""

    def command(code: int, *words: object, says: tuple[str, ...]) -> str:
        ran = run(*words)
        assert ran.code == code, ran
        assert ran.out == ""
        assert ran.err.startswith("convforge: ")
        assert ran.err.count("\n") == 1
        assert ran.err.endswith("\n")
        for word in says:
            assert word in ran.err
        return ran.err

    return command
