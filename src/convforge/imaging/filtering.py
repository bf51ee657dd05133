"""`filter`: cross-correlation of an array of pixels with a kernel."""

from __future__ import annotations

import math
import os
from typing import Any, Never, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Plan, PreparedFilter
from convforge.backends.runtime import CallerStream
from convforge.call.arguments import IntPair, check_word, pair, refuse_others
from convforge.call.arrays import dtype_name, home_of
from convforge.call.dispatch import at_home, execute, find_plan
from convforge.imaging.axes import Axes
from convforge.imaging.weights import kernel_array, kernel_arrays, two_passes_pay, weights_of
from convforge.problem import Conv2dProblem, Epilogue, padding_mode_of
from convforge.problem.types import SHORT_NAMES, finfo, is_integer, limits

# Prepared weights kept on GPUs, one per plan, filter and stream.
TAPS_KEPT = 64
_TAPS: dict[Any, PreparedFilter] = {}

# Arguments of SciPy's and OpenCV's filters, and their equivalents here.
_ANCHOR = "the centre is element (R // 2, S // 2); pad the kernel with zeros until that is the element that you mean"
ELSEWHERE = {
    "anchor": _ANCHOR,
    "origin": _ANCHOR,
    "delta": "add it to the result: filter(image, kernel, out_dtype='float32') + delta",
    **dict.fromkeys(("mode", "borderType", "boundary", "padding_mode"), "say border="),
    **dict.fromkeys(("ddepth", "dtype", "output"), "say out_dtype="),
    **dict.fromkeys(("axis", "channel_axis"), "say axes=, such as axes='CYX' for channel_axis=0"),
    **dict.fromkeys(("sigma", "ksize", "truncate"), "the kernel says it: 'gaussian:SIZE:SIGMA', 'box:SIZE'"),
    **dict.fromkeys(("fillvalue", "padding_value", "constant_values"), "say border='constant' and cval="),
}


class FilterOptions(TypedDict, total=False):
    """Arguments of :func:`filter` that determine the problem."""

    channels: str
    border: str
    cval: float
    stride: IntPair
    out_dtype: Any
    algorithm: str
    axes: str | None


