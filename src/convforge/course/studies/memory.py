"""Which memory to use when: the filter in constant memory, the picture in shared memory, outputs in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.reasons import to_data
from convforge.benchmark.records import Counters, Profile, Run
from convforge.benchmark.store import Store, load_run
from convforge.benchmark.suites import Case, load, select
from convforge.course.studies import common
from convforge.course.studies.counters import Call, NoCounters, count
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading, by_case, decided, device_backend, readings, series
from convforge.course.studies.study import Part, Study
from convforge.problem import Conv2dProblem, parse_problem
from convforge.problem.types import itemsize

METHODS = ("direct_*",)
# What a step of the ladder changes: rule -> the method before and the method with it.
STEPS = {
    "constant-memory": ("direct_naive", "direct_constant"),
    "shared-memory": ("direct_naive", "direct_shared"),
    "registers": ("direct_shared", "direct_tiled"),
    "boxes": ("direct_tiled", "direct_boxes"),
    "rows-in-cache": ("direct_naive", "direct_rows"),
}
# Whose cases are profiled.
PROFILED_CHANNELS = 3
# A tutorial's claims of what shared memory brings: 2 to 4 times for 5x5, 3 to 7 times for larger filters.
CLAIMS: dict[str, tuple[Callable[[Any], bool], float, float]] = {
    "5x5": (lambda p: p.r == 5, 2.0, 4.0),
    "larger": (lambda p: p.r > 5, 3.0, 7.0),
}


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """One channel to eight, filters from 3x3 to 15x15."""
    cases = load(["memory"])[1]
    if quick:
        return [Part([_small(case) for case in cases[:3]], METHODS)]
    if facts.backend != "cuda":
        return [Part([_small(case, 512) for case in select(cases) if case.problem.c < 8], METHODS)]  # type: ignore[union-attr]
    return [Part(cases, METHODS)]


def _small(case: Case, size: int = 64) -> Case:
    """The case on a smaller picture."""
    assert isinstance(case.problem, Conv2dProblem)
    return replace(case, name=case.name.replace("2048", str(size)), problem=replace(case.problem, h=size, w=size))


def steps(run: Run) -> Iterator[Finding]:
    """Each step of the ladder against the one before, where the run has either."""
    found = readings(run, "conv2d")
    there = {r.method for r in found}
    for rule, (slow, fast) in STEPS.items():
        if {slow, fast} & there and (fast in there or device_backend(run) != "cpu") and rule_fits(rule, run):
            for finding in common.pair(found, slow, fast, rule):
                turns = _turns([r for r in found if r.method == fast], finding.values.get("split", {}))
                mixed = finding.form == "pair/mixed" and turns
                yield (
                    replace(finding, form="steps/turns", values={**finding.values, "turns": turns})
                    if mixed
                    else finding
                )


def _turns(found: Sequence[Reading], split: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """By channels, between which square filters faster turns to slower; empty where cases differ in more than those.

    Numbers of channels with the same turns stand together.
    """
    orders = {case: name for name, cases in split.items() for case in cases}
    problems = {r.case: r.problem for r in found if r.case in orders}
    places = {case: (p.c, p.r) for case, p in problems.items()}
    square = all(p.r == p.s and p.groups == 1 for p in problems.values())
    if not square or len({(p.n, p.h, p.w, p.k, p.stride, p.x_dtype, p.x_layout) for p in problems.values()}) != 1:
        return []
    if len(set(places.values())) < len(orders):
        return []
    said: dict[int, list[dict[str, Any]]] = {}
    for case, (channels, side) in sorted(places.items(), key=lambda pair: pair[1]):
        runs = said.setdefault(channels, [])
        if runs and runs[-1]["order"] == orders[case]:
            runs[-1]["last"] = side
        else:
            runs.append({"order": orders[case], "first": side, "last": side})
    turns: list[dict[str, Any]] = []
    for channels, runs in said.items():
        same = next((turn for turn in turns if turn["runs"] == runs), None)
        if same is None:
            turns.append({"channels": [channels], "runs": runs})
        else:
            same["channels"].append(channels)
    return turns


def rule_fits(rule: str, run: Run) -> bool:
    """Rows in the cache are the CPU's step, the others a GPU's."""
    return (rule == "rows-in-cache") == (device_backend(run) == "cpu")


def growth(run: Run) -> Iterator[Finding]:
    """Whether what shared memory brings grows with the filter, and with the channels."""
    slow, fast = STEPS["rows-in-cache" if device_backend(run) == "cpu" else "shared-memory"]
    found = [r for r in readings(run, "conv2d") if r.method in (slow, fast)]
    for axis in ("filter", "inputs"):
        for one in series(found, axis):
            a, b = one.method(slow), one.method(fast)
            points = {place: (a[place], b[place]) for place in one.places if place in a and place in b}
            if len(one.places) > 1:
                yield common.trend(one, points, slow, fast, f"gain-by-{axis}")


def claim(run: Run) -> Iterator[Finding]:
    """A tutorial's claims of what shared memory brings, beside what was measured."""
    slow, fast = STEPS["shared-memory"]
    if device_backend(run) == "cpu":
        return
    cases = by_case(r for r in readings(run, "conv2d") if r.method in (slow, fast))
    pairs = {
        case: (rs[0], rs[1]) if rs[0].method == slow else (rs[1], rs[0]) for case, rs in cases.items() if len(rs) == 2
    }
    told, unsure = decided(pairs)
    both = list(told.values())
    for name, (wanted, low, high) in CLAIMS.items():
        gains = {b.case: a.seconds / b.seconds for a, b in both if wanted(b.problem)}
        values: dict[str, Any] = {"filters": name, "low": low, "high": high, "n": len(gains), "unsure": unsure}
        if not gains:
            yield Finding("published-claim", f"claim/untested-{name}", values, supported=False)
            continue
        held = [case for case, gain in gains.items() if low <= gain <= high]
        values |= {"least": min(gains.values()), "most": max(gains.values()), "held": held, "k": len(held)}
        form = "confirmed" if len(held) == len(gains) else "partly" if held else "refuted"
        rests = tuple(r.datum() for ab in both if wanted(ab[1].problem) for r in ab)
        yield Finding("published-claim", f"claim/{form}-{name}", values, rests)


