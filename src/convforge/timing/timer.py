"""Timing of calls: calibrate, warm up, and sample until the median is known; several runs take turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from convforge.timing.stopping import Decision, StoppingRule, median_uncertainty, spread

_MOST_CALLS = 1 << 16  # per sample at most, in case a clock does not advance
REST_S = 0.005  # pause before each sample of interleaved runs


class Clock(Protocol):
    """Protocol of a timer of calls; every runtime implements it."""

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Seconds that `repeats` calls of `run` take."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of one run."""

    samples: tuple[float, ...]  # seconds per call
    calls: int = 1  # calls per sample; a sample is their mean
    noisy: bool = False  # the median is less certain than the rule demands
    few: bool = False  # the budget ended before the rule's number of samples
    ring: int = 1  # slots that the calls cycled through
    cold: bool = False  # the ring exceeds the last-level cache

    @property
    def median_s(self) -> float:
        """Median of the samples: seconds per call."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the interquartile range, divided by the median."""
        return spread(self.samples)

    def to_table(self) -> dict[str, Any]:
        """Return a table for JSON."""
        return {"median_s": self.median_s, "spread": self.spread, **asdict(self), "samples": list(self.samples)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Timing:
        """Read the table of :meth:`to_table`."""
        rest = {name: table[name] for name in ("calls", "noisy", "few", "ring", "cold") if name in table}
        return cls(tuple(table["samples"]), **rest)


def measure(
    run: Callable[[], None], runtime: Clock, rule: StoppingRule | None = None, *,
    clock: Callable[[], float] = time.monotonic,
) -> Timing:  # fmt: skip
    """Time one run: a function that may use the next slot of a ring at each call.

    `runtime` measures the samples; `clock` measures the time for the rule's patience and budget.

    Examples
    --------
    >>> from convforge.backends.cpu.runtime import cpu_runtime
    >>> len(measure(lambda: None, cpu_runtime(), StoppingRule(samples=5, patience_s=0.1)).samples) >= 5
    True
    """
    return interleave([run], runtime, rule, clock=clock)[0]


def interleave(
    runs: Sequence[Callable[[], None]], runtime: Clock, rule: StoppingRule | None = None, *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Timing]:  # fmt: skip
    """Time several runs, one sample of each in turn, so that drift of the machine affects all runs equally.

    The order is reversed after every round. Before each sample there is a pause and one call that is not timed, because
    threads of other libraries spin for milliseconds after a call. All runs share the budget.
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
    """Return the number of calls that take at least `sample_s` seconds; this also warms up."""
    calls = 1
    while True:
        taken = runtime.time(run, calls)
        if taken >= sample_s or calls >= _MOST_CALLS:
            return calls
        # A first call is slower than the next: raise the number at most eightfold.
        calls = min(8 * calls, max(calls + 1, math.ceil(1.2 * calls * sample_s / max(taken, 1e-9))), _MOST_CALLS)
