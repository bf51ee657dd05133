"""Host side of batch.cu: windows of several images as one matrix, and the layout of shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.family import (
    WIDE,
    DepthwiseConvolution,
    idle_for_planes,
    is_preferred,
    small_plane_refusal,
    threads_refusal,
    whole_planes_pay,
    whole_planes_refusal,
)
from convforge.algorithms.depthwise.mma import (
    COLUMNS,
    DEPTH,
    FIRST_ARCHITECTURE,
    ROWS,
    VECTOR,
    halves_refusal,
    pitch_of_rows,
)
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.host.plane_tiles import window
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Channels of a block (one warp each) worth comparing; the best first, if it divides the number of channels.
CHANNELS = (2, 4, 1)

# Matrices and rows of sums of a warp, at most: a matrix takes two registers of a thread, a row of sums four.
MOST_MATRICES, MOST_SUMS = 16, 12

# Resident threads per SM, at least.
RESIDENT = 512

# Windows of a row, over all images, that fill a tensor core product.
FULL_PRODUCT = 16


@dataclass(frozen=True, slots=True)
class DepthwiseBatchConfig(Config):
    """Channels of a block of :class:`DepthwiseBatch`."""

    channels: int = CHANNELS[0]  # channels of a block, one warp each
    resident: int = RESIDENT  # resident threads per SM, at least; see :func:`compiled`


LEAST = DepthwiseBatchConfig(1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of pixels and outputs in shared memory; see batch.cu."""

    images: int
    first: int
    steps: int
    fill: int
    store: int
    pitch: int
    out_pitch: int
    outputs: int
    taps: int
    room: int


class DepthwiseBatch(DepthwiseConvolution[DepthwiseBatchConfig]):
    """Products of rows of several images and rows of the filter as matrices: for small planes of 16-bit NCHW images."""

    name = "depthwise_batch"
    summary = "depthwise: the same row of several images at once, on tensor cores; 16-bit floats, sm_80 and later"
    since = "depthwise_mma"
    first_architecture = FIRST_ARCHITECTURE
    cost = MethodCost(2.0, 0.9, 2048, 1)
    look = Mark("olive", "triangle-right")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """A tensor core product has 16 windows of a row, over several images; with fewer, part of it is idle."""
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
        return Preference(rank, "every filter sees one channel: tensor cores multiply rows of several images by it")

    def least(self, problem: Conv2dProblem) -> DepthwiseBatchConfig:
        return LEAST

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[DepthwiseBatchConfig]:
        """Return valid configs, those with the fewest idle warps first."""
        fit = self.valid(problem, map(DepthwiseBatchConfig, CHANNELS), facts) or [LEAST]
        return sorted(fit, key=lambda config: -problem.k % config.channels)

    def kernel(self, problem: Conv2dProblem, config: DepthwiseBatchConfig) -> Kernel:
        layout, threads = _layout(problem), 32 * config.channels
        prelude = constants(
            H=problem.h, W=problem.w, P=problem.p, Q=problem.q, TOP=problem.padding[0], LEFT=problem.padding[2],
            CHANNELS=config.channels, IMAGES=layout.images, FIRST=layout.first, STEPS=layout.steps,
            FILL=layout.fill, STORE=layout.store, PLANE_STRIDE=layout.pitch, OUT_PLANE_STRIDE=layout.out_pitch,
            OUTPUTS=layout.outputs, TAPS=layout.taps, ROOM=layout.room,
        )  # fmt: skip
        blocks = -(-problem.k // config.channels) * -(-problem.n // layout.images)
        x_run = {"w": 1, "h": problem.w, "c": problem.h * problem.w}
        out_run = {"w": 1, "h": problem.q, "c": problem.p * problem.q}
        images = {"n": problem.n}
        return Kernel(
            prelude, (blocks,), (threads,), config.resident, 2 * config.channels * layout.room,
            vectors=(Vectors(images, x_run, layout.fill), Vectors(images, out_run, layout.store)),
        )  # fmt: skip

    def config_refusal(self, problem: Conv2dProblem, config: DepthwiseBatchConfig, facts: DeviceFacts) -> Reason | None:
        reason = halves_refusal(problem) or whole_planes_refusal(problem) or _sizes_refusal(problem)
        reason = reason or least_refusal(config) or threads_refusal(32 * config.channels)
        if reason is None and (room := 2 * config.channels * _layout(problem).room) > facts.block_shared_bytes:
            return Reason(
                "{channels} channels of the images take {room} bytes of shared memory; a block has {most}",
                channels=config.channels, room=room, most=facts.block_shared_bytes,
            )  # fmt: skip
        return reason


def _sizes_refusal(problem: Conv2dProblem) -> Reason | None:
    if (reason := small_plane_refusal(problem)) is not None:
        return reason
    (top, bottom), below = problem.padding[:2], problem.dilation[0] * (problem.r - 1)
    if max(top, bottom) > below:
        return Reason(
            "every output must see a row of pixels: padding {top} above and {bottom} below, of windows of {rows} rows",
            top=top, bottom=bottom, rows=below + 1,
        )  # fmt: skip
    windows = -(-problem.q // COLUMNS)
    if windows > ROWS:
        return Reason(
            "a row has {count} windows of {outputs} outputs; a product has {most}",
            count=windows, outputs=COLUMNS, most=ROWS,
        )  # fmt: skip
    matrices, sums = problem.r * _row(problem)[1], below // problem.stride[0] + 2
    if matrices > MOST_MATRICES or sums > MOST_SUMS:
        return Reason(
            "a warp holds at most {most} matrices of the filter and {rows} rows of sums; these are {own} and {counted}",
            most=MOST_MATRICES, rows=MOST_SUMS, own=matrices, counted=sums,
        )  # fmt: skip
    return None


def _row(problem: Conv2dProblem) -> tuple[int, int]:
    """First column of a row's windows, and tensor core steps of a window: FIRST and STEPS of batch.cu."""
    left = problem.padding[2]
    first = -(left + left % 2)
    span = window(COLUMNS, problem.s, problem.stride[1], problem.dilation[1]) + left % 2
    steps = -(-span // DEPTH)
    whole = -(-problem.w // DEPTH)
    return (0, whole) if problem.q <= COLUMNS and whole <= steps else (first, steps)


def _layout(problem: Conv2dProblem) -> _Layout:
    pixels, outputs = problem.h * problem.w, problem.p * problem.q
    first, steps = _row(problem)
    images = ROWS // -(-problem.q // COLUMNS)
    least, in_place = -(-pixels // VECTOR) * VECTOR, _in_place(problem)
    pitch = pitch_of_rows(least, VECTOR, -(-problem.q // COLUMNS), 1, problem.stride[1])
    out_pitch = pitch if in_place else -(-outputs // VECTOR) * VECTOR
    held = images * (pitch if in_place else pitch + out_pitch)
    return _Layout(
        images, first, steps, math.gcd(pixels, VECTOR), math.gcd(outputs, VECTOR), pitch, out_pitch,
        0 if in_place else images * pitch, held, held + -(-problem.r * problem.s // VECTOR) * VECTOR,
    )  # fmt: skip


def _in_place(problem: Conv2dProblem) -> bool:
    """True if a row of outputs can overwrite pixels, because no later row reads them."""
    if (problem.p, problem.q) != (problem.h, problem.w):
        return False
    return problem.stride[0] == 1 and problem.padding[0] <= problem.dilation[0] * (problem.r - 1)
