"""A study: a question, the parts measured into a stored run, and the rules that read the records."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Run
from convforge.benchmark.row import AnyAlgorithm, Row
from convforge.benchmark.runner import Runner, Settings, Watch, begin
from convforge.benchmark.store import Store, load_run
from convforge.benchmark.suites import Case, load, select
from convforge.call.dispatch import runtime_of
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding
from convforge.course.studies.words import messages
from convforge.peers import every_algorithm
from convforge.problem import Conv2dProblem
from convforge.timing.copies import Copies

Rule = Callable[[Run], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Part:
    """Cases and methods to measure on one device; fields without a comment are settings of the benchmark."""

    cases: Sequence[Case]
    methods: tuple[str, ...] = ()  # name patterns; empty: all methods; a pattern may match none on this backend
    host: bool = False  # measure on the CPU, regardless of the study's device
    share: float = 1.0  # fraction of the study's budget
    all_configs: bool = False
    steps: bool = False
    transfer: bool = False
    keep: Callable[[Row], bool] | None = None  # selects the rows to measure


def padded(size: int, c: int, k: int, side: int = 3, **more: Any) -> Conv2dProblem:
    """Return a convolution of one square image with an output of the same size."""
    return Conv2dProblem(n=1, c=c, h=size, w=size, k=k, r=side, s=side, padding=(side // 2,) * 4, **more)


def rgb_to_1(sizes: Sequence[int], strides: Sequence[int] = ()) -> list[Case]:
    """Return the cases with one output channel of the suite of images."""
    return [c for c in select(load(["images"])[1], sizes=sizes, strides=strides) if getattr(c.problem, "k", 0) == 1]


@dataclass(frozen=True, slots=True)
class Study:
    """A study: a question, the parts to measure, and the rules that read the records."""

    name: str
    parts: Callable[[DeviceFacts, bool], Sequence[Part]]  # takes the device's facts, and True for the quick form
    rules: Sequence[Rule]
    asks: str  # the question as one English line
    gpu_s: float = 75.0  # seconds without compiling; a complete study takes at most two to five minutes
    cpu_s: float = 200.0
    view: Literal["time", "blocks", "steps"] = "time"  # the table to show
    timed: bool = True  # times are its subject, so noise makes it doubtful
    answered_by: Sequence[str] = ()  # the rules that answer the question, in the order of its parts
    suites: Sequence[str] = ()  # benchmark suites with runs that the rules can also read
    cut: Callable[[Run], Run] | None = None  # selects the study's cases from a run with more
    extra: Callable[[Runtime, Store, bool], None] | None = None  # measures what the benchmark's runner cannot

    def own(self, run: Run) -> Run:
        """Return the part of a run that the study is about."""
        return run if self.cut is None else self.cut(run)

    def findings(self, run: Run) -> list[Finding]:
        """Return the findings of the rules on a run, then the doubts about its figures."""
        run = self.own(run)
        found = [finding for rule in self.rules for finding in rule(run)]
        return [*found, *rules.quality(run, times=self.timed)]


def study(name: str, parts: Callable[[DeviceFacts, bool], Sequence[Part]], rules: Sequence[Rule], **more: Any) -> Study:
    """Create a study with its question, budgets and answers from studies.toml."""
    return Study(name, parts, rules, **messages()["studies"][name], **more)


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

    `budget_s` limits the complete study, without compiling; the default is the study's own. `quick` selects the small
    form: few small cases and few samples, in seconds. Raises ``ValueError`` if nothing can be measured on this device.
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
    # Copies are timed only on the study's own device.
    copies: Any = (lambda _: None) if part.host else Copies
    target = HostRows(store.path) if part.host else store
    runner = Runner(part.cases, methods(part, device.facts.backend), device, settings, target, watch=watch,
                    copies=copies)  # fmt: skip
    if part.keep is not None:
        runner.rows = [row for row in runner.rows if part.keep(row)]
    with nullcontext() if target is store else target:
        runner.run()


class HostRows(Store):
    """Stores the host's rows in a run of another device, without the host's ceilings."""

    def append(self, record: Mapping[str, Any]) -> None:
        """See :class:`Store`."""
        if record["kind"] != "ceilings":
            super().append(record)


def methods(part: Part, backend: str) -> list[AnyAlgorithm]:
    """Return the methods of a part on a backend."""
    patterns = part.methods or ("*",)
    own = [a for a in every_algorithm() if a.backend == backend]
    return [a for a in own if any(fnmatch.fnmatchcase(a.name, p) for p in patterns)]
