"""Forks of the process wait for imports, planning, compilers and SciPy's threads.

A forked child has one thread. A lock that another thread held stays locked there for ever, and a module that another
thread was importing stays half imported.
"""

from __future__ import annotations

# These two take a lock before a fork. Functions registered last run first, so the two must register before this module:
# otherwise the fork waits for threads that need those locks.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Seconds for which a fork blocks new threads, and for which it admits them before it tries again.
PATIENCE_S, PAUSE_S = 0.2, 0.01


class _Gate:
    """Counter of the threads inside. A fork waits until they have left; new threads wait until after the fork."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._forks = 0
        self._own = threading.local()

    def enter(self) -> None:
        depth = getattr(self._own, "depth", 0)
        if depth == 0:
            with self._changed:
                while self._forks:
                    self._changed.wait()
                self._inside += 1
        self._own.depth = depth + 1

    def leave(self) -> None:
        self._own.depth -= 1
        if self._own.depth == 0:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, also: Callable[[], bool]) -> None:
        """Wait, before a fork, until no thread is inside and `also` is true; hold the lock until after the fork.

        A thread inside may wait for one that is about to enter, so waiting threads are admitted from time to time.
        """
        self._changed.acquire()
        while True:
            self._forks += 1
            if self._changed.wait_for(self._is_empty, PATIENCE_S) and also():
                return
            self._forks -= 1
            self._changed.notify_all()
            self._changed.wait(PAUSE_S)

    def _is_empty(self) -> bool:
        return self._inside <= int(getattr(self._own, "depth", 0) > 0)

    def open(self) -> None:
        """Open the gate after a fork, in the parent."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def renew(self) -> None:
        """Reset the gate in a forked child, which has only its own thread."""
        self._changed = threading.Condition(threading.Lock())
        self._inside, self._forks = int(getattr(self._own, "depth", 0) > 0), 0


_gate = _Gate()
_held: list[Any] = []  # Numba's lock, while the process forks


@contextmanager
def no_fork() -> Iterator[None]:
    """Delay forks until the block has ended. Blocks nest; a block must not wait for a thread that may enter one."""
    _gate.enter()
    try:
        yield
    finally:
        _gate.leave()


def after_fork_in_child(renew: Callable[[], object]) -> None:
    """Call a function in every child forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


def _hold_numba() -> bool:
    """Take Numba's lock, so that LLVM's state is consistent; False while another thread compiles or loads a kernel."""
    compiler = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    lock = getattr(compiler, "_lock", None)  # Numba's own acquire always waits
    if lock is None:
        return True
    taken: bool = lock.acquire(blocking=False)
    if taken:
        _held.append(lock)
    return taken


def _after(then: Callable[[], None]) -> None:
    if _held:
        _held.pop().release()
    then()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _gate.close(_hold_numba),
        after_in_parent=lambda: _after(_gate.open),
        after_in_child=lambda: _after(_gate.renew),
    )
