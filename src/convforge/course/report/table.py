"""Tables of the pages: the benchmark's table, made from columns and functions that return their cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from convforge.benchmark.formats import MISSING
from convforge.benchmark.table import Cell, Column, Table

__all__ = ["Cell", "Column", "Field", "Table", "number", "optional", "table", "text"]

# A column, and the function from an item to its cell.
Field = tuple[Column, Callable[[Any], Cell]]


def table(key: str, caption: str, items: Iterable[Any], fields: Iterable[Field], *, filtered: bool = False) -> Table:
    """Create a table with a row for each item."""
    columns, cells = zip(*fields, strict=True)
    rows = (tuple(cell(item) for cell in cells) for item in items)
    return Table(key, caption, columns, tuple(rows), filtered)


def text(name: str, of: Callable[[Any], str], *, wide: bool = False) -> Field:
    """Return a column of texts."""
    return Column(name, wide=wide), lambda item: Cell(of(item))


def number(
    name: str, of: Callable[[Any], float | None], write: Callable[[float], str] = str, meaning: str = ""
) -> Field:
    """Return a column of numbers formatted by `write`, with a dash for a missing number."""
    return Column(name, True, meaning), lambda item: optional(of(item), write)


def optional(value: float | None, write: Callable[[float], str]) -> Cell:
    """Return a cell with a number formatted by `write`, or with a dash for a missing number.

    Examples
    --------
    >>> optional(0.5, "{:.0%}".format).text, optional(None, str).text
    ('50%', '–')
    """
    return Cell(MISSING) if value is None or math.isnan(value) else Cell(write(value), float(value))
