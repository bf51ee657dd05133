"""Calls of a reader's kernel on a device, between guard bands of poison, and its times next to the ladder's."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.absent import why_absent
from convforge.backends.cuda.arrays import address
from convforge.backends.runtime import LaunchInfo
from convforge.call.dispatch import find_plan, runtime_of
from convforge.course.grader.cases import plain_problem
from convforge.course.grader.report import Time
from convforge.course.grader.source import Arguments, OwnKernel, sizes_of
from convforge.errors import UnsupportedProblem
from convforge.problem import Conv2dProblem
from convforge.timing import StoppingRule, measure
from convforge.verify import Inputs, Judge, make_inputs
from convforge.verify.plans import GUARD, POISONS

# Byte that fills the output before each run: tells unwritten outputs from those that are added to.
BEFORE = (*POISONS, 0)
# Order of a block's threads on the emulator in each run.
ORDERS = ("forward", "shuffled", "backward")

# Methods timed together with a kernel, by backend.
LADDER = {"cuda": ("direct_naive", "direct_shared", "direct_tiled", "cudnn"), "cpu": ("direct_naive", "direct_rows")}
RULE = StoppingRule(patience_s=0.5, budget_s=3.0)


class Call:
    """One call of a kernel on a GPU or the emulator; before it, every byte of the output is `byte`."""

    def __init__(self, runtime: Any, own: OwnKernel, problem: Conv2dProblem, inputs: Inputs, byte: int) -> None:
        assert inputs.w is not None
        self.runtime, self.byte, self.problem = runtime, byte, problem
        self.info = own.rule.info(own.source.name, problem)
        self.inputs = {"x": inputs.x, "w": inputs.w}
        self._guarded = {
            "x": self._room(inputs.x.nbytes, POISONS[0]),
            "w": self._room(inputs.w.nbytes, POISONS[0]),
            "y": self._room(4 * problem.outputs, byte),
        }
        for name, array in self.inputs.items():
            there = runtime.upload(array)  # held until it is copied
            runtime.copy(address(self._inner(name)), address(there), array.nbytes)
            runtime.synchronize()
        addresses = [address(self._inner(name)) for name in ("x", "w", "y")]
        self.args = Arguments(*addresses, *sizes_of(problem).values())

    def _room(self, nbytes: int, byte: int) -> Any:
        raw = self.runtime.allocate(nbytes + 2 * GUARD)
        self.runtime.fill(raw, byte)
        return raw

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
        """Describe every write outside the output."""
        said = []
        for name, raw in self._guarded.items():
            byte = self.byte if name == "y" else POISONS[0]
            below = _changed(self.runtime.download(raw[:GUARD]), byte)
            above = _changed(self.runtime.download(raw[raw.nbytes - GUARD :]), byte)
            size = (raw.nbytes - 2 * GUARD) // 4
            if above.size:
                said.append(
                    f"it writes past the end of {name}: to {name}[{size + above[0]}], and {name} has {size} elements"
                )
            if below.size:
                said.append(f"it writes in front of {name}: to {name}[{below[-1] - GUARD // 4}]")
        for name, array in self.inputs.items():
            there = self.runtime.download(self._inner(name)).view(np.float32).reshape(array.shape)
            if not np.array_equal(there.view(np.uint32), array.view(np.uint32)):
                said.append(f"it changes its input {name}, which is only to be read")
        return said


def launcher(runtime: Any, kernel: Any, info: LaunchInfo, args: Arguments) -> Callable[[], None]:
    """Return a function that launches a kernel: with one struct on the emulator, with plain arguments on a GPU.

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


def _changed(band: Any, byte: int) -> NDArray[np.int64]:
    """Indices of the elements of a guard band that no longer hold the poison."""
    return np.flatnonzero((band.reshape(-1, 4) != byte).any(axis=1))


def time_kernel(own: OwnKernel, device: str, runtime: Any, kernel: Any, text: str, say: Any) -> None:
    """Time a kernel and the ladder on a device; pass each time to `say` at once."""
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
    """Device on which the ladder is timed next to a program: the GPU if available."""
    return "cuda" if why_absent() is None else "cpu"


def time_ladder(text: str, device: str) -> Iterator[Time]:
    """Time the ladder on a device; a method that refuses gets its reason."""
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
