"""Filters in constant memory. Each prepared filter has its own loaded module, so that two streams never race for one.

All launches of a module's kernel read the same constant memory. When a prepared filter is deleted, the next filter of
the same plan on the same stream reuses its module: the stream copies the new weights after the earlier launches.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

from convforge.algorithms.contract import Buffers, Call, PreparedFilter
from convforge.algorithms.host.conv import WeightPacker, address
from convforge.algorithms.host.staged import InGlobalMemory
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

CONSTANT_BYTES = 64 << 10  # constant memory of a module


class _Module:
    __slots__ = ("__weakref__", "kernel", "streams")

    def __init__(self, kernel: Any, streams: set[int]) -> None:
        self.kernel, self.streams = kernel, streams


def weight_bytes(problem: Conv2dProblem) -> int:
    return problem.k * problem.taps * itemsize(problem.acc_dtype)


def fits_constant_memory(problem: Conv2dProblem) -> bool:
    return weight_bytes(problem) <= CONSTANT_BYTES


class GlobalWeights(InGlobalMemory, WeightPacker):
    def __init__(self, problem: Conv2dProblem, runtime: Runtime, kernel: Any) -> None:
        super().__init__(problem, runtime)
        self._kernel = kernel


class ConstantWeights:
    """Stores each prepared filter in ``weights[K * TAPS]`` of a copy of the kernel. The original is never launched."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, kernel: Any) -> None:
        # A runtime with constant memory has the methods instance, stream_handle and copy; its kernels have symbol.
        self._runtime: Any = runtime
        self._problem = problem
        self._kernel = kernel
        self._pack = WeightPacker(problem, runtime)
        self._free: dict[int, list[Any]] = {}
        self._captured: list[Any] = []
        self._lock = threading.RLock()  # reentrant: garbage collection may delete a filter while one is made

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Prepare a filter from weights; pack them first (:class:`WeightPacker`) if necessary."""
        packed = PreparedFilter({}, 0) if self._is_packed(w) else self._pack(w, stream)
        module = self._take(self._runtime.stream_handle(stream), getattr(stream, "capturing", False))
        target, nbytes = module.kernel.symbol("weights")
        self._runtime.copy(target, address(packed.tensors.get("w", w)), nbytes, stream)
        return PreparedFilter({**packed.tensors, "module": module}, packed.nbytes + nbytes)

    def _is_packed(self, w: Any) -> bool:
        problem, sizes = self._problem, self._problem.w_shape
        steps = [math.prod(sizes[i + 1 :]) * w.itemsize for i in range(4)]
        dense = all(size == 1 or step == own for size, step, own in zip(sizes, steps, w.strides, strict=True))
        return dense and problem.mode == "cross-correlation" and problem.w_dtype == problem.acc_dtype

    def step(self, info: LaunchInfo, arguments: Callable[[Buffers], Any]) -> Call:
        """Make the step that launches the kernel of the filter's module."""

        def run(buffers: Buffers, stream: Any) -> None:
            module: _Module = buffers["w"].tensors["module"]
            module.streams.add(self._runtime.stream_handle(stream))
            self._runtime.launch(module.kernel, info, arguments(buffers), stream)

        return Call(info, run)

    def _take(self, stream: int, capturing: bool) -> _Module:
        """Take a free module of this stream, or load one. A module of a captured graph is never reused."""
        with self._lock:
            free = self._free.get(stream)
            kernel = free.pop() if free else None
        module = _Module(self._runtime.instance(self._kernel) if kernel is None else kernel, {stream})
        if capturing:
            self._captured.append(module.kernel)
            return module
        weakref.finalize(module, self._give_back, module.kernel, module.streams).atexit = False
        return module

    def _give_back(self, kernel: Any, streams: set[int]) -> None:
        """Keep a module for reuse on its stream. Drop it if several streams used it: none orders its next use."""
        if len(streams) == 1:
            with self._lock:
                self._free.setdefault(next(iter(streams)), []).append(kernel)


def either_weights(problem: Conv2dProblem, runtime: Runtime, kernel: Any) -> ConstantWeights | GlobalWeights:
    """Choose constant memory if the filter fits there, else global memory (CONSTANT_WEIGHTS in filter.cuh)."""
    return (ConstantWeights if fits_constant_memory(problem) else GlobalWeights)(problem, runtime, kernel)
