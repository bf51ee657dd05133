"""Check of a reader's program: .npy files in, one .npy file out, one process per case."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from convforge.backends.cuda.absent import why_absent
from convforge.course.grader.cases import Case
from convforge.course.grader.judge import CaseResult, judge_output
from convforge.course.grader.process import Limits, run_limited
from convforge.course.grader.report import Report, Time
from convforge.course.grader.worker import time_ladder
from convforge.problem import Conv2dProblem

# Timed runs, whose median counts.
TIMED_RUNS = 3
# Timed too, as the time of starting the program.
SMALLEST = "n1c1h3w3_k1r1s1_st1_p0_f32_nchw"


def check_program(target: str, cases: Sequence[Case], *, limits: Limits | None = None, timed: str = "") -> Report:
    """Check a Python script, an executable file, or a command with arguments.

    Raises ``ValueError`` if it does not exist or cannot be executed. `timed` is the text form of a problem on which the
    program is timed if every case is right.
    """
    command, limits = command_of(target), limits or Limits()
    results: list[CaseResult] = []
    for case in cases:
        if results and results[-1].status in ("time", "memory", "not run"):  # another would only take as long
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
    """The command of a program; ``ValueError`` if it does not exist or cannot be executed."""
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


def options_of(problem: Conv2dProblem) -> list[str]:
    """Options of a program: one number if all are equal, else as in a problem's text form.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> options_of(parse_problem("n1c1h9w9_k1r3s3_st2_p1"))
    ['--stride', '2', '--padding', '1']
    >>> options_of(parse_problem("n1c1h9w9_k1r3s3_st2x1_p1x0x2x2"))
    ['--stride', '2x1', '--padding', '1x0x2x2']
    """
    words = []
    for name, sizes in (("--stride", problem.stride), ("--padding", problem.padding)):
        words += [name, str(sizes[0]) if len(set(sizes)) == 1 else "x".join(map(str, sizes))]
    return words


def _run_case(command: Sequence[str], case: Case, limits: Limits) -> tuple[CaseResult, float]:
    """Run a case once; return its result and its seconds."""
    inputs = case.judge.inputs
    assert inputs.w is not None
    with tempfile.TemporaryDirectory(prefix="convforge-") as folder:
        x, w, y = (Path(folder) / f"{name}.npy" for name in "xwy")
        np.save(x, inputs.x)
        np.save(w, inputs.w)
        words = [*command, str(x), str(w), str(y), *options_of(case.problem)]
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
