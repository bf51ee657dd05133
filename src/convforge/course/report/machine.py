"""Where a run was measured: machine, system, libraries, commit, settings and ceilings, as pairs of words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from convforge.course.language import gettext, ngettext
from convforge.course.report import numbers
from convforge.course.report.records import View
from convforge.course.report.table import Cell, Column, Table

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs under one title."""

    title: str
    pairs: tuple[Pair, ...]


def facts(view: View) -> list[Facts]:
    """All that is known of where and how a run was measured."""
    return [
        Facts(gettext("Machine"), tuple(_machine(view.run.machine))),
        Facts(gettext("Libraries"), tuple(_libraries(view))),
        Facts(gettext("Run"), tuple(_run(view))),
    ]


def machine_name(view: View) -> str:
    """What the maker calls it, and its cores."""
    known = _mapping(view.run.machine.get("facts"))
    name, cores = known.get("name") or view.run.device, known.get("cores")
    if not cores:
        return str(name)
    if known.get("backend") == "cuda":
        words = ngettext("{name}, {n} multiprocessor", "{name}, {n} multiprocessors", cores)
    else:
        words = ngettext("{name}, {n} core", "{name}, {n} cores", cores)
    return words.format(name=name, n=cores)


def _machine(machine: dict[str, Any]) -> Iterator[Pair]:
    known = _mapping(machine.get("facts"))
    on_gpu = known.get("backend") == "cuda"
    cores = gettext("multiprocessors") if on_gpu else gettext("cores")
    said = {"name": gettext("device"), "architecture": gettext("architecture"), "cores": cores}
    for name, label in said.items():
        if known.get(name):
            yield label, str(known[name])
    sizes = {"l1_bytes": "L1", "l2_bytes": "L2", "l3_bytes": "L3", "memory_bytes": gettext("memory")}
    for name, label in sizes.items():
        if isinstance(known.get(name), int | float) and known[name]:
            yield label, numbers.byte_count(known[name])
    if known.get("vector_bytes"):
        label = gettext("widest load of a thread") if on_gpu else gettext("vectors")
        yield label, gettext("{n} bytes").format(n=known["vector_bytes"])
    if on_gpu and isinstance(known.get("clock_hz"), int | float) and known["clock_hz"]:
        yield gettext("clock"), f"{known['clock_hz'] / 1e6:.0f} MHz"
    load = machine.get("load")
    at_start = gettext("the host's load at the start") if on_gpu else gettext("load at the start")
    silent = gettext("the system does not say")
    if isinstance(load, list) and load:
        words = gettext("{load} (1, 5, 15 minutes)").format(load=" / ".join(str(value) for value in load))
        yield at_start, words
    else:
        yield at_start, silent
    yield gettext("clock governor"), str(machine.get("governor") or silent)
    clocks = machine.get("clock_mhz")
    if isinstance(clocks, list) and clocks:
        low, high = min(clocks), max(clocks)
        words = "{low:.0f} MHz" if low == high else gettext("{low:.0f} to {high:.0f} MHz")
        yield gettext("the host's clock") if on_gpu else gettext("clock"), words.format(low=low, high=high)
    threads = _mapping(machine.get("threads"))
    if threads:
        yield gettext("thread limits"), ", ".join(f"{name}={value}" for name, value in sorted(threads.items()))


def _libraries(view: View) -> Iterator[Pair]:
    machine = view.run.machine
    if machine.get("os"):
        yield gettext("system"), str(machine["os"])
    if machine.get("python"):
        implementation = machine.get("implementation") or gettext("unknown implementation")
        yield "Python", f"{machine['python']} ({implementation})"
    found = dict(view.run.versions)
    for entry in view.entries:
        for name, version in entry.result.library_versions.items():
            found.setdefault(name, version)
    yield from ((str(name), str(version)) for name, version in found.items())


def _run(view: View) -> Iterator[Pair]:
    run = view.run
    yield gettext("id"), run.run
    yield gettext("started"), f"{run.started.replace('T', ' ').replace('+00:00', '')} UTC"
    yield gettext("suite"), run.suite
    if run.commit is None:
        yield gettext("commit"), gettext("not known: installed, or no git")
    else:
        words = gettext("{commit}, with uncommitted changes") if run.dirty else gettext("{commit}, no changes")
        yield gettext("commit"), words.format(commit=run.commit[:12])
    yield gettext("finished"), gettext("yes") if run.complete else gettext("no")
    for name, value in run.settings.items():
        if value not in (None, [], False, ""):
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield _setting(name), gettext("True") if value is True else words


def _setting(name: str) -> str:
    """A setting of the bench in words; one that this version does not know by its name."""
    known = {
        "methods": gettext("methods"),
        "sizes": gettext("sizes"),
        "strides": gettext("strides"),
        "budget_s": gettext("budget, s"),
        "all_configs": gettext("all configs"),
        "workspace_limit": gettext("workspace limit"),
        "quick": gettext("quick"),
        "heavy": gettext("heavy"),
        "transfer": gettext("transfer"),
        "steps": gettext("steps"),
    }
    return known.get(name) or name.replace("_", " ")


def ceiling_table(view: View) -> Table | None:
    """The ceilings as they were measured, before and after; None where none was."""
    if not view.run.ceilings:
        return None
    columns = (
        Column(gettext("measured")),
        Column(gettext("copy, GB/s"), True),
        Column(gettext("float32 FMA, GFLOP/s"), True),
    )
    words = {"before": gettext("before"), "after": gettext("after")}
    rows = tuple(
        (
            Cell(words.get(when, when)),
            Cell(numbers.three(c.copy_bytes_per_s / 1e9), c.copy_bytes_per_s),
            Cell(numbers.three(c.fma_flops_per_s / 1e9), c.fma_flops_per_s),
        )
        for when, c in view.run.ceilings
    )
    return Table("ceilings", gettext("Ceilings of the machine"), columns, rows)


def ceiling_words(view: View) -> str:
    """Whether the ceilings held."""
    if not view.run.ceilings:
        return gettext("No ceilings were measured, so there is no roofline.")
    if not any(when == "after" for when, _ in view.run.ceilings):
        return gettext("They were not measured again after the run: whether the machine held still is not known.")
    if view.run.moved:
        return gettext("They moved: {what}.").format(what=view.run.moved.render(gettext))
    return gettext("They held: before and after differ by less than 10 %. The roofline uses the higher of each.")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
