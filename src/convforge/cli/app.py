"""The application: subcommands and exit codes. An error is printed as one line on stderr.

0: success. 1: the work itself failed. 2: wrong use. 130: interrupted.
"""

from __future__ import annotations

import atexit
import functools
import gc
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from convforge.cli.bench import bench
from convforge.cli.check import check
from convforge.cli.doctor import doctor
from convforge.cli.explain import explain
from convforge.cli.filter import filter_command
from convforge.cli.gemm import gemm
from convforge.cli.lab import lab
from convforge.cli.output import Failure
from convforge.cli.report import report
from convforge.cli.study import study
from convforge.cli.tune import tune

# Modules of the extra "lab", and the commands that import them.
LAB = ("altair", "babel", "jinja2", "pandas", "psutil", "pygments", "vl_convert")
LAB_COMMANDS = dict.fromkeys(("bench", "gemm", "study", "lab", "report"), LAB) | {"check": ("psutil",)}

# New objects after which Python looks for garbage in cycles; it does so after 700 by default.
OBJECTS_BETWEEN_SEARCHES = 100_000

app = typer.Typer(
    name="convforge",
    help="2D convolution by every method the field knows, checked before it is timed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        from convforge import __version__

        typer.echo(f"convforge {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the command itself, before any subcommand."""


def _add(command: Callable[..., None]) -> None:
    """Add a subcommand that first checks for missing modules of the extra "lab" which it needs."""
    name = command.__name__.removesuffix("_command")

    @app.command(name)
    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> None:
        if missing := [module for module in LAB_COMMANDS.get(name, ()) if find_spec(module) is None]:
            raise Failure(f"{name} needs {', '.join(missing)}; get it with: pip install 'convforge[lab]'")
        command(*args, **options)


for _command in (filter_command, bench, gemm, explain, tune, study, lab, check, report, doctor):
    _add(_command)


def main() -> None:
    """Run the command line; the entry point of the package."""
    # Imports make many objects and no garbage: the command starts and ends sooner without searches for it.
    gc.set_threshold(OBJECTS_BETWEEN_SEARCHES)
    atexit.register(gc.freeze)
    try:
        if code := app(standalone_mode=False):  # a command raised typer.Exit
            sys.exit(code)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except TyperException as mistake:
        _fail(mistake.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except Exception as fault:
        # Imported late, because these modules load slowly.
        from convforge.backends.cuda import CudaUnavailable
        from convforge.backends.emulator.absent import EmulatorUnavailable

        if isinstance(fault, Failure | CudaUnavailable | EmulatorUnavailable):
            _fail(str(fault), 1)
        if isinstance(fault, ValueError | TypeError):
            _fail(str(fault), 2)
        if isinstance(fault, OSError):
            _fail(f"{fault.filename or ''}: {fault.strerror or fault}".removeprefix(": "), 1)
        raise


def _fail(text: str, code: int) -> NoReturn:
    print(f"convforge: {text}", file=sys.stderr)
    sys.exit(code)
