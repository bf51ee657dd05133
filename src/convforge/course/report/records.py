"""The runs that a report shows, and each result together with its problem.

A **family** is a problem without the size of its image and the stride: "RGB image to 1 channel, 3x3". Families with
three or more sizes are drawn over size; all other cases are drawn one by one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from convforge.benchmark.frame import stride_of, with_configs
from convforge.benchmark.records import Result, Run
from convforge.benchmark.store import load_runs
from convforge.benchmark.verdicts import Verdict, judge
from convforge.course.language import gettext, ngettext
from convforge.problem import ElementwiseProblem, GemmProblem, Pool2dProblem, Problem, parse_problem
from convforge.problem.types import SHORT_NAMES
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing

# Smallest number of sizes for which a family is drawn as lines.
SERIES = 3

# Classes with other operations than the direct method: their GFLOP/s are nominal.
NOMINAL = frozenset({"winograd", "fft", "separable"})

# Classes that multiply types narrower than float32, so the float32 FMA peak does not limit them.
NARROW = frozenset({"tf32", "fp16", "bf16", "fp8", "fp8_fast", "int8"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One result, with facts about its problem."""

    result: Result
    problem: Problem
    family: str  # description of the problem
    title: str  # the family without padding, types and layout; several families may share it
    timing: Timing | None  # the timing used for ranking
    label: str  # the method, with its config if the run has several of it
    stale: bool  # the sources of the result have changed since it was measured

    @property
    def stride(self) -> str:
        """Stride as text, such as "2" or "2x1"; empty if the operation has none."""
        return stride_of(self.problem)

    @property
    def size(self) -> int | None:
        """Height and width of a square image, or M of a square matrix product."""
        return self.problem.sides[0] if len(set(self.problem.sides)) == 1 else None

    @property
    def size_text(self) -> str:
        """All sides as text, such as "64x32"."""
        return "x".join(map(str, self.problem.sides))

    @property
    def is_noisy(self) -> bool:
        """True if its median time is less certain than requested."""
        return self.timing is not None and self.timing.noisy

    @property
    def seconds(self) -> float | None:
        """Median seconds per call, including the preparation of weights."""
        return None if self.timing is None else self.timing.median_s

    @property
    def gflops(self) -> float | None:
        """Nominal GFLOP/s; None without a time or FLOPs."""
        if self.timing is None or not self.result.flops:
            return None
        return self.result.flops / self.timing.median_s / 1e9

    @property
    def occupancy(self) -> float | None:
        """Resident warps divided by the SM's maximum, in the launch with the most registers; None if unknown."""
        return max(self.result.launches, key=lambda about: about.get("registers") or 0, default={}).get("occupancy")

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte, both as the minimum for the problem."""
        return self.result.flops / self.result.least_bytes if self.result.flops and self.result.least_bytes else None

    @property
    def nominal(self) -> bool:
        """True if its GFLOP/s count operations that the method does not perform."""
        return self.result.precision in NOMINAL


@dataclass(frozen=True)
class View:
    """A run, prepared for the report."""

    run: Run
    entries: tuple[Entry, ...]

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdict of each case with a time, in the order of the file."""
        found = {case: judge(self.run, case) for case in self.run.cases}
        return {case: verdict for case, verdict in found.items() if verdict.fastest or verdict.unsure}

    @cached_property
    def timed(self) -> tuple[Entry, ...]:
        """Entries with a time."""
        return tuple(entry for entry in self.entries if entry.timing is not None)

    @cached_property
    def best(self) -> tuple[Entry, ...]:
        """The fastest config of each method and case, which charts show."""
        fastest: dict[tuple[str, str, str], Entry] = {}
        for entry in sorted(self.timed, key=lambda e: e.seconds or 0.0):
            fastest.setdefault((entry.result.case, entry.result.backend, entry.result.algorithm), entry)
        chosen = {id(entry) for entry in fastest.values()}
        return tuple(entry for entry in self.timed if id(entry) in chosen)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Names of the timed methods: ours, then the peers, each in the order of the file."""
        return tuple(
            dict.fromkeys(e.result.algorithm for ours in (True, False) for e in self.timed if e.result.ours is ours)
        )

    @cached_property
    def series(self) -> tuple[str, ...]:
        """Families drawn over size, in the order of the file."""
        sizes: dict[str, set[int]] = {}
        for entry in self.best:
            if entry.size is not None:
                sizes.setdefault(entry.family, set()).add(entry.size)
        return tuple(family for family, found in sizes.items() if len(found) >= SERIES)

    def short(self, family: str) -> str:
        """Return a family's title without padding, types and layout, if no other family has the same."""
        title = next((e.title for e in self.entries if e.family == family), family)
        alike = {e.family for e in self.entries if e.title == title}
        return title if len(alike) <= 1 else family

    def entry(self, result: Result) -> Entry:
        """Return the entry of a result."""
        return self._entries[result.key]

    @cached_property
    def _entries(self) -> dict[tuple[str, ...], Entry]:
        return {entry.result.key: entry for entry in self.entries}

    def roof(self, entry: Entry) -> float | None:
        """Return the GFLOP/s that the ceilings allow at the entry's intensity; None if no ceiling applies."""
        ceilings, intensity = self.run.best_ceilings, entry.intensity
        if ceilings is None or intensity is None or entry.result.precision in NARROW:
            return None
        return roof(ceilings, intensity)

    def of_the_roof(self, entry: Entry) -> float | None:
        """Return the share of the roof that an entry reaches; None if one of the two is unknown."""
        limit = self.roof(entry)
        return entry.gflops / limit if entry.gflops and limit else None

    def is_series(self, entry: Entry) -> bool:
        """True if the entry's family is drawn over size."""
        return entry.size is not None and entry.family in self.series


