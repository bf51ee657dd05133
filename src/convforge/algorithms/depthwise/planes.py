"""Host side of planes.cu: tiles of threads and blocks, their layout in shared memory, and a cost model."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.family import (
    DepthwiseConvolution,
    is_preferred,
    threads_refusal,
    tiles_of_planes_pay,
)
from convforge.algorithms.direct.blocks import even_share
from convforge.algorithms.host.element_types import TYPES
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.host.plane_tiles import (
    PlaneTiles,
    odd_vectors,
    tile_height,
    tile_width,
    whole_vectors,
    window,
)
from convforge.algorithms.host.resident import blocks_held
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, is_integer, itemsize

# Bytes that shared memory moves per cycle.
BANK_BYTES = 128

# Rows and columns of outputs per thread that are worth comparing. Odd numbers of rows have no bank conflicts.
OUTPUTS = ((7, 8), (5, 8), (4, 8), (3, 8), (2, 8), (1, 8), (7, 4), (4, 4), (3, 4), (2, 4), (1, 4))

# Strips of a tile along P, columns of a tile (both at most), and threads of a block that are worth comparing.
MOST_STRIPS, MOST_COLUMNS, BLOCKS = 8, 256, (64, 128, 256)

# Taps of a filter row that are loaded together: all of a row of up to SHORT_ROW taps, else CHUNK.
SHORT_ROW, CHUNK = 11, 8

# Registers of a thread for a row of pixels and the sums, at most, of its 255.
MOST_REGISTERS = 160

# Resident threads per SM, at least; SMALL_RESIDENT for windows of up to SMALL_WINDOW taps, which are memory-bound.
RESIDENT, SMALL_RESIDENT, SMALL_WINDOW = 512, 768, 25

# Cycles in which an SM starts a block: the limit of small blocks with little work.
BEGIN_CYCLES = 550

# L2 bytes per cycle of an SM; time lost, in multiples of a block's read time, while an SM's only block waits for its
# first pixels; cycles between two instructions of a warp other than multiply-adds.
L2_BYTES, ALONE, WARP_CYCLES = 8.2, 1.3, 9.3

# Instructions: to copy a vector; to store one; to load a thread's weights once; to convert an integer; to test if a row
# of pixels belongs to a row of outputs. WEIGHTS: shared-memory cycles of a vector of weights.
COPY, STORE, TURN, CONVERSION, TEST, WEIGHTS = 35, 66, 270, 2.4, 16, 5

# Time of a block of one plane, relative to a block with as many threads on several planes.
ONE_PLANE = 1.02

# Products of a thread up to which planes.cu unrolls its loops, so that no row is tested.
UNROLLED = 1536

# Configs that are worth trying, at most.
MOST_CONFIGS = 10


@dataclass(frozen=True, slots=True)
class PlanesConfig(Config):
    """Tile of :class:`DepthwisePlanes`."""

    out_p: int  # rows of outputs of a thread
    out_q: int  # columns of outputs of a thread
    strips_y: int  # strips of a plane's tile along P
    strips_x: int  # strips of a plane's tile along Q
    planes: int  # planes of a block, which has strips_y * strips_x * planes threads
    resident: int = RESIDENT  # resident threads per SM, at least; see :func:`compiled`

    @property
    def threads(self) -> int:
        return self.strips_y * self.strips_x * self.planes


# The config with the smallest needs.
LEAST = PlanesConfig(1, 4, 8, 1, 1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of pixels and filters in shared memory, in elements; see planes.cu."""

    raw: bool
    fill: int
    shift: int
    load: int
    chunk: int
    pitch: int
    plane: int
    filter_pitch: int
    filter: int
    rows: int
    shared_bytes: int


