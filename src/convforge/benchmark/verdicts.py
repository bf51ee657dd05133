"""The verdict on a case, by the stored timings: the fastest, a tie, or too noisy to rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convforge.benchmark.formats import ratio
from convforge.benchmark.records import Result, Run
from convforge.timing.ranking import LEVEL, Order, order, rank

TERMS = (
    f"Tie: medians within {100 * LEVEL:.0f} % of each other and closer than their spreads. Too noisy to rank: spreads "
    "so wide that the order cannot be told."
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one case."""

    fastest: tuple[Result, ...] = ()  # several where they tie; none where nothing was timed, or no order is sure
    unsure: tuple[Result, ...] = ()  # too noisy to rank among all, among ours, or among the peers; none of the fastest
    best_ours: Result | None = None  # the fastest that can be ranked; of those that were timed where none can
    best_peer: Result | None = None
    ratio: float | None = None  # time of the best peer over that of our best: above 1, ours is ahead
    order: Order | None = None  # of our best against the best peer

    def words(self, label: Callable[[Result], str] = lambda result: result.algorithm) -> str:
        """The verdict in a few words, "-" for none; `label` names a result."""

        def names(results: Sequence[Result]) -> list[str]:
            return list(dict.fromkeys(map(label, results)))

        words = []
        if len(leaders := names(self.fastest)) > 1:
            words.append(f"tie: {', '.join(leaders)}")
        elif leaders:
            words.append(leaders[0] + self._lead(label))
        if self.unsure:
            words.append(f"too noisy to rank: {', '.join(names(self.unsure))}")
        return "; ".join(words) or "-"

    def _lead(self, label: Callable[[Result], str]) -> str:
        ours = self.fastest[0].ours
        rival = self.best_peer if ours else self.best_ours
        if rival is None or self.ratio is None or self.order != ("faster" if ours else "slower"):
            return ""
        return f", {ratio(self.ratio if ours else 1 / self.ratio)} ahead of {label(rival)}"


def judge(run: Run, case: str) -> Verdict:
    """The verdict on one case of a run.

    Only methods compete whose arithmetic the problem allows: a narrower one, timed beside them, is never the winner.
    The timings of the final count where one was held.
    """
    timed = ((run.timing(r), r) for r in run.results if r.case == case)
    able = [(timing, r) for timing, r in timed if timing and r.allowed]
    every = rank(able, lambda pair: pair[0])
    sides = [rank([pair for pair in able if pair[1].ours is own], lambda pair: pair[0]) for own in (True, False)]
    ours, peer = ((*side.leaders, *side.unsure, None)[0] for side in sides)
    leading = {id(result) for _, result in every.leaders}  # of all; one may still be too noisy for its own side's order
    unsure = {id(r): r for found in (every, *sides) for _, r in found.unsure if id(r) not in leading}
    return Verdict(
        fastest=tuple(result for _, result in every.leaders),
        unsure=tuple(unsure.values()),
        best_ours=ours[1] if ours else None,
        best_peer=peer[1] if peer else None,
        ratio=peer[0].median_s / ours[0].median_s if ours and peer else None,
        order=order(ours[0], peer[0]) if ours and peer else None,
    )
