"""Host side of rows.cu: blocks of whole planes, and their layout in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.family import (
    DepthwiseConvolution,
    blocks_of,
    idle_for_planes,
    is_preferred,
    planes_room_refusal,
    small_plane_refusal,
    threads_refusal,
    whole_planes_pay,
    whole_planes_refusal,
)
from convforge.algorithms.host.on_device import Kernel, Vectors, least_refusal
from convforge.algorithms.host.plane_tiles import odd_vectors, tile_height, whole_vectors, window
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import constants
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, is_integer, itemsize

# Threads of a block worth comparing.
THREADS = (32, 64, 96, 128, 224, 256)

# Registers of a thread, at most, of its 255.
MOST_REGISTERS = 190

# Registers of a thread for addresses, weights and counters.
BESIDES = 24

# Least number of 4-byte words of a row of pixels and its sums -> resident threads per SM that are tried, in this order.
# More threads hide more latency, until their registers cannot hold a row.
RESIDENT = ((0, (512, 1280)), (50, (1280, 512)), (100, (768, 256)))

# Numbers of a thread with two rows of outputs, at most: with more, too few threads are resident.
MOST_OF_TWO_ROWS = 48

# Instructions: to move a vector of pixels or outputs; per tap; per row of pixels besides its loads; per thread besides
# all these.
VECTOR, TAP, ROW, THREAD = 23, 8, 3, 45

# Bytes of a memory line; extra bytes that a block fetches if its planes begin or end within a line; bytes that an SM
# moves per cycle.
LINE_BYTES, LINE_LOSS, CYCLE_BYTES = 128, 288, 21

# Threads of the most efficient block, and the relative loss for each factor of two from it.
BEST_THREADS, SIZE_LOSS = 112, 0.13

# Configs that are worth trying, at most.
MOST_CONFIGS = 8


@dataclass(frozen=True, slots=True)
class RowsConfig(Config):
    """Planes of a block of :class:`DepthwiseRows`, and output rows of a thread."""

    planes: int  # planes of a block
    out_p: int = 1  # rows of outputs of a thread
    resident: int = 512  # resident threads per SM, at least; see :func:`compiled`


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of pixels, outputs and filters in shared memory, in elements; see rows.cu."""

    fill: int
    load: int
    pitch: int
    store: int
    out_pitch: int
    filter_pitch: int
    filter: int
    by_pixels: bool
    room: int
    shared_bytes: int


