"""Compile the kernels of many plans in parallel, ahead of timing, so that they are in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from convforge.algorithms import AnyAlgorithm
from convforge.backends.facts import DeviceFacts
from convforge.backends.recording import Recording
from convforge.problem import Problem

if TYPE_CHECKING:
    from convforge.benchmark.row import Row

Job = tuple[AnyAlgorithm, Problem, Any]  # method, problem and config of a plan


def compile_ahead(jobs: Iterable[Job], facts: DeviceFacts) -> list[str | None]:
    """Compile the kernels of plans for a GPU into the disk cache; return for each job why it has no plan, or None.

    A kernel that the compiler refuses raises at its next use. On a CPU, nothing is compiled before a call.
    """
    faults: list[str | None] = []
    recording: Any = Recording(facts)
    for method, problem, config in jobs:
        try:
            method.plan(problem, config, recording)
            faults.append(None)
        except Exception as fault:  # shown next to the config
            faults.append(" ".join(str(fault).split()) or type(fault).__name__)
    if facts.backend == "cuda" and recording.kernels:
        from convforge.backends.cuda.compiler import compile_kernels

        kernels = {(kernel.digest(), kernel.name): kernel for kernel in recording.kernels}
        list(compile_kernels(kernels.values(), facts.architecture))
    return faults


def compile_rows(rows: Iterable[Row], facts: DeviceFacts) -> None:
    """Compile the kernels of our methods that are measured with several configs."""
    found: dict[tuple[str, str], list[Job]] = {}
    for row in rows:
        if row.config is not None and row.algorithm.ours:
            jobs: list[Job] = [(row.algorithm, row.problem, config) for config in (row.config, *row.others)]
            found.setdefault((row.case.name, row.algorithm.name), []).extend(jobs)
    compile_ahead((job for jobs in found.values() if len(jobs) > 1 for job in jobs), facts)
