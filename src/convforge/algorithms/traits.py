"""Types of the facts that a method's class declares for other packages, such as the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import NamedTuple

from convforge.errors import Reason
from convforge.problem import Conv2dProblem

# Reasons that several methods give.
GENERAL = "the general method that comes next"
FASTEST = "the fastest of its operation in the bench's results"


class Rank(IntEnum):
    """Places in the order of preference, best first; of the same rank, the earlier in the ladder comes first."""

    # Convolutions: fewer products, where the problem allows that, with tiles on the chip or in memory.
    LESS_ARITHMETIC_ON_CHIP = auto()
    LESS_ARITHMETIC = auto()
    # Images so small that only latency counts; 16 bits on tensor cores that read shared memory, or registers; bytes.
    SMALL = auto()
    TENSOR_CORES = auto()
    TENSOR_CORES_OF_WARPS = auto()
    BYTES = auto()
    # Filters that see one channel each.
    FEW_CHANNELS_EACH = auto()
    PLANES_TOGETHER = auto()
    PLANES_AS_MATRICES = auto()
    WHOLE_PLANES = auto()
    ONE_CHANNEL = auto()
    ONE_CHANNEL_NEXT = auto()
    ONE_CHANNEL_LAST = auto()
    # Products of matrices: filters of 1x1, a matrix that is written, one that is not.
    POINTWISE = auto()
    WRITTEN_MATRIX = auto()
    MATRIX = auto()
    # Direct methods.
    FEW_CHANNELS = auto()
    DIRECT = auto()
    SHARED_PIXELS = auto()
    # Where no rule speaks.
    GENERAL_PRODUCT = auto()
    GENERAL_MATRIX = auto()
    GENERAL_LOOPS = auto()
    # Other operations.
    FIRST = auto()
    SECOND = auto()
    THIRD = auto()


class Preference(NamedTuple):
    """A method's place in the order of preference, and the sentence that explains it."""

    rank: Rank
    why: str


class Mark(NamedTuple):
    """A method's mark in charts."""

    hue: str  # a name of :data:`convforge.course.pages.looks.HUES`
    shape: str  # one of :data:`convforge.course.pages.looks.SHAPES`
    dash: tuple[int, ...] = ()  # lengths of dashes and gaps in pixels, for peers; our lines are solid


class Work(NamedTuple):
    """FLOPs and bytes that a method takes for a problem."""

    flops: float
    moved: float


@dataclass(frozen=True, slots=True)
class MethodCost:
    """Figures of a method, from stored results; by default those of a good one, so that it is measured."""

    arithmetic: float = 0.5  # share of the device's peak that its kernels reach where that is the limit
    memory: float = 0.9  # share of the device's bandwidth, likewise
    outputs: int = 2048  # that keep an SM busy; with fewer it is partly idle. 1 on a CPU
    launches: int = 1  # of a call, the preparation of the weights included


class Way(NamedTuple):
    """One of several ways that a call of a plan may go."""

    name: str  # of the kernel or the instruction
    # The condition of our ways: "default" (problem and config), "arrays" (their addresses and strides), "values" (read
    # by the kernel). Of a library's way, its outcome.
    outcome: str
    # The work and its condition. Of a library's way, its time or the reason why it has none.
    words: Reason | str


def handed_on(name: str, nbytes: int, arrays: str | Reason) -> Way:
    """The way of arrays whose vectors are not aligned to `nbytes` bytes: the simpler method `name` computes them."""
    words = Reason(
        "if the address or a stride of {arrays} is no multiple of {bytes} bytes, or the elements of a row do not lie "
        "side by side, {method} computes the result: its plan is compiled when it is first needed",
        arrays=arrays, bytes=nbytes, method=name,
    )  # fmt: skip
    return Way(name, "arrays", words)


def shared_pixels(problem: Conv2dProblem, rank: Rank) -> Preference | None:
    """A preference of this rank if outputs of several products each share pixels."""
    if problem.k_per_group < 4 or problem.taps < 16:
        return None
    why = f"{problem.k_per_group} outputs of {problem.taps} products each share every pixel that is loaded"
    return Preference(rank, why)
