"""Measuring a lab: every study on a device, one after the other, each stored before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Run
from convforge.benchmark.runner import Watch as WatchRows
from convforge.course.studies import STUDIES, Study
from convforge.course.studies.conduct import conduct

Watch = Callable[[Study], WatchRows | None]


def conduct_all(
    runtime: Runtime,
    folder: Path,
    *,
    studies: Sequence[str] = (),
    budget_s: float | None = None,
    quick: bool = False,
    watch: Watch | None = None,
) -> Mapping[str, Run]:
    """Measure studies that have something to measure on a device.

    Parameters
    ----------
    folder : Path
        Each study goes to a new file below it, ``<device>/<study>-<time>.jsonl``.
    studies : sequence of str
        Their names; all where empty.
    budget_s : float or None
        Seconds for all of them, shared as their own budgets are; those where None. Compiling is not of it.
    quick : bool
        The small form of each.
    watch : callable, optional
        Told of each study before it begins; returns what is told of its rows.

    Returns
    -------
    dict
        Study -> run.
    """
    gpu = runtime.facts.backend == "cuda"
    chosen = [study for name, study in STUDIES.items() if not studies or name in studies]
    able = [study for study in chosen if study.parts(runtime.facts, quick)]
    whole = sum(study.gpu_s if gpu else study.cpu_s for study in able)
    found = {}
    for study in able:
        own = None if budget_s is None else budget_s * (study.gpu_s if gpu else study.cpu_s) / whole
        told = watch(study) if watch is not None else None
        found[study.name] = conduct(study, runtime, folder, budget_s=own, quick=quick, watch=told)
    return found
