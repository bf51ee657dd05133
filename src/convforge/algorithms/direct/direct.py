"""Host side of the direct method: sizes, tiles and launches. cpu.py has the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import geometry, strip, tap_offsets, tile_dtype
from convforge.algorithms.host.views import view
from convforge.algorithms.host.weights import correlation_filter
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize


@takes_bfloat16
class DirectNaive(Algorithm[Conv2dProblem, Config]):
    """Seven loops, one output at a time; the position in x of every factor comes from a table."""

    name = "direct_naive"
    summary = "seven loops, one output at a time"
    operation = "conv2d"
    cost = MethodCost(0.004, 0.03, 1, 1)
    look = Mark("sky", "square")
    preference = Preference(Rank.GENERAL_LOOPS, GENERAL)

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> Plan:
        from convforge.algorithms.direct import cpu

        g = geometry(problem)
        values = np.empty(0, values_dtype(problem))
        items = problem.n * problem.k * problem.p
        info = LaunchInfo("direct_naive", (items,), (block_of_items(items, problem.flops, runtime.facts),))
        kernel = runtime.compile(cpu.naive)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            args = (x, buffers["w"].tensors["w"], out, g, epilogue_arguments(problem, buffers), values)
            runtime.launch(kernel, info, args, stream)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = correlation_filter(problem, w)
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=prepare)


@dataclass(frozen=True, slots=True)
class RowsConfig(Config):
    """Tile of :class:`DirectRows`."""

    tile_p: int = 8  # output rows of a strip
    tile_c: int = 1  # input channels in the tile at a time
    tile_k: int = 1  # output channels summed at a time


@takes_bfloat16
class DirectRows(Algorithm[Conv2dProblem, RowsConfig]):
    """Strips of output rows, computed from a tile that stays in cache, vectorised along rows, on all cores."""

    name = "direct_rows"
    summary = "strips of rows from a cached tile, vectorised along the row, threads"
    operation = "conv2d"
    since = "direct_naive"
    cost = MethodCost(0.30, 0.4, 1, 1)
    look = Mark("blue", "circle")
    preference = Preference(Rank.DIRECT, "few channels or few outputs: bound by memory, read once from a cached tile")

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[RowsConfig]:
        """The default has the tallest strip with a tile of all channels that fits L2."""
        found = []
        for tile_p in (32, 16, 8, 4, 2, 1):
            if tile_p > 1 and (tile_p >= 2 * problem.p or not self._busy(problem, tile_p, facts)):
                continue
            plane = strip(problem, tile_p, 1).plane * tile_dtype(problem).itemsize
            if plane * problem.c_per_group <= facts.l2_bytes:
                found.append(RowsConfig(tile_p, problem.c_per_group, 1))
        # If not even one row of outputs fits, block channels and outputs, each block in half of L2.
        plane = strip(problem, 1, 1).plane * tile_dtype(problem).itemsize
        row = problem.q * itemsize(problem.acc_dtype)
        tile_c = max(1, min(problem.c_per_group, facts.l2_bytes // 2 // plane))
        tile_k = max(1, min(problem.k_per_group, facts.l2_bytes // 2 // row))
        if tile_c < problem.c_per_group or not found:
            found.append(RowsConfig(1, tile_c, tile_k))
        return found

    def plan(self, problem: Conv2dProblem, config: RowsConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.direct import cpu

        g, tile = geometry(problem), strip(problem, config.tile_p, min(config.tile_c, problem.c_per_group))
        whole = tile.tile_c == problem.c_per_group
        sum_shape = (1, 1) if whole else (config.tile_k, config.tile_p)
        values, like = np.empty(0, values_dtype(problem)), np.empty(0, tile_dtype(problem))
        offsets = tap_offsets(problem, tile)
        items = problem.n * problem.groups * -(-problem.p // config.tile_p)
        sums = sum_shape[0] * sum_shape[1] * problem.q * itemsize(problem.acc_dtype)
        scratch = tile.tile_c * tile.plane * like.itemsize + sums
        block = block_of_items(items, problem.flops, runtime.facts)
        info = LaunchInfo("direct_rows", (items,), (block,), scratch_bytes=scratch)
        kernel = runtime.compile(cpu.rows)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            end = epilogue_arguments(problem, buffers)
            args = (x, buffers["w"].tensors["w"], out, g, end, values, tile, sum_shape, like, offsets)
            runtime.launch(kernel, info, args, stream)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = correlation_filter(problem, w).reshape(problem.k, problem.taps)
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=prepare)

    @staticmethod
    def _busy(problem: Conv2dProblem, tile_p: int, facts: DeviceFacts) -> bool:
        """True if strips of this height are enough to keep all cores busy."""
        return problem.n * problem.groups * -(-problem.p // tile_p) >= facts.cores
