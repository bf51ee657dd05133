"""Occupancy: whether time follows it where blocks differ in their shape alone, and how often a grid fills the card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from convforge.benchmark.records import Run
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading
from convforge.course.studies.tried import Alike, alike, tried

# Fewer shapes, or fewer values of occupancy, say nothing about a relation.
FEWEST_SHAPES, FEWEST_VALUES = 6, 3
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Related:
    """How time and occupancy are related in a group of configs, by Kendall's tau.

    Attributes
    ----------
    group : Alike
    split : dict
        "faster", "slower" or "neither", with more occupancy -> the cases.
    taus : dict
        By case.
    most : dict
        Case -> occupancy of the fastest, the highest, and the time there over the fastest's.
    rests : tuple of Datum
    """

    group: Alike
    split: dict[str, list[str]]
    taus: dict[str, float]
    most: dict[str, tuple[float, float, float]]
    rests: tuple[Datum, ...]

    @property
    def form(self) -> str:
        """One of the split's, "mixed", or, where it cannot be said, "unknown"."""
        if not self.taus:
            return "unknown"
        return next((name for name, cases in self.split.items() if len(cases) == len(self.taus)), "mixed")


def _related(run: Run) -> Iterator[Related]:
    """Of each group whose occupancy is known."""
    from scipy.stats import kendalltau

    for group in alike(run):
        split: dict[str, list[str]] = {"faster": [], "slower": [], "neither": []}
        taus, rests, most, seen = {}, list[Datum](), {}, False
        for case, found in group.cases.items():
            known = [(r, share) for r in found if (share := _occupancy(r)) is not None]
            seen = seen or bool(known)
            if len(known) < FEWEST_SHAPES or len({share for _, share in known}) < FEWEST_VALUES:
                continue
            tau = kendalltau([share for _, share in known], [r.seconds for r, _ in known])
            name = "neither" if tau.pvalue > SIGNIFICANT else "faster" if tau.statistic < 0 else "slower"
            split[name].append(case)
            taus[case] = float(tau.statistic)
            full = min((pair for pair in known if pair[1] == max(share for _, share in known)), key=_seconds_of)
            best = min(known, key=_seconds_of)
            most[case] = (best[1], full[1], full[0].seconds / best[0].seconds)
            rests += [d for r, share in known for d in (r.datum(), _share_datum(r, share))]
        if seen:
            yield Related(group, split, taus, most, tuple(rests))


def overview(run: Run) -> Iterator[Finding]:
    """All methods at a glance: with more occupancy faster, slower or neither."""
    found = list(_related(run))
    if not found:
        return
    said = {form: [one.group.name for one in found if one.form == form] for form in _FORMS}
    rests = tuple(datum for one in found for datum in one.rests)
    supported = any(said[form] for form in ("faster", "slower", "mixed"))
    untold = _untold(found)
    values = {"related": said, "untold": untold, "level": SIGNIFICANT, "shapes": FEWEST_SHAPES, "shares": FEWEST_VALUES}
    form = "none" if not any(one.taus for one in found) else "some" if untold else "all"
    yield Finding("occupancies", f"occupancies/{form}", values, rests, supported=supported)


_FORMS = ("faster", "slower", "neither", "mixed")


def _untold(found: Sequence[Related]) -> list[str]:
    """Methods of which no group has enough configs."""
    told = {one.group.method for one in found if one.taus}
    return list(dict.fromkeys(one.group.method for one in found if one.group.method not in told))


def rule(run: Run) -> Iterator[Finding]:
    """Whether configs with more occupancy are faster, their blocks differing in shape alone."""
    every = list(_related(run))
    for method in _untold(every):
        values: dict[str, Any] = {"method": method, "shapes": FEWEST_SHAPES, "shares": FEWEST_VALUES}
        yield Finding("occupancy", "occupancy/too-few", values, supported=False)
    for found in every:
        if not found.taus:
            continue
        case = max(found.taus, key=lambda c: abs(found.taus[c]))
        best, highest, ratio = found.most[case]
        values = {
            "method": found.group.name,
            "n": len(found.taus),
            "case": case,
            "tau": found.taus[case],
            "best": best,
            "highest": highest,
            "ratio": ratio,
            "split": found.split,
            "level": SIGNIFICANT,
        }
        top = "-top" if found.form != "mixed" and best >= highest else ""
        form = f"occupancy/{found.form}{top}"
        yield Finding("occupancy", form, values, found.rests, supported=found.form != "neither")


def _seconds_of(pair: tuple[Reading, float]) -> float:
    return pair[0].seconds


