"""Outputs computed by one thread: one pixel, a small block, a complete row or a complete column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from statistics import geometric_mean
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.config_tables import shape_of
from convforge.benchmark.records import Run
from convforge.benchmark.row import Row
from convforge.course.studies.finding import Finding, undecided
from convforge.course.studies.readings import Reading, by_case, compare, data_of, device_backend, distinct, readings
from convforge.course.studies.study import Part, rgb_to_1, study

METHOD = "direct_naive"


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return the naive kernel's partitions; no CPU method has several, so nothing is measured there."""
    if facts.backend != "cuda":
        return []
    sizes = (64, 128) if quick else (256, 512, 1024, 2048)
    return [Part(rgb_to_1(sizes, (1,)), (METHOD,), all_configs=True, keep=_same_block)]


def _same_block(row: Row) -> bool:
    """True for the default block, so that rows differ only in the partition."""
    return (getattr(row.config, "block_x", 32), getattr(row.config, "block_y", 4)) == (32, 4)


def by_partition(run: Run) -> dict[str, dict[str, Reading]]:
    """Readings as case -> partition -> reading, for cases with several partitions, all with the same block."""
    found: dict[str, dict[str, Reading]] = {}
    every = readings(run, "conv2d", every_config=True)
    for case, rs in by_case(r for r in every if r.result.algorithm == METHOD).items():
        shapes = [(shape, r) for r in rs if (shape := shape_of(r.result.config)) is not None]
        blocks = {(shape.first, shape.second) for shape, _ in shapes if shape.partition}
        same = {shape.partition or "pixel": r for shape, r in shapes if (shape.first, shape.second) in blocks}
        if len(same) > 1 and "pixel" in same:
            found[case] = same
    return found


def partitions(run: Run) -> Iterator[Finding]:
    """Time of each partition divided by the time of one output per thread: the mean, then case by case."""
    cases = by_partition(run)
    if not cases:
        yield undecided("partitions", "partition/host" if device_backend(run) == "cpu" else "partition/none")
        return
    names = distinct(name for same in cases.values() for name in same if name != "pixel")
    both = {name: {c: (same[name], same["pixel"]) for c, same in cases.items() if name in same} for name in names}
    costs = {name: geometric_mean(a.seconds / b.seconds for a, b in found.values()) for name, found in both.items()}
    best = min(costs, key=lambda name: costs[name])
    values: dict[str, Any] = {"n": len(cases), "costs": costs, "best": "pixel" if costs[best] > 1 else best}
    yield Finding("partitions", "partition/all", values, data_of(r for same in cases.values() for r in same.values()))
    for name, found in both.items():
        compared = compare(found)
        values = {"partition": name}
        if compared.pairs:
            case = compared.values["inverse"]["most_case"]
            own, pixel = map(_threads, compared.pairs[case])
            values |= {"case": case, "threads": own, "pixel_threads": pixel}
        yield compared.finding("partition", "partition", values)


def _threads(r: Reading) -> int | None:
    """Number of threads in the launch, from its grid."""
    return prod((*r.result.launches[0]["grid"], *r.result.launches[0]["block"])) if r.result.launches else None


STUDY = study("partition", parts, (partitions,))
