"""A run in a few numbers: each case and kind compared with the peers, errors, and the reasons for missing times.

Every sentence is computed from the stored timings. Ties are reported as ties. Cases that are too noisy to rank are
named and not counted. Slower results are stated as clearly as faster ones.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from convforge.benchmark.frame import data_frame
from convforge.course.language import gettext, ngettext
from convforge.course.report import numbers
from convforge.course.report.records import Entry, View
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import PRECISIONS
from convforge.timing.ranking import Order

if TYPE_CHECKING:
    from pandas import DataFrame

Tone = Literal["ahead", "level", "behind", "alone", "unsure"]

# A convolution with at most this number of input channels is one of an image: grey, RGB, or RGB with alpha.
IMAGE_CHANNELS = 4

# A number with its unit, or a problem's text form.
NUMBER = re.compile(r"\bn\d+c\d+h\d+\S*|\bmax_n\d\S*|\bm\d+n\d\S*|\brelu\d\S*|\d+(\.\d+)?(e[+-]?\d+)?( [mµn]?s\b)?")


class Duel(NamedTuple):
    """Our best method and the best peer on one case."""

    ours: Entry
    peer: Entry
    ratio: float  # the peer's time divided by ours: above 1, ours is faster
    tone: Tone  # "level" for a tie, "unsure" if too noisy to rank

    @property
    def case(self) -> str:
        return self.ours.result.case

    @property
    def words(self) -> str:
        """The verdict in one or two words."""
        words = {
            "ahead": gettext("{ratio} ahead"),
            "behind": gettext("{ratio} behind"),
            "level": gettext("tie"),
            "unsure": gettext("too noisy to rank"),
        }[self.tone]
        return words.format(ratio=numbers.ratio(max(self.ratio, 1 / self.ratio)))


class Group(NamedTuple):
    """All duels of one family and stride, or of one kind of cases (`stride` is empty), in the order of the file."""

    family: str
    stride: str
    duels: tuple[Duel, ...]

    @property
    def usual(self) -> str:
        """Our method that was most often our best."""
        return Counter(d.ours.label for d in self.duels).most_common(1)[0][0]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return statistics.geometric_mean(d.ratio for d in self.duels)

    @property
    def worst(self) -> Duel:
        """The duel with the lowest ratio."""
        return min(self.duels, key=lambda d: (d.ratio, weight(d)))

    @property
    def largest(self) -> Duel:
        """The duel on the largest case."""
        return max(self.duels, key=weight)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of cases ahead, level and behind."""
        return counts(self.duels)


class Trouble(NamedTuple):
    """Rows without a time for one reason, or for `reasons` that differ only in their numbers."""

    method: str
    ours: bool
    status: str
    reason: Reason
    reasons: int
    cases: tuple[str, ...]


def every_duel(view: View) -> list[Duel]:
    """Return the duel of each case with times of ours and of a peer."""
    tones: dict[Order, Tone] = {"faster": "ahead", "slower": "behind", "level": "level", "unsure": "unsure"}
    return [
        Duel(view.entry(v.best_ours), view.entry(v.best_peer), v.ratio, tones[v.order])
        for v in view.verdicts.values()
        if v.best_ours is not None and v.best_peer is not None and v.ratio is not None and v.order is not None
    ]


def duels(view: View) -> list[Duel]:
    """Return the duels that can be ranked, on which means and counts are based."""
    return [d for d in every_duel(view) if d.tone != "unsure"]


def kinds(view: View) -> list[Group]:
    """Group duels by kind of case, in the order of the file; cases of a kind are similar enough to average."""
    return _grouped(duels(view), lambda d: (_kind(d.ours), ""))


def groups(view: View) -> list[Group]:
    """Group duels by family and stride, and by kind for families that are not drawn over size."""
    single = gettext("single cases: {kind}")
    found = _grouped(
        duels(view),
        lambda d: (d.ours.family, d.ours.stride) if view.is_series(d.ours) else (single.format(kind=_kind(d.ours)), ""),
    )
    order = list(dict.fromkeys(group.family for group in found))
    return sorted(found, key=lambda group: (order.index(group.family), group.stride))


def _grouped(found: Iterable[Duel], key: Callable[[Duel], tuple[str, str]]) -> list[Group]:
    members: dict[tuple[str, str], list[Duel]] = {}
    for d in found:
        members.setdefault(key(d), []).append(d)
    return [Group(*names, tuple(own)) for names, own in members.items()]


def _kind(entry: Entry) -> str:
    """Name the kind of a case."""
    problem = entry.problem
    if not isinstance(problem, Conv2dProblem):
        return {"gemm": gettext("matrix products"), "max_pool2d": gettext("max pooling")}.get(problem.operation, "ReLU")
    if problem.groups > 1 and problem.groups == problem.c:
        return gettext("depthwise convolutions")
    words = gettext("layers of more than {n} channels")
    if problem.c <= IMAGE_CHANNELS:
        words = gettext("images of up to {n} channels")
    return words.format(n=IMAGE_CHANNELS)


