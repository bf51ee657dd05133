"""Tiles of wgmma.cu: configs, their refusals, and the tensor maps of the three arrays."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from convforge.algorithms.contract import Config
from convforge.algorithms.implicit_gemm.stages import can_share, passes_of, row_pitch, rows_problem
from convforge.backends import maps
from convforge.backends.facts import DeviceFacts
from convforge.backends.maps import ALIGNMENT, AnyMap, Im2colMap, TiledMap
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import FP8, itemsize

# Bytes of a row of channels (a step of one tap), and of the part of it that one product reads. A row may be shorter
# if it holds all channels.
ROW_BYTES, PRODUCT_BYTES = 128, 32
ROWS = (32, 64, ROW_BYTES)
TILE_W = 8  # columns of outputs that a patch serves, as in wgmma.cu
PAIRS = ("none", "filters", "pixels")  # operands that two blocks of a cluster may share
MOST_COLUMNS = 256  # most columns of a product
MOST_OF_TWO_LEVELS = 192  # most columns where each sum of 8-bit floats has two registers
BOX_FILTERS = 64  # filters of a TMA box of results; of one byte, up to twice as many
EXTRA_BYTES = 512 + 1024  # shared memory in addition to tiles and their alignment: barriers, the driver's
MOST_RESIDENT = 36  # most steps whose filters stay in shared memory: each has a barrier
MOST_COUNT = 2**29  # most tiles or pixels: they are counted in 32 bits, and a block looks ahead


@dataclass(frozen=True, slots=True)
class TilesConfig(Config):
    """Tiles and rings of an implicit GEMM on wgmma."""

    patch: bool = True  # load patches of pixels that serve all taps of 64 channels; else load the pixels of each tap
    # True: filters are operand A of wgmma (64 rows), and pixels are operand B (`columns`); else the reverse.
    filters_on_m: bool = True
    ping_pong: bool = True  # the two warpgroups take turns with a tile each; else they share every tile
    rows: int = 1  # products of 64 rows that a warpgroup computes, one below the other
    columns: int = 128  # columns of a product
    resident: bool = False  # all filters stay in shared memory
    pixel_stages: int = 4  # stages of the ring of pixels
    filter_stages: int = 4  # stages of the ring of filters, if they are not resident
    # Another kernel first writes x to a workspace in rows that the TMA can load. It works for any layout, border,
    # number of channels and alignment.
    repacked: bool = False
    # Split-K: parts into which the channels of a tile are divided, if there are fewer tiles than SMs. Another kernel
    # adds up their sums.
    split_k: int = 1
    # Operand that the tiles of the two SMs of a cluster have in common. Each SM loads half of it for both. It is
    # "none", "filters" or "pixels".
    pairs: str = "none"

    @property
    def block(self) -> tuple[int, int]:
        """Pixels and filters of a tile."""
        high = 64 * self.rows * (1 if self.ping_pong else 2)
        return (self.columns, high) if self.filters_on_m else (high, self.columns)

    @property
    def row(self) -> int:
        return ROW_BYTES

    @property
    def threads(self) -> int:
        return 384

    def any_way(self) -> Self:
        """The config for arrays of any alignment."""
        return replace(self, repacked=True)

    def loaded(self, problem: Conv2dProblem) -> Conv2dProblem:
        """Problem that reads what the TMA loads: x itself, or rows in a workspace, which include the border."""
        return rows_problem(problem, self.whole_groups(problem)) if self.repacked else problem

    @classmethod
    def needs_rows(cls, problem: Conv2dProblem) -> bool:
        """True if x must first be written as rows, because the TMA cannot load it."""
        return not tma_loads(problem) or cls.whole_groups(problem) != problem.c_per_group

    @staticmethod
    @abstractmethod
    def whole_groups(problem: Conv2dProblem) -> int:
        """Channels of a group in rows that are written to the workspace."""

    @classmethod
    @abstractmethod
    def smallest(cls, problem: Conv2dProblem) -> Self:
        """The config with the smallest tiles. If it cannot compute a problem, no config can."""

    @abstractmethod
    def shared_bytes(self, problem: Conv2dProblem) -> int:
        """Shared memory of a block in bytes: struct Memory of the .cu file, and its alignment."""

    @abstractmethod
    def refusal(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """The reason why the kernel cannot compute a problem with this config; None if it can."""


@dataclass(frozen=True, slots=True)
class WgmmaConfig(TilesConfig):
    """Tiles and rings of :class:`ImplicitGemmWgmma`, and how results are stored."""

    scattered: bool = False  # threads store the results one by one, in any layout; else the TMA does
    row_bytes: int = 128  # bytes of a row of channels in shared memory: 128; or 64 or 32, if they hold all channels

    @property
    def row(self) -> int:
        return self.row_bytes

    @staticmethod
    def two_levels(problem: Conv2dProblem) -> bool:
        """True if the sums of a row are added to others by multiply-add units."""
        return problem.x_dtype in FP8

    def any_way(self) -> Self:
        return replace(self, repacked=True, scattered=True)

    def box_filters(self, problem: Conv2dProblem) -> int:
        """Filters of a box of results that the TMA stores."""
        if self.filters_on_m:
            return BOX_FILTERS
        size = itemsize(problem.out_dtype)
        return next((nbytes // size for nbytes in (128, 64) if self.columns % (nbytes // size) == 0), 32 // size)

    @staticmethod
    def whole_groups(problem: Conv2dProblem) -> int:
        """Channels of a group, padded with zeros so that no product reads channels of another group."""
        count, size = problem.c_per_group, itemsize(problem.x_dtype)
        if problem.groups == 1:
            return count
        whole = (ROW_BYTES if count * size > ROW_BYTES else PRODUCT_BYTES) // size
        return -(-count // whole) * whole

    @classmethod
    def smallest(cls, problem: Conv2dProblem) -> Self:
        repacked, scattered = cls.needs_rows(problem), not tma_stores(problem)
        return cls(patch=False, columns=64, pixel_stages=2, filter_stages=2, repacked=repacked, scattered=scattered)

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        pixels, filters = self.block
        rows, phases = (math.prod(patch_of(problem, self)), phases_of(problem)) if self.patch else (pixels, 1)
        row, held = self.row, filters_held(problem, self, row_channels(problem, self))
        rings = self.pixel_stages * phases * -(-rows * row // 1024) * 1024 + held * filters * row
        results = 1024 if self.scattered else 64 * self.rows * self.columns * itemsize(problem.out_dtype)
        # Scale and bias of each filter, for each warpgroup.
        ahead = 2 * 16 * filters if not self.scattered and itemsize(problem.out_dtype) == 1 else 0
        ahead += 2 * 4 * pixels if problem.epilogue.x_zero_point else 0  # classes of pixels
        return -(-(rings + 2 * results) // 1024) * 1024 + -(-ahead // 1024) * 1024 + 1024

    def refusal(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if self.rows < 1 or not 8 <= self.columns <= MOST_COLUMNS or self.columns % 16:
            return Reason("products of 64 rows have 16 to {most} columns, a multiple of 16", most=MOST_COLUMNS)
        if not self.scattered and not self.filters_on_m and self.columns % self.box_filters(problem):
            return Reason("the TMA stores {whole} filters at a time; {columns} columns are no multiple of that",
                          whole=self.box_filters(problem), columns=self.columns)  # fmt: skip
        if not self.scattered and not tma_stores(problem):
            return Reason("the TMA stores 8 or 16 bits, in NHWC, in rows of 16 bytes: set {field}", field="scattered")
        if not self.repacked and self.needs_rows(problem):
            return Reason("the TMA loads NHWC in rows of 16 bytes, whole groups, and zeros outside: set {field}",
                          field="repacked")  # fmt: skip
        few = problem.c_per_group * itemsize(problem.x_dtype)
        if self.row_bytes not in ROWS or (self.row_bytes < ROW_BYTES and few > self.row_bytes):
            return Reason("a row of {bytes} bytes does not hold {count} bytes of channels",
                          bytes=self.row_bytes, count=few)  # fmt: skip
        if not self.scattered and problem.groups > 1 and problem.k_per_group % self.box_filters(problem):
            return Reason("a group has {count} filters, which are no multiple of {whole}",
                          count=problem.k_per_group, whole=self.box_filters(problem))  # fmt: skip
        if self.split_k > 1 and not self.scattered:
            return Reason("sums of a share are stored by threads")
        if (reason := split_refusal(problem, self, row_channels(problem, self))) is not None:
            return reason
        if self.rows * self.columns > (MOST_OF_TWO_LEVELS if self.two_levels(problem) else MOST_COLUMNS):
            return Reason("{rows} products of {columns} columns have more sums than a thread has registers",
                          rows=self.rows, columns=self.columns)  # fmt: skip
        if self.pixel_stages < 2 or (self.filter_stages < 2 and not self.resident):
            return Reason("a stage is free one step after its products: at least two are needed")
        reason = copies_refusal(self.loaded(problem), self)
        return reason or room_refusal(problem, self, self.shared_bytes(problem) + EXTRA_BYTES, facts)


@dataclass(frozen=True, slots=True)
class OneLevelConfig(WgmmaConfig):
    """Tiles whose sums stay in the tensor cores, of 8-bit floats too."""

    @staticmethod
    def two_levels(problem: Conv2dProblem) -> bool:
        return False


def tma_loads(problem: Conv2dProblem) -> bool:
    """True if the TMA can load the pixels of this problem from an array aligned to 16 bytes."""
    rows = problem.c * itemsize(problem.x_dtype) % ALIGNMENT == 0
    return problem.x_layout == "NHWC" and problem.padding_mode == "zeros" and rows


def tma_stores(problem: Conv2dProblem) -> bool:
    """True if the TMA can store the result to an array aligned to 16 bytes."""
    whole = problem.groups == 1 or problem.k_per_group % BOX_FILTERS == 0
    rows = problem.k * itemsize(problem.out_dtype) % ALIGNMENT == 0
    return problem.out_layout == "NHWC" and itemsize(problem.out_dtype) <= 2 and rows and whole


def row_channels(problem: Conv2dProblem, config: TilesConfig) -> int:
    """Channels of a step, which is one row."""
    return config.row // itemsize(problem.x_dtype)


def steps_of(problem: Conv2dProblem, channels: int, split_k: int = 1) -> int:
    """Steps of a tile in all passes, each of one tap and `channels` channels."""
    return passes_of(problem) * problem.r * problem.s * -(-slices_of(problem, channels) // split_k)


def slices_of(problem: Conv2dProblem, channels: int) -> int:
    """Slices of `channels` channels that hold all channels of a group."""
    return -(-problem.c_per_group // channels)


def filters_held(problem: Conv2dProblem, config: TilesConfig, channels: int) -> int:
    """Steps with filters in shared memory at once; a step has `channels` channels."""
    return steps_of(problem, channels) if config.resident else config.filter_stages


def reach_of(problem: Conv2dProblem) -> tuple[int, int]:
    """Columns and rows from the first tap of a filter to its last."""
    return (problem.s - 1) * problem.dilation[1], (problem.r - 1) * problem.dilation[0]


def patch_of(problem: Conv2dProblem, config: TilesConfig) -> tuple[int, int]:
    """Columns and rows of pixels that all taps of a tile read; with a stride, only those of one phase."""
    (across, down), (high, wide) = reach_of(problem), problem.stride
    return TILE_W + across // wide, config.block[0] // TILE_W + down // high


def phases_of(problem: Conv2dProblem) -> int:
    """Phases of a stride, each with its own patch; 1 for stride 1."""
    (across, down), (high, wide) = reach_of(problem), problem.stride
    return min(wide, across + 1) * min(high, down + 1)


def tiling(problem: Conv2dProblem, config: TilesConfig) -> tuple[int, int, int, int]:
    """Numbers of tiles: all; along the filters (or pairs, if these share pixels); of an image along a row, and down.

    The last pair may have an empty tile.
    """
    pixels, filters = config.block
    along_pixels, along_filters = config.pairs == "filters", config.pairs == "pixels"  # axis of a pair
    tiles_k = -(-problem.k_per_group // (filters * (1 + along_filters))) * problem.groups * config.split_k
    across, down = -(-problem.q // TILE_W), -(-problem.p // (pixels // TILE_W))
    if not config.patch:
        across = down = 1
    along = problem.n * across * down if config.patch else -(-problem.n * problem.p * problem.q // pixels)
    clusters = -(-along // (1 + along_pixels)) * tiles_k
    return clusters * (1 + along_pixels + along_filters), tiles_k, across, down


def split_refusal(problem: Conv2dProblem, config: TilesConfig, channels: int) -> Reason | None:
    """The reason why `split_k` tiles cannot share the channels; None if they can."""
    if config.split_k == 1:
        return None
    slices = slices_of(problem, channels)
    if not can_share(slices, config.split_k):
        return Reason("{slices} times {channels} channels cannot be shared out among {count} tiles",
                      slices=slices, channels=channels, count=config.split_k)  # fmt: skip
    if problem.groups > 1 or config.resident or problem.outputs >= 2**31:
        return Reason(
            "tiles share channels only in one group, of filters that are not resident, for fewer than 2^31 outputs"
        )
    return None


def copies_refusal(problem: Conv2dProblem, config: TilesConfig) -> Reason | None:
    """The reason why the TMA cannot load a tile's pixels; None if it can."""
    pixels, _ = config.block
    if config.patch and max(problem.stride) > maps.MOST_STRIDE:
        return Reason("patches are for filters that move by at most {most} pixels", most=maps.MOST_STRIDE)
    if config.pairs not in PAIRS:
        return Reason("pairs={pairs} must be one of {names}", pairs=config.pairs, names=", ".join(PAIRS))
    if config.pairs != "none" and config.resident:
        return Reason("resident filters are loaded once, not in pairs")
    if config.pairs == "pixels" and config.patch:
        return Reason("patches are not loaded in pairs: one serves all taps")
    if config.patch:
        if pixels % TILE_W:
            return Reason("a patch is {width} outputs wide; {pixels} pixels are not", width=TILE_W, pixels=pixels)
        if max(box_of(problem, config)) > maps.MOST_UNITS:
            return Reason("a patch has at most {most} pixels along an axis", most=maps.MOST_UNITS)
        return None
    if max(reach_of(problem)) > maps.MOST_REACH:
        return Reason("a copy loads the pixels of taps that are at most {most} pixels away", most=maps.MOST_REACH)
    if pixels > maps.MOST_PIXELS:
        return Reason("a copy loads at most {most} pixels", most=maps.MOST_PIXELS)
    some = problem.replace(n=max(problem.n, 1))  # a map of an empty batch would be refused
    pixel = row_pitch(some, some.c)
    strides = some.h * some.w * pixel, some.w * pixel, pixel, itemsize(some.x_dtype)
    fault = im2col_map(some, config, 0, strides, element_of(some.x_dtype)).refusal()
    return None if fault is None else Reason("the TMA cannot load its pixels: {fault}", fault=fault)


