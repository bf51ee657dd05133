"""An emulator that records the bytes that each thread of each block reads and writes.

The host's compiler puts a call before every access (-fsanitize=thread); recorder.h records it. A trace shows the
accesses of the kernel's source; a GPU's compiler may keep more in registers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.emulator import EmulatorError, EmulatorRuntime, EmulatorUnavailable, why_absent
from convforge.backends.emulator.compiler import FLAGS, library_of
from convforge.backends.emulator.library import EmulatorKernel, Error, scheduler
from convforge.backends.kernel import HEADERS, KernelSource
from convforge.backends.runtime import LaunchInfo
from convforge.backends.sources import on_disk, read_file

RECORDER = Path(__file__).with_name("recorder.h")
# Keep each load of the source one load: do not vectorise loads, nor split those of structs.
_FLAGS = ("-O1", "-fsanitize=thread", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-tree-sra")

# Most recorded accesses of one launch, 24 bytes each.
MOST_ACCESSES = 1 << 23

# Number of SMs for sizing grids, the same on every machine, so that figures are the same too.
CORES = 2

# struct Access of recorder.h.
ACCESS = np.dtype([("address", "u8"), ("block", "u4"), ("thread", "u4"), ("bytes", "u4"), ("is_write", "u4")])


class _Recorder(ctypes.Structure):
    """The first members of struct Recorder of recorder.h."""

    _fields_ = tuple(
        (name, ctypes.c_ulonglong)
        for name in (
            *("next", "end", "shared", "shared_bytes", "lost"),
            *("shared_reads", "shared_writes", "shared_bytes_read", "shared_bytes_written"),
        )
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SharedUse:
    """Accesses to shared memory by all threads of a launch, and their bytes."""

    reads: int
    writes: int
    bytes_read: int
    bytes_written: int


@dataclasses.dataclass(frozen=True, slots=True)
class TracedLaunch:
    """Accesses of one launch."""

    info: LaunchInfo
    accesses: NDArray[Any]  # of ACCESS, to memory that is not shared, in order; blocks and threads are counted x first
    shared: SharedUse


class TracingRuntime(EmulatorRuntime):
    """Runs kernels as the emulator does, one block after the other, and appends each to `launches`."""

    def __init__(self) -> None:
        if (reason := why_absent()) is not None:
            raise EmulatorUnavailable(reason)
        super().__init__()
        self.facts = dataclasses.replace(self.facts, cores=CORES)
        self.launches: list[TracedLaunch] = []

    def compile(self, kernel: KernelSource) -> EmulatorKernel:
        return _traced(kernel)

    def launch(self, kernel: EmulatorKernel, info: LaunchInfo, args: ctypes.Structure, stream: Any = None) -> None:
        """Run a kernel on this OS thread alone; refuse clusters, whose blocks each need an OS thread."""
        self._check(kernel, info, args)
        if info.cluster:
            raise EmulatorError(kernel.source.name, f"clusters of {info.cluster} blocks are not traced")
        recorder = _Recorder.from_address(kernel.symbol("emulator_recorder")[0])
        anchor = ctypes.CFUNCTYPE(ctypes.c_void_p)(kernel.anchor)() or 0
        room = np.empty(MOST_ACCESSES, ACCESS)
        ctypes.memset(ctypes.addressof(recorder), 0, ctypes.sizeof(recorder))
        recorder.next, recorder.end = room.ctypes.data, room.ctypes.data + room.nbytes
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
        seen = room[: (recorder.next - room.ctypes.data) // ACCESS.itemsize].copy()
        shared = SharedUse(
            recorder.shared_reads, recorder.shared_writes, recorder.shared_bytes_read, recorder.shared_bytes_written
        )
        self.launches.append(TracedLaunch(info, seen, shared))


_kernels: dict[tuple[str, str], EmulatorKernel] = {}
_lock = threading.Lock()


def _traced(source: KernelSource) -> EmulatorKernel:
    """A traced kernel in this process, compiled or loaded from disk."""
    key = (source.digest(), source.name)
    with _lock:
        if key not in _kernels:
            _kernels[key] = EmulatorKernel(source, _code(source))
        return _kernels[key]


def _code(source: KernelSource) -> bytes:
    enter = (
        '\nextern "C" __attribute__((visibility("default"), no_sanitize("thread"))) '
        f"void emulator_enter(const void *args) {{\n    emulator::begin_thread();\n"
        f"    {source.name}(*static_cast<const {source.struct} *>(args));\n}}\n"
    )
    text = f'#include "cuda.h"\n{read_file(RECORDER).decode()}\n{source.text()}{enter}'
    return library_of(text, source.digest(), (*FLAGS, *_FLAGS, f"-I{on_disk(HEADERS)}"), source.path, None)
