"""What was aimed at beside what was reached: a row a goal, from stored runs.

A goal names cases of suites, as the markers of documents do, and what our best method is held against on each: a copy
of the same bytes, the best peer of the same run, or a time. It is reached where the worst case, or the geometric mean
where the goal says so, is at least as good as what was wanted.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from convforge.benchmark.cells import escaped, markdown_line, three
from convforge.benchmark.records import Result, Run

LEGEND = (
    "Of a copy: share of the bandwidth that our copy kernel reaches over as many bytes as the case must move, in the "
    "same run. Of a peer: time of the fastest other library in the same run over that of our best method. A time: that "
    "of our best method, at most. The worst of the cases counts, or their geometric mean where that is said. Weights "
    "are prepared on every call unless the goal says that they were prepared before."
)


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Attributes
    ----------
    words : str
        What is to be fast.
    of : tuple of str
        The cases, as markers name them, of a suite each: ``images strides=1 device=nvidia-h200-132sm``.
    than : {"copy", "peer", "time"}
        What it is held against.
    wanted : float
        The share or the ratio that is wanted, or the seconds.
    mean : bool
        The geometric mean of the cases counts, not the least.
    either_layout : bool
        Cases that differ in their layout alone are one, which both sides may take in the layout that suits them.
    precisions : tuple of str
        Arithmetic that ours may have.
    ours : str
        Pattern of the names of our methods that count.
    peers : str
        Pattern of the names of those that it is held against.
    prepared : bool
        Calls with weights that were prepared before count, on both sides.
    """

    words: str
    of: tuple[str, ...]
    than: Literal["copy", "peer", "time"]
    wanted: float
    mean: bool = False
    either_layout: bool = False
    precisions: tuple[str, ...] = ("strict",)
    ours: str = "*"
    peers: str = "*"
    prepared: bool = False


def load_goals(path: Path) -> list[Goal]:
    """The goals of a file of TOML, a table ``[[goal]]`` each; none where there is no such file.

    Raises
    ------
    ValueError
        A goal lacks a field or has one that is unknown.
    """
    if not path.exists():
        return []
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("goal", [])
        return [_goal(**table) for table in tables]
    except (tomllib.TOMLDecodeError, TypeError) as fault:
        raise ValueError(f"{path}: {fault}") from None


def _goal(*, of: str | Sequence[str], precisions: Sequence[str] = ("strict",), **fields: Any) -> Goal:
    return Goal(of=(of,) if isinstance(of, str) else tuple(of), precisions=tuple(precisions), **fields)


def goals_markdown(goals: Iterable[Goal], found: Callable[[str], tuple[Run, Sequence[Result]]]) -> str:
    """The table of all goals as Markdown.

    Parameters
    ----------
    found : callable
        The run and the results that a goal's cases stand for.

    Raises
    ------
    ValueError
        A goal has no case that was timed on both sides.
    """
    lines = [markdown_line(("goal", "wanted", "reached", "worst case")), markdown_line(["---"] * 4)]
    runs = []
    for goal in goals:
        reached: dict[str, float] = {}
        for of in goal.of:
            run, results = found(of)
            if not (own := reached_by(goal, run, results)):
                raise ValueError(f"{run.path} holds no case of {of!r} that was timed on both sides")
            reached |= own
            runs.append(f"{run.suite} {run.started[:10]} on {run.device}")
        lines.append(markdown_line(_row(goal, reached)))
    return "\n".join([*lines, "", LEGEND, "", f"Measured: {'; '.join(dict.fromkeys(runs))}."]) + "\n"


def _row(goal: Goal, reached: Mapping[str, float]) -> list[str]:
    worst = (max if goal.than == "time" else min)(reached, key=reached.__getitem__)
    value, words, place = reached[worst], goal.words, worst
    if goal.mean:
        value = math.exp(sum(map(math.log, reached.values())) / len(reached))
        words, place = f"{words}: mean of {len(reached)}", f"{worst}, {_shown(goal, reached[worst])}"
    good = value <= goal.wanted if goal.than == "time" else value >= goal.wanted
    verdict = _shown(goal, value) if good else f"**{_shown(goal, value)}, missed**"
    return [words, _shown(goal, goal.wanted), verdict, escaped(place)]


def reached_by(goal: Goal, run: Run, results: Sequence[Result]) -> dict[str, float]:
    """Case -> its share, ratio or seconds; where either layout may be taken, its name is without one."""
    cases = {result.case for result in results}
    groups: dict[str, list[Result]] = {}
    for result in run.results:
        if result.case in cases and run.timing(result) is not None:
            name = result.case.removesuffix("_nchw").removesuffix("_nhwc") if goal.either_layout else result.case
            groups.setdefault(name, []).append(result)
    reached = {}
    for name, group in groups.items():
        ours = [r for r in group
                if r.ours and r.precision in goal.precisions and fnmatchcase(r.algorithm, goal.ours)]  # fmt: skip
        if goal.than == "copy":
            shares = [share for r in ours if (share := run.of_copy(r, run.timing(r))) is not None]
            if shares:
                reached[name] = max(shares)
        elif goal.than == "time":
            if ours:
                reached[name] = min(_seconds(goal, run, ours))
        else:
            theirs = [r for r in group if not r.ours and fnmatchcase(r.algorithm, goal.peers)]
            if ours and theirs:
                reached[name] = min(_seconds(goal, run, theirs)) / min(_seconds(goal, run, ours))
    return reached


def _seconds(goal: Goal, run: Run, results: Iterable[Result]) -> list[float]:
    timings = [(r.prepared_time if goal.prepared else None) or run.timing(r) for r in results]
    return [timing.median_s for timing in timings if timing is not None]


def _shown(goal: Goal, value: float) -> str:
    if goal.than == "time":
        return f"{three(1e6 * value)} us"
    return f"{100 * value:.0f} %" if goal.than == "copy" else f"{three(value)}x"
