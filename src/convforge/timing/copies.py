"""Time of the copy kernel on as many bytes as a problem moves: the reference for memory-bound kernels.

Half of the bytes are read and half are written. The rules for ring size, timer and stopping are those for problems.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from convforge.backends.cuda.arrays import address
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.timing.ring import COLD_FACTOR, Cycle, last_level_cache, poison_of, ring_limit, ring_size
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, measure

UNIT = 16  # bytes that a thread of copy.cu moves
GPU_THREADS = 256
CPU_BLOCK = 1 << 14  # floats that a work item of the CPU's kernel moves
RANDOM_FLOATS = 1 << 20  # random numbers, repeated to fill the source
COMPARED_FLOATS = 1 << 10  # compared at each end of a copy
FLOAT = np.dtype(np.float32)


class _Copy(ctypes.Structure):
    """struct Copy of copy.cu."""

    _fields_ = (("source", ctypes.c_void_p), ("target", ctypes.c_void_p), ("count", ctypes.c_longlong))


def copying(runtime: Runtime, source: Any, target: Any) -> Callable[[], None]:
    """Return a function that copies a contiguous float32 array; on GPUs, whole 16-byte vectors, aligned to 16 bytes."""
    if runtime.facts.backend == "cpu":
        from convforge.timing import cpu

        items = -(-source.size // CPU_BLOCK)
        info = LaunchInfo("copy", (items,), (max(1, items // (8 * runtime.facts.cores)),))
        kernel, args = runtime.compile(cpu.copy), (source, target, CPU_BLOCK)
        return lambda: runtime.launch(kernel, info, args)
    count = source.size // 4
    on_gpu = runtime.compile(KernelSource("timing/copy.cu", "copy", (), _Copy, "Copy"))
    grid, struct = LaunchInfo("copy", (-(-count // GPU_THREADS),), (GPU_THREADS,), pdl=True), _Copy(0, 0, count)
    struct.source, struct.target = address(source), address(target)
    return lambda: runtime.launch(on_gpu, grid, struct)


class Copies:
    """Timer of copies on one device; it keeps the memory of small copies."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kept_bytes = min(2 * COLD_FACTOR * last_level_cache(runtime.facts), ring_limit(runtime.facts))
        self._kept: tuple[Any, Any] | None = None

    def time(
        self, nbytes: int, rule: StoppingRule, *, clock: Callable[[], float] = time.monotonic
    ) -> tuple[int, Timing]:
        """Time a copy of `nbytes`, read plus written, rounded up to a multiple of 32; return bytes and timing."""
        runtime = self._runtime
        half = max(-(-nbytes // (2 * UNIT)), 1) * UNIT
        size = ring_size(2 * half, runtime.facts, ring_limit(runtime.facts))
        floats = half // FLOAT.itemsize
        sources, targets = self._room(size.slots * floats)
        runtime.fill(targets, poison_of(FLOAT))
        slots = [slice(i * floats, (i + 1) * floats) for i in range(size.slots)]
        calls = [copying(runtime, sources[slot], targets[slot]) for slot in slots]
        turn = Cycle(size.slots, lambda i: calls[i]())
        timing = measure(turn, runtime, rule, clock=clock)
        runtime.synchronize()
        if not all(self._same(sources[slot], targets[slot]) for slot in slots[: turn.reached]):
            raise RuntimeError("the copy kernel did not copy")
        return 2 * half, replace(timing, ring=size.slots, cold=size.cold)

    def _same(self, source: Any, target: Any) -> bool:
        """True if the first and the last elements of a copy are right."""
        ends = (slice(None, COMPARED_FLOATS), slice(-COMPARED_FLOATS, None))
        read = self._runtime.download
        return all(np.array_equal(read(source[end]), read(target[end])) for end in ends)

    def _room(self, floats: int) -> tuple[Any, Any]:
        """Return source and target of `floats` float32 each; the source holds random numbers."""
        if floats > self._kept_bytes // (2 * FLOAT.itemsize):
            return self._new_room(floats)
        if self._kept is None:
            self._kept = self._new_room(self._kept_bytes // (2 * UNIT) * UNIT // FLOAT.itemsize)
        sources, targets = self._kept
        return sources[:floats], targets[:floats]

    def _new_room(self, floats: int) -> tuple[Any, Any]:
        runtime = self._runtime
        sources, targets = runtime.empty((floats,), FLOAT), runtime.empty((floats,), FLOAT)
        numbers = np.random.default_rng(0).standard_normal(min(floats, RANDOM_FLOATS), FLOAT)
        random = runtime.upload(numbers)
        for begin in range(0, floats, RANDOM_FLOATS):
            part = sources[begin : begin + RANDOM_FLOATS]
            copying(runtime, random[: part.size], part)()
        runtime.synchronize()
        return sources, targets
