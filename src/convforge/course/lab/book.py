"""The contents of a lab: one chapter per study, and one run merged from all of them to compare the methods.

Times to compare come from a single run: if several studies time the same case, the complete case of the first is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Result, Run
from convforge.benchmark.runner import Watch
from convforge.benchmark.store import load_runs
from convforge.course.report.records import View, view
from convforge.course.studies import STUDIES, Finding, Study
from convforge.course.studies.readings import device_backend
from convforge.course.studies.study import conduct
from convforge.course.studies.timer import MISTAKEN


@dataclass(frozen=True)
class Chapter:
    """One study: its run, its findings, and `shown`, the view of the results on the lab's device."""

    study: Study
    run: Run
    shown: View
    findings: tuple[Finding, ...]

    @cached_property
    def listed(self) -> View:
        """View of all times on the device, including those of the wrong clocks, which are not ranked."""
        return view(replace(self.run, results=_on_device(self.run)))

    @cached_property
    def answers(self) -> tuple[Finding, ...]:
        """Answers to the question, part by part: the first supported finding of each rule in `answered_by`.

        If the data supports none, the first finding of the rule, which gives the reason.
        """
        asked = [[f for f in self.findings if f.rule == rule] for rule in self.study.answered_by]
        return tuple(next((f for f in found if f.supported), found[0]) for found in asked if found)

    @cached_property
    def supported(self) -> tuple[Finding, ...]:
        """Other findings that the data supports."""
        return tuple(f for f in self.findings if f.supported and f not in self.answers)

    @cached_property
    def doubtful(self) -> tuple[Finding, ...]:
        """Findings that the data does not support, and reasons to doubt the figures."""
        return tuple(f for f in self.findings if not f.supported and f not in self.answers)


@dataclass(frozen=True)
class Book:
    """The contents of a lab.

    Holds the chapters in reading order, the studies without a run, and `whole`: the view of all results on the device,
    with each case from one run.
    """

    chapters: tuple[Chapter, ...]
    absent: tuple[Study, ...]
    whole: View

    @property
    def run(self) -> Run:
        """Run of the first chapter, for machine and date."""
        return self.chapters[0].run


def bind(runs: Mapping[str, Run]) -> Book:
    """Make a book from runs by study; ``ValueError`` for no run, runs of several devices, or one without a result."""
    chapters = [_chapter(study, study.own(runs[name])) for name, study in STUDIES.items() if name in runs]
    if not chapters:
        raise ValueError("a lab needs the run of at least one study; convforge lab measures them")
    if len(devices := {chapter.run.device for chapter in chapters}) > 1:
        raise ValueError(f"these runs are of several devices ({', '.join(sorted(devices))}); give those of one")
    absent = tuple(study for name, study in STUDIES.items() if name not in runs)
    return Book(tuple(chapters), absent, view(merged([chapter.shown.run for chapter in chapters])))


def in_this_language(book: Book) -> Book:
    """Return the book with its problems described in the current language."""
    chapters = tuple(replace(chapter, shown=view(chapter.shown.run)) for chapter in book.chapters)
    return replace(book, chapters=chapters, whole=view(book.whole.run))


def find_runs(paths: Iterable[Path]) -> dict[str, Run]:
    """Read each study's newest run from files and folders, or the newest of another suite that its rules can read.

    Raises ``ValueError`` if a path does not exist or a line is damaged.
    """
    found: list[Run] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; name files of results (*.jsonl) or a folder of them")
        found += [run for run in load_runs(path) if run.results]
    newest = {run.suite: run for run in sorted(found, key=lambda run: (run.complete, run.started, run.run))}
    chosen = {name: [newest[s] for s in (name, *study.suites) if s in newest] for name, study in STUDIES.items()}
    return {name: runs[0] for name, runs in chosen.items() if runs}


def conduct_all(
    runtime: Runtime, folder: Path, watch: Callable[[Study], Watch | None] = lambda study: None, *,
    studies: Sequence[str] = (), budget_s: float | None = None, quick: bool = False,
) -> dict[str, Run]:  # fmt: skip
    """Measure the studies of these names, or all that apply to the device; return the run of each.

    Each run is written to a new file ``DEVICE/STUDY-TIME.jsonl`` below `folder`. `watch` is called with each study
    before it begins, and returns the watcher of its rows. `budget_s` is the total without compiling, divided in
    proportion to the studies' own budgets. `quick` selects the small form of each study.
    """
    gpu = runtime.facts.backend == "cuda"
    chosen = [study for name, study in STUDIES.items() if not studies or name in studies]
    budgets = {study.name: study.gpu_s if gpu else study.cpu_s for study in chosen if study.parts(runtime.facts, quick)}
    found = {}
    for name, own in budgets.items():
        share = None if budget_s is None else budget_s * own / sum(budgets.values())
        study = STUDIES[name]
        found[name] = conduct(study, runtime, folder, budget_s=share, quick=quick, watch=watch(study))
    return found


def merged(runs: Sequence[Run]) -> Run:
    """Merge runs of one device: each case, with all its methods, comes from the first run that has it.

    Only the fastest config of each method and case is kept. If two runs use one case name for different problems, the
    suite's name is added to the second.
    """
    problems: dict[str, str] = {}
    results, finals, copies = [], [], []
    for run in runs:
        fresh: dict[str, str] = {}
        for r in run.results:
            if problems.get(r.case) != r.problem:
                fresh.setdefault(r.case, f"{r.case} ({run.suite})" if r.case in problems else r.case)
        problems |= {r.case: r.problem for r in run.results if fresh.get(r.case) == r.case}
        results += [replace(r, case=fresh[r.case]) for r in _fastest(run) if r.case in fresh]
        finals += [replace(final, case=fresh[final.case]) for final in run.finals if final.case in fresh]
        copies += [replace(copy, case=fresh[copy.case]) for copy in run.copies if copy.case in fresh]
    return replace(
        runs[0],
        suite="lab",
        results=tuple(results),
        finals=tuple(finals),
        copies=tuple(copies),
        ceilings=tuple(ceiling for run in {run.run: run for run in runs}.values() for ceiling in run.ceilings),
        versions={name: version for run in reversed(runs) for name, version in run.versions.items()},
        dirty=any(run.dirty for run in runs),
        complete=all(run.complete for run in runs),
    )


def _fastest(run: Run) -> list[Result]:
    """The fastest config of each method and case, or one without a time if none was timed."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for r in run.results:
        found.setdefault((r.case, r.backend, r.algorithm), []).append(r)

    def seconds(r: Result) -> float:
        timing = run.timing(r)
        return math.inf if timing is None else timing.median_s

    return [min(results, key=seconds) for results in found.values()]


def _chapter(study: Study, run: Run) -> Chapter:
    if not run.results:
        raise ValueError(f"{run.path} holds no result: the run ended before its first row was done")
    competing = tuple(r for r in _on_device(run) if r.precision != MISTAKEN)
    return Chapter(study, run, view(replace(run, results=competing)), tuple(study.findings(run)))


def _on_device(run: Run) -> tuple[Result, ...]:
    backend = device_backend(run)
    return tuple(r for r in run.results if r.backend == backend)
