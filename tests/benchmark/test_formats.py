"""Numbers as people read them."""

from __future__ import annotations

import pytest

from convforge.benchmark import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.999e-4, "1.00 ms"),
        (1e-3, "1.00 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (75.0, "75.0 s"),
        (0.0, "0 ns"),
    ],
)
def test_seconds_change_their_unit_where_the_rounded_number_does(value: float, text: str) -> None:
    assert formats.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(99.95, "100"), (99.94, "99.9"), (999.6, "1000"), (-1.234, "-1.23")])
def test_three_digits_after_rounding(value: float, text: str) -> None:
    assert formats.three(value) == text


def test_what_is_not_a_number_is_missing() -> None:
    assert formats.three(float("inf")) == formats.three(float("nan")) == formats.MISSING


@pytest.mark.parametrize(("value", "text"), [(0.004, "0.4 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (1.2, "120 %")])
def test_percent(value: float, text: str) -> None:
    assert formats.percent(value) == text


def test_bytes() -> None:
    assert [formats.byte_count(n) for n in (0, 1023, 1024, 1536, 3 << 20)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.50 KiB",
        "3 MiB",
    ]


def test_errors_have_two_digits() -> None:
    assert [formats.error(v) for v in (6.55e-8, 1.0, 0.0, 3.2e12)] == ["6.5e-08", "1.0e+00", "0", "3.2e+12"]
