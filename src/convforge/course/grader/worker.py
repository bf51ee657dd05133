"""Runs a reader's kernel: ``python -m convforge.course.grader.worker FOLDER``; the job is FOLDER/job.json.

It writes a line of JSON to FOLDER/events.jsonl before and after every step, so that the parent process knows the step
at which it crashed or hung. Outputs are .npy files in the folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Say = Callable[..., None]


def work(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with (folder / "events.jsonl").open("a", encoding="utf-8") as events:

        def say(event: str, **fields: Any) -> None:
            events.write(json.dumps({"event": event, **fields}) + "\n")
            events.flush()

        _work(folder, job, say)


def _work(folder: Path, job: Mapping[str, Any], say: Say) -> None:
    from convforge.course.grader.source import read_kernel

    own = read_kernel(Path(job["file"]), job["kernel"], job["launch"])
    runtimes = _runtimes(job["device"])
    try:
        kernel = runtimes[0].compile(own.source)
    except RuntimeError as fault:
        if type(fault).__name__ != "CompileError":  # each backend has its own
            raise
        say("compile error", text=str(fault))
        return
    say("compiled")
    for case in job["cases"]:
        if not _run_case(folder, own, runtimes, kernel, case, say):
            return
    if job["timed"]:
        from convforge.course.grader.calls import time_kernel

        time_kernel(own, job["device"], runtimes[0], kernel, job["timed"], say)
    say("end")


def _run_case(folder: Path, own: Any, runtimes: Any, kernel: Any, case: Mapping[str, Any], say: Say) -> bool:
    """Run a case until a run fails; return False if the device can no longer be used."""
    from convforge.backends.emulator import EmulatorError
    from convforge.course.grader.calls import BEFORE, Call
    from convforge.problem import parse_problem
    from convforge.verify import make_inputs

    number, problem = case["number"], parse_problem(case["problem"])
    inputs = make_inputs(problem, case["kind"])
    for run, (runtime, byte) in enumerate(zip(runtimes, BEFORE, strict=True)):
        say("begin", case=number, run=run)
        call = Call(runtime, own, problem, inputs, byte)  # type: ignore[arg-type]
        try:
            call.run(kernel)
        except EmulatorError as fault:
            say("fault", case=number, what=fault.what, block=fault.block, thread=fault.thread)
            return True
        except RuntimeError as fault:  # from a GPU, which cannot be used after it
            say("fault", case=number, what=str(fault), block=None, thread=None)
            return False
        if strays := call.strays():
            say("stray", case=number, what=strays)
            return True
        np.save(folder / f"{number}-{run}.npy", call.output())
        say("done", case=number, run=run)
    return True


def _runtimes(device: str) -> list[Any]:
    """The runtime of each run; on the emulator each has another order of threads."""
    from convforge.course.grader.calls import ORDERS

    if device == "emulator":
        from convforge.backends.emulator import emulator_runtime

        return [emulator_runtime(order) for order in ORDERS]
    from convforge.call.dispatch import runtime_of

    return [runtime_of(device)] * len(ORDERS)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
