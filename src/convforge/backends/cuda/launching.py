"""Launches of kernels, a microsecond of the host's each: the driver is handed structs that stand ready."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from convforge.backends.cuda.driver import CudaError, library
from convforge.backends.runtime import LaunchInfo

# CUlaunchAttributeID.
_CLUSTER, _EARLY = 4, 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number that says which, and 64 bytes aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("_before_value", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class _Made(threading.local):
    """The structs of one thread for the driver; `config` is None until the thread launches for the first time."""

    config: Any = None


class Launcher:
    """Launches one kernel over one grid, from any thread.

    Parameters
    ----------
    name : str
        The kernel's, for messages.
    kernel : int
        The driver's handle.
    info : LaunchInfo
        Grid, block, shared memory, cluster, and whether it begins early.
    """

    def __init__(self, name: str, kernel: int, info: LaunchInfo) -> None:
        self._name, self._kernel, self._info = name, kernel, info
        self._launch = _launch_kernel()
        self._made = _Made()

    def __call__(self, args: ctypes.Structure, stream: int) -> None:
        """Launch it with a struct, which is copied, on a stream.

        Raises
        ------
        CudaError
            The driver refuses.
        """
        made = self._made
        if (config := made.config) is None:
            config = self._make(made)
        config.stream = stream
        made.pointers[0] = ctypes.addressof(args)
        if status := self._launch(made.config_at, self._kernel, made.pointers_at, None):
            info = self._info
            raise CudaError(f"{self._name} was not launched, grid {info.grid}, block {info.block}: {_name_of(status)}")

    def _make(self, made: Any) -> _Config:
        info = self._info
        values: list[tuple[int, tuple[int, ...]]] = []
        if info.early:
            values.append((_EARLY, (1,)))
        if info.cluster:
            values.append((_CLUSTER, (*info.cluster, 1, 1)[:3]))
        made.attributes = (_Attribute * max(len(values), 1))(*(_Attribute(which, 0, value) for which, value in values))
        made.pointers = (ctypes.c_void_p * 1)()
        made.pointers_at = ctypes.addressof(made.pointers)
        config = _Config(
            (*info.grid, 1, 1)[:3], (*info.block, 1, 1)[:3], info.scratch_bytes, None,
            ctypes.addressof(made.attributes), len(values),
        )  # fmt: skip
        made.config_at, made.config = ctypes.addressof(config), config
        return config


@cache
def _launch_kernel() -> Callable[..., int]:
    function = library().cuLaunchKernelEx
    function.argtypes, function.restype = (ctypes.c_void_p,) * 4, ctypes.c_int
    return function  # type: ignore[no-any-return]


def _name_of(status: int) -> str:
    from cuda.bindings import driver

    return str(driver.CUresult(status).name)
