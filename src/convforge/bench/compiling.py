"""Compiling ahead: plans made in processes side by side, so that their kernels lie in the cache when they are timed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple

from convforge.algorithms import find
from convforge.execution import runtime_of
from convforge.peers import every_algorithm
from convforge.problem import parse_problem

if TYPE_CHECKING:
    from convforge.bench.row import Row


class Job(NamedTuple):
    """A plan to make: what a process needs to know of it."""

    operation: str
    method: str
    problem: str
    config: Any


def compile_job(job: Job, device: str) -> str | None:
    """Make a plan, so that its kernels lie in the cache; why not, where that fails."""
    runtime = runtime_of(device)
    try:
        method = find(job.operation, runtime.facts.backend, job.method, every_algorithm())
        method.plan(parse_problem(job.problem), job.config, runtime)
    except Exception as fault:  # told beside the config
        return " ".join(str(fault).split()) or type(fault).__name__
    return None


def compile_ahead(jobs: Iterable[Job], device: str, processes: int = 0) -> Iterator[str | None]:
    """Make every plan, as many at a time as there are processes; of each what went wrong, in the jobs' order.

    Parameters
    ----------
    jobs : iterable of Job
    device : str
        cpu, cuda, cuda:1, ...
    processes : int
        All cores but one by default.
    """
    waiting = list(jobs)
    count = min(processes or max((os.cpu_count() or 2) - 1, 1), max(len(waiting), 1))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(compile_job, job, device) for job in waiting]
        yield from (future.result() for future in futures)


def compile_rows(rows: Iterable[Row], device: str) -> None:
    """Compile the configs of which a row's is to be looked for; what cannot be compiled is told where it is tried."""
    jobs = [
        Job(row.algorithm.operation, row.algorithm.name, str(row.problem), config)
        for row in rows
        for config in ((row.config, *row.others) if row.others else ())
    ]
    if jobs:
        list(compile_ahead(jobs, device))
