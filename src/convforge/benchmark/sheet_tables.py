"""Tables of sheets: what a call costs the host, first calls, how near the choices come, whole models, errors of layers.

Each begins with a sentence that says how the figures stand to what was aimed at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from convforge.benchmark.cells import Cell, Table, markdown, some, three
from convforge.benchmark.digests import current_digest
from convforge.benchmark.network_tables import SLOWER, milliseconds, networks_table
from convforge.benchmark.sheets import KINDS, Sheet
from convforge.timing.ranking import order
from convforge.timing.timer import Timing

# What is aimed at: seconds of a warm call on a device; of a first call on a new problem, and of one whose kernels are
# on the disk; times over the best, and the share of cases that keep to it; times over PyTorch of a whole model.
WARM_S, NEW_S, DISK_S = 10e-6, 0.3, 0.03
NEAR, NEAR_SHARE, FAR = 1.05, 0.95, 1.5

# How a sentence names what the split is compared with.
SPOKEN = {"cudnn": "that of cuDNN's fastest strict plan", "loop": "that of a loop of multiply-adds"}

LEVELS = ("heuristic", "auto", "max")
HOST = (
    "Microseconds of the host until a call returns, on an idle device: batches of {batch} calls on a picture of "
    "{picture}, and only between batches the device is waited for; the median of batches, all calls in turns. On the "
    "CPU the computing itself is inside."
)
FIRST = (
    "Milliseconds, medians over fresh processes; tuning is forbidden, its seconds stand apart. The device is ready "
    "when its runtime is: on a GPU its context. A new kernel is a filter of another size in the same process. From "
    "the disk: in a fresh process whose cache folder another one has filled."
)
CHOICES = (
    "Each level chose with choices of its own, then the chosen were timed in turns in the same run. The best of a case "
    "is the fastest of these, the full search's choice among them; what ties with it counts as equal. "
    "The full search measures this very problem, at most {search_s:g} s; auto takes what is remembered of a problem "
    "that is alike, as calls do."
)
MODELS = (
    "Milliseconds of the whole model in eval mode, inputs on the device, all in turns; by convforge: after "
    "`convforge.torch.replace`. Error: RMS of the difference to the same model in float64, over that model's RMS; ours "
    "may be {factor} times the largest that PyTorch has over inputs that differ in their last bit, or {floor:.0e}, "
    "whichever is more. In a setting that allows TF32 ours may be strict. ~ noisy."
)


ERRORS = (
    "The RMS of the error over that of the true result, in float64; in parentheses the mean of the error over the "
    "same. Loop: one multiply-add of float32 after another (`direct_naive`). Split: `implicit_gemm_split`, whose tiles "
    "split pixels, or whose pixels another kernel splits first. cudnn: the fastest of cuDNN's plans in strict float32. "
    "Photographs: x is what a first layer of random filters makes of photographs. Bold: the least RMS error of the row."
)
EXAMPLES = "Each in a process of its own, imports and compiling included, with the last lines of what it wrote."


def sheet_markdown(kind: str, sheets: Iterable[Sheet], devices: Sequence[str] = ()) -> str:
    """The newest complete sheet of a kind of every device, else the one of most rows; or how to measure one.

    Raises
    ------
    ValueError
        The kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"there are no sheets {kind!r}; there are {', '.join(KINDS)}")
    best: dict[str, Sheet] = {}
    for sheet in sorted(sheets, key=_worth):
        if sheet.kind == kind and sheet.rows and (not devices or sheet.device in devices):
            best[sheet.device] = sheet
    if not best:
        return f"Nothing is stored yet: `python benchmarks/run.py {kind} --device cuda` measures it.\n"
    return "\n".join(_TABLES[kind](best[device]) for device in sorted(best))


def _worth(sheet: Sheet) -> tuple[bool, int, str]:
    """What orders sheets of a kind: complete ones come last, by their age; others by how many rows they have."""
    return (sheet.complete, 0 if sheet.complete else len(sheet.rows), sheet.started)


