"""Mistakes in conv2d: each is told with the value, the rule, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.api.definition import W, X, whole

from convforge import conv2d


@pytest.mark.parametrize(
    "x, w, options, error, says",
    [
        (X.tolist(), W, {}, TypeError, ("x must be a NumPy array", "list", "numpy.asarray")),
        (X, W.tolist(), {}, TypeError, ("w must be a NumPy array", "list")),
        (X[0, 0], W, {}, ValueError, ("x has 2 axes", "(9, 11)", "3 or 4")),
        (X[None], W, {}, ValueError, ("x has 5 axes", "3 or 4")),
        (X, W[0], {}, ValueError, ("w has 3 axes", "(6, 3, 3)")),
        (X, W[:, :5], {}, ValueError, ("w has 5 channels", "x has 6", "must have 6")),
        (X, W, {"layout": "NHWC"}, ValueError, ("w has 6 channels", "x has 11", "NHWC")),
        (X, W, {"layout": "HWC"}, ValueError, ("'HWC'", "3 axes", "NHWC")),
        (X, W, {"layout": "nchw"}, ValueError, ("'nchw'", "NCHW")),
        (X, W, {"groups": 4}, ValueError, ("groups=4", "6 channels")),
        (X, W, {"groups": 0}, ValueError, ("groups=0", "6 channels")),
        (X, W, {"groups": -1}, ValueError, ("groups=-1",)),
        (X, W, {"groups": 2.0}, TypeError, ("groups=2.0", "whole")),
        (X, W[:, :3], {"groups": 1}, ValueError, ("3 channels", "6")),
        (X, whole(3, 3, 3, 3), {"groups": 2}, ValueError, ("groups=2", "3 output channels")),
        (X, W, {"stride": 0}, ValueError, ("stride", "0", "at least 1")),
        (X, W, {"stride": -2}, ValueError, ("stride", "-2", "at least 1")),
        (X, W, {"stride": 1.0}, TypeError, ("stride=1.0", "whole number")),
        (X, W, {"stride": True}, TypeError, ("stride=True", "whole number")),
        (X, W, {"stride": (1, 2, 3)}, TypeError, ("stride=(1, 2, 3)", "pair")),
        (X, W, {"stride": "2"}, TypeError, ("stride='2'", "whole number")),
        (X, W, {"stride": None}, TypeError, ("stride=None", "whole number")),
        (X, W, {"dilation": 0}, ValueError, ("dilation", "at least 1")),
        (X, W, {"dilation": (1, -1)}, ValueError, ("dilation", "at least 1")),
        (X, W, {"dilation": 1.5}, TypeError, ("dilation=1.5", "whole")),
        (X, W, {"stride": 0, "padding": "same"}, ValueError, ("stride", "at least 1")),
        (X, W, {"padding": -1}, ValueError, ("padding", "negative")),
        (X, W, {"padding": 0.5}, TypeError, ("padding=0.5", "whole")),
        (X, W, {"padding": "full"}, ValueError, ("'full'", "'same'", "'valid'")),
        (X, W, {"padding": "SAME"}, ValueError, ("'SAME'", "'same'")),
        (X, W, {"padding": (1, 2, 3, 4)}, TypeError, ("padding=(1, 2, 3, 4)",)),
        (X, W, {"padding": ((1, 2), 3)}, TypeError, ("padding",)),
        (X, W, {"padding": ((1, 2, 3), (1, 2))}, TypeError, ("padding",)),
        (X, W, {"padding_mode": "mirrorr"}, ValueError, ("'mirrorr'", "reflect")),
        (X, W, {"mode": "correlation"}, ValueError, ("'correlation'", "cross-correlation")),
        (X, W, {"precision": "fast"}, ValueError, ("'fast'", "strict")),
        (X, W, {"activation": "rleu"}, ValueError, ("'rleu'", "relu")),
        (X, W, {"activation": ("leaky_relu", float("nan"))}, ValueError, ("nan", "leaky_relu", "finite")),
        (X, W, {"activation": ("clipped_relu", -1.0)}, ValueError, ("-1.0", "clipped_relu", "negative")),
        (X, W, {"activation": 3}, (TypeError, ValueError), ("activation", "3")),
        (X, W, {"activation": ("leaky_relu",)}, (TypeError, ValueError), ("activation", "leaky_relu")),
        (X, W, {"activation": {"leaky_relu": 0.2}}, (TypeError, ValueError), ("activation",)),
        (X, W, {"activation": ("leaky_relu", "steep")}, (TypeError, ValueError), ("leaky_relu", "steep")),
        (X, W, {"algorithm": "direct_row"}, ValueError, ("'direct_row'", "did you mean 'direct_rows'", "im2col")),
        (X, W, {"algorithm": None}, (TypeError, ValueError), ("algorithm", "None")),
        (X, W, {"algorithm": "direct_rows", "config": 5}, (TypeError, ValueError), ("config", "5")),
        (X, W, {"workspace_limit": "64MB"}, (TypeError, ValueError), ("workspace_limit", "64MB")),
        (X, W, {"device": "tpu"}, ValueError, ("'tpu'", "'cpu'")),
        (X, W, {"bias": whole(3)}, ValueError, ("bias", "(3,)", "(4,)")),
        (X, W, {"bias": whole(4, 1)}, ValueError, ("bias", "2 axes")),
        (X, W, {"bias": [1, 2, 3, 4]}, TypeError, ("bias", "list")),
        (X, W, {"bias": 1.0}, TypeError, ("bias", "float")),
        (X, whole(4, 6, 10, 3), {}, ValueError, ("height of 10", "9", "padding")),
        (X, whole(4, 6, 3, 12), {}, ValueError, ("width of 12", "11", "padding")),
        (X, W, {"dilation": 5}, ValueError, ("height of 11", "dilation", "9")),
        (X, whole(4, 6, 0, 3), {}, ValueError, ("r=0", "at least 1")),
        (X, whole(0, 6, 3, 3), {}, ValueError, ("k=0", "at least 1")),
        (X[:, :, :0], W, {}, ValueError, ("h=0", "at least 1")),
        (X[:, :0], W, {}, ValueError, ("w has 6 channels", "w must have 0")),
        (X.astype(np.float64), W, {}, ValueError, ("float32", "float64", "cast")),
        (X, W.astype(np.int8), {}, ValueError, ("int8", "float32", "cast")),
        (X.astype(complex), W, {}, TypeError, ("x has dtype complex128", "float32")),
        (X > 0, W, {}, TypeError, ("x has dtype bool", "uint8")),
        (X.astype(object), W, {}, TypeError, ("x has dtype object", "float32")),
        (X.astype(np.int64), W, {}, TypeError, ("x has dtype int64", "float64")),
        (X.astype(np.longdouble), W, {}, TypeError, ("x has dtype", "float64")),
        (np.ones((1, 2, 3, 3), "U1"), W, {}, TypeError, ("x has dtype", "float32")),
        (whole(1, 600, 3, 3, dtype=np.int16), whole(1, 600, 3, 3, dtype=np.int16), {}, ValueError, ("int32", "float")),
        (X.astype(np.uint8), W.astype(np.int8), {"bias": whole(4)}, ValueError, ("bias is float32", "int32")),
        (X, W, {"out": np.empty(3, np.float32)}, ValueError, ("out", "(3,)", "(2, 4, 7, 9)")),
    ],
)  # fmt: skip
def test_mistakes(x: Any, w: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        conv2d(x, w, **options)
    for word in says:
        assert word in str(caught.value)
