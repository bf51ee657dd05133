"""The rule that ends sampling, and the statistics it goes by."""

from __future__ import annotations

import pytest

from convforge.timing.stopping import StoppingRule, median_uncertainty, spread

STEADY = [1.0, 1.001, 0.999] * 5
WILD = [1.0, 2.0, 3.0] * 5


def test_spread_is_half_the_interquartile_range_over_the_median() -> None:
    assert spread([2.0, 4.0, 6.0, 8.0, 10.0]) == pytest.approx((8 - 4) / 2 / 6)


def test_one_wild_sample_moves_the_spread_little() -> None:
    assert spread([*STEADY, 1000.0]) < 0.01


def test_more_samples_make_the_median_more_certain() -> None:
    assert median_uncertainty(WILD * 16) == pytest.approx(median_uncertainty(WILD) / 4, rel=0.05)


@pytest.mark.parametrize(
    "samples, elapsed, decision",
    [
        (STEADY[:14], 0.1, "more"),
        (STEADY, 0.1, "narrow"),
        (WILD, 0.1, "more"),
        (WILD, 1.0, "noisy"),
        (WILD[:14], 1.0, "more"),
        (STEADY[:14], 5.0, "budget"),
        (STEADY[:2], 5.0, "more"),
        (WILD, 5.0, "noisy"),
    ],
)
def test_decisions(samples: list[float], elapsed: float, decision: str) -> None:
    assert StoppingRule(budget_s=5.0).decide(samples, elapsed) == decision


@pytest.mark.parametrize("fields", [{"fewest": 0}, {"fewest": 9, "samples": 5}, {"narrow": -0.1}, {"budget_s": -1.0}])
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        StoppingRule(**fields)  # type: ignore[arg-type]
