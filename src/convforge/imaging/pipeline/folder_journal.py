"""Journal of a run over many images: after a kill, the same command filters only the images that are left.

The journal is a hidden file in the folder of the results. Its first line is JSON that describes the options; each
further line is the record of a finished image: its source and its result, with size and time of change. An image counts
as finished only if both files are still those of its record, so a changed source is filtered again, and so is an image
whose result was removed or replaced. A record is written after the result has its name.

A run does not depend on its journal: if it cannot be written, the run goes on, and cannot be resumed.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from convforge.imaging.pipeline.journal_lines import JournalLines, differing, not_written
from convforge.imaging.windowed import Place, Url

NAME = ".convforge.journal"


class State(NamedTuple):
    """Size in bytes of a file, and time of its last change in nanoseconds."""

    size: int
    changed: int

    @classmethod
    def of(cls, place: Place) -> State | None:
        """Return the state of a file; None for URLs, missing files, and folders, whose files change by themselves."""
        if isinstance(place, Url):
            return None
        try:
            facts = place.stat()
        except OSError:
            return None
        return cls(facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None


class FolderJournal:
    """The open journal of a run that writes to a folder.

    Parameters
    ----------
    out : Path
        The folder of the results, which exists.
    options : mapping
        What the results depend on beside their sources, by the names of the options. The records of a run with other
        options are dropped.

    Attributes
    ----------
    differs : tuple of str
        Names of the options in which an unfinished earlier run differs.
    fault : str
        Why this run cannot be resumed; empty if it can.
    recorded : int
        Number of images that this run has finished.
    """

    def __init__(self, out: Path, options: Mapping[str, str]) -> None:
        self._out, self._path = out, out / NAME
        self.differs: tuple[str, ...] = ()
        self.fault = ""
        self.recorded = 0
        self._records: dict[str, tuple[State, State]] = {}  # by source and target
        self._turn = threading.Lock()
        self._file: JournalLines | None = None
        try:
            self._file = JournalLines(self._path)
            self._begin(self._file, dict(options))
        except BlockingIOError:
            self._fail("another run writes to the same folder")
        except OSError as error:
            self._fail(not_written(self._path, error))

    def _begin(self, file: JournalLines, options: dict[str, str]) -> None:
        head, *lines = file.lines or [b""]
        try:
            before = dict(json.loads(head))
        except (ValueError, TypeError):  # new, or its first line was not completed
            before = {}
        if before == options:
            for line in lines:
                with suppress(ValueError, TypeError):  # a damaged line: its image is filtered again
                    source, target, *facts = json.loads(line)
                    self._records[_key(source, target)] = State(*facts[:2]), State(*facts[2:])
            return
        if any(lines):
            self.differs = tuple(differing(before, options))
        file.restart(options)

    def has(self, source: Place, target: Path) -> bool:
        """True if an earlier run has finished an image, and its source and its result have not changed since."""
        found = self._records.get(_key(*self._names(source, target)))
        return found is not None and found == (State.of(source), State.of(target))

    def record(self, source: Place, read: State | None, target: Path) -> None:
        """Record a finished image, of which `read` is the state of the source before it was read. Thread-safe."""
        written = State.of(target)
        with self._turn:
            self.recorded += 1
            if self._file is None or read is None or written is None:
                return
            try:
                self._file.append(json.dumps([*self._names(source, target), *read, *written]))
            except OSError as error:
                self._fail(not_written(self._path, error))

    def _names(self, source: Place, target: Path) -> tuple[str, str]:
        return os.path.realpath(str(source)), os.path.relpath(target, self._out)

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self._records.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self, *, finished: bool) -> None:
        """Close the journal; remove it if no image is left to filter (`finished`), or if it has no record."""
        with self._turn:
            if self._file is None:
                return
            if finished or not (self.recorded or self._records):
                with suppress(OSError):
                    self._file.remove()
            self._file.close()
            self._file = None


def _key(source: str, target: str) -> str:
    return f"{source}\0{target}"
