"""Types in which a method states, beside its class, what other rooms must know of it.

`tuning/cost.py` turns a cost and work into seconds by the rates of a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Mark(NamedTuple):
    """How charts draw a method.

    Attributes
    ----------
    hue : str
        A name of :data:`convforge.report.palette.HUES`.
    shape : str
        One of :data:`convforge.report.palette.SHAPES`.
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
    """Figures of a method, read off stored results.

    The defaults make a good method, so that one without figures of its own is measured.

    Attributes
    ----------
    arithmetic, memory : float
        Shares of the device's peak and of its bandwidth that its kernels reach where that is the limit.
    outputs : int
        Outputs that keep an SM busy; with fewer it is idle in part. 1 on a CPU.
    launches : int
        Of a call, the preparation of the weights included.
    """

    arithmetic: float = 0.5
    memory: float = 0.9
    outputs: int = 2048
    launches: int = 1
