"""What a run says in few numbers: each case and kind against the peers, errors, and what has no time and why.

Every sentence is computed from the stored timings; a tie is called a tie, what is too noisy to rank is named and does
not count, and being behind is said as plainly as being ahead.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from convforge.benchmark.verdicts import Verdict
from convforge.course.language import gettext, ngettext
from convforge.course.report import numbers
from convforge.course.report.records import Entry, View
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, Problem, parse_problem
from convforge.problem.types import PRECISIONS
from convforge.timing.ranking import Order

Tone = Literal["ahead", "level", "behind", "alone", "unsure"]

# Up to so many input channels a convolution is of a picture: grey, RGB, RGB with alpha.
PICTURE_CHANNELS = 4

# A number with its unit, or a problem's text form.
NUMBER = re.compile(r"\bn\d+c\d+h\d+\S*|\bmax_n\d\S*|\bm\d+n\d\S*|\brelu\d\S*|\d+(\.\d+)?(e[+-]?\d+)?( [mµn]?s\b)?")


@dataclass(frozen=True, slots=True)
class Duel:
    """Our best against the best peer on one case.

    Attributes
    ----------
    ours, peer : Entry
    ratio : float
        Time of the peer over ours: above 1, ours is ahead.
    tone : {"ahead", "level", "behind", "unsure"}
        "level" is a tie, "unsure" too noisy to rank; see :mod:`convforge.timing.ranking`.
    """

    ours: Entry
    peer: Entry
    ratio: float
    tone: Tone

    @property
    def words(self) -> str:
        """The verdict in a word or two."""
        if self.tone == "level":
            return gettext("tie")
        if self.tone == "unsure":
            return gettext("too noisy to rank")
        words = gettext("{ratio} ahead") if self.tone == "ahead" else gettext("{ratio} behind")
        return words.format(ratio=numbers.ratio(max(self.ratio, 1 / self.ratio)))


@dataclass(frozen=True, slots=True)
class Group:
    """All duels of one family and stride, or of the single cases of one kind, whose stride is empty.

    Attributes
    ----------
    family, stride : str
    duels : tuple of Duel
        The smallest case first.
    usual : str
        The method of ours that was our best most often.
    """

    family: str
    stride: str
    duels: tuple[Duel, ...]
    usual: str

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return geometric_mean(d.ratio for d in self.duels)

    @property
    def worst(self) -> Duel:
        """The duel with the lowest ratio."""
        return min(self.duels, key=lambda d: d.ratio)

    @property
    def largest(self) -> Duel:
        """The duel on the largest case."""
        return max(self.duels, key=weight)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Cases ahead, level, behind."""
        return counts(self.duels)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of one method in one class of arithmetic and type over its checked cases; None where none is a number."""

    method: str
    ours: bool
    precision: str
    types: str
    checked: int
    largest_rms: float | None
    median_rms: float | None
    largest_bound_ratio: float | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Rows without a time, for one reason, or for `reasons` that differ in their numbers alone."""

    method: str
    ours: bool
    status: str
    reason: Reason
    reasons: int
    cases: tuple[str, ...]


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean.

    Examples
    --------
    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def duel(view: View, verdict: Verdict) -> Duel | None:
    """Our best against the best peer; None where one of them is missing."""
    if verdict.best_ours is None or verdict.best_peer is None or verdict.ratio is None or verdict.order is None:
        return None
    tones: dict[Order, Tone] = {"faster": "ahead", "slower": "behind", "level": "level", "unsure": "unsure"}
    tone = tones[verdict.order]
    return Duel(view.entry(verdict.best_ours), view.entry(verdict.best_peer), verdict.ratio, tone)


def every_duel(view: View) -> list[Duel]:
    """The duel of every case that has one."""
    return [found for verdict in view.verdicts.values() if (found := duel(view, verdict)) is not None]


