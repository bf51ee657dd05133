"""Ceilings of a device, copy bandwidth and FMA peak, measured before and after a run."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.timing.copies import CPU_BLOCK, copying
from convforge.timing.ring import last_level_cache

# Relative difference of two measurements beyond which the machine's state has changed.
MOVED = 0.10
# Bytes of each array on a GPU, whose bandwidth still rises at hundreds of MB.
COPIED_BYTES = 1 << 30
# Independent chains of a GPU's thread, and multiply-adds of each.
CHAINS, STEPS = 8, 4096


class _MultiplyAdd(ctypes.Structure):
    """struct MultiplyAdd of multiply_add.cu."""

    _fields_ = (("values", ctypes.c_void_p), ("factor", ctypes.c_float), ("addend", ctypes.c_float),
                ("steps", ctypes.c_int))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured ceilings of a device."""

    # Read and written by our copy kernel, on all cores, over arrays that exceed the last-level cache; without the lines
    # that are fetched only to be written.
    copy_bytes_per_s: float
    fma_flops_per_s: float  # float32, two for a multiply-add, in independent register chains on all cores


def measure_ceilings(runtime: Runtime, repeats: int = 5) -> Ceilings:
    """Measure a device's ceilings, the best of `repeats`."""
    if runtime.facts.backend == "cuda":
        return Ceilings(gpu_copy_bandwidth(runtime, repeats), gpu_fma_peak(runtime, repeats))
    return Ceilings(copy_bandwidth(runtime, repeats), fma_peak(runtime, repeats))


def copy_bandwidth(runtime: Runtime, repeats: int = 5) -> float:
    """Bytes per second, read and written, of a copy on all CPU cores."""
    wanted = min(max(4 * last_level_cache(runtime.facts), 64 << 20), 256 << 20)
    floats = wanted // (4 * CPU_BLOCK) * CPU_BLOCK
    source, target = np.ones(floats, np.float32), np.zeros(floats, np.float32)
    run = copying(runtime, source, target)
    run()  # compiles
    if not np.array_equal(source, target):
        raise RuntimeError("the copy kernel did not copy")
    return 2 * source.nbytes / min(runtime.time(run, 1) for _ in range(repeats))


def fma_peak(runtime: Runtime, repeats: int = 5) -> float:
    """float32 operations per second of multiply-adds on all CPU cores."""
    from convforge.backends.cpu.simd import VECTOR_BYTES
    from convforge.timing import cpu

    items, steps, lanes = 4 * runtime.facts.cores, 500_000, VECTOR_BYTES // 4
    values, factors = np.ones(items * cpu.FMA_VECTORS * lanes, np.float32), np.array([0.999, 0.001], np.float32)
    info = LaunchInfo("multiply_add", (items,), (1,))
    kernel = runtime.compile(cpu.multiply_add)

    def run() -> None:
        runtime.launch(kernel, info, (values, factors, steps))

    run()  # compiles
    flops = 2 * values.size * steps
    return flops / min(runtime.time(run, 1) for _ in range(repeats))


def gpu_copy_bandwidth(runtime: Runtime, repeats: int = 5, nbytes: int = COPIED_BYTES) -> float:
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


def gpu_fma_peak(runtime: Runtime, repeats: int = 5) -> float:
    """float32 operations per second of multiply-adds on all SMs."""
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


def moved(before: Ceilings, after: Ceilings) -> Reason | None:
    """Name the ceilings that moved by more than 10 % during a run; None if none did."""
    said = []
    if change := _change(before.copy_bytes_per_s, after.copy_bytes_per_s):
        said.append(Reason("copy bandwidth moved by {share} % ({before} to {after} GB/s)", **change))
    if change := _change(before.fma_flops_per_s, after.fma_flops_per_s):
        said.append(Reason("the FMA peak moved by {share} % ({before} to {after} GFLOP/s)", **change))
    return Reason.joined(said)


def _change(before: float, after: float) -> dict[str, str]:
    """Values of a sentence about a ceiling that moved, or empty."""
    if abs(after - before) <= MOVED * before:
        return {}
    share = f"{100 * (after / before - 1):+.0f}"
    return {"share": share, "before": f"{before / 1e9:.1f}", "after": f"{after / 1e9:.1f}"}
