"""Forecast of a run in units: bytes and disk before it starts, the time as soon as some units are done."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from convforge.cli.filter_report import line
from convforge.cli.output import progress

if TYPE_CHECKING:
    from convforge.imaging.pipeline.large import Watch
    from convforge.imaging.pipeline.large_plan import LargePlan

# The expected time is printed so many seconds and units after the first unit, which waits for compilers and caches.
# Each further line comes after twice the time of the one before.
SECONDS, UNITS = 5.0, 4


def size_text(run: LargePlan) -> str:
    """Return the bytes of samples that a run reads and writes: of the image, then of its reduced copies."""
    from rich.filesize import decimal

    (read, written), *copies = run.traffic
    text = f"reads {decimal(read)}, writes {decimal(written)}, uncompressed"
    if not copies:
        return text
    read, written = (sum(each) for each in zip(*copies, strict=True))
    return f"{text}; for the reduced copies {decimal(read)} and {decimal(written)} more"


def disk_warning(run: LargePlan, finished: int) -> str:
    """Return a warning if the disk of a local result has less room than what is left of it takes uncompressed."""
    from rich.filesize import decimal

    from convforge.imaging.windowed import Url

    if isinstance(run.place, Url):
        return ""
    needed = sum(written for _, written in run.traffic) * (run.units - finished) // run.units
    free = shutil.disk_usage(run.place.parent).free
    if free >= needed:
        return ""
    return f"{run.target}: its disk has {decimal(free)} free, and the result takes {decimal(needed)} uncompressed"


@contextmanager
def watched(run: LargePlan) -> Iterator[Watch]:
    """Show the progress of a run: a bar on a terminal, elsewhere lines with the expected time."""
    from rich.console import Console

    with progress(measuring=False) as bar:
        yield bar if Console(stderr=True).is_terminal else Expected(run)


class Expected:
    """Prints, when some units are done, how long the others will take: by their bytes, at the same rate."""

    def __init__(self, run: LargePlan, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._next = clock, SECONDS
        self._finished: int | None = None  # units of an earlier run
        self._begin: tuple[float, int] | None = None  # when the first unit of this run was done
        self._passes = [(len(each.division), sum(moved)) for each, moved in zip(run.passes, run.traffic, strict=True)]
        self._least = max(UNITS, max(each.most for each in run.passes))

    def __call__(self, done: int, total: int, label: str) -> None:
        now = self._clock()
        if self._finished is None:
            self._finished = done
        if self._begin is None:
            self._begin = (now, done) if done > self._finished else None
            return
        begin, before = self._begin
        if done == total or now - begin < self._next or done - before < self._least:
            return
        self._next = 2 * (now - begin)
        left, moved = self._bytes(total) - self._bytes(done), self._bytes(done) - self._bytes(before)
        seconds = (now - begin) * left / moved
        line("expected", f"{time_text(seconds)} more (after {done} of {total} units)")
        sys.stdout.flush()

    def _bytes(self, units: int) -> float:
        """Return the bytes of the first units of all passes."""
        nbytes = 0.0
        for count, whole in self._passes:
            nbytes += whole * min(units, count) / count
            units -= min(units, count)
        return nbytes


def time_text(seconds: float) -> str:
    """Return a time in words, as precise as a forecast is.

    Examples
    --------
    >>> time_text(0.4), time_text(170), time_text(7900), time_text(300_000)
    ('about 1 s', 'about 3 min', 'about 2 h 12 min', 'about 3 days 11 h')
    """
    if seconds < 100:
        return f"about {max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"about {minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"about {hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"about {days} days {hours} h"