def filter(  # noqa: A001
    image: Any,
    kernel: NDArray[Any] | str | os.PathLike[str],
    *,
    channels: str = "each",
    border: str = "reflect",
    cval: float = 0.0,
    stride: IntPair = 1,
    out_dtype: Any = None,
    device: str | None = None,
    algorithm: str = "auto",
    axes: str | None = None,
    **others: Never,
) -> Any:
    """Filter an image, or a stack of images, with one kernel by cross-correlation (the kernel is not flipped).

    out[p, q] = sum over r, s of image[p*stride + r - R//2, q*stride + s - S//2] * kernel[r, s]

    Parameters
    ----------
    image : array of shape (H, W), (H, W, C) or (T, H, W, C)
        Array of NumPy, PyTorch, CuPy or JAX, with dtype uint8, uint16, int16, int8, int32, float16, float32 or float64.
        Any number of bands C and of pages T. A gray stack is (T, H, W, 1), or `axes` names its axes.
    kernel : array of shape (R, S), str or path
        Numbers, or a text for :func:`convforge.imaging.kernels.load_kernel`: a name such as "laplacian" or
        "gaussian:5:1.2", a file, or a matrix such as "1 1 1; 1 -8 1; 1 1 1". Its centre is at (R // 2, S // 2).
        "gaussian:2,1,1px" (sigma along Z, Y and X) filters a volume, whose axes `axes` names.
    channels : {"each", "sum"}
        Filter each band alone, or sum all bands into one image without a band axis.
    border, cval : str, float
        Values of pixels outside of the image: "zeros", "constant" (`cval`, a value of the image's type), "reflect"
        (edge pixel not repeated), "symmetric" (edge pixel repeated), "replicate" or "circular"; or the name of one of
        them in SciPy, NumPy or OpenCV, such as "mirror", "edge" or "BORDER_WRAP".
    stride : int or pair of int
        Step between computed rows and columns.
    out_dtype : dtype, optional
        A dtype of NumPy or PyTorch, or its name; by default the image's. Integers round half to even and saturate.
    device, algorithm
        As in :func:`convforge.conv2d`. "auto" uses two one-dimensional passes for a kernel of rank 1. If the image has
        integers and the kernel whole numbers, or whole numbers over one divisor (such as a mean), the sums are exact
        and divided once, except in methods that round, such as "fft". Sums of other kernels over integers are float32
        for pixels of 8 bits, else float64.
    axes : str, optional
        The axes of `image` by the letters of `convforge.imaging.axes.LETTERS`, if they differ from the shapes above,
        such as "ZYX", "CYX" or "TZYXC". Y and X are rows and columns, which must be adjacent; C or S are the bands; Z,
        T and I separate planes. At most one letter may follow YX.

    Returns
    -------
    array of shape (P, Q), (P, Q, C) or (T, P, Q, C), P = ceil(H / stride), Q = ceil(W / stride)
        With `axes`, the result has the axes of `image` in the same order.

    Raises
    ------
    ValueError, TypeError
        As :func:`convforge.conv2d`; also if the kernel is not two-dimensional or contains NaN or Inf. For an argument
        of SciPy's or OpenCV's filters, such as `anchor` or `delta`, the message names the equivalent here.

    Examples
    --------
    >>> image = np.zeros((5, 5), np.uint8); image[2, 2] = 20
    >>> filter(image, "box:3")[1:4, 1:4].tolist()
    [[2, 2, 2], [2, 2, 2], [2, 2, 2]]
    >>> filter(image, "laplacian", out_dtype=np.int16)[2, 1:4].tolist()
    [20, -160, 20]
    >>> filter(np.ones((200, 25, 25), np.uint8), "box:3", axes="ZYX").shape
    (200, 25, 25)
    """
    refuse_others("filter", others, ELSEWHERE)
    home = home_of(image=image)
    if isinstance(kernel, str):  # an array is one of planes
        kernel, depth = kernel_arrays(kernel)
        if depth is not None:
            from convforge.imaging.volumes import filter_volume

            options = FilterOptions(channels=channels, border=border, cval=cval, stride=stride, out_dtype=out_dtype,
                                    algorithm=algorithm, axes=axes)  # fmt: skip
            return filter_volume(image, kernel, depth, device, options)
    with at_home(home.runs_on(device)):
        plan, x, w = plan_filter(
            image, kernel, channels=channels, border=border, cval=cval, stride=stride, out_dtype=out_dtype,
            device=device, algorithm=algorithm, axes=axes,
        )  # fmt: skip
        problem, stream = plan.problem, home.stream()
        shape = result_shape(home.read(image, "image").shape, problem.out_shape, channels, axes)
        output = home.output(None, shape, problem.out_dtype)
        prepared = None if stream is None else _prepared(plan, w, stream)
        execute(plan, x, w, {}, output.view.reshape(problem.out_shape), prepared, stream)
        return output.finish(stream)


def _prepared(plan: Plan, w: NDArray[Any], stream: CallerStream) -> PreparedFilter:
    """Return the prepared weights of a plan; upload them once per stream, which waits for the upload."""
    key = (plan, w.tobytes(), stream.handle)
    prepared = _TAPS.get(key)
    if prepared is None:
        prepared = plan.prepare(plan.runtime.upload(w), stream)
        if not stream.capturing:
            while len(_TAPS) >= TAPS_KEPT:
                _TAPS.pop(next(iter(_TAPS)), None)
            _TAPS[key] = prepared
    return prepared


def result_shape(
    shape: tuple[int, ...], stack: tuple[int, ...], channels: str, axes: str | None = None
) -> tuple[int, ...]:
    """Return the shape for the caller of a result of shape `stack`, (T, P, Q, K); summed bands have no axis."""
    pages, rows, columns, bands = stack
    if axes is not None:
        return Axes(axes.upper()).result_shape(shape, (rows, columns), summed=channels == "sum")
    front = (pages,) if len(shape) == 4 else ()
    return (*front, rows, columns, bands) if len(shape) > 2 and channels == "each" else (*front, rows, columns)


