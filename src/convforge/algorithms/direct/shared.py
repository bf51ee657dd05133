"""Host side of shared.cu: the tile in shared memory, and its size limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from convforge.algorithms.contract import Config
from convforge.algorithms.direct.blocks import block_refusal, even_share, grid, plane_work
from convforge.algorithms.host.constants import either_weights, fits_constant_memory
from convforge.algorithms.host.on_device import Kernel, OneLaunch, least_refusal
from convforge.algorithms.traits import Mark, MethodCost
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Block shapes worth comparing, as threads along q, threads along p and outputs per thread; the default is one of them.
SHAPES = (
    (32, 4, 8), (32, 4, 4), (32, 4, 2), (32, 4, 1), (64, 2, 8), (64, 2, 2), (32, 8, 8), (32, 8, 4), (16, 16, 1),
    (32, 32, 1), (24, 24, 1), (8, 8, 1), (32, 1, 1),
)  # fmt: skip
# The default is one of the first DEFAULTS shapes that are valid; it gives each SM at least ENOUGH_BLOCKS blocks.
DEFAULTS, ENOUGH_BLOCKS = 4, 8

# Shared memory of a block, in bytes, with which an SM still holds several blocks.
GOOD_BYTES = 32 << 10

# Sums per thread, at most, in the configs offered.
MOST_SUMS = 32


@dataclass(frozen=True, slots=True)
class SharedConfig(Config):
    """Block shape and tile of :class:`DirectShared`."""

    block_x: int = 32  # threads along q
    block_y: int = 8  # threads along p; 32 to 1024 in a block
    per_p: int = 4  # outputs of a thread, in consecutive rows
    tile_c: int = 1  # input channels in shared memory at a time
    tile_k: int = 1  # output channels summed from one tile
    resident: int = 1024  # resident threads per SM, at least; see :func:`compiled`


class DirectShared(OneLaunch[SharedConfig]):
    """A block copies its tile and halo to shared memory and reads all taps' pixels from there."""

    name = "direct_shared"
    summary = "input tile and halo in shared memory, each pixel read from global memory once a block"
    since = "direct_constant"
    has_filter = False
    cost = MethodCost(0.28, 0.6, 1024, 2)
    look = Mark("moss", "triangle-up")
    work_for = plane_work

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        least = min((SharedConfig(x, y, per_p) for x, y, per_p in SHAPES), key=lambda c: shared_bytes(problem, c))
        return self.config_refusal(problem, least, facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SharedConfig]:
        """The default's tile lets an SM hold several blocks, and gives the device enough blocks."""
        short = problem.x_layout == "NCHW" and problem.r * problem.s <= 9 and itemsize(problem.acc_dtype) == 4
        resident = 1536 if short else 1024
        found = []
        for x, y, per_p in SHAPES:
            tile_k = even_share(problem.k_per_group, min(8, MOST_SUMS // per_p))
            config = SharedConfig(x, y, per_p, 1, tile_k, resident)
            tile_c = even_share(problem.c_per_group, GOOD_BYTES // shared_bytes(problem, config))
            config = replace(config, tile_c=tile_c)
            if self.config_refusal(problem, config, facts) is None:
                found.append(config)

        # Take the tallest tile that gives the device enough blocks, but prefer a lower tile with all channels to a
        # taller one with few. With a vertical stride, the outputs of a thread share no row.
        enough = ENOUGH_BLOCKS * facts.cores
        low = [c for c in found[:DEFAULTS] if c.per_p == 1 or problem.stride[0] == 1]
        busy = [c for c in low if math.prod(_grid(problem, c)) >= enough] or low[-1:] or found
        default = next((c for c in busy if c.tile_c == problem.c_per_group), busy[0])
        return [default, *(c for c in found if c != default)]

    def kernel(self, problem: Conv2dProblem, config: SharedConfig) -> Kernel:
        prelude = constants(
            PER_P=config.per_p, TILE_C=config.tile_c, TILE_K=config.tile_k,
            CHANNELS_LAST=problem.x_layout == "NHWC", CONSTANT_WEIGHTS=fits_constant_memory(problem),
            BLOCK_X=config.block_x, BLOCK_Y=config.block_y,
        )  # fmt: skip
        return Kernel(
            prelude,
            _grid(problem, config),
            (config.block_x, config.block_y),
            config.resident,
            shared_bytes(problem, config),
            weights=either_weights,
            pdl=False,
        )

    def config_refusal(self, problem: Conv2dProblem, config: SharedConfig, facts: DeviceFacts) -> Reason | None:
        if (reason := block_refusal(config.block_x, config.block_y) or least_refusal(config)) is not None:
            return reason
        if (need := shared_bytes(problem, config)) > facts.block_shared_bytes:
            return Reason(
                "the tile of {tile_c} channels with its halo takes {need} bytes of shared memory; a block has {most}",
                tile_c=config.tile_c, need=need, most=facts.block_shared_bytes,
            )  # fmt: skip
        if config.tile_k * config.per_p > 2 * MOST_SUMS:
            return Reason(
                "a thread would keep {sums} sums in registers; at most {most} are good",
                sums=config.tile_k * config.per_p,
                most=2 * MOST_SUMS,
            )
        return None


def shared_bytes(problem: Conv2dProblem, config: SharedConfig) -> int:
    """Bytes of shared memory of a block: the pixels of its outputs with halo, in the accumulation type."""
    tile_h = (config.block_y * config.per_p - 1) * problem.stride[0] + problem.extent_h
    tile_w = (config.block_x - 1) * problem.stride[1] + problem.extent_w
    return config.tile_c * tile_h * tile_w * itemsize(problem.acc_dtype)


def _grid(problem: Conv2dProblem, config: SharedConfig) -> tuple[int, int, int]:
    return grid(problem, config.block_y * config.per_p, config.block_x, config.tile_k)
