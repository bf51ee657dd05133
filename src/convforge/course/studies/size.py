"""The size of the picture: who is fastest, what a call costs at least, what copies add, and when a GPU pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import load, select
from convforge.course.studies import common
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading, Series, decided, device_backend, readings, series
from convforge.course.studies.study import Part, Study
from convforge.problem import parse_problem
from convforge.timing.ranking import order

SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CPU_SIZES = SIZES[:-2]
METHODS = ("direct_*", "im2col", "implicit_gemm", "cudnn", "torch_conv2d", "opencv_filter2d")
HOST_METHODS = ("direct_rows", "im2col", "torch_conv2d")
# A time that grows by no more than this, over ever more pixels, is the cost of a call and not of its pixels.
FLAT = 1.5
# Growth of the time within this factor of the growth of the pixels is in step with it.
IN_STEP = 1.15
# A host that takes so many times as long for fewer pixels was kept from its work.
FALLS = 2.0


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """RGB pictures to one channel, 3x3; on a GPU with transfer, and the same on its host."""
    gpu = facts.backend == "cuda"
    sizes = (32, 64, 128) if quick else SIZES if gpu else CPU_SIZES
    cases = [case for case in select(load(["images"])[1], sizes=sizes, strides=(1,)) if case.problem.k == 1]  # type: ignore[union-attr]
    # Where the host's truth alone would take seconds, nobody doubts any more who is faster.
    host = [replace(case, name=f"{case.name}_host") for case in cases if case.problem.h in CPU_SIZES]  # type: ignore[union-attr]
    found = [Part(host, HOST_METHODS, host=True, share=0.4)] if gpu else []
    return [*found, Part(cases, METHODS, transfer=True, share=0.6 if gpu else 1.0)]


def first_stride(run: Run) -> Run:
    """A run's results at the smallest of its strides: others are what the study `stride` is about."""
    strides = {r.problem: parse_problem(r.problem).stride for r in run.results}
    first = min((stride for stride in strides.values() if stride), default=())
    return replace(run, results=tuple(r for r in run.results if strides[r.problem] in ((), first)))


def _series(run: Run, **more: object) -> list[Series]:
    return series(readings(run, "conv2d", **more), "size")  # type: ignore[arg-type]


def winners(run: Run) -> Iterator[Finding]:
    """Who is fastest at which size."""
    for one in _series(run):
        yield from common.winners_along(one, "winner-by-size")


def ahead(run: Run) -> Iterator[Finding]:
    """Who is ahead on how many cases, and who never."""
    yield from common.ahead([r for one in _series(run) for r in one.every])


def floor(run: Run) -> Iterator[Finding]:
    """Up to which size the fastest time hardly grows: there the cost of a call decides."""
    for one in _series(run):
        best = _best(one)
        values: dict[str, Any] = {"workload": one.workload, "sizes": list(best), "flat": FLAT}
        if len(best) < 3:
            yield Finding("call-floor", "floor/too-few", values, supported=False)
            continue
        first = next(iter(best.values()))
        flat = [size for size, r in best.items() if r.seconds <= FLAT * first.seconds]
        while flat and flat != list(best)[: len(flat)]:
            flat.pop()
        last = flat[-1]
        values |= {
            "first": one.places[0],
            "last": last,
            "first_s": first.seconds,
            "last_s": best[last].seconds,
            "growth": best[last].seconds / first.seconds,
            "pixels": (last / one.places[0]) ** 2,
            "next": next((size for size in best if size > last), None),
        }
        rests = tuple(best[size].datum() for size in best)
        form = "floor/none" if len(flat) == 1 else "floor/all" if len(flat) == len(best) else "floor/flat"
        yield Finding("call-floor", form, values | _step(best, last), rests)


