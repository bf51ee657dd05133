"""Gain of each kind of memory: the filter in constant memory, the image in shared memory, outputs in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.reasons import to_data
from convforge.benchmark.records import Counters, Profile, Run
from convforge.benchmark.store import Store, load_run
from convforge.benchmark.suites import Case, load, select
from convforge.course.studies import rules
from convforge.course.studies.counters import Call, NoCounters, count
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import Reading, data_of, device_backend, named, readings, series, versus
from convforge.course.studies.study import Part, study
from convforge.problem import Conv2dProblem, parse_problem
from convforge.problem.types import itemsize

# Steps of the ladder: rule -> the method without the step and the method with it.
STEPS = {
    "constant-memory": ("direct_naive", "direct_constant"),
    "shared-memory": ("direct_naive", "direct_shared"),
    "registers": ("direct_shared", "direct_tiled"),
    "boxes": ("direct_tiled", "direct_boxes"),
    "rows-in-cache": ("direct_naive", "direct_rows"),
}
# Number of channels of the profiled cases.
PROFILED_CHANNELS = 3
# A tutorial's claims about the speedup by shared memory: 2 to 4 for 5x5, 3 to 7 for larger filters.
CLAIMS: dict[str, tuple[str, Callable[[Any], bool], float, float]] = {
    "5x5": ("5x5 filters", lambda p: p.r == 5, 2.0, 4.0),
    "larger": ("filters larger than 5x5", lambda p: p.r > 5, 3.0, 7.0),
}


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return cases of one to eight channels with filters from 3x3 to 15x15."""
    cases = load(["memory"])[1]
    if quick:
        return [Part([_small(case) for case in cases[:3]], ("direct_*",))]
    if facts.backend != "cuda":
        return [Part([_small(case, 512) for case in select(cases) if case.problem.c < 8], ("direct_*",))]  # type: ignore[union-attr]
    return [Part(cases, ("direct_*",))]


def _small(case: Case, size: int = 64) -> Case:
    """Return the case on a smaller image."""
    assert isinstance(case.problem, Conv2dProblem)
    return replace(case, name=case.name.replace("2048", str(size)), problem=replace(case.problem, h=size, w=size))


def steps(run: Run) -> Iterator[Finding]:
    """Compare each step of the ladder with the step before, if the run has one of the two."""
    found = readings(run, "conv2d")
    timed, cpu = {r.method for r in found}, device_backend(run) == "cpu"
    for rule, (slow, fast) in STEPS.items():
        # Rows in the cache are a step of the CPU only, the other steps are for GPUs.
        if (rule == "rows-in-cache") != cpu or not {slow, fast} & timed or (cpu and fast not in timed):
            continue
        finding = rules.pair(found, slow, fast, rule)
        if turns := _turns([r for r in found if r.method == fast], finding.values.get("where", {})):
            finding = replace(finding, form="steps/turns", values={**finding.values, "where": turns})
        yield finding


