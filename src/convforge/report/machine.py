"""Where a run was measured: machine, system, libraries, commit, settings and ceilings, as pairs of words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from convforge.backends.facts import cores_in_words
from convforge.report import numbers
from convforge.report.records import View
from convforge.report.tables import Cell, Column, Table

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs under one title."""

    title: str
    pairs: tuple[Pair, ...]


def facts(view: View) -> list[Facts]:
    """All that is known of where and how a run was measured."""
    return [
        Facts("Machine", tuple(_machine(view.run.machine))),
        Facts("Libraries", tuple(_libraries(view))),
        Facts("Run", tuple(_run(view))),
    ]


def machine_name(view: View) -> str:
    """What the maker calls it, and its cores."""
    known = _mapping(view.run.machine.get("facts"))
    name, cores = known.get("name") or view.run.device, known.get("cores")
    return f"{name}, {cores_in_words(cores, known.get('backend', ''))}" if cores else str(name)


def _machine(machine: dict[str, Any]) -> Iterator[Pair]:
    known = _mapping(machine.get("facts"))
    for name, label in (("name", "device"), ("architecture", "architecture"), ("cores", "cores")):
        if known.get(name):
            yield label, str(known[name])
    for name, label in (("l1_bytes", "L1"), ("l2_bytes", "L2"), ("l3_bytes", "L3"), ("memory_bytes", "memory")):
        if isinstance(known.get(name), int | float) and known[name]:
            yield label, numbers.byte_count(known[name])
    if known.get("vector_bytes"):
        yield "vectors", f"{known['vector_bytes']} bytes"
    load = machine.get("load")
    if isinstance(load, list) and load:
        yield "load at the start", " / ".join(str(value) for value in load) + " (1, 5, 15 minutes)"
    else:
        yield "load at the start", "the system does not say"
    yield "clock governor", str(machine.get("governor") or "the system does not say")
    clocks = machine.get("clock_mhz")
    if isinstance(clocks, list) and clocks:
        low, high = min(clocks), max(clocks)
        yield "clock", f"{low:.0f} MHz" if low == high else f"{low:.0f} to {high:.0f} MHz"
    threads = _mapping(machine.get("threads"))
    if threads:
        yield "thread limits", ", ".join(f"{name}={value}" for name, value in sorted(threads.items()))


def _libraries(view: View) -> Iterator[Pair]:
    machine = view.run.machine
    if machine.get("os"):
        yield "system", str(machine["os"])
    if machine.get("python"):
        yield "Python", f"{machine['python']} ({machine.get('implementation', 'unknown implementation')})"
    found = dict(view.run.versions)
    for entry in view.entries:
        for name, version in entry.result.library_versions.items():
            found.setdefault(name, version)
    yield from ((str(name), str(version)) for name, version in found.items())


def _run(view: View) -> Iterator[Pair]:
    run = view.run
    yield "id", run.run
    yield "started", f"{run.started.replace('T', ' ').replace('+00:00', '')} UTC"
    yield "suite", run.suite
    if run.commit is None:
        yield "commit", "not known: installed, or no git"
    else:
        yield "commit", run.commit[:12] + (", with uncommitted changes" if run.dirty else ", no changes")
    yield "finished", "yes" if run.complete else "no"
    for name, value in run.settings.items():
        if value not in (None, [], False, ""):
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield name.replace("_", " ").removesuffix(" s") + (", s" if name.endswith("_s") else ""), words


def ceiling_table(view: View) -> Table | None:
    """The ceilings as they were measured, before and after; None where none was."""
    if not view.run.ceilings:
        return None
    columns = (Column("measured"), Column("copy, GB/s", True), Column("float32 FMA, GFLOP/s", True))
    rows = tuple(
        (
            Cell(when),
            Cell(numbers.three(c.copy_bytes_per_s / 1e9), c.copy_bytes_per_s),
            Cell(numbers.three(c.fma_flops_per_s / 1e9), c.fma_flops_per_s),
        )
        for when, c in view.run.ceilings
    )
    return Table("ceilings", "Ceilings of the machine", columns, rows)


def ceiling_words(view: View) -> str:
    """Whether the ceilings held."""
    if not view.run.ceilings:
        return "No ceilings were measured, so there is no roofline."
    if not any(when == "after" for when, _ in view.run.ceilings):
        return "They were not measured again after the run: whether the machine held still is not known."
    if view.run.moved:
        return f"They moved: {view.run.moved}."
    return "They held: before and after differ by less than 10 %. The roofline uses the higher of each."


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
