"""`convforge bench`: check and time methods on suites and problems, store every row, show the table."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convforge.cli.output import progress
from convforge.cli.values import (
    Device,
    Out,
    Targets,
    WorkspaceLimit,
    parse_bytes,
    parse_seconds,
    timed_runtime,
    words_of,
)

if TYPE_CHECKING:
    from convforge.backends.runtime import Runtime
    from convforge.benchmark.records import Run
    from convforge.benchmark.runner import Settings
    from convforge.benchmark.store import Store


def bench(
    targets: Targets,
    methods: Annotated[str, typer.Option(help="Names or patterns, such as 'direct*,im2col'; all by default.")] = "",
    sizes: Annotated[str, typer.Option(help="Only these sizes of image (or M), such as 32,64.")] = "",
    strides: Annotated[str, typer.Option(help="Only these strides, such as 1,2.")] = "",
    device: Device = "cpu",
    budget: Annotated[str, typer.Option(help="Time for the whole run, such as 60s or 5m.")] = "",
    out: Out = Path("out"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest unfinished run of the same.")] = False,
    all_configs: Annotated[bool, typer.Option("--all-configs", help="Every config, not the default alone.")] = False,
    search: Annotated[
        int,
        typer.Option(min=0, help="Of each of our methods the fastest of its first N configs, as auto finds it."),
    ] = 0,
    workspace_limit: WorkspaceLimit = "",
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

    wanted_sizes, wanted_strides = _numbers(sizes, "--sizes"), _numbers(strides, "--strides")
    budget_s = parse_seconds(budget) if budget else None
    limit = parse_bytes(workspace_limit) if workspace_limit else None
    suite, cases = suites.load(targets)
    cases = suites.select(cases, sizes=wanted_sizes, strides=wanted_strides, heavy=heavy)
    from convforge.benchmark.compiling import compile_rows
    from convforge.benchmark.runner import Runner, Settings, choose
    from convforge.peers import every_algorithm

    runtime = timed_runtime(device)
    if transfer and runtime.facts.backend != "cuda":
        raise ValueError(f"--transfer goes with --device cuda; on {device} nothing is transferred")
    settings = Settings(
        methods=words_of(methods), sizes=wanted_sizes, strides=wanted_strides, budget_s=budget_s,
        all_configs=all_configs, search=search, workspace_limit=limit, quick=quick, heavy=heavy, transfer=transfer,
        steps=steps,
    )  # fmt: skip
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
    """Begin the file of a new run, or open that of the run to resume."""
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


def show(run: Run, *, csv: bool = False, markdown: bool = False) -> None:
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
    """Write the command that resumes an interrupted run."""
    limit = settings.workspace_limit
    values: dict[str, object] = {  # None, 0 and empty values are omitted
        "--methods": ",".join(settings.methods),
        "--sizes": ",".join(map(str, settings.sizes)),
        "--strides": ",".join(map(str, settings.strides)),
        "--device": None if device == "cpu" else device,
        "--budget": None if settings.budget_s is None else f"{settings.budget_s:g}s",
        "--out": None if out == Path("out") else out,
        "--search": settings.search,
        "--workspace-limit": None if limit is None else f"{limit}B",
    }
    words = [str(word) for pair in values.items() if pair[1] for word in pair]
    flags = [name for name in ("all_configs", "heavy", "transfer", "steps", "quick") if getattr(settings, name)]
    words += [f"--{name.replace('_', '-')}" for name in (*flags, "resume")]
    return shlex.join(["convforge", "bench", *targets, *words])


def _numbers(text: str, option: str) -> tuple[int, ...]:
    words = words_of(text)
    if any(not word.isdecimal() or int(word) < 1 for word in words):
        raise ValueError(f"{option} {text!r} must be whole numbers of at least 1, joined by commas")
    return tuple(int(word) for word in words)
