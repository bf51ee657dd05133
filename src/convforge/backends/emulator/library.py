"""Compiled libraries in this process: the scheduler, one a process, and the kernels that it runs."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import tempfile
import threading
import weakref
from functools import cache
from pathlib import Path

from convforge.backends.emulator.compiler import compile_kernel, compile_scheduler, disk_cache
from convforge.backends.forks import no_fork
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import ELEMENTS, AnyMap, TiledMap

# Of an array that the accelerator reads.
MOST_AXES = 5


class _Index(ctypes.Structure):
    """struct Index of state.h."""

    _fields_ = tuple((axis, ctypes.c_uint) for axis in "xyz")


class Job(ctypes.Structure):
    """struct Job of region.h: a launch."""

    _fields_ = (
        ("enter", ctypes.c_void_p), ("anchor", ctypes.c_void_p),
        ("shared_offset", ctypes.c_ulonglong), ("shared_bytes", ctypes.c_ulonglong),
        ("args", ctypes.c_void_p), ("args_bytes", ctypes.c_ulonglong), ("grid", _Index), ("block", _Index),
        ("dynamic_bytes", ctypes.c_ulonglong), ("order", ctypes.c_ulonglong), ("seed", ctypes.c_ulonglong),
        ("early", ctypes.c_ulonglong), ("cluster", ctypes.c_ulonglong),
    )  # fmt: skip


class TensorMap(ctypes.Structure):
    """struct TensorMap of region.h: the first bytes of a kernel's TensorMap."""

    _fields_ = (
        ("address", ctypes.c_void_p), ("strides", ctypes.c_ulonglong * (MOST_AXES - 1)),
        ("sizes", ctypes.c_uint * MOST_AXES), ("box", ctypes.c_ushort * MOST_AXES),
        ("steps", ctypes.c_ubyte * MOST_AXES), ("axes", ctypes.c_ubyte), ("unit", ctypes.c_ubyte),
        ("swizzle", ctypes.c_ubyte), ("im2col", ctypes.c_ubyte), ("rounds", ctypes.c_ubyte),
        ("lower", ctypes.c_short * 3), ("upper", ctypes.c_short * 3),
    )  # fmt: skip

    @classmethod
    def of(cls, seen: AnyMap) -> TensorMap:
        """The map of an array that the accelerator can read."""
        missing = (1,) * (MOST_AXES - len(seen.sizes))
        box, corners = ((*seen.box, *missing), ()) if isinstance(seen, TiledMap) else (
            (seen.channels, seen.pixels, 1, 1, 1), (seen.lower, seen.upper)
        )  # fmt: skip
        return cls(
            seen.address, seen.strides, (*seen.sizes, *missing), box, (*seen.steps, *missing), len(seen.sizes),
            ELEMENTS[seen.element], seen.swizzle, bool(corners), seen.element == "tf32", *corners,
        )  # fmt: skip


class Error(ctypes.Structure):
    """struct Error of region.h. `kind`: 0 none, 1 of a thread, 2 of a block, 3 of the launch."""

    _fields_ = (("kind", ctypes.c_int), ("block", _Index), ("thread", _Index), ("text", ctypes.c_char * 512))


class Scheduler:
    """The library that runs kernels.

    Parameters
    ----------
    portable : bool
        Switch stacks by ucontext, as on processors for which no switch was written by hand.
    """

    def __init__(self, portable: bool = False) -> None:
        self._library = loaded(compile_scheduler(portable))
        self.run = self._library.emulator_run
        self.run.argtypes = [ctypes.POINTER(Job), ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.POINTER(Error)]
        self.run.restype = None
        self._symbol_bytes = self._library.emulator_symbol_bytes
        self._symbol_bytes.argtypes, self._symbol_bytes.restype = [ctypes.c_void_p], ctypes.c_ulonglong

    def measure(self, anchor: int) -> tuple[int, int]:
        """Return the offset of a kernel's anchor in its static shared memory, and the bytes of that memory."""
        offset, nbytes = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        arguments = (ctypes.c_void_p(anchor), ctypes.byref(offset), ctypes.byref(nbytes))
        if not self._library.emulator_measure(*arguments):
            raise OSError("the system's loader does not say where thread-local memory lies")
        return offset.value, nbytes.value

    def symbol_bytes(self, address: int) -> int:
        """Bytes of an exported variable."""
        return int(self._symbol_bytes(address))


@cache
def scheduler() -> Scheduler:
    """The scheduler of this process."""
    return Scheduler()


# Of static shared memory, beside the kernel's own.
ANCHOR_BYTES = 16


class EmulatorKernel:
    """A kernel loaded into this process.

    Attributes
    ----------
    source : KernelSource
    enter, anchor : int
        Addresses of the kernel and of what finds its static shared memory.
    shared_offset, shared_bytes : int
        Of the anchor, and of static shared memory, padding and anchor included.
    """

    def __init__(self, source: KernelSource, code: bytes | None = None) -> None:
        self.source = source
        self._code = compile_kernel(source) if code is None else code
        self._library = loaded(self._code)
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False
        self.enter, self.anchor = self._address("emulator_enter"), self._address("emulator_anchor")
        self.shared_offset, self.shared_bytes = scheduler().measure(self.anchor)

    def instance(self) -> EmulatorKernel:
        """The same kernel once more, with constant memory of its own."""
        return EmulatorKernel(self.source, self._code)

    def symbol(self, name: str) -> tuple[int, int]:
        """Address and bytes of a ``__constant__`` array of the kernel.

        Raises
        ------
        ValueError
            The kernel has none of this name.
        """
        try:
            address = self._address(name)
        except AttributeError:
            raise ValueError(f"{self.source.name} has no __constant__ array {name!r}") from None
        return address, scheduler().symbol_bytes(address)

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0


def loaded(code: bytes) -> ctypes.CDLL:
    """A library from its bytes, through a file of its own that is gone at once.

    The file lies in the cache's folder, as some systems run nothing that lies in /tmp.
    """
    folder = disk_cache().folder
    try:
        return _loaded_from(folder if folder is not None and os.access(folder, os.W_OK) else None, code)
    except OSError:
        if folder is None:
            raise
        return _loaded_from(None, code)  # such as a full disk


def _loaded_from(folder: Path | None, code: bytes) -> ctypes.CDLL:
    handle, name = tempfile.mkstemp(dir=folder, prefix=".run-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        return ctypes.CDLL(name)
    finally:
        Path(name).unlink()


_kernels: dict[tuple[str, ...], EmulatorKernel] = {}
_lock = threading.Lock()


def kernel_of(source: KernelSource) -> EmulatorKernel:
    """A kernel in this process, one however many runtimes ask for it."""
    key = (source.digest(), source.name, source.struct)
    with no_fork():
        with _lock:
            found = _kernels.get(key)
        if found is None:
            found = EmulatorKernel(source)
            with _lock:
                found = _kernels.setdefault(key, found)
    return found
