"""Filters factored on the device, the host side of factor.cu. What factors.py does there, with NumPy, is done here."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from convforge.algorithms.contract import PreparedFilter
from convforge.algorithms.include.conv import DECLARED, TYPES, address
from convforge.algorithms.separable.factors import ROUNDINGS
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Elements of a filter for each thread of its block, and the most threads: pairs of lines are rotated by a warp each.
ELEMENTS, MOST_THREADS = 2, 512

# Shared memory that the kernel declares beside the filter's elements is less than this, and a double for each tap of
# a row, a column and each singular value.
DECLARED_BYTES = 1024


class _Factoring(ctypes.Structure):
    """struct Factoring of factor.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "rows", "columns", "ranks", "errors", "scratch")),
        ("strides", ctypes.c_longlong * 4), ("C_GROUP", ctypes.c_int), ("flip", ctypes.c_int),
    )  # fmt: skip


class DeviceFactors:
    """Prepares filters: reads the weights where they lie, casts, flips and factors them, a block each.

    One launch on the caller's stream; nothing waits for it, so it can be captured in a graph.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        self._problem, self._runtime = problem, runtime
        elements = problem.r * problem.s
        threads = min(-(-elements // ELEMENTS // 32) * 32, MOST_THREADS)
        others = DECLARED_BYTES + 8 * (problem.r + problem.s) + 12 * min(problem.r, problem.s)
        in_shared = 8 * elements + others <= runtime.facts.block_shared_bytes
        self._scratch_bytes = 0 if in_shared else 8 * problem.k * problem.c_per_group * elements
        types = (f"using w_t = {TYPES[problem.w_dtype]};", f"using acc_t = {TYPES[problem.acc_dtype]};")
        prelude = constants(R=problem.r, S=problem.s, ROUNDINGS=ROUNDINGS, THREADS=threads, IN_SHARED=in_shared)
        source = KernelSource(
            "algorithms/separable/factor.cu", "factor", (*DECLARED, *types, *prelude), _Factoring, "Factoring"
        )
        self._kernel = runtime.compile(source)
        filters = problem.k * problem.c_per_group
        self._info = LaunchInfo("factor", (filters,), (threads,), 8 * elements if in_shared else 0, early=True)

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        """The factors of these weights.

        Parameters
        ----------
        w : (K, C / groups, R, S) array

        Returns
        -------
        PreparedFilter
            ``w[k, c] = sum over i < ranks[k, c] of outer(columns[k, c, i], rows[k, c, i])``, with room for as many
            products as there can be: min(R, S). Where a filter holds NaN or Inf its only product is all NaN. Its note
            is read from the device when it is asked for, once `stream` has got there.
        """
        problem, runtime = self._problem, self._runtime
        filters, most = problem.w_shape[:2], min(problem.r, problem.s)
        rows = runtime.empty((*filters, most, problem.s), problem.acc_dtype, stream)
        columns = runtime.empty((*filters, most, problem.r), problem.acc_dtype, stream)
        ranks, errors = runtime.empty(filters, "int32", stream), runtime.empty(filters, "float64", stream)
        tensors = {"rows": rows, "columns": columns, "ranks": ranks, "errors": errors}
        scratch = runtime.allocate(self._scratch_bytes, stream) if self._scratch_bytes else None
        strides = (ctypes.c_longlong * 4)(*(step // w.itemsize for step in w.strides))
        args = _Factoring(
            address(w), *map(address, tensors.values()), address(scratch) if self._scratch_bytes else None, strides,
            problem.c_per_group, int(problem.mode == "convolution"),
        )  # fmt: skip
        runtime.launch(self._kernel, self._info, args, stream)

        def note() -> Reason:
            runtime.synchronize(stream)
            return _note(np.asarray(runtime.download(ranks)), np.asarray(runtime.download(errors)))

        return PreparedFilter(tensors, sum(int(t.nbytes) for t in tensors.values()), note)


def _note(ranks: Any, errors: Any) -> Reason:
    """What the filters turned out to be.

    Examples
    --------
    >>> print(_note(np.array([1, 2]), np.array([0.0, 3e-8])))
    rank 2, factor error 3e-08
    """
    error = float(errors.max(initial=0.0))
    if math.isnan(error):
        return Reason("a filter holds NaN or Inf, so its outputs are NaN")
    return Reason("rank {rank}, factor error {error}", rank=int(ranks.max(initial=1)), error=f"{error:.0e}")
