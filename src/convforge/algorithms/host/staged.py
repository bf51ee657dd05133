"""Host side of filter.cuh: filters that blocks read from the user's array and stage in shared memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Preparation, PreparedFilter
from convforge.algorithms.host.conv import Strides, WeightPacker, address
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import WIDE, itemsize

STAGED_BYTES = 8 << 10  # most shared memory for the filter: with more, fewer blocks run on an SM


class Filter(ctypes.Structure):
    """struct Filter of filter.cuh."""

    _fields_ = (("taps", ctypes.c_void_p), ("strides", Strides))


def staged_bytes(problem: Conv2dProblem) -> int:
    """Shared memory of the filter in bytes, with rows of taps aligned to 16 bytes."""
    lanes = 16 // itemsize(problem.acc_dtype)
    pitch = -(-problem.s // lanes) * lanes
    return problem.k * problem.c_per_group * problem.r * pitch * itemsize(problem.acc_dtype)


def staging_refusal(problem: Conv2dProblem) -> Reason | None:
    """The reason why blocks cannot stage the filter; None if they can."""
    if (nbytes := staged_bytes(problem)) <= STAGED_BYTES:
        return None
    return Reason(
        "the filter takes {need} bytes of shared memory; a block may spend {most} on it", need=nbytes, most=STAGED_BYTES
    )


class InGlobalMemory:
    """Weights that their kernel reads from global memory."""

    _kernel: Any
    _runtime: Runtime

    def step(self, info: LaunchInfo, arguments: Callable[[Buffers], Any]) -> Launch:
        return Launch(info, self._kernel, arguments, self._runtime)


class StagedWeights(InGlobalMemory):
    """Prepares filters for kernels that stage a :class:`Filter`: a call copies the weights, `borrow` does not."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, kernel: Any) -> None:
        self._problem, self._runtime, self._kernel = problem, runtime, kernel
        self.borrow = Preparation(runtime, {}, (), self._borrowed)

    @cached_property
    def _copy(self) -> WeightPacker:
        """Packer that copies weights, compiled at first use, because most calls read the user's array."""
        return WeightPacker(self._problem, self._runtime, dtype=self._problem.w_dtype)

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Copy the weights in cross-correlation order."""
        return self._copy(w, stream)

    def _borrowed(self, buffers: Buffers, stream: Any) -> PreparedFilter:
        flipped = {"flipped": True} if self._problem.mode == "convolution" else {}
        return PreparedFilter({"w": buffers["given"], **flipped}, 0)

    def filter(self, prepared: PreparedFilter) -> Filter:
        return filter_from(prepared.tensors["w"], "flipped" in prepared.tensors)


def filter_from(w: Any, flipped: bool) -> Filter:
    """The kernel's argument for the user's weights, in cross-correlation order.

    Raises ValueError for strides too large for 32-bit indices.
    """
    steps = [step // w.itemsize for step in w.strides]
    if sum([(size - 1) * abs(step) for size, step in zip(w.shape, steps, strict=True)]) > WIDE:
        raise ValueError(f"weights of shape {w.shape} have strides of {steps} elements; make them contiguous first")
    start = address(w)
    if flipped:
        start += ((w.shape[2] - 1) * steps[2] + (w.shape[3] - 1) * steps[3]) * w.itemsize
        steps[2], steps[3] = -steps[2], -steps[3]
    return Filter(start, Strides(*steps))
