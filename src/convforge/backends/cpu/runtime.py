"""The CPU's runtime: a launch splits a one-dimensional grid of work items among a pool of threads.

Kernels release the GIL. Unlike Numba's own parallel loops, launches are safe from many threads at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.cpu.pool import Pool, one_thread_each
from convforge.backends.facts import DeviceFacts
from convforge.backends.fft import RealFft
from convforge.backends.forks import no_fork
from convforge.backends.runtime import LaunchInfo, Runtime

# Passing work to another thread costs about 30 us: a launch of fewer operations than this uses the caller's thread.
INLINE_FLOPS = 400_000  # of a vectorised kernel
# A kernel's call costs 10 to 15 us, mostly for Numba's check of its arguments' types, which holds the GIL: a block of
# work should take longer than that.
BLOCK_FLOPS = 2_000_000


class HostFft:
    """A :class:`RealFft` computed by :mod:`scipy.fft`; the result is copied into the batch's memory."""

    workspace_bytes = 0

    def __init__(self, fft: RealFft, workers: int) -> None:
        self.fft = fft
        self.kernel = "scipy_irfft2" if fft.inverse else "scipy_rfft2"
        self._workers = workers
        self._complex = np.result_type(fft.dtype, np.complex64)

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        what = self.fft
        reals = data.view(what.dtype).reshape(what.reals)[:, :, : what.size_w]
        spectra = data.view(self._complex).reshape(what.complexes)[:, :, : what.size_w // 2 + 1]
        with no_fork():  # before a fork SciPy ends its threads, and refuses calls until it is over
            from scipy import fft

            if what.inverse:
                reals[...] = fft.irfft2(spectra, (what.size_h, what.size_w), norm="forward", workers=self._workers)
            else:
                spectra[...] = fft.rfft2(reals, workers=self._workers)


class CpuRuntime(Runtime):
    """Runs plans on the CPU.

    Re-entrant. Numba compiles a kernel on its first call, and caches it on disk. Streams are ignored: a launch returns
    when its work is done. For `watches` see :class:`convforge.backends.cpu.pool.Pool`.
    """

    def __init__(self, facts: DeviceFacts, watches: bool = True) -> None:
        self.facts, self._watches = facts, watches
        self._pool: tuple[Pool | None, int] = None, 0  # the pool, and the id of the process that started its threads
        self._inside = threading.local()
        self._lock = threading.Lock()

    def launch(self, kernel: Any, info: LaunchInfo, args: Any, stream: Any = None) -> None:
        """Call ``kernel(*args, begin, end)`` over work items [0, grid), `block` at a time; one block on this thread.

        Threads take blocks from a common counter, so that a slow thread takes fewer.
        """
        items, block = info.grid[0], info.block[0]
        threads = min(self.facts.cores, -(-items // block))
        if threads <= 1 or getattr(self._inside, "parallel", False):
            if items:
                kernel(*args, 0, items)
            return

        def run(begin: int, slot: int) -> None:
            kernel(*args, begin, min(begin + block, items))

        self._threads().share(run, range(0, items, block), threads)

    def parallel(self, tasks: Sequence[Callable[[int], None]], slots: int) -> None:
        """Run tasks in parallel; launches and BLAS calls of a task stay on the task's thread.

        With one slot, or one task, they run in order, and their launches use every core.
        """
        threads = min(self.facts.cores, slots, len(tasks))
        if threads <= 1 or getattr(self._inside, "parallel", False):
            for task in tasks:
                task(0)
            return

        def run(task: Callable[[int], None], slot: int) -> None:
            try:
                self._inside.parallel = True
                task(slot)
            finally:
                self._inside.parallel = False

        with one_thread_each():
            self._threads().share(run, tasks, threads)

    def fft(self, fft: RealFft) -> HostFft:
        return HostFft(fft, self.facts.cores)

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        raw = np.empty(nbytes + 63, np.uint8)
        skip = -raw.ctypes.data % 64
        return raw[skip : skip + nbytes]

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: Any = None) -> Any:
        return np.empty(shape, dtype)

    def upload(self, array: Any) -> Any:
        return np.array(array)

    def fill(self, array: Any, byte: int) -> None:
        array.reshape(-1).view(np.uint8).fill(byte)

    def mark(self, stream: Any = None) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def writable(self, out: Any) -> Any:
        """Return the output; a new array if its elements are unaligned, or its strides no multiples of their size."""
        if out is None or (out.flags.aligned and not any(stride % out.itemsize for stride in out.strides)):
            return out
        return np.empty(out.shape, out.dtype)

    def time(self, run: Callable[[], None], repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return time.perf_counter() - begin

    def _threads(self) -> Pool:
        pool, process = self._pool
        if pool is not None and process == os.getpid():  # a forked child inherits no threads
            return pool
        with no_fork(), self._lock:
            pool, process = self._pool
            if pool is None or process != os.getpid():
                pool = Pool(max(self.facts.cores - 1, 1), self._watches)
                self._pool = pool, os.getpid()
            return pool


@cache
def cpu_runtime() -> CpuRuntime:
    """Return the runtime of this machine's CPU, one per process."""
    return CpuRuntime(cpu_facts())


def block_of_items(items: int, flops: int, facts: DeviceFacts) -> int:
    """Return the work items that a thread takes at once: all of a small problem, else two to eight blocks per core."""
    if flops < INLINE_FLOPS or facts.cores == 1:
        return max(items, 1)
    blocks = facts.cores * min(max(flops // (BLOCK_FLOPS * facts.cores), 2), 8)
    return max(1, -(-items // blocks) if blocks < 8 * facts.cores else items // blocks)
