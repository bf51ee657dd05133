"""The configs that a run tried, by method and case, and those that differ in the shape of their block alone."""

from __future__ import annotations

from typing import NamedTuple

from convforge.benchmark.config_tables import shape_of
from convforge.benchmark.formats import natural
from convforge.benchmark.records import Result, Run
from convforge.course.studies.readings import Reading, readings

# The keys of a config that give the shape of a block: of its threads, or of the tile that it computes.
BLOCK_KEYS = (
    {"block_x", "block_y"},
    {"block"},
    {"block_m", "block_n"},
    {"strips", "lanes"},
    {"tile_p", "tile_q"},
    {"tile_m", "tile_n"},
)

Cases = dict[str, list[Reading]]


class Alike(NamedTuple):
    """Configs of a method that differ in the shape of their block alone."""

    method: str
    name: str  # the method with the part of their configs that other configs of the method do not have
    cases: Cases  # their readings, two or more; without those of `cut` if another case has all configs
    cut: list[str]  # the cases on which a config was skipped


def timed(run: Run) -> dict[str, Cases]:
    """Method of ours -> case -> its readings, one a config, without partitions, which have a study of their own."""
    found: dict[str, Cases] = {}
    for r in (r for operation in ("conv2d", "gemm") for r in readings(run, operation, every_config=True)):
        if r.result.ours and not partitioned(r.result.config):
            found.setdefault(r.method, {}).setdefault(r.case, []).append(r)
    return {m: dict(sorted(cases.items(), key=lambda c: natural(c[0]))) for m, cases in found.items()}


def tried(run: Run) -> dict[str, Cases]:
    """As :func:`timed`, of methods and cases with several configs.

    A case on which some config was skipped is left out where another has them all: its fastest would be that of others.
    """
    skipped = {(r.algorithm, r.case) for r in _skipped(run)}
    found = {m: {case: rs for case, rs in cases.items() if len(rs) > 1} for m, cases in timed(run).items()}
    whole = {m: {c: rs for c, rs in cases.items() if (m, c) not in skipped} or cases for m, cases in found.items()}
    return {m: cases for m, cases in whole.items() if cases}


def alike(run: Run) -> list[Alike]:
    """The groups of configs of which a run timed several shapes, all else equal."""
    skipped = {(r.algorithm, r.case, split(r.config)[1]) for r in _skipped(run)}
    found = []
    for method, cases in timed(run).items():
        groups: dict[tuple[str, ...], Cases] = {}
        for r in (r for rs in cases.values() for r in rs):
            groups.setdefault(split(r.result.config)[1], {}).setdefault(r.case, []).append(r)
        shared = set.intersection(*map(set, groups))
        for rest, own in groups.items():
            several = {case: rs for case, rs in own.items() if len(rs) > 1 and all(map(shape, rs))}
            if several:
                said = ",".join(part for part in rest if part not in shared)
                cut = sorted((case for m, case, left in skipped if (m, left) == (method, rest)), key=natural)
                whole = {case: rs for case, rs in several.items() if case not in cut} or several
                found.append(Alike(method, f"{method}[{said}]" if said else method, whole, cut))
    return found


def shape(reading: Reading) -> str:
    """The shape of a reading's block; empty where its config names none."""
    config = reading.result.config
    return str(shape_of(config) or ",".join(split(config)[0]))


def split(config: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of a config's text that give the shape of its block, and the rest.

    Examples
    --------
    >>> split("block_x=32,block_y=4,per_p=8")
    (('block_x=32', 'block_y=4'), ('per_p=8',))
    """
    parts = {part: part.partition("=")[0] for part in config.split(",")}
    keys = next((keys for keys in BLOCK_KEYS if keys & set(parts.values())), set[str]())
    block = tuple(part for part, name in parts.items() if name in keys)
    return block, tuple(part for part in parts if part not in block)


def partitioned(config: str) -> bool:
    """True if a thread computes something else than one output or a tile."""
    found = shape_of(config)
    return found is not None and bool(found.partition)


def _skipped(run: Run) -> list[Result]:
    return [r for r in run.results if r.status == "skipped" and not partitioned(r.config)]
