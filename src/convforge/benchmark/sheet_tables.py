"""Tables of sheets: host cost of calls, first calls, choices, errors of layers, examples.

Above each table, a sentence compares the figures with the goal. Tables of models are in `model_tables`, those of large
images in `large_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_high
from typing import Any

from convforge.benchmark.digests import current_digest
from convforge.benchmark.formats import error, milliseconds, percent, ratio, some, three
from convforge.benchmark.large_tables import large_table, newest_cases
from convforge.benchmark.model_tables import models_table, networks_table, newest_networks
from convforge.benchmark.sheets import Sheet
from convforge.benchmark.table import Cell, Table, markdown, table
from convforge.timing.ranking import order
from convforge.timing.timer import Timing

# Goals. Seconds: of a warm call on a device, of a first call on a new problem, and of one with kernels on disk.
# Choices: ratio to the best that counts as near, the share of cases that must be near, and the ratio that is far.
WARM_S, NEW_S, DISK_S = 10e-6, 0.3, 0.03
NEAR, NEAR_SHARE, FAR = 1.05, 0.95, 1.5

# Names of the other ways to compute, in sentences.
SPOKEN = {"cudnn": "that of cuDNN's fastest strict plan", "loop": "that of a loop of multiply-adds"}

LEVELS = ("heuristic", "auto", "max")
HOST = (
    "Microseconds of the host until a call returns, on an idle device: batches of {batch} calls on an image of "
    "{picture}, with a wait for the device only between batches; the median of batches, all calls in turns. On the CPU "
    "the computing itself is inside."
)
FIRST = (
    "Milliseconds, medians over fresh processes; tuning is forbidden, its seconds have their own column. The device is "
    "ready when its runtime is: on a GPU its context. A new kernel is a filter of another size in the same process. "
    "From the disk: in a fresh process whose cache folder another one has filled."
)
CHOICES = (
    "Each level chose with choices of its own, then the chosen were timed in turns in the same run. The best of a case "
    "is the fastest of these, the full search's choice among them; what ties with it counts as equal. "
    "The full search measures this very problem, at most {search_s:g} s; auto takes the stored choice for a similar "
    "problem, as calls do."
)
ERRORS = (
    "The RMS of the error over that of the true result, in float64; in parentheses the mean of the error over the "
    "same. Loop: one multiply-add of float32 after another (`direct_naive`). Split: `implicit_gemm_split`, whose tiles "
    "split pixels, or whose pixels another kernel splits first. cudnn: the fastest of cuDNN's plans in strict float32. "
    "Photographs: x is what a first layer of random filters makes of photographs. Bold: the least RMS error of the row."
)
EXAMPLES = "Each in a process of its own, imports and compiling included."

# Sentence above a table, table, legend.
Shown = tuple[str, Table, str]


def sheet_markdown(kind: str, sheets: Iterable[Sheet], devices: Sequence[str] = ()) -> str:
    """Markdown of each device's newest complete sheet of a kind, else of its longest; or the command that measures one.

    For networks and large images, it has the newest rows of each network or image from all sheets of a device.
    """
    able = [s for s in sheets if s.kind == kind and s.rows and (not devices or s.device in devices)]
    if not able:
        return f"Nothing is stored yet: `python benchmarks/run.py {kind} --device cuda` measures it.\n"
    parts = []
    for device in sorted({sheet.device for sheet in able}):
        own = sorted((sheet for sheet in able if sheet.device == device), key=lambda sheet: sheet.started)
        sheet = max(own, key=lambda s: (s.complete, 0 if s.complete else len(s.rows), s.started))
        newest = _NEWEST.get(kind)
        shown, used = newest(own) if newest else (sheet, [sheet])
        sentence, found, legend = _TABLES[kind](shown)
        parts.append(f"{sentence}\n\n{markdown([sheet.as_run() for sheet in used], [found], legend)}")
    return "\n".join(parts)


def host_table(sheet: Sheet) -> Shown:
    """Sentence, table and legend of warm calls: a row is a call of a library, also PyTorch's own."""
    times = {(row["library"], row["call"]): Timing.from_table(row["time"]) for row in sheet.rows if row.get("time")}
    rows, sentences = [], []
    for (library, call), time in times.items():
        against = times.get((library, "PyTorch's conv2d"))
        rows.append((library, call, _us(time), "" if against is None else ratio(time.median_s / against.median_s)))
        if call == "conv2d":
            limit = f" ({'under' if time.median_s < WARM_S else 'over'} 10 us)"
            words = f"A warm `conv2d` on arrays of {library} takes {_us(time)} us"
            words += "" if sheet.settings["device"] == "cpu" else limit
            if (operator := times.get((library, "the operator"))) is not None:
                words += f", the operator of `convforge.torch` {(operator.median_s - time.median_s) * 1e6:+.1f} us"
            sentences.append(words + ".")
    notes = (f"{row['library']}, {row['call']}: {row['reason']}." for row in sheet.rows if row.get("reason"))
    shown = table(("arrays", "call", "us", "of PyTorch's"), rows, notes)
    return " ".join(sentences), shown, HOST.format(**sheet.settings)


