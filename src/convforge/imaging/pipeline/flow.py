"""A pipeline of three stages on threads, with a limited number of items in memory.

Loading and storing share `workers` threads; storing has priority, so that items leave memory before others are loaded.
Computing runs on one thread per lane.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from queue import PriorityQueue
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Lane = TypeVar("Lane")
Loaded = TypeVar("Loaded")
Computed = TypeVar("Computed")
Stored = TypeVar("Stored")

_Step = Callable[[Lane, Any, "Future[Any]"], None]

# Priorities of steps: the smallest number runs first.
_STOP, _STORE, _COMPUTE, _LOAD = range(4)


# Seconds after which a thread that runs Python must let another one run.
TURN = 5e-4


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads take turns more often than Python does (5 ms): one that gives work to a GPU must not wait so long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_flight(workers: int, lanes: int) -> int:
    """Return the maximum number of items in memory: those in work, and enough loaded ones to keep all lanes busy."""
    return 2 * workers + lanes


@dataclass(slots=True)
class Room:
    """Limit of items in memory: at most `most` items and `nbytes` bytes, but at least one item.

    Every item counts with the size of the largest so far. A size is known only after loading, so the first item is
    loaded alone.
    """

    nbytes: int
    most: int
    largest: int = 0
    first_is_loaded: threading.Event = field(default_factory=threading.Event)

    def loaded(self, nbytes: int) -> None:
        self.largest = max(self.largest, nbytes)  # a race may lose a value, until the next item

    @property
    def items(self) -> int:
        return min(self.most, max(self.nbytes // self.largest, 1)) if self.largest else self.most


def flow(
    items: Iterable[Item],
    load: Callable[[Item], Loaded],
    compute: Callable[[Lane, Loaded], Computed],
    store: Callable[[Computed], Stored],
    *,
    workers: int,
    lanes: Sequence[AbstractContextManager[Lane]],
    size: Callable[[Loaded], int] = lambda loaded: 0,
    nbytes: int = 0,
    most: int | None = None,
    ordered: bool = True,
) -> Generator[tuple[Item, Future[Stored]], None, None]:
    """Pass every item through `load`, `compute` and `store`; yield (item, finished future).

    The caller's thread iterates over `items`: first as many as :class:`Room` allows, then one for each item received.
    If the caller stops early or is interrupted, items in work are completed and no others begin. `load` and `store` run
    on at most `workers` threads, `compute` on one thread per lane, inside the lane's context. `size` returns the bytes
    of a loaded item and of its result; `nbytes` limits the bytes of all items. A caller who knows how many items fit
    into memory gives `most` instead. Without `ordered`, items are yielded in the order of completion.

    Examples
    --------
    >>> done = flow(
    ...     range(4), lambda i: i + 1, lambda lane, i: i * i, str, workers=2, lanes=[nullcontext()], size=lambda i: 8,
    ...     nbytes=100,
    ... )
    >>> [(item, future.result()) for item, future in done]
    [(0, '1'), (1, '4'), (2, '9'), (3, '16')]
    """
    file_threads: _Threads[None] = _Threads("convforge-files", [nullcontext()] * workers)
    lane_threads: _Threads[Lane] = _Threads("convforge-lane", lanes)
    room = Room(nbytes, in_flight(workers, len(lanes)) if most is None else most)
    if most is not None:
        room.first_is_loaded.set()  # its size need not be known

    def load_it(_: None, item: Item, end: Future[Stored]) -> None:
        try:
            loaded = load(item)
            room.loaded(size(loaded))
        finally:
            room.first_is_loaded.set()
        lane_threads.put(_COMPUTE, compute_it, loaded, end)

    def compute_it(lane: Lane, loaded: Loaded, end: Future[Stored]) -> None:
        file_threads.put(_STORE, store_it, compute(lane, loaded), end)

    def store_it(_: None, computed: Computed, end: Future[Stored]) -> None:
        end.set_result(store(computed))

    under_way: deque[tuple[Item, Future[Stored]]] = deque()
    try:
        lane_threads.start()
        file_threads.start()
        for item in items:
            end: Future[Stored] = Future()
            file_threads.put(_LOAD, load_it, item, end)
            under_way.append((item, end))
            room.first_is_loaded.wait()
            while len(under_way) >= room.items:
                yield _next_done(under_way, ordered)
        while under_way:
            yield _next_done(under_way, ordered)
    finally:
        file_threads.stop()
        lane_threads.stop()
        file_threads.join()
        lane_threads.join()


def _next_done(under_way: deque[tuple[Item, Future[Stored]]], ordered: bool) -> tuple[Item, Future[Stored]]:
    """Wait for the first item (`ordered`) or for any item; remove it from the list and return it."""
    if ordered:
        wait([under_way[0][1]])
        return under_way.popleft()
    done = wait([future for _, future in under_way], return_when=FIRST_COMPLETED).done
    at = next(at for at, (_, future) in enumerate(under_way) if future in done)
    found = under_way[at]
    del under_way[at]
    return found


class _Threads(Generic[Lane]):
    """Threads that run steps by priority, each thread inside its own context, until they are stopped.

    A step is called with the context's value, its own value, and a future for its exception. If the system can start
    fewer threads than there are contexts, these threads do all the work.
    """

    def __init__(self, name: str, contexts: Sequence[AbstractContextManager[Lane]]) -> None:
        self._tasks: PriorityQueue[tuple[int, int, _Step[Lane] | None, Any, Any]] = PriorityQueue()
        self._turn = count()
        self._name, self._contexts = name, contexts
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads; raise ``RuntimeError`` if none can be started."""
        for own in self._contexts:
            thread = threading.Thread(target=self._work, args=(own,), name=self._name)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
                break
            self._threads.append(thread)

    def put(self, urgency: int, step: _Step[Lane], value: Any, end: Future[Any]) -> None:
        self._tasks.put((urgency, next(self._turn), step, value, end))

    def stop(self) -> None:
        for _ in self._threads:
            self._tasks.put((_STOP, next(self._turn), None, None, None))

    def join(self) -> None:
        """Wait until the threads have ended their current steps."""
        for thread in self._threads:
            thread.join()

    def _work(self, context: AbstractContextManager[Lane]) -> None:
        try:
            with context as own:
                self._take_steps(own, None)
        except BaseException as error:  # the context itself failed: this thread can run no step
            self._take_steps(None, error)

    def _take_steps(self, own: Any, failure: BaseException | None) -> None:
        while True:
            _, _, step, value, end = self._tasks.get()
            if step is None:
                return
            try:
                if failure is not None:
                    raise failure
                step(own, value, end)
            except BaseException as error:
                _clear_frames(error)
                end.set_exception(error)
            del value, end  # free the item's memory before waiting for the next


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an exception and of its causes: their local variables keep images in memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
