"""`convforge explain`: which method a problem gets, why, and what every other one would take or why it refuses."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def explain(
    problem: Annotated[str, typer.Argument(help="Text form, such as n1c3h1024w1024_k3r3s3_st1_p1_f32_nchw.")],
    device: Annotated[str, typer.Option(help="Where it would run.")] = "cpu",
    workspace_limit: Annotated[
        str | None, typer.Option(help="Pass over what needs more workspace: bytes, or 64MB, 1GB.")
    ] = None,
) -> None:
    """Say which method a problem gets and why; nothing is computed or timed."""
    from rich.console import Console

    from convforge.cli.values import parse_bytes
    from convforge.execution import runtime_of
    from convforge.problem import parse_problem, tuning_key
    from convforge.tuning import choose

    asked: Any = parse_problem(problem)
    runtime = runtime_of(device)
    limit = None if workspace_limit is None else parse_bytes(workspace_limit)
    choice = choose(asked, runtime, limit)
    console = Console()
    console.print(f"[bold]{asked}[/bold] on {runtime.facts.name}, {runtime.facts.cores} cores", highlight=False)
    if asked.operation in ("conv2d", "max_pool2d"):
        console.print(f"  x {asked.x_shape} -> out {asked.out_shape}", highlight=False)
    intensity = asked.flops / max(asked.least_bytes, 1)
    console.print(
        f"  {_si(asked.flops)}FLOP, at least {_si(asked.least_bytes)}B moved: {intensity:.1f} FLOP a byte; tuning key "
        f"{tuning_key(asked)}",
        highlight=False,
    )
    chosen = f"[bold]{choice.algorithm.name}[/bold] ({choice.config})"
    console.print(f"\nauto takes {chosen}: {choice.reason}", highlight=False)
    console.print(_table(asked, runtime, choice, limit))


def _table(problem: Any, runtime: Any, choice: Any, limit: int | None) -> Any:
    """Every method of the operation: the config that the limit leaves it and what it takes, or its refusal."""
    from rich.table import Table

    from convforge.algorithms import algorithms, refusal
    from convforge.tuning.heuristic import fit

    table = Table("method", "arithmetic", "config", "workspace", "launches", "tile a thread", "or why not")
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = True
    for algorithm in algorithms():
        if algorithm.operation != problem.operation or algorithm.backend != runtime.facts.backend:
            continue
        name = f"[bold]{algorithm.name}[/bold]" if algorithm is choice.algorithm else algorithm.name
        kind = algorithm.precision if algorithm.ours else f"{algorithm.precision}, peer"
        asked = problem
        if hasattr(problem, "replace") and algorithm.precision != "strict":
            asked = problem.replace(precision=algorithm.precision)
        reason = refusal(algorithm, asked, runtime.facts)
        if reason is not None:
            table.add_row(name, kind, "", "", "", "", reason, style="dim")
            continue
        plan = choice.plan if algorithm is choice.algorithm else fit(algorithm, asked, runtime, limit)
        if isinstance(plan, str):
            table.add_row(name, kind, "", "", "", "", plan, style="dim")
            continue
        launches = plan.launches
        scratch = max((launch.scratch_bytes for launch in launches), default=0)
        note = "" if asked == problem else f"only where {algorithm.precision!r} is asked for"
        table.add_row(
            name, kind, str(plan.config), f"{_si(plan.workspace_bytes)}B", str(len(launches)), f"{_si(scratch)}B", note
        )
    return table


def _si(value: float) -> str:
    """A number with three digits and a decimal prefix."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} P"
