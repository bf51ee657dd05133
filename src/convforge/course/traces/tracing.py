"""Traces of kernels: an emulator records which bytes of global memory each thread of each block reads and writes.

The host compiler inserts a call before every access (-fsanitize=thread); recorder.h records it, or counts it if it is
to shared memory. A trace shows the accesses of the source; a GPU's compiler may keep more values in registers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms import find, make_config, refusal
from convforge.algorithms.contract import Config, Plan
from convforge.backends.emulator import EmulatorError, EmulatorRuntime, EmulatorUnavailable, why_absent
from convforge.backends.emulator.compiler import FLAGS, library_of
from convforge.backends.emulator.library import EmulatorKernel, Error, scheduler
from convforge.backends.kernel import HEADERS, KernelSource
from convforge.backends.runtime import LaunchInfo
from convforge.backends.sources import on_disk, read_file
from convforge.problem import Problem
from convforge.verify import Judge, make_inputs
from convforge.verify.inputs import output_dtype

RECORDER = Path(__file__).with_name("recorder.h")
# Preserve each load of the source: do not vectorise loads, and do not split those of structs.
_FLAGS = ("-O1", "-fsanitize=thread", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-tree-sra")

# Most accesses recorded per launch; each takes 24 bytes.
MOST_ACCESSES = 1 << 23

# Number of SMs for sizing grids, fixed so that figures are the same on every machine.
CORES = 2

# Same layout as struct Access in recorder.h.
ACCESS = np.dtype([("address", "u8"), ("block", "u4"), ("thread", "u4"), ("bytes", "u4"), ("is_write", "u4")])


class _Recorder(ctypes.Structure):
    """First members of struct Recorder in recorder.h."""

    _fields_ = tuple(
        (name, ctypes.c_ulonglong)
        for name in (
            *("next", "end", "shared", "shared_bytes", "lost"),
            *("shared_reads", "shared_writes", "shared_bytes_read", "shared_bytes_written"),
        )
    )


class SharedUse(NamedTuple):
    """Number and bytes of accesses to shared memory by all threads of a launch."""

    reads: int
    writes: int
    bytes_read: int
    bytes_written: int


class TracedLaunch(NamedTuple):
    """Accesses of one launch."""

    info: LaunchInfo
    accesses: NDArray[Any]  # dtype ACCESS, without shared memory, in order; linear block and thread numbers, x fastest
    shared: SharedUse


_kernels: dict[tuple[str, str], EmulatorKernel] = {}
_lock = threading.Lock()


def _code(source: KernelSource) -> bytes:
    enter = (
        '\nextern "C" __attribute__((visibility("default"), no_sanitize("thread"))) '
        f"void emulator_enter(const void *args) {{\n    emulator::begin_thread();\n"
        f"    {source.name}(*static_cast<const {source.struct} *>(args));\n}}\n"
    )
    text = f'#include "cuda.h"\n{read_file(RECORDER).decode()}\n{source.text()}{enter}'
    return library_of(text, source.digest(), (*FLAGS, *_FLAGS, f"-I{on_disk(HEADERS)}"), source.path, None)


class TracingRuntime(EmulatorRuntime):
    """Runs kernels in the emulator, one block after the other, and appends a trace of each launch to `launches`."""

    def __init__(self) -> None:
        if (reason := why_absent()) is not None:
            raise EmulatorUnavailable(reason)
        super().__init__()
        self.facts = dataclasses.replace(self.facts, cores=CORES)
        self.launches: list[TracedLaunch] = []

    def compile(self, kernel: KernelSource) -> EmulatorKernel:
        """Return a kernel compiled for tracing, from this process, from disk or newly compiled."""
        key = (kernel.digest(), kernel.name)
        with _lock:
            if key not in _kernels:
                _kernels[key] = EmulatorKernel(kernel, _code(kernel))
            return _kernels[key]

    def launch(self, kernel: EmulatorKernel, info: LaunchInfo, args: ctypes.Structure, stream: Any = None) -> None:
        """Run a kernel in this OS thread only; refuses clusters, because each of their blocks needs an OS thread."""
        self._check(kernel, info, args)
        if info.cluster:
            raise EmulatorError(kernel.source.name, f"clusters of {info.cluster} blocks are not traced")
        recorder = _Recorder.from_address(kernel.symbol("emulator_recorder")[0])
        anchor = ctypes.CFUNCTYPE(ctypes.c_void_p)(kernel.anchor)() or 0
        buffer = np.empty(MOST_ACCESSES, ACCESS)
        ctypes.memset(ctypes.addressof(recorder), 0, ctypes.sizeof(recorder))
        recorder.next, recorder.end = buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes
        recorder.shared, recorder.shared_bytes = anchor - kernel.shared_offset, kernel.shared_bytes
        error = Error()
        scheduler().run(self._job(kernel, info, args), 0, math.prod(info.grid), error)
        if error.kind:
            raise EmulatorError(kernel.source.name, error.text.decode(errors="replace"))
        if recorder.lost:
            raise ValueError(
                f"{kernel.source.name} makes {MOST_ACCESSES + recorder.lost} accesses, of which {MOST_ACCESSES} can be "
                "kept; trace a smaller problem"
            )
        accesses = buffer[: (recorder.next - buffer.ctypes.data) // ACCESS.itemsize].copy()
        shared = SharedUse(*(getattr(recorder, f"shared_{name}") for name in SharedUse._fields))
        self.launches.append(TracedLaunch(info, accesses, shared))


@dataclasses.dataclass(frozen=True, slots=True)
class Touched:
    """Elements of one array that a launch read or wrote, with one entry for each element of an access."""

    shape: tuple[int, ...]  # shape of the array
    elements: NDArray[np.int64]  # flat index in the array
    blocks: NDArray[np.int64]  # linear block number in the grid, x fastest
    threads: NDArray[np.int64]  # linear thread number in the block, x fastest
    accesses: int  # number of loads or stores; one can cover several elements

    def of_block(self, block: int) -> Touched:
        """Return the entries of one block; `accesses` is then the number of elements."""
        return self._only(self.blocks == block)

    def of_thread(self, block: int, thread: int) -> Touched:
        """Return the entries of one thread; `accesses` is then the number of elements."""
        return self._only((self.blocks == block) & (self.threads == thread))

    def counts(self) -> NDArray[np.int64]:
        """Return the number of accesses to each element, in the array's shape."""
        size = int(np.prod(self.shape))
        return np.bincount(self.elements, minlength=size).reshape(self.shape)

    def last(self, what: str) -> NDArray[np.int64]:
        """Return the "blocks" or "threads" entry of each element's last access; -1 if it was never accessed."""
        found = np.full(int(np.prod(self.shape)), -1, np.int64)
        found[self.elements] = getattr(self, what)
        return found.reshape(self.shape)

    def _only(self, chosen: NDArray[np.bool_]) -> Touched:
        parts = self.elements[chosen], self.blocks[chosen], self.threads[chosen]
        return Touched(self.shape, *parts, int(chosen.sum()))


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """A traced call."""

    plan: Plan
    launches: tuple[TracedLaunch, ...]  # those of the call and of the weight preparation, in order
    arrays: dict[str, NDArray[Any]]  # "x", "w" (the caller's; absent without weights), "out", "workspace" (bytes)
    is_right: bool  # True if the output passed the check against the float64 truth

    def touched(self, name: str, launch: int = -1, *, written: bool = False) -> Touched:
        """Return the reads or writes of a launch (index into `launches`) to "x", "w", "out" or "workspace"."""
        array = self.arrays[name]
        start, size = array.__array_interface__["data"][0], array.itemsize
        found = self.launches[launch].accesses
        inside = (found["address"] >= start) & (found["address"] < start + array.nbytes)
        found = found[inside & (found["is_write"] == written)]
        # A load of several elements is expanded to one entry per element.
        per = np.maximum(found["bytes"] // size, 1).astype(np.int64)
        first = (found["address"] - np.uint64(start)).astype(np.int64) // size
        steps = np.arange(per.sum()) - np.repeat(np.cumsum(per) - per, per)
        blocks, threads = (np.repeat(found[field].astype(np.int64), per) for field in ("block", "thread"))
        return Touched(array.shape, np.repeat(first, per) + steps, blocks, threads, len(found))

    def writer(self) -> int:
        """Return the index of the last launch that writes to the output."""
        return max(i for i in range(len(self.launches)) if self.touched("out", i, written=True).accesses)


def trace(problem: Problem, name: str, config: Config | str = "") -> Trace:
    """Run a CUDA C++ method once on random inputs, and record the accesses of its threads.

    Fields missing in a `config` given as text keep their defaults. Raises ``ValueError`` if the method refuses the
    problem or makes more than :data:`MOST_ACCESSES` accesses in a launch, ``EmulatorUnavailable`` without g++ or Linux.

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
    problem = problem.allowing(method.precision)  # requesting a method by name allows its arithmetic
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
