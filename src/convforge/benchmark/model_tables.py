"""Tables of whole models and networks: times of PyTorch and of convforge, and their ratios.

The sentence above each table is computed from the stored rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from convforge.benchmark.formats import error, some
from convforge.benchmark.frame import marked_ms
from convforge.benchmark.sheets import Sheet
from convforge.benchmark.table import Table, table
from convforge.timing.ranking import order
from convforge.timing.timer import Timing

# A model counts as slower from this ratio of its time to PyTorch's.
SLOWER = 1.03
OURS = "convforge"
# Side of PyTorch (a way to run it) -> heading of its column.
PEERS = {"eager": "eager", "folded": "folded", "compiled": "compile", "max-autotune": "max-autotune"}
TYPES = ("float16", "float32", "bfloat16")
COMPILED = ("compiled", "max-autotune")
MODELS = (
    "Milliseconds of the whole model in eval mode, inputs on the device, all in turns; by convforge: after "
    "`convforge.torch.replace`. Error: RMS of the difference to the same model in float64, over that model's RMS; ours "
    "may be {factor} times the largest that PyTorch has over inputs that differ in their last bit, or {floor:.0e}, "
    "whichever is more. In a setting that allows TF32 ours may be strict. ~ noisy."
)
NETWORKS = (
    "Milliseconds of the whole network in eval mode, all sides in turns, {how}. Eager: PyTorch's model in the row's "
    "format. Folded: BatchNorm folded by torch.fx, in channels_last whatever the row's format. Compile: torch.compile. "
    "Max-autotune: torch.compile in this mode, which on a GPU captures graphs itself, so that its call from Python is "
    "inside. convforge: after `convforge.torch.replace`, which takes so many seconds. float32 is strict on every side, "
    "without TF32. PyTorch/ours: the fastest side of PyTorch over convforge, above 1 where convforge is faster. Error: "
    "RMS of the difference to the same model in float64, over that model's RMS; a side may have {factor} times the "
    "largest that eager has over inputs that differ in their last bit, or {floors}, whichever is more. Each row is of "
    "one run, of this commit. ~ noisy."
)
Row = Mapping[str, Any]


def models_table(sheet: Sheet) -> tuple[str, Table, str]:
    """Sentence, table and legend of a sheet of models; a row is a model, batch and setting."""
    columns = ("model", "batch", "setting", "PyTorch", "torch.compile", "convforge", "of PyTorch",
               "layers by convforge", "error", "PyTorch's error")  # fmt: skip
    rows, pairs = [], []
    for row in sheet.rows:
        times = timings(row)
        eager, ours = times.get("eager"), times.get(OURS)
        if eager and ours:
            pairs.append((_model(row), ours, eager))
        rows.append((
            row["model"], str(row["batch"]), row["setting"],
            *(_ms(times.get(side)) for side in ("eager", "compiled", OURS)),
            f"{ours.median_s / eager.median_s:.3f}x" if eager and ours else "",
            f"{row['ours_layers']} of {row['layers']}", error(row["error"]), error(row["eager_error"]),
        ))  # fmt: skip
    slower, noisy, sure = slower_ones(pairs)
    than = "slower than PyTorch at the same setting by more than 3 %"
    words = [f"S{than[1:]}: {some(slower)}." if slower else f"None of {sure} is {than}.", *noisy]
    words.append(_right([_model(row) for row in sheet.rows if not row["right"]]))
    faults = (row for row in sheet.rows if row.get("compile_fault"))
    notes = dict.fromkeys(f"{row['model']}, torch.compile: {row['compile_fault']}." for row in faults)
    return " ".join(words), table(columns, rows, notes, lead=3), MODELS.format(**sheet.settings)


def networks_table(sheet: Sheet) -> tuple[str, Table, str]:
    """Sentence, table and legend of networks; a row is a network, batch, memory format and type."""
    columns = ("network", "batch", "format", "type", *PEERS.values(), OURS, "PyTorch/ours", "layers by convforge",
               "replace, s", "error", "PyTorch's error", "commit")  # fmt: skip
    rows = sheet.rows
    words = [*_means(rows), *_against(rows)]
    if failed := [_network(row) for row in rows if OURS not in row["times"] and OURS not in row["wrong"]]:
        words.append(f"convforge failed, and so has no time: {some(failed)}.")
    words.append(_right([f"{_network(row)} ({', '.join(row['wrong'])})" for row in rows if row["wrong"]]))
    floors = ", ".join(f"{floor:.0e} in {dtype}" for dtype, floor in sheet.settings["floors"].items())
    how = "each called" if sheet.settings["device"] == "cpu" else "each in a CUDA graph"
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for side, reason in row["faults"].items():
            reasons.setdefault(f"{side} has no time: {reason}", []).append(_network(row))
    notes = [f"{reason} ({some(names)})." for reason, names in reasons.items()]
    notes += [f"{_network(row)}: {row['note']}." for row in rows if row["note"]]
    if left := sheet.settings["count"] - len(rows):
        notes.append(f"{left} rows were not reached: go on with `--resume`.")
    legend = NETWORKS.format(how=how, factor=sheet.settings["factor"], floors=floors)
    return " ".join(words), table(columns, map(_network_row, rows), notes, lead=4), legend


def newest_networks(sheets: Sequence[Sheet]) -> tuple[Sheet, list[Sheet]]:
    """A sheet with the newest row of each network, batch, format and type; and the sheets that contain these rows.

    `sheets` are of one device, the oldest first. A row is from a single run, because its ratios compare times of one
    run. The newest row with times of all sides of PyTorch is taken, or the newest row of any kind if there is none or
    if convforge has no time in the newest.
    """
    stored: dict[tuple[Any, ...], list[tuple[Sheet, Row]]] = {}
    for sheet in sheets:
        for row in sheet.rows:
            key = (row["format"] != "channels_last", TYPES.index(row["dtype"]), -row["batch"], row["network"])
            stored.setdefault(key, []).append((sheet, row))
    chosen = []
    for _, pairs in sorted(stored.items(), key=lambda item: item[0][:3]):
        whole = [pair for pair in pairs if not any(side in PEERS for side in pair[1]["faults"])]
        chosen.append(whole[-1] if whole and OURS in pairs[-1][1]["times"] else pairs[-1])
    used = [sheet for sheet in sheets if any(sheet is source for source, _ in chosen)]
    rows = [{**row, "commit": (source.commit or "")[:10]} for source, row in chosen]
    return replace(sheets[-1], rows=rows), used


def timings(row: Row) -> dict[str, Timing]:
    """The timings of a row by side."""
    return {side: Timing.from_table(stored) for side, stored in row["times"].items()}


def slower_ones(pairs: Iterable[tuple[str, Timing, Timing]]) -> tuple[list[str], list[str], int]:
    """Names with a first timing over 3 % above the second; a sentence on noisy ones; the number of other rows."""
    found = [(name, order(ours, other), ours.median_s > SLOWER * other.median_s) for name, ours, other in pairs]
    slower = [name for name, verdict, above in found if above and verdict == "slower"]
    noisy = [name for name, verdict, above in found if above and verdict != "slower"]
    sentence = [f"Too noisy to rank, with a median above that: {some(noisy)}."] * bool(noisy)
    return slower, sentence, len(found) - len(noisy)


def ratio(row: Row, sides: Iterable[str] = PEERS) -> float | None:
    """Time of the fastest of `sides`, divided by convforge's; None if either has no time."""
    times = timings(row)
    best = _fastest(times, sides)
    return None if best is None or OURS not in times else best.median_s / times[OURS].median_s


