"""The `convforge` command. Each subcommand has a file of its own and imports heavy modules only when it runs."""

from __future__ import annotations

from convforge.cli.app import main

__all__ = ["main"]
