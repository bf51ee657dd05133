"""References for results: images of small whole numbers, and the definition of convolution in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(23)


def whole(*shape: int, dtype: Any = np.float32, low: int = -8, high: int = 9) -> Array:
    """Small whole numbers: their sums are exact in any type, so results are compared to the last bit."""
    return RANDOM.integers(low, high, shape).astype(dtype)


def convolved(
    x: Array, w: Array, stride: tuple[int, int] = (1, 1), pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1), groups: int = 1, border: str = "constant",
) -> Array:  # fmt: skip
    """The definition, in float64, on (N, C, H, W): NumPy's padding, and one product of arrays for each tap."""
    n, c, _, _ = x.shape
    k, _, r, s = w.shape
    sides = ((0, 0), (0, 0), pads[:2], pads[2:])
    padded = np.pad(x.astype(np.float64), sides, mode=border)  # type: ignore[call-overload]
    p = (padded.shape[2] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    q = (padded.shape[3] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    grouped = padded.reshape(n, groups, c // groups, *padded.shape[2:])
    filters = w.astype(np.float64).reshape(groups, k // groups, c // groups, r, s)
    out = np.zeros((n, groups, k // groups, p, q))
    for i in range(r):
        for j in range(s):
            top, left = i * dilation[0], j * dilation[1]
            seen = grouped[..., top : top + (p - 1) * stride[0] + 1 : stride[0], left:]
            seen = seen[..., : (q - 1) * stride[1] + 1 : stride[1]]
            out += np.einsum("ngchw,gkc->ngkhw", seen, filters[..., i, j])
    return out.reshape(n, k, p, q)


X, W = whole(2, 6, 9, 11), whole(4, 6, 3, 3)
