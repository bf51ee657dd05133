"""Host side of implicit GEMM on the CPU: blocks of registers, tiles, packed weights.

The kernels are in cpu.py, with vectors along the pixels, and in cpu_outputs.py, with vectors along the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import Strip, geometry, strip, tap_offsets
from convforge.algorithms.host.views import view
from convforge.algorithms.host.weights import filter_to_pack, float_sums
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank, shared_pixels
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem

_VECTOR_BYTES = 32
# Outputs of a block of registers -> its vectors of 32 bytes along the pixels. Twelve vectors of sums hide the latency
# of an FMA on CPUs with 16 vector registers; with one output, eight do, because each needs a separate load.
_VECTORS = {3: 4, 1: 8}
# Blocks for many outputs: two vectors along the outputs, by this many pixels.
_PIXELS = 6
# Fraction of the peak that a block reaches: with fewer outputs it spends more time on loads.
_EFFICIENCY = {3: 0.9, 1: 0.6}
# Time to load one pixel into the tile, in vector multiply-adds.
_GATHER = 2.0
# Fraction of L2 for tile and sums, because the output passes through L2 too.
_L2_SHARE = 0.5
# Heights of strips to list for each block size.
_HEIGHTS = 4


@dataclass(frozen=True, slots=True)
class ImplicitGemmConfig(Config):
    """Tile and block of :class:`ImplicitGemm`."""

    tile_p: int = 8  # output rows of a strip
    tile_c: int = 1  # input channels in the tile at once
    # Outputs summed at once: two vectors (16, or 8 in float64) by six pixels, or 3 or 1 by several vectors of pixels.
    block_k: int = 16
    parts_k: int = 1  # parts of the outputs of a strip, to keep every core busy on a small image


class Block(NamedTuple):
    """Sizes of a block of registers and of its sums, as the kernel uses them."""

    rows: int  # outputs of a block of registers
    width: int  # pixels of a block of registers
    groups: int
    blocks: int  # blocks of a group's outputs
    parts: int  # parts into which these blocks are divided
    kept: int  # blocks with sums in memory at once: one if a tile holds every channel
    segments: int  # runs of pixels in a strip
    pitch: int  # sums of each segment


@takes_bfloat16
class ImplicitGemm(Algorithm[Conv2dProblem, ImplicitGemmConfig]):
    """out (K x PQ) = w (K x CRS) x columns (CRS x PQ); columns are only read from a tile, by offsets."""

    name = "implicit_gemm"
    summary = "im2col's product without its matrix: blocks of sums in registers, from a cached tile"
    operation = "conv2d"
    since = "im2col"
    cost = MethodCost(0.60, 0.4, 1, 2)
    look = Mark("teal", "square")

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        return shared_pixels(problem, Rank.MATRIX) or Preference(Rank.GENERAL_PRODUCT, GENERAL)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ImplicitGemmConfig]:
        """Configs of each block size with tiles that fit L2, the cheapest by :func:`modelled_steps` first."""
        size = float_sums(problem).itemsize
        found = [
            modelled
            for block_k in _blocks(size)
            for modelled in sorted(_fitting(problem, block_k, size, facts), key=itemgetter(0))[:_HEIGHTS]
        ]
        if not found:
            plane = strip(problem, 1, 1).plane * size
            tile_c = max(1, min(problem.c_per_group, int(_L2_SHARE * facts.l2_bytes) // plane))
            for block_k in _blocks(size):
                config = ImplicitGemmConfig(1, tile_c, block_k, _parts(problem, 1, block_k, facts))
                found.append((modelled_steps(problem, config, facts.cores), config))
        return [config for _, config in sorted(found, key=itemgetter(0))]

    def plan(self, problem: Conv2dProblem, config: ImplicitGemmConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.implicit_gemm import cpu, cpu_outputs

        g, dtype = geometry(problem), float_sums(problem)
        if config.block_k not in (known := _blocks(dtype.itemsize)):
            raise ValueError(f"block_k={config.block_k} must be one of {', '.join(map(str, known))}")
        tile = strip(problem, config.tile_p, min(config.tile_c, problem.c_per_group))
        block, offsets = _block(problem, tile, config, dtype.itemsize), tap_offsets(problem, tile)
        values = np.empty(0, values_dtype(problem))
        items = problem.n * problem.groups * -(-problem.p // config.tile_p) * block.parts
        sums = block.kept * block.rows * block.segments * block.pitch
        info = LaunchInfo(
            "implicit_gemm",
            (items,),
            (block_of_items(items, problem.flops, runtime.facts),),
            scratch_bytes=(tile.tile_c * tile.plane + block.width + sums) * dtype.itemsize,
        )
        along_outputs = config.block_k not in _VECTORS
        kernel = runtime.compile(cpu_outputs.outputs_by_pixels if along_outputs else cpu.implicit_gemm)
        pack_kernel = runtime.compile(cpu_outputs.pack_vectors if along_outputs else cpu.pack_weights)
        places = (offsets, _corners(problem, tile)) if along_outputs else (offsets,)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            end = epilogue_arguments(problem, buffers)
            args = (x, buffers["w"].tensors["w"], out, g, end, values, tile, block, *places)
            runtime.launch(kernel, info, args, stream)

        outputs = problem.groups * block.blocks
        pack = LaunchInfo(
            "pack_weights", (outputs,), (block_of_items(outputs, 8 * problem.k * problem.taps, runtime.facts),)
        )

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            taps = filter_to_pack(problem, w, dtype.name).reshape(problem.groups, problem.k_per_group, problem.taps)
            packed = np.empty((problem.groups, block.blocks, problem.taps, block.rows), dtype)
            runtime.launch(pack_kernel, pack, (taps, packed))
            return PreparedFilter({"w": packed.reshape(-1)}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=prepare)


def _fitting(
    problem: Conv2dProblem, block_k: int, size: int, facts: DeviceFacts
) -> list[tuple[float, ImplicitGemmConfig]]:
    """Configs with all channels in the tile that fit their part of L2, each with its :func:`modelled_steps`."""
    found = []
    for tile_p in _heights(problem.p):
        config = ImplicitGemmConfig(tile_p, problem.c_per_group, block_k, _parts(problem, tile_p, block_k, facts))
        tile = strip(problem, tile_p, problem.c_per_group)
        block = _block(problem, tile, config, size)
        kept = block.kept * block.rows * block.segments * block.pitch
        if (tile.plane * tile.tile_c + kept) * size <= _L2_SHARE * facts.l2_bytes:
            found.append((_steps(problem, tile, block, size, facts.cores), config))
    return found


def _block(problem: Conv2dProblem, tile: Strip, config: ImplicitGemmConfig, size: int) -> Block:
    """Block of a config. Vectors along pixels use one run per strip if this wastes fewer sums than one run per row."""
    blocks = -(-problem.k_per_group // config.block_k)
    parts = min(config.parts_k, blocks)
    kept = 1 if config.tile_c >= problem.c_per_group else -(-blocks // parts)
    if config.block_k not in _VECTORS:
        pitch = -(-tile.tile_p * problem.q // _PIXELS) * _PIXELS
        return Block(config.block_k, _PIXELS, problem.groups, blocks, parts, kept, 1, pitch)
    width = _VECTORS[config.block_k] * _VECTOR_BYTES // size
    whole = -(-((tile.tile_p - 1) * tile.row_pitch + problem.q) // width) * width
    by_row = -(-problem.q // width) * width
    one_run = problem.stride == (1, 1) and whole < tile.tile_p * by_row
    segments, pitch = (1, whole) if one_run else (tile.tile_p, by_row)
    return Block(config.block_k, width, problem.groups, blocks, parts, kept, segments, pitch)


def _blocks(size: int) -> tuple[int, ...]:
    """Valid values of block_k, for sums of `size` bytes."""
    return (2 * _VECTOR_BYTES // size, *_VECTORS)


def _corners(problem: Conv2dProblem, tile: Strip) -> NDArray[np.int64]:
    """Offset of each pixel's first tap in a strip; the last offset is repeated to fill a block of pixels."""
    corners = np.arange(tile.tile_p)[:, None] * (problem.stride[0] * tile.row_pitch) + np.arange(problem.q)
    return np.pad(corners.reshape(-1), (0, _PIXELS), "edge").astype(np.int64)


