"""Overlap-save on a GPU: transform sizes, outputs of a tile, estimated time of a call."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from convforge.algorithms.traits import Preference, Rank, Work
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize

# The number of complex values in a row is a multiple of this, so that rows begin at whole memory sectors.
PITCH = 4

# Largest size that is compared: above it, cuFFT needs several passes over memory for an axis.
MOST = 4096

# Axis sizes that cuFFT has kernels for: 2^a 3^b 5^c. Even, because the transform of a real row is half as long.
FAST: tuple[int, ...] = tuple(sorted(
    2**a * 3**b * 5**c for a in range(1, 13) for b in range(8) for c in range(6) if 2**a * 3**b * 5**c <= MOST
))  # fmt: skip

# Reason for using transforms if a problem allows them.
TRANSFORM = Preference(Rank.LESS_ARITHMETIC, "the products in the frequency domain do not grow with the filter")

# Numbers of parts into which an axis of the output is cut, to find candidate sizes.
CUTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256)


def integer_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why transforms cannot compute a problem with integer sums, or None."""
    if not is_integer(problem.acc_dtype):
        return None
    return Reason("spectra are rounded, so int32 sums would not be exact; convert w to float32 for float sums")


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of a problem at one transform size."""

    size_h: int  # rows of the transform
    size_w: int  # columns of the transform
    pitch: int  # complex numbers of a row in memory, with padding
    tile_p: int  # output rows of a tile
    tile_q: int  # output columns of a tile
    down: int  # tiles of an image along P
    across: int  # tiles of an image along Q
    span_h: int  # rows of the padded image that a tile reads; the tile's other rows are zeros
    span_w: int  # columns of the padded image that a tile reads

    @property
    def points(self) -> int:
        """Complex numbers of a tile of one channel."""
        return self.size_h * self.pitch


def tiling(problem: Conv2dProblem, size_h: int, size_w: int) -> Tiling:
    """Return the tiles of a transform size; ``ValueError`` if the filter does not fit or a row is odd.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=3, h=2048, w=2048, k=3, r=31, s=31, groups=3, padding=(15, 15, 15, 15))
    >>> cut = tiling(problem, 288, 288)
    >>> (cut.tile_p, cut.down, cut.span_h)
    (258, 8, 288)
    """
    if size_h < problem.extent_h or size_w < problem.extent_w or size_w % 2:
        raise ValueError(
            f"a transform of {size_h} x {size_w} must hold the filter's {problem.extent_h} x {problem.extent_w} "
            "pixels, and have even rows"
        )
    (tile_p, span_h), (tile_q, span_w) = (_axis(problem, axis, size) for axis, size in enumerate((size_h, size_w)))
    pitch = -(-(size_w // 2 + 1) // PITCH) * PITCH
    down, across = -(-problem.p // tile_p), -(-problem.q // tile_q)
    return Tiling(size_h, size_w, pitch, tile_p, tile_q, down, across, span_h, span_w)


@cache
def sizes(problem: Conv2dProblem) -> tuple[tuple[int, int], ...]:
    """Return sizes worth comparing, the best by :func:`modelled_seconds` first.

    One size for each magnitude of area, plus the best power-of-two size, for which cuFFT is fastest.

    Examples
    --------
    >>> sizes(Conv2dProblem(n=32, c=8, h=56, w=56, k=8, r=31, s=31, groups=8, padding=(15, 15, 15, 15)))[0]
    (72, 72)
    """
    rows, columns = (_candidates(problem, axis) for axis in (0, 1))
    best: dict[int, tuple[float, tuple[int, int]]] = {}
    for size in ((h, w) for h in rows for w in columns):
        found = (modelled_seconds(problem, *size), size)
        even = 0 if _is_power(size[0]) and _is_power(size[1]) else round(math.log2(size[0] * size[1]) / 2)
        best[even] = min(best.get(even, found), found)
    return tuple(size for _, size in sorted(best.values()))


def modelled_seconds(problem: Conv2dProblem, size_h: int, size_w: int) -> float:
    """Estimate the time of a call on a large GPU, filter transforms included, to compare sizes.

    The model assumes: every step passes once over the tiles, transforms twice, at 5 TB/s (L2); transforms do
    2.5 n log2(n) operations at 15 TFLOP/s; products run at 30 TFLOP/s. A size that is no power of two takes 10 %
    longer, and one above 1024 takes 20 % longer, because few fit in an SM.
    """
    cut = tiling(problem, size_h, size_w)
    tiles, element = problem.n * cut.down * cut.across, itemsize(problem.acc_dtype)
    planes = tiles * (problem.c + problem.k)
    nbytes = 2 * cut.points * element
    moved = planes * nbytes * 2 * 2 + planes * nbytes  # row and column passes; then gather, scatter and product
    work = 2.5 * 2 * cut.points * math.log2(size_h * size_w)
    slow = math.prod(1.0 + 0.1 * (not _is_power(size)) + 0.2 * (size > 1024) for size in (size_h, size_w))
    products = 8.0 * tiles * problem.k * problem.c_per_group * cut.points
    filters = problem.k * problem.c_per_group * (5 * nbytes / 5e12 + work * slow / 15e12)
    return moved / 5e12 + planes * work * slow / 15e12 + products / 30e12 + filters


def whole(problem: Conv2dProblem, axis: int) -> int:
    """Smallest transform size along an axis with which one tile holds all outputs.

    With a zero border, values that wrap around meet padding, so the same zeros serve as padding on both sides.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=1, h=56, w=56, k=1, r=31, s=31, padding=(15, 15, 15, 15))
    >>> whole(problem, 0), whole(problem.replace(padding_mode="reflect"), 0)
    (71, 86)
    """
    outputs, stride, extent = _sizes_of(problem, axis)
    last = (outputs - 1) * stride
    if problem.padding_mode != "zeros":
        return last + extent
    before, after = problem.padding[2 * axis : 2 * axis + 2]
    size = (problem.h, problem.w)[axis]
    return min(last + extent, max(size + max(before, after), extent, last + 1))


def _axis(problem: Conv2dProblem, axis: int, size: int) -> tuple[int, int]:
    outputs, stride, extent = _sizes_of(problem, axis)
    tile = outputs if size >= whole(problem, axis) else (size - extent) // stride + 1
    return tile, min(size, (tile - 1) * stride + extent)


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0


def _sizes_of(problem: Conv2dProblem, axis: int) -> tuple[int, int, int]:
    return (problem.p, problem.q)[axis], problem.stride[axis], (problem.extent_h, problem.extent_w)[axis]


def _candidates(problem: Conv2dProblem, axis: int) -> list[int]:
    """Fast sizes of an axis: powers of two, and sizes that cut the output into parts with little waste."""
    outputs, stride, extent = _sizes_of(problem, axis)
    most = next_fast(whole(problem, axis))
    parts = (whole(problem, axis) if cut == 1 else (-(-outputs // cut) - 1) * stride + extent for cut in CUTS)
    fast = {next_fast(size) for size in parts if size > 1.2 * extent}
    fast |= {2**power for power in range(5, 11) if extent * 1.2 <= 2**power <= most}
    return sorted(size for size in fast if size <= max(MOST, next_fast(extent))) or [most]


def next_fast(size: int) -> int:
    """Return the next size that cuFFT is fast at; above :data:`MOST`, the next even one with only factors 2, 3 and 5.

    Examples
    --------
    >>> next_fast(71), next_fast(286), next_fast(4097)
    (72, 288, 4320)
    """
    if size <= MOST:
        return FAST[bisect.bisect_left(FAST, size)]
    return 2 * next_fast(-(-size // 2))


def transform_work(problem: Conv2dProblem, passes: int) -> Work:
    """Work of tiles that overlap by half: 2.5 N log2 N per real transform; `passes` over spectra in memory."""
    points = 2.0 * problem.n * problem.padded_h * problem.padded_w
    extent = max(problem.extent_h, problem.extent_w, 2)
    transforms = 2.5 * 2 * math.log2(4 * extent) * points * (problem.c + problem.k)
    products = 4.0 * points * problem.k * problem.c_per_group
    return Work(transforms + products, problem.least_bytes + 4.0 * passes * points * (problem.c + problem.k))


def chunked_work(method: Any, problem: Conv2dProblem) -> Work:
    """`work_for` of methods that keep the tiles, spectra and products of a chunk in memory."""
    return transform_work(problem, 3)
