"""Host side of streamed.cu: strips, rings of rows, and how the device is filled with them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from convforge.algorithms.contract import Config, Frame, Launch, Plan
from convforge.algorithms.direct.blocks import even_share
from convforge.algorithms.direct.tiled import VECTOR_BYTES, chunk_of, is_aligned, stores_of
from convforge.algorithms.include.constants import either_weights, fits_constant_memory
from convforge.algorithms.include.conv import MOST_BLOCKS, conv_constants, fill, with_conv
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.algorithms.include.staged import Filter, StagedWeights, staging_refusal
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Sums of a thread, in registers.
MOST_SUMS = 64
# Planes of the ring: with more channels a row of the ring takes more of shared memory than it hides of latency.
MOST_PLANES = 8
# Steps of the shortest strip: a strip reads the rows above it and below it again.
SHORTEST = 3


@dataclass(frozen=True, slots=True)
class StreamedConfig(Config):
    """Strips of :class:`DirectStreamed`.

    Attributes
    ----------
    out_p, out_q, out_k : int
        Rows, columns and channels of outputs that a thread computes at a step.
    ahead : int
        Steps whose rows are under way while one is computed.
    warps : int
        Of a block, side by side.
    resident : int
        Warps that a multiprocessor shall hold; strips are cut so long that all of them run at once.
    """

    out_p: int = 4
    out_q: int = 4
    out_k: int = 1
    ahead: int = 1
    warps: int = 4
    resident: int = 12


class _Layout(NamedTuple):
    """The ring as streamed.cu lays it out."""

    chunk: int
    load: int
    lead: int
    ring_bytes: int


class DirectStreamed(DeviceConvolution[StreamedConfig]):
    """Warps walk down strips of the picture, fed by asynchronous copies into rings of rows in shared memory."""

    name = "direct_streamed"
    summary = "warps walk down strips; asynchronous copies bring rows steps before they are used"
    since = "direct_tiled"
    sources = (
        "algorithms/direct/streamed.cu",
        *(f"algorithms/include/device/{name}.cuh" for name in ("tile", "vector", "weights", "staged", "device")),
        *DeviceConvolution.headers,
    )

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        return super().refuses(problem, facts) or config_refusal(problem, _smallest(problem), facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[StreamedConfig]:
        """See :class:`Algorithm`. The default, then other tiles, and more or fewer rows under way."""
        default = _default(problem, facts)
        found = [default]
        for out_p, out_q in ((4, 4), (2, 4), (1, 4), (8, 4), (4, 2), (2, 2)):
            found.append(replace(default, out_p=out_p, out_q=out_q))
        found += [replace(default, ahead=ahead) for ahead in (1, 2, 3, 4)]
        found += [replace(default, resident=resident) for resident in (8, 12, 16, 24)]
        found += [replace(default, warps=warps) for warps in (1, 2, 4, 8)]
        found.append(_smallest(problem))
        return [c for c in dict.fromkeys(found) if config_refusal(problem, c, facts) is None]

    def plan(self, problem: Conv2dProblem, config: StreamedConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        struct = with_conv(
            "Streamed", problem, filter=Filter,
            **dict.fromkeys(("band", "aligned_x", "aligned_out"), ctypes.c_int),
        )  # fmt: skip
        layout = _layout(problem, config)
        store_k, store = stores_of(problem, config.out_q, config.out_k)
        staged = staging_refusal(problem) is None
        prelude = constants(
            OUT_P=config.out_p, OUT_Q=config.out_q, OUT_K=config.out_k, AHEAD=config.ahead, WARPS=config.warps,
            BLOCKS=max(1, config.resident // config.warps), CHUNK=layout.chunk, LOAD=layout.load,
            LEAD=layout.lead, SHIFT=layout.lead % layout.load, STORE_K=store_k, STORE=store,
            STAGED_WEIGHTS=staged, CONSTANT_WEIGHTS=not staged and fits_constant_memory(problem),
        )  # fmt: skip
        source = KernelSource(
            "algorithms/direct/streamed.cu", "direct_streamed", (*conv_constants(problem), *prelude), struct, "Streamed"
        )
        kernel = runtime.compile(source)
        weights = StagedWeights(problem, runtime, kernel) if staged else either_weights(problem, runtime, kernel)
        band, grid = _grid(problem, config, runtime.facts)
        info = LaunchInfo("direct_streamed", grid, (32, config.warps), config.warps * layout.ring_bytes)
        info = runtime.describe(kernel, info)
        x_bytes, out_bytes = itemsize(problem.x_dtype), itemsize(problem.out_dtype)
        x_sizes = (problem.n, problem.c // layout.chunk, problem.h)
        out_sizes = (problem.n, problem.k // store_k, problem.p)
        piece = VECTOR_BYTES // x_bytes

        def run(frame: Frame) -> None:
            args = struct(band=band)
            conv = args.conv
            fill(conv, problem, frame)
            if isinstance(weights, StagedWeights):
                args.filter = weights.filter(frame.prepared)
            args.aligned_x = is_aligned(conv.x, conv.x_strides, x_sizes, layout.chunk, piece, x_bytes)
            args.aligned_out = is_aligned(conv.out, conv.out_strides, out_sizes, store_k, store, out_bytes)
            runtime.launch(weights.kernel(frame.prepared, frame.stream), info, args, frame.stream)

        borrow = weights.borrow if isinstance(weights, StagedWeights) else None
        return Plan(self, problem, config, runtime, steps=[Launch(info, run)], prepare=weights, borrow=borrow)


def config_refusal(problem: Conv2dProblem, config: StreamedConfig, facts: DeviceFacts) -> str | None:
    """Why a config cannot be; None if it can."""
    for name in ("out_p", "out_q", "out_k", "ahead", "warps", "resident"):
        if getattr(config, name) < 1:
            return f"{name}={getattr(config, name)} must be at least 1"
    if problem.stride[0] > problem.extent_h:
        return f"rows between windows of {problem.extent_h} at stride {problem.stride[0]} would be brought in vain"
    if (planes := problem.c_per_group // chunk_of(problem)) > MOST_PLANES:
        return f"a ring holds rows of at most {MOST_PLANES} planes; the filter sees {planes}"
    if config.out_k * config.out_p * config.out_q > MOST_SUMS:
        return f"a thread keeps at most {MOST_SUMS} sums; {config} has {config.out_k * config.out_p * config.out_q}"
    if config.warps > 32:
        return f"a block has at most 32 warps; this one {config.warps}"
    if not _holds(problem, problem.outside):
        return f"the border's {problem.outside} is no {problem.x_dtype}"
    need = config.warps * _layout(problem, config).ring_bytes
    if need > facts.block_shared_bytes - (8 << 10):
        return f"the rings of {config.warps} warps take {need} bytes of shared memory; a block has " \
               f"{facts.block_shared_bytes}"  # fmt: skip
    return None


def _holds(problem: Conv2dProblem, value: float) -> bool:
    """Whether the pixels' type holds what stands outside the picture."""
    if problem.x_dtype == "bfloat16":
        return value == 0
    with np.errstate(all="ignore"):
        return bool(np.asarray(value).astype(problem.x_dtype) == value)


