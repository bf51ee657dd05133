"""The emulator's runtime: a launch runs the blocks of its grid, each on one thread of a pool, and reports errors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.cpu.runtime import CpuRuntime, HostFft
from convforge.backends.emulator.absent import EmulatorUnavailable, why_absent
from convforge.backends.emulator.facts import emulator_facts
from convforge.backends.emulator.library import (
    ANCHOR_BYTES,
    EmulatorKernel,
    Error,
    Job,
    TensorMap,
    kernel_of,
    scheduler,
)
from convforge.backends.fft import RealFft
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import MAP_BYTES, AnyMap, Im2colMap
from convforge.backends.runtime import CallerStream, LaunchInfo, Runtime
from convforge.backends.structs import Template

# Orders in which the threads of a block run, each until it waits or returns.
ORDERS = ("forward", "backward", "shuffled")

# Byte of unwritten memory: a NaN as a float, -1 as an integer.
POISON = 0xFF

# Bytes of poison before and after every uploaded array.
MARGIN = 1 << 12

# Most blocks of a cluster: MOST_OF_CLUSTER of clusters.h.
MOST_OF_CLUSTER = 16

# CUDA threads that an OS thread takes at once: enough for low overhead, few enough to notice an interrupt soon.
LEAST_THREADS, MOST_THREADS = 1 << 11, 1 << 16

Place = tuple[int, int, int]


class EmulatorError(RuntimeError):
    """An error in a kernel, or a launch that a GPU refuses; `block` and `thread` are None if unknown."""

    def __init__(self, kernel: str, what: str, block: Place | None = None, thread: Place | None = None) -> None:
        self.kernel, self.what, self.block, self.thread = kernel, what, block, thread
        where = "".join(f", {name} {place}" for name, place in (("block", block), ("thread", thread)) if place)
        super().__init__(f"{kernel}{where}: {what}")


@cache
def _host() -> CpuRuntime:
    """Return the runtime that runs blocks; its threads do not poll, so that Numba need not be loaded."""
    return CpuRuntime(cpu_facts(), watches=False)


class EmulatedFft(HostFft):
    """FFTs on the CPU that overwrite a workspace, as FFTs of a GPU do."""

    workspace_bytes = 1000

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        if workspace is None or workspace.nbytes < self.workspace_bytes:
            raise ValueError(f"{self.kernel} needs {self.workspace_bytes} bytes of workspace")
        workspace.fill(POISON)
        _handle(stream)
        super().__call__(data)


class EmulatorRuntime(CpuRuntime):
    """Runs CUDA kernels on the CPU; its times do not predict a GPU's times.

    Thread-safe. A stream is a number; a launch returns when its work is done. Blocks, and threads in a block, run in
    `order`: "forward", "backward" or "shuffled" by `seed`. `portable` switches stacks by ucontext instead of assembly.
    """

    def __init__(self, order: str = "forward", seed: int = 0, portable: bool = False) -> None:
        if order not in ORDERS:
            raise ValueError(f"order={order!r} must be one of {', '.join(ORDERS)}")
        super().__init__(emulator_facts())
        self.order, self.seed = order, seed
        self._portable = portable
        self._host = _host()
        self._streams = count(1)

    parallel, empty = Runtime.parallel, Runtime.empty  # a launch uses every core by itself

    def compile(self, kernel: KernelSource) -> EmulatorKernel:
        return kernel_of(kernel)

    def launch(self, kernel: EmulatorKernel, info: LaunchInfo, args: ctypes.Structure, stream: Any = None) -> None:
        """Run a kernel over ``info.grid`` blocks of ``info.block`` threads; it may raise ``EmulatorError``."""
        self._check(kernel, info, args)
        job = self._job(kernel, info, args)
        clusters, threads = math.prod(info.grid) // job.cluster, math.prod(info.block) * job.cluster
        if not clusters:
            return
        run = (scheduler(portable=True) if self._portable else scheduler()).run

        def run_blocks(begin: int, end: int) -> None:
            error = Error()
            run(job, begin, end, error)
            if error.kind:
                raise _failure(kernel, error)

        share = clusters // (8 * self._host.facts.cores)
        share = min(max(share, -(-LEAST_THREADS // threads)), -(-MOST_THREADS // threads))
        self._host.launch(run_blocks, LaunchInfo(kernel.source.name, (clusters,), (share,)), ())

    def _job(self, kernel: EmulatorKernel, info: LaunchInfo, args: ctypes.Structure) -> Job:
        return Job(
            kernel.enter, kernel.anchor, kernel.shared_offset, kernel.shared_bytes, ctypes.addressof(args),
            ctypes.sizeof(args), (*info.grid, 1, 1)[:3], (*info.block, 1, 1)[:3], info.scratch_bytes,
            ORDERS.index(self.order), self.seed % (1 << 64), info.pdl, math.prod(info.cluster),
        )  # fmt: skip

    def again(
        self, kernel: EmulatorKernel, info: LaunchInfo, template: Template
    ) -> Callable[[Sequence[int], int], None]:
        """Return a function that launches a kernel again on buffers at other addresses."""

        def again(places: Sequence[int], stream: int) -> None:
            args = template.copy()
            template.write(args, places)
            self.launch(kernel, info, args, stream)

        return again

    def _check(self, kernel: EmulatorKernel, info: LaunchInfo, args: ctypes.Structure) -> None:
        """Raise ``EmulatorError`` for a launch that a GPU would refuse."""
        name, facts = kernel.source.name, self.facts
        grid, block = (*info.grid, 1, 1)[:3], (*info.block, 1, 1)[:3]
        for what, sizes, least, most in (
            ("grid", grid, 0, (2**31 - 1, 65535, 65535)),
            ("block", block, 1, (1024, 1024, 64)),
        ):
            for axis, size, limit in zip("xyz", sizes, most, strict=True):
                if not least <= size <= limit:
                    raise EmulatorError(name, f"{what} {sizes}: {axis} must be {least} to {limit}")
        if math.prod(block) > 1024:
            raise EmulatorError(name, f"block {block}: {math.prod(block)} threads, of which a block has at most 1024")
        static = kernel.shared_bytes - ANCHOR_BYTES
        if info.scratch_bytes < 0 or static + info.scratch_bytes > facts.block_shared_bytes:
            raise EmulatorError(
                name,
                f"{static} bytes of static and {info.scratch_bytes} of dynamic shared memory; "
                f"a block has at most {facts.block_shared_bytes} together",
            )
        size, *others = (*info.cluster, 1, 1, 1)[:3]
        if not 1 <= size <= MOST_OF_CLUSTER or max(others) > 1:
            raise EmulatorError(name, f"clusters of {info.cluster}: the emulator has {MOST_OF_CLUSTER} blocks, along x")
        if grid[0] % size:
            raise EmulatorError(name, f"grid {grid}: x must be whole clusters of {size} blocks")
        if ctypes.sizeof(args) != (nbytes := ctypes.sizeof(kernel.source.arguments)):
            raise ValueError(f"{name} takes a struct of {nbytes} bytes, not of {ctypes.sizeof(args)}")

    def instance(self, kernel: EmulatorKernel) -> EmulatorKernel:
        return kernel.instance()

    def tensor_map(self, layout: AnyMap) -> bytes:
        """Encode a map; ``EmulatorError`` for one that TMA, or the emulator's im2col mode, does not support."""
        if (reason := layout.refusal()) is not None:
            raise EmulatorError("tensor_map", reason)
        if isinstance(layout, Im2colMap) and len(layout.sizes) != 4:
            raise EmulatorError("tensor_map", f"the emulator brings pixels of images of four axes; asked for {layout}")
        return bytes(TensorMap.of(layout)).ljust(MAP_BYTES, b"\0")

    def stream_handle(self, stream: Any) -> int:
        """Return a number that identifies the stream."""
        return _handle(stream)

    def fft(self, fft: RealFft) -> EmulatedFft:
        return EmulatedFft(fft, self._host.facts.cores)

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        """Return a workspace of `nbytes` bytes, aligned to 64, filled with poison."""
        if isinstance(stream, CallerStream) and stream.take is not None and nbytes:
            raw = _memory(nbytes, *stream.take(nbytes))
        else:
            raw = super().allocate(nbytes)
        raw.fill(POISON)
        return raw

    def upload(self, array: Any, stream: Any = None) -> Any:
        """Copy an array; the poison before and after it reveals reads outside it."""
        array = np.asarray(array)
        room = self.allocate(array.nbytes + 2 * MARGIN)
        strides = np.empty_like(array).strides
        copy: Any = np.ndarray(array.shape, array.dtype, room, MARGIN, strides)
        copy[...] = array
        return copy

    def download(self, array: Any, stream: Any = None, *, room: Callable[[int], Any] | None = None) -> Any:
        return array

    def fill(self, array: Any, byte: int, stream: Any = None) -> None:
        _handle(stream)
        super().fill(array, byte)

    def copy(self, target: int, source: int, nbytes: int, stream: Any = None) -> None:
        _handle(stream)
        ctypes.memmove(target, source, nbytes)

    def stream(self) -> AbstractContextManager[int]:
        return nullcontext(next(self._streams))


def _handle(stream: Any) -> int:
    return stream.handle if isinstance(stream, CallerStream) else int(stream or 0)


def _memory(nbytes: int, address: int, owner: Any) -> Any:
    """Return the caller's memory as an array that keeps its owner alive."""
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, np.uint8)


def _failure(kernel: EmulatorKernel, error: Error) -> EmulatorError:
    block = (error.block.x, error.block.y, error.block.z) if error.kind <= 2 else None
    thread = (error.thread.x, error.thread.y, error.thread.z) if error.kind == 1 else None
    return EmulatorError(kernel.source.name, error.text.decode(errors="replace"), block, thread)


@cache
def emulator_runtime(order: str = "forward", seed: int = 0) -> EmulatorRuntime:
    """Return the emulator, one per process, order and seed; ``EmulatorUnavailable`` without g++ or Linux."""
    if (reason := why_absent()) is not None:
        raise EmulatorUnavailable(reason)
    return EmulatorRuntime(order, seed)
