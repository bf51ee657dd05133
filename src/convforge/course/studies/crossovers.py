"""Crossovers between families of methods, along the filter size and along the number of channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import Case
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding, undecided
from convforge.course.studies.readings import Holds, along, data_of
from convforge.course.studies.study import Part, padded, study
from convforge.timing.ranking import LEVEL, WIDE


def _arithmetic(precision: str) -> Holds:
    return lambda r: r.result.precision == precision


# Families: name in a sentence -> predicate on readings. The families compared by filter size differ in arithmetic.
BY_FILTER = {"strict": _arithmetic("strict"), "FFT": _arithmetic("fft"), "separable": _arithmetic("separable")}
BY_CHANNELS: dict[str, Holds] = {
    "direct": lambda r: r.result.algorithm.startswith("direct_"),
    "matrix product": lambda r: r.result.algorithm in ("im2col", "implicit_gemm"),
}


def filters(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return one-channel cases with filters of full rank, and a blur of an RGB image (one filter per channel)."""
    sides: tuple[int, ...] = (1, 3, 5, 7, 9, 11, 15, 21, 31, 47, 63)
    methods: tuple[str, ...] = ("direct_*", "depthwise*", "fft*", "separable")
    methods += ("cudnn", "opencv*", "torch_conv2d", "cupy_ndimage")
    size = 1024
    if quick:
        sides, methods, size = (3, 7, 15), ("direct_*", "fft*", "separable"), 64
    elif facts.backend != "cuda":
        sides, size = (1, 3, 5, 7, 11, 15, 31, 63), 256
    full = [Case(f"full_{size}_{side}x{side}", padded(size, 1, 1, side)) for side in sides]
    blur = [Case(f"blur_{size}_{side}x{side}", padded(size, 3, 3, side, groups=3), weights="gaussian")
            for side in sides]  # fmt: skip
    return [Part([*full, *blur], methods)]


def fft_and_separable(run: Run) -> Iterator[Finding]:
    """Filter size from which the FFT or separable passes are faster than the best method of strict arithmetic."""
    # Separable passes need a filter of rank one, so series with filters of full rank come last.
    found = along(run, "filter")
    last = sorted(found, key=lambda one: one.workload.get("weights") == "normal")
    for rule, after, ordered in (("fft", "FFT", found), ("separable", "separable", last)):
        for one in ordered:
            yield rules.crossover(one, BY_FILTER, "strict", after, f"crossover-{rule}")


def taps(run: Run) -> Iterator[Finding]:
    """Growth of each family's time from the smallest to the largest filter, compared with the growth of the taps."""
    for one in along(run, "filter"):
        for family, holds in BY_FILTER.items():
            best = one.best(holds)
            if len(best) > 1:
                (small, a), *_, (large, b) = best.items()
                side, grown = large / small, b.seconds / a.seconds
                form = "taps" if grown >= side**2 else "between" if grown > side else "flat" if grown > 1 else "none"
                values = one.load | {"family": family, "side": side, "taps": side**2, "grown": grown}
                yield rules.growth("growth", f"filter-growth/{form}", ((small, a), (large, b)), values)


FILTER_SIZE = study(
    "filter-size", filters, (partial(rules.winners, axis="filter", strict=False), fft_and_separable, taps)
)


def channels(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return 3x3 cases on a 56x56 image, with equal numbers of channels and filters."""
    counts = (1, 4, 16) if quick else tuple(2**i for i in range(10 if facts.backend == "cuda" else 9))
    cases = [Case(f"channels_{count}", padded(14 if quick else 56, count, count)) for count in counts]
    return [Part(cases, ("direct_*", "im2col", "implicit_gemm", "winograd*", "cudnn", "torch_conv2d"))]


def by_channels(run: Run) -> Iterator[Finding]:
    """Fastest method by channels, and the number of channels from which the best GEMM beats the best direct method."""
    found = [one for one in along(run, "channels") if len(one.places) > 1]
    if not found:
        yield undecided("winner-by-channels", "channels/none")
    yield from (rules.winner(one, "winner-by-channels") for one in found)
    for one in found:
        yield rules.crossover(one, BY_CHANNELS, "direct", "matrix product", "direct-against-product")


def rate(run: Run) -> Iterator[Finding]:
    """Growth of the best rate with the channels, and its maximum."""
    peak = run.best_ceilings
    for one in along(run, "channels"):
        best = one.best()
        if len(best) < 2:
            continue
        (few, a), *_, (many, b) = best.items()
        top = max(best, key=lambda place: best[place].flops_per_s)
        ratio, noise = b.flops_per_s / a.flops_per_s, 1 + a.timing.spread + b.timing.spread
        values = one.load | {"few": few, "many": many, "few_rate": a.flops_per_s, "many_rate": b.flops_per_s,
                             "times": ratio, "top": top, "top_rate": best[top].flops_per_s, "method": best[top].method,
                             "share": best[top].flops_per_s / peak.fma_flops_per_s if peak else None}  # fmt: skip
        within = 1 / noise <= ratio <= noise
        near = noise <= 1 + WIDE and max(ratio, 1 / ratio) <= 1 + LEVEL
        form = ("level" if near else "unsure") if within else "grows" if ratio > 1 else "falls"
        form = form if peak or within else f"{form}-no-peak"
        yield Finding("rate", f"rate/{form}", values, data_of(best.values()), not within)


CHANNELS = study("channels", channels, (by_channels, rate))