class DepthwisePlanes(DepthwiseConvolution[PlanesConfig]):
    """Stages tiles of several channel planes in shared memory; for NCHW, and for large filters also in NHWC."""

    name = "depthwise_planes"
    summary = "depthwise: tiles of several planes in shared memory, rows of pixels slide along a thread's outputs"
    since = "direct_shared"
    cost = MethodCost(0.50, 0.9, 2048, 1)
    look = Mark("olive", "square")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """In NHWC a block reads whole memory lines but uses only a few channels of them."""
        interleaved = problem.x_layout == "NHWC" and problem.c > 1
        return Work(problem.flops, problem.least_bytes * (2 if interleaved else 1))

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if not is_preferred(problem):
            return None
        rank = Rank.ONE_CHANNEL if tiles_of_planes_pay(problem) else Rank.ONE_CHANNEL_NEXT
        return Preference(rank, "every filter sees one channel: tiles of several planes share a block")

    def least(self, problem: Conv2dProblem) -> PlanesConfig:
        return LEAST

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[PlanesConfig]:
        found = set()
        resident = SMALL_RESIDENT if problem.r * problem.s <= SMALL_WINDOW else RESIDENT
        for out_p, out_q in OUTPUTS:
            high = even_share(-(-problem.p // out_p), MOST_STRIPS)
            wide = even_share(-(-problem.q // out_q), MOST_COLUMNS // out_q)
            strips = {(-(-high // y), -(-wide // x)) for y in (1, 2) for x in (1, 2, 4)}
            for (strips_y, strips_x), threads in itertools.product(strips, BLOCKS):
                planes = max(1, min(problem.n * problem.k, threads // (strips_y * strips_x)))
                if problem.x_layout == "NHWC" and planes > 4:
                    planes -= planes % 4  # 16 contiguous bytes of float32
                if strips_y * strips_x * planes <= BLOCKS[-1]:
                    found.add(PlanesConfig(out_p, out_q, strips_y, strips_x, planes, resident))
        fit = self.valid(problem, found, facts) or [LEAST]
        return sorted(fit, key=lambda config: (modelled_cycles(problem, config, facts), str(config)))[:MOST_CONFIGS]

    def kernel(self, problem: Conv2dProblem, config: PlanesConfig) -> Kernel:
        layout, store, tiles = _layout(problem, config), _store(problem, config), _tiles(problem, config)
        held = f"using tile_t = {TYPES[problem.x_dtype if layout.raw else problem.acc_dtype]};"
        prelude = constants(
            OUT_P=config.out_p, OUT_Q=config.out_q, STRIPS_Y=config.strips_y, STRIPS_X=config.strips_x,
            PLANES=config.planes, CHANNELS_LAST=problem.x_layout == "NHWC", RAW=layout.raw, FILL=layout.fill,
            SHIFT=layout.shift, LOAD=layout.load, CHUNK=layout.chunk, PITCH=layout.pitch, PLANE=layout.plane,
            FILTER_PITCH=layout.filter_pitch, FILTER=layout.filter, STORE=store,
        )  # fmt: skip
        x_run, out_run = ({"w": 1} if vector > 1 else {} for vector in (layout.fill, store))
        x = Vectors({"n": problem.n, "c": problem.c, "h": problem.h}, x_run, layout.fill)
        out = Vectors({"n": problem.n, "c": problem.k, "h": problem.p}, out_run, store)
        return Kernel(
            (held, *prelude), (tiles.count,), (config.threads,), config.resident, layout.shared_bytes,
            last_fields={"tiles": tiles.divisors()}, vectors=(x, out),
        )  # fmt: skip

    def config_refusal(self, problem: Conv2dProblem, config: PlanesConfig, facts: DeviceFacts) -> Reason | None:
        if (reason := least_refusal(config) or threads_refusal(config.threads)) is not None:
            return reason
        if (need := _registers(problem, config)) > MOST_REGISTERS:
            return Reason(
                "a row of the window and the sums of {out_p} x {out_q} outputs take {need} registers; "
                "{most} are to be had",
                out_p=config.out_p, out_q=config.out_q, need=need, most=MOST_REGISTERS,
            )  # fmt: skip
        if (room := _layout(problem, config).shared_bytes) > facts.block_shared_bytes:
            return Reason(
                "tiles and filters of {planes} planes take {room} bytes of shared memory; a block has {most}",
                planes=config.planes, room=room, most=facts.block_shared_bytes,
            )  # fmt: skip
        return _tiles(problem, config).refusal


def modelled_cycles(problem: Conv2dProblem, config: PlanesConfig, facts: DeviceFacts) -> float:
    """Estimate cycles of an SM, to compare configs; fitted to times of about 900 configs on an H200.

    The model takes the cubic norm of four times, so that the longest dominates. (1) The instructions of a block, 4 warp
    instructions per cycle, or its shared memory traffic: 128 bytes per cycle, and a cycle for each 128-byte line that a
    warp stores to. (2) L2 traffic. (3) Latency of warps, hidden by other resident blocks. (4) Starting a block.
    """
    layout = _layout(problem, config)
    warps, share = -(-config.threads // 32), config.strips_y * config.strips_x
    counts = _chunks(problem)
    x_bytes, out_bytes = itemsize(problem.x_dtype), itemsize(problem.out_dtype)
    pixels = layout.rows * sum(-(-_span(problem, config, layout.shift, count) // layout.load) for count in counts)
    weights = (
        config.out_p * problem.r * sum(-(-count * itemsize(problem.acc_dtype) // VECTOR_BYTES) for count in counts)
    )
    outputs = config.out_p * config.out_q
    stores = outputs / _store(problem, config)
    conversions = CONVERSION * outputs if is_integer(problem.out_dtype) else 0
    if problem.x_dtype != problem.acc_dtype:
        conversions += pixels * layout.load * (CONVERSION if is_integer(problem.x_dtype) else 1)
    width = -(-(tile_width(problem, config.strips_x * config.out_q) + layout.shift) // layout.fill)
    height = tile_height(problem, config.strips_y * config.out_p)
    copies = -(-height // max(1, share // width)) * -(-width // share)
    turns = -(-config.planes * problem.r * problem.s // config.threads)
    products = outputs * problem.r * problem.s
    others = pixels + weights + conversions + COPY * copies + STORE * stores + TURN * turns
    if products > UNROLLED:
        close = problem.stride[0] == problem.dilation[0] == 1
        for_all = max(0, problem.r - config.out_p + 1) if close else 0
        others += TEST * (layout.rows - for_all) * config.out_p * len(counts)
    lines = 4 if config.out_q * out_bytes <= VECTOR_BYTES else 32
    shared = pixels * _phases(problem, config, layout) + WEIGHTS * weights + 2 * copies + stores * lines
    read = config.planes * height * width * layout.fill * _sector(problem.x_layout, config, x_bytes)
    written = config.planes * share * outputs * _sector(problem.out_layout, config, out_bytes)
    waves = math.ceil(_tiles(problem, config).count / facts.cores)
    beside = max(1, min(blocks_held(facts, warps, layout.shared_bytes, 24 + _registers(problem, config)), waves))
    issued = warps * (products + others) / 4
    by_itself = max(issued, products + WARP_CYCLES * others) / beside
    times = (max(issued, warps * shared), (read + written) / L2_BYTES, by_itself, BEGIN_CYCLES)
    cycles = waves * (math.cbrt(sum(time**3 for time in times)) + ALONE / beside * read / L2_BYTES)
    return cycles * (ONE_PLANE if config.planes == 1 else 1)


def _phases(problem: Conv2dProblem, config: PlanesConfig, layout: _Layout) -> int:
    """Cycles of shared memory for one load of pixels by a warp, including bank conflicts."""
    nbytes = itemsize(problem.x_dtype if layout.raw else problem.acc_dtype)
    vector = max(4, layout.load * nbytes)
    together = BANK_BYTES // vector
    if problem.x_layout == "NHWC":
        return 32 // together  # neighbouring threads read neighbouring planes, an odd number of vectors apart
    beside = config.out_q * itemsize(problem.out_dtype) <= VECTOR_BYTES
    places = set()
    for thread in range(together):
        slot, strip = divmod(thread, config.strips_y * config.strips_x)
        y, x = divmod(strip, config.strips_x) if beside else divmod(strip, config.strips_y)[::-1]
        row = slot * layout.plane + y * config.out_p * problem.stride[0] * layout.pitch
        places.add((row + x * config.out_q * problem.stride[1]) * nbytes // vector)
    banks = collections.Counter(place % together for place in places)
    return 32 // together * max(banks.values())


def _sector(layout: str, config: PlanesConfig, nbytes: int) -> float:
    """Bytes that L2 moves per number: in NHWC a share of a 32-byte sector, of which a block uses only its planes."""
    return nbytes if layout == "NCHW" else max(nbytes, 32 / config.planes)


def _chunks(problem: Conv2dProblem) -> list[int]:
    """Numbers of taps of a filter row that are loaded together."""
    if problem.s <= SHORT_ROW:
        return [problem.s]
    return [CHUNK] * (problem.s // CHUNK) + [problem.s % CHUNK] * (problem.s % CHUNK > 0)


def _span(problem: Conv2dProblem, config: PlanesConfig, shift: int, taps: int) -> int:
    """Pixels of a row that a thread loads for `taps` taps."""
    return shift + window(config.out_q, taps, problem.stride[1], problem.dilation[1])


def _registers(problem: Conv2dProblem, config: PlanesConfig) -> int:
    numbers = _span(problem, config, 0, _chunks(problem)[0]) + config.out_p * config.out_q
    return numbers * -(-itemsize(problem.acc_dtype) // 4)


def _layout(problem: Conv2dProblem, config: PlanesConfig) -> _Layout:
    raw = problem.padding_mode != "constant" or problem.x_dtype == problem.acc_dtype
    x_bytes, acc_bytes = itemsize(problem.x_dtype), itemsize(problem.acc_dtype)
    near = problem.x_layout == "NHWC"
    tile_bytes = x_bytes if raw else acc_bytes
    step = config.out_q * problem.stride[1]
    vector = math.gcd(problem.w, step, VECTOR_BYTES // x_bytes)
    copied = 1 if near or not raw or vector * x_bytes < 4 else vector
    shift = -problem.padding[2] % copied
    chunks = _chunks(problem)
    load = math.gcd(step, VECTOR_BYTES // tile_bytes, chunks[0] * problem.dilation[1] if len(chunks) > 1 else step)

    width = shift + tile_width(problem, config.strips_x * config.out_q)
    reach = [-(-width // copied) * copied]
    for i, taps in enumerate(chunks):
        last = (config.strips_x - 1) * step + i * chunks[0] * problem.dilation[1]
        reach.append(last + -(-_span(problem, config, shift, taps) // load) * load)
    pitch = odd_vectors(max(reach), tile_bytes)
    height = tile_height(problem, config.strips_y * config.out_p)
    filter_pitch = whole_vectors(problem.s, acc_bytes)
    plane, filter_ = height * pitch, problem.r * filter_pitch
    if near:
        plane, filter_ = odd_vectors(plane, tile_bytes), odd_vectors(filter_, acc_bytes)
    nbytes = config.planes * (filter_ * acc_bytes + plane * tile_bytes)
    rows = tile_height(problem, config.out_p)
    return _Layout(raw, copied, shift, load, chunks[0], pitch, plane, filter_pitch, filter_, rows, nbytes)


def _store(problem: Conv2dProblem, config: PlanesConfig) -> int:
    """Number of outputs of a row that are stored as one vector."""
    if problem.out_layout == "NHWC":
        return 1
    return math.gcd(problem.q, config.out_q, VECTOR_BYTES // itemsize(problem.out_dtype))


def _tiles(problem: Conv2dProblem, config: PlanesConfig) -> PlaneTiles:
    return PlaneTiles.of(problem, config.strips_y * config.out_p, config.strips_x * config.out_q, config.planes)