def scaling(run: Run) -> Iterator[Finding]:
    """Whether the fastest time grows as the pixels do between the two largest sizes."""
    for one in _series(run):
        best = _best(one)
        if len(best) < 2:
            continue
        (small, a), (large, b) = list(best.items())[-2:]
        pixels, growth = (large / small) ** 2, b.seconds / a.seconds
        values: dict[str, Any] = {
            "workload": one.workload,
            "small": small,
            "large": large,
            "small_s": a.seconds,
            "large_s": b.seconds,
            "pixels": pixels,
            "growth": growth,
            "within": IN_STEP - 1,
        }
        form = "more" if growth > IN_STEP * pixels else "less" if growth * IN_STEP < pixels else "in-step"
        if order(a.timing, b.timing) == "unsure":
            yield Finding("growth", "undecided/growth", values, (a.datum(), b.datum()), supported=False)
            continue
        yield Finding("growth", f"growth/{form}", values, (a.datum(), b.datum()))


def transfer(run: Run) -> Iterator[Finding]:
    """What the way from host to host adds to the call of the method that is fastest over it."""
    timed = _series(run, pick=lambda run, r: r.transfer_time)
    if not timed and device_backend(run) != "cpu":
        yield Finding("transfer", "transfer/none", {}, supported=False)
    for one in timed:
        best = _best(one)
        shares = {size: 1 - _call(run, r).seconds / r.seconds for size, r in best.items()}
        most, least = max(shares, key=lambda s: shares[s]), min(shares, key=lambda s: shares[s])
        values: dict[str, Any] = {
            "workload": one.workload,
            "least": shares[least],
            "least_size": least,
            "most": shares[most],
            "most_size": most,
            "n": len(shares),
            "above": [s for s, share in shares.items() if share > 0.5],
            "below": [s for s, share in shares.items() if share <= 0.5],
        }
        form = "most" if not values["below"] else "little" if not values["above"] else "mixed"
        rests = tuple(d for r in best.values() for d in (r.datum("transfer_time"), _call(run, r).datum()))
        yield Finding("transfer", f"transfer/{form}", values, rests)


def worth(run: Run) -> Iterator[Finding]:
    """From which size the GPU is faster than its host, with and without transfer."""
    if device_backend(run) != "cuda":
        return
    host = {r.result.problem: r for one in _series(run, backend="cpu") for r in _best(one).values()}
    for rule, what in (("gpu-worth-it", "time"), ("gpu-worth-it-with-transfer", "transfer_time")):
        pick = None if what == "time" else lambda run, r: r.transfer_time
        for one in _series(run, pick=pick):
            pairs = {s: (r, host[r.result.problem]) for s, r in _best(one).items() if r.result.problem in host}
            told, unsure = decided(pairs)
            yield _worth(rule, what, one, told if told else pairs, unsure)
        if not _series(run, pick=pick):
            yield Finding(rule, "worth/missing", {"what": what}, supported=False)


def _worth(rule: str, what: str, one: Series, pairs: dict[int, tuple[Reading, Reading]], unsure: list[str]) -> Finding:
    values: dict[str, Any] = {"workload": one.workload, "what": what, "sizes": list(pairs), "n": len(pairs)}
    values["unsure"] = unsure
    rests = tuple(d for gpu, cpu in pairs.values() for d in (gpu.datum(what), cpu.datum()))
    if not pairs:
        return Finding(rule, f"worth/missing-{what}", values, supported=False)
    if len(unsure) == len(pairs):
        return Finding(rule, "worth/undecided", values, rests, supported=False)
    ratios = {size: cpu.seconds / gpu.seconds for size, (gpu, cpu) in pairs.items()}
    won = [s for s, (gpu, cpu) in pairs.items() if order(gpu.timing, cpu.timing) == "faster"]
    first, last = next(iter(pairs)), list(pairs)[-1]
    values |= {
        "first": first,
        "last": last,
        "first_ratio": ratios[first],
        "last_ratio": ratios[last],
        "won": won,
        "first_inverse": 1 / ratios[first],
        "last_inverse": 1 / ratios[last],
        "gpu": pairs[last][0].method,
        "cpu": pairs[last][1].method,
        "crossover": won[0] if won else None,
        "crossover_ratio": ratios[won[0]] if won else None,
    }
    if (fall := _fall({size: cpu for size, (_, cpu) in pairs.items()})) is not None:
        values |= dict(zip(("slow", "slow_s", "quick", "quick_s"), fall, strict=True))
        return _kept(rule, what, values, pairs, rests)
    if len(won) == len(pairs):
        form = "always"
    elif not won:
        form = "never"
    else:
        form = "from" if won == list(pairs)[-len(won) :] else "scattered"
    return Finding(rule, f"worth/{form}-{what}", values, rests)


