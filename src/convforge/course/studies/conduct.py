"""Measuring a study: its parts by the bench's runner, one after the other, into one stored run of the study's name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Run
from convforge.benchmark.row import AnyAlgorithm
from convforge.benchmark.runner import Runner, Settings, Watch, begin
from convforge.benchmark.store import Store, load_run
from convforge.call.dispatch import runtime_of
from convforge.course.studies.study import Part, Study
from convforge.peers import every_algorithm
from convforge.timing.copies import Copies


def conduct(
    study: Study,
    runtime: Runtime,
    folder: Path,
    *,
    budget_s: float | None = None,
    quick: bool = False,
    watch: Watch | None = None,
) -> Run:
    """Measure a study into a new file ``<device>/<study>-<time>.jsonl`` below a folder.

    `budget_s` is for the whole, without compiling; by default the study's own. `quick` is the small form: few and small
    cases, few samples, in seconds.

    Raises
    ------
    ValueError
        The study has nothing for this device.
    """
    parts = study.parts(runtime.facts, quick)
    if not parts:
        raise ValueError(f"the study {study.name} has nothing to measure on {runtime.facts.backend}; it needs a GPU")
    total = budget_s or (10.0 if quick else study.gpu_s if runtime.facts.backend == "cuda" else study.cpu_s)
    whole = sum(part.share for part in parts)
    about = Settings(budget_s=total, quick=quick, all_configs=any(part.all_configs for part in parts),
                     transfer=any(part.transfer for part in parts) and runtime.facts.backend == "cuda",
                     steps=any(part.steps for part in parts))  # fmt: skip
    with begin(folder, study.name, runtime, about) as store:
        for part in parts:
            _measure(part, runtime, store, total * part.share / whole, quick, watch)
        if study.extra is not None:
            study.extra(runtime, store, quick)
    return load_run(store.path)


def _measure(part: Part, runtime: Runtime, store: Store, budget_s: float, quick: bool, watch: Watch | None) -> None:
    device = runtime_of("cpu") if part.host else runtime
    settings = Settings(budget_s=budget_s, quick=quick, all_configs=part.all_configs, steps=part.steps,
                        transfer=part.transfer and device.facts.backend == "cuda")  # fmt: skip
    # Copies belong to a case of the device that the study is about.
    copies: Any = (lambda _: None) if part.host else Copies
    target = HostRows(store.path) if part.host else store
    runner = Runner(part.cases, methods(part, device.facts.backend), device, settings, target, watch=watch,
                    copies=copies)  # fmt: skip
    if part.keep is not None:
        runner.rows = [row for row in runner.rows if part.keep(row)]
    with nullcontext() if target is store else target:
        runner.run()


class HostRows(Store):
    """The host's rows in a run of another device, whose ceilings are not the host's."""

    def append(self, record: Mapping[str, Any]) -> None:
        """See :class:`Store`."""
        if record["kind"] != "ceilings":
            super().append(record)


def methods(part: Part, backend: str) -> list[AnyAlgorithm]:
    """The methods of a part on a backend."""
    patterns = part.methods or ("*",)
    own = [a for a in every_algorithm() if a.backend == backend]
    return [a for a in own if any(fnmatch.fnmatchcase(a.name, p) for p in patterns)]
