"""conv2d with a bias and with every activation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.api.definition import RANDOM, Array, W, X, convolved

from convforge import conv2d
from convforge.problem import ACTIVATIONS

FORMULAS: dict[str, Callable[[Array, float], Array]] = {
    "identity": lambda y, a: y,
    "relu": lambda y, a: np.maximum(y, 0),
    "leaky_relu": lambda y, a: np.where(y > 0, y, a * y),
    "clipped_relu": lambda y, a: np.clip(y, 0, a),
    "sigmoid": lambda y, a: 1 / (1 + np.exp(-y)),
    "tanh": lambda y, a: np.tanh(y),
    "silu": lambda y, a: y / (1 + np.exp(-y)),
    "gelu": lambda y, a: y * (1 + np.vectorize(math.erf)(y / np.sqrt(2))) / 2,
}


def test_every_activation_has_its_formula_here() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("parameter", [None, 0.2, 1.5])
def test_activations(name: str, parameter: float | None) -> None:
    default = ACTIVATIONS[name][1]
    if default is None and parameter is not None:
        with pytest.raises(ValueError, match="takes no alpha"):
            conv2d(X, W, activation=(name, parameter))
        return
    x, w, bias = (RANDOM.normal(size=s).astype(np.float32) for s in ((2, 3, 6, 7), (4, 3, 3, 3), (4,)))
    sums = convolved(x, w) + bias[:, None, None]
    alpha = default if parameter is None else parameter
    result = conv2d(x, w, bias, activation=name if parameter is None else (name, parameter))
    np.testing.assert_allclose(result, FORMULAS[name](sums, alpha or 0.0), atol=1e-5)


def test_bias_may_be_of_another_float_type_and_a_view() -> None:
    bias = np.arange(8, dtype=np.float64)[::-2]
    expected = convolved(X, W) + bias[:, None, None]
    np.testing.assert_array_equal(conv2d(X, W, bias), expected)
