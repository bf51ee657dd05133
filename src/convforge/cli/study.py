"""`convforge study`: a question, its measurements, their table, and the findings."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convforge.cli.output import progress
from convforge.cli.values import Device, Out, Quick, parse_seconds, timed_runtime

if TYPE_CHECKING:
    from convforge.benchmark.records import Run
    from convforge.course.studies import Finding, Study


def study(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which study; --list shows them.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="Show every study and what it asks.")] = False,
    device: Device = "cpu",
    budget: Annotated[str, typer.Option(help="Time for the whole study, such as 60s; it has one of its own.")] = "",
    out: Out = Path("out"),
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Derive findings from stored results; measure nothing."),
    ] = None,
    quick: Quick = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, with the figures they rest on.")
    ] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Below each finding, the records that it rests on.")] = False,
    language: Annotated[str, typer.Option(metavar="en|zh", help="Language of questions and findings.")] = "en",
) -> None:
    """Run the measurements of a study, and print its table and findings."""
    from convforge.benchmark.store import load_run
    from convforge.course.language import gettext, in_language
    from convforge.course.studies import STUDIES, find_study

    with in_language(language):  # refuse an unknown language before measuring
        if list_:
            for known in STUDIES.values():
                typer.echo(f"{known.name:12} {gettext(known.asks)}")
            return
    if not name:
        raise ValueError(f"name a study: {', '.join(STUDIES)}; --list says what each asks")
    chosen = find_study(name)
    if from_ is not None:
        if budget or quick:
            raise ValueError("--from measures nothing; leave out --budget and --quick")
        run = load_run(from_)
    else:
        from convforge.course.studies.study import conduct

        budget_s = parse_seconds(budget) if budget else None
        runtime = timed_runtime(device)
        with progress() as watch:
            run = conduct(chosen, runtime, out / "results", budget_s=budget_s, quick=quick, watch=watch)
        typer.echo(f"stored in {run.path}", err=True)
    run = chosen.own(run)
    with in_language(language):
        found = chosen.findings(run)
        if json_:
            tables = [finding.to_table() for finding in found]
            typer.echo(json.dumps({"study": name, "run": run.run, "findings": tables}, indent=1, ensure_ascii=False))
            return
        _show(chosen, run, found, trace)


def _show(chosen: Study, run: Run, found: list[Finding], trace: bool) -> None:
    from rich.console import Console

    from convforge.benchmark.config_tables import block_tables, step_tables
    from convforge.benchmark.formats import percent
    from convforge.benchmark.table import caption, rich_table
    from convforge.cli.bench import show
    from convforge.course.language import gettext

    tables = block_tables(run, run.results) if chosen.view == "blocks" else []
    tables += step_tables(run, run.results) if chosen.view == "steps" else []
    if tables:
        console = Console(file=sys.stdout, highlight=False)
        for table in tables:
            console.print(rich_table(table, console.width))
        typer.echo(caption(run))
    elif run.results:
        show(run)
    doubts = gettext("What the data does not support, and what to be wary of:")
    for supported, title in ((True, gettext("Findings:")), (False, doubts)):
        some = [finding for finding in found if finding.supported is supported]
        if some:
            typer.echo(f"\n{title}\n")
        for finding in some:
            lines = _folded(f"{finding.sentence} [{finding.rule}]", 114)
            typer.echo("- " + "\n  ".join(lines))
            for line in finding.details:
                typer.echo("    " + "\n      ".join(_folded(line, 112)))
            for datum in finding.data if trace else ():
                spread = "" if datum.spread is None else f" +- {percent(datum.spread)}"
                where = " ".join(word for word in (datum.case, datum.method, datum.config) if word)
                typer.echo(f"      {where}: {datum.what} {datum.value:.6g}{spread}")


# Pieces of a line that must not be broken: one Chinese character or a run of others, with brackets and punctuation.
_UNIT = re.compile(
    r"\s+|[\uff08\u201c]*(?:[\u3400-\u9fff]|[^\s\u3400-\u9fff\uff08\u201c]+)[\u3001\u3002\uff09\uff0c\uff1a\uff1b\u201d]*|."
)


def _folded(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most `width` terminal columns; a Chinese character is two columns wide."""
    from rich.cells import cell_len

    lines = [""]
    for unit in _UNIT.findall(text):
        if lines[-1] and cell_len(lines[-1] + unit.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        if lines[-1] or not unit.isspace():
            lines[-1] += unit
    return lines
