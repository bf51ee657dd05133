"""A study: a question, the parts that are measured for it, and the rules that read the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.records import Run
from convforge.benchmark.row import Row
from convforge.benchmark.store import Store
from convforge.benchmark.suites import Case
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding
from convforge.course.studies.words import messages
from convforge.problem import Conv2dProblem

Rule = Callable[[Run], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Part:
    """Some cases, by some methods, on one device; fields without a comment are the bench's settings."""

    cases: Sequence[Case]
    methods: tuple[str, ...] = ()  # patterns of names, all where empty; a pattern without any is of another backend
    host: bool = False  # on the CPU, whatever device the study is about
    share: float = 1.0  # of the study's budget
    all_configs: bool = False
    steps: bool = False
    transfer: bool = False
    keep: Callable[[Row], bool] | None = None  # which rows to measure


def padded(size: int, c: int, k: int, side: int = 3, **more: Any) -> Conv2dProblem:
    """A convolution of one square image whose output has its size."""
    return Conv2dProblem(n=1, c=c, h=size, w=size, k=k, r=side, s=side, padding=(side // 2,) * 4, **more)


@dataclass(frozen=True, slots=True)
class Study:
    """A study: a question, what is measured for it, and the rules that read the records."""

    name: str
    parts: Callable[[DeviceFacts, bool], Sequence[Part]]  # of a device, and True for the small form
    rules: Sequence[Rule]
    asks: str  # the question in a line, in English
    gpu_s: float = 75.0  # budgets without compiling: below the two and five minutes that a study may take
    cpu_s: float = 200.0
    view: Literal["time", "blocks", "steps"] = "time"  # the table to show
    timed: bool = True  # about times, so that noise makes it doubtful
    answered_by: Sequence[str] = ()  # the rules that answer the question, for each of its parts in its order
    suites: Sequence[str] = ()  # of the bench, whose runs the rules can read too
    cut: Callable[[Run], Run] | None = None  # of a run with more cases those that the study is about
    extra: Callable[[Runtime, Store, bool], None] | None = None  # measures what the bench's runner does not

    def own(self, run: Run) -> Run:
        """The part of a run that the study is about."""
        return run if self.cut is None else self.cut(run)

    def findings(self, run: Run) -> list[Finding]:
        """The findings of the rules on a run, and at the end the doubts about its figures."""
        run = self.own(run)
        found = [finding for rule in self.rules for finding in rule(run)]
        return [*found, *rules.quality(run, times=self.timed)]


def study(name: str, parts: Callable[[DeviceFacts, bool], Sequence[Part]], rules: Sequence[Rule], **more: Any) -> Study:
    """A study with its question, budgets and answers in studies.toml."""
    return Study(name, parts, rules, **messages()["studies"][name], **more)
