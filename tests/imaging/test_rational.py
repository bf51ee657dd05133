"""Kernels that are whole numbers over one divisor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from convforge.imaging.kernels import named_kernel
from convforge.imaging.rational import LARGEST_DIVISOR, over_a_divisor


@given(arrays.arrays(np.int64, (3, 4), elements=st.integers(-1000, 1000)), st.integers(1, LARGEST_DIVISOR))
def test_every_quotient_is_found(whole, divisor):
    found = over_a_divisor(whole / divisor)
    assert found is not None
    numbers, over = found
    assert (numbers * divisor == whole * over).all(), "the same fractions"
    assert over <= divisor


@given(arrays.arrays(np.int64, (3, 3), elements=st.integers(-50, 50)), st.integers(1, 4096))
def test_every_quotient_of_float32_is_found(whole, divisor):
    found = over_a_divisor((whole / divisor).astype(np.float32))
    assert found is not None
    assert (found[0] * divisor == whole * found[1]).all()


@pytest.mark.parametrize("n", [2, 3, 5, 7, 15, 31, 63, 101])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_in_every_spelling(n: int, dtype: str) -> None:
    line = np.ones(n, dtype) / np.array(n, dtype)
    for taps in (np.ones((n, n), dtype) / n**2, np.full((n, n), 1 / n**2, dtype), np.outer(line, line)):
        found = over_a_divisor(taps)
        assert found is not None
        assert found[1] == n * n
        assert (found[0] == 1).all()


def test_the_largest_mean_and_a_binomial() -> None:
    assert over_a_divisor(named_kernel("box:4095").values[:2])[1] == 4095**2  # type: ignore[index]
    line = np.array([1, 4, 6, 4, 1]) / 16
    whole, divisor = over_a_divisor(np.outer(line, line))  # type: ignore[misc]
    assert divisor == 256
    assert whole.sum() == 256


@pytest.mark.parametrize("name", ["gaussian:3:0.8", "gaussian:31:5", "log:9:1.4"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_no_fractions(name: str, dtype: str) -> None:
    assert over_a_divisor(named_kernel(name).values.astype(dtype)) is None


@pytest.mark.parametrize("value", [1e-300, 5e-324, 2.0**-25, 1 / (LARGEST_DIVISOR + 1), np.pi])
def test_what_needs_a_larger_divisor(value: float) -> None:
    assert over_a_divisor(np.array([[value, 1.0]])) is None
