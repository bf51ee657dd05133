"""The trace of a method's call: the threads that write each output and read each input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms import find, make_config, refusal
from convforge.algorithms.contract import Config, Plan
from convforge.course.traces.runtime import TracedLaunch, TracingRuntime
from convforge.problem import Problem
from convforge.verify import Judge, make_inputs
from convforge.verify.inputs import output_dtype


@dataclass(frozen=True, slots=True)
class Touched:
    """Elements of one array that the threads of a launch read, or wrote; one entry for each element of an access."""

    shape: tuple[int, ...]  # of the array
    elements: NDArray[np.int64]  # flat index in the array
    blocks: NDArray[np.int64]  # of the grid, counted x first
    threads: NDArray[np.int64]  # of the block, counted x first
    accesses: int  # loads or stores: one may cover several elements

    def of_block(self, block: int) -> Touched:
        """The entries of one block; `accesses` is then the number of elements."""
        return self._only(self.blocks == block)

    def of_thread(self, block: int, thread: int) -> Touched:
        """The entries of one thread; `accesses` is then the number of elements."""
        return self._only((self.blocks == block) & (self.threads == thread))

    def counts(self) -> NDArray[np.int64]:
        """Accesses of each element, in the array's shape."""
        size = int(np.prod(self.shape))
        return np.bincount(self.elements, minlength=size).reshape(self.shape)

    def last(self, what: str) -> NDArray[np.int64]:
        """The "blocks" or "threads" entry of each element's last access, -1 without one."""
        found = np.full(int(np.prod(self.shape)), -1, np.int64)
        found[self.elements] = getattr(self, what)
        return found.reshape(self.shape)

    def _only(self, chosen: NDArray[np.bool_]) -> Touched:
        parts = self.elements[chosen], self.blocks[chosen], self.threads[chosen]
        return Touched(self.shape, *parts, int(chosen.sum()))


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced call."""

    plan: Plan
    launches: tuple[TracedLaunch, ...]  # of the call and of the preparation of its weights, in order
    arrays: dict[str, NDArray[Any]]  # "x", "w" (the caller's; absent without weights), "out", "workspace" (bytes)
    is_right: bool  # the output passed the check against the float64 truth

    def touched(self, name: str, launch: int = -1, *, written: bool = False) -> Touched:
        """Accesses of a launch (an index into `launches`) to "x", "w", "out" or "workspace": its reads, or writes."""
        array = self.arrays[name]
        start, size = array.__array_interface__["data"][0], array.itemsize
        seen = self.launches[launch].accesses
        inside = (seen["address"] >= start) & (seen["address"] < start + array.nbytes)
        seen = seen[inside & (seen["is_write"] == written)]
        # A load of several elements gives as many entries.
        per = np.maximum(seen["bytes"] // size, 1).astype(np.int64)
        first = (seen["address"] - np.uint64(start)).astype(np.int64) // size
        steps = np.arange(per.sum()) - np.repeat(np.cumsum(per) - per, per)
        blocks, threads = (np.repeat(seen[field].astype(np.int64), per) for field in ("block", "thread"))
        return Touched(array.shape, np.repeat(first, per) + steps, blocks, threads, len(seen))

    def writer(self) -> int:
        """The last launch that writes to the output."""
        return max(i for i in range(len(self.launches)) if self.touched("out", i, written=True).accesses)


def trace(problem: Problem, name: str, config: Config | str = "") -> Trace:
    """Run a method once on random numbers, and record the accesses of its threads.

    Parameters
    ----------
    problem : Problem
        A small one, with at most some million accesses.
    name : str
        A method whose kernels are CUDA C++.
    config : Config or str
        Other fields keep their defaults.

    Raises
    ------
    ValueError
        The method refuses the problem, or makes too many accesses.
    EmulatorUnavailable
        There is no g++, or this is not Linux.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> found = trace(parse_problem("n1c1h8w32_k1r3s3_p1_f32_nchw"), "direct_naive", "block_y=2")
    >>> found.touched("out", written=True).of_thread(1, 33).elements.tolist()  # block 1, thread (1, 1)
    [97]
    >>> found.touched("x").of_block(0).counts()[0, 0, :4, 5].tolist()
    [6, 6, 3, 0]
    """
    runtime = TracingRuntime()
    method = find(problem.operation, "emulator", name)
    problem = problem.allowing(method.precision)  # the name asks for the method's arithmetic
    if (reason := refusal(method, problem, runtime.facts)) is not None:
        raise ValueError(f"{name} cannot be traced on {problem}: {reason}")
    plan = method.plan(problem, make_config(method, problem, runtime.facts, config), runtime)
    inputs = make_inputs(problem)
    x, w = runtime.upload(inputs.x), None if inputs.w is None else runtime.upload(inputs.w)
    out = runtime.empty(problem.out_shape, output_dtype(problem))
    workspace = runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None
    prepared = plan.borrow(w)
    operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    plan(plan.buffers(x, prepared, operands, out, workspace))
    arrays = {"x": x, "w": w, "out": out, "workspace": workspace}
    verdict = Judge(problem, inputs).verdict(method.precision, out)
    there = {key: array for key, array in arrays.items() if array is not None}
    return Trace(plan, tuple(runtime.launches), there, verdict.ok)
