"""The contract of a runtime: compile, launch, allocate, stream, time. One maker per backend stands beside this file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convforge.backends.facts import DeviceFacts
from convforge.backends.fft import RealFft, Transform


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """Resources of one launch of a plan; `explain`, the bench and the studies read it.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    grid : tuple of int
        Blocks of a GPU grid; on the CPU, (work items,).
    block : tuple of int
        Threads of a GPU block; on the CPU, (work items handed to a thread at once,).
    scratch_bytes : int
        Shared memory of a block; on the CPU, the cache-resident tile of one thread. Not part of the workspace.
    registers, spills : int or None
        Per thread, where the backend knows.
    occupancy : float or None
        Resident warps over the most that fit, where the backend knows.
    static_bytes : int
        Shared memory of a block that the kernel declares itself, beside `scratch_bytes`, where the backend knows.
    early : bool
        The kernel waits for earlier launches itself (pdl_wait of memory.cuh), so that a GPU may begin it before
        they have ended.
    cluster : tuple of int
        Blocks that run at once and reach each other's shared memory, of GPUs from sm_90 on; () where each stands alone.
        The grid is a multiple of it.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    scratch_bytes: int = 0
    registers: int | None = None
    spills: int | None = None
    occupancy: float | None = None
    static_bytes: int = 0
    early: bool = False
    cluster: tuple[int, ...] = ()


class Runtime(Protocol):
    """The contract of a device's runtime, which plans are bound to."""

    @property
    def facts(self) -> DeviceFacts:
        """Facts of the device."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """The device as the thread's own, for as long as the context lasts."""
        ...

    def is_current(self) -> bool:
        """True if the device is the thread's current one."""
        ...

    def compile(self, kernel: Any) -> Any:
        """A callable form of a kernel for this device; cached on disk between processes."""
        ...

    def compile_ahead(self, kernels: Sequence[Any]) -> None:
        """Compile kernels side by side that `compile` will be asked for, where that is faster than one by one.

        What cannot be compiled is left to `compile`, which says why.
        """
        ...

    def launch(self, kernel: Any, info: LaunchInfo, args: Any, stream: Any = None) -> None:
        """Run a compiled kernel over a grid, in the order of `stream`. `args` is a tuple on the CPU, else a struct."""
        ...

    def parallel(self, tasks: Sequence[Callable[[int], None]], slots: int) -> None:
        """Run tasks that do not depend on each other, at most `slots` at a time; each is told its slot."""
        ...

    def fft(self, fft: RealFft) -> Transform:
        """A batch of transforms made ready for this device."""
        ...

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        """A workspace of at least `nbytes` bytes, aligned to 64."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: Any = None) -> Any:
        """An array of the device that is not yet written, for work on `stream`."""
        ...

    def upload(self, array: Any) -> Any:
        """A copy of a host array on the device."""
        ...

    def download(self, array: Any, *, room: Callable[[int], Any] | None = None) -> Any:
        """A device array as a host array; the same one where the device is the host.

        A copy lies in fresh memory, or in what `room` gives when told its bytes: a contiguous array of uint8.
        """
        ...

    def fill(self, array: Any, byte: int) -> None:
        """Set every byte of a contiguous array."""
        ...

    def stream(self) -> AbstractContextManager[Any]:
        """A stream of its own for the thread that asks, lent for as long as the context lasts; leave it idle."""
        ...

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory that the device reads and writes by itself, while the host goes on; aligned to 64."""
        ...

    def send(self, target: Any, source: NDArray[Any], stream: Any = None) -> None:
        """Begin to copy a contiguous pinned array to a device array, in the order of `stream`."""
        ...

    def fetch(self, target: NDArray[Any], source: Any, stream: Any = None) -> None:
        """Begin to copy a contiguous device array to a pinned one, in the order of `stream`."""
        ...

    def mark(self, stream: Any = None) -> Any:
        """A point in the order of `stream`, between two of which :meth:`seconds` tells the time."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks that the device has passed, by its own clock."""
        ...

    def describe(self, kernel: Any, info: LaunchInfo) -> LaunchInfo:
        """A launch with what the device knows of its kernel: registers, spills, occupancy."""
        ...

    def writable(self, out: Any) -> Any:
        """The output itself where kernels can write to it, else an array of the same shape and type to copy from."""
        ...

    def synchronize(self, stream: Any = None) -> None:
        """Wait until everything launched on `stream` has ended."""
        ...

    def is_capturing(self, stream: Any = None) -> bool:
        """True while `stream` is captured into a graph: nothing may be waited for or measured."""
        ...

    def release(self) -> None:
        """Give memory that is kept for later requests back to the system."""
        ...

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Seconds that `repeats` calls of `run` take on the device, by the device's own clock."""
        ...


def upload_weights(runtime: Runtime, w: NDArray[Any], layout: str = "") -> Any:
    """A copy of weights (K, C, R, S) on the device, which lie there in the order KRSC, or as they are counted."""
    if layout != "KRSC":
        return runtime.upload(w)
    return runtime.upload(np.ascontiguousarray(w.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
