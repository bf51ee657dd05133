"""`convforge check`: compare a user's kernel or program with the float64 result."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from convforge.cli.values import parse_bytes, parse_seconds


def check(
    target: Annotated[str, typer.Argument(metavar="FILE.cu|PROGRAM", help="A kernel's file, a script, or a program.")],
    device: Annotated[
        str, typer.Option(help="For a kernel: emulator or cuda; by default a GPU where there is one.")
    ] = "",
    problem: Annotated[str, typer.Option(help="Check this problem alone, given in its text form.")] = "",
    kernel: Annotated[str, typer.Option(help="Name of the kernel; conv2d, or the only one, by default.")] = "",
    launch: Annotated[
        str, typer.Option(help="Launch, such as 'block=16x16 grid=ceil(Q/16),ceil(P/16),N*K shared=0'.")
    ] = "",
    timeout: Annotated[str, typer.Option(help="That one launch, or one run of a program, may take.")] = "10s",
    memory: Annotated[str, typer.Option(help="That its process may hold, such as 500MB.")] = "4GB",
    time: Annotated[bool, typer.Option(help="Time it beside convforge's own where it is right.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check, diagnose and time your own kernel or program. Exit code: 0 right, 1 wrong, 2 it could not run.

    Time and memory are limited, but it is no sandbox: the checked program runs with your rights. Use a container for
    programs of people whom you do not trust.
    """
    from convforge.course.grader import TIMED, Limits, Report, cases_of, check_kernel, check_program

    cases, timed = cases_of(problem), (problem or TIMED) if time else ""
    limits = Limits(parse_seconds(timeout, "--timeout"), parse_bytes(memory))
    if Path(target).suffix == ".cu":
        if not Path(target).is_file():
            raise ValueError(f"{target}: there is no such file")
        chosen, reason = _device(device)
        if reason:
            report = Report(target, "kernel", chosen, error=reason)
        else:
            report = check_kernel(
                Path(target), cases, device=chosen, kernel=kernel, launch=launch, limits=limits, timed=timed
            )
    else:
        for name, value in (("--device", device), ("--kernel", kernel), ("--launch", launch)):
            if value:
                raise ValueError(f"{name} {value!r} goes with a kernel's file, NAME.cu; {target} is run as a program")
        report = check_program(target, cases, timed=timed, limits=limits)
    typer.echo(json_.dumps(report.to_table(), indent=1) if json else report.to_text(), nl=json)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _device(device: str) -> tuple[str, str]:
    """Return the device (by default a GPU if it can be used), and the reason if the device cannot be used."""
    from convforge.backends.cuda.absent import why_absent as why_no_gpu
    from convforge.backends.emulator.absent import why_absent as why_no_emulator

    chosen = device or ("cuda" if why_no_gpu() is None else "emulator")
    if chosen != "emulator" and chosen.partition(":")[0] != "cuda":
        raise ValueError(f"--device {device!r}: a kernel runs on emulator, cuda, cuda:1, ...")
    return chosen, (why_no_emulator() if chosen == "emulator" else why_no_gpu()) or ""
