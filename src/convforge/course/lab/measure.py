"""Measuring a lab: every study on a device, one after the other, each stored before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Run
from convforge.benchmark.runner import Watch as WatchRows
from convforge.course.studies import STUDIES, Study
from convforge.course.studies.study import conduct

Watch = Callable[[Study], WatchRows | None]


def conduct_all(
    runtime: Runtime,
    folder: Path,
    *,
    studies: Sequence[str] = (),
    budget_s: float | None = None,
    quick: bool = False,
    watch: Watch = lambda study: None,
) -> Mapping[str, Run]:
    """Measure studies that have something to measure on a device; returns the run of each.

    Parameters
    ----------
    folder : Path
        Each study goes to a new file below it, ``<device>/<study>-<time>.jsonl``.
    studies : sequence of str
        Their names; all where empty.
    budget_s : float or None
        Seconds for all of them without compiling, shared as their own budgets are; None: their own budgets.
    quick : bool
        The small form of each.
    watch : callable
        Called with each study before it begins; returns the watcher of its rows.
    """
    gpu = runtime.facts.backend == "cuda"
    chosen = [study for name, study in STUDIES.items() if not studies or name in studies]
    budgets = {study.name: study.gpu_s if gpu else study.cpu_s for study in chosen if study.parts(runtime.facts, quick)}
    found = {}
    for name, own in budgets.items():
        share = None if budget_s is None else budget_s * own / sum(budgets.values())
        rows = watch(STUDIES[name])
        found[name] = conduct(STUDIES[name], runtime, folder, budget_s=share, quick=quick, watch=rows)
    return found
