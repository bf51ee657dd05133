"""Tiles of wgmma.cu: what a config is, why one cannot be, and how the accelerator sees the three arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convforge.algorithms.contract import Config
from convforge.backends.facts import DeviceFacts
from convforge.backends.maps import (
    ALIGNMENT,
    MOST_PIXELS,
    MOST_REACH,
    MOST_STRIDE,
    MOST_UNITS,
    AnyMap,
    Im2colMap,
    TiledMap,
)
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Bytes of a row of channels, which is a step of one tap; of it, bytes of a product. Columns of outputs that a patch
# serves: TILE_W of wgmma.cu.
ROW_BYTES, PRODUCT_BYTES, TILE_W = 128, 32, 8

# Bytes that a row may have where channels take no more.
ROWS = (32, 64, ROW_BYTES)

# What two blocks may bring for each other.
PAIRS = ("none", "filters", "pixels")

# Columns that a product has at most.
MOST_COLUMNS = 256

# Filters of a box of results.
BOX_FILTERS = 64

# Bytes of shared memory beside tiles: alignment to 1024, barriers, what the driver keeps for itself.
EXTRA_BYTES = 1024 + 512 + 1024

# Steps up to which filters stay: each has a barrier.
MOST_RESIDENT = 36

# Tiles and pixels are counted in 32 bits, and a block looks ahead.
MOST_COUNT = 2**29


@dataclass(frozen=True, slots=True)
class TilesConfig(Config):
    """Tiles and rings of an implicit GEMM on wgmma.

    Attributes
    ----------
    patch : bool
        Pixels come as patches that serve all taps of 64 channels; else each tap's by themselves.
    filters_on_m : bool
        Filters are the operand of 64 rows a product, and pixels that of `columns`; else the other way round.
    ping_pong : bool
        The two warpgroups take turns with a tile each; else they share every tile.
    rows : int
        Products of 64 rows of a warpgroup, one below the other.
    columns : int
        Of a product.
    resident : bool
        All filters stay in shared memory.
    pixel_stages, filter_stages : int
        Of the rings; the second counts where filters do not stay.
    turned : bool
        Another kernel first writes the picture to a workspace in rows that the accelerator can bring. It takes any
        layout, border, number of channels and alignment.
    split_k : int
        The channels of a tile are shared out among so many tiles, whose sums another kernel adds up: where there are
        fewer tiles than multiprocessors.
    pairs : {"none", "filters", "pixels"}
        Two neighbouring multiprocessors, a cluster, take tiles that have these in common, and each brings half of them
        for both.
    """

    patch: bool = True
    filters_on_m: bool = True
    ping_pong: bool = True
    rows: int = 1
    columns: int = 128
    resident: bool = False
    pixel_stages: int = 4
    filter_stages: int = 4
    turned: bool = False
    split_k: int = 1
    pairs: str = "none"

    @property
    def block(self) -> tuple[int, int]:
        """Pixels and filters of a tile."""
        high = 64 * self.rows * (1 if self.ping_pong else 2)
        return (self.columns, high) if self.filters_on_m else (high, self.columns)


@dataclass(frozen=True, slots=True)
class WgmmaConfig(TilesConfig):
    """Tiles and rings of :class:`ImplicitGemmWgmma`, and who stores the results.

    Attributes
    ----------
    scattered : bool
        Threads store the results one by one, in any layout; else the accelerator does.
    row_bytes : int
        Of a row of channels in shared memory: 128, or where channels take no more, 64 or 32.
    """

    scattered: bool = False
    row_bytes: int = 128


def can_copy(problem: Conv2dProblem) -> bool:
    """Whether the accelerator can bring the pixels of this problem, if the array is aligned to 16 bytes."""
    rows = problem.c * itemsize(problem.x_dtype) % ALIGNMENT == 0
    return problem.x_layout == "NHWC" and problem.padding_mode == "zeros" and rows


def whole_groups(problem: Conv2dProblem) -> int:
    """Channels of a group, and those that must follow as zeros so that no product takes another group's."""
    count, size = problem.c_per_group, itemsize(problem.x_dtype)
    if problem.groups == 1:
        return count
    whole = (ROW_BYTES if count * size > ROW_BYTES else PRODUCT_BYTES) // size
    return -(-count // whole) * whole


def rows_problem(problem: Conv2dProblem, of_group: int) -> Conv2dProblem:
    """Give the problem on rows in a workspace, with what stands outside, and so many channels of a group."""
    seen = problem.replace(x_layout="NHWC", out_layout=problem.out_layout, c=of_group * problem.groups)
    if problem.padding_mode == "zeros":
        return seen
    top, bottom, left, right = problem.padding
    return seen.replace(
        h=problem.h + top + bottom, w=problem.w + left + right, padding=(0, 0, 0, 0), padding_mode="zeros",
        padding_value=0.0,
    )  # fmt: skip


def seen_by(problem: Conv2dProblem, config: TilesConfig, of_group: int) -> Conv2dProblem:
    """Give the problem as the accelerator sees it."""
    return rows_problem(problem, of_group) if config.turned else problem


def must_turn(problem: Conv2dProblem) -> bool:
    """Whether the accelerator cannot bring the pixels of this problem where they lie."""
    return not can_copy(problem) or whole_groups(problem) != problem.c_per_group


def can_store(problem: Conv2dProblem) -> bool:
    """Whether the accelerator can store the result, of 16 bits, if the array is aligned to 16 bytes."""
    whole = problem.groups == 1 or problem.k_per_group % BOX_FILTERS == 0
    rows = problem.k * itemsize(problem.out_dtype) % ALIGNMENT == 0
    return problem.out_layout == "NHWC" and itemsize(problem.out_dtype) == 2 and rows and whole


def smallest(problem: Conv2dProblem) -> WgmmaConfig:
    """Give the config with the smallest tiles: a problem that it cannot take has no config."""
    turned, scattered = must_turn(problem), not can_store(problem)
    return WgmmaConfig(
        patch=False, columns=64, pixel_stages=2, filter_stages=2, turned=turned, scattered=scattered
    )  # fmt: skip


def row_of(config: TilesConfig) -> int:
    """Bytes of a row of channels in shared memory."""
    return config.row_bytes if isinstance(config, WgmmaConfig) else ROW_BYTES


def row_channels(problem: Conv2dProblem, config: TilesConfig) -> int:
    """Channels of a step, as many as a row holds."""
    return row_of(config) // itemsize(problem.x_dtype)


def steps_of(problem: Conv2dProblem, channels: int, split_k: int = 1) -> int:
    """Steps of a tile, of one tap and so many channels each."""
    return problem.r * problem.s * -(-slices_of(problem, channels) // split_k)


def slices_of(problem: Conv2dProblem, channels: int) -> int:
    """So many channels at a time: how often."""
    return -(-problem.c_per_group // channels)


def split_refusal(problem: Conv2dProblem, config: TilesConfig, channels: int) -> Reason | None:
    """Why channels cannot be shared out so; None if they can."""
    if config.split_k == 1:
        return None
    slices = slices_of(problem, channels)
    if not 1 <= config.split_k <= slices or -(-slices // -(-slices // config.split_k)) != config.split_k:
        return Reason(
            "{slices} times {channels} channels cannot be shared out among {count} tiles",
            slices=slices, channels=channels, count=config.split_k,
        )  # fmt: skip
    if problem.groups > 1 or config.resident or problem.outputs >= 2**31:
        return Reason("channels are shared out where there is one group, filters do not stay, and outputs are few")
    return None


def filters_held(problem: Conv2dProblem, config: TilesConfig, channels: int) -> int:
    """Steps, of so many channels, whose filters are in shared memory at once."""
    return steps_of(problem, channels) if config.resident else config.filter_stages


def reach_of(problem: Conv2dProblem) -> tuple[int, int]:
    """Columns and rows from the first tap of a filter to its last."""
    return (problem.s - 1) * problem.dilation[1], (problem.r - 1) * problem.dilation[0]


def patch_of(problem: Conv2dProblem, config: TilesConfig) -> tuple[int, int]:
    """Columns and rows of pixels that a tile sees by all taps; where the filter moves by several, those of a phase."""
    (across, down), (high, wide) = reach_of(problem), problem.stride
    return TILE_W + across // wide, config.block[0] // TILE_W + down // high


def phases_of(problem: Conv2dProblem) -> int:
    """Patches that a tile's pixels come as, each of every so many-th pixel: one where the filter moves by one pixel."""
    (across, down), (high, wide) = reach_of(problem), problem.stride
    return min(wide, across + 1) * min(high, down + 1)


def shared_bytes(problem: Conv2dProblem, config: WgmmaConfig) -> int:
    """Of a block: struct Memory of wgmma.cu, and what aligns it."""
    pixels, filters = config.block
    rows, phases = (math.prod(patch_of(problem, config)), phases_of(problem)) if config.patch else (pixels, 1)
    row, held = row_of(config), filters_held(problem, config, row_channels(problem, config))
    rings = config.pixel_stages * phases * -(-rows * row // 1024) * 1024 + held * filters * row
    results = 1024 if config.scattered else 64 * config.rows * config.columns * itemsize(problem.out_dtype)
    return -(-(rings + 2 * results) // 1024) * 1024 + 1024


def tiling(problem: Conv2dProblem, config: TilesConfig) -> tuple[int, int, int, int]:
    """All tiles; those, or pairs of them, along the filters; of a picture, tiles along a row and down.

    The last pair may have a tile in which nothing is.
    """
    pixels, filters = config.block
    along_pixels, along_filters = config.pairs == "filters", config.pairs == "pixels"  # of the tiles of a pair
    tiles_k = -(-problem.k_per_group // (filters * (1 + along_filters))) * problem.groups * config.split_k
    across, down = -(-problem.q // TILE_W), -(-problem.p // (pixels // TILE_W))
    if not config.patch:
        across = down = 1
    along = problem.n * across * down if config.patch else -(-problem.n * problem.p * problem.q // pixels)
    clusters = -(-along // (1 + along_pixels)) * tiles_k
    return clusters * (1 + along_pixels + along_filters), tiles_k, across, down


def config_refusal(problem: Conv2dProblem, config: WgmmaConfig, facts: DeviceFacts) -> Reason | None:
    """Why a config cannot be; None if it can."""
    if config.rows < 1 or not 8 <= config.columns <= MOST_COLUMNS or config.columns % 16:
        return Reason("products of 64 rows have 16 to {most} columns, a multiple of 16", most=MOST_COLUMNS)
    if not config.scattered and not config.filters_on_m and config.columns % BOX_FILTERS:
        return Reason("results leave 64 filters at a time; {columns} columns are not", columns=config.columns)
    if not config.scattered and not can_store(problem):
        return Reason("the accelerator stores 16 bits, in NHWC, in rows of 16 bytes: let threads store")
    if not config.turned and must_turn(problem):
        return Reason("the accelerator brings NHWC in rows of 16 bytes, whole groups, and zeros outside: turn it first")
    few = problem.c_per_group * itemsize(problem.x_dtype)
    if config.row_bytes not in ROWS or (config.row_bytes < ROW_BYTES and few > config.row_bytes):
        return Reason(
            "a row of {bytes} bytes does not hold {count} bytes of channels", bytes=config.row_bytes, count=few
        )
    if config.split_k > 1 and not config.scattered:
        return Reason("sums of a share are stored by threads")
    if (reason := split_refusal(problem, config, row_channels(problem, config))) is not None:
        return reason
    if config.rows * config.columns > MOST_COLUMNS:
        return Reason(
            "{rows} products of {columns} columns have more sums than a thread has registers",
            rows=config.rows, columns=config.columns,
        )  # fmt: skip
    if config.pixel_stages < 2 or (config.filter_stages < 2 and not config.resident):
        return Reason("a stage is free one step after its products: at least two are needed")
    if (reason := copies_refusal(seen_by(problem, config, whole_groups(problem)), config)) is not None:
        return reason
    return room_refusal(problem, config, shared_bytes(problem, config) + EXTRA_BYTES - 1024, facts)


def copies_refusal(problem: Conv2dProblem, config: TilesConfig) -> Reason | None:
    """Why the accelerator cannot bring a tile's pixels; None if it can."""
    pixels, _ = config.block
    if config.patch and max(problem.stride) > MOST_STRIDE:
        return Reason("patches are for filters that move by at most {most} pixels", most=MOST_STRIDE)
    if config.pairs not in PAIRS:
        return Reason("pairs={pairs} must be one of {names}", pairs=config.pairs, names=", ".join(PAIRS))
    if config.pairs != "none" and config.resident:
        return Reason("filters that stay are not brought in pairs: once is enough")
    if config.pairs == "pixels" and config.patch:
        return Reason("patches are not brought in pairs: one serves all taps")
    if config.patch and pixels % TILE_W:
        return Reason("a patch is {width} outputs wide; {pixels} pixels are not", width=TILE_W, pixels=pixels)
    if config.patch and max(box_of(problem, config)) > MOST_UNITS:
        return Reason("a patch has at most {most} pixels along an axis", most=MOST_UNITS)
    if not config.patch and max(reach_of(problem)) > MOST_REACH:
        return Reason("a copy brings the pixels of taps that are at most {most} pixels away", most=MOST_REACH)
    if not config.patch and pixels > MOST_PIXELS:
        return Reason("a copy brings at most {most} pixels", most=MOST_PIXELS)
    if not config.patch:
        some = problem.replace(n=max(problem.n, 1))  # of no picture nothing is brought
        fault = im2col_map(some, config, 0, _dense(some), element_of(problem.x_dtype)).refusal()
        if fault is not None:
            return Reason("the accelerator cannot bring its pixels: {fault}", fault=fault)
    return None


def room_refusal(problem: Conv2dProblem, config: TilesConfig, together: int, facts: DeviceFacts) -> Reason | None:
    """Why tiles of so many bytes, or so many of them, are too much; None if they are not."""
    if together > facts.block_shared_bytes:
        return Reason(
            "tiles take {together} bytes of shared memory; a block has {room}",
            together=together, room=facts.block_shared_bytes,
        )  # fmt: skip
    if max(tiling(problem, config)[0], problem.n * problem.p * problem.q) > MOST_COUNT:
        return Reason("{most} pixels are more than a launch counts", most=MOST_COUNT)
    return None


def row_pitch(problem: Conv2dProblem, channels: int) -> int:
    """Bytes from one row of so many channels to the next, a multiple of what the accelerator asks for."""
    return -(-channels * itemsize(problem.x_dtype) // ALIGNMENT) * ALIGNMENT


def _dense(problem: Conv2dProblem) -> tuple[int, int, int, int]:
    pixel = row_pitch(problem, problem.c)
    row = problem.w * pixel
    return problem.h * row, row, pixel, itemsize(problem.x_dtype)


def element_of(dtype: str) -> str:
    """Of a map: numbers are copied as they are."""
    return f"u{8 * itemsize(dtype)}"


def _outwards(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of W, H and N, of an array in NHWC."""
    return strides[2], strides[1], strides[0]


def pixels_map(
    problem: Conv2dProblem, config: TilesConfig, at: int, strides: tuple[int, ...], element: str
) -> AnyMap | None:
    """The picture, in boxes that are patches, or in im2col mode; None where its channels do not lie side by side."""
    if strides[3] != itemsize(problem.x_dtype):
        return None
    if not config.patch:
        return im2col_map(problem, config, at, strides, element)
    sizes, steps = (problem.c, problem.w, problem.h, problem.n), (1, problem.stride[1], problem.stride[0], 1)
    box = (row_channels(problem, config), *box_of(problem, config), 1)
    return TiledMap(at, element, sizes, _outwards(strides), box, steps, row_of(config))


def box_of(problem: Conv2dProblem, config: TilesConfig) -> tuple[int, int]:
    """Columns and rows of the picture over which a patch, or a phase of it, reaches."""
    (across, down), (high, wide) = patch_of(problem, config), problem.stride
    return (across - 1) * wide + 1, (down - 1) * high + 1


def im2col_map(
    problem: Conv2dProblem, config: TilesConfig, at: int, strides: tuple[int, ...], element: str
) -> Im2colMap:
    """The picture in im2col mode: a copy brings the pixels that one tap sees, of all positions of a tile."""
    top, bottom, left, right = problem.padding
    lower = (-left, -top)
    upper = (right - (problem.s - 1) * problem.dilation[1], bottom - (problem.r - 1) * problem.dilation[0])
    sizes, steps = (problem.c, problem.w, problem.h, problem.n), (1, problem.stride[1], problem.stride[0], 1)
    pixels, channels = config.block[0] // (1 + (config.pairs == "pixels")), row_channels(problem, config)
    return Im2colMap(at, element, sizes, _outwards(strides), lower, upper, channels, pixels, steps, row_of(config))


def filter_steps(problem: Conv2dProblem, strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Bytes from one tap's channels to the next tap's, and from one filter to the next.

    None where the accelerator cannot bring them: a tap's channels do not lie side by side, or begin at no multiple of
    16 bytes.

    Parameters
    ----------
    strides : tuple of int
        Bytes, of the weights as (K, C, R, S).

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n1c64h8w8_k32r3s3_f16")
    >>> filter_steps(problem, (1152, 2, 384, 128)), filter_steps(problem, (1152, 18, 6, 2))
    ((128, 1152), None)
    """
    (k, c, r, s), size = problem.w_shape, itemsize(problem.w_dtype)
    of_k, of_c, of_r, of_s = strides
    if (c > 1 and of_c != size) or (r > 1 and s > 1 and of_r != s * of_s):
        return None
    row = row_pitch(problem, c)
    of_tap = of_s if s > 1 else of_r if r > 1 else row
    of_filter = of_k if k > 1 else r * s * of_tap
    if of_tap < row or of_filter < r * s * of_tap or of_filter >= 2**31 or of_tap % ALIGNMENT or of_filter % ALIGNMENT:
        return None
    return of_tap, of_filter


def rows_map(
    problem: Conv2dProblem, config: TilesConfig, at: int, element: str, channels: int, steps: tuple[int, int],
    together: int, halves: int = 1,
) -> TiledMap:  # fmt: skip
    """Filters in rows of so many channels, in boxes of channels `together`; `steps` are those of filter_steps."""
    of_tap, of_filter = steps
    rows, high_and_low = config.block[1], halves
    if config.pairs == "filters":  # each of two blocks brings half of it
        rows, high_and_low = (rows, 1) if halves == 2 else (rows // 2, 1)
    sizes, box = (channels, problem.r * problem.s, problem.k, halves), (together, 1, rows, high_and_low)
    return TiledMap(at, element, sizes, (of_tap, of_filter, of_filter * problem.k), box, swizzle=row_of(config))


def results_map(problem: Conv2dProblem, config: WgmmaConfig, at: int, strides: tuple[int, ...]) -> AnyMap | None:
    """The result, in boxes of 64 filters; None where it has gaps that these do not go round."""
    size, element = itemsize(problem.out_dtype), element_of(problem.out_dtype)
    pixels = config.columns if config.filters_on_m else 64
    if strides[3] != size:
        return None
    if config.patch:
        of_picture, box = (problem.k, problem.q, problem.p, problem.n), (BOX_FILTERS, TILE_W, pixels // TILE_W, 1)
        return TiledMap(at, element, of_picture, _outwards(strides), box, swizzle=ROW_BYTES)
    if strides[1] != problem.q * strides[2] or (strides[0] != problem.p * strides[1] and problem.n > 1):
        return None
    in_a_row = (problem.k, problem.n * problem.p * problem.q)
    return TiledMap(at, element, in_a_row, (strides[2],), (BOX_FILTERS, pixels), swizzle=ROW_BYTES)
