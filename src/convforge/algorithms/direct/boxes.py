"""Host side of boxes.cu: the tile of a block, and the TMA map of the image."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

from convforge.algorithms.contract import Buffers, Launch, Plan
from convforge.algorithms.direct.blocks import block_refusal, box_work, columns_read, compiled_for, even_share
from convforge.algorithms.direct.box import (
    MOST_TAPS,
    Box,
    BoxesConfig,
    box_map,
    box_of,
    groups_share_a_box,
    is_filled,
    outside_refusal,
    slices_of,
    tiles_of,
)
from convforge.algorithms.direct.tiled import MOST_REGISTERS, tiled_instead, ways_to_tiled
from convforge.algorithms.host.conv import (
    Divisor,
    address,
    conv_constants,
    conv_struct,
    divisor,
    fill,
    is_aligned,
    pixel_channels,
)
from convforge.algorithms.host.on_device import DeviceConvolution, least_refusal
from convforge.algorithms.host.resident import with_occupancy_cap
from convforge.algorithms.host.staged import Filter, StagedWeights, staged_bytes, staging_refusal
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import MOST_UNITS, AnyMap, TiledMap
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.backends.structs import MapField, struct_with_maps
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, is_integer, itemsize

# First architecture with the TMA.
FIRST_ARCHITECTURE = 90

# Channels in NHWC, at most, because a TMA tile holds whole pixels.
MOST_CHANNELS = 4


class Shape(NamedTuple):
    """A block shape. The default is the first shape that fits and gives the SMs enough tiles."""

    strips: int
    lanes: int
    out_p: int
    stages: int
    blocks: int  # blocks per SM
    enough: int  # tiles per SM, at least: large tiles have little halo, but many tiles keep all SMs busy
    registers: int  # registers of a thread, at most


SHAPES = (
    Shape(8, 32, 4, 2, 1, 7, 56),
    Shape(4, 32, 2, 2, 2, 1, 88),
    Shape(4, 16, 2, 2, 2, 1, 72),
    Shape(4, 16, 1, 2, 2, 0, 96),
    Shape(4, 16, 1, 2, 1, 0, MOST_REGISTERS),
    Shape(2, 16, 1, 2, 1, 0, MOST_REGISTERS),
    Shape(4, 8, 1, 2, 2, 0, MOST_REGISTERS),
    Shape(4, 8, 1, 1, 1, 0, MOST_REGISTERS),
)

# Tiles of the last shape per SM up to which a thread computes one output channel.
FEW_TILES = 2

# Registers of a thread, at most, if pixels have contiguous channels: each pixel is read for more outputs.
PIXEL_REGISTERS = 96

# If TMA tiles are small, more blocks share an SM, up to BUSY_BYTES loaded or in flight or BUSY_THREADS threads.
# Tiles of one plane, and of pixels with contiguous channels, need little time per byte, so their limit is 1.5 times
# as many bytes.
BUSY_BYTES, BUSY_THREADS = 48 << 10, 768

# Taps of a plane up to which a thread keeps them in registers: HOLDS of boxes.cu.
HELD_TAPS = 32
# Taps up to which several output channels need few multiply-adds. Halving the rows then stores outputs sooner.
FEW_TAPS = 3
# Taps up to which a thread without taps in registers still computes a tall tile, for 4-byte pixels.
FEW_FREE_TAPS = 49

# Threads along q of the largest tile, if memory is the limit and rows are long; the one that wastes least is used.
LANES_OF_ROWS = range(64, 31, -8)

# Bytes of an L2 line. The TMA requests each line that a row of a TMA tile touches, and requests it twice if the row
# crosses a line of shared memory within it. Rows aligned to lines on both sides need the fewest requests.
LINE_BYTES = 128
ALIGNMENTS = (16, 32, 64, LINE_BYTES)

# Output channels of a thread, at most: with more, a tile has few positions, so its TMA tile has more halo.
MOST_OUTPUTS = 4

# Tiles of a launch, at most: kernels count them in 32 bits, and a block counts ahead.
MOST_TILES = 2**30

# Bytes of shared memory of a block besides its TMA tiles: barriers, bytes reserved by the driver, alignment.
EXTRA_BYTES = 1024 + 256

# Threads that can exchange pixels, and pixels that a thread gets from its neighbours, at most: with more, the
# instructions cost more than the saved reads.
WARP, MOST_SHARED = 32, 2

# TMA maps that a plan caches, because encoding one costs microseconds.
KEPT_MAPS = 64

# Output channels of a group up to which TMA tiles are faster; with more, multiply-adds are the limit and taps in
# constant memory are faster. Pixels of a plane up to which TMA tiles are faster; above it, memory limits both and the
# other method waits less. Pixels of a plane from which they are faster with more than FEW_CHANNELS input channels or
# with several groups.
FEW_CHANNELS, MOST_PIXELS, MANY_PIXELS = 4, 48 << 20, 512 * 512


class _WithMaps(Runtime, Protocol):
    """A runtime of a device with the TMA."""

    def tensor_map(self, tensor: AnyMap) -> bytes:
        """Encode a TMA map as kernel arguments."""
        ...


class DirectBoxes(DeviceConvolution[BoxesConfig]):
    """A block computes one tile after another from TMA tiles of pixels, which are loaded ahead.

    The TMA reads arrays with address and strides that are multiples of 16 bytes, and with rows without gaps. For other
    arrays, the plan of :class:`DirectTiled` is compiled on first use.
    """

    name = "direct_boxes"
    summary = "tile after tile of pixels that the TMA loads ahead; sm_90 and later"
    since = "direct_tiled"
    cost = MethodCost(0.50, 0.9, 2048, 1)
    look = Mark("crimson", "diamond")

    def work_for(self, problem: Conv2dProblem) -> Work:
        return box_work(problem)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        few = problem.groups == 1 and problem.c <= FEW_CHANNELS
        least = 0 if few else MANY_PIXELS
        if problem.k_per_group > FEW_CHANNELS or not least <= problem.h * problem.w <= MOST_PIXELS:
            return None
        each = problem.groups == problem.c > 1 and problem.r * problem.s <= MOST_TAPS
        rank = Rank.FEW_CHANNELS_EACH if each else Rank.FEW_CHANNELS
        return Preference(rank, "few channels: the next boxes of pixels come while one is computed")

    def ways(self, problem: Conv2dProblem, config: BoxesConfig) -> tuple[Way, ...]:
        return ways_to_tiled(Reason("the TMA loads boxes of x"), VECTOR_BYTES)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if Architecture.parse(facts.architecture).number < FIRST_ARCHITECTURE:
            return Reason(
                "{name} is {architecture}; the tensor memory accelerator came with sm_{first}",
                name=facts.name, architecture=facts.architecture, first=FIRST_ARCHITECTURE,
            )  # fmt: skip
        if problem.x_layout == "NHWC" and problem.c > MOST_CHANNELS:
            return Reason(
                "a box takes whole pixels of up to {most} channels in NHWC; these have {count}",
                most=MOST_CHANNELS,
                count=problem.c,
            )
        row = problem.w * pixel_channels(problem) * itemsize(problem.x_dtype)
        if row % VECTOR_BYTES:
            return Reason(
                "a row of pixels has {row} bytes; the tensor memory accelerator takes multiples of {most}",
                row=row,
                most=VECTOR_BYTES,
            )
        if (reason := staging_refusal(problem) or outside_refusal(problem)) is not None:
            return reason
        if _fitting(problem, facts):
            return None
        return config_refusal(problem, replace(_config(problem, SHAPES[-1], facts), alignment=VECTOR_BYTES), facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[BoxesConfig]:
        """The default first, then other shapes, then the default with other fields."""
        fit = _fitting(problem, facts)
        busy = [config for config, enough in fit if tiles_of(problem, config) >= enough * facts.cores]
        least = _of_one_channel(problem, fit[-1][0])
        few = tiles_of(problem, least) <= FEW_TILES * facts.cores
        default = least if few else (busy or [config for config, _ in fit[-1:]])[0]
        shapes = [config for config, _ in fit][:6]
        others = (
            replace(default, stages=default.stages + 1), replace(default, stages=max(1, default.stages - 1)),
            replace(default, blocks=default.blocks + 1), replace(default, blocks=max(1, default.blocks - 1)),
            replace(default, strips=2 * default.strips), replace(default, out_p=2 * default.out_p),
            replace(default, alignment=VECTOR_BYTES),
        )  # fmt: skip
        found = dict.fromkeys((default, *shapes, *others))
        return [config for config in found if config_refusal(problem, config, facts) is None]

    def plan(self, problem: Conv2dProblem, config: BoxesConfig, runtime: Runtime) -> Plan:
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        box = box_of(problem, config)
        struct = _struct(problem)
        kernel, blocks = _compiled(problem, config, box, struct, runtime)
        weights = StagedWeights(problem, runtime, kernel)
        across, down = -(-problem.q // (config.lanes * config.out_q)), -(-problem.p // (config.strips * config.out_p))
        divisors = [divisor(max(count, 1)) for count in (across, down)]
        tiles = tiles_of(problem, config)
        grid = (min(tiles, runtime.facts.cores * blocks),)
        threads, shared = config.strips * config.lanes, config.stages * box.nbytes
        info = with_occupancy_cap(runtime, kernel, LaunchInfo("direct_boxes", grid, (threads,), shared, pdl=True))
        out_bytes = itemsize(problem.out_dtype)
        out_sizes = {"n": problem.n, "c": problem.k // box.store_k, "h": problem.p}
        out_run = {"c": 1, "w": box.store_k} if box.store_k > 1 else {"w": 1}

        @lru_cache(maxsize=KEPT_MAPS)
        def map_of(where: int, strides: tuple[int, ...]) -> TiledMap | None:
            return box_map(problem, box, where, strides)

        def arguments(buffers: Buffers) -> Any:
            tensor = map_of(address(buffers["x"]), tuple(buffers["x"].strides))
            if tensor is None:
                return None
            args = struct()
            conv = args.conv
            args.put_map("map", tensor, cast(_WithMaps, runtime).tensor_map(tensor))
            fill(conv, problem, buffers)
            args.filter = weights.filter(buffers["w"])
            args.tiles, args.across, args.down = tiles, *divisors
            args.aligned_out = is_aligned(conv.out, conv.out_strides, out_sizes, out_run, box.store, out_bytes)
            return args

        step = Launch(info, kernel, arguments, runtime, otherwise=tiled_instead(self.backend, problem, runtime))
        return Plan(self, problem, config, runtime, steps=[step], prepare=weights)


def config_refusal(problem: Conv2dProblem, config: BoxesConfig, facts: DeviceFacts) -> Reason | None:
    if (reason := least_refusal(config)) is not None:
        return reason
    if config.alignment not in ALIGNMENTS:
        return Reason(
            "rows of a box begin at multiples of {alignments} bytes; got {alignment}",
            alignments=", ".join(map(str, ALIGNMENTS)),
            alignment=config.alignment,
        )
    if (reason := block_refusal(config.strips, config.lanes)) is not None:
        return reason
    if groups_share_a_box(problem) and config.out_k != problem.k:
        return Reason(
            "groups share the pixels of a box, so a thread has all {k} outputs of one; got {out_k}",
            k=problem.k,
            out_k=config.out_k,
        )
    box = box_of(problem, config)
    step = config.lanes * config.out_q * problem.stride[1] * box.chunk * box.size
    if step % VECTOR_BYTES:
        return Reason(
            "boxes begin {step} bytes apart; that must be a multiple of {vector}", step=step, vector=VECTOR_BYTES
        )
    if max(box.units) > MOST_UNITS:
        return Reason(
            "a box of {units} units is too large: an axis has at most {most}",
            units=" x ".join(map(str, box.units)),
            most=MOST_UNITS,
        )
    together = config.stages * box.nbytes + _filter_bytes(problem, box) + EXTRA_BYTES
    room = min(facts.block_shared_bytes, facts.shared_bytes // config.blocks)
    if together > room:
        return Reason(
            "{stages} boxes take {together} bytes of shared memory with the filter; a block has {room}",
            stages=config.stages, together=together, room=room,
        )  # fmt: skip
    if (need := _registers(problem, config)) > MOST_REGISTERS:
        return Reason(
            "a row of the window, the sums and the taps take {need} registers; {most} are to be had",
            need=need,
            most=MOST_REGISTERS,
        )
    if (tiles := tiles_of(problem, config)) > MOST_TILES:
        return Reason("{tiles} tiles are more than the {most} that a launch counts", tiles=tiles, most=MOST_TILES)
    return None


def threads_share(problem: Conv2dProblem, config: BoxesConfig, box: Box) -> bool:
    """True if threads exchange pixels of a row: a warp has whole row parts, and a thread needs only its neighbour's.

    It does not pay with several output channels, because multiply-adds are the limit, nor with contiguous channels,
    because the pixels of threads overlap little.
    """
    alone = box.chunk == config.out_k == 1 and box.size == itemsize(problem.acc_dtype) == 4
    ends = min(config.lanes, WARP)
    whole = WARP % ends == 0 and config.lanes % ends == 0 and config.strips * config.lanes % WARP == 0
    run = (config.out_q - 1) * problem.stride[1] + problem.dilation[1] * (problem.s - 1) + 1
    own, before = config.out_q * problem.stride[1], -box.shift % box.load
    return alone and whole and run - own <= MOST_SHARED and run <= before + 2 * own


def _uses_dp4a(problem: Conv2dProblem, box: Box) -> bool:
    """True if dp4a computes four products at once: 8-bit integers of adjacent rows, without a zero point."""
    plain = problem.dilation[0] == 1 and problem.epilogue.x_zero_point == 0 and box.load % 4 == 0
    types = (problem.x_dtype, problem.w_dtype)
    return plain and problem.acc_dtype == "int32" and all(is_integer(t) and itemsize(t) == 1 for t in types)


def _filter_bytes(problem: Conv2dProblem, box: Box) -> int:
    """Bytes of shared memory of the staged filter and its copy packed for dp4a (PLACES of mma.cuh per column)."""
    turns = 5 - problem.r if problem.r < 4 else problem.r + 3
    packed = 4 * problem.k * problem.c_per_group * turns * problem.s
    return staged_bytes(problem) + (packed if _uses_dp4a(problem, box) else 0)


def _compiled(problem: Conv2dProblem, config: BoxesConfig, box: Box, struct: Any, runtime: Runtime) -> tuple[Any, int]:
    prelude = constants(
        STRIPS=config.strips, LANES=config.lanes, OUT_P=config.out_p, OUT_Q=config.out_q, OUT_K=config.out_k,
        STAGES=config.stages, SLICES=box.slices, CHUNK=box.chunk, ALIGNMENT=config.alignment // box.size,
        SHIFT=box.shift, UNIT=box.unit // box.size, LOAD=box.load, STORE_K=box.store_k, STORE=box.store,
        FILLED=is_filled(problem), STAGED_WEIGHTS=True, DP4A=_uses_dp4a(problem, box),
        SHARES=threads_share(problem, config, box),
    )  # fmt: skip
    lines = (*conv_constants(problem), *prelude)
    source = KernelSource("algorithms/direct/boxes.cu", "direct_boxes", lines, struct, "Boxes")
    return compiled_for(runtime, source, config.strips * config.lanes, config.blocks)


def _struct(problem: Conv2dProblem) -> Any:
    rest = {"tiles": ctypes.c_int, "across": Divisor, "down": Divisor, "aligned_out": ctypes.c_int}
    fields = {"map": MapField, "conv": conv_struct(problem), "filter": Filter, **rest}
    return struct_with_maps("Boxes", fields.items())


def _registers(problem: Conv2dProblem, config: BoxesConfig) -> int:
    """Registers for a row of the window, the sums, and the taps if a thread holds them."""
    columns = columns_read(problem, config.out_q)
    taps = config.out_k * (problem.c_per_group if pixel_channels(problem) > 1 else 1) * problem.r * problem.s
    held = taps if taps <= HELD_TAPS else 0
    numbers = columns * pixel_channels(problem) + config.out_k * config.out_p * config.out_q + held
    return numbers * -(-itemsize(problem.acc_dtype) // 4)


def _config(problem: Conv2dProblem, shape: Shape, facts: DeviceFacts) -> BoxesConfig:
    """Config of a shape: pixel vectors along columns, channels as registers allow, more blocks for small tiles."""
    size, one_channel = itemsize(problem.x_dtype), pixel_channels(problem) == 1
    out_q = 4 // math.gcd(problem.stride[1], 4) * (2 if size == 2 and one_channel else 1)
    strips, lanes, out_p, blocks = _shaped(problem, shape, out_q)
    strips, lanes = _upright(problem, strips, lanes, out_p, out_q)
    per_slice, all_outputs = problem.k // slices_of(problem), groups_share_a_box(problem)
    out_k = problem.k if all_outputs else even_share(per_slice, MOST_OUTPUTS)
    pixel = pixel_channels(problem) * size
    alignment = math.gcd(lanes * out_q * problem.stride[1] * pixel, problem.w * pixel, LINE_BYTES)
    config = BoxesConfig(strips, lanes, out_p, out_q, out_k, shape.stages, blocks, max(alignment, VECTOR_BYTES))
    while config.out_k > 1 and not all_outputs and _registers(problem, config) > MOST_REGISTERS:
        config = replace(config, out_k=even_share(per_slice, config.out_k - 1))
    box, threads = box_of(problem, config), strips * lanes
    nbytes = config.stages * box.nbytes
    wanted = BUSY_BYTES if problem.c > slices_of(problem) and one_channel else 3 * BUSY_BYTES // 2
    room = facts.shared_bytes // (nbytes + _filter_bytes(problem, box) + EXTRA_BYTES)
    while blocks * nbytes < wanted and (blocks + 1) * threads <= BUSY_THREADS and blocks < room:
        blocks += 1
    return replace(config, blocks=blocks)


def _shaped(problem: Conv2dProblem, shape: Shape, out_q: int) -> tuple[int, int, int, int]:
    """Adapt a shape to pixels and filter; return strips, lanes, rows per thread and blocks."""
    strips, lanes, out_p, blocks = shape.strips, shape.lanes, shape.out_p, shape.blocks
    size, taps, chunk = itemsize(problem.x_dtype), problem.r * problem.s, pixel_channels(problem)
    if shape == SHAPES[1] and problem.stride[0] >= max(3, problem.dilation[0] * (problem.r - 1) + 1):
        return strips, lanes, 1, 1  # windows share no row, and TMA tiles are large
    if shape != SHAPES[0]:
        return strips, lanes, out_p, blocks
    if size == 1 and chunk < MOST_CHANNELS:  # much work per byte: more threads
        return strips * (2 if chunk == 1 else 1), lanes, out_p, 3
    if taps > HELD_TAPS and problem.c == slices_of(problem):  # much work per pixel: more threads, or taller tiles
        higher = size == 4 and taps <= FEW_FREE_TAPS
        return (strips // 2, lanes, out_p + 1, 3) if higher else (strips, lanes, out_p // 2, 3)
    if size == 4 and chunk == 1 and problem.stride == (1, 1) and problem.q > lanes * out_q:
        wide = min(LANES_OF_ROWS, key=lambda lanes: -(-problem.q // (lanes * out_q)) * lanes)
        soon = problem.k > slices_of(problem) and taps <= FEW_TAPS
        return strips * lanes // wide, wide, out_p // 2 if soon else out_p, blocks
    return strips, lanes, out_p, blocks


def _upright(problem: Conv2dProblem, strips: int, lanes: int, out_p: int, out_q: int) -> tuple[int, int]:
    """Strips and lanes for rows of outputs shorter than a tile: only as many lanes as needed, and more strips."""
    step = out_q * problem.stride[1] * pixel_channels(problem) * itemsize(problem.x_dtype)
    together = VECTOR_BYTES // math.gcd(step, VECTOR_BYTES)  # TMA tiles begin at multiples of 16 bytes
    enough = -(-max(problem.q, 1) // (out_q * together)) * together
    if enough >= lanes:
        return strips, lanes
    upright = even_share(-(-max(problem.p, 1) // out_p), strips * lanes // enough)
    return (upright, enough) if upright * enough >= 32 else (strips, lanes)


def _of_one_channel(problem: Conv2dProblem, config: BoxesConfig) -> BoxesConfig:
    return config if groups_share_a_box(problem) else replace(config, out_k=1)


def _fitting(problem: Conv2dProblem, facts: DeviceFacts) -> list[tuple[BoxesConfig, int]]:
    """The shapes that fit, each with the number of tiles per SM from which it pays."""
    found = []
    for shape in SHAPES:
        config = _config(problem, shape, facts)
        if config.out_p > 2 and problem.stride[0] > 1:  # rows of windows hardly overlap, so outputs share little
            continue
        most = shape.registers if pixel_channels(problem) == 1 else max(shape.registers, PIXEL_REGISTERS)
        if _registers(problem, config) > most:
            continue
        # Rows aligned to whole lines are longer. If their TMA tiles do not fit, try smaller alignments.
        alignments = [
            replace(config, alignment=alignment) for alignment in reversed(ALIGNMENTS) if alignment <= config.alignment
        ]
        fit = next((config for config in alignments if config_refusal(problem, config, facts) is None), None)
        if fit is not None:
            found.append((fit, shape.enough))
    return found