def _layout(problem: Conv2dProblem, config: StreamedConfig) -> _Layout:
    chunk, size = chunk_of(problem), itemsize(problem.x_dtype)
    piece, step = VECTOR_BYTES // size, config.out_q * problem.stride[1] * chunk
    lead = -problem.padding[2] * chunk % piece
    run = ((config.out_q - 1) * problem.stride[1] + problem.extent_w) * chunk
    pieces = -(-(lead + 31 * step + run) // piece)
    rows = (config.out_p - 1) * problem.stride[0] + problem.extent_h
    slots = rows + config.ahead * config.out_p * problem.stride[0]
    return _Layout(chunk, math.gcd(step, piece), lead, slots * (problem.c_per_group // chunk) * pieces * VECTOR_BYTES)


def _grid(problem: Conv2dProblem, config: StreamedConfig, facts: DeviceFacts) -> tuple[int, tuple[int, int, int]]:
    """Rows of a strip, and the grid: as many strips as the device holds at once, where they are not too short."""
    columns = -(-problem.q // (config.warps * 32 * config.out_q))
    planes = problem.n * problem.groups * -(-problem.k_per_group // config.out_k)
    blocks = facts.cores * max(1, config.resident // config.warps)
    steps = -(-problem.p // config.out_p)
    bands = max(1, min(blocks // max(columns * planes, 1), -(-steps // SHORTEST)))
    band = -(-steps // bands) * config.out_p
    return max(band, 1), (
        max(columns, 1),
        min(max(-(-problem.p // max(band, 1)), 1), MOST_BLOCKS),
        min(max(planes, 1), MOST_BLOCKS),
    )


def _default(problem: Conv2dProblem, facts: DeviceFacts) -> StreamedConfig:
    """Tiles by the stride; as many channels as registers allow; fewer rows under way where they do not fit."""
    out_p = 4 if problem.stride[0] == 1 else 2 if problem.stride[0] == 2 else 1
    out_q = 4 if problem.stride[1] != 2 else 2
    config = StreamedConfig(out_p, out_q, even_share(problem.k_per_group, max(1, MOST_SUMS // (out_p * out_q))))
    for smaller in (config, replace(config, warps=2), replace(config, warps=1), _smallest(problem)):
        if config_refusal(problem, smaller, facts) is None:
            return smaller
    return _smallest(problem)


def _smallest(problem: Conv2dProblem) -> StreamedConfig:
    return StreamedConfig(1, 1, 1, 1, 1, 8)
