"""Host side of implicit GEMM of 8-bit integers on the CPU: tiles of int16, pairs of taps, packed weights.

The kernels are in cpu_int8.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import geometry
from convforge.algorithms.host.pairs import pairs_refusal
from convforge.algorithms.host.views import view
from convforge.algorithms.host.weights import filter_to_pack
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Outputs of a block of sums in registers -> its pixels.
_PIXELS = {16: 6, 8: 8}
# Pairs of taps summed at a time: their weights fill half of a first cache of 32 KiB.
_DEPTH = 256
# Share of L2 for the tile and the sums, because weights and output pass through L2 too.
_L2_SHARE = 0.5
# Time to read one pixel into the tile, and to finish one sum, in multiplications of vectors.
_GATHER, _FINISH = 0.5, 1.0
# Channels of NCHW from which a pair is two channels of a pixel, whose planes are read together.
_MANY_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class ImplicitGemmInt8Config(Config):
    """Tile and block of :class:`ImplicitGemmInt8`."""

    tile_p: int = 8  # output rows of a strip
    block_k: int = 16  # outputs summed at once: 16 by six pixels, or 8 by eight
    parts_k: int = 1  # parts of the outputs of a strip, to keep every core busy on a small image


class Tile(NamedTuple):
    """Layout of a tile, in elements."""

    tile_p: int
    planes: bool  # (pair of channels, row, column, 2); else (row, column, channel)
    pitch: int  # from row to row
    plane: int  # from pair to pair of channels
    size: int


class Block(NamedTuple):
    """Sizes of a block of registers and of its sums, as the kernel uses them."""

    rows: int  # outputs of a block
    width: int  # pixels of a block
    groups: int
    blocks: int  # blocks of a group's outputs
    parts: int  # parts into which these blocks are divided
    taps: int  # pairs of taps
    depth: int  # pairs summed at a time
    pitch: int  # pixels with sums in memory: those of a strip, rounded up


@takes_bfloat16
class ImplicitGemmInt8(Algorithm[Conv2dProblem, ImplicitGemmInt8Config]):
    """Implicit GEMM of 8-bit integers on the CPU, with exact sums in int32.

    One instruction multiplies pairs of int16 and adds both products. The pairs are two channels of a pixel, or two
    neighbouring values of a row of pixels, so an odd number of channels wastes little.
    """

    name = "implicit_gemm_int8"
    summary = "implicit GEMM of 8-bit integers with exact sums: pairs of products in one instruction"
    operation = "conv2d"
    since = "implicit_gemm"
    cost = MethodCost(0.60, 0.4, 1, 2)
    look = Mark("moss", "triangle-left")

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.k_per_group < 4 or problem.taps < 8:
            return None
        return Preference(Rank.BYTES, "8-bit integers: one instruction adds two products to each of eight sums")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return pairs_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ImplicitGemmInt8Config]:
        """Configs whose tile and sums fit L2, the cheapest first; strips of one row if none fits."""
        every = [_config(problem, tile_p, block_k, facts) for tile_p in _heights(problem.p) for block_k in _PIXELS]
        fitting = [config for config in every if _scratch(problem, config) <= _L2_SHARE * facts.l2_bytes]
        found = fitting or [config for config in every if config.tile_p == 1]
        return sorted(found, key=lambda config: _steps(problem, config, facts.cores))[:8]

    def plan(self, problem: Conv2dProblem, config: ImplicitGemmInt8Config, runtime: Runtime) -> Plan:
        from convforge.algorithms.implicit_gemm import cpu_int8

        if config.block_k not in _PIXELS:
            raise ValueError(f"block_k={config.block_k} must be one of {', '.join(map(str, _PIXELS))}")
        g, tile, block = geometry(problem), _tile(problem, config.tile_p), _block(problem, config)
        offsets, sources = _taps(problem, tile)
        corners, values = _corners(problem, tile, block), np.empty(0, values_dtype(problem))
        items = problem.n * problem.groups * -(-problem.p // config.tile_p) * block.parts
        info = LaunchInfo(
            "implicit_gemm_int8", (items,), (block_of_items(items, problem.flops // 2, runtime.facts),),
            scratch_bytes=_scratch(problem, config),
        )  # fmt: skip
        kernel = runtime.compile(cpu_int8.pairs_by_pixels)
        pack_kernel = runtime.compile(cpu_int8.pack_pairs)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            end = epilogue_arguments(problem, buffers)
            args = (x, buffers["w"].tensors["w"], out, g, end, values, tile, block, offsets, corners)
            runtime.launch(kernel, info, args, stream)

        outputs = problem.groups * block.blocks
        pack = LaunchInfo(
            "pack_pairs", (outputs,), (block_of_items(outputs, 8 * problem.k * problem.taps, runtime.facts),)
        )

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            taps = filter_to_pack(problem, w, problem.w_dtype)
            packed = np.empty((problem.groups, block.blocks, block.taps, block.rows, 2), np.int16)
            runtime.launch(
                pack_kernel, pack, (taps.reshape(problem.groups, problem.k_per_group, problem.taps), sources, packed)
            )
            return PreparedFilter({"w": packed.reshape(-1)}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=prepare)


def _tile(problem: Conv2dProblem, tile_p: int) -> Tile:
    """Pairs of planes if a pixel's channels are not contiguous, unless many of them would be half empty."""
    channels = problem.c_per_group
    planes = problem.x_layout == "NCHW" and (channels % 2 == 0 or channels >= _MANY_CHANNELS)
    columns = (problem.q - 1) * problem.stride[1] + problem.extent_w
    rows = (tile_p - 1) * problem.stride[0] + problem.extent_h
    pitch = columns * (2 if planes else channels)
    # The pair of an odd last value reads one element beyond it.
    return Tile(tile_p, planes, pitch, rows * pitch, rows * pitch * (-(-channels // 2) if planes else 1) + 1)


def _taps(problem: Conv2dProblem, tile: Tile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The offset of each pair of taps in the tile; and the number of each tap of a pair in (C, R, S), or -1."""
    c, r, s = problem.c_per_group, problem.r, problem.s
    number = np.arange(c * r * s).reshape(c, r, s)
    down, right = problem.dilation[0] * tile.pitch, problem.dilation[1]
    if tile.planes:
        taps = np.pad(number, ((0, c % 2), (0, 0), (0, 0)), constant_values=-1)
        taps = taps.reshape(-1, 2, r, s).transpose(0, 2, 3, 1)
        starts = [np.arange(-(-c // 2)) * tile.plane, np.arange(r) * down, np.arange(s) * (2 * right)]
    else:  # neighbouring values: all of a row of the filter without a dilation, else those of one pixel
        run = s * c if right == 1 else c
        taps = number.transpose(1, 2, 0).reshape(r, -1, run)
        taps = np.pad(taps, ((0, 0), (0, 0), (0, run % 2)), constant_values=-1)
        starts = [np.arange(r) * down, np.arange(taps.shape[1]) * (right * c), np.arange(-(-run // 2)) * 2]
    offsets = starts[0][:, None, None] + starts[1][:, None] + starts[2]
    return offsets.reshape(-1).astype(np.int64), np.ascontiguousarray(taps).reshape(-1).astype(np.int64)


def _corners(problem: Conv2dProblem, tile: Tile, block: Block) -> NDArray[np.int64]:
    """Offset of each pixel's first tap in a strip; the last offset is repeated to fill a block of pixels."""
    step = problem.stride[1] * (2 if tile.planes else problem.c_per_group)
    corners = np.arange(tile.tile_p)[:, None] * (problem.stride[0] * tile.pitch) + np.arange(problem.q) * step
    return np.pad(corners.reshape(-1), (0, block.width), "edge").astype(np.int64)


def _block(problem: Conv2dProblem, config: ImplicitGemmInt8Config) -> Block:
    rows, width = config.block_k, _PIXELS[config.block_k]
    blocks = -(-problem.k_per_group // rows)
    # Sums are transposed in squares of eight.
    pitch = -(-config.tile_p * problem.q // width) * width + 8
    taps = _pairs(problem)
    return Block(rows, width, problem.groups, blocks, min(config.parts_k, blocks), taps, _DEPTH, pitch // 8 * 8)


def _pairs(problem: Conv2dProblem) -> int:
    return len(_taps(problem, _tile(problem, 1))[0])


def _config(problem: Conv2dProblem, tile_p: int, block_k: int, facts: DeviceFacts) -> ImplicitGemmInt8Config:
    """A config with as many parts of the outputs as give every core a work item."""
    items = problem.n * problem.groups * -(-problem.p // tile_p)
    blocks = -(-problem.k_per_group // block_k)
    return ImplicitGemmInt8Config(tile_p, block_k, max(1, min(blocks, -(-facts.cores // max(items, 1)))))


def _heights(p: int) -> list[int]:
    """Heights of strips to try. Each divides `p` rows into strips that differ by at most one row."""
    return sorted({-(-p // -(-p // tallest)) for tallest in (32, 24, 16, 12, 8, 7, 6, 4, 3, 2, 1)}, reverse=True)


def _scratch(problem: Conv2dProblem, config: ImplicitGemmInt8Config) -> int:
    """Bytes of the tile and of the sums of a strip, which the epilogue copies once in NCHW."""
    block = _block(problem, config)
    return 2 * _tile(problem, config.tile_p).size + 9 * block.rows * block.pitch


def _steps(problem: Conv2dProblem, config: ImplicitGemmInt8Config, cores: int) -> float:
    """Estimate the time of the busiest core in multiplications of vectors."""
    tile, block = _tile(problem, config.tile_p), _block(problem, config)
    vectors = -(-block.blocks // block.parts) * block.rows * block.pitch / 8
    each = vectors * (block.taps * (1.0 if block.rows == 16 else 1.2) + 8 * _FINISH) + _GATHER * tile.size
    items = problem.n * problem.groups * -(-problem.p // config.tile_p) * block.parts
    return -(-items // cores) * each
