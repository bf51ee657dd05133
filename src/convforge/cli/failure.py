"""How a command says that its work failed."""

from __future__ import annotations


class Failure(Exception):
    """The work itself failed (exit code 1), in one line; a bad argument is a ``ValueError`` (exit code 2)."""
