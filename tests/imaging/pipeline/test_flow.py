"""Items through stages on threads: all of them, in order, few at a time, failures apart, and no thread left behind."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

from convforge.imaging.pipeline import flow as room
from convforge.imaging.pipeline.flow import Room, Size, in_flight


def flow(*words: Any, **options: Any) -> Any:
    """The flow of items that take no memory."""
    return room.flow(*words, **options)


def alone() -> list[AbstractContextManager[None]]:
    return [nullcontext()]


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("convforge-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = sorted(ours())
    yield
    assert sorted(ours()) == before


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("lanes", [1, 3])
def test_every_item_comes_back_once_in_order(workers: int, lanes: int) -> None:
    def slow_if_even(i: int) -> int:
        time.sleep(0.002 * (i % 2 == 0))
        return i

    tracks = [nullcontext(lane) for lane in range(lanes)]
    done = flow(range(40), slow_if_even, lambda lane, i: (i, lane), lambda pair: pair, workers=workers, lanes=tracks)
    found = [(item, future.result()) for item, future in done]
    assert [item for item, _ in found] == list(range(40))
    assert all(item == result[0] and 0 <= result[1] < lanes for item, result in found)


def test_as_they_are_done_a_slow_one_does_not_hold_back_the_others() -> None:
    others = threading.Event()

    def load(i: int) -> int:
        if i == 1:
            assert others.wait(20), "nothing that came after it came back before it was done"
        return i

    found = []
    for item, future in flow(range(9), load, lambda _, i: i, str, workers=2, lanes=alone(), ordered=False):
        found.append((item, future.result()))
        if item > 1:
            others.set()
    assert sorted(found) == [(i, str(i)) for i in range(9)]


@pytest.mark.parametrize("ordered", [True, False])
def test_no_more_items_are_under_way_than_said(ordered: bool) -> None:
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        for i in range(60):
            drawn += 1
            yield i

    taken = 0
    for _ in flow(items(), str, lambda _, i: i, str, workers=2, lanes=alone(), ordered=ordered):
        taken += 1
        assert drawn - taken < in_flight(2, 1) == 5
    assert taken == 60


@pytest.mark.parametrize("ordered", [True, False])
def test_items_together_have_no_more_bytes_than_the_limit(ordered: bool) -> None:
    """Small items first: the size of each is known before it is loaded."""
    sizes = [5] * 9 + [40, 40, 60, 5, 5, 100, 1000, 30, 70, 70]
    held, most, turn = 0, 0, threading.Lock()

    def load(i: int) -> int:
        nonlocal held, most
        with turn:
            held += sizes[i]
            most = max(most, held if sizes[i] <= 100 else 100 if held == sizes[i] else held)
        return i

    done = flow(
        range(len(sizes)), load, lambda _, i: i, str, workers=4, lanes=alone(), size=lambda i: Size(sizes[i]),
        nbytes=100, ordered=ordered,
    )  # fmt: skip
    found = []
    for item, future in done:
        future.result()
        with turn:
            held -= sizes[item]
        found.append(item)
    assert sorted(found) == [*range(len(sizes))]
    assert 60 < most <= 100, "one item alone may be larger"


def test_room_lets_one_item_in_always_and_counts_what_lanes_keep() -> None:
    room = Room(nbytes=100, most=3, lanes=2)
    assert room.has_room(Size(1000, 1000))
    room.enter(Size(20, 10))
    assert [room.has_room(Size(nbytes)) for nbytes in (60, 61)] == [True, False]
    assert [room.has_room(Size(10, nbytes)) for nbytes in (35, 36)] == [True, False]
    room.enter(Size(10, 35))
    room.leave(Size(10, 35))
    assert [room.has_room(Size(nbytes)) for nbytes in (10, 11)] == [True, False], "lanes keep their buffers"
    room.leave(Size(20, 10))
    assert room.has_room(Size(1000))
    for _ in range(3):
        assert not room.is_full
        room.enter(Size())
    assert room.is_full
    assert not room.has_room(Size())


@pytest.mark.parametrize("stage", ["load", "compute", "store"])
def test_a_failure_is_that_items_alone(stage: str) -> None:
    def at(name: str, i: int) -> int:
        if name == stage and i == 3:
            raise OSError(f"{i} in {name}")
        return i

    done = flow(
        range(7), lambda i: at("load", i), lambda _, i: at("compute", i), lambda i: at("store", i), workers=2,
        lanes=alone(),
    )  # fmt: skip
    found = {item: future.exception() for item, future in done}
    assert str(found.pop(3)) == f"3 in {stage}"
    assert found == dict.fromkeys((0, 1, 2, 4, 5, 6))


def test_a_lane_that_cannot_be_opened_fails_every_item_and_nothing_hangs() -> None:
    @contextmanager
    def broken() -> Iterator[None]:
        raise RuntimeError("no stream left")
        yield

    done = flow(range(12), str, lambda _, i: i, str, workers=2, lanes=[broken()])
    assert [str(future.exception()) for _, future in done] == ["no stream left"] * 12


def test_a_caller_who_stops_early_ends_what_is_in_work_and_begins_nothing() -> None:
    begun, ended = [], []

    def load(i: int) -> int:
        begun.append(i)
        time.sleep(0.01)
        ended.append(i)
        return i

    done = flow(range(1000), load, lambda _, i: i, str, workers=2, lanes=alone())
    next(done)
    done.close()
    assert ours() == []
    assert sorted(begun) == sorted(ended)
    assert len(begun) <= in_flight(2, 1)


def test_an_interrupt_of_the_caller_ends_the_threads() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(flow(items(), str, lambda _, i: i, str, workers=2, lanes=alone()))


def test_what_is_computed_is_stored_before_anything_new_is_loaded() -> None:
    begun, gate, order = threading.Event(), threading.Event(), []

    def wait(_: None, value: str, end: Future[None]) -> None:
        begun.set()
        assert gate.wait(20)
        end.set_result(None)

    def note(_: None, value: str, end: Future[None]) -> None:
        order.append(value)
        end.set_result(None)

    threads: Any = room._Threads("convforge-files", alone())
    ends: list[Future[None]] = [Future() for _ in range(5)]
    threads.start()
    try:
        threads.put(room._LOAD, wait, "", ends[0])
        assert begun.wait(20)
        for urgency, value, end in zip(
            (room._LOAD, room._LOAD, room._STORE, room._STORE), ("load 1", "load 2", "store 1", "store 2"), ends[1:],
            strict=True,
        ):  # fmt: skip
            threads.put(urgency, note, value, end)
        gate.set()
        for end in ends:
            end.result(20)
    finally:
        gate.set()
        threads.stop()
        threads.join()
    assert order == ["store 1", "store 2", "load 1", "load 2"]


@pytest.mark.parametrize("given", [3, 1, 0])
def test_threads_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    """A lane and some for files do the work; without one of each it fails, and no thread is left to wait."""
    start, started = threading.Thread.start, []

    def few(thread: threading.Thread) -> None:
        if len(started) == given:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    done = flow(range(9), str, lambda _, text: text * 2, len, workers=100, lanes=alone())
    if given == 3:
        assert [future.result() for _, future in done] == [2] * 9
        return
    with pytest.raises(RuntimeError, match="can't start"):
        list(done)


@pytest.mark.parametrize("stage", ["compute", "store"])
def test_an_exception_that_is_kept_keeps_no_item_in_memory(stage: str) -> None:
    class Large:
        pass

    seen: list[weakref.ref[Large]] = []

    def load(i: int) -> Large:
        large = Large()
        seen.append(weakref.ref(large))
        return large

    def fail(large: Large) -> Large:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    compute = (lambda _, large: fail(large)) if stage == "compute" else (lambda _, large: large)
    errors = [future.exception() for _, future in flow(range(5), load, compute, fail, workers=2, lanes=alone())]
    assert [str(error) for error in errors] == ["outer"] * 5
    assert [ref() for ref in seen] == [None] * 5


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_loaded_is_gone_once_its_result_was_taken(ordered: bool) -> None:
    class Large:
        pass

    alive: weakref.WeakSet[Large] = weakref.WeakSet()

    def load(i: int) -> Large:
        large = Large()
        alive.add(large)
        return large

    most = 0
    for _ in flow(range(50), load, lambda _, large: large, id, workers=2, lanes=alone(), ordered=ordered):
        most = max(most, len(alive))
    assert most <= in_flight(2, 1)
    assert len(alive) == 0


@pytest.mark.parametrize("most", [1, 3])
def test_a_known_number_of_items_is_in_memory(most: int) -> None:
    """Items begin side by side up to `most`, the first ones too."""
    together, held, peak, turn = threading.Barrier(most), 0, 0, threading.Lock()

    def load(item: int) -> int:
        nonlocal held, peak
        with turn:
            held += 1
            peak = max(peak, held)
        together.wait(20)
        return item

    def store(item: int) -> int:
        nonlocal held
        with turn:
            held -= 1
        return item

    done = flow(range(6), load, lambda _, item: item, store, workers=4, lanes=[nullcontext()], most=most)
    assert [future.result() for _, future in done] == list(range(6))
    assert peak == most
