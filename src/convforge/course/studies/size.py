"""Image size: the fastest method, the cost of a call and of copies, and the size from which a GPU is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Result, Run
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding, undecided
from convforge.course.studies.readings import Comparison, Reading, along, compare, data_of, device_backend
from convforge.course.studies.study import Part, rgb_to_1, study
from convforge.problem import parse_problem
from convforge.timing.ranking import order
from convforge.timing.timer import Timing

SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CPU_SIZES = SIZES[:-2]
METHODS = ("direct_*", "im2col", "implicit_gemm", "cudnn", "torch_conv2d", "opencv_filter2d")
HOST_METHODS = ("direct_rows", "im2col", "torch_conv2d")
# If the time grows by at most this factor while the pixels increase, the call itself dominates it, not the pixels.
FLAT = 1.5
# Time grows in proportion to the pixels if both factors of growth agree within this factor.
IN_STEP = 1.15
# If fewer pixels take this many times longer on the host, other work delayed the host.
FALLS = 2.0
WAYS = {"time": "Without transfer", "transfer_time": "With transfer"}


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return RGB images to one channel, 3x3; with a GPU, times with transfer and the same cases on its host."""
    gpu = facts.backend == "cuda"
    sizes = (32, 64, 128) if quick else SIZES if gpu else CPU_SIZES
    cases = rgb_to_1(sizes, (1,))
    # At larger sizes computing the host's truth takes seconds, and the GPU is certainly faster.
    host = [replace(case, name=f"{case.name}_host") for case in cases if case.problem.h in CPU_SIZES]  # type: ignore[union-attr]
    found = [Part(host, HOST_METHODS, host=True, share=0.4)] if gpu else []
    return [*found, Part(cases, METHODS, transfer=True, share=0.6 if gpu else 1.0)]


def first_stride(run: Run) -> Run:
    """Return the results at the run's smallest stride; the study `stride` covers the others."""
    strides = {r.problem: parse_problem(r.problem).stride for r in run.results}
    first = min((stride for stride in strides.values() if stride), default=())
    return replace(run, results=tuple(r for r in run.results if strides[r.problem] in ((), first)))


def ahead(run: Run) -> Iterator[Finding]:
    """Number of cases on which each method is the fastest, and the methods that never are."""
    yield from rules.ahead([r for one in along(run, "size") for r in one.every])


def floor(run: Run) -> Iterator[Finding]:
    """Largest size up to which the fastest time hardly grows, because the cost of a call dominates."""
    for one in along(run, "size"):
        best = one.best()
        if len(best) < 3:
            yield undecided("call-floor", "floor/too-few", **one.load)
            continue
        times = {size: r.seconds for size, r in best.items()}
        first = next(iter(times.values()))
        after = next((size for size, seconds in times.items() if seconds > FLAT * first), None)
        flat = [size for size in times if after is None or size < after]
        last, begin = flat[-1], one.places[0]
        values = one.load | {"flat": FLAT, "first": begin, "last": last, "first_s": first, "last_s": times[last],
                             "growth": times[last] / first, "pixels": (last / begin) ** 2, "next": after,
                             "next_growth": after and times[after] / times[last]}  # fmt: skip
        form = "none" if len(flat) == 1 else "flat" if after else "all"
        yield Finding("call-floor", f"floor/{form}", values, data_of(best.values()))


def scaling(run: Run) -> Iterator[Finding]:
    """Growth of the fastest time between the two largest sizes, compared with the growth of the pixels."""
    for one in along(run, "size"):
        ends = list(one.best().items())[-2:]
        if len(ends) == 2:
            (small, a), (large, b) = ends
            pixels, grown = (large / small) ** 2, b.seconds / a.seconds
            form = "more" if grown > IN_STEP * pixels else "less" if grown * IN_STEP < pixels else "in-step"
            values = one.load | {"pixels": pixels, "growth": grown, "within": IN_STEP - 1}
            yield rules.growth("growth", f"growth/{form}", ends, values)


def _from_host(run: Run, result: Result) -> Timing | None:
    return result.transfer_time