def plan_filter(
    image: NDArray[Any],
    kernel: NDArray[Any] | str | os.PathLike[str],
    *,
    device: str | None = None,
    **options: Unpack[FilterOptions],
) -> tuple[Plan, NDArray[Any], NDArray[Any]]:
    """Return the plan of :func:`filter`, the image as (T, H, W, C), and the weights."""
    problem, x, weights = filter_problem(image, kernel, **options)
    device = home_of(image=image).runs_on(device)
    return find_plan(problem, options.get("algorithm", "auto"), None, device, None, tune=False), x, weights


@np.errstate(all="ignore")  # a tap below the smallest number of the type of the sums becomes zero
def filter_problem(
    image: NDArray[Any],
    kernel: NDArray[Any] | str | os.PathLike[str],
    *,
    channels: str = "each",
    border: str = "reflect",
    cval: float = 0.0,
    stride: IntPair = 1,
    out_dtype: Any = None,
    algorithm: str = "auto",
    axes: str | None = None,
) -> tuple[Conv2dProblem, NDArray[Any], NDArray[Any]]:
    """Return the problem of :func:`filter`, the image as (T, H, W, C), and the weights."""
    image = home_of(image=image).read(image, "image", (2, 3, 4) if axes is None else None)
    taps = kernel_array(kernel)
    check_word(channels, "channels")
    border = padding_mode_of(border, "border")
    if channels not in ("each", "sum"):
        raise ValueError(f"channels={channels!r} is unknown; choose 'each' or 'sum'")
    outside = _outside(cval, border, dtype_name(image))
    if axes is None:
        x = image[None, :, :, None] if image.ndim == 2 else image[None] if image.ndim == 3 else image
    else:
        check_word(axes, "axes")
        x = Axes(axes.upper()).for_filter(image, summed=channels == "sum")
    n, h, w, c = x.shape
    if not c or not h or not w:
        raise ValueError(f"the image of shape {image.shape} has no pixel")
    bands = c if channels == "each" else 1
    result = dtype_name(x) if out_dtype is None else _result_type(out_dtype)
    numbers, divisor = weights_of(taps, x.dtype, c // bands, result, algorithm)
    weights = np.broadcast_to(numbers, (bands, c // bands, *taps.shape))
    r, s = taps.shape
    strides = pair(stride, "stride")
    factored = algorithm == "auto" and two_passes_pay(taps, numbers.dtype)
    problem = Conv2dProblem(
        n=n, c=c, h=h, w=w, k=bands, r=r, s=s, stride=strides,
        padding=(r // 2, r - 1 - r // 2, s // 2, s - 1 - s // 2), groups=bands if channels == "each" else 1,
        padding_mode=border, padding_value=outside,
        x_dtype=dtype_name(x), w_dtype=weights.dtype.name, out_dtype=result, x_layout="NHWC",
        precision="separable" if factored else "strict", epilogue=Epilogue(divisor=divisor),
    )  # fmt: skip
    return problem, x, weights


def _outside(cval: Any, border: str, dtype: str) -> float:
    """Return the padding value; raise ``ValueError`` if the element type cannot represent it."""
    if isinstance(cval, bool) or not isinstance(cval, int | float | np.integer | np.floating):
        raise TypeError(f"cval={cval!r} must be a number")
    if border != "constant":
        if cval:
            raise ValueError(f"cval={cval} goes with border='constant'; border is {border!r}")
        return 0.0
    try:
        value = float(cval)
    except OverflowError:  # of Python's integers
        value = math.inf
    if is_integer(dtype):
        low, high = limits(dtype)
        if not (low <= value <= high and value.is_integer()):
            raise ValueError(f"cval={cval} must be a value of {dtype}, the image's type: whole, from {low} to {high}")
    elif not abs(value) <= float(finfo(dtype).max):
        raise ValueError(f"cval={cval} must be a finite number of {dtype}, the image's type")
    return value


def _result_type(wanted: Any) -> str:
    """Return convforge's name of a NumPy or PyTorch dtype."""
    text = str(wanted).removeprefix("torch.")
    try:
        name = text if text in SHORT_NAMES else np.dtype(wanted).name
    except (TypeError, ValueError, SyntaxError):  # NumPy raises any of these
        name = ""
    if name not in SHORT_NAMES:
        raise TypeError(f"out_dtype={wanted!r} is no type of results here; choose one of {', '.join(SHORT_NAMES)}")
    return name
