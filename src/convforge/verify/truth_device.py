"""Host side of truth.cu: compute the sums of large problems on a GPU, with the same bits as loops.py."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.arrays import address
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem, GemmProblem, Problem, border_indices

# Fewest FLOPs for which the device computes the truth: a host with few cores is then slower than copies to and from it.
DEVICE_FLOPS = 10**7
# Share of a device's memory for factors and sums.
MEMORY_SHARE = 0.5
# Most bytes per element of a factor: filters and some images are float64; matrices are float32.
FACTOR_BYTES = {"conv2d": 8, "gemm": 4}
# Side of a thread block in truth.cu; most blocks of a grid (its loops are grid-strided).
TILE = 16
MOST_BLOCKS = 2**31 - 1

Floats = NDArray[np.float64]


class _Convolution(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "rows", "columns", "totals", "magnitude")),
        *((name, ctypes.c_longlong) for name in ("outputs", "x_n", "x_c", "x_h", "x_w")),
        *((name, ctypes.c_double) for name in ("outside", "zero")),
        *((name, ctypes.c_int) for name in ("K", "P", "Q", "channels", "filters", "R", "S", "stride_h", "stride_w",
                                            "dilation_h", "dilation_w")),
    )  # fmt: skip


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "totals", "magnitude")),
        *((name, ctypes.c_longlong) for name in ("a_row", "a_k", "b_k", "b_column")),
        *((name, ctypes.c_int) for name in ("M", "N", "K")),
    )


def truth_on_device(problem: Problem, runtime: Runtime | None) -> bool:
    """True if the runtime's device computes the truth: the problem is large, and a GPU has enough memory.

    The truth of float64 sums needs twice that precision, which only the host's loops have.
    """
    if runtime is None or runtime.facts.backend == "cpu" or problem.flops < DEVICE_FLOPS:
        return False
    if problem.weights is None or problem.acc_dtype == "float64":
        return False
    factors = FACTOR_BYTES[problem.operation] * (problem.input.size + problem.weights.size)
    return factors + 16 * problem.outputs <= MEMORY_SHARE * runtime.facts.memory_bytes


def kernels() -> tuple[KernelSource, ...]:
    convolutions = [(dtype, layout) for dtype in ("float32", "float64") for layout in ("NCHW", "NHWC")]
    return (*(_convolution(*choice) for choice in convolutions), _product())


def _convolution(dtype: str, layout: str) -> KernelSource:
    """Kernel for pixels of `dtype` and an output in `layout`."""
    pixel = {"float32": "float", "float64": "double"}[dtype]
    lines = (*constants(CHANNELS_LAST=layout == "NHWC"), f"using pixel_t = {pixel};")
    return KernelSource("verify/truth.cu", "truth_conv2d", lines, _Convolution, "Convolution")


def _product() -> KernelSource:
    lines = (*constants(CHANNELS_LAST=False), "using pixel_t = float;")
    return KernelSource("verify/truth.cu", "truth_gemm", lines, _Product, "Product")


def conv2d_sums(problem: Conv2dProblem, x: NDArray[Any], w: NDArray[Any], runtime: Runtime) -> tuple[Floats, Floats]:
    """Compute sums before the epilogue and sums of absolute values: two float64 arrays in the output's layout.

    `x` is an (N, C, H, W) view of float32 or float64, uploaded in its memory order; `w` is (K, C / groups, R, S) in
    cross-correlation order.
    """
    top, bottom, left, right = problem.padding
    rows = border_indices(problem.h, top, bottom, problem.padding_mode).astype(np.int32)
    columns = border_indices(problem.w, left, right, problem.padding_mode).astype(np.int32)
    there = [_upload(x, runtime), *map(runtime.upload, (np.ascontiguousarray(w, np.float64), rows, columns))]
    sums = [runtime.empty(problem.out_shape, np.float64) for _ in range(2)]
    outputs = problem.n * problem.p * problem.k * problem.q
    args = _Convolution(
        *(address(array) for array in (*there, *sums)), outputs,
        *(step // x.itemsize for step in there[0].strides), problem.outside, problem.epilogue.x_zero_point,
        problem.k, problem.p, problem.q, problem.c_per_group, problem.k_per_group, problem.r, problem.s,
        *problem.stride, *problem.dilation,
    )  # fmt: skip
    blocks = min(-(-outputs // (TILE * TILE)), MOST_BLOCKS)
    info = LaunchInfo("truth_conv2d", (blocks,), (TILE * TILE,))
    return _run(_convolution(x.dtype.name, problem.out_layout), info, args, sums, runtime)


def gemm_sums(problem: GemmProblem, a: NDArray[Any], b: NDArray[Any], runtime: Runtime) -> tuple[Floats, Floats]:
    """Do the same as :func:`conv2d_sums` for views A (M, K) and B (K, N) of at most 32 bits: two (M, N) arrays."""
    a_there, b_there = (
        _upload(matrix if matrix.itemsize == 4 else matrix.astype(np.float32), runtime) for matrix in (a, b)
    )
    sums = [runtime.empty((problem.m, problem.n), np.float64) for _ in range(2)]
    args = _Product(
        *(address(array) for array in (a_there, b_there, *sums)),
        *(step // 4 for step in (*a_there.strides, *b_there.strides)), problem.m, problem.n, problem.k,
    )  # fmt: skip
    tiles = -(-problem.m // TILE) * -(-problem.n // TILE)
    info = LaunchInfo("truth_gemm", (min(tiles, MOST_BLOCKS),), (TILE, TILE))
    return _run(_product(), info, args, sums, runtime)


def _run(source: KernelSource, info: LaunchInfo, args: Any, sums: list[Any], runtime: Runtime) -> tuple[Floats, Floats]:
    runtime.launch(runtime.compile(source), info, args)
    runtime.synchronize()
    return runtime.download(sums[0]), runtime.download(sums[1])


def _upload(view: NDArray[Any], runtime: Runtime) -> Any:
    """Copy a view to the device without gaps; keep its axes and the order of its strides."""
    order = sorted(range(view.ndim), key=lambda axis: -view.strides[axis])
    return runtime.upload(view.transpose(order)).transpose(*(order.index(axis) for axis in range(view.ndim)))