def roof(ceilings: Ceilings, intensity: float) -> float:
    """Return the roofline in GFLOP/s at an intensity in FLOPs/byte (Williams, Waterman, Patterson, CACM 52(4), 2009).

    Examples
    --------
    >>> roof(Ceilings(10e9, 80e9), 2.0), roof(Ceilings(10e9, 80e9), 100.0)
    (20.0, 80.0)
    """
    return min(ceilings.copy_bytes_per_s * intensity, ceilings.fma_flops_per_s) / 1e9


def load(paths: Sequence[Path | str]) -> tuple[list[Run], list[Run]]:
    """Read runs from files and folders; return the runs to show, most results first, and the older ones.

    All named files are shown; from a folder, only the newest run of each kind. A kind is one device, suite and choice
    of rows; finished runs take precedence over unfinished ones. Raises ``ValueError`` with file and line for a damaged
    file, a file of another kind or an empty one.
    """
    if not paths:
        raise ValueError("name a file of results (*.jsonl) or a folder of them")
    named, found = list[Run](), list[Run]()
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"{path} does not exist; convforge bench writes out/results/DEVICE/RUN.jsonl")
        runs = load_runs(path)
        if not runs:
            raise ValueError(f"{path} holds no results (*.jsonl); convforge bench writes them")
        (found if path.is_dir() else named).extend(runs)
    full = [run for run in found if run.results]
    if empty := [run for run in (*named, *(() if named or full else found)) if not run.results]:
        raise ValueError(f"{empty[0].path} holds no result: the run ended before its first row was done")
    newest = {_kind(run): run for run in sorted(full, key=lambda run: (run.complete, run.started, run.run))}
    # A run that is named twice, or is also in a folder, is shown once.
    shown = {run.path.resolve(): run for run in (*newest.values(), *named)}
    ordered = sorted(shown.values(), key=lambda run: (-len(run.results), run.started, run.run))
    return ordered, [run for run in found if run.path.resolve() not in shown]


def _kind(run: Run) -> str:
    # An empty setting counts as equal to one that an older run lacks.
    choice = {name: value for name, value in run.settings.items() if value and name not in ("budget_s", "quick")}
    return json.dumps([run.device, run.suite, choice], sort_keys=True)


def view(run: Run) -> View:
    """Create the view of a run, with its families in the current language.

    Raises ``ValueError`` with file and case for an invalid problem or a time that is not positive.
    """
    several = with_configs(run.results)
    entries = []
    for result in run.results:
        place = f"{run.path}, case {result.case!r}"
        try:
            problem = parse_problem(result.problem)
        except ValueError as fault:
            raise ValueError(f"{place}: {fault}") from None
        timing = run.timing(result) if result.status == "ok" else None
        for found in (timing, result.prepared_time, result.transfer_time, *(step.time for step in result.steps)):
            if found is not None and not _positive(found):
                raise ValueError(f"{place}: {result.algorithm} has a time that is not positive")
        copy = run.copy_of(result.case)
        if copy is not None and not _positive(copy.time):
            raise ValueError(f"{place}: the copy has a time that is not positive")
        label = result.label if result.algorithm in several else result.algorithm
        entries.append(Entry(result, problem, *_family(problem), timing, label, run.is_stale(result)))
    return View(run, tuple(entries))


def _positive(timing: Timing) -> bool:
    samples: tuple[float | None, ...] = timing.samples  # None for a stored sample that was not finite
    return bool(samples) and all(s is not None and 0 < s < math.inf for s in samples)


def _family(problem: Problem) -> tuple[str, str]:
    """Describe a problem without size and stride, and the same without padding and all that follows it.

    Two problems share the first text only if they differ in nothing but size and stride.
    """
    names = {short: long for long, short in SHORT_NAMES.items()}
    kinds = {"p": gettext("padding {n}"), "d": gettext("dilation {n}"), "g": gettext("{n} groups")}
    words, title, comma = _operands(problem), "", gettext(", ")
    for token in str(problem).split("_"):
        if re.match(r"(max|n\d+c|m\d+n|relu\d|k\d+r|r\d+s|st\d)", token):
            continue
        if re.fullmatch(r"[pd][\dx]+|g\d+", token):
            title = title or (comma.join(words) if token[0] == "p" else "")
            words.append(kinds[token[0]].format(n=token[1:]))
        else:
            words.append(names.get(token, token.upper() if token in ("nchw", "nhwc") else token))
    return comma.join(words), title or comma.join(words)


def _operands(problem: Problem) -> list[str]:
    """The operation with its input and output channels, and the filter or window."""
    if isinstance(problem, GemmProblem):
        return [gettext("matrix product")]
    if isinstance(problem, ElementwiseProblem):
        return ["ReLU"]
    batch, window = f"{problem.n} x " if problem.n != 1 else "", f"{problem.r}x{problem.s}"
    if isinstance(problem, Pool2dProblem):
        return [gettext("max pooling {batch}{c} channels").format(batch=batch, c=problem.c), window]
    if problem.groups > 1 and problem.groups == problem.c:
        words = gettext("{c} channels depthwise to {k}")
    elif problem.c == 3 and problem.groups == 1:
        words = ngettext("RGB image to {k} channel", "RGB image to {k} channels", problem.k)
    elif problem.c == 1:
        words = ngettext("1 channel to {k} channel", "1 channel to {k} channels", problem.k)
    else:
        words = ngettext("{c} channels to {k} channel", "{c} channels to {k} channels", problem.k)
    return [batch + words.format(c=problem.c, k=problem.k), window]