def _shown(sheet: Sheet, sentence: str, table: Table, legend: str) -> str:
    return f"{sentence}\n\n{markdown(sheet.as_run(), [table], legend)}"


# Host.


def host_markdown(sheet: Sheet) -> str:
    """A row a call of each library, and PyTorch's own beside it."""
    times = {(row["library"], row["call"]): Timing.from_table(row["time"]) for row in sheet.rows if row.get("time")}
    rows = []
    for (library, call), time in times.items():
        cells = [library, call, _us(time)]
        against = times.get((library, "PyTorch's conv2d"))
        cells.append("" if against is None else f"{time.median_s / against.median_s:.2f}x")
        rows.append(tuple(map(Cell, cells)))
    notes = tuple(f"{row['library']}, {row['call']}: {row['reason']}." for row in sheet.rows if row.get("reason"))
    table = Table(("arrays", "call", "us", "of PyTorch's"), tuple(rows), notes, lead=2)
    said = []
    for library in dict.fromkeys(library for library, _ in times):
        warm, operator = (times.get((library, call)) for call in ("conv2d", "the operator"))
        if warm is None:
            continue
        kept = "" if sheet.settings["device"] == "cpu" else f" ({'under' if warm.median_s < WARM_S else 'over'} 10 us)"
        words = f"A warm `conv2d` on arrays of {library} takes {_us(warm)} us{kept}"
        if operator is not None:
            words += f", the operator of `convforge.torch` {(operator.median_s - warm.median_s) * 1e6:+.1f} us"
        said.append(words + ".")
    return _shown(sheet, " ".join(said), table, HOST.format(**sheet.settings))


def _us(time: Timing) -> str:
    return ("~" if time.noisy else "") + three(time.median_s * 1e6)


# First calls.

_FIRST = (
    ("import_s", "import convforge"), ("ready_s", "the device is ready"), ("first_s", "first call"),
    ("new_s", "a new kernel"), ("again_s", "the call again"), ("tuning_s", "tuning, in the search"),
)  # fmt: skip


def first_markdown(sheet: Sheet) -> str:
    """A row a state of the cache folder."""
    rows, medians = [], {}
    for row in sheet.rows:
        found = {name: _median(row["samples"], name) for name, _ in _FIRST}
        medians[row["cache"]] = found
        times = ("" if s is None else three(s * 1e3) for s in found.values())
        rows.append(tuple(map(Cell, (row["cache"], str(len(row["samples"])), *times))))
    table = Table(("cache folder", "processes", *(words for _, words in _FIRST)), tuple(rows), (), lead=1)
    said = []
    for cache, limit, what in (("empty", NEW_S, "With nothing on the disk"), ("filled", DISK_S, "From the disk")):
        if (new := medians.get(cache, {}).get("new_s")) is not None:
            kept = "under" if new < limit else "over"
            said.append(f"{what} a call on a new problem takes {three(new * 1e3)} ms ({kept} {limit * 1e3:.0f} ms).")
    return _shown(sheet, " ".join(said), table, FIRST)