def room_refusal(problem: Conv2dProblem, config: TilesConfig, together: int, facts: DeviceFacts) -> Reason | None:
    """The reason why tiles need too much shared memory (`together` bytes) or are too many; None if they fit."""
    if together > facts.block_shared_bytes:
        return Reason("tiles take {together} bytes of shared memory; a block has {room}",
                      together=together, room=facts.block_shared_bytes)  # fmt: skip
    if max(tiling(problem, config)[0], problem.n * problem.p * problem.q) > MOST_COUNT:
        return Reason("{most} pixels are more than a launch counts", most=MOST_COUNT)
    return None


def element_of(dtype: str) -> str:
    """Element type of a tensor map that copies numbers bit for bit."""
    return f"u{8 * itemsize(dtype)}"


def pixels_map(
    problem: Conv2dProblem, config: TilesConfig, at: int, strides: tuple[int, ...], element: str
) -> AnyMap | None:
    """Tensor map of x: boxes that are patches, or im2col mode. None if channels are not contiguous."""
    if strides[3] != itemsize(problem.x_dtype):
        return None
    plain = im2col_map(problem, config, at, strides, element)
    if not config.patch:
        return plain
    box = (plain.channels, *box_of(problem, config), 1)
    return TiledMap(at, element, plain.sizes, plain.strides, box, plain.steps, config.row)


