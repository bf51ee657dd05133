"""Kernel launches; a cached launch costs the host a microsecond, because its structs for the driver are kept."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from convforge.backends.cuda.driver import CudaError, library
from convforge.backends.runtime import LaunchInfo
from convforge.backends.structs import Template

# CUlaunchAttributeID: cluster dimension, programmatic stream serialization.
_CLUSTER, _PDL = 4, 6


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
    """Launch structs of one thread; None before its first launch."""

    made: _Made | None = None


class Launcher:
    """Launches one kernel over one grid, thread-safe; `kernel` is the driver's handle, `name` is for messages."""

    def __init__(self, name: str, kernel: int, info: LaunchInfo) -> None:
        self._name, self._kernel, self._info = name, kernel, info

    def __call__(self, args: ctypes.Structure, stream: int) -> None:
        """Launch on a stream with a struct, which the driver copies; ``CudaError`` if it refuses."""
        made = self._make(args)
        made.config.stream = stream
        if status := _launch_kernel()(made.config_at, self._kernel, made.pointers_at, None):
            raise self._fault(status)

    def again(self, template: Template) -> Callable[[Sequence[int], int], None]:
        """Return a function of the buffers' addresses and the stream that launches the kernel.

        Each thread writes the addresses into its own struct, which the driver copies.
        """
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
        info, name = self._info, _name_of(status)
        return CudaError(f"{self._name} was not launched, grid {info.grid}, block {info.block}: {name}")

    def _make(self, args: ctypes.Structure) -> _Made:
        info = self._info
        values: list[tuple[int, tuple[int, ...]]] = []
        if info.early:
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


def _name_of(status: int) -> str:
    from cuda.bindings import driver

    return str(driver.CUresult(status).name)
