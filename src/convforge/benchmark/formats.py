"""Formats of numbers, times and names, shared by tables, sentences and pages."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

# Shown in place of an unknown number.
MISSING = "–"
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def three(value: float) -> str:
    """Format with three significant digits, without an exponent: "0.00123", "12345"."""
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    # Round first: 9.996 becomes 10.0, not 10.00.
    exponent = math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{value:.{max(2 - exponent, 0)}f}"


def milliseconds(value: float) -> str:
    """Format seconds as milliseconds without the unit: 0.0012345 gives "1.23"."""
    return three(1e3 * value)


def seconds(value: float) -> str:
    """Format seconds with a unit: "9.80 ms", "123 us"."""
    scale, unit = next((pair for pair in _TIMES if abs(value) >= 0.9995 * pair[0]), _TIMES[-1])
    return f"{three(value / scale)} {unit}"


def byte_count(value: float) -> str:
    """Format bytes with a binary unit, whole numbers without a fraction: "512 KiB", "1.50 GiB"."""
    scale, unit = next((pair for pair in _BYTES if abs(value) >= pair[0]), _BYTES[-1])
    scaled = value / scale
    return f"{f'{scaled:.0f}' if scaled == round(scaled) else three(scaled)} {unit}"


def ratio(value: float) -> str:
    """Format a ratio of times: "1.83x"."""
    return f"{three(value)}x"


def error(value: float) -> str:
    """Format a numerical error with two digits: "6.1e-08"."""
    return f"{value:.1e}" if value else "0"


def fraction(value: float) -> str:
    """Format a fraction that may be tiny: "0.174", "2.4e-06"."""
    return error(value) if 0 < value < 1e-3 else three(value)


def percent(value: float) -> str:
    """Format a fraction as a percentage, with one decimal below 10 %."""
    return f"{100 * value:.{1 if abs(value) < 0.0995 else 0}f} %"


def some(names: Iterable[str]) -> str:
    """The first different names, and the number of the others.

    >>> some("abcab"), some("abcde")
    ('a, b, c', 'a, b, c and 2 more')
    """
    every = list(dict.fromkeys(names))
    return ", ".join(every) if len(every) <= 4 else f"{', '.join(every[:3])} and {len(every) - 3} more"


def natural(name: str) -> list[tuple[int, str]]:
    """Key for natural sorting, by the values of numbers inside names: "a_64" before "a_1024"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word closest to a mistyped one: "; did you mean 'images'?", or "." if none is close."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else "."
