"""A reader's kernel timed beside the ladder, on one problem; what is wrong there gets no time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from convforge.backends.cuda.absent import why_absent
from convforge.call.dispatch import find_plan, runtime_of
from convforge.course.grader.calls import Call, launcher
from convforge.course.grader.cases import plain_problem
from convforge.course.grader.report import Time
from convforge.course.grader.source import OwnKernel
from convforge.errors import UnsupportedProblem
from convforge.timing import StoppingRule, measure
from convforge.verify import Judge, make_inputs

# What stands beside it, by backend.
LADDER = {"cuda": ("direct_naive", "direct_shared", "direct_tiled", "cudnn"), "cpu": ("direct_naive", "direct_rows")}
RULE = StoppingRule(patience_s=0.5, budget_s=3.0)


def time_kernel(own: OwnKernel, device: str, runtime: Any, kernel: Any, text: str, say: Any) -> None:
    """Time a kernel and the ladder on a device; each time is said as soon as it is known."""
    problem = plain_problem(text)
    inputs = make_inputs(problem)
    call = Call(runtime, own, problem, inputs, 0xFF)
    call.run(kernel)
    strays = call.strays()
    verdict = Judge(problem, inputs, runtime=runtime).verdict("strict", call.output())
    if strays or not verdict.ok:
        first = strays[0] if strays else verdict.message.splitlines()[0]
        say("time", time=dataclasses.asdict(Time("your kernel", None, note=f"wrong on this problem: {first}")))
        return
    timing = measure(launcher(runtime, kernel, call.info, call.args), runtime, RULE)
    say("time", time=dataclasses.asdict(Time("your kernel", timing.median_s, timing.spread)))
    for time in time_ladder(text, device):
        say("time", time=dataclasses.asdict(time))


def ladder_device() -> str:
    """Where a program's neighbours are timed: on the GPU where there is one."""
    return "cuda" if why_absent() is None else "cpu"


def time_ladder(text: str, device: str) -> Iterator[Time]:
    """The ladder on a device; of a method that refuses, why."""
    runtime: Any = runtime_of(device)
    problem = plain_problem(text)
    inputs = make_inputs(problem)
    x, w = runtime.upload(inputs.x), runtime.upload(inputs.w)
    out = runtime.empty(problem.out_shape, "float32")
    for name in LADDER[runtime.facts.backend]:
        try:
            plan = find_plan(problem, name, None, device, None)
            prepared = plan.prepare(w)
        except (UnsupportedProblem, ValueError, RuntimeError) as refusal:
            yield Time(name, None, note=str(refusal).splitlines()[-1].strip())
            continue
        workspace = runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None
        buffers = plan.buffers(x, prepared, None, out, workspace)
        timing = measure(lambda: plan(buffers), runtime, RULE)  # noqa: B023
        yield Time(name, timing.median_s, timing.spread)
