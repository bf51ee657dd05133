"""Lanes: each filters one image at a time on a device; several lanes overlap upload, kernel and download.

A lane of a GPU has its own stream, pinned host buffers (for copies by DMA) and device buffers. Buffers grow to the size
of the largest image and are reused. On the CPU nothing is copied.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
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


class PreparedPlan(NamedTuple):
    """A plan that a lane runs, with its weights."""

    plan: Plan
    prepared: PreparedFilter

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.plan.problem.out_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.plan.problem.out_dtype)
        return dtype


class Lane(Protocol):
    """Runs plans on a host array, from one thread at a time."""

    def __call__(
        self, plans: Sequence[PreparedPlan], x: NDArray[Any], clock: Clock, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return the result of the last plan, and add the seconds of each step to the clock.

        Each plan reads the result of the one before, in the shape that its problem gives. With `out`, the result is
        written to it, and on a GPU both arrays are of a :class:`HostRing`, pinned; else it is new.
        """


def memory_share() -> int:
    """Return the bytes of host memory that all images may use together: a quarter of what this process may use."""
    machine = runtime_of("cpu").facts.memory_bytes
    return min(machine, memory_limit() or machine) // 4


def lanes_of(runtime: Runtime) -> list[AbstractContextManager[Lane]]:
    """Return the lanes of a device: contexts, which the thread that uses a lane must enter."""
    backend = runtime.facts.backend
    return [nullcontext(HostLane()) if backend == "cpu" else _device_lane(runtime) for _ in range(LANES[backend])]


@contextmanager
def _device_lane(runtime: Runtime) -> Iterator[Lane]:
    with runtime.stream() as stream:
        yield DeviceLane(runtime, stream)


