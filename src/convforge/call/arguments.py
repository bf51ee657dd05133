"""Problems from the user's arguments: check shapes, expand short forms, explain errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convforge.call.arrays import View, dtype_name
from convforge.problem import Conv2dProblem, Epilogue, Pool2dProblem, padding_mode_of
from convforge.problem.types import is_integer

IntPair = int | Sequence[int]
Padding = int | str | Sequence[int] | Sequence[Sequence[int]]
Activation = str | tuple[str, float] | None

_LAYOUTS = {"NCHW": "NCHW", "NHWC": "NHWC", "CHW": "NCHW", "HWC": "NHWC"}


def conv2d_problem(
    x: View,
    w: View,
    bias: View | None = None,
    stride: IntPair = 1,
    padding: Padding = 0,
    dilation: IntPair = 1,
    groups: int = 1,
    *,
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    padding_value: float = 0.0,
    mode: str = "cross-correlation",
    activation: Activation = None,
    precision: str = "strict",
    out_dtype: str = "",
    x_zero_point: int = 0,
    scale: str = "none",
    has_bias: bool = False,
    residual: View | None = None,
    residual_scale: float = 1.0,
    out_scale: float = 1.0,
    out_zero_point: int = 0,
    w_bound: int = 0,
    amax: bool = False,
    amax_scale: float = 1.0,
) -> Conv2dProblem:
    """Make the problem of conv2d's arguments; errors are those of :func:`convforge.conv2d`.

    `scale`, `has_bias` and the numbers of :class:`Epilogue` describe a quantised epilogue, whose tensors scale and bias
    are not the caller's.

    A problem has at least one channel and one pixel. If x has none, the problem gets a channel of zeros per group, or a
    pixel of zeros in place of one of padding, which give the same sums. :meth:`Home.filled` makes these arrays.
    """
    plain = type(stride) is type(padding) is type(dilation) is type(groups) is int
    words = type(layout) is type(mode) is type(precision) is type(padding_mode) is str
    known = plain and words and (activation is None or type(activation) is str)  # for most calls
    problem = (_known_problem if known else _problem)(
        x.shape, w.shape, dtype_name(x), dtype_name(w), has_bias or bias is not None, stride, padding, dilation, groups,
        layout, padding_mode, padding_value, mode, activation, precision, out_dtype, x_zero_point, scale,
        residual is not None, residual_scale, out_scale, out_zero_point, w_bound, amax, amax_scale,
    )  # fmt: skip
    if residual is not None:
        _check_residual(residual, problem.out_shape[len(problem.out_shape) - len(x.shape) :], problem.out_dtype)
    if bias is not None and bias.shape != (problem.k,):
        raise ValueError(
            f"bias has shape {bias.shape}; there are {problem.k} output channels, so it must be ({problem.k},)"
        )
    if bias is not None and is_integer(problem.out_dtype) and not is_integer(dtype_name(bias)):
        raise ValueError(f"bias is {dtype_name(bias)} and the result is {problem.out_dtype}; cast the bias to int32")
    return problem


def _problem(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], x_dtype: str, w_dtype: str, has_bias: bool, stride: IntPair,
    padding: Padding, dilation: IntPair, groups: int, layout: str, padding_mode: str, padding_value: float, mode: str,
    activation: Activation, precision: str, out_dtype: str, x_zero_point: int, scale: str, has_residual: bool,
    residual_scale: float, out_scale: float, out_zero_point: int, w_bound: int, amax: bool, amax_scale: float,
) -> Conv2dProblem:  # fmt: skip
    for name, word in (("layout", layout), ("mode", mode), ("precision", precision)):
        check_word(word, name)
    n, c, h, width, layout = _sizes(x_shape, layout)
    k, c_per_group, r, s = w_shape
    groups = whole_number(groups, "groups")
    if groups < 1 or c % groups:
        raise ValueError(f"groups={groups} must divide the {c} channels of x (shape {x_shape}, layout {layout})")
    if c_per_group * groups != c:
        raise ValueError(
            f"w has {c_per_group} channels (shape {w_shape}, read as K, C / groups, R, S); x has {c} channels (shape "
            f"{x_shape}, layout {layout}) and groups={groups}, so w must have {c // groups}"
        )
    if not is_integer(x_dtype) and w_dtype != x_dtype:
        raise ValueError(f"w is {w_dtype} and x is {x_dtype}; cast one of them")
    strides, dilations, sides = _geometry((r, s), (h, width), stride, dilation, padding)
    mode_of_padding = padding_mode_of(padding_mode, "padding_mode")
    if not k:
        raise ValueError(f"w has shape {w_shape}, so k=0: a convolution needs at least 1 output channel")
    if not (h and width):
        if (n and c) or mode_of_padding != "zeros":
            raise ValueError(
                f"x has shape {x_shape}, layout {layout}, so h={h} and w={width}: an image has at least 1 pixel on "
                "each axis, unless N or C is 0 and the padding is zeros"
            )
        (h, *rows), (width, *columns) = _one_pixel(h, *sides[:2]), _one_pixel(width, *sides[2:])
        sides = rows[0], rows[1], columns[0], columns[1]
    return Conv2dProblem(
        n=n, c=c or groups, h=h, w=width, k=k, r=r, s=s, stride=strides, padding=sides, dilation=dilations,
        groups=groups, padding_mode=mode_of_padding, padding_value=padding_value, mode=mode, x_dtype=x_dtype,
        w_dtype=w_dtype, out_dtype=out_dtype, x_layout=layout, w_bound=w_bound, precision=precision,
        epilogue=epilogue_of(
            activation, bias=has_bias, x_zero_point=x_zero_point, scale=scale, residual=has_residual,
            residual_scale=residual_scale, out_scale=out_scale, out_zero_point=out_zero_point, amax=amax,
            amax_scale=amax_scale,
        ),
    )  # fmt: skip


# For numbers and strings only: `typed` does not check inside tuples, where True and 1.0 equal 1.
_known_problem = lru_cache(maxsize=1024, typed=True)(_problem)


def _check_residual(residual: View, shape: tuple[int, ...], dtype: str) -> None:
    """Raise ``ValueError`` unless the residual has the result's shape and type."""
    if residual.shape != shape:
        raise ValueError(f"residual has shape {residual.shape}; the result has {shape}, and they must be equal")
    if dtype_name(residual) != dtype:
        raise ValueError(f"residual is {dtype_name(residual)} and the result is {dtype}; cast the residual to {dtype}")


