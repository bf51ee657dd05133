"""Weights of 9 bits as pairs of bytes, for kernels that multiply bytes alone; host side of byte_pairs.cu."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Preparation
from convforge.algorithms.host.chained import Chained
from convforge.algorithms.host.conv import address
from convforge.algorithms.implicit_gemm.stages import passes_of, problem_of_bytes
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem

NAME, THREADS = "pairs", 256


class _BytePairs(ctypes.Structure):
    """struct BytePairs of byte_pairs.cu."""

    _fields_ = (
        ("w", ctypes.c_void_p), ("pairs", ctypes.c_void_p), ("strides", ctypes.c_longlong * 4),
        ("count", ctypes.c_longlong), *((name, ctypes.c_int) for name in ("C", "R", "S")),
    )  # fmt: skip


def in_byte_pairs(
    problem: Conv2dProblem, runtime: Runtime, packer: Callable[[Conv2dProblem], Preparation]
) -> Preparation:
    """Preparation by a `packer` of weights, which gets a problem with the weights of both passes, if there are two.

    These are 2 K filters of int8: see :func:`~convforge.algorithms.implicit_gemm.stages.passes_of`.
    """
    if passes_of(problem) == 1:
        return packer(problem)
    (k, c, r, s), count = problem.w_shape, math.prod(problem.w_shape)
    both = problem_of_bytes(problem).replace(k=2 * k)
    source = KernelSource("algorithms/implicit_gemm/byte_pairs.cu", "byte_pairs", (), _BytePairs, "BytePairs")
    info = LaunchInfo("byte_pairs", (-(-count // THREADS),), (THREADS,), pdl=True)

    def arguments(buffers: Buffers) -> Any:
        w = buffers["given"]
        strides = (ctypes.c_longlong * 4)(*(step // w.itemsize for step in w.strides))
        return _BytePairs(address(w), address(buffers[NAME]), strides, count, c, r, s)

    launch = Launch(info, runtime.compile(source), arguments, runtime)
    return Chained(runtime, [launch], packer(both), NAME, ((2 * k, c, r, s), "int8"), lambda buffers: buffers[NAME])
