"""Calls of the CUDA driver, which turn its status into an exception."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


class CudaError(RuntimeError):
    """The driver reported an error."""


def checked(result: tuple[Any, ...]) -> Any:
    """Return the values of a driver call without its status; ``CudaError`` unless that is success."""
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
    """cuCtxGetCurrent: writes the thread's context to an address and returns the status; it keeps Python's lock."""
    function = ctypes.PyDLL(None, handle=library()._handle).cuCtxGetCurrent
    function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int
    return function


@contextmanager
def while_capturing() -> Iterator[None]:
    """Allow the thread calls that are independent of a stream under capture, such as loading a kernel."""
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