def traffic(run: Run) -> Iterator[Finding]:
    """Bytes that the naive kernel requests against those that must move, and what its time says of the caches."""
    best = run.best_ceilings
    found = [r for r in readings(run, "conv2d") if r.method == "direct_naive"]
    if not found or best is None or best.copy_bytes_per_s <= 0:
        yield Finding("traffic", "traffic/unknown", {}, supported=False)
        return
    rates = {r.case: requested(r) / r.seconds for r in found}
    above = [case for case, rate in rates.items() if rate > best.copy_bytes_per_s]
    case = max(rates, key=lambda c: rates[c])
    top = next(r for r in found if r.case == case)
    values: dict[str, Any] = {
        "n": len(found),
        "case": case,
        "requested": requested(top),
        "least": top.result.least_bytes,
        "times": requested(top) / top.result.least_bytes,
        "rate": rates[case],
        "copy": best.copy_bytes_per_s,
        "share": 1 - best.copy_bytes_per_s / rates[case],
        "above": above,
        "k": len([other for other in above if other != case]),
        "others": len(found) - 1,
        "s": top.seconds,
    }
    rests = (*(r.datum() for r in found), Datum("", "", "", "copy_bytes_per_s", best.copy_bytes_per_s))
    form = "below" if not above else "cached" if len(found) > 1 else "cached-alone"
    yield Finding("traffic", f"traffic/{form}", values, rests)


def requested(r: Reading) -> int:
    """Bytes that a kernel asks for which reads its whole window, picture and filter, for each output."""
    p: Conv2dProblem = r.problem
    return p.outputs * (p.taps * (itemsize(p.x_dtype) + itemsize(p.w_dtype)) + itemsize(p.out_dtype))


def profile(runtime: Runtime, store: Store, quick: bool) -> None:
    """On a GPU, a profiler's counters of every method on the pictures of three channels."""
    if runtime.facts.backend != "cuda":
        return
    timed = [r for r in load_run(store.path).results if r.time is not None and r.ours]
    calls = [
        Call(r.case, r.operation, r.algorithm, r.problem, r.config, tuple(str(info["kernel"]) for info in r.launches))
        for r in timed
        if parse_problem(r.problem).c == PROFILED_CHANNELS  # type: ignore[union-attr]
    ]
    try:
        found = Profile(tuple(count(calls, f"cuda:{runtime.device}")))  # type: ignore[attr-defined]
    except NoCounters as fault:
        found = Profile(reason=fault.reason)
    store.append(found.to_record())
    store.append({"kind": "end", "complete": True})


def counters(run: Run) -> Iterator[Finding]:
    """What a profiler counted on the largest filter: where each method finds what it asks for, and what moves."""
    profile = run.profile
    if profile is None or not profile.counters:
        reason = None if profile is None else to_data(profile.reason)
        values: dict[str, Any] = {"n": len(run.results), "reason": reason}
        form = "hit-rates/none" if reason is None else "hit-rates/not-counted"
        yield Finding("hit-rates", form, values, supported=False)
        return
    results = {(r.case, r.algorithm, r.config): r for r in run.results}
    counted = [c for c in profile.counters if (c.case, c.method, c.config) in results]
    by_method = {c.method: c for c in sorted(counted, key=lambda c: results[c.case, c.method, c.config].flops)}
    for method, c in by_method.items():
        least = results[c.case, method, c.config].least_bytes
        values = {"method": method, "case": c.case, "l1": c.l1_hit, "l2": c.l2_hit, "asked": c.l1_bytes,
                  "moved": c.dram_bytes, "least": least, "times": c.dram_bytes / least}  # fmt: skip
        form = "hit-rates/counted" if c.dram_bytes >= least else "hit-rates/kept"
        # What a kernel reads from shared memory passes no cache, so a hit rate tells nothing of it.
        launches = results[c.case, method, c.config].launches
        form += "-shared" if any(launch.get("scratch_bytes") for launch in launches) else ""
        yield Finding("hit-rates", form, values, _counted(c, "l1_hit", "l2_hit", "dram_bytes"))
    for rule in ("shared-memory", "registers"):
        slow, fast = (by_method.get(name) for name in STEPS[rule])
        if slow is not None and fast is not None and slow.case == fast.case and slow.l1_bytes and fast.l1_bytes:
            values = {"slow": slow.method, "fast": fast.method, "case": fast.case, "slow_bytes": slow.l1_bytes,
                      "fast_bytes": fast.l1_bytes, "times": slow.l1_bytes / fast.l1_bytes,
                      "inverse": fast.l1_bytes / slow.l1_bytes}  # fmt: skip
            form = "fewer" if fast.l1_bytes < slow.l1_bytes else "more"
            rests = (*_counted(slow, "l1_bytes"), *_counted(fast, "l1_bytes"))
            yield Finding("asked-of-l1", f"asked/{form}", values, rests)


