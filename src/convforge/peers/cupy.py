"""CuPy's ndimage.correlate on NVIDIA GPUs, called plane by plane, like SciPy on the CPU."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Config, PreparedFilter
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.peers.contract import PeerPlan, absence, dtype_refusal, missing_epilogue, version
from convforge.peers.planes import MOST_FILTERINGS, Placement, placement
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

CALL = "cupyx.scipy.ndimage.correlate"


class Border(NamedTuple):
    """CuPy's names for one padding mode."""

    ndimage: str
    pad: str  # for cupy.pad, which is used if the output extends beyond the image


# Our "circular" is "grid-wrap" in all of CuPy's functions. In some of them "wrap" has a period one pixel shorter.
BORDERS = {
    "zeros": Border("constant", "constant"),
    "constant": Border("constant", "constant"),
    "reflect": Border("mirror", "reflect"),
    "symmetric": Border("reflect", "symmetric"),
    "replicate": Border("nearest", "edge"),
    "circular": Border("grid-wrap", "wrap"),
}


class CupyNdimage(Algorithm[Conv2dProblem, Config]):
    """``cupyx.scipy.ndimage.correlate``, one kernel per plane.

    With a stride, CuPy computes all outputs, and every stride-th is kept. Channels are added plane by plane. CuPy's
    kernel handles the border; if the border is wider than the filter, the image is padded first.
    """

    name = "cupy_ndimage"
    summary = "CuPy's ndimage.correlate, plane by plane"
    operation = "conv2d"
    backend = "cuda"
    ours = False
    look = Mark("cupy", "diamond", (8, 3, 2, 3))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        absent = absence("cupy", "CuPy", "cupy-cuda13x")
        if reason := absent or dtype_refusal(problem) or missing_epilogue(problem, CALL):
            return reason
        calls = problem.n * problem.k * problem.c_per_group
        if not 0 < calls <= MOST_FILTERINGS:
            return Reason("{call} filters planes: {calls} calls are not in 1 to {most}",
                          call=CALL, calls=calls, most=MOST_FILTERINGS)  # fmt: skip
        if problem.acc_dtype == "float64" and sums_type(problem) != "float64":
            return Reason("CuPy sums {pixels} in {own}, not in float64", pixels=problem.x_dtype, own=sums_type(problem))
        return None

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        where = placement(problem, list(BORDERS))

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            import cupy

            with current_stream(runtime, stream):
                packed = _filter(problem, cupy.asarray(w))
            return PreparedFilter({"w": packed, "owner": w}, int(packed.nbytes))

        def compute(buffers: Buffers, stream: Any) -> Any:
            import cupy

            out = runtime.empty(problem.out_shape, problem.out_dtype) if buffers["out"] is None else buffers["out"]
            with current_stream(runtime, stream):
                x, target = cupy.asarray(buffers["x"]), cupy.asarray(out)
                if problem.x_layout == "NHWC":
                    x = x.transpose(0, 3, 1, 2)
                if problem.out_layout == "NHWC":
                    target = target.transpose(0, 3, 1, 2)
                for image, result in zip(x, target, strict=True):
                    _filter_image(problem, where, image, buffers["w"].tensors["w"], result)
            return out

        return PeerPlan(self, problem, config, runtime, compute=compute, prepare=prepare, kernel=CALL)

    def versions(self) -> dict[str, str]:
        return {"cupy": version("cupy-cuda13x", "cupy-cuda12x", "cupy")}


def sums_type(problem: Conv2dProblem) -> str:
    """Dtype in which CuPy's filters sum: float64 for integer weights, else the wider of x's dtype and float32."""
    return "float64" if is_integer(problem.w_dtype) else str(np.promote_types(problem.x_dtype, np.float32))


class _Stream:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def current_stream(runtime: Any, stream: Any) -> Any:
    import cupy

    handle = runtime.stream_handle(stream)
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Stream(handle))
    return cupy.cuda.ExternalStream(handle)


def _filter(problem: Conv2dProblem, w: Any) -> Any:
    """Filters (K, C, R, S) in cross-correlation order, dilated with zeros; copied only if needed."""
    import cupy

    if problem.mode == "convolution":
        w = w[:, :, ::-1, ::-1]
    dtype = w.dtype if is_integer(problem.w_dtype) else sums_type(problem)
    if problem.dilation == (1, 1):
        return cupy.ascontiguousarray(w, dtype)
    spread = cupy.zeros((*w.shape[:2], problem.extent_h, problem.extent_w), dtype)
    spread[:, :, :: problem.dilation[0], :: problem.dilation[1]] = w
    return spread


def _filter_image(problem: Conv2dProblem, where: Placement, image: Any, w: Any, result: Any) -> None:
    """Compute all output channels of one image: (C, H, W) -> (K, P, Q)."""
    import cupy

    if where.pads:
        top, bottom, left, right = problem.padding
        mode = BORDERS[problem.padding_mode].pad
        values = {"constant_values": problem.padding_value} if mode == "constant" else {}
        image = cupy.pad(image, ((0, 0), (top, bottom), (left, right)), mode, **values)
    correlate = functools.partial(_correlate, problem, where)
    direct = problem.c_per_group == 1 and where.whole and not is_integer(problem.out_dtype)
    for k in range(problem.k):
        first = k // problem.k_per_group * problem.c_per_group
        if direct:
            correlate(image[first], w[k, 0], result[k])
            continue
        total = cupy.empty(where.shape, sums_type(problem))
        correlate(image[first], w[k, 0], total)
        part = cupy.empty(where.shape, sums_type(problem)) if problem.c_per_group > 1 else None
        for c in range(1, problem.c_per_group):
            correlate(image[first + c], w[k, c], part)
            total += part
        kept = total[:: problem.stride[0], :: problem.stride[1]][: problem.p, : problem.q]
        result[k] = _rounded(problem, kept)


def _correlate(problem: Conv2dProblem, where: Placement, plane: Any, kernel: Any, target: Any) -> None:
    from cupyx.scipy import ndimage

    mode = "constant" if where.pads else BORDERS[problem.padding_mode].ndimage
    origin = tuple(at - size // 2 for at, size in zip(where.anchor, kernel.shape, strict=True))
    ndimage.correlate(plane, kernel, output=target, mode=mode, cval=problem.padding_value, origin=origin)


def _rounded(problem: Conv2dProblem, sums: Any) -> Any:
    """Cast sums to the output's dtype: integers are rounded half to even and saturated, NaN becomes 0."""
    # ``cupy.nan_to_num`` would wait for the GPU, which is forbidden while a stream is captured.
    import cupy

    if not is_integer(problem.out_dtype):
        return sums
    if not is_integer(problem.x_dtype):
        sums = cupy.where(cupy.isnan(sums), sums.dtype.type(0), sums)
    limits = np.iinfo(problem.out_dtype)
    return cupy.clip(cupy.rint(sums), limits.min, limits.max).astype(problem.out_dtype)
