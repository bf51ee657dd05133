"""Host side of bytes.cu: the tile of a block, its groups of channels and its warps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.dp4a import TYPES, bytes_refusal
from convforge.algorithms.depthwise.family import DepthwiseConvolution, is_preferred, threads_refusal
from convforge.algorithms.direct.blocks import even_share
from convforge.algorithms.host.conv import LIMIT_BITS, divisor
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.host.resident import blocks_held
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES

FIRST_ARCHITECTURE = 80  # first one with these tensor cores

GROUP = 16  # channels of a product
CHANNELS = 4  # of a lane


class Tile(NamedTuple):
    """Tile of a block, but for its columns, and its warps: at most so many."""

    groups: int  # groups of channels
    parts: int  # warps of a group
    rows: int  # rows of outputs


# Tiles worth comparing.
TILES = (
    Tile(3, 4, 14), Tile(3, 7, 14), Tile(1, 4, 14), Tile(3, 4, 28), Tile(9, 2, 4), Tile(3, 2, 4), Tile(9, 2, 8),
    Tile(3, 2, 8), Tile(1, 4, 4), Tile(1, 4, 28),
)  # fmt: skip

# Columns of outputs that a warp computes at once; and of a tile, at most.
UNIT, MOST_COLUMNS = 8, 64

# A good tile computes at most so many times the channels and rows of the problem.
MOST_WASTE = 1.2

# Pairs of taps whose matrices fit in a warp's registers; and resident threads per SM, at least.
MOST_PAIRS, RESIDENT = 25, 768

# Registers of a thread, about: so many, and more for each pair of taps.
REGISTERS, OF_PAIR = 56, 4


@dataclass(frozen=True, slots=True)
class DepthwiseBytesConfig(Config):
    """Tile of a block of :class:`DepthwiseBytes`, and its warps."""

    groups: int  # groups of 16 channels
    parts: int  # warps of a group; at most 32 in a block
    tile_p: int  # rows of outputs
    tile_q: int  # columns of outputs
    each: int = 1  # tiles of a block
    resident: int = RESIDENT  # resident threads per SM, at least; see :func:`compiled`

    @property
    def threads(self) -> int:
        return 32 * self.groups * self.parts


class DepthwiseBytes(DepthwiseConvolution[DepthwiseBytesConfig]):
    """Taps as diagonal matrices of bytes on tensor cores, for 8-bit integers in NHWC, with exact sums in int32.

    See PTX ISA, mma.m16n8k32 and ldmatrix.
    """

    name = "depthwise_bytes"
    summary = "depthwise of 8-bit integers in NHWC: taps as diagonal matrices on tensor cores; sm_80 and later"
    since = "depthwise_dp4a"
    first_architecture = FIRST_ARCHITECTURE
    cost = MethodCost(0.3, 0.8, 2048, 1)
    look = Mark("purple", "cross")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """A product has two taps of 16 channels for each of 8 outputs, of which two factors are not zero."""
        taps = 2 * _pairs(problem)
        return Work(2 * taps * GROUP * problem.n * problem.p * problem.q * problem.k, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.x_dtype not in TYPES or not is_preferred(problem):
            return None
        reason = "every filter sees one channel: tensor cores multiply two taps of 16 channels at once"
        return Preference(Rank.PLANES_AS_MATRICES, reason)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return bytes_refusal(problem) or super().refuses(problem, facts)

    def least(self, problem: Conv2dProblem) -> DepthwiseBytesConfig:
        return DepthwiseBytesConfig(1, 1, 2, UNIT)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseBytesConfig]:
        """Return valid configs, first those that waste little at the edges and give every SM a block."""
        found = [_config(problem, facts, tile) for tile in TILES]
        fit = self.valid(problem, dict.fromkeys(found), facts) or [self.least(problem)]

        def is_worse(config: DepthwiseBytesConfig) -> bool:
            channels = _channel_blocks(problem, config) * GROUP * config.groups / problem.k
            rows = -(-problem.p // config.tile_p) * config.tile_p / problem.p
            blocks = _tiles(problem, config) * _channel_blocks(problem, config)
            return channels * rows > MOST_WASTE or blocks < facts.cores

        return sorted(fit, key=is_worse)

    def kernel(self, problem: Conv2dProblem, config: DepthwiseBytesConfig) -> Kernel:
        fill = math.gcd(problem.c, VECTOR_BYTES)
        prelude = constants(
            GROUPS_C=config.groups, PARTS=config.parts, TILE_P=config.tile_p, TILE_Q=config.tile_q, FILL=fill
        )
        tiles = _tiles(problem, config)
        step = -(-tiles // config.each)
        x = Vectors({"n": problem.n, "h": problem.h, "w": problem.w}, {"c": 1}, fill)
        out = Vectors({"n": problem.n, "h": problem.p, "w": problem.q}, {"c": 1}, CHANNELS)
        across, down = -(-problem.q // config.tile_q), -(-problem.p // config.tile_p)
        fields = {"across": divisor(across), "down": divisor(down), "tiles": tiles, "step": step}
        return Kernel(
            prelude, (step * _channel_blocks(problem, config),), (config.threads,), config.resident,
            _shared_bytes(problem, config), fields=fields, vectors=(x, out),
        )  # fmt: skip

    def config_refusal(self, problem: Conv2dProblem, config: DepthwiseBytesConfig, facts: DeviceFacts) -> Reason | None:
        if (reason := least_refusal(config) or threads_refusal(config.threads)) is not None:
            return reason
        if (pairs := _pairs(problem)) > MOST_PAIRS:
            return Reason("a warp's registers hold the matrices of {most} pairs of taps, not of {pairs}",
                          pairs=pairs, most=MOST_PAIRS)  # fmt: skip
        if config.tile_p % 2 or config.tile_q % UNIT:
            return Reason("a tile has an even number of rows and a multiple of {unit} columns, not {rows} x {columns}",
                          rows=config.tile_p, columns=config.tile_q, unit=UNIT)  # fmt: skip
        if (room := _shared_bytes(problem, config) + _matrices_bytes(problem, config)) > facts.block_shared_bytes:
            return Reason("the pixels of a tile take {room} bytes of shared memory; a block has {most}",
                          room=room, most=facts.block_shared_bytes)  # fmt: skip
        if (tiles := _tiles(problem, config) * _channel_blocks(problem, config)) >= 2**LIMIT_BITS:
            return Reason("{tiles} tiles are more than a launch counts", tiles=tiles)
        return None


def _config(problem: Conv2dProblem, facts: DeviceFacts, tile: Tile) -> DepthwiseBytesConfig:
    """Make a config whose tiles share the image evenly, and whose blocks all run at once."""
    units = -(-even_share(problem.q, MOST_COLUMNS) // UNIT)
    rows = -(-even_share(problem.p, tile.rows) // 2) * 2
    groups = min(tile.groups, -(-problem.k // GROUP))
    config = DepthwiseBytesConfig(groups, min(tile.parts, units), rows, units * UNIT)
    room = _shared_bytes(problem, config) + _matrices_bytes(problem, config)
    held = blocks_held(facts, config.threads // 32, room, REGISTERS + OF_PAIR * _pairs(problem))
    tiles = _tiles(problem, config) * _channel_blocks(problem, config)
    return replace(config, each=max(1, -(-tiles // (facts.cores * held))))


def _pairs(problem: Conv2dProblem) -> int:
    """Pairs of taps of a filter; PAIRS of bytes.cu."""
    return -(-problem.r * problem.s // 2)


def _tiles(problem: Conv2dProblem, config: DepthwiseBytesConfig) -> int:
    """Tiles of all images."""
    return problem.n * -(-problem.q // config.tile_q) * -(-problem.p // config.tile_p)


def _channel_blocks(problem: Conv2dProblem, config: DepthwiseBytesConfig) -> int:
    """Blocks that the channels of a tile take; BLOCKS_C of bytes.cu."""
    return -(-problem.k // (GROUP * config.groups))


def _shared_bytes(problem: Conv2dProblem, config: DepthwiseBytesConfig) -> int:
    """Bytes of two tiles' pixels; LINE and ROWS of bytes.cu."""
    rows = (config.tile_p - 1) * problem.stride[0] + problem.extent_h
    columns = (config.tile_q - 1) * problem.stride[1] + problem.extent_w
    return 2 * rows * columns * (config.groups | 1) * GROUP


def _matrices_bytes(problem: Conv2dProblem, config: DepthwiseBytesConfig) -> int:
    """Bytes of the matrices of a block; Matrices of bytes.cu."""
    return config.groups * _pairs(problem) * 8 * 16
