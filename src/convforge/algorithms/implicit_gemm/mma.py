"""Host side of mma.cu: implicit GEMM on the tensor cores of any GPU since Ampere, of 16-bit types and TF32."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import starmap
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, Launch, Plan, Preparation
from convforge.algorithms.gemm import mma
from convforge.algorithms.gemm.mma import MOST_SUMS, PRODUCTS, TYPES, GemmMmaConfig, device_refusal, tiling
from convforge.algorithms.gemm.mma import SIZE as TYPE_BYTES
from convforge.algorithms.host.amax import amax_fields, put_amax
from convforge.algorithms.host.conv import conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution, renamed, require, types_refusal
from convforge.algorithms.host.pack_channels import ChannelPacker
from convforge.algorithms.host.resident import as_many_as_run, is_shared_well, with_occupancy_cap
from convforge.algorithms.implicit_gemm import stages
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

PIECE_BYTES = 16  # bytes of channels that one copy loads
EIGHT = 8  # outputs of one store of a lane

# Fills further fields of a struct from the buffers of a call.
Put = Callable[[Any, Buffers], None]


@dataclass(frozen=True, slots=True)
class ImplicitMmaConfig(GemmMmaConfig):
    """Tiles of :class:`ImplicitGemmMma`: rows are output pixels, columns are filters, in multiples of a warp's."""

    split_k: int = 1  # blocks that share the steps of a tile; a last kernel adds up their sums
    # Another kernel first writes x to a workspace, as rows of channels that can be copied 16 bytes at a time. It works
    # for any layout, border, number of channels and alignment.
    repacked: bool = False
    # True: start as many blocks as run at once, and let each compute tile after tile, if this divides the tiles evenly;
    # else start one block for each tile.
    persistent: bool = True
    # Most contiguous outputs that a store writes in NCHW, used if the number divides P x Q. A power of 2.
    run: int = 8


# The tiles of a product, tiles for few filters, and sizes with which the last round of blocks keeps most of a device
# busy.
TILES = tuple(ImplicitMmaConfig(**asdict(tile)) for tile in (
    *mma.TILES,
    *starmap(GemmMmaConfig, (
        (256, 64, 32, 64, 64, 3), (96, 128, 64, 48, 64, 3), (192, 128, 32, 48, 64, 4), (192, 32, 64, 48, 32, 3),
        (96, 32, 64, 48, 16, 4),
    )),
))  # fmt: skip


