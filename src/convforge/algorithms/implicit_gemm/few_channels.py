"""Host side of few_channels.cu: implicit GEMM of 16-bit types and bytes for 1 to 4 channels, on tensor cores.

:mod:`split_few_channels` compiles the same file for float32.
"""

from __future__ import annotations

import ctypes
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, ClassVar, Generic, TypeVar

from convforge.algorithms.contract import Buffers, Config, Launch, Plan, Preparation
from convforge.algorithms.gemm.mma import MOST_SUMS, TYPES, device_refusal
from convforge.algorithms.host.conv import address, conv_constants, fill, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution, renamed, require, types_refusal
from convforge.algorithms.host.resident import as_many_as_run, blocks_held, compiled, with_occupancy_cap
from convforge.algorithms.host.staged import Filter, filter_from
from convforge.algorithms.implicit_gemm.mma import contiguous_outputs, run_refusal, store_width
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize, magnitude

MOST_CHANNELS = 4
OUTPUTS, FILTERS, DEPTH = 16, 8, 16  # shape of one mma: outputs, filters, numbers along K
# Multiply-adds of tensor cores in the time of one float32 multiply-add, at the rate that this kernel reaches.
PRODUCTS = 7
THREADS = 128  # threads of a block that packs filters
SIZE, WORD = 2, 4  # bytes of a number, and of two numbers
# Integers whose sums are exact: types of x; largest weights that float16 represents, and sums below which a float32 sum
# loses nothing, whatever the order of tensor cores.
BYTES, MOST_WEIGHT, EXACT_SUMS = ("int8", "uint8"), 2048, 2**24


@dataclass(frozen=True, slots=True)
class FewChannelsConfig(Config):
    """Tiles of :class:`ImplicitGemmFewChannels`."""

    tile_h: int = 16  # rows of outputs that a block computes at once
    tile_w: int = 16  # columns of outputs that a block computes at once, a multiple of 16
    block_n: int = 64  # filters of a block, a multiple of warp_n
    fragments: int = 4  # runs of 16 outputs of a row that a warp computes
    warp_n: int = 64  # filters of a warp, a multiple of 16
    # 2: the pixels of the next tile are staged while this tile is multiplied. 1: leaves room for large patches.
    patches: int = 2
    resident: int = 512  # threads that an SM should hold at once, which limits the registers of each
    # Most contiguous outputs that a store writes in NCHW, used if the number divides Q. A power of 2.
    run: int = 8

    @property
    def warps(self) -> int:
        return self.tile_h * self.tile_w // OUTPUTS // self.fragments * (self.block_n // self.warp_n)

    @property
    def sums(self) -> int:
        """Sums of a lane."""
        return self.fragments * self.warp_n // 2


F = TypeVar("F", bound=FewChannelsConfig)

# The last ones leave the most shared memory for large filters and wide dilation.
TILES = tuple(starmap(FewChannelsConfig, (
    (8, 16, 64, 2, 64, 2, 512), (8, 16, 64, 2, 64, 1, 512), (8, 32, 64, 2, 64, 2, 512), (4, 32, 64, 2, 64, 2, 512),
    (8, 16, 96, 1, 96, 2, 512), (4, 16, 96, 1, 96, 2, 512), (8, 32, 96, 2, 32, 2, 768), (4, 32, 96, 2, 96, 2, 384),
    (8, 16, 128, 4, 64, 2, 256), (8, 32, 32, 2, 32, 2, 512), (8, 16, 32, 2, 32, 1, 768), (8, 32, 16, 4, 16, 2, 768),
    (4, 16, 32, 1, 32, 1, 768), (4, 16, 16, 1, 16, 2, 768), (4, 16, 16, 1, 16, 1, 512), (2, 16, 16, 1, 16, 1, 512),
)))  # fmt: skip


