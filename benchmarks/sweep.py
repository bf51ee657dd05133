"""Measure many configs of a kernel, also those that it does not offer, to choose its defaults.

python benchmarks/sweep.py direct_tiled n1c3h4096w4096_k3r3s3_p1_f32_nchw --device cuda --grid "out_p=1,2 out_q=2,4"
python benchmarks/sweep.py depthwise_planes depthwise --device cuda --grid "out_q=2,4,8" --top 5
python benchmarks/sweep.py implicit_gemm_wgmma dense --device cuda --first 12

Each config is the method's default with some fields changed as in the grid, or one of its first configs. All are
compiled in parallel. Then each is checked against the truth and timed as a row of the bench. Refused ones are counted
with their reasons. Results are stored only with --out: publish figures of the bench, not of this script.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from convforge.algorithms import find, refusal
from convforge.benchmark.compiling import compile_ahead
from convforge.benchmark.formats import percent, three
from convforge.benchmark.material import Material
from convforge.benchmark.records import Result
from convforge.benchmark.row import Row, measure_row
from convforge.benchmark.suites import Case, load
from convforge.benchmark.table import rich_table, table
from convforge.call.dispatch import runtime_of
from convforge.errors import Reason
from convforge.peers import every_algorithm
from convforge.timing.stopping import StoppingRule

Config = Any


def grid(text: str) -> list[dict[str, str]]:
    """Every combination of field values, from words such as ``out_p=1,2 lanes=4,8``.

    Examples
    --------
    >>> grid("a=1,2 b=x")
    [{'a': '1', 'b': 'x'}, {'a': '2', 'b': 'x'}]
    """
    axes = []
    for word in text.split():
        name, sign, values = word.partition("=")
        if not (name and sign and values):
            raise ValueError(f"--grid {word!r} is no NAME=VALUE,VALUE")
        axes.append([(name, value) for value in values.split(",")])
    return [dict(chosen) for chosen in itertools.product(*axes)]


def changed(config: Config, change: dict[str, str]) -> Config:
    """Change fields of a config, each parsed as its type; ``ValueError`` for a wrong field or value."""
    values = {}
    for name, text in change.items():
        if name not in {field.name for field in dataclasses.fields(config)}:
            names = ", ".join(field.name for field in dataclasses.fields(config))
            raise ValueError(f"--grid: {type(config).__name__} has no {name!r}; it has {names}")
        kind = type(getattr(config, name))
        values[name] = text == "True" if kind is bool else kind(text)
    return dataclasses.replace(config, **values)


def configs_of(method: Any, case: Case, device: str, changes: Sequence[dict[str, str]], first: int = 1) -> list[Config]:
    """The configs of a case without duplicates: the method's `first` ones, then its default with each change."""
    offered = list(method.configs(case.problem, runtime_of(device).facts)[: max(1, first)])
    return list(dict.fromkeys([*offered, *(changed(offered[0], change) for change in changes)]))


def main(
    method: Annotated[str, typer.Argument(help="Name of the method.")],
    targets: Annotated[list[str], typer.Argument(help="Suites, or problems in their text form.")],
    grid_: Annotated[str, typer.Option("--grid", help="Fields and values, such as 'out_p=1,2 lanes=4,8'.")] = "",
    first: Annotated[int, typer.Option(help="So many configs as the method puts them first.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    seconds: Annotated[float, typer.Option(help="Time for each config, compiling not counted.")] = 0.2,
    top: Annotated[int, typer.Option(help="Configs shown of each case; the default is always shown.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write every result to this file, a line of JSON each.")] = None,
) -> None:
    """Compile, check and time configs of a method, and show the fastest of each case."""
    runtime, changes, console = runtime_of(device), grid(grid_), Console(highlight=False)
    jobs = []
    for case in load(targets)[1]:
        found = find(case.problem.operation, runtime.facts.backend, method, every_algorithm())
        if (reason := refusal(found, case.problem, runtime.facts)) is not None:
            console.print(f"{case.name}: refused: {reason}")
            continue
        jobs += [(found, case, config) for config in configs_of(found, case, device, changes, first)]
    faults = compile_ahead(((found, case.problem, config) for found, case, config in jobs), runtime.facts)
    compiled = [(*job, fault) for job, fault in zip(jobs, faults, strict=True)]
    rule = StoppingRule(samples=7, patience_s=0.02, budget_s=seconds)
    with out.open("w", encoding="utf-8") if out is not None else open(os.devnull, "w", encoding="utf-8") as lines:
        for _, members in itertools.groupby(compiled, key=lambda job: job[1].name):
            own = list(members)
            material = Material(own[0][1], runtime)
            results = []
            for found, case, config, fault in own:
                row = Row(case, case.problem, found, config, runtime.facts)
                result = (
                    row.result("refused", Reason.quoted(fault))
                    if fault
                    else measure_row(row, material, rule, thorough=False)
                )
                results.append(result)
                lines.write(json.dumps(result.to_record()) + "\n")
                lines.flush()
            show(console, results, top)


def show(console: Console, results: Sequence[Result], top: int) -> None:
    """Print the fastest configs of a case, its default, and for each reason the number of configs without a time."""
    default = results[0]
    timed = sorted(((r.time, r) for r in results if r.time is not None), key=lambda pair: pair[0].median_s)
    rows = []
    for time, r in [*timed[:top], *(pair for pair in timed[top:] if pair[1] is default)]:
        launch = max(r.launches, key=lambda info: info.get("registers") or 0, default={})
        occupancy = launch.get("occupancy")
        rows.append((
            r.config + ("  (the default)" if r is default else ""), three(1e6 * time.median_s),
            f"{100 * time.spread:.1f} %{' ~' if time.noisy else ''}",
            "" if default.time is None else f"{default.time.median_s / time.median_s:.3f}x",
            str(launch.get("registers") or ""), "" if occupancy is None else percent(occupancy),
        ))  # fmt: skip
    console.print(default.case)
    columns = ("config", "us", "spread", "over the default", "registers", "occupancy")
    console.print(rich_table(table(columns, rows, lead=1), console.width))
    for (status, reason), count in Counter((r.status, r.reason) for r in results if r.time is None).most_common(5):
        console.print(f"{count} {status}: {reason}")


if __name__ == "__main__":
    typer.run(main)
