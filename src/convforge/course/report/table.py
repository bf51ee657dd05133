"""What a table of the page is: cells with a text to read and a value to sort by. `tables` makes those of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from convforge.course.report import numbers


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes
    ----------
    text : str
    sort : float, str or None
        What it is sorted by; None: nothing stands here, it goes last either way.
    look : str
        Class of the stylesheet.
    lang : str
        Code of its language where that is not the page's.
    """

    text: str
    sort: float | str | None = None
    look: str = ""
    lang: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, whether it holds numbers, what it means where the name does not say, if it is prose."""

    name: str
    numeric: bool = False
    meaning: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes
    ----------
    key : str
        Unique in its run.
    caption : str
    columns : tuple of Column
    rows : tuple of tuple of Cell
    filtered : bool
        Whether it gets a filter box.
    """

    key: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    filtered: bool = False


def optional(value: float | None, write: Callable[[float], str]) -> Cell:
    """A cell with a number, written so; with a dash where there is none.

    Examples
    --------
    >>> optional(0.5, numbers.percent).text, optional(None, numbers.percent).text
    ('50 %', '–')
    """
    if value is None:
        return Cell(numbers.MISSING)
    return Cell(write(value), float(value))
