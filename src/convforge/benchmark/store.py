"""The store: one JSON-lines file a run, a line a record, on the disk before the next row begins.

An interrupt, even a kill, loses no finished row. Reading tolerates a last line that was cut off while it was written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from convforge.benchmark.records import CopyTime, Finalists, Profile, Result, Run
from convforge.benchmark.suites import suite_weights
from convforge.timing.ceilings import Ceilings

SCHEMA = 1


class Store:
    """Appends records to a run's file. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    @classmethod
    def create(cls, folder: Path, header: Mapping[str, Any]) -> Store:
        """Begin a run in a new file of `folder`, named by the run's id; a number is added to an id that is taken.

        Parameters
        ----------
        header : mapping
            The fields of the first line, but for kind and schema; "run" is its id.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            run = header["run"] if number == 1 else f"{header['run']}-{number}"
            path = folder / f"{run}.jsonl"
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
                break
        store = cls(path)
        store.append({"kind": "run", "schema": SCHEMA, **header, "run": run})
        return store

    @classmethod
    def resume(cls, path: Path) -> Store:
        """Go on with a run's file; a torn last line is cut off first."""
        whole = path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            os.truncate(path, end)
        return cls(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until the disk has it."""
        line = json.dumps(_finite(record), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_id(suite: str, started: datetime) -> str:
    """Id of a run and stem of its file.

    Examples
    --------
    >>> run_id("images", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    'images-20260102T030405Z'
    """
    safe = "".join(c if c.isalnum() or c in "+-_" else "-" for c in suite)[:60]
    return f"{safe}-{started.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def load_runs(path: Path | str) -> list[Run]:
    """Read a run's file, or every one in a folder and its folders, the oldest first.

    Raises
    ------
    FileNotFoundError
        There is no such file or folder.
    ValueError
        A file is no run, or a line other than a torn last one is damaged; the text names file and line.
    """
    path = Path(path)
    if path.is_dir():
        return sorted((load_run(file) for file in path.rglob("*.jsonl")), key=lambda run: (run.started, run.run))
    return [load_run(path)]


def load_run(path: Path) -> Run:
    """Read one run's file; of two records of one row the later one counts."""
    records = _records(path)
    if not records or records[0].get("kind") != "run":
        raise ValueError(f"{path} is not a run of convforge: its first line must be of kind 'run'")
    if records[0].get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {records[0].get('schema')}; this version reads {SCHEMA}")
    results: dict[tuple[str, ...], Result] = {}
    finals: dict[str, Finalists] = {}
    ceilings: list[tuple[str, Ceilings]] = []
    copies: dict[str, CopyTime] = {}
    profile: Profile | None = None
    complete = False
    for number, record in enumerate(records[1:], 2):
        kind = record.get("kind")
        try:
            if kind == "result":
                result = Result.from_record(record)
                if not result.weights:  # written before results said so
                    known = suite_weights(str(records[0].get("suite")))
                    result = replace(result, weights=known.get((result.case, result.problem), ""))
                results[result.key] = result
                finals.pop(result.case, None)  # a verdict stands only as long as the rows before it
            elif kind == "finalists":
                final = Finalists.from_record(record)
                finals[final.case] = final
            elif kind == "copy":
                copy = CopyTime.from_record(record)
                copies[copy.case] = copy
            elif kind == "profile":
                profile = Profile.from_record(record)
            elif kind == "ceilings":
                ceilings.append((record["when"], Ceilings(record["copy_bytes_per_s"], record["fma_flops_per_s"])))
            elif kind != "end":
                raise ValueError(f"unknown kind {kind!r}")
        except (KeyError, TypeError, ValueError) as fault:
            raise ValueError(f"{path}, line {number}: {type(fault).__name__}: {fault}") from None
        complete = kind == "end" and bool(record["complete"])
    return Run.from_header(
        records[0], path, results=tuple(results.values()), finals=tuple(finals.values()), ceilings=tuple(ceilings),
        copies=tuple(copies.values()), profile=profile, complete=complete,
    )  # fmt: skip


def unfinished(folder: Path, suite: str, settings: Mapping[str, Any]) -> Path | None:
    """The newest unfinished run of a suite with the same choice of rows; None if there is none.

    A setting that a run does not name, as it is older than the setting, was not chosen.
    """
    if not folder.is_dir():
        return None
    for run in reversed(load_runs(folder)):
        if (
            run.suite == suite
            and not run.complete
            and all((run.settings.get(name) or None) == (value or None) for name, value in settings.items())
        ):
            return run.path
    return None


def _records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # what follows the last line end: nothing, or a line that was not written whole
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise ValueError(f"{path}, line {number} is damaged: {line[:60]!r}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number} is not a record: {line[:60]!r}")
        records.append(record)
    return records


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: None stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
