"""Host side of few_outputs.cu: layers with few filters, of 16-bit types, on tensor cores."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import starmap
from typing import Any, NamedTuple

from convforge.algorithms.contract import Buffers, Config, Launch, Plan, Preparation
from convforge.algorithms.gemm.mma import PRODUCTS, TYPES, device_refusal
from convforge.algorithms.host.conv import address, conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.host.on_device import DeviceConvolution, require, types_refusal
from convforge.algorithms.host.resident import REGISTERS, blocks_held, compiled, with_occupancy_cap
from convforge.algorithms.host.staged import Filter, filter_from
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

MOST_COLUMNS = 64  # most columns of the product: one for each tap of each filter
PIXELS, COLUMNS, DEPTH = 16, 8, 16  # shape of one mma: pixels, columns, channels
SIZE, PIECE = 2, 8  # bytes of a number; numbers of 16 bytes
MOST_SUMS = 64  # most sums of a lane for a row of pixels
# "auto" chooses other methods for more filters, and for fewer channels.
FEWEST_FILTERS_OF_OTHERS, FEWEST_CHANNELS = 16, 8
# Fraction of the memory bandwidth that reads of 32, 64 or 128 contiguous bytes reach, by runs of 16 pixels.
OF_SHORT_LINES = {1: 0.65, 2: 0.85, 4: 1.0}
# Resident threads of an SM, by runs of 16 pixels, so that each has registers for its sums and factors.
RESIDENT = {1: 512, 2: 384, 4: 256}
THREADS = 128  # threads of a block that packs filters


@dataclass(frozen=True, slots=True)
class FewOutputsConfig(Config):
    """Tiles of :class:`ImplicitGemmFewOutputs`."""

    warps: int = 8  # warps of a block, along a row of pixels
    fragments: int = 1  # runs of 16 pixels of a warp: 1, 2 or 4
    chunk: int = 64  # channels of a step: 32, 64 or 128
    stages: int = 4  # steps in shared memory, one of which is multiplied while the others are loaded
    # Output rows of a block; 0 chooses the number with the fewest rounds of blocks on all SMs.
    rows: int = field(default=0, metadata={"least": 0})
    resident: int = 512  # threads that an SM should hold at once, which limits the registers of each

    @property
    def width(self) -> int:
        """Pixels of a strip."""
        return PIXELS * self.fragments * self.warps


# The last one uses the least shared memory.
TILES = tuple(
    replace(config, resident=RESIDENT[config.fragments])
    for config in starmap(FewOutputsConfig, (
        (8, 1, 64, 4), (11, 1, 64, 5), (6, 1, 64, 4), (4, 1, 64, 5), (2, 1, 64, 5), (16, 1, 64, 3), (8, 1, 64, 3),
        (8, 1, 32, 5), (4, 1, 32, 6), (4, 2, 64, 4), (6, 2, 64, 3), (8, 2, 64, 3), (4, 2, 32, 5), (2, 2, 64, 4),
        (2, 4, 64, 4), (4, 4, 32, 4), (3, 4, 32, 4), (2, 4, 32, 5), (1, 4, 32, 4), (1, 1, 32, 3),
    ))
)  # fmt: skip


class ImplicitGemmFewOutputs(DeviceConvolution[FewOutputsConfig]):
    """Out = sums over taps of (pixels x C) times (C x R S K), on tensor cores, for layers with few filters; stride 1.

    Each pixel is loaded once, and multiplied by all taps of all filters (PTX ISA, mma.m16n8k16, ldmatrix and cp.async).
    It supports any border, dilation, padding, layout and number of channels, up to R x S x K = 64. If 16 bytes cannot
    be copied at a time, threads load single numbers, which is slower.
    """

    name = "implicit_gemm_few_outputs"
    summary = "implicit GEMM of 16-bit types for few filters: each pixel is multiplied once, by all taps; sm_80"
    since = "implicit_gemm_mma"
    cost = MethodCost(1.0, 0.8, 8192, 2)
    look = Mark("teal", "triangle-right")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Work of every pixel times every column, with the padding of products."""
        sizes = _sizes(problem)
        pixels = problem.n * (problem.p + sizes.below) * (problem.q + sizes.beside)
        return Work(2 * pixels * sizes.factors / PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if problem.x_dtype not in TYPES or problem_refusal(problem) or why_one_by_one(problem):
            return None
        if problem.k >= FEWEST_FILTERS_OF_OTHERS or problem.c < FEWEST_CHANNELS:
            return None
        why = "16 bits and few filters: tensor cores, which multiply each pixel once"
        return Preference(Rank.TENSOR_CORES_OF_WARPS, why)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        reason = types_refusal(problem, TYPES) or problem_refusal(problem) or device_refusal(facts)
        if reason is not None:
            return reason
        refusals = [config_refusal(problem, config, facts) for config in _every(problem)]
        return refusals[-1] if all(refusals) else None

    def ways(self, problem: Conv2dProblem, config: FewOutputsConfig) -> tuple[Way, ...]:
        if (why := why_one_by_one(problem)) is not None:
            return (Way("tensor_cores", "default", Reason("threads load pixels number by number: {why}", why=why)),)
        words = Reason("threads copy {count} pixels of a channel at once, ahead of the products", count=PIECE)
        if problem.x_layout == "NHWC":
            words = Reason("threads copy {count} channels of a pixel at once, ahead of the products", count=PIECE)
        other = Reason(
            "if the address or a stride of x is no multiple of {bytes} bytes, or x has gaps between numbers, threads "
            "load pixels number by number: by another plan, which is compiled when it is first needed",
            bytes=PIECE * SIZE,
        )  # fmt: skip
        return Way("tensor_cores", "default", words), Way("one_by_one", "arrays", other)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[FewOutputsConfig]:
        fit = [config for config in _every(problem) if config_refusal(problem, config, facts) is None]
        return sorted(fit, key=lambda config: _modelled_time(problem, config, facts))[:12]

    def plan(self, problem: Conv2dProblem, config: FewOutputsConfig, runtime: Runtime) -> Plan:
        require(config, config_refusal(problem, config, runtime.facts))
        return self._plan(problem, config, runtime, whole=why_one_by_one(problem) is None)

    def _plan(self, problem: Conv2dProblem, config: FewOutputsConfig, runtime: Runtime, *, whole: bool) -> Plan:
        """Plan that copies pieces of 16 bytes if `whole`, else single numbers."""
        struct = with_conv("FewOutputs", problem, filters=ctypes.c_void_p, useful=ctypes.c_int, rows=ctypes.c_int)
        prelude = constants(
            BLOCK_M=config.width, WARP_M=PIXELS * config.fragments, BLOCK_N=2 * COLUMNS, WARP_N=2 * COLUMNS,
            BLOCK_K=config.chunk, STAGES=config.stages, CHANNELS_LAST=problem.x_layout == "NHWC", WHOLE_PIECES=whole,
        )  # fmt: skip
        lines = (*conv_constants(problem, problem.x_dtype), *prelude)
        source = KernelSource("algorithms/implicit_gemm/few_outputs.cu", self.name, lines, struct, "FewOutputs")
        threads = 32 * config.warps
        kernel = compiled(runtime, source, threads, config.resident)
        info = LaunchInfo(self.name, (1,), (threads,), shared_bytes(problem, config), pdl=True)
        info = runtime.describe(kernel, info)
        held = _modelled_held(problem, config, runtime.facts)
        if info.occupancy is not None:
            held = max(1, round(info.occupancy * runtime.facts.threads) // threads)
        grid = grid_of(problem, config, held * runtime.facts.cores)
        info = with_occupancy_cap(runtime, kernel, replace(info, grid=(grid.blocks,)))

        near, far = ("c", "w") if problem.x_layout == "NHWC" else ("w", "c")
        vectors = {axis: getattr(problem, axis) for axis in ("n", "h", far)}, {near: 1}, PIECE

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            fill(args.conv, problem, buffers)
            if whole and not is_aligned(args.conv.x, args.conv.x_strides, *vectors, SIZE):
                return None
            args.filters = address(buffers["w"].tensors["filters"])
            args.useful, args.rows = grid.useful, grid.rows
            return args

        otherwise = cache(lambda: self._plan(problem, config, runtime, whole=False)) if whole else None
        launch = Launch(info, kernel, arguments, runtime, otherwise=otherwise)
        return Plan(self, problem, config, runtime, steps=[launch], prepare=TapColumns(problem, runtime))


class _TapColumns(ctypes.Structure):
    """struct TapColumns of tap_columns.cu."""

    _fields_ = (("filter", Filter), ("packed", ctypes.c_void_p))


class TapColumns(Preparation):
    """Writes the filters as columns of a product to the tensor "filters", in the order in which lanes multiply them."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime) -> None:
        flipped, length = problem.mode == "convolution", 2 * _sizes(problem).factors
        lines = (*conv_constants(problem, problem.w_dtype), *constants(THREADS=THREADS))
        path = "algorithms/implicit_gemm/tap_columns.cu"
        kernel = runtime.compile(KernelSource(path, "tap_columns", lines, _TapColumns, "TapColumns"))
        info = LaunchInfo("tap_columns", (-(-length // (4 * THREADS)),), (THREADS,), pdl=True)

        def arguments(buffers: Buffers) -> Any:
            return _TapColumns(filter_from(buffers["given"], flipped), address(buffers["filters"]))

        pieces = {"filters": ((length,), problem.w_dtype)}
        super().__init__(runtime, pieces, [Launch(info, kernel, arguments, runtime)])


class Grid(NamedTuple):
    """Division of the outputs into blocks."""

    useful: int  # output columns of a strip
    rows: int  # output rows of a band
    blocks: int


def grid_of(problem: Conv2dProblem, config: FewOutputsConfig, at_once: int) -> Grid:
    """Divide the outputs into equal strips and bands, for a device that runs `at_once` blocks at once.

    With fewer rows per block there are more blocks, and each reads R - 1 additional rows of pixels. Full rounds of
    blocks waste the least time.
    """
    most = _most_useful(problem, config)
    strips = max(1, -(-problem.q // most))
    useful = max(1, -(-problem.q // strips))
    longest = max(1, -(-problem.p // problem.dilation[0]))
    of_band = problem.n * problem.dilation[0] * strips
    choices = {min(config.rows, longest)}
    if config.rows == 0:
        counts = {1, *(at_once * rounds // max(1, of_band) for rounds in range(1, 9))}
        choices = {-(-longest // count) for count in counts if count > 0}

    def time(rows: int) -> tuple[int, int]:
        return -(-of_band * -(-longest // rows) // at_once) * (rows + problem.r + 1), rows

    best = min(choices, key=time)
    return Grid(useful, best, of_band * -(-longest // best))


def problem_refusal(problem: Conv2dProblem) -> Reason | None:
    """The reason why this method cannot compute a layer on any device; None if it can."""
    if problem.groups > 1:
        return Reason("all filters must read the same channels; there are {groups} groups", groups=problem.groups)
    high, wide = problem.stride
    if (high, wide) != (1, 1):
        return Reason("the stride must be 1, not {vertical} x {horizontal}", vertical=high, horizontal=wide)
    if (count := problem.k * problem.r * problem.s) > MOST_COLUMNS:
        return Reason("it is made for {most} taps of all filters at most, not {count}", most=MOST_COLUMNS, count=count)
    return None


def why_one_by_one(problem: Conv2dProblem) -> Reason | None:
    """The reason why x cannot be copied 16 bytes at a time, whatever its alignment; None if it can."""
    if problem.x_layout == "NHWC" and problem.c % PIECE:
        return Reason("x has {count} channels, no multiple of {piece}", count=problem.c, piece=PIECE)
    if problem.x_layout == "NCHW" and problem.w % PIECE:
        return Reason("rows of x have {count} pixels, no multiple of {piece}", count=problem.w, piece=PIECE)
    return None


def config_refusal(problem: Conv2dProblem, config: FewOutputsConfig, facts: DeviceFacts) -> Reason | None:
    """The reason why a config is impossible; None if it is possible."""
    if config.fragments not in (1, 2, 4):
        return Reason("a warp has 1, 2 or 4 runs of 16 pixels, not {fragments}", fragments=config.fragments)
    if config.chunk not in (32, 64, 128):
        return Reason("a step has 32, 64 or 128 channels, not {chunk}", chunk=config.chunk)
    if config.warps > 32:
        return Reason("a block has at most 32 warps, not {warps}", warps=config.warps)
    if config.stages < 2:
        return Reason("one tile is used while another is on its way: stages={stages}", stages=config.stages)
    if (sums := 4 * config.fragments * _sizes(problem).products) > MOST_SUMS:
        return Reason("a lane would have {sums} sums; it has room for {most}", sums=sums, most=MOST_SUMS)
    most, need = min(255, (facts.registers or REGISTERS) // (32 * config.warps)), _registers(problem, config)
    if need > most:
        return Reason("a thread would take {need} registers; it may have {most}", need=need, most=most)
    seen, width = config.width - _most_useful(problem, config) + 1, config.width
    if seen > width:
        return Reason("a filter reads {seen} columns; a strip has {width}", seen=seen, width=width)
    need, most = shared_bytes(problem, config), facts.block_shared_bytes
    if need > most:
        return Reason(
            "pixels and sums of a strip take {need} bytes of shared memory; a block has {most}", need=need, most=most
        )
    return None


def shared_bytes(problem: Conv2dProblem, config: FewOutputsConfig) -> int:
    """Bytes of shared memory of a block: pixels of all stages, factors not in registers, two rows of products."""
    sizes = _sizes(problem)
    pixels = config.stages * config.width * config.chunk * SIZE
    factors = 256 if sizes.held else sizes.factors * SIZE
    return -(-(pixels + factors + 2 * sizes.columns * (config.width + 4) * 4) // 128) * 128


class _Sizes(NamedTuple):
    """Sizes of a layer, as the kernel uses them."""

    below: int  # rows that an output reads after its first row; the next field: columns
    beside: int
    columns: int  # columns of the product
    products: int  # products of 8 columns
    steps: int  # steps of 16 channels
    held: bool  # lanes keep their factors in registers, as in few_outputs.cu

    @property
    def factors(self) -> int:
        """Count of the numbers in the packed filters."""
        return self.products * COLUMNS * self.steps * DEPTH


@lru_cache(maxsize=256)
def _sizes(problem: Conv2dProblem) -> _Sizes:
    columns = problem.k * problem.r * problem.s
    products, steps = -(-columns // COLUMNS), -(-problem.c // DEPTH)
    below, beside = (problem.r - 1) * problem.dilation[0], (problem.s - 1) * problem.dilation[1]
    return _Sizes(below, beside, columns, products, steps, held=products * steps <= 32)


def _every(problem: Conv2dProblem) -> list[FewOutputsConfig]:
    """Configs with chunks that are not mostly empty."""
    return [config for config in TILES if config.chunk <= max(32, _sizes(problem).steps * DEPTH)]


def _most_useful(problem: Conv2dProblem, config: FewOutputsConfig) -> int:
    """Most output columns of a strip; in NCHW a strip begins at a multiple of 8 pixels."""
    return config.width - _sizes(problem).beside - (PIECE - 1 if problem.x_layout == "NCHW" else 0)


def _registers(problem: Conv2dProblem, config: FewOutputsConfig) -> int:
    """Registers of a thread: factors, sums of a row of pixels, sums of incomplete outputs, and about 40."""
    sizes, (filters, fragments) = _sizes(problem), (problem.k, config.fragments)
    held = 2 * sizes.products * sizes.steps if sizes.held else 0
    mine = -(-filters // 2) if fragments == 1 else filters * fragments // 2
    return 40 + held + 4 * fragments * (sizes.products + 1) + mine * (problem.r - 1)


def _modelled_held(problem: Conv2dProblem, config: FewOutputsConfig, facts: DeviceFacts) -> int:
    """Estimate the blocks that run on an SM at once, from the registers of a lane."""
    blocks = blocks_held(facts, config.warps, shared_bytes(problem, config), _registers(problem, config))
    return max(1, min(blocks, config.resident // (32 * config.warps)))


def _modelled_time(problem: Conv2dProblem, config: FewOutputsConfig, facts: DeviceFacts) -> float:
    """Estimate the time of a config in cycles of an SM.

    An SM loads about 20 bytes of x in a cycle if enough copies are issued, some 800 cycles ahead. Its shared memory
    moves 128 bytes in a cycle: copies and loads of pixels, factors that are not in registers, products of a row and
    their sums. In NCHW a copy of 32 times 16 bytes needs a cycle for each of its channels, and reads of 32 or 64
    contiguous bytes of a channel are slower than whole lines of 128.
    """
    held, sizes, planes = _modelled_held(problem, config, facts), _sizes(problem), problem.x_layout == "NCHW"
    grid = grid_of(problem, config, held * facts.cores)
    blocks = -(-grid.blocks // facts.cores)
    at_once, rows = max(1, min(held, blocks)), grid.rows + problem.r - 1
    asked = at_once * config.width * config.chunk * SIZE * (config.stages - 1)
    width = min(config.width, grid.useful + sizes.beside)
    lines = OF_SHORT_LINES[config.fragments] if planes else 1
    memory = rows * width * problem.c * SIZE / (lines * min(20, asked / 800))
    pieces = config.fragments * sizes.steps * SIZE  # cycles in which 512 bytes each of a row are read or written
    copies = pieces * (4 // config.fragments if planes else 1)
    factors = 0 if sizes.held else 2 * sizes.products * sizes.steps
    warp = copies + pieces + factors + config.fragments * (4 * sizes.products + sizes.columns / 2)
    latency = 300 * rows / at_once  # cycles of a row's barrier
    return blocks * (max(memory, rows * config.warps * warp) + latency) + 3000
