"""Types of the facts that a method's class declares for other packages, such as the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import NamedTuple

from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Reasons that several methods share.
GENERAL = "the general method that comes next"
FASTEST = "the fastest of its operation in the bench's results"


class Rank(IntEnum):
    """Ranks in the order of preference, best first. At the same rank, the method that is earlier in the ladder wins."""

    # Convolutions with fewer products, if the problem allows that: tiles on the chip, then tiles in memory.
    LESS_ARITHMETIC_ON_CHIP = auto()
    LESS_ARITHMETIC = auto()
    # Images so small that only latency counts; tensor cores (wgmma, then mma); tensor cores for 8-bit integers.
    SMALL = auto()
    TENSOR_CORES = auto()
    TENSOR_CORES_OF_WARPS = auto()
    BYTES = auto()
    # Filters of one channel.
    FEW_CHANNELS_EACH = auto()
    PLANES_TOGETHER = auto()
    PLANES_AS_MATRICES = auto()
    WHOLE_PLANES = auto()
    ONE_CHANNEL = auto()
    ONE_CHANNEL_NEXT = auto()
    ONE_CHANNEL_LAST = auto()
    # Matrix products: 1x1 filters, im2col (matrix in memory), implicit GEMM (no matrix in memory).
    POINTWISE = auto()
    WRITTEN_MATRIX = auto()
    MATRIX = auto()
    # Direct methods.
    FEW_CHANNELS = auto()
    DIRECT = auto()
    SHARED_PIXELS = auto()
    # Problems that no rule covers.
    GENERAL_PRODUCT = auto()
    GENERAL_MATRIX = auto()
    GENERAL_LOOPS = auto()
    # Other operations.
    FIRST = auto()
    SECOND = auto()
    THIRD = auto()


class Preference(NamedTuple):
    """A method's rank in the order of preference, and the sentence that explains it."""

    rank: Rank
    why: str


class Mark(NamedTuple):
    """A method's mark in charts."""

    hue: str  # a key of :data:`convforge.course.pages.looks.HUES`
    shape: str  # one of :data:`convforge.course.pages.looks.SHAPES`
    dash: tuple[int, ...] = ()  # dash and gap lengths in pixels, for peers; our lines are solid


class Work(NamedTuple):
    """FLOPs of a method for a problem, and bytes that it moves."""

    flops: float
    moved: float


@dataclass(frozen=True, slots=True)
class MethodCost:
    """Figures of a method, from stored results. The defaults are those of a good method, so that it is measured."""

    arithmetic: float = 0.5  # share of the device's peak FLOP/s that its compute-bound kernels reach
    memory: float = 0.9  # share of the device's peak bandwidth that its memory-bound kernels reach
    outputs: int = 2048  # outputs that keep one SM busy; with fewer it is partly idle. 1 on a CPU
    launches: int = 1  # launches of a call, including the preparation of the weights


class Way(NamedTuple):
    """One of the ways that a call of a plan may take."""

    name: str  # name of the kernel or the instruction
    # Condition of one of our ways: "default" (problem and config), "arrays" (their addresses and strides) or "values"
    # (read by the kernel). For a library: the outcome of this way.
    outcome: str
    # Our ways: the work and its condition. For a library: the time, or the reason why there is none.
    words: Reason | str


def handed_on(name: str, nbytes: int, arrays: str | Reason) -> Way:
    """The way of arrays that are not aligned to `nbytes` bytes: the simpler method `name` computes the result."""
    words = Reason(
        "if the address or a stride of {arrays} is no multiple of {bytes} bytes, or the elements of a row do not lie "
        "side by side, {method} computes the result: its plan is compiled when it is first needed",
        arrays=arrays, bytes=nbytes, method=name,
    )  # fmt: skip
    return Way(name, "arrays", words)


def shared_pixels(problem: Conv2dProblem, rank: Rank) -> Preference | None:
    """Return a preference of this rank if several output channels with many taps reuse each pixel, else None."""
    if problem.k_per_group < 4 or problem.taps < 16:
        return None
    why = f"{problem.k_per_group} outputs of {problem.taps} products each share every pixel that is loaded"
    return Preference(rank, why)
