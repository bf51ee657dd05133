"""Copies of a Filter: pickled and deep-copied ones give what it gives."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from convforge import Filter


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "deepcopy", "pickle"]
)
@pytest.mark.parametrize("called", [False, True])
def test_a_copy_of_a_filter_computes_the_same(again: object, called: bool) -> None:
    w, x = np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3), np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    whole = Filter(w, np.array([1, 2], np.float32), stride=2, padding=1, algorithm="im2col")
    if called:
        whole(x)
    other = again(whole)  # type: ignore[operator]
    np.testing.assert_array_equal(other(x), whole(x))
    assert other(x).shape == (1, 2, 3, 3)
