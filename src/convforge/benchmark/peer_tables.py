"""Tables that compare our fastest method with the fastest other library: mean ratios, goals, and rows of the README.

Goals and rows of the README select the cases of stored runs in the same syntax as markers in documents.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from convforge.benchmark.formats import milliseconds, percent, ratio, some, three
from convforge.benchmark.frame import data_frame, frame, matches
from convforge.benchmark.records import Result, Run
from convforge.benchmark.table import Table, escaped, markdown_line, searched, table
from convforge.benchmark.verdicts import judge
from convforge.problem import Conv2dProblem, parse_problem
from convforge.timing.ranking import order, rank

if TYPE_CHECKING:
    from pandas import DataFrame, Series

T = TypeVar("T")
Found = Callable[[str], tuple[Run, Sequence[Result]]]

AHEAD = (
    "Times as fast as the best peer of the same run: geometric means over the cases, weights prepared on every call. "
    "Minimum and maximum of a case in parentheses."
)
COPY = "Share of a copy of the same bytes, from {size} up: the least, the geometric mean and the most of a case."
GOALS = (
    "Of a copy: share of the bandwidth that our copy kernel reaches over as many bytes as the case must move, in the "
    "same run. Of a peer: time of the fastest other library in the same run over that of our best method. A time: that "
    "of our best method, at most. The worst of the cases counts, or their geometric mean where the goal says so. "
    "Weights are prepared on every call unless the goal says that they were prepared before."
)
HEADLINE = (
    "Milliseconds a call on {device}, weights prepared on every call; both times of a row are from the same run. If "
    "a layer's row names no layout, it was timed in NCHW and NHWC, and each column shows the faster. Measured: {runs}."
)

# Names of peers in sentences and charts; others appear under their own names.
SPOKEN = {"cudnn": "cuDNN's fastest plan"}
# Smallest sides of large images (moving their bytes takes far longer than a launch), and of those compared with a copy.
LARGE, LARGEST = 1024, 2048


def ahead_sentence(run: Run, results: Sequence[Result]) -> str:
    """One sentence with the ratio over all cases in bold: geometric mean, minimum and maximum."""
    ratios = ahead_of(run, results).ratio
    ours = f"{words}; " if (words := searched(run)) else ""
    return (
        f"**{_mean(ratios, 'x')} as fast as {escaped(spoken_peers(results))}** on {run.where}: geometric mean of "
        f"{len(ratios)} cases, minimum and maximum in parentheses; {ours}measured {run.started[:10]}, "
        f"{run.tree or 'commit unknown'}.\n"
    )


def spoken_peers(results: Iterable[Result]) -> str:
    """Names of the peers in some results, as used in a sentence."""
    return " or ".join(SPOKEN.get(name, name) for name in dict.fromkeys(r.algorithm for r in results if not r.ours))


def ahead_of(run: Run, results: Sequence[Result]) -> DataFrame:
    """A data frame of the convolutions with times of both sides that can be ranked; ``ValueError`` if there is none.

    Columns: ``stride``; ``size``, the larger side of the image; ``ratio``, the time of the best peer divided by that of
    our best; ``copied``, the time to copy as many bytes divided by that of our best. The index is the case.
    """
    rows = {}
    for case in dict.fromkeys(r.case for r in results):
        verdict = judge(run, case)
        best, problem = verdict.best_ours, verdict.best_ours and parse_problem(verdict.best_ours.problem)
        if best and verdict.ratio and verdict.order != "unsure" and isinstance(problem, Conv2dProblem):
            copied = run.of_copy(best, run.timing(best))
            rows[case] = (problem.stride[0], max(problem.h, problem.w), verdict.ratio, copied)
    if not rows:
        raise ValueError(
            f"{run.path} holds no case that both a method of ours and a peer were timed on and that can be ranked"
        )
    return data_frame(rows.values(), ("stride", "size", "ratio", "copied"), rows)


def ahead_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A table with a row for each stride and one for all, and columns for small images, large images and all."""
    found = ahead_of(run, results)
    missing = dict.fromkeys(r.case for r in results if r.case not in found.index)
    noisy = [case for case in missing if judge(run, case).order == "unsure"]
    untimed = [case for case in missing if case not in noisy]
    copied = bool(found.copied.notna().any())
    strides = {str(stride): rows for stride, rows in found.groupby("stride")}
    rows = []
    for stride, mine in (strides | {"all": found} if len(strides) > 1 else strides).items():
        small = mine["size"] < LARGE
        shares = 100 * mine.copied[mine["size"] >= LARGEST].dropna().astype(float)
        means = (_mean(ratios, "x") for ratios in (mine.ratio[small], mine.ratio[~small], mine.ratio))
        rows.append((stride, *means, *[_mean(shares, " %")] * copied))
    notes = [COPY.format(size=LARGEST)] * copied
    notes += [f"Not counted, as one side was not timed: {some(untimed)}."] * bool(untimed)
    notes += [f"Not counted, as too noisy to rank: {some(noisy)}."] * bool(noisy)
    bands = (f"below {LARGE}", f"{LARGE} and up", "all sizes")
    return [table(("stride", *bands, *["of a copy"] * copied), rows, notes)]