def box_of(problem: Conv2dProblem, config: TilesConfig) -> tuple[int, int]:
    """Columns and rows of x over which a patch, or a phase of it, extends."""
    (across, down), (high, wide) = patch_of(problem, config), problem.stride
    return (across - 1) * wide + 1, (down - 1) * high + 1


def im2col_map(
    problem: Conv2dProblem, config: TilesConfig, at: int, strides: tuple[int, ...], element: str
) -> Im2colMap:
    """Tensor map of x in im2col mode: a copy loads the pixels that one tap reads, for all positions of a tile."""
    (top, bottom, left, right), (across, down) = problem.padding, reach_of(problem)
    sizes = problem.c, problem.w, problem.h, problem.n
    pixels = config.block[0] // (1 + (config.pairs == "pixels"))
    return Im2colMap(
        at, element, sizes, strides[2::-1], (-left, -top), (right - across, bottom - down),
        row_channels(problem, config), pixels, (1, *reversed(problem.stride), 1), config.row,
    )  # fmt: skip


def filter_steps(problem: Conv2dProblem, strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Bytes from one tap's channels to the next tap's, and from one filter to the next, of weights (K, C, R, S).

    None if the TMA cannot load them: a tap's channels are not contiguous or not aligned to 16 bytes.

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
    together: int, halves: int = 1, planes: int = 1,
) -> TiledMap:  # fmt: skip
    """Tensor map of filters, rows of `channels` channels, with boxes of `together`; `steps` are from filter_steps.

    A box has both `halves` of the filters, or one of their `planes`.
    """
    of_tap, of_filter = steps
    rows, high_and_low = config.block[1], halves
    if config.pairs == "filters":  # each of two blocks loads half of the filters
        rows, high_and_low = (rows, 1) if halves == 2 else (rows // 2, 1)
    sizes, box = (channels, problem.r * problem.s, problem.k, halves * planes), (together, 1, rows, high_and_low)
    return TiledMap(at, element, sizes, (of_tap, of_filter, of_filter * problem.k), box, swizzle=config.row)


def results_map(problem: Conv2dProblem, config: WgmmaConfig, at: int, strides: tuple[int, ...]) -> AnyMap | None:
    """Tensor map of the result, with boxes of a row of filters; None if the result has gaps that boxes cannot skip."""
    element, pixels = element_of(problem.out_dtype), config.columns if config.filters_on_m else 64
    filters = config.box_filters(problem)
    row = filters * itemsize(problem.out_dtype)
    if strides[3] != itemsize(problem.out_dtype):
        return None
    if config.patch:
        image, box = (problem.k, problem.q, problem.p, problem.n), (filters, TILE_W, pixels // TILE_W, 1)
        return TiledMap(at, element, image, strides[2::-1], box, swizzle=row)
    if strides[1] != problem.q * strides[2] or (strides[0] != problem.p * strides[1] and problem.n > 1):
        return None
    in_a_row = (problem.k, problem.n * problem.p * problem.q)
    return TiledMap(at, element, in_a_row, (strides[2],), (filters, pixels), swizzle=row)
