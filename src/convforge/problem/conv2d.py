"""The 2D convolution problem: everything that determines the result and the speed, except the arrays' values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from convforge.problem.borders import PADDING_MODES
from convforge.problem.epilogue import Epilogue
from convforge.problem.partition import Tile, split
from convforge.problem.protocol import LARGEST, Operand, WindowProblem, check_word, in_order
from convforge.problem.types import (
    PRECISIONS,
    WIDE,
    accumulation_dtype,
    check_dtype,
    is_integer,
    itemsize,
    limits,
    magnitude,
    output_dtype,
)

MODES = ("cross-correlation", "convolution")
LAYOUTS = ("NCHW", "NHWC")
FILTER_LAYOUTS = ("KCRS", "KRSC")

# Smallest normal number of float32, and its largest power of two.
FLOAT32 = (2.0**-126, 2.0**127)

# Field -> its possible values.
WORDS: dict[str, tuple[str, ...]] = {
    "padding_mode": tuple(PADDING_MODES),
    "mode": MODES,
    "direction": ("fprop",),
    "x_layout": LAYOUTS,
    "out_layout": LAYOUTS,
    "w_layout": FILTER_LAYOUTS,
    "precision": tuple(PRECISIONS),
}


class FilterProblem(WindowProblem):
    """Sizes that are computed from the fields of :class:`Conv2dProblem`."""

    c_per_group: int  # channels of one filter
    k_per_group: int  # output channels of one group
    w_shape: tuple[int, int, int, int]  # shape of the user's filter: always (K, C / groups, R, S)


@dataclass(frozen=True, kw_only=True)
class Conv2dProblem(FilterProblem):
    """One 2D convolution, validated when it is made.

    It computes::

        out[n,k,p,q] = epilogue(sum over c,r,s of
            x[n, c, p*stride + r*dilation - top, q*stride + s*dilation - left] * w[k,c,r,s])

    Parameters
    ----------
    n, c, h, w : int
        Batch (0 or more), channels, height and width of x, in pixels.
    k, r, s : int
        Output channels, height and width of the filter, in pixels.
    stride, dilation : pair of int
        Per axis (vertical, horizontal).
    padding : four int
        Top, bottom, left, right, in pixels.
    groups : int
        Divides c and k; the filter has c / groups channels.
    padding_mode : str
        A key of :data:`convforge.problem.PADDING_MODES`.
    padding_value : float
        Value outside the image in mode "constant".
    mode : {"cross-correlation", "convolution"}
        "convolution" flips the filter along both axes.
    direction : {"fprop"}
        Forward propagation.
    x_dtype, w_dtype, out_dtype, acc_dtype : str
        NumPy names of the element types; defaults as in :mod:`convforge.problem.types`.
    x_layout, out_layout : {"NCHW", "NHWC"}
        Physical order of the axes. `out_layout` defaults to x's.
    w_layout : {"KCRS", "KRSC"}
    w_bound : int
        Largest absolute value of integer weights; 0 for that of their type. It bounds the sums.
    precision : str
        Allowed arithmetic: a key of :data:`convforge.problem.PRECISIONS`.
    epilogue : Epilogue

    Raises
    ------
    ValueError
        A field breaks a rule; the message names the field, the value and the rule.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=3, h=1024, w=1024, k=3, r=3, s=3, padding=(1, 1, 1, 1))
    >>> str(problem), problem.p, problem.q
    ('n1c3h1024w1024_k3r3s3_st1_p1_f32_nchw', 1024, 1024)
    """

    operation: ClassVar[str] = "conv2d"
    multiplies: ClassVar[bool] = True

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    padding_mode: str = "zeros"
    padding_value: float = 0.0
    mode: str = "cross-correlation"
    direction: str = "fprop"
    x_dtype: str = "float32"
    w_dtype: str = ""
    out_dtype: str = ""
    acc_dtype: str = ""
    x_layout: str = "NCHW"
    w_layout: str = "KCRS"
    out_layout: str = ""
    w_bound: int = 0
    precision: str = "strict"
    epilogue: Epilogue = field(default_factory=Epilogue)

    def __post_init__(self) -> None:
        w_dtype = self.w_dtype or self.x_dtype
        self._derive(
            w_dtype=w_dtype,
            out_dtype=self.out_dtype or output_dtype(self.x_dtype, w_dtype),
            acc_dtype=self.acc_dtype or accumulation_dtype(self.x_dtype, w_dtype),
            out_layout=self.out_layout or self.x_layout,
        )
        self._check_sizes("c", "h", "w", "k", "r", "s", "groups")
        if self.c % self.groups or self.k % self.groups:
            raise ValueError(
                f"groups={self.groups} must divide the {self.c} channels of x and the {self.k} output channels"
            )
        self._derive_sizes()
        self._check_extents()
        for name, allowed in WORDS.items():
            check_word(name, getattr(self, name), allowed)
        if self.padding_mode != "constant" and self.padding_value != 0:
            raise ValueError(f"padding_value={self.padding_value} goes with padding_mode='constant' alone")
        if not math.isfinite(self.padding_value):
            raise ValueError(f"padding_value={self.padding_value} must be finite")
        self._check_types()
        x, w = self.n * self.c * self.h * self.w * itemsize(self.x_dtype), self.k * self.taps * itemsize(self.w_dtype)
        self._derive(least_bytes=x + w + self.outputs * itemsize(self.out_dtype))

    def _derive_sizes(self) -> None:
        n, c, h, w, k = self.n, self.c, self.h, self.w, self.k
        (top, bottom, left, right), (stride_h, stride_w) = self.padding, self.stride
        extent_h, extent_w = self.dilation[0] * (self.r - 1) + 1, self.dilation[1] * (self.s - 1) + 1
        padded_h, padded_w = h + top + bottom, w + left + right
        p, q = (padded_h - extent_h) // stride_h + 1, (padded_w - extent_w) // stride_w + 1
        c_per_group = c // self.groups
        taps, outputs = c_per_group * self.r * self.s, n * k * p * q
        self._derive(
            extent_h=extent_h, extent_w=extent_w, padded_h=padded_h, padded_w=padded_w, p=p, q=q,
            c_per_group=c_per_group, k_per_group=k // self.groups, taps=taps, outputs=outputs,
            flops=2 * outputs * taps, w_shape=(k, c_per_group, self.r, self.s),
            x_shape=in_order(self.x_layout, n, c, h, w), out_shape=in_order(self.out_layout, n, k, p, q),
            needs_wide_index=max(n * c * h * w, k * taps, outputs) > WIDE,
        )  # fmt: skip

    def _check_extents(self) -> None:
        sides = (("height", self.padded_h, self.extent_h), ("width", self.padded_w, self.extent_w))
        for axis, size, filter_size in sides:
            if size > LARGEST:
                raise ValueError(f"the padded image's {axis} of {size} pixels must be at most {LARGEST}")
            if filter_size > size:
                raise ValueError(
                    f"the filter's {axis} of {filter_size} pixels (dilation included) exceeds the padded image's "
                    f"{size}; add padding or use a smaller filter"
                )

    def _check_types(self) -> None:
        for name in ("x_dtype", "w_dtype", "out_dtype", "acc_dtype"):
            check_dtype(getattr(self, name), name)
        if is_integer(self.w_dtype) and not is_integer(self.x_dtype):
            raise ValueError(f"w_dtype={self.w_dtype} with x_dtype={self.x_dtype}: cast the filter to {self.x_dtype}")
        if self.acc_dtype not in ("int32", "float32", "float64"):
            raise ValueError(f"acc_dtype={self.acc_dtype} must be int32, float32 or float64")
        if self.w_bound and not (is_integer(self.w_dtype) and 0 < self.w_bound <= magnitude(self.w_dtype)):
            raise ValueError(f"w_bound={self.w_bound} must be a positive value of integer weights; w is {self.w_dtype}")
        zero_point, divisor = self.epilogue.x_zero_point, self.epilogue.divisor
        if is_integer(self.acc_dtype):
            if not (is_integer(self.x_dtype) and is_integer(self.w_dtype)):
                raise ValueError(
                    f"acc_dtype={self.acc_dtype} needs integer x and w; they are {self.x_dtype}, {self.w_dtype}"
                )
            if self.largest_sum > 2**31 - 1:
                raise ValueError(
                    f"{self.taps} products of {self.x_dtype} and {self.w_dtype} can exceed int32; convert x and w to "
                    "float32 or float64"
                )
            low, high = limits(self.x_dtype)
            for name, value in (("padding_value", self.padding_value), ("x_zero_point", zero_point)):
                if value != int(value) or not low <= value <= high:
                    raise ValueError(f"{name}={value} must be a value of {self.x_dtype}")
        elif zero_point:
            raise ValueError(f"x_zero_point={zero_point} goes with integer x and w alone")
        if divisor > 2**24 and self.acc_dtype == "float32":
            raise ValueError(f"divisor={divisor} is beyond 2^24; sum in float64: cast the filter to it")
        self._check_requantization()

    def _check_requantization(self) -> None:
        """Check the numbers of the epilogue that a residual and an output of their own scales have."""
        scale, zero_point = self.epilogue.out_scale, self.epilogue.out_zero_point
        if self.epilogue.amax and self.acc_dtype != "float32":
            raise ValueError(f"amax goes with sums of float32 alone; these are of {self.acc_dtype}")
        single = self.acc_dtype == "float32"  # then the epilogue computes in float32
        if zero_point and not is_integer(self.out_dtype):
            raise ValueError(f"out_zero_point={zero_point} goes with an integer output alone; it is {self.out_dtype}")
        low, high = limits(self.out_dtype) if zero_point else (0, 0)
        if not low <= zero_point <= high:
            raise ValueError(f"out_zero_point={zero_point} must be a value of {self.out_dtype}, {low} to {high}")
        if single and abs(zero_point) > 2**24:
            raise ValueError(f"out_zero_point={zero_point} is beyond 2^24, and the epilogue computes in float32")
        if single and not FLOAT32[0] <= scale <= FLOAT32[1]:
            raise ValueError(f"out_scale={scale} must be from 2^-126 to 2^127: the epilogue computes in float32")
        if not FLOAT32[0] <= self.epilogue.amax_scale <= FLOAT32[1]:
            raise ValueError(f"amax_scale={self.epilogue.amax_scale} must be from 2^-126 to 2^127: amax is a float32")
        if single and abs(self.epilogue.residual_scale) > FLOAT32[1]:
            raise ValueError(
                f"residual_scale={self.epilogue.residual_scale} must be at most 2^127: the epilogue computes in float32"
            )

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x, the filter, and the tensors of the epilogue."""
        epilogue, dtype = self.epilogue, self.operand_dtype
        found = [
            Operand("x", "input", self.x_shape, self.x_dtype, self.x_layout),
            Operand("w", "weights", self.w_shape, self.w_dtype, self.w_layout),
        ]
        if epilogue.scale != "none":
            found.append(Operand("scale", "epilogue", () if epilogue.scale == "tensor" else (self.k,), dtype, ""))
        if epilogue.bias:
            found.append(Operand("bias", "epilogue", (self.k,), dtype, ""))
        if epilogue.residual:
            found.append(Operand("residual", "epilogue", self.out_shape, self.out_dtype, self.out_layout))
        return tuple(found)

    @property
    def results(self) -> tuple[Operand, ...]:
        """The output, and the largest absolute value if the epilogue has it."""
        found = (Operand("out", "output", self.out_shape, self.out_dtype, self.out_layout),)
        return (*found, Operand("amax", "output", (), "float32", "")) if self.epilogue.amax else found

    @property
    def largest_sum(self) -> int:
        """Upper bound of the absolute value of an integer sum."""
        x = magnitude(self.x_dtype) + abs(self.epilogue.x_zero_point)
        return self.taps * x * (self.w_bound or magnitude(self.w_dtype))

    @property
    def outside(self) -> float:
        """Value of pixels outside the image, for border modes "zeros" and "constant"."""
        return self.epilogue.x_zero_point if self.padding_mode == "zeros" else self.padding_value

    @property
    def operand_dtype(self) -> str:
        """Type of the epilogue's scale and bias in kernels: float64 for int32 sums, as float32 would round the bias."""
        has_any = self.epilogue.bias or self.epilogue.scale != "none"
        return "float64" if (has_any and is_integer(self.acc_dtype)) or self.acc_dtype == "float64" else "float32"

    def split(self, tile_p: int, tile_q: int | None = None) -> Iterator[Tile]:
        """Cut the output into tiles of at most `tile_p` by `tile_q` pixels; see :class:`convforge.problem.Tile`."""
        return split(self, tile_p, self.q if tile_q is None else tile_q)

    def replace(self, **changes: Any) -> Conv2dProblem:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)
