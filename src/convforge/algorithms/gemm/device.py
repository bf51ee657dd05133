"""Host side of the GEMM ladder on GPUs: one class per step, which lists its most promising configs first."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Config, Launch, Plan, Preparation
from convforge.algorithms.gemm.gemm import operand_b
from convforge.algorithms.gemm.product import Operand, Product, Tiling, operand, strides_of
from convforge.algorithms.host.conv import address
from convforge.algorithms.host.on_device import OnDevice, require
from convforge.algorithms.traits import FASTEST, Mark, MethodCost, Preference, Rank
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, GemmProblem
from convforge.problem.types import is_integer, itemsize

C = TypeVar("C", bound=Config)

STATIC_SHARED_BYTES = 48 << 10  # most static shared memory of a kernel; dynamic may be larger


class GemmStep(OnDevice[GemmProblem, C]):
    """A step of the ladder: the kernel gemm_STEM in STEM.cu, which multiplies matrices, also for im2col."""

    operation = "gemm"
    # True: plain products support 16-bit types; each number is converted to float when it is loaded.
    takes_16_bits: ClassVar[bool] = False

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if is_integer(problem.dtype):
            return Reason("it multiplies floats, not {dtype}; gemm_mma takes int8 and uint8", dtype=problem.dtype)
        if itemsize(problem.dtype) == 2 and not self.takes_16_bits:
            return Reason("its tiles are of float32 or float64, not {dtype}; gemm_naive and gemm_shared take it",
                          dtype=problem.dtype)  # fmt: skip
        return None

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[C]:
        return self.choices(problem.m, problem.n, problem.k, 1, itemsize(problem.dtype), facts)

    @abstractmethod
    def choices(self, m: int, n: int, k: int, groups: int, size: int, facts: DeviceFacts) -> Sequence[C]:
        """The configs worth trying for products of this size, with elements of `size` bytes; the default first."""

    @abstractmethod
    def tiling(self, config: C, size: int) -> Tiling:
        """Tile, threads and constants of a config's kernel. Raises ValueError for an impossible config."""

    def product(
        self, config: C, runtime: Runtime, a_k_major: bool, b_k_major: bool, dtype: str,
        convolution: Conv2dProblem | None = None, b_dtype: str = "",
    ) -> Product:  # fmt: skip
        """Compile the kernel for operands with these major axes; C is a matrix, or the output of `convolution`."""
        tiling, path = self.tiling(config, np.dtype(dtype).itemsize), f"algorithms/{self.name.replace('_', '/', 1)}.cu"
        return Product(path, self.name, tiling, runtime, a_k_major, b_k_major, dtype, convolution, b_dtype=b_dtype)

    def plan(self, problem: GemmProblem, config: C, runtime: Runtime) -> Plan:
        k_major = (not problem.transpose_a, problem.transpose_b)
        product = self.product(config, runtime, *k_major, problem.dtype, b_dtype=problem.b_dtype)
        info = product.info(problem.m, problem.n)

        def arguments(buffers: Buffers) -> Any:
            a = _matrix(buffers["a"], problem.transpose_a, k_major[0])
            b = _matrix(buffers["b"].tensors["b"], not problem.transpose_b, k_major[1])
            return product.matrix(a, b, buffers["c"], problem.k)

        step = Launch(info, product.kernel, arguments, runtime)
        return Plan(self, problem, config, runtime, steps=[step], prepare=plain_b(runtime))


def plain_b(runtime: Runtime) -> Preparation:
    """Preparation that passes B to a kernel without a copy."""
    return Preparation(runtime, {}, (), lambda buffers, stream: operand_b(buffers["given"]))


def _matrix(array: Any, k_first: bool, k_major: bool) -> Operand:
    """Operand of a kernel from a stored matrix; its K axis is the first if `k_first`, else the last."""
    first, last = strides_of(array)
    along, along_k = (last, first) if k_first else (first, last)
    return operand(address(array), array.itemsize, along, along_k, k_major)


