"""Host side of mma.cu: the matrix product of 16-bit types and of bytes on the tensor cores of any GPU since Ampere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap

from convforge.algorithms.contract import Config
from convforge.algorithms.gemm.device import GemmStep, modelled_time
from convforge.algorithms.gemm.product import Tiling
from convforge.algorithms.host.on_device import require
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.errors import Reason
from convforge.problem import GemmProblem
from convforge.problem.gemm import BYTES
from convforge.problem.types import itemsize

TYPES, SIZE = ("float16", "bfloat16"), 2  # 16-bit types, and their size in bytes
# 16-bit products of tensor cores in the time of one float32 multiply-add, at the rate that this kernel reaches. 8-bit
# products are twice as many.
PRODUCTS = 7
LINE_BYTES = 64  # smallest line of a tile: the factors of two products
MOST_SUMS = 128  # most sums of a lane: its registers also hold the factors of products in flight
TRANSPOSING_SUMS = 64  # the same limit if 8-bit numbers are transposed when loaded (mma_tiles.cuh)


@dataclass(frozen=True, slots=True)
class GemmMmaConfig(Config):
    """Tiles of :class:`GemmMma`; block_m and block_n are powers of 2, at least 16; block_k has at least 64 bytes."""

    block_m: int = 128  # rows of the part of C that a block computes
    block_n: int = 128  # columns of that part
    block_k: int = 32  # length along K of a step of a block
    warp_m: int = 64  # rows of a warp's part, a multiple of 16
    warp_n: int = 64  # columns of a warp's part, a multiple of 16
    stages: int = 4  # tiles of each operand in shared memory


# Tiles for 16-bit types, the most promising for large M and N first. For 8-bit types block_k is twice as long.
TILES = tuple(starmap(GemmMmaConfig, (
    (128, 256, 32, 64, 64, 6), (256, 128, 32, 64, 64, 6), (128, 128, 32, 64, 64, 4), (128, 128, 64, 64, 32, 3),
    (128, 64, 64, 64, 32, 3), (64, 128, 64, 32, 64, 3), (64, 64, 64, 32, 32, 4), (64, 32, 64, 32, 16, 4),
    (32, 64, 64, 16, 32, 4), (128, 16, 64, 32, 16, 4), (32, 32, 64, 16, 16, 4),
)))  # fmt: skip


class GemmMma(GemmStep[GemmMmaConfig]):
    """Matrix product on tensor cores (mma) of 16-bit types, and of 8-bit types with int32 sums.

    It supports any size, strides and alignment: numbers that are not aligned to 16 bytes are loaded one by one.
    See PTX ISA, mma.m16n8k16, mma.m16n8k32 and ldmatrix.
    """

    name = "gemm_mma"
    summary = "16-bit types and bytes on tensor cores, whose factors warps load from tiles in shared memory; sm_80"
    since = "gemm_warp_tiled"
    cost = MethodCost(1.0, 0.8, 8192, 1)
    look = Mark("indigo", "diamond")

    def work_for(self, problem: GemmProblem) -> Work:
        return Work(problem.flops / (PRODUCTS * SIZE / itemsize(problem.dtype)), problem.least_bytes)

    def preference_for(self, problem: GemmProblem, facts: DeviceFacts) -> Preference | None:
        if problem.dtype not in (*TYPES, *BYTES):
            return None
        bits = "8 bits" if problem.dtype in BYTES else "16 bits"
        return Preference(Rank.TENSOR_CORES_OF_WARPS, f"{bits}: tensor cores, whose factors warps hold")

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if problem.dtype not in (*TYPES, *BYTES):
            return Reason("A and B must be of one type of {names}, or each of one of {bytes}, not {dtype}",
                          names=", ".join(TYPES), bytes=", ".join(BYTES), dtype=problem.dtype)  # fmt: skip
        return device_refusal(facts)

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[GemmMmaConfig]:
        """The configs, the best first: if 8-bit numbers must be transposed, those that leave registers for it."""
        found = super().configs(problem, facts)
        if problem.dtype not in BYTES or (problem.transpose_b and not problem.transpose_a):
            return found
        return sorted(found, key=lambda config: config.warp_m * config.warp_n > 32 * TRANSPOSING_SUMS)

    def choices(self, m: int, n: int, k: int, groups: int, size: int, facts: DeviceFacts) -> Sequence[GemmMmaConfig]:
        every = TILES if size > 1 else [replace(tile, block_k=2 * tile.block_k) for tile in TILES]
        fit = [config for config in every if tiling(config, size).shared_bytes <= facts.block_shared_bytes]
        return sorted(fit, key=lambda config: modelled_time(tiling(config, size), m, n, groups, facts))

    def tiling(self, config: GemmMmaConfig, size: int) -> Tiling:
        return tiling(config, size)


def device_refusal(facts: DeviceFacts) -> Reason | None:
    """The reason why a device does not have these tensor cores; None if it has them."""
    if Architecture.parse(facts.architecture).number >= 80:  # with cp.async and these mma instructions
        return None
    return Reason("these tensor cores came with sm_{first}; this is {architecture}",
                  first=80, architecture=facts.architecture)  # fmt: skip


def tiling(config: GemmMmaConfig, size: int = SIZE, *, k_major: bool = False) -> Tiling:
    """The block's tile, threads, shared memory and constants of a kernel that includes mma_tiles.cuh.

    If all tiles are `k_major`, block_m and block_n need not be powers of 2. `size` is the size of a number in bytes.
    Raises ValueError if the warps of a config cannot divide the tile.
    """
    require(config, _refusal(config, size, k_major))
    names = ("block_k", "warp_m", "warp_n", "stages")
    warps = config.block_m // config.warp_m * (config.block_n // config.warp_n)
    shared = config.stages * config.block_k * (config.block_m + config.block_n) * size
    numbers = tuple((name.upper(), getattr(config, name)) for name in names)
    return Tiling(config.block_m, config.block_n, (32 * warps,), numbers, shared)


def _refusal(config: GemmMmaConfig, size: int, k_major: bool) -> Reason | None:
    """The reason why warps cannot divide a tile in this way; None if they can."""
    along = {} if k_major else {"block_m": 16, "block_n": 16}
    for name, least in {**along, "block_k": LINE_BYTES // size}.items():
        if (side := getattr(config, name)) < least or side & (side - 1):
            return Reason("{name}={side} is no power of 2 from {least} on", name=name, side=side, least=least)
    warps = [(config.block_m, config.warp_m), (config.block_n, config.warp_n)]
    if any(warp < 16 or warp % 16 or block % warp for block, warp in warps):
        return Reason("warps of {warp_m} x {warp_n}, multiples of 16, do not cover {block_m} x {block_n} exactly",
                      **asdict(config))  # fmt: skip
    if (sums := config.warp_m * config.warp_n // 32) > MOST_SUMS:
        return Reason("a lane would have {sums} sums; it has room for {most}", sums=sums, most=MOST_SUMS)
    if (count := config.block_m // config.warp_m * (config.block_n // config.warp_n)) > 32:
        return Reason("a block has at most 32 warps, not {warps}", warps=count)
    if config.stages < 2:
        return Reason("one tile is used while another is on its way: stages={stages}", stages=config.stages)
    return None