def _mean(values: Series[float], unit: str) -> str:
    if values.empty:
        return "-"
    return f"{three(geometric_mean(values))}{unit} ({three(values.min())} to {three(values.max())})"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, reached if the worst case (or the geometric mean) is at least as good as `wanted`."""

    words: str  # description of the work
    of: str | tuple[str, ...]  # specs of its cases as in markers, one per suite: "images strides=1 device=..."
    # Reference for our best method of each case: a copy of the same bytes, the best peer of the run, or a time.
    than: Literal["copy", "peer", "time"]
    wanted: float  # fraction of the copy, ratio to the peer, or seconds
    mean: bool = False  # the geometric mean over the cases counts, not the worst case
    either_layout: bool = False  # merge cases that differ only in layout; each side takes its faster layout
    peers_in: str = ""  # peers of the cases of this type, the last part of a case's name, for ours of the other types
    precisions: tuple[str, ...] = ("strict",)  # precisions that our methods may use
    ours: str = "*"  # pattern of the names of our methods
    peers: str = "*"
    prepared: bool = False  # use times with weights prepared before, on both sides

    def shown(self, value: float) -> str:
        """Format a value with the goal's unit."""
        if self.than == "time":
            return f"{three(1e6 * value)} us"
        return percent(value) if self.than == "copy" else ratio(value)


def goals_markdown(goals: Iterable[Goal], found: Found, more: tuple[Sequence[str], Sequence[str]] = ((), ())) -> str:
    """The table of all goals as Markdown; `found` returns the run and the results of a goal's cases.

    `more` holds finished lines, of goals for sheets, and where these were measured.
    """
    lines, runs = [markdown_line(("goal", "wanted", "reached", "worst case")), markdown_line(["---"] * 4)], []
    for goal in goals:
        reached: dict[str, float] = {}
        for of in (goal.of,) if isinstance(goal.of, str) else goal.of:
            run, results = found(of)
            if not (own := reached_by(goal, run, results)):
                raise _one_sided(run, of)
            reached |= own
            runs.append(f"{run.suite} {run.started[:10]} on {run.device}")
        worst = (max if goal.than == "time" else min)(reached, key=reached.__getitem__)
        value, words, place = reached[worst], goal.words, worst
        if goal.mean:
            value = geometric_mean(reached.values())
            words, place = f"{words}: mean of {len(reached)}", f"{worst}, {goal.shown(reached[worst])}"
        good = value <= goal.wanted if goal.than == "time" else value >= goal.wanted
        verdict = goal.shown(value) if good else f"**{goal.shown(value)}, missed**"
        lines.append(markdown_line((words, goal.shown(goal.wanted), verdict, escaped(place))))
    lines, runs = [*lines, *more[0]], [*runs, *more[1]]
    return "\n".join([*lines, "", GOALS, "", f"Measured: {'; '.join(dict.fromkeys(runs))}."]) + "\n"


