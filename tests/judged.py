"""Common part of every backend's tests: judges of cases, and problems that allow a method's arithmetic."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from tests.algorithms.ranks import filters_of_every_rank

from convforge.problem import parse_problem
from convforge.verify import Judge, make_inputs


def named(algorithm: Any) -> str:
    return f"{algorithm.operation}-{algorithm.name}"


def allowed(problem: Any, algorithm: Any) -> Any:
    """Return the problem with the method's precision, so that the method may compute it."""
    if algorithm.precision == "strict" or not problem.multiplies:
        return problem
    return dataclasses.replace(problem, precision=algorithm.precision)


@cache
def judge_of(text: str, kind: str) -> Judge:
    """Return the judge of a case; kind "ranks" has normal inputs, with filters of every rank."""
    problem = parse_problem(text)
    if kind != "ranks":
        return Judge(problem, make_inputs(problem, kind))
    w = filters_of_every_rank(problem.w_shape, problem.w_dtype, problem.acc_dtype)
    return Judge(problem, dataclasses.replace(make_inputs(problem), w=w))
