"""Journal of a run that writes its result in parts: after a kill, the same command does only the parts that are left.

The file's first line is JSON that describes the run; each further line is the number of a finished part. A line is
written after its part is on the disk, so a part without a line may be half written, and one with a line is whole. Lines
are not forced to the disk: if the machine fails, the parts of those that are lost are done again.

The last line identifies the complete result, before it gets its name. It is forced to the disk: by it a later run knows
which of two folders is the result, and which is the one that it replaced.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.journal_lines import JournalLines, differing, not_written

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
            self._file = JournalLines(path)
        except BlockingIOError as error:
            raise ImageError(f"{path}: another process is writing this result; wait until it ends") from error
        except OSError as error:
            raise ImageError(f"{not_written(path, error)}; choose another place") from error
        try:
            self._begin(run, replaced)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, run: Mapping[str, Any], replaced: Collection[str]) -> None:
        if not self._file.lines:  # new, or its first line was not completed
            try:
                self.restart(run)
            except BaseException:
                self.remove()
                raise
            return
        head, *lines = self._file.lines
        try:
            known = json.loads(head)
            before = dict(known["run"])
            self.kept = dict(known["kept"])
            self.finished = {int(line) for line in lines if not line.startswith(RESULT)}
            self.result = next((int(line[len(RESULT) :]) for line in lines if line.startswith(RESULT)), None)
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(f"{self.path}: is no journal of a run; remove it, or choose another result") from error
        same = () if self.result is None else replaced
        if differs := [name for name in differing(before, json.loads(json.dumps(run))) if name not in same]:
            raise ImageError(
                f"{self.path}: an unfinished run differs in {', '.join(differs)}; repeat its command to resume it, or "
                "remove this file to begin anew"
            )

    def restart(self, run: Mapping[str, Any]) -> None:
        """Begin anew: no part is finished."""
        self.finished.clear()
        self.result = None
        with self._writing():
            self._file.restart({"run": run, "kept": self.kept}, force=True)

    def record(self, part: int) -> None:
        """Record a part that is on the disk."""
        with self._turn:
            with self._writing():
                self._file.append(str(part))
            self.finished.add(part)

    def publish(self, result: int | None) -> None:
        """Record the result that is about to get its name, on the disk."""
        if result is not None and result != self.result:
            with self._writing():
                self._file.append(f"{RESULT.decode()}{result}", force=True)
            self.result = result

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ImageError(not_written(self.path, error)) from error

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Remove the journal: the run is finished, or nothing of it is left."""
        self._file.remove()
