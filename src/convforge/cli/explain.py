"""`convforge explain`: the choice of "auto" with its reason, and the cost or the refusal of every method."""

from __future__ import annotations

from typing import Annotated

import typer

from convforge.cli.values import parse_bytes, parse_seconds, words_of


def explain(
    problem: Annotated[str, typer.Argument(help="Text form, such as n1c3h1024w1024_k3r3s3_st1_p1_f32_nchw.")],
    device: Annotated[str, typer.Option(help="Where it would run.")] = "cpu",
    methods: Annotated[str, typer.Option(help="Only these: names or patterns, such as 'direct*,im2col'.")] = "",
    peers: Annotated[bool, typer.Option("--peers", help="Other libraries too.")] = False,
    time: Annotated[bool, typer.Option(help="Check and time every method; else nothing is computed.")] = True,
    budget: Annotated[str, typer.Option(help="For the times, such as 5s; the slowest methods are left out.")] = "10s",
    workspace_limit: Annotated[
        str | None, typer.Option(help="Pass over what needs more workspace: bytes, or 64MB, 1GB.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Config, rates, launches and ways of each.")] = False,
) -> None:
    """Show which method is chosen for a problem and why, and the cost of every method."""
    from convforge.call.dispatch import runtime_of
    from convforge.cli.survey import print_survey
    from convforge.problem import parse_problem

    asked, budget_s = parse_problem(problem), parse_seconds(budget)
    limit = None if workspace_limit is None else parse_bytes(workspace_limit)
    print_survey(
        asked, runtime_of(device), words_of(methods), limit, budget_s if time else None, peers=peers, verbose=verbose
    )
