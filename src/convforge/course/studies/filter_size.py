"""The size of the filter: the crossovers from direct methods to separable ones and to the FFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import Case
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding
from convforge.course.studies.readings import Holds, readings, series
from convforge.course.studies.study import Part, Study, padded

METHODS = ("direct_*", "depthwise*", "fft*", "separable", "cudnn", "opencv*", "torch_conv2d", "cupy_ndimage")
SIDES = (1, 3, 5, 7, 9, 11, 15, 21, 31, 47, 63)
CPU_SIDES = (1, 3, 5, 7, 11, 15, 31, 63)
# Families of methods: name in a sentence -> their arithmetic, whoever made them.
FAMILIES = {"strict": "strict", "FFT": "fft", "separable": "separable"}


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """One channel by filters of full rank, and an RGB image blurred, each channel by itself."""
    gpu = facts.backend == "cuda"
    sides, size = ((3, 7, 15), 64) if quick else (SIDES, 1024) if gpu else (CPU_SIDES, 256)
    full = [Case(f"full_{size}_{side}x{side}", padded(size, 1, 1, side)) for side in sides]
    blur = [
        Case(f"blur_{size}_{side}x{side}", padded(size, 3, 3, side, groups=3), weights="gaussian") for side in sides
    ]
    methods = tuple(m for m in METHODS if not quick or m in ("direct_*", "fft*", "separable"))
    return [Part([*full, *blur], methods)]


def winners(run: Run) -> Iterator[Finding]:
    """The fastest of all methods by filter; those of other arithmetic are named with it in parentheses."""
    for one in series(readings(run, "conv2d"), "filter"):
        yield from rules.winners_along(one, "winner-by-filter", strict=False)


def crossovers(run: Run) -> Iterator[Finding]:
    """From which filter the FFT, and separable passes, are faster than the best method of strict arithmetic."""
    found = series(readings(run, "conv2d"), "filter")
    for one in found:
        yield rules.crossover(one, ("strict", _of("strict")), ("FFT", _of("FFT")), "crossover-fft")
    # Separable passes are made for filters of rank one: those of full rank come last.
    for one in sorted(found, key=lambda one: one.workload.get("weights") == "normal"):
        yield rules.crossover(one, ("strict", _of("strict")), ("separable", _of("separable")), "crossover-separable")


def _of(family: str) -> Holds:
    return lambda r: r.result.precision == FAMILIES[family]


def growth(run: Run) -> Iterator[Finding]:
    """By how much each family's time grows from the smallest filter to the largest, against the taps."""
    for one in series(readings(run, "conv2d"), "filter"):
        for family in FAMILIES:
            best = one.best(_of(family))
            if len(best) < 2:
                continue
            (small, a), *_, (large, b) = best.items()
            side, grown = large / small, b.seconds / a.seconds
            form = "taps" if grown >= side**2 else "between" if grown > side else "flat" if grown > 1 else "none"
            values = one.load | {"family": family, "side": side, "taps": side**2, "grown": grown}
            yield rules.growth("growth", f"filter-growth/{form}", ((small, a), (large, b)), values)


STUDY = Study(
    "filter-size",
    "Up to which filter is direct convolution the best, and where do separable filters and the FFT begin to pay?",
    parts,
    (winners, crossovers, growth),
    gpu_s=90.0,
    answered_by=("winner-by-filter", "crossover-separable", "crossover-fft"),
    suites=("filters",),
)
