"""Lines of the reports of `convforge filter`, and errors of its files as failures of the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer

from convforge.cli.output import Failure, shown

if TYPE_CHECKING:
    from convforge.algorithms.contract import Plan
    from convforge.errors import Reason
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.recipe import Recipe
    from convforge.imaging.windowed import Place


def line(name: str, text: str) -> None:
    typer.echo(f"{name:<11} {shown(text)}")


def print_method(plan: Plan, recipe: Recipe, more: Reason | None = None) -> None:
    from convforge.tuning import decide, with_peers

    why = "asked for by name"
    if recipe.algorithm == "auto":
        why = decide(plan.problem, plan.runtime, peers=with_peers()).reason
    config = f" [{plan.config}]" if str(plan.config) else ""
    note = f"; {more}" if more else ""
    line("method", f"{plan.algorithm.name}{config}: {why}{note}")
    line("arithmetic", f"{plan.problem.x_dtype} times {plan.problem.w_dtype}, summed in {plan.problem.acc_dtype}")
    if plan.workspace_bytes:
        line("workspace", f"{plan.workspace_bytes} bytes")


def kernel_text(kernel: Kernel, recipe: Recipe, bands: int | None = None) -> str:
    """Return the line of the kernel; `bands` is the number of bands that are filtered, None if images differ in it."""
    size = "x".join(map(str, kernel.shape))
    if kernel.depth is not None:
        size = f"{kernel.depth.size}x{size} along Z, Y and X"
    steps = f", stride {recipe.stride[0]}x{recipe.stride[1]}" if recipe.stride != (1, 1) else ""
    treatment = ""
    if bands != 1 and not recipe.gray:
        treatment = ", bands summed" if recipe.channels == "sum" else ", each band by itself"
        treatment += " where there are several" if bands is None else ""
    border = {  # libraries use different names for the first two
        "reflect": "reflect (edge pixel not repeated)",
        "symmetric": "symmetric (edge pixel repeated)",
        "constant": f"constant {recipe.cval:g}",
    }.get(recipe.border, recipe.border)
    return f"{kernel.name}, {size}{treatment}, border {border}{steps}"


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say_waiting() -> None:
    """Say why an interrupted command does not end at once; a handler of signals calls this."""
    with suppress(RuntimeError, OSError):  # the signal came while the same stream was written, or it is closed
        typer.echo("convforge: interrupted; waits until the reads, filters and writes in work are finished", err=True)


@contextmanager
def opened() -> Iterator[None]:
    """Turn an error of a file into a Failure; unnamed axes and a selection that it does not have are wrong use."""
    from convforge.imaging.files import AxesError, ImageError
    from convforge.imaging.selection import SelectionError

    try:
        yield
    except (AxesError, SelectionError):
        raise
    except ImageError as error:
        raise Failure(str(error)) from error


@contextmanager
def failing(source: Place, recipe: Recipe) -> Iterator[None]:
    """Turn an error of a file into a Failure, as :func:`opened`; a method's refusal is wrong use (``ValueError``)."""
    from convforge.errors import UnsupportedProblem

    try:
        with opened():
            yield
    except UnsupportedProblem as error:
        raise ValueError(reason_of(error, recipe)) from error
    except MemoryError as error:
        raise Failure(f"{source}: there is not enough memory to filter it; cut it into parts first") from error


def reason_of(error: Exception, recipe: Recipe) -> str:
    from convforge.errors import UnsupportedProblem

    if isinstance(error, UnsupportedProblem):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in error.reasons.items())
        return f"--method {recipe.algorithm} cannot filter this image ({reasons})"
    if isinstance(error, MemoryError):
        return "there is not enough memory to filter it; take fewer --jobs, or cut it into parts first"
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
    return " ".join(str(error).split())
