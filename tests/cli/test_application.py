"""The `convforge` command by itself: its version and its help."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.commands import Ran

import convforge


def test_the_version_is_said(done: Callable[..., Ran]) -> None:
    assert done("--version").out == f"convforge {convforge.__version__}\n"
    assert "--version" in done("--help").out
