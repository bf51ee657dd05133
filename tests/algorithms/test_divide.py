"""Division by a product and a shift: exact over the whole range, at every step of the quotient."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convforge.algorithms.host.conv import LIMIT_BITS, divisor

LIMIT = 1 << LIMIT_BITS


@given(st.integers(1, LIMIT), st.integers(0, LIMIT))
def test_quotients_are_exact(by: int, whole: int) -> None:
    known = divisor(by)
    assert known.factor < 1 << 32
    assert known.by == by
    multiple = min(whole, (LIMIT - 1) // by) * by
    for number in (multiple, max(multiple - 1, 0), min(multiple + by - 1, LIMIT - 1), LIMIT - 1):
        assert number * known.factor >> known.shift == number // by
