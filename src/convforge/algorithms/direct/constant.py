"""Host side of constant.cu: blocks, and the filter's way to constant memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Plan
from convforge.algorithms.direct.blocks import block_refusal, grid, plane_work
from convforge.algorithms.direct.naive import BLOCKS
from convforge.algorithms.host.constants import CONSTANT_BYTES, ConstantWeights, fits_constant_memory, weight_bytes
from convforge.algorithms.host.conv import conv_constants, fill, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.host.resident import compiled
from convforge.algorithms.traits import Mark, MethodCost, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize


@dataclass(frozen=True, slots=True)
class ConstantConfig(Config):
    """Block of :class:`DirectConstant`.

    Attributes
    ----------
    block_x, block_y : int
        Threads along q and along p; 32 to 1024 together.
    resident : int
        Threads that a multiprocessor shall hold; see :func:`compiled`.
    """

    block_x: int = 32
    block_y: int = 4
    resident: int = 2048


class DirectConstant(DeviceConvolution[ConstantConfig]):
    """One thread an output, the filter in constant memory."""

    name = "direct_constant"
    summary = "one thread an output, the filter in constant memory"
    since = "direct_naive"
    cost = MethodCost(0.11, 0.45, 1024, 2)
    look = Mark("indigo", "circle")

    def work_for(self, problem: Conv2dProblem) -> Work:
        return plane_work(problem)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if fits_constant_memory(problem):
            return super().refuses(problem, facts)
        return Reason(
            "the filter's {count} weights take {need} bytes as {dtype}; constant memory holds {most}",
            count=problem.k * problem.taps,
            need=weight_bytes(problem),
            dtype=problem.acc_dtype,
            most=CONSTANT_BYTES,
        )

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ConstantConfig]:
        """The default, then other shapes of block."""
        resident = 2048 if itemsize(problem.acc_dtype) <= 4 and not problem.needs_wide_index else 1024
        return [ConstantConfig(*shape, resident) for shape in BLOCKS]

    def plan(self, problem: Conv2dProblem, config: ConstantConfig, runtime: Runtime) -> Plan:
        reason = block_refusal(config.block_x, config.block_y) or self.refuses(problem, runtime.facts)
        if reason is not None:
            raise ValueError(f"{config}: {reason}")
        struct = with_conv("Constant", problem)
        source = KernelSource(
            "algorithms/direct/constant.cu", "direct_constant", conv_constants(problem), struct, "Constant"
        )
        block = {"BLOCK_X": config.block_x, "BLOCK_Y": config.block_y}
        kernel = compiled(runtime, source, math.prod(block.values()), config.resident, **block)
        weights = ConstantWeights(problem, runtime, kernel)
        blocks = grid(problem, config.block_y, config.block_x, problem.n * problem.k)
        info = runtime.describe(kernel, LaunchInfo("direct_constant", blocks, (config.block_x, config.block_y)))

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            fill(args.conv, problem, buffers)
            return args

        return Plan(self, problem, config, runtime, steps=[weights.step(info, arguments)], prepare=weights)
