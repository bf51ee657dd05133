"""Rules that several studies share: what the data is worth, who is ahead where, pairs of methods, trends, shares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from convforge.benchmark.reasons import to_data
from convforge.benchmark.records import Result, Run
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading, Series, by_case, decided, ranked, stretches
from convforge.timing.ranking import LEVEL, order

# Below this share of the FMA peak, a product or a convolution leaves the machine mostly idle.
LOW_SHARE = 0.10


def quality(run: Run, *, times: bool = True) -> Iterator[Finding]:
    """What makes a run's figures doubtful: rows without a time; of times noise, missing spreads, a moving machine."""
    timed = [r for r in run.results if r.time is not None]
    if not timed:
        yield Finding("quality", "quality/nothing-timed", {"rows": len(run.results)}, supported=False)
        return
    without = {status: [r for r in run.results if r.status == status] for status in ("skipped", "failed", "error")}
    for status, rows in without.items():
        if rows:
            values = {
                "rows": len(rows),
                "of": len(run.results),
                "methods": _distinct(r.algorithm for r in rows),
                "cases": _distinct(r.case for r in rows),
            }
            yield Finding("quality", f"quality/{status}", values, supported=False)
    if not times:
        return
    known = [(r, timing) for r in timed if (timing := run.timing(r)) is not None]
    single = [r for r, timing in known if len(timing.samples) < 3]
    if single:
        values = {"times": len(single), "of": len(timed)}
        yield Finding("quality", "quality/no-spread", values, supported=False)
    noisy = [(r, timing) for r, timing in known if timing.noisy]
    if noisy:
        values = {
            "times": len(noisy),
            "of": len(timed),
            "methods": _distinct(r.algorithm for r, _ in noisy),
            "spread": max(timing.spread for _, timing in noisy),
        }
        yield Finding("quality", "quality/noisy", values, supported=False)
    if run.moved is not None:
        yield Finding("quality", "quality/moved", {"words": to_data(run.moved)}, supported=False)


def ahead(found: Sequence[Reading], rule: str = "ahead") -> Iterator[Finding]:
    """For each method: on which cases it is the fastest of those whose arithmetic the problem allows."""
    strict = [r for r in found if r.strict]
    cases = {case: rs for case, rs in by_case(strict).items() if len(rs) > 1}
    if not cases:
        yield Finding(rule, "ahead/too-few", {}, supported=False)
        return
    winners, unsure = ranked(cases)
    cases = {case: cases[case] for case in winners}
    never: list[str] = []
    for method in _distinct(r.method for r in strict):
        tried = [case for case, rs in cases.items() if method in {r.method for r in rs}]
        alone = [case for case in tried if [r.method for r in winners[case]] == [method]]
        level = [case for case in tried if case not in alone and method in {r.method for r in winners[case]}]
        if not tried:
            continue
        if not alone and not level:
            never.append(method)
            continue
        lead = _leads(method, alone, cases)
        values: dict[str, Any] = {
            "method": method,
            "tried": len(tried),
            "n": len(alone),
            "cases": alone,
            "level": level,
            "most": max((ratio for _, ratio in lead), default=1.0),
            "most_case": max(lead, key=lambda pair: pair[1])[0] if lead else "",
        }
        form = "all" if len(alone) == len(tried) else "some" if alone and not level else "level"
        form = "some-level" if alone and level else form
        rests = tuple(r.datum() for case in alone + level for r in sorted(cases[case], key=lambda r: r.seconds)[:2])
        yield Finding(rule, f"ahead/{form}", values, rests)
    if never:
        rests = tuple(rs[0].datum() for rs in winners.values())
        yield Finding(rule, "ahead/never", {"methods": never, "tried": len(cases)}, rests)
    if unsure:
        yield Finding(rule, "undecided/fastest", {"unsure": unsure}, supported=False)


def _leads(method: str, cases: Iterable[str], every: dict[str, list[Reading]]) -> list[tuple[str, float]]:
    """By how much a method leads each of its cases."""
    found = []
    for case in cases:
        own = next(r for r in every[case] if r.method == method)
        next_best = min(r.seconds for r in every[case] if r.method != method)
        found.append((case, next_best / own.seconds))
    return found