class HostLane:
    """The CPU, which reads an image in place, with a buffer for each plan's result but the last."""

    def __init__(self) -> None:
        self._between = _Buffers(lambda nbytes: np.empty(nbytes, np.uint8))

    def __call__(
        self, plans: Sequence[PreparedPlan], x: NDArray[Any], clock: Clock, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        *before, last = plans
        result = np.empty(last.shape, last.dtype) if out is None else out
        with clock("filter"):
            targets = [*self._between.arrays(before), result]
            for (plan, prepared), target in zip(plans, targets, strict=True):
                plan(plan.buffers(x.reshape(plan.problem.x_shape), prepared, out=target))
                x = target
        return result


class DeviceLane:
    """A stream of a GPU with its own pinned buffers and device buffers."""

    def __init__(self, runtime: Runtime, stream: Any) -> None:
        self._runtime, self._stream = runtime, stream

        def on_device(nbytes: int) -> Any:
            return runtime.allocate(nbytes, stream)

        self._host_x, self._host_out = _Buffer(runtime.pinned), _Buffer(runtime.pinned)
        self._x, self._results, self._workspace = _Buffer(on_device), _Buffers(on_device), _Buffer(on_device)

    def __call__(
        self, plans: Sequence[PreparedPlan], x: NDArray[Any], clock: Clock, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Run plans; without `out`, the times of upload and download include copies to and from pinned memory."""
        runtime, stream, last = self._runtime, self._stream, plans[-1]
        host_x = self._host_x.array(x.shape, x.dtype) if out is None else x
        host_out = self._host_out.array(last.shape, last.dtype) if out is None else out
        there_x, results = self._x.array(x.shape, x.dtype), self._results.arrays(plans)
        nbytes = max(own.plan.workspace_bytes for own in plans)
        workspace: Any = self._workspace.bytes(nbytes) if nbytes else None
        if out is None:
            with clock("upload"):
                np.copyto(host_x, x)
        try:
            begin = runtime.mark(stream)
            runtime.begin_copy(there_x, host_x, stream)
            sent, source = runtime.mark(stream), there_x
            for (plan, prepared), result in zip(plans, results, strict=True):
                own = workspace[: plan.workspace_bytes] if plan.workspace_bytes else None
                plan(plan.buffers(source.reshape(plan.problem.x_shape), prepared, None, result, own), stream)
                source = result
            computed = runtime.mark(stream)
            runtime.begin_copy(host_out, source, stream)
            fetched = runtime.mark(stream)
        finally:  # also after an error: pending work still uses the buffers
            runtime.synchronize(stream)
        for name, first, end in (("upload", begin, sent), ("filter", sent, computed), ("download", computed, fetched)):
            clock.add(name, runtime.seconds(first, end))
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


class _Buffers:
    """A buffer for the result of each of several plans."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._kept: list[_Buffer] = []

    def arrays(self, plans: Sequence[PreparedPlan]) -> list[Any]:
        while len(self._kept) < len(plans):
            self._kept.append(_Buffer(self._allocate))
        return [buffer.array(own.shape, own.dtype) for buffer, own in zip(self._kept, plans, strict=False)]


class HostRing:
    """Host arrays that are used again and again: new memory costs more than the copy of an image into it.

    The arrays of a GPU are page-locked by the first thread that copies them to it or from it, while others read into
    more of them. `nbytes` are the bytes of the largest array. Thread-safe.
    """

    def __init__(self, runtime: Runtime, nbytes: int) -> None:
        self._runtime, self._nbytes = runtime, max(nbytes, 1)
        self._free: list[NDArray[np.uint8]] = []
        self._lent: dict[int, NDArray[np.uint8]] = {}
        self._pinned: set[int] = set()
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Lend an array, whose content is undefined."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            memory = self._free.pop() if self._free else np.frombuffer(mmap.mmap(-1, self._nbytes), np.uint8)
            self._lent[_address(memory)] = memory
        array: NDArray[Any] = memory[:nbytes].view(dtype).reshape(shape)
        return array

    def pin(self, array: NDArray[Any]) -> None:
        """Page-lock a lent array for copies to and from a GPU, if it is not yet."""
        address = _address(array)
        if address not in self._pinned:
            self._runtime.pin(self._lent[address])
            self._pinned.add(address)

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
    call on a small image), and of the steps of the lane.
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
        return self.run(lane, [(plan, w)], x)

    def run(
        self, lane: Lane, filters: Sequence[tuple[Plan, NDArray[Any]]], x: NDArray[Any], out: NDArray[Any] | None = None
    ) -> Convolved:
        """Run plans, each with its weights, one after another on x (T, H, W, C); see :class:`Lane`.

        Weights are prepared once for each plan. The plan and weights that are returned are the first's.
        """
        with self._lock:  # without the lock two lanes would compile the same kernel
            with self._clock("plan"):
                plans = [PreparedPlan(plan, self._prepare(plan, w)) for plan, w in filters]
            for plan, w in filters:
                self._compile(lane, plan, w)
        return Convolved(lane(plans, x, self._clock, out), *plans[0])

    def _prepare(self, plan: Plan, w: NDArray[Any]) -> PreparedFilter:
        prepared = prepared_plan(plan, w, self._prepared)
        plan.runtime.synchronize()  # weights were prepared on the runtime's stream; the lane's stream reads them
        return prepared

    def _compile(self, lane: Lane, plan: Plan, w: NDArray[Any]) -> None:
        """Compile a plan's kernels: run its method and config on a part of an image, whose pixels are 0."""
        config = "" if plan.runtime.facts.backend == "cpu" else str(plan.config)  # on the CPU no config is compiled in
        kind = (plan.algorithm.key, compile_key(plan.problem), config)
        if kind in self._compiled:
            return
        with self._clock("first call"):
            p = plan.problem
            side = max(WARM_SIDE, 2 * max(p.r, p.s))
            width = side + (p.w - side) % (VECTOR_BYTES * p.stride[1])  # keeps rows' vector width
            small = p.replace(n=1, h=min(p.h, side), w=min(p.w, width))
            warm = find_plan(small, plan.algorithm.name, plan.config, self._device, None)
            lane([PreparedPlan(warm, self._prepare(warm, w))], np.zeros(small.x_shape, small.x_dtype), Clock())
        self._compiled.add(kind)
