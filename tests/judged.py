"""What the tests of every backend share: a case with its judge, and a problem that allows a method's arithmetic."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from convforge.check import Judge, make_inputs
from convforge.problem import parse_problem


def named(algorithm: Any) -> str:
    return f"{algorithm.operation}-{algorithm.name}"


def allowed(problem: Any, algorithm: Any) -> Any:
    """The problem as it reads when it allows the method's arithmetic."""
    if algorithm.precision == "strict" or not hasattr(problem, "precision"):
        return problem
    return dataclasses.replace(problem, precision=algorithm.precision)


@cache
def judge_of(text: str, kind: str) -> Judge:
    problem = parse_problem(text)
    return Judge(problem, make_inputs(problem, kind))
