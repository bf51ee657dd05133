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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import count
from queue import PriorityQueue
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Lane = TypeVar("Lane")
Loaded = TypeVar("Loaded")
Computed = TypeVar("Computed")
Stored = TypeVar("Stored")

_Step = Callable[[Lane, Any, "Future[Any]"], None]

# An item, its end, and its size.
_UnderWay = tuple[Any, "Future[Any]", "Size"]

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


class Size(NamedTuple):
    """Bytes of memory: of an item until it is received, and of the buffers that the lane that computes it keeps."""

    item: int = 0
    lane: int = 0


class Room:
    """Limit of the items in memory: at most `most` items, and `nbytes` bytes with the lanes' buffers.

    A single item always enters. Each lane counts with the largest buffers so far.
    """

    def __init__(self, nbytes: int, most: int, lanes: int) -> None:
        self._nbytes, self._most, self._lanes = nbytes, most, lanes
        self._held, self._items, self._lane = 0, 0, 0

    @property
    def is_full(self) -> bool:
        """True if no further item may enter, of any size."""
        return self._items >= self._most

    def has_room(self, size: Size) -> bool:
        """True if an item of this size may enter."""
        held = self._held + size.item + self._lanes * max(self._lane, size.lane)
        return not self._items or (not self.is_full and held <= self._nbytes)

    def enter(self, size: Size) -> None:
        self._lane = max(self._lane, size.lane)
        self._held += size.item
        self._items += 1

    def leave(self, size: Size) -> None:
        self._held -= size.item
        self._items -= 1


def flow(
    items: Iterable[Item],
    load: Callable[[Item], Loaded],
    compute: Callable[[Lane, Loaded], Computed],
    store: Callable[[Computed], Stored],
    *,
    workers: int,
    lanes: Sequence[AbstractContextManager[Lane]],
    size: Callable[[Item], Size] = lambda item: Size(),
    nbytes: int = 0,
    most: int | None = None,
    ordered: bool = True,
) -> Generator[tuple[Item, Future[Stored]], None, None]:
    """Pass every item through `load`, `compute` and `store`; yield (item, finished future).

    The caller's thread iterates over `items`, as far as :class:`Room` allows, then one for each item received. If the
    caller stops early or is interrupted, each thread completes its step, and no other step begins. `load` and `store`
    run on at most `workers` threads, `compute` on one thread per lane, inside the lane's context. The caller's thread
    calls `size` before an item is loaded; `nbytes` limits the bytes of all items, except that a single item always
    enters. A caller who knows how many items fit into memory gives `most`; the default keeps all threads busy. Without
    `ordered`, items are yielded in the order of completion.

    Examples
    --------
    >>> done = flow(
    ...     range(4), lambda i: i + 1, lambda lane, i: i * i, str, workers=2, lanes=[nullcontext()],
    ...     size=lambda i: Size(8), nbytes=100,
    ... )
    >>> [(item, future.result()) for item, future in done]
    [(0, '1'), (1, '4'), (2, '9'), (3, '16')]
    """
    file_threads: _Threads[None] = _Threads("convforge-files", [nullcontext()] * workers)
    lane_threads: _Threads[Lane] = _Threads("convforge-lane", lanes)
    room = Room(nbytes, in_flight(workers, len(lanes)) if most is None else most, len(lanes))

    def load_it(_: None, item: Item, end: Future[Stored]) -> None:
        lane_threads.put(_COMPUTE, compute_it, load(item), end)

    def compute_it(lane: Lane, loaded: Loaded, end: Future[Stored]) -> None:
        file_threads.put(_STORE, store_it, compute(lane, loaded), end)

    def store_it(_: None, computed: Computed, end: Future[Stored]) -> None:
        end.set_result(store(computed))

    under_way: deque[_UnderWay] = deque()

    def next_done() -> tuple[Item, Future[Stored]]:
        item, end, needed = _next_done(under_way, ordered)
        room.leave(needed)
        return item, end

    try:
        lane_threads.start()
        file_threads.start()
        for item in items:
            needed = size(item)
            while not room.has_room(needed):
                yield next_done()
            room.enter(needed)
            end: Future[Stored] = Future()
            file_threads.put(_LOAD, load_it, item, end)
            under_way.append((item, end, needed))
            while room.is_full:
                yield next_done()
        while under_way:
            yield next_done()
    finally:
        with ExitStack() as ending:  # each of these also if an interrupt ends another; the last one first
            for step in (lane_threads.join, file_threads.join, lane_threads.stop, file_threads.stop):
                ending.callback(step)


def _next_done(under_way: deque[_UnderWay], ordered: bool) -> _UnderWay:
    """Wait for the first item (`ordered`) or for any item; remove it from the list and return it."""
    if ordered:
        wait([under_way[0][1]])
        return under_way.popleft()
    done = wait([future for _, future, _ in under_way], return_when=FIRST_COMPLETED).done
    at = next(at for at, (_, future, _) in enumerate(under_way) if future in done)
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