def _fastest(times: Mapping[str, Timing], sides: Iterable[str] = PEERS) -> Timing | None:
    return min((times[side] for side in sides if side in times), key=lambda time: time.median_s, default=None)


def _model(row: Row) -> str:
    return f"{row['model']}, batch {row['batch']}, {row['setting']}"


def _network(row: Row) -> str:
    return f"{row['network']}, batch {row['pictures']}, {row['format']}, {row['dtype']}"


def _ms(time: Timing | None) -> str:
    return "" if time is None else marked_ms(time)


def _network_row(row: Row) -> list[str]:
    def error_of(side: str) -> str:
        found = row["errors"].get(side, "")
        return "no number" if found is None else found and error(found)

    times, own = timings(row), ratio(row)
    return [
        row["network"], str(row["pictures"]), row["format"], row["dtype"],
        *(_ms(times.get(side)) for side in (*PEERS, OURS)), "" if own is None else f"{own:.3f}x",
        "" if row["layers"] is None else f"{row['ours_layers']} of {row['layers']}",
        "" if row["replace_s"] is None else f"{row['replace_s']:.0f}",
        error_of(OURS), error_of("eager"), row.get("commit", ""),
    ]  # fmt: skip


def _means(rows: Sequence[Row]) -> list[str]:
    """A sentence with the geometric means of the ratios of each type."""
    groups = (
        ("float32 against eager", "float32", ("eager",)), ("float32 against torch.compile", "float32", COMPILED),
        ("float16 against the fastest", "float16", PEERS), ("bfloat16 against the fastest", "bfloat16", PEERS),
    )  # fmt: skip
    parts = []
    for words, dtype, sides in groups:
        found = [value for row in rows if row["dtype"] == dtype and (value := ratio(row, sides)) is not None]
        if found:
            parts.append(f"{words} {geometric_mean(found):.3f}x ({len(found)} row{'s' * (len(found) != 1)})")
    return [f"PyTorch's time over convforge's, geometric means: {', '.join(parts)}."] if parts else []


def _against(rows: Sequence[Row]) -> list[str]:
    """Sentences that count rows in which convforge is slower than PyTorch's fastest side, or a side has no time."""
    pairs, partly = [], 0
    for row in rows:
        times = timings(row)
        best, ours = _fastest(times), times.get(OURS)
        if best is not None and ours is not None:
            pairs.append((_network(row), ours, best))
            partly += any(side in PEERS for side in (*row["faults"], *row["wrong"]))
    if not pairs:
        return ["No row has a time of both sides."]
    slower, noisy, _ = slower_ones(pairs)
    names = f" ({some(slower)})" if slower else ""
    words = [f"Slower than PyTorch's fastest by more than 3 %: {len(slower)} of {len(pairs)} rows{names}.", *noisy]
    if partly:
        words.append(f"In {partly} of them a side of PyTorch has no time: the fastest is of the others.")
    return words


def _right(wrong: Sequence[str]) -> str:
    return f"Wrong, and so without a time: {some(wrong)}." if wrong else "All outputs keep to the bound."