def _kept(
    rule: str, what: str, values: dict[str, Any], pairs: dict[int, tuple[Reading, Reading]], rests: tuple[Datum, ...]
) -> Finding:
    """What holds though something kept the host: its times may be too long, never too short.

    So where it is ahead, it is. Where it is behind it may have been kept; but not where its times did not vary, and a
    picture with more pixels takes no less.
    """
    least = min(pairs, key=lambda size: pairs[size][1].seconds)
    most = max(pairs, key=lambda size: pairs[size][0].seconds)
    behind = [size for size, (gpu, cpu) in pairs.items() if order(cpu.timing, gpu.timing) == "faster"]
    values |= {
        "least": least, "least_s": pairs[least][1].seconds, "most": most, "most_s": pairs[most][0].seconds,
        "behind": behind,
    }  # fmt: skip
    bound = pairs[least][1].timing
    if least == min(pairs) and not bound.noisy and order(pairs[most][0].timing, bound) == "faster":
        return Finding(rule, f"worth/kept-ahead-{what}", values, rests)
    if behind:
        return Finding(rule, f"worth/kept-behind-{what}", values, rests)
    return Finding(rule, f"worth/unsteady-{what}", values, rests, supported=False)


def _fall(host: dict[int, Reading]) -> tuple[int, float, int, float] | None:
    """Between which sizes a host's time falls most though pixels grow, each with its time; None if it never does."""
    falls = ((host[a].seconds / host[b].seconds, a, b) for a, b in combinations(sorted(host), 2))
    most, a, b = max(falls, default=(0.0, 0, 0))
    return (a, host[a].seconds, b, host[b].seconds) if most > FALLS else None


def _best(one: Series) -> dict[int, Reading]:
    """The fastest of each size whose arithmetic is allowed."""
    points = {size: [r for r in found if r.strict] for size, found in one.points.items()}
    return {size: min(found, key=lambda r: r.seconds) for size, found in points.items() if found}


def _step(best: dict[int, Reading], last: int) -> dict[str, float]:
    """How much the time grows at the first size beyond `last`."""
    after = next((size for size in best if size > last), None)
    return {} if after is None else {"next_growth": best[after].seconds / best[last].seconds}


def _call(run: Run, reading: Reading) -> Reading:
    """The call alone, of a reading from host to host."""
    timing = run.timing(reading.result)
    assert timing is not None
    return replace(reading, timing=timing)


