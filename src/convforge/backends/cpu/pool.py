"""A pool of threads that poll for more work for a moment before they sleep.

Waking a sleeping thread takes 30 to 100 us, and a convolution takes several launches. So a thread without work first
polls a counter, with the GIL released, and so does a caller that waits for the last task.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.forks import after_fork_in_child, no_fork

# Function (counter, value, most polls): returns True as soon as the counter differs from the value.
Wait = Callable[[NDArray[np.int64], int, int], bool]

# Polls of a counter before a thread sleeps, about 30 ns each: in all 0.5 ms, which is longer than the gap between two
# launches of a call, and too short to load an idle process.
LOOKS = 1 << 14


class Pool:
    """Worker threads in addition to the caller's thread. They end with the pool or the process.

    `watches` lets them poll before they sleep; the polling loop is compiled by Numba, which takes seconds to load.
    """

    def __init__(self, threads: int, watches: bool = True) -> None:
        self._wait_while = _watcher() if watches else _no_wait
        self._line = _Line(self._wait_while)
        names = [f"convforge_{i}" for i in range(threads)]
        self.threads = [threading.Thread(target=self._line.work, name=name, daemon=True) for name in names]
        for thread in self.threads:
            thread.start()
        weakref.finalize(self, self._line.end, os.getpid())

    def share(self, run: Callable[[Any, int], None], pieces: Iterable[Any], threads: int) -> None:
        """Call ``run(piece, slot)`` for every piece, with slot 0 on this thread and 1, 2, ... on others.

        After an exception no further piece begins, and the first exception is raised.
        """
        shared = _Shared(run, pieces, threads, self._wait_while)
        try:
            for slot in range(1, threads):
                self.submit(partial(shared.work, slot))
            shared.work(0)
        finally:
            failure = shared.close()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame, and so the caller's arrays

    def submit(self, task: Callable[[], Any]) -> None:
        """Run a task on the first free thread."""
        self._line.put(task)

    def shutdown(self) -> None:
        """Wait until all tasks have run, and end the threads."""
        self._line.end(os.getpid())
        for thread in self.threads:
            thread.join()


def _watcher() -> Wait:
    """Compile the polling function before a thread needs it."""
    from convforge.backends.cpu.waiting import wait_while

    wait_while(np.zeros(1, np.int64), 0, 1)
    return wait_while


def _no_wait(counter: NDArray[np.int64], value: int, looks: int) -> bool:
    return False


class _Line:
    """Queue of tasks, and the counter that idle threads poll."""

    def __init__(self, wait_while: Wait) -> None:
        self._wait_while = wait_while
        self._tasks: deque[Callable[[], Any]] = deque()
        self._news = np.zeros(1, np.int64)  # number of tasks put so far, plus one after the end
        self._lock = threading.Lock()
        self._asleep, self._wake = 0, threading.Semaphore(0)
        self._ended = False

    def put(self, task: Callable[[], Any]) -> None:
        with self._lock:
            self._tasks.append(task)
            self._news[0] += 1
            if self._asleep:
                self._asleep -= 1
                self._wake.release()

    def end(self, process: int) -> None:
        """End the threads once the queue is empty; do nothing in a forked child, which has none of them."""
        if process == os.getpid():
            with self._lock:
                self._ended = True
                self._news[0] += 1
                self._wake.release(self._asleep + 1)
                self._asleep = 0

    def work(self) -> None:
        """Run tasks, poll for more, sleep: the body of a thread."""
        with np.errstate(all="ignore"):
            while True:
                seen = int(self._news[0])
                try:
                    task = self._tasks.popleft()
                except IndexError:
                    if self._ended:
                        return
                    if not self._wait_while(self._news, seen, LOOKS):
                        self._sleep(seen)
                    continue
                task()
                del task  # it holds the caller's arrays

    def _sleep(self, seen: int) -> None:
        """Sleep until the counter differs from `seen`."""
        with self._lock:
            if self._news[0] != seen:
                return
            self._asleep += 1
        self._wake.acquire()


class _Shared:
    """Work items that threads take one by one, until none remains, one fails or the caller leaves."""

    def __init__(self, run: Callable[[Any, int], None], pieces: Iterable[Any], threads: int, wait_while: Wait) -> None:
        self._run, self._wait_while = run, wait_while
        self._rest = iter(pieces)
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._busy = [threading.Lock() for _ in range(threads)]  # each held while its thread works
        self._working = np.zeros(threads, np.int64)  # 1 while a thread works: a waiting caller polls this

    def work(self, slot: int) -> None:
        with self._busy[slot]:
            self._working[slot] = 1
            try:
                while True:
                    with self._lock:
                        piece = next(self._rest, self)
                    if piece is self:
                        return
                    try:
                        self._run(piece, slot)
                    except BaseException as failure:
                        self._stop(failure)
            finally:
                self._working[slot] = 0

    def close(self) -> BaseException | None:
        """Wait for the running items, even when interrupted, and return the first failure."""
        interrupt = None
        while True:
            try:
                self._stop(interrupt)
                for slot, busy in enumerate(self._busy):
                    self._wait_while(self._working[slot:], 1, LOOKS)
                    with busy:
                        pass
                break
            except KeyboardInterrupt as again:
                interrupt = again
        failure = self._failure
        del self._run, self._failure  # they hold the caller's arrays, and the queue may hold this object for a while
        return failure

    def _stop(self, failure: BaseException | None) -> None:
        """Start no more items; keep the first failure, or an interrupt."""
        with self._lock:
            self._rest = iter(())
            if self._failure is None or isinstance(failure, KeyboardInterrupt):
                self._failure = failure


_lock = threading.Lock()
_users: list[int] = []  # threads inside; a thread that entered n times is here n times
_limit: Any = None


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Run NumPy's BLAS calls on the calling thread alone; the last thread to leave restores the previous limit."""
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
    """Remove the other threads that were inside, because a forked child does not have them."""
    for thread in {*_users} - {threading.get_ident()}:
        while thread in _users:
            _leave(thread)


after_fork_in_child(_alone)


@cache
def _controller() -> Any:
    """Return the controller of BLAS threads; cached, because finding the libraries takes a millisecond."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
