"""What the fields of a config do, for runs with every config: rows are a case and a method.

One table has the default config and one field changed, ``ms (share of a copy)``, the fastest of a row bold. The other
has the fastest config, and for every field the fastest config of each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convforge.benchmark.cells import Cell, Table, best_of, markdown, natural, seconds, timed
from convforge.benchmark.records import Result, Run

LEGEND = (
    "ms a call, weights prepared on every call; in parentheses the share of the bandwidth of our copy kernel over as "
    "many bytes as the case must move at least. First with the default config, then with one field of it changed. "
    "Bold: the fastest of the row, none where it is too noisy to rank; ~ noisy; * sources changed since."
)

BY_FIELD = (
    "ms a call, weights prepared on every call: of the fastest of all configs, then of the fastest config for each "
    "value of a field. Fields of numbers, such as the size of a tile, are left out. ~ noisy; * sources changed since."
)


def changes_of(default: str, config: str) -> list[str]:
    """The fields of a config that differ from the default's, by their texts.

    Examples
    --------
    >>> changes_of("strips=4,lanes=32,stages=2", "strips=4,lanes=16,stages=3")
    ['lanes=16', 'stages=3']
    """
    before = default.split(",")
    return [field for field in config.split(",") if field not in before]


def config_markdown(run: Run, results: Sequence[Result]) -> str:
    """The table of results by changes of one field as Markdown.

    Raises
    ------
    ValueError
        No method of what is asked for was measured with one field changed.
    """
    table = config_table(run, results)
    if not table.rows:
        raise ValueError(f"{run.path} holds no method with one field of its config changed: measure with --all-configs")
    return markdown(run, [table], LEGEND)


def config_table(run: Run, results: Sequence[Result]) -> Table:
    """A row for each case and method that has results in which one field differs from the first, the default."""
    tried: dict[tuple[str, str], list[Result]] = {}
    for r in results:
        tried.setdefault((r.case, r.algorithm), []).append(replace(r, time=run.timing(r)))
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for key, (default, *others) in tried.items():
        changed = [(changes_of(default.config, r.config), r) for r in others]
        if single := {fields[0]: r for fields, r in changed if len(fields) == 1}:
            rows[key] = {"": default, **single}
    columns = sorted({field for found in rows.values() for field in found if field}, key=natural)
    lines = []
    for (case, method), found in sorted(rows.items(), key=lambda row: natural(row[0][0])):
        best = best_of(found.values())
        shown = [found.get(field) for field in ("", *columns)]
        cells = [Cell("") if r is None else timed(run, r, run.of_copy(r, r.time), best) for r in shown]
        lines.append((Cell(case), Cell(method), *cells, Cell(found[""].config)))
    return Table(("case", "method", "default", *columns, "the default"), tuple(lines), ())


def field_markdown(run: Run, results: Sequence[Result]) -> str:
    """The table of the fastest configs by the values of each field as Markdown.

    Raises
    ------
    ValueError
        No method was measured with two values of a field.
    """
    table = field_table(run, results)
    if not table.rows:
        raise ValueError(f"{run.path} holds no method with two values of a field: measure with --all-configs")
    return markdown(run, [table], BY_FIELD)


def field_table(run: Run, results: Sequence[Result]) -> Table:
    """A row for each case and method, a column for each field of words that was tried with several values."""
    tried: dict[tuple[str, str], list[Result]] = {}
    for r in results:
        if (timing := run.timing(r)) is not None and r.config:
            tried.setdefault((r.case, r.algorithm), []).append(replace(r, time=timing))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for key, members in tried.items():
        best: dict[str, dict[str, Result]] = {}
        for r in sorted(members, key=seconds):
            for name, value in (field.split("=", 1) for field in r.config.split(",")):
                best.setdefault(name, {}).setdefault(value, r)
        cells = {
            name: ", ".join(f"{value} {timed(run, r, None, None).text}" for value, r in values.items())
            for name, values in best.items()
            if len(values) > 1 and not any(value.lstrip("-").isdigit() for value in values)
        }
        if cells:
            rows[key] = cells
    fields = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    lines = []
    for (case, method), cells in sorted(rows.items(), key=lambda row: natural(row[0][0])):
        fastest = min(tried[case, method], key=seconds)
        shown = (Cell(cells.get(name, "")) for name in fields)
        lines.append((Cell(case), Cell(method), timed(run, fastest, None, fastest), *shown, Cell(fastest.config)))
    return Table(("case", "method", "fastest", *fields, "the fastest"), tuple(lines), ())
