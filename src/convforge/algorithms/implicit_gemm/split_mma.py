"""Host side of split_mma.cu: implicit GEMM of floats on the tensor cores of any GPU since Ampere, by three products."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.gemm.mma import PRODUCTS, GemmMmaConfig, device_refusal, tiling
from convforge.algorithms.gemm.product import Tiling
from convforge.algorithms.host.conv import address, conv_constants, fill, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution, renamed
from convforge.algorithms.host.resident import with_occupancy_cap
from convforge.algorithms.implicit_gemm import split, stages
from convforge.algorithms.implicit_gemm.mma import store_width
from convforge.algorithms.implicit_gemm.split_tiles import PRODUCTS as PARTS
from convforge.algorithms.implicit_gemm.split_tiles import padded_channels
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Channels of a step; most sums of a lane, because each has a bit in the kernel.
BLOCK_K, MOST_SUMS = 32, 64


@dataclass(frozen=True, slots=True)
class SplitMmaConfig(Config):
    """Tiles of :class:`ImplicitGemmSplitMma`."""

    block_m: int = 128  # output pixels of a block, a power of 2, at least 16
    block_n: int = 64  # filters of a block, a power of 2, at least 16
    warp_m: int = 64  # output pixels of a warp, a multiple of 16
    warp_n: int = 32  # filters of a warp, a multiple of 16
    stages: int = 4  # tiles of each operand in shared memory
    split_k: int = 1  # blocks that share the channels of a tile; a last kernel adds up their sums


# The most promising for many pixels and filters first.
TILES = tuple(starmap(SplitMmaConfig, (
    (128, 128, 64, 32, 4), (128, 64, 64, 32, 4), (128, 64, 64, 32, 3), (64, 128, 32, 64, 3), (64, 64, 32, 32, 4),
    (64, 32, 32, 16, 4), (32, 64, 16, 32, 4), (32, 32, 16, 16, 4),
)))  # fmt: skip


class ImplicitGemmSplitMma(DeviceConvolution[SplitMmaConfig]):
    """Implicit GEMM of float32 on the tensor cores of any GPU since Ampere: three products of halves for one of floats.

    Numbers are split as in :class:`ImplicitGemmSplit`, but each pixel has a scale for every 64 channels.
    """

    name = "implicit_gemm_split_mma"
    summary = "implicit GEMM of float32 on tensor cores, each number split into two of 16 bits beforehand; sm_80"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 16384, 3)
    look = Mark("moss", "diamond")

    def work_for(self, problem: Conv2dProblem) -> Work:
        return Work(problem.flops * PARTS / PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        few = min(problem.c_per_group, problem.k_per_group) < split.FEWEST or split.problem_refusal(problem)
        return None if few else Preference(Rank.TENSOR_CORES_OF_WARPS, split.WHY)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return split.problem_refusal(problem) or device_refusal(facts)

    def ways(self, problem: Conv2dProblem, config: SplitMmaConfig) -> tuple[Way, ...]:
        return *split.ways_of_split(problem, split_first=True), *stages.ways_of_shares(config.split_k)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SplitMmaConfig]:
        return stages.ordered_with_shares(
            {config: tiles_of(config) for config in TILES}, problem, facts, lambda config: spans_of(problem),
            2, lambda config, count: replace(config, split_k=count),
        )  # fmt: skip

    def plan(self, problem: Conv2dProblem, config: SplitMmaConfig, runtime: Runtime) -> Plan:
        shape = tiles_of(config)
        if not stages.can_share(spans := spans_of(problem), config.split_k):
            raise ValueError(f"{config}: {spans} steps of a tap are not shared out among {config.split_k} blocks")
        own = problem if config.split_k == 1 else stages.problem_of_shares(problem)
        # With several groups, each group begins with a new scale.
        of_group = problem.c if problem.groups == 1 else -(-problem.c_per_group // stages.SIDE) * stages.SIDE
        loaded = stages.rows_problem(problem, of_group)
        rows = stages.SplitPixels(problem, loaded, runtime)
        around = stages.Stages(problem, rows, config.split_k, runtime)
        struct = with_conv(
            "SplitMma", own, **dict.fromkeys(("pixels", "filters", "downs"), ctypes.c_void_p), **split.FILTER_FIELDS,
            **dict.fromkeys(("height", "width", "pairs"), ctypes.c_int),
        )  # fmt: skip
        top, _, left, _ = problem.padding
        outside = problem.padding_mode != "zeros"  # the rows include the border
        numbers = {
            "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, **dict(shape.constants), "SPLIT_K": config.split_k,
            "FILTER_PITCH": padded_channels(problem), "GROUP_PITCH": of_group, "PIXEL_PITCH": rows.pitch,
            "SLICES": rows.slices, "ROWS_TOP": outside * top, "ROWS_LEFT": outside * left,
        }  # fmt: skip
        lines = (*conv_constants(own), *constants(**numbers), *renamed("implicit_gemm_split_mma", self.name))
        path = "algorithms/implicit_gemm/split_mma.cu"
        kernel = runtime.compile(KernelSource(path, self.name, lines, struct, "SplitMma"))
        tiles = shape.tiles(problem.n * problem.p * problem.q, problem.k_per_group, problem.groups) * config.split_k
        info = LaunchInfo(self.name, (tiles,), shape.threads, shape.shared_bytes, pdl=True)

        def arguments(buffers: Buffers) -> Any:
            args, buffers = struct(), around.buffers(buffers)
            fill(args.conv, own, buffers)
            args.pixels, args.downs = buffers["pixels"].address, buffers["downs"].address
            args.filters = address(buffers["w"].tensors["halves"])
            split.put_filters(args, buffers)
            args.height, args.width = loaded.h, loaded.w
            args.pairs = store_width(own, args.conv, config.warp_n) > 1
            return args

        launch = Launch(with_occupancy_cap(runtime, kernel, info), kernel, arguments, runtime)
        return around.plan(self, problem, config, launch, split.SplitFilters(problem, runtime))


def spans_of(problem: Conv2dProblem) -> int:
    """Steps of BLOCK_K channels for a tap."""
    return -(-padded_channels(problem) // BLOCK_K)


def tiles_of(config: SplitMmaConfig) -> Tiling:
    """The block's tile, threads, shared memory and constants: two tiles for each operand, and scales.

    Raises ValueError if the warps of a config cannot divide the tile.
    """
    shape = tiling(GemmMmaConfig(config.block_m, config.block_n, BLOCK_K, config.warp_m, config.warp_n, config.stages))
    if (sums := config.warp_m * config.warp_n // 32) > MOST_SUMS:
        raise ValueError(f"{config}: a lane would have {sums} sums; it has bits for {MOST_SUMS}")
    return replace(shape, shared_bytes=2 * shape.shared_bytes + config.stages * -(-config.block_m // 32) * 128)