def _one_pixel(size: int, before: int, after: int) -> tuple[int, int, int]:
    """Size and padding of an axis; on an axis without pixels, a pixel replaces one of the padding."""
    if size:
        return size, before, after
    if before + after == 0:
        raise ValueError("an axis of x has neither pixels nor padding, so that no filter fits; add padding")
    return (1, before - 1, after) if before else (1, before, after - 1)


def pool2d_problem(
    x: View,
    kernel_size: IntPair,
    stride: IntPair | None,
    padding: Padding,
    dilation: IntPair,
    ceil_mode: bool,
    layout: str,
) -> Pool2dProblem:
    check_word(layout, "layout")
    if not isinstance(ceil_mode, bool | np.bool_):
        raise TypeError(f"ceil_mode={ceil_mode!r} must be True or False")
    n, c, h, w, layout = _sizes(x.shape, layout)
    window = pair(kernel_size, "kernel_size")
    strides, dilations, sides = _geometry(window, (h, w), window if stride is None else stride, dilation, padding)
    if min(strides) < 1:
        raise ValueError(f"stride={strides} must be at least 1 on both axes")
    return Pool2dProblem(
        n=n, c=c, h=h, w=w, r=window[0], s=window[1], stride=strides, padding=sides, dilation=dilations,
        ceil_mode=bool(ceil_mode), dtype=dtype_name(x), layout=layout,
    )  # fmt: skip


def check_word(value: Any, name: str) -> None:
    """Raise ``TypeError`` unless the argument is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a string")


def refuse_others(function: str, others: Mapping[str, object], elsewhere: Mapping[str, str]) -> None:
    """Raise ``TypeError`` for unknown keyword arguments; the message names the argument to use instead."""
    for name in others:
        hint = elsewhere.get(name, f"help(convforge.{function}) lists them")
        raise TypeError(f"{function} has no argument {name!r}: {hint}")


def whole_number(value: Any, name: str) -> int:
    """Return `value` as a Python int; ``TypeError`` for floats, bools and anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} must be a whole number")
    return int(value)


def pair(value: Any, name: str) -> tuple[int, int]:
    """Return (vertical, horizontal) from a pair, or from one number for both axes."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value), int(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise TypeError(f"{name}={value!r} must be a whole number or a pair (vertical, horizontal)")
    return whole_number(value[0], name), whole_number(value[1], name)


def _geometry(
    window: tuple[int, int], size: tuple[int, int], stride: IntPair, dilation: IntPair, padding: Padding
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    """Return stride and dilation as pairs, and the padding at top, bottom, left and right.

    Examples
    --------
    >>> _geometry((7, 7), (224, 224), 2, 1, "same")
    ((2, 2), (1, 1), (2, 3, 2, 3))
    """
    strides, dilations = pair(stride, "stride"), pair(dilation, "dilation")
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding={padding!r} is unknown; choose 'same', 'valid' or numbers")
        sides: list[int] = []
        for n, taps, step, spread in zip(size, window, strides, dilations, strict=True):
            total = (-(-n // max(step, 1)) - 1) * step + spread * (taps - 1) + 1 - n
            total = max(total, 0) if padding == "same" else 0
            sides += [total // 2, total - total // 2]
    elif isinstance(padding, Sequence) and len(padding) == 2 and all(isinstance(side, Sequence) for side in padding):
        sides = [one for side in padding for one in pair(side, "padding")]
    else:
        sides = [one for one in pair(padding, "padding") for _ in range(2)]
    return strides, dilations, (sides[0], sides[1], sides[2], sides[3])


def _sizes(shape: tuple[int, ...], layout: str) -> tuple[int, int, int, int, str]:
    if layout not in _LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {', '.join(_LAYOUTS)}")
    if len(layout) == 3 and len(shape) == 4:
        raise ValueError(f"layout={layout!r} has 3 axes and x has 4, shape {shape}; say layout='N{layout}'")
    n, *rest = shape if len(shape) == 4 else (1, *shape)
    layout = _LAYOUTS[layout]
    c, h, w = rest if layout == "NCHW" else (rest[2], rest[0], rest[1])
    return n, c, h, w, layout


def epilogue_of(activation: Activation, **fields: Any) -> Epilogue:
    """The epilogue with an activation as users give it: a name, or a name and a number."""
    if activation is None or isinstance(activation, str):
        return Epilogue(activation=activation or "identity", **fields)
    if isinstance(activation, Sequence) and len(activation) == 2:
        name, alpha = tuple(activation)
        if isinstance(name, str) and isinstance(alpha, int | float | np.number) and not isinstance(alpha, bool):
            return Epilogue(activation=name, alpha=float(alpha), **fields)
    raise TypeError(f"activation={activation!r} must be a name, or a pair of a name and a number: ('leaky_relu', 0.2)")
