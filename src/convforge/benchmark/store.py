"""The store: a JSON-lines file per run, one record per line, written to disk before the next row begins.

An interrupt or a kill loses no finished row. A last line that was only partly written is ignored when reading.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import CopyTime, Finalists, Profile, Record, Result, Run
from convforge.timing.ceilings import Ceilings
from convforge.timing.machine import device_slug, machine_table, repository, versions

SCHEMA = 1
_KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in (Result, Finalists, CopyTime, Profile)}


class Store(AbstractContextManager["Store"]):
    """Appends records to a run's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    @classmethod
    def create(cls, folder: Path, header: Mapping[str, Any]) -> Store:
        """Begin a run in a new file of `folder`, named by the run's id; a number is appended if that name exists.

        `header` has the fields of the first line except kind and schema; "run" is the id.
        """
        store = cls(new_file(folder, header["run"], ".jsonl"))
        store.append({"kind": "run", "schema": SCHEMA, **header, "run": store.path.stem})
        return store

    @classmethod
    def resume(cls, path: Path) -> Store:
        """Continue a run's file, after cutting off a last line that was only partly written."""
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        return cls(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record, and wait until it is on disk."""
        line = json.dumps(_finite(record), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def new_file(folder: Path, stem: str, suffix: str) -> Path:
    """Create an empty file; a number is appended if the name exists."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = folder / f"{stem}{f'-{number}' * (number > 1)}{suffix}"
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
            break
    return path


def run_id(suite: str, started: datetime) -> str:
    """The id of a run, also the stem of its file: "images-20260102T030405Z"."""
    safe = "".join(c if c.isalnum() or c in "+-_" else "-" for c in suite)[:60]
    return f"{safe}-{started.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def begin_header(suite: str, facts: DeviceFacts, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a run that begins now: id, time, device, versions, commit and settings."""
    now, (commit, dirty) = datetime.now(UTC), repository()
    return {
        "run": run_id(suite, now), "started": now.isoformat(timespec="seconds"), "suite": suite,
        "device": device_slug(facts), "machine": machine_table(facts), "versions": versions(),
        "commit": commit, "dirty": dirty, "settings": dict(settings),
    }  # fmt: skip


def load_runs(path: Path | str) -> list[Run]:
    """Read a run's file, or all in a folder and its subfolders, the oldest first.

    ``FileNotFoundError`` if the path does not exist. ``ValueError``, with file and line, if a file is not a run or has
    a damaged line, unless it is the last line and only partly written.
    """
    path = Path(path)
    if path.is_dir():
        return sorted((load_run(file) for file in path.rglob("*.jsonl")), key=lambda run: (run.started, run.run))
    return [load_run(path)]


def load_run(path: Path) -> Run:
    """Read one run's file. If a row has several records, the last one counts."""
    records = _records(path)
    header = records[0] if records else {}
    if header.get("kind") != "run":
        raise ValueError(f"{path} is not a run of convforge: its first line must be of kind 'run'")
    if header.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {header.get('schema')}; this version reads {SCHEMA}")
    found: dict[str, dict[Any, Any]] = {kind: {} for kind in _KINDS}
    ceilings: list[tuple[str, Ceilings]] = []
    complete = False
    for number, record in enumerate(records[1:], 2):
        kind = str(record.get("kind"))
        try:
            if kind in _KINDS:
                value: Any = _KINDS[kind].from_record(record)
                if isinstance(value, Result):
                    found["finalists"].pop(value.case, None)  # a final is only valid for the rows before it
                    found[kind][value.key] = value
                else:
                    found[kind][getattr(value, "case", None)] = value
            elif kind == "ceilings":
                ceilings.append((record["when"], Ceilings(record["copy_bytes_per_s"], record["fma_flops_per_s"])))
            elif kind != "end":
                raise ValueError(f"unknown kind {kind!r}")
        except (KeyError, TypeError, ValueError) as fault:
            raise ValueError(f"{path}, line {number}: {type(fault).__name__}: {fault}") from None
        complete = kind == "end" and bool(record["complete"])
    results, finals, copies = (tuple(found[kind].values()) for kind in ("result", "finalists", "copy"))
    return Run.from_header(
        header, path, results=results, finals=finals, ceilings=tuple(ceilings), copies=copies,
        profile=found["profile"].get(None), complete=complete,
    )  # fmt: skip


def unfinished(folder: Path, suite: str, settings: Mapping[str, Any]) -> Path | None:
    """The newest unfinished run of a suite with the same settings that determine rows; None if there is none.

    A setting that is missing in an older run counts as not chosen.
    """

    def resumable(run: Run) -> bool:
        same = all((run.settings.get(name) or None) == (value or None) for name, value in settings.items())
        return run.suite == suite and not run.complete and same

    runs = reversed(load_runs(folder)) if folder.is_dir() else ()
    return next((run.path for run in runs if resumable(run)), None)


def _records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")[:-1]  # the last is empty or only partly written
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}, line {number} is damaged: {line[:60]!r}") from None
        if not isinstance(records[-1], dict):
            raise ValueError(f"{path}, line {number} is not a record: {line[:60]!r}")
    return records


def _finite(value: Any) -> Any:
    """Replace NaN and infinity with None, because JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
