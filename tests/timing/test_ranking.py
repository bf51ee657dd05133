"""The one rule of who is faster: what it says holds whatever the timings are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convforge.timing.ranking import LEVEL, ORDERS, WIDE, order, rank
from convforge.timing.timer import Timing

medians = st.floats(1e-6, 1.0)
# Mostly narrow, as on a GPU left alone; some as wide as on a machine that others use.
shares = st.one_of(st.floats(0.0, 0.03), st.floats(0.0, 2.0))


def of(median: float, spread: float) -> Timing:
    """A timing of that median and spread."""
    low = max(1 - spread, 0.0)
    high = low + 2 * spread
    return Timing((median * low, median * low, median, median * high, median * high))


@st.composite
def near_each_other(draw: st.DrawFn, most: int = 6) -> list[Timing]:
    """Timings of about the same size, where verdicts are hard."""
    base = draw(medians)
    factors = draw(st.lists(st.one_of(st.floats(0.9, 1.1), st.floats(0.2, 5.0)), min_size=1, max_size=most))
    return [of(base * factor, draw(shares)) for factor in factors]


@given(near_each_other(2))
def test_an_order_is_what_medians_and_spreads_say(found: list[Timing]) -> None:
    a, b = found[0], found[-1]
    verdict = order(a, b)
    apart, least = abs(a.median_s - b.median_s), min(a.median_s, b.median_s)
    both = a.median_s * a.spread + b.median_s * b.spread
    assert order(b, a) == {"faster": "slower", "slower": "faster"}.get(verdict, verdict)
    if verdict == "faster":
        assert a.median_s < b.median_s
        assert apart > both
    if verdict == "level":
        assert apart <= LEVEL * least
        assert both <= WIDE * least
    if verdict == "unsure":
        assert apart <= both


@given(near_each_other())
def test_leaders_are_level_and_no_loser_is_among_them(found: list[Timing]) -> None:
    ranking = rank(found, lambda timing: timing)
    said = (*ranking.leaders, *ranking.unsure)
    assert said, "somebody may be the fastest"
    for a, b in itertools.combinations(ranking.leaders, 2):
        assert order(a, b) == "level"
    for one, other in itertools.product(said, found):
        assert order(one, other) != "slower", "one that another is known to beat may be no leader, nor doubtful"
    for other in found:
        if not any(other is one for one in said):
            assert any(order(one, other) == "faster" for one in said)
    if len(found) == 1:
        assert ranking.leaders == tuple(found)


@given(near_each_other())
def test_nobody_is_doubtful_whose_order_is_known(found: list[Timing]) -> None:
    for one in rank(found, lambda timing: timing).unsure:
        assert any(order(one, other) == "unsure" for other in found if other is not one)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (of(1.0, 0.0), of(1.001, 0.0), "faster"),
        (of(1.0, 0.02), of(1.02, 0.02), "level"),
        (of(1.0, 0.04), of(1.06, 0.04), "unsure"),
        (of(1.0, 0.30), of(1.01, 0.01), "unsure"),
        (of(0.161, 1.62), of(0.030, 0.02), "unsure"),
        (of(2.0, 0.30), of(1.0, 0.05), "slower"),
    ],
)
def test_verdicts_by_example(a: Timing, b: Timing, verdict: str) -> None:
    assert verdict in ORDERS
    assert order(a, b) == verdict


def test_a_noisy_row_neither_wins_nor_ties_nor_keeps_others_from_it() -> None:
    steady, near, noisy, slow = of(1.0, 0.01), of(1.01, 0.01), of(0.9, 0.8), of(3.0, 0.1)
    times = {"steady": steady, "near": near, "noisy": noisy, "slow": slow}
    found = rank(times, times.__getitem__)
    assert (found.leaders, found.unsure) == (("steady", "near"), ("noisy",))
    both = rank({"noisy": noisy, "other": of(1.0, 0.7)}, {"noisy": noisy, "other": of(1.0, 0.7)}.__getitem__)
    assert (both.leaders, both.unsure) == ((), ("noisy", "other"))
