"""The separable method on GPUs, host side of fused.cu: one tile for both passes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.direct.blocks import even_share
from convforge.algorithms.host.conv import address, conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.host.element_types import TYPES
from convforge.algorithms.host.on_device import DeviceConvolution, least_refusal
from convforge.algorithms.host.plane_tiles import PlaneTiles, odd_vectors, tile_height, tile_width
from convforge.algorithms.host.resident import as_many_as_run, blocks_held, compiled, with_occupancy_cap
from convforge.algorithms.separable.factor import DeviceFactors
from convforge.algorithms.separable.factors import integer_refusal, less_arithmetic, two_passes
from convforge.algorithms.traits import Mark, MethodCost
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, itemsize

# Values worth comparing: outputs of a thread along P, strips of a tile, columns of a tile, and sums of a row that a
# thread computes at a time in the first pass.
OUT_P, STRIPS, COLUMNS, ALONG = (4, 8, 16, 24), (1, 2, 4, 8), (16, 32, 64, 128), (8, 16)

# Taps of a row that are loaded together: all if they take up to LONGEST_BYTES, else CHUNK at a time.
LONGEST_BYTES, CHUNK = 128, 16

# Registers of a thread for taps and sums, at most, of its 255.
MOST_REGISTERS = 160

# Configs that are worth trying, at most.
MOST_CONFIGS = 10


@dataclass(frozen=True, slots=True)
class FusedConfig(Config):
    """Tile of the fused kernel."""

    out_p: int  # outputs of a column that a thread computes
    strips_y: int  # strips of a tile along P
    tile_q: int  # columns of a tile; a multiple of `along`
    along: int = 8  # sums of a row that a thread computes at a time in the first pass; a multiple of 16 bytes
    planes: int = 1  # neighbouring output channels of a block, which has strips_y * tile_q * planes threads
    resident: int = 512  # resident threads per SM, at least; see :func:`compiled`

    @property
    def threads(self) -> int:
        return self.strips_y * self.tile_q * self.planes


# The config with the smallest needs.
LEAST = FusedConfig(4, 2, 16, 8)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of shared memory, in elements; see fused.cu."""

    raw: bool
    fill: int
    shift: int
    load: int
    pitch: int
    plane: int
    middle_pitch: int
    middle: int
    rows: int
    width: int
    shared_bytes: int


