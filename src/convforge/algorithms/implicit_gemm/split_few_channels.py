"""Host side of few_channels.cu for float32: implicit GEMM for 1 to 4 channels on tensor cores, by three products."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Plan, PreparedFilter
from convforge.algorithms.gemm.mma import device_refusal
from convforge.algorithms.host.conv import Strides, address, fill, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.host.resident import compiled
from convforge.algorithms.host.staged import Filter
from convforge.algorithms.implicit_gemm.few_channels import (
    DEPTH,
    PRODUCTS,
    FewChannelsConfig,
    channels_refusal,
    config_refusal,
    kernel_constants,
    launch_of,
    ordered,
    packed_filters,
    packing,
    smallest_refusal,
    steps_of,
    together,
    words_of_patch,
)
from convforge.algorithms.implicit_gemm.split import (
    FEWEST,
    SplitFilters,
    types_refusal,
    way_of_filters,
    way_of_products,
)
from convforge.algorithms.implicit_gemm.split_tiles import IN_FULL, REACH, TOP, padded_channels
from convforge.algorithms.implicit_gemm.split_tiles import PRODUCTS as PARTS
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

NAME = "implicit_gemm_split_few_channels"
# Filters that a load of factors brings: a block has as many at least.
FILTERS = 16
# Sums of a lane: twice as many factors as of 16 bits, and sums of two kinds for each product, are in registers beside.
MOST_SUMS = 64
# An output of fewer products is more exact in float32: each product of halves has an error of up to 2^-22 of itself.
FEWEST_PRODUCTS = 16
MOST_LOST = 8  # of split_patch.cuh

# The fields of configs. The last two leave most room for large filters and wide dilation.
TILES = tuple((*tile, 1, resident) for tile, resident in (
    ((8, 16, 64, 2, 32), 512), ((16, 16, 64, 2, 64), 384), ((8, 16, 64, 2, 64), 384), ((8, 16, 96, 2, 32), 512),
    ((8, 16, 96, 4, 32), 384), ((16, 16, 32, 4, 32), 384), ((16, 16, 32, 2, 32), 512), ((8, 16, 32, 2, 32), 512),
    ((8, 32, 16, 4, 16), 512), ((4, 16, 64, 2, 32), 512), ((4, 16, 32, 1, 32), 512),
    ((4, 16, 16, 1, 16), 512), ((2, 16, 16, 1, 16), 512),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class SplitFewChannelsConfig(FewChannelsConfig):
    """Tiles of :class:`ImplicitGemmSplitFewChannels`: a patch is split when all of it is there, so there is one.

    Attributes
    ----------
    tile_h, tile_w, block_n, fragments, warp_n, patches, resident, run : int
        As of :class:`FewChannelsConfig`.
    """

    tile_h: int = 8
    fragments: int = 2
    warp_n: int = 32
    patches: int = 1


class ImplicitGemmSplitFewChannels(DeviceConvolution[SplitFewChannelsConfig]):
    """First layers of float32 on the tensor cores of any GPU since Ampere: three products of halves for one of floats.

    The kernel of :class:`ImplicitGemmFewChannels`, whose blocks split the pixels that they stage. Three products of
    halves differ from the product of the floats by at most 2^-22 of it. Tensor cores add up 32 products, then threads
    add that sum to a float32. The pixels of a tile have one scale, and each filter has one, powers of two. Outputs
    that see numbers which do not fit into halves are computed by multiply-adds of float32, in the same call, as
    :class:`ImplicitGemmSplit` does.

    References
    ----------
    H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
    theoretical peak performance", International Journal of High Performance Computing Applications 36(4), 2022.
    """

    name = NAME
    summary = "implicit GEMM of float32 for 1 to 4 channels: tensor cores read a patch of pixels split in two; sm_80"
    since = "implicit_gemm_few_channels"
    cost = MethodCost(1.0, 0.8, 8192, 2)
    look = Mark("moss", "square")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """See :class:`Algorithm`. Taps, channels and filters that fill up products count."""
        depth = steps_of(problem) * DEPTH
        filters = -(-problem.k // FILTERS) * FILTERS
        flops = 2 * problem.n * problem.p * problem.q * filters * depth
        return Work(flops * PARTS / PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`. Where what fills up products leaves them ahead of multiply-adds."""
        if self.refuses(problem, facts) is not None or problem.k < FEWEST:
            return None
        if self.work_for(problem).flops >= problem.flops:
            return None
        why = "few channels: three products of 16 bits on tensor cores for one of float32"
        return Preference(Rank.TENSOR_CORES_OF_WARPS, why)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """See :class:`Algorithm`."""
        return (
            types_refusal(problem, FEWEST_PRODUCTS) or channels_refusal(problem) or device_refusal(facts)
            or smallest_refusal(problem, facts)
        )  # fmt: skip

    def ways(self, problem: Conv2dProblem, config: SplitFewChannelsConfig) -> tuple[Way, ...]:
        """See :class:`Algorithm`."""
        tiles = Reason(
            "if the pixels that {tile_h} x {tile_w} outputs see hold Inf or NaN, or their largest value is 2^{above} "
            "or more or below 2^{below}, or every value of one channel or of one pixel is below 2^{ratio} of the "
            "largest, or more than {most} values are, these outputs are computed by multiply-adds of float32, in the "
            "same launch; zeros do not count. {note} says how many tiles were computed so",
            tile_h=config.tile_h, tile_w=config.tile_w, above=REACH + 1, below=-REACH, ratio=IN_FULL - TOP,
            most=MOST_LOST, note="Filter.note",
        )  # fmt: skip
        return (
            way_of_products(), Way("patch", "default", words_of_patch(problem, config)),
            Way("plain_tiles", "values", tiles), way_of_filters(problem),
        )  # fmt: skip

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SplitFewChannelsConfig]:
        """See :class:`Algorithm`. The fastest by a model of instructions first."""
        return ordered([SplitFewChannelsConfig(*tile) for tile in TILES], problem, facts)

    def plan(self, problem: Conv2dProblem, config: SplitFewChannelsConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        if config.sums > MOST_SUMS:
            raise ValueError(f"{config}: a lane would have {config.sums} sums; it has room for {MOST_SUMS}")
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        if config.patches != 1:
            raise ValueError(f"{config}: a patch is split when all of it is there, so there is one")
        struct = with_conv(
            "FewChannels", problem, filters=ctypes.c_void_p, together=ctypes.c_int, scales=ctypes.c_void_p,
            w_strides=Strides, redone=ctypes.c_void_p,
        )  # fmt: skip
        own = ("#define SPLIT", f"#define implicit_gemm_few_channels {NAME}")
        lines = (*kernel_constants(problem, config, "float16"), *own)
        source = KernelSource("algorithms/implicit_gemm/few_channels.cu", NAME, lines, struct, "FewChannels")
        kernel = compiled(runtime, source, 32 * config.warps, config.resident)

        def arguments(buffers: Buffers) -> Any:
            filters = buffers["w"].tensors
            args = struct()
            fill(args.conv, problem, buffers)
            args.filters, args.scales = address(filters["filters"]), address(filters["scales"])
            args.redone = address(filters["redone"])
            args.w_strides = Strides(*(step // filters["w"].itemsize for step in filters["w"].strides))
            args.together = together(problem, args.conv, config)
            return args

        launch = Launch(launch_of(NAME, kernel, problem, config, runtime), kernel, arguments, runtime)
        return Plan(self, problem, config, runtime, steps=[launch], prepare=SplitFewFilters(problem, config, runtime))


class SplitFewFilters(SplitFilters):
    """Splits the filters, then writes their halves in the order in which lanes multiply them: its tensor "filters"."""

    def __init__(
        self, problem: Conv2dProblem, config: SplitFewChannelsConfig, runtime: Runtime, keeps: bool = True
    ) -> None:
        super().__init__(problem, runtime, keeps)
        tap = padded_channels(problem)
        row, split = problem.s * tap, self.finish
        strides = Strides(problem.r * row, 1, row, tap)
        step = packing(
            problem, config, runtime,
            lambda buffers: (Filter(address(buffers["halves"]), strides), problem.k * problem.r * row),
        )  # fmt: skip
        self.pieces = {**self.pieces, "filters": packed_filters(problem, config)}
        self.steps = (*self.steps, step)

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made, filters = split(buffers, stream), buffers["filters"]
            return replace(made, tensors={**made.tensors, "filters": filters}, nbytes=made.nbytes + filters.nbytes)

        self.finish = finish
        if keeps:
            self.borrow = SplitFewFilters(problem, config, runtime, keeps=False)
