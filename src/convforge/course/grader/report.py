"""The report on a reader's kernel or program: text for the reader, JSON and an exit code for a grader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from convforge.course.grader.advice import advice
from convforge.course.grader.judge import CaseResult

SCHEMA = 1
EXIT = {"right": 0, "wrong": 1, "not run": 2}


@dataclass(frozen=True)
class Time:
    """One row of the table of times: seconds, or a note that explains their absence."""

    name: str
    seconds: float | None
    spread: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The report of one check."""

    target: str  # file or command
    kind: str  # "kernel" or "program"
    device: str  # that ran it
    results: Sequence[CaseResult] = ()
    error: str = ""  # reason why nothing could be run, or empty
    times: Sequence[Time] = ()
    timed: str = ""  # the problem of the times
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def status(self) -> str:
        """One of "right", "wrong" and "not run"."""
        if self.error or not self.results:
            return "not run"
        return "right" if all(result.status == "right" for result in self.results) else "wrong"

    @property
    def exit_code(self) -> int:
        """0 right, 1 wrong, 2 not run."""
        return EXIT[self.status]

    @property
    def passed(self) -> int:
        return sum(result.status == "right" for result in self.results)

    @property
    def faults(self) -> list[str]:
        """The faults that explain the most cases; several if they explain equally many."""
        counts = Counter(fault for result in self.results for fault in result.faults)
        most = max(counts.values(), default=0)
        return [fault for fault, count in counts.items() if count == most]

    def to_table(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "kind": self.kind,
            "device": self.device,
            "status": self.status,
            "passed": self.passed,
            "cases": len(self.results),
            "faults": self.faults,
            "advice": {fault: words for fault in self.faults if (words := advice(fault))},
            "error": self.error,
            "results": [_row(result) for result in self.results],
            "timed": self.timed,
            "times": [{"name": t.name, "seconds": t.seconds, "spread": t.spread, "note": t.note} for t in self.times],
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """The report for a reader."""
        lines = [f"{self.target}: {self._headline()}"]
        told: set[tuple[str, ...]] = set()
        for result in self.results:
            named = f": {' | '.join(result.faults)}" if result.faults else ""
            lines.append(f"  {result.status:<9} {result.case.name} ({result.case.text}){named}")
            said = result.message.splitlines()
            if result.faults and result.faults in told:  # details once for each fault
                said = said[:1] if result.status == "wrong" else []
            lines += [f"      {line}" for line in said]
            told.add(result.faults)
        if self.error:
            lines += [f"  {line}" for line in self.error.splitlines()]
        if self.times:
            lines.append(f"times on {self.timed}:")
            wide = max(len(time.name) for time in self.times)
            lines += [f"  {time.name:<{wide}}  {_seconds(time)}" for time in self.times]
        return "\n".join([*lines, *self.notes]) + "\n"

    def _headline(self) -> str:
        if self.status == "not run":
            return f"could not be run ({self.kind}, {self.device})"
        right = f"{self.passed} of {len(self.results)} cases right ({self.kind}, {self.device})"
        if self.status == "right":
            return f"right: {right}"
        faults = [f"{fault}{f': {words}' if (words := advice(fault)) else ''}" for fault in self.faults]
        if len(faults) == 1:
            return f"wrong: {right}\n  likely fault: {faults[0]}"
        same = len({tuple(fault in result.faults for result in self.results) for fault in self.faults}) == 1
        which = (
            "likely one of these, which these cases do not tell apart" if same else "likely faults, each of some cases"
        )
        named = [f"\n  {which}:", *faults] if faults else []
        return f"wrong: {right}" + "\n    ".join(named)


def _row(result: CaseResult) -> dict[str, Any]:
    return {
        "case": result.case.name,
        "problem": result.case.text,
        "inputs": result.case.kind,
        "status": result.status,
        "faults": list(result.faults),
        "message": result.message,
        "first_wrong": _first_wrong(result),
        "rms": _finite(result.rms),
        "bound_ratio": _finite(result.bound_ratio),
    }


def _first_wrong(result: CaseResult) -> dict[str, Any] | None:
    """The first wrong output; infinities and NaN as "inf", "-inf" and "nan"."""
    if (first := result.first) is None:
        return None
    expected, got = (value if math.isfinite(value) else str(value) for value in (first.expected, first.got))
    return {"index": list(first.index), "expected": expected, "got": got}


def _finite(value: float | None) -> float | None:
    """The value; None for infinities and NaN, which JSON lacks."""
    return value if value is not None and abs(value) < float("inf") else None


def _seconds(time: Time) -> str:
    if time.seconds is None:
        return f"no time: {time.note}"
    number = f"{1e3 * time.seconds:.4g} ms"
    spread = f" +- {100 * time.spread:.0f} %" if time.spread else ""
    return f"{number}{spread}{f', {time.note}' if time.note else ''}"
