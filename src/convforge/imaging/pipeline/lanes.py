"""Lanes: each filters one image at a time on a device; several lanes overlap upload, kernel and download.

A lane of a GPU has its own stream, pinned host buffers (for copies by DMA) and device buffers. Buffers grow to the size
of the largest image and are reused. On the CPU nothing is copied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Plan, PreparedFilter
from convforge.backends.cpu.limits import memory_limit
from convforge.backends.runtime import Runtime
from convforge.call.dispatch import find_plan, prepared_plan, runtime_of
from convforge.imaging.filtering import FilterOptions, plan_filter
from convforge.problem import compile_key
from convforge.problem.types import VECTOR_BYTES

# Number of lanes by backend. On the CPU, kernels use all cores, so a second image at a time would only slow down the
# first. On a GPU, three images can be in upload, kernel and download at the same time.
LANES = {"cpu": 1, "emulator": 2, "cuda": 3}

# Buffer sizes are multiples of this many bytes, so that a slightly larger image needs no new buffer.
GRAIN = 1 << 20

# Side in pixels of the part of an image that is filtered to compile the kernels, before an image is timed.
WARM_SIDE = 1024


@dataclass(slots=True)
class Clock:
    """Busy seconds by name, summed over threads. Thread-safe."""

    seconds: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Context that adds the seconds of its block to a name, even if the block raises."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - begin)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured otherwise, such as by a GPU's events."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds


class Lane(Protocol):
    """Runs a plan on a host array, from one thread at a time."""

    def __call__(
        self, plan: Plan, x: NDArray[Any], prepared: PreparedFilter, clock: Clock, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return the result, and add the seconds of each stage to the clock.

        With `out`, the result is written to it, and on a GPU both arrays are of a :class:`HostRing`; else it is new.
        """


def memory_share() -> int:
    """Return the bytes of host memory that all images may use together: a quarter of what this process may use."""
    machine = runtime_of("cpu").facts.memory_bytes
    return min(machine, memory_limit() or machine) // 4


def lanes_of(runtime: Runtime) -> list[AbstractContextManager[Lane]]:
    """Return the lanes of a device: contexts, which the thread that uses a lane must enter."""
    backend = runtime.facts.backend
    return [nullcontext(host_lane) if backend == "cpu" else _device_lane(runtime) for _ in range(LANES[backend])]


@contextmanager
def _device_lane(runtime: Runtime) -> Iterator[Lane]:
    with runtime.stream() as stream:
        yield DeviceLane(runtime, stream)


