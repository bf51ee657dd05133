"""Host side of tiled.cu: the tile of a thread, and the vectors of loads and stores."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from convforge.algorithms.contract import Config, Plan
from convforge.algorithms.direct.blocks import block_refusal, columns_read, even_share, grid, plane_work
from convforge.algorithms.host.constants import either_weights, fits_constant_memory
from convforge.algorithms.host.on_device import Kernel, OneLaunch, Vectors, least_refusal
from convforge.algorithms.host.staged import StagedWeights, staging_refusal
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, handed_on
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, itemsize

# Registers of a thread for pixels and sums, at most, of its 255.
MOST_REGISTERS = 192
# Registers above which fewer threads are resident.
MODEST_REGISTERS = 54


class Tile(NamedTuple):
    """Outputs of a thread. The default is the first tile that fits and gives the SMs enough threads."""

    out_p: int
    out_q: int  # for 4-byte pixels; twice as many for narrower ones
    resident: int  # resident threads per SM, at least
    enough: int  # launched threads per SM, at least: large tiles reread less, small tiles keep more threads busy
    registers: int  # registers for a row of the window and the sums, at most


TILES = (
    Tile(4, 4, 768, 12000, 22),
    Tile(4, 2, 768, 3000, 16),
    Tile(4, 4, 768, 6000, 54),
    Tile(2, 2, 1024, 800, 36),
    Tile(1, 2, 1024, 400, 54),
    Tile(1, 1, 1024, 0, MOST_REGISTERS),
)

# Sources of a thread's weights; see :class:`TiledConfig`.
WEIGHTS = ("packed", "staged")

# Products per output up to which `Tile.enough` holds. With m times as many products, enough / m threads suffice:
# each thread has m times the work, and a large tile reads fewer taps.
FEW_PRODUCTS = 27

# Resident threads per SM if each thread sums many output channels of one pixel and so reads many taps.
MANY_SUMS_RESIDENT = 768

# Threads along q and p worth comparing, the default first.
BLOCKS = ((32, 4), (32, 8), (64, 2), (64, 4), (128, 1))
# The default block if the taps of one input channel exceed the bytes of the first-level constant cache: more threads
# then share each pass over the taps.
LARGE_BLOCK, NEAR_CONSTANT_BYTES = (32, 8), 2048

# FLOPs per SM up to which blocks stage the filter in shared memory. A packing launch takes as long as this many FLOPs,
# but a multiply-add reads packed weights from constant memory at no cost.
STAGED_FLOPS = 1_300_000
# Resident threads per SM for staged weights, which need few registers. If the problem has few threads per SM, each gets
# enough registers to issue all its loads at once.
STAGED_RESIDENT, FEW_RESIDENT = 1536, 512

# Channels up to which an NHWC load covers all channels of its pixels.
FEW_CHANNELS = 4

# Registers of a tile, at most, if a row holds pixels of several channels.
PIXEL_REGISTERS = 24


@dataclass(frozen=True, slots=True)
class TiledConfig(Config):
    """Block shape of :class:`DirectTiled`, and the tile of a thread."""

    block_x: int = 32  # threads along q
    block_y: int = 4  # threads along p; 32 to 1024 in a block
    out_p: int = 2  # rows of outputs of a thread
    out_q: int = 4  # columns of outputs of a thread
    out_k: int = 1  # output channels of a thread
    resident: int = 512  # resident threads per SM, at least; see :func:`compiled`
    # "staged": each block reads them as given. "packed": a launch packs them first, into constant memory if they fit.
    weights: str = "packed"


@dataclass(frozen=True, slots=True)
class _Run:
    """Memory layout of a tile's rows; see tiled.cu."""

    chunk: int
    load: int
    shift: int
    store_k: int
    store: int


