"""conv2d's out=: written, returned, overlapping its inputs, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.api.definition import Array, W, X, convolved, whole

from convforge import conv2d


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["auto", "im2col", "direct_naive"])
def test_out_is_written_and_returned(layout: str, algorithm: str) -> None:
    x = X if layout == "NCHW" else np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    expected = conv2d(x, W, padding=1, layout=layout)
    big = np.full((*(2 * n + 2 for n in expected.shape[:-1]), 3 * expected.shape[-1]), np.nan, np.float32)
    for out in (
        np.full_like(expected, np.nan),
        big[tuple(slice(1, 1 + n) for n in expected.shape)],
        big[tuple(slice(0, 2 * n, 2) for n in expected.shape)],
        np.full_like(expected, np.nan)[::-1, ::-1, ::-1, ::-1],
        np.full(expected.shape[::-1], np.nan, np.float32).T,
    ):
        big[...] = np.nan
        result = conv2d(x, W, padding=1, layout=layout, out=out, algorithm=algorithm)
        assert result is out
        np.testing.assert_array_equal(out, expected)
        if out.base is big:
            assert np.isnan(big).sum() == big.size - out.size, "nothing beside it was touched"


def test_out_of_a_picture_without_a_batch_axis() -> None:
    out = np.empty((4, 9, 11), np.float32)
    assert conv2d(X[0], W, padding=1, out=out) is out
    np.testing.assert_array_equal(out, convolved(X[:1], W, pads=(1, 1, 1, 1))[0])


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[:, ::-1], lambda a: a[..., ::-1], lambda a: a[::-1]])
@pytest.mark.parametrize("algorithm", ["auto", "im2col", "direct_naive"])
def test_out_may_overlap_x(algorithm: str, view: Callable[[Array], Array]) -> None:
    x, w = whole(2, 6, 9, 11), whole(6, 6, 3, 3)
    expected = convolved(x, w, pads=(1, 1, 1, 1))
    result = conv2d(x, w, padding=1, out=view(x), algorithm=algorithm)
    np.testing.assert_array_equal(result, expected)


def test_out_may_overlap_a_part_of_x() -> None:
    memory = whole(1, 4, 12, 12)
    x, w = memory[:, :, :9, :9], whole(4, 4, 3, 3)
    expected = convolved(x.copy(), w, pads=(1, 1, 1, 1))
    np.testing.assert_array_equal(conv2d(x, w, padding=1, out=memory[:, :, 2:11, 3:12]), expected)


def test_out_may_overlap_the_weights() -> None:
    memory = whole(4 * 4 * 9)
    x, w, out = whole(4, 7, 7), memory.reshape(4, 4, 3, 3), memory[:100].reshape(4, 5, 5)
    expected = convolved(x[None], w)[0]
    np.testing.assert_array_equal(conv2d(x, w, out=out), expected)


def test_out_may_overlap_the_bias() -> None:
    memory = whole(40)
    bias = memory[:4]
    out = memory[:36].reshape(4, 3, 3)
    x = whole(2, 5, 5)
    w = whole(4, 2, 3, 3)
    expected = convolved(x[None], w)[0] + bias[:, None, None]
    np.testing.assert_array_equal(conv2d(x, w, bias, out=out), expected)


@pytest.mark.parametrize(
    "out, error, says",
    [
        (np.empty((2, 4, 7, 8), np.float32), ValueError, ("(2, 4, 7, 8)", "(2, 4, 7, 9)")),
        (np.empty((2, 4, 7, 9), np.float64), ValueError, ("float64", "float32")),
        (np.empty((2, 4, 7, 9), ">f4"), ValueError, (">f4", "float32")),
        ([0.0], TypeError, ("out", "list")),
        (np.broadcast_to(np.float32(0), (2, 4, 7, 9)), ValueError, ("read-only",)),
    ],
)
def test_an_out_that_does_not_fit(out: Any, error: type[Exception], says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        conv2d(X, W, out=out)
    for word in says:
        assert word in str(caught.value)
