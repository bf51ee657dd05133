"""Calls of the CUDA driver, their status turned into an exception."""

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
    """Return the values of a driver call without its status.

    Raises
    ------
    CudaError
        The status is no success.
    """
    status, *values = result
    if int(status) != 0:
        raise CudaError(f"the CUDA driver says {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


@cache
def library() -> Any:
    """The driver's own functions, for calls that must take a microsecond, or that cuda.bindings has no room for."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def context_getter() -> Callable[[int], int]:
    """cuCtxGetCurrent: takes the address that the thread's context is written to, and gives the status.

    It waits for nothing, so Python's lock is kept meanwhile.
    """
    function = ctypes.PyDLL(None, handle=library()._handle).cuCtxGetCurrent
    function.argtypes, function.restype = (ctypes.c_void_p,), ctypes.c_int
    return function


@contextmanager
def while_capturing() -> Iterator[None]:
    """Calls that a stream being captured does not concern, such as loading a kernel, are allowed to the thread."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before))


def wait_for(stream: int, other: int) -> None:
    """Have work that is put on one stream from now on wait for what is on another by now."""
    from cuda.bindings import driver

    event = checked(driver.cuEventCreate(int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)))
    try:
        checked(driver.cuEventRecord(event, other))
        checked(driver.cuStreamWaitEvent(stream, event, 0))
    finally:
        driver.cuEventDestroy(event)  # the driver keeps it until the streams have passed it
