"""The runtime of a GPU: launches on the caller's stream, memory pooled per stream, times from the GPU's events."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.architecture import Architecture
from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.cuda.compiler import Compiled, compile_kernel, compile_kernels
from convforge.backends.cuda.driver import CudaError, Launcher, call, checked, context_getter, encoded, while_capturing
from convforge.backends.cuda.facts import cuda_facts
from convforge.backends.cuda.fft import CufftTransform
from convforge.backends.cuda.memory import Pool, page_lock, pinned
from convforge.backends.facts import DeviceFacts
from convforge.backends.fft import RealFft
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import AnyMap
from convforge.backends.runtime import CallerStream, LaunchInfo, Runtime
from convforge.backends.structs import Template

# Shared memory that a block may use without a driver call for its kernel.
PLAIN_SHARED_BYTES = 48 << 10

# Programmatic dependent launch (PDL) exists from this architecture on.
FIRST_PDL = 90

# Largest distance between rows, in bytes, of a 2D copy.
MOST_PITCH = 2**31 - 1


class CudaKernel:
    """A kernel loaded on one GPU."""

    def __init__(self, about: Compiled, device: Any) -> None:
        from cuda.core import ObjectCode

        self.about = about
        device.set_current()
        self._device = int(device.device_id)
        with while_capturing():
            self._module = ObjectCode.from_cubin(about.code)
            self.kernel = self._module.get_kernel(about.name)
            self.handle = int(self.kernel.handle)
        self._shared_bytes = PLAIN_SHARED_BYTES - about.shared_bytes

    def allow_shared(self, nbytes: int) -> None:
        """Allow blocks to use `nbytes` bytes of dynamic shared memory."""
        from cuda.bindings import driver

        if nbytes > self._shared_bytes:
            wanted = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuKernelSetAttribute", wanted, nbytes, driver.CUkernel(self.handle), self._device)
            self._shared_bytes = nbytes

    def symbol(self, name: str) -> tuple[int, int]:
        """Address and bytes of a ``__constant__`` array, which all launches of the kernel share."""
        from cuda.bindings import driver

        library = driver.CUlibrary(int(self._module.handle))
        with while_capturing():
            address, nbytes = call("cuLibraryGetGlobal", library, name.encode())
        return int(address), int(nbytes)

    def occupancy(self, threads: int, shared_bytes: int) -> float:
        """Return the number of threads that are resident on an SM."""
        blocks = self.kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)
        return float(blocks * -(-threads // 32) * 32)


class _ContextSlot(threading.local):
    """Memory of one thread, to which the driver writes the current context."""

    def __init__(self) -> None:
        self.context = ctypes.c_void_p()
        self.at = ctypes.addressof(self.context)


class CudaRuntime(Runtime):
    """Runs plans on one GPU.

    Thread-safe. A stream is a handle or has ``__cuda_stream__``; None is the runtime's own.
    """

    def __init__(self, device: int = 0) -> None:
        self.facts: DeviceFacts = cuda_facts(device)  # first: if a package is missing, its error gives the reason
        from cuda.core import Device

        self._get_context, self._slot = context_getter(), _ContextSlot()
        self.device = device
        self._gpu = Device(device)
        before = int(call("cuCtxGetCurrent"))  # context that another library chose
        try:
            self._gpu.set_current()
            self._context = int(call("cuCtxGetCurrent"))
            self._stream = self._gpu.create_stream()
        finally:
            if before:
                call("cuCtxSetCurrent", before)
        self._idle_streams: list[Any] = []
        self._kernels: dict[tuple[str, str], CudaKernel] = {}
        self._lock = threading.Lock()
        self._pool = Pool(self.facts.memory_bytes // 4)
        self._has_pdl = Architecture.parse(self.facts.architecture).number >= FIRST_PDL

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the thread's current one, and restore the previous one, which other libraries use too."""
        if self.is_current():
            yield
            return
        if self.device == 0 and not self._slot.context.value:  # as a thread of CUDA's runtime library begins
            call("cuCtxSetCurrent", self._context)
            yield
            return
        call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent")

    def is_current(self) -> bool:
        """True if this GPU is the thread's current one. It must be fast, because it is called often."""
        slot = self._slot
        return not self._get_context(slot.at) and slot.context.value == self._context

    def compile(self, kernel: KernelSource) -> CudaKernel:
        key = (kernel.digest(), kernel.name)
        with self._lock:
            found = self._kernels.get(key)
        if found is None:
            found = CudaKernel(compile_kernel(kernel, self.facts.architecture), self._gpu)
            with self._lock:
                found = self._kernels.setdefault(key, found)
        return found

    def compile_ahead(self, kernels: Sequence[KernelSource]) -> None:
        wanted = {(kernel.digest(), kernel.name): kernel for kernel in kernels}
        with self._lock:
            missing = {key: kernel for key, kernel in wanted.items() if key not in self._kernels}
        for key, about in zip(missing, compile_kernels(list(missing.values()), self.facts.architecture), strict=True):
            if about is not None:
                found = CudaKernel(about, self._gpu)
                with self._lock:
                    self._kernels.setdefault(key, found)

    def instance(self, kernel: CudaKernel) -> CudaKernel:
        """Load the kernel once more, with its own constant memory."""
        return CudaKernel(kernel.about, self._gpu)

    def tensor_map(self, layout: AnyMap) -> bytes:
        """Encode a map for a kernel's struct; see :mod:`convforge.backends.maps`."""
        return encoded(layout)

    def describe(self, kernel: CudaKernel, info: LaunchInfo) -> LaunchInfo:
        """Add registers, spills and occupancy on this GPU; `pdl` becomes False if the GPU has no PDL."""
        threads = int(np.prod(info.block))
        kernel.allow_shared(info.scratch_bytes)
        occupancy = kernel.occupancy(threads, info.scratch_bytes) / self.facts.threads
        return replace(
            info, registers=kernel.about.registers, spills=kernel.about.spill_bytes, occupancy=occupancy,
            static_bytes=kernel.about.shared_bytes, pdl=info.pdl and self._has_pdl,
        )  # fmt: skip

    def launch(self, kernel: CudaKernel, info: LaunchInfo, args: ctypes.Structure, stream: Any = None) -> None:
        if 0 not in info.grid:
            self._launcher(kernel, info)(args, self.stream_handle(stream))

    def again(self, kernel: CudaKernel, info: LaunchInfo, template: Template) -> Callable[[Sequence[int], int], None]:
        """Return a function (buffers' addresses, stream's handle) that launches the kernel."""
        return self._launcher(kernel, info).again(template)

    def _launcher(self, kernel: CudaKernel, info: LaunchInfo) -> Launcher:
        if info.scratch_bytes:
            kernel.allow_shared(info.scratch_bytes)
        pdl = info.pdl and self._has_pdl
        return Launcher(kernel.about.name, kernel.handle, info if pdl == info.pdl else replace(info, pdl=pdl))

    def fft(self, fft: RealFft) -> CufftTransform:
        """Make a cuFFT plan of a batch of transforms; ``CufftError`` if cuFFT refuses it."""

        def handle_of(stream: Any) -> int:
            self._gpu.set_current()  # cuFFT uses the thread's current GPU
            return self.stream_handle(stream)

        self._gpu.set_current()
        return CufftTransform(fft, handle_of)

    def allocate(self, nbytes: int, stream: Any = None) -> DeviceArray:
        """Return a workspace of `nbytes` bytes, aligned to 512 bytes, for work on the stream."""
        if not nbytes:
            return DeviceArray.at(0, 0, None)
        if isinstance(stream, CallerStream) and stream.take is not None:
            address, owner = stream.take(nbytes)
            return DeviceArray.at(address, nbytes, owner)
        self._gpu.set_current()
        block = self._pool.take(nbytes, self.stream_handle(stream))
        return DeviceArray.at(block.address, nbytes, block)

    def upload(self, array: NDArray[Any], stream: Any = None) -> DeviceArray:
        plain = np.asarray(array, order="C")  # keeps a shape of ()
        copy = self.empty(plain.shape, plain.dtype, stream)
        self.begin_copy(copy, plain, stream)
        self.synchronize(stream)  # the host's copy may be freed
        return copy  # type: ignore[no-any-return]

    def download(
        self, array: DeviceArray, stream: Any = None, *, room: Callable[[int], NDArray[np.uint8]] | None = None
    ) -> NDArray[Any]:
        """Copy a GPU array to the host: rows with large gaps as a 2D copy, other arrays with all bytes they span."""
        if room is None and _has_rows_apart(array):
            return self._download_rows(array, stream)
        low, high = np.lib.array_utils.byte_bounds(array.described) if array.size else (0, 0)
        raw = np.empty(high - low, np.uint8) if room is None else room(high - low)
        if raw.size:
            call("cuMemcpyDtoHAsync", raw.ctypes.data, low, raw.size, self.stream_handle(stream))
            self.synchronize(stream)
        if not array.size:
            return np.empty(array.shape, array.dtype)
        return np.ndarray(array.shape, array.dtype, raw.data, array.address - low, array.strides)

    def _download_rows(self, array: DeviceArray, stream: Any) -> NDArray[Any]:
        from cuda.bindings import driver

        rows = np.empty(array.shape, array.dtype)
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType, copy.dstMemoryType = (
            driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, driver.CUmemorytype.CU_MEMORYTYPE_HOST
        )  # fmt: skip
        copy.srcDevice, copy.srcPitch = array.address, array.strides[0]
        copy.dstHost, copy.dstPitch = rows.ctypes.data, rows.strides[0]
        copy.WidthInBytes, copy.Height = rows.strides[0], rows.shape[0]
        call("cuMemcpy2DAsync", copy, self.stream_handle(stream))
        self.synchronize(stream)
        return rows

    def fill(self, array: DeviceArray, byte: int, stream: Any = None) -> None:
        if array.nbytes:
            call("cuMemsetD8Async", array.address, byte, array.nbytes, self.stream_handle(stream))

    @contextmanager
    def stream(self) -> Iterator[Any]:
        # Streams are reused, because the memory pool keeps the free memory of each stream for its next work.
        self._gpu.set_current()
        with self._lock:
            lent = self._idle_streams.pop() if self._idle_streams else None
        lent = self._gpu.create_stream() if lent is None else lent
        try:
            yield lent
        finally:
            with self._lock:
                self._idle_streams.append(lent)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        with self.current():
            return pinned(nbytes)

    def pin(self, array: NDArray[np.uint8]) -> None:
        """Page-lock host memory that is in use already: faster than :meth:`pinned`, and other threads may go on."""
        with self.current():
            page_lock(array)
        weakref.finalize(array, self._unpin, array.ctypes.data).atexit = False

    def _unpin(self, address: int) -> None:
        with self.current():
            call("cuMemHostUnregister", address)

    def begin_copy(self, target: Any, source: Any, stream: Any = None) -> None:
        to, from_ = _block(target), _block(source)
        if to is None or from_ is None or target.nbytes != source.nbytes:
            raise ValueError(
                f"a copy needs two contiguous arrays of the same bytes; got {target.shape} {target.dtype} and "
                f"{source.shape} {source.dtype}"
            )
        if source.nbytes:
            self.copy(to, from_, source.nbytes, stream)

    def mark(self, stream: Any = None) -> Any:
        from cuda.core import Stream

        own = self._stream if stream is None else stream
        own = own if isinstance(own, Stream) else Stream.from_handle(self.stream_handle(own))
        return own.record(options=_timed())

    def seconds(self, begin: Any, end: Any) -> float:
        return float(end - begin) / 1e3

    def copy(self, target: int, source: int, nbytes: int, stream: Any = None) -> None:
        """Copy between two addresses of the device or the host."""
        call("cuMemcpyAsync", target, source, nbytes, self.stream_handle(stream))

    def synchronize(self, stream: Any = None) -> None:
        call("cuStreamSynchronize", self.stream_handle(stream))

    def is_capturing(self, stream: Any = None) -> bool:
        from cuda.bindings import driver

        status = call("cuStreamIsCapturing", self.stream_handle(stream))
        return bool(status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def release(self) -> None:
        self._gpu.set_current()
        self._pool.clear()

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Return the seconds that `repeats` calls take: the graph that captures them runs once between two events."""
        with self._pool.holding():
            return self._time(run, repeats)

    def _time(self, run: Callable[[], None], repeats: int) -> float:
        from cuda.bindings import driver

        self._gpu.set_current()
        stream = driver.CUstream(int(self._stream.handle))
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        checked(driver.cuStreamBeginCapture(stream, relaxed))
        try:
            for _ in range(repeats):
                run()
        finally:
            graph = checked(driver.cuStreamEndCapture(stream))
        if not checked(driver.cuGraphGetNodes(graph, 0))[1]:
            driver.cuGraphDestroy(graph)
            raise CudaError("there is nothing to time: what was called put its work on another stream")
        ready = checked(driver.cuGraphInstantiate(graph, 0))
        try:
            checked(driver.cuGraphUpload(ready, stream))
            options = _timed()  # made first: the record of the end must follow the launch at once
            begin = self._stream.record(options=options)
            checked(driver.cuGraphLaunch(ready, stream))
            end = self._stream.record(options=options)
            end.sync()
            return self.seconds(begin, end)
        finally:
            driver.cuGraphExecDestroy(ready)
            driver.cuGraphDestroy(graph)

    def stream_handle(self, stream: Any) -> int:
        """The driver's handle of the caller's stream, or of our own for None."""
        if stream is None:
            return int(self._stream.handle)
        if isinstance(stream, int):
            return stream
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
        return int(stream.handle)


def _block(array: NDArray[Any] | DeviceArray) -> int | None:
    """Address of the bytes of an array on the host or a GPU, or None if they are not contiguous."""
    if isinstance(array, DeviceArray):
        return array.address if array.is_contiguous else None
    return array.ctypes.data if array.flags.c_contiguous else None


def _has_rows_apart(array: DeviceArray) -> bool:
    """True for an array of contiguous rows with gaps larger than the rows between them."""
    if array.ndim != 2 or not array.size or array.strides[1] != array.itemsize:
        return False
    return bool(2 * array.shape[1] * array.itemsize < array.strides[0] <= MOST_PITCH)


def _timed() -> Any:
    from cuda.core import EventOptions

    return EventOptions(timing_enabled=True)


_runtime = cache(CudaRuntime)


def cuda_runtime(device: int = 0) -> CudaRuntime:
    """Return the runtime of one GPU, one per process."""
    return _runtime(device)
