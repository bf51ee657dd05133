"""The number of channels: where direct convolution ends, and convolution as a matrix product begins to pay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import Case
from convforge.course.studies import common
from convforge.course.studies.finding import Finding
from convforge.course.studies.readings import Reading, Series, readings, series
from convforge.course.studies.study import Part, Study
from convforge.problem import Conv2dProblem
from convforge.timing.ranking import LEVEL, WIDE

METHODS = ("direct_*", "im2col", "implicit_gemm", "winograd*", "cudnn", "torch_conv2d")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
DIRECT: common.Family = ("direct", lambda r: r.algorithm.startswith("direct_"))
PRODUCT: common.Family = ("matrix product", lambda r: r.algorithm in ("im2col", "implicit_gemm"))


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """As many filters as channels, 3x3, on a picture of 56x56."""
    whole = COUNTS if facts.backend == "cuda" else COUNTS[:-1]
    counts, size = ((1, 4, 16), 14) if quick else (whole, 56)
    cases = [Case(f"channels_{count}", _problem(count, size)) for count in counts]
    return [Part(cases, METHODS)]


def _problem(count: int, size: int) -> Conv2dProblem:
    return Conv2dProblem(n=1, c=count, h=size, w=size, k=count, r=3, s=3, padding=(1, 1, 1, 1))


def _series(run: Run) -> list[Series]:
    return [one for one in series(readings(run, "conv2d"), "channels") if len(one.places) > 1]


def winners(run: Run) -> Iterator[Finding]:
    """Who is fastest at how many channels."""
    found = _series(run)
    if not found:
        yield Finding("winner-by-channels", "channels/none", {}, supported=False)
    for one in found:
        yield from common.winners_along(one, "winner-by-channels")


def crossover(run: Run) -> Iterator[Finding]:
    """From how many channels the best matrix product is faster than the best direct method."""
    for one in _series(run):
        yield common.crossover(one, DIRECT, PRODUCT, "direct-against-product")


def rate(run: Run) -> Iterator[Finding]:
    """How the best rate grows with the channels, and what it is at the most."""
    peak = run.best_ceilings
    for one in _series(run):
        best: dict[int, Reading] = {}
        for place, found in one.points.items():
            if strict := [r for r in found if r.strict]:
                best[place] = min(strict, key=lambda r: r.seconds)
        if len(best) < 2:
            continue
        (few, a), *_, (many, b) = best.items()
        top = max(best, key=lambda place: best[place].flops_per_s)
        values = {
            "workload": one.workload,
            "few": few,
            "many": many,
            "few_rate": a.flops_per_s,
            "many_rate": b.flops_per_s,
            "times": b.flops_per_s / a.flops_per_s,
            "top": top,
            "top_rate": best[top].flops_per_s,
            "method": best[top].method,
            "share": best[top].flops_per_s / peak.fma_flops_per_s if peak else None,
        }
        noise = 1 + a.timing.spread + b.timing.spread
        ratio = b.flops_per_s / a.flops_per_s
        within = 1 / noise <= ratio <= noise
        near = noise <= 1 + WIDE and max(ratio, 1 / ratio) <= 1 + LEVEL
        form = ("level" if near else "unsure") if within else "grows" if ratio > 1 else "falls"
        form = form if peak or within else f"{form}-no-peak"
        yield Finding("rate", f"rate/{form}", values, tuple(r.datum() for r in best.values()), not within)


_MOVES = "with the channels, from {few_rate:rate} at {few} to {many_rate:rate} at {many}"
_GROWS = "The best rate grows " + _MOVES + " ({times:times}"
_FALLS = "The best rate falls " + _MOVES
_TOP = "; the highest is {top_rate:rate}, by {method} at {top}, {share:percent} of the FMA peak ({workload:workload})."
ENGLISH = {
    "rate/grows": _GROWS + ")" + _TOP,
    "rate/falls": _FALLS + _TOP,
    "rate/grows-no-peak": _GROWS + "; {workload:workload}).",
    "rate/falls-no-peak": _FALLS + " ({workload:workload}).",
    "rate/level": "The best rate at {few} and at {many} channels is the same within the spreads ({workload:workload}).",
    "rate/unsure": "How the best rate moves from {few} to {many} channels cannot be told: {few_rate:rate} and "
    "{many_rate:rate} are too noisy to rank ({workload:workload}).",
    "channels/none": "What the channels do cannot be said: no two cases differ in them alone.",
}

STUDY = Study(
    "channels",
    "From how many channels on is convolution as a matrix product faster than direct convolution?",
    parts,
    (winners, crossover, rate),
    ENGLISH,
    gpu_s=60.0,
    answered_by=("direct-against-product", "winner-by-channels"),
)
