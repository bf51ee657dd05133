"""A pipeline of three stages on threads, with a bounded number of items in memory.

Loading and storing share the threads for files (`workers`); storing goes first, so that items leave memory before
others enter it. Computing runs on one thread per lane.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
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

# Priority of steps: the least number goes first.
_STOP, _STORE, _COMPUTE, _LOAD = range(4)


def in_flight(workers: int, lanes: int) -> int:
    """Return the most items in memory at once: those in work, and enough loaded ones that no lane waits."""
    return 2 * workers + lanes


@dataclass(slots=True)
class Room:
    """Limit of the items in memory: at most `most` items and `nbytes` bytes, but always one item.

    Every item counts as the largest so far. An item's size is known once it is loaded, so the first one is loaded
    before others begin.
    """

    nbytes: int
    most: int
    largest: int = 0
    first_is_loaded: threading.Event = field(default_factory=threading.Event)

    def loaded(self, nbytes: int) -> None:
        self.largest = max(self.largest, nbytes)  # a race may lose a value until the next item

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
    size: Callable[[Loaded], int],
    nbytes: int,
    ordered: bool = True,
) -> Generator[tuple[Item, Future[Stored]], None, None]:
    """Pass every item through `load`, `compute` and `store`; yield each with a finished future.

    The caller's thread draws from `items`: first as many as :class:`Room` allows, then one for each that it receives.
    If the caller stops early, or is interrupted, items in work are ended and none is begun. `load` and `store` run on
    at most `workers` threads, `compute` on one thread per lane, which enters the lane first. `size` returns the bytes
    of a loaded item, its result included; `nbytes` limits the bytes of all items. Without `ordered`, items come in
    completion order.

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
    room = Room(nbytes, in_flight(workers, len(lanes)))

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
    """Wait for the first item (`ordered`) or for any, and remove it from the list."""
    if ordered:
        wait([under_way[0][1]])
        return under_way.popleft()
    done = wait([future for _, future in under_way], return_when=FIRST_COMPLETED).done
    at = next(at for at, (_, future) in enumerate(under_way) if future in done)
    found = under_way[at]
    del under_way[at]
    return found


class _Threads(Generic[Lane]):
    """Threads that run steps, the most urgent first, each inside its own context, until they are stopped.

    A step gets the context's value, its own value, and the future for its exception. If the system starts fewer threads
    than there are contexts, those threads do all the work.
    """

    def __init__(self, name: str, contexts: Sequence[AbstractContextManager[Lane]]) -> None:
        self._tasks: PriorityQueue[tuple[int, int, _Step[Lane] | None, Any, Any]] = PriorityQueue()
        self._turn = count()
        self._name, self._contexts = name, contexts
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads; ``RuntimeError`` if none could be started."""
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
        """Wait for the steps in work."""
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
            del value, end  # frees the item's memory before the wait for the next


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an exception and of its causes, because their references keep images in memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
