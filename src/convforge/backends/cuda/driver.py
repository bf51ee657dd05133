"""Calls of the CUDA driver: errors, kernel launches (kept structs save microseconds), tensor maps."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, NamedTuple

from convforge.backends.maps import MAP_ALIGNMENT, MAP_BYTES, AnyMap, TiledMap
from convforge.backends.runtime import LaunchInfo
from convforge.backends.structs import Template

# CUlaunchAttributeID: cluster dimension, programmatic stream serialization.
_CLUSTER, _PDL = 4, 6

# CUtensorMapDataType.
_ELEMENTS = {"u8": 0, "u16": 1, "u32": 2, "u64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11}
# CUtensorMapSwizzle by bytes.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
# Options of all maps: no interleaved layout (CU_TENSOR_MAP_INTERLEAVE_NONE); L2 reads lines of 128 bytes
# (CU_TENSOR_MAP_L2_PROMOTION_L2_128B); elements outside the array are zeros (CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE).
_INTERLEAVE, _PROMOTION, _FILL = 0, 2, 0

# Drivers up to this version set a bit in the maps of tensors below this size. With the bit, a copy reads outside the
# tensor; without it, a copy reads as from larger tensors.
_FAULTY_DRIVER, _SMALL_BYTES, _FAULTY_BIT = 13010, 128 << 10, 1 << 21
MAPS_KEPT = 256  # encoded maps in memory; encoding takes microseconds


class CudaError(RuntimeError):
    """The driver reported an error."""


def checked(result: tuple[Any, ...]) -> Any:
    """Return the values of a driver call without its status; ``CudaError`` unless the call succeeded."""
    status, *values = result
    if int(status) != 0:
        raise CudaError(f"the CUDA driver says {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def call(name: str, *args: Any) -> Any:
    """Call a function of the driver and return its values; ``CudaError`` if it fails."""
    from cuda.bindings import driver

    return checked(getattr(driver, name)(*args))


@cache
def library() -> Any:
    """The driver's library, for calls that must take at most a microsecond, or that cuda.bindings lacks."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def context_getter() -> Callable[[int], int]:
    """Return cuCtxGetCurrent, which writes the thread's context to an address and returns a status; the GIL is held."""
    function = ctypes.PyDLL(None, handle=library()._handle).cuCtxGetCurrent
    function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int
    return function


@contextmanager
def while_capturing() -> Iterator[None]:
    """Allow this thread calls that do not use a stream under capture, such as loading a kernel."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def wait_for(stream: int, other: int) -> None:
    """Make later work on `stream` wait for the present work on `other`."""
    from cuda.bindings import driver

    event = call("cuEventCreate", int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    try:
        call("cuEventRecord", event, other)
        call("cuStreamWaitEvent", stream, event, 0)
    finally:
        driver.cuEventDestroy(event)  # the driver keeps it until the streams have passed it


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its number, and 64 bytes aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("_before_value", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class _Made(NamedTuple):
    """Structs of one launch and their addresses; `kept` owns memory that they point to."""

    args: ctypes.Structure
    config: _Config
    config_at: int
    pointers_at: int
    kept: Any


class _Own(threading.local):
    made: _Made | None = None  # launch structs of one thread; None before its first launch


class Launcher:
    """Launcher of one kernel over one grid. Thread-safe. `kernel` is the driver's handle; messages contain `name`."""

    def __init__(self, name: str, kernel: int, info: LaunchInfo) -> None:
        self._name, self._kernel, self._info = name, kernel, info

    def __call__(self, args: ctypes.Structure, stream: int) -> None:
        """Launch on a stream. The driver copies the struct `args`; ``CudaError`` if it refuses the launch."""
        made = self._make(args)
        made.config.stream = stream
        if status := _launch_kernel()(made.config_at, self._kernel, made.pointers_at, None):
            raise self._fault(status)

    def again(self, template: Template) -> Callable[[Sequence[int], int], None]:
        """Return a function (buffers' addresses, stream) that launches the kernel; each thread has its own struct."""
        launch, kernel, write, own = _launch_kernel(), self._kernel, template.write, _Own()

        def again(places: Sequence[int], stream: int) -> None:
            if (made := own.made) is None:
                made = own.made = self._make(template.copy())
            args, config, config_at, pointers_at, _ = made
            write(args, places)
            config.stream = stream
            if status := launch(config_at, kernel, pointers_at, None):
                raise self._fault(status)

        return again

    def _fault(self, status: int) -> CudaError:
        from cuda.bindings import driver

        name, grid, block = driver.CUresult(status).name, self._info.grid, self._info.block
        return CudaError(f"{self._name} was not launched, grid {grid}, block {block}: {name}")

    def _make(self, args: ctypes.Structure) -> _Made:
        info = self._info
        values: list[tuple[int, tuple[int, ...]]] = []
        if info.pdl:
            values.append((_PDL, (1,)))
        if info.cluster:
            values.append((_CLUSTER, (*info.cluster, 1, 1)[:3]))
        attributes = (_Attribute * max(len(values), 1))(*[_Attribute(which, 0, value) for which, value in values])
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        config = _Config(
            (*info.grid, 1, 1)[:3], (*info.block, 1, 1)[:3], info.scratch_bytes, None,
            ctypes.addressof(attributes), len(values),
        )  # fmt: skip
        return _Made(args, config, ctypes.addressof(config), ctypes.addressof(pointers), (attributes, pointers))


