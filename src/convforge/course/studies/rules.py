"""Rules that several studies share: doubts about the data, the fastest methods, pairs of methods, trends, shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from convforge.benchmark.reasons import to_data
from convforge.benchmark.records import Run
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import (
    Holds,
    Reading,
    Series,
    along,
    by_case,
    compare,
    data_of,
    distinct,
    leading,
    named,
    pairs,
    ranked,
    stretches,
    versus,
)
from convforge.timing.ranking import LEVEL, order

# Below this share of the FMA peak, a product or a convolution leaves most of the machine idle.
LOW_SHARE = 0.10


def quality(run: Run, *, times: bool = True) -> Iterator[Finding]:
    """Report doubts about a run: rows without a time and, if `times`, noise, missing spreads and changing ceilings."""
    timed = [r for r in run.results if r.time is not None]
    if not timed:
        yield undecided("quality", "quality/nothing-timed", rows=len(run.results))
        return
    for status in ("skipped", "failed", "error"):
        if rows := [r for r in run.results if r.status == status]:
            methods, cases = distinct(r.algorithm for r in rows), distinct(r.case for r in rows)
            yield undecided("quality", f"quality/{status}", rows=len(rows), of=len(run.results), methods=methods,
                            cases=cases)  # fmt: skip
    if not times:
        return
    known = [(r, timing) for r in timed if (timing := run.timing(r)) is not None]
    if single := sum(len(timing.samples) < 3 for _, timing in known):
        yield undecided("quality", "quality/no-spread", times=single, of=len(timed))
    if noisy := [(r, timing) for r, timing in known if timing.noisy]:
        spread = max(timing.spread for _, timing in noisy)
        yield undecided("quality", "quality/noisy", times=len(noisy), of=len(timed), spread=spread,
                        methods=distinct(r.algorithm for r, _ in noisy))  # fmt: skip
    if run.moved is not None:
        yield undecided("quality", "quality/moved", words=to_data(run.moved))


def ahead(found: Iterable[Reading]) -> Iterator[Finding]:
    """Cases on which each method is the fastest, among methods with allowed arithmetic."""
    strict = [r for r in found if r.strict]
    cases = {case: rs for case, rs in by_case(strict).items() if len(rs) > 1}
    if not cases:
        yield undecided("ahead", "ahead/too-few")
        return
    winners, unsure = ranked(cases)
    never: list[str] = []
    for method in distinct(r.method for r in strict):
        tried = [case for case in winners if method in {r.method for r in cases[case]}]
        alone = [case for case in tried if [r.method for r in winners[case]] == [method]]
        level = [case for case in tried if case not in alone and method in {r.method for r in winners[case]}]
        if not alone and not level:
            never += [method] if tried else []
            continue
        lead = {case: _lead(method, cases[case]) for case in alone}
        values = {"method": method, "tried": len(tried), "n": len(alone), "cases": alone, "level": level,
                  "shared": len(level), "most": max(lead.values(), default=None),
                  "most_case": max(lead, key=lambda case: lead[case], default="")}  # fmt: skip
        form = "level" if not alone else "all" if len(alone) == len(tried) else "some-level" if level else "some"
        data = tuple(datum for case in alone + level for datum in leading(cases[case]))
        yield Finding("ahead", f"ahead/{form}", values, data)
    if never:
        data = data_of(rs[0] for rs in winners.values())
        yield Finding("ahead", "ahead/never", {"methods": never, "tried": len(winners)}, data)
    if unsure:
        yield undecided("ahead", "undecided/fastest", unsure=unsure)


def _lead(method: str, found: Sequence[Reading]) -> float:
    """Smallest time of the other methods divided by the time of this method."""
    own, *_ = (r.seconds for r in found if r.method == method)
    return min(r.seconds for r in found if r.method != method) / own


def winners(run: Run, axis: str, *, strict: bool = True) -> Iterator[Finding]:
    """Report the fastest methods along each series of an axis."""
    for one in along(run, axis):
        yield winner(one, f"winner-by-{axis}", strict=strict)


def winner(one: Series, rule: str, *, strict: bool = True) -> Finding:
    """Fastest methods along a series: one for all places, or stretches with their crossovers."""
    points = {place: [r for r in found if r.strict or not strict] for place, found in one.points.items()}
    points = {place: found for place, found in points.items() if len(found) > 1}
    if len(points) < 2:
        return undecided(rule, "winners/too-few", **one.load)
    leaders, unsure = ranked(points)
    values = one.load | {"unsure": unsure}
    if not leaders:
        return undecided(rule, "undecided/series", **values)
    parts = stretches({place: [r.method for r in found] for place, found in leaders.items()})
    level = [place for part in parts for place in part["level"]]
    values |= {"stretches": parts, "first": parts[0]["first"], "last": parts[-1]["last"], "level": level}
    form, methods = "changes", parts[0]["methods"]
    if len(parts) > 1:
        values |= {"changes": parts, "begin": methods, "end": parts[-1]["methods"]}
    elif leads := [_lead(methods[0], points[place]) for place in leaders if place not in level]:
        form = "mostly" if level else "one"
        values |= {"method": methods[0], "least": min(leads), "most": max(leads)}
    else:
        form = "level"
        values |= {"methods": methods}
    data = tuple(datum for place in leaders for datum in leading(points[place]))
    return Finding(rule, f"winners/{form}", values, data, supported=form != "level")


def pair(found: Iterable[Reading], slow: str, fast: str, rule: str) -> Finding:
    """Compare two methods case by case: where `fast` is faster, by how much, and where it is not."""
    return versus(found, named(fast), named(slow)).finding(rule, "pair", {"slow": slow, "fast": fast})


def trend(one: Series, slow: str, fast: str, rule: str) -> Finding:
    """Change of one method's gain over another along an axis; changes within the spreads are ignored."""
    points = pairs(one.points, named(slow), named(fast))
    values = one.load | {"slow": slow, "fast": fast, "n": len(points)}
    data = data_of(r for both in points.values() for r in both)
    if len(points) < 3:
        return undecided(rule, "trend/too-few", data, **values)
    gains = {place: a.seconds / b.seconds for place, (a, b) in points.items()}
    noise = {place: a.timing.spread + b.timing.spread for place, (a, b) in points.items()}
    steps = set()
    for before, after in itertools.pairwise(gains):
        change = gains[after] / gains[before] - 1
        steps.add(0 if abs(change) <= noise[before] + noise[after] else 1 if change > 0 else -1)
    least, most = min(gains.values()), max(gains.values())
    (first, first_gain), *_, (last, last_gain) = gains.items()
    values |= {"first": first, "last": last, "first_gain": first_gain, "last_gain": last_gain, "least": least,
               "most": most}  # fmt: skip
    if steps == {0}:
        form = "steady" if most <= (1 + LEVEL) * least else "unsure"
        return undecided(rule, f"trend/{form}", data, **values)
    form = "no-order" if {1, -1} <= steps else "grows" if 1 in steps else "falls"
    return Finding(rule, f"trend/{form}", values, data)


