"""Host side of batch.cu: which pictures' windows are multiplied together, and how they lie in shared memory."""

from __future__ import annotations

import collections
import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convforge.algorithms.contract import Buffers, Config, Launch, Plan
from convforge.algorithms.depthwise.family import (
    WIDE,
    DepthwiseConvolution,
    idle_for_planes,
    is_preferred,
    whole_planes_pay,
    whole_planes_refusal,
)
from convforge.algorithms.depthwise.mma import BANKS, COLUMNS, DEPTH, FIRST_ARCHITECTURE, ROWS, VECTOR, halves_refusal
from convforge.algorithms.host.conv import conv_constants, fill, is_aligned, with_conv
from convforge.algorithms.host.plane_tiles import window
from convforge.algorithms.host.resident import compiled, evenly
from convforge.algorithms.host.staged import Filter, StagedWeights
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, is_small_plane
from convforge.problem.keys import SMALL_SIDE
from convforge.problem.types import itemsize

# Channels of a block, a warp each, that are worth comparing; the best first where they divide all.
CHANNELS = (2, 4, 1)

# Matrices and sums that a warp holds at most: two and four registers of a thread each.
MOST_MATRICES, MOST_SUMS = 16, 12

# Threads that a multiprocessor shall hold.
RESIDENT = 512

# Windows of a row, of all pictures, that fill a product of tensor cores.
FULL_PRODUCT = 16


@dataclass(frozen=True, slots=True)
class DepthwiseBatchConfig(Config):
    """Planes of :class:`DepthwiseBatch`.

    Attributes
    ----------
    channels : int
        Of a block, a warp each.
    resident : int
        Threads that a multiprocessor shall hold; see :func:`compiled`.
    """

    channels: int = CHANNELS[0]
    resident: int = RESIDENT


