"""Host side of the separable method: factors, tiles and the launch. cpu.py has the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import Geometry, geometry
from convforge.algorithms.host.views import View, view
from convforge.algorithms.host.weights import correlation_filter
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.separable.factors import factor, integer_refusal, less_arithmetic, two_passes
from convforge.algorithms.traits import Mark, MethodCost
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Bytes of a row of eight vectors of 32 bytes: the width of a tile is a multiple of it.
BLOCK_BYTES = 256

# Output rows that the column pass makes at once, if the filter has as many rows: cpu.py has a loop for them.
GROUP = 4

# Filters with up to this many rows read the image in place. If the image's width is a power of two, all its rows fall
# into one set of the cache, which has about this many ways.
ROWS_IN_PLACE = 8


@dataclass(frozen=True, slots=True)
class SeparableConfig(Config):
    """Tile of :class:`Separable`."""

    tile_p: int  # output rows: with more, fewer rows are filtered twice
    tile_q: int  # output columns: few enough that a ring of rows, as high as the filter, stays in cache


class Sizes(NamedTuple):
    """Sizes of a tile, in elements."""

    tile_p: int  # rows of the tile
    tile_q: int  # columns of the tile
    strips: int  # tiles of an output channel
    strips_q: int  # tiles of a row of tiles
    extent_h: int  # rows from a filter's first to its last
    group: int  # output rows that the column pass makes at once
    ring_rows: int  # rows of the ring: those that a group reads
    rank: int  # the largest rank of a filter
    phases: int  # groups of columns with equal remainder modulo the stride; each group is contiguous
    phase_pitch: int  # elements of a phase
    pitch: int  # elements between rows of the ring
    lanes: int  # elements of a vector
    in_place: bool  # reads rows directly from x
    put_directly: bool  # stores sums directly into the output


@takes_bfloat16
class Separable(Algorithm[Conv2dProblem, SeparableConfig]):
    """Two 1-D passes for each outer product that the filter is a sum of: R + S products instead of R * S.

    The rank is the numerical rank of the weights: as many products as make the rest of the filter at most four
    rounding errors of the accumulation type, relative to its norm. A filter of full rank is supported, but slow.
    """

    name = "separable"
    summary = "the filter as a few products of 1-D filters (SVD), both passes in one cached tile"
    operation = "conv2d"
    since = "direct_rows"
    precision = "separable"
    cost = MethodCost(0.25, 0.4, 1, 1)
    look = Mark("vermillion", "cross")
    work_for = two_passes
    preference_for = less_arithmetic

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return integer_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[SeparableConfig]:
        """The default's tile is as wide as its ring fits in three quarters of L2."""
        block = BLOCK_BYTES // itemsize(problem.acc_dtype)
        widest = -(-problem.q // block) * block
        widths = []
        for cache in (facts.l2_bytes * 3 // 4, facts.l2_bytes // 4, facts.l1_bytes // 2):
            blocks = cache // (problem.extent_h * problem.stride[1] * BLOCK_BYTES)
            widths.append(min(max(blocks, 4) * block, 64 * block, widest))
        found = []
        for tile_q in dict.fromkeys(widths):
            strips = problem.n * problem.k * -(-problem.q // tile_q)
            wanted = -(-4 * facts.cores // max(strips, 1))  # enough tiles for all cores
            tall = max(16 * problem.extent_h // problem.stride[0], 32)
            found.append(SeparableConfig(max(1, min(tall, -(-problem.p // wanted))), tile_q))
        return found

    def plan(self, problem: Conv2dProblem, config: SeparableConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.separable import cpu

        if config.tile_p < 1 or config.tile_q < 1:
            raise ValueError(f"{config}: a tile has at least one row and one column")
        g, values, used = geometry(problem), np.empty(0, values_dtype(problem)), _used_rows(problem)
        one = _interleaved(problem, g)
        work = _Work.of(problem, g, problem.k, config, runtime)
        work_of_one = None if one is None else _Work.of(problem, one, 1, config, runtime)
        kernel = runtime.compile(cpu.separable)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            end, packed, now = epilogue_arguments(problem, buffers), buffers["w"].tensors, work
            ranks, horizontal, vertical = packed["ranks"], packed["horizontal"], packed["vertical"]
            if ranks.shape[0] < problem.k:
                if work_of_one and (x.place[2], x.place[4], out.place[2], out.place[4]) == (1, problem.c) * 2:
                    now, x, out = work_of_one, _as_one_channel(x), _as_one_channel(out)
                else:
                    ranks, horizontal, vertical = (np.repeat(t, problem.k, 0) for t in (ranks, horizontal, vertical))
            rank = horizontal.shape[2]
            in_place = now.sizes.in_place and x.flat.dtype == problem.acc_dtype and x.place[4] == 1
            group = 1 if in_place else now.sizes.group
            sizes = now.sizes._replace(
                rank=rank,
                group=group,
                ring_rows=now.sizes.extent_h + group - 1,
                in_place=in_place,
                put_directly=now.sizes.put_directly and out.flat.dtype == problem.acc_dtype and out.place[4] == 1,
            )
            taps = (np.arange(rank)[:, None] * sizes.pitch + now.taps).reshape(-1)
            args = (x, horizontal.reshape(-1), vertical.reshape(-1), ranks, out, now.g, end, values, sizes, taps, used)
            runtime.launch(kernel, now.info, args, stream)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            weights = correlation_filter(problem, w, "float64")
            same = one is not None and bool((weights == weights[:1]).all())
            found = factor(weights[:1] if same else weights, problem.acc_dtype)
            tensors = {"horizontal": found.horizontal, "vertical": found.vertical, "ranks": found.ranks}
            rank, error = int(found.ranks.max()), f"{found.error:.0e}"
            note = Reason("rank {rank}, factor error {error}", rank=rank, error=error)
            return PreparedFilter(tensors, sum(t.nbytes for t in tensors.values()), note)

        return Plan(self, problem, config, runtime, steps=[Call(work.info, run)], prepare=prepare)


class _Work(NamedTuple):
    """The launch over one geometry: the problem's own, or interleaved channels treated as one wide channel."""

    g: Geometry
    sizes: Sizes
    taps: NDArray[np.int64]
    info: LaunchInfo

    @classmethod
    def of(cls, problem: Conv2dProblem, g: Geometry, outputs: int, config: SeparableConfig, runtime: Runtime) -> _Work:
        size = itemsize(problem.acc_dtype)
        lanes = BLOCK_BYTES // 8 // size
        tile_q = _even(g.Q, config.tile_q, BLOCK_BYTES // size)
        extent_h, extent_w = g.dilation_h * (g.R - 1) + 1, g.dilation_w * (g.S - 1) + 1
        strips_q = -(-g.Q // tile_q)
        group = GROUP if g.stride_h == g.dilation_h == 1 and g.R >= GROUP else 1
        phases = min(g.stride_w, extent_w)
        # One extra vector, because loads are of whole vectors.
        phase_pitch = -(-((tile_q - 1) * g.stride_w + extent_w) // g.stride_w) + lanes
        sizes = Sizes(
            tile_p=config.tile_p,
            tile_q=tile_q,
            strips=-(-g.P // config.tile_p) * strips_q,
            strips_q=strips_q,
            extent_h=extent_h,
            group=group,
            ring_rows=extent_h + group - 1,
            rank=1,
            phases=phases,
            phase_pitch=phase_pitch,
            pitch=phases * phase_pitch + lanes,
            lanes=lanes,
            in_place=g.stride_w == 1 and g.R <= ROWS_IN_PLACE,
            put_directly=problem.epilogue.is_plain and g.channels == 1,
        )
        columns = np.arange(g.S) * g.dilation_w
        taps = columns % g.stride_w * phase_pitch + columns // g.stride_w
        items = problem.n * outputs * sizes.strips
        flops = 2 * problem.n * problem.k * problem.c_per_group * problem.p * problem.q * (problem.r + problem.s)
        scratch = (sizes.ring_rows + group) * sizes.pitch + (1 if g.channels == 1 else config.tile_p) * (tile_q + lanes)
        block = block_of_items(items, flops, runtime.facts)
        return cls(g, sizes, taps, LaunchInfo("separable", (items,), (block,), scratch_bytes=scratch * size))


def _interleaved(problem: Conv2dProblem, g: Geometry) -> Geometry | None:
    """Geometry of an NHWC image with one filter for all channels, as one channel with rows of W * C elements.

    None if channels are summed, are not contiguous, or have their own scale, bias or residual.
    """
    epilogue, c = problem.epilogue, problem.c
    if problem.groups != c or problem.k != c or c == 1 or {problem.x_layout, problem.out_layout} != {"NHWC"}:
        return None
    if g.stride_w != 1 or epilogue.scale == "channel" or epilogue.bias or epilogue.residual:
        return None
    columns = np.where(g.columns[:, None] < 0, -1, g.columns[:, None] * c + np.arange(c)).reshape(-1)
    return g._replace(Q=g.Q * c, dilation_w=g.dilation_w * c, columns=columns, left=g.left * c, width=g.width * c)


def _even(columns: int, most: int, block: int) -> int:
    """Return the width of strips of at most `most` columns, about equal; of whole blocks, if `most` allows it.

    A narrow last strip would take as long as a wide one, because the column pass fills whole rows of the ring.
    """
    width = -(-columns // -(-columns // most))
    return min(-(-width // block) * block, most, columns)


def _as_one_channel(seen: View) -> View:
    """View an image of interleaved channels as one channel with wider rows."""
    start, n, _, h, _ = seen.place
    return seen._replace(place=(start, n, 0, h, 1))


def _used_rows(problem: Conv2dProblem) -> NDArray[np.bool_]:
    """For each remainder modulo the vertical stride: True if any output reads rows with this remainder."""
    used = np.zeros(problem.stride[0], np.bool_)
    used[np.arange(problem.r) * problem.dilation[0] % problem.stride[0]] = True
    return used
