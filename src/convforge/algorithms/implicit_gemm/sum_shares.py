"""Host side of sum_shares.cu: the sums of tiles that shared a product's channels, added up (split-K)."""

from __future__ import annotations

import ctypes
from typing import Any

from convforge.algorithms.contract import Buffers, Launch
from convforge.algorithms.implicit_gemm.pixel_rows import BEGINS, Rows
from convforge.algorithms.include.conv import address, conv_constants, fill, with_conv
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.epilogue import Epilogue

# Threads of a block.
THREADS = 256


def problem_of_shares(problem: Conv2dProblem) -> Conv2dProblem:
    """Give the problem whose results are the sums of one share: floats in NHWC, before the epilogue."""
    return problem.replace(out_dtype="float32", out_layout="NHWC", epilogue=Epilogue())


class SumShares:
    """The step that adds up sums in the workspace, and takes them through the epilogue.

    Parameters
    ----------
    count : int
        Shares.
    behind : int
        Bytes of the workspace that others use, before the sums.

    Attributes
    ----------
    launch : Launch
    nbytes : int
        Of the workspace.
    """

    def __init__(self, problem: Conv2dProblem, count: int, behind: int, runtime: Runtime) -> None:
        self._shape, self._behind = problem_of_shares(problem).out_shape, behind
        self.nbytes = count * problem.outputs * 4 + BEGINS - 1
        struct = with_conv("SumShares", problem, sums=ctypes.c_void_p, count=ctypes.c_int)
        lines = (*conv_constants(problem), *constants(SPLIT_K=count))
        source = KernelSource("algorithms/implicit_gemm/sum_shares.cu", "sum_shares", lines, struct, "SumShares")
        lanes = 4 if problem.k % 4 == 0 else 1
        info = LaunchInfo("sum_shares", (-(-problem.outputs // (THREADS * lanes)),), (THREADS,), early=True)

        def arguments(buffers: Buffers) -> Any:
            args = struct(sums=self.array(buffers).address, count=problem.outputs)
            fill(args.conv, problem, buffers)
            return args

        self.launch = Launch(info, runtime.compile(source), arguments, runtime)

    def array(self, buffers: Buffers) -> Rows:
        """Give the sums of the first share in a call's workspace; those of the others follow."""
        n, p, q, k = self._shape
        at = -(-(address(buffers["workspace"]) + self._behind) // BEGINS) * BEGINS
        return Rows(at, (n, p, q, k), (4 * p * q * k, 4 * q * k, 4 * k, 4), 4)
