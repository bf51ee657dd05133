"""Tables and goals of the sheet of large images: whole processes that filter a file into another one.

All figures of a case are of one sheet, so that ratios compare times of one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from statistics import median
from typing import Any, Literal, NamedTuple

from convforge.benchmark.formats import percent, ratio, some, three
from convforge.benchmark.sheets import Sheet
from convforge.benchmark.table import Cell, Table, escaped, markdown_line, table

Row = dict[str, Any]

OURS, COPY = "convforge", "tensorstore, no filter"

LEGEND = (
    "Times of whole processes from file to file, medians of the runs, the source in the system's cache. Cores: those "
    "that all programs may use. CPU s: of all cores. GB/s: samples read and written, by second after the start of the "
    "program. Of a copy: this rate over that of tensorstore when it decodes and encodes the same image without a "
    "filter; of the blur: the same copy of our result. Memory: most resident memory of the process; in parentheses "
    "that of the same program with an image of 256 x 256; the limit is --memory, which counts the image alone. To the "
    "disk: seconds that the system then takes to write the files; convforge and tensorstore have already waited for "
    "it. Error: largest difference of a sample from the blur in float64; SciPy and CuPy cut the fraction off after "
    "each axis."
)


class Figures(NamedTuple):
    """Medians over the runs of a contender in one case."""

    seconds: float
    work_s: float | None
    cpu_s: float
    peak_bytes: float
    base_bytes: float
    gpu_bytes: float | None
    limit_bytes: float | None
    sync_s: float
    error: float | None
    nbytes: int
    runs: int
    spread: tuple[float, float]  # least and most seconds


def figures(rows: Iterable[Row], case: str) -> dict[str, Figures]:
    """Return the figures of each contender of a case that has a time and was never left out."""
    mine: dict[str, list[Row]] = {}
    for row in rows:
        if row["case"] == case:
            mine.setdefault(row["contender"], []).append(row)
    return {name: _figures(runs) for name, runs in mine.items() if all("seconds" in run for run in runs)}


def _figures(runs: Sequence[Row]) -> Figures:
    def middle(name: str) -> float | None:
        known = [run[name] for run in runs if run[name] is not None]
        return median(known) if len(known) == len(runs) else None

    seconds = [run["seconds"] for run in runs]
    errors = [run["error"] for run in runs if run["error"] is not None]
    return Figures(
        seconds=median(seconds), work_s=middle("work_s"), cpu_s=median(run["cpu_s"] for run in runs),
        peak_bytes=max(run["peak_bytes"] for run in runs), base_bytes=middle("base_bytes") or 0.0,
        gpu_bytes=middle("gpu_bytes"), limit_bytes=middle("limit_bytes"), sync_s=median(run["sync_s"] for run in runs),
        error=max(errors, default=None), nbytes=runs[0]["nbytes"], runs=len(runs), spread=(min(seconds), max(seconds)),
    )  # fmt: skip


def newest_cases(sheets: Sequence[Sheet]) -> tuple[Sheet, list[Sheet]]:
    """Return a sheet with the rows of each case from the newest sheet that has a time of ours; and these sheets.

    `sheets` are of one device, the oldest first. The copy of a blurred image is shown with the image.
    """
    sheets = [replace(sheet, rows=[_with_its_image(row) for row in sheet.rows]) for sheet in sheets]
    chosen: dict[str, Sheet] = {}
    for sheet in sheets:
        for row in sheet.rows:
            if "seconds" in row and row["ours"]:
                chosen[row["case"]] = sheet
    used = [sheet for sheet in sheets if any(sheet is source for source in chosen.values())]
    cases = sorted(chosen.items(), key=lambda pair: _size(pair[1], pair[0]))
    rows = [row | {"cores": sheet.settings["threads"]} for case, sheet in cases for row in sheet.rows
            if row["case"] == case]  # fmt: skip
    return replace(sheets[-1], rows=rows), used or list(sheets[-1:])


def _with_its_image(row: Row) -> Row:
    """Return the row of a blurred image as one of the image that was blurred."""
    if row["kind"] != "blurred":
        return row
    return row | {"case": row["case"].replace("blurred", "zarr"), "contender": f"{row['contender']}, of the blur"}


def _size(sheet: Sheet, case: str) -> tuple[str, int]:
    row = next(row for row in sheet.rows if row["case"] == case)
    return row["kind"], row["nbytes"]


def large_table(sheet: Sheet) -> tuple[str, Table, str]:
    """Sentences, table and legend of large images; a row is a contender in a case, the fastest first."""
    columns = ("image", "cores", "program", "s", "of ours", "CPU s", "GB/s", "of a copy", "memory, MB", "limit, MB",
               "GPU, MB", "to the disk, s", "error", "runs")  # fmt: skip
    cases = list(dict.fromkeys(row["case"] for row in sheet.rows))
    cores = {row["case"]: row["cores"] for row in sheet.rows}
    rows, sentences = [], []
    for case in cases:
        found = figures(sheet.rows, case)
        ours = found.get(OURS)
        for name, own in sorted(found.items(), key=lambda pair: pair[1].seconds):
            share = copy_share(found, name)
            rows.append((
                case, str(cores[case]), Cell(name, look="best" if name == OURS else ""),
                f"{three(own.seconds)} {_range(own)}".strip(),
                "" if ours is None else ratio(own.seconds / ours.seconds),
                three(own.cpu_s), "" if not own.work_s else three(_moved(case, own) / own.work_s / 1e9),
                "" if share is None else percent(share), f"{_mb(own.peak_bytes)} ({_mb(own.base_bytes)})",
                _mb(own.limit_bytes), _mb(own.gpu_bytes), three(own.sync_s), "" if own.error is None else
                f"{own.error:.2f}", str(own.runs),
            ))  # fmt: skip
        sentences += _sentence(case, found)
    reasons: dict[str, list[str]] = {}
    for row in sheet.rows:
        if row.get("reason"):
            reasons.setdefault(f"{row['contender'] or 'All programs'}: {row['reason']}", []).append(row["case"])
    notes = [f"{reason} ({some(names)})." for reason, names in reasons.items()]
    return " ".join(sentences) or "Nothing was timed.", table(columns, rows, notes), LEGEND


def copy_share(found: dict[str, Figures], name: str) -> float | None:
    """Return the rate of a contender over that of the copy without a filter; None if a rate is not known."""
    own, copy = found.get(name), found.get(COPY)
    if own is None or copy is None or not own.work_s or not copy.work_s:
        return None
    return copy.work_s / own.work_s


def _moved(case: str, own: Figures) -> int:
    """Return the bytes of samples that are read and written; a synthetic result is only read."""
    return own.nbytes * (1 if case.startswith("synthetic") else 2)


def _sentence(case: str, found: dict[str, Figures]) -> list[str]:
    ours = found.get(OURS)
    peers = {name: own for name, own in found.items() if not name.startswith("convforge") and "no filter" not in name}
    if ours is None or not peers:
        return []
    fastest = min(peers, key=lambda name: peers[name].seconds)
    times = ratio(peers[fastest].seconds / ours.seconds)
    return [f"{case}: convforge takes {three(ours.seconds)} s; {fastest}, the fastest other library, {times} as long."]


def _mb(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.0f}"


def _range(own: Figures) -> str:
    return f"({three(own.spread[0])} to {three(own.spread[1])})" if own.runs > 1 else ""


@dataclass(frozen=True, slots=True)
class LargeGoal:
    """A goal for large images; it is reached if the worst of its cases is at least as good as `wanted`."""

    words: str
    of: str  # pattern of the names of its cases
    device: str
    # Our rate over that of the copy without a filter; the peer's time over ours; our rate over the peer's; resident
    # memory, without that of the program, over the limit; or resident memory in bytes.
    than: Literal["copy", "peer", "rate", "limit", "bytes"]
    wanted: float
    peer: str = ""
    ours: str = OURS

    def shown(self, value: float) -> str:
        if self.than == "bytes":
            return f"{value / 1e6:.0f} MB"
        return ratio(value) if self.than in ("peer", "rate") else percent(value)

    def value(self, found: dict[str, Figures]) -> float | None:
        """Return the value of a case; None if a figure is missing."""
        ours, peer = found.get(self.ours), found.get(self.peer)
        if ours is None:
            return None
        if self.than == "bytes":
            return ours.peak_bytes
        if self.than == "limit":
            return (ours.peak_bytes - ours.base_bytes) / ours.limit_bytes if ours.limit_bytes else None
        if self.than == "copy":
            return copy_share(found, self.ours)
        if peer is None:
            return None
        if self.than == "peer":
            return peer.seconds / ours.seconds
        return peer.work_s / ours.work_s if peer.work_s and ours.work_s else None

    @property
    def at_most(self) -> bool:
        return self.than in ("limit", "bytes")


def large_goal_lines(goals: Iterable[LargeGoal], sheets: Sequence[Sheet]) -> tuple[list[str], list[str]]:
    """Return the lines of the table of goals, and where each was measured; a goal without figures says so."""
    lines, measured = [], []
    for goal in goals:
        own = [sheet for sheet in sheets if sheet.kind == "large" and sheet.device == goal.device]
        reached: dict[str, float] = {}
        if own:
            newest, used = newest_cases(own)
            cases = dict.fromkeys(row["case"] for row in newest.rows if fnmatch(row["case"], goal.of))
            values = {case: goal.value(figures(newest.rows, case)) for case in cases}
            reached = {case: value for case, value in values.items() if value is not None}
            measured += [f"large {sheet.started[:10]} on {sheet.device}" for sheet in used if reached]
        if not reached:
            lines.append(markdown_line((goal.words, goal.shown(goal.wanted), "not measured", escaped(goal.of))))
            continue
        worst = (max if goal.at_most else min)(reached, key=reached.__getitem__)
        value = reached[worst]
        good = value <= goal.wanted if goal.at_most else value >= goal.wanted
        verdict = goal.shown(value) if good else f"**{goal.shown(value)}, missed**"
        lines.append(markdown_line((goal.words, goal.shown(goal.wanted), verdict, escaped(worst))))
    return lines, measured
