"""`convforge bench`: check and time methods on suites and problems, store every row, show the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convforge.cli import values
from convforge.cli.output import progress
from convforge.cli.values import Device, Out, Targets, WorkspaceLimit

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
        int, typer.Option(min=0, help="Of each of our methods the fastest of its first N configs, as auto finds it.")
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
    """Check and time every method on suites or problems; a wrong result gets no time."""
    if csv and markdown:
        raise ValueError("--csv and --markdown exclude each other")
    if all_configs and search:
        raise ValueError("--all-configs and --search exclude each other")
    from convforge.benchmark import suites
    from convforge.benchmark.compiling import compile_rows
    from convforge.benchmark.runner import Runner, Settings, choose
    from convforge.benchmark.store import load_run
    from convforge.peers import every_algorithm

    settings = Settings(
        methods=values.words_of(methods), sizes=_numbers(sizes, "--sizes"), strides=_numbers(strides, "--strides"),
        budget_s=values.parse_seconds(budget) if budget else None, all_configs=all_configs, search=search,
        workspace_limit=values.parse_bytes(workspace_limit) if workspace_limit else None, quick=quick, heavy=heavy,
        transfer=transfer, steps=steps,
    )  # fmt: skip
    suite, cases = suites.load(targets)
    cases = suites.select(cases, sizes=settings.sizes, strides=settings.strides, heavy=heavy)
    runtime = values.timed_runtime(device)
    if transfer and runtime.facts.backend != "cuda":
        raise ValueError(f"--transfer goes with --device cuda; on {device} nothing is transferred")
    operations = {case.problem.operation for case in cases}
    chosen = choose(settings.methods, runtime.facts.backend, operations, every_algorithm())
    interrupted = False
    with _open(out / "results", suite, runtime, settings, resume=resume) as store, progress() as watch:
        try:
            runner = Runner(cases, chosen, runtime, settings, store, watch=watch)
            compile_rows(runner.rows, runtime.facts)
            runner.run()
        except KeyboardInterrupt:
            interrupted = True
    show(load_run(store.path), csv=csv, markdown=markdown)
    typer.echo(f"stored in {store.path}", err=True)
    if interrupted:
        typer.echo("interrupted; run the same command with --resume to go on", err=True)
        raise typer.Exit(130)


def _open(folder: Path, suite: str, runtime: Runtime, settings: Settings, *, resume: bool) -> Store:
    """Create the file of a new run, or open the file of the run to resume."""
    from convforge.benchmark.runner import begin
    from convforge.benchmark.store import Store, unfinished
    from convforge.timing.machine import device_slug

    if not resume:
        return begin(folder, suite, runtime, settings)
    folder /= device_slug(runtime.facts)
    if path := unfinished(folder, suite, settings.choice()):
        return Store.resume(path)
    raise ValueError(
        f"{folder} holds no unfinished run of {suite} with the same methods, sizes, strides, configs and limits; leave "
        "out --resume to begin one"
    )


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


def _numbers(text: str, option: str) -> tuple[int, ...]:
    words = values.words_of(text)
    if any(not word.isdecimal() or int(word) < 1 for word in words):
        raise ValueError(f"{option} {text!r} must be whole numbers of at least 1, joined by commas")
    return tuple(int(word) for word in words)
