"""The number of channels from which convolution as a matrix product is faster than direct convolution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import Case
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding, undecided
from convforge.course.studies.readings import Series, data_of, readings, series
from convforge.course.studies.study import Part, Study, padded
from convforge.timing.ranking import LEVEL, WIDE

METHODS = ("direct_*", "im2col", "implicit_gemm", "winograd*", "cudnn", "torch_conv2d")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
DIRECT: rules.Family = ("direct", lambda r: r.result.algorithm.startswith("direct_"))
PRODUCT: rules.Family = ("matrix product", lambda r: r.result.algorithm in ("im2col", "implicit_gemm"))


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """As many filters as channels, 3x3, on a image of 56x56."""
    whole = COUNTS if facts.backend == "cuda" else COUNTS[:-1]
    counts, size = ((1, 4, 16), 14) if quick else (whole, 56)
    cases = [Case(f"channels_{count}", padded(size, count, count)) for count in counts]
    return [Part(cases, METHODS)]


def _series(run: Run) -> list[Series]:
    return [one for one in series(readings(run, "conv2d"), "channels") if len(one.places) > 1]


def winners(run: Run) -> Iterator[Finding]:
    """Find the fastest method for each number of channels."""
    found = _series(run)
    if not found:
        yield undecided("winner-by-channels", "channels/none")
    for one in found:
        yield from rules.winners_along(one, "winner-by-channels")


def crossover(run: Run) -> Iterator[Finding]:
    """From how many channels the best matrix product is faster than the best direct method."""
    for one in _series(run):
        yield rules.crossover(one, DIRECT, PRODUCT, "direct-against-product")


def rate(run: Run) -> Iterator[Finding]:
    """The growth of the best rate with the channels, and its maximum."""
    peak = run.best_ceilings
    for one in _series(run):
        best = one.best()
        if len(best) < 2:
            continue
        (few, a), *_, (many, b) = best.items()
        top = max(best, key=lambda place: best[place].flops_per_s)
        ratio, noise = b.flops_per_s / a.flops_per_s, 1 + a.timing.spread + b.timing.spread
        values = one.load | {
            "few": few,
            "many": many,
            "few_rate": a.flops_per_s,
            "many_rate": b.flops_per_s,
            "times": ratio,
            "top": top,
            "top_rate": best[top].flops_per_s,
            "method": best[top].method,
            "share": best[top].flops_per_s / peak.fma_flops_per_s if peak else None,
        }
        within = 1 / noise <= ratio <= noise
        near = noise <= 1 + WIDE and max(ratio, 1 / ratio) <= 1 + LEVEL
        form = ("level" if near else "unsure") if within else "grows" if ratio > 1 else "falls"
        form = form if peak or within else f"{form}-no-peak"
        yield Finding("rate", f"rate/{form}", values, data_of(best.values()), not within)


STUDY = Study(
    "channels",
    "From how many channels on is convolution as a matrix product faster than direct convolution?",
    parts,
    (winners, crossover, rate),
    gpu_s=60.0,
    answered_by=("direct-against-product", "winner-by-channels"),
)
