"""Host side of naive.cu: block shapes, and the outputs of each thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convforge.algorithms.contract import Config
from convforge.algorithms.direct.blocks import block_refusal, grid, plane_work
from convforge.algorithms.host.constants import GlobalWeights
from convforge.algorithms.host.on_device import Kernel, OneLaunch
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

PARTITIONS = ("pixel", "block", "row", "column")

# Block shapes worth comparing, as threads along q and p; the default first.
BLOCKS = (
    (32, 4), (64, 2), (32, 8), (8, 8), (16, 16), (24, 24), (32, 32), (32, 1), (64, 1), (128, 1), (256, 1), (1024, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NaiveConfig(Config):
    """Block shape of :class:`DirectNaive`, and the outputs of a thread."""

    block_x: int = 32  # threads along q
    block_y: int = 4  # threads along p; 32 to 1024 in a block
    partition: str = "pixel"  # outputs of a thread: pixel (one), block (two by four), row (a whole row) or column
    resident: int = 1280  # resident threads per SM, at least; see :func:`compiled`


class DirectNaive(OneLaunch[NaiveConfig]):
    """One thread per output, straight from the definition; all operands in global memory."""

    name = "direct_naive"
    summary = "one thread an output, all from global memory"
    has_filter = False
    cost = MethodCost(0.10, 0.4, 1024, 2)
    look = Mark("sky", "square")
    preference = Preference(Rank.GENERAL_LOOPS, GENERAL)
    work_for = plane_work

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[NaiveConfig]:
        """The default first, then other block shapes, then other partitions."""
        return [NaiveConfig(*shape) for shape in BLOCKS] + [NaiveConfig(32, 4, part) for part in PARTITIONS[1:]]

    def config_refusal(self, problem: Conv2dProblem, config: NaiveConfig, facts: DeviceFacts) -> Reason | None:
        return block_refusal(config.block_x, config.block_y)

    def kernel(self, problem: Conv2dProblem, config: NaiveConfig) -> Kernel:
        if config.partition not in PARTITIONS:
            raise ValueError(f"partition={config.partition!r} must be one of {', '.join(PARTITIONS)}")
        outputs = {"pixel": (1, 1), "block": (2, 4), "row": (1, problem.q), "column": (problem.p, 1)}
        per_p, per_q = outputs[config.partition]
        return Kernel(
            constants(BLOCK_X=config.block_x, BLOCK_Y=config.block_y),
            grid(problem, config.block_y * per_p, config.block_x * per_q),
            (config.block_x, config.block_y),
            config.resident,
            fields={"per_p": per_p, "per_q": per_q},
            weights=GlobalWeights,
            pdl=False,
        )
