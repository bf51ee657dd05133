"""Parts that all peers share: refusals, and a plan whose result may be the library's own array."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter, nothing_to_prepare
from convforge.algorithms.host.conv import address
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

# float32 holds every whole number up to here, so sums that stay below are exact in it, in any order.
EXACT_IN_FLOAT32 = 2**24


def absence(module: str, name: str, package: str) -> Reason | None:
    """The refusal of a library that is not installed, with the line that installs it; imports nothing.

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


def version(*packages: str) -> str:
    """The version of the first installed package of these, or "unknown"; imports none of them."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def one_config(self: Any, problem: Any, facts: DeviceFacts) -> Sequence[Config]:
    """`configs` of a method without parameters."""
    return [Config()]


def sums_dtype(problem: Conv2dProblem) -> str:
    """The float type of the sums in a library without integer convolution.

    Integer sums are exact in float32 up to 2^24, and in float64 up to 2^53, which int32 sums never reach.
    """
    if not is_integer(problem.acc_dtype):
        return problem.acc_dtype
    return "float32" if problem.largest_sum <= EXACT_IN_FLOAT32 else "float64"


def dtype_refusal(problem: Conv2dProblem) -> Reason | None:
    """The refusal of types that no peer computes: bfloat16, and int32 out of float sums."""
    if "bfloat16" in (problem.x_dtype, problem.w_dtype, problem.out_dtype):
        return Reason("other libraries are not asked for bfloat16 here; cast to float32")
    if problem.out_dtype == "int32" and not is_integer(problem.acc_dtype):
        return Reason("{sums} sums are not saturated to int32 by the library", sums=problem.acc_dtype)
    return None


def readable(array: NDArray[Any]) -> NDArray[Any]:
    """A view that other libraries can read; a copy only where they cannot.

    They need aligned elements and positive strides of whole elements, also along axes of size 1. Some of them read an
    axis of several elements with stride 0 wrongly.

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
    """A plan that calls another library.

    `compute` maps the call's buffers and the stream to the result, and `kernel` is the library's name of the call. With
    ``out=None`` the result is returned. Where `allocates` is true, it is the library's own array, in the type and
    layout of the problem: the library does not copy it into ``out``, so the copy is not timed.
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
        """Compute into the output, or return the library's own array; raises WorkspaceTooSmall as every plan does."""
        if buffers.get(self.result) is not None:
            return super().__call__(buffers, stream)
        workspace = self.enough_workspace(buffers.get("workspace"), stream)
        return self._compute({**buffers, self.result: None, "workspace": workspace}, stream)


def packed_address(array: Any, library: str) -> int:
    """The address of an array on its device, for a library without strides; ValueError if the array has gaps."""
    if not array.is_contiguous:
        raise ValueError(
            f"{library} takes arrays whose elements lie side by side; one of shape {array.shape} has strides of "
            f"{array.strides} bytes: copy it first"
        )
    return address(array)
