"""Host side of small.cu: images so small that only latency counts."""

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

# Registers of a thread for its window: a 5 x 5 filter of three channels.
MOST_WINDOW = 80

# Threads that an SM must hold, so that each has registers for all its loads at once.
RESIDENT = 512

# Output channels of a thread.
MOST_OUTPUTS = 4

# Columns and rows of threads that are worth comparing.
BLOCKS = (Block(32, 2), Block(32, 4), Block(32, 8), Block(64, 8))

# The default, while at most so many blocks come to an SM. Every block brings the whole filter, so beyond
# that they are large, where registers allow: narrower where a row of outputs is short.
DEFAULT, FEW_BLOCKS, LARGE, LARGE_NARROW = Block(32, 4), 0.75, Block(64, 8), Block(32, 8)

# Of a thread of large blocks: the pixels of its window, and what each output channel takes. With more than ALONE of
# them an SM holds one of the largest at a time, and a grid of more blocks than SMs has to wait.
LARGE_REGISTERS, CHANNEL_REGISTERS, ALONE_REGISTERS = 48, 6, 40

# Outputs of a plane for each SM, a block of threads, up to which only latency counts,
# and output channels: a thread has them all.
FEW_OUTPUTS, FEW_CHANNELS = 512, 4

# Stride from which a thread cannot load neighbouring pixels as vectors, if windows share no pixel.
APART = 3


@dataclass(frozen=True, slots=True)
class SmallConfig(Config):
    """Block of :class:`DirectSmall`."""

    block_x: int = 32  # threads along q
    block_y: int = 4  # threads along p; 32 to 1024 in a block
    out_k: int = 1  # output channels of a thread


class DirectSmall(OneLaunch[SmallConfig]):
    """A thread an output position; all pixels of its window are loaded while the filter is."""

    name = "direct_small"
    summary = "for small pictures: pixels and filter are under way at once, one trip to memory"
    since = "direct_tiled"
    cost = MethodCost(0.05, 0.95, 256, 1)
    look = Mark("olive", "cross")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Loads take a thread's time; output channels share a pixel at no cost."""
        return Work(problem.flops / min(problem.k_per_group, MOST_OUTPUTS), problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.groups != 1 or problem.k_per_group > FEW_CHANNELS:
            return None
        if problem.n * problem.p * problem.q <= FEW_OUTPUTS * facts.cores:
            return Preference(Rank.SMALL, "a small picture: pixels and filter are under way at once")
        if problem.stride[0] >= problem.extent_h and problem.stride[1] >= max(problem.extent_w, APART):
            return Preference(Rank.SMALL, "windows share no pixel: there is nothing to keep for a neighbour")
        return None

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return self.config_refusal(problem, _default(problem, facts), facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SmallConfig]:
        """The default, other blocks, then one channel a thread."""
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
    """Registers for the pixels of a window."""
    return problem.taps * -(-itemsize(problem.acc_dtype) // 4)


def _grid(problem: Conv2dProblem, config: SmallConfig) -> tuple[int, int, int]:
    planes = problem.n * problem.groups * -(-problem.k_per_group // config.out_k)
    return -(-problem.q // config.block_x), -(-problem.p // config.block_y), planes