def host_lane(
    plan: Plan, x: NDArray[Any], prepared: PreparedFilter, clock: Clock, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Run a plan on the CPU, which reads the image in place."""
    out = np.empty(plan.problem.out_shape, plan.problem.out_dtype) if out is None else out
    with clock("filter"):
        plan(plan.buffers(x, prepared, out=out))
    return out


class DeviceLane:
    """A stream of a GPU with its own pinned buffers and device buffers."""

    def __init__(self, runtime: Runtime, stream: Any) -> None:
        self._runtime, self._stream = runtime, stream

        def on_device(nbytes: int) -> Any:
            return runtime.allocate(nbytes, stream)

        self._host_x, self._host_out = _Buffer(runtime.pinned), _Buffer(runtime.pinned)
        self._x, self._out, self._workspace = _Buffer(on_device), _Buffer(on_device), _Buffer(on_device)

    def __call__(
        self, plan: Plan, x: NDArray[Any], prepared: PreparedFilter, clock: Clock, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Run a plan; without `out`, the times of upload and download include copies to and from pinned memory."""
        runtime, stream = self._runtime, self._stream
        shape, dtype = plan.problem.out_shape, np.dtype(plan.problem.out_dtype)
        host_x = self._host_x.array(x.shape, x.dtype) if out is None else x
        host_out = self._host_out.array(shape, dtype) if out is None else out
        there_x, there_out = self._x.array(x.shape, x.dtype), self._out.array(shape, dtype)
        workspace = self._workspace.bytes(plan.workspace_bytes) if plan.workspace_bytes else None
        if out is None:
            with clock("upload"):
                np.copyto(host_x, x)
        try:
            begin = runtime.mark(stream)
            runtime.begin_copy(there_x, host_x, stream)
            sent = runtime.mark(stream)
            plan(plan.buffers(there_x, prepared, None, there_out, workspace), stream)
            computed = runtime.mark(stream)
            runtime.begin_copy(host_out, there_out, stream)
            fetched = runtime.mark(stream)
        finally:  # also after an error: pending work still uses the buffers
            runtime.synchronize(stream)
        for name, first, last in (("upload", begin, sent), ("filter", sent, computed), ("download", computed, fetched)):
            clock.add(name, runtime.seconds(first, last))
        if out is not None:
            return out
        with clock("download"):
            return np.array(host_out)


class _Buffer:
    """Reusable memory, allocated again only if more bytes are needed."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._kept: Any = None

    def bytes(self, nbytes: int) -> Any:
        if self._kept is None or self._kept.nbytes < nbytes:
            self._kept = None  # free first: there may not be memory for both
            self._kept = self._allocate(-(-nbytes // GRAIN) * GRAIN)
        return self._kept[:nbytes]

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self.bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


class HostRing:
    """Host arrays that are used again and again: new memory costs more than the copy of an image into it.

    The arrays of a GPU are pinned, so that copies to and from it need no further copy. `nbytes` are the bytes of the
    largest array. Thread-safe.
    """

    def __init__(self, runtime: Runtime, nbytes: int) -> None:
        self._runtime, self._nbytes = runtime, nbytes
        self._free: list[NDArray[np.uint8]] = []
        self._lent: dict[int, NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Lend an array, whose content is undefined."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            memory = self._free.pop() if self._free else None
        if memory is None:
            memory = self._runtime.pinned(self._nbytes)
        with self._lock:
            self._lent[_address(memory)] = memory
        array: NDArray[Any] = memory[:nbytes].view(dtype).reshape(shape)
        return array

    def give(self, array: NDArray[Any]) -> None:
        """Take an array back; one that is not of this ring is left alone."""
        with self._lock:
            memory = self._lent.pop(_address(array), None)
            if memory is not None:
                self._free.append(memory)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class Convolved(NamedTuple):
    """The result of a convolution as (T, P, Q, K), the plan that computed it, and the prepared weights."""

    sums: NDArray[Any]
    plan: Plan
    prepared: PreparedFilter


class Convolver:
    """Filters images with one kernel (R, S) on any lane; images of equal size and type share a plan. Thread-safe.

    `clock` gets the seconds of "plan", of "first call" (the kernels of a plan are compiled or read from the cache, by a
    call on a part of its first image), and of the stages of the lane.
    """

    def __init__(self, taps: NDArray[Any], clock: Clock, device: str | None, **options: Unpack[FilterOptions]) -> None:
        self._taps, self._clock, self._device, self._options = taps, clock, device, options
        self._prepared: dict[Any, PreparedFilter] = {}
        self._compiled: set[Any] = set()
        self._lock = threading.Lock()

    def __call__(self, lane: Lane, image: NDArray[Any], **more: Unpack[FilterOptions]) -> Convolved:
        """Filter an image or a stack of images; errors are those of :func:`convforge.filter`."""
        with self._lock, self._clock("plan"):
            options: FilterOptions = {**self._options, **more}
            plan, x, w = plan_filter(image, self._taps, device=self._device, **options)
        return self.run(lane, plan, x, w)

    def run(
        self, lane: Lane, plan: Plan, x: NDArray[Any], w: NDArray[Any], out: NDArray[Any] | None = None
    ) -> Convolved:
        """Run a plan on x (T, H, W, C) with weights w, which are prepared once for each plan; see :class:`Lane`."""
        with self._lock:  # without the lock two lanes would compile the same kernel
            with self._clock("plan"):
                prepared = self._prepare(plan, w)
            self._compile(lane, plan, x, w)
        return Convolved(lane(plan, x, prepared, self._clock, out), plan, prepared)

    def _prepare(self, plan: Plan, w: NDArray[Any]) -> PreparedFilter:
        prepared = prepared_plan(plan, w, self._prepared)
        plan.runtime.synchronize()  # weights were prepared on the runtime's stream; the lane's stream reads them
        return prepared

    def _compile(self, lane: Lane, plan: Plan, x: NDArray[Any], w: NDArray[Any]) -> None:
        """Compile a plan's kernels: run its method and config on a part of an image."""
        config = "" if plan.runtime.facts.backend == "cpu" else str(plan.config)  # on the CPU no config is compiled in
        kind = (plan.algorithm.key, compile_key(plan.problem), config)
        if kind in self._compiled:
            return
        with self._clock("first call"):
            side = max(WARM_SIDE, 2 * max(self._taps.shape))
            width = side + (x.shape[2] - side) % (VECTOR_BYTES * plan.problem.stride[1])  # keeps rows' vector width
            part = np.ascontiguousarray(x[:1, :side, :width])
            small = plan.problem.replace(n=1, h=part.shape[1], w=part.shape[2])
            warm = find_plan(small, plan.algorithm.name, plan.config, self._device, None)
            lane(warm, part, self._prepare(warm, w), Clock())
        self._compiled.add(kind)