def _turns(found: Iterable[Reading], split: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Map each order to its square filters ("C 1, 3: 3x3-5x5"); returns {} if cases differ in other parameters too.

    `split` has the cases of each order; C is the number of channels.
    """
    orders = {case: name for name, cases in split.items() for case in cases}
    problems = {r.case: r.problem for r in found if r.case in orders}
    places = {case: (p.c, p.r) for case, p in problems.items()}
    square = all(p.r == p.s and p.groups == 1 for p in problems.values())
    kinds = {(p.n, p.h, p.w, p.k, p.stride, p.x_dtype, p.x_layout) for p in problems.values()}
    if not square or len(kinds) != 1 or len(set(places.values())) < len(orders):
        return {}
    # Order -> channels -> ranges of filters. Channels with the same ranges are later joined into one entry.
    spans: dict[str, dict[int, str]] = {}
    ordered = sorted(places, key=lambda case: places[case])
    for (channels, name), cases in groupby(ordered, key=lambda case: (places[case][0], orders[case])):
        sides = [f"{places[case][1]}x{places[case][1]}" for case in cases]
        words = "-".join(dict.fromkeys((sides[0], sides[-1])))
        before = spans.setdefault(name, {}).get(channels)
        spans[name][channels] = f"{before}, {words}" if before else words
    return {
        name: [
            f"C {', '.join(str(c) for c, own in by_channels.items() if own == words)}: {words}"
            for words in dict.fromkeys(by_channels.values())
        ]
        for name, by_channels in spans.items()
    }


def growth(run: Run) -> Iterator[Finding]:
    """Change of the gain of shared memory with the filter size, and with the number of channels."""
    slow, fast = STEPS["rows-in-cache" if device_backend(run) == "cpu" else "shared-memory"]
    found = [r for r in readings(run, "conv2d") if r.method in (slow, fast)]
    for axis in ("filter", "inputs"):
        for one in series(found, axis):
            if len(one.places) > 1:
                yield rules.trend(one, slow, fast, f"gain-by-{axis}")


def claim(run: Run) -> Iterator[Finding]:
    """Compare a tutorial's claims about the gain of shared memory with the measured gain."""
    slow, fast = STEPS["shared-memory"]
    if device_backend(run) == "cpu":
        return
    compared = versus(readings(run, "conv2d"), named(fast), named(slow))
    for name, (filters, wanted, low, high) in CLAIMS.items():
        gains = {case: compared.gains[case] for case, (own, _) in compared.pairs.items() if wanted(own.problem)}
        values: dict[str, Any] = {"filters": filters, "low": low, "high": high, "n": len(gains),
                                  "unsure": compared.unsure}  # fmt: skip
        if not gains:
            yield undecided("published-claim", f"claim/untested-{name}", **values)
            continue
        held = [case for case, gain in gains.items() if low <= gain <= high]
        values |= {"least": min(gains.values()), "most": max(gains.values()), "k": len(held)}
        form = "confirmed" if len(held) == len(gains) else "partly" if held else "refuted"
        data = data_of(r for case in gains for r in compared.pairs[case])
        yield Finding("published-claim", f"claim/{form}-{name}", values, data)


def traffic(run: Run) -> Iterator[Finding]:
    """Compare the bytes that direct_naive requests with the least bytes to move, and with its time (cache effects)."""
    best = run.best_ceilings
    found = {r.case: r for r in readings(run, "conv2d") if r.method == "direct_naive"}
    if not found or best is None or best.copy_bytes_per_s <= 0:
        yield undecided("traffic", "traffic/unknown")
        return
    rates = {case: requested(r) / r.seconds for case, r in found.items()}
    above = [case for case, rate in rates.items() if rate > best.copy_bytes_per_s]
    case = max(rates, key=lambda c: rates[c])
    top = found[case]
    values = {"n": len(found), "k": len(above), "case": case, "requested": requested(top), "s": top.seconds,
              "least": top.result.least_bytes, "times": requested(top) / top.result.least_bytes, "rate": rates[case],
              "copy": best.copy_bytes_per_s,
              "share": 1 - best.copy_bytes_per_s / rates[case] if above else None}  # fmt: skip
    data = (*data_of(found.values()), Datum("", "", "", "copy_bytes_per_s", best.copy_bytes_per_s))
    form = "below" if not above else "cached" if len(found) > 1 else "cached-alone"
    yield Finding("traffic", f"traffic/{form}", values, data)


def requested(r: Reading) -> int:
    """Bytes that a kernel requests if it reads the complete window of image and filter for each output."""
    p: Conv2dProblem = r.problem
    return p.outputs * (p.taps * (itemsize(p.x_dtype) + itemsize(p.w_dtype)) + itemsize(p.out_dtype))


def profile(runtime: Runtime, store: Store, quick: bool) -> None:
    """Count every method on the images of three channels with the profiler, if the device is a GPU."""
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
    """Hit rates and moved bytes on the largest filter, from the profiler's counters."""
    profile = run.profile
    if profile is None or not profile.counters:
        reason = None if profile is None else to_data(profile.reason)
        yield undecided("hit-rates", "hit-rates/none" if reason is None else "hit-rates/not-counted", reason=reason,
                        n=len(run.results))  # fmt: skip
        return
    results = {(r.case, r.algorithm, r.config): r for r in run.results}
    counted = [(c, results[key]) for c in profile.counters if (key := (c.case, c.method, c.config)) in results]
    by_method = {c.method: (c, r) for c, r in sorted(counted, key=lambda pair: pair[1].flops)}
    for method, (c, r) in by_method.items():
        values = {"method": method, "case": c.case, "l1": c.l1_hit, "l2": c.l2_hit, "moved": c.dram_bytes,
                  "least": r.least_bytes, "times": c.dram_bytes / r.least_bytes}  # fmt: skip
        form = "counted" if c.dram_bytes >= r.least_bytes else "kept"
        # Reads from shared memory pass no cache, so a hit rate does not include them.
        shared = "-shared" if any(launch.get("scratch_bytes") for launch in r.launches) else ""
        yield Finding("hit-rates", f"hit-rates/{form}{shared}", values, _counted(c, "l1_hit", "l2_hit", "dram_bytes"))
    for rule in ("shared-memory", "registers"):
        both = [by_method[name][0] for name in STEPS[rule] if name in by_method]
        if len(both) < 2 or both[0].case != both[1].case or not all(c.l1_bytes for c in both):
            continue
        slow, fast = both
        form = "fewer" if fast.l1_bytes < slow.l1_bytes else "more"
        values = {"slow": slow.method, "fast": fast.method, "case": fast.case, "slow_bytes": slow.l1_bytes,
                  "fast_bytes": fast.l1_bytes, "times": slow.l1_bytes / fast.l1_bytes,
                  "inverse": fast.l1_bytes / slow.l1_bytes}  # fmt: skip
        data = (*_counted(slow, "l1_bytes"), *_counted(fast, "l1_bytes"))
        yield Finding("asked-of-l1", f"asked/{form}", values, data)


def _counted(c: Counters, *names: str) -> tuple[Datum, ...]:
    return tuple(Datum(c.case, c.method, c.config, name, float(getattr(c, name))) for name in names)


STUDY = study("memory", parts, (steps, growth, claim, traffic, counters), extra=profile)
