"""Host side of depthwise convolution on the CPU: strips, vectors, packed weights. cpu.py has the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.algorithms.depthwise.family import one_channel_refusal
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import Strip, geometry, strip, tap_offsets
from convforge.algorithms.host.views import View, view
from convforge.algorithms.host.weights import filter_to_pack, float_sums
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

_VECTOR_BYTES = 32
# Share of L2 for the tile, because the output passes through L2 too.
_L2_SHARE = 0.5
# Channel vectors of a work item, at most: those of a pixel then fill up to four cache lines, read together.
_MOST_VECTORS = 8
# Vectors of sums that pass the epilogue together, unless one row has more.
_VECTORS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class DepthwiseConfig(Config):
    """Vectors and tile of :class:`Depthwise`."""

    # Contents of a vector: outputs of a row ("columns"), channels of a pixel ("channels"), or whole pixels ("pixels").
    along: str = "columns"
    tile_p: int = 8  # output rows of a strip
    tile_c: int = 1  # channels of a work item


class Block(NamedTuple):
    """Kernel parameters other than the tile."""

    channels: int  # channels of the image
    rows: int  # output rows summed before any is stored
    row_vectors: int  # vectors of a row; with `interleaved`, only those that begin with the same channel
    item_vectors: int  # channel vectors of a work item; with `interleaved`, first channels that vectors can have
    interleaved: bool  # a vector holds whole pixels
    put_directly: bool  # stores sums directly into the output


@takes_bfloat16
class Depthwise(Algorithm[Conv2dProblem, DepthwiseConfig]):
    """Sums eight vectors of outputs of a channel over all taps in registers; they may be anywhere in a strip."""

    name = "depthwise"
    summary = "one channel a filter: eight vectors of sums in registers, along the columns or along the channels"
    operation = "conv2d"
    since = "direct_rows"
    cost = MethodCost(0.40, 0.5, 1, 1)
    look = Mark("olive", "circle")

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """Preferred if float32 represents all integer sums exactly."""
        if not problem.groups == problem.c > 1 or (is_integer(problem.acc_dtype) and problem.largest_sum >= 2**24):
            return None
        return Preference(
            Rank.ONE_CHANNEL, "every filter sees one channel: vectors of sums stay in registers for all its taps"
        )

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        return one_channel_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseConfig]:
        """Vectors along the contiguous axis first; of these, the tallest strip that fits the cache first."""
        found = []
        if problem.x_layout == "NHWC" and problem.c >= _lanes(problem):
            tile_c = _channels_of_an_item(problem, facts)
            found += [DepthwiseConfig("channels", tile_p, tile_c) for tile_p in _heights(problem, tile_c, facts)]
        elif problem.x_layout == "NHWC" and problem.stride[1] == 1 and _interleaving_refusal(problem) is None:
            found += [DepthwiseConfig("pixels", tile_p, problem.c) for tile_p in _heights(problem, problem.c, facts)]
        return found + [DepthwiseConfig("columns", tile_p, 1) for tile_p in _heights(problem, 1, facts)]

    def plan(self, problem: Conv2dProblem, config: DepthwiseConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.depthwise import cpu

        if config.along not in ("columns", "channels", "pixels"):
            raise ValueError(f"along={config.along!r} must be 'columns', 'channels' or 'pixels'")
        if config.along == "pixels" and (reason := _interleaving_refusal(problem)):
            raise ValueError(f"{config}: {reason}")
        g, dtype, values = geometry(problem), float_sums(problem), np.empty(0, values_dtype(problem))
        lanes = _lanes(problem)
        layout = {"columns": _columns, "channels": _channels, "pixels": _pixels}[config.along](problem, config)
        parts = -(-problem.c // (layout.block.item_vectors * lanes)) if config.along == "channels" else 1
        items = problem.n * (problem.c if config.along == "columns" else parts) * -(-problem.p // config.tile_p)
        planes = layout.block.item_vectors if config.along == "channels" else 1
        info = LaunchInfo(
            f"depthwise_along_{config.along}",
            (items,),
            (block_of_items(items, problem.flops, runtime.facts),),
            scratch_bytes=layout.tile.plane * planes * dtype.itemsize,
        )
        kernel = runtime.compile(cpu.along_columns if config.along == "columns" else cpu.along_channels)

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.x_layout), view(buffers["out"], problem.out_layout)
            straight = problem.epilogue.is_plain and out.flat.dtype == dtype and _lies_whole(problem, out, config.along)
            block = layout.block._replace(put_directly=straight)
            args = (x, buffers["w"].tensors["w"], out, g, epilogue_arguments(problem, buffers), values, layout.tile,
                    block, layout.offsets, layout.corners, layout.places)  # fmt: skip
            runtime.launch(kernel, info, args, stream)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = layout.packed(filter_to_pack(problem, w, dtype.name).reshape(problem.c, -1, problem.taps), lanes)
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)], prepare=prepare)


class _Layout(NamedTuple):
    """Layout of tile, vectors and weights for a config; cpu.py explains `offsets`, `corners` and `places`."""

    tile: Strip
    block: Block
    offsets: NDArray[np.int64]
    corners: NDArray[np.int64]
    places: NDArray[np.int64]
    packed: Callable[[NDArray[Any], int], NDArray[Any]]


def _columns(problem: Conv2dProblem, config: DepthwiseConfig) -> _Layout:
    """Vectors of outputs of a row; the last one may overlap the previous one, so that it ends with the row."""
    lanes, tile = _lanes(problem), strip(problem, config.tile_p, 1)
    first = np.minimum(np.arange(0, problem.q, lanes), max(problem.q - lanes, 0))
    rows = _rows_at_once(problem, config, first.size)
    block = Block(problem.c, rows, first.size, 1, interleaved=False, put_directly=False)
    corners, places = _lists(problem, tile, rows, first, first, problem.q)
    return _Layout(
        tile, block, tap_offsets(problem, tile), corners, places, lambda taps, lanes: np.array(taps).reshape(-1)
    )


def _channels(problem: Conv2dProblem, config: DepthwiseConfig) -> _Layout:
    """Vectors of channels: each has its own plane in the tile, with columns in order."""
    lanes = _lanes(problem)
    columns = (problem.q - 1) * problem.stride[1] + problem.extent_w
    high = (config.tile_p - 1) * problem.stride[0] + problem.extent_h
    tile = Strip(config.tile_p, 1, high, 1, columns * lanes, columns * lanes, high * columns * lanes)
    vectors = min(-(-config.tile_c // lanes), -(-problem.c // lanes))
    rows = _rows_at_once(problem, config, problem.q)
    block = Block(problem.c, rows, problem.q, vectors, interleaved=False, put_directly=False)
    pixels = np.arange(problem.q)
    corners, places = _lists(problem, tile, rows, pixels * (problem.stride[1] * lanes), pixels, problem.q)
    r = np.arange(problem.r)[:, None] * (problem.dilation[0] * tile.row_pitch)
    offsets = r + np.arange(problem.s) * (problem.dilation[1] * lanes)
    return _Layout(tile, block, offsets.reshape(-1).astype(np.int64), corners, places, _packed_channels)


def _pixels(problem: Conv2dProblem, config: DepthwiseConfig) -> _Layout:
    """Vectors of whole pixels: a row of pixels becomes one row, C times as wide."""
    lanes, c, one = _lanes(problem), problem.c, strip(problem, config.tile_p, 1)
    tile = one._replace(phase_pitch=one.phase_pitch * c, row_pitch=one.row_pitch * c, plane=one.plane * c)
    width = problem.q * c
    first = np.minimum(np.arange(0, width, lanes), width - lanes)
    kinds = c // math.gcd(c, lanes)
    alike = [first[first % c == kind * lanes % c] for kind in range(kinds)]
    longest = max(len(vectors) for vectors in alike)
    rows = _rows_at_once(problem, config, first.size)
    lists = [
        _lists(problem, tile, rows, v, v, width) for v in (np.pad(v, (0, longest - len(v)), "edge") for v in alike)
    ]
    corners, places = (np.concatenate(which) for which in zip(*lists, strict=True))
    block = Block(c, rows, longest, kinds, interleaved=True, put_directly=False)
    return _Layout(tile, block, tap_offsets(problem, one) * c, corners, places, _packed_pixels)


def _lists(
    problem: Conv2dProblem, tile: Strip, rows: int, corners: NDArray[Any], places: NDArray[Any], row: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Extend the corners and places of one row's vectors to several rows; outputs of adjacent rows are `row` apart."""
    p = np.arange(rows)[:, None]
    all_corners, all_places = p * (problem.stride[0] * tile.row_pitch) + corners, p * row + places
    return all_corners.reshape(-1).astype(np.int64), all_places.reshape(-1).astype(np.int64)


