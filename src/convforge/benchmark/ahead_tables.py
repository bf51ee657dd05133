"""How far ahead of the best peer, at a glance: geometric means over the cases of a run, by stride and size of picture.

A case counts by its verdict: the time of the best peer over that of our best method. A case without one of them, or
with two that are too noisy to rank, is left out and named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from convforge.benchmark.cells import Cell, Table, escaped, markdown, searched, some, three
from convforge.benchmark.records import Result, Run
from convforge.benchmark.verdicts import judge
from convforge.problem import Conv2dProblem, parse_problem

LEGEND = (
    "Times as fast as the best peer of the same run: geometric means over the cases, weights prepared on every call. "
    "In parentheses the least and the most of a case."
)
COPY = "Share of a copy of the same bytes, from {size} up: the least, the geometric mean and the most of a case."

# Names of peers as sentences and charts say them; others as they are.
SPOKEN = {"cudnn": "cuDNN's fastest plan"}

# Where pictures begin to be large: their bytes are many times what launches cost.
LARGE, LARGEST = 1024, 2048


@dataclass(frozen=True, slots=True)
class Ahead:
    """One case.

    Attributes
    ----------
    stride, size : int
        Of the problem; the size is the larger side of the picture.
    ratio : float
        Time of the best peer over that of our best.
    copied : float or None
        Time of a copy of as many bytes over that of our best, where one was measured.
    """

    stride: int
    size: int
    ratio: float
    copied: float | None


def ahead_markdown(run: Run, results: Sequence[Result]) -> str:
    """The table of the cases of some results as Markdown; each is judged by all that the run has of it.

    Raises
    ------
    ValueError
        No case has both a method of ours and a peer.
    """
    found = ahead_of(run, results)
    missing = [name for name in dict.fromkeys(r.case for r in results) if name not in found]
    noisy = [name for name in missing if judge(run, name).order == "unsure"]
    missing = [name for name in missing if name not in noisy]
    return markdown(run, [ahead_table(list(found.values()), missing, noisy)], LEGEND)


def ahead_sentence(run: Run, results: Sequence[Result]) -> str:
    """The ratio over all cases in one sentence, bold: the geometric mean, the least and the most of a case.

    Raises
    ------
    ValueError
        No case has both a method of ours and a peer.
    """
    found = ahead_of(run, results)
    ratios = [one.ratio for one in found.values()]
    where = run.machine.get("facts", {}).get("name", run.device)
    ours = f"{words}; " if (words := searched(run)) else ""
    return (
        f"**{_mean(ratios, 'x')} as fast as {escaped(spoken_peers(results))}** on {where}: geometric mean of "
        f"{len(ratios)} cases, in parentheses the least and the most; {ours}measured {run.started[:10]}, "
        f"commit {(run.commit or 'unknown')[:10]}{' with changes' if run.dirty else ''}.\n"
    )


def spoken_peers(results: Iterable[Result]) -> str:
    """The peers among some results, as a sentence names them."""
    return " or ".join(SPOKEN.get(name, name) for name in dict.fromkeys(r.algorithm for r in results if not r.ours))


def ahead_of(run: Run, results: Sequence[Result]) -> dict[str, Ahead]:
    """Every case of some results that both sides were timed on; each is judged by all that the run has of it.

    Raises
    ------
    ValueError
        There is no such case.
    """
    names = dict.fromkeys(r.case for r in results)
    found = {name: ahead for name in names if (ahead := _ahead(run, name)) is not None}
    if not found:
        raise ValueError(
            f"{run.path} holds no case that both a method of ours and a peer were timed on and that can be ranked"
        )
    return found


def ahead_table(found: Sequence[Ahead], missing: Sequence[str] = (), noisy: Sequence[str] = ()) -> Table:
    """A row a stride and one for all; columns of small pictures, of large ones and of all."""
    copied = any(one.copied is not None for one in found)
    bands = (
        (f"below {LARGE}", lambda one: one.size < LARGE),
        (f"{LARGE} and up", lambda one: one.size >= LARGE),
        ("all sizes", lambda one: True),
    )  # fmt: skip
    rows = []
    strides: list[int | None] = [*sorted({one.stride for one in found}), None]
    for stride in strides if len(strides) > 2 else strides[:1]:
        mine = [one for one in found if stride is None or one.stride == stride]
        cells = [Cell(_mean([one.ratio for one in mine if band(one)], "x")) for _, band in bands]
        shares = [100 * one.copied for one in mine if one.copied is not None and one.size >= LARGEST]
        rows.append((Cell("all" if stride is None else str(stride)), *cells, *([Cell(_mean(shares, " %"))] * copied)))
    notes = [COPY.format(size=LARGEST)] * copied
    notes += [f"Not counted, as one side was not timed: {some(missing)}."] * bool(missing)
    notes += [f"Not counted, as too noisy to rank: {some(noisy)}."] * bool(noisy)
    columns = ("stride", *(name for name, _ in bands), *(["of a copy"] * copied))
    return Table(columns, tuple(rows), tuple(notes))


def _ahead(run: Run, case: str) -> Ahead | None:
    verdict = judge(run, case)
    if verdict.ratio is None or verdict.best_ours is None or verdict.order == "unsure":
        return None
    problem = parse_problem(verdict.best_ours.problem)
    if not isinstance(problem, Conv2dProblem):
        return None
    timing = run.timing(verdict.best_ours)
    copied = None if timing is None else run.of_copy(verdict.best_ours, timing)
    return Ahead(problem.stride[0], max(problem.h, problem.w), verdict.ratio, copied)


def _mean(values: Sequence[float], unit: str) -> str:
    """The geometric mean, and between which values it lies."""
    if not values:
        return "-"
    return f"{three(geometric_mean(values))}{unit} ({three(min(values))} to {three(max(values))})"


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(map(math.log, values)) / len(values))