class OnPatch(DeviceConvolution[F], Generic[F]):
    """Implicit GEMM with blocks that read factors from a patch of the image in shared memory."""

    tiles: ClassVar[tuple[FewChannelsConfig, ...]]
    macros: ClassVar[tuple[str, ...]] = ()  # macros that specialise the file's kernel
    fields: ClassVar[Mapping[str, Any]] = {}  # further fields of its struct, with types
    parts: ClassVar[int] = 1  # tensor-core products for one product of the method
    filters: ClassVar[int] = FILTERS  # filters of one load of factors

    @abstractmethod
    def preparation(self, problem: Conv2dProblem, config: F, runtime: Runtime) -> Preparation:
        """The preparation of the weights."""

    @abstractmethod
    def types_refusal(self, problem: Conv2dProblem) -> Reason | None:
        """The reason why the kernel does not support a problem's types; None if it does."""

    @staticmethod
    def put(args: Any, buffers: Buffers) -> None:
        """Fill the further fields of the struct."""

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Work of the products, with the taps, channels and filters that pad them."""
        filters = -(-problem.k // self.filters) * self.filters
        flops = 2 * problem.n * problem.p * problem.q * filters * steps_of(problem) * DEPTH
        return Work(flops * self.parts / PRODUCTS, problem.least_bytes)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := self.types_refusal(problem)) is not None:
            return reason
        if problem.groups > 1:
            return Reason("all filters must read the same channels; there are {groups} groups", groups=problem.groups)
        if problem.c > MOST_CHANNELS:
            return Reason("it is made for {most} channels at most, not {count}", most=MOST_CHANNELS, count=problem.c)
        return device_refusal(facts) or config_refusal(problem, TILES[-1], facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[F]:
        """The ten best configs, the fastest by :func:`_modelled_time` first."""
        every: Any = self.tiles
        if problem.out_layout == "NCHW":
            every = [replace(config, run=math.gcd(problem.q, config.run)) for config in every]
        fit = [config for config in every if config_refusal(problem, config, facts) is None]
        # Prefer blocks of which at least half of the filters exist.
        whole = [config for config in fit if config.block_n <= 2 * max(problem.k, FILTERS)]
        return sorted(whole or fit, key=lambda config: _modelled_time(problem, config, facts))[:10]

    def plan(self, problem: Conv2dProblem, config: F, runtime: Runtime) -> Plan:
        require(config, config_refusal(problem, config, runtime.facts))
        struct = with_conv("FewChannels", problem, filters=ctypes.c_void_p, store_width=ctypes.c_int, **self.fields)
        factors = factors_of(problem)
        prelude = constants(
            TILE_H=config.tile_h, TILE_W=config.tile_w, BLOCK_N=config.block_n, FRAGMENTS=config.fragments,
            WARP_N=config.warp_n, PATCHES=config.patches, OUTPUT_RUN=output_run(problem, config),
            CHANNELS_LAST=problem.x_layout == "NHWC", ALONG_Q=problem.out_layout == "NCHW",
        )  # fmt: skip
        own = *prelude, *self.macros, *renamed(ImplicitGemmFewChannels.name, self.name)
        lines = *conv_constants(_with_weights(problem, factors), factors), *own
        source = KernelSource("algorithms/implicit_gemm/few_channels.cu", self.name, lines, struct, "FewChannels")
        threads, across = 32 * config.warps, -(-problem.k // config.block_n)
        kernel = compiled(runtime, source, threads, config.resident)
        # A persistent grid: as many blocks as run at once, equally many for each part of the filters.
        tiles = _tiles(problem, config)
        info = LaunchInfo(self.name, (tiles * across,), (threads,), shared_bytes(problem, config), pdl=True)
        blocks = as_many_as_run(runtime.describe(kernel, info), runtime.facts, threads).grid[0]
        info = replace(info, grid=(min(tiles, max(1, blocks // across)) * across,))

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            fill(args.conv, problem, buffers)
            args.filters = address(buffers["w"].tensors["filters"])
            args.store_width = store_width(problem, args.conv, config.warp_n, output_run(problem, config), of_row=True)
            self.put(args, buffers)
            return args

        launch = Launch(with_occupancy_cap(runtime, kernel, info), kernel, arguments, runtime)
        return Plan(self, problem, config, runtime, steps=[launch], prepare=self.preparation(problem, config, runtime))


class ImplicitGemmFewChannels(OnPatch[FewChannelsConfig]):
    """Out (pixels x K) = columns times filters, on tensor cores, for first layers: 1 to 4 channels, one group.

    A block stages the part of the image that its outputs read, with contiguous channels of each pixel, and reads
    factors from it directly (PTX ISA, mma.m16n8k16). It supports any stride, border, dilation and layout. 8-bit
    integers become float16 in the patch, minus the zero point; their sums are exact.
    """

    name = "implicit_gemm_few_channels"
    summary = "implicit GEMM of 16-bit types and bytes, 1 to 4 channels: tensor cores read a patch of the image; sm_80"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 8192, 1)
    look = Mark("teal", "triangle-up")
    tiles = TILES

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        # With fewer filters, most of a product would be padding.
        if problem.x_dtype not in (*TYPES, *BYTES) or problem.groups > 1 or problem.c > MOST_CHANNELS or problem.k < 8:
            return None
        why = "16 bits or bytes, and few channels: tensor cores, which read pixels from a patch in shared memory"
        return Preference(Rank.TENSOR_CORES_OF_WARPS, why)

    def types_refusal(self, problem: Conv2dProblem) -> Reason | None:
        if problem.x_dtype not in BYTES or not is_integer(problem.acc_dtype):
            return types_refusal(problem, TYPES)
        if (most := problem.w_bound or magnitude(problem.w_dtype)) > MOST_WEIGHT:
            return Reason(
                "weights up to {most} are not exact in float16; up to {limit} are", most=most, limit=MOST_WEIGHT
            )
        if problem.largest_sum >= EXACT_SUMS:
            return Reason("sums up to {most} are not exact in float32", most=problem.largest_sum)
        return None

    def ways(self, problem: Conv2dProblem, config: FewChannelsConfig) -> tuple[Way, ...]:
        return (Way("tensor_cores", "default", words_of_patch(problem, config)),)

    def preparation(self, problem: Conv2dProblem, config: FewChannelsConfig, runtime: Runtime) -> Preparation:
        flipped = problem.mode == "convolution"
        step = packing(problem, config, runtime, lambda buffers: (filter_from(buffers["given"], flipped), 0))
        return Preparation(runtime, {"filters": packed_filters(problem, config)}, [step])


def words_of_patch(problem: Conv2dProblem, config: FewChannelsConfig) -> Reason:
    """Text that explains how blocks compute a tile."""
    return Reason(
        "a block stages the pixels under {tile_h} x {tile_w} outputs in shared memory, and multiplies {steps} times 16 "
        "numbers of each window",
        tile_h=config.tile_h, tile_w=config.tile_w, steps=steps_of(problem),
    )  # fmt: skip


class _FewFilters(ctypes.Structure):
    """struct FewFilters of few_filters.cu."""

    _fields_ = (("filter", Filter), ("lows", ctypes.c_longlong), ("packed", ctypes.c_void_p))


def packed_filters(problem: Conv2dProblem, config: FewChannelsConfig) -> tuple[tuple[int, ...], str]:
    """Shape and type of packed filters, with zeros that pad the last block."""
    length = -(-problem.k // config.block_n) * config.block_n * steps_of(problem) * DEPTH
    halves = halves_of(problem)
    return (halves * length,), factors_of(problem)


def packing(
    problem: Conv2dProblem, config: FewChannelsConfig, runtime: Runtime,
    given: Callable[[Buffers], tuple[Filter, int]],
) -> Launch:  # fmt: skip
    """The step that packs filters into the buffer "filters", in the order in which lanes multiply them.

    `given` returns the filters and, if they are split, the elements from their high halves to their low halves.
    """
    (length,), dtype = packed_filters(problem, config)
    halves = halves_of(problem)
    own_constants = constants(
        BLOCK_N=config.block_n, WARP_N=config.warp_n, THREADS=THREADS, ALONG_Q=problem.out_layout == "NCHW"
    )
    lines = (*conv_constants(_with_weights(problem, dtype), dtype), *own_constants)
    source = KernelSource("algorithms/implicit_gemm/few_filters.cu", "few_filters", lines, _FewFilters, "FewFilters")
    blocks = -(-length // halves // (4 * THREADS))
    info = LaunchInfo("few_filters", (blocks, halves), (THREADS,), pdl=True)

    def arguments(buffers: Buffers) -> Any:
        return _FewFilters(*given(buffers), address(buffers["filters"]))

    return Launch(info, runtime.compile(source), arguments, runtime)


def halves_of(problem: Conv2dProblem) -> int:
    """16-bit numbers for each number of x: float32 is split into two."""
    return max(1, itemsize(problem.x_dtype) // SIZE)


def factors_of(problem: Conv2dProblem) -> str:
    """Type of the factors."""
    return problem.x_dtype if problem.x_dtype in TYPES else "float16"


def _with_weights(problem: Conv2dProblem, dtype: str) -> Conv2dProblem:
    """The problem with weights of type `dtype`; integers keep theirs, because their sums are integers."""
    return problem if is_integer(problem.acc_dtype) else problem.replace(w_dtype=dtype)


def output_run(problem: Conv2dProblem, config: FewChannelsConfig) -> int:
    """Contiguous outputs of a filter in one store of a lane; 1 in NHWC, where a lane holds neighbouring filters."""
    return contiguous_outputs(problem, config.run, 2 * min(config.fragments, config.tile_w // OUTPUTS))


def steps_of(problem: Conv2dProblem) -> int:
    """Steps of 16 numbers along K for a filter. Numbers are read in pairs; a run of odd length is padded by one."""
    adjacent = problem.dilation[1] == 1
    run = problem.c * (problem.s if adjacent else 1)
    return -(-problem.r * (1 if adjacent else problem.s) * -(-run // 2) * 2 // DEPTH)


def shared_bytes(problem: Conv2dProblem, config: FewChannelsConfig) -> int:
    """Shared memory of a block in bytes: filters, the list of their pairs, patches, and for float32 the scales."""
    steps, (rows, pitch), c, halves = steps_of(problem), patch_of(problem, config), problem.c, halves_of(problem)
    odd_outputs = problem.stride[1] * c % 2
    copies = 2 if odd_outputs or (problem.dilation[1] > 1 and problem.dilation[1] * c % 2) else 1
    copy = ((rows * pitch // 2 + 1) // 32 * 32 + 48) * WORD
    of_step = halves * DEPTH * config.block_n * SIZE + 4 * 2 * (1 + odd_outputs) * WORD
    scales = WORD * (config.block_n + config.warps * c + 2) if halves > 1 else 0
    return -(-steps * of_step // 16) * 16 + halves * config.patches * copies * copy + -(-scales // 16) * 16


def patch_of(problem: Conv2dProblem, config: FewChannelsConfig) -> tuple[int, int]:
    """Rows of the patch that a tile reads, and numbers in a row, rounded up to an even number of pixels."""
    (stride_h, stride_w), (dilation_h, dilation_w) = problem.stride, problem.dilation
    columns = (config.tile_w - 1) * stride_w + (problem.s - 1) * dilation_w + 1
    return (config.tile_h - 1) * stride_h + (problem.r - 1) * dilation_h + 1, -(-columns // 2) * 2 * problem.c


def config_refusal(problem: Conv2dProblem, config: FewChannelsConfig, facts: DeviceFacts) -> Reason | None:
    """The reason why a config is impossible; None if it is possible."""
    if config.tile_w % OUTPUTS:
        return Reason("tile_w={width} is no multiple of {count}", width=config.tile_w, count=OUTPUTS)
    of_row = config.tile_w // OUTPUTS
    if config.tile_h * of_row % config.fragments or (of_row % config.fragments and config.fragments % of_row):
        return Reason(
            "warps of {fragments} x 16 outputs do not cover {tile_h} x {tile_w} in parts of a row or whole rows",
            fragments=config.fragments, tile_h=config.tile_h, tile_w=config.tile_w,
        )  # fmt: skip
    if config.warp_n % (2 * FILTERS) or config.block_n % config.warp_n:
        return Reason("warps of {warp_n} filters, a multiple of 16, do not cover {block_n} exactly",
                      warp_n=config.warp_n, block_n=config.block_n)  # fmt: skip
    if config.sums > MOST_SUMS:
        return Reason("a lane would have {sums} sums; it has room for {most}", sums=config.sums, most=MOST_SUMS)
    if (reason := run_refusal(config.run)) is not None:
        return reason
    if config.patches not in (1, 2):
        return Reason("a block has 1 or 2 patches, not {patches}", patches=config.patches)
    if config.warps > 32:
        return Reason("a block has at most 32 warps, not {warps}", warps=config.warps)
    if (need := shared_bytes(problem, config)) > facts.block_shared_bytes:
        return Reason("filters and pixels of a tile take {need} bytes of shared memory; a block has {most}",
                      need=need, most=facts.block_shared_bytes)  # fmt: skip
    return None


def _tiles(problem: Conv2dProblem, config: FewChannelsConfig) -> int:
    """Tiles of all images, for each part of the filters."""
    return problem.n * -(-problem.p // config.tile_h) * -(-problem.q // config.tile_w)


def _modelled_time(problem: Conv2dProblem, config: FewChannelsConfig, facts: DeviceFacts) -> float:
    """Estimate the time of a config in cycles of an SM.

    An SM starts four instructions in a cycle, multiplies 16 x 16 by 16 x 8 numbers in about 2 cycles, and reads 128
    bytes of shared memory in a cycle. A sum needs about 5 instructions, and a staged number 17, the wait included. In
    NCHW each run of outputs is stored at four places. About 6 warps hide latency. For float32, each number has two
    halves, and each product is three. Two instructions add the sums of two steps to a sum of a lane.
    """
    steps, (rows, pitch), warps, halves = steps_of(problem), patch_of(problem, config), config.warps, halves_of(problem)
    products = config.fragments * config.warp_n // FILTERS * (2 * halves - 1)
    loads = halves * (4 * config.fragments + config.warp_n // 4)
    adding = config.sums * (halves - 1) * steps
    staging = (17 if halves == 1 else 34) * rows * pitch / (32 * warps)
    storing = 4 * config.sums / output_run(problem, config) if problem.out_layout == "NCHW" else 0
    warp = steps * max(2 * products, loads) + (5 * config.sums + adding + staging) / 4 + storing
    keeping = halves * steps * config.block_n * 4 / 32 / 4
    registers = halves * config.sums + 8 * config.fragments * (2 * halves - 1) + 56
    held = blocks_held(facts, warps, shared_bytes(problem, config), registers)
    held = max(1, min(held, config.resident // (32 * warps)))
    tiles = _tiles(problem, config) * -(-problem.k // config.block_n)
    each = -(-tiles // facts.cores)  # tiles of an SM
    at_once = min(held, max(each, 1))
    rounds = -(-each // at_once)
    return at_once * (rounds * warps * warp + keeping) * (1 + 6 / (at_once * warps))