def winners_along(one: Series, rule: str, *, strict: bool = True) -> Iterator[Finding]:
    """Which method is fastest where along a series: one for all, or stretches with their crossovers."""
    points = {place: [r for r in found if r.strict or not strict] for place, found in one.points.items()}
    points = {place: found for place, found in points.items() if len(found) > 1}
    values: dict[str, Any] = {"workload": one.workload, "axis": one.axis, "places": list(points)}
    if len(points) < 2:
        yield Finding(rule, "winners/too-few", values, supported=False)
        return
    winners, unsure = ranked(points)
    points = {place: points[place] for place in winners}
    values |= {"unsure": unsure, "places": list(points)}
    if not points:
        yield Finding(rule, "undecided/series", values, supported=False)
        return
    parts = stretches({place: [r.method for r in leaders] for place, leaders in winners.items()})
    rests = tuple(r.datum() for found in points.values() for r in sorted(found, key=lambda r: r.seconds)[:2])
    values |= {"stretches": parts, "first": parts[0]["first"], "last": parts[-1]["last"], "n": len(points)}
    if len(parts) == 1:
        yield _one_winner(points, parts[0], values, rests, rule)
        return
    yield Finding(rule, "winners/changes", values, rests)


def _one_winner(
    points: Mapping[int, list[Reading]], part: Mapping[str, Any], values: dict[str, Any], rests: tuple[Datum, ...],
    rule: str,
) -> Finding:  # fmt: skip
    """One method leads a whole series: alone everywhere, at some places level with others, or never alone."""
    method, level = part["methods"][0], part["level"]
    leads = []
    for place, found in points.items():
        if place not in level:
            own = next(r.seconds for r in found if r.method == method)
            leads.append(min(r.seconds for r in found if r.method != method) / own)
    values |= {
        "method": method,
        "methods": part["methods"],
        "level": level,
        "least": min(leads, default=1.0),
        "most": max(leads, default=1.0),
    }
    if not leads:
        return Finding(rule, "winners/level", values, rests, supported=False)
    return Finding(rule, "winners/mostly" if level else "winners/one", values, rests)


def spanned(ratios: Mapping[str, float]) -> dict[str, Any]:
    """The least and the most of ratios, each with its case."""
    least, most = min(ratios, key=lambda c: ratios[c]), max(ratios, key=lambda c: ratios[c])
    return {"least": ratios[least], "least_case": least, "most": ratios[most], "most_case": most}


def pair(found: Iterable[Reading], slow: str, fast: str, rule: str) -> Iterator[Finding]:
    """Two methods, case by case: where the one that should be faster is so, by how much, and where not."""
    pairs = {}
    for case, rs in by_case(found).items():
        a, b = (next((r for r in rs if r.method == name), None) for name in (slow, fast))
        if a is not None and b is not None:
            pairs[case] = (a, b)
    told, unsure = decided(pairs)
    both = list(told.values())
    values: dict[str, Any] = {"slow": slow, "fast": fast, "n": len(both), "unsure": unsure}
    if not both:
        yield Finding(rule, "undecided/pair" if unsure else "pair/missing", values, supported=False)
        return
    ratios = {b.case: a.seconds / b.seconds for a, b in both}
    orders = {b.case: order(b.timing, a.timing) for a, b in both}
    split = {
        name: [case for case, verdict in orders.items() if verdict == name] for name in ("faster", "slower", "level")
    }
    least, most = min(ratios, key=lambda c: ratios[c]), max(ratios, key=lambda c: ratios[c])
    values |= {
        "least": ratios[least],
        "most": ratios[most],
        "least_case": least,
        "most_case": most,
        "span": {"least": ratios[least], "least_case": least, "most": ratios[most], "most_case": most},
        "inverse": {"least": 1 / ratios[most], "least_case": most, "most": 1 / ratios[least], "most_case": least},
        "split": split,
    }
    form = next((f"all-{name}" for name, cases in split.items() if len(cases) == len(both)), "mixed")
    rests = tuple(r.datum() for ab in both for r in ab)
    yield Finding(rule, f"pair/{form}", values, rests, supported=not form.endswith("level"))


