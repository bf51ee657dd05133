"""Check of a reader's kernel: a separate process runs it, this one judges its outputs."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from convforge.backends.runtime import LaunchInfo
from convforge.course.grader.advice import error_advice, error_name, quoted_line
from convforge.course.grader.calls import BEFORE
from convforge.course.grader.cases import Case
from convforge.course.grader.judge import CaseResult, judge_runs
from convforge.course.grader.process import Ended, Limits, run_limited
from convforge.course.grader.report import Report, Time
from convforge.course.grader.source import OwnKernel, read_kernel

# Time limit of a process until its kernel is compiled, if larger than that of a launch.
COMPILE_S = 120.0

Event = dict[str, Any]


def check_kernel(
    path: Path, cases: Sequence[Case], *, device: str = "emulator", kernel: str = "", launch: str = "",
    limits: Limits | None = None, timed: str = "",
) -> Report:  # fmt: skip
    """Check a .cu file on the emulator or on a GPU.

    `kernel` and `launch` are those of :func:`convforge.course.grader.source.read_kernel`. The process needs a few
    hundred MB besides the kernel's memory. `timed` is the text form of a problem on which a GPU times the kernel if
    every case is right.
    """
    try:
        own = read_kernel(path, kernel, launch)
        launches = [own.rule.info(own.source.name, case.problem) for case in cases]
    except (ValueError, OSError) as fault:
        return Report(str(path), "kernel", device, (), str(fault))
    bench = _Bench(path, own, launch, device, limits or Limits(), cases, launches)
    error = bench.run_cases()
    results = () if error else tuple(bench.results[number] for number in range(len(cases)))
    report = Report(str(path), "kernel", device, results, error, notes=_notes(bench.own))
    if report.status != "right" or not timed:
        return report
    if device == "emulator":
        return dataclasses.replace(report, notes=(*report.notes, _NO_TIMES))
    return dataclasses.replace(report, times=bench.times(timed), timed=timed, notes=(*report.notes, _WARM))


_NO_TIMES = "not timed: the emulator's times say nothing about a GPU; --device cuda times it beside convforge's kernels"
_WARM = "times of a call by the GPU's clock, same arrays each time, weights prepared before"
_NAMES = {"time": "a loop that does not end", "memory": "too much memory", "crash": "address outside of all memory"}


@dataclass
class _Bench:
    """A kernel, its cases and limits, and the results so far by the cases' numbers."""

    path: Path
    own: OwnKernel
    launch: str
    device: str
    limits: Limits
    cases: Sequence[Case]
    launches: Sequence[LaunchInfo]
    results: dict[int, CaseResult] = field(default_factory=dict)

    def run_cases(self) -> str:
        """Run every case, in a new process after each that ended one; return a reason if none could be run."""
        while left := [number for number in range(len(self.cases)) if number not in self.results]:
            with tempfile.TemporaryDirectory(prefix="convforge-") as name:
                folder = Path(name)
                ended, events = self._process(folder, left)
                if error := _compile_error(self.path, events):
                    return error
                for number in left:
                    if (result := self._result(folder, number, events)) is not None:
                        self.results[number] = result
            begun = [event["case"] for event in events if event["event"] == "begin"]
            if not begun:
                return f"the process that runs the kernel did not come to it: {self.limits.words(ended) or ended.said}"
            self._say_how_it_ended(begun[-1], ended)
        return ""

    def times(self, timed: str) -> list[Time]:
        with tempfile.TemporaryDirectory(prefix="convforge-") as name:
            ended, events = self._process(Path(name), [], timed)
        times = [Time(**event["time"]) for event in events if event["event"] == "time"]
        return times or [Time("your kernel", None, note=self.limits.words(ended) or _last_line(ended))]

    def _process(self, folder: Path, numbers: Sequence[int], timed: str = "") -> tuple[Ended, list[Event]]:
        """Run some cases in a process; return its end and its events."""
        cases = [{"number": n, "problem": self.cases[n].text, "kind": self.cases[n].kind} for n in numbers]
        job = {"file": str(self.path.resolve()), "kernel": self.own.source.name, "launch": self.launch,
               "device": self.device, "cases": cases, "timed": timed}  # fmt: skip
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        log = folder / "events.jsonl"
        log.touch()
        limits = dataclasses.replace(self.limits, seconds=max(self.limits.seconds, COMPILE_S)) if timed else self.limits
        command = [sys.executable, "-m", "convforge.course.grader.worker", str(folder)]
        ended = run_limited(command, limits, lambda: log.stat().st_size, COMPILE_S)
        lines = log.read_text(encoding="utf-8").splitlines()
        return ended, [json.loads(line) for line in lines if line.endswith("}")]

    def _result(self, folder: Path, number: int, events: Sequence[Event]) -> CaseResult | None:
        """The result of a case; None if it was not run to its end."""
        case = self.cases[number]
        mine = [event for event in events if event.get("case") == number]
        for event in mine:
            if event["event"] == "fault":
                return CaseResult(case, "fault", (error_name(event["what"]),), _fault_words(self.path, event))
            if event["event"] == "stray":
                said = [
                    *event["what"],
                    "compare every index with its size before anything is written: p < P and q < Q?",
                ]
                return CaseResult(case, "fault", ("writes outside of the output",), "\n".join(said))
        if sum(event["event"] == "done" for event in mine) < len(BEFORE):
            return None
        runs = [np.load(folder / f"{number}-{run}.npy") for run in range(len(BEFORE))]
        return judge_runs(case, runs, self.launches[number])

    def _say_how_it_ended(self, number: int, ended: Ended) -> None:
        """Set the result of the case during which the process ended."""
        if number not in self.results:
            status = ended.limit or ("crash" if ended.crash else "fault")
            said = self.limits.words(ended) or _last_line(ended)
            self.results[number] = CaseResult(self.cases[number], status, (_NAMES.get(status, "it stopped"),), said)
        if ended.limit:  # another case would only take as long
            for other, case in enumerate(self.cases):
                self.results.setdefault(other, CaseResult(case, "not run"))


def _last_line(ended: Ended) -> str:
    return (ended.said.splitlines() or ["it ended without a word"])[-1]


def _compile_error(path: Path, events: Sequence[Event]) -> str:
    """The compiler's errors with the file's line; empty without errors."""
    text = next((event["text"] for event in events if event["event"] == "compile error"), "")
    if not text:
        return ""
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    quoted = quoted_line("\n".join(lines), path)
    return "\n".join(["it does not compile:", *lines[:5], *([quoted] if quoted else [])])


def _fault_words(path: Path, event: Event) -> str:
    """A kernel's error, its thread and block, its line, and advice."""
    who = " of ".join(f"{name} {tuple(event[name])}" for name in ("thread", "block") if event[name])
    said = [event["what"] + (f" ({who})" if who else "")]
    return "\n".join(filter(None, [*said, quoted_line(event["what"], path), error_advice(event["what"])]))


def _notes(own: OwnKernel) -> tuple[str, ...]:
    if own.said:
        return ()
    rule = own.rule
    return (
        f"launched with block={','.join(rule.block)} grid={','.join(rule.grid)}, as the file says nothing; a comment "
        "`// convforge: block=... grid=... shared=...` says otherwise",
    )
