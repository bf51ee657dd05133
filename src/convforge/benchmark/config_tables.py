"""Tables of a method's configs and steps: shapes of thread blocks, fields of configs, time of each step of a call.

A row is a case and a method; its fastest time is bold. They need a run that measured several configs, or steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from convforge.benchmark.formats import milliseconds, natural, percent, ratio, some, three
from convforge.benchmark.frame import by_method, each, frame, labeller, leader, marked_ms, time_cell
from convforge.benchmark.records import Result, Run
from convforge.benchmark.table import Cell, Table, table
from convforge.timing.ranking import order, rank

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["threads", "tile"]
_BEST = "Bold: the fastest of the row, none where it is too noisy to rank; ~ noisy; * sources changed since."
BY_SHAPE = (
    "ms a call, weights prepared on every call; in parentheses the occupancy: resident warps over the most that an "
    f"SM holds. {_BEST} Where a method has several configs with one shape, the fastest is here."
)
KINDS: dict[Kind, str] = {
    "threads": "Columns: threads of a block, along q and along p (of a matrix: along n and along m).",
    "tile": "Columns: the tile of the product that a block computes, rows x columns; its threads compute several "
    "elements each.",
}
BY_CHANGE = (
    "ms a call, weights prepared on every call; in parentheses the share of the bandwidth of our copy kernel over as "
    "many bytes as the case must move at least. First with the default config, then with one field of it changed. "
    + _BEST
)
BY_FIELD = (
    "ms a call, weights prepared on every call: of the fastest of all configs, then of the fastest config for each "
    "value of a field. Fields of numbers, such as the size of a tile, are left out. ~ noisy; * sources changed since."
)
STEPS = (
    "Each step of a call timed by itself, over the same ring; several launches of one step are one time. The share of "
    "the copy ceiling is that of the bytes that a step must move if it reads and writes everything once. A step whose "
    "data stays in the cache may pass that ceiling. ~ noisy; * sources changed since."
)


class Shape(NamedTuple):
    """The shape of a block: its threads, or the elements of its tile of a matrix product.

    `partition` names the work of one thread if that is not one element.
    """

    kind: Kind
    first: int
    second: int
    partition: str = ""

    def __str__(self) -> str:
        return f"{self.first}x{self.second}{' ' if self.partition else ''}{self.partition}"


def shape_of(config: str) -> Shape | None:
    """Parse the shape of a block from a config's text; None if it names none."""
    values = fields_of(config)
    names: tuple[tuple[Kind, str, str], ...] = (
        ("threads", "block_x", "block_y"), ("threads", "block", "block"), ("tile", "block_m", "block_n"),
    )  # fmt: skip
    for kind, first, second in names:
        if first in values and second in values:
            partition = values.get("partition", "pixel").removeprefix("pixel")
            return Shape(kind, int(values[first]), int(values[second]), partition)
    return None


def fields_of(config: str) -> dict[str, str]:
    """Parse the fields of a config's text: "strips=4,lanes=32" gives {"strips": "4", "lanes": "32"}."""
    return dict(field.split("=", 1) for field in config.split(",") if "=" in field)


def changes_of(default: str, config: str) -> list[str]:
    """The fields of a config that differ from the default's, as texts "name=value"."""
    return [field for field in config.split(",") if field not in default.split(",")]


def block_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A table for each kind of shape, if some method was measured with several shapes of this kind."""
    rows = frame(run, results)
    rows["shape"] = rows.config.map(shape_of)
    tables = []
    for kind, note in KINDS.items():
        of_kind = rows[[shape is not None and shape.kind == kind for shape in rows["shape"]]]
        shapes = sorted(set(of_kind["shape"]), key=lambda s: (s.partition, s.first * s.second, s.first))
        if of_kind.groupby(["case", "algorithm"])["shape"].nunique().max() > 1:
            lines = [_block_row(run, tried) for tried in by_method(of_kind)]
            tables.append(table(("case", "method", *map(str, shapes), "fastest"), lines, [note]))
    return tables


def _block_row(run: Run, tried: DataFrame) -> dict[str, str | Cell]:
    best, first = leader(tried), tried.iloc[0]
    line: dict[str, str | Cell] = {"case": first.case, "method": first.algorithm}
    line["fastest"] = _block_verdict(tried, best)
    for row in each(tried.sort_values("seconds", kind="stable").drop_duplicates("shape")):
        occupancy = row.result.launches[0].get("occupancy") if row.result.launches else None
        line[str(row.shape)] = time_cell(run, row, occupancy, best=row.Index == best)
    return line


def _block_verdict(tried: DataFrame, best: Any) -> str:
    """Name the fastest shape, and its speed relative to the method's default, which is its first config."""
    timed = tried[tried.seconds.notna()]
    doubtful = rank(zip(timed["shape"], timed.timing, strict=True), lambda pair: pair[1]).unsure
    words = [] if best is None else [_over_default(tried.iloc[0], tried.loc[best])]
    if doubtful:
        words.append(f"too noisy to rank: {some(str(shape) for shape, _ in doubtful)}")
    return "; ".join(words) or "-"