def _heights(p: int) -> list[int]:
    """Heights of strips to try, the tallest first. Each divides `p` rows into strips that differ by at most one row."""
    return sorted({-(-p // -(-p // tallest)) for tallest in (32, 24, 16, 12, 8, 7, 6, 4, 3, 2, 1)}, reverse=True)


def _items(problem: Conv2dProblem, tile_p: int) -> int:
    return problem.n * problem.groups * -(-problem.p // tile_p)


def _parts(problem: Conv2dProblem, tile_p: int, block_k: int, facts: DeviceFacts) -> int:
    """Number of parts of the outputs that gives every core a work item."""
    blocks = -(-problem.k_per_group // block_k)
    return max(1, min(blocks, -(-facts.cores // max(1, _items(problem, tile_p)))))


def modelled_steps(problem: Conv2dProblem, config: ImplicitGemmConfig, cores: int) -> float:
    """Estimate the time of the busiest core in vector multiply-adds, with the time to gather its tiles.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=256, h=14, w=14, k=256, r=3, s=3, padding=(1, 1, 1, 1))
    >>> halves, uneven = (ImplicitGemmConfig(tile_p, 256) for tile_p in (7, 8))
    >>> modelled_steps(problem, halves, cores=2) < modelled_steps(problem, uneven, cores=2)
    True
    """
    tile, size = strip(problem, config.tile_p, problem.c_per_group), float_sums(problem).itemsize
    return _steps(problem, tile, _block(problem, tile, config, size), size, cores)


def _steps(problem: Conv2dProblem, tile: Strip, block: Block, size: int, cores: int) -> float:
    sums = -(-block.blocks // block.parts) * block.rows * block.segments * block.pitch
    vectors = sums * size / _VECTOR_BYTES
    efficiency = _EFFICIENCY.get(block.rows, 1.0)
    each = vectors * problem.taps / efficiency + _GATHER * tile.plane * problem.c_per_group
    return -(-_items(problem, tile.tile_p) * block.parts // cores) * each
