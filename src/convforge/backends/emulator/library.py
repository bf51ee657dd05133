"""Compiled libraries loaded into this process: the scheduler, and the kernels that it runs."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import tempfile
import weakref
from functools import cache
from pathlib import Path

from convforge.backends.emulator.compiler import compile_kernel, compile_scheduler, disk_cache
from convforge.backends.forks import no_fork
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import ELEMENTS, AnyMap, TiledMap

MOST_AXES = 5  # axes of a tensor map at most
ANCHOR_BYTES = 16  # static shared memory that the anchor adds to the kernel's


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
        ("pdl", ctypes.c_ulonglong), ("cluster", ctypes.c_ulonglong),
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
    def of(cls, array: AnyMap) -> TensorMap:
        """Encode a map that TMA can use."""
        missing = (1,) * (MOST_AXES - len(array.sizes))
        box, corners = ((*array.box, *missing), ()) if isinstance(array, TiledMap) else (
            (array.channels, array.pixels, 1, 1, 1), (array.lower, array.upper)
        )  # fmt: skip
        return cls(
            array.address, array.strides, (*array.sizes, *missing), box, (*array.steps, *missing), len(array.sizes),
            ELEMENTS[array.element], array.swizzle, bool(corners), array.element == "tf32", *corners,
        )  # fmt: skip


class Error(ctypes.Structure):
    """struct Error of region.h. `kind`: 0 none, 1 of a thread, 2 of a block, 3 of the launch."""

    _fields_ = (("kind", ctypes.c_int), ("block", _Index), ("thread", _Index), ("text", ctypes.c_char * 512))


class Scheduler:
    """The library that runs kernels; see :func:`convforge.backends.emulator.compiler.compile_scheduler`."""

    def __init__(self, portable: bool = False) -> None:
        self._library = loaded(compile_scheduler(portable))
        self.run = self._library.emulator_run
        self.run.argtypes = [ctypes.POINTER(Job), ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.POINTER(Error)]
        self.run.restype = None
        self.symbol_bytes = self._library.emulator_symbol_bytes  # address of an exported variable -> its bytes
        self.symbol_bytes.argtypes, self.symbol_bytes.restype = [ctypes.c_void_p], ctypes.c_ulonglong

    def measure(self, anchor: int) -> tuple[int, int]:
        """Return the offset of a kernel's anchor in its static shared memory, and the bytes of that memory."""
        offset, nbytes = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        arguments = (ctypes.c_void_p(anchor), ctypes.byref(offset), ctypes.byref(nbytes))
        if not self._library.emulator_measure(*arguments):
            raise OSError("the system's loader does not say where thread-local memory lies")
        return offset.value, nbytes.value


scheduler = cache(Scheduler)  # cached per process


class EmulatorKernel:
    """A kernel loaded into this process; `enter` is its address."""

    def __init__(self, source: KernelSource, code: bytes | None = None) -> None:
        self.source = source
        self._code = compile_kernel(source) if code is None else code
        self._library = loaded(self._code)
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False
        self.enter, self.anchor = self._address("emulator_enter"), self._address("emulator_anchor")
        # Offset of the anchor in static shared memory; bytes of that memory, including padding and anchor.
        self.shared_offset, self.shared_bytes = scheduler().measure(self.anchor)

    def instance(self) -> EmulatorKernel:
        """Load the kernel once more, with its own constant memory."""
        return EmulatorKernel(self.source, self._code)

    def symbol(self, name: str) -> tuple[int, int]:
        """Address and bytes of a ``__constant__`` array; ``ValueError`` for an unknown name."""
        try:
            address = self._address(name)
        except AttributeError:
            raise ValueError(f"{self.source.name} has no __constant__ array {name!r}") from None
        return address, scheduler().symbol_bytes(address)

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0


def loaded(code: bytes) -> ctypes.CDLL:
    """Load a library from its bytes, through a temporary file in the cache's folder: /tmp may be mounted noexec."""
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


def kernel_of(source: KernelSource) -> EmulatorKernel:
    """Compile and load a kernel once per process."""
    key = (source.digest(), source.name, source.struct)
    with no_fork():
        return _kernels.get(key) or _kernels.setdefault(key, EmulatorKernel(source))
