"""Tiles of split.cu: those of wgmma.cu, with pixels that are loaded as floats and split into halves in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

from convforge.algorithms.implicit_gemm import wgmma_tiles
from convforge.algorithms.implicit_gemm.stages import rows_problem
from convforge.algorithms.implicit_gemm.wgmma_configs import Ring, deepest, sharing_cycles, splits_worth_a_look
from convforge.algorithms.implicit_gemm.wgmma_tiles import ROW_BYTES, TilesConfig
from convforge.backends.facts import DeviceFacts
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Products of halves for one product of floats; channels of a step: their halves fill a row.
PRODUCTS, ROW_CHANNELS = 3, 64

# Exponents of 2, as in split.cuh. The scale makes the largest number 2^TOP or more. A scaled number of at least
# 2^IN_FULL keeps all its bits. The largest number may be from 2^-REACH to below 2^(REACH + 1).
TOP, IN_FULL, REACH = 14, -12, 100

# Columns of a product. A thread holds three sums for every two columns of 64 rows.
COLUMNS = (64, 96, 112, 128)

# Stages in shared memory; the first ring that fits is used.
PATCH_RINGS = tuple(Ring(False, *stages) for stages in (
    (3, 6), (3, 4), (3, 3), (2, 6), (2, 4), (2, 3), (2, 2), (1, 6), (1, 3),
))  # fmt: skip
RINGS = tuple(Ring(False, *stages) for stages in ((6, 4), (5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2)))
RESIDENT_RINGS = tuple(Ring(True, stages, 2) for stages in (3, 2))

# Scales of a pixel, each of 64 channels, that a copy loads: 16 bytes.
SCALES = 4

# Shared memory in addition to the tiles, in bytes: that of wgmma.cu, and the largest numbers of channels.
SPLIT_BYTES = 2048

# The model that orders the configs before any is timed, fitted to times on an H100. It counts clock cycles of an SM.
# Tensor cores: multiply-adds in a cycle, and bytes that they read from shared memory in a cycle.
PRODUCTS_A_CYCLE, READ_A_CYCLE = 2100, 83
# Adding a step's sums to floats: cycles of a step, and of each column.
ADD_CYCLES, ADD_COLUMN = 13, 2.2
# Splitting: cycles of a stage, and of each pixel.
STAGE_CYCLES, SPLIT_CYCLES = 1130, 17
# Finishing a tile: cycles of each column; cycles of a launch.
OUTPUT_CYCLES, START_CYCLES = 26, 3300
# Writing pixels to a workspace first: cycles of the launch; bytes of a number that are read and written, and those that
# the device reads and writes in a cycle. Bytes that the TMA then loads in a cycle.
WRITING_CYCLES, WRITTEN_BYTES, WRITTEN_A_CYCLE, LOADED_A_CYCLE = 3000, 8, 2200, 60
# Up to MOST_ALONE columns of a product, two threads of a separate warpgroup issue copies, and 128 threads split. With
# more columns, two threads of one warp issue copies, and 96 split, which takes TOGETHER times as long.
MOST_ALONE, TOGETHER = 112, 1.6


@dataclass(frozen=True, slots=True)
class SplitConfig(TilesConfig):
    """Tiles and rings of :class:`ImplicitGemmSplit`; `rows` is 1."""

    # True: each of the two warpgroups computes `columns` pixels of a tile, with all its filters.
    by_pixels: bool = False
    # Another kernel first writes x to a workspace as halves, each pixel with a scale for 64 channels. It works for
    # any layout, border, number of channels and alignment.
    split_first: bool = False

    @property
    def block(self) -> tuple[int, int]:
        """Pixels and filters of a tile."""
        return (2 * self.columns, 64) if self.by_pixels else TilesConfig.block.fget(self)  # type: ignore[attr-defined]

    @property
    def threads(self) -> int:
        return 512 if self.columns <= MOST_ALONE and not self.split_first else 384

    def any_way(self) -> Self:
        return self if self.split_first else replace(self, repacked=True)

    @staticmethod
    def whole_groups(problem: Conv2dProblem) -> int:
        """Channels of a group, padded so that each group begins at a multiple of 16 bytes, where a copy can begin."""
        return problem.c_per_group if problem.groups == 1 else -(-problem.c_per_group // 4) * 4

    @classmethod
    def smallest(cls, problem: Conv2dProblem) -> Self:
        return cls(patch=False, columns=64, pixel_stages=2, filter_stages=2, repacked=cls.needs_rows(problem))

    def shared_bytes(self, problem: Conv2dProblem) -> int:
        pixels, filters = self.block
        rows = math.prod(wgmma_tiles.patch_of(problem, self)) if self.patch else pixels
        stage = -(-rows * ROW_BYTES // 1024) * 1024
        held = wgmma_tiles.filters_held(problem, self, ROW_CHANNELS) * 2 * filters * ROW_BYTES
        return self.pixel_stages * 2 * stage + held + 1024

    def refusal(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if self.rows != 1 or not 8 <= self.columns <= COLUMNS[-1] or self.columns % 16:
            return Reason("products of 64 rows have 16 to {most} columns, a multiple of 16", most=COLUMNS[-1])
        if self.by_pixels and (self.ping_pong or not self.filters_on_m):
            return Reason("two warpgroups share pixels only of a tile that they share, and where pixels are columns")
        if (reason := wgmma_tiles.split_refusal(problem, self, ROW_CHANNELS)) is not None:
            return reason
        if self.filter_stages < 2 and not self.resident:
            return Reason("a stage is free one step after its products: at least two are needed")
        if self.patch and problem.stride != (1, 1):
            return Reason("patches of floats are for filters that move by one pixel")
        loaded, beside = self.loaded(problem), wgmma_tiles.EXTRA_BYTES + SPLIT_BYTES
        if self.split_first:
            if self.patch or self.filters_on_m or self.repacked or problem.groups > 1:
                return Reason(
                    "where pixels are split first, they are rows of products, are loaded tap by tap, and have one group"
                )
            loaded, beside = split_rows(problem), beside + self.pixel_stages * self.block[0] * SCALES * 4
        elif not self.repacked and self.needs_rows(problem):
            return Reason("the TMA loads NHWC in rows of 16 bytes, and zeros outside: set {field}", field="repacked")
        reason = wgmma_tiles.copies_refusal(loaded, self)
        return reason or wgmma_tiles.room_refusal(problem, self, self.shared_bytes(problem) + beside, facts)


# The division of tiles between the two warpgroups, and the kernel that splits pixels.
WAYS = (
    *(SplitConfig(filters_on_m=on_m, ping_pong=ping) for on_m in (True, False) for ping in (True, False)),
    SplitConfig(ping_pong=False, by_pixels=True),
    *(SplitConfig(filters_on_m=False, ping_pong=ping, split_first=True) for ping in (True, False)),
)


def padded_channels(problem: Conv2dProblem) -> int:
    """Channels of a row of a split filter, padded to a multiple of 16 bytes."""
    return -(-problem.c_per_group // 8) * 8


def split_rows(problem: Conv2dProblem) -> Conv2dProblem:
    """Problem that reads rows of halves in a workspace: twice as many images, those of high halves first."""
    channels = -(-problem.c // 8) * 8
    return rows_problem(problem, channels).replace(x_dtype="float16", w_dtype="float16", n=2 * problem.n)


def modelled_cycles(problem: Conv2dProblem, config: SplitConfig, facts: DeviceFacts) -> float:
    """Estimate the cycles of a call: the SM with the most tiles, limited by its products or by splitting."""
    most = -(-wgmma_tiles.tiling(problem, config)[0] // facts.cores)
    steps = wgmma_tiles.steps_of(problem, ROW_CHANNELS, config.split_k)
    read = (64 + config.columns) * ROW_BYTES
    multiplied = max(64 * config.columns * ROW_CHANNELS / PRODUCTS_A_CYCLE, read / READ_A_CYCLE)
    added = ADD_CYCLES + ADD_COLUMN * config.columns
    alone = PRODUCTS * multiplied + added
    products = steps * (alone if config.ping_pong else max(2 * PRODUCTS * multiplied, alone))
    stages = steps // (problem.r * problem.s) if config.patch else steps
    pixels = math.prod(wgmma_tiles.patch_of(problem, config)) if config.patch else config.block[0]
    split = stages * (pixels * SPLIT_CYCLES + STAGE_CYCLES) * (1 if config.columns <= MOST_ALONE else TOGETHER)
    if config.split_first:
        split = steps * sum(config.block) * 2 * ROW_BYTES / LOADED_A_CYCLE
    tile = max(products, split)
    if config.pixel_stages < 2:  # nothing is split while a tile is multiplied
        tile = products + split
    finish = OUTPUT_CYCLES * config.columns
    rest = START_CYCLES + sharing_cycles(problem, config)
    if config.repacked or config.split_first:
        rest += WRITING_CYCLES + problem.n * problem.c * problem.h * problem.w * WRITTEN_BYTES / WRITTEN_A_CYCLE
    return most * (tile + (0 if config.ping_pong else finish)) + finish + rest


def fitting(problem: Conv2dProblem, facts: DeviceFacts) -> Iterator[SplitConfig]:
    """Configs worth timing, each with the rings of most stages that fit."""
    needs_rows = SplitConfig.needs_rows(problem)
    for patch, way, columns in product((True, False), WAYS, COLUMNS):
        base = replace(way, patch=patch, columns=columns, repacked=needs_rows and not way.split_first)
        pixels, filters = base.block
        idle = patch and (
            problem.r * problem.s == 1 or way.split_first or pixels // wgmma_tiles.TILE_W >= 2 * problem.p
        )
        if idle or (way.by_pixels and columns > MOST_ALONE) or filters >= 2 * max(problem.k_per_group, 64):
            continue
        splits = splits_worth_a_look(problem, base, ROW_CHANNELS, facts)
        every = [replace(base, split_k=many) for many in (1, *splits)]
        rings, resident = (PATCH_RINGS, RESIDENT_RINGS[:1]) if patch else (RINGS, RESIDENT_RINGS)
        yield from deepest(problem, every, rings, resident, ROW_CHANNELS, facts)
