"""Filter: conv2d with weights that are kept, also from many threads at once."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import numpy as np
import pytest
from tests.api.definition import W, X, convolved, whole

from convforge import Filter, conv2d


def test_calls_from_many_threads_at_once() -> None:
    cases = [(whole(1, c, 20, 21), whole(k, c, 3, 3)) for c in (1, 3, 8) for k in (1, 16)]
    expected = [convolved(x, w, pads=(1, 1, 1, 1)) for x, w in cases]
    shared = Filter(cases[2][1], padding=1)
    wrong: list[str] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for turn in range(8):
            at = (number + turn) % len(cases)
            x, w = cases[at]
            results = {name: conv2d(x, w, padding=1, algorithm=name) for name in ("auto", "im2col", "direct_rows")}
            results["a shared filter"] = shared(x) if x.shape[1] == 3 and w.shape[0] == 1 else expected[at]
            wrong.extend(f"{name} on {x.shape}" for name, y in results.items() if not np.array_equal(y, expected[at]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_filter_is_conv2d_with_kept_weights() -> None:
    w, bias = whole(4, 6, 3, 3), whole(4)
    layer = Filter(w, bias, padding="same", stride=2, activation="relu")
    expected = conv2d(X, w, bias, padding="same", stride=2, activation="relu")
    np.testing.assert_array_equal(layer(X), expected)
    np.testing.assert_array_equal(layer(X[0]), expected[0])
    np.testing.assert_array_equal(
        layer(whole(1, 6, 30, 5) * 0), np.maximum(bias, 0)[:, None, None] + np.zeros((1, 4, 15, 3))
    )
    out = np.empty_like(expected)
    assert layer(X, out=out) is out
    np.testing.assert_array_equal(out, expected)
    w[...], bias[...] = 0, 0
    np.testing.assert_array_equal(layer(X), expected, "the filter has copies of its own")
    own = whole(2, 6, 9, 11)
    square = Filter(whole(6, 6, 3, 3), padding=1)
    expected = square(own)
    np.testing.assert_array_equal(square(own, out=own), expected)


def test_filter_prepares_once_a_kind_of_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.contract import Plan

    prepared: list[str] = []
    prepare = Plan.prepare

    def watched(self: Plan, w: Any, stream: Any = None) -> Any:
        prepared.append(str(self.problem))
        return prepare(self, w, stream)

    monkeypatch.setattr(Plan, "prepare", watched)
    layer = Filter(whole(4, 6, 3, 3), algorithm="direct_rows")
    for _ in range(3):
        layer(X)
    assert len(prepared) == 1
    with pytest.raises(ValueError, match="w is float32 and x is float64"):
        layer(X.astype(np.float64))


def test_filter_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="strid"):
        Filter(W, strid=2)
    with pytest.raises(TypeError, match="out"):
        Filter(W, out=np.empty(3))
    with pytest.raises(TypeError, match="w must be a NumPy array"):
        Filter([[1]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="w has 3 axes"):
        Filter(W[0])


def test_filter_takes_every_keyword_of_conv2d() -> None:
    options = {
        name: parameter.default
        for name, parameter in inspect.signature(conv2d).parameters.items()
        if name not in ("x", "w", "bias", "residual", "out", "amax")
    }
    np.testing.assert_array_equal(Filter(W, **options)(X), convolved(X, W))
