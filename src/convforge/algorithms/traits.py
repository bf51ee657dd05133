"""Types of the facts that a method states beside its class for other rooms.

`tuning/cost.py` turns a cost and work into seconds by the rates of a device.
"""

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
    """Places in the order of preference, best first; of the same rank, the earlier of the ladder comes first."""

    # Convolutions: fewer products, where the problem allows them, with tiles that stay on the chip, or in memory.
    LESS_ARITHMETIC_ON_CHIP = auto()
    LESS_ARITHMETIC = auto()
    # Images so small that only latency counts; 16 bits on tensor cores that read shared memory, and on those that read
    # the registers of warps; bytes.
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
    """A method's mark in charts.

    Attributes
    ----------
    hue : str
        A name of :data:`convforge.course.pages.looks.HUES`.
    shape : str
        One of :data:`convforge.course.pages.looks.SHAPES`.
    dash : tuple of int
        Lengths of dashes and gaps in pixels: of peers. Lines of ours are solid.
    """

    hue: str
    shape: str
    dash: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes that a method takes for a problem."""

    flops: float
    moved: float


@dataclass(frozen=True, slots=True)
class MethodCost:
    """Figures of a method, from stored results.

    The defaults are those of a good method, so that one without figures of its own is measured.

    Attributes
    ----------
    arithmetic, memory : float
        Shares of the device's peak and of its bandwidth that its kernels reach where that is the limit.
    outputs : int
        Outputs that keep an SM busy; with fewer it is partly idle. 1 on a CPU.
    launches : int
        Of a call, the preparation of the weights included.
    """

    arithmetic: float = 0.5
    memory: float = 0.9
    outputs: int = 2048
    launches: int = 1


class Way(NamedTuple):
    """One of several ways that a call of a plan may go.

    Attributes
    ----------
    name : str
        Of the kernel or the instruction.
    outcome : str
        Of our methods, what decides: "default" (problem and config), "arrays" (their addresses and strides), "values"
        (the numbers in them, which the kernel looks at). Of a library's way, its outcome.
    words : Reason or str
        The work, and its condition; of a library's way, its time or the reason why it has none.
    """

    name: str
    outcome: str
    words: Reason | str


def handed_on(name: str, nbytes: int, arrays: str | Reason) -> Way:
    """The way of arrays whose vectors are not aligned to so many bytes: the simpler method `name` computes them."""
    words = Reason(
        "if the address or a stride of {arrays} is no multiple of {bytes} bytes, or the elements of a row do not lie "
        "side by side, {method} computes the result: its plan is compiled when it is first needed",
        arrays=arrays, bytes=nbytes, method=name,
    )  # fmt: skip
    return Way(name, "arrays", words)


def shared_pixels(problem: Conv2dProblem, rank: Rank) -> Preference | None:
    """A preference of this rank where several outputs of several products share pixels."""
    if problem.k_per_group < 4 or problem.taps < 16:
        return None
    why = f"{problem.k_per_group} outputs of {problem.taps} products each share every pixel that is loaded"
    return Preference(rank, why)
