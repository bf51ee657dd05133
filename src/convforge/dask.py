"""convforge on dask arrays: `filter` and `conv2d`, lazily, with one task for each output chunk.

A task reads the pixels that it needs from the chunks of the input. So the result has no seams, and the input is neither
copied nor rechunked. docs/dask.md describes memory and equality with a call on the whole array.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Config
from convforge.api import conv2d as convolve
from convforge.call.arguments import Activation, IntPair, Padding, conv2d_problem, refuse_others
from convforge.call.arrays import home_of
from convforge.call.dispatch import at_home, execute, find_plan
from convforge.call.quantized import QuantizedWeights
from convforge.imaging.axes import Axes
from convforge.imaging.filtering import ELSEWHERE, filter_problem
from convforge.integrations.dask_chunks import Part, Read, Window, gather, one_to_one, together, windowed
from convforge.problem import Conv2dProblem, Quantization

try:
    import dask.array as da

    from convforge.integrations.dask_graph import (
        NOT_CHOSEN,
        Method,
        check_array,
        chunked,
        fixed_method,
        one_block,
        stand_in,
        with_config,
    )
except ModuleNotFoundError as absent:
    if absent.name not in ("dask", "dask.array"):
        raise
    raise ModuleNotFoundError(
        "convforge.dask needs dask, which is not installed. Install it with: python -m pip install 'convforge[dask]'",
        name="dask",
    ) from None

__all__ = ["conv2d", "filter"]

# Axes of an image by the number of its axes, if the caller does not name them.
_AXES = {2: "YX", 3: "YXC", 4: "TYXC"}

_HALO = "a chunk reads its halo itself, and the border is that of the whole array: leave it out"
_ELSEWHERE = dict.fromkeys(("depth", "boundary", "trim", "align_arrays", "allow_rechunk"), _HALO)
_NOT_LAZY = {
    "out": "the result is a new dask array; store it with its .store() or .to_zarr()",
    "amax": "it is one number of the whole result; compute abs(result).max()",
    "tune": "nothing is measured: the method is that of a stored measurement, or chosen by rule",
    "workspace_limit": "use smaller chunks, or algorithm= with a method that needs less workspace",
}


def filter(  # noqa: A001
    image: da.Array,
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
) -> da.Array:
    """Filter a dask array lazily with one kernel; the arguments have the meaning of :func:`convforge.filter`.

    Parameters
    ----------
    image : dask array of shape (H, W), (H, W, C) or (T, H, W, C)
        Its blocks are arrays of NumPy or CuPy, of a dtype that :func:`convforge.filter` takes. All axes may have
        chunks of any sizes. With channels="sum" each task reads all bands.
    kernel, channels, border, cval, stride, out_dtype, axes
        As in :func:`convforge.filter`. A path is read once, now. The border is at the edge of the whole image only.
    device : {None, "cpu", "cuda", "cuda:1", "emulator"}
        Device on which each worker computes blocks of NumPy; blocks of CuPy are computed on their GPU.
    algorithm : str
        As in :func:`convforge.filter`. The method is chosen now, for the whole image, and used for all chunks.

    Returns
    -------
    dask array of the shape and dtype that :func:`convforge.filter` returns
        An output belongs to the chunk of the pixel at the kernel's centre: at stride 1 the chunks are those of `image`,
        without empty ones. Direct and separable methods give the bits of a call on the whole array.

    Raises
    ------
    ValueError, TypeError
        As :func:`convforge.filter`, now and not when the result is computed; also if `image` is no dask array, or has
        chunks of unknown size.

    Examples
    --------
    >>> import dask.array
    >>> image = dask.array.from_array(np.eye(6, dtype=np.float32), chunks=(4, 1))
    >>> blurred = filter(image, "box:3", border="replicate")
    >>> blurred.shape, blurred.dtype, blurred.chunks
    ((6, 6), dtype('float32'), ((4, 2), (1, 1, 1, 1, 1, 1)))
    >>> import convforge
    >>> bool((blurred == convforge.filter(image.compute(), "box:3", border="replicate")).all())
    True
    """
    refuse_others("dask.filter", others, {**ELSEWHERE, **_ELSEWHERE})
    home = check_array(image, "image", "filter")
    problem, _, weights = filter_problem(
        stand_in(image), kernel, channels=channels, border=border, cval=cval, stride=stride, out_dtype=out_dtype,
        algorithm=algorithm, axes=axes,
    )  # fmt: skip
    named = Axes(_AXES[image.ndim] if axes is None else axes.upper())
    call = _Filter(problem, named, channels == "sum", device)
    rows, columns = _windows(problem)
    reads = [
        windowed(sizes, rows) if letter == "Y" else
        windowed(sizes, columns) if letter == "X" else
        together(sizes, 1) if call.summed and letter == named.bands else
        one_to_one(sizes)
        for letter, sizes in zip(named.letters, image.chunks, strict=True)
    ]  # fmt: skip
    method = fixed_method(call, reads, algorithm, None, home.runs_on(device))
    dropped = named.letters.index(named.bands) if call.summed and named.bands else None
    call = replace(call, method=method)
    return chunked(_filtered, call, image, reads, [np.array(weights[0, 0])], dropped=dropped)


def _windows(problem: Conv2dProblem) -> tuple[Window, Window]:
    top, bottom, left, right = problem.padding
    mode, (rows, columns) = problem.padding_mode, problem.stride
    return (
        Window(problem.p, top, bottom, problem.extent_h, rows, mode),
        Window(problem.q, left, right, problem.extent_w, columns, mode),
    )


@dataclass(frozen=True, eq=False)
class _Filter:
    """The arguments that all tasks of :func:`filter` share."""

    problem: Conv2dProblem
    axes: Axes
    summed: bool
    device: str | None
    method: Method = NOT_CHOSEN

    def problem_of(self, part: Part) -> Conv2dProblem:
        sizes = dict(zip(self.axes.letters, part.reads, strict=True))
        rows, columns = sizes.pop("Y"), sizes.pop("X")
        bands = self.axes.bands if self.summed else self.axes.letters[self.axes.letters.index("X") + 1 :]
        c = sizes.pop(bands).size if bands else 1
        n = int(np.prod([read.size for read in sizes.values()], dtype=np.int64))
        k = 1 if self.summed else c
        return self.problem.replace(
            n=n, c=c, k=k, groups=1 if self.summed else c, h=rows.size, w=columns.size,
            padding=(*rows.padding, *columns.padding),
        )  # fmt: skip


def _filtered(call: _Filter, part: Part, operands: list[Any], _: None, blocks: list[Any]) -> Any:
    """Filter one chunk."""
    home = home_of(image=blocks[0])
    with at_home(home.device):  # the current GPU of a thread of dask may be another
        image = gather(part, blocks, call.problem.outside)
        if not (home.on_host or image.flags.c_contiguous):
            image = image.copy(order="C")  # of CuPy: its pages are merged without a copy
    device, stream = home.runs_on(call.device), home.stream()
    view = home.read(image, "image")
    with at_home(device):
        planes = {letter: read.outputs for letter, read in zip(call.axes.letters, part.reads, strict=True)}
        shape = call.axes.result_shape(view.shape, (planes["Y"], planes["X"]), summed=call.summed)
        output = home.output(None, shape, call.problem.out_dtype)
        if 0 in shape:
            return output.finish(stream)
        x, problem = call.axes.for_filter(view, summed=call.summed), call.problem_of(part)
        name, runs_on = call.method.name, device
        plan = with_config(call.method, lambda config: find_plan(problem, name, config, runs_on, tune=False))
        w = home.upload(np.array(np.broadcast_to(operands[0], problem.w_shape)))
        execute(plan, x, w, {}, output.view.reshape(problem.out_shape), None, stream)
        return output.finish(stream)


def conv2d(
    x: da.Array,
    w: Any,
    bias: Any = None,
    stride: IntPair = 1,
    padding: Padding = 0,
    dilation: IntPair = 1,
    groups: int = 1,
    *,
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    mode: str = "cross-correlation",
    activation: Activation = None,
    precision: str = "strict",
    algorithm: str = "auto",
    config: Config | Mapping[str, Any] | str | None = None,
    device: str | None = None,
    deterministic: bool = False,
    quantization: Quantization | None = None,
    residual: da.Array | None = None,
    **others: Never,
) -> da.Array:
    """Convolve a dask array of images lazily; the arguments have the meaning of :func:`convforge.conv2d`.

    Parameters
    ----------
    x : dask array of shape (N, C, H, W) or (C, H, W); with layout "NHWC", (N, H, W, C) or (H, W, C)
        Its blocks are arrays of NumPy or CuPy, of a dtype that :func:`convforge.conv2d` takes. All axes may have chunks
        of any sizes, and at least one pixel in H and W.
    w : array or dask array of shape (K, C / groups, R, S)
    bias : array or dask array of shape (K,), optional
        A task needs all of w and bias, so dask arrays are made one chunk. Other arrays are copied now.
    stride, padding, dilation, groups, layout, padding_mode, mode, activation, precision, deterministic
        As in :func:`convforge.conv2d`. The padding is at the edge of the whole image only. If groups > 1 and the chunks
        of the channels end where groups end, each is computed alone; otherwise each task reads all channels.
    algorithm, config
        As in :func:`convforge.conv2d`, but nothing is measured. The method is chosen now, for the whole x, and used for
        all chunks, with one config; chunks that are too small for it use the method's default.
    device : {None, "cpu", "cuda", "cuda:1", "emulator"}
        Device on which each worker computes blocks of NumPy; blocks of CuPy are computed on their GPU.
    quantization : Quantization, optional
        As in :func:`convforge.conv2d`; w and bias are then no dask arrays.
    residual : dask array of the result's shape and dtype, optional

    Returns
    -------
    dask array of the shape and dtype that :func:`convforge.conv2d` returns
        An output belongs to the chunk of the pixel at the centre of its window. The K axis has one chunk, or one for
        each chunk of the channels that is computed alone.

    Raises
    ------
    ValueError, TypeError, UnsupportedProblem
        As :func:`convforge.conv2d`, now and not when the result is computed; also if `x` or `residual` is no dask
        array, or has chunks of unknown size.

    Examples
    --------
    >>> import dask.array
    >>> x = dask.array.ones((2, 3, 8, 9), chunks=(1, 3, 4, 5), dtype=np.float32)
    >>> y = conv2d(x, np.ones((4, 3, 3, 3), np.float32), padding=1)
    >>> y.shape, y.chunks
    ((2, 4, 8, 9), ((1, 1), (4,), (4, 4), (5, 4)))
    >>> y[0, 0, :2, :3].compute().tolist()
    [[12.0, 18.0, 18.0], [18.0, 27.0, 27.0]]
    """
    refuse_others("dask.conv2d", others, {**_NOT_LAZY, **_ELSEWHERE})
    home = check_array(x, "x", "conv2d")
    options: dict[str, Any] = {
        "stride": stride, "dilation": dilation, "groups": groups, "layout": layout, "padding_mode": padding_mode,
        "mode": mode, "activation": activation, "precision": precision,
    }  # fmt: skip
    problem = _conv2d_problem(x, w, bias, residual, quantization, {**options, "padding": padding})
    operands = [one_block(w, "w", (4,)), None if bias is None else one_block(bias, "bias", (1,))]
    letters = problem.x_layout if x.ndim == 4 else problem.x_layout.replace("N", "")
    call = _Conv2d(problem, letters, device, {**options, "quantization": quantization})
    rows, columns = _windows(problem)
    reads = [
        windowed(sizes, rows) if letter == "H" else
        windowed(sizes, columns) if letter == "W" else
        one_to_one(sizes) if letter == "N" else
        _by_groups(problem, sizes, quantization is None)
        for letter, sizes in zip(letters, x.chunks, strict=True)
    ]  # fmt: skip
    on = home.runs_on(device)
    method = fixed_method(call, reads, algorithm, config, on, deterministic=deterministic)
    call = replace(call, method=method)
    return chunked(_convolved, call, x, reads, operands, aligned=residual)


def _conv2d_problem(
    x: da.Array, w: Any, bias: Any, residual: Any, quantization: Quantization | None, options: dict[str, Any]
) -> Conv2dProblem:
    """Return the problem of the whole array; check all arguments that describe it."""
    if residual is not None:
        check_array(residual, "residual", "conv2d")
    lazy = [name for name, value in (("w", w), ("bias", bias)) if isinstance(value, da.Array)]
    if quantization is not None and lazy:
        raise TypeError(f"{lazy[0]} is a dask array, and quantization reads its values: pass {lazy[0]}.compute()")
    arrays = {
        name: stand_in(value) if isinstance(value, da.Array) else value
        for name, value in (("x", x), ("w", w), ("bias", bias), ("residual", residual))
        if value is not None
    }
    ranks = {"x": (3, 4), "w": (4,), "bias": (1,), "residual": (3, 4)}
    views = {name: home_of(**{name: array}).read(array, name, ranks[name]) for name, array in arrays.items()}
    fields: dict[str, Any] = {}
    if quantization is not None:
        held = QuantizedWeights(quantization, home_of(w=w, bias=bias), w, bias, options["activation"])
        quantization.check_residual(residual is not None)
        fields, views["w"] = held.fields(x.dtype.name, options["padding_mode"]), held.w
    vector = None if fields else views.get("bias")
    problem = conv2d_problem(views["x"], views["w"], vector, residual=views.get("residual"), **{**options, **fields})
    h, width = (x.shape[problem.x_layout.index(axis) - 4 + x.ndim] for axis in "HW")
    if not (h and width):
        raise ValueError(f"x has shape {x.shape}, so h={h} and w={width}: each must be at least 1 in a dask array")
    return problem


def _by_groups(problem: Conv2dProblem, chunks: tuple[int, ...], may_split: bool) -> list[Read]:
    """Return the reads of the channels: each chunk alone if it has whole groups, else all channels together."""
    ends = np.cumsum(chunks)
    if not may_split or problem.groups == 1 or (ends % problem.c_per_group).any() or ends[-1] != problem.c:
        return together(chunks, problem.k)
    times = problem.k_per_group, problem.c_per_group
    return [
        Read(read.first // times[1] * times[0], read.outputs // times[1] * times[0], read.size, read.pieces)
        for read in one_to_one(chunks)
    ]


@dataclass(frozen=True, eq=False)
class _Conv2d:
    """The arguments that all tasks of :func:`conv2d` share; `options` are those of :func:`convforge.conv2d`."""

    problem: Conv2dProblem
    letters: str
    device: str | None
    options: dict[str, Any]
    method: Method = NOT_CHOSEN

    def problem_of(self, part: Part) -> Conv2dProblem:
        reads = dict(zip(self.letters, part.reads, strict=True))
        rows, columns, channels = reads["H"], reads["W"], reads["C"]
        groups = channels.outputs // self.problem.k_per_group
        return self.problem.replace(
            n=reads["N"].size if "N" in reads else 1, c=groups * self.problem.c_per_group, k=channels.outputs,
            groups=groups, h=rows.size, w=columns.size, padding=(*rows.padding, *columns.padding),
        )  # fmt: skip


def _convolved(call: _Conv2d, part: Part, operands: list[Any], residual: Any, blocks: list[Any]) -> Any:
    """Convolve one chunk."""
    home, reads = home_of(x=blocks[0]), dict(zip(call.letters, part.reads, strict=True))
    with at_home(home.device):
        x = gather(part, blocks, call.problem.outside)
    channels = reads["C"]
    of_chunk = slice(channels.first, channels.first + channels.outputs)
    w, bias = (None if whole is None else whole[of_chunk] for whole in operands)
    if not home.on_host:
        w, bias = (home.library.from_host(a, home.device) if isinstance(a, np.ndarray) else a for a in (w, bias))
    options = {**call.options, "groups": channels.outputs // call.problem.k_per_group, "residual": residual}
    return with_config(call.method, lambda config: convolve(
        x, w, bias, padding=(reads["H"].padding, reads["W"].padding), algorithm=call.method.name, config=config,
        device=call.device, **options,
    ))  # fmt: skip