def trend(one: Series, points: dict[int, tuple[Reading, Reading]], slow: str, fast: str, rule: str) -> Finding:
    """Whether the gain of a method over another grows along an axis: every step by more than the spreads, or not."""
    values: dict[str, object] = {
        "slow": slow,
        "fast": fast,
        "axis": one.axis,
        "workload": one.workload,
        "n": len(points),
    }
    rests = tuple(r.datum() for ab in points.values() for r in ab)
    if len(points) < 3:
        return Finding(rule, "trend/too-few", values, rests, supported=False)
    gains = {place: a.seconds / b.seconds for place, (a, b) in points.items()}
    noise = {place: a.timing.spread + b.timing.spread for place, (a, b) in points.items()}
    places = list(gains)
    steps = []
    for before, after in itertools.pairwise(places):
        change = gains[after] / gains[before] - 1
        steps.append(0 if abs(change) <= noise[before] + noise[after] else 1 if change > 0 else -1)
    values |= {
        "first": places[0],
        "last": places[-1],
        "first_gain": gains[places[0]],
        "last_gain": gains[places[-1]],
        "gains": list(gains.values()),
        "least": min(gains.values()),
        "most": max(gains.values()),
    }
    if not any(steps):
        form = "steady" if max(gains.values()) <= (1 + LEVEL) * min(gains.values()) else "unsure"
        return Finding(rule, f"trend/{form}", values, rests, supported=False)
    form = "no-order" if {1, -1} <= set(steps) else "grows" if 1 in steps else "falls"
    return Finding(rule, f"trend/{form}", values, rests)


Family = tuple[str, Callable[[Result], bool]]


def crossover(one: Series, before: Family, after: Family, rule: str) -> Finding:
    """From where along a series the best method of one family is faster than the best of another.

    A family is a name for sentences, and which results are of it.
    """
    both: dict[int, tuple[Reading, Reading]] = {}
    for place, found in one.points.items():
        own = [[r for r in found if holds(r.result)] for _, holds in (before, after)]
        if own[0] and own[1]:
            both[place] = (min(own[0], key=lambda r: r.seconds), min(own[1], key=lambda r: r.seconds))
    values: dict[str, Any] = {
        "workload": one.workload,
        "axis": one.axis,
        "before": before[0],
        "after": after[0],
        "n": len(both),
    }
    rests = tuple(r.datum() for ab in both.values() for r in ab)
    if len(both) < 2:
        return Finding(rule, "crossover/too-few", values, rests, supported=False)
    both, unsure = decided(both)
    values |= {"n": len(both), "unsure": unsure}
    if not both:
        return Finding(rule, "undecided/families", values, rests, supported=False)
    verdicts = {place: order(b.timing, a.timing) for place, (a, b) in both.items()}
    won = [place for place, verdict in verdicts.items() if verdict == "faster"]
    lost = [place for place, verdict in verdicts.items() if verdict == "slower"]
    level = [place for place, verdict in verdicts.items() if verdict == "level"]
    gains = {place: a.seconds / b.seconds for place, (a, b) in both.items()}
    first, last = min(both), max(both)
    values |= {
        "won": won,
        "lost": lost,
        "level": level,
        "first": first,
        "last": last,
        "last_gain": gains[last],
        "first_loss": 1 / gains[first],
        "first_gain": gains[first],
    }
    if lost:
        at = max(lost)
        values |= {
            "last_lost": at,
            "last_loss": 1 / gains[at],
            "last_before": both[at][0].method,
            "last_after": both[at][1].method,
        }
    if not lost:
        form = "always" if not level else "never-behind" if won else "level"
    elif not won:
        form = "never"
    elif max(lost) < min(won):
        values |= {"crossover": min(won), "crossover_gain": gains[min(won)]}
        form = "at" if min(won) < last else "at-last"
    else:
        form = "back" if min(lost) > max(won) else "scattered"
        values |= {"last_won": max(won), "first_lost": min(lost)}
    return Finding(rule, f"crossover/{form}", values, rests, supported=form != "level")


