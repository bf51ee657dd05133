"""Ladder of matrix products: the gain of each rung, and the last rung compared with the library and the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import geometric_mean

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import Case, load, select
from convforge.course.studies import rules
from convforge.course.studies.finding import Finding, undecided
from convforge.course.studies.readings import (
    Reading,
    by_case,
    data_of,
    device_backend,
    distinct,
    named,
    pairs,
    readings,
    versus,
)
from convforge.course.studies.study import Part, study
from convforge.problem import GemmProblem

# Backend -> the rungs in order.
RUNGS = {
    "cuda": ("gemm_naive", "gemm_shared", "gemm_tile_1d", "gemm_tile_2d", "gemm_vectorised", "gemm_warp_tiled"),
    "cpu": ("gemm_loops", "gemm_blocked", "gemm_blas"),
}
SIZES = (512, 1024, 2048, 4096, 8192)


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return square products: every config up to size 1024, where timing is cheap, and the defaults above."""
    if quick:
        return [Part([Case(f"square_{n}", GemmProblem(m=n, n=n, k=n)) for n in (64, 96)], ("gemm_*", "cublas"))]
    sizes = SIZES if facts.backend == "cuda" else SIZES[:3]
    cases = [case for case in select(load(["gemm"])[1], sizes=sizes, heavy=True) if case.name.startswith("square_")]
    methods = ("gemm_*", "cublas", "torch_matmul")
    small = [case for case in cases if case.problem.m <= 1024]  # type: ignore[union-attr]
    large = [case for case in cases if case not in small]
    return [Part(small, methods, all_configs=True, share=0.4), Part(large, methods, share=0.6)]


def _square(run: Run) -> list[Reading]:
    """Readings of square float32 products without transposition, which differ only in size."""

    def plain(p: GemmProblem) -> bool:
        return p.m == p.n == p.k and p.dtype == "float32" and not (p.transpose_a or p.transpose_b)

    return sorted((r for r in readings(run, "gemm") if plain(r.problem)), key=lambda r: int(r.problem.m))


def ladder(run: Run) -> Iterator[Finding]:
    """Gain of each rung over the rung below: the mean over the sizes that both have, then the gains of each rung."""
    found = _square(run)
    timed = {r.method for r in found}
    rungs = [name for name in RUNGS.get(device_backend(run), ()) if name in timed]
    steps = {up: pairs(by_case(found), named(below), named(up)) for below, up in pairwise(rungs)}
    gains = {
        name: geometric_mean(slow.seconds / fast.seconds for slow, fast in both.values())
        for name, both in steps.items()
        if both
    }
    if gains:
        used = {id(r): r for both in steps.values() for ab in both.values() for r in ab}
        top = max(gains, key=lambda name: gains[name])
        values = {"gains": gains, "first": rungs[0], "top": top, "top_gain": gains[top]}
        yield Finding("ladder", "ladder/whole", values, data_of(used.values()))
    else:
        yield undecided("ladder", "ladder/none", n=len(rungs))
    for below, above in pairwise(rungs):
        yield rules.pair(found, below, above, "ladder-step")


def library(run: Run) -> Iterator[Finding]:
    """Compare the fastest rung of any author with the best library, size by size."""
    compared = versus(_square(run), lambda r: r.result.ours, lambda r: not r.result.ours)
    rungs, libraries = (distinct(both[i].method for both in compared.pairs.values()) for i in (0, 1))
    yield compared.finding("against-library", "library", {"rungs": rungs, "libraries": libraries})


def whole(run: Run) -> Iterator[Finding]:
    """Sizes on which each method is the fastest, and the share of the FMA peak that the products reach."""
    found = _square(run)
    yield from rules.ahead(found)
    yield rules.share_of_peak(run, found)


def filling(run: Run) -> Iterator[Finding]:
    """Size from which the best rate is close to its maximum; smaller products do not fill the device."""
    best = {int(r.problem.m): r for r in sorted(_square(run), key=lambda r: -r.seconds)}
    if len(best) < 3:
        yield undecided("filling", "filling/too-few", n=len(best))
        return
    rates = {size: r.flops_per_s for size, r in best.items()}
    top, first = max(rates, key=lambda size: rates[size]), min(rates)
    near = min(size for size, rate in rates.items() if rate >= 0.9 * rates[top])
    values = {"top": top, "top_rate": rates[top], "near": near, "near_rate": rates[near], "first": first,
              "first_rate": rates[first], "share": rates[first] / rates[top]}  # fmt: skip
    form = "filling/all" if near == first else "filling/from"
    yield Finding("filling", form, values, data_of(best.values()))


STUDY = study("gemm", parts, (ladder, library, whole, filling))
