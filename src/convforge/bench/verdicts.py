"""Who wins a case, by the stored timings: the fastest, or a tie of those that are closer than their spreads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from convforge.bench.records import Result, Run
from convforge.measure.timer import Timing, tie
from convforge.problem import parse_problem


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case.

    Attributes
    ----------
    fastest : tuple of Result
        Several where they tie; none where nothing was timed.
    best_ours, best_peer : Result or None
    ratio : float or None
        Time of the best peer over that of our best: above 1, ours is ahead.
    level : bool
        Our best and the best peer tie.
    """

    fastest: tuple[Result, ...]
    best_ours: Result | None
    best_peer: Result | None
    ratio: float | None
    level: bool

    def words(self, label: Callable[[Result], str] = lambda result: result.algorithm) -> str:
        """The verdict in a few words; `label` names a result.

        Examples
        --------
        >>> Verdict((), None, None, None, False).words()
        '-'
        """
        if not self.fastest:
            return "-"
        several = list(dict.fromkeys(label(result) for result in self.fastest))
        names = ", ".join(several)
        if len(several) > 1:
            return f"tie: {names}"
        rival = self.best_peer if self.fastest[0].ours else self.best_ours
        if rival is None or self.ratio is None:
            return names
        ahead = self.ratio if self.fastest[0].ours else 1 / self.ratio
        return f"{names}, {ahead:.2g}x ahead of {label(rival)}"


def judge(run: Run, case: str) -> Verdict:
    """The verdict on one case of a run.

    Only methods compete whose arithmetic the problem allows: a narrower one, timed beside them, is never the winner.
    The timings of the final count where one was held.
    """
    able: list[tuple[Timing, Result]] = []
    for result in run.results:
        timing = run.timing(result)
        if result.case == case and timing is not None and _allowed(result):
            able.append((timing, result))
    able.sort(key=lambda pair: pair[0].median_s)
    ours = next((pair for pair in able if pair[1].ours), None)
    peer = next((pair for pair in able if not pair[1].ours), None)
    ratio = peer[0].median_s / ours[0].median_s if ours and peer else None
    return Verdict(
        fastest=tuple(result for timing, result in able if tie(timing, able[0][0]) or result is able[0][1]),
        best_ours=ours[1] if ours else None,
        best_peer=peer[1] if peer else None,
        ratio=ratio,
        level=bool(ours and peer and tie(ours[0], peer[0])),
    )


def _allowed(result: Result) -> bool:
    return result.precision in ("strict", getattr(parse_problem(result.problem), "precision", "strict"))