def share_of_peak(run: Run, found: Sequence[Reading], rule: str = "share-of-peak") -> Iterator[Finding]:
    """What the fastest reach of the FMA peak, and whether everything stays far below it."""
    ceilings = run.best_ceilings
    strict = [r for r in found if r.strict and "f64" not in r.result.problem]
    if ceilings is None or not strict:
        yield Finding(rule, "peak/unknown", {}, supported=False)
        return
    peak = ceilings.fma_flops_per_s

    def share(r: Reading) -> float:
        return r.flops_per_s / peak

    best: dict[str, Reading] = {}
    for r in sorted(strict, key=share, reverse=True):
        best.setdefault(r.method, r)
    top = next(iter(best.values()))
    values = {
        "peak": peak,
        "n": len(strict),
        "cases": len(by_case(strict)),
        "low": LOW_SHARE,
        "top": top.method,
        "top_case": top.case,
        "top_share": share(top),
        "top_rate": top.flops_per_s,
        "lowest_share": min(map(share, strict)),
        "others": [{"method": m, "case": r.case, "share": share(r)} for m, r in best.items() if r is not top],
    }
    own = next((r for r in best.values() if r.result.ours), top)
    values |= {"own": own.method, "own_case": own.case, "own_share": share(own)}
    form = "peak/low" if share(top) < LOW_SHARE else "peak/top" if own is top else "peak/library"
    yield Finding(rule, form, values, (*tuple(r.datum() for r in best.values()), _ceiling(run, "fma_flops_per_s")))


def _ceiling(run: Run, name: str) -> Datum:
    """A ceiling of the run as a figure."""
    return Datum("", "", "", name, getattr(run.best_ceilings, name))


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


