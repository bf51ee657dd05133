"""Host side of small.cu, for images so small that only latency counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from convforge.algorithms.contract import Config
from convforge.algorithms.direct.blocks import Block, block_refusal, even_share
from convforge.algorithms.host.conv import MOST_BLOCKS
from convforge.algorithms.host.on_device import Kernel, OneLaunch, least_refusal
from convforge.algorithms.host.staged import staging_refusal
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Registers of a thread for its window, at most: a 5 x 5 filter of three channels needs 75.
MOST_WINDOW = 80

# Resident threads per SM, at least: few enough that each thread has registers for all its loads at once.
RESIDENT = 512

# Output channels of a thread, at most.
MOST_OUTPUTS = 4

# Block shapes worth comparing.
BLOCKS = (Block(32, 2), Block(32, 4), Block(32, 8), Block(64, 8))

# DEFAULT is used for up to FEW_BLOCKS blocks per SM. Beyond that, blocks are larger if registers allow, because every
# block loads the whole filter; LARGE_NARROW is for short rows of outputs.
DEFAULT, FEW_BLOCKS, LARGE, LARGE_NARROW = Block(32, 4), 0.75, Block(64, 8), Block(32, 8)

# Registers of a thread of large blocks, at most: CHANNEL_REGISTERS per output channel, and its window in the rest. With
# more than ALONE_REGISTERS, an SM holds one LARGE block at a time, so a grid with more blocks than SMs has to wait.
LARGE_REGISTERS, CHANNEL_REGISTERS, ALONE_REGISTERS = 48, 6, 40

# Only latency counts up to FEW_OUTPUTS output positions per SM (one block of threads) and FEW_CHANNELS output channels,
# which one thread computes together.
FEW_OUTPUTS, FEW_CHANNELS = 512, 4

# Horizontal stride from which a thread cannot load its pixels as vectors, if windows share no pixel.
APART = 3


@dataclass(frozen=True, slots=True)
class SmallConfig(Config):
    """Block shape of :class:`DirectSmall`."""

    block_x: int = 32  # threads along q
    block_y: int = 4  # threads along p; 32 to 1024 in a block
    out_k: int = 1  # output channels of a thread


class DirectSmall(OneLaunch[SmallConfig]):
    """One thread per output position. It loads all pixels of its window while the block loads the filter."""

    name = "direct_small"
    summary = "for small images: pixels and filter are under way at once, one trip to memory"
    since = "direct_tiled"
    cost = MethodCost(0.05, 0.95, 256, 1)
    look = Mark("olive", "cross")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Count loads, which take most of a thread's time: its output channels share each pixel at no cost."""
        return Work(problem.flops / min(problem.k_per_group, MOST_OUTPUTS), problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.groups != 1 or problem.k_per_group > FEW_CHANNELS:
            return None
        if problem.n * problem.p * problem.q <= FEW_OUTPUTS * facts.cores:
            return Preference(Rank.SMALL, "a small image: pixels and filter are under way at once")
        if problem.stride[0] >= problem.extent_h and problem.stride[1] >= max(problem.extent_w, APART):
            return Preference(Rank.SMALL, "windows share no pixel: there is nothing to keep for a neighbour")
        return None

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return self.config_refusal(problem, _default(problem, facts), facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SmallConfig]:
        """The default first, then other blocks, then one channel per thread."""
        default = _default(problem, facts)
        found = (
            default,
            *(replace(default, block_x=block.x, block_y=block.y) for block in BLOCKS),
            replace(default, out_k=1),
        )
        return self.valid(problem, dict.fromkeys(found), facts)

    def kernel(self, problem: Conv2dProblem, config: SmallConfig) -> Kernel:
        prelude = constants(OUT_K=config.out_k, STAGED_WEIGHTS=True, BLOCK_X=config.block_x, BLOCK_Y=config.block_y)
        return Kernel(prelude, _grid(problem, config), (config.block_x, config.block_y), RESIDENT)

    def config_refusal(self, problem: Conv2dProblem, config: SmallConfig, facts: DeviceFacts) -> Reason | None:
        reason = block_refusal(config.block_x, config.block_y) or staging_refusal(problem) or least_refusal(config)
        if reason is not None:
            return reason
        if (need := _window(problem)) > MOST_WINDOW:
            return Reason(
                "the pixels of a window take {need} registers; {most} are to be had", need=need, most=MOST_WINDOW
            )
        _, rows, planes = _grid(problem, config)
        if max(rows, planes) > MOST_BLOCKS:
            return Reason(
                "a grid of {rows} x {planes} blocks along y and z is too large: an axis has at most {most}",
                rows=rows, planes=planes, most=MOST_BLOCKS,
            )  # fmt: skip
        return None


def _default(problem: Conv2dProblem, facts: DeviceFacts) -> SmallConfig:
    config = SmallConfig(*DEFAULT, even_share(problem.k_per_group, MOST_OUTPUTS))
    registers = _window(problem) + CHANNEL_REGISTERS * config.out_k
    if math.prod(_grid(problem, config)) <= FEW_BLOCKS * facts.cores or registers > LARGE_REGISTERS:
        return config
    if problem.q <= LARGE_NARROW.x:
        return replace(config, block_x=LARGE_NARROW.x, block_y=LARGE_NARROW.y)
    large = replace(config, block_x=LARGE.x, block_y=LARGE.y)
    waits = registers > ALONE_REGISTERS and math.prod(_grid(problem, large)) > facts.cores
    return config if waits else large


def _window(problem: Conv2dProblem) -> int:
    """Registers that hold the pixels of one window."""
    return problem.taps * -(-itemsize(problem.acc_dtype) // 4)


def _grid(problem: Conv2dProblem, config: SmallConfig) -> tuple[int, int, int]:
    planes = problem.n * problem.groups * -(-problem.k_per_group // config.out_k)
    return -(-problem.q // config.block_x), -(-problem.p // config.block_y), planes
