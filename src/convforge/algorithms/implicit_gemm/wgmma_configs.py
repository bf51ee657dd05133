"""The configs of wgmma.cu that are worth timing, the fastest by a model of cycles first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import NamedTuple, TypeVar

from convforge.algorithms.implicit_gemm import wgmma_tiles as tiles
from convforge.algorithms.implicit_gemm.wgmma_tiles import TilesConfig, WgmmaConfig
from convforge.backends.facts import DeviceFacts
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Columns of a product to try, multiples of 16 up to 256; more to try for groups with few filters.
COLUMNS = (64, 96, 112, 128, 192, 224, 256)
FEW_COLUMNS = (16, 32, 48)
OF_BYTES = (160,)  # for bytes as well
# Configs to try early: of each kind that the model was not fitted to; of each kind of pairs of blocks.
OTHERS, TRIED_IN_PAIRS = 3, 2

C = TypeVar("C", bound=TilesConfig)


class Ring(NamedTuple):
    """Stages of pixels and of filters in shared memory; `resident`: all filters stay there."""

    resident: bool
    pixel_stages: int
    filter_stages: int


# The first ring that fits is used. Patches are large, and each serves all taps.
PATCH_RINGS = tuple(Ring(False, *stages) for stages in ((4, 6), (3, 6), (2, 6), (2, 4), (2, 3)))
RINGS = tuple(Ring(False, stages, stages) for stages in (6, 5, 4, 3, 2))
RESIDENT_RINGS = tuple(Ring(True, stages, 2) for stages in (4, 3, 2))

# The model orders the configs before any is timed. It was fitted to times on an H100, and counts clock cycles of an SM.
# In a cycle: multiply-adds of the tensor cores, bytes that they read from shared memory, bytes that the TMA loads, and
# bytes that it loads and stores.
PRODUCTS_A_CYCLE, READ_A_CYCLE, LOADED_A_CYCLE, MOVED_A_CYCLE = 2100, 106, 60, 50
# Cycles of a step, and of each copy of filters.
STEP_CYCLES, COPY_CYCLES = 16, 106
# Cycles from the last product of a step of 8-bit floats to the addition of its sums.
TWO_LEVEL_CYCLES = 64
# Finishing: cycles of a tile, and of each 128 outputs; cycles of a launch.
FINISH_CYCLES, OUTPUT_CYCLES, START_CYCLES = 475, 25, 2400
# Adding up split-K shares: cycles of the launch, and bytes that the device reads and writes in a cycle.
SHARING_CYCLES, SHARED_A_CYCLE = 3000, 2500
# A ring of DEEP stages hides the latency of copies. Each missing stage lengthens a tile by the fraction SHALLOW.
DEEP, SHALLOW = 4, 0.083


def splits_worth_a_look(problem: Conv2dProblem, config: TilesConfig, channels: int, facts: DeviceFacts) -> list[int]:
    """Values of split_k to try: one that gives each SM a tile, and one that gives half of the SMs a tile."""
    count, slices = tiles.tiling(problem, config)[0], tiles.slices_of(problem, channels)
    if problem.groups > 1 or config.resident or not count:
        return []
    most = [min(slices, facts.cores // (count * share)) for share in (1, 2)]
    return [many for many in dict.fromkeys(-(-slices // -(-slices // max(1, few))) for few in most) if many > 1]


def in_pairs(problem: Conv2dProblem, configs: Iterable[C]) -> list[C]:
    """Variants of the first configs in which pairs of blocks share filters, or pixels."""

    def several(config: C, along: str) -> bool:
        count, tiles_k, *_ = tiles.tiling(problem, config)
        along_filters = tiles_k > config.split_k * problem.groups
        return along_filters and not config.patch if along == "pixels" else count > tiles_k

    fit = [config for config in configs if not config.resident]
    return [
        replace(config, pairs=pairs)
        for pairs in ("filters", "pixels")
        for config in islice((config for config in fit if several(config, pairs)), TRIED_IN_PAIRS)
    ]


def modelled_cycles(problem: Conv2dProblem, config: WgmmaConfig, facts: DeviceFacts) -> float:
    """Estimate the cycles of a call: the SM with the most tiles, limited by its products or its loads."""
    pixels, filters = config.block
    most = -(-tiles.tiling(problem, config)[0] // facts.cores)
    row, channels = config.row, tiles.row_channels(problem, config)
    steps = tiles.steps_of(problem, channels, config.split_k)
    read = 64 * row + config.columns * row  # bytes of a step, for 64 rows
    each = max(64 * config.columns * row / 2 / PRODUCTS_A_CYCLE, read / READ_A_CYCLE)
    if tiles.slices_of(problem, channels) == 1:  # a row has all channels, and no product reads past them
        each *= -(-problem.c_per_group * itemsize(problem.x_dtype) // tiles.PRODUCT_BYTES) * tiles.PRODUCT_BYTES / row
    each += STEP_CYCLES
    if config.two_levels(problem) and config.ping_pong:  # sums are added while the tensor cores wait
        each += config.columns / 2 + TWO_LEVEL_CYCLES
    products = steps * pixels * filters // (64 * config.columns) * each
    stages = steps // (problem.r * problem.s) if config.patch else steps
    rows = math.prod(tiles.patch_of(problem, config)) * tiles.phases_of(problem) if config.patch else pixels
    loaded, copied = stages * rows * row, 0 if config.resident else steps
    loaded += copied * filters * row
    stored = pixels * filters * (4 if config.split_k > 1 else itemsize(problem.out_dtype))
    tile = max(products, loaded / LOADED_A_CYCLE + copied * COPY_CYCLES, (loaded + stored) / MOVED_A_CYCLE)
    depth = config.pixel_stages if config.resident else min(config.pixel_stages, config.filter_stages)
    tile *= 1 + SHALLOW * max(0, DEEP - depth)
    return call_cycles(most, tile, pixels * filters, config.ping_pong, sharing_cycles(problem, config))


def call_cycles(tiles: int, tile: float, outputs: int, ping_pong: bool, behind: float = 0) -> float:
    """Cycles of an SM with `tiles` tiles of `tile` cycles and `outputs` outputs; `behind` is for later kernels."""
    finish = FINISH_CYCLES + OUTPUT_CYCLES * outputs / 128 / (1 if ping_pong else 2)
    rest = START_CYCLES + behind
    if ping_pong:  # a tile is finished while the next one is multiplied
        return max(tiles * tile, -(-tiles // 2) * (tile + finish)) + finish + rest
    return tiles * (tile + finish) + rest


def sharing_cycles(problem: Conv2dProblem, config: TilesConfig) -> float:
    """Estimate the cycles to add up the sums of all split-K shares."""
    if config.split_k == 1:
        return 0
    return SHARING_CYCLES + problem.outputs * 4 * (config.split_k + 0.5) / SHARED_A_CYCLE


def fitting(
    problem: Conv2dProblem, facts: DeviceFacts, row: int, kind: type[WgmmaConfig] = WgmmaConfig
) -> Iterator[WgmmaConfig]:
    """Configs worth timing with rows of `row` bytes, each with the rings of most stages that fit."""
    channels, k = row // itemsize(problem.x_dtype), problem.k_per_group
    repacked, scattered = WgmmaConfig.needs_rows(problem), not tiles.tma_stores(problem)
    few, more = FEW_COLUMNS if k <= FEW_COLUMNS[-1] else (), OF_BYTES if itemsize(problem.x_dtype) == 1 else ()
    widths = (*few, *COLUMNS, *more)
    for patch, on_m, ping, columns in product((True, False), (True, False), (True, False), widths):
        base = kind(patch, on_m, ping, columns=columns, repacked=repacked, scattered=scattered, row_bytes=row)
        pixels, filters = base.block
        idle = (patch and problem.r * problem.s == 1) or (on_m and columns < COLUMNS[0])
        # Threads store NCHW in pairs of pixels, which are columns.
        idle |= not on_m and columns >= COLUMNS[0] and scattered and problem.out_layout == "NCHW"
        if idle or filters >= 2 * max(k, 64) or (patch and pixels // tiles.TILE_W >= 2 * problem.p):
            continue
        splits = splits_worth_a_look(problem, base, channels, facts)
        every = [base, *(replace(base, scattered=True, split_k=many) for many in splits)]
        yield from deepest(problem, every, PATCH_RINGS if patch else RINGS, RESIDENT_RINGS, channels, facts)


def deepest(
    problem: Conv2dProblem, configs: Iterable[C], rings: Sequence[Ring], resident: Sequence[Ring], channels: int,
    facts: DeviceFacts,
) -> Iterator[C]:  # fmt: skip
    """Yield each config with the first ring that fits; `resident` rings come first if one tile has all filters."""
    for config in configs:
        stay = config.block[1] >= problem.k and problem.groups == 1
        stay = stay and tiles.steps_of(problem, channels) <= tiles.MOST_RESIDENT
        every = (replace(config, **ring._asdict()) for ring in (*(resident if stay else ()), *rings))
        yield from islice((ringed for ringed in every if ringed.refusal(problem, facts) is None), 1)


def ordered(problem: Conv2dProblem, facts: DeviceFacts, kind: type[WgmmaConfig] = WgmmaConfig) -> list[WgmmaConfig]:
    """Configs worth timing, the fastest by the model of cycles first.

    For a search, the first configs include some that the model was not fitted to: short rows for few channels, which
    load less and leave room for more stages; patches with a stride; and pairs of blocks.
    """

    def by_cycles(row: int) -> list[WgmmaConfig]:
        fit = dict.fromkeys(fitting(problem, facts, row, kind))
        return sorted(fit, key=lambda config: modelled_cycles(problem, config, facts))

    found, channels = by_cycles(tiles.ROW_BYTES), problem.c_per_group * itemsize(problem.x_dtype)
    row = next(row for row in tiles.ROWS if row >= min(channels, tiles.ROW_BYTES))
    short = by_cycles(row) if row < tiles.ROW_BYTES else []
    if problem.stride == (1, 1):
        first, others = found[:1], short[:OTHERS]
    else:
        patches = [config for config in (*short, *found) if config.patch]
        first = [config for config in found if not config.patch][:1]
        others = [*[config for config in short if not config.patch][:OTHERS], *patches[:OTHERS]]
    return list(dict.fromkeys([*first, *others, *in_pairs(problem, found), *found]))
