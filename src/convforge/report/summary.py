"""What a run says in words and few numbers: the headline, each stride, errors, and what has no time and why.

Every sentence is computed from the stored timings; a tie is called a tie, and being behind is said as plainly as being
ahead.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from convforge.bench.verdicts import Verdict
from convforge.problem.types import PRECISIONS
from convforge.report import numbers
from convforge.report.records import Entry, View

Tone = Literal["ahead", "level", "behind", "alone"]

# A geometric mean nearer to 1 than this is called level.
LEVEL = 0.05

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
    tone : {"ahead", "level", "behind"}
        "level" where the two are closer than their spreads.
    """

    ours: Entry
    peer: Entry
    ratio: float
    tone: Tone

    @property
    def words(self) -> str:
        """The verdict in a word or two."""
        if self.tone == "level":
            return "tie"
        return f"{numbers.ratio(max(self.ratio, 1 / self.ratio))} {self.tone}"


@dataclass(frozen=True, slots=True)
class Headline:
    """What stands first on the page.

    Attributes
    ----------
    tone : {"ahead", "level", "behind", "alone"}
        "alone": nothing to compare with.
    figure : str
        The one number.
    caption : str
        What the number is.
    sentences : tuple of str
    """

    tone: Tone
    figure: str
    caption: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """All duels of one family and stride.

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
        return max(self.duels, key=_weight)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Cases ahead, level, behind."""
        return _counts(self.duels)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of one method in one class of arithmetic over all its checked cases; None where none is a number."""

    method: str
    ours: bool
    precision: str
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
    reason: str
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
    if verdict.best_ours is None or verdict.best_peer is None or verdict.ratio is None:
        return None
    tone: Tone = "level" if verdict.level else "ahead" if verdict.ratio > 1 else "behind"
    return Duel(view.entry(verdict.best_ours), view.entry(verdict.best_peer), verdict.ratio, tone)


def duels(view: View) -> list[Duel]:
    """The duel of every case that has one."""
    return [found for verdict in view.verdicts.values() if (found := duel(view, verdict)) is not None]


def headline(view: View) -> Headline:
    """The headline of a run."""
    found = duels(view)
    if not found:
        return _alone(view)
    mean = geometric_mean(d.ratio for d in found)
    tone: Tone = "ahead" if mean > 1 + LEVEL else "behind" if mean < 1 / (1 + LEVEL) else "level"
    words = {"ahead": "ours is ahead", "level": "the two are level", "behind": "ours is behind"}[tone]
    over = f"geometric mean over {len(found)} cases" if len(found) > 1 else "on the one case that both were timed on"
    caption = f"the speed of the best peer, {over}, in the same run: {words}."
    return Headline(tone, numbers.ratio(mean), caption, tuple(_sentences(view, found)))


def _alone(view: View) -> Headline:
    """The headline where no case has both ours and a peer."""
    ours = [view.entry(v.best_ours) for v in view.verdicts.values() if v.best_ours is not None]
    if not ours:
        return Headline("alone", "No time", "No method of ours was timed in this run.", ("The reasons stand below.",))
    top = max(ours, key=lambda e: e.result.least_bytes)
    caption = f"{top.label} on the largest case, {_where(view, top)}."
    sentences = ["Nothing is compared: no peer was timed on any case of ours in this run.", _correct(top)]
    return Headline("alone", numbers.seconds(top.seconds or 0.0), caption, tuple(sentences))


def _sentences(view: View, found: Sequence[Duel]) -> Iterable[str]:
    top = max(found, key=_weight)
    rate = f", {numbers.three(top.ours.gflops)} GFLOP/s" if top.ours.gflops is not None else ""
    nominal = " nominal" if top.ours.nominal and rate else ""
    result = {
        "ahead": f"{numbers.ratio(top.ratio)} ahead",
        "level": f"a tie, closer than their spreads ({numbers.ratio(top.ratio)})",
        "behind": f"ours is behind, {numbers.ratio(top.ratio)} of its speed",
    }[top.tone]
    largest = "At the largest case, " if len(found) > 1 else "At "
    yield (
        f"{largest}{_where(view, top.ours)}, {top.ours.label} takes {_time(top.ours)}{rate}{nominal}; "
        f"{top.peer.label}, the best peer there, {_time(top.peer)}: {result}."
    )
    yield _correct(top.ours)
    if len(found) > 1:
        ahead, level, behind = _counts(found)
        yield f"Ahead in {ahead}, level in {level}, behind in {behind} of {len(found)} cases."
        best, worst = max(found, key=lambda d: d.ratio), min(found, key=lambda d: d.ratio)
        yield f"Best: {_range_end(view, best)}. Worst: {_range_end(view, worst)}."
    if single := len(view.verdicts) - len(found):
        yield f"Cases with no such comparison, not counted: {single}."


def _range_end(view: View, d: Duel) -> str:
    tie = " (a tie)" if d.tone == "level" else ""
    return f"{numbers.ratio(d.ratio)}{tie} at {_where(view, d.ours)}, against {d.peer.label}"


def _where(view: View, entry: Entry) -> str:
    stride = f", stride {entry.stride}" if entry.stride else ""
    return f"{view.short(entry.family)}, {entry.size_text}{stride}"


def _time(entry: Entry) -> str:
    assert entry.timing is not None
    noisy = ", noisy" if entry.timing.noisy else ""
    return f"{numbers.seconds(entry.timing.median_s)} (±{numbers.percent(entry.timing.spread)}{noisy})"


def _correct(entry: Entry) -> str:
    error = entry.result.error
    if error is None or error.rms is None:
        return "Its error is not on record."
    return (
        f"Checked against the float64 truth before and after it was timed: RMS error {numbers.tiny(error.rms)} of the "
        f"result's RMS, {entry.result.precision} arithmetic."
    )


def _weight(d: Duel) -> tuple[int, int]:
    """How large a case is: by its least bytes; of equals the one with more work."""
    return (d.ours.result.least_bytes, d.ours.result.flops)


def _counts(found: Iterable[Duel]) -> tuple[int, int, int]:
    tones = Counter(d.tone for d in found)
    return tones["ahead"], tones["level"], tones["behind"]


def groups(view: View) -> list[Group]:
    """Duels by family and stride; cases of families that are not drawn over size stand together by operation."""
    sorted_duels: dict[tuple[str, str], list[Duel]] = {}
    for d in duels(view):
        family = d.ours.family if view.is_series(d.ours) else f"single cases of {d.ours.result.operation}"
        stride = d.ours.stride if view.is_series(d.ours) else ""
        sorted_duels.setdefault((family, stride), []).append(d)
    order = list(dict.fromkeys(family for family, _ in sorted_duels))
    found = []
    for (family, stride), members in sorted(sorted_duels.items(), key=lambda kv: (order.index(kv[0][0]), kv[0][1])):
        usual = Counter(d.ours.label for d in members).most_common(1)[0][0]
        found.append(Group(family, stride, tuple(sorted(members, key=_weight)), usual))
    return found


def accuracies(view: View) -> list[Accuracy]:
    """Errors by method and class, ours first, in the order of the file."""
    sorted_entries: dict[tuple[bool, str, str], list[Entry]] = {}
    for entry in view.entries:
        if entry.result.error is not None:
            key = (not entry.result.ours, entry.result.algorithm, entry.result.precision)
            sorted_entries.setdefault(key, []).append(entry)
    found = []
    for (peer, method, precision), members in sorted(sorted_entries.items(), key=lambda kv: kv[0][0]):
        errors = [e.result.error for e in members if e.result.error is not None]
        rms = [e.rms for e in errors if e.rms is not None]
        bound = [e.bound_ratio for e in errors if e.bound_ratio is not None]
        found.append(
            Accuracy(
                method,
                not peer,
                precision,
                len(members),
                max(rms, default=None),
                statistics.median(rms) if rms else None,
                max(bound, default=None),
            )
        )
    return found


def gates(view: View) -> list[tuple[str, str]]:
    """The classes of arithmetic that were checked, each with what it may do and the check's gate for it."""
    classes = dict.fromkeys(e.result.precision for e in view.entries if e.result.error is not None)
    return [(precision, _allowed(precision)) for precision in classes]


