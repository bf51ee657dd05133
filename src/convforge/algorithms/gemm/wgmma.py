"""Host side of wgmma.cu: the matrix product of 16-bit types on Hopper's tensor cores."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import starmap
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.gemm.device import plain_b
from convforge.algorithms.gemm.mma import GemmMma
from convforge.algorithms.host.conv import address
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.host.on_device import OnDevice, require
from convforge.algorithms.host.resident import persistent, with_occupancy_cap
from convforge.algorithms.implicit_gemm import wgmma_configs as model
from convforge.algorithms.implicit_gemm.wgmma import MAPS_KEPT, TENSOR_PRODUCTS, device_refusal, wgmma_lines
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work, handed_on
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import ALIGNMENT, TiledMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.backends.structs import MapField, struct_with_maps
from convforge.backends.structs import WithMaps as StructWithMaps
from convforge.errors import Reason
from convforge.problem import GemmProblem

# NumPy's name of a type -> PTX's name.
TYPES = {"float16": "f16", "bfloat16": "bf16"}

# Bytes of a number; numbers in a row of 128 bytes, which is a step along K and the side of a TMA box.
SIZE, ROW = 2, 64
# Most sums of a thread, limited by its registers; most columns of one wgmma product.
MOST_SUMS, MOST_COLUMNS = 192, 256
EXTRA_BYTES = 512  # bytes of shared memory for barriers, in addition to tiles and their alignment


@dataclass(frozen=True, slots=True)
class GemmWgmmaConfig(Config):
    """Tiles of :class:`GemmWgmma`."""

    block_m: int = 128  # rows of the part of C that a block computes at a time
    block_n: int = 256  # columns of that part
    ping_pong: bool = False  # the two warpgroups take turns with a tile each; else they share every tile
    stages: int = 4  # steps of 64 along K that are in shared memory at once
    group: int = 16  # rows of tiles that are computed together, so that they share columns of B in L2
    # The two SMs of a cluster compute tiles one below the other. Each loads half of the columns of B for both.
    paired: bool = False

    @property
    def rows(self) -> int:
        """Rows of a tile that a warpgroup multiplies."""
        return self.block_m if self.ping_pong else self.block_m // 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block in bytes: struct Memory of wgmma.cu, and its alignment."""
        return (4 * ROW + self.stages * (self.block_m + self.block_n)) * ROW * SIZE + 1024


# The most promising for large M and N first.
TILES = tuple(starmap(GemmWgmmaConfig, (
    (128, 256, False), (256, 128, False), (256, 192, False), (128, 192, True), (128, 192, False), (128, 128, True),
    (128, 128, False), (64, 256, True), (64, 192, True), (64, 128, True), (128, 64, True), (64, 64, True),
)))  # fmt: skip


