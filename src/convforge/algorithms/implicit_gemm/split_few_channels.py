"""Host side of few_channels.cu for float32: implicit GEMM for 1 to 4 channels on tensor cores, by three products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from convforge.algorithms.contract import Buffers, Plan, Preparation, PreparedFilter
from convforge.algorithms.host.conv import Strides, address
from convforge.algorithms.host.staged import Filter
from convforge.algorithms.implicit_gemm import few_channels, split
from convforge.algorithms.implicit_gemm.few_channels import FewChannelsConfig, OnPatch
from convforge.algorithms.implicit_gemm.split_tiles import IN_FULL, PRODUCTS, REACH, TOP, padded_channels
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Most sums of a lane. Registers also hold twice as many factors as for 16 bits, and two kinds of sums per product.
MOST_SUMS = 64
# An output of fewer products is more exact in float32: a product of halves has a relative error of up to 2^-22.
FEWEST_PRODUCTS = 16
MOST_LOST = 8  # as in split_patch.cuh


@dataclass(frozen=True, slots=True)
class SplitFewChannelsConfig(FewChannelsConfig):
    """Tiles of :class:`ImplicitGemmSplitFewChannels`: a patch is split once it is complete, so there is one."""

    tile_h: int = 8  # rows of outputs that a block computes at once
    fragments: int = 2  # runs of 16 outputs of a row that a warp computes
    warp_n: int = 32  # filters of a warp, a multiple of 16
    patches: int = 1  # always 1


# The last two leave the most room for large filters and wide dilation.
TILES = tuple(SplitFewChannelsConfig(*tile, resident=resident) for tile, resident in (
    ((8, 16, 64, 2, 32), 512), ((16, 16, 64, 2, 64), 384), ((8, 16, 64, 2, 64), 384), ((8, 16, 96, 2, 32), 512),
    ((8, 16, 96, 4, 32), 384), ((16, 16, 32, 4, 32), 384), ((16, 16, 32, 2, 32), 512), ((8, 16, 32, 2, 32), 512),
    ((8, 32, 16, 4, 16), 512), ((4, 16, 64, 2, 32), 512), ((4, 16, 32, 1, 32), 512),
    ((4, 16, 16, 1, 16), 512), ((2, 16, 16, 1, 16), 512),
))  # fmt: skip


class ImplicitGemmSplitFewChannels(OnPatch[SplitFewChannelsConfig]):
    """First layers of float32 on the tensor cores of any GPU since Ampere: three products of halves for one of floats.

    The kernel is that of :class:`ImplicitGemmFewChannels`; blocks also split the pixels that they stage. Numbers are
    split as in :class:`ImplicitGemmSplit`, but all pixels of a tile have one scale, a power of two. So has each filter.
    """

    name = "implicit_gemm_split_few_channels"
    summary = "implicit GEMM of float32 for 1 to 4 channels: tensor cores read a patch of pixels split in two; sm_80"
    since = "implicit_gemm_few_channels"
    cost = MethodCost(1.0, 0.8, 8192, 2)
    look = Mark("moss", "square")
    tiles, parts, filters, macros = TILES, PRODUCTS, 16, ("#define SPLIT",)
    fields, put = split.FILTER_FIELDS, staticmethod(split.put_filters)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """Preferred only where it is faster than multiply-adds although products are padded."""
        why = "few channels: three products of 16 bits on tensor cores for one of float32"
        slower = problem.k < split.FEWEST or self.work_for(problem).flops >= problem.flops
        return None if slower or self.refuses(problem, facts) else Preference(Rank.TENSOR_CORES_OF_WARPS, why)

    def types_refusal(self, problem: Conv2dProblem) -> Reason | None:
        return split.types_refusal(problem, FEWEST_PRODUCTS)

    def ways(self, problem: Conv2dProblem, config: SplitFewChannelsConfig) -> tuple[Way, ...]:
        tiles = Reason(
            "if the pixels under {tile_h} x {tile_w} outputs hold Inf or NaN, or their largest value is 2^{above} "
            "or more or below 2^{below}, or every value of one channel or of one pixel is below 2^{ratio} of the "
            "largest, or more than {most} values are, these outputs are computed by multiply-adds of float32, in the "
            "same launch; zeros do not count. {note} says how many tiles were computed so",
            tile_h=config.tile_h, tile_w=config.tile_w, above=REACH + 1, below=-REACH, ratio=IN_FULL - TOP,
            most=MOST_LOST, note="Filter.note",
        )  # fmt: skip
        return (
            split.way_of_products(), Way("patch", "default", few_channels.words_of_patch(problem, config)),
            Way("plain_tiles", "values", tiles), split.way_of_filters(problem),
        )  # fmt: skip

    def plan(self, problem: Conv2dProblem, config: SplitFewChannelsConfig, runtime: Runtime) -> Plan:
        if config.sums > MOST_SUMS:
            raise ValueError(f"{config}: a lane would have {config.sums} sums; it has room for {MOST_SUMS}")
        if config.patches != 1:
            raise ValueError(f"{config}: a patch is split when all of it is there, so there is one")
        return super().plan(problem, config, runtime)

    def preparation(self, problem: Conv2dProblem, config: SplitFewChannelsConfig, runtime: Runtime) -> Preparation:
        return SplitFewFilters(problem, config, runtime)


class SplitFewFilters(split.SplitFilters):
    """Splits the filters, then writes the halves to the tensor "filters", in the order in which lanes use them."""

    def __init__(
        self, problem: Conv2dProblem, config: SplitFewChannelsConfig, runtime: Runtime, keeps: bool = True
    ) -> None:
        super().__init__(problem, runtime, keeps)
        tap = padded_channels(problem)
        row, finish_split = problem.s * tap, self.finish
        strides = Strides(problem.r * row, 1, row, tap)
        step = few_channels.packing(
            problem, config, runtime,
            lambda buffers: (Filter(address(buffers["halves"]), strides), problem.k * problem.r * row),
        )  # fmt: skip
        self.pieces = {**self.pieces, "filters": few_channels.packed_filters(problem, config)}
        self.steps = (*self.steps, step)

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made, filters = finish_split(buffers, stream), buffers["filters"]
            return replace(made, tensors={**made.tensors, "filters": filters}, nbytes=made.nbytes + filters.nbytes)

        self.finish = finish
        if keeps:
            self.borrow = SplitFewFilters(problem, config, runtime, keeps=False)
