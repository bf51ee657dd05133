"""Shared parts of the peers: refusals, loading of NVIDIA's libraries, and a plan that may return a library's array."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter, nothing_to_prepare
from convforge.algorithms.host.conv import address
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, numpy_dtype

# float32 holds every integer up to this one, so smaller integer sums are exact in any order.
EXACT_IN_FLOAT32 = 2**24
# Period of repeated random numbers: a prime, so that no two rows or planes are equal.
DIFFERENT = (1 << 16) + 1


def absence(module: str, name: str, package: str) -> Reason | None:
    """Reason if a library is not installed, with the command that installs it, else None; imports nothing.

    Examples
    --------
    >>> absence("numpy", "NumPy", "numpy") is None
    True
    >>> print(absence("no_such_module", "Nothing", "nothing"))
    Nothing is not installed: pip install nothing
    """
    if importlib.util.find_spec(module) is None:
        return Reason("{name} is not installed: pip install {package}", name=name, package=package)
    return None


def missing_epilogue(problem: Conv2dProblem, call: str) -> Reason | None:
    """Reason if the problem has an epilogue, for a library's call that has none; else None."""
    if problem.epilogue.is_identity:
        return None
    return Reason("{call} has no epilogue {epilogue}", call=call, epilogue=str(problem.epilogue))


def tf32_refusal(algorithm: Algorithm[Any, Any], problem: Any) -> Reason | None:
    """Reason if a method that may round factors to TF32 gets a dtype other than float32; else None."""
    alone = algorithm.precision == "tf32" and problem.input.dtype != "float32"
    return Reason("TF32 is about float32") if alone else None


def version(*packages: str) -> str:
    """Version of the first of these packages that is installed, or "unknown"; imports none of them."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def sums_dtype(problem: Conv2dProblem) -> str:
    """Float dtype for the sums of a library without integer convolution; it holds integer sums exactly."""
    if not is_integer(problem.acc_dtype):
        return problem.acc_dtype
    return "float32" if problem.largest_sum <= EXACT_IN_FLOAT32 else "float64"


def dtype_refusal(problem: Conv2dProblem) -> Reason | None:
    """Reason if the problem has dtypes that no peer computes (bfloat16, or int32 from float sums); else None."""
    if "bfloat16" in (problem.x_dtype, problem.w_dtype, problem.out_dtype):
        return Reason("other libraries are not asked for bfloat16 here; cast to float32")
    if problem.out_dtype == "int32" and not is_integer(problem.acc_dtype):
        return Reason("{sums} sums are not saturated to int32 by the library", sums=problem.acc_dtype)
    return None


def readable(array: NDArray[Any]) -> NDArray[Any]:
    """View an array so that other libraries can read it; copy it only if no view is readable.

    They need aligned elements and strides that are positive multiples of the element size, also along axes of size 1.
    Some libraries read a broadcast axis (stride 0) wrongly.

    Examples
    --------
    >>> x = np.zeros((1, 3), np.float32)
    >>> np.shares_memory(readable(x[::-1]), x), readable(x[::-1]).strides
    (True, (12, 4))
    >>> np.shares_memory(readable(np.broadcast_to(x, (2, 3))), x)
    False
    """
    if array.flags.c_contiguous and array.flags.aligned:
        return array.reshape(-1).reshape(array.shape)  # sets the strides of axes of size 1
    item = array.itemsize
    if array.flags.aligned and all(stride >= item and stride % item == 0 for stride in array.strides):
        return array
    return np.array(array, order="K", copy=True)


class PeerPlan(Plan):
    """Plan that calls another library: ``compute(buffers, stream)`` returns the result.

    With ``out=None`` the plan returns this result. If `allocates` is true, it is an array that the library allocated,
    and no copy into ``out`` is timed.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        problem: Any,
        config: Config,
        runtime: Runtime,
        *,
        compute: Callable[[Buffers, Any], Any],
        prepare: Callable[[Any, Any], PreparedFilter] = nothing_to_prepare,
        kernel: str,
        workspace_bytes: int = 0,
        allocates: bool = False,
    ) -> None:
        def run(buffers: Buffers, stream: Any) -> None:
            result, out = compute(buffers, stream), buffers[self.result]
            if result is not out:
                np.copyto(out, result)

        step = Call(LaunchInfo(kernel, (1,), (1,)), run)
        super().__init__(
            algorithm, problem, config, runtime, steps=[step], prepare=prepare, workspace_bytes=workspace_bytes
        )
        self.allocates = allocates
        self._compute = compute

    def __call__(self, buffers: Buffers, stream: Any = None) -> Any:
        """Compute into the output, or return the library's own array; raises WorkspaceTooSmall like every plan."""
        if buffers.get(self.result) is not None:
            return super().__call__(buffers, stream)
        workspace = self.enough_workspace(buffers.get("workspace"), stream)
        return self._compute({**buffers, self.result: None, "workspace": workspace}, stream)


