"""The first step of im2col on GPUs: the kernel that writes columns of the matrix."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Launch
from convforge.algorithms.host.conv import MOST_BLOCKS, address, conv_constants, fill, with_conv
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

THREADS = 256
ALIGNMENT = 256  # of the columns in the workspace, in bytes


class Expansion:
    """The expansion's kernel for one problem; `entries` is the type of the matrix's entries."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, entries: str) -> None:
        self._problem, self._runtime = problem, runtime
        self._column = problem.c * problem.r * problem.s * itemsize(entries)
        self._read = _bytes_read(problem)
        # Neighbouring columns of a thread, stored at once: four need so many registers that too few threads run. With
        # more taps the unrolled code of two would be large.
        self._per = 2 if problem.r * problem.s <= 64 else 1
        self._struct = with_conv(
            "Expansion", problem, columns=ctypes.c_void_p, first=ctypes.c_longlong, count=ctypes.c_int
        )
        own = constants(THREADS=THREADS, PIXELS_CONTIGUOUS=pixels_contiguous(problem), PER=self._per)
        lines = (*conv_constants(problem, entries), *own)
        source = KernelSource("algorithms/im2col/im2col.cu", "im2col", lines, self._struct, "Expansion")
        self._kernel = runtime.compile(source)
        self._info = cache(self._described)

    def nbytes(self, count: int) -> int:
        """Bytes of so many columns, in multiples of ALIGNMENT."""
        return -(-count * self._column // ALIGNMENT) * ALIGNMENT

    def launch(self, first: int, count: int) -> Launch:
        """The launch that writes columns [first, first + count) of all to the workspace."""
        total = self._problem.n * self._problem.p * self._problem.q
        moved = self._column * count + self._read * (first + count) // total - self._read * first // total

        def arguments(buffers: Buffers) -> Any:
            args = self._struct(columns=columns_at(buffers), first=first, count=count)
            fill(args.conv, self._problem, buffers)
            return args

        return Launch(self._info(count), self._kernel, arguments, self._runtime, "expansion", moved)

    def _described(self, count: int) -> LaunchInfo:
        grid: tuple[int, ...] = (-(-count * self._problem.c // THREADS),)
        if pixels_contiguous(self._problem):
            grid = (-(-count // (THREADS * self._per)), min(self._problem.c, MOST_BLOCKS))
        return self._runtime.describe(self._kernel, LaunchInfo("im2col", grid, (THREADS,)))


def pixels_contiguous(problem: Conv2dProblem) -> bool:
    """Tell if neighbours in the matrix are pixels, so that rows are entries (c, r, s); else they are channels."""
    return problem.x_layout != "NHWC" or problem.c_per_group < 16  # with more, they fill a line of memory


def columns_at(buffers: Buffers) -> int:
    return -(-address(buffers["workspace"]) // ALIGNMENT) * ALIGNMENT


def _bytes_read(problem: Conv2dProblem) -> int:
    """Bytes of x under some window: strides may skip rows and columns. Pixels that only a border reads do not count."""

    def read(size: int, outputs: int, taps: int, stride: int, dilation: int, before: int) -> int:
        at = np.add.outer(np.arange(outputs) * stride, np.arange(taps) * dilation - before).ravel()
        return len(np.unique(at[(at >= 0) & (at < size)]))

    rows = read(problem.h, problem.p, problem.r, problem.stride[0], problem.dilation[0], problem.padding[0])
    columns = read(problem.w, problem.q, problem.s, problem.stride[1], problem.dilation[1], problem.padding[2])
    return problem.n * problem.c * rows * columns * itemsize(problem.x_dtype)
