"""FFTs by cuFFT's C interface, on the caller's stream and work area; a call allocates nothing.

nvmath-python has bindings of the same functions, but its import takes a second; libcufft alone loads in 6 ms.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from typing import Any

from convforge.backends.cuda.absent import first_line
from convforge.backends.fft import RealFft

INSTALL = "pip install nvidia-cufft (CUDA 13) or nvidia-cufft-cu12 (CUDA 12)"

# (type of the pixels, inverse) -> (cufftType, function that runs the transform).
_KINDS = {
    ("float32", False): (0x2A, "cufftExecR2C"),
    ("float32", True): (0x2C, "cufftExecC2R"),
    ("float64", False): (0x6A, "cufftExecD2Z"),
    ("float64", True): (0x6C, "cufftExecZ2D"),
}
# Names of the values of cufftResult; cuFFT has no function that returns them.
_STATUS = {
    1: "INVALID_PLAN", 2: "ALLOC_FAILED", 3: "INVALID_TYPE", 4: "INVALID_VALUE", 5: "INTERNAL_ERROR", 6: "EXEC_FAILED",
    7: "SETUP_FAILED", 8: "INVALID_SIZE", 9: "UNALIGNED_DATA", 11: "INVALID_DEVICE", 13: "NO_WORKSPACE",
    14: "NOT_IMPLEMENTED", 16: "NOT_SUPPORTED", 17: "MISSING_DEPENDENCY", 18: "NVRTC_FAILURE", 19: "NVJITLINK_FAILURE",
}  # fmt: skip
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cufftGetVersion": (POINTER(c_int),),
    "cufftCreate": (POINTER(c_int),),
    "cufftDestroy": (c_int,),
    "cufftSetAutoAllocation": (c_int, c_int),
    "cufftMakePlanMany64": (
        *(c_int, c_int, POINTER(c_longlong)),
        *(POINTER(c_longlong), c_longlong, c_longlong),
        *(POINTER(c_longlong), c_longlong, c_longlong),
        *(c_int, c_longlong, POINTER(c_size_t)),
    ),
    "cufftSetStream": (c_int, c_void_p),
    "cufftSetWorkArea": (c_int, c_void_p),
    **{name: (c_int, c_void_p, c_void_p) for _, name in _KINDS.values()},
}


class CufftError(RuntimeError):
    """cuFFT reported an error."""


@cache
def why_no_fft() -> str:
    """Return the reason why cuFFT cannot be used, with the remedy; empty if it can."""
    try:
        _library()
    except (ImportError, OSError, RuntimeError) as fault:  # pathfinder's "not found" is a RuntimeError
        return f"cuFFT, NVIDIA's Fourier transforms, cannot be loaded ({first_line(fault)}): {INSTALL}"
    return ""


def cufft_version() -> str:
    """Return cuFFT's version, such as "12.0.0"; "unknown" without cuFFT."""
    if why_no_fft():
        return "unknown"
    number = c_int()
    _call("cufftGetVersion", byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 100}.{number.value % 100}"


class CufftTransform:
    """A cuFFT plan of a :class:`RealFft` on one GPU; `handle_of` returns a stream's handle and makes the GPU current.

    The plan stores the stream and the work area of its next run, so a lock guards them; launches are asynchronous.
    """

    def __init__(self, fft: RealFft, handle_of: Callable[[Any], int]) -> None:
        kind, self.kernel = _KINDS[fft.dtype, fft.inverse]
        self.fft, self._handle_of = fft, handle_of
        self._lock = threading.Lock()
        plan, nbytes = c_int(), c_size_t()
        _call("cufftCreate", byref(plan))
        self._plan = plan.value
        weakref.finalize(self, _library().cufftDestroy, self._plan).atexit = False
        _call("cufftSetAutoAllocation", self._plan, 0)
        pitches = (fft.pitch, 2 * fft.pitch) if fft.inverse else (2 * fft.pitch, fft.pitch)
        source, target = ((_pair(fft.size_h, pitch), 1, fft.size_h * pitch) for pitch in pitches)
        sizes = _pair(fft.size_h, fft.size_w)
        _call("cufftMakePlanMany64", self._plan, 2, sizes, *source, *target, kind, fft.batch, byref(nbytes))
        self.workspace_bytes = int(nbytes.value)

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        """Transform a batch; ``ValueError`` for too little data or workspace, or ``CufftError``."""
        need, room = self._batch_bytes(), 0 if workspace is None else workspace.nbytes
        if data.nbytes < need or room < self.workspace_bytes:
            raise ValueError(
                f"{self.kernel} of {self.fft} needs {need} bytes of data and {self.workspace_bytes} of workspace; "
                f"got {data.nbytes} and {room}"
            )
        with self._lock:
            _call("cufftSetStream", self._plan, self._handle_of(stream))
            if self.workspace_bytes:
                _call("cufftSetWorkArea", self._plan, workspace.address)
            _call(self.kernel, self._plan, data.address, data.address)

    def _batch_bytes(self) -> int:
        batch, rows, reals = self.fft.reals
        return batch * rows * reals * (4 if self.fft.dtype == "float32" else 8)


def _pair(rows: int, columns: int) -> Any:
    return (c_longlong * 2)(rows, columns)


@cache
def _library() -> Any:
    """Load libcufft from NVIDIA's wheel, conda's folders or the system's, and declare its functions."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    found = load_nvidia_dynamic_lib("cufft").abs_path
    library = ctypes.CDLL("libcufft.so" if found is None else found)
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    return library


def _call(name: str, *args: Any) -> None:
    status = getattr(_library(), name)(*args)
    if status:
        raise CufftError(f"{name} says {_STATUS.get(status, 'error')} ({status})")