class DirectTiled(OneLaunch[TiledConfig]):
    """A thread computes a tile of outputs from rows of pixels in registers, loaded as vectors."""

    name = "direct_tiled"
    summary = "a tile of outputs a thread, rows of pixels in registers, 16-byte loads"
    since = "direct_shared"
    cost = MethodCost(0.42, 0.9, 2048, 1)
    look = Mark("pink", "triangle-down")
    caps_occupancy = False
    preference = Preference(Rank.DIRECT, "a thread's outputs share the pixels that it holds in registers")
    work_for = plane_work

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return _refusal(problem, TiledConfig(32, 4, 1, 1, 1))

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[TiledConfig]:
        """The default, smaller tiles, larger tiles, then other weights, blocks and occupancies."""
        fit = [tile for tile in TILES if _suits(problem, tile)] or [TILES[-1]]
        weights = "staged" if problem.flops <= STAGED_FLOPS * facts.cores and not staging_refusal(problem) else "packed"
        tiles = [(_with_weights(problem, _config(problem, tile), weights, facts), tile.enough) for tile in fit]

        share = min(1.0, FEW_PRODUCTS / max(problem.taps, 1)) * facts.cores
        busy = [i for i, (config, enough) in enumerate(tiles) if _threads(problem, config) >= enough * share]
        first = min(busy, default=len(tiles) - 1)
        default = tiles[first][0]
        blocks = [replace(default, block_x=x, block_y=y) for x, y in BLOCKS]
        registers = [replace(default, resident=resident) for resident in (512, 768, 1024)]
        rest = [config for config, _ in (*tiles[first:], *reversed(tiles[:first]))]
        others = [_with_weights(problem, default, weights, facts) for weights in WEIGHTS]
        return self.valid(problem, dict.fromkeys((default, *rest[1:], *others, *blocks, *registers)), facts)

    def config_refusal(self, problem: Conv2dProblem, config: TiledConfig, facts: DeviceFacts) -> Reason | None:
        return _refusal(problem, config)

    def kernel(self, problem: Conv2dProblem, config: TiledConfig) -> Kernel:
        layout, staged = _run(problem, config), config.weights == "staged"
        prelude = constants(
            OUT_P=config.out_p, OUT_Q=config.out_q, OUT_K=config.out_k, CHUNK=layout.chunk, LOAD=layout.load,
            SHIFT=layout.shift, STORE_K=layout.store_k, STORE=layout.store, STAGED_WEIGHTS=staged,
            CONSTANT_WEIGHTS=not staged and fits_constant_memory(problem),
            BLOCK_X=config.block_x, BLOCK_Y=config.block_y,
        )  # fmt: skip
        x_run, out_run = ({"c": 1, "w": size} if size > 1 else {"w": 1} for size in (layout.chunk, layout.store_k))
        x = Vectors({"n": problem.n, "c": problem.c // layout.chunk, "h": problem.h}, x_run, layout.load)
        out = Vectors({"n": problem.n, "c": problem.k // layout.store_k, "h": problem.p}, out_run, layout.store)
        return Kernel(
            prelude,
            _grid(problem, config),
            (config.block_x, config.block_y),
            config.resident,
            vectors=(x, out),
            weights=StagedWeights if staged else either_weights,
            pdl=staged,
        )


def _refusal(problem: Conv2dProblem, config: TiledConfig) -> Reason | None:
    if (reason := block_refusal(config.block_x, config.block_y)) is not None:
        return reason
    if config.weights not in WEIGHTS:
        return Reason(
            "weights={weights!r} must be one of {choices}", weights=config.weights, choices=", ".join(WEIGHTS)
        )
    if config.weights == "staged" and (reason := staging_refusal(problem)) is not None:
        return reason
    if (reason := least_refusal(config)) is not None:
        return reason
    if (need := _registers(problem, config)) > MOST_REGISTERS:
        return Reason(
            "a row of the window and the sums of {out_k} x {out_p} x {out_q} outputs take {need} registers; "
            "{most} are to be had",
            out_k=config.out_k, out_p=config.out_p, out_q=config.out_q, need=need, most=MOST_REGISTERS,
        )  # fmt: skip
    return None


def _registers(problem: Conv2dProblem, config: TiledConfig) -> int:
    """Registers for the pixels of one row that the outputs need, and for the sums."""
    numbers = columns_read(problem, config.out_q) * _chunk(problem) + config.out_k * config.out_p * config.out_q
    return numbers * -(-itemsize(problem.acc_dtype) // 4)


def _suits(problem: Conv2dProblem, tile: Tile) -> bool:
    """True if the strides let outputs of this tile share pixels, and the tile stays within its register limit."""
    if (tile.out_p > 1 and problem.stride[0] > 1) or tile.out_q * problem.stride[1] > 4:
        return False
    most = tile.registers if _chunk(problem) == 1 else min(tile.registers, PIXEL_REGISTERS)
    return _registers(problem, _config(problem, tile)) <= most


def _config(problem: Conv2dProblem, tile: Tile) -> TiledConfig:
    """Make a config of a tile, with as many output channels as registers allow."""
    out_p, out_q, resident = tile.out_p, tile.out_q, tile.resident
    out_q *= 1 if itemsize(problem.x_dtype) >= 4 else 2
    width = -(-itemsize(problem.acc_dtype) // 4)
    most = min(8, max(1, 64 // (out_p * out_q * width)))
    out_k = even_share(problem.k_per_group, most)
    if out_k >= 8 and out_p * out_q == 1:
        resident = min(resident, MANY_SUMS_RESIDENT)
    crowded = out_k >= 8 and out_k * problem.r * problem.s * itemsize(problem.acc_dtype) > NEAR_CONSTANT_BYTES
    config = TiledConfig(*(LARGE_BLOCK if crowded else BLOCKS[0]), out_p, out_q, out_k, resident)
    while config.out_k > 1 and _refusal(problem, config) is not None:
        config = replace(config, out_k=config.out_k // 2)
    return config if _registers(problem, config) <= MODEST_REGISTERS else replace(config, resident=512)


def _with_weights(problem: Conv2dProblem, config: TiledConfig, weights: str, facts: DeviceFacts) -> TiledConfig:
    if weights != "staged":
        return replace(config, weights=weights)
    few = _threads(problem, config) <= FEW_RESIDENT * facts.cores
    return replace(config, weights=weights, resident=FEW_RESIDENT if few else STAGED_RESIDENT)


def _threads(problem: Conv2dProblem, config: TiledConfig) -> int:
    return math.prod(_grid(problem, config)) * config.block_x * config.block_y


def _chunk(problem: Conv2dProblem) -> int:
    few = problem.x_layout == "NHWC" and problem.groups == 1 and problem.c <= FEW_CHANNELS
    return problem.c if few else 1


def _run(problem: Conv2dProblem, config: TiledConfig) -> _Run:
    chunk = _chunk(problem)
    load = math.gcd(config.out_q * problem.stride[1] * chunk, VECTOR_BYTES // itemsize(problem.x_dtype))
    together = problem.out_layout == "NHWC" and problem.groups == 1 and config.out_k == problem.k
    store_k = problem.k if together else 1
    store = math.gcd(config.out_q * store_k, VECTOR_BYTES // itemsize(problem.out_dtype))
    return _Run(chunk, load, -problem.padding[2] * chunk % load, store_k, store)


def _grid(problem: Conv2dProblem, config: TiledConfig) -> tuple[int, int, int]:
    return grid(problem, config.block_y * config.out_p, config.block_x * config.out_q, config.out_k)


def ways_to_tiled(read: Reason, nbytes: int) -> tuple[Way, ...]:
    """Return two ways: vector loads, described by `read`, and direct_tiled for arrays that are not aligned.

    Vector loads need addresses and strides that are multiples of `nbytes`, the vector size in bytes.
    """
    return Way("vectors", "default", read), handed_on(DirectTiled.name, nbytes, "x")


def tiled_instead(backend: str, problem: Conv2dProblem, runtime: Runtime) -> Callable[[], Plan]:
    """Return a function that returns the plan of direct_tiled for the same prepared filters, made on its first call."""
    lock = threading.Lock()

    @cache
    def made() -> Plan:
        method = DirectTiled(backend)
        staged = [config for config in method.configs(problem, runtime.facts) if config.weights == "staged"]
        return method.plan(problem, staged[0], runtime)

    def get() -> Plan:
        with lock:
            return made()

    return get
