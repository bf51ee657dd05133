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


class Tape(CallerStream):
    """A caller's stream that notes what a call does to it: which kernels it launches, and which memory it takes.

    Attributes
    ----------
    launches : list
        Of kernel, launch, a copy of the struct that the kernel was handed, and the maps in it by their place.
    taken : list of (int, int)
        Address and bytes of each piece of memory.
    launches_alone : bool
        Nothing but launches went to the stream: whatever else does asks for its handle.
    """

    __slots__ = ("_stream", "launches", "launches_alone", "taken")

    def __init__(self, stream: CallerStream) -> None:
        self._stream = stream
        self.capturing = stream.capturing
        self.take = None if stream.take is None else self._take
        self.launches: list[tuple[Any, Any, Any, Any]] = []
        self.taken: list[tuple[int, int]] = []
        self.launches_alone = True

    @property
    def handle(self) -> int:  # type: ignore[override]
        """The stream's own."""
        self.launches_alone = False
        return self._stream.handle

    def launched(self, kernel: Any, info: Any, args: Any) -> int:
        """Note a launch, which is about to go to the handle that this returns."""
        self.launches.append((kernel, info, type(args).from_buffer_copy(args), dict(getattr(args, "seen", {}))))
        return self._stream.handle

    def _take(self, nbytes: int) -> tuple[int, Any]:
        assert self._stream.take is not None
        address, owner = self._stream.take(nbytes)
        self.taken.append((address, nbytes))
        return address, owner