def _allowed(precision: str) -> str:
    from convforge.check.gate import ALLOWED

    words = PRECISIONS.get(precision, "a class that this version does not know")
    if precision == "strict":
        return words
    if precision in ALLOWED:
        return f"{words}; RMS error at most {ALLOWED[precision]:g} times a sequential FMA loop's"
    return f"{words}; RMS error within the FFT's own bound" if precision == "fft" else words


def troubles(view: View) -> list[Trouble]:
    """Rows without a time, gathered by method and reason: wrong results first, then faults, skips and refusals."""
    gathered: dict[tuple[str, bool, str, str], list[tuple[str, str]]] = {}
    for entry in view.entries:
        r = entry.result
        if r.status != "ok":
            reason = r.reason or "no reason was stored"
            # Forecasts and shares of a budget differ from row to row; what was found wrong stands word by word.
            alike = NUMBER.sub("#", reason) if r.status in ("skipped", "refused") else reason
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
        found.append(f"The machine did not hold still: {run.moved}. Measure again before quoting these numbers.")
    if not run.complete:
        found.append("The run did not finish: what follows is only what was stored until then.")
    if failed := sum(1 for e in view.entries if e.result.status == "failed"):
        found.append(f"{failed} result{'s were' if failed > 1 else ' was'} wrong and got no time.")
    if run.dirty:
        found.append("The sources had uncommitted changes when this was measured.")
    if stale := sum(1 for e in view.timed if e.stale):
        found.append(
            f"{stale} of {len(view.timed)} times are stale, marked *: the method's sources differ from this version's."
        )
    noisy = sum(1 for e in view.timed if e.timing is not None and e.timing.noisy)
    if noisy:
        found.append(
            f"{noisy} of {len(view.timed)} times are noisy, marked ~: their median is less certain than was asked for."
        )
    if len({e.result.problem for e in view.timed}) and not any(when == "after" for when, _ in run.ceilings):
        found.append(
            "The machine's ceilings were not measured again after the run: whether it held still is not known."
        )
    return found
