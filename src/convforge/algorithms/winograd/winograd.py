"""Host side of Winograd's method: sizes, chunks and launches. cpu.py has the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter, Step
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import geometry
from convforge.algorithms.host.outside import outside_steps
from convforge.algorithms.host.views import view
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.host.workspace import Part, carve, nbytes
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize

# Rows of a register block of products, and bytes of a row of a panel: two vectors of 32 bytes.
ROWS, PANEL_BYTES = 6, 64

# Bytes of the default config's workspace, at most, unless one panel per core takes more.
WORKSPACE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class WinogradConfig(Config):
    """Blocking of tiles and output channels."""

    # Panels (16 tiles of float32, 8 of float64) that are transformed, then multiplied: they bound the workspace.
    panels: int = 64
    block_k: int = 12  # output channels multiplied at once, a multiple of 6


class Sizes(NamedTuple):
    """Sizes that the kernels take."""

    m: int  # outputs of a tile along an axis
    alpha: int  # points of the transform, m + 2
    lanes: int  # elements of a vector; a panel has twice as many tiles
    tiles_h: int  # tiles of an image along P
    tiles_w: int  # tiles of an image along Q
    tiles: int  # tiles of the batch
    groups: int
    all_channels: int  # input channels of all groups
    outputs: int  # output channels of a group
    block_c: int  # channels of one work item of the input transform
    blocks_c: int  # blocks of channels
    block_k: int  # output channels of a block
    blocks_k: int  # blocks of output channels of a group
    channel_pitch: int  # elements of U from one output to the next
    filter_pitch: int  # elements of U from one transform point to the next
    point_pitch: int  # elements of V from one transform point to the next
    panel_pitch: int  # elements of V from one group of a panel to the next


@takes_bfloat16
class _Winograd(Algorithm[Conv2dProblem, WinogradConfig]):
    """Base of the methods of both tile sizes."""

    operation = "conv2d"
    precision = "winograd"
    nan_spread = "tile"

    m: ClassVar[int]

    def work_for(self, problem: Conv2dProblem) -> Work:
        """(m + 2)^2 products give m^2 outputs, which take 9 each directly; transformed tiles are written and read."""
        grown = ((self.m + 2) / self.m) ** 2
        return Work(problem.flops * grown / 9, (1 + 2 * grown) * problem.least_bytes)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (problem.r, problem.s) != (3, 3):
            return Reason(
                "its transforms are those of a {wanted} filter; this one is {own}",
                wanted="3x3",
                own=f"{problem.r}x{problem.s}",
            )
        if problem.stride != (1, 1):
            return Reason(
                "its tiles share their transforms at stride 1 alone; the stride is {stride}", stride=str(problem.stride)
            )
        if problem.dilation != (1, 1):
            return Reason("its tiles are dense; the dilation is {dilation}", dilation=str(problem.dilation))
        if is_integer(problem.acc_dtype):
            return Reason("its transforms have fractions, so integer sums would not be exact; convert w to float32")
        return None

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[WinogradConfig]:
        """The default's workspace is at most 8 MiB, or one panel per core."""
        one = _sizes(problem, WinogradConfig(1), self.m, facts)
        room = WORKSPACE_BYTES // (one.groups * one.panel_pitch * itemsize(problem.acc_dtype))
        panels = max(1, min(max(room, facts.cores), -(-one.tiles // (2 * one.lanes))))
        outputs = -(-problem.k_per_group // ROWS) * ROWS
        return [WinogradConfig(panels, block_k) for block_k in (12, 24, 48, 6) if block_k <= outputs]

    def plan(self, problem: Conv2dProblem, config: WinogradConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.winograd import cpu

        if config.panels < 1 or config.block_k < ROWS or config.block_k % ROWS:
            raise ValueError(f"{config}: panels must be at least 1, and block_k a multiple of {ROWS}")
        sizes = _sizes(problem, config, self.m, runtime.facts)
        acc = np.dtype(problem.acc_dtype)
        panels = -(-sizes.tiles // (2 * sizes.lanes))
        chunk = max(1, min(config.panels, panels))
        parts: list[Part] = [((chunk * sizes.groups * sizes.panel_pitch,), acc)]
        steps: list[Step] = []
        for first in range(0, panels, chunk):
            count = min(chunk, panels - first)
            steps.append(self._input(cpu.transform_input, problem, sizes, parts, first, count, runtime))
            steps.append(self._products(cpu.products, problem, sizes, parts, first, count, runtime))
        steps += outside_steps(problem, runtime)
        kernel = runtime.compile(cpu.transform_filters)
        block = block_of_items(problem.k, problem.k * problem.c_per_group * 9 * sizes.alpha**2, runtime.facts)
        info = LaunchInfo(f"{self.name}_filter", (problem.k,), (block,))

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            taps = np.array(w, acc, order="C", copy=None)
            taps = (taps if taps.flags.writeable else taps.copy()).reshape(problem.k, -1)
            u = np.empty((sizes.groups, sizes.blocks_k, sizes.alpha**2, sizes.filter_pitch), acc)
            outputs = problem.k_per_group - (sizes.blocks_k - 1) * sizes.block_k
            u[:, -1, :, outputs * sizes.channel_pitch :] = 0  # zero the rows that have no output
            flat = u.reshape(-1)
            runtime.launch(kernel, info, (taps, flat, sizes, problem.c_per_group, problem.mode == "convolution"))
            return PreparedFilter({"u": flat}, u.nbytes)

        return Plan(self, problem, config, runtime, steps=steps, prepare=prepare, workspace_bytes=nbytes(parts))

    def _input(self, function: Any, problem: Conv2dProblem, sizes: Sizes, parts: list[Part], first: int, count: int,
               runtime: Runtime) -> Call:  # fmt: skip
        """The step that fills V with `count` panels from `first` on."""
        g, kernel = geometry(problem), runtime.compile(function)
        items, patch = count * sizes.blocks_c, sizes.alpha**2 * PANEL_BYTES
        flops = 8 * count * problem.c * sizes.alpha**2 * 2 * sizes.lanes
        block = block_of_items(items, flops, runtime.facts)
        info = LaunchInfo(f"{self.name}_input", (items,), (block,), scratch_bytes=2 * patch)

        def run(buffers: Buffers, stream: Any) -> None:
            (v,) = carve(buffers.get("workspace"), parts)
            runtime.launch(kernel, info, (view(buffers["x"], problem.x_layout), v, g, sizes, first), stream)

        return Call(info, run)

    def _products(self, function: Any, problem: Conv2dProblem, sizes: Sizes, parts: list[Part], first: int, count: int,
                  runtime: Runtime) -> Call:  # fmt: skip
        """The step that computes the outputs of these panels from U and V."""
        g, kernel, values = geometry(problem), runtime.compile(function), np.empty(0, values_dtype(problem))
        items = count * sizes.groups * sizes.blocks_k
        flops = 2 * items * sizes.block_k * problem.c_per_group * sizes.alpha**2 * 2 * sizes.lanes
        block = block_of_items(items, flops, runtime.facts)
        scratch = sizes.alpha**2 * sizes.block_k * PANEL_BYTES
        info = LaunchInfo(f"{self.name}_products", (items,), (block,), scratch_bytes=scratch)

        def run(buffers: Buffers, stream: Any) -> None:
            (v,) = carve(buffers.get("workspace"), parts)
            out = view(buffers["out"], problem.out_layout)
            args = (
                buffers["w"].tensors["u"],
                v,
                out,
                g,
                epilogue_arguments(problem, buffers),
                values,
                sizes,
                first,
                count,
            )
            runtime.launch(kernel, info, args, stream)

        return Call(info, run)


def _sizes(problem: Conv2dProblem, config: WinogradConfig, m: int, facts: DeviceFacts) -> Sizes:
    lanes = PANEL_BYTES // 2 // itemsize(problem.acc_dtype)
    tiles_h, tiles_w = -(-problem.p // m), -(-problem.q // m)
    alpha = m + 2
    # Enough blocks of channels that even a chunk of few panels keeps all cores busy.
    panels = min(config.panels, -(-problem.n * tiles_h * tiles_w // (2 * lanes)))
    block_c = max(1, min(problem.c, panels * problem.c // (16 * facts.cores)))
    channel_pitch = -(-problem.c_per_group // lanes) * lanes
    # One extra cache line per transform point, so that the points do not all fall into one set of the cache.
    point_pitch = (problem.c_per_group + 1) * 2 * lanes
    return Sizes(
        m=m,
        alpha=alpha,
        lanes=lanes,
        tiles_h=tiles_h,
        tiles_w=tiles_w,
        tiles=problem.n * tiles_h * tiles_w,
        groups=problem.groups,
        all_channels=problem.c,
        outputs=problem.k_per_group,
        block_c=block_c,
        blocks_c=-(-problem.c // block_c),
        block_k=config.block_k,
        blocks_k=-(-problem.k_per_group // config.block_k),
        channel_pitch=channel_pitch,
        filter_pitch=config.block_k * channel_pitch + 2 * lanes,
        point_pitch=point_pitch,
        panel_pitch=alpha**2 * point_pitch,
    )


class WinogradF2(_Winograd):
    """Tiles of 2x2 outputs from 16 products; the direct method needs 36. Small rounding error."""

    name = "winograd_f2"
    summary = "F(2x2, 3x3): 2.25 times fewer products"
    m = 2
    cost = MethodCost(0.27, 0.4, 1, 2)
    look = Mark("magenta", "triangle-up")


class WinogradF4(_Winograd):
    """Tiles of 4x4 outputs from 36 products; the direct method needs 144."""

    name = "winograd_f4"
    summary = "F(4x4, 3x3): 4 times fewer products"
    since = "winograd_f2"
    m = 4
    cost = MethodCost(0.27, 0.4, 1, 2)
    look = Mark("purple", "triangle-down")
    preference = Preference(Rank.LESS_ARITHMETIC, "a quarter of the products, where the transforms pay")
