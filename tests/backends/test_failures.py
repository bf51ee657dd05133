"""Launches that fail or are interrupted: nothing new is begun, what runs is awaited, the first failure is raised."""

from __future__ import annotations

import dataclasses
import gc
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from convforge.backends.cpu import CpuRuntime, cpu_facts
from convforge.backends.runtime import LaunchInfo

PATIENCE = 20  # seconds, for what takes milliseconds


def with_cores(cores: int) -> CpuRuntime:
    return CpuRuntime(dataclasses.replace(cpu_facts(), cores=cores))


def launched(runtime: CpuRuntime, kernel: Any, items: int) -> None:
    runtime.launch(kernel, LaunchInfo("kernel", (items,), (1,)), ())


def in_parallel(runtime: CpuRuntime, kernel: Any, items: int) -> None:
    runtime.parallel([lambda slot, i=i: kernel(i, i + 1) for i in range(items)], runtime.facts.cores)


WAYS = pytest.mark.parametrize("way", [launched, in_parallel])


@contextmanager
def busy_pool(runtime: CpuRuntime) -> Iterator[threading.Event]:
    """All threads of the pool wait for the event, which comes by itself if the test's patience ends."""
    free = threading.Event()
    bell = threading.Timer(PATIENCE / 4, free.set)
    bell.start()
    for _ in range(runtime.facts.cores - 1):
        runtime._threads().submit(free.wait)
    try:
        yield free
    finally:
        free.set()
        bell.cancel()
        runtime._threads().shutdown()  # what was queued has run


@WAYS
def test_after_a_failure_no_piece_is_begun(way: Any) -> None:
    seen: list[int] = []
    both = threading.Barrier(2, timeout=PATIENCE)

    def kernel(begin: int, end: int) -> None:
        seen.append(begin)
        if begin < 2:
            both.wait()
        if begin == 0:
            raise ArithmeticError("item 0")
        time.sleep(0.05)

    with pytest.raises(ArithmeticError, match="item 0"):
        way(with_cores(2), kernel, 100)
    assert len(seen) < 50


@WAYS
def test_threads_that_never_began_are_not_waited_for(way: Any) -> None:
    """A pool that is busy with another caller's work holds up neither a failure nor a result."""
    seen: list[int] = []

    def kernel(begin: int, end: int) -> None:
        seen.append(begin)
        if begin == 7:
            raise ArithmeticError("item 7")

    runtime = with_cores(3)
    with busy_pool(runtime) as free:
        way(runtime, kernel, 7)
        with pytest.raises(ArithmeticError, match="item 7"):
            way(runtime, kernel, 20)
        assert not free.is_set()
    assert seen == [*range(7), *range(8)]


@WAYS
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_runs_is_awaited_before_the_failure_leaves(way: Any, failing: int) -> None:
    """Three threads, each with one piece: whichever fails, the other two finish first."""
    done: list[int] = []
    started = threading.Barrier(3, timeout=PATIENCE)

    def kernel(begin: int, end: int) -> None:
        started.wait()
        if begin == failing:
            raise ArithmeticError(f"item {begin}")
        time.sleep(0.2)
        done.append(begin)

    with pytest.raises(ArithmeticError, match=f"item {failing}"):
        way(with_cores(3), kernel, 3)
    assert sorted(done) == sorted({0, 1, 2} - {failing})


@WAYS
@pytest.mark.parametrize("callers_first", [False, True])
def test_the_first_failure_is_raised(way: Any, callers_first: bool) -> None:
    started = threading.Barrier(2, timeout=PATIENCE)
    caller = threading.get_ident()

    def kernel(begin: int, end: int) -> None:
        started.wait()
        if (threading.get_ident() == caller) != callers_first:
            time.sleep(0.2)
            raise ArithmeticError("second")
        raise ArithmeticError("first")

    with pytest.raises(ArithmeticError, match="first"):
        way(with_cores(2), kernel, 2)


@WAYS
def test_a_runtime_works_on_after_a_failure(way: Any) -> None:
    runtime, seen = with_cores(3), set[int]()
    with pytest.raises(ZeroDivisionError):
        way(runtime, lambda begin, end: 1 // begin, 9)
    way(runtime, lambda begin, end: seen.add(begin), 50)
    assert seen == set(range(50))
    assert not getattr(runtime._inside, "parallel", False)


@WAYS
def test_a_failure_keeps_no_arrays(way: Any) -> None:
    """Neither in a cycle that waits for the garbage collector, nor in the queue of a busy pool."""

    class Buffer:
        pass

    def fails(runtime: CpuRuntime) -> weakref.ref[Buffer]:
        buffer = Buffer()

        def kernel(begin: int, end: int, buffer: Buffer = buffer) -> None:
            raise ArithmeticError

        with suppress(ArithmeticError):
            way(runtime, kernel, 9)
        return weakref.ref(buffer)

    runtime = with_cores(2)
    gc.disable()
    try:
        with busy_pool(runtime):
            assert fails(runtime)() is None
    finally:
        gc.enable()


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in the main thread, whatever the test runner made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@WAYS
def test_an_interrupt_in_the_callers_kernel_waits_for_the_others(way: Any) -> None:
    done: list[int] = []
    started = threading.Barrier(2, timeout=PATIENCE)
    caller = threading.get_ident()

    def kernel(begin: int, end: int) -> None:
        if begin < 2:
            started.wait()
        if threading.get_ident() == caller:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        done.append(begin)

    with interrupts(), pytest.raises(KeyboardInterrupt):
        way(with_cores(2), kernel, 50)
    assert len(done) == 1
    time.sleep(0.3)
    assert len(done) == 1  # and nothing goes on behind the caller's back


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals wake no thread on Windows")
@WAYS
def test_an_interrupted_wait_goes_on_until_nothing_runs(way: Any) -> None:
    """The caller's own pieces are done; it is interrupted, twice, as it waits for the other thread."""
    done: list[int] = []
    started = threading.Barrier(2, timeout=PATIENCE)
    caller = threading.get_ident()

    def kernel(begin: int, end: int) -> None:
        if begin >= 2:
            return
        started.wait()
        if threading.get_ident() != caller:
            for _ in range(2):
                time.sleep(0.1)
                signal.pthread_kill(caller, signal.SIGINT)
            time.sleep(0.2)
            done.append(begin)

    with interrupts(), pytest.raises(KeyboardInterrupt):
        way(with_cores(2), kernel, 50)
    assert len(done) == 1


@WAYS
def test_an_interrupt_is_not_swallowed_by_a_failure_before_it(way: Any) -> None:
    started = threading.Barrier(2, timeout=PATIENCE)
    caller = threading.get_ident()

    def kernel(begin: int, end: int) -> None:
        started.wait()
        if threading.get_ident() != caller:
            raise ArithmeticError("first")
        time.sleep(0.2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        way(with_cores(2), kernel, 2)
