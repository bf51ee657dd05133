"""Runs a reader's kernel in a separate process, between guard bands of poison, and times it next to our methods.

`work` reads its job from FOLDER/job.json. It appends a line of JSON to FOLDER/events.jsonl before and after each step,
so that the parent process can find the step of a crash or hang. Outputs are .npy files in the folder.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.arrays import address
from convforge.backends.emulator import EmulatorError, emulator_runtime
from convforge.backends.runtime import LaunchInfo
from convforge.call.dispatch import find_plan, runtime_of
from convforge.course.grader.judge import plain_problem
from convforge.course.grader.report import Time
from convforge.course.grader.source import Arguments, OwnKernel, read_kernel, sizes_of
from convforge.errors import UnsupportedProblem
from convforge.problem import Conv2dProblem
from convforge.timing import StoppingRule, measure
from convforge.verify import Inputs, Judge, make_inputs
from convforge.verify.plans import GUARD, POISONS

# Byte that fills the output before each run; it distinguishes outputs never written from those added to.
BEFORE = (*POISONS, 0)
# Thread order within a block on the emulator, for each run.
ORDERS = ("forward", "shuffled", "backward")

# Methods timed for comparison with a kernel, by backend.
LADDER = {"cuda": ("direct_naive", "direct_shared", "direct_tiled", "cudnn"), "cpu": ("direct_naive", "direct_rows")}
RULE = StoppingRule(patience_s=0.5, budget_s=3.0)

Report = Callable[..., None]  # records an event with its fields


def work(folder: Path) -> None:
    """Compile the kernel, run the cases and time it."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    with (folder / "events.jsonl").open("a", encoding="utf-8") as events:

        def report(event: str, **fields: Any) -> None:
            events.write(json.dumps({"event": event, **fields}) + "\n")
            events.flush()

        own, device = read_kernel(Path(job["file"]), job["kernel"], job["launch"]), job["device"]
        runtimes: list[Any] = [emulator_runtime(o) if device == "emulator" else runtime_of(device) for o in ORDERS]
        try:
            kernel = runtimes[0].compile(own.source)
        except RuntimeError as fault:
            if type(fault).__name__ != "CompileError":  # each backend has its own class
                raise
            report("compile error", text=str(fault))
            return
        report("compiled")
        for case in job["cases"]:
            if not _run_case(folder, own, runtimes, kernel, case, report):
                return
        if job["timed"]:
            for time in time_kernel(own, device, runtimes[0], kernel, job["timed"]):
                report("time", time=dataclasses.asdict(time))


def _run_case(
    folder: Path, own: OwnKernel, runtimes: list[Any], kernel: Any, case: Mapping[str, Any], report: Report
) -> bool:
    """Run a case until a run fails; False if the device can no longer be used."""
    number, problem = case["number"], plain_problem(case["problem"])
    inputs = make_inputs(problem, case["kind"])
    for run, (runtime, byte) in enumerate(zip(runtimes, BEFORE, strict=True)):
        report("begin", case=number, run=run)
        call = Call(runtime, own, problem, inputs, byte)
        try:
            call.run(kernel)
        except EmulatorError as fault:
            report("fault", case=number, what=fault.what, block=fault.block, thread=fault.thread)
            return True
        except RuntimeError as fault:  # raised by a GPU, which is then unusable
            report("fault", case=number, what=str(fault), block=None, thread=None)
            return False
        if strays := call.strays():
            report("stray", case=number, what=strays)
            return True
        np.save(folder / f"{number}-{run}.npy", call.output())
        report("done", case=number, run=run)
    return True


