"""The `convforge` command. Each subcommand stands in its own file and imports what is heavy only when it runs."""

from __future__ import annotations

from convforge.cli.app import main

__all__ = ["main"]
