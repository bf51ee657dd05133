"""NumPy's BLAS on one thread, while several of ours call it side by side.

A BLAS with threads of its own would start cores times cores of them, each waiting for the others at every product.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_users = 0
_limit: Any = None


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Within, every product of the BLAS runs on its caller's thread; the last to leave restores what was set before."""
    global _users, _limit
    with _lock:
        if _users == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limit.restore_original_limits()
                _limit = None


_found: Any = None


def _controller() -> Any:
    """The BLAS libraries of this process; looking for them takes a millisecond, so it is done once."""
    global _found
    if _found is None:
        from threadpoolctl import ThreadpoolController

        _found = ThreadpoolController()
    return _found
