"""Conversion of sample types (scale, round, saturate) and of RGB to gray."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in gray: ITU-R BT.601 luma, as in Pillow, OpenCV and JPEG."""

# Samples converted at a time: a block in float64 fits the cache, a whole image in float64 takes much memory.
BLOCK = 2**16


def to_dtype(array: npt.ArrayLike, dtype: npt.DTypeLike, *, scale: float = 1.0, absolute: bool = False) -> Array:
    """Convert samples: take magnitudes if `absolute`, multiply by `scale`, then round and saturate for integers.

    Integers round half to even and saturate at both ends of the type; NaN becomes 0. Floats keep the value: 0 to 255
    does not become 0 to 1. The result is always a new array. Raises ``ValueError`` for a type that is neither integer
    nor float, and for a `scale` that is not finite.

    Examples
    --------
    >>> to_dtype([-3.0, 0.5, 1.5, 254.6, 300.0, np.nan], np.uint8)
    array([  0,   0,   2, 255, 255,   0], dtype=uint8)
    >>> to_dtype(np.array([-200, 100]), np.uint8, scale=0.5, absolute=True)
    array([100,  50], dtype=uint8)
    """
    source = np.asarray(array)
    dtype = np.dtype(dtype)
    if source.dtype.kind not in "uifb":
        raise ValueError(f"array is {source.dtype}; use integers or real floats")
    if dtype.kind not in "uif":
        raise ValueError(f"dtype is {dtype}; use an integer or float type, such as uint8 or float32")
    if not np.isfinite(scale):
        raise ValueError(f"scale is {scale}; it must be finite")
    if source.dtype.kind == "b":
        source = source.astype(np.uint8)
    flat = np.ascontiguousarray(source).reshape(-1)
    result = np.empty(flat.shape, dtype)
    whole = source.dtype.kind in "ui" and dtype.kind in "ui" and scale == 1
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        if absolute:
            block = _magnitude(block)
        result[start : start + BLOCK] = _whole(block, dtype) if whole else _scaled(block, dtype, scale)
    return result.reshape(source.shape)


def to_gray(pixels: npt.ArrayLike) -> Array:
    """Return the Rec. 601 luma, 0.299 R + 0.587 G + 0.114 B, in the type of the pixels.

    (H, W, 3) gives (H, W), and (T, H, W, 3) gives (T, H, W); (H, W) and a last axis of 1 are gray already. Other shapes
    raise ``ValueError``. Integers round half to even. Samples are weighted without a change of gamma, as in Pillow and
    OpenCV.

    Examples
    --------
    >>> to_gray(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8))
    array([[ 76, 150,  29, 255]], dtype=uint8)
    """
    source = np.asarray(pixels)
    if source.ndim == 2:
        return source
    if source.ndim not in (3, 4) or source.shape[-1] not in (1, 3):
        raise ValueError(f"pixels have shape {source.shape}; gray needs red, green and blue in a last axis of 3")
    if source.shape[-1] == 1:
        return source[..., 0]
    luma = np.zeros(source.shape[:-1], np.float64)
    for band, weight in enumerate(LUMA):
        luma += np.multiply(source[..., band], weight, dtype=np.float64)
    return to_dtype(luma, source.dtype)


def _magnitude(block: Array) -> Array:
    if block.dtype.kind == "u":
        return block
    if block.dtype.kind == "f":
        return np.abs(block)
    # abs(-128) overflows to -128 in int8; the same bits read as uint8 are 128.
    return np.abs(block).view(f"u{block.dtype.itemsize}")


def _whole(block: Array, dtype: np.dtype[Any]) -> Array:
    here, there = np.iinfo(block.dtype), np.iinfo(dtype)
    return np.clip(block, max(here.min, there.min), min(here.max, there.max)).astype(dtype)


def _scaled(block: Array, dtype: np.dtype[Any], scale: float) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # floats overflow to infinity; integers saturate below
        value = block.astype(np.float64) if scale == 1 else np.multiply(block, scale, dtype=np.float64)
        if dtype.kind == "f":
            return value.astype(dtype)
    ends = np.iinfo(dtype)
    value[np.isnan(value)] = 0
    np.rint(value, out=value)
    over = value >= float(ends.max)
    # float64 cannot represent 2**63 - 1: clip to the next lower float64, then set the maximum as an integer.
    np.clip(value, float(ends.min), np.nextafter(float(ends.max), 0.0) if ends.bits == 64 else ends.max, out=value)
    result: Array = value.astype(dtype)
    result[over] = ends.max
    return result