def arithmetic(precision: str) -> str:
    """Return the name of an arithmetic class for readers."""
    return {"strict": gettext("strict"), "separable": gettext("separable")}.get(precision, precision)


def weight(d: Duel) -> tuple[int, int]:
    """Return the sort key for the size of a case: its least bytes, then its FLOPs."""
    return d.ours.result.least_bytes, d.ours.result.flops


def counts(found: Iterable[Duel]) -> tuple[int, int, int]:
    """Return the numbers of cases ahead, level and behind."""
    tones = Counter(d.tone for d in found)
    return tones["ahead"], tones["level"], tones["behind"]


def accuracies(view: View) -> DataFrame:
    """Return the errors by method, class and type, ours first, in the order of the file; NaN if none is finite."""
    rows = []
    for entry in view.entries:
        r = entry.result
        if r.error is not None:
            types = " x ".join(dict.fromkeys(o.dtype for o in entry.problem.operands if o.role != "epilogue"))
            rows.append((r.algorithm, r.ours, r.precision, types, r.error.rms, r.error.bound_ratio))
    # All types of a method are adjacent.
    methods = list(dict.fromkeys(row[:3] for row in rows))
    rows.sort(key=lambda row: (not row[1], methods.index(row[:3])))
    names = ["method", "ours", "precision", "types"]
    found = data_frame(rows, [*names, "rms", "bound"]).astype({"rms": float, "bound": float})
    return found.groupby(names, sort=False, as_index=False).agg(
        checked=("rms", "size"), largest=("rms", "max"), median=("rms", "median"), bound=("bound", "max")
    )


def gates(view: View) -> list[tuple[str, str]]:
    """Return the arithmetic classes that were checked, each with its rules and its gate."""
    classes = dict.fromkeys(e.result.precision for e in view.entries if e.result.error is not None)
    return [(arithmetic(precision), _gate(precision)) for precision in classes]


def _gate(precision: str) -> str:
    from convforge.verify.factors import ROUNDINGS
    from convforge.verify.gate import ALLOWED

    known = PRECISIONS.get(precision)
    words, gate = gettext(known) if known else gettext("a class that this version does not know"), "{words}"
    if precision in ALLOWED and precision != "strict":
        gate = gettext("{words}; RMS error at most {n:g} times a sequential FMA loop's")
    elif precision == "fft":
        gate = gettext("{words}; RMS error within the FFT's own bound")
    elif precision in ROUNDINGS and precision != "strict":
        gate = gettext("{words}; RMS error of the sums as in float32, the factors' rounding left out")
    return gate.format(words=words, n=ALLOWED.get(precision, 0))


def troubles(view: View) -> list[Trouble]:
    """Group rows without a time by method and reason: wrong results first, then faults, skips and refusals."""
    gathered: dict[tuple[str, bool, str, str], list[tuple[Reason, str]]] = {}
    for entry in view.entries:
        r = entry.result
        if r.status != "ok":
            reason = r.reason or Reason("no reason was stored")
            # Skips and refusals may differ in forecasts or budget shares; faults are grouped by exact text.
            alike = NUMBER.sub("#", str(reason)) if r.status in ("skipped", "refused") else str(reason)
            gathered.setdefault((entry.label, r.ours, r.status, alike), []).append((reason, r.case))
    found = []
    for (method, ours, status, _), members in gathered.items():
        reasons, cases = (tuple(dict.fromkeys(column)) for column in zip(*members, strict=True))
        found.append(Trouble(method, ours, status, reasons[0], len(reasons), cases))
    order = ("failed", "error", "skipped", "refused")
    return sorted(found, key=lambda t: (order.index(t.status), -len(t.cases)))


def cautions(view: View) -> list[str]:
    """Return sentences on all known doubts about the run's numbers."""
    run, found = view.run, []
    if run.moved:
        words = gettext("The machine did not hold still: {what}. Measure again before quoting these numbers.")
        found.append(words.format(what=run.moved.render(gettext)))
    if not run.complete:
        found.append(gettext("The run did not finish: what follows is only what was stored until then."))
    if failed := sum(e.result.status == "failed" for e in view.entries):
        words = ngettext("{n} result was wrong and got no time.", "{n} results were wrong and got no time.", failed)
        found.append(words.format(n=failed))
    if run.dirty:
        found.append(gettext("The sources had uncommitted changes when this was measured."))
    stale = gettext("{n} of {all} times are stale, marked *: the method's sources differ from this version's.")
    noisy = gettext("{n} of {all} times are noisy, marked ~: their median is less certain than was asked for.")
    numbers_of = {stale: sum(e.stale for e in view.timed), noisy: sum(e.is_noisy for e in view.timed)}
    found += [words.format(n=n, all=len(view.timed)) for words, n in numbers_of.items() if n]
    if view.timed and not any(when == "after" for when, _ in run.ceilings):
        found.append(
            gettext("The machine's ceilings were not measured again after the run: whether it held still is not known.")
        )
    return found
