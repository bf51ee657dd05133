"""The size of the filter: where direct methods stop and separable ones and the FFT begin; crossovers by measurement."""

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
from convforge.timing.ranking import order

METHODS = ("direct_*", "depthwise*", "fft*", "separable", "cudnn", "opencv*", "torch_conv2d", "cupy_ndimage")
SIDES = (1, 3, 5, 7, 9, 11, 15, 21, 31, 47, 63)
CPU_SIDES = (1, 3, 5, 7, 11, 15, 31, 63)
# Families whose crossovers are asked for: name in a sentence -> the arithmetic of its methods, whoever made them.
FAMILIES = {"strict": "strict", "FFT": "fft", "separable": "separable"}


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """One channel by filters of full rank, and an RGB picture blurred, each channel by itself."""
    gpu = facts.backend == "cuda"
    sides, size = ((3, 7, 15), 64) if quick else (SIDES, 1024) if gpu else (CPU_SIDES, 256)
    full = [Case(f"full_{size}_{side}x{side}", _problem(size, side, 1)) for side in sides]
    blur = [Case(f"blur_{size}_{side}x{side}", _problem(size, side, 3), weights="gaussian") for side in sides]
    methods = tuple(m for m in METHODS if not quick or m in ("direct_*", "fft*", "separable"))
    return [Part([*full, *blur], methods)]


def _problem(size: int, side: int, channels: int) -> Conv2dProblem:
    half = side // 2
    return Conv2dProblem(n=1, c=channels, h=size, w=size, k=channels, r=side, s=side, groups=channels,
                         padding=(half, half, half, half))  # fmt: skip


def winners(run: Run) -> Iterator[Finding]:
    """Who is fastest for which filter, of all methods: those of other arithmetic stand with it in parentheses."""
    for one in series(readings(run, "conv2d"), "filter"):
        yield from common.winners_along(one, "winner-by-filter", strict=False)


def crossovers(run: Run) -> Iterator[Finding]:
    """From which filter the FFT, and separable passes, are faster than the best method of strict arithmetic."""
    found = series(readings(run, "conv2d"), "filter")
    for one in found:
        yield _crossover(one, "FFT")
    # Separable passes are made for filters of rank one: those of full rank come last.
    for one in sorted(found, key=lambda one: one.workload.get("weights") == "normal"):
        yield _crossover(one, "separable")


def _crossover(one: Series, family: str) -> Finding:
    return common.crossover(one, _family("strict"), _family(family), f"crossover-{family.lower()}")


def _family(name: str) -> common.Family:
    return name, lambda result: result.precision == FAMILIES[name]


def growth(run: Run) -> Iterator[Finding]:
    """By how much each family's time grows from the smallest filter to the largest, against the taps."""
    for one in series(readings(run, "conv2d"), "filter"):
        for family, precision in FAMILIES.items():
            best: dict[int, Reading] = {}
            for place, found in one.points.items():
                own = [r for r in found if r.result.precision == precision]
                if own:
                    best[place] = min(own, key=lambda r: r.seconds)
            if len(best) < 2:
                continue
            (small, a), *_, (large, b) = best.items()
            if order(a.timing, b.timing) == "unsure":
                values = {"workload": one.workload, "small": small, "large": large, "small_s": a.seconds,
                          "large_s": b.seconds}  # fmt: skip
                yield Finding("growth", "undecided/growth", values, (a.datum(), b.datum()), supported=False)
                continue
            taps, grown = (large / small) ** 2, b.seconds / a.seconds
            values = {
                "workload": one.workload,
                "family": family,
                "small": small,
                "large": large,
                "taps": taps,
                "grown": grown,
                "small_s": a.seconds,
                "large_s": b.seconds,
                "side": large / small,
            }
            form = "taps" if grown >= taps else "between" if grown > large / small else "flat" if grown > 1 else "none"
            yield Finding("growth", f"growth/{form}", values, (a.datum(), b.datum()))


ENGLISH = {
    "growth/taps": "From {small}x{small} to {large}x{large} the best {family:word} time grows to {grown:times}, at "
    "least as much as the taps, {taps:times} ({workload:workload}).",
    "growth/between": "From {small}x{small} to {large}x{large} the best {family:word} time grows to {grown:times}, "
    "more than the filter's side, {side:times}, and less than its taps, {taps:times} ({workload:workload}).",
    "growth/flat": "From {small}x{small} to {large}x{large} the best {family:word} time grows to {grown:times} "
    "({small_s:time} to {large_s:time}), no more than the filter's side, {side:times} ({workload:workload}).",
    "growth/none": "From {small}x{small} to {large}x{large} the best {family:word} time does not grow ({small_s:time} "
    "to {large_s:time}; {workload:workload}).",
}

STUDY = Study(
    "filter-size",
    "Up to which filter is direct convolution the best, and where do separable filters and the FFT begin to pay?",
    parts,
    (winners, crossovers, growth),
    ENGLISH,
    gpu_s=90.0,
    answered_by=("winner-by-filter", "crossover-separable", "crossover-fft"),
    suites=("filters",),
)
