"""The beginning of a report: one figure, a caption, and sentences that say where it is valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from convforge.course.language import gettext
from convforge.course.report import numbers
from convforge.course.report.records import Entry, View
from convforge.course.report.summary import Duel, Group, Tone, arithmetic, counts, duels, every_duel, kinds, weight
from convforge.course.studies.readings import allowed
from convforge.timing.ranking import LEVEL, order


class Headline(NamedTuple):
    """The first figure of a page, its caption, and the sentences below."""

    tone: Tone  # "alone": no peer to compare with; "unsure": the ceilings changed during the run
    figure: str
    caption: str
    sentences: tuple[str, ...]


def headline(view: View) -> Headline:
    """Return the headline of a run: the mean of the kind with the most cases, then a sentence per kind if several."""
    found = kinds(view)
    if not found:
        return _alone(view)
    first = max(found, key=lambda kind: len(kind.duels))
    tone: Tone = "ahead" if first.mean > 1 + LEVEL else "behind" if first.mean < 1 / (1 + LEVEL) else "level"
    result = {
        "ahead": gettext("ours is ahead"),
        "level": gettext("the two are level, within {share}").format(share=numbers.percent(LEVEL)),
        "behind": gettext("ours is behind"),
    }[tone]
    competing = gettext("both in the arithmetic that the case allows")
    if {d.ours.problem.precision for d in first.duels} == {"strict"}:
        competing = gettext("both in strict arithmetic")
    caption = gettext("the speed of {peer} on {kind}, {over}, in the same run, {competing}: {words}.").format(
        peer=_rival(view, first), kind=first.family, over=_over(first), competing=competing, words=result
    )
    ordered = [first, *(kind for kind in found if kind is not first)] if len(found) > 1 else []
    sentences = (*(_of_kind(view, kind) for kind in ordered), *_sentences(view, duels(view)))
    if view.run.moved:
        words = gettext("{caption} The machine did not hold still, so this is doubtful.")
        tone, caption = "unsure", words.format(caption=caption)
    return Headline(tone, numbers.ratio(first.mean), caption, sentences)


def largest_case(view: View) -> str | None:
    """Return the case of the headline: the largest with times of ours and a peer, or otherwise with a time of ours."""
    if found := duels(view):
        return max(found, key=weight).case
    top = _largest_ours(view)
    return None if top is None else top.result.case


def where(view: View, entry: Entry) -> str:
    """Describe a case: its problem, size and stride."""
    words = gettext("{problem}, {size}, stride {stride}") if entry.stride else gettext("{problem}, {size}")
    return words.format(problem=view.short(entry.family), size=entry.size_text, stride=entry.stride)


def _allowed(entry: Entry) -> bool:
    return allowed(entry.result, entry.problem)


def _rivals(view: View, kind: Group) -> list[set[str]]:
    """Peers that were ranked on each case of a kind."""
    cases: dict[str, set[str]] = {d.case: set() for d in kind.duels}
    for e in view.timed:
        if e.result.case in cases and not e.result.ours and _allowed(e):
            cases[e.result.case].add(e.result.algorithm)
    return list(cases.values())


def _rival(view: View, kind: Group) -> str:
    """The best peer in words, or its name if most cases have only this peer."""
    cases = _rivals(view, kind)
    [(name, alone)] = Counter(min(names) for names in cases if len(names) == 1).most_common(1) or [("", 0)]
    words = gettext("the best peer ({peer}, the only one timed on {n} of {all} cases)")
    if 2 * alone <= len(cases):
        words = gettext("the best peer")
    elif alone == len(cases):
        words = gettext("{peer}, the only peer timed,")
    return words.format(peer=name, n=alone, all=len(cases))


def _over(kind: Group) -> str:
    if len(kind.duels) == 1:
        return gettext("on the one case that both were timed on")
    return gettext("geometric mean over {n} cases").format(n=len(kind.duels))


def _of_kind(view: View, kind: Group) -> str:
    """Mean and counts of one kind, and the peers that were ranked on its cases."""
    ahead, level, behind = kind.counts
    words = gettext(
        "On {kind}: {ratio}, {over}; ahead in {ahead}, level in {level}, behind in {behind}. Peers timed: {peers}."
    )
    return words.format(
        kind=kind.family, ratio=numbers.ratio(kind.mean), over=_over(kind), ahead=ahead, level=level, behind=behind,
        peers=_listed(Counter(name for names in _rivals(view, kind) for name in sorted(names))),
    )  # fmt: skip


def _listed(peers: Mapping[str, int]) -> str:
    """Peers with their numbers of cases, the most frequent first."""
    each = [gettext("{peer} on {n}").format(peer=name, n=n) for name, n in Counter(peers).most_common()]
    return gettext(", ").join(each)


def _largest_ours(view: View) -> Entry | None:
    ours = [view.entry(v.best_ours) for v in view.verdicts.values() if v.best_ours is not None]
    return max(ours, key=lambda e: e.result.least_bytes, default=None)


def _alone(view: View) -> Headline:
    """Headline if no case has both ours and a peer that can be ranked."""
    top = _largest_ours(view)
    if top is None:
        caption = gettext("No method of ours was timed in this run.")
        return Headline("alone", gettext("No time"), caption, (gettext("The reasons stand below."),))
    caption = gettext("{method} on the largest case, {where}.").format(method=top.label, where=where(view, top))
    nothing = gettext("Nothing is compared: no peer was timed on any case of ours in this run.")
    sentences = _noisy(view) if every_duel(view) else [nothing]
    return Headline("alone", numbers.seconds(top.seconds or 0.0), caption, (*sentences, _correct(top)))


def _sentences(view: View, found: Sequence[Duel]) -> Iterable[str]:
    top = max(found, key=weight)
    result = {
        "ahead": gettext("{ratio} ahead"),
        "level": gettext("a tie ({ratio})"),
        "behind": gettext("ours is behind, {ratio} of its speed"),
    }[top.tone]
    compared = gettext("At {where}, {ours} takes {time}; {peer}, the best peer there, {peer_time}: {result}.")
    if len(found) > 1:
        compared = gettext(
            "At the largest case, {where}, {ours} takes {time}; {peer}, the best peer there, {peer_time}: {result}."
        )
    yield compared.format(
        where=where(view, top.ours), ours=top.ours.label, time=_time_and_rate(top.ours),
        peer=top.peer.label, peer_time=_time(top.peer), result=result.format(ratio=numbers.ratio(top.ratio)),
    )  # fmt: skip
    if (other := _beyond(view, top, ours=False)) is not None:
        words = gettext("{peer} is faster there, {time}, in {arithmetic} arithmetic, which does not compete.")
        yield words.format(peer=other.label, time=_time(other), arithmetic=arithmetic(other.result.precision))
    yield _correct(top.ours)
    if len(found) > 1:
        ahead, level, behind = counts(found)
        words = gettext("Ahead in {ahead}, level in {level}, behind in {behind} of {n} cases.")
        yield words.format(ahead=ahead, level=level, behind=behind, n=len(found))
        yield from _ends(view, found)
    yield from _noisy(view)
    if single := len(view.verdicts) - len(every_duel(view)):
        yield gettext("Cases with no such comparison, not counted: {n}.").format(n=single)


def _beyond(view: View, d: Duel, *, ours: bool) -> Entry | None:
    """The fastest of ours or of the peers with arithmetic that its case does not allow.

    None if it is not faster than our method in `d` by more than the spreads.
    """
    found = [e for e in view.timed if (e.result.case, e.result.ours) == (d.case, ours) and not _allowed(e)]
    fastest = min(found, key=lambda e: e.seconds or 0.0, default=None)
    if fastest is None or fastest.timing is None or d.ours.timing is None:
        return None
    return fastest if order(fastest.timing, d.ours.timing) == "faster" else None


def _noisy(view: View) -> list[str]:
    """Sentence that names the cases that are too noisy to rank and are not counted."""
    names = [d.case for d in every_duel(view) if d.tone == "unsure"]
    words = gettext("Too noisy to rank, not counted: {names}.")
    return [words.format(names=gettext(", ").join(names))] if names else []


def _ends(view: View, found: Sequence[Duel]) -> Iterable[str]:
    """Best and worst case. Cases that a peer of another arithmetic wins are excluded from the best."""
    others = {d.case: e for d in found if (e := _beyond(view, d, ours=False)) is not None}
    mine = sum(_beyond(view, d, ours=True) is not None for d in found)
    won = [d for d in found if d.case not in others]
    best, worst = max(won, key=lambda d: d.ratio, default=None), min(found, key=lambda d: d.ratio)
    ends = gettext("Worst: {worst}.") if best is None else gettext("Best: {best}. Worst: {worst}.")
    yield ends.format(best=_end(view, best or worst), worst=_end(view, worst))
    if others:
        words = gettext(
            "Arithmetic that a case does not allow is not counted: with it a peer is faster than our best on {n} of "
            "{all} cases ({peers}), none of which is called the best, and so is a method of ours on {mine}."
        )
        peers = _listed(Counter(e.label for e in others.values()))
        yield words.format(n=len(others), all=len(found), peers=peers, mine=mine)


def _end(view: View, d: Duel) -> str:
    words = gettext("{ratio} at {where}, against {peer}")
    if d.tone == "level":
        words = gettext("{ratio} (a tie) at {where}, against {peer}")
    return words.format(ratio=numbers.ratio(d.ratio), where=where(view, d.ours), peer=d.peer.label)


def _time(entry: Entry) -> str:
    assert entry.timing is not None
    words = gettext("{time} (±{spread}, noisy)") if entry.timing.noisy else gettext("{time} (±{spread})")
    return words.format(time=numbers.seconds(entry.timing.median_s), spread=numbers.percent(entry.timing.spread))


def _time_and_rate(entry: Entry) -> str:
    if entry.gflops is None:
        return _time(entry)
    words = gettext("{time}, {rate} GFLOP/s nominal") if entry.nominal else gettext("{time}, {rate} GFLOP/s")
    return words.format(time=_time(entry), rate=numbers.three(entry.gflops))


def _correct(entry: Entry) -> str:
    error = entry.result.error
    if error is None or error.rms is None:
        return gettext("Its error is not on record.")
    words = gettext(
        "Checked against the float64 truth before and after it was timed: RMS error {rms} of the result's RMS, "
        "{arithmetic} arithmetic."
    )
    return words.format(rms=numbers.tiny(error.rms), arithmetic=arithmetic(entry.result.precision))
