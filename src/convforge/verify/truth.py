"""Compute any problem from its definition in float64, or in twice that precision to check float64 sums.

The loops are in loops.py. One output row (n, p) with all channels is one work item, so a few rows can be computed
without the rest. On a GPU, truth.cu computes the same sums of large problems, with identical bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cpu import cpu_runtime
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem, GemmProblem, Pool2dProblem, Problem, border_indices
from convforge.problem.types import is_integer
from convforge.verify import truth_device
from convforge.verify.inputs import Inputs

Floats = NDArray[np.float64]


class Truth(NamedTuple):
    """Reference output, not yet rounded to the output's dtype, in the output's memory layout."""

    value: Floats
    magnitude: Floats  # sums of absolute values, with the epilogue; error bounds are multiples of it


def truth(problem: Problem, inputs: Inputs, runtime: Runtime | None = None) -> Truth:
    """Compute a problem of any operation from its definition in float64, perhaps on a GPU (:func:`truth_on_device`).

    Integer sums are exact. Sums of type float64 are as accurate as if computed in twice that precision (loops.py).

    Examples
    --------
    >>> from convforge.verify import make_inputs
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n1c1h3w3_k1r3s3_p1_f32_nchw")
    >>> truth(problem, make_inputs(problem, "impulse")).value[0, 0].tolist()
    [[9.0, 8.0, 7.0], [6.0, 5.0, 4.0], [3.0, 2.0, 1.0]]
    """
    case: Any = problem
    if case.operation == "conv2d":
        return conv2d_truth(case, inputs, runtime)
    if case.operation == "max_pool2d":
        value = _max_pool2d(case, inputs)
    elif case.operation == "relu":
        x = inputs.x.astype(np.float64)
        value = np.where(x < 0, 0.0, x)
    elif runtime is not None and truth_device.truth_on_device(case, runtime):
        return Truth(*truth_device.gemm_sums(case, *matrices(case, inputs), runtime))
    else:
        return Truth(*gemm_sums(case, inputs, np.arange(case.m), "truth"))
    return Truth(value, np.abs(value))


def conv2d_truth(problem: Conv2dProblem, inputs: Inputs, runtime: Runtime | None = None) -> Truth:
    items = np.arange(problem.n * problem.p)
    if runtime is not None and truth_device.truth_on_device(problem, runtime):
        x = _planes(problem, _as_float(inputs.x))
        value, magnitude = truth_device.conv2d_sums(problem, x, _correlated(problem, inputs), runtime)
        if problem.epilogue.is_plain:
            return Truth(value, magnitude)
        sums, absolute = to_rows(problem, value), to_rows(problem, magnitude)
    else:
        sums, absolute = conv2d_sums(problem, inputs, items, "truth")
    value, magnitude = epilogue(problem, inputs, items, sums, absolute)
    # Contiguous in the output's memory order, because every result is compared with these arrays.
    return Truth(np.ascontiguousarray(from_rows(problem, value)), np.ascontiguousarray(from_rows(problem, magnitude)))


def conv2d_sums(
    problem: Conv2dProblem, inputs: Inputs, items: NDArray[np.int64], style: str, *, backward: bool = False
) -> tuple[Floats, Floats]:
    """Sum products for output rows `items` (n * P + p), before the epilogue; return totals and figures.

    Both are (items, K, Q) float64 arrays. The figures of style "truth" are sums of absolute values. "sequential"
    computes one FMA in the accumulation dtype after the other, in the order c, r, s. Its figures are sums of squares of
    the numbers that are rounded: partial sums, and products that the dtype cannot hold. "cut" truncates FMAs to
    float32, "two levels" sums like Hopper's FP8 units, with FP32 sums after every 128 products, and "one level"
    without; these three have no figures. `backward` sums from last tap to first.
    """
    from convforge.verify import loops

    x, w = _planes(problem, inputs.x), _correlated(problem, inputs)
    top, bottom, left, right = problem.padding
    rows = border_indices(problem.h, top, bottom, problem.padding_mode)
    columns = border_indices(problem.w, left, right, problem.padding_mode)
    totals = np.zeros((items.size, problem.k, problem.q))
    beside = np.zeros_like(totals)
    x, rows, items = _seen(problem, x, rows, items)
    if style != "truth":
        x, w = x.astype(problem.acc_dtype), w.astype(problem.acc_dtype)
    args = (_as_float(x), _as_float(w, np.float64), rows, columns, float(problem.outside),
            float(problem.epilogue.x_zero_point), problem.stride, problem.dilation, problem.p, items,
            _style(style, problem.acc_dtype), backward, totals, beside)  # fmt: skip
    launch(loops.convolve, items.size, problem.flops, args)
    return totals, beside


def _seen(
    problem: Conv2dProblem, x: NDArray[Any], rows: NDArray[np.int64], items: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Drop unneeded images and rows from x, rows and items, because converting them can take longer than the sums."""
    images, image = np.unique(items // problem.p, return_inverse=True)
    taps = np.arange(problem.r) * problem.dilation[0]
    found = np.unique(rows[(items % problem.p)[:, None] * problem.stride[0] + taps])
    found = found[found >= 0]
    if images.size * found.size >= problem.n * problem.h:
        return x, rows, items
    place = np.full(problem.h + 1, -1)  # index -1 reads the last element, which is -1
    place[found] = np.arange(found.size)
    return x[images][:, :, found], place[rows], image * problem.p + items % problem.p


def gemm_sums(
    problem: GemmProblem, inputs: Inputs, items: NDArray[np.int64], style: str, *, backward: bool = False
) -> tuple[Floats, Floats]:
    """Sum products for rows `items` of a matrix product; as :func:`conv2d_sums`, with two (items, N) float64 arrays."""
    from convforge.verify import loops

    a, b = (_as_float(matrix, np.float64) for matrix in matrices(problem, inputs))
    totals = np.zeros((items.size, problem.n))
    beside = np.zeros_like(totals)
    args = (a, b, items, _style(style, problem.acc_dtype), backward, totals, beside)
    launch(loops.multiply, items.size, problem.flops, args)
    return totals, beside


def epilogue(
    problem: Conv2dProblem, inputs: Inputs, items: NDArray[np.int64], sums: Floats, magnitude: Floats
) -> tuple[Floats, Floats]:
    """Apply the epilogue in float64 to rows of sums and to their magnitude.

    An activation multiplies errors by at most its largest slope; sigmoid and tanh add rounding errors relative to 1.
    """
    value, ends = sums, problem.epilogue
    for apply, operand in epilogue_steps(problem, inputs, items, np.dtype(np.float64)):
        value, magnitude = apply(value, operand), apply(magnitude, np.abs(operand))
    slope, floor = SLOPES[ends.activation]
    if ends.activation == "leaky_relu":
        slope = max(1.0, abs(ends.alpha or 0.0))
    if (slope, floor) != (1.0, 0.0):
        magnitude = magnitude * slope + floor
    value = activate(value, ends.activation, ends.alpha)
    for apply, operand in requantization_steps(problem, np.dtype(np.float64)):
        value, magnitude = apply(value, operand), apply(magnitude, np.abs(operand))
    return value, magnitude


def epilogue_steps(
    problem: Conv2dProblem, inputs: Inputs, items: NDArray[np.int64], dtype: np.dtype[Any]
) -> Iterator[tuple[np.ufunc, NDArray[Any]]]:
    """Yield the epilogue's operations before the activation, each with its operand in `dtype`."""
    ends, operands = problem.epilogue, inputs.operands
    if ends.divisor != 1:
        yield np.divide, np.asarray(ends.divisor, dtype)
    if ends.scale != "none":
        yield np.multiply, np.asarray(operands["scale"], dtype).reshape(-1, 1)
    if ends.bias:
        yield np.add, np.asarray(operands["bias"], dtype).reshape(-1, 1)
    if ends.residual:
        residual = some_rows(problem, np.asarray(operands["residual"]), items).astype(dtype)
        yield np.add, residual if ends.residual_scale == 1 else residual * dtype.type(ends.residual_scale)


def requantization_steps(
    problem: Conv2dProblem, dtype: np.dtype[Any]
) -> Iterator[tuple[np.ufunc, NDArray[np.floating[Any]]]]:
    """Yield the epilogue's operations after the activation, each with its operand in `dtype`."""
    ends = problem.epilogue
    if ends.out_scale != 1:
        yield np.divide, np.asarray(ends.out_scale, dtype)
    if ends.out_zero_point:
        yield np.add, np.asarray(ends.out_zero_point, dtype)


# Activation -> its largest slope, and the size of internal terms that are rounded for every y.
SLOPES = dict.fromkeys(("identity", "relu", "leaky_relu", "clipped_relu"), (1.0, 0.0))
SLOPES |= {"sigmoid": (0.25, 1.0), "tanh": (1.0, 1.0), "silu": (1.1, 0.0), "gelu": (1.13, 0.0)}


def activate(y: NDArray[Any], name: str, alpha: float | None) -> NDArray[Any]:
    """Apply an activation in the type of `y`; NaN stays NaN."""
    from scipy import special

    kind, a = y.dtype.type, y.dtype.type(alpha or 0.0)
    activations: dict[str, Callable[[], Any]] = {
        "identity": lambda: y,
        "relu": lambda: np.where(y < 0, kind(0), y),
        "leaky_relu": lambda: np.where(y < 0, y * a, y),
        "clipped_relu": lambda: np.where(y < 0, kind(0), np.where(y > a, a, y)),
        "sigmoid": lambda: special.expit(y),
        "tanh": lambda: np.tanh(y),
        "silu": lambda: y * special.expit(y),
        "gelu": lambda: y * (special.erfc(-y * kind(np.sqrt(0.5)))) / kind(2),
    }
    with np.errstate(all="ignore"):
        return np.asarray(activations[name]())


# Output layout -> permutation of its axes to (N, P, K, Q), which is its own inverse.
_ROW_AXES = {"NCHW": (0, 2, 1, 3), "NHWC": (0, 1, 3, 2)}


def to_rows(problem: Conv2dProblem, out: NDArray[Any]) -> NDArray[Any]:
    """Rearrange an array of the output's shape as output rows (N * P, K, Q)."""
    return out.transpose(_ROW_AXES[problem.out_layout]).reshape(problem.n * problem.p, problem.k, problem.q)


def some_rows(problem: Conv2dProblem, out: NDArray[Any], items: NDArray[np.int64]) -> NDArray[Any]:
    """Rows `items` of :func:`to_rows`, without a copy of all rows."""
    return np.asarray(out.transpose(_ROW_AXES[problem.out_layout])[items // problem.p, items % problem.p])


def from_rows(problem: Conv2dProblem, rows: NDArray[Any]) -> NDArray[Any]:
    return rows.reshape(problem.n, problem.p, problem.k, problem.q).transpose(_ROW_AXES[problem.out_layout])


def _max_pool2d(problem: Pool2dProblem, inputs: Inputs) -> Floats:
    from convforge.verify import loops

    x = inputs.x.astype(np.float64)
    seen = x if problem.layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    out = np.empty((problem.n, problem.c, problem.p, problem.q))
    args = (np.ascontiguousarray(seen), problem.r, problem.s, problem.stride, problem.dilation, problem.padding, out)
    launch(loops.maximum, problem.n * problem.c, problem.flops, args)
    return out if problem.layout == "NCHW" else out.transpose(0, 2, 3, 1)


def _planes(problem: Conv2dProblem, x: NDArray[Any]) -> NDArray[Any]:
    return x if problem.x_layout == "NCHW" else x.transpose(0, 3, 1, 2)


def _correlated(problem: Conv2dProblem, inputs: Inputs) -> NDArray[Any]:
    assert inputs.w is not None
    return inputs.w if problem.mode == "cross-correlation" else inputs.w[:, :, ::-1, ::-1]


def matrices(problem: GemmProblem, inputs: Inputs) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of A as (M, K) and B as (K, N)."""
    assert inputs.w is not None
    return inputs.x.T if problem.transpose_a else inputs.x, inputs.w.T if problem.transpose_b else inputs.w


def _as_float(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Make an array contiguous, in float32 if it holds every value, else in float64: few kernels are compiled."""
    if dtype is None:
        dtype = np.float64 if array.dtype in (np.float64, np.int32) else np.float32
    return np.ascontiguousarray(array, dtype)


def _style(style: str, acc_dtype: str) -> int:
    from convforge.verify import loops

    if is_integer(acc_dtype) and style != "truth":
        raise ValueError(f"sums of type {acc_dtype} are exact in any order; there is no sequential error")
    of_float64 = {"truth": loops.COMPENSATED, "sequential": loops.SEQUENTIAL64}
    styles = {
        "truth": loops.PLAIN,
        "sequential": loops.SEQUENTIAL32,
        "cut": loops.CUT32,
        "two levels": loops.TWO_LEVELS,
        "one level": loops.ONE_LEVEL,
    }
    return (styles | of_float64 if acc_dtype == "float64" else styles)[style]


def launch(kernel: Any, items: int, flops: int, args: tuple[Any, ...]) -> None:
    runtime = cpu_runtime()
    block = block_of_items(items, flops, runtime.facts)
    runtime.launch(kernel, LaunchInfo("truth", (items,), (block,)), args)
