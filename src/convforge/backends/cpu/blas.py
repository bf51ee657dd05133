"""NumPy's BLAS on one thread, while several of ours call it side by side.

A BLAS with threads of its own would start cores times cores of them, each waiting for the others at every product.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from convforge.backends.forks import after_fork_in_child, no_fork

_lock = threading.Lock()
_users: list[int] = []  # threads, each as often as it is inside
_limit: Any = None


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Within, every product of the BLAS runs on its caller's thread; the last to leave restores what was set before."""
    _enter(threading.get_ident())
    try:
        yield
    finally:
        _leave(threading.get_ident())


def _enter(thread: int) -> None:
    global _limit
    with no_fork(), _lock:
        if not _users:
            _limit = _controller().limit(limits=1, user_api="blas")
        _users.append(thread)


def _leave(thread: int) -> None:
    global _limit
    with no_fork(), _lock:
        _users.remove(thread)
        if not _users and _limit is not None:
            _limit.restore_original_limits()
            _limit = None


def _alone() -> None:
    """In a forked child: threads that were inside are not there to leave."""
    for thread in {*_users} - {threading.get_ident()}:
        while thread in _users:
            _leave(thread)


after_fork_in_child(_alone)

_found: Any = None


def _controller() -> Any:
    """The BLAS libraries of this process; looking for them takes a millisecond, so it is done once."""
    global _found
    if _found is None:
        from threadpoolctl import ThreadpoolController

        _found = ThreadpoolController()
    return _found
