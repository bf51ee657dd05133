"""`convforge lab`: one report of all studies, as an offline page, Markdown, charts and data."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convforge.cli.output import progress
from convforge.cli.values import Device, Quick, parse_seconds, timed_runtime

if TYPE_CHECKING:
    from convforge.benchmark.records import Run
    from convforge.benchmark.runner import Watch
    from convforge.course.studies import Study


def lab(
    studies: Annotated[list[str] | None, typer.Argument(metavar="[STUDY]...", help="All by default.")] = None,
    device: Device = "cpu",
    budget: Annotated[
        str, typer.Option(help="Time for all studies together, such as 10m; each has one of its own.")
    ] = "",
    quick: Quick = False,
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE|FOLDER", help="Report stored results, the newest of each study; measure nothing."
        ),
    ] = None,
    language: Annotated[str, typer.Option(help="en or zh; en,zh writes both, the first as lab.html.")] = "en",
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    out: Annotated[Path, typer.Option(help="The report goes to OUT/lab/, results to OUT/results/DEVICE/.")] = Path(
        "out"
    ),
) -> None:
    """Measure every study and write one report: page, Markdown, charts, data."""
    from convforge.benchmark.formats import byte_count
    from convforge.course.lab import bind, find_runs, write_lab
    from convforge.course.language import LANGUAGES

    codes = tuple(dict.fromkeys(language.split(",")))
    for code in codes:
        if code not in LANGUAGES:
            raise ValueError(f"--language {code!r} is unknown; choose among {', '.join(LANGUAGES)}")
    if from_:
        if budget or quick or studies:
            raise ValueError("--from measures nothing; leave out the studies, --budget and --quick")
        runs = find_runs(from_)
    else:
        runs = _measure(studies or [], device, parse_seconds(budget) if budget else None, out, quick=quick)
    written = write_lab(bind(runs), out / "lab", title=title, codes=codes)
    first, *others = written.pages
    many = f"{len(runs)} studies" if len(runs) > 1 else "1 study"
    typer.echo(
        f"{first}: {byte_count(first.stat().st_size)}, {many}; beside it "
        f"{', '.join(path.name for path in others)}, {len(written.charts)} charts and {len(written.data)} files of data"
    )
    if written.without_png:
        typer.echo(
            "Charts are SVG alone: no font here has Chinese signs. Install one, such as fonts-noto-cjk, for PNG.",
            err=True,
        )


def _measure(names: list[str], device: str, budget_s: float | None, out: Path, *, quick: bool) -> dict[str, Run]:
    """Measure studies and print each on standard error; on a terminal with a progress bar over its rows."""
    from convforge.course.lab import conduct_all
    from convforge.course.studies import find_study

    chosen = [find_study(name).name for name in names]
    runtime = timed_runtime(device)
    with ExitStack() as stack:

        def watch(study: Study) -> Watch:
            stack.close()
            print(f"{study.name}: {study.asks}", file=sys.stderr, flush=True)
            return stack.enter_context(progress())

        return conduct_all(runtime, out / "results", watch, studies=chosen, budget_s=budget_s, quick=quick)