@cache
def _launch_kernel() -> Callable[..., int]:
    function = library().cuLaunchKernelEx
    function.argtypes, function.restype = (ctypes.c_void_p,) * 4, ctypes.c_int
    return function  # type: ignore[no-any-return]


@cache
def _driver_version() -> int:
    return int(call("cuDriverGetVersion"))


@lru_cache(maxsize=MAPS_KEPT)
def encoded(layout: AnyMap) -> bytes:
    """Encode a map; ``CudaError`` if the driver refuses it."""
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)  # the driver needs an aligned address
    start = -ctypes.addressof(room) % MAP_ALIGNMENT
    if isinstance(layout, TiledMap):
        function, middle = library().cuTensorMapEncodeTiled, [_numbers(ctypes.c_uint, layout.box)]
    else:
        function = library().cuTensorMapEncodeIm2col
        middle = [_numbers(ctypes.c_int, layout.lower), _numbers(ctypes.c_int, layout.upper)]
        middle += [ctypes.c_uint(layout.channels), ctypes.c_uint(layout.pixels)]
    status = function(
        ctypes.c_void_p(ctypes.addressof(room) + start), _ELEMENTS[layout.element], len(layout.sizes),
        ctypes.c_void_p(layout.address), _numbers(ctypes.c_ulonglong, layout.sizes),
        _numbers(ctypes.c_ulonglong, layout.strides), *middle, _numbers(ctypes.c_uint, layout.steps), _INTERLEAVE,
        _SWIZZLES[layout.swizzle], _PROMOTION, _FILL,
    )  # fmt: skip
    if status:
        raise CudaError(f"the CUDA driver encodes no map of {layout}: error {status}")
    return without_fault(room.raw[start : start + MAP_BYTES], layout.span, _driver_version())


def without_fault(content: bytes, nbytes: int, driver: int) -> bytes:
    """Clear the bit that older drivers set by mistake in the encoded map of a tensor of `nbytes` bytes."""
    if driver > _FAULTY_DRIVER or nbytes >= _SMALL_BYTES:
        return content
    word = int.from_bytes(content[8:16], "little") & ~_FAULTY_BIT
    return content[:8] + word.to_bytes(8, "little") + content[16:]


def _numbers(kind: Any, values: Sequence[int]) -> Any:
    return (kind * max(len(values), 1))(*values)
