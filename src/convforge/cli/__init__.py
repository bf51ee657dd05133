"""The `convforge` command: one module per subcommand; heavy modules are imported only when a subcommand runs."""

from convforge.cli.app import main

__all__ = ["main"]
