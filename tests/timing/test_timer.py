"""Timing by a made-up clock: batches, sample counts, noise, budgets, turns and ties."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, interleave, measure


class FakeClock:
    """Time passes only when a run is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: Iterable[float]) -> Callable[[], None]:
        """A run whose calls take these times, the last for ever."""
        times = iter(seconds)
        last = [0.0]

        def call() -> None:
            last[0] = next(times, last[0])
            self.now += last[0]

        return call

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """As a runtime does it."""
        begin = self.now
        for _ in range(repeats):
            run()
        return self.now - begin


def timed(clock: FakeClock, run: Callable[[], None], rule: StoppingRule) -> Timing:
    runtime: Any = clock
    return measure(run, runtime, rule, clock=clock)


def test_fast_calls_are_batched_up_to_the_floor() -> None:
    clock = FakeClock()
    timing = timed(clock, clock.run([1e-6]), StoppingRule(sample_s=200e-6))
    assert timing.calls * 1e-6 >= 200e-6
    assert len(timing.samples) == 15
    assert timing.median_s == pytest.approx(1e-6)
    assert not timing.noisy
    assert not timing.few


def test_slow_calls_are_not_batched() -> None:
    clock = FakeClock()
    assert timed(clock, clock.run([0.01]), StoppingRule()).calls == 1


def test_a_slow_first_call_is_no_sample() -> None:
    clock = FakeClock()
    timing = timed(clock, clock.run([3.0, 0.01]), StoppingRule())
    assert max(timing.samples) == pytest.approx(0.01)


def test_a_restless_run_goes_on_for_its_patience_and_is_called_noisy() -> None:
    clock = FakeClock()
    timing = timed(clock, clock.run(itertools.cycle([0.01, 0.02, 0.05])), StoppingRule(patience_s=2.0))
    assert timing.noisy
    assert not timing.few
    assert len(timing.samples) > 15
    assert clock.now == pytest.approx(2.0, abs=0.1)


def test_the_budget_ends_sampling_and_says_so() -> None:
    clock = FakeClock()
    timing = timed(clock, clock.run([0.1]), StoppingRule(budget_s=0.6))
    assert timing.few
    assert 3 <= len(timing.samples) < 15


def test_a_spent_budget_still_gets_the_fewest_samples() -> None:
    clock = FakeClock()
    assert len(timed(clock, clock.run([5.0]), StoppingRule(budget_s=0.0)).samples) == 3


def test_a_clock_that_stands_still_does_not_hang() -> None:
    clock = FakeClock()
    assert timed(clock, clock.run([0.0]), StoppingRule(samples=3)).median_s == 0.0


def test_finalists_take_turns_in_both_orders() -> None:
    clock = FakeClock()
    turns: list[str] = []

    def named(name: str) -> Callable[[], None]:
        inner = clock.run([0.01])
        return lambda: (turns.append(name), inner())[1]

    runtime: Any = clock
    timings = interleave([named("a"), named("b")], runtime, StoppingRule(), clock=clock)
    assert "".join(turns)[2:18] == "aabbbbaaaabbbbaa"  # after one calibrating call each: one that does not count, one
    assert [len(t.samples) for t in timings] == [15, 15]


def test_a_drift_meets_both_finalists_alike() -> None:
    clock = FakeClock()

    def slowing() -> None:
        clock.now += 0.01 * (1 + clock.now)

    runtime: Any = clock
    a, b = interleave([slowing, slowing], runtime, StoppingRule(patience_s=1.0), clock=clock)
    assert a.median_s == pytest.approx(b.median_s, rel=0.05)


def test_a_timing_survives_its_table() -> None:
    timing = Timing((1.0, 2.0, 4.0), calls=7, noisy=True, few=True, ring=3, cold=True)
    assert Timing.from_table(timing.to_table()) == timing
    assert timing.to_table()["median_s"] == 2.0