def transfer(run: Run) -> Iterator[Finding]:
    """Share of the time outside the call, for the method that is fastest on host arrays."""
    timed = along(run, "size", pick=_from_host)
    if not timed and device_backend(run) != "cpu":
        yield undecided("transfer", "transfer/none")
    for one in timed:
        best = one.best()
        calls = {s: replace(r, timing=timing) for s, r in best.items() if (timing := run.timing(r.result)) is not None}
        shares = {s: 1 - calls[s].seconds / r.seconds for s, r in best.items()}
        most, least = max(shares, key=lambda s: shares[s]), min(shares, key=lambda s: shares[s])
        above = [s for s, share in shares.items() if share > 0.5]
        values = one.load | {"least": shares[least], "least_size": least, "most": shares[most], "most_size": most,
                             "n": len(shares), "k": len(above),
                             "where": {"above": above, "below": [s for s in shares if s not in above]}}  # fmt: skip
        form = "most" if len(above) == len(shares) else "mixed" if above else "little"
        data = tuple(d for size, r in best.items() for d in (r.datum("transfer_time"), calls[size].datum()))
        yield Finding("transfer", f"transfer/{form}", values, data)


def worth(run: Run) -> Iterator[Finding]:
    """Size from which the GPU is faster than its host, with and without transfer."""
    if device_backend(run) != "cuda":
        return
    host = {r.result.problem: r for one in along(run, "size", backend="cpu") for r in one.best().values()}
    for rule, what in (("gpu-worth-it", "time"), ("gpu-worth-it-with-transfer", "transfer_time")):
        found = along(run, "size", pick=None if what == "time" else _from_host)
        for one in found:
            both = {s: (r, host[r.result.problem]) for s, r in one.best().items() if r.result.problem in host}
            yield _worth(rule, what, one.load | {"way": WAYS[what]}, both)
        if not found:
            yield undecided(rule, "worth/missing", what=what)


def _worth(rule: str, what: str, values: dict[str, Any], both: dict[int, tuple[Reading, Reading]]) -> Finding:
    if not both:
        return undecided(rule, "worth/missing-host", **values)
    compared = compare(both)
    values |= {"unsure": compared.unsure}
    pairs = compared.pairs or both
    data = tuple(d for gpu, cpu in pairs.values() for d in (gpu.datum(what), cpu.datum()))
    if not compared.pairs:
        return undecided(rule, "worth/undecided", data, **values)
    gains, won = compared.gains, compared.split["faster"]
    first, last = next(iter(pairs)), list(pairs)[-1]
    values |= {"n": len(pairs), "sizes": list(pairs), "first": first, "last": last, "gpu": pairs[last][0].method,
               "cpu": pairs[last][1].method}  # fmt: skip
    if kept := _kept(compared):
        form, more = kept
        return Finding(rule, f"worth/{form}-{what}", values | more, data, form != "unsteady")
    form = "always" if len(won) == len(pairs) else "scattered" if won else "never"
    marks = [first, last]
    if form == "scattered" and won == list(pairs)[-len(won) :]:
        form, marks = "from", [first, won[0], last]
        values |= {"crossover": won[0]}
    values |= {"gains": {size: gains[size] for size in marks}, "where": compared.values["where"]}
    return Finding(rule, f"worth/{form}-{what}", values, data)


def _kept(compared: Comparison[int]) -> tuple[str, dict[str, Any]] | None:
    """Conclusion that is valid although other work delayed the host; None if the host shows no such delay.

    Delays make the host's times too long, never too short. So if the host is ahead, this is certain. If it is behind,
    it may have been delayed, unless its times did not vary: an image with more pixels takes at least as long.
    """
    host = {size: cpu for size, (_, cpu) in compared.pairs.items()}
    falls = [(host[a].seconds / host[b].seconds, a, b) for a, b in combinations(sorted(host), 2)]
    fall, slow, quick = max(falls, default=(0.0, 0, 0))
    if fall <= FALLS:
        return None
    least = min(host, key=lambda size: host[size].seconds)
    most = max(compared.pairs, key=lambda size: compared.pairs[size][0].seconds)
    bound, longest, behind = host[least], compared.pairs[most][0], compared.split["slower"]
    values = {"slow": slow, "slow_s": host[slow].seconds, "quick": quick, "quick_s": host[quick].seconds,
              "least": least, "least_s": bound.seconds, "most": most, "most_s": longest.seconds}  # fmt: skip
    if least == min(host) and not bound.timing.noisy and order(longest.timing, bound.timing) == "faster":
        return "kept-ahead", values
    return ("kept-behind", values | {"behind": behind}) if behind else ("unsteady", values)


STUDY = study(
    "size", parts, (partial(rules.winners, axis="size"), ahead, floor, scaling, transfer, worth), cut=first_stride
)
