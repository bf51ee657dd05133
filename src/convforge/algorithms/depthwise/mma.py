"""Host side of mma.cu: the zero padding of planes in shared memory, and the division of windows among warps."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.family import (
    SMALL_PLANE,
    DepthwiseConvolution,
    blocks_of,
    idle_for_planes,
    is_preferred,
    planes_room_refusal,
    threads_refusal,
    whole_planes_pay,
    whole_planes_refusal,
)
from convforge.algorithms.host.conv import divisor
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.host.plane_tiles import whole_vectors, window
from convforge.algorithms.host.resident import blocks_held
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES

# M, N and K of a tensor core product of 16-bit floats.
ROWS, COLUMNS, DEPTH = 16, 8, 16

# First architecture with this product, and its types.
FIRST_ARCHITECTURE, TYPES = 80, ("float16", "bfloat16")

# 4-byte words that shared memory serves per cycle, and 16-bit numbers of its widest load.
BANKS, VECTOR = 32, VECTOR_BYTES // 2

# Warps of a plane, warps of a block, and tiles that a warp computes at a time, worth comparing.
PLANE_WARPS, WARPS, TILES = (1, 2, 4, 8), (2, 4, 8), (1, 2, 4, 7)

# Filter matrices, over all rows, that a warp can hold to walk down a plane.
WALKED = 8

# Resident threads per SM, at least.
RESIDENT = 768

# Warp instructions, bank conflicts included: for four loads of windows; for the taps of a step; to store outputs; to
# copy a vector; to write a vector of zeros; per block besides. Then: share of a block's time that an SM loses if the
# block is its only one; cycles in which an SM starts a block; warps that keep an SM busy.
LOADS, TAPS, STORE, COPY, ZEROS, BLOCK = 8, 12, 60, 20, 5, 150
ALONE, BEGIN_CYCLES, BUSY_WARPS = 0.3, 400, 28

# Registers of a thread besides its tiles, and per tile.
REGISTERS, REGISTERS_OF_TILE = 40, 8

# Configs that are worth trying, at most.
MOST_CONFIGS = 8

# Tensor core FLOPs that take as long as starting a plane.
PLANE_FLOPS = 1 << 15


@dataclass(frozen=True, slots=True)
class DepthwiseMmaConfig(Config):
    """Planes and warps of a block of :class:`DepthwiseMma`."""

    planes: int  # planes of a block
    plane_warps: int  # warps of a plane
    # Tiles of 16 windows that a warp computes at a time; 0: a warp walks down the plane with 16 windows.
    tiles: int = field(metadata={"least": 0})
    resident: int = RESIDENT  # resident threads per SM, at least; see :func:`compiled`

    @property
    def threads(self) -> int:
        return 32 * self.planes * self.plane_warps


LEAST = DepthwiseMmaConfig(1, 1, 1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of pixels and taps in shared memory; see mma.cu."""

    lead: int
    line: int
    fill: int
    pitch: int
    plane: int
    first: int


