"""Checks of a reader's kernel, run by a separate process, and of a program that reads .npy files and writes one."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from convforge.backends.cuda.absent import why_absent
from convforge.backends.runtime import LaunchInfo
from convforge.course.grader.judge import Case, CaseResult, judge_output, judge_runs
from convforge.course.grader.process import Ended, Limits, run_limited
from convforge.course.grader.report import Report, Time, known_error, quoted_line
from convforge.course.grader.source import OwnKernel, read_kernel
from convforge.course.grader.worker import BEFORE, time_ladder

# Time limit of a process until its kernel is compiled, if longer than the limit of a launch.
COMPILE_S = 120.0

Event = dict[str, Any]

_WORK = "import sys, pathlib; from convforge.course.grader.worker import work; work(pathlib.Path(sys.argv[1]))"
_NO_TIMES = "not timed: the emulator's times say nothing about a GPU; --device cuda times it beside convforge's kernels"
_WARM = "times of a call by the GPU's clock, same arrays each time, weights prepared before"
_NAMES = {"time": "a loop that does not end", "memory": "too much memory", "crash": "address outside of all memory"}
_STRAY = "compare every index with its size before anything is written: p < P and q < Q?"
# Number of timed runs, of which the median is reported.
TIMED_RUNS = 3
# Also timed, to estimate the time of starting the program.
SMALLEST = "n1c1h3w3_k1r1s1_st1_p0_f32_nchw"


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
    guessed = (
        f"launched with block={own.rule.block} grid={own.rule.grid}, as the file says nothing; a comment "
        "`// convforge: block=... grid=... shared=...` says otherwise"
    )
    report = Report(str(path), "kernel", device, results, error, notes=() if own.has_rule else (guessed,))
    if report.status != "right" or not timed:
        return report
    if device == "emulator":
        return dataclasses.replace(report, notes=(*report.notes, _NO_TIMES))
    return dataclasses.replace(report, times=bench.times(timed), timed=timed, notes=(*report.notes, _WARM))


@dataclass
class _Bench:
    """A kernel, its cases and limits, and the results so far by case number."""

    path: Path
    own: OwnKernel
    launch: str
    device: str
    limits: Limits
    cases: Sequence[Case]
    launches: Sequence[LaunchInfo]
    results: dict[int, CaseResult] = field(default_factory=dict)

    def run_cases(self) -> str:
        """Run every case, in a new process after each that ended the last; return a reason if none could be run."""
        while left := [number for number in range(len(self.cases)) if number not in self.results]:
            with tempfile.TemporaryDirectory(prefix="convforge-") as name:
                ended, events = self._process(Path(name), left)
                if error := _compile_error(self.path, events):
                    return error
                for number in left:
                    if (result := self._result(Path(name), number, events)) is not None:
                        self.results[number] = result
            begun = [event["case"] for event in events if event["event"] == "begin"]
            if not begun:
                words = self.limits.words(ended) or ended.output
                return f"the process that runs the kernel did not come to it: {words}"
            self._set_end(begun[-1], ended)
        return ""

    def times(self, timed: str) -> list[Time]:
        with tempfile.TemporaryDirectory(prefix="convforge-") as name:
            ended, events = self._process(Path(name), [], timed)
        times = [Time(**event["time"]) for event in events if event["event"] == "time"]
        return times or [Time("your kernel", None, note=self._end_words(ended))]

    def _process(self, folder: Path, numbers: Sequence[int], timed: str = "") -> tuple[Ended, list[Event]]:
        cases = [{"number": n, "problem": self.cases[n].text, "kind": self.cases[n].kind} for n in numbers]
        job = {"file": str(self.path.resolve()), "kernel": self.own.source.name, "launch": self.launch,
               "device": self.device, "cases": cases, "timed": timed}  # fmt: skip
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        log = folder / "events.jsonl"
        log.touch()
        limits = dataclasses.replace(self.limits, seconds=max(self.limits.seconds, COMPILE_S)) if timed else self.limits
        ended = run_limited([sys.executable, "-c", _WORK, str(folder)], limits, lambda: log.stat().st_size, COMPILE_S)
        lines = log.read_text(encoding="utf-8").splitlines()
        return ended, [json.loads(line) for line in lines if line.endswith("}")]

    def _result(self, folder: Path, number: int, events: Sequence[Event]) -> CaseResult | None:
        """Result of a case; None if it did not run to its end."""
        case = self.cases[number]
        mine = [event for event in events if event.get("case") == number]
        for event in mine:
            if event["event"] == "fault":
                what = event["what"]
                fault, advice = known_error(what)
                who = " of ".join(f"{name} {tuple(event[name])}" for name in ("thread", "block") if event[name])
                lines = [f"{what} ({who})" if who else what, quoted_line(what, self.path), advice]
                return CaseResult(case, "fault", (fault,), "\n".join(filter(None, lines)))
            if event["event"] == "stray":
                return CaseResult(case, "fault", ("writes outside of the output",), "\n".join([*event["what"], _STRAY]))
        if sum(event["event"] == "done" for event in mine) < len(BEFORE):
            return None
        runs = [np.load(folder / f"{number}-{run}.npy") for run in range(len(BEFORE))]
        return judge_runs(case, runs, self.launches[number])

    def _set_end(self, number: int, ended: Ended) -> None:
        if number not in self.results:
            status = ended.limit or ("crash" if ended.crash else "fault")
            name = _NAMES.get(status, "it stopped")
            self.results[number] = CaseResult(self.cases[number], status, (name,), self._end_words(ended))
        if ended.limit:  # another run would only reach the limit again
            for other, case in enumerate(self.cases):
                self.results.setdefault(other, CaseResult(case, "not run"))

    def _end_words(self, ended: Ended) -> str:
        return self.limits.words(ended) or (ended.output.splitlines() or ["it ended without a word"])[-1]


def _compile_error(path: Path, events: Sequence[Event]) -> str:
    """Compiler errors with the lines of the file; empty without errors."""
    text = next((event["text"] for event in events if event["event"] == "compile error"), "")
    if not text:
        return ""
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    return "\n".join(filter(None, ["it does not compile:", *lines[:5], quoted_line("\n".join(lines), path)]))


# Programs, with one process per case.


def check_program(target: str, cases: Sequence[Case], *, limits: Limits | None = None, timed: str = "") -> Report:
    """Check a Python script, an executable file, or a command with arguments.

    Raises ``ValueError`` if it does not exist or cannot be executed. `timed` is the text form of a problem on which the
    program is timed if every case is right.
    """
    command, limits = command_of(target), limits or Limits()
    results: list[CaseResult] = []
    for case in cases:
        if results and results[-1].status in ("time", "memory", "not run"):  # another case would only fail again
            results.append(CaseResult(case, "not run"))
        else:
            results.append(_run_case(command, case, limits)[0])
    report = Report(target, "program", "process", results)
    if report.status != "right" or not timed:
        return report
    times = [_time(command, *row, limits) for row in (("your program", timed), ("of which start-up, about", SMALLEST))]
    times += time_ladder(timed, device := "cuda" if why_absent() is None else "cpu")
    notes = ("a program's time is that of its process: start-up, reading and writing files included",
             f"convforge's own are calls on {device} with arrays in place")  # fmt: skip
    return Report(target, "program", "process", results, times=times, timed=timed, notes=notes)


def command_of(target: str) -> list[str]:
    """Return the command of a program; ``ValueError`` if it does not exist or cannot be executed."""
    path = Path(target)
    if path.is_dir():
        raise ValueError(f"{target} is a folder; name the program")
    if path.is_file():
        if path.suffix == ".py":
            return [sys.executable, str(path.resolve())]
        if not os.access(path, os.X_OK):
            raise ValueError(f"{target} cannot be executed; chmod +x {shlex.quote(target)}, or name what runs it too: "
                             f"convforge check 'INTERPRETER {target}'")  # fmt: skip
        return [str(path.resolve())]
    words = shlex.split(target)
    if len(words) > 1:
        return words
    raise ValueError(f"{target}: there is no such file")


def _run_case(command: Sequence[str], case: Case, limits: Limits) -> tuple[CaseResult, float]:
    """Run a case once; return its result and its seconds."""
    inputs = case.judge.inputs
    assert inputs.w is not None
    with tempfile.TemporaryDirectory(prefix="convforge-") as folder:
        x, w, y = (Path(folder) / f"{name}.npy" for name in "xwy")
        np.save(x, inputs.x)
        np.save(w, inputs.w)
        words = [*command, str(x), str(w), str(y)]
        for option, sizes in (("--stride", case.problem.stride), ("--padding", case.problem.padding)):
            # One number if both are equal, otherwise joined by "x" as in a problem's text form.
            words += [option, str(sizes[0]) if len(set(sizes)) == 1 else "x".join(map(str, sizes))]
        try:
            ended = run_limited(words, limits)
        except OSError as fault:
            message = f"{words[0]} cannot be started: {fault.strerror}"
            return CaseResult(case, "crash", ("it cannot be started",), message), 0.0
        if not (why := limits.words(ended)) and not ended.code:
            return _read(case, y), ended.seconds
    lines = [line.strip() for line in ended.output.splitlines() if line.strip()][-3:]
    output = f"\nit said: {' | '.join(lines)}" if lines else ""
    if why:
        name = {"time": "it does not end", "memory": "too much memory"}.get(ended.limit, f"crash: {ended.crash}")
    else:
        why = f"it ended with exit code {ended.code}; 0 says that the output is written"
        name = f"exit code {ended.code}"
    return CaseResult(case, ended.limit or "crash", (name,), why + output), ended.seconds


def _read(case: Case, y: Path) -> CaseResult:
    if not y.exists():
        words = "it ended, and wrote no output: the third argument is the file to write, as np.save(y, out) does"
        return CaseResult(case, "no output", ("no output file",), words)
    try:
        out = np.load(y, allow_pickle=False, mmap_mode="r")
        if not isinstance(out, np.ndarray):
            raise ValueError("an archive")
    except (ValueError, OSError, EOFError):
        return CaseResult(case, "no output", ("the output is no .npy file",),
                          "its output cannot be read as a .npy file: write it by numpy.save, or in the format of "
                          "numpy.lib.format")  # fmt: skip
    return judge_output(case, np.array(out) if out.shape == case.problem.out_shape else out)


def _time(command: Sequence[str], name: str, text: str, limits: Limits) -> Time:
    case, seconds = Case(name, text, "normal"), []
    for _ in range(TIMED_RUNS):
        result, taken = _run_case(command, case, limits)
        if result.status != "right":
            return Time(name, None, note=f"{result.status} on this problem: {result.message.splitlines()[0]}")
        seconds.append(taken)
    return Time(name, median(seconds), note=f"median of {TIMED_RUNS} processes")
