"""Planted faults: a change of a kernel's text, and a run that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SYNC = "__syncthreads();"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a method.

    `config` is by default the method's own. `kind` is that of the inputs: "nan" tests the spread of NaN, "ranks"
    is normal with filters of every rank, "factors" tests the prepared factors. `ahead` counts the elements by which x
    and the output of an elementwise method begin behind a multiple of 16 bytes.
    """

    method: str
    problem: str
    config: Any = None
    kind: str = "normal"
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `file` is within ``algorithms/``; `old` stands in it exactly once."""

    file: str
    name: str
    old: str
    new: str
    run: Run

    def __str__(self) -> str:
        return f"{self.file.removeprefix('device/')}: {self.name}"


def of_file(file: str, run: Run, *faults: tuple[Any, ...]) -> Iterator[Fault]:
    """Faults of one file: name, old text, new text, and what to run where that is not `run`."""
    for name, old, new, *other in faults:
        yield Fault(file, name, old, new, other[0] if other else run)
