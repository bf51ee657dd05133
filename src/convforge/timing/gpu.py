"""Ceilings of a GPU: the copy kernel's bandwidth, and the FMA peak."""

from __future__ import annotations

import ctypes

import numpy as np

from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.timing.copies import copying

# Bytes of each array: the bandwidth of a GPU still rises at hundreds of MB.
COPIED_BYTES = 1 << 30
CHAINS = 8
STEPS = 4096


class _MultiplyAdd(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("factor", ctypes.c_float), ("addend", ctypes.c_float),
                ("steps", ctypes.c_int))  # fmt: skip


def copy_bandwidth(runtime: Runtime, repeats: int = 5, nbytes: int = COPIED_BYTES) -> float:
    """Bytes per second, read and written, of our copy kernel over two arrays of `nbytes` bytes."""
    count = nbytes // 16
    numbers = np.arange(4 * count, dtype=np.float32)
    source, target = runtime.upload(numbers), runtime.empty((4 * count,), np.float32)
    runtime.fill(target, 0xFF)
    run = copying(runtime, source, target)
    run()
    runtime.synchronize()
    if not np.array_equal(runtime.download(target), numbers):
        raise RuntimeError("the copy kernel did not copy")
    return 2 * 16 * count / min(runtime.time(run, 4) / 4 for _ in range(repeats))


def fma_peak(runtime: Runtime, repeats: int = 5) -> float:
    """float32 operations per second of multiply-adds on all multiprocessors."""
    threads = runtime.facts.cores * runtime.facts.threads
    values = runtime.upload(np.ones(threads * CHAINS, np.float32))
    kernel = runtime.compile(KernelSource("timing/multiply_add.cu", "multiply_add", (), _MultiplyAdd, "MultiplyAdd"))
    info = LaunchInfo("multiply_add", (threads // 256,), (256,))
    args = _MultiplyAdd(values.address, 0.999, 0.001, STEPS)

    def run() -> None:
        runtime.launch(kernel, info, args)

    run()
    runtime.synchronize()
    return 2.0 * threads * CHAINS * STEPS / min(runtime.time(run, 1) for _ in range(repeats))