def duels(view: View) -> list[Duel]:
    """The duels that can be ranked: those that means and counts are of."""
    return [d for d in every_duel(view) if d.tone != "unsure"]


def kinds(view: View) -> list[Group]:
    """The duels of each kind of case, in the order of the file: what is alike enough for one mean."""
    members: dict[str, list[Duel]] = {}
    for d in duels(view):
        members.setdefault(_kind(d.ours), []).append(d)
    return [Group(kind, "", tuple(sorted(found, key=weight)), _usual(found)) for kind, found in members.items()]


def _kind(entry: Entry) -> str:
    """What a case is, in words."""
    problem = parse_problem(entry.result.problem)
    if isinstance(problem, Conv2dProblem):
        return _kind_of_convolution(problem)
    return {"gemm": gettext("matrix products"), "max_pool2d": gettext("max pooling")}.get(problem.operation, "ReLU")


def _kind_of_convolution(problem: Conv2dProblem) -> str:
    if problem.groups > 1 and problem.groups == problem.c:
        return gettext("depthwise convolutions")
    if problem.c <= PICTURE_CHANNELS:
        return gettext("pictures of up to {n} channels").format(n=PICTURE_CHANNELS)
    return gettext("layers of more than {n} channels").format(n=PICTURE_CHANNELS)


def arithmetic(precision: str) -> str:
    """A class of arithmetic by the name that readers see."""
    return {"strict": gettext("strict"), "separable": gettext("separable")}.get(precision, precision)


def weight(d: Duel) -> tuple[int, int]:
    """How large a case is: by its least bytes; of equals the one with more work."""
    return (d.ours.result.least_bytes, d.ours.result.flops)


def counts(found: Iterable[Duel]) -> tuple[int, int, int]:
    """Cases ahead, level, behind."""
    tones = Counter(d.tone for d in found)
    return tones["ahead"], tones["level"], tones["behind"]


def groups(view: View) -> list[Group]:
    """Duels by family and stride; cases of families that are not drawn over size stand together by kind."""
    sorted_duels: dict[tuple[str, str], list[Duel]] = {}
    for d in duels(view):
        family = d.ours.family if view.is_series(d.ours) else single_cases(_kind(d.ours))
        stride = d.ours.stride if view.is_series(d.ours) else ""
        sorted_duels.setdefault((family, stride), []).append(d)
    order = list(dict.fromkeys(family for family, _ in sorted_duels))
    found = []
    for (family, stride), members in sorted(sorted_duels.items(), key=lambda kv: (order.index(kv[0][0]), kv[0][1])):
        found.append(Group(family, stride, tuple(sorted(members, key=weight)), _usual(members)))
    return found


def _usual(members: Iterable[Duel]) -> str:
    """The method of ours that was our best most often."""
    return Counter(d.ours.label for d in members).most_common(1)[0][0]


def single_cases(kind: str) -> str:
    """Title of all cases of a kind that are not drawn over size."""
    return gettext("single cases: {kind}").format(kind=kind)


def accuracies(view: View) -> list[Accuracy]:
    """Errors by method, class and type, ours first, in the order of the file."""
    sorted_entries: dict[tuple[bool, str, str, str], list[Entry]] = {}
    for entry in view.entries:
        r = entry.result
        if r.error is not None:
            key = (not r.ours, r.algorithm, r.precision, _types(parse_problem(r.problem)))
            sorted_entries.setdefault(key, []).append(entry)
    methods = list(dict.fromkeys(key[:3] for key in sorted_entries))
    found = []
    order = sorted(sorted_entries.items(), key=lambda kv: (kv[0][0], methods.index(kv[0][:3])))
    for (peer, method, precision, types), members in order:
        errors = [e.result.error for e in members if e.result.error is not None]
        rms = [e.rms for e in errors if e.rms is not None]
        bound = [e.bound_ratio for e in errors if e.bound_ratio is not None]
        found.append(
            Accuracy(
                method,
                not peer,
                precision,
                types,
                len(members),
                max(rms, default=None),
                statistics.median(rms) if rms else None,
                max(bound, default=None),
            )
        )
    return found


