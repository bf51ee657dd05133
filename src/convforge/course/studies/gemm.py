"""The ladder of the matrix product: what each rung brings, how near the last one comes to the library and the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import geometric_mean

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.suites import Case, load, select
from convforge.course.studies import common
from convforge.course.studies.finding import Finding
from convforge.course.studies.readings import Reading, by_case, decided, device_backend, readings
from convforge.course.studies.study import Part, Study
from convforge.problem import GemmProblem
from convforge.timing.ranking import order

# The rungs in their order, by backend.
RUNGS = {
    "cuda": ("gemm_naive", "gemm_shared", "gemm_tile_1d", "gemm_tile_2d", "gemm_vectorised", "gemm_warp_tiled"),
    "cpu": ("gemm_loops", "gemm_blocked", "gemm_blas"),
}
SIZES = (512, 1024, 2048, 4096, 8192)


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Square products; every config up to 1024, where they are cheap, the defaults above."""
    if quick:
        return [Part([Case(f"square_{n}", GemmProblem(m=n, n=n, k=n)) for n in (64, 96)], ("gemm_*", "cublas"))]
    sizes = SIZES if facts.backend == "cuda" else SIZES[:3]
    cases = [case for case in select(load(["gemm"])[1], sizes=sizes, heavy=True) if case.name.startswith("square_")]
    methods = ("gemm_*", "cublas", "torch_matmul")
    small = [case for case in cases if case.problem.m <= 1024]  # type: ignore[union-attr]
    large = [case for case in cases if case not in small]
    return [Part(small, methods, all_configs=True, share=0.4), Part(large, methods, share=0.6)]


def _square(run: Run) -> list[Reading]:
    """Square float32 products, neither matrix transposed: the cases that differ in size alone."""
    found = []
    for r in readings(run, "gemm"):
        p: GemmProblem = r.problem
        if p.m == p.n == p.k and p.dtype == "float32" and not (p.transpose_a or p.transpose_b):
            found.append(r)
    return sorted(found, key=lambda r: int(r.problem.m))


def ladder(run: Run) -> Iterator[Finding]:
    """All rungs at a glance: what each brings over the one below it, on average over the sizes that both have."""
    found = _square(run)
    rungs = _rungs(run, found)
    gains: dict[str, float] = {}
    rests: dict[int, Reading] = {}
    for below, above in pairwise(rungs):
        slow, fast = ({r.case: r for r in found if r.method == name} for name in (below, above))
        both = [case for case in slow if case in fast]
        if both:
            gains[above] = geometric_mean(slow[case].seconds / fast[case].seconds for case in both)
            rests |= {id(r): r for case in both for r in (slow[case], fast[case])}
    if not gains:
        yield Finding("ladder", "ladder/none", {"n": len(rungs)}, supported=False)
        return
    values = {"gains": gains, "first": rungs[0]}
    yield Finding("ladder", "ladder/whole", values, tuple(r.datum() for r in rests.values()))


def rung(run: Run) -> Iterator[Finding]:
    """Each rung against the one below it."""
    found = _square(run)
    for below, above in pairwise(_rungs(run, found)):
        yield from common.pair(found, below, above, "ladder-step")


def _rungs(run: Run, found: Sequence[Reading]) -> list[str]:
    """The rungs that have times, in their order."""
    there = {r.method for r in found}
    return [name for name in RUNGS.get(device_backend(run), ()) if name in there]