def _median(samples: Sequence[Mapping[str, float | None]], name: str) -> float | None:
    known = sorted(value for sample in samples if (value := sample.get(name)) is not None)
    return known[len(known) // 2] if known else None


# Choices.


def choices_markdown(sheet: Sheet) -> str:
    """A row a level, over all cases and each suite at each batch."""
    timed = [row for row in sheet.rows if row.get("times")]
    groups = {"all": timed} | {
        g: [r for r in timed if r["group"] == g] for g in dict.fromkeys(r["group"] for r in timed)
    }
    rows, shares = [], {}
    for group, members in groups.items():
        for level in LEVELS:
            ratios = {row["case"]: over_best(row, level) for row in members}
            if not ratios:
                continue
            worst = max(ratios, key=ratios.__getitem__)
            shares[group, level] = [_share(ratios.values(), bound) for bound in (NEAR, FAR)]
            cells = (group, str(len(ratios)), level, *(f"{100 * share:.0f} %" for share in shares[group, level]),
                     f"{ratios[worst]:.2f}x", worst)  # fmt: skip
            rows.append(tuple(map(Cell, cells)))
    notes = []
    if skipped := [row for row in sheet.rows if row.get("reason")]:
        why = dict.fromkeys(row["reason"] for row in skipped)
        notes.append(f"{len(skipped)} cases are not in it: {some(row['case'] for row in skipped)} ({some(why)}).")
    if left := sheet.settings["count"] - len(sheet.rows):
        notes.append(f"{left} cases were not reached: go on with `--resume`.")
    if early := sum(not row["whole"] for row in timed):
        notes.append(f"The full search of {early} cases ended with its budget, before its last candidate.")
    if stale := [row["case"] for row in timed if _is_stale(sheet, row)]:
        notes.append(f"Sources have changed since for {some(stale)}.")
    columns = ("cases", "count", "level", "within 5 %", "within 1.5x", "the worst", "of case")
    table = Table(columns, tuple(rows), tuple(notes), lead=3)
    sentence = "No case was timed."
    if timed:
        near, far = shares["all", "auto"][0], shares["all", "heuristic"][1]
        sentence = (
            f"auto is within 5 % of the best in {100 * near:.0f} % of {len(timed)} cases "
            f"({'as' if near >= NEAR_SHARE else 'less than'} aimed at: {100 * NEAR_SHARE:.0f} %), the heuristic within "
            f"1.5x in {100 * far:.0f} %."
        )
    return _shown(sheet, sentence, table, CHOICES.format(**sheet.settings))


def over_best(row: Mapping[str, Any], level: str) -> float:
    """The time of what a level chose over the best of its case; 1 where it is a tie."""
    times = {(t["algorithm"], t["config"]): Timing.from_table(t["time"]) for t in row["times"]}
    chosen = row["levels"][level]
    own = times[chosen["algorithm"], chosen["config"]]
    best = min(times.values(), key=lambda time: time.median_s)
    return 1.0 if order(own, best) == "level" else own.median_s / best.median_s


def _share(ratios: Iterable[float], bound: float) -> float:
    known = list(ratios)
    return sum(ratio <= bound for ratio in known) / len(known)


def _is_stale(sheet: Sheet, row: Mapping[str, Any]) -> bool:
    facts = sheet.machine["facts"]
    return any(
        t["digest"] != current_digest("conv2d", row["backend"], t["algorithm"], row["problem"], t["config"], facts)
        for t in row["times"]
    )


# Models.


def models_markdown(sheet: Sheet) -> str:
    """A row a model, batch and setting."""
    rows, wrong, compared = [], [], 0
    slower: list[str] = []
    unsure: list[str] = []
    for row in sheet.rows:
        name = f"{row['model']}, batch {row['batch']}, {row['setting']}"
        times = {by: Timing.from_table(table) for by, table in row["times"].items()}
        eager, ours = times.get("eager"), times.get("convforge")
        ratio = None if eager is None or ours is None else ours.median_s / eager.median_s
        if not row["right"]:
            wrong.append(name)
        if ratio is not None and eager is not None and ours is not None:
            compared += 1
            if ratio > SLOWER:
                (slower if order(ours, eager) == "slower" else unsure).append(name)
        cells = (
            row["model"], str(row["batch"]), row["setting"],
            *(milliseconds(times.get(by)) for by in ("eager", "compiled")),
            milliseconds(ours), "" if ratio is None else f"{ratio:.3f}x", f"{row['ours_layers']} of {row['layers']}",
            f"{row['error']:.1e}", f"{row['eager_error']:.1e}",
        )  # fmt: skip
        rows.append(tuple(map(Cell, cells)))
    notes = [
        f"{row['model']}, torch.compile: {row['compile_fault']}." for row in sheet.rows if row.get("compile_fault")
    ]
    columns = ("model", "batch", "setting", "PyTorch", "torch.compile", "convforge", "of PyTorch",
               "layers by convforge", "error", "PyTorch's error")  # fmt: skip
    table = Table(columns, tuple(rows), tuple(dict.fromkeys(notes)), lead=3)
    ranked = compared - len(unsure)
    said = [f"Slower than PyTorch at the same setting by more than 3 %: {some(slower)}." if slower else
            f"None of {ranked} is slower than PyTorch at the same setting by more than 3 %."]  # fmt: skip
    if unsure:
        said.append(f"Too noisy to rank, with a median above that: {some(unsure)}.")
    said.append(f"Wrong, and so without a time: {some(wrong)}." if wrong else "All outputs keep to the bound.")
    return _shown(sheet, " ".join(said), table, MODELS.format(**sheet.settings))


# Networks.


def networks_markdown(sheet: Sheet) -> str:
    """A row a network, batch, memory format and type."""
    return _shown(sheet, *networks_table(sheet))


# Errors of layers.


def errors_markdown(sheet: Sheet) -> str:
    """A row a layer and kind of numbers, a column a way to compute it."""
    ways = list(dict.fromkeys(way for row in sheet.rows for way in row["errors"]))
    rows, faults = [], dict[str, list[str]]()
    for row in sheet.rows:
        least = min((error["rms"] for error in row["errors"].values()), default=None)
        cells = [Cell(row["problem"]), Cell(row["data"]), Cell(str(row["terms"]))]
        for way in ways:
            error = row["errors"].get(way)
            text = "" if error is None else f"{error['rms']:.1e} ({error['mean']:+.0e})"
            cells.append(Cell(text, "ours" if error is not None and error["rms"] == least else ""))
        rows.append(tuple(cells))
        for way, why in row["faults"].items():
            faults.setdefault(f"{way} has no result: {why}", []).append(row["problem"])
    notes = [f"{what} ({some(dict.fromkeys(layers))})." for what, layers in faults.items()]
    table = Table(("layer", "numbers", "terms of a sum", *ways), tuple(rows), tuple(notes), lead=3)
    said = [_below(sheet, other) for other in ("cudnn", "loop") if other in ways]
    return _shown(sheet, " ".join(said) or "Nothing was compared.", table, ERRORS)


def _below(sheet: Sheet, other: str) -> str:
    """In how many rows each way of the split has a smaller RMS error than another way, and where it has not."""
    compared, not_below = 0, []
    for row in sheet.rows:
        rms = {way: error["rms"] for way, error in row["errors"].items()}
        split = [value for way, value in rms.items() if way.startswith("split")]
        if split and other in rms:
            compared += 1
            if max(split) >= rms[other]:
                not_below.append(f"{row['problem']} ({row['data']})")
    words = (
        f"The error of `implicit_gemm_split` is below {SPOKEN[other]} in {compared - len(not_below)} of {compared} rows"
    )
    return f"{words}{f'; it is not in {some(not_below)}' if not_below else ''}."


# Examples.


def examples_markdown(sheet: Sheet) -> str:
    """A row an example."""
    rows, failed = [], []
    for row in sheet.rows:
        if row["fault"]:
            failed.append(row["example"])
        said = row["fault"] or "; ".join(row["said"])
        rows.append((Cell(f"examples/{row['example']}.py"), Cell(f"{row['seconds']:.1f}"), Cell(said)))
    said = f"With an error: {some(failed)}." if failed else f"All {len(rows)} end well."
    return _shown(sheet, said, Table(("example", "s", "what it says"), tuple(rows), (), lead=1), EXAMPLES)


_TABLES: dict[str, Callable[[Sheet], str]] = {
    "host": host_markdown, "first": first_markdown, "choices": choices_markdown, "models": models_markdown,
    "networks": networks_markdown, "errors": errors_markdown, "examples": examples_markdown,
}  # fmt: skip