def _packed_channels(taps: NDArray[Any], lanes: int) -> NDArray[Any]:
    """Pack (C, outputs, R * S) weights so that the channels of a vector are contiguous for each output and tap."""
    short = -taps.shape[0] % lanes
    if short:
        taps = np.pad(taps, ((0, short), (0, 0), (0, 0)))
    return np.ascontiguousarray(taps.reshape(-1, lanes, *taps.shape[1:]).transpose(0, 2, 3, 1)).reshape(-1)


def _packed_pixels(taps: NDArray[Any], lanes: int) -> NDArray[Any]:
    """Pack (C, outputs, R * S) weights: one per lane, for each first channel of a vector, output and tap."""
    c = taps.shape[0]
    lane = np.arange(c // math.gcd(c, lanes) * lanes).reshape(-1, lanes) % c
    return np.ascontiguousarray(taps[lane].transpose(0, 2, 3, 1)).reshape(-1)


def _lanes(problem: Conv2dProblem) -> int:
    return _VECTOR_BYTES // float_sums(problem).itemsize


def _interleaving_refusal(problem: Conv2dProblem) -> Reason | None:
    lanes, c = _lanes(problem), problem.c
    needed = c // math.gcd(c, lanes) * lanes
    if c < lanes and problem.q * c >= needed:
        return None
    return Reason(
        "vectors of {lanes} lanes hold pixels of fewer channels than that, and rows of at least {least} of them",
        lanes=lanes,
        least=needed // c,
    )


def _rows_at_once(problem: Conv2dProblem, config: DepthwiseConfig, row_vectors: int) -> int:
    """Output rows with sums in memory at a time: enough to fill blocks of eight vectors."""
    return max(1, min(config.tile_p, problem.p, _VECTORS_AT_ONCE // max(row_vectors, 1)))


def _channels_of_an_item(problem: Conv2dProblem, facts: DeviceFacts) -> int:
    """Channels that share a tile: fewer if most rows of the strip would otherwise be halo."""
    lanes, most = _lanes(problem), _MOST_VECTORS
    vectors = -(-problem.c // lanes)
    while most > 1 and _tallest(problem, most * lanes, facts) < min(problem.p, 2 * (problem.extent_h - 1)):
        most //= 2
    return -(-vectors // -(-vectors // most)) * lanes


def _heights(problem: Conv2dProblem, tile_c: int, facts: DeviceFacts) -> list[int]:
    """Strip heights, best first: the tallest that keeps all cores busy, then half of it."""
    wanted = -(-4 * facts.cores // max(problem.n * -(-problem.c // tile_c), 1))
    strips = max(-(-problem.p // _tallest(problem, tile_c, facts)), wanted)
    return list(dict.fromkeys(-(-problem.p // min(n, problem.p)) for n in (strips, 2 * strips)))


def _tallest(problem: Conv2dProblem, tile_c: int, facts: DeviceFacts) -> int:
    """Most output rows with a tile that fits its share of L2."""
    columns = (problem.q - 1) * problem.stride[1] + problem.extent_w
    rows = int(_L2_SHARE * facts.l2_bytes) // (columns * tile_c * float_sums(problem).itemsize)
    return max(1, min((rows - problem.extent_h) // problem.stride[0] + 1, problem.p))


def _lies_whole(problem: Conv2dProblem, out: View, along: str) -> bool:
    """True if sums fit the output's rows as whole vectors, with no gaps between rows."""
    lanes = _lanes(problem)
    if out.place[3] != problem.q * out.place[4]:
        return False
    if along == "columns":
        return out.place[4] == 1 and problem.q >= lanes
    if out.place[2] != 1 or problem.k != problem.c:
        return False
    return out.place[4] == problem.c if along == "pixels" else problem.c % lanes == 0
