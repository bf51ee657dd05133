"""The order of timings: faster, level, or too noisy to rank. Everything that compares timings uses this module.

A timing is an interval: its median plus or minus its spread (half the interquartile range). For n normal samples with
deviation s, the spread is 0.67 s and the standard error of the median 1.25 s / sqrt(n) (Kendall and Stuart, The
Advanced Theory of Statistics, vol. 1, ch. 10). So with the usual 15 samples, noise alone moves two medians apart by
more than both spreads in 0.3 % of pairs. Intervals that overlap are level if close and narrow, else unsure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Generic, Literal, TypeVar

from convforge.timing.timer import Timing

# "unsure": too noisy to rank.
Order = Literal["faster", "slower", "level", "unsure"]
ORDERS: tuple[Order, ...] = ("faster", "slower", "level", "unsure")

# Medians with a larger relative difference are not level. It is half of timing.ceilings.MOVED, the change of ceilings
# that a valid run allows: drift alone may cause this difference between two rows.
LEVEL = 0.05
# If the sum of two spreads exceeds this, they may hide a relevant difference, so the timings are not level.
WIDE = 0.10

T = TypeVar("T")


def order(a: Timing, b: Timing) -> Order:
    """The order of `a` relative to `b`.

    Examples
    --------
    >>> order(Timing((1.0, 1.0, 1.0)), Timing((1.05, 1.05, 1.05)))
    'faster'
    >>> order(Timing((0.02, 0.16, 0.62)), Timing((0.03, 0.03, 0.031)))
    'unsure'
    """
    apart, both = abs(a.median_s - b.median_s), _width(a) + _width(b)
    if apart > both:
        return "faster" if a.median_s < b.median_s else "slower"
    least = min(a.median_s, b.median_s)
    return "level" if apart <= LEVEL * least and both <= WIDE * least else "unsure"


@dataclass(frozen=True, slots=True)
class Ranking(Generic[T]):
    """The outcome of :func:`rank`."""

    leaders: tuple[T, ...]  # the fastest and those level with it, by their medians; empty if the order is unknown
    unsure: tuple[T, ...]  # too noisy to rank: they may be as fast as the leaders, or faster


def rank(found: Iterable[T], timing: Callable[[T], Timing]) -> Ranking[T]:
    """Find the fastest items; separate those with spreads that are too wide.

    The candidates are the items that no other is known to beat. If the order of two candidates is unknown, the one with
    the wider spread is excluded, and the other too unless its own spread is narrow.

    Examples
    --------
    >>> times = {"a": Timing((1.0, 1.0, 1.0)), "b": Timing((0.99, 1.01, 1.05)), "c": Timing((0.3, 0.9, 2.0))}
    >>> rank(times, times.__getitem__)
    Ranking(leaders=('a', 'b'), unsure=('c',))
    """
    able = sorted(found, key=lambda one: timing(one).median_s)
    times = [timing(one) for one in able]
    first = [i for i, t in enumerate(times) if not any(order(other, t) == "faster" for other in times[:i])]
    unsure: set[int] = set()
    for i, j in combinations(first, 2):
        if order(times[i], times[j]) == "unsure":
            unsure |= {one for one in (i, j) if _is_wide(times[one], times[i], times[j])}
    leaders = tuple(able[i] for i in first if i not in unsure)
    return Ranking(leaders, tuple(able[i] for i in first if i in unsure))


def _is_wide(own: Timing, a: Timing, b: Timing) -> bool:
    """True if the spread of `own` (a or b) makes their order unknown; the wider of the two always does."""
    widest = max(_width(a), _width(b))
    return _width(own) >= widest / 2 or _width(own) > WIDE / 2 * min(a.median_s, b.median_s)


def _width(timing: Timing) -> float:
    """Half the width of the interval, in seconds."""
    return timing.median_s * timing.spread