class DepthwiseMma(DepthwiseConvolution[DepthwiseMmaConfig]):
    """Filter rows as matrices on tensor cores, for layers of 16-bit floats in NCHW."""

    name = "depthwise_mma"
    summary = "depthwise: rows of the filter as matrices of 16-bit floats, on tensor cores; sm_80 and later"
    since = "depthwise_rows"
    first_architecture = FIRST_ARCHITECTURE
    cost = MethodCost(1.7, 0.9, 2048, 1)
    look = Mark("olive", "triangle-down")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Eight outputs take a product with at least 16 pixels for each filter row."""
        planes = problem.n * problem.c
        window = 7 * problem.stride[1] + problem.extent_w + problem.padding[2] % 2
        products = problem.p * -(-problem.q // 8) * 8 * problem.r * -(-window // 16) * 16
        idle = idle_for_planes(problem)
        return Work(planes * (2 * products + PLANE_FLOPS) * idle, problem.least_bytes * idle)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if not is_preferred(problem):
            return None
        large = problem.x_dtype in ("float16", "bfloat16") and problem.h * problem.w > SMALL_PLANE
        rank = Rank.PLANES_AS_MATRICES if large and whole_planes_pay(problem, facts) else Rank.ONE_CHANNEL_LAST
        return Preference(rank, "every filter sees one channel: tensor cores multiply by its rows, of 16-bit floats")

    def least(self, problem: Conv2dProblem) -> DepthwiseMmaConfig:
        return LEAST

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseMmaConfig]:
        found = [
            DepthwiseMmaConfig(warps // plane_warps, plane_warps, tiles)
            for plane_warps in PLANE_WARPS for warps in WARPS for tiles in ((0,) if walks(problem) else TILES)
            if plane_warps <= warps and plane_warps * (tiles - 1) < _tiles(problem)
        ]  # fmt: skip
        fit = self.valid(problem, found, facts) or [LEAST]
        return sorted(fit, key=lambda config: (modelled_cycles(problem, config, facts), str(config)))[:MOST_CONFIGS]

    def kernel(self, problem: Conv2dProblem, config: DepthwiseMmaConfig) -> Kernel:
        layout, (strips, height) = _layout(problem, config), _strips(problem, config)
        prelude = constants(
            PLANES=config.planes, PLANE_WARPS=config.plane_warps, TILES=max(1, config.tiles), LEAD=layout.lead,
            FILL=layout.fill, WALK=config.tiles == 0,
        )  # fmt: skip
        fields = {
            "windows": divisor(_windows(problem)), "across": divisor(problem.w // layout.fill),
            "tiles": _tiles(problem), "strips": strips, "height": height, "pitch": layout.pitch,
            "plane": layout.plane, "first": layout.first,
        }  # fmt: skip
        x = Vectors({"n": problem.n, "c": problem.c, "h": problem.h}, {"w": 1}, layout.fill)
        out = Vectors({"n": problem.n, "c": problem.k, "h": problem.p}, {"w": 1}, 2)
        return Kernel(
            prelude, (blocks_of(problem, config.planes),), (config.threads,), config.resident, _shared(problem, config),
            math=problem.x_dtype, fields=fields, vectors=(x, out),
        )  # fmt: skip

    def complete(self, problem: Conv2dProblem, args: Any) -> None:
        args.aligned_out = args.aligned_out and problem.q % 2 == 0

    def config_refusal(self, problem: Conv2dProblem, config: DepthwiseMmaConfig, facts: DeviceFacts) -> Reason | None:
        reason = halves_refusal(problem) or whole_planes_refusal(problem) or least_refusal(config)
        if reason is not None:
            return reason
        if config.tiles == 0 and not _can_walk(problem):
            return Reason(
                "tiles=0: a warp goes down a plane in steps of a row, with at most {rows} windows beside each other "
                "and {matrices} matrices",
                rows=ROWS,
                matrices=WALKED,
            )
        reason = threads_refusal(config.threads)
        return reason or planes_room_refusal(config.planes, _shared(problem, config), facts)


def walks(problem: Conv2dProblem) -> bool:
    """True if warps should walk down the plane: it is possible, and their strips have few rows in common.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> layer = parse_problem("n32c96h56w56_k96r7s7_st1_p3_g96_f16_nchw")
    >>> walks(layer), walks(layer.replace(h=14, w=14)), walks(layer.replace(r=31, s=31, padding=(15, 15, 15, 15)))
    (True, False, False)
    """
    return _can_walk(problem) and _strips(problem, LEAST)[1] >= problem.r


def _can_walk(problem: Conv2dProblem) -> bool:
    close = (problem.stride[0], problem.dilation[0]) == (1, 1)
    return close and _windows(problem) <= ROWS and problem.r * _row(problem)[1] <= WALKED


def halves_refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why tensor cores cannot multiply rows of 16-bit pixels, loaded in pairs, or None."""
    if problem.x_dtype not in TYPES or problem.w_dtype != problem.x_dtype or problem.acc_dtype != "float32":
        return Reason(
            "products are of 16-bit floats in float32; these are of {pixels} and {weights} in {sums}",
            pixels=problem.x_dtype, weights=problem.w_dtype, sums=problem.acc_dtype,
        )  # fmt: skip
    if problem.out_dtype not in TYPES:
        return Reason(
            "tensor cores cut sums off, which 16-bit floats hide: outputs must be such, not {dtype}",
            dtype=problem.out_dtype,
        )
    if problem.padding_mode != "zeros":
        return Reason("zeros must stand outside the image, not {border}", border=problem.padding_mode)
    if problem.w % 2:
        return Reason("rows are copied in words of two pixels: W={w} must be even", w=problem.w)
    return None


