"""The command line's fixtures, for the lab."""

from __future__ import annotations

from tests.cli.conftest import done, refused, run

__all__ = ["done", "refused", "run"]