ENGLISH = {
    "quality/nothing-timed": "No conclusion: none of {rows:count row} has a time.",
    "quality/skipped": "{rows} of {of} rows were skipped and say nothing: {methods:names}, on {cases:names}.",
    "quality/failed": "{rows} of {of} rows failed the check and have no time: {methods:names}, on {cases:names}.",
    "quality/error": "{rows} of {of} rows ended with an error: {methods:names}, on {cases:names}.",
    "quality/no-spread": "{times} of {of} times are single figures without a spread: small differences may be noise.",
    "quality/noisy": "{times} of {of} times are noisy (largest spread {spread:percent}): {methods:names}.",
    "quality/moved": "The machine did not hold still ({words:reason}): differences of that size say nothing.",
    "ahead/all": "{method} is the fastest on {tried:all case}, by up to {most:times} ({most_case}).",
    "ahead/some": "{method} is the fastest on {n} of {tried} cases ({cases:names}), by up to {most:times} "
    "({most_case}).",
    "ahead/some-level": "{method} is the fastest on {n} of {tried} cases ({cases:names}), by up to {most:times} "
    "({most_case}), and level with the fastest on {level:names}.",
    "ahead/level": "{method} is never the fastest alone; it is level with the fastest on {level:names}, of "
    "{tried:count case}.",
    "ahead/never": "Never the fastest in {tried:count case}: {methods:names}.",
    "undecided/fastest": "On some cases the fastest cannot be told.",
    "undecided/growth": "How the time grows from {small} to {large} cannot be told: {small_s:time} and {large_s:time} "
    "are too noisy to rank ({workload:workload}).",
    "undecided/series": "The fastest along the {axis:axis} cannot be told ({workload:workload}).",
    "undecided/pair": "{fast} against {slow}: which is faster cannot be told.",
    "undecided/families": "The best {after:word} method against the best {before:word} one: which is faster cannot be "
    "told ({workload:workload}).",
    "ahead/too-few": "Who is ahead cannot be said: on no case were two methods timed.",
    "winners/one": "{method} is the fastest along the {axis:axis}, from {first} to {last}, by {least:times} to "
    "{most:times} ({workload:workload}).",
    "winners/mostly": "{method} is the fastest along the {axis:axis}, from {first} to {last}, by up to {most:times}, "
    "but level with others at {level:names} ({workload:workload}).",
    "winners/level": "No method is the fastest alone along the {axis:axis}, from {first} to {last}; {methods:names} is "
    "level with the fastest at each of them ({workload:workload}).",
    "winners/changes": "The fastest is {stretches:stretches}, along the {axis:axis} ({workload:workload}).",
    "winners/too-few": "No crossover can be found; two methods were timed at fewer than two places "
    "({workload:workload}).",
    "pair/all-faster": "{fast} is faster than {slow} on {n:all case}, by {span:span}.",
    "pair/all-slower": "{fast} is slower than {slow} on {n:all case}: it takes {inverse:span} the time.",
    "pair/all-level": "{fast} and {slow} are level on {n:all case}.",
    "pair/mixed": "{fast} against {slow}: {split:split}; the gain goes from {span:span}.",
    "pair/missing": "{fast} against {slow}: no case has times of both, so nothing can be said.",
    "crossover/at": "The best {after:word} method overtakes the best {before:word} one at a {axis:axis} between "
    "{last_lost} and {crossover} ({crossover_gain:times} at {crossover}, {last_gain:times} at {last}); at {first} it "
    "takes {first_loss:times} the time ({workload:workload}).",
    "crossover/at-last": "The best {after:word} method overtakes the best {before:word} one at a {axis:axis} between "
    "{last_lost} and {last}, the last ({last_gain:times} at {last}); at {first} it takes {first_loss:times} the time "
    "({workload:workload}).",
    "crossover/always": "The best {after:word} method is faster than the best {before:word} one at {n:each place}, "
    "{first_gain:times} at {first}, {last_gain:times} at {last} ({workload:workload}).",
    "crossover/never-behind": "The best {after:word} method is faster than the best {before:word} one at {won:names}, "
    "and level at {level:names} ({workload:workload}).",
    "crossover/never": "The best {after:word} method is at none of {n:count place} faster than the best {before:word} "
    "one; at {last_lost} it takes {last_loss:times} the time ({last_after} against {last_before}; "
    "{workload:workload}).",
    "crossover/level": "The best {after:word} and the best {before:word} method are level at {n:each place} "
    "({workload:workload}).",
    "crossover/back": "The best {after:word} method is faster than the best {before:word} one up to {last_won}, and "
    "slower from {first_lost} on ({last_loss:times} the time at {last_lost}; {workload:workload}).",
    "crossover/scattered": "The best {after:word} method is faster than the best {before:word} one at {won:names} and "
    "slower at {lost:names}: there is no one crossover ({workload:workload}).",
    "crossover/too-few": "Where {after:word} overtakes {before:word} cannot be said: fewer than two places have both "
    "({workload:workload}).",
    "trend/grows": "The gain of {fast} over {slow} grows with the {axis:axis}, from {first_gain:times} at {first} to "
    "{last_gain:times} at {last} ({workload:workload}).",
    "trend/falls": "The gain of {fast} over {slow} falls with the {axis:axis}, from {first_gain:times} at {first} to "
    "{last_gain:times} at {last} ({workload:workload}).",
    "trend/no-order": "The gain of {fast} over {slow} goes up and down with the {axis:axis}, between {least:times} "
    "and {most:times} ({workload:workload}).",
    "trend/steady": "The gain of {fast} over {slow} does not move with the {axis:axis} by more than the spreads, from "
    "{first} to {last} ({workload:workload}).",
    "trend/unsure": "How the gain of {fast} over {slow} moves with the {axis:axis} cannot be told: it lies between "
    "{least:times} and {most:times}, and no step exceeds the spreads ({workload:workload}).",
    "trend/too-few": "How the gain of {fast} over {slow} moves with the {axis:axis} cannot be said from "
    "{n:count place} ({workload:workload}).",
    "peak/low": "Everything stays under {low:percent} of the card's peak of {peak:rate}: the highest of {n:count time} "
    "is {top} on {top_case}, {top_rate:rate} or {top_share:percent}; the lowest has {lowest_share:percent}.",
    "peak/top": "{top} comes nearest to the peak of {peak:rate}: {top_rate:rate} or {top_share:percent} on {top_case}; "
    "the lowest of {n:count time} has {lowest_share:percent}.",
    "peak/library": "{top} comes nearest to the peak of {peak:rate}: {top_rate:rate} or {top_share:percent} on "
    "{top_case}; of what is no library's {own} does, {own_share:percent} on {own_case}; the lowest of {n:count time} "
    "has {lowest_share:percent}.",
    "peak/unknown": "How near to the peak the methods come cannot be said: no peak was measured, or nothing was timed.",
}
