"""Host side of the direct method: sizes, tiles and launches. The kernels stand in cpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Config, Frame, Launch, Plan, PreparedFilter
from convforge.algorithms.include.ends import ends, values_dtype
from convforge.algorithms.include.geometry import geometry
from convforge.algorithms.include.views import view
from convforge.algorithms.include.weights import correlation_filter
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize


class DirectNaive(Algorithm[Conv2dProblem, Config]):
    """One output at a time: seven loops, every product's place in x looked up."""

    name = "direct_naive"
    summary = "seven loops, one output at a time"
    operation = "conv2d"
    sources = ("algorithms/direct/cpu.py", "algorithms/include/rows.py")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        return bfloat16_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[Config]:
        """See :class:`Algorithm`."""
        return [Config()]

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        from convforge.algorithms.direct import cpu

        g = geometry(problem)
        values = np.empty(0, values_dtype(problem))
        items = problem.n * problem.k * problem.p
        info = LaunchInfo("direct_naive", (items,), (block_of_items(items, problem.flops, runtime.facts),))
        kernel = runtime.compile(cpu.naive)

        def run(frame: Frame) -> None:
            x, out = view(frame.x, problem.x_layout), view(frame.out, problem.out_layout)
            args = (x, frame.prepared.tensors["w"], out, g, ends(problem, frame.operands), values)
            runtime.launch(kernel, info, args, frame.stream)

        def prepare(w: Any) -> PreparedFilter:
            packed = correlation_filter(problem, w)
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Launch(info, run)], prepare=prepare)


@dataclass(frozen=True, slots=True)
class RowsConfig(Config):
    """Tile of :class:`DirectRows`.

    Attributes
    ----------
    tile_p : int
        Output rows of a strip.
    tile_c : int
        Input channels in the tile at once.
    tile_k : int
        Output channels summed at once.
    """

    tile_p: int = 8
    tile_c: int = 1
    tile_k: int = 1


class Sizes(NamedTuple):
    """The tile as the kernel sees it, in elements.

    Attributes
    ----------
    tile_p, tile_c, tile_k : int
        See :class:`RowsConfig`.
    rows : int
        Rows of the picture in the tile, halo included.
    phases, phase_pitch : int
        Columns of one remainder modulo the stride lie together: how many remainders, how many elements each.
    row_pitch : int
        Elements from row to row.
    """

    tile_p: int
    tile_c: int
    tile_k: int
    rows: int
    phases: int
    phase_pitch: int
    row_pitch: int


class DirectRows(Algorithm[Conv2dProblem, RowsConfig]):
    """Strips of output rows from a tile that stays in the cache, a vector of outputs at a time, on every core."""

    name = "direct_rows"
    summary = "strips of rows from a cached tile, vectorised along the row, threads"
    operation = "conv2d"
    since = "direct_naive"
    sources = ("algorithms/direct/cpu.py", "algorithms/include/rows.py")

    # A tile and its sums share the L2 cache with the output's rows.
    L2_SHARE: ClassVar[float] = 0.5

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        return bfloat16_refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[RowsConfig]:
        """See :class:`Algorithm`. The default is the tallest strip whose tile and sums fit half of L2."""
        room = int(facts.l2_bytes * self.L2_SHARE) or 1
        heights = [p for p in (16, 8, 4, 2, 1) if p == 1 or (p < 2 * problem.p and self._busy(problem, p, facts))]
        found = []
        for tile_p in heights:
            one = RowsConfig(tile_p, 1, 1)
            tile = _sizes(problem, one).row_pitch * _sizes(problem, one).rows * tile_dtype(problem).itemsize
            sums = tile_p * problem.q * itemsize(problem.acc_dtype)
            tile_k = max(1, min(problem.k_per_group, room // 2 // sums))
            tile_c = max(1, min(problem.c_per_group, room // 2 // tile))
            found.append(RowsConfig(tile_p, tile_c, tile_k))
        return sorted(found, key=lambda c: (c.tile_c < problem.c_per_group, c.tile_k < problem.k_per_group))

    def plan(self, problem: Conv2dProblem, config: RowsConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        from convforge.algorithms.direct import cpu

        g, sizes = geometry(problem), _sizes(problem, config)
        values, tile = np.empty(0, values_dtype(problem)), np.empty(0, tile_dtype(problem))
        offsets = _tap_offsets(problem, sizes)
        items = problem.n * problem.groups * -(-problem.p // config.tile_p)
        scratch = sizes.tile_c * sizes.rows * sizes.row_pitch * tile.itemsize
        scratch += config.tile_k * config.tile_p * problem.q * itemsize(problem.acc_dtype)
        block = block_of_items(items, problem.flops, runtime.facts)
        info = LaunchInfo("direct_rows", (items,), (block,), scratch_bytes=scratch)
        kernel = runtime.compile(cpu.rows)

        def run(frame: Frame) -> None:
            x, out = view(frame.x, problem.x_layout), view(frame.out, problem.out_layout)
            end = ends(problem, frame.operands)
            args = (x, frame.prepared.tensors["w"], out, g, end, values, sizes, tile, offsets)
            runtime.launch(kernel, info, args, frame.stream)

        def prepare(w: Any) -> PreparedFilter:
            packed = correlation_filter(problem, w).reshape(problem.k, problem.taps)
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(self, problem, config, runtime, steps=[Launch(info, run)], prepare=prepare)

    @staticmethod
    def _busy(problem: Conv2dProblem, tile_p: int, facts: DeviceFacts) -> bool:
        """Whether strips of this height are enough to keep every core at work."""
        return problem.n * problem.groups * -(-problem.p // tile_p) >= facts.cores


def bfloat16_refusal(problem: Conv2dProblem) -> str | None:
    """NumPy has no bfloat16, so no CPU method takes it."""
    if "bfloat16" in (problem.x_dtype, problem.w_dtype, problem.out_dtype):
        return "NumPy has no bfloat16; cast to float32"
    return None


def tile_dtype(problem: Conv2dProblem) -> np.dtype[np.generic]:
    """The type of pixels in a tile: int16 for 8-bit pixels of integer sums, else the accumulation type."""
    if is_integer(problem.acc_dtype) and itemsize(problem.x_dtype) == 1:
        return np.dtype("int16")
    return np.dtype(problem.acc_dtype)


def _sizes(problem: Conv2dProblem, config: RowsConfig) -> Sizes:
    phases = min(problem.stride[1], problem.extent_w)
    columns = (problem.q - 1) * problem.stride[1] + problem.extent_w
    phase_pitch = -(-columns // problem.stride[1])
    rows = (config.tile_p - 1) * problem.stride[0] + problem.extent_h
    return Sizes(config.tile_p, config.tile_c, config.tile_k, rows, phases, phase_pitch, phases * phase_pitch)


def _tap_offsets(problem: Conv2dProblem, sizes: Sizes) -> NDArray[np.int64]:
    """Where in the tile each tap (c, r, s) of a channel block reads, from the place of tap 0."""
    c = np.arange(sizes.tile_c)[:, None, None] * sizes.rows * sizes.row_pitch
    r = np.arange(problem.r)[:, None] * problem.dilation[0] * sizes.row_pitch
    columns = np.arange(problem.s) * problem.dilation[1]
    s = columns % problem.stride[1] * sizes.phase_pitch + columns // problem.stride[1]
    return (c + r + s).reshape(-1).astype(np.int64)