class Separable(DeviceConvolution[FusedConfig]):
    """Both passes in one kernel: R + S products per output and outer product. Supports any rank, as on the CPU."""

    name = "separable"
    summary = "the filter as a few products of 1-D filters (SVD), both passes in one tile in shared memory"
    since = "direct_shared"
    precision = "separable"
    cost = MethodCost(0.40, 0.6, 2048, 2)
    look = Mark("vermillion", "cross")
    work_for = two_passes
    preference_for = less_arithmetic

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return integer_refusal(problem) or config_refusal(problem, LEAST, facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[FusedConfig]:
        beside = even_share(problem.k, 4) if "NHWC" in (problem.x_layout, problem.out_layout) else 1
        found = {
            FusedConfig(out_p, strips_y, tile_q, along, planes)
            for out_p in OUT_P for strips_y in STRIPS for tile_q in COLUMNS for along in ALONG
            for planes in {1, beside, _small_planes(problem, strips_y * tile_q)}
        }  # fmt: skip
        fit = [c for c in found if 64 <= c.threads <= 512 and config_refusal(problem, c, facts) is None] or [LEAST]
        return sorted(fit, key=lambda config: (modelled_cycles(problem, config, facts), str(config)))[:MOST_CONFIGS]

    def plan(self, problem: Conv2dProblem, config: FusedConfig, runtime: Runtime) -> Plan:
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        pointers = dict.fromkeys(("rows", "columns", "ranks"), ctypes.c_void_p)
        tiles = {"tiles": PlaneTiles.struct, "count": ctypes.c_int}
        struct = with_conv("Separable", problem, **pointers, aligned_x=ctypes.c_int, **tiles)
        layout = _layout(problem, config)
        prelude = constants(
            OUT_P=config.out_p, STRIPS_Y=config.strips_y, TILE_Q=config.tile_q, ALONG=config.along,
            PLANES=config.planes, IN_CHANNELS_LAST=problem.x_layout == "NHWC",
            OUT_CHANNELS_LAST=problem.out_layout == "NHWC", RAW=layout.raw, FILL=layout.fill, SHIFT=layout.shift,
            LOAD=layout.load, PITCH=layout.pitch, PLANE=layout.plane, MIDDLE_PITCH=layout.middle_pitch,
            MIDDLE=layout.middle,
            CHUNK_R=_chunk(problem.r, problem), CHUNK_S=_chunk(problem.s, problem),
        )  # fmt: skip
        held = f"using tile_t = {TYPES[problem.x_dtype if layout.raw else problem.acc_dtype]};"
        source = KernelSource(
            "algorithms/separable/fused.cu", "separable", (*conv_constants(problem), held, *prelude), struct,
            "Separable",
        )  # fmt: skip
        kernel = compiled(runtime, source, config.threads, config.resident)
        numbered = _tiles(problem, config)
        divisors = numbered.divisors()
        info = LaunchInfo("separable", (numbered.count,), (config.threads,), layout.shared_bytes, pdl=True)
        info = as_many_as_run(with_occupancy_cap(runtime, kernel, info), runtime.facts, config.resident)
        x_bytes, x_sizes = itemsize(problem.x_dtype), {"n": problem.n, "c": problem.c, "h": problem.h}
        x_run = {"w": 1} if layout.fill > 1 else {}

        def arguments(buffers: Buffers) -> Any:
            tensors = buffers["w"].tensors
            args = struct(**{name: address(tensors[name]) for name in pointers})
            fill(args.conv, problem, buffers)
            args.tiles, args.count = divisors, numbered.count
            args.aligned_x = is_aligned(args.conv.x, args.conv.x_strides, x_sizes, x_run, layout.fill, x_bytes)
            return args

        step, factors = Launch(info, kernel, arguments, runtime), DeviceFactors(problem, runtime)
        return Plan(self, problem, config, runtime, steps=[step], prepare=factors)


def config_refusal(problem: Conv2dProblem, config: FusedConfig, facts: DeviceFacts) -> Reason | None:
    if (reason := least_refusal(config)) is not None:
        return reason
    if not 32 <= config.threads <= 1024:
        return Reason("a block has 32 to 1024 threads; {threads} are asked for", threads=config.threads)
    sums = VECTOR_BYTES // itemsize(problem.acc_dtype)
    if config.tile_q % config.along or config.along % sums:
        return Reason(
            "along={along} must divide tile_q={tile_q}, and be a multiple of {sums}",
            along=config.along, tile_q=config.tile_q, sums=sums,
        )  # fmt: skip
    if (need := _registers(problem, config)) > MOST_REGISTERS:
        return Reason("taps and sums take {need} registers; {most} are to be had", need=need, most=MOST_REGISTERS)
    if (room := _layout(problem, config).shared_bytes) > facts.block_shared_bytes:
        return Reason(
            "the tiles of both passes take {room} bytes of shared memory; a block has {most}",
            room=room,
            most=facts.block_shared_bytes,
        )
    return _tiles(problem, config).refusal


def modelled_cycles(problem: Conv2dProblem, config: FusedConfig, facts: DeviceFacts) -> float:
    """Estimate cycles of an SM for one outer product, over all channels, to compare configs.

    Per cycle, an SM issues 4 warp instructions, shared memory moves 128 bytes, and L2 delivers 32. Counts come from
    fused.cu; a copied vector takes about 10 instructions, an output 6. Eight warps hide all latency; with fewer, the
    time grows in proportion.
    """
    layout = _layout(problem, config)
    size, warps = itemsize(problem.acc_dtype), -(-config.threads // 32)
    wide = size // 4  # a double has two words and takes about two cycles
    items = config.planes * (config.tile_q // config.along) * layout.rows
    turns = -(-items // config.threads) * warps  # warp iterations of the row pass
    loads = -(-((config.along - 1) * problem.stride[1] + problem.dilation[1] * (problem.s - 1) + 1) // layout.load)
    taps = -(-problem.s // 4) + 4
    span = (config.out_p - 1) * problem.stride[0] + problem.dilation[0] * (problem.r - 1) + 1
    copies = config.planes * layout.rows * -(-layout.width // layout.fill) / 32
    along, down = config.along * problem.s + loads + taps + 12, config.out_p * (problem.r + 6) + span + taps + 12
    issued = (turns * along + warps * down) * wide + 10 * copies
    tile_bytes = itemsize(problem.x_dtype) if layout.raw else size
    pixels = max(1.0, layout.load * tile_bytes / 4)
    shared = turns * (loads * pixels + config.along * wide + taps) + warps * (span * wide + taps)
    shared += copies * max(1.0, layout.fill * tile_bytes / 4)
    moved = (
        config.planes * (layout.rows * layout.width + config.threads * config.out_p / config.planes) * tile_bytes / 32
    )
    blocks = _tiles(problem, config).count
    rereads = 3 if problem.x_layout == "NHWC" and problem.c > config.planes else 1  # channels reread memory lines
    possible = blocks_held(facts, warps, layout.shared_bytes, 40 + _registers(problem, config))
    at_once = max(1, min(possible, -(-blocks // facts.cores)))
    held = at_once * warps
    alone = 1.3 if at_once < 2 else 1.0  # if the SM's only block waits, the SM is idle
    waves = math.ceil(blocks / facts.cores)
    return waves * problem.c_per_group * max(issued / 4, shared, moved * rereads) * max(1.0, 8 / held) * alone


def _small_planes(problem: Conv2dProblem, threads: int) -> int:
    """Planes of a block if a tile has few threads."""
    return max(1, min(problem.n * problem.k, 128 // threads))


def _chunk(taps: int, problem: Conv2dProblem) -> int:
    """Number of taps that are loaded together."""
    return taps if taps * itemsize(problem.acc_dtype) <= LONGEST_BYTES else CHUNK


def _registers(problem: Conv2dProblem, config: FusedConfig) -> int:
    numbers = max(config.along + _chunk(problem.s, problem), config.out_p + _chunk(problem.r, problem))
    return numbers * -(-itemsize(problem.acc_dtype) // 4)


def _layout(problem: Conv2dProblem, config: FusedConfig) -> _Layout:
    raw = problem.padding_mode != "constant" or problem.x_dtype == problem.acc_dtype
    x_bytes, acc_bytes = itemsize(problem.x_dtype), itemsize(problem.acc_dtype)
    tile_bytes = x_bytes if raw else acc_bytes
    interleaved = problem.x_layout == "NHWC" and problem.c > 1
    vector = math.gcd(problem.w, config.tile_q * problem.stride[1], VECTOR_BYTES // x_bytes)
    copied = 1 if interleaved or not raw or vector * x_bytes < 4 else vector
    shift = -problem.padding[2] % copied
    chunk, step = _chunk(problem.s, problem), config.along * problem.stride[1]
    load = math.gcd(step, VECTOR_BYTES // tile_bytes, chunk * problem.dilation[1] if chunk < problem.s else step)

    width = shift + tile_width(problem, config.tile_q)
    reach = [-(-width // copied) * copied]
    for first in range(0, problem.s, chunk):
        count = min(chunk, problem.s - first)
        span = shift + (config.along - 1) * problem.stride[1] + (count - 1) * problem.dilation[1] + 1
        last = (config.tile_q // config.along - 1) * step + first * problem.dilation[1]
        reach.append(last + -(-span // load) * load)
    pitch = odd_vectors(max(reach), tile_bytes)
    rows = tile_height(problem, config.strips_y * config.out_p)
    middle_pitch = odd_vectors(config.tile_q, acc_bytes)
    plane, middle = rows * pitch, rows * middle_pitch
    if config.planes > 1:  # avoid bank conflicts between the planes of a pixel
        banks = 128 // acc_bytes
        middle += (-(-banks // config.planes) + 3 & ~3) - middle % banks
        middle += banks * (middle < rows * middle_pitch)
    weights = sum(-(-taps * acc_bytes // VECTOR_BYTES) * VECTOR_BYTES for taps in (problem.r, problem.s))
    nbytes = config.planes * (2 * weights + middle * acc_bytes + plane * tile_bytes)
    return _Layout(raw, copied, shift, load, pitch, plane, middle_pitch, middle, rows, width, nbytes)


def _tiles(problem: Conv2dProblem, config: FusedConfig) -> PlaneTiles:
    return PlaneTiles.of(problem, config.strips_y * config.out_p, config.tile_q, config.planes)