def _types(problem: Problem) -> str:
    """The type of what a problem multiplies; of both factors where they differ."""
    return " x ".join(dict.fromkeys(o.dtype for o in problem.operands if o.role != "epilogue"))


def gates(view: View) -> list[tuple[str, str]]:
    """The classes of arithmetic that were checked, each with what it may do and the check's gate for it."""
    classes = dict.fromkeys(e.result.precision for e in view.entries if e.result.error is not None)
    return [(arithmetic(precision), _allowed(precision)) for precision in classes]


def _allowed(precision: str) -> str:
    from convforge.verify.factors import ROUNDINGS
    from convforge.verify.gate import ALLOWED

    known = PRECISIONS.get(precision)
    words = gettext("a class that this version does not know") if known is None else gettext(known)
    if precision == "strict":
        return words
    if precision in ALLOWED:
        gate = gettext("{words}; RMS error at most {n:g} times a sequential FMA loop's")
        return gate.format(words=words, n=ALLOWED[precision])
    if precision == "fft":
        return gettext("{words}; RMS error within the FFT's own bound").format(words=words)
    if precision in ROUNDINGS:
        gate = gettext("{words}; RMS error of the sums as in float32, the factors' rounding left out")
        return gate.format(words=words)
    return words


def troubles(view: View) -> list[Trouble]:
    """Rows without a time, gathered by method and reason: wrong results first, then faults, skips and refusals."""
    gathered: dict[tuple[str, bool, str, str], list[tuple[Reason, str]]] = {}
    for entry in view.entries:
        r = entry.result
        if r.status != "ok":
            reason = r.reason or Reason("no reason was stored")
            # Forecasts and shares of a budget differ from row to row; what was found wrong stands word by word.
            alike = NUMBER.sub("#", str(reason)) if r.status in ("skipped", "refused") else str(reason)
            gathered.setdefault((entry.label, r.ours, r.status, alike), []).append((reason, r.case))
    order = ("failed", "error", "skipped", "refused")
    found = []
    for (method, ours, status, _), members in gathered.items():
        reasons = tuple(dict.fromkeys(reason for reason, _ in members))
        cases = tuple(dict.fromkeys(case for _, case in members))
        found.append(Trouble(method, ours, status, reasons[0], len(reasons), cases))
    return sorted(found, key=lambda t: (order.index(t.status), -len(t.cases)))


def cautions(view: View) -> list[str]:
    """What a reader must know before trusting the numbers."""
    run, found = view.run, []
    if run.moved:
        words = gettext("The machine did not hold still: {what}. Measure again before quoting these numbers.")
        found.append(words.format(what=run.moved.render(gettext)))
    if not run.complete:
        found.append(gettext("The run did not finish: what follows is only what was stored until then."))
    if failed := sum(1 for e in view.entries if e.result.status == "failed"):
        words = ngettext("{n} result was wrong and got no time.", "{n} results were wrong and got no time.", failed)
        found.append(words.format(n=failed))
    if run.dirty:
        found.append(gettext("The sources had uncommitted changes when this was measured."))
    if stale := sum(1 for e in view.timed if e.stale):
        words = gettext("{n} of {all} times are stale, marked *: the method's sources differ from this version's.")
        found.append(words.format(n=stale, all=len(view.timed)))
    if noisy := sum(1 for e in view.timed if e.timing is not None and e.timing.noisy):
        words = gettext("{n} of {all} times are noisy, marked ~: their median is less certain than was asked for.")
        found.append(words.format(n=noisy, all=len(view.timed)))
    if len({e.result.problem for e in view.timed}) and not any(when == "after" for when, _ in run.ceilings):
        found.append(
            gettext("The machine's ceilings were not measured again after the run: whether it held still is not known.")
        )
    return found