_WITH = {"time": "without transfer", "transfer_time": "from host to host"}
ENGLISH = {
    "floor/flat": "From {first} to {last} pixels a side the fastest time grows to no more than {flat:times} "
    "({first_s:time} to {last_s:time}, {growth:times}) for {pixels:.0f} times the pixels: there a call costs what it "
    "costs, whatever the size. From {last} to {next} it grows to {next_growth:times} ({workload:workload}).",
    "floor/all": "Over all sizes, {first} to {last}, the fastest time grows to no more than {flat:times} "
    "({first_s:time} to {last_s:time}, {growth:times}) for {pixels:.0f} times the pixels: no size is large enough to "
    "show what pixels cost ({workload:workload}).",
    "floor/none": "No floor is seen; already from {first} to {next} the time grows to {next_growth:times}, more than "
    "{flat:times} ({workload:workload}).",
    "floor/too-few": "What a call costs at least cannot be said from fewer than three sizes ({workload:workload}).",
    "growth/in-step": "From {small} to {large} the fastest time grows as the pixels do, within {within:percent}: "
    "{growth:times} for {pixels:times} ({small_s:time} to {large_s:time}; {workload:workload}).",
    "growth/more": "From {small} to {large} the fastest time grows to {growth:times}, more than the pixels "
    "({pixels:times}) by over {within:percent}: {small_s:time} to {large_s:time} ({workload:workload}).",
    "growth/less": "From {small} to {large} the fastest time grows to {growth:times}, less than the pixels "
    "({pixels:times}) by over {within:percent}: {small_s:time} to {large_s:time} ({workload:workload}).",
    "transfer/most": "From host to host, at {n:each size} most of the time is spent outside the call itself, on "
    "copies and on the host: {least:percent} at {least_size} to {most:percent} at {most_size} ({workload:workload}).",
    "transfer/little": "From host to host, the call itself takes most of the time at {n:each size}; copies and the "
    "host have {least:percent} at {least_size} to {most:percent} at {most_size} ({workload:workload}).",
    "transfer/mixed": "From host to host, copies and the host take more than half of the time at {above:names}, and "
    "not at {below:names}; they have {least:percent} ({least_size}) to {most:percent} ({most_size}; "
    "{workload:workload}).",
    "transfer/none": "What transfer adds cannot be said: no time from host to host was taken.",
}
for _what, _said in _WITH.items():
    _on = "{workload:workload}, " + _said + ")."
    ENGLISH |= {
        f"worth/always-{_what}": "The GPU is faster than its host at {n:each size}, by {first_ratio:times} at {first} "
        "and {last_ratio:times} at {last} ({gpu} against {cpu}; " + _on,
        f"worth/never-{_what}": "The GPU is at no size faster than its host; it takes {first_inverse:times} the time "
        "at {first} and {last_inverse:times} at {last} ({gpu} against {cpu}; " + _on,
        f"worth/from-{_what}": "The GPU is faster than its host from {crossover} on ({crossover_ratio:times}; "
        "{last_ratio:times} at {last}); at {first} it takes {first_inverse:times} the time (" + _on,
        f"worth/scattered-{_what}": "The GPU is faster than its host at {won:names} of {sizes:names}: there is no one "
        "crossover (" + _on,
        f"worth/unsteady-{_what}": "From which size on the GPU is worth it cannot be said: its host takes "
        "{slow_s:time} at {slow} and {quick_s:time} at {quick}, which has more pixels; something else kept it (" + _on,
        f"worth/kept-ahead-{_what}": "The GPU is faster than its host at {n:each size}, though how much cannot be "
        "said: something else kept the host, which takes {slow_s:time} at {slow} and {quick_s:time} at {quick}. But "
        "already at {least} the host takes {least_s:time}, which did not vary, and the GPU nowhere more than "
        "{most_s:time}, at {most} (" + _on,
        f"worth/kept-behind-{_what}": "The GPU is slower than its host at {behind:names}, though something else kept "
        "the host, which takes {slow_s:time} at {slow} and {quick_s:time} at {quick}; of other sizes nothing can be "
        "said (" + _on,
        f"worth/missing-{_what}": "Whether the GPU is worth it cannot be said, as the same was not timed on its host "
        "(" + _on,
    }
ENGLISH["worth/undecided"] = "Whether a GPU is worth it cannot be told ({workload:workload})."
ENGLISH["worth/missing"] = "Whether a GPU is worth it cannot be said: it has no such times."

STUDY = Study(
    "size",
    "How does time grow with the picture, which method is fastest at which size, and when is a GPU worth it?",
    parts,
    (winners, ahead, floor, scaling, transfer, worth),
    ENGLISH,
    gpu_s=90.0,
    answered_by=("growth", "winner-by-size", "gpu-worth-it-with-transfer"),
    suites=("images",),
    cut=first_stride,
)
