"""The table of whole networks: each side's time, and how many times as long PyTorch's fastest takes as convforge.

A ratio above 1 means that convforge is faster. The sentence above the table rests on the stored rows alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from convforge.benchmark.cells import Cell, Table, some, three
from convforge.benchmark.sheets import Sheet
from convforge.timing.ranking import order
from convforge.timing.timer import Timing

# Times over PyTorch's from which on a model counts as slower.
SLOWER = 1.03
OURS = "convforge"
# Side of PyTorch -> its column.
PEERS = {"eager": "eager", "folded": "folded", "compiled": "compile", "max-autotune": "max-autotune"}
COMPILED = ("compiled", "max-autotune")
LEGEND = (
    "Milliseconds of the whole network in eval mode, all sides in turns, {how}. Eager: PyTorch's model in the row's "
    "format. Folded: BatchNorm folded by torch.fx, in channels_last whatever the row's format. Compile: torch.compile. "
    "Max-autotune: torch.compile in this mode, which on a GPU captures graphs itself, so that its call from Python is "
    "inside. convforge: after `convforge.torch.replace`, which takes so many seconds. float32 is strict on every side, "
    "without TF32. PyTorch/ours: the fastest side of PyTorch over convforge, above 1 where convforge is faster. Error: "
    "RMS of the difference to the same model in float64, over that model's RMS; a side may have {factor} times the "
    "largest that eager has over inputs that differ in their last bit, or {floors}, whichever is more. ~ noisy."
)
Row = Mapping[str, Any]


def networks_table(sheet: Sheet) -> tuple[str, Table, str]:
    """The sentence, the table and the legend of a sheet of networks."""
    columns = ("network", "batch", "format", "type", *PEERS.values(), OURS, "PyTorch/ours", "layers by convforge",
               "replace, s", "error", "PyTorch's error")  # fmt: skip
    rows = tuple(tuple(map(Cell, _cells(row))) for row in sheet.rows)
    said = [*_means(sheet.rows), _slower(sheet.rows)]
    if failed := [name_of(row) for row in sheet.rows if OURS not in row["times"] and OURS not in row["wrong"]]:
        said.append(f"convforge failed, and so has no time: {some(failed)}.")
    wrong = [f"{name_of(row)} ({', '.join(row['wrong'])})" for row in sheet.rows if row["wrong"]]
    said.append(f"Wrong, and so without a time: {some(wrong)}." if wrong else "All outputs keep to the bound.")
    floors = ", ".join(f"{floor:.0e} in {dtype}" for dtype, floor in sheet.settings["floors"].items())
    how = "each called" if sheet.settings["device"] == "cpu" else "each in a CUDA graph"
    legend = LEGEND.format(how=how, factor=sheet.settings["factor"], floors=floors)
    return " ".join(said), Table(columns, rows, tuple(_notes(sheet)), lead=4), legend


def milliseconds(time: Timing | None) -> str:
    """The milliseconds of a timing; empty where there is none."""
    return "" if time is None else ("~" if time.noisy else "") + three(time.median_s * 1e3)


def name_of(row: Row) -> str:
    """A row in words."""
    return f"{row['network']}, batch {row['pictures']}, {row['format']}, {row['dtype']}"


def fastest(row: Row, sides: Iterable[str] = tuple(PEERS)) -> Timing | None:
    """The fastest of some sides of PyTorch; None where none has a time."""
    found = [Timing.from_table(row["times"][side]) for side in sides if side in row["times"]]
    return min(found, key=lambda time: time.median_s, default=None)


def ratio(row: Row, sides: Iterable[str] = tuple(PEERS)) -> float | None:
    """Times that the fastest of some sides takes as long as convforge; None where one of both has no time."""
    best = fastest(row, sides)
    if best is None or OURS not in row["times"]:
        return None
    return best.median_s / Timing.from_table(row["times"][OURS]).median_s


def _cells(row: Row) -> list[str]:
    times = {side: Timing.from_table(table) for side, table in row["times"].items()}
    layers = "" if row["layers"] is None else f"{row['ours_layers']} of {row['layers']}"
    replaced = "" if row["replace_s"] is None else f"{row['replace_s']:.0f}"
    own = ratio(row)
    return [
        row["network"], str(row["pictures"]), row["format"], row["dtype"],
        *(milliseconds(times.get(side)) for side in (*PEERS, OURS)), "" if own is None else f"{own:.3f}x",
        layers, replaced, _error(row, OURS), _error(row, "eager"),
    ]  # fmt: skip


def _error(row: Row, side: str) -> str:
    if side not in row["errors"]:
        return ""
    error = row["errors"][side]
    return "no number" if error is None else f"{error:.1e}"


def _means(rows: Sequence[Row]) -> list[str]:
    """A sentence with the geometric means of a type's ratios."""
    said = []
    strict = [row for row in rows if row["dtype"] == "float32"]
    shown: list[tuple[str, Sequence[Row], Callable[[Row], float | None]]] = [
        ("float32 against eager", strict, lambda row: ratio(row, ("eager",))),
        ("float32 against torch.compile", strict, lambda row: ratio(row, COMPILED)),
        *((f"{dtype} against the fastest", [row for row in rows if row["dtype"] == dtype], ratio)
          for dtype in ("float16", "bfloat16")),
    ]  # fmt: skip
    for words, members, of in shown:
        if ratios := [value for row in members if (value := of(row)) is not None]:
            mean, count = statistics.geometric_mean(ratios), len(ratios)
            said.append(f"{words} {mean:.3f}x ({count} row{'s' * (count != 1)})")
    return [f"PyTorch's time over convforge's, geometric means: {', '.join(said)}."] if said else []


def _slower(rows: Sequence[Row]) -> str:
    """Sentences that count the rows in which convforge is slower than PyTorch's fastest, and say what is not known."""
    compared = [row for row in rows if ratio(row) is not None]
    if not compared:
        return "No row has a time of both sides."
    slower: list[str] = []
    unsure: list[str] = []
    for row in compared:
        ours, best = Timing.from_table(row["times"][OURS]), fastest(row)
        if best is not None and ours.median_s > SLOWER * best.median_s:
            (slower if order(ours, best) == "slower" else unsure).append(name_of(row))
    names = f" ({some(slower)})" if slower else ""
    said = [f"Slower than PyTorch's fastest by more than 3 %: {len(slower)} of {len(compared)} rows{names}."]
    if unsure:
        said.append(f"Too noisy to rank, with a median above that: {some(unsure)}.")
    if partly := [row for row in compared if any(side in PEERS for side in (*row["faults"], *row["wrong"]))]:
        said.append(f"In {len(partly)} of them a side of PyTorch has no time: the fastest is of the others.")
    return " ".join(said)


def _notes(sheet: Sheet) -> list[str]:
    """The reasons of sides without a time, with their rows, and how many rows are missing."""
    rows_by_reason: dict[str, list[str]] = {}
    for row in sheet.rows:
        for side, reason in row["faults"].items():
            rows_by_reason.setdefault(f"{side} has no time: {reason}", []).append(name_of(row))
    notes = [f"{reason} ({some(names)})." for reason, names in rows_by_reason.items()]
    notes += [f"{name_of(row)}: {row['note']}." for row in sheet.rows if row["note"]]
    if left := sheet.settings["count"] - len(sheet.rows):
        notes.append(f"{left} rows were not reached: go on with `--resume`.")
    return notes
