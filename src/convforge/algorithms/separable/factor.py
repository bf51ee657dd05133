"""Host side of factor.cu: factorises filters on the device, with the algorithm that factors.py runs in NumPy."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Preparation, PreparedFilter
from convforge.algorithms.host.conv import address
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.separable.factors import ROUNDINGS
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Filter elements per thread of a block, and threads of a block, at most; a warp rotates a pair of lines.
ELEMENTS, MOST_THREADS = 2, 512

# Bytes of shared memory that the kernel declares besides the filter's elements, at most, not counting those
# for each tap of a row, each tap of a column and each singular value.
DECLARED_BYTES = 1024


class _Factoring(ctypes.Structure):
    """The ctypes mirror of struct Factoring in factor.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "rows", "columns", "ranks", "errors", "scratch")),
        ("strides", ctypes.c_longlong * 4), ("C_GROUP", ctypes.c_int), ("flip", ctypes.c_int),
    )  # fmt: skip


class DeviceFactors(Preparation):
    """Prepare filters: read the weights in place, cast and flip them, and factorise each in one block.

    One launch without synchronization, so that a CUDA graph can capture it. It computes ``w[k, c] = sum over i <
    ranks[k, c] of outer(columns[k, c, i], rows[k, c, i])``, with room for min(R, S) products. A filter with NaN or Inf
    gets one product, all NaN. The note is read from the device on demand.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        elements = problem.r * problem.s
        threads = min(-(-elements // ELEMENTS // 32) * 32, MOST_THREADS)
        others = DECLARED_BYTES + 8 * (problem.r + problem.s) + 12 * min(problem.r, problem.s)
        in_shared = 8 * elements + others <= runtime.facts.block_shared_bytes
        types = ElementTypes(w=problem.w_dtype, acc=problem.acc_dtype).prelude()
        prelude = constants(R=problem.r, S=problem.s, ROUNDINGS=ROUNDINGS, THREADS=threads, IN_SHARED=in_shared)
        source = KernelSource("algorithms/separable/factor.cu", "factor", (*types, *prelude), _Factoring, "Factoring")
        filters, most = problem.w_shape[:2], min(problem.r, problem.s)
        count = problem.k * problem.c_per_group
        info = LaunchInfo("factor", (count,), (threads,), 8 * elements if in_shared else 0, pdl=True)
        results = {
            "rows": ((*filters, most, problem.s), problem.acc_dtype),
            "columns": ((*filters, most, problem.r), problem.acc_dtype),
            "ranks": (filters, "int32"), "errors": (filters, "float64"),
        }  # fmt: skip
        scratch = {} if in_shared else {"scratch": ((8 * count * elements,), "uint8")}
        flip = int(problem.mode == "convolution")

        def arguments(buffers: Buffers) -> _Factoring:
            w = buffers["given"]
            strides = (ctypes.c_longlong * 4)(*(step // w.itemsize for step in w.strides))
            room = address(buffers["scratch"]) if scratch else None
            made = [address(buffers[name]) for name in results]
            return _Factoring(address(w), *made, room, strides, problem.c_per_group, flip)

        def factors(buffers: Buffers, stream: Any) -> PreparedFilter:
            tensors = {name: buffers[name] for name in results}

            def note() -> Reason:
                runtime.synchronize(stream)
                ranks, errors = (np.asarray(runtime.download(tensors[name])) for name in ("ranks", "errors"))
                return _note(ranks, errors)

            return PreparedFilter(tensors, sum(int(t.nbytes) for t in tensors.values()), note)

        step = Launch(info, runtime.compile(source), arguments, runtime)
        super().__init__(runtime, {**results, **scratch}, [step], factors)


def _note(ranks: Any, errors: Any) -> Reason:
    """Describe the factors of all filters.

    Examples
    --------
    >>> print(_note(np.array([1, 2]), np.array([0.0, 3e-8])))
    rank 2, factor error 3e-08
    """
    error = float(errors.max(initial=0.0))
    if math.isnan(error):
        return Reason("a filter holds NaN or Inf, so its outputs are NaN")
    return Reason("rank {rank}, factor error {error}", rank=int(ranks.max(initial=1)), error=f"{error:.0e}")