def _counted(c: Counters, *names: str) -> tuple[Datum, ...]:
    return tuple(Datum(c.case, c.method, c.config, name, float(getattr(c, name))) for name in names)


ENGLISH = {
    "steps/turns": "{fast} against {slow}: {turns:turns}; the gain goes from {span:span}.",
    "claim/confirmed-5x5": "The claim that shared memory brings {low:.0f} to {high:.0f} times for 5x5 filters is "
    "confirmed here: {least:times} to {most:times} on {n:count case}.",
    "claim/partly-5x5": "The claim that shared memory brings {low:.0f} to {high:.0f} times for 5x5 filters holds on "
    "{k} of {n:count case} here: {least:times} to {most:times}.",
    "claim/refuted-5x5": "The claim that shared memory brings {low:.0f} to {high:.0f} times for 5x5 filters does not "
    "hold here: {least:times} to {most:times} on {n:count case}.",
    "claim/untested-5x5": "The claim that shared memory brings {low:.0f} to {high:.0f} times for 5x5 filters is not "
    "tested: no such case has both times.",
    "traffic/cached": "Straight from the definition, {case} requests {requested:megabytes}, {times:.0f} times the "
    "{least:megabytes} that must move. In {s:time} that is {rate:bytes_rate}, above the {copy:bytes_rate} of a copy: "
    "so at least {share:percent} of it did not come from memory: a cache had it, or one read served several threads. "
    "The same holds for {k} of {others:count other case}.",
    "traffic/below": "Straight from the definition, {case} requests {requested:megabytes}, {times:.0f} times the "
    "{least:megabytes} that must move; at {rate:bytes_rate}, below the {copy:bytes_rate} of a copy, its time does not "
    "show whether caches served any of it.",
    "traffic/unknown": "What the naive kernel requests against what a copy moves cannot be said: one of the two was "
    "not measured.",
    "hit-rates/counted": "{method} on {case}: L1 has {l1:percent} of what it is asked for, L2 {l2:percent} of what "
    "comes to it; {moved:megabytes} pass to and from memory, {times:times} the {least:megabytes} that must.",
    "hit-rates/kept": "{method} on {case}: L1 has {l1:percent} of what it is asked for, L2 {l2:percent} of what comes "
    "to it; {moved:megabytes} pass to and from memory, less than the {least:megabytes} that must: the rest of the "
    "output stands in the last cache when the kernel ends.",
    "hit-rates/not-counted": "Hit rates of the caches are not known: {reason:reason}; what is said of caches follows "
    "from bytes and times.",
    "asked/fewer": "On {case}, {slow} requests {times:times} as many bytes from L1 as {fast}, reads from shared memory "
    "not counted: {slow_bytes:megabytes} against {fast_bytes:megabytes}.",
    "asked/more": "On {case}, {fast} requests {inverse:times} as many bytes from L1 as {slow}, reads from shared "
    "memory not counted: {fast_bytes:megabytes} against {slow_bytes:megabytes}.",
    "hit-rates/none": "Hit rates of the caches are not known: none of {n:count result} carries a profiler's "
    "counters; what is said of caches follows from bytes and times.",
}
ENGLISH["traffic/cached-alone"] = ENGLISH["traffic/cached"].removesuffix(
    " The same holds for {k} of {others:count other case}."
)
ENGLISH |= {
    f"{form}-shared": ENGLISH[form].removesuffix(".")
    + "; what it reads from shared memory is not counted in the share of L1."
    for form in ("hit-rates/counted", "hit-rates/kept")
}
ENGLISH |= {
    form.replace("5x5", "larger"): said.replace("5x5 filters", "filters larger than 5x5")
    for form, said in list(ENGLISH.items())
    if form.startswith("claim/")
}

STUDY = Study(
    "memory",
    "Which memory to use when: what do constant memory, shared memory and registers bring, by filter and channels?",
    parts,
    (steps, growth, claim, traffic, counters),
    ENGLISH,
    gpu_s=70.0,
    extra=profile,
    answered_by=(
        "constant-memory",
        "shared-memory",
        "registers",
        "rows-in-cache",
        "gain-by-filter",
        "gain-by-inputs",
    ),
)
