"""Host side of depthwise convolution of 8-bit integers on the CPU: strips of pairs, vectors, packed weights.

The kernels are in cpu_int8.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.depthwise.family import one_channel_refusal
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

_LANES = 8  # sums in a vector
# Share of L2 for the tile, because the output passes through L2 too.
_L2_SHARE = 0.5
# Channels of a work item, at most: those of a pixel then fill a cache line, read at once.
_MOST_CHANNELS = 64
# Vectors of sums that pass the epilogue together, unless one row has more.
_VECTORS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class DepthwiseInt8Config(Config):
    """Vectors and tile of :class:`DepthwiseInt8`."""

    along: str = "columns"  # contents of a vector: outputs of a row ("columns"), or channels of a pixel ("channels")
    tile_p: int = 8  # output rows of a strip
    tile_c: int = 1  # channels of a work item


class Tile(NamedTuple):
    """Layout of a tile of pairs, in int16: (vector of channels, row, phase, column, pair)."""

    tile_p: int
    apart: int  # from pixel to pixel in a row before pairs are made: 1, or the channels of an item
    columns: int  # columns of a phase
    phases: tuple[int, ...]  # where the pairs begin whose column has each remainder by the stride; -1: none does
    pitch: int  # from row to row
    plane: int  # from vector to vector of channels
    size: int
    row_size: int


class Block(NamedTuple):
    """Kernel parameters other than the tile."""

    channels: int  # channels of the image
    item_channels: int  # channels of a work item, a multiple of eight; 1 along the columns
    rows: int  # output rows summed before any is stored
    row_vectors: int  # vectors of a row
    taps: int  # pairs of taps


@takes_bfloat16
class DepthwiseInt8(Algorithm[Conv2dProblem, DepthwiseInt8Config]):
    """Depthwise convolution of 8-bit integers on the CPU, with exact sums in int32.

    One instruction multiplies eight pairs of pixels by two neighbouring weights of a row of the filter.
    """

    name = "depthwise_int8"
    summary = "one channel a filter, of 8-bit integers with exact sums: pairs of products in one instruction"
    operation = "conv2d"
    since = "depthwise"
    cost = MethodCost(0.40, 0.5, 1, 1)
    look = Mark("magenta", "square")

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if not problem.groups == problem.c > 1:
            return None
        return Preference(Rank.BYTES, "8-bit integers, and every filter sees one channel: pairs of products at a time")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return one_channel_refusal(problem) or pairs_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseInt8Config]:
        """Vectors along the contiguous axis first; of these, the tallest strip that fits the cache first."""
        found = []
        if problem.x_layout == "NHWC" and problem.c >= _LANES:
            blocks = -(-problem.c // _MOST_CHANNELS)
            tile_c = -(-problem.c // (blocks * _LANES)) * _LANES
            found += [DepthwiseInt8Config("channels", tile_p, tile_c) for tile_p in _heights(problem, tile_c, facts)]
        return found + [DepthwiseInt8Config("columns", tile_p, 1) for tile_p in _heights(problem, 1, facts)]

    def plan(self, problem: Conv2dProblem, config: DepthwiseInt8Config, runtime: Runtime) -> Plan:
        from convforge.algorithms.depthwise import cpu_int8

        if config.along not in ("columns", "channels"):
            raise ValueError(f"along={config.along!r} must be 'columns' or 'channels'")
        g, values = geometry(problem), np.empty(0, values_dtype(problem))
        along_channels = config.along == "channels"
        item_channels = -(-min(config.tile_c, problem.c) // _LANES) * _LANES if along_channels else 1
        tile = _tile(problem, config.tile_p, item_channels)
        offsets, corners, places, block = _lists(problem, config, item_channels, tile)
        items = problem.n * -(-problem.c // item_channels) * -(-problem.p // config.tile_p)
        info = LaunchInfo(
            f"depthwise_int8_along_{config.along}", (items,), (block_of_items(items, problem.flops, runtime.facts),),
            scratch_bytes=2 * tile.size,
        )  # fmt: skip
        kernel = runtime.compile(cpu_int8.along_channels if along_channels else cpu_int8.along_columns)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            args = (x, buffers["w"].tensors["w"], out, g, epilogue_arguments(problem, buffers), values, tile, block,
                    offsets, corners, places)  # fmt: skip
            runtime.launch(kernel, info, args, stream)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            taps = filter_to_pack(problem, w, "int16").reshape(problem.k, problem.r, problem.s)
            packed = np.pad(taps, ((0, 0), (0, 0), (0, problem.s % 2))).reshape(problem.c, -1, block.taps, 2)
            if along_channels:
                packed = np.pad(packed, ((0, -problem.c % _LANES), (0, 0), (0, 0), (0, 0)))
                packed = packed.reshape(-1, _LANES, *packed.shape[1:]).transpose(0, 2, 3, 1, 4)
            flat = np.array(packed, order="C").reshape(-1)
            return PreparedFilter({"w": flat}, flat.nbytes)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=prepare)


def _tile(problem: Conv2dProblem, tile_p: int, item_channels: int) -> Tile:
    stride, dilation = problem.stride[1], problem.dilation[1]
    lanes = _LANES if item_channels > 1 else 1
    first = range(0, problem.s, 2)  # taps that begin a pair
    columns = problem.q + (first[-1] * dilation) // stride
    if item_channels == 1:
        columns = -(-columns // _LANES) * _LANES  # pairs are stored as whole vectors
    used = sorted({s * dilation % stride for s in first})
    phase_pitch = columns * lanes * 2
    phases = tuple(used.index(phase) * phase_pitch if phase in used else -1 for phase in range(stride))
    rows = (tile_p - 1) * problem.stride[0] + problem.extent_h
    pitch = phase_pitch * len(used)
    # Vectors at the end of a narrow row extend beyond the row, by less than two vectors.
    size = rows * pitch * -(-item_channels // _LANES) + 4 * _LANES
    row_size = ((columns + 1) * stride + problem.extent_w + dilation + 2 * _LANES * stride) * item_channels
    return Tile(tile_p, item_channels, columns, phases, pitch, rows * pitch, size, row_size)


def _lists(
    problem: Conv2dProblem, config: DepthwiseInt8Config, item_channels: int, tile: Tile
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Block]:
    """Offsets of pairs of taps, corners and places of vectors (cpu_int8.py explains them), and the block."""
    step = 2 * _LANES if item_channels > 1 else 2
    columns = np.arange(0, problem.s, 2) * problem.dilation[1]
    right = np.array(tile.phases)[columns % problem.stride[1]] + columns // problem.stride[1] * step
    offsets = np.arange(problem.r)[:, None] * (problem.dilation[0] * tile.pitch) + right
    # Along the columns, the last vector of a row may overlap the previous one, so that it ends with the row.
    first = np.arange(problem.q)
    if item_channels == 1:
        first = np.minimum(first[::_LANES], max(problem.q - _LANES, 0))
    rows = max(1, min(config.tile_p, problem.p, _VECTORS_AT_ONCE // first.size))
    p = np.arange(rows)[:, None]
    corners, places = p * (problem.stride[0] * tile.pitch) + first * step, p * problem.q + first
    lists = [numbers.reshape(-1).astype(np.int64) for numbers in (offsets, corners, places)]
    return lists[0], lists[1], lists[2], Block(problem.c, item_channels, rows, first.size, offsets.size)


def _heights(problem: Conv2dProblem, tile_c: int, facts: DeviceFacts) -> list[int]:
    """Strip heights, best first: the tallest that keeps all cores busy, then half of it."""
    wanted = -(-4 * facts.cores // max(problem.n * -(-problem.c // tile_c), 1))
    strips = max(-(-problem.p // _tallest(problem, tile_c, facts)), wanted)
    return list(dict.fromkeys(-(-problem.p // min(n, problem.p)) for n in (strips, 2 * strips)))


def _tallest(problem: Conv2dProblem, tile_c: int, facts: DeviceFacts) -> int:
    """Most output rows with a tile that fits its share of L2."""
    row = 2 * _tile(problem, 1, tile_c).pitch * max(1, tile_c // _LANES)
    rows = int(_L2_SHARE * facts.l2_bytes) // row
    return max(1, min((rows - problem.extent_h) // problem.stride[0] + 1, problem.p))
