"""Output that commands share."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from convforge.cli.output import steps


def shown(after: float, *, terminal: bool) -> str:
    """What the bar of a work of two steps writes; the work lasts until the bar has begun, if it begins."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100)
    with steps(("read", "write"), after=after, console=console) as begin:
        begin("write")
        if terminal and not after:
            for _ in range(3000):
                if text.getvalue():
                    break
                threading.Event().wait(0.01)
    return text.getvalue()


def test_a_bar_shows_the_step_of_a_long_work() -> None:
    text = shown(0.0, terminal=True)
    assert "1/2" in text
    assert "write" in text


def test_a_short_work_and_a_file_get_no_bar() -> None:
    assert shown(600.0, terminal=True) == ""
    assert shown(0.0, terminal=False) == ""