def _occupancy(r: Reading) -> float | None:
    """Of the first launch, which is the only one of these methods."""
    return r.result.launches[0].get("occupancy") if r.result.launches else None


def _share_datum(r: Reading, share: float) -> Datum:
    return Datum(r.case, r.method, r.result.config, "occupancy", share)


def waves(run: Run) -> Iterator[Finding]:
    """Whether the grid of each method's fastest config fills the card: blocks over those that it holds at once."""
    facts = run.machine.get("facts", {})
    if not facts.get("threads"):
        return
    cores = int(facts["cores"])
    for method, cases in tried(run).items():
        grids, rests = dict[str, tuple[int, int]](), list[Datum]()
        for case, rs in cases.items():
            best = min(rs, key=lambda r: r.seconds)
            if (grid := _grid(best, int(facts["threads"]))) is not None:
                grids[case] = grid
                rests.append(Datum(case, method, best.result.config, "waves", grid[0] / grid[1] / cores))
        if not grids:
            continue
        count = {case: blocks / room / cores for case, (blocks, room) in grids.items()}
        low = min(count, key=lambda c: count[c])
        few = min(grids, key=lambda c: grids[c][0])
        form = "below" if grids[few][0] < cores else "part" if count[low] < 1 else "full"
        case = few if form == "below" else low
        values = {"method": method, "least": count[low], "case": case, "cores": cores, "blocks": grids[case][0],
                  "room": grids[case][1]}  # fmt: skip
        yield Finding("waves", f"waves/{form}", values, tuple(rests))


def _grid(r: Reading, threads: int) -> tuple[int, int] | None:
    """Blocks of a launch, and how many a multiprocessor holds at once; None where its occupancy is not known."""
    share = _occupancy(r)
    if not share:
        return None
    launch = r.result.launches[0]
    return prod(launch["grid"]), max(round(share * threads / prod(launch["block"])), 1)


ENGLISH = {
    "occupancies/all": "Where blocks differ in their shape alone, more occupancy goes with {related:related} "
    "(Kendall's tau of occupancy and time, level {level:percent}).",
    "occupancies/some": "Where blocks differ in their shape alone, more occupancy goes with {related:related} "
    "(Kendall's tau of occupancy and time, level {level:percent}); of {untold:names} too few shapes were timed to "
    "tell.",
    "occupancies/none": "Whether time follows occupancy cannot be said: no case has {shapes} configs that differ in "
    "the shape of their block alone, with {shares} values of it.",
    "occupancy/faster": "{method}: configs with more occupancy are faster on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has {best:percent}, the "
    "highest is {highest:percent} and takes {ratio:times} the time.",
    "occupancy/slower": "{method}: configs with more occupancy are slower on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has {best:percent}, the "
    "highest is {highest:percent} and takes {ratio:times} the time.",
    "occupancy/neither": "{method}: on {n:each case} time does not follow occupancy by more than chance (Kendall's "
    "tau {tau:.2f} on {case}, level {level:percent}); the fastest there has {best:percent}, the highest is "
    "{highest:percent} and takes {ratio:times} the time.",
    "occupancy/faster-top": "{method}: configs with more occupancy are faster on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has the highest, "
    "{highest:percent}.",
    "occupancy/slower-top": "{method}: configs with more occupancy are slower on {n:each case} (Kendall's tau of "
    "occupancy and time {tau:.2f} on {case}, level {level:percent}); the fastest there has the highest, "
    "{highest:percent}.",
    "occupancy/neither-top": "{method}: on {n:each case} time does not follow occupancy by more than chance (Kendall's "
    "tau {tau:.2f} on {case}, level {level:percent}); yet the fastest there has the highest, {highest:percent}.",
    "occupancy/mixed": "{method}: whether time follows occupancy changes with the case: configs with more of it are "
    "{split:split} (Kendall's tau, level {level:percent}).",
    "occupancy/too-few": "{method}: whether time follows occupancy cannot be said: no case has {shapes} configs that "
    "differ in the shape of their block alone, with {shares} values of it.",
    "waves/full": "{method}: the grid of the fastest config fills all {cores} multiprocessors {least:.1f} times or "
    "more ({case} the least).",
    "waves/part": "{method}: the grid of the fastest config has {blocks:count block} on {case}, for {cores} "
    "multiprocessors, each of which could hold {room}.",
    "waves/below": "{method}: the grid of the fastest config does not fill the {cores} multiprocessors: it has "
    "{blocks:count block} on {case}.",
}