class Call:
    """One call of a kernel on a GPU or the emulator; every output byte is set to `byte` before."""

    def __init__(self, runtime: Any, own: OwnKernel, problem: Conv2dProblem, inputs: Inputs, byte: int) -> None:
        assert inputs.w is not None
        self.runtime, self.problem = runtime, problem
        self.info = own.rule.info(own.source.name, problem)
        self.inputs = {"x": inputs.x, "w": inputs.w}
        self._bytes = {"x": POISONS[0], "w": POISONS[0], "y": byte}
        sizes = {"x": inputs.x.nbytes, "w": inputs.w.nbytes, "y": 4 * problem.outputs}
        self._guarded = {name: runtime.allocate(size + 2 * GUARD) for name, size in sizes.items()}
        for name, raw in self._guarded.items():
            runtime.fill(raw, self._bytes[name])
        for name, array in self.inputs.items():
            there = runtime.upload(array)  # keeps the array alive until it is copied
            runtime.copy(address(self._inner(name)), address(there), array.nbytes)
            runtime.synchronize()
        self.args = Arguments(*(address(self._inner(name)) for name in "xwy"), *sizes_of(problem).values())

    def _inner(self, name: str) -> Any:
        raw = self._guarded[name]
        return raw[GUARD : raw.nbytes - GUARD]

    def run(self, kernel: Any) -> None:
        launcher(self.runtime, kernel, self.info, self.args)()
        self.runtime.synchronize()

    def output(self) -> NDArray[np.float32]:
        raw: NDArray[np.uint8] = self.runtime.download(self._inner("y"))
        return raw.view(np.float32).reshape(self.problem.out_shape).copy()

    def strays(self) -> list[str]:
        """Describe each write outside the output."""
        found = []
        for name, raw in self._guarded.items():
            bands = (raw[:GUARD], raw[raw.nbytes - GUARD :])
            # Indices of the elements in each guard band that no longer hold the poison.
            below, above = (
                np.flatnonzero((self.runtime.download(band).reshape(-1, 4) != self._bytes[name]).any(axis=1))
                for band in bands
            )
            size = (raw.nbytes - 2 * GUARD) // 4
            if above.size:
                place = f"{name}[{size + above[0]}], and {name} has {size} elements"
                found.append(f"it writes past the end of {name}: to {place}")
            if below.size:
                found.append(f"it writes in front of {name}: to {name}[{below[-1] - GUARD // 4}]")
        for name, array in self.inputs.items():
            if self.runtime.download(self._inner(name)).tobytes() != array.tobytes():
                found.append(f"it changes its input {name}, which is only to be read")
        return found


def launcher(runtime: Any, kernel: Any, info: LaunchInfo, args: Arguments) -> Callable[[], None]:
    """Return a function that launches a kernel, with one struct on the emulator or with plain arguments on a GPU.

    It raises ``CudaError`` if the driver refuses the launch.
    """
    if runtime.facts.backend == "emulator":
        return lambda: runtime.launch(kernel, info, args)
    from cuda.bindings import driver

    from convforge.backends.cuda.driver import CudaError

    kernel.allow_shared(info.scratch_bytes)
    offsets = [getattr(Arguments, name).offset for name, *_ in Arguments._fields_]
    shape = (*(*info.grid, 1, 1)[:3], *(*info.block, 1, 1)[:3])

    def launch() -> None:
        stream, start = runtime.stream_handle(None), ctypes.addressof(args)
        pointers = (ctypes.c_void_p * len(offsets))(*(start + offset for offset in offsets))
        (status,) = driver.cuLaunchKernel(
            kernel.handle, *shape, info.scratch_bytes, stream, ctypes.addressof(pointers), 0
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            words = f"grid {info.grid}, block {info.block}, {info.scratch_bytes} bytes of dynamic shared memory"
            raise CudaError(f"the GPU refuses the launch ({words}): {status.name}")

    return launch


def time_kernel(own: OwnKernel, device: str, runtime: Any, kernel: Any, text: str) -> Iterator[Time]:
    """Time a kernel and the ladder on a device; if the kernel is wrong, yield only its row, without a time."""
    problem = plain_problem(text)
    inputs = make_inputs(problem)
    call = Call(runtime, own, problem, inputs, 0xFF)
    call.run(kernel)
    verdict = Judge(problem, inputs, runtime=runtime).verdict("strict", call.output())
    if faults := call.strays() or ([] if verdict.ok else verdict.message.splitlines()):
        yield Time("your kernel", None, note=f"wrong on this problem: {faults[0]}")
        return
    timing = measure(launcher(runtime, kernel, call.info, call.args), runtime, RULE)
    yield Time("your kernel", timing.median_s, timing.spread)
    yield from time_ladder(text, device)


def time_ladder(text: str, device: str) -> Iterator[Time]:
    """Time the ladder on a device; a method that refuses the problem gets its reason instead of a time."""
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
