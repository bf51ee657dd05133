"""The choice by rule: no measuring, the same on every run. The rules are the methods' own preferences.

Each is a crossover seen in the bench's results, and stands beside its method (`preference`, `preference_for`).
It is the level "heuristic", what stands in where nothing may be measured, and what a search measures first.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from convforge.algorithms import AnyAlgorithm, algorithms, import_libraries, refusal
from convforge.algorithms.contract import Config, Plan
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.problem import Problem


@dataclass(frozen=True, slots=True)
class Choice:
    """A method, a config, and the sentence that says why.

    Attributes
    ----------
    algorithm : Algorithm
    config : Config
    plan : Plan
    reason : str
    untuned : bool
        Nothing is remembered of the problem's bucket yet, so that measuring might choose another one.
    """

    algorithm: AnyAlgorithm
    config: Config
    plan: Plan
    reason: str
    untuned: bool = False


def choose(
    problem: Problem, runtime: Runtime, workspace_limit: int | None = None, without: Container[str] = ()
) -> Choice:
    """The first method of the preferred order that takes the problem within the workspace limit.

    Parameters
    ----------
    problem : Problem
    runtime : Runtime
    workspace_limit : int, optional
        Bytes.
    without : container of str
        Methods that gave a wrong result when they were measured.

    Raises
    ------
    UnsupportedProblem
        None does; with every reason.
    """
    facts = runtime.facts
    reasons: dict[str, Reason] = {}
    for algorithm, why in preferred(problem, facts):
        reason = refusal(algorithm, problem, facts)
        if reason is None and algorithm.name in without:
            reason = Reason("its result was wrong when it was measured")
        if reason is None:
            fitting = fit(algorithm, problem, runtime, workspace_limit)
            if isinstance(fitting, Plan):
                return Choice(algorithm, fitting.config, fitting, why)
            reason = fitting
        reasons[algorithm.name] = reason
    raise UnsupportedProblem(
        str(problem), reasons or {"(none)": Reason("no method for {backend}", backend=facts.backend)}
    )


def preferred(problem: Problem, facts: DeviceFacts) -> list[tuple[AnyAlgorithm, str]]:
    """Our methods in the order of preference, each with the rule that puts it there; some may refuse the problem.

    A method whose arithmetic the problem does not allow is not asked.
    """
    able = [
        a
        for a in algorithms()
        if (a.operation, a.backend) == (problem.operation, facts.backend)
        and a.precision in ("strict", problem.precision)
    ]
    found = [(a, rule) for a in able if (rule := a.preference_for(problem, facts)) is not None]
    return [(a, rule.why) for a, rule in sorted(found, key=lambda pair: pair[1].rank)]


def fit(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, workspace_limit: int | None) -> Plan | Reason:
    """The plan of the first config whose workspace is within the limit, or the reason why none is."""
    least: int | None = None
    refused: Reason | None = None
    import_libraries(algorithm)
    for config in algorithm.configs(problem, runtime.facts):
        try:
            plan = algorithm.plan(problem, config, runtime)
        except UnsupportedProblem as fault:  # a library's, seen only when it is asked for a plan
            refused = refused or fault.reason_of(algorithm.name)
            continue
        if workspace_limit is None or plan.workspace_bytes <= workspace_limit:
            return plan
        least = plan.workspace_bytes if least is None else min(least, plan.workspace_bytes)
    if least is None and refused is not None:
        return refused
    return Reason(
        "it needs a workspace of at least {least} bytes; the limit is {limit}",
        least=least or 0,
        limit=workspace_limit or 0,
    )
