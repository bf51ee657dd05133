"""The runs in benchmarks/results, read once per process: reading and parsing them takes a second."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from convforge.benchmark.records import Run
from convforge.benchmark.store import load_runs

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@cache
def stored_runs() -> tuple[Run, ...]:
    """All stored runs of all devices."""
    return tuple(load_runs(RESULTS))
