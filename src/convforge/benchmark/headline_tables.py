"""The README's table: a row for each kind of work, our fastest method beside the fastest other library.

A row names cases of one stored run, as the markers of documents do. They are the same work, in one layout or in
several: each side is shown in the layout in which it is fastest. ``headline.toml``, beside the folder of results, lists
the rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from convforge.benchmark.cells import escaped, markdown_line, three
from convforge.benchmark.records import Result, Run
from convforge.timing.ranking import order, rank
from convforge.timing.timer import Timing

COLUMNS = ("work", "convforge", "fastest other", "times as fast")
LEGEND = (
    "Milliseconds a call on {device}, weights prepared on every call; both sides of a row are from one run. Layers "
    "whose row names no layout were timed in both, and each side shows its faster one. Measured: {runs}."
)


@dataclass(frozen=True, slots=True)
class Headline:
    """One row.

    Attributes
    ----------
    words : str
        What is computed.
    of : str
        The cases, as a marker names them: ``depthwise cases=convnext_t_dw7_14_f16_* device=nvidia-h200-132sm``.
    precisions : tuple of str
        Arithmetic that ours may have.
    """

    words: str
    of: str
    precisions: tuple[str, ...] = ("strict",)


def load_headlines(path: Path) -> list[Headline]:
    """The rows of a file of TOML, a table ``[[row]]`` each; none where there is no such file.

    Raises
    ------
    ValueError
        A row lacks a field or has one that is unknown.
    """
    if not path.exists():
        return []
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("row", [])
        return [Headline(**{**table, "precisions": tuple(table.get("precisions", ("strict",)))}) for table in tables]
    except (tomllib.TOMLDecodeError, TypeError) as fault:
        raise ValueError(f"{path}: {fault}") from None


def headline_markdown(rows: Iterable[Headline], found: Callable[[str], tuple[Run, Sequence[Result]]]) -> str:
    """The table of all rows as Markdown.

    Parameters
    ----------
    found : callable
        The run and the results that a row's cases stand for.

    Raises
    ------
    ValueError
        A row has no case that was timed on both sides.
    """
    lines = [markdown_line(COLUMNS), markdown_line(["---", "---:", "---:", "---:"])]
    runs: list[Run] = []
    for row in rows:
        run, results = found(row.of)
        lines.append(markdown_line(_cells(row, run, results)))
        runs.append(run)
    devices = dict.fromkeys(run.machine.get("facts", {}).get("name", run.device) for run in runs)
    measured = dict.fromkeys(f"{run.suite} {run.started[:10]}{' (with changes)' if run.dirty else ''}" for run in runs)
    legend = LEGEND.format(device=" and ".join(devices), runs=", ".join(measured))
    return "\n".join([*lines, "", legend]) + "\n"


def _cells(row: Headline, run: Run, results: Sequence[Result]) -> list[str]:
    ours = _fastest(run, [r for r in results if r.ours and r.precision in row.precisions])
    other = _fastest(run, [r for r in results if not r.ours])
    if ours is None or other is None:
        raise ValueError(f"{run.path} holds no case of {row.of!r} that was timed on both sides")
    ratio = three(other[0].median_s / ours[0].median_s)
    shown = {
        "faster": f"**{ratio}x**", "slower": f"{ratio}x: slower", "level": f"{ratio}x: a tie",
        "unsure": "too noisy to rank",
    }  # fmt: skip
    return [
        row.words,
        three(1e3 * ours[0].median_s),
        f"{three(1e3 * other[0].median_s)} ({escaped(other[1].algorithm)})",
        shown[order(ours[0], other[0])],
    ]


def _fastest(run: Run, results: Iterable[Result]) -> tuple[Timing, Result] | None:
    """The fastest result that can be ranked, with its timing; None where nothing was timed."""
    found = rank([(timing, r) for r in results if (timing := run.timing(r)) is not None], lambda pair: pair[0])
    return next(iter((*found.leaders, *found.unsure)), None)