def library(run: Run) -> Iterator[Finding]:
    """The fastest rung, whoever wrote it, against the best library, size by size."""
    pairs = {}
    for case, rs in by_case(_square(run)).items():
        rungs, libraries = ([r for r in rs if r.result.ours is own] for own in (True, False))
        if rungs and libraries:
            pairs[case] = (min(rungs, key=lambda r: r.seconds), min(libraries, key=lambda r: r.seconds))
    told, unsure = decided(pairs)
    both = list(told.values())
    if not both:
        form = "library/unsure" if unsure else "library/none"
        yield Finding("against-library", form, {"unsure": unsure}, supported=False)
        return
    shares = {a.case: b.seconds / a.seconds for a, b in both}
    verdicts = {a.case: order(a.timing, b.timing) for a, b in both}
    low, high = min(shares, key=lambda c: shares[c]), max(shares, key=lambda c: shares[c])
    values = {
        "n": len(both),
        "unsure": unsure,
        "split": {v: [c for c, found in verdicts.items() if found == v] for v in ("faster", "slower", "level")},
        "span": {"least": shares[low], "least_case": low, "most": shares[high], "most_case": high},
        "rungs": list(dict.fromkeys(a.method for a, _ in both)),
        "libraries": list(dict.fromkeys(b.method for _, b in both)),
    }
    form = next((v for v in ("faster", "slower", "level") if all(found == v for found in verdicts.values())), "mixed")
    rests = tuple(r.datum() for ab in both for r in ab)
    yield Finding("against-library", f"library/{form}", values, rests, supported=form != "level")


def peak(run: Run) -> Iterator[Finding]:
    """What share of the FMA peak the products reach."""
    yield from common.share_of_peak(run, _square(run))


def ahead(run: Run) -> Iterator[Finding]:
    """Who is ahead on which size."""
    yield from common.ahead(_square(run))


def filling(run: Run) -> Iterator[Finding]:
    """From which size the best rate is near its highest: smaller products do not fill the device."""
    best: dict[int, Reading] = {}
    for r in _square(run):
        size = int(r.problem.m)
        if size not in best or r.seconds < best[size].seconds:
            best[size] = r
    if len(best) < 3:
        yield Finding("filling", "filling/too-few", {"n": len(best)}, supported=False)
        return
    top = max(best, key=lambda size: best[size].flops_per_s)
    near = [size for size, r in best.items() if r.flops_per_s >= 0.9 * best[top].flops_per_s]
    first = min(best)
    values = {
        "top": top,
        "top_rate": best[top].flops_per_s,
        "near": min(near),
        "first": first,
        "first_rate": best[first].flops_per_s,
        "near_rate": best[min(near)].flops_per_s,
        "share": best[first].flops_per_s / best[top].flops_per_s,
    }
    form = "filling/all" if min(near) == first else "filling/from"
    yield Finding("filling", form, values, tuple(r.datum() for r in best.values()))


ENGLISH = {
    "ladder/none": "What the rungs bring cannot be said: no two neighbours of them have times of one size.",
    "ladder/whole": "Each rung over the one below it, from {first} on, geometric mean over the sizes that both have: "
    "{gains:ratios}.",
    "library/faster": "The fastest rung ({rungs:names}) is ahead of the best library ({libraries:names}) at "
    "{n:each size}: {span:span} its rate.",
    "library/slower": "The fastest rung ({rungs:names}) is behind the best library ({libraries:names}) at "
    "{n:each size}: {span:span} its rate.",
    "library/level": "The fastest rung ({rungs:names}) is level with the best library ({libraries:names}) at {n:each "
    "size}.",
    "library/mixed": "The fastest rung ({rungs:names}) against the best library ({libraries:names}): {split:split}; "
    "{span:span} its rate.",
    "library/unsure": "Whether the fastest rung or the best library is faster cannot be told.",
    "library/none": "How the rungs compare with a library cannot be said: no size has times of both.",
    "filling/from": "The best rate comes within 10 % of its highest, {top_rate:rate} at {top}, from {near} on "
    "({near_rate:rate}); at {first} it is {first_rate:rate}, {share:percent} of it.",
    "filling/all": "The best rate is within 10 % of its highest, {top_rate:rate} at {top}, already at {first} "
    "({first_rate:rate}).",
    "filling/too-few": "From which size on the device is full cannot be said from {n:count size}.",
}

STUDY = Study(
    "gemm",
    "What does each rung of the matrix product bring, and how far is the last from the library and the peak?",
    parts,
    (ladder, rung, ahead, library, peak, filling),
    ENGLISH,
    gpu_s=80.0,
    answered_by=("ladder", "against-library", "share-of-peak"),
)
