"""The 2D max pooling problem."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from convforge.problem.types import WIDE, check_dtype, itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool2dProblem:
    """out[n,c,p,q] = the largest of x over an r by s window; what lies outside the picture never wins.

    Parameters
    ----------
    n, c, h, w, r, s : int
        Batch, channels, height and width of x; height and width of the window.
    stride, dilation : pair of int
        Per axis (vertical, horizontal).
    padding : four int
        Top, bottom, left, right; each less than the window's extent. Where the picture is smaller than the dilation, a
        window could still straddle it and hold no pixel; such a problem is refused (PyTorch gives -inf, or the least
        integer).
    ceil_mode : bool
        Round the output's size up, as long as the last window starts inside the picture or its left or top padding
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
        if self.n < 0:
            raise ValueError(f"n={self.n}: a batch has 0 or more pictures")
        for name in ("c", "h", "w", "r", "s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("stride", "dilation"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1 on both axes")
        limit = 2**31 - 1
        for name, values in (("stride", self.stride), ("dilation", self.dilation), ("padding", self.padding)):
            if max(values) > limit:
                raise ValueError(f"{name}={values} must be at most {limit}")
        if min(self.padding) < 0:
            raise ValueError(f"padding={self.padding} (top, bottom, left, right) must not be negative")
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout={self.layout!r} is unknown; choose NCHW or NHWC")
        check_dtype(self.dtype, "dtype")
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

    @property
    def extent_h(self) -> int:
        """Height of the window in pixels, dilation included."""
        return self.dilation[0] * (self.r - 1) + 1

    @property
    def extent_w(self) -> int:
        """Width of the window in pixels, dilation included."""
        return self.dilation[1] * (self.s - 1) + 1

    @property
    def p(self) -> int:
        """Height of the output."""
        return self._outputs(self.h, self.padding[0], self.padding[1], self.extent_h, self.stride[0])

    @property
    def q(self) -> int:
        """Width of the output."""
        return self._outputs(self.w, self.padding[2], self.padding[3], self.extent_w, self.stride[1])

    def _outputs(self, size: int, before: int, after: int, extent: int, stride: int) -> int:
        free = size + before + after - extent
        if not self.ceil_mode:
            return free // stride + 1
        outputs = -(-free // stride) + 1
        return outputs - 1 if (outputs - 1) * stride >= size + before else outputs

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """Shape of x in the order of `layout`."""
        n, c, h, w = self.n, self.c, self.h, self.w
        return (n, c, h, w) if self.layout == "NCHW" else (n, h, w, c)

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Shape of the output in the order of `layout`."""
        n, c, p, q = self.n, self.c, self.p, self.q
        return (n, c, p, q) if self.layout == "NCHW" else (n, p, q, c)

    @property
    def needs_wide_index(self) -> bool:
        """Whether a place in x or the output may exceed 32 bits."""
        return self.n * self.c * max(self.h * self.w, self.p * self.q) > WIDE

    @property
    def flops(self) -> int:
        """One comparison a tap."""
        return self.n * self.c * self.p * self.q * self.r * self.s

    @property
    def least_bytes(self) -> int:
        """Bytes of x and the output, each moved once."""
        return self.n * self.c * (self.h * self.w + self.p * self.q) * itemsize(self.dtype)

    def __str__(self) -> str:
        from convforge.problem.keys import result_key

        return result_key(self)


def _straddling_window(size: int, before: int, outputs: int, stride: int, dilation: int) -> int | None:
    """Where the first window begins that has taps on either side of an axis of `size` pixels and none on it.

    Such a window begins in the padding, so the first tap that is not before the picture lies at its beginning modulo
    the dilation. These places repeat after dilation / gcd(stride, dilation) windows.
    """
    if size >= dilation:
        return None
    windows = min(outputs, -(-before // stride), dilation // gcd(stride, dilation))
    starts = (window * stride - before for window in range(windows))
    return next((start for start in starts if start % dilation >= size), None)
