"""The application: subcommands and exit codes. An error is one line on stderr.

0: success. 1: the work itself failed. 2: wrong use. 130: interrupted.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from convforge.cli.output import Failure

# Modules of the extra "lab", and the commands that import them.
LAB = ("altair", "babel", "jinja2", "pandas", "psutil", "pygments", "vl_convert")
LAB_COMMANDS = dict.fromkeys(("bench", "gemm", "study", "lab", "report"), LAB) | {"check": ("psutil",)}

app = typer.Typer(
    name="convforge",
    help="2D convolution by every method the field knows, checked before it is timed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(asked: bool) -> None:
    if asked:
        from convforge import __version__

        typer.echo(f"convforge {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version and end.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Options of the command itself, before any subcommand."""


def _register() -> None:
    """Add the subcommands once, in the order of `convforge --help`."""
    from convforge.cli.bench import bench
    from convforge.cli.check import check
    from convforge.cli.doctor import doctor
    from convforge.cli.explain import explain
    from convforge.cli.filter import filter_command
    from convforge.cli.gemm import gemm
    from convforge.cli.lab import lab
    from convforge.cli.report import report
    from convforge.cli.study import study
    from convforge.cli.tune import tune

    known = {command.name for command in app.registered_commands}
    for command in (filter_command, bench, gemm, explain, tune, study, lab, check, report, doctor):
        name = command.__name__.removesuffix("_command")
        if name not in known:
            app.command(name)(_with_lab(command, LAB_COMMANDS[name]) if name in LAB_COMMANDS else command)


def _with_lab(command: Callable[..., None], modules: tuple[str, ...]) -> Callable[..., None]:
    """Wrap a command so that it first names the modules of the extra "lab" that are missing."""

    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> None:
        if missing := [name for name in modules if find_spec(name) is None]:
            raise Failure(f"{command.__name__} needs {', '.join(missing)}; get it with: pip install 'convforge[lab]'")
        command(*args, **options)

    return checked


def main() -> None:
    """Run the command line; the entry point of the package."""
    _register()
    try:
        if code := app(standalone_mode=False):  # a command raised typer.Exit
            sys.exit(code)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except TyperException as mistake:
        _say(mistake.format_message())
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted")
        sys.exit(130)
    except _failures() as failure:  # evaluated only after an exception
        _say(str(failure))
        sys.exit(1)
    except (ValueError, TypeError) as mistake:
        _say(str(mistake))
        sys.exit(2)
    except OSError as failure:
        _say(f"{failure.filename or ''}: {failure.strerror or failure}".removeprefix(": "))
        sys.exit(1)


def _failures() -> tuple[type[Exception], ...]:
    """Return the classes of failed work and absent devices; imported late, because their modules load slowly."""
    from convforge.backends.cuda import CudaUnavailable
    from convforge.backends.emulator.absent import EmulatorUnavailable

    return Failure, CudaUnavailable, EmulatorUnavailable


def _say(text: str) -> None:
    print(f"convforge: {text}", file=sys.stderr)
