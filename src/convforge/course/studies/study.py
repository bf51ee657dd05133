"""A study: a question, the parts that are measured for it, and the rules that read the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Run
from convforge.benchmark.row import Row
from convforge.benchmark.store import Store
from convforge.benchmark.suites import Case
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding
from convforge.problem import Conv2dProblem

Rule = Callable[[Run], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Part:
    """Some cases, by some methods, on one device.

    `methods` are patterns of names, all where empty; those that no method of the device matches are passed over. With
    `host` it is measured on the CPU, whatever device the study is about. `share` is of the study's budget. `keep`
    chooses the rows to measure; the other fields are the bench's settings.
    """

    cases: Sequence[Case]
    methods: tuple[str, ...] = ()
    host: bool = False
    share: float = 1.0
    all_configs: bool = False
    steps: bool = False
    transfer: bool = False
    keep: Callable[[Row], bool] | None = None


def padded(size: int, c: int, k: int, side: int = 3, **more: Any) -> Conv2dProblem:
    """A convolution of one square image whose output has its size."""
    return Conv2dProblem(n=1, c=c, h=size, w=size, k=k, r=side, s=side, padding=(side // 2,) * 4, **more)


@dataclass(frozen=True, slots=True)
class Study:
    """A study.

    Attributes
    ----------
    name, asks : str
        The name on the command line, and the question in a line, in English.
    parts : callable
        Facts of the device, and True for the small form -> what is measured.
    rules : sequence of callable
        Each reads a run and yields findings.
    gpu_s, cpu_s : float
        Default budgets in seconds. Compiling is not of the budget, so they stay below the two and five minutes that a
        study may take.
    view : str
        The table to show: "time", "blocks" or "steps".
    timed : bool
        True if it is about times, so that noise makes it doubtful.
    answered_by : tuple of str
        Names of the rules that answer the question, one or more for each of its parts, in its order.
    suites : tuple of str
        Suites of the bench whose runs the rules can read too.
    cut : callable or None
        Of a run with more cases the one with those that the study is about.
    extra : callable or None
        Measures what the bench's runner does not, and appends it to the store, for a runtime and the small form or not.
    """

    name: str
    asks: str
    parts: Callable[[DeviceFacts, bool], Sequence[Part]]
    rules: Sequence[Rule]
    gpu_s: float = 75.0
    cpu_s: float = 200.0
    view: str = "time"
    timed: bool = True
    answered_by: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    cut: Callable[[Run], Run] | None = None
    extra: Callable[[Runtime, Store, bool], None] | None = None

    def own(self, run: Run) -> Run:
        """The part of a run that the study is about."""
        return run if self.cut is None else self.cut(run)

    def findings(self, run: Run) -> list[Finding]:
        """The findings of the rules on a run, and at the end the doubts about its figures."""
        run = self.own(run)
        found = [finding for rule in self.rules for finding in rule(run)]
        return [*found, *rules.quality(run, times=self.timed)]