LEAST = DepthwiseBatchConfig(1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of pixels and outputs in shared memory: see batch.cu."""

    pictures: int
    first: int
    steps: int
    fill: int
    store: int
    apart: int
    out_apart: int
    outputs: int
    taps: int
    room: int


class DepthwiseBatch(DepthwiseConvolution[DepthwiseBatchConfig]):
    """A row of several pictures is a matrix, a row of the filter another: for small planes of 16-bit numbers in NCHW.

    Examples
    --------
    >>> from convforge.backends.emulator.facts import emulator_facts
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n32c384h14w14_k384r7s7_st1_p3_g384_f16_nchw")
    >>> DepthwiseBatch("emulator").refuses(problem, emulator_facts()) is None
    True
    >>> print(DepthwiseBatch("emulator").refuses(problem.replace(padding=(7, 3, 3, 3)), emulator_facts()))
    every output must see a row of pixels: padding 7 above and 3 below, of windows of 7 rows
    """

    name = "depthwise_batch"
    summary = "depthwise: the same row of several pictures at once, on tensor cores; 16-bit floats, sm_80 and later"
    since = "depthwise_mma"
    cost = MethodCost(2.0, 0.9, 2048, 1)
    look = Mark("olive", "triangle-right")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """A product takes 16 windows of a row, of several pictures: fewer leave gaps."""
        windows = max(1, -(-problem.q // 8))
        span = min(7 * problem.stride[1] + problem.extent_w, problem.w if windows == 1 else 64)
        full = max(1.0, FULL_PRODUCT / (max(problem.n, 1) * windows))
        products = problem.p * windows * 8 * problem.r * -(-span // 16) * 16 * full
        idle = idle_for_planes(problem)
        return Work(problem.n * problem.c * 2 * products * idle, problem.least_bytes * idle)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if not is_preferred(problem):
            return None
        full = problem.x_dtype in ("float16", "bfloat16") and problem.n * -(-problem.q // 8) >= FULL_PRODUCT
        full &= problem.stride == (1, 1) and problem.r * problem.s > WIDE
        rank = Rank.PLANES_TOGETHER if full and whole_planes_pay(problem, facts) else Rank.ONE_CHANNEL_LAST
        return Preference(rank, "every filter sees one channel: tensor cores multiply rows of several pictures by it")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if Architecture.parse(facts.architecture).number < FIRST_ARCHITECTURE:
            return Reason(
                "these tensor cores came with sm_{first}; this is {architecture}",
                first=FIRST_ARCHITECTURE,
                architecture=facts.architecture,
            )
        return super().refuses(problem, facts) or config_refusal(problem, LEAST, facts)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseBatchConfig]:
        """Those first of whose warps the fewest have nothing to do."""
        found = [DepthwiseBatchConfig(channels) for channels in CHANNELS]
        fit = [config for config in found if config_refusal(problem, config, facts) is None] or [LEAST]
        return sorted(fit, key=lambda config: -problem.k % config.channels)

    def plan(self, problem: Conv2dProblem, config: DepthwiseBatchConfig, runtime: Runtime) -> Plan:
        if (reason := config_refusal(problem, config, runtime.facts)) is not None:
            raise ValueError(f"{config}: {reason}")
        vectors = dict.fromkeys(("aligned_x", "aligned_out"), ctypes.c_int)
        struct = with_conv("Batch", problem, filter=Filter, **vectors)
        lies, threads = _layout(problem), 32 * config.channels
        prelude = constants(
            H=problem.h, W=problem.w, P=problem.p, Q=problem.q, TOP=problem.padding[0], LEFT=problem.padding[2],
            CHANNELS=config.channels, PICTURES=lies.pictures, FIRST=lies.first, STEPS=lies.steps, FILL=lies.fill,
            STORE=lies.store, APART=lies.apart, OUT_APART=lies.out_apart, OUTPUTS=lies.outputs, TAPS=lies.taps,
            ROOM=lies.room,
        )  # fmt: skip
        path, name = "algorithms/depthwise/batch.cu", "depthwise_batch"
        source = KernelSource(path, name, (*conv_constants(problem), *prelude), struct, "Batch")
        kernel = compiled(runtime, source, threads, config.resident)
        blocks = max(1, -(-problem.k // config.channels) * -(-problem.n // lies.pictures))
        info = LaunchInfo(name, (blocks,), (threads,), 2 * config.channels * lies.room, early=True)
        info = evenly(runtime, kernel, info)
        x_bytes, out_bytes = itemsize(problem.x_dtype), itemsize(problem.out_dtype)
        x_run = {"w": 1, "h": problem.w, "c": problem.h * problem.w}
        out_run = {"w": 1, "h": problem.q, "c": problem.p * problem.q}

        def arguments(buffers: Buffers) -> Any:
            if not problem.n:  # a block takes its last picture for those that it lacks
                return None
            args = struct()
            conv = args.conv
            fill(conv, problem, buffers)
            args.filter = weights.filter(buffers["w"])
            pictures = {"n": problem.n}
            args.aligned_x = is_aligned(conv.x, conv.x_strides, pictures, x_run, lies.fill, x_bytes)
            args.aligned_out = is_aligned(conv.out, conv.out_strides, pictures, out_run, lies.store, out_bytes)
            return args

        weights = StagedWeights(problem, runtime, kernel)
        return Plan(self, problem, config, runtime, steps=[Launch(info, kernel, arguments, runtime)], prepare=weights)


def config_refusal(problem: Conv2dProblem, config: DepthwiseBatchConfig, facts: DeviceFacts) -> Reason | None:
    """Return why a config is invalid, or None."""
    if (reason := halves_refusal(problem) or whole_planes_refusal(problem) or _sizes_refusal(problem)) is not None:
        return reason
    if config.channels < 1:
        return Reason("{name}={value} must be at least {least}", name="channels", value=config.channels, least=1)
    if (threads := 32 * config.channels) > 1024:
        return Reason("a block has at most 1024 threads; {threads} are asked for", threads=threads)
    if (room := 2 * config.channels * _layout(problem).room) > facts.block_shared_bytes:
        return Reason(
            "{channels} channels of the pictures take {room} bytes of shared memory; a block has {most}",
            channels=config.channels,
            room=room,
            most=facts.block_shared_bytes,
        )
    return None


def _sizes_refusal(problem: Conv2dProblem) -> Reason | None:
    if not is_small_plane(problem):
        return Reason(
            "a kernel is made for one size of planes, at most {most} x {most}; these are {h} x {w}",
            most=SMALL_SIDE,
            h=problem.h,
            w=problem.w,
        )
    (top, bottom), below = problem.padding[:2], problem.dilation[0] * (problem.r - 1)
    if max(top, bottom) > below:
        return Reason(
            "every output must see a row of pixels: padding {top} above and {bottom} below, of windows of {rows} rows",
            top=top,
            bottom=bottom,
            rows=below + 1,
        )
    windows = -(-problem.q // COLUMNS)
    if windows > ROWS:
        return Reason(
            "a row has {count} windows of {outputs} outputs; a product has {most}",
            count=windows,
            outputs=COLUMNS,
            most=ROWS,
        )
    matrices, sums = problem.r * _row(problem)[1], below // problem.stride[0] + 2
    if matrices > MOST_MATRICES or sums > MOST_SUMS:
        return Reason(
            "a warp holds at most {most} matrices of the filter and {rows} rows of sums; these are {own} and {counted}",
            most=MOST_MATRICES,
            rows=MOST_SUMS,
            own=matrices,
            counted=sums,
        )
    return None


def _row(problem: Conv2dProblem) -> tuple[int, int]:
    """FIRST and STEPS of batch.cu."""
    left = problem.padding[2]
    first = -(left + left % 2)
    span = window(COLUMNS, problem.s, problem.stride[1], problem.dilation[1]) + left % 2
    steps = -(-span // DEPTH)
    whole = -(-problem.w // DEPTH)
    return (0, whole) if problem.q <= COLUMNS and whole <= steps else (first, steps)


def _layout(problem: Conv2dProblem) -> _Layout:
    pixels, outputs = problem.h * problem.w, problem.p * problem.q
    first, steps = _row(problem)
    pictures = ROWS // -(-problem.q // COLUMNS)
    apart, in_place = _apart(problem, pixels, VECTOR), _in_place(problem)
    out_apart = apart if in_place else -(-outputs // VECTOR) * VECTOR
    held = pictures * (apart if in_place else apart + out_apart)
    return _Layout(
        pictures, first, steps, math.gcd(pixels, VECTOR), math.gcd(outputs, VECTOR), apart, out_apart,
        0 if in_place else pictures * apart, held, held + -(-problem.r * problem.s // VECTOR) * VECTOR,
    )  # fmt: skip


def _in_place(problem: Conv2dProblem) -> bool:
    """True if a row of outputs takes the place of pixels that no later row reads."""
    if (problem.p, problem.q) != (problem.h, problem.w):
        return False
    return problem.stride[0] == 1 and problem.padding[0] <= problem.dilation[0] * (problem.r - 1)


def _apart(problem: Conv2dProblem, least: int, step: int) -> int:
    """From `least` on, how far apart pictures lie so that the eight windows of a load meet in the fewest banks."""
    windows = -(-problem.q // COLUMNS)

    def meets(apart: int) -> int:
        words = {
            (g // windows * apart + g % windows * COLUMNS * problem.stride[1]) // 2 + t
            for g in range(8) for t in range(4)
        }  # fmt: skip
        return max(collections.Counter(word % BANKS for word in words).values())

    least = -(-least // step) * step
    return min(range(least, least + 2 * BANKS, step), key=lambda apart: (meets(apart), apart))
