"""`convforge bench`: check and time methods on suites and problems, store every row, show the table."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from convforge.backends.runtime import Runtime
    from convforge.benchmark.records import Run
    from convforge.benchmark.runner import Settings, Watch
    from convforge.benchmark.store import Store

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def bench(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="SUITE|PROBLEM...", help="Suites by name, CSV files, or problems' text forms."),
    ],
    methods: Annotated[str, typer.Option(help="Names or patterns, such as 'direct*,im2col'; all by default.")] = "",
    sizes: Annotated[str, typer.Option(help="Only these sizes of image (or M), such as 32,64.")] = "",
    strides: Annotated[str, typer.Option(help="Only these strides, such as 1,2.")] = "",
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
    budget: Annotated[str, typer.Option(help="Time for the whole run, such as 60s or 5m.")] = "",
    out: Annotated[Path, typer.Option(help="Folder; results go to OUT/results/DEVICE/.")] = Path("out"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest unfinished run of the same.")] = False,
    all_configs: Annotated[bool, typer.Option("--all-configs", help="Every config, not the default alone.")] = False,
    search: Annotated[
        int,
        typer.Option(min=0, help="Of each of our methods the fastest of its first N configs, as auto finds it."),
    ] = 0,
    workspace_limit: Annotated[str, typer.Option(help="Most workspace that a method may use, such as 64MB.")] = "",
    heavy: Annotated[bool, typer.Option("--heavy", help="The suite's heavy cases too.")] = False,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="Time calls from host arrays to host arrays too (on a GPU).")
    ] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Time each step of a call by itself too, such as im2col's expansion.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples, and one timing.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every result as CSV.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Check and time every method on suites or problems; a result that is wrong gets no time."""
    if csv and markdown:
        raise ValueError("--csv and --markdown exclude each other")
    if all_configs and search:
        raise ValueError("--all-configs and --search exclude each other")
    from convforge.benchmark import suites
    from convforge.cli.values import parse_bytes

    wanted_sizes, wanted_strides = _numbers(sizes, "--sizes"), _numbers(strides, "--strides")
    budget_s = seconds(budget) if budget else None
    limit = parse_bytes(workspace_limit) if workspace_limit else None
    suite, cases = suites.load(targets)
    cases = suites.select(cases, sizes=wanted_sizes, strides=wanted_strides, heavy=heavy)
    from convforge.benchmark.compiling import compile_rows
    from convforge.benchmark.runner import Runner, Settings, choose
    from convforge.call.dispatch import runtime_of
    from convforge.peers import every_algorithm

    runtime = runtime_of(device)
    if runtime.facts.backend == "emulator":
        raise ValueError("--device emulator: its times say nothing about a GPU; choose cpu, cuda, cuda:1, ...")
    if transfer and runtime.facts.backend != "cuda":
        raise ValueError(f"--transfer goes with --device cuda; on {device} nothing is transferred")
    settings = Settings(
        methods=tuple(word.strip() for word in methods.split(",") if word.strip()),
        sizes=wanted_sizes,
        strides=wanted_strides,
        budget_s=budget_s,
        all_configs=all_configs,
        search=search,
        workspace_limit=limit,
        quick=quick,
        heavy=heavy,
        transfer=transfer,
        steps=steps,
    )
    chosen = choose(
        settings.methods, runtime.facts.backend, {case.problem.operation for case in cases}, every_algorithm()
    )
    with _open(out / "results", suite, runtime, settings, resume=resume) as store, progress() as watch:
        interrupted = False
        try:
            runner = Runner(cases, chosen, runtime, settings, store, watch=watch)
            compile_rows(runner.rows, runtime.facts)
            runner.run()
        except KeyboardInterrupt:
            interrupted = True
    from convforge.benchmark.store import load_run

    run = load_run(store.path)
    show(run, csv=csv, markdown=markdown)
    typer.echo(f"stored in {store.path}", err=True)
    if interrupted:
        typer.echo(f"interrupted; to go on: {_again(targets, settings, device, out)}", err=True)
        raise typer.Exit(130)


def _open(folder: Path, suite: str, runtime: Runtime, settings: Settings, *, resume: bool) -> Store:
    """A new run's file, or that of the run to go on with."""
    from convforge.benchmark.runner import begin
    from convforge.benchmark.store import Store, unfinished
    from convforge.timing.machine import device_slug

    if not resume:
        return begin(folder, suite, runtime, settings)
    path = unfinished(folder / device_slug(runtime.facts), suite, settings.choice())
    if path is None:
        raise ValueError(
            f"{folder / device_slug(runtime.facts)} holds no unfinished run of {suite} with the same methods, sizes, "
            "strides, configs and limits; leave out --resume to begin one"
        )
    return Store.resume(path)


@contextmanager
def progress() -> Iterator[Watch]:
    """A progress bar on standard error; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Redrawn only between rows: a thread that draws would take time from what is being measured.
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def watch(done: int, total: int, label: str) -> None:
            progress.update(task, completed=done, total=total, description=label, refresh=True)

        yield watch


def show(run: Run, *, csv: bool = False, markdown: bool = False) -> None:
    """The table of a run on standard output."""
    from convforge.benchmark import tables

    if csv:
        typer.echo(tables.csv_table(run), nl=False)
    elif markdown:
        typer.echo(tables.markdown_table(run), nl=False)
    else:
        from rich.console import Console

        console = Console(file=sys.stdout, highlight=False)
        console.print(tables.rich_tables(run, console.width))


def _again(targets: list[str], settings: Settings, device: str, out: Path) -> str:
    """The command that goes on with an interrupted run."""
    words = ["convforge", "bench", *targets]
    for option, values in (
        ("--methods", settings.methods),
        ("--sizes", settings.sizes),
        ("--strides", settings.strides),
    ):
        words += [option, ",".join(map(str, values))] if values else []
    words += [] if device == "cpu" else ["--device", device]
    words += [] if settings.budget_s is None else ["--budget", f"{settings.budget_s:g}s"]
    words += [] if out == Path("out") else ["--out", str(out)]
    words += ["--all-configs"] if settings.all_configs else []
    words += ["--search", str(settings.search)] if settings.search else []
    words += [] if settings.workspace_limit is None else ["--workspace-limit", f"{settings.workspace_limit}B"]
    words += ["--heavy"] if settings.heavy else []
    words += ["--transfer"] if settings.transfer else []
    words += ["--steps"] if settings.steps else []
    words += ["--quick"] if settings.quick else []
    return shlex.join([*words, "--resume"])


def _numbers(text: str, option: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if any(not word.isdecimal() or int(word) < 1 for word in words):
        raise ValueError(f"{option} {text!r} must be whole numbers of at least 1, joined by commas")
    return tuple(int(word) for word in words)


def seconds(text: str, option: str = "--budget") -> float:
    """A time as people write it: 60s, 5m, 500ms."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SECONDS or float(match[1]) <= 0:
        raise ValueError(f"{option} {text!r} is not understood; write it like 60s, 5m or 500ms")
    return float(match[1]) * _SECONDS[match[2]]
