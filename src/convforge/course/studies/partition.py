"""What a thread computes: one pixel, a small block, a whole row or a whole column of outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.config_tables import shape_of
from convforge.benchmark.records import Run
from convforge.benchmark.row import Row
from convforge.benchmark.suites import load, select
from convforge.course.studies.finding import Finding
from convforge.course.studies.readings import Reading, by_case, decided, device_backend, readings
from convforge.course.studies.study import Part, Study
from convforge.timing.ranking import order

METHOD = "direct_naive"


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """The naive kernel by partition; on the CPU no method offers the choice, so nothing is measured there."""
    if facts.backend != "cuda":
        return []
    sizes = (64, 128) if quick else (256, 512, 1024, 2048)
    cases = [case for case in select(load(["images"])[1], sizes=sizes, strides=(1,)) if case.problem.k == 1]  # type: ignore[union-attr]
    return [Part(cases, (METHOD,), all_configs=True, keep=_same_block)]


def _same_block(row: Row) -> bool:
    """The default block alone, so that rows differ in the partition alone."""
    return (getattr(row.config, "block_x", 32), getattr(row.config, "block_y", 4)) == (32, 4)


def by_partition(run: Run) -> dict[str, dict[str, Reading]]:
    """Case -> partition -> its reading, of cases with several; all with the block that the others have."""
    found: dict[str, dict[str, Reading]] = {}
    every = readings(run, "conv2d", every_config=True)
    for case, rs in by_case(r for r in every if r.result.algorithm == METHOD).items():
        shapes = [(shape, r) for r in rs if (shape := shape_of(r.result.config)) is not None]
        blocks = {(shape.first, shape.second) for shape, _ in shapes if shape.partition}
        same = {shape.partition or "pixel": r for shape, r in shapes if (shape.first, shape.second) in blocks}
        if len(same) > 1 and "pixel" in same:
            found[case] = same
    return found


def overview(run: Run) -> Iterator[Finding]:
    """All partitions at a glance: the time of each over that of one output a thread, on average."""
    cases = by_partition(run)
    if not cases:
        host = device_backend(run) == "cpu"
        yield Finding("partitions", "partition/host" if host else "partition/none", {}, supported=False)
        return
    costs = {
        name: geometric_mean(same[name].seconds / same["pixel"].seconds for same in cases.values() if name in same)
        for name in _names(cases)
    }
    values = {"n": len(cases), "costs": costs}
    rests = tuple(r.datum() for same in cases.values() for r in same.values())
    yield Finding("partitions", "partition/all", values, rests)


def _names(cases: dict[str, dict[str, Reading]]) -> list[str]:
    """The partitions but that of one output a thread."""
    return list(dict.fromkeys(name for same in cases.values() for name in same if name != "pixel"))


def partitions(run: Run) -> Iterator[Finding]:
    """Each partition against one output a thread, case by case."""
    cases = by_partition(run)
    for name in _names(cases):
        both, unsure = decided({case: (same["pixel"], same[name]) for case, same in cases.items() if name in same})
        if not both:
            yield Finding("partition", "partition/unsure", {"partition": name, "unsure": unsure}, supported=False)
            continue
        verdicts = {case: order(b.timing, a.timing) for case, (a, b) in both.items()}
        costs = {case: b.seconds / a.seconds for case, (a, b) in both.items()}
        low, high = min(costs, key=lambda c: costs[c]), max(costs, key=lambda c: costs[c])
        split = {verdict: [c for c, v in verdicts.items() if v == verdict] for verdict in ("faster", "slower", "level")}
        values: dict[str, Any] = {
            "partition": name, "unsure": unsure, "n": len(both), "split": split, "threads_case": high,
            "cost": {"least": costs[low], "least_case": low, "most": costs[high], "most_case": high},
            "gain": {"least": 1 / costs[high], "least_case": high, "most": 1 / costs[low], "most_case": low},
            "pixel_s": both[high][0].seconds, "own_s": both[high][1].seconds, "case": high,
        } | _threads(*both[high])  # fmt: skip
        form = next((v for v, found in split.items() if len(found) == len(both)), "mixed")
        rests = tuple(r.datum() for ab in both.values() for r in ab)
        yield Finding("partition", f"partition/{form}", values, rests, supported=form != "level")


def _threads(pixel: Reading, own: Reading) -> dict[str, int]:
    """Threads that each partition launches, by its grid."""
    found = {}
    for name, r in (("pixel_threads", pixel), ("threads", own)):
        count = 1
        for side in (*r.result.launches[0]["grid"], *r.result.launches[0]["block"]) if r.result.launches else (0,):
            count *= side
        found[name] = count
    return found


ENGLISH = {
    "partition/all": "The time over that of one output a thread, geometric mean over {n:count case}: {costs:ratios}.",
    "partition/slower": "A {partition:word} of outputs a thread is slower than one output a thread on {n:each case}: "
    "it takes {cost:span} the time; on {case} it launches {threads} threads, against {pixel_threads}.",
    "partition/faster": "A {partition:word} of outputs a thread is faster than one output a thread on {n:each case}, "
    "by {gain:span}; on {case} it launches {threads} threads, against {pixel_threads}.",
    "partition/level": "A {partition:word} of outputs a thread is level with one output a thread on {n:each case}.",
    "partition/unsure": "Whether a {partition:word} of outputs a thread is faster than one output a thread cannot be "
    "told.",
    "partition/mixed": "A {partition:word} of outputs a thread against one output a thread: {split:split}; it takes "
    "{cost:span} the time.",
    "partition/none": "What the partition does cannot be said: no case was timed with several.",
    "partition/host": "What the partition does cannot be said here: no method of the CPU lets one choose what a thread "
    "computes.",
}

STUDY = Study(
    "partition",
    "What should one thread compute: a pixel, a block, a row or a column of the output?",
    parts,
    (overview, partitions),
    ENGLISH,
    gpu_s=40.0,
    view="blocks",
    answered_by=("partitions",),
)