def crossover(one: Series, families: Mapping[str, Holds], before: str, after: str, rule: str) -> Finding:
    """Place on a series from which the best method of one family is faster than the best of another."""
    both = pairs(one.points, families[after], families[before])
    values = one.load | {"before": before, "after": after, "n": len(both)}
    data = data_of(r for own in both.values() for r in own)
    if len(both) < 2:
        return undecided(rule, "crossover/too-few", data, **values)
    compared = compare(both)
    values |= compared.values
    if not compared.pairs:
        return undecided(rule, "undecided/families", data, **values)
    won, lost, level = compared.split.values()
    gains = compared.gains
    first, last = min(gains), max(gains)
    if lost:
        own, other = compared.pairs[max(lost)]
        values |= {"last_lost": max(lost), "last_after": own.method, "last_before": other.method}
    if not lost:
        form = "always" if not level else "never-behind" if won else "level"
    elif not won:
        form = "never"
    elif max(lost) < min(won):
        values |= {"crossover": min(won)}
        form = "at" if min(won) < last else "at-last"
    else:
        form = "back" if min(lost) > max(won) else "scattered"
        values |= {"last_won": max(won), "first_lost": min(lost)}
    marks = {first, last, values.get("last_lost"), values.get("crossover")}
    values |= {"gains": {place: gain for place, gain in gains.items() if place in marks}}
    return Finding(rule, f"crossover/{form}", values, data, supported=form != "level")


def share_of_peak(run: Run, found: Iterable[Reading]) -> Finding:
    """Share of the FMA peak that the fastest methods reach, and whether all stay far below it."""
    ceilings = run.best_ceilings
    strict = [r for r in found if r.strict and "f64" not in r.result.problem]
    if ceilings is None or not strict:
        return undecided("share-of-peak", "peak/unknown")
    peak = ceilings.fma_flops_per_s
    best: dict[str, Reading] = {}
    for r in sorted(strict, key=lambda r: -r.flops_per_s):
        best.setdefault(r.method, r)
    top = next(iter(best.values()))
    own = next((r for r in best.values() if r.result.ours), top)
    values: dict[str, Any] = {"peak": peak, "n": len(strict), "low": LOW_SHARE, "top_rate": top.flops_per_s}
    form = "low" if top.flops_per_s < LOW_SHARE * peak else "top" if own is top else "library"
    for name, r in (("top", top), ("own", own))[: 2 if form == "library" else 1]:
        values |= {name: r.method, f"{name}_case": r.case, f"{name}_share": r.flops_per_s / peak}
    values["lowest_share"] = min(r.flops_per_s for r in strict) / peak
    return Finding(
        "share-of-peak", f"peak/{form}", values, (*data_of(best.values()), Datum("", "", "", "fma_flops_per_s", peak))
    )


def growth(rule: str, form: str, ends: Iterable[tuple[int, Reading]], values: Mapping[str, Any]) -> Finding:
    """Return a finding about the growth of time between two places, if their times can be ranked."""
    (small, a), (large, b) = ends
    about = {"small": small, "large": large, "small_s": a.seconds, "large_s": b.seconds, **values}
    certain = order(a.timing, b.timing) != "unsure"
    return Finding(rule, form if certain else "undecided/growth", about, data_of((a, b)), supported=certain)
