"""Choice of a method by rule: from the methods' own preferences, without measuring, the same on every run."""

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
from convforge.problem.types import allows


@dataclass(frozen=True, slots=True)
class Choice:
    """A method, a config, its plan, and the reason; `untuned` if a measurement might choose another one."""

    algorithm: AnyAlgorithm
    config: Config
    plan: Plan
    reason: str
    untuned: bool = False


def choose(
    problem: Problem, runtime: Runtime, workspace_limit: int | None = None, without: Container[str] = ()
) -> Choice:
    """Return the first method in order of preference that supports the problem within the workspace limit in bytes.

    `without` names methods that gave a wrong result. Raises ``UnsupportedProblem``, with every reason, if none does.
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
    """Return our methods of allowed precision in order of preference, with the reasons; some may refuse the problem."""
    found = [
        (a, rule)
        for a in algorithms()
        if (a.operation, a.backend) == (problem.operation, facts.backend)
        and allows(problem.precision, a.precision)
        and (rule := a.preference_for(problem, facts)) is not None
    ]
    return [(a, rule.why) for a, rule in sorted(found, key=lambda pair: pair[1].rank)]


def fit(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, workspace_limit: int | None) -> Plan | Reason:
    """Return the plan of the first config with a workspace within the limit, or the reason why there is none."""
    needed: list[int] = []
    refused: Reason | None = None
    import_libraries(algorithm)
    for config in algorithm.configs(problem, runtime.facts):
        try:
            plan = algorithm.plan(problem, config, runtime)
        except UnsupportedProblem as fault:  # some libraries refuse only when they make a plan
            refused = refused or fault.reason_of(algorithm.name)
            continue
        if workspace_limit is None or plan.workspace_bytes <= workspace_limit:
            return plan
        needed.append(plan.workspace_bytes)
    if not needed and refused is not None:
        return refused
    return Reason(
        "it needs a workspace of at least {least} bytes; the limit is {limit}",
        least=min(needed, default=0), limit=workspace_limit or 0,
    )  # fmt: skip
