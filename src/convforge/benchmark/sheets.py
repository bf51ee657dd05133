"""Sheets: measurements outside of the suites, such as the host cost of a call. Each is one JSON file.

A sheet is a header (machine, versions, commit, settings) and rows, from which `sheet_tables` makes tables. The file is
rewritten after every row: an interrupt loses no finished row, and the sheet can be continued.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from convforge.backends.cache import write_whole
from convforge.backends.facts import DeviceFacts
from convforge.benchmark.records import Run
from convforge.benchmark.store import begin_header, new_file
from convforge.timing import device_slug

SCHEMA = 1
KINDS = ("host", "first", "choices", "models", "networks", "errors", "examples", "large")


@dataclass(slots=True)
class Sheet:
    """A stored sheet: the fields of a :class:`Run`'s header, and rows."""

    kind: str  # one of KINDS
    path: Path
    started: str
    device: str
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    dirty: bool
    settings: dict[str, Any]
    complete: bool = False  # every row was reached
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def begin(
        cls, folder: Path, kind: str, facts: DeviceFacts, settings: Mapping[str, Any], *, resume: bool = False,
        more_versions: Mapping[str, str] | None = None,
    ) -> Sheet:  # fmt: skip
        """Begin a sheet in ``FOLDER/DEVICE/``; with `resume`, reopen the newest unfinished one with equal settings."""
        for sheet in reversed(load_sheets(folder / device_slug(facts))) if resume else ():
            if (sheet.kind, sheet.settings, sheet.complete) == (kind, dict(settings), False):
                return sheet
        header = begin_header(kind, facts, settings)
        path = new_file(folder / header["device"], header.pop("run"), ".json")
        header["versions"] |= more_versions or {}
        sheet = cls(header.pop("suite"), path, **header)
        sheet._write()
        return sheet

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row and write the file."""
        self.rows.append(dict(row))
        self._write()

    def has(self, **fields: Any) -> bool:
        """True if a row has all these fields."""
        return any(all(row.get(name) == value for name, value in fields.items()) for row in self.rows)

    def finish(self) -> None:
        """Mark the sheet as complete and write the file."""
        self.complete = True
        self._write()

    def as_run(self) -> Run:
        """The header as a run without results, for the captions of tables."""
        return Run.from_header(
            {**self._table(), "run": self.path.stem, "suite": self.kind}, self.path, complete=self.complete
        )

    def _table(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    def _write(self) -> None:
        text = json.dumps({"schema": SCHEMA, **self._table()}, indent=1, allow_nan=False)
        write_whole(self.path, f"{text}\n".encode())


_FIELDS = tuple(field.name for field in fields(Sheet) if field.name != "path")


def load_sheet(path: Path) -> Sheet:
    """Read a sheet's file; ``ValueError`` names a file that is damaged or no sheet."""
    try:
        table = json.loads(path.read_bytes())
        if table["kind"] not in KINDS or table["schema"] != SCHEMA:
            raise ValueError(f"kind={table['kind']!r} of schema {table['schema']!r} is not known here")
        return Sheet(path=path, **{name: table[name] for name in _FIELDS})
    except (KeyError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} is no sheet of results: {type(fault).__name__}: {fault}") from None


def load_sheets(folder: Path) -> list[Sheet]:
    """Read all sheets in a folder and its subfolders, the oldest first; other JSON files are ignored."""
    paths = (path for kind in KINDS for path in folder.rglob(f"{kind}-*.json"))
    return sorted(map(load_sheet, paths), key=lambda sheet: (sheet.started, sheet.path.name))
