"""Maps of images for a forward convolution, from its padding, taps, stride and dilation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from convforge.backends.maps import ELEMENTS, Im2colMap


def im2col_of(
    address: int, element: str, sizes: Sequence[int], *, padding: Sequence[tuple[int, int]], taps: Sequence[int],
    channels: int, pixels: int, stride: Sequence[int] = (), dilation: Sequence[int] = (), swizzle: int = 0,
) -> Im2colMap:  # fmt: skip
    """The map of an image without gaps for a forward convolution.

    `sizes` are C, W, H, ..., N; `padding` (before and after), `taps`, `stride` and `dilation` are along W, H, ...
    """
    axes = len(taps)
    stride, dilation = tuple(stride) or (1,) * axes, tuple(dilation) or (1,) * axes
    strides = tuple(ELEMENTS[element] * math.prod(sizes[: i + 1]) for i in range(len(sizes) - 1))
    lower = tuple(-before for before, _ in padding)
    upper = tuple(
        after - (count - 1) * apart for (_, after), count, apart in zip(padding, taps, dilation, strict=True)
    )  # fmt: skip
    return Im2colMap(
        address, element, tuple(sizes), strides, lower, upper, channels, pixels, (1, *stride, 1), swizzle
    )  # fmt: skip
