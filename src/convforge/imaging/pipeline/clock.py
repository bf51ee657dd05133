"""Where the time goes: busy seconds by name, added up over threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter


@dataclass(slots=True)
class Clock:
    """Busy seconds by name; a name that comes twice, or in two threads at once, adds up. Safe from many threads.

    Examples
    --------
    >>> clock = Clock()
    >>> clock.add("read", 0.5)
    >>> clock.add("read", 0.25)
    >>> clock.seconds
    {'read': 0.75}
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time what is done inside, also where it fails."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - begin)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere, such as by a GPU's events."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
