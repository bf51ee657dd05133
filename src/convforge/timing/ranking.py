"""The one place that says which of several timings is faster, which are level, and which are too noisy to rank.

Tables, finals, studies, reports, the lab, `explain`, the search and the layers of a model all ask here.

A timing is an interval: its median, and on either side of it its spread (half the interquartile range). Of n normal
samples with deviation s, the spread is 0.67 s and the standard error of the median 1.25 s / sqrt(n) (Kendall and
Stuart, The Advanced Theory of Statistics, vol. 1, ch. 10). With the usual 15 samples two spreads together are therefore
three standard errors of the difference of two medians: noise alone takes two medians further apart in 0.3 % of pairs.
So intervals that do not touch decide the order. Those that touch leave it open, for one of two reasons:

- the medians are close and the intervals narrow: both take the same time, as far as anybody need know;
- one interval is wide: either may be the faster one by far, and there is nothing to be said.
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

# Medians further apart than this are not level, whatever their spreads: half of what the ceilings of a run may move by
# before it is thrown away (timing.ceilings.MOVED), as two rows of one run may differ by that much for no reason of
# theirs.
LEVEL = 0.05
# Two spreads that together exceed this leave open a difference that matters: no tie can be seen through them.
WIDE = 0.10

T = TypeVar("T")


def order(a: Timing, b: Timing) -> Order:
    """The order of two timings, as seen from `a`.

    Examples
    --------
    >>> order(Timing((1.0, 1.0, 1.0)), Timing((1.05, 1.05, 1.05)))
    'faster'
    >>> order(Timing((1.0, 1.02, 1.04)), Timing((0.99, 1.01, 1.05)))
    'level'
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
    """The outcome of :func:`rank`.

    Attributes
    ----------
    leaders : tuple
        The fastest, and those level with it, by their medians. Empty where nothing can be said.
    unsure : tuple
        Those too noisy to rank: they may be as fast as the leaders, or faster.
    """

    leaders: tuple[T, ...]
    unsure: tuple[T, ...]


def rank(found: Iterable[T], timing: Callable[[T], Timing]) -> Ranking[T]:
    """The fastest of several, without those whose spreads are too wide to decide it.

    Only those that no other is known to beat can be the fastest. Where the order of two of these is open, those whose
    spreads leave it open take no part: the wider one, and the other too unless its own is narrow.

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
    """True if this spread leaves the order of a and b open; the wider of the two always does."""
    widest = max(_width(a), _width(b))
    return _width(own) >= widest / 2 or _width(own) > WIDE / 2 * min(a.median_s, b.median_s)


def _width(timing: Timing) -> float:
    """Seconds on either side of the median."""
    return timing.median_s * timing.spread
