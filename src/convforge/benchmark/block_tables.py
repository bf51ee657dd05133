"""Time by block shape: rows are a case and a method, columns are shapes of block, for runs with every config.

A cell reads ``ms (occupancy)``; the fastest of a row is bold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from convforge.benchmark.cells import Cell, Table, best_of, markdown, natural, seconds, some, timed
from convforge.benchmark.config_tables import changes_of
from convforge.benchmark.records import Result, Run
from convforge.timing.ranking import order, rank

Kind = Literal["threads", "tile"]
LEGEND = (
    "ms a call, weights prepared on every call; in parentheses the occupancy: resident warps over the most that a "
    "multiprocessor holds. Bold: the fastest of the row, none where it is too noisy to rank; ~ noisy; * sources "
    "changed since. Where a method has several configs with one shape, the fastest stands here."
)
NOTES: dict[Kind, str] = {
    "threads": "Columns: threads of a block, along q and along p (of a matrix: along n and along m).",
    "tile": "Columns: the tile of the product that a block computes, rows x columns; its threads compute several "
    "elements each.",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a block.

    Attributes
    ----------
    kind : {"threads", "tile"}
        Threads; or elements of a product.
    first, second : int
        As the config names them: x and y, or rows and columns.
    partition : str
        What a thread computes, where it is not one element.
    """

    kind: Kind
    first: int
    second: int
    partition: str = ""

    def __str__(self) -> str:
        return f"{self.first}x{self.second}{' ' if self.partition else ''}{self.partition}"


def shape_of(config: str) -> Shape | None:
    """The shape of block that a config's text names; None where it names none.

    Examples
    --------
    >>> str(shape_of("block_x=32,block_y=4,partition=row,resident=1280")), str(shape_of("block=16"))
    ('32x4 row', '16x16')
    >>> shape_of("block_m=128,block_n=64,block_k=8,thread_m=8").kind, shape_of("columns=1024")
    ('tile', None)
    """
    values = dict(part.split("=", 1) for part in config.split(",") if "=" in part)
    if "block_x" in values and "block_y" in values:
        partition = values.get("partition", "pixel")
        return Shape(
            "threads", int(values["block_x"]), int(values["block_y"]), "" if partition == "pixel" else partition
        )
    if "block" in values:
        return Shape("threads", int(values["block"]), int(values["block"]))
    if "block_m" in values and "block_n" in values:
        return Shape("tile", int(values["block_m"]), int(values["block_n"]))
    return None


def block_markdown(run: Run, results: Sequence[Result]) -> str:
    """The tables of results by block shape as Markdown: one for threads, one for tiles.

    Raises
    ------
    ValueError
        No method of what is asked for was measured with more than one shape.
    """
    found = block_tables(run, results)
    if not found:
        raise ValueError(f"{run.path} holds no method with several shapes of block: measure with --all-configs")
    return markdown(run, found, LEGEND)


def block_tables(run: Run, results: Sequence[Result]) -> list[Table]:
    """A table for each kind of shape, of the methods that were asked for in several."""
    shaped = [(shape, replace(r, time=run.timing(r))) for r in results if (shape := shape_of(r.config)) is not None]
    kinds: tuple[Kind, ...] = ("threads", "tile")
    found = []
    for kind in kinds:
        rows: dict[tuple[str, str], list[tuple[Shape, Result]]] = {}
        for shape, r in shaped:
            if shape.kind == kind:
                rows.setdefault((r.case, r.algorithm), []).append((shape, r))
        if any(len({shape for shape, _ in tried}) > 1 for tried in rows.values()):
            found.append(_table(run, kind, rows))
    return found


def _table(run: Run, kind: Kind, rows: dict[tuple[str, str], list[tuple[Shape, Result]]]) -> Table:
    shapes = {shape for tried in rows.values() for shape, _ in tried}
    columns = sorted(shapes, key=lambda s: (s.partition, s.first * s.second, s.first))
    lines = []
    for (case, method), tried in sorted(rows.items(), key=lambda row: natural(row[0][0])):
        best = best_of(r for _, r in tried)
        cells = [_cell(run, [r for shape, r in tried if shape == column], best) for column in columns]
        lines.append((Cell(case), Cell(method), *cells, Cell(_verdict(tried, best))))
    return Table(("case", "method", *map(str, columns), "fastest"), tuple(lines), (NOTES[kind],))


def _cell(run: Run, results: Sequence[Result], best: Result | None) -> Cell:
    if not results:
        return Cell("")
    r = min(results, key=seconds)
    return timed(run, r, r.launches[0].get("occupancy") if r.launches else None, best)


def _verdict(tried: Sequence[tuple[Shape, Result]], best: Result | None) -> str:
    """Which shape is fastest, and what it gains over the method's default, which is the first of its configs."""
    doubtful = rank([(r.time, shape) for shape, r in tried if r.time is not None], lambda pair: pair[0]).unsure
    noisy = f"too noisy to rank: {some(str(shape) for _, shape in doubtful)}" if doubtful else ""
    if best is None or best.time is None:
        return noisy or "-"
    return "; ".join(filter(None, (_over_default(tried, best), noisy)))


def _over_default(tried: Sequence[tuple[Shape, Result]], best: Result) -> str:
    assert best.time is not None
    (first, default), shape = tried[0], next(shape for shape, r in tried if r is best)
    if best is default:
        return f"{shape}, the default"
    if default.time is None:
        return f"{shape}; the default, {first}, has no time"
    verdict = order(best.time, default.time)
    if verdict == "level":
        return f"{shape}, level with the default, {first}"
    if verdict == "unsure":  # the default is among those too noisy to rank, which are named
        return str(shape)
    ahead = f"{default.time.median_s / best.time.median_s:.3g}x ahead of the default"
    if shape == first:
        return f"{shape} with {', '.join(changes_of(default.config, best.config))}, {ahead}"
    return f"{shape}, {ahead}, {first}"