@dataclass(frozen=True, slots=True)
class BlockConfig(Config):
    """Block of :class:`GemmNaive`: 32 to 1024 threads."""

    block_x: int = 32  # threads along x, one for each column of C
    block_y: int = 32  # threads along y, one for each row of C


class GemmNaive(GemmStep[BlockConfig]):
    name = "gemm_naive"
    summary = "one thread an element of C, all from global memory"
    cost = MethodCost(0.09, 0.4, 1024, 1)
    look = Mark("brown", "square")
    preference = Preference(Rank.THIRD, FASTEST)
    takes_16_bits = True

    def choices(self, m: int, n: int, k: int, groups: int, size: int, facts: DeviceFacts) -> Sequence[BlockConfig]:
        return [BlockConfig(*shape) for shape in ((32, 32), (32, 8), (16, 16), (24, 24), (8, 8), (8, 32), (32, 16))]

    def tiling(self, config: BlockConfig, size: int) -> Tiling:
        if not 32 <= config.block_x * config.block_y <= 1024:
            raise ValueError(f"{config}: a block has 32 to 1024 threads, not {config.block_x * config.block_y}")
        return Tiling(config.block_y, config.block_x, (config.block_x, config.block_y))


@dataclass(frozen=True, slots=True)
class SquareConfig(Config):
    """Block of :class:`GemmShared`."""

    block: int = 32  # side of the square tiles, 6 to 32; configs lists 8, 16, 24 and 32


class GemmShared(GemmStep[SquareConfig]):
    name = "gemm_shared"
    summary = "one thread an element of C, square tiles of A and B in shared memory"
    since = "gemm_naive"
    cost = MethodCost(0.10, 0.4, 1024, 1)
    look = Mark("purple", "triangle-up")
    takes_16_bits = True

    def choices(self, m: int, n: int, k: int, groups: int, size: int, facts: DeviceFacts) -> Sequence[SquareConfig]:
        return [SquareConfig(block) for block in (32, 24, 16, 8)]

    def tiling(self, config: SquareConfig, size: int) -> Tiling:
        if not 6 <= config.block <= 32:
            raise ValueError(f"{config}: a block of 32 to 1024 threads has sides of 6 to 32")
        return Tiling(config.block, config.block, (config.block, config.block))


@dataclass(frozen=True, slots=True)
class TileConfig(Config):
    """Tiles of the steps that compute several elements of C per thread."""

    block_m: int  # rows of the part of C that a block computes
    block_n: int  # columns of that part
    block_k: int  # length along K of a step of a block
    thread_m: int  # rows of the part of C that a thread computes
    thread_n: int = 1  # columns of that part


class _Tiled(GemmStep[TileConfig]):
    tiles: ClassVar[tuple[TileConfig, ...]]
    stages: ClassVar[int] = 1
    # Constants of the kernel in addition to BLOCK_M and BLOCK_N.
    parts: ClassVar[tuple[str, ...]] = ("BLOCK_K", "THREAD_M", "THREAD_N")
    # Side of the squares that a thread's sums form; the columns of a tile are a multiple of `across`.
    square: ClassVar[int] = 1
    across: ClassVar[int] = 1

    def choices(self, m: int, n: int, k: int, groups: int, size: int, facts: DeviceFacts) -> Sequence[TileConfig]:
        fit = [tile for tile in self.tiles if self._shared_bytes(tile, size) <= STATIC_SHARED_BYTES]
        return sorted(fit, key=lambda tile: modelled_time(self.tiling(tile, size), m, n, groups, facts))

    def tiling(self, config: TileConfig, size: int) -> Tiling:
        threads = config.block_m * config.block_n // (config.thread_m * config.thread_n)
        require(config, self._refusal(config, threads))
        if (shared := self._shared_bytes(config, size)) > STATIC_SHARED_BYTES:
            raise ValueError(f"{config} takes {shared} bytes of shared memory; a kernel may declare "
                             f"{STATIC_SHARED_BYTES}")  # fmt: skip
        numbers = tuple((name, getattr(config, name.lower())) for name in self.parts)
        return Tiling(config.block_m, config.block_n, (threads,), numbers)

    def _refusal(self, config: TileConfig, threads: int) -> Reason | None:
        """The reason why threads cannot divide the tile in this way; None if they can."""
        if config.block_m % config.thread_m or config.block_n % config.thread_n:
            part, whole = f"{config.thread_m} x {config.thread_n}", f"{config.block_m} x {config.block_n}"
            return Reason("threads of {part} do not cover {whole} exactly", part=part, whole=whole)
        if config.thread_m % self.square or config.thread_n % self.square:
            return Reason("a thread's sums are squares of {side} x {side}, not {thread_m} x {thread_n}",
                          side=self.square, thread_m=config.thread_m, thread_n=config.thread_n)  # fmt: skip
        if config.thread_n > 1 and "THREAD_N" not in self.parts:
            return Reason("a thread has one column of sums, not {thread_n}", thread_n=config.thread_n)
        if config.block_n % self.across:
            return Reason("a warp has one row of threads: block_n={block_n} must be a multiple of {across}",
                          block_n=config.block_n, across=self.across)  # fmt: skip
        return share_refusal(config, threads)

    def _shared_bytes(self, config: TileConfig, size: int) -> int:
        return self.stages * config.block_k * (config.block_m + config.block_n + 8) * size