def _over_default(default: Any, best: Any) -> str:
    shape, first = best["shape"], default["shape"]
    if best.name == default.name:
        return f"{shape}, the default"
    if default.timing is None:
        return f"{shape}; the default, {first}, has no time"
    verdict = order(best.timing, default.timing)
    if verdict == "level":
        return f"{shape}, level with the default, {first}"
    if verdict == "unsure":  # the default is one of the noisy shapes, which are named anyway
        return str(shape)
    ahead = f"{ratio(default.seconds / best.seconds)} ahead of the default"
    if shape == first:
        return f"{shape} with {', '.join(changes_of(default.config, best.config))}, {ahead}"
    return f"{shape}, {ahead}, {first}"


def config_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A table of configs that differ from the default (the first config) in one field: a row a case and method."""
    lines, changed = [], set[str]()
    for tried in by_method(frame(run, results)):
        default = tried.iloc[0]
        changes = tried.config.map(lambda config, default=default: changes_of(default.config, config))
        one = tried[(tried.index == default.name) | (changes.map(len) == 1)]
        best = leader(one)
        line = {"case": default.case, "method": default.algorithm, "the default": default.config}
        for row in each(one):
            name = "default" if row.Index == default.name else changes[row.Index][0]
            line[name] = time_cell(run, row, row.of_copy, best=row.Index == best)
        if len(one) > 1:
            lines.append(line)
            changed |= line.keys() - {"case", "method", "default", "the default"}
    names = ("case", "method", "default", *sorted(changed, key=natural), "the default")
    return [table(names, lines)] if lines else []


def field_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A table with a row a case and method, and a column for each non-numeric field that had several values."""
    rows = frame(run, results)
    lines, fields = [], dict[str, None]()
    for tried in by_method(rows[rows.seconds.notna() & (rows.config != "")].sort_values("seconds", kind="stable")):
        best: dict[str, dict[str, Any]] = {}
        for row in each(tried):
            for name, value in fields_of(row.config).items():
                best.setdefault(name, {}).setdefault(value, row)
        texts = {
            name: ", ".join(f"{value} {time_cell(run, row).text}" for value, row in values.items())
            for name, values in best.items()
            if len(values) > 1 and not any(value.lstrip("-").isdigit() for value in values)
        }
        if texts:
            first = next(each(tried))
            fields |= dict.fromkeys(texts)
            lines.append(texts | {"case": first.case, "method": first.algorithm, "the fastest": first.config,
                                  "fastest": time_cell(run, first, best=True)})  # fmt: skip
    names = ("case", "method", "fastest", *fields, "the fastest")
    return [table(names, lines)] if lines else []


def step_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A table with a row for each step of a call, and one for the whole call."""
    columns = ("case", "method", "step", "launches", "ms", "of all steps", "moves at least, MB", "GB/s",
               "of the copy ceiling", "data")  # fmt: skip
    stepped = sorted((r for r in results if r.steps), key=lambda r: natural(r.case))
    label = labeller(stepped)
    rows: list[tuple[str, ...]] = []
    for r in stepped:
        total = sum(step.time.median_s for step in r.steps)
        for step in r.steps:
            share, rate = run.copy_share(step), step.bytes_per_s
            rows.append((
                r.case, label(r), step.name, str(step.launches),
                marked_ms(step.time, stale=run.is_stale(r)), percent(step.time.median_s / total),
                "" if step.least_bytes is None else three(step.least_bytes / 1e6),
                "" if rate is None else three(rate / 1e9),
                "" if share is None else percent(share),
                "cold" if step.time.cold else "hot in the cache",
            ))  # fmt: skip
        if (call := r.prepared_time or r.time) is not None:
            name = "the call, prepared" if r.prepared_time else "the call"
            of_steps = percent(call.median_s / total)
            rows.append((r.case, label(r), name, "", milliseconds(call.median_s), of_steps, "", "", "", ""))
    return [table(columns, rows, lead=3)] if rows else []