class ImplicitGemmMma(DeviceConvolution[ImplicitMmaConfig]):
    """Out (NPQ x K) = columns (NPQ x RSC) times filters, on tensor cores; the columns are gathered by cp.async.

    It supports any stride, border, dilation, groups, layout and number of channels. Where the channels of x are not
    contiguous and aligned to 16 bytes (NCHW, or C no multiple of 8), another kernel first writes x in this form. Or
    threads load single channels, which is slower except in tiny layers. A plan that copies 16 bytes at a time passes
    unaligned arrays to a plan that first writes x; it is compiled when it is first needed. See PTX ISA, mma.m16n8k16.
    """

    name = "implicit_gemm_mma"
    summary = "implicit GEMM of 16-bit types on tensor cores, whose tiles are filled by cp.async; sm_80"
    since = "implicit_gemm"
    cost = MethodCost(1.0, 0.8, 8192, 2)
    look = Mark("teal", "circle")

    types: ClassVar[tuple[str, ...]] = TYPES
    products: ClassVar[float] = PRODUCTS  # products in the time of one float32 multiply-add
    why: ClassVar[str] = "16 bits and many channels: tensor cores, whose factors warps hold"
    rank: ClassVar[Rank] = Rank.TENSOR_CORES_OF_WARPS
    lines: ClassVar[tuple[str, ...]] = ()  # further source lines

    def work_for(self, problem: Conv2dProblem) -> Work:
        return Work(problem.flops * stages.passes_of(problem) / self.products, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        many = min(problem.c_per_group, problem.k_per_group) >= 16 and problem.x_dtype in self.types
        return Preference(self.rank, self.why) if many else None

    def most_sums(self, facts: DeviceFacts) -> int:
        """Most sums of a lane, for which registers are left by its other numbers."""
        return MOST_SUMS

    def fields(self, problem: Conv2dProblem, loaded: Conv2dProblem) -> tuple[Mapping[str, Any], Put]:
        """Further fields of the struct, with types, and the function that fills them for a call."""
        return {}, lambda args, buffers: None

    def prepared(self, problem: Conv2dProblem, loaded: Conv2dProblem, runtime: Runtime) -> Preparation:
        """The preparation of the weights; `loaded` is the problem of the pixels that the kernel loads."""
        return ChannelPacker(problem, runtime, whole=piece_of(problem))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return types_refusal(problem, self.types) or device_refusal(facts)

    def ways(self, problem: Conv2dProblem, config: ImplicitMmaConfig) -> tuple[Way, ...]:
        why = why_one_by_one(problem)
        x: tuple[Way, ...] = (stages.way_of_unaligned_x(),)
        piece = piece_of(problem)
        words = Reason("threads copy {count} channels of a pixel at once, ahead of the products", count=piece)
        if config.repacked:
            x = (stages.way_of_rows(why_rows(problem)),)
        elif why is not None:
            x, words = (), Reason("threads load channels one by one: {why}", why=why)
        return Way("tensor_cores", "default", words), *x, *stages.ways_of_shares(config.split_k)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[ImplicitMmaConfig]:
        """Valid configs, the shortest estimated time first.

        If x cannot be copied directly, configs that first write x as rows come first, because that pays except in tiny
        layers; then the best of the others.
        """
        size = itemsize(problem.x_dtype)
        narrow = [tile for tile in TILES if tile.warp_m * tile.warp_n <= 32 * self.most_sums(facts)]
        run = math.gcd(problem.p * problem.q, EIGHT) if problem.out_layout == "NCHW" else EIGHT
        every = [replace(config, block_k=config.block_k * TYPE_BYTES // size, run=run) for config in narrow]
        ordered = stages.ordered_with_shares(
            {config: tiling(config, size, k_major=True) for config in every}, problem, facts,
            lambda config: steps_of(problem, config.block_k), 4,
            lambda config, count: replace(config, split_k=count),
        )  # fmt: skip
        ordered.insert(1, replace(ordered[0], persistent=False))
        if not rows_pay(problem):
            return ordered
        return [*(replace(config, repacked=True) for config in ordered), ordered[0]]

    def plan(self, problem: Conv2dProblem, config: ImplicitMmaConfig, runtime: Runtime) -> Plan:
        size = itemsize(problem.x_dtype)
        shape = tiling(config, size, k_major=True)
        if not stages.can_share(steps := steps_of(problem, config.block_k), config.split_k):
            raise ValueError(f"{config}: {steps} steps are not shared out among {config.split_k} blocks")
        # Rows in a workspace include the border. With split-K the kernel stores sums.
        own = stages.problem_of_bytes(problem)
        own = own if config.split_k == 1 else stages.problem_of_shares(own)
        loaded = stages.rows_problem(own, _whole_group(problem)) if config.repacked else own
        rows = stages.PixelRows(problem, loaded, runtime) if config.repacked else None
        around = stages.Stages(problem, rows, config.split_k, runtime)
        require(config, run_refusal(config.run))
        # A thread holds the results of every eighth pixel of its warp, before they are reordered.
        whole, run = why_one_by_one(loaded) is None, contiguous_outputs(own, config.run, config.warp_m // 8)
        fields, put = self.fields(problem, loaded)
        struct = with_conv("ImplicitMma", own, store_width=ctypes.c_int, **amax_fields(own), **fields)
        prelude = constants(
            BLOCK_M=config.block_m, BLOCK_N=config.block_n, **dict(shape.constants), SPLIT_K=config.split_k,
            WHOLE_PIECES=whole, OUT_CHANNELS_LAST=own.out_layout == "NHWC", PIXEL_RUN=run,
            ZERO_POINT=problem.epilogue.x_zero_point != 0, PASSES=stages.passes_of(problem),
        )  # fmt: skip
        names = renamed("implicit_gemm_mma", self.name)
        lines = (*self.lines, *conv_constants(loaded, problem.x_dtype), *prelude, *names)
        path = "algorithms/implicit_gemm/mma.cu"
        kernel = runtime.compile(KernelSource(path, self.name, lines, struct, "ImplicitMma"))
        tiles = shape.tiles(problem.n * problem.p * problem.q, problem.k_per_group, problem.groups) * config.split_k
        info = LaunchInfo(self.name, (tiles,), shape.threads, shape.shared_bytes, pdl=True)
        if config.persistent:
            few = as_many_as_run(runtime.describe(kernel, info), runtime.facts, math.prod(shape.threads))
            info = few if is_shared_well(tiles, few.grid[0], runtime.facts) else info

        vectors = {"n": loaded.n, "h": loaded.h, "w": loaded.w}, {"c": 1}, piece_of(problem)

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            buffers = around.buffers(buffers)
            fill(args.conv, loaded, buffers)
            if whole and not is_aligned(args.conv.x, args.conv.x_strides, *vectors, size):
                return None
            args.store_width = store_width(own, args.conv, config.warp_n, run)
            put_amax(args, own, buffers)
            put(args, buffers)
            return args

        any_way = replace(config, repacked=True)
        otherwise = cache(lambda: self.plan(problem, any_way, runtime)) if whole and not config.repacked else None
        launch = Launch(with_occupancy_cap(runtime, kernel, info), kernel, arguments, runtime, otherwise=otherwise)
        return around.plan(self, problem, config, launch, self.prepared(problem, loaded, runtime))


class ImplicitGemmTf32Mma(ImplicitGemmMma):
    """The same kernel for float32: factors are rounded to TF32 (10 mantissa bits), and sums are float32.

    The relative error of each product is at most 2^-10.
    """

    name = "implicit_gemm_tf32_mma"
    summary = "implicit GEMM of float32, rounded to TF32, on tensor cores, whose tiles are filled by cp.async; sm_80"
    since = "implicit_gemm_mma"
    precision = "tf32"
    look = Mark("indigo", "cross")
    types = ("float32",)
    products = PRODUCTS / 2
    why = "many channels, and TF32 is allowed: tensor cores"

    def most_sums(self, facts: DeviceFacts) -> int:
        return 64  # rounding float32 to TF32 needs registers


def piece_of(problem: Conv2dProblem) -> int:
    """Channels that one copy of 16 bytes loads."""
    return PIECE_BYTES // itemsize(problem.x_dtype)


def steps_of(problem: Conv2dProblem, channels: int) -> int:
    """Steps of a tile, of `channels` channels each; the channels of a tap are rounded up to whole pieces."""
    return -(-problem.r * problem.s * _whole_group(problem) // channels)


def why_one_by_one(problem: Conv2dProblem) -> Reason | None:
    """The reason why channels cannot be copied 16 bytes at a time, whatever the alignment; None if they can."""
    if problem.x_layout != "NHWC":
        return Reason("x is in {layout}", layout=problem.x_layout)
    if problem.c_per_group % (piece := piece_of(problem)):
        return Reason("a group has {count} channels, no multiple of {piece}", count=problem.c_per_group, piece=piece)
    return None


def why_rows(problem: Conv2dProblem) -> Reason | None:
    """The reasons why x is first written as rows of channels; None if it can be copied directly."""
    reasons = [] if (why := why_one_by_one(problem)) is None else [why]
    if problem.padding_mode != "zeros" and any(problem.padding):
        reasons.append(Reason("the border is {border}, and a copy fills in zeros", border=problem.padding_mode))
    return Reason.joined(reasons)


def rows_pay(problem: Conv2dProblem) -> bool:
    """True if writing x as rows saves time: not if most of a row would be the zeros that pad a group."""
    return why_rows(problem) is not None and (problem.groups == 1 or problem.c_per_group >= piece_of(problem))


def _whole_group(problem: Conv2dProblem) -> int:
    """Channels of a group, rounded up to whole pieces."""
    piece = piece_of(problem)
    return -(-problem.c_per_group // piece) * piece


def store_width(problem: Conv2dProblem, conv: Any, filters: int, pixels: int = 1, of_row: bool = False) -> int:
    """Contiguous outputs that one instruction of a thread may store.

    In NHWC they are filters of one pixel; a warp has `filters` filters. Else they are a run of `pixels` of one filter,
    within a row if `of_row`, else within a plane without gaps.
    """
    size, may = itemsize(problem.out_dtype), [pixels]
    if problem.out_layout == "NHWC":
        count, sizes, run = problem.k_per_group, {"n": problem.n, "h": problem.p, "w": problem.q}, {"c": 1}
        may = [EIGHT, 2] if size <= 2 and filters % 32 == 0 else [2]  # four lanes exchange two outputs of each
    elif of_row:
        count, sizes, run = problem.q, {"n": problem.n, "c": problem.k, "h": problem.p}, {"w": 1}
    else:
        count, sizes, run = problem.p * problem.q, {"n": problem.n, "c": problem.k}, {"w": 1, "h": problem.q}
    for many in may:
        if count % many == 0 and is_aligned(conv.out, conv.out_strides, sizes, run, many, size):
            return many
    return 1


def contiguous_outputs(problem: Conv2dProblem, run: int, own: int) -> int:
    """Outputs of a filter in one store of a lane, limited by `run`, by its `own` outputs and by 16 bytes; 1 in NHWC."""
    return 1 if problem.out_layout == "NHWC" else min(run, own & -own, PIECE_BYTES // itemsize(problem.out_dtype))


def run_refusal(run: int) -> Reason | None:
    """The reason why a store cannot have `run` outputs; None if it can."""
    return Reason("run={run} is no power of 2", run=run) if run < 1 or run & (run - 1) else None
