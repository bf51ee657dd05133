"""The contract of a runtime: compile, launch, allocate, stream, time. Each backend has a package in this folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convforge.backends.facts import DeviceFacts
from convforge.backends.fft import RealFft, Transform


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """Resources of one launch of a plan; `explain`, the bench and the studies read it. None where unknown."""

    kernel: str  # name of the kernel
    grid: tuple[int, ...]  # blocks of a GPU grid; on the CPU, (work items,)
    block: tuple[int, ...]  # threads of a GPU block; on the CPU, (work items that a thread takes at once,)
    # Dynamic shared memory of a block; on the CPU, the cache-resident tile of one thread. Not part of the workspace.
    scratch_bytes: int = 0
    registers: int | None = None  # per thread
    spills: int | None = None  # bytes per thread
    occupancy: float | None = None  # resident warps over the maximum of an SM
    static_bytes: int = 0  # static shared memory of a block, if known
    # Programmatic dependent launch (PDL): the kernel itself waits for earlier launches (pdl_wait of memory.cuh), so
    # that a GPU may begin it before they have ended.
    pdl: bool = False
    # Blocks of a cluster along each axis, on GPUs from sm_90 on; they divide the grid. () without clusters.
    cluster: tuple[int, ...] = ()


@dataclass(slots=True)
class CallerStream:
    """The caller's stream, and the allocator of the caller's array library, which keeps memory for captured graphs."""

    handle: int  # the driver's handle
    # Number of bytes -> (address aligned to 64 bytes, owner of the memory); None: the runtime allocates.
    take: Callable[[int], tuple[int, Any]] | None = None
    capturing: bool = False  # a graph captures the stream: launches run later, any number of times


class Runtime(Protocol):
    """The contract of a device's runtime, to which plans are bound; default methods are right for the host."""

    facts: DeviceFacts

    def current(self) -> AbstractContextManager[None]:
        """Make the device the thread's current one inside the context."""
        return nullcontext()

    def is_current(self) -> bool:
        """True if the device is the thread's current one."""
        return True

    def compile(self, kernel: Any) -> Any:
        """Compile a kernel for this device, or load it from the disk cache."""
        return kernel

    def compile_ahead(self, kernels: Sequence[Any]) -> None:
        """Compile kernels in parallel, where that is faster than one by one; leave failures to :meth:`compile`."""
        return

    def launch(self, kernel: Any, info: LaunchInfo, args: Any, stream: Any = None) -> None:
        """Run a compiled kernel over a grid, in the order of `stream`. `args` is a tuple on the CPU, else a struct."""
        ...

    def parallel(self, tasks: Sequence[Callable[[int], None]], slots: int) -> None:
        """Run independent tasks, each with a slot below `slots`; by default in order: one launch fills a device."""
        for task in tasks:
            task(0)

    def fft(self, fft: RealFft) -> Transform:
        """Prepare a batch of transforms for this device."""
        ...

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        """Return a workspace of at least `nbytes` bytes, aligned to 64 bytes."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: Any = None) -> Any:
        """Return an uninitialised array on the device, for work on `stream`."""
        dtype = np.dtype(dtype)
        return self.allocate(math.prod(shape) * dtype.itemsize, stream).view(dtype).reshape(shape)

    def upload(self, array: Any) -> Any:
        """Copy a host array to the device."""
        ...

    def download(self, array: Any, *, room: Callable[[int], Any] | None = None) -> Any:
        """Copy a device array to the host; if the device is the host, return the array itself.

        `room` maps a number of bytes to memory for the copy, a contiguous array of uint8.
        """
        return array

    def fill(self, array: Any, byte: int) -> None:
        """Set every byte of a contiguous array."""
        ...

    def stream(self) -> AbstractContextManager[Any]:
        """Lend a stream to the caller inside the context; the caller must leave it idle."""
        return nullcontext()

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Return page-locked host memory, from which the device can copy in the background; aligned to 64 bytes."""
        return self.allocate(nbytes)  # type: ignore[no-any-return]

    def pin(self, array: NDArray[np.uint8]) -> None:
        """Page-lock host memory, whole pages of its own, until it is freed; by default it does nothing."""
        return

    def begin_copy(self, target: Any, source: Any, stream: Any = None) -> None:
        """Begin to copy between a contiguous pinned and a contiguous device array; both must live until it is done."""
        np.copyto(target, source)

    def mark(self, stream: Any = None) -> Any:
        """Record a point in `stream` for :meth:`seconds`."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that the device has passed, by its own clock."""
        ...

    def describe(self, kernel: Any, info: LaunchInfo) -> LaunchInfo:
        """Add the device's registers, spills and occupancy of a launch."""
        return info

    def writable(self, out: Any) -> Any:
        """Return the output if kernels can write to it, else a new array of the same shape and type to copy from."""
        return out

    def synchronize(self, stream: Any = None) -> None:
        """Wait until everything launched on `stream` has ended."""
        return

    def is_capturing(self, stream: Any = None) -> bool:
        """True while `stream` is captured into a graph: the host must not wait or measure."""
        return False

    def release(self) -> None:
        """Return memory kept for later requests to the system."""
        return

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Seconds that `repeats` calls of `run` take on the device, by the device's own clock."""
        ...


def upload_weights(runtime: Runtime, w: NDArray[Any], layout: str = "") -> Any:
    """Copy weights of shape (K, C, R, S) to the device; with layout "KRSC" their order in memory is K, R, S, C."""
    if layout != "KRSC":
        return runtime.upload(w)
    return runtime.upload(np.ascontiguousarray(w.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