def modelled_cycles(problem: Conv2dProblem, config: DepthwiseMmaConfig, facts: DeviceFacts) -> float:
    """Estimate cycles of an SM to issue all instructions of its blocks, to compare configs.

    Counts come from mma.cu; the constants above are fitted to the times of about 60 configs on an H200.
    """
    shared, warps = _shared(problem, config), config.plane_warps * config.planes
    issued = _products(problem, config) + BLOCK + ZEROS * shared / VECTOR_BYTES / config.threads
    issued += COPY * -(-problem.h * problem.w // _layout(problem, config).fill // (32 * config.plane_warps))
    blocks = -(-blocks_of(problem, config.planes) // facts.cores)
    registers = REGISTERS + REGISTERS_OF_TILE * config.tiles
    beside = max(1, min(blocks_held(facts, warps, shared, registers), blocks))
    idle = (1 + ALONE / beside) * math.sqrt(max(1.0, BUSY_WARPS / (beside * warps)))
    return blocks * max(warps * issued / 4, BEGIN_CYCLES) * idle


def _products(problem: Conv2dProblem, config: DepthwiseMmaConfig) -> int:
    """Warp instructions from the first window to the last output."""
    steps, tiles = _row(problem)[1], config.tiles
    if tiles == 0:
        rows = _strips(problem, config)[1] + problem.r - 1
        return -(-rows // problem.r) * problem.r * (steps * (LOADS + problem.r) + STORE)
    row = steps * (TAPS + (LOADS + 2) * tiles) + 2 * tiles
    return -(-_tiles(problem) // (config.plane_warps * tiles)) * (problem.r * row + STORE * 2 * tiles)


def _windows(problem: Conv2dProblem) -> int:
    return max(1, -(-problem.q // COLUMNS))


def _tiles(problem: Conv2dProblem) -> int:
    return -(-_windows(problem) * problem.p // ROWS)


def _row(problem: Conv2dProblem) -> tuple[int, int]:
    """Extra columns before a window, and tensor core steps of a window: LEAD and STEPS of mma.cu."""
    lead = problem.padding[2] % 2
    span = lead + window(COLUMNS, problem.s, problem.stride[1], problem.dilation[1])
    return lead, -(-span // DEPTH)


def _layout(problem: Conv2dProblem, config: DepthwiseMmaConfig) -> _Layout:
    (top, _, left, _), stride = problem.padding, problem.stride[1]
    lead, steps = _row(problem)
    line = whole_vectors((COLUMNS - 1) * stride + DEPTH * steps, 2)
    vector = math.gcd(problem.w, VECTOR)
    margin = -(-(left + lead) // vector) * vector
    columns = window(problem.q, problem.s, stride, problem.dilation[1]) - left
    least = -(-max(problem.w + left + lead, columns, 1) // vector) * vector
    pitch = pitch_of_rows(least, vector, _windows(problem), problem.stride[0], stride)
    outputs = problem.p
    if config.tiles == 0:  # rows of all strips, plus the unfinished rows of the last strip
        strips, height = _strips(problem, config)
        outputs = max(outputs, config.plane_warps * strips * height + problem.r - 1)
    rows = max(top + problem.h, window(outputs, problem.r, problem.stride[0], problem.dilation[0]))
    reach = margin + (_windows(problem) - 1) * COLUMNS * stride + DEPTH * steps
    plane = whole_vectors(rows * pitch + max(0, reach - pitch) + margin, 2)
    return _Layout(lead, line, vector, pitch, plane, top * pitch + margin)


def pitch_of_rows(least: int, step: int, windows: int, stride_h: int, stride_w: int) -> int:
    """Smallest pitch, at least `least`, with the fewest bank conflicts for a load of eight windows.

    Window g begins at row g // `windows` and at output column g % `windows` * COLUMNS.
    """

    def meets(pitch: int) -> int:
        words = {
            (g // windows * stride_h * pitch + g % windows * COLUMNS * stride_w) // 2 + t
            for g in range(8) for t in range(4)
        }  # fmt: skip
        return max(collections.Counter(word % BANKS for word in words).values())

    return min(range(least, least + 2 * BANKS, step), key=lambda pitch: (meets(pitch), pitch))


def _strips(problem: Conv2dProblem, config: DepthwiseMmaConfig) -> tuple[int, int]:
    """Number of strips that a walking warp has along P, and output rows of each strip."""
    strips = max(1, ROWS // _windows(problem))
    return strips, -(-problem.p // (strips * config.plane_warps))


def _shared(problem: Conv2dProblem, config: DepthwiseMmaConfig) -> int:
    layout = _layout(problem, config)
    return config.planes * (problem.r * layout.line + layout.plane) * 2
