"""A stream of the caller's: where work goes, and whose memory it may use meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class CallerStream:
    """The stream of one call, with the allocator of the library whose arrays are handed in.

    Memory from that library is ordered on its own stream and lives as long as the library needs it: as long as a graph
    that is being captured, for example. A runtime's own memory would be handed out again behind such a graph's back.

    Attributes
    ----------
    handle : int
        The driver's.
    take : callable or None
        Bytes -> an address, aligned to 64, and what keeps the memory; None leaves it to the runtime.
    capturing : bool
        The stream records a graph: what is launched now runs later, any number of times.
    """

    handle: int
    take: Callable[[int], tuple[int, Any]] | None = None
    capturing: bool = False
