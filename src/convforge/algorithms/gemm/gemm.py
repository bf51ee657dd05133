"""Host side of the matrix products on the CPU. The prepared "filter" of a plan is B itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.host.widened import takes_16_bits
from convforge.algorithms.traits import FASTEST, Mark, MethodCost, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import GemmProblem
from convforge.problem.types import is_integer, itemsize


def operand_b(b: Any, stream: Any = None) -> PreparedFilter:
    """Pass B as a prepared filter, without a copy."""
    return PreparedFilter({"b": b}, 0)


def _matrices(problem: GemmProblem, buffers: Buffers) -> tuple[Any, Any]:
    """Views of A (M, K) and B (K, N)."""
    a, b = buffers["a"], buffers["b"].tensors["b"]
    return (a.T if problem.transpose_a else a), (b.T if problem.transpose_b else b)


@takes_16_bits
class GemmLoops(Algorithm[GemmProblem, Config]):
    name = "gemm_loops"
    summary = "three loops, a row of C at a time"
    operation = "gemm"
    cost = MethodCost(0.02, 0.1, 1, 1)
    look = Mark("purple", "square")
    preference = Preference(Rank.THIRD, FASTEST)

    def plan(self, problem: GemmProblem, config: Config, runtime: Runtime) -> Plan:
        from convforge.algorithms.gemm import cpu

        kernel = runtime.compile(cpu.loops)
        info = LaunchInfo("gemm_loops", (problem.m,), (block_of_items(problem.m, problem.flops, runtime.facts),))

        def run(buffers: Buffers, stream: Any) -> None:
            runtime.launch(kernel, info, (*_matrices(problem, buffers), buffers["c"]), stream)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=operand_b)


@dataclass(frozen=True, slots=True)
class BlockedConfig(Config):
    """Tile of :class:`GemmBlocked`. The block of B, `tile_k` by `tile_n`, must fit the L2 cache."""

    tile_m: int = 64  # rows of C
    tile_n: int = 512  # columns of C
    tile_k: int = 128  # length of a pass along K


@takes_16_bits
class GemmBlocked(Algorithm[GemmProblem, BlockedConfig]):
    name = "gemm_blocked"
    summary = "blocks of B packed in the cache, vectorised along the row, threads"
    operation = "gemm"
    since = "gemm_loops"
    cost = MethodCost(0.30, 0.4, 1, 1)
    look = Mark("amber", "triangle-up")
    preference = Preference(Rank.SECOND, FASTEST)

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[BlockedConfig]:
        tiles = ((64, 512, 128), (32, 512, 128), (64, 1024, 64), (128, 256, 256), (16, 512, 128))
        # The tallest tiles that give every core an item come first.
        return sorted(starmap(BlockedConfig, tiles), key=lambda tile: -(-problem.m // tile.tile_m) < facts.cores)

    def plan(self, problem: GemmProblem, config: BlockedConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.gemm import cpu

        kernel = runtime.compile(cpu.blocked)
        items = -(-problem.m // config.tile_m)
        scratch = (config.tile_k * config.tile_n + config.tile_m * config.tile_n) * itemsize(problem.acc_dtype)
        block = block_of_items(items, problem.flops, runtime.facts)
        info = LaunchInfo("gemm_blocked", (items,), (block,), scratch_bytes=scratch)
        tile = (config.tile_m, config.tile_n, config.tile_k)

        def run(buffers: Buffers, stream: Any) -> None:
            runtime.launch(kernel, info, (*_matrices(problem, buffers), buffers["c"], *tile), stream)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=operand_b)


@takes_16_bits
class GemmBlas(Algorithm[GemmProblem, Config]):
    name = "gemm_blas"
    summary = "NumPy's BLAS"
    operation = "gemm"
    since = "gemm_blocked"
    cost = MethodCost(0.78, 0.5, 1, 1)
    look = Mark("blue", "triangle-down")
    preference = Preference(Rank.FIRST, FASTEST)

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if is_integer(problem.dtype):
            return Reason("a BLAS multiplies floats, not {dtype}", dtype=problem.dtype)
        return None

    def plan(self, problem: GemmProblem, config: Config, runtime: Runtime) -> Plan:
        info = LaunchInfo("numpy.matmul", (1,), (1,))

        def run(buffers: Buffers, stream: Any) -> None:
            # A BLAS pads tiles with zeros. Inf times a padding zero is invalid, but reaches no element of C.
            with np.errstate(invalid="ignore"):
                np.matmul(*_matrices(problem, buffers), out=buffers["c"])

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=operand_b)

    def versions(self) -> dict[str, str]:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return {"numpy": np.__version__, "blas": f"{blas['name']} {blas['version']}"}
