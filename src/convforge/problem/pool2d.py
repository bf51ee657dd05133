"""The 2D max pooling problem."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from convforge.problem.protocol import Operand, ProblemBase, check_sizes
from convforge.problem.types import WIDE, check_dtype, itemsize


class Geometry(ProblemBase):
    """Sizes that follow from the fields of :class:`Pool2dProblem`, which documents them."""

    __slots__ = ("extent_h", "extent_w", "needs_wide_index", "p", "q", "x_shape")

    extent_h: int
    extent_w: int
    p: int
    q: int
    x_shape: tuple[int, int, int, int]
    out_shape: tuple[int, int, int, int]
    needs_wide_index: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool2dProblem(Geometry):
    """out[n,c,p,q] = the largest of x over an r by s window; pixels outside the image never win.

    Parameters
    ----------
    n, c, h, w, r, s : int
        Batch, channels, height and width of x; height and width of the window.
    stride, dilation : pair of int
        Per axis (vertical, horizontal).
    padding : four int
        Top, bottom, left, right; each less than the window's extent. If the image is smaller than the dilation, a
        window could still straddle it and contain no pixel; such a problem is refused (PyTorch gives -inf, or the
        least integer).
    ceil_mode : bool
        Round the output's size up, as long as the last window starts inside the image or its left or top padding
        (PyTorch's rule).
    dtype : str
    layout : {"NCHW", "NHWC"}

    Examples
    --------
    >>> problem = Pool2dProblem(n=1, c=64, h=112, w=112, r=3, s=3, stride=(2, 2), padding=(1, 1, 1, 1))
    >>> str(problem), problem.p
    ('max_n1c64h112w112_r3s3_st2_p1_f32_nchw', 56)

    Attributes
    ----------
    extent_h, extent_w : int
        Height and width of the window in pixels, dilation included.
    p, q : int
        Height and width of the output.
    x_shape : four int
        Shape of x in the order of `layout`.
    needs_wide_index : bool
        An index into x or the output may exceed 32 bits.
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
        check_sizes(self, ("c", "h", "w", "r", "s"))
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout={self.layout!r} is unknown; choose NCHW or NHWC")
        check_dtype(self.dtype, "dtype")
        self._derive_all()
        for axis, extent, pads in (
            ("height", self.extent_h, self.padding[:2]),
            ("width", self.extent_w, self.padding[2:]),
        ):
            if max(pads) >= extent:
                raise ValueError(
                    f"padding={self.padding}: a window's {axis} of {extent} (dilation included) must exceed the "
                    "padding, or a window would hold no pixel"
                )
        if self.extent_h > self.h + sum(self.padding[:2]) or self.extent_w > self.w + sum(self.padding[2:]):
            raise ValueError(
                f"the window of {self.extent_h}x{self.extent_w} pixels (dilation included) exceeds the padded picture "
                f"of {self.h + sum(self.padding[:2])}x{self.w + sum(self.padding[2:])}; add padding or use a smaller "
                "window"
            )
        for axis, size, before, outputs, stride, dilation in (
            ("height", self.h, self.padding[0], self.p, self.stride[0], self.dilation[0]),
            ("width", self.w, self.padding[2], self.q, self.stride[1], self.dilation[1]),
        ):
            start = _straddling_window(size, before, outputs, stride, dilation)
            if start is not None:
                raise ValueError(
                    f"dilation={self.dilation}: the window that begins {-start} before the picture steps over its "
                    f"{axis} of {size} and would hold no pixel; lower the dilation to {size} or less, or change "
                    f"padding={self.padding}"
                )

    def _derive_all(self) -> None:
        n, c, h, w = self.n, self.c, self.h, self.w
        extent_h = self.dilation[0] * (self.r - 1) + 1
        extent_w = self.dilation[1] * (self.s - 1) + 1
        p = self._outputs(h, self.padding[0], self.padding[1], extent_h, self.stride[0])
        q = self._outputs(w, self.padding[2], self.padding[3], extent_w, self.stride[1])
        x_shape, out_shape = ((n, c, h, w), (n, c, p, q)) if self.layout == "NCHW" else ((n, h, w, c), (n, p, q, c))
        outputs, taps = n * c * p * q, self.r * self.s
        self._derive(
            extent_h=extent_h, extent_w=extent_w, p=p, q=q, x_shape=x_shape, out_shape=out_shape,
            needs_wide_index=n * c * max(h * w, p * q) > WIDE, direction="fprop", precision="strict",
            acc_dtype=self.dtype, out_dtype=self.dtype, outputs=outputs, taps=taps, flops=outputs * taps,
            least_bytes=n * c * (h * w + p * q) * itemsize(self.dtype),
        )  # fmt: skip

    def _outputs(self, size: int, before: int, after: int, extent: int, stride: int) -> int:
        free = size + before + after - extent
        if not self.ceil_mode:
            return free // stride + 1
        outputs = -(-free // stride) + 1
        return outputs - 1 if (outputs - 1) * stride >= size + before else outputs

    __setstate__ = ProblemBase.__setstate__

    @property
    def sides(self) -> tuple[int, ...]:
        """Height and width of x."""
        return (self.h, self.w)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (Operand("x", "input", self.x_shape, self.dtype, self.layout),)

    @property
    def results(self) -> tuple[Operand, ...]:
        return (Operand("out", "output", self.out_shape, self.dtype, self.layout),)


def _straddling_window(size: int, before: int, outputs: int, stride: int, dilation: int) -> int | None:
    """Start of the first window with taps on both sides of an axis of `size` pixels and none on it.

    Such a window begins in the padding, so its first tap at or behind pixel 0 is at start modulo dilation. These
    positions repeat after dilation / gcd(stride, dilation) windows.
    """
    if size >= dilation:
        return None
    windows = min(outputs, -(-before // stride), dilation // gcd(stride, dilation))
    starts = (window * stride - before for window in range(windows))
    return next((start for start in starts if start % dilation >= size), None)