class DepthwiseRows(DepthwiseConvolution[RowsConfig]):
    """Whole planes in shared memory, one row of outputs per thread: for small planes in NCHW, with any filter size.

    Examples
    --------
    >>> from convforge.backends.emulator.facts import emulator_facts
    >>> from convforge.problem import parse_problem
    >>> problem = parse_problem("n32c512h14w14_k512r27s27_st1_p13_g512_f32_nchw")
    >>> DepthwiseRows("emulator").refuses(problem, emulator_facts()) is None
    True
    >>> print(DepthwiseRows("emulator").refuses(problem.replace(h=112, w=112), emulator_facts()))
    a kernel is made for one size of planes, at most 64 x 64; these are 112 x 112
    """

    name = "depthwise_rows"
    summary = "depthwise: whole planes in shared memory, a row of pixels in registers for a row of outputs"
    since = "depthwise_planes"
    cost = MethodCost(0.55, 0.9, 2048, 1)
    look = Mark("olive", "triangle-up")

    def work_for(self, problem: Conv2dProblem) -> Work:
        """Count no products with the zeros of the border, which are skipped."""
        taps = min(problem.r, max(problem.h, 1)) * min(problem.s, max(problem.w, 1))
        idle = idle_for_planes(problem)
        return Work(problem.flops * taps / max(problem.r * problem.s, 1) * idle, problem.least_bytes * idle)

    def preference_for(self, problem: Conv2dProblem, facts: DeviceFacts) -> Preference | None:
        if not is_preferred(problem):
            return None
        rank = Rank.WHOLE_PLANES if whole_planes_pay(problem, facts) else Rank.ONE_CHANNEL_LAST
        return Preference(rank, "every filter sees one channel: a block holds whole planes, a thread a row")

    def least(self, problem: Conv2dProblem) -> RowsConfig:
        return RowsConfig(1, 1, _residents(problem)[0])

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[RowsConfig]:
        found = set()
        for out_p in (1, 2) if _two_rows_pay(problem) else (1,):
            for threads in THREADS:
                planes = max(1, threads // -(-problem.p // out_p))
                for whole in (1, _whole_planes(problem, VECTOR_BYTES), _whole_planes(problem, LINE_BYTES)):
                    found.add((max(1, planes - planes % whole), out_p))
        residents = _residents(problem)
        tried = [RowsConfig(*how, resident) for how in found for resident in residents]
        fit = self.valid(problem, tried, facts) or [self.least(problem)]
        return sorted(
            fit, key=lambda c: (modelled_cycles(problem, c, facts), residents.index(c.resident), str(c)),
        )[:MOST_CONFIGS]  # fmt: skip

    def kernel(self, problem: Conv2dProblem, config: RowsConfig) -> Kernel:
        layout = _layout(problem, config)
        prelude = constants(
            H=problem.h, W=problem.w, P=problem.p, Q=problem.q, LEFT=problem.padding[2], RAW=True,
            PLANES=config.planes, OUT_P=config.out_p, FILL=layout.fill, LOAD=layout.load, PITCH=layout.pitch,
            STORE=layout.store, OUT_PITCH=layout.out_pitch, FILTER_PITCH=layout.filter_pitch, FILTER=layout.filter,
            BY_PIXELS=layout.by_pixels, ROOM=layout.room,
        )  # fmt: skip
        x_run = _run(problem.n, problem.c, problem.h, problem.w)
        out_run = _run(problem.n, problem.k, problem.p, problem.q)
        return Kernel(
            prelude, (blocks_of(problem, config.planes),), (_threads(problem, config),), config.resident,
            layout.shared_bytes, vectors=(Vectors({}, x_run, layout.fill), Vectors({}, out_run, layout.store)),
        )  # fmt: skip

    def config_refusal(self, problem: Conv2dProblem, config: RowsConfig, facts: DeviceFacts) -> Reason | None:
        reason = whole_planes_refusal(problem) or small_plane_refusal(problem) or least_refusal(config)
        if reason is not None:
            return reason
        if (need := _registers(problem, config.out_p)) > MOST_REGISTERS:
            return Reason(
                "a row of {pixels} pixels and its {outputs} outputs take {need} registers; {most} are to be had",
                pixels=problem.w, outputs=config.out_p * problem.q, need=need, most=MOST_REGISTERS,
            )  # fmt: skip
        reason = threads_refusal(_threads(problem, config))
        return reason or planes_room_refusal(config.planes, _layout(problem, config).shared_bytes, facts)


def modelled_cycles(problem: Conv2dProblem, config: RowsConfig, facts: DeviceFacts) -> float:
    """Estimate cycles of an SM for its share of the blocks, to compare configs.

    The constants above are fitted to the times of about 200 configs of 12 layers on an H200. The fit minimises the loss
    of the first configs against the fastest.
    """
    layout, threads = _layout(problem, config), _threads(problem, config)
    acc_bytes, team = itemsize(problem.acc_dtype), -(-problem.p // config.out_p)
    rows = problem.r if config.out_p == 1 else tile_height(problem, config.out_p)
    products = problem.s * problem.q - _on_zeros(problem) - (-problem.s * acc_bytes // VECTOR_BYTES)
    loads = problem.w // layout.load + (problem.w if problem.x_dtype != problem.acc_dtype else 0)
    issued = config.out_p * (min(problem.r, problem.h) * products + problem.q)
    issued += (problem.h if layout.by_pixels else rows) * (loads + ROW)
    issued += -(-problem.r // team) * problem.s * TAP + THREAD
    moved = 0
    pixels = (problem.h * problem.w, layout.fill, problem.x_dtype)
    outputs = (problem.p * problem.q, layout.store, problem.out_dtype)
    for elements, vector, dtype in (pixels, outputs):
        issued += -(-config.planes * elements // (vector * threads)) * VECTOR
        nbytes = config.planes * elements * itemsize(dtype)
        moved += nbytes + (LINE_LOSS if nbytes % LINE_BYTES else 0)
    share = -(-blocks_of(problem, config.planes) // facts.cores)
    cycles = share * (-(-threads // 32) * issued / 4 + moved / CYCLE_BYTES)
    return cycles * (1 + SIZE_LOSS * abs(math.log2(threads / BEST_THREADS)))


def _threads(problem: Conv2dProblem, config: RowsConfig) -> int:
    return -(-problem.p // config.out_p) * config.planes


def _run(n: int, c: int, h: int, w: int) -> dict[str, int]:
    """Strides of contiguous planes, for the axes with more than one element."""
    steps = {"w": (w, 1), "h": (h, w), "c": (c, h * w), "n": (n, c * h * w)}
    return {axis: step for axis, (size, step) in steps.items() if size > 1}


def _whole_planes(problem: Conv2dProblem, unit: int) -> int:
    """Number of planes with pixels that fill whole units of `unit` bytes, and with outputs that fill whole vectors."""
    x = problem.h * problem.w * itemsize(problem.x_dtype)
    out = problem.p * problem.q * itemsize(problem.out_dtype)
    return max(unit // math.gcd(x, unit), VECTOR_BYTES // math.gcd(out, VECTOR_BYTES))


def _on_zeros(problem: Conv2dProblem) -> int:
    """Products of a row with zeros of the border, which the kernel skips."""
    if not _blank(problem):
        return 0
    first = np.arange(problem.q)[:, None] * problem.stride[1] - problem.padding[2]
    column = first + np.arange(problem.s) * problem.dilation[1]
    return int(np.count_nonzero((column < 0) | (column >= problem.w)))


def _numbers(problem: Conv2dProblem, out_p: int) -> int:
    """Number of pixels of a row that products need, and of the sums of `out_p` output rows."""
    span = window(problem.q, problem.s, problem.stride[1], problem.dilation[1])
    return out_p * problem.q + (min(span, problem.w) if _blank(problem) else span)


def _registers(problem: Conv2dProblem, out_p: int) -> int:
    return _numbers(problem, out_p) * -(-itemsize(problem.acc_dtype) // 4) + BESIDES


def _residents(problem: Conv2dProblem) -> tuple[int, ...]:
    numbers = _numbers(problem, 1) * -(-itemsize(problem.acc_dtype) // 4)
    return next(threads for least, threads in reversed(RESIDENT) if numbers >= least)


def _two_rows_pay(problem: Conv2dProblem) -> bool:
    """True if two output rows per thread are worth trying: both use the converted pixels, and registers suffice."""
    shared = problem.x_dtype != problem.acc_dtype and problem.stride[0] == 1 < problem.r <= problem.h
    return shared and problem.p > 1 and _numbers(problem, 2) <= MOST_OF_TWO_ROWS


def _blank(problem: Conv2dProblem) -> bool:
    """True if pixels outside the image are zero bits: BLANK of pixels.cuh."""
    return problem.padding_mode == "zeros" and not is_integer(problem.acc_dtype)


def _layout(problem: Conv2dProblem, config: RowsConfig) -> _Layout:
    x_bytes, out_bytes, acc_bytes = (itemsize(of) for of in (problem.x_dtype, problem.out_dtype, problem.acc_dtype))
    fill_, pitch = _moved(problem.w, config.planes * problem.h * problem.w, x_bytes)
    store, out_pitch = _moved(problem.q, config.planes * problem.p * problem.q, out_bytes)
    load = math.gcd(problem.w, VECTOR_BYTES // x_bytes)
    by_pixels = _blank(problem) and problem.r > problem.h
    rows = odd_vectors if by_pixels else whole_vectors
    filter_pitch = rows(problem.s, acc_bytes)
    filter_ = odd_vectors(problem.r * filter_pitch, acc_bytes)
    pixels = config.planes * problem.h * (pitch or problem.w) * x_bytes
    outputs = config.planes * problem.p * (out_pitch or problem.q) * out_bytes
    room = -(-max(pixels, outputs) // VECTOR_BYTES) * VECTOR_BYTES
    nbytes = room + config.planes * filter_ * acc_bytes
    return _Layout(
        fill_, load, pitch, store, out_pitch, filter_pitch, filter_, by_pixels, room // x_bytes, nbytes,
    )  # fmt: skip


def _moved(columns: int, elements: int, nbytes: int) -> tuple[int, int]:
    """Elements of a copied vector; and the row pitch if rows are whole vectors, else 0."""
    vector = VECTOR_BYTES // nbytes
    if columns % vector == 0:
        return vector, odd_vectors(columns, nbytes)
    return math.gcd(elements, vector), 0
