"""Forecast of a run over many files: bytes of the files before it starts, the expected time while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from convforge.cli.filter_forecast import time_text
from convforge.cli.filter_report import count_of, line
from convforge.cli.output import progress

if TYPE_CHECKING:
    from convforge.benchmark.runner import Watch
    from convforge.imaging.pipeline.folder import Job
    from convforge.imaging.windowed import Place

# Seconds of work before a bar shows the expected time, and before a line says it where there is no terminal. Each
# further line comes after twice the time of the one before.
ON_BAR, IN_LINE = 1.0, 5.0


def sizes_of(jobs: Sequence[Job]) -> dict[Place, int]:
    """Return the bytes of each source on a local disk; a URL and a file that cannot be read have 0."""
    from convforge.imaging.pipeline.batch import stored

    sizes: dict[Place, int] = {}
    for job in jobs:
        try:
            sizes[job.source] = stored(job.source)
        except OSError:  # reported when it is read
            sizes[job.source] = 0
    return sizes


def size_text(sizes: Mapping[Place, int], left: Sequence[Place], remote: int) -> str:
    """Return the bytes of all files, and of those `left` by an earlier run; `remote` files are not counted."""
    from rich.filesize import decimal

    text = f"{decimal(sum(sizes.values()))} of files"
    if remote:
        text += f", without {count_of(remote, 'image')} on servers"
    before = len(sizes) - len(left)
    if not before:
        return text
    rest = decimal(sum(sizes[place] for place in left))
    return f"{text}; {count_of(before, 'image')} finished before, {rest} are left"


class FolderForecast:
    """Progress and expected time of a run: the bytes of the files that are left, at the rate so far.

    The rate counts from the first finished image, because that one waits for compilers. An image in units counts by
    the share of its units. Images of unknown size have the mean size of the others.

    Parameters
    ----------
    sizes : mapping
        Bytes of each image that is left to do.
    before : int
        Images that an earlier run has finished.
    show : callable
        Gets the number of finished images, of all, and a text.
    in_lines : bool
        Print the expected time as lines of the report too, where no terminal shows it.
    """

    def __init__(
        self, sizes: Mapping[Place, int], before: int, show: Watch, *, in_lines: bool,
        clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        known = [size for size in sizes.values() if size]
        mean = sum(known) / len(known) if known else 1
        self._sizes = {place: size or mean for place, size in sizes.items()}
        self._total = before + len(sizes)
        self._left = self._most = sum(self._sizes.values())
        self._count, self._show, self._clock = before, show, clock
        self._begin: tuple[float, float] | None = None  # when the first work was finished, and the bytes left then
        self._next_line = IN_LINE if in_lines else float("inf")

    def start(self) -> None:
        """Show that nothing is done yet."""
        self._show(self._count, self._total, "")

    def finish(self, place: Place, *, failed: bool = False) -> None:
        """Count an image as finished or failed."""
        self._count += 1
        self._left -= self._sizes[place]
        if failed and self._begin is None:  # it was not filtered, and did not wait for compilers
            self._most = self._left
        self._update(self._left, "")

    def units(self, place: Place, name: str) -> Watch:
        """Return the function that gets the progress of an image in units, called `name` in texts."""
        first: int | None = None

        def watch(done: int, total: int, label: str) -> None:
            nonlocal first
            first = done if first is None else first  # by an earlier run
            share = (done - first) / max(total - first, 1)
            self._update(self._left - share * self._sizes[place], f"{name}: {done}/{total} units")

        return watch

    def _update(self, left: float, label: str) -> None:
        expected = ""
        now = self._clock()
        if self._begin is not None:
            begin, had = self._begin
            seconds, moved = now - begin, had - left
            if moved > 0 and left > 0 and seconds >= ON_BAR:
                expected = f"{time_text(seconds * left / moved)} more"
                if seconds >= self._next_line:
                    self._next_line = 2 * seconds
                    line("expected", f"{expected} (after {self._count} of {count_of(self._total, 'image')})")
                    sys.stdout.flush()
        elif left < self._most:
            self._begin = (now, left)
        self._show(self._count, self._total, "; ".join(part for part in (expected, label) if part))


@contextmanager
def watched(sizes: Mapping[Place, int], before: int) -> Iterator[FolderForecast]:
    """Show the progress of a run over files: a bar on a terminal, elsewhere lines with the expected time."""
    from rich.console import Console

    with progress(measuring=False, remaining=False) as bar:
        yield FolderForecast(sizes, before, bar, in_lines=not Console(stderr=True).is_terminal)
