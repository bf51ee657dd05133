"""The formats of numbers, times and names that tables, sentences and pages share."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

# In place of an unknown number.
MISSING = "–"
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def three(value: float) -> str:
    """Three significant digits, never with an exponent: "0.00123", "12345"."""
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    # Rounded first: 9.996 has three digits as 10.0, not as 10.00.
    exponent = math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{value:.{max(2 - exponent, 0)}f}"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds, without the unit: 1.23 for 0.0012345."""
    return three(1e3 * value)


def seconds(value: float) -> str:
    """A time with its unit: "9.80 ms", "123 us"."""
    scale, unit = next((pair for pair in _TIMES if abs(value) >= 0.9995 * pair[0]), _TIMES[-1])
    return f"{three(value / scale)} {unit}"


def byte_count(value: float) -> str:
    """Bytes with a binary unit; whole ones without a fraction: "512 KiB", "1.50 GiB"."""
    scale, unit = next((pair for pair in _BYTES if abs(value) >= pair[0]), _BYTES[-1])
    scaled = value / scale
    return f"{f'{scaled:.0f}' if scaled == round(scaled) else three(scaled)} {unit}"


def ratio(value: float) -> str:
    """A ratio of times: "1.83x"."""
    return f"{three(value)}x"


def error(value: float) -> str:
    """A numerical error, with two digits: "6.1e-08"."""
    return f"{value:.1e}" if value else "0"


def fraction(value: float) -> str:
    """A share that may be tiny: "0.174", "2.4e-06"."""
    return error(value) if 0 < value < 1e-3 else three(value)


def percent(value: float) -> str:
    """A share of one; below 10 % with a digit behind the point."""
    return f"{100 * value:.{1 if abs(value) < 0.0995 else 0}f} %"


def some(names: Iterable[str]) -> str:
    """The first of the names, each once, and how many more there are.

    >>> some("abcab"), some("abcde")
    ('a, b, c', 'a, b, c and 2 more')
    """
    every = list(dict.fromkeys(names))
    return ", ".join(every) if len(every) <= 4 else f"{', '.join(every[:3])} and {len(every) - 3} more"


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside names by value: "a_64" before "a_1024"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word nearest to a mistaken one: "; did you mean 'images'?", or "." where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else "."
