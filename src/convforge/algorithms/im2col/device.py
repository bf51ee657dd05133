"""Host side of im2col on GPUs: the expansion in chunks, each followed by a product of the GEMM ladder."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.gemm.device import LADDER, GemmStep
from convforge.algorithms.gemm.mma import TYPES, GemmMma, device_refusal
from convforge.algorithms.gemm.product import MOST_COLUMNS, Product, blocked_flops, operand
from convforge.algorithms.include.conv import MOST_BLOCKS, WeightPacker, address, conv_constants, fill, with_conv
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# What may multiply.
STEPS: dict[str, Callable[[str], GemmStep[Any]]] = {**LADDER, GemmMma.name: GemmMma}
THREADS = 256
# Neighbouring columns of a thread, stored at once: four take so many registers that fewer threads keep memory at work.
PER = 2
# Entries of a column up to which the code of several columns stays small.
MOST_UNROLLED = 64
# Chunks hold a multiple of this many columns: the widest tile of a product, and whole runs of 128 bytes.
GRAIN = 256
# Chunks that a config cuts a matrix into, at most: each costs the host two launches, and the plan their terms.
MOST_CHUNKS = 1024
# The columns begin at a multiple of this in the workspace.
ALIGNMENT = 256
# Channels from which a picture in NHWC is expanded along them: a run of a pixel's channels is a line of memory.
NEAR_CHANNELS = 16

# Columns of the product up to which, with many channels on both sides, a matrix that is written first is ahead: so few
# columns keep few blocks busy, and a product whose operands lie ready is over sooner. Where there is one product, more
# columns, and outputs for each SM, up to which it is.
FEW_COLUMNS, SEVERAL_COLUMNS, SEVERAL_OUTPUTS = 256, 4096, 16000

# Taps and output channels from which, with several input channels but too few for tiles of their own, the matrix pays:
# a thread that holds its pixels would read a tap for nearly every product. And outputs for each SM from which it does:
# with fewer, a method of one launch is over first.
MATRIX_TAPS, MATRIX_CHANNELS, MATRIX_OUTPUTS = 48, 32, 4000


@dataclass(frozen=True, slots=True)
class Im2colConfig(Config):
    """Chunk and product of :class:`Im2col`.

    Attributes
    ----------
    columns : int
        Columns of the matrix, which are output pixels of the batch, expanded at once. The workspace holds
        ``columns * C * R * S`` numbers.
    gemm : str
        The step of the GEMM ladder that multiplies. For gemm_mma, on tensor cores, numbers of 16 bits are not widened.
    tile : int
        Which of that step's tilings: 0 is the one that it puts first.
    """

    columns: int
    gemm: str = "gemm_warp_tiled"
    tile: int = field(default=0, metadata={"least": 0})


class Im2col(DeviceConvolution[Im2colConfig]):
    """out (K x NPQ) = w (K x CRS) x columns (CRS x NPQ), where each column is what one output sees of x.

    Source: Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks for Document Processing, 2006.
    The product writes the output straight into its layout, through the epilogue.
    """

    name = "im2col"
    summary = "expanded in chunks, then a product of the GEMM ladder that writes the output through the epilogue"
    since = "gemm_warp_tiled"
    cost = MethodCost(0.55, 0.8, 2048, 3)
    look = Mark("amber", "diamond")

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[Im2colConfig]:
        """See :class:`Algorithm`. The whole matrix or what an eighth of the memory holds, then smaller chunks."""
        total = problem.n * problem.p * problem.q
        least = -(-total // (MOST_CHUNKS * GRAIN)) * GRAIN
        narrow = why_not_narrow(problem, facts) is None
        first = GemmMma.name if narrow else "gemm_warp_tiled"
        row = problem.c * problem.r * problem.s * itemsize(entries_of(problem, first))
        chunks = list(dict.fromkeys(
            _chunk(total, max(room // row, least)) for room in
            (facts.memory_bytes // 8, 256 << 20, facts.l2_bytes, facts.l2_bytes // 4, 4 << 20, 0)
        ))  # fmt: skip
        found = [Im2colConfig(columns, first) for columns in chunks]
        found += [Im2colConfig(chunks[0], first, tile=tile) for tile in (1, 2, 3)]
        return found + [Im2colConfig(chunks[0], name) for name in LADDER if name != first]

    def plan(self, problem: Conv2dProblem, config: Im2colConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        if not 1 <= config.columns <= MOST_COLUMNS:
            raise ValueError(f"columns={config.columns} of a chunk must be 1 to {MOST_COLUMNS}")
        total, taps, seen = problem.n * problem.p * problem.q, problem.taps, _seen_bytes(problem)
        pixels_near = not (problem.x_layout == "NHWC" and problem.c_per_group >= NEAR_CHANNELS)
        entries = entries_of(problem, config.gemm)
        size = itemsize(entries)
        expansion = _Expansion(problem, runtime, pixels_near, entries)
        widest = min(config.columns, total)
        product = _product(problem, config, runtime, pixels_near)

        counts = {widest, total % config.columns or widest}  # of all chunks, and of the last
        infos = {n: (expansion.info(n), product.info(problem.k_per_group, n, problem.groups)) for n in counts}

        def steps(first: int, count: int) -> list[Launch]:
            expand_info, info = infos[count]

            def operands(buffers: Buffers) -> Any:
                columns = _aligned(buffers["workspace"])
                args = product.output(buffers, count, taps, first)
                args.a = operand(address(buffers["w"].tensors["w"]), size, 1, problem.k, False, problem.k_per_group)
                if pixels_near:
                    args.b = operand(columns, size, 1, count, False, taps * count)
                else:
                    args.b = operand(columns, size, taps * problem.groups, 1, True, taps)
                return args

            moved = taps * problem.groups * count * size + seen * (first + count) // total - seen * first // total
            expand = partial(expansion.arguments, first=first, count=count)
            return [Launch(expand_info, expansion.kernel, expand, runtime, "expansion", moved),
                    Launch(info, product.kernel, operands, runtime, "product")]  # fmt: skip

        launches = [
            step for first in range(0, total, config.columns)
            for step in steps(first, min(config.columns, total - first))
        ]  # fmt: skip
        prepare = WeightPacker(problem, runtime, "CRSK" if pixels_near else "RSCK", entries)
        nbytes = widest * problem.c * problem.r * problem.s * size + ALIGNMENT - 1 if total else 0
        return Plan(self, problem, config, runtime, steps=launches, prepare=prepare, workspace_bytes=nbytes)

    def work_for(self, problem: Conv2dProblem) -> Work:
        """See :class:`Algorithm`. The matrix of windows is written and read besides."""
        windows = problem.n * problem.c * problem.r * problem.s * problem.p * problem.q * itemsize(problem.acc_dtype)
        return Work(blocked_flops(problem), problem.least_bytes + 2 * windows)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        """See :class:`Algorithm`."""
        columns, outputs, channels = problem.n * problem.p * problem.q, problem.k_per_group, problem.c_per_group
        long = problem.taps >= MATRIX_TAPS and outputs >= MATRIX_CHANNELS
        if long and 1 < channels <= 8 and columns * problem.k >= MATRIX_OUTPUTS * facts.cores:
            why = f"{outputs} outputs of {problem.taps} products share what they load"
            return Preference(Rank.WRITTEN_MATRIX, why)
        several = columns <= SEVERAL_COLUMNS and columns * problem.k <= SEVERAL_OUTPUTS * facts.cores
        if channels > 8 and outputs >= 8 and (columns <= FEW_COLUMNS or (several and problem.groups == 1)):
            return Preference(Rank.WRITTEN_MATRIX, "a product of few columns, whose operands lie ready")
        return Preference(Rank.GENERAL_MATRIX, GENERAL)


def _chunk(total: int, columns: int) -> int:
    """Columns of chunks that have at most so many, or GRAIN, and are about equal."""
    most = min(max(columns // GRAIN, 1) * GRAIN, MOST_COLUMNS)
    if total <= most:
        return max(total, 1)
    pieces = -(-total // most)
    return -(-total // pieces // GRAIN) * GRAIN


def _seen_bytes(problem: Conv2dProblem) -> int:
    """Bytes of x under some window: strides may leave out rows and columns. What only a border takes does not count."""

    def seen(size: int, outputs: int, taps: int, stride: int, dilation: int, before: int) -> int:
        at = np.add.outer(np.arange(outputs) * stride, np.arange(taps) * dilation - before).ravel()
        return len(np.unique(at[(at >= 0) & (at < size)]))

    rows = seen(problem.h, problem.p, problem.r, problem.stride[0], problem.dilation[0], problem.padding[0])
    columns = seen(problem.w, problem.q, problem.s, problem.stride[1], problem.dilation[1], problem.padding[2])
    return problem.n * problem.c * rows * columns * itemsize(problem.x_dtype)


def _aligned(workspace: Any) -> int:
    return -(-address(workspace) // ALIGNMENT) * ALIGNMENT


def _product(problem: Conv2dProblem, config: Im2colConfig, runtime: Runtime, pixels_near: bool) -> Product:
    if config.gemm not in STEPS:
        raise ValueError(f"gemm={config.gemm!r} of im2col is unknown; choose one of {', '.join(STEPS)}")
    if config.gemm == GemmMma.name and (reason := why_not_narrow(problem, runtime.facts)) is not None:
        raise ValueError(f"{config}: {reason}")
    step = STEPS[config.gemm](runtime.facts.backend)
    entries = entries_of(problem, config.gemm)
    size = itemsize(entries)
    choices = step.choices(problem.k_per_group, config.columns, problem.taps, problem.groups, size, runtime.facts)
    if not 0 <= config.tile < len(choices):
        raise ValueError(f"tile={config.tile} of im2col: {config.gemm} has tilings 0 to {len(choices) - 1}")
    return step.product(choices[config.tile], runtime, False, not pixels_near, entries, problem)


def entries_of(problem: Conv2dProblem, gemm: str) -> str:
    """The type of the matrix's entries: of the sums, or as x and w are."""
    return problem.x_dtype if gemm == GemmMma.name else problem.acc_dtype