def share_refusal(config: TileConfig | WarpTile, threads: int) -> Reason | None:
    """The reason why threads cannot load whole rows of tiles, one or four elements at a time (Share of gemm.cuh)."""
    if not 32 <= threads <= 1024:
        return Reason("a block has 32 to 1024 threads, not {threads}", threads=threads)
    if config.block_k % 8:
        return Reason("eight neighbours along K are loaded together; block_k={block_k}", block_k=config.block_k)
    for name in ("block_m", "block_n"):
        length = getattr(config, name)
        if length % 4 or any(threads % min(length // per, threads) for per in (1, 4)):
            return Reason(
                "{threads} threads do not load {name}={length} in whole rows", threads=threads, name=name, length=length
            )
    return None


def modelled_time(tiling: Tiling, m: int, n: int, groups: int, facts: DeviceFacts) -> float:
    """Estimate the time of a tiling in arbitrary units: tiles of the busiest SM, times the time of a tile.

    The time to compute a tile of m x n grows with m n, the time to read its operands with m + n.
    """
    rounds = -(-tiling.tiles(m, n, groups) // facts.cores)
    return rounds * (tiling.block_m * tiling.block_n + 16.0 * (tiling.block_m + tiling.block_n))


class GemmTile1d(_Tiled):
    name = "gemm_tile_1d"
    summary = "a column of 8 elements of C a thread, tiles in shared memory"
    since = "gemm_shared"
    parts, across = ("BLOCK_K", "THREAD_M"), 32
    tiles = (TileConfig(64, 64, 8, 8), TileConfig(64, 64, 16, 16), TileConfig(32, 32, 8, 4))
    cost = MethodCost(0.35, 0.5, 4096, 1)
    look = Mark("magenta", "triangle-left")


class GemmTile2d(_Tiled):
    name = "gemm_tile_2d"
    summary = "8 x 8 elements of C a thread, in registers"
    since = "gemm_tile_1d"
    tiles = (TileConfig(128, 128, 8, 8, 8), TileConfig(64, 64, 8, 4, 4), TileConfig(32, 32, 8, 2, 2))
    cost = MethodCost(0.48, 0.5, 8192, 1)
    look = Mark("vermillion", "triangle-down")


class GemmVectorised(_Tiled):
    name = "gemm_vectorised"
    summary = "16-byte loads, the next tiles on their way while these are multiplied"
    since = "gemm_tile_2d"
    stages, square = 2, 4
    tiles = (
        TileConfig(128, 128, 8, 8, 8), TileConfig(128, 128, 16, 8, 8), TileConfig(64, 64, 8, 4, 4),
        TileConfig(64, 64, 16, 8, 4), TileConfig(32, 32, 16, 4, 4),
    )  # fmt: skip
    cost = MethodCost(0.70, 0.6, 8192, 1)
    look = Mark("sky", "circle")
    preference = Preference(Rank.SECOND, FASTEST)


@dataclass(frozen=True, slots=True)
class WarpTile(Config):
    """Division of a block's tile of C among warps and threads, as in gemm.cuh."""

    block_m: int  # rows of the part of C that a block computes
    block_n: int  # columns of that part
    block_k: int  # length along K of a step of a block
    warp_m: int  # rows of the part of the tile that a warp computes
    warp_n: int  # columns of that part
    thread_m: int  # rows of the part that a thread computes; 32 threads cover the part of a warp
    thread_n: int  # columns of the part that a thread computes

    def tiling(self, size: int, stages: int) -> Tiling:
        """Tile of a kernel with `stages` tiles of each operand in shared memory; an element has `size` bytes.

        Raises ValueError for an impossible tile.
        """
        require(self, self._refusal())
        warps = self.block_m // self.warp_m * (self.block_n // self.warp_n)
        names = ("block_k", "warp_m", "warp_n", "thread_m", "thread_n")
        numbers = tuple((name.upper(), getattr(self, name)) for name in names)
        shared = stages * self.block_k * (self.block_m + self.block_n + 8) * size
        return Tiling(self.block_m, self.block_n, (32 * warps,), numbers, shared)

    def _refusal(self) -> Reason | None:
        """The reason why warps or threads cannot divide the tile in this way; None if they can."""
        if self.block_m % self.warp_m or self.block_n % self.warp_n:
            return Reason("warps of {warp_m} x {warp_n} do not cover {block_m} x {block_n} exactly", **asdict(self))
        if self.warp_m % self.thread_m or self.warp_n % self.thread_n:
            return Reason("threads of {thread_m} x {thread_n} do not cover {warp_m} x {warp_n} exactly", **asdict(self))
        lanes_m, lanes_n = self.warp_m // self.thread_m, self.warp_n // self.thread_n
        if lanes_m * lanes_n != 32 or lanes_m % 2:
            return Reason(
                "a warp has 32 threads in pairs of rows, not {lanes_m} x {lanes_n}", lanes_m=lanes_m, lanes_n=lanes_n
            )
        if self.thread_m % 4 or self.thread_n % 4:
            return Reason("a thread's sums are squares of 4 x 4, not {thread_m} x {thread_n}", **asdict(self))
        return share_refusal(self, 32 * self.block_m // self.warp_m * (self.block_n // self.warp_n))

    def fits(self, tiling: Tiling, size: int, facts: DeviceFacts) -> bool:
        """True if a block has the shared memory and a thread the registers; a sum of 8 bytes needs two registers."""
        return tiling.shared_bytes <= facts.block_shared_bytes and self.thread_m * self.thread_n * size <= 128 * 4


@dataclass(frozen=True, slots=True)
class WarpConfig(WarpTile):
    """Tiles of :class:`GemmWarpTiled`."""

    stages: int  # tiles of each operand in shared memory


class _TileTime(NamedTuple):
    """Terms of the time, fitted on an H200: steps x (`among_many` x :func:`modelled_time` + `alone`)."""

    alone: float
    among_many: float


WARP_TILES = {
    WarpConfig(128, 128, 32, 32, 64, 8, 8, 2): _TileTime(2200.0, 1.0),
    WarpConfig(128, 128, 16, 64, 64, 16, 8, 3): _TileTime(14600.0, 1.03),
    WarpConfig(128, 128, 8, 32, 64, 8, 8, 4): _TileTime(2300.0, 1.13),
    WarpConfig(64, 128, 32, 32, 64, 8, 8, 2): _TileTime(8800.0, 0.96),
    WarpConfig(64, 128, 16, 32, 64, 8, 8, 2): _TileTime(3200.0, 0.96),
    WarpConfig(64, 64, 16, 32, 32, 8, 4, 3): _TileTime(2000.0, 1.03),
    WarpConfig(32, 64, 16, 16, 32, 4, 4, 4): _TileTime(1900.0, 1.02),
    WarpConfig(16, 128, 8, 16, 32, 4, 4, 4): _TileTime(3400.0, 0.96),
}


class GemmWarpTiled(GemmStep[WarpConfig]):
    name = "gemm_warp_tiled"
    summary = "a compact part of the tile a warp, asynchronous copies, up to 16 x 8 elements of C a thread"
    since = "gemm_vectorised"
    cost = MethodCost(0.77, 0.6, 8192, 1)
    look = Mark("green", "diamond")
    preference = Preference(Rank.FIRST, FASTEST)

    def choices(self, m: int, n: int, k: int, groups: int, size: int, facts: DeviceFacts) -> Sequence[WarpConfig]:
        fit = [tile for tile in WARP_TILES if tile.fits(self.tiling(tile, size), size, facts)]

        def time(tile: WarpConfig) -> float:
            own = WARP_TILES[tile]
            steps = -(-k // tile.block_k) * tile.block_k / max(k, 1)  # the last step is padded
            return steps * (own.among_many * modelled_time(self.tiling(tile, size), m, n, groups, facts) + own.alone)

        return sorted(fit, key=time)

    def tiling(self, config: WarpConfig, size: int) -> Tiling:
        plain = config.tiling(size, config.stages)
        return replace(plain, constants=(*plain.constants, ("STAGES", config.stages)))


LADDER: dict[str, type[GemmStep[Any]]] = {
    step.name: step for step in (GemmNaive, GemmShared, GemmTile1d, GemmTile2d, GemmVectorised, GemmWarpTiled)
}


# Names of config fields for a tile's rows and columns. Fields of the last pair only have the values of listed configs.
_FIELDS = (("tile_m", "tile_n"), ("block_y", "block_x"), ("block", "block"), ("block_m", "block_n"))


def has_tiles(config: Config) -> bool:
    """True if a config determines the size of a tile of C."""
    return _fields(config) is not None


def configs_of_tile(
    algorithm: Algorithm[Any, Any], problem: GemmProblem, configs: Sequence[Config], rows: int, columns: int
) -> list[Config] | Reason:
    """The configs of a method with tiles of `rows` x `columns` of C, or the reason why there are none.

    `configs` are all configs of the method, the default first; they have tiles.

    Examples
    --------
    >>> from convforge.algorithms import find
    >>> from convforge.backends.cpu import cpu_facts
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("m512n512k512_f32")
    >>> naive, shared = (find("gemm", "cuda", name) for name in ("gemm_naive", "gemm_shared"))
    >>> [str(c) for c in configs_of_tile(naive, problem, naive.configs(problem, cpu_facts()), 8, 32)]
    ['block_x=32,block_y=8']
    >>> print(configs_of_tile(shared, problem, shared.configs(problem, cpu_facts()), 8, 32))
    its tiles are square
    """
    names = _fields(configs[0])
    assert names is not None
    if names == _FIELDS[-1]:
        sizes = [tuple(getattr(config, name) for name in names) for config in configs]
        found = [config for config, size in zip(configs, sizes, strict=True) if size == (rows, columns)]
        known = dict.fromkeys(f"{high}x{wide}" for high, wide in sizes)
        return found or Reason("its tiles are {sizes}", sizes=", ".join(known))
    if names == ("block", "block") and rows != columns:
        return Reason("its tiles are square")
    config = dataclasses.replace(configs[0], **dict(zip(names, (rows, columns), strict=True)))
    if isinstance(algorithm, GemmStep):
        try:
            algorithm.tiling(config, np.dtype(problem.dtype).itemsize)
        except ValueError as fault:
            return Reason.quoted(str(fault))
    return [config]


def _fields(config: Config) -> tuple[str, str] | None:
    names = {f.name for f in dataclasses.fields(config)}
    return next((found for found in _FIELDS if names.issuperset(found)), None)
