"""relu of every type and shape, in place and into views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.api.definition import RANDOM, Array, whole

from convforge import relu


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 4, 5, 2)])
def test_relu(dtype: str, shape: tuple[int, ...]) -> None:
    x = RANDOM.integers(-100, 100, shape).astype(np.int8).astype(dtype)
    if not shape:
        x = np.asarray(x)
    result = relu(x)
    assert result.shape == x.shape
    assert result.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(result, np.maximum(x, 0))


def test_relu_keeps_nan_and_inf() -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, -1e-45, 1e-45], np.float32)
    np.testing.assert_array_equal(relu(x), np.array([np.nan, 0, np.inf, 0, 0, 1e-45], np.float32))


def test_relu_in_place_and_into_views() -> None:
    x = whole(4, 6, 7)
    expected = np.maximum(x, 0)
    views: list[Callable[[Array], Array]] = [
        lambda a: a,
        lambda a: a[::-1],
        lambda a: a.transpose(2, 0, 1),
        lambda a: a[:, ::2, 1:],
    ]
    for view in views:
        own = x.copy()
        assert relu(view(own), out=view(own)).base is own or view(own) is own
        np.testing.assert_array_equal(view(own), view(expected))
    out = np.full((7, 6, 4), np.nan, np.float32).T
    assert relu(x, out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = x.copy()
    np.testing.assert_array_equal(relu(own, out=own[::-1]), expected)
    large = RANDOM.normal(size=2_000_001).astype(np.float32)
    np.testing.assert_array_equal(relu(large), np.maximum(large, 0))
    with pytest.raises(TypeError, match="list"):
        relu([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out has shape"):
        relu(x, out=np.empty(3, np.float32))