def _us(time: Timing) -> str:
    return "~" * time.noisy + three(time.median_s * 1e6)


_FIRST = {
    "import_s": "import convforge", "ready_s": "the device is ready", "first_s": "first call",
    "new_s": "a new kernel", "again_s": "the call again", "tuning_s": "tuning, in the search",
}  # fmt: skip
_NEW = (("empty", NEW_S, "With nothing on the disk"), ("filled", DISK_S, "From the disk"))


def first_table(sheet: Sheet) -> Shown:
    """Sentence, table and legend of first calls: a row is a state of the cache folder."""
    rows, new = [], {}
    for row in sheet.rows:
        known = {name: [s[name] for s in row["samples"] if s.get(name) is not None] for name in _FIRST}
        medians = {name: median_high(values) for name, values in known.items() if values}
        new[row["cache"]] = medians.get("new_s")
        times = (milliseconds(medians[name]) if name in medians else "" for name in _FIRST)
        rows.append((row["cache"], str(len(row["samples"])), *times))
    sentences = [
        f"{words} a call on a new problem takes {milliseconds(took)} ms "
        f"({'under' if took < limit else 'over'} {limit * 1e3:.0f} ms)."
        for cache, limit, words in _NEW
        if (took := new.get(cache)) is not None
    ]
    return " ".join(sentences), table(("cache folder", "processes", *_FIRST.values()), rows, lead=1), FIRST


def choices_table(sheet: Sheet) -> Shown:
    """Sentence, table and legend of choices: a row is a level, for all cases and for each suite and batch."""
    timed = [row for row in sheet.rows if row.get("times")]
    rows, shares = [], {}
    for group in ("all", *dict.fromkeys(row["group"] for row in timed)) if timed else ():
        members = [row for row in timed if group in ("all", row["group"])]
        for level in LEVELS:
            ratios = {row["case"]: over_best(row, level) for row in members}
            near, far, worst, case = spread_of(ratios)
            shares[group, level] = (near, far)
            rows.append((group, str(len(ratios)), level, percent(near), percent(far), ratio(worst), case))
    notes = []
    if skipped := [row for row in sheet.rows if row.get("reason")]:
        why = some(row["reason"] for row in skipped)
        notes.append(f"{len(skipped)} cases are not in it: {some(row['case'] for row in skipped)} ({why}).")
    if left := sheet.settings["count"] - len(sheet.rows):
        notes.append(f"{left} cases were not reached: go on with `--resume`.")
    if early := sum(not row["whole"] for row in timed):
        notes.append(f"The full search of {early} cases ended with its budget, before its last candidate.")
    facts, stale = sheet.machine["facts"], dict[str, None]()
    for row in timed:
        for t in row["times"]:
            key = ("conv2d", row["backend"], t["algorithm"], row["problem"], t["config"])
            if t["digest"] != current_digest(*key, facts):
                stale[row["case"]] = None
    notes += [f"Sources have changed since for {some(stale)}."] * bool(stale)
    sentence = "No case was timed."
    if timed:
        near, far = shares["all", "auto"][0], shares["all", "heuristic"][1]
        goal = f"{'as' if near >= NEAR_SHARE else 'less than'} aimed at: {percent(NEAR_SHARE)}"
        sentence = (
            f"auto is within 5 % of the best in {percent(near)} of {len(timed)} cases ({goal}), the heuristic within "
            f"1.5x in {percent(far)}."
        )
    columns = ("cases", "count", "level", "within 5 %", "within 1.5x", "the worst", "of case")
    return sentence, table(columns, rows, notes, lead=3), CHOICES.format(**sheet.settings)