def why_not_narrow(problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
    """Why gemm_mma cannot multiply numbers as they are; None if it can."""
    if problem.x_dtype not in TYPES or problem.w_dtype != problem.x_dtype or problem.acc_dtype != "float32":
        types = ", ".join(sorted({problem.x_dtype, problem.w_dtype}))
        return Reason(
            "x and w must be of one type of {names}, not {types}, for tensor cores to multiply them",
            names=", ".join(TYPES), types=types,
        )  # fmt: skip
    return device_refusal(facts)


class _Expansion:
    """The expansion's kernel for one problem."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, pixels_near: bool, entries: str) -> None:
        self._problem, self._runtime, self._pixels_near = problem, runtime, pixels_near
        self._per = PER if problem.r * problem.s <= MOST_UNROLLED else 1
        self._struct = with_conv(
            "Expansion", problem, columns=ctypes.c_void_p, first=ctypes.c_longlong, count=ctypes.c_int
        )
        own = constants(THREADS=THREADS, PIXELS_NEAR=pixels_near, PER=self._per)
        source = KernelSource(
            "algorithms/im2col/im2col.cu",
            "im2col",
            (*conv_constants(problem, entries), *own),
            self._struct,
            "Expansion",
        )
        self.kernel = runtime.compile(source)

    def info(self, count: int) -> LaunchInfo:
        """The launch that expands so many columns."""
        grid: tuple[int, ...] = (-(-count * self._problem.c // THREADS),)
        if self._pixels_near:
            grid = (-(-count // (THREADS * self._per)), min(self._problem.c, MOST_BLOCKS))
        return self._runtime.describe(self.kernel, LaunchInfo("im2col", grid, (THREADS,)))

    def arguments(self, buffers: Buffers, first: int, count: int) -> Any:
        """The struct of a launch that expands columns [first, first + count)."""
        args = self._struct(columns=_aligned(buffers["workspace"]), first=first, count=count)
        fill(args.conv, self._problem, buffers)
        return args
