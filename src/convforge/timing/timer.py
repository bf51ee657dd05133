"""Timings of calls: calibrated, warmed up, sampled until the median is narrow; several runs interleaved where asked.

Time is taken by ``Runtime.time``: wall clock on the CPU, events on a GPU; where copies to and from a device are inside
of it, by :data:`HOST_CLOCK`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from convforge.timing.stopping import Decision, StoppingRule, median_uncertainty, spread

_MOST_CALLS = 1 << 16  # of one sample, should a clock stand still
REST_S = 0.005  # before each sample of interleaved runs


class Clock(Protocol):
    """Protocol of a timer of calls; every runtime is one."""

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Seconds that `repeats` calls of `run` take."""
        ...


class HostClock:
    """The host's clock: for calls that have ended when they return."""

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """See :class:`Clock`."""
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return time.perf_counter() - begin


HOST_CLOCK = HostClock()


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of one run.

    Attributes
    ----------
    samples : tuple of float
        Seconds a call.
    calls : int
        Calls that each sample is the mean of.
    noisy : bool
        The median is less certain than the rule asked for.
    few : bool
        The budget ended before the rule's number of samples was taken.
    ring : int
        Slots that the calls cycled through.
    cold : bool
        The ring exceeds the last-level cache, so that a call finds its inputs, weights and output in memory.
    """

    samples: tuple[float, ...]
    calls: int = 1
    noisy: bool = False
    few: bool = False
    ring: int = 1
    cold: bool = False

    @property
    def median_s(self) -> float:
        """Seconds a call, the median of the samples."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median."""
        return spread(self.samples)

    def to_table(self) -> dict[str, Any]:
        """The timing as JSON holds it."""
        return {
            "median_s": self.median_s,
            "spread": self.spread,
            "samples": list(self.samples),
            "calls": self.calls,
            "noisy": self.noisy,
            "few": self.few,
            "ring": self.ring,
            "cold": self.cold,
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Timing:
        """The timing that :meth:`to_table` wrote."""
        rest = {name: table[name] for name in ("calls", "noisy", "few", "ring", "cold") if name in table}
        return cls(tuple(table["samples"]), **rest)


def measure(
    run: Callable[[], None],
    runtime: Clock,
    rule: StoppingRule | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Timing:
    """Time one run.

    Parameters
    ----------
    run : callable
        One call of what is timed; it may take the next slot of a ring each time.
    runtime : Runtime, or another Clock
        Whose clock takes the time.
    clock : callable
        Seconds, for the rule's patience and budget alone.

    Examples
    --------
    >>> from convforge.backends.cpu.runtime import cpu_runtime
    >>> timing = measure(lambda: None, cpu_runtime(), StoppingRule(samples=5, patience_s=0.1))
    >>> len(timing.samples) >= 5, timing.calls > 1
    (True, True)
    """
    return interleave([run], runtime, rule, clock=clock)[0]


def interleave(
    runs: Sequence[Callable[[], None]],
    runtime: Clock,
    rule: StoppingRule | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Timing]:
    """Time several runs in turns, a sample each, so that a drift of the machine meets all of them alike.

    The order turns round after every round. Before each sample the machine gets a moment of rest, and one call that
    does not count: PyTorch's threads, and those of others, spin for some milliseconds after a call, and would take a
    core from whoever comes next. Sampling goes on until the rule is satisfied for every run; the budget is
    that of all together.
    """
    rule = rule or StoppingRule()
    begin = clock()
    calls = [_calibrate(run, runtime, rule.sample_s) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    while True:
        for i in order:
            if len(runs) > 1:
                time.sleep(REST_S)
                runs[i]()
            samples[i].append(runtime.time(runs[i], calls[i]) / calls[i])
        order.reverse()
        decisions: list[Decision] = [rule.decide(taken, clock() - begin) for taken in samples]
        if "more" not in decisions:
            break
    return [
        Timing(tuple(taken), count, noisy=median_uncertainty(taken) > rule.narrow, few=len(taken) < rule.samples)
        for taken, count in zip(samples, calls, strict=True)
    ]


def _calibrate(run: Callable[[], None], runtime: Clock, sample_s: float) -> int:
    """Calls that fill a sample; finding out is the warm-up."""
    calls = 1
    while True:
        taken = runtime.time(run, calls)
        if taken >= sample_s or calls >= _MOST_CALLS:
            return calls
        # One first call is slower than the next: never trust it for more than a factor of eight.
        calls = min(8 * calls, max(calls + 1, math.ceil(1.2 * calls * sample_s / max(taken, 1e-9))), _MOST_CALLS)
