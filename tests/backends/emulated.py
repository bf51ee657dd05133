"""Small kernels for the emulator, written where they are tested."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convforge.backends.emulator import EmulatorRuntime, why_absent
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo

# Where g++ is missing these tests are skipped at home; in CI they run, and fail.
needs_emulator = pytest.mark.skipif(
    why_absent() is not None and not os.environ.get("CI"), reason=why_absent() or "the emulator is there"
)


class Args(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("out", ctypes.c_void_p), ("n", ctypes.c_int))


# Every order, and the shuffled one as several.
ORDERS = [("forward", 0), ("backward", 0), *(("shuffled", seed) for seed in range(3))]


def source(folder: Path, body: str, x: str = "float", out: str = "float", before: str = "") -> KernelSource:
    """A kernel of this body over args.x, args.out and args.n; its first line is line 1."""
    head = (
        f'#include "memory.cuh"\n#include "types.cuh"\nstruct Args {{ const {x} *x; {out} *out; int n; }};\n{before}\n'
    )
    text = f'{head}extern "C" __global__ void tried(const __grid_constant__ Args args) {{\n#line 1\n{body}\n}}\n'
    path = folder / "tried.cu"
    path.write_text(text)
    return KernelSource(str(path), "tried", (), Args, "Args")


def run(
    kernel: KernelSource,
    x: NDArray[Any],
    out: NDArray[Any],
    threads: int = 64,
    blocks: int = 1,
    *,
    n: int = 0,
    dynamic: int = 0,
    runtime: EmulatorRuntime | None = None,
) -> NDArray[Any]:
    """Launch over one-dimensional blocks; returns `out`."""
    runtime = EmulatorRuntime() if runtime is None else runtime
    info = LaunchInfo("tried", (blocks,), (threads,), dynamic)
    runtime.launch(runtime.compile(kernel), info, Args(x.ctypes.data, out.ctypes.data, n))
    return out


def in_every_order(kernel: KernelSource, x: NDArray[Any], size: int, **options: Any) -> list[NDArray[np.float32]]:
    """The outputs of a kernel in every order of its threads, each from an output of zeros."""
    return [run(kernel, x, np.zeros(size, np.float32), runtime=EmulatorRuntime(*order), **options) for order in ORDERS]