def packed_address(array: Any, library: str) -> int:
    """Device address of a contiguous array, for a library without strides; raises ValueError if it has gaps."""
    if not array.is_contiguous:
        raise ValueError(
            f"{library} takes arrays whose elements lie side by side; one of shape {array.shape} has strides of "
            f"{array.strides} bytes: copy it first"
        )
    return address(array)


# Library -> its name in messages, and the wheel that installs it.
PACKAGES = {
    "cublas": ("cuBLAS", "nvidia-cublas"),
    "cudnn": ("cuDNN", "nvidia-cudnn-cu13"),
    "nppc": ("NPP", "nvidia-npp"),
    "nppif": ("NPP", "nvidia-npp"),
}


@cache
def shared_library(name: str) -> ctypes.CDLL | None:
    """Open one of :data:`PACKAGES`; None if it is not installed."""
    if name == "cudnn":  # cuda.pathfinder does not search for cuDNN, and cuDNN opens cuBLAS by name
        shared_library("cublas")
        return _first_that_opens([*_in_wheels(name), "libcudnn.so.9", "libcudnn.so"])
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        found = load_nvidia_dynamic_lib(name).abs_path
    except DynamicLibNotFoundError:  # it searches only Python's own folders, not the others on sys.path
        return _first_that_opens(_in_wheels(name))
    return None if found is None else ctypes.CDLL(found)


def missing_library(name: str, *symbols: str) -> Reason | None:
    """Reason if a library is not installed or lacks one of these functions; None if it is usable."""
    title, package = PACKAGES[name]
    library = shared_library(name)
    if library is None:
        return Reason("{name} is not installed: pip install {package}", name=title, package=package)
    gone = [symbol for symbol in symbols if not hasattr(library, symbol)]
    if gone:
        return Reason("the {title} that is installed has no {function} any more: install an older one to measure it",
                      title=title, function=gone[0])  # fmt: skip
    return None


def signature(library: Any, name: str, *arguments: Any, result: Any = ctypes.c_int) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, result
    return function


def _in_wheels(name: str) -> list[str]:
    """Paths of a library in the folder ``nvidia`` that all wheels share, newest version first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return sorted((str(file) for folder in folders for file in Path(folder).glob(f"*/lib/lib{name}.so*")), reverse=True)


def _first_that_opens(files: list[str]) -> ctypes.CDLL | None:
    for file in files:
        try:
            return ctypes.CDLL(file)
        except OSError:  # the library, or one that it needs, is missing
            continue
    return None


def random_array(shape: tuple[int, ...], dtype: str, runtime: Runtime, seed: int) -> Any:
    """Upload random normal numbers; for an integer dtype, integers that use about the lower half of its bits."""
    count, rng = math.prod(shape), np.random.default_rng(seed)
    some = rng.standard_normal(min(count, DIFFERENT)).astype(np.float32)
    kind = numpy_dtype(dtype)
    if is_integer(dtype):
        some = np.abs(some) if kind.kind == "u" else some
        return runtime.upload(np.resize(np.rint(some * 2.0 ** (4 * kind.itemsize - 3)).astype(kind), shape))
    return runtime.upload(np.resize(some.astype(kind), shape))
