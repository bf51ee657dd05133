"""File of a journal: lines that are appended by one process, of which the first is JSON that describes the run.

A process that is killed may leave a last line without its end. Such a line is not read, and the next line replaces it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from convforge.imaging.replacing import lock


class JournalLines:
    """An open and locked file of lines; `lines` are those that the file had when it was opened, without their ends.

    Raises
    ------
    BlockingIOError
        Another process has locked the file.
    OSError
        The file cannot be opened, locked or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO = path.open("a+b", buffering=0)  # lines of a killed process are already with the system
        try:
            lock(self._file, must=True)
            self._file.seek(0)
            text = self._file.readall()
        except BaseException:
            self._file.close()
            raise
        self._end = text.rfind(b"\n") + 1  # of the last whole line
        self._is_cut = self._end < len(text)  # the file goes on behind that end
        self.lines = text[: self._end].split(b"\n")[:-1]

    def restart(self, first: Mapping[str, Any], *, force: bool = False) -> None:
        """Replace all lines by a first line; `force` and errors are those of `append`."""
        self._file.truncate(0)
        self._end, self._is_cut = 0, False
        self.append(json.dumps(first), force=force)

    def append(self, line: str, *, force: bool = False) -> None:
        """Write a line, with `force` to the disk; ``OSError`` if it cannot be written, and the next one replaces it."""
        if self._is_cut:
            self._file.truncate(self._end)
        self._is_cut = True
        data = f"{line}\n".encode()
        written = 0
        while written < len(data):  # on a full disk a first write may be short, and the second one raises
            written += self._file.write(data[written:])
        self._end += len(data)
        self._is_cut = False
        if force:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Close and remove the file, which may be missing; ``OSError`` if it cannot be removed."""
        if os.name == "nt":  # an open file cannot be removed
            self._file.close()
        try:
            self._path.unlink(missing_ok=True)
        finally:
            self._file.close()


def not_written(path: Path, error: OSError) -> str:
    """Return the message that a journal cannot be written."""
    return f"{path}: cannot be written ({error.strerror or error})"


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the values in which two descriptions of a run differ.

    Examples
    --------
    >>> differing({"kernel": "box:3", "stride": 1}, {"kernel": "box:5", "stride": 1, "abs": True})
    ['abs', 'kernel']
    """
    return sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
