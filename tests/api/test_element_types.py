"""conv2d on every element type: what sums are kept in, what comes out, and how far NaN and Inf reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.api.definition import RANDOM, convolved, whole
from tests.backends.emulated import needs_emulator

from convforge import Filter, conv2d


@pytest.mark.thorough
def test_float16_is_summed_in_float32() -> None:
    x, w = np.full((1, 64, 4, 4), 1.0, np.float16), np.full((1, 64, 3, 3), 1 / 64, np.float16)
    x[0, 0] = 2048.0
    result = conv2d(x, w)
    assert result.dtype == np.float16
    exact = convolved(x, w)
    np.testing.assert_array_equal(result, exact.astype(np.float16), "one rounding, at the end")


def test_float64_stays_float64() -> None:
    x, w = RANDOM.normal(size=(1, 3, 8, 8)), RANDOM.normal(size=(2, 3, 3, 3))
    result = conv2d(x, w, padding=1)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, convolved(x, w, pads=(1, 1, 1, 1)), rtol=1e-13, atol=1e-13)


@pytest.mark.thorough
@pytest.mark.parametrize("x_dtype, w_dtype", [
    ("uint8", "int8"),
    *(pytest.param(*types, marks=pytest.mark.thorough) for types in (("int8", "int8"), ("uint8", "uint8"))),
])  # fmt: skip
def test_integers_are_summed_in_int32(x_dtype: str, w_dtype: str) -> None:
    ends_x, ends_w = np.iinfo(x_dtype), np.iinfo(w_dtype)
    x = RANDOM.integers(ends_x.min, ends_x.max, (2, 5, 7, 8), dtype=x_dtype, endpoint=True)
    w = RANDOM.integers(ends_w.min, ends_w.max, (3, 5, 3, 3), dtype=w_dtype, endpoint=True)
    result = conv2d(x, w, padding=1)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, convolved(x, w, pads=(1, 1, 1, 1)))


@pytest.mark.thorough
def test_integers_with_bias_and_relu() -> None:
    x, w = whole(1, 3, 6, 6, dtype=np.uint8, low=0, high=256), whole(4, 3, 3, 3, dtype=np.int8)
    bias = np.array([100, -100000, 0, 7], np.int32)
    expected = np.maximum(convolved(x, w) + bias[:, None, None], 0)
    np.testing.assert_array_equal(conv2d(x, w, bias, activation="relu"), expected)


@needs_emulator
@pytest.mark.parametrize("activation", ["identity", "relu", "leaky_relu", ("clipped_relu", 2147483646.0)])
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.thorough), "emulator"])
def test_an_int32_bias_is_held_exactly(device: str, activation: Any) -> None:
    """Beyond 2^24, where float32 holds no longer every whole number; the result saturates at int32's limits."""
    x, w = np.ones((1, 1, 8, 8), np.int8), np.ones((5, 1, 3, 3), np.int8)
    bias = np.array([2**24 + 1, 2**31 - 10, 123456789, 2**31 - 1, 2**31 - 11], np.int32)
    largest = 2**31 - 1 if isinstance(activation, str) else 2147483646
    expected = [2**24 + 10, largest, 123456798, largest, 2**31 - 2]
    assert conv2d(x, w, bias, activation=activation, device=device)[0, :, 0, 0].tolist() == expected
    assert Filter(w, bias, activation=activation, device=device)(x)[0, :, 0, 0].tolist() == expected
    below = conv2d(x, -w, -bias, device=device)[0, :, 0, 0]
    assert below.tolist() == [-(2**24) - 10, -(2**31) + 1, -123456798, -(2**31), -(2**31) + 2]


def test_integer_pictures_with_float_weights() -> None:
    x, w = whole(1, 2, 6, 6, dtype=np.uint8, low=0, high=256), whole(2, 2, 3, 3) / 4
    result = conv2d(x, w.astype(np.float32))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, convolved(x, w))


def test_inf_and_nan_reach_their_windows_and_no_further() -> None:
    x = np.zeros((1, 1, 9, 9), np.float32)
    x[0, 0, 4, 4] = np.nan
    x[0, 0, 0, 8] = np.inf
    result = conv2d(x, np.ones((1, 1, 3, 3), np.float32), padding=1)[0, 0]
    expected = np.zeros((9, 9), np.float32)
    expected[3:6, 3:6] = np.nan
    expected[0:2, 7:9] = np.inf
    np.testing.assert_array_equal(result, expected)
