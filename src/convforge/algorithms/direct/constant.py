"""Host side of constant.cu: block shapes, and the copy of the filter to constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convforge.algorithms.contract import Config
from convforge.algorithms.direct.blocks import block_refusal, grid, plane_work
from convforge.algorithms.direct.naive import BLOCKS
from convforge.algorithms.host.constants import CONSTANT_BYTES, ConstantWeights, fits_constant_memory, weight_bytes
from convforge.algorithms.host.on_device import Kernel, OneLaunch
from convforge.algorithms.traits import Mark, MethodCost
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize


@dataclass(frozen=True, slots=True)
class ConstantConfig(Config):
    """Block shape of :class:`DirectConstant`."""

    block_x: int = 32  # threads along q
    block_y: int = 4  # threads along p; 32 to 1024 in a block
    resident: int = 2048  # resident threads per SM, at least; see :func:`compiled`


class DirectConstant(OneLaunch[ConstantConfig]):
    """One thread per output; the filter is in constant memory."""

    name = "direct_constant"
    summary = "one thread an output, the filter in constant memory"
    since = "direct_naive"
    has_filter = False
    cost = MethodCost(0.11, 0.45, 1024, 2)
    look = Mark("indigo", "circle")
    work_for = plane_work

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if fits_constant_memory(problem):
            return super().refuses(problem, facts)
        return Reason(
            "the filter's {count} weights take {need} bytes as {dtype}; constant memory holds {most}",
            count=problem.k * problem.taps, need=weight_bytes(problem), dtype=problem.acc_dtype,
            most=CONSTANT_BYTES,
        )  # fmt: skip

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ConstantConfig]:
        """The default first, then other block shapes."""
        resident = 2048 if itemsize(problem.acc_dtype) <= 4 and not problem.needs_wide_index else 1024
        return [ConstantConfig(*shape, resident) for shape in BLOCKS]

    def config_refusal(self, problem: Conv2dProblem, config: ConstantConfig, facts: DeviceFacts) -> Reason | None:
        return block_refusal(config.block_x, config.block_y) or self.refuses(problem, facts)

    def kernel(self, problem: Conv2dProblem, config: ConstantConfig) -> Kernel:
        return Kernel(
            constants(BLOCK_X=config.block_x, BLOCK_Y=config.block_y),
            grid(problem, config.block_y, config.block_x),
            (config.block_x, config.block_y),
            config.resident,
            weights=ConstantWeights,
            pdl=False,
        )