def over_best(row: Mapping[str, Any], level: str) -> float:
    """Time of a level's choice divided by the best time of its case; 1 if they tie."""
    times = {(t["algorithm"], t["config"]): Timing.from_table(t["time"]) for t in row["times"]}
    chosen = row["levels"][level]
    own = times[chosen["algorithm"], chosen["config"]]
    best = min(times.values(), key=lambda time: time.median_s)
    return 1.0 if order(own, best) == "level" else own.median_s / best.median_s


def spread_of(ratios: Mapping[str, float]) -> tuple[float, float, float, str]:
    """From case -> ratio to the best: the shares of cases up to NEAR and up to FAR, the worst ratio, and its case."""
    near, far = (sum(value <= bound for value in ratios.values()) / len(ratios) for bound in (NEAR, FAR))
    worst = max(ratios, key=ratios.__getitem__)
    return near, far, ratios[worst], worst


def errors_table(sheet: Sheet) -> Shown:
    """Sentence, table and legend of errors: a row is a layer and kind of numbers, a column a way to compute it."""
    ways = list(dict.fromkeys(way for row in sheet.rows for way in row["errors"]))
    rows, faults = [], dict[str, list[str]]()
    for row in sheet.rows:
        least = min((found["rms"] for found in row["errors"].values()), default=None)
        cells = {
            way: Cell(f"{error(found['rms'])} ({found['mean']:+.0e})", look="best" if found["rms"] == least else "")
            for way, found in row["errors"].items()
        }
        rows.append([row["problem"], row["data"], str(row["terms"]), *(cells.get(way, "") for way in ways)])
        for way, why in row["faults"].items():
            faults.setdefault(f"{way} has no result: {why}", []).append(row["problem"])
    notes = [f"{fault} ({some(layers)})." for fault, layers in faults.items()]
    sentences = [_below(sheet, other) for other in SPOKEN if other in ways]
    shown = table(("layer", "numbers", "terms of a sum", *ways), rows, notes, lead=3)
    return " ".join(sentences) or "Nothing was compared.", shown, ERRORS


def _below(sheet: Sheet, other: str) -> str:
    """A sentence: in how many rows the RMS error of every split is below another way's, and the other rows."""
    compared, not_below = 0, []
    for row in sheet.rows:
        rms = {way: found["rms"] for way, found in row["errors"].items()}
        split = [value for way, value in rms.items() if way.startswith("split")]
        if split and other in rms:
            compared += 1
            if max(split) >= rms[other]:
                not_below.append(f"{row['problem']} ({row['data']})")
    below = f"below {SPOKEN[other]} in {compared - len(not_below)} of {compared} rows"
    return f"The error of `implicit_gemm_split` is {below}{f'; it is not in {some(not_below)}' if not_below else ''}."


def examples_table(sheet: Sheet) -> Shown:
    """Sentence, table and legend of examples: a row is an example."""
    rows = [
        (f"examples/{row['example']}.py", f"{row['seconds']:.1f}", row["fault"] or "; ".join(row["said"]))
        for row in sheet.rows
    ]
    failed = [row["example"] for row in sheet.rows if row["fault"]]
    sentence = f"With an error: {some(failed)}." if failed else f"All {len(rows)} end well."
    return sentence, table(("example", "s", "last lines of its output"), rows, lead=1), EXAMPLES


_TABLES: dict[str, Callable[[Sheet], Shown]] = {
    "host": host_table, "first": first_table, "choices": choices_table, "models": models_table,
    "networks": networks_table, "errors": errors_table, "examples": examples_table, "large": large_table,
}  # fmt: skip
# Kinds whose tables take rows from several sheets.
_NEWEST = {"networks": newest_networks, "large": newest_cases}
