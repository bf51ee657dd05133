"""`convforge tune`: measure classes of similar problems (buckets) ahead of time, and write the choices to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convforge.cli.output import plain_table, progress
from convforge.cli.values import Device, Targets, WorkspaceLimit, parse_bytes, parse_seconds, timed_runtime

if TYPE_CHECKING:
    from convforge.benchmark.suites import Case
    from convforge.tuning import SearchResult


def tune(
    targets: Targets,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file; merged with its content.")] = None,
    device: Device = "cpu",
    level: Annotated[str, typer.Option(help="auto: the best few; max: every method and config.")] = "max",
    budget: Annotated[str, typer.Option(help="For each bucket, such as 5s; the level's own by default.")] = "",
    workspace_limit: WorkspaceLimit = "",
    peers: Annotated[bool, typer.Option("--peers", help="Other libraries are candidates too.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure what is stored, too.")] = False,
    heavy: Annotated[bool, typer.Option("--heavy", help="The suites' heavy cases too.")] = False,
) -> None:
    """Find the fastest methods for suites or problems by measuring; store them and write them to a file."""
    from dataclasses import replace

    from convforge.benchmark import suites
    from convforge.tuning import choices
    from convforge.tuning import tune as measure
    from convforge.tuning.search import EFFORTS

    if level not in EFFORTS:
        raise ValueError(f"--level {level!r} is unknown; choose one of {', '.join(EFFORTS)}")
    limit = parse_bytes(workspace_limit) if workspace_limit else None
    effort = replace(EFFORTS[level], budget_s=parse_seconds(budget)) if budget else EFFORTS[level]
    cases = suites.select(suites.load(targets)[1], heavy=heavy)
    if out is not None and out.exists():
        choices.read(out)  # before any measurement: refuse to overwrite a file of another kind
    runtime = timed_runtime(device)
    found: dict[str, tuple[Case, SearchResult | None]] = {}
    with progress() as watch:
        for done, case in enumerate(cases):
            watch(done, len(cases), case.name)
            bucket = str(choices.bucket_of(case.problem, limit, peers=peers))
            if bucket not in found:
                chosen = measure(case.problem, runtime, level, limit, peers=peers, again=again, effort=effort)
                found[bucket] = (case, chosen)
    _show(list(found.values()))
    if out is not None:
        kept = [one for _, one in found.values() if one is not None and not one.fault]
        count = choices.write(out, kept)
        typer.echo(f"{out} holds {count} buckets; CONVFORGE_TUNED={out} uses them", err=True)


def _show(found: list[tuple[Case, SearchResult | None]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from convforge.benchmark.formats import seconds

    console = Console(highlight=False, markup=False)
    table = plain_table()
    for name in ("bucket", "chosen", "time", "tried"):
        table.add_column(name, overflow="fold", justify="right" if name in ("time", "tried") else "left")
    notes = []
    for case, one in found:
        timed = [] if one is None else [t for t in one.tried if t.seconds is not None]
        best = timed[0] if timed else None
        chosen = "by rule" if best is None else " ".join(filter(None, (best.algorithm, best.config)))
        taken = "-" if best is None or best.seconds is None else seconds(best.seconds)
        bucket = case.name if one is None else one.bucket.key
        table.add_row(Text(bucket), Text(chosen), taken, str(0 if one is None else len(one.tried)))
        if one is None:
            notes.append(f"{bucket}: nothing is measured where the best method hangs on the weights' values")
        elif one.fault:
            notes.append(f"{bucket}: {one.fault}")
        else:
            notes += [f"{bucket}: {t.algorithm} {t.config}: {t.fault}" for t in one.tried if t.fault]
    console.print(table)
    for note in notes:
        console.print(note)
