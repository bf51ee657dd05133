"""Limits NumPy's BLAS to one thread while several of our threads call it, lest cores times cores threads run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from convforge.backends.forks import after_fork_in_child, no_fork

_lock = threading.Lock()
_users: list[int] = []  # threads inside, each as often as it has entered
_limit: Any = None


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Run each product of the BLAS on its caller's thread; the last thread to leave restores the previous limit."""
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
    """Remove the threads that were inside; a forked child does not have them."""
    for thread in {*_users} - {threading.get_ident()}:
        while thread in _users:
            _leave(thread)


after_fork_in_child(_alone)


@cache
def _controller() -> Any:
    """Cached, because finding the BLAS libraries of this process takes a millisecond."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