def reached_by(goal: Goal, run: Run, results: Sequence[Result]) -> dict[str, float]:
    """Case -> its fraction, ratio or seconds; a layout or type that is merged is cut off the case's name."""
    cases = {r.case for r in results}
    rows = frame(run, [r for r in run.results if r.case in cases])
    if goal.peers_in:
        rows = rows[rows.case.str.endswith(f"_{goal.peers_in}") ^ rows.ours]
        rows["case"] = rows.case.str.replace("_[^_]+$", "", regex=True)
    if goal.either_layout:
        rows["case"] = rows.case.str.replace("_n(chw|hwc)$", "", regex=True)
    if goal.prepared:
        rows["seconds"] = rows.prepared_s.fillna(rows.seconds)

    def best(ours: bool, pattern: str) -> Any:
        named = rows.ours.eq(ours) & rows.algorithm.map(lambda name: matches(name, [pattern]))
        return rows[named & (rows.precision.isin(goal.precisions) if ours else True)].groupby("case", sort=False)

    ours = best(True, goal.ours)
    if goal.than == "copy":
        return dict(ours.of_copy.max().dropna())
    seconds = ours.seconds.min()
    if goal.than == "peer":
        seconds = best(False, goal.peers).seconds.min().reindex(seconds.index) / seconds
    return dict(seconds.dropna())


@dataclass(frozen=True, slots=True)
class Headline:
    """A row of the README's table: one work, in one layout or several; each side shows its fastest layout."""

    words: str  # description of the work
    of: str  # spec of its cases as in markers: "depthwise cases=convnext_t_dw7_14_f16_* device=..."
    precisions: tuple[str, ...] = ("strict",)  # precisions that our methods may use


def headline_markdown(rows: Iterable[Headline], found: Found) -> str:
    """The table of all rows as Markdown; `found` returns the run and the results of a row's cases."""
    lines = [markdown_line(("work", "convforge", "fastest other", "times as fast")), "| --- | ---: | ---: | ---: |"]
    runs: list[Run] = []
    for row in rows:
        run, results = found(row.of)
        lines.append(markdown_line(_headline_row(row, run, results)))
        runs.append(run)
    measured = dict.fromkeys(
        f"{run.suite} {run.started[:10]}{' (with uncommitted changes)' * run.dirty}" for run in runs
    )
    devices = " and ".join(dict.fromkeys(run.where for run in runs))
    return "\n".join([*lines, "", HEADLINE.format(device=devices, runs=", ".join(measured))]) + "\n"


def _headline_row(row: Headline, run: Run, results: Sequence[Result]) -> list[str]:
    timed = [(timing, r) for r in results if (timing := run.timing(r)) is not None]
    sides = []
    for own in (True, False):
        able = [(t, r) for t, r in timed if r.ours is own and (r.precision in row.precisions or not own)]
        ranking = rank(able, lambda pair: pair[0])
        sides += [*ranking.leaders, *ranking.unsure][:1]
    if len(sides) < 2:
        raise _one_sided(run, row.of)
    (ours, _), (other, peer) = sides
    times = ratio(other.median_s / ours.median_s)
    shown = {
        "faster": f"**{times}**", "slower": f"{times}: slower", "level": f"{times}: a tie",
        "unsure": "too noisy to rank",
    }  # fmt: skip
    beside = f"{milliseconds(other.median_s)} ({escaped(peer.algorithm)})"
    return [row.words, milliseconds(ours.median_s), beside, shown[order(ours, other)]]


def _one_sided(run: Run, of: str) -> ValueError:
    return ValueError(f"{run.path} holds no case of {of!r} that was timed on both sides")


def load_rows(path: Path, name: str, kind: Callable[..., T]) -> list[T]:
    """Read the rows of a TOML file, a table ``[[name]]`` each; an empty list if the file does not exist.

    A row with a missing or unknown field is a ValueError.
    """
    if not path.exists():
        return []
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get(name, [])
        tuples = ({key: tuple(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows)
        return [kind(**row) for row in tuples]
    except (tomllib.TOMLDecodeError, TypeError) as fault:
        raise ValueError(f"{path}: {fault}") from None