class GemmWgmma(OnDevice[GemmProblem, GemmWgmmaConfig]):
    """Matrix product of 16-bit types on Hopper's tensor cores; the TMA loads and stores the tiles.

    If the rows of a matrix are no multiples of 16 bytes, or its layout is not the problem's, the call uses gemm_mma,
    which is compiled when it is first needed.
    """

    name = "gemm_wgmma"
    summary = "16-bit types on the tensor cores of Hopper, which read the tiles that its TMA loads; sm_90"
    operation = "gemm"
    since = "gemm_mma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    look = Mark("pink", "circle")

    def work_for(self, problem: GemmProblem) -> Work:
        return Work(problem.flops / TENSOR_PRODUCTS, problem.least_bytes)

    def preference_for(self, problem: GemmProblem, facts: DeviceFacts) -> Preference | None:
        preferred = Preference(Rank.TENSOR_CORES, "16 bits: tensor cores, whose tiles the TMA loads")
        return preferred if problem.dtype in TYPES else None

    def ways(self, problem: GemmProblem, config: GemmWgmmaConfig) -> tuple[Way, ...]:
        stored = Reason("the TMA loads tiles of A and B and stores tiles of C; the tensor cores multiply them")
        return Way("tensor_cores", "default", stored), handed_on(GemmMma.name, ALIGNMENT, Reason("A, B or C"))

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := device_refusal(facts)) is not None:
            return reason
        if problem.dtype not in TYPES:
            return Reason("A and B must be of one type of {names}, not {dtype}", names=", ".join(TYPES),
                          dtype=problem.dtype)  # fmt: skip
        if not problem.outputs * problem.k:
            return Reason("it multiplies matrices that have at least one element")
        stored = (*problem.operands, *problem.results)
        for name, axes in ((operand.name.upper(), operand.shape) for operand in stored):
            if axes[-1] * SIZE % ALIGNMENT:
                return Reason(
                    "the TMA loads and stores rows of multiples of {bytes} bytes; {name} has rows of {count} elements",
                    bytes=ALIGNMENT, name=name, count=axes[-1],
                )  # fmt: skip
        if max(problem.sides) >= 2**31 - 256 or -(-problem.m // 64) * -(-problem.n // 64) >= 2**30:
            return Reason("the matrices have more tiles than a launch counts")
        return None

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[GemmWgmmaConfig]:
        found = []
        for tile in TILES:
            if tile.block_m >= 2 * max(problem.m, 64) or tile.block_n >= 2 * max(problem.n, 64):
                continue
            group = max(1, round(math.sqrt(facts.cores * tile.block_n / tile.block_m)))
            config = replace(tile, stages=8, group=group)
            while config.stages > 2 and config.shared_bytes + EXTRA_BYTES > facts.block_shared_bytes:
                config = replace(config, stages=config.stages - 1)
            found.append(config)
        found.sort(key=lambda config: modelled_cycles(problem, config, facts))
        several = [config for config in found if problem.m > config.block_m]
        pairs = [config for config in several if config_refusal(replace(config, paired=True), facts) is None]
        return [*found[:1], *(replace(config, paired=True) for config in pairs[: model.TRIED_IN_PAIRS]), *found[1:]]

    def plan(self, problem: GemmProblem, config: GemmWgmmaConfig, runtime: Runtime) -> Plan:
        require(config, config_refusal(config, runtime.facts))
        a_across, b_across = problem.transpose_a, not problem.transpose_b  # MN-major operands
        of_cluster = 2 if config.paired else 1  # blocks of a cluster, which load for each other
        tiles = -(-problem.m // (config.block_m * of_cluster)), -(-problem.n // config.block_n)
        prelude = constants(
            BLOCK_M=config.block_m, BLOCK_N=config.block_n, PING_PONG=config.ping_pong, STAGES=config.stages,
            GROUP=max(1, config.group // of_cluster), PAIRED=config.paired, A_ACROSS=a_across, B_ACROSS=b_across,
            SHARED_BYTES=config.shared_bytes,
        )  # fmt: skip
        types, kind = ElementTypes(out=problem.dtype, acc="float32").prelude(), TYPES[problem.dtype]
        lines = (*types, *prelude, *wgmma_lines(config.block_n, kind, kind, (a_across, b_across)))
        struct = _struct()
        source = KernelSource("algorithms/gemm/wgmma.cu", "gemm_wgmma", lines, struct, "Wgmma", feature="a")
        kernel = runtime.compile(source)
        cluster = (of_cluster,) if config.paired else ()
        grid = persistent(math.prod(tiles) * of_cluster, runtime.facts, of_cluster)
        info = LaunchInfo("gemm_wgmma", grid, (384,), config.shared_bytes, cluster=cluster, pdl=True)
        kept = lru_cache(maxsize=MAPS_KEPT)
        maps = {
            "a": kept(partial(matrix_map, block=config.block_m, across=a_across)),
            "b": kept(partial(matrix_map, block=config.block_n // of_cluster, across=b_across)),
            "c": kept(results_map),
        }

        device: Any = runtime  # a runtime with a TMA

        def arguments(buffers: Buffers) -> Any:
            args = struct()
            arrays = {"a": buffers["a"], "b": buffers["b"].tensors["b"], "c": buffers["c"]}
            for name, array in arrays.items():
                tensor_map = maps[name](address(array), tuple(array.shape), tuple(array.strides))
                if tensor_map is None:
                    return None
                args.put_map(name, tensor_map, device.tensor_map(tensor_map))
            args.tiles_m, args.tiles_n = tiles
            args.steps = -(-problem.k // ROW)
            # Copies that load an operand's part of a stage: one, except for an MN-major operand of ragged length.
            args.boxes_a = config.block_m // ROW if a_across and problem.m % ROW else 1
            args.boxes_b = config.block_n // of_cluster // ROW if b_across and problem.n % ROW else 1
            return args

        def otherwise() -> Plan:
            step = GemmMma(self.backend)
            return step.plan(problem, step.configs(problem, runtime.facts)[0], runtime)

        info = with_occupancy_cap(runtime, kernel, info)
        launch = Launch(info, kernel, arguments, runtime, otherwise=cache(otherwise))
        return Plan(self, problem, config, runtime, steps=[launch], prepare=plain_b(runtime))


def config_refusal(config: GemmWgmmaConfig, facts: DeviceFacts) -> Reason | None:
    """The reason why a config is impossible; None if it is possible."""
    if config.rows < ROW or config.rows % ROW or config.block_m % config.rows:
        return Reason("a warpgroup multiplies 64 rows at a time; it has {rows} of them", rows=config.rows)
    if config.block_n % ROW or not ROW <= config.block_n <= MOST_COLUMNS:
        return Reason("results are stored 64 columns at a time, at most {most}; block_n={columns} is none of these",
                      columns=config.block_n, most=MOST_COLUMNS)  # fmt: skip
    if config.paired and config.block_n % (2 * ROW):
        return Reason("half of {columns} columns is not whole boxes of {width}", columns=config.block_n, width=ROW)
    if config.block_m > MOST_COLUMNS:
        return Reason("a copy loads at most {most} rows", most=MOST_COLUMNS)
    if config.rows * config.block_n // 128 > MOST_SUMS:
        return Reason("{rows} x {columns} sums of a warpgroup are more than its registers hold",
                      rows=config.rows, columns=config.block_n)  # fmt: skip
    if config.stages < 2 or config.group < 1:
        return Reason("a stage is free one step after its products: at least two are needed")
    if (together := config.shared_bytes + EXTRA_BYTES) > facts.block_shared_bytes:
        return Reason("tiles take {together} bytes of shared memory; a block has {room}",
                      together=together, room=facts.block_shared_bytes)  # fmt: skip
    return None


def modelled_cycles(problem: GemmProblem, config: GemmWgmmaConfig, facts: DeviceFacts) -> float:
    """Estimate the cycles of a call by the model of implicit_gemm_wgmma."""
    outputs = config.block_m * config.block_n
    most = -(-(-(-problem.m // config.block_m) * -(-problem.n // config.block_n)) // facts.cores)
    steps = -(-problem.k // ROW)
    read = (64 + config.block_n) * ROW * SIZE
    each = max(64 * config.block_n * ROW / model.PRODUCTS_A_CYCLE, read / model.READ_A_CYCLE) + model.STEP_CYCLES
    loads = (config.block_m + config.block_n) * ROW * SIZE / model.LOADED_A_CYCLE
    tile = steps * max(config.block_m / 64 * each, loads) * (1 + model.SHALLOW * max(0, model.DEEP - config.stages))
    return model.call_cycles(most, tile, outputs, config.ping_pong)


def matrix_map(
    at: int, shape: tuple[int, ...], strides: tuple[int, ...], *, block: int, across: bool
) -> TiledMap | None:
    """Tensor map of a stored matrix, with boxes of rows of 64 numbers; None if the TMA cannot load it.

    A K-major matrix has boxes of `block` rows. An MN-major matrix has boxes of 64 x 64, several for each `block`. If
    whole boxes cover the matrix, a third axis of the map counts them.

    Examples
    --------
    >>> matrix_map(1 << 20, (100, 72), (144, 2), block=128, across=False).box
    (64, 128, 1)
    >>> matrix_map(1 << 20, (100, 128), (256, 2), block=256, across=True).sizes
    (64, 100, 2)
    """
    if (pitch := _pitch(shape, strides)) is None:
        return None
    count, length = shape
    if not across:
        sizes, steps, box = (length, count, 1), (pitch, pitch), (ROW, block, 1)
    elif length % ROW or block == ROW:
        sizes, steps, box = (length, count, 1), (pitch, pitch), (ROW, ROW, 1)
    else:
        sizes, steps, box = (ROW, count, length // ROW), (pitch, ROW * SIZE), (ROW, ROW, block // ROW)
    tensor_map = TiledMap(at, "u16", sizes, steps, box, swizzle=ROW * SIZE)
    return None if tensor_map.refusal() else tensor_map


def results_map(at: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> TiledMap | None:
    """Tensor map of C, with boxes of 64 x 64; None if the TMA cannot store it."""
    if (pitch := _pitch(shape, strides)) is None:
        return None
    tensor_map = TiledMap(at, "u16", shape[::-1], (pitch,), (ROW, ROW), swizzle=ROW * SIZE)
    return None if tensor_map.refusal() else tensor_map


def _pitch(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Bytes from one row to the next; None where a row is not contiguous, or rows overlap."""
    if shape[1] > 1 and strides[1] != SIZE:
        return None
    if shape[0] == 1:
        return shape[1] * SIZE
    return strides[0] if strides[0] >= shape[1] * SIZE else None


@cache
def _struct() -> type[StructWithMaps]:
    """struct Wgmma of wgmma.cu."""
    counts = ("tiles_m", "tiles_n", "steps", "boxes_a", "boxes_b")
    return struct_with_maps("Wgmma", {**dict.fromkeys("abc", MapField), **dict.fromkeys(counts, ctypes.c_int)}.items())
