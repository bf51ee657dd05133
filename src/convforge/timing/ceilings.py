"""Ceilings of a device (copy bandwidth and FMA peak), measured before and after a run."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.timing.copies import CPU_BLOCK, copying
from convforge.timing.ring import last_level_cache

# Relative difference of two measurements beyond which the machine's state has changed.
MOVED = 0.10
COPIED_BYTES = 1 << 30  # size of each array on a GPU; bandwidth still rises at hundreds of MB
# Independent chains of a GPU thread, and multiply-adds of each chain.
CHAINS, STEPS = 8, 4096


class _MultiplyAdd(ctypes.Structure):
    """struct MultiplyAdd of multiply_add.cu."""

    _fields_ = (("values", ctypes.c_void_p), ("factor", ctypes.c_float), ("addend", ctypes.c_float),
                ("steps", ctypes.c_int))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured ceilings of a device."""

    # Bytes read plus bytes written by our copy kernel, on all cores, with arrays that exceed the last-level cache.
    # Cache lines that are read only because they will be written (write-allocate) do not count.
    copy_bytes_per_s: float
    fma_flops_per_s: float  # float32, two per multiply-add, in independent register chains on all cores


def measure_ceilings(runtime: Runtime, repeats: int = 5) -> Ceilings:
    """Measure a device's ceilings: the best of `repeats` runs."""
    return Ceilings(copy_bandwidth(runtime, repeats), fma_peak(runtime, repeats))


def copy_bandwidth(runtime: Runtime, repeats: int = 5) -> float:
    """Measure our copy kernel on the whole device: bytes read plus bytes written, per second."""
    facts, calls = runtime.facts, 1
    nbytes = min(max(4 * last_level_cache(facts), 64 << 20), 256 << 20)
    if facts.backend == "cuda":
        nbytes, calls = COPIED_BYTES, 4
    numbers = np.arange(nbytes // (4 * CPU_BLOCK) * CPU_BLOCK, dtype=np.float32)
    source, target = runtime.upload(numbers), runtime.empty(numbers.shape, np.float32)
    runtime.fill(target, 0xFF)
    run = copying(runtime, source, target)
    run()  # compiles
    runtime.synchronize()
    if not np.array_equal(runtime.download(target), numbers):
        raise RuntimeError("the copy kernel did not copy")
    return 2 * numbers.nbytes / min(runtime.time(run, calls) / calls for _ in range(repeats))


def fma_peak(runtime: Runtime, repeats: int = 5) -> float:
    """Measure the float32 FLOP/s of multiply-adds on all cores or SMs."""
    cores = runtime.facts.cores
    kernel: Any
    args: Any
    if runtime.facts.backend == "cuda":
        threads, steps = cores * runtime.facts.threads, STEPS
        values = runtime.upload(np.ones(threads * CHAINS, np.float32))
        kernel = KernelSource("timing/multiply_add.cu", "multiply_add", (), _MultiplyAdd, "MultiplyAdd")
        grid, args = ((threads // 256,), (256,)), _MultiplyAdd(values.address, 0.999, 0.001, steps)
    else:
        from convforge.backends.cpu.simd import VECTOR_BYTES
        from convforge.timing import cpu

        steps, grid, kernel = 500_000, ((4 * cores,), (1,)), cpu.multiply_add
        values = np.ones(4 * cores * cpu.FMA_VECTORS * VECTOR_BYTES // 4, np.float32)
        args = (values, np.array([0.999, 0.001], np.float32), steps)
    compiled, info = runtime.compile(kernel), LaunchInfo("multiply_add", *grid)

    def run() -> None:
        runtime.launch(compiled, info, args)

    run()  # compiles
    runtime.synchronize()
    return float(2 * values.size * steps) / min(runtime.time(run, 1) for _ in range(repeats))


def moved(before: Ceilings, after: Ceilings) -> Reason | None:
    """Name the ceilings that moved by more than 10 % during a run; None if none did."""
    copies = _change(before.copy_bytes_per_s, after.copy_bytes_per_s)
    peaks = _change(before.fma_flops_per_s, after.fma_flops_per_s)
    said = [Reason("copy bandwidth moved by {share} % ({before} to {after} GB/s)", **copies)] if copies else []
    if peaks:
        said.append(Reason("the FMA peak moved by {share} % ({before} to {after} GFLOP/s)", **peaks))
    return Reason.joined(said)


def _change(before: float, after: float) -> dict[str, str]:
    """Return the values of the message about a ceiling that moved; empty if it did not."""
    if abs(after - before) <= MOVED * before:
        return {}
    share = f"{100 * (after / before - 1):+.0f}"
    return {"share": share, "before": f"{before / 1e9:.1f}", "after": f"{after / 1e9:.1f}"}
