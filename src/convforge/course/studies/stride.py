"""Stride: how much of the saved work becomes saved time, and whether the stride changes the order of the methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.course.studies import rules
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import (
    Reading,
    Series,
    along,
    compare,
    data_of,
    named,
    ranked,
    readings,
    spanned,
    versus,
)  # fmt: skip
from convforge.course.studies.study import Part, rgb_to_1, study
from convforge.timing.ranking import order

METHODS = ("direct_*", "im2col", "implicit_gemm", "cudnn", "torch_conv2d", "opencv_filter2d")


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return RGB images of a few sizes, by stride."""
    sizes = (64, 128) if quick else (256, 1024, 2048, 8192) if facts.backend == "cuda" else (128, 512, 2048)
    return [Part(rgb_to_1(sizes), METHODS)]


def ahead(run: Run) -> Iterator[Finding]:
    """Number of cases on which each method is the fastest, and the methods that never are."""
    yield from rules.ahead(readings(run, "conv2d"))


def winners(run: Run) -> Iterator[Finding]:
    """Number of images on which another stride changes the fastest method."""
    changed, data, unsure, n = list[dict[str, Any]](), list[Datum](), list[str](), 0
    for one in along(run, "stride"):
        points = {s: [r for r in found if r.strict] for s, found in one.points.items()}
        points = {s: found for s, found in points.items() if len(found) > 1}
        if len(points) < 2:
            continue
        leaders, doubtful = ranked(points)
        unsure += [f"{one.workload.get('images', '')} stride {place}".strip() for place in doubtful]
        if len(leaders) < 2:
            continue
        n += 1
        if not set.intersection(*({r.method for r in found} for found in leaders.values())):
            by_stride = {s: [r.method for r in found] for s, found in leaders.items()}
            changed.append({"example": one.workload, "who": by_stride})
        data += data_of(r for found in leaders.values() for r in found)
    if not n:
        yield undecided("winner-by-stride", "undecided/fastest" if unsure else "by-stride/too-few", unsure=unsure)
        return
    values = {"n": n, "changed": len(changed), "unsure": unsure} | (changed[-1] if changed else {})
    yield Finding("winner-by-stride", "by-stride/changes" if changed else "by-stride/same", values, tuple(data))


def _largest(run: Run) -> list[Series]:
    """Series of the largest image of each workload."""
    found: dict[str, Series] = {}
    for one in sorted(along(run, "stride"), key=lambda one: one.every[0].problem.h * one.every[0].problem.w):
        found[str({name: value for name, value in one.workload.items() if name != "images"})] = one
    return list(found.values())


def saves(run: Run) -> Iterator[Finding]:
    """Decrease of the fastest time with the stride on the largest image; the outputs decrease with its square."""
    for one in _largest(run):
        best = one.best()
        if 1 not in best or len(best) < 2:
            yield undecided("stride-saves", "saves/too-few", **one.load)
        else:
            yield from (_saves(one, stride, best[1], r) for stride, r in best.items() if stride != 1)


def _saves(one: Series, stride: int, whole: Reading, strided: Reading) -> Finding:
    outputs = whole.result.flops / strided.result.flops
    nbytes = whole.result.least_bytes / strided.result.least_bytes
    gain = whole.seconds / strided.seconds
    values = one.load | {"stride": stride, "outputs": outputs, "share": 1 / outputs, "bytes": nbytes, "gain": gain,
                         "loss": 1 / gain, "whole": whole.method, "whole_s": whole.seconds,
                         "strided": strided.method, "strided_s": strided.seconds}  # fmt: skip
    form: str = order(strided.timing, whole.timing)
    supported = form in ("faster", "slower")
    if form == "faster":
        noise = 1 + whole.timing.spread + strided.timing.spread
        near = nbytes / noise <= gain <= nbytes * noise
        form = "in-step" if gain * noise >= outputs else "as-bytes" if near else "part" if gain > nbytes else "less"
    return Finding("stride-saves", f"saves/{form}", values, data_of((whole, strided)), supported)


def wasted(run: Run) -> Iterator[Finding]:
    """Methods that a larger stride does not make faster on the largest image, despite far fewer outputs."""
    for one in _largest(run):
        both = {m: (own[max(own)], own[1]) for m in one.methods if 1 in (own := one.method(m)) and len(own) > 1}
        compared = compare(both)
        values = one.load | {"stride": max(one.places), "unsure": compared.unsure}
        if compared.pairs:
            gains = {method: compared.gains[method] for method in compared.split["faster"]}
            idle = [method for method in compared.pairs if method not in gains]
            values |= {"n": len(compared.pairs), "idle": idle, "span": spanned(gains) if gains else None}
            yield Finding("gain-by-method", "waste/some" if idle else "waste/none", values, compared.data)
        elif compared.unsure:
            yield undecided("gain-by-method", "waste/unsure", **values)


def im2col(run: Run) -> Iterator[Finding]:
    """Compare im2col with the best direct method, stride by stride."""
    found = readings(run, "conv2d")
    for stride in sorted({r.problem.stride[0] for r in found}):
        strict = [r for r in found if r.problem.stride[0] == stride and r.strict]
        compared = versus(strict, named("im2col"), lambda r: r.method.startswith("direct"))
        values = {"stride": stride} | compared.values
        if compared.pairs:
            won, _, level = compared.split.values()
            form = "all" if len(won) == len(compared.pairs) else "some" if won else "level" if level else "none"
            values |= {"won": won, "level": level}
            yield Finding("im2col-against-direct", f"im2col/{form}", values, compared.data)
        elif compared.unsure:
            yield undecided("im2col-against-direct", "im2col/unsure", **values)


STUDY = study("stride", parts, (ahead, winners, saves, wasted, im2col))
