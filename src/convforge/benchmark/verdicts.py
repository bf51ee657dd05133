"""The verdict on a case from the stored timings: the fastest method, a tie, or too noisy to rank."""

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
    """The verdict on one case: its fastest methods, and our best compared with the best peer."""

    fastest: tuple[Result, ...] = ()  # several if they tie; none if nothing was timed or all are too noisy
    unsure: tuple[Result, ...] = ()  # too noisy to rank in all, in ours or in peers; none of the fastest
    best_ours: Result | None = None  # the fastest of ours that can be ranked; if none can, the fastest timed one
    best_peer: Result | None = None
    ratio: float | None = None  # time of the best peer divided by that of our best: above 1, ours is faster
    order: Order | None = None  # our best compared with the best peer

    def words(self, label: Callable[[Result], str] = lambda result: result.algorithm) -> str:
        """The verdict as a short text, "-" if there is none; `label` names a result."""

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
    """Judge one case of a run.

    Only methods with a precision that the problem allows are ranked; results of lower precision never win. If a final
    was held, its timings count.
    """
    timed = ((run.timing(r), r) for r in run.results if r.case == case)
    able = [(timing, r) for timing, r in timed if timing and r.allowed]
    every = rank(able, lambda pair: pair[0])
    sides = [rank([pair for pair in able if pair[1].ours is own], lambda pair: pair[0]) for own in (True, False)]
    ours, peer = ((*side.leaders, *side.unsure, None)[0] for side in sides)
    leading = {id(result) for _, result in every.leaders}  # of all; one may be too noisy among its own side
    unsure = {id(r): r for found in (every, *sides) for _, r in found.unsure if id(r) not in leading}
    return Verdict(
        fastest=tuple(result for _, result in every.leaders),
        unsure=tuple(unsure.values()),
        best_ours=ours[1] if ours else None,
        best_peer=peer[1] if peer else None,
        ratio=peer[0].median_s / ours[0].median_s if ours and peer else None,
        order=order(ours[0], peer[0]) if ours and peer else None,
    )
