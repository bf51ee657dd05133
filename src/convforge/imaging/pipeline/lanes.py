"""A lane takes one image after the other through a device. Several lanes overlap: while one uploads, another
computes and a third downloads.

A device's lane has a stream and buffers of its own, which grow to the largest image and are used again: pinned ones,
from and to which the device copies by itself, and the device's. On the CPU nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Plan, PreparedFilter
from convforge.backends.runtime import Runtime
from convforge.call.dispatch import runtime_of
from convforge.imaging.pipeline.clock import Clock

# Lanes by backend. The CPU's kernels take every core, so a second image would only be in the way of the first. On a
# GPU, one lane for each of upload, kernel and download.
LANES = {"cpu": 1, "emulator": 2, "cuda": 3}

# Buffers are whole multiples of this many bytes, so that a slightly larger image needs no new one.
GRAIN = 1 << 20


def memory_share() -> int:
    """Bytes of the host's memory that images may take together: a quarter."""
    return runtime_of("cpu").facts.memory_bytes // 4


class Lane(Protocol):
    """What takes images through a device, from one thread at a time."""

    def __call__(self, plan: Plan, x: NDArray[Any], prepared: PreparedFilter, clock: Clock) -> NDArray[Any]:
        """Run a plan on a host array; a new host array, and the seconds of "upload", "filter" and "download"."""
        ...


def lanes_of(runtime: Runtime) -> list[AbstractContextManager[Lane]]:
    """As many lanes as suit a device; each is entered by the thread that will use it."""
    if runtime.facts.backend == "cpu":
        return [_host_lane() for _ in range(LANES["cpu"])]
    return [_device_lane(runtime) for _ in range(LANES[runtime.facts.backend])]


@contextmanager
def _host_lane() -> Iterator[Lane]:
    yield HostLane()


@contextmanager
def _device_lane(runtime: Runtime) -> Iterator[Lane]:
    with runtime.stream() as stream:
        yield DeviceLane(runtime, stream)


class HostLane:
    """The CPU: a plan reads the image where it lies."""

    def __call__(self, plan: Plan, x: NDArray[Any], prepared: PreparedFilter, clock: Clock) -> NDArray[Any]:
        """See :class:`Lane`; nothing is uploaded or downloaded."""
        out = np.empty(plan.problem.out_shape, plan.problem.out_dtype)
        with clock("filter"):
            plan(plan.buffers(x, prepared, out=out))
        return out


class DeviceLane:
    """A stream of a device, with pinned buffers and the device's own.

    Parameters
    ----------
    runtime : Runtime
    stream
        That nobody else uses.
    """

    def __init__(self, runtime: Runtime, stream: Any) -> None:
        self._runtime, self._stream = runtime, stream

        def on_device(nbytes: int) -> Any:
            return runtime.allocate(nbytes, stream)

        self._host_x, self._host_out = _Buffer(runtime.pinned), _Buffer(runtime.pinned)
        self._x, self._out, self._workspace = _Buffer(on_device), _Buffer(on_device), _Buffer(on_device)

    def __call__(self, plan: Plan, x: NDArray[Any], prepared: PreparedFilter, clock: Clock) -> NDArray[Any]:
        """See :class:`Lane`; upload and download include the copies to and from pinned memory."""
        runtime, stream = self._runtime, self._stream
        shape, dtype = plan.problem.out_shape, np.dtype(plan.problem.out_dtype)
        host_x, host_out = self._host_x.array(x.shape, x.dtype), self._host_out.array(shape, dtype)
        there_x, there_out = self._x.array(x.shape, x.dtype), self._out.array(shape, dtype)
        workspace = self._workspace.bytes(plan.workspace_bytes) if plan.workspace_bytes else None
        with clock("upload"):
            np.copyto(host_x, x)
        try:
            begin = runtime.mark(stream)
            runtime.send(there_x, host_x, stream)
            sent = runtime.mark(stream)
            plan(plan.buffers(there_x, prepared, None, there_out, workspace), stream)
            computed = runtime.mark(stream)
            runtime.fetch(host_out, there_out, stream)
            fetched = runtime.mark(stream)
        finally:  # also after a failure: what was begun still uses the buffers
            runtime.synchronize(stream)
        for name, first, last in (("upload", begin, sent), ("filter", sent, computed), ("download", computed, fetched)):
            clock.add(name, runtime.seconds(first, last))
        copied = perf_counter()
        out = np.array(host_out)
        clock.add("download", perf_counter() - copied)
        return out


class _Buffer:
    """A run of bytes that grows to the largest piece that was asked of it."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._kept: Any = None

    def bytes(self, nbytes: int) -> Any:
        """`nbytes` bytes, the same ones as before where they were enough."""
        if self._kept is None or self._kept.nbytes < nbytes:
            self._kept = None  # goes back first: both may not fit
            self._kept = self._allocate(-(-nbytes // GRAIN) * GRAIN)
        return self._kept[:nbytes]

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """The bytes as an array."""
        return self.bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
