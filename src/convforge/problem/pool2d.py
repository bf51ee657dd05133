"""The 2D max pooling problem."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from convforge.problem.protocol import Operand, WindowProblem, in_order
from convforge.problem.types import WIDE, check_dtype, itemsize


@dataclass(frozen=True, kw_only=True)
class Pool2dProblem(WindowProblem):
    """out[n,c,p,q] = the maximum of x over an r by s window; pixels outside the image are ignored.

    Parameters
    ----------
    n, c, h, w, r, s : int
        Batch, channels, height and width of x; height and width of the window.
    stride, dilation : pair of int
        Per axis (vertical, horizontal).
    padding : four int
        Top, bottom, left, right; each less than the window's extent. If the image is smaller than the dilation, a
        window may contain no pixel. Then the problem raises ``ValueError`` (PyTorch returns -inf or the least integer).
    ceil_mode : bool
        Round the output's size up, if the last window then still starts inside the image or its top or left padding
        (PyTorch's rule).
    dtype : str
    layout : {"NCHW", "NHWC"}

    Examples
    --------
    >>> problem = Pool2dProblem(n=1, c=64, h=112, w=112, r=3, s=3, stride=(2, 2), padding=(1, 1, 1, 1))
    >>> str(problem), problem.p
    ('max_n1c64h112w112_r3s3_st2_p1_f32_nchw', 56)
    """

    operation: ClassVar[str] = "max_pool2d"

    n: int
    c: int
    h: int
    w: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    dtype: str = "float32"
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        self._check_sizes("c", "h", "w", "r", "s")
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout={self.layout!r} is unknown; choose NCHW or NHWC")
        check_dtype(self.dtype, "dtype")
        n, c, h, w = self.n, self.c, self.h, self.w
        extents = tuple(step * (size - 1) + 1 for step, size in zip(self.dilation, (self.r, self.s), strict=True))
        axes = ("height", h, self.padding[:2], extents[0], 0), ("width", w, self.padding[2:], extents[1], 1)
        for axis, _, pads, extent, _ in axes:
            if max(pads) >= extent:
                raise ValueError(
                    f"padding={self.padding}: a window's {axis} of {extent} (dilation included) must exceed the "
                    "padding, or a window would hold no pixel"
                )
        padded_h, padded_w = (size + sum(pads) for _, size, pads, _, _ in axes)
        if extents[0] > padded_h or extents[1] > padded_w:
            raise ValueError(
                f"the window of {extents[0]}x{extents[1]} pixels (dilation included) exceeds the padded image of "
                f"{padded_h}x{padded_w}; add padding or use a smaller window"
            )
        p, q = (self._outputs(size, *pads, extent, self.stride[i]) for _, size, pads, extent, i in axes)
        for (axis, size, (before, _), _, i), outputs in zip(axes, (p, q), strict=True):
            start = _straddling_window(size, before, outputs, self.stride[i], self.dilation[i])
            if start is not None:
                raise ValueError(
                    f"dilation={self.dilation}: the window that begins {-start} before the image steps over its "
                    f"{axis} of {size} and would hold no pixel; lower the dilation to {size} or less, or change "
                    f"padding={self.padding}"
                )
        outputs, taps = n * c * p * q, self.r * self.s
        self._derive(
            extent_h=extents[0], extent_w=extents[1], padded_h=padded_h, padded_w=padded_w, p=p, q=q, outputs=outputs,
            taps=taps, x_shape=in_order(self.layout, n, c, h, w), out_shape=in_order(self.layout, n, c, p, q),
            needs_wide_index=n * c * max(h * w, p * q) > WIDE, direction="fprop", precision="strict",
            acc_dtype=self.dtype, out_dtype=self.dtype, flops=outputs * taps,
            least_bytes=n * c * (h * w + p * q) * itemsize(self.dtype),
        )  # fmt: skip

    def _outputs(self, size: int, before: int, after: int, extent: int, stride: int) -> int:
        free = size + before + after - extent
        if not self.ceil_mode:
            return free // stride + 1
        outputs = -(-free // stride) + 1
        return outputs - 1 if (outputs - 1) * stride >= size + before else outputs

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", self.x_shape, self.dtype, self.layout),)

    @property
    def results(self) -> tuple[Operand, ...]:
        return (Operand("out", "output", self.out_shape, self.dtype, self.layout),)


def _straddling_window(size: int, before: int, outputs: int, stride: int, dilation: int) -> int | None:
    """Return the start of the first window with taps on both sides of `size` pixels and none on them, or None.

    Its first tap at or after pixel 0 is ``start % dilation``, which repeats after dilation / gcd(...) windows.
    """
    if size >= dilation:
        return None
    windows = min(outputs, -(-before // stride), dilation // gcd(stride, dilation))
    starts = (window * stride - before for window in range(windows))
    return next((start for start in starts if start % dilation >= size), None)
