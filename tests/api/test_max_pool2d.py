"""max_pool2d against PyTorch and its definition."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.definition import RANDOM, X, whole

from convforge import max_pool2d


@pytest.mark.parametrize(
    "arguments",
    [
        (2,),
        (3, 2),
        (3, 2, 1),
        ((2, 3), (3, 1), (1, 0)),
        (3, 2, 1, 2),
        ((3, 2), 1, 1, (1, 3)),
        (2, 2, 0, 1, True),
        (3, 2, 1, 1, True),
        (3, 3, 1, 1, True),
        ((3, 2), (2, 4), (1, 1), (2, 1), True),
        (1, 3, 0, 1, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(9, 11), (10, 8), (5, 5)])
def test_pooling_agrees_with_torch(torch: Any, arguments: tuple[Any, ...], size: tuple[int, int]) -> None:
    x = RANDOM.normal(size=(2, 3, *size)).astype(np.float32)
    x[0, 0, 2, 2] = np.nan
    x[1, 1, 0, 0] = np.inf
    x[1, 2] = -np.inf
    x[1, 0] = -np.abs(x[1, 0])  # zeros of the padding must not win
    result = max_pool2d(x, *arguments)
    theirs = torch.nn.functional.max_pool2d(torch.from_numpy(x), *arguments).numpy()
    np.testing.assert_array_equal(result, theirs)


def test_pooling_takes_the_arguments_of_torch_in_their_order() -> None:
    names = list(inspect.signature(max_pool2d).parameters)
    assert names[1:6] == ["kernel_size", "stride", "padding", "dilation", "ceil_mode"]


@pytest.mark.parametrize(
    "dtype", ["uint8", *(pytest.param(t, marks=pytest.mark.thorough) for t in
                         ("int8", "int16", "int32", "float16", "float64"))],
)  # fmt: skip
def test_pooling_of_every_type(dtype: str) -> None:
    x = np.array([[[-5, -3, 7], [-9, -8, 100], [-1, -2, -128]]]).astype(dtype)
    result = max_pool2d(x, 3, 1, 1)
    assert result.dtype == dtype
    padded = np.pad(x[0].astype(np.float64), 1, constant_values=-np.inf)
    expected = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).max(axis=(2, 3))
    np.testing.assert_array_equal(result[0], expected)


def test_pooling_layouts_padding_and_out() -> None:
    x = whole(2, 3, 9, 10)
    expected = max_pool2d(x, 3, 2, 1)
    last = x.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(max_pool2d(last, 3, 2, 1, layout="NHWC"), expected.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(max_pool2d(x[0], 3, 2, 1), expected[0])
    assert max_pool2d(x, 3, 2, "same").shape == (2, 3, 5, 5)
    assert max_pool2d(x, 2, 1, ((1, 0), (0, 1))).shape == (2, 3, 9, 10)
    assert max_pool2d(x[:0], 3).shape == (0, 3, 3, 3)
    out = np.full_like(expected, np.nan)[..., ::-1]
    assert max_pool2d(x, 3, 2, 1, out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = x.copy()
    np.testing.assert_array_equal(max_pool2d(own, 3, 1, 1, out=own), max_pool2d(x, 3, 1, 1))


@settings(deadline=None, max_examples=60)
@given(
    h=st.integers(1, 12), w=st.integers(1, 12), r=st.integers(1, 4), s=st.integers(1, 4), step=st.integers(1, 4),
    dilation=st.integers(1, 3), top=st.integers(0, 3), left=st.integers(0, 3), ceil_mode=st.booleans(),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_pooling_by_its_definition(
    h: int, w: int, r: int, s: int, step: int, dilation: int, top: int, left: int, ceil_mode: bool, seed: int
) -> None:
    extent = (dilation * (r - 1) + 1, dilation * (s - 1) + 1)
    pads = (min(top, extent[0] - 1), min(left, extent[1] - 1))
    if extent[0] > h + 2 * pads[0] or extent[1] > w + 2 * pads[1]:
        return
    x = np.random.default_rng(seed).integers(-9, 10, (1, h, w)).astype(np.float32)
    rows = _windows(h, r, step, dilation, pads[0], ceil_mode)
    columns = _windows(w, s, step, dilation, pads[1], ceil_mode)
    if not all(rows + columns):  # a window would step over the whole image
        with pytest.raises(ValueError, match="would hold no pixel"):
            max_pool2d(x, (r, s), step, pads, dilation, ceil_mode)
        return
    result = max_pool2d(x, (r, s), step, pads, dilation, ceil_mode)
    assert result.shape == (1, len(rows), len(columns))
    for p, q in np.ndindex(result.shape[1:]):
        assert result[0, p, q] == x[0][np.ix_(rows[p], columns[q])].max(), (p, q)


def _windows(size: int, taps: int, step: int, dilation: int, pad: int, ceil_mode: bool) -> list[list[int]]:
    """The pixels of each window along one axis. Rounded up, a last one begins in the image or the padding before."""
    free = size + 2 * pad - (dilation * (taps - 1) + 1)
    starts = list(range(-pad, free - pad + 1, step))
    if ceil_mode and free % step and starts[-1] + step < size:
        starts.append(starts[-1] + step)
    return [[i for i in (start + dilation * tap for tap in range(taps)) if 0 <= i < size] for start in starts]


@pytest.mark.parametrize(
    "arguments, options, error, says",
    [
        ((0,), {}, ValueError, ("at least 1",)),
        ((2, 0), {}, ValueError, ("stride", "at least 1")),
        ((2, -1), {}, ValueError, ("stride", "at least 1")),
        ((2.0,), {}, TypeError, ("kernel_size=2.0", "whole")),
        ((2, 1, 2), {}, ValueError, ("padding", "window")),
        ((2, 1, -1), {}, ValueError, ("padding", "negative")),
        ((20,), {}, ValueError, ("20x20", "9x11", "padding")),
        ((3, 1, 0, 0), {}, ValueError, ("dilation", "at least 1")),
        ((3,), {"layout": "CWH"}, ValueError, ("'CWH'", "NCHW")),
        ((3,), {"device": "gpu"}, ValueError, ("'gpu'", "'cpu'")),
        ((3,), {"out": np.empty((2, 6, 3, 3))}, ValueError, ("float64", "float32")),
    ],
)  # fmt: skip
def test_mistakes_in_pooling(arguments: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        max_pool2d(X, *arguments, **options)
    for word in says:
        assert word in str(caught.value)
