"""The host side of amax.cuh: the largest absolute value of the results, which FP8 methods keep beside them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from convforge.algorithms.contract import Buffers, Launch
from convforge.algorithms.host.conv import address
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem


class Amax(ctypes.Structure):
    """struct Amax of amax.cuh."""

    _fields_ = (("largest", ctypes.c_void_p), ("scale", ctypes.c_float))


class _ClearAmax(ctypes.Structure):
    """struct ClearAmax of clear_amax.cu."""

    _fields_ = (("largest", ctypes.c_void_p),)


def amax_fields(problem: Conv2dProblem) -> Mapping[str, Any]:
    """The field of a kernel's struct, with its type; none without amax."""
    return {"amax": Amax} if problem.epilogue.amax else {}


def put_amax(args: Any, problem: Conv2dProblem, buffers: Buffers) -> None:
    """Fill this field for a call."""
    if problem.epilogue.amax:
        args.amax = Amax(address(buffers["amax"]), problem.epilogue.amax_scale)


def clear_amax(problem: Conv2dProblem, runtime: Runtime) -> tuple[Launch, ...]:
    """The step that sets amax to 0 before the kernels that raise it; none without amax."""
    if not problem.epilogue.amax:
        return ()
    source = KernelSource("algorithms/implicit_gemm/clear_amax.cu", "clear_amax", (), _ClearAmax, "ClearAmax")

    def arguments(buffers: Buffers) -> Any:
        return _ClearAmax(address(buffers["amax"]))

    info = LaunchInfo("clear_amax", (1,), (1,), pdl=True)
    return (Launch(info, runtime.compile(source), arguments, runtime),)
