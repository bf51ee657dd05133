"""The machine of a run as pairs of texts: system, libraries, commit, settings and ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convforge.benchmark.records import Run
from convforge.course.language import gettext, ngettext
from convforge.course.report import numbers
from convforge.course.report.records import View
from convforge.course.report.table import Table, number, table, text

Pair = tuple[str, str]


def facts(view: View) -> list[tuple[str, list[Pair]]]:
    """Return titled lists of (name, value) pairs about the machine, the libraries and the run."""
    return [
        (gettext("Machine"), list(_machine(view.run.machine))),
        (gettext("Libraries"), list(_libraries(view))),
        (gettext("Run"), list(_run(view.run))),
    ]


def machine_name(view: View) -> str:
    """Name the device as its maker does, with its number of cores."""
    known = _mapping(view.run.machine.get("facts"))
    name, cores = known.get("name") or view.run.device, known.get("cores")
    if not cores:
        return str(name)
    words = ngettext("{name}, {n} core", "{name}, {n} cores", cores)
    if known.get("backend") == "cuda":
        words = ngettext("{name}, {n} SM", "{name}, {n} SMs", cores)
    return words.format(name=name, n=cores)


def _machine(machine: dict[str, Any]) -> Iterator[Pair]:
    known = _mapping(machine.get("facts"))
    on_gpu, silent = known.get("backend") == "cuda", gettext("the system does not say")
    cores = gettext("SMs") if on_gpu else gettext("cores")
    for name, label in {"name": gettext("device"), "architecture": gettext("architecture"), "cores": cores}.items():
        if known.get(name):
            yield label, str(known[name])
    sizes = {"l1_bytes": "L1", "l2_bytes": "L2", "l3_bytes": "L3", "memory_bytes": gettext("memory")}
    known_numbers = {name: value for name, value in known.items() if isinstance(value, int | float) and value}
    yield from ((label, numbers.byte_count(known_numbers[n])) for n, label in sizes.items() if n in known_numbers)
    if known.get("vector_bytes"):
        label = gettext("widest load of a thread") if on_gpu else gettext("vectors")
        yield label, gettext("{n} bytes").format(n=known["vector_bytes"])
    if on_gpu and "clock_hz" in known_numbers:
        yield gettext("clock"), f"{known_numbers['clock_hz'] / 1e6:.0f} MHz"
    words, load = silent, machine.get("load")
    if isinstance(load, list) and load:
        words = gettext("{load} (1, 5, 15 minutes)").format(load=" / ".join(map(str, load)))
    yield gettext("the host's load at the start") if on_gpu else gettext("load at the start"), words
    yield gettext("clock governor"), str(machine.get("governor") or silent)
    clocks = machine.get("clock_mhz")
    if isinstance(clocks, list) and clocks:
        low, high = min(clocks), max(clocks)
        words = "{low:.0f} MHz" if low == high else gettext("{low:.0f} to {high:.0f} MHz")
        yield gettext("the host's clock") if on_gpu else gettext("clock"), words.format(low=low, high=high)
    if threads := _mapping(machine.get("threads")):
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
        found |= {name: v for name, v in entry.result.library_versions.items() if name not in found}
    yield from ((str(name), str(version)) for name, version in found.items())


def _run(run: Run) -> Iterator[Pair]:
    commit = gettext("not known: installed, or no git")
    if run.commit is not None:
        words = gettext("{commit}, with uncommitted changes") if run.dirty else gettext("{commit}, no changes")
        commit = words.format(commit=run.commit[:12])
    yield gettext("id"), run.run
    yield gettext("started"), f"{run.started.replace('T', ' ').replace('+00:00', '')} UTC"
    yield gettext("suite"), run.suite
    yield gettext("commit"), commit
    yield gettext("finished"), gettext("yes") if run.complete else gettext("no")
    known = {
        "methods": gettext("methods"), "sizes": gettext("sizes"), "strides": gettext("strides"),
        "budget_s": gettext("budget, s"), "all_configs": gettext("all configs"), "quick": gettext("quick"),
        "workspace_limit": gettext("workspace limit"), "heavy": gettext("heavy"), "transfer": gettext("transfer"),
        "steps": gettext("steps"),
    }  # fmt: skip
    for name, value in run.settings.items():
        if value not in (None, [], False, ""):
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            # A setting unknown to this version keeps its name from the record.
            yield known.get(name) or name.replace("_", " "), gettext("True") if value is True else words


def ceiling_table(view: View) -> Table | None:
    """Return the ceilings measured before and after the run; None if none was measured."""
    words = {"before": gettext("before"), "after": gettext("after")}
    fields = (
        text(gettext("measured"), lambda c: words.get(c[0], c[0])),
        number(gettext("copy, GB/s"), lambda c: c[1].copy_bytes_per_s, _giga),
        number(gettext("float32 FMA, GFLOP/s"), lambda c: c[1].fma_flops_per_s, _giga),
    )
    found = view.run.ceilings
    return table("ceilings", gettext("Ceilings of the machine"), found, fields) if found else None


def _giga(value: float) -> str:
    return numbers.three(value / 1e9)


def ceiling_words(view: View) -> str:
    """Describe how well the ceilings before and after the run agree."""
    if not view.run.ceilings:
        return gettext("No ceilings were measured, so there is no roofline.")
    if not any(when == "after" for when, _ in view.run.ceilings):
        return gettext("They were not measured again after the run: whether the machine held still is not known.")
    if view.run.moved:
        return gettext("They moved: {what}.").format(what=view.run.moved.render(gettext))
    return gettext("They held: before and after differ by less than 10 %. The roofline uses the higher of each.")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
