"""Journal of a run that writes its result in parts: after a kill, the same command does only the parts that are left.

The file's first line is JSON that describes the run; each further line is the number of a finished part. A line is
written after its part is on the disk, so a part without a line may be half written, and one with a line is whole. Lines
are not forced to the disk: if the machine fails, the parts of those that are lost are done again.

The last line identifies the complete result, before it gets its name. It is forced to the disk: by it a later run knows
which of two folders is the result, and which is the one that it replaced.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from convforge.imaging.image import ImageError
from convforge.imaging.replacing import lock

RESULT = b"result "  # begins the line of the result


class Journal:
    """The open and locked journal of a run; `finished` are the parts that an earlier run has finished.

    `result` identifies the result that an earlier run began to publish; None if it did not.

    Parameters
    ----------
    path : Path
    run : mapping
        Description of the run, in groups of named values. A journal with another description is refused, with the names
        of the values that differ, except those of the group `kept`, which are taken from the journal.
    replaced : collection of str
        Names of the values of `run` that the complete result may change, because it replaces the source.

    Raises
    ------
    ImageError
        The journal is of another run, is in use, or cannot be written.
    """

    def __init__(
        self, path: Path, run: Mapping[str, Any], kept: Mapping[str, Any], replaced: Collection[str] = ()
    ) -> None:
        self.path, self.kept = path, dict(kept)
        self.finished: set[int] = set()
        self.result: int | None = None
        self._turn = threading.Lock()
        try:
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise ImageError(f"{path}: cannot be written ({error.strerror or error}); choose another place") from error
        try:
            self._begin(run, replaced)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, run: Mapping[str, Any], replaced: Collection[str]) -> None:
        try:
            lock(self._file, must=True)
        except OSError as error:
            raise ImageError(f"{self.path}: another process is writing this result; wait until it ends") from error
        self._file.seek(0)
        head, *lines = self._file.read().split(b"\n")
        if not lines:  # new, or its first line was not completed
            try:
                self.restart(run)
            except BaseException:
                self.remove()
                raise
            return
        try:
            known = json.loads(head)
            before = dict(known["run"])
            self.kept = dict(known["kept"])
            self.finished = {int(line) for line in lines[:-1] if not line.startswith(RESULT)}
            self.result = next((int(line[len(RESULT) :]) for line in lines[:-1] if line.startswith(RESULT)), None)
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(f"{self.path}: is no journal of a run; remove it, or choose another result") from error
        now = json.loads(json.dumps(run))
        same = () if self.result is None else replaced
        if differs := [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in same]:
            raise ImageError(
                f"{self.path}: an unfinished run differs in {', '.join(sorted(differs))}; repeat its command to resume "
                "it, or remove this file to begin anew"
            )
        if lines[-1]:  # a line without its end: its part is done again
            self._file.truncate(sum(len(line) + 1 for line in (head, *lines[:-1])))

    def restart(self, run: Mapping[str, Any]) -> None:
        """Begin anew: no part is finished."""
        self.finished.clear()
        self.result = None
        self._file.truncate(0)
        self._append(json.dumps({"run": run, "kept": self.kept}))
        os.fsync(self._file.fileno())

    def record(self, part: int) -> None:
        """Record a part that is on the disk."""
        with self._turn:
            self._append(str(part))
            self.finished.add(part)

    def publish(self, result: int | None) -> None:
        """Record the result that is about to get its name, on the disk."""
        if result is not None and result != self.result:
            self._append(f"{RESULT.decode()}{result}")
            os.fsync(self._file.fileno())
            self.result = result

    def _append(self, line: str) -> None:
        try:
            self._file.write(f"{line}\n".encode())
            self._file.flush()
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be written ({error.strerror or error})") from error

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Remove the journal: the run is finished, or nothing of it is left."""
        if os.name == "nt":  # an open file cannot be removed
            self._file.close()
        self.path.unlink(missing_ok=True)
        self._file.close()
