"""Outputs that read only zero padding: their sums are exactly zero, but a transform leaves rounding noise."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Buffers, Call, Launch
from convforge.algorithms.host.conv import conv_constants, fill, with_conv
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.views import view
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem

THREADS = 256


def outside_steps(problem: Conv2dProblem, runtime: Runtime) -> list[Launch | Call]:
    """Steps that store these outputs of float sums after a transform; empty if no output reads only padding."""
    rows, columns = outside(problem)
    if not (rows.any() or columns.any()):
        return []
    return [
        _on_cpu(problem, rows, columns, runtime) if runtime.facts.backend == "cpu" else _on_device(problem, runtime)
    ]


def outside(problem: Conv2dProblem) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Flags of the output rows (P,) and columns (Q,) that read only zero padding.

    Examples
    --------
    >>> rows, columns = outside(Conv2dProblem(n=1, c=1, h=4, w=9, k=1, r=3, s=3, padding=(4, 3, 1, 1)))
    >>> rows.tolist(), int(columns.sum())
    ([True, True, False, False, False, False, False, False, True], 0)
    """
    if problem.padding_mode not in ("zeros", "constant") or problem.outside != 0:
        return np.zeros(problem.p, np.bool_), np.zeros(problem.q, np.bool_)
    top, _, left, _ = problem.padding
    return (
        _outside(problem.p, problem.h, top, problem.r, problem.stride[0], problem.dilation[0]),
        _outside(problem.q, problem.w, left, problem.s, problem.stride[1], problem.dilation[1]),
    )


def _outside(outputs: int, size: int, before: int, taps: int, stride: int, dilation: int) -> NDArray[np.bool_]:
    """Flags of the outputs along an axis that read no pixel."""
    first = np.arange(outputs, dtype=np.int64) * stride - before
    skipped = np.maximum(-(first // dilation), 0)  # taps before the first pixel
    found: NDArray[np.bool_] = (skipped >= taps) | (first + skipped * dilation >= size)
    return found


def _on_cpu(problem: Conv2dProblem, rows: Any, columns: Any, runtime: Runtime) -> Call:
    from convforge.algorithms.host.outside_cpu import store_outside
    from convforge.backends.cpu.runtime import block_of_items

    ends_of_runs = np.flatnonzero(np.diff(columns, prepend=False, append=False))
    runs = np.ascontiguousarray(ends_of_runs.reshape(-1, 2))  # first column, and the column after the last
    zeros, values = np.zeros(problem.q, problem.acc_dtype), np.empty(0, values_dtype(problem))
    items = problem.n * problem.k * problem.p
    info = LaunchInfo("store_outside", (items,), (block_of_items(items, items * problem.q, runtime.facts),))
    kernel = runtime.compile(store_outside)

    def run(buffers: Buffers, stream: Any) -> None:
        out, end = view(buffers["out"], problem.out_layout), epilogue_arguments(problem, buffers)
        args = (zeros, rows, runs, out, end, values, problem.k)
        runtime.launch(kernel, info, args, stream)

    return Call(info, run)


def _on_device(problem: Conv2dProblem, runtime: Runtime) -> Launch:
    struct = with_conv("Outside", problem, outputs=ctypes.c_longlong)
    prelude = (*conv_constants(problem), *constants(OUT_CHANNELS_LAST=problem.out_layout == "NHWC"))
    source = KernelSource("algorithms/host/outside.cu", "store_outside", prelude, struct, "Outside")
    kernel = runtime.compile(source)
    outputs = problem.n * problem.k * problem.p * problem.q
    info = runtime.describe(kernel, LaunchInfo("store_outside", (-(-outputs // THREADS),), (THREADS,)))

    def arguments(buffers: Buffers) -> Any:
        args = struct(outputs=outputs)
        fill(args.conv, problem, buffers)
        return args

    return Launch(info, kernel, arguments, runtime)
