"""Ctrl-C, and the signals by which a system or a terminal ends a process, as an exception: so that files are tidied."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__
)  # Windows has no SIGHUP


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt on SIGINT, SIGTERM and SIGHUP; the function says whether one came.

    It is needed because a callback of a library may drop the exception. A signal that the process was started to
    ignore, as by nohup, stays ignored. Of SIGTERM and SIGHUP the first counts: they often come together.
    """
    came = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal came
        repeated, came = came, True
        if not repeated or number == signal.SIGINT:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # who alone may hear of signals
        yield lambda: False
        return
    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
