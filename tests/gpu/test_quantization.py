"""Quantised convolutions of arrays on a GPU: the same bits as on the CPU, from every array library and method."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from tests.gpu.present import need_gpu

import convforge
from convforge import Quantization

need_gpu()

# x's type, zero point of x, of w, result, sizes (C, K, side, taps), groups, stride.
CASES: list[Any] = [
    ("uint8", 77, 0, (0.05, 3), (64, 96, 15, 3), 1, 1), ("int8", -5, 0, (0.05, -7), (128, 64, 14, 3), 1, 2),
    ("uint8", 0, 0, None, (32, 16, 9, 1), 1, 1), ("uint8", 200, 0, "float32", (48, 64, 11, 5), 2, 1),
    ("int8", 0, 0, (0.1, 0), (32, 32, 28, 3), 32, 1), ("uint8", 9, 128, (0.1, 12), (3, 24, 33, 3), 1, 2),
]  # fmt: skip


def arrays(case: Any) -> Any:
    x_dtype, x_zero, w_zero, output, (c, k, side, taps), groups, stride = case
    rng = np.random.default_rng(3)
    w_dtype = "uint8" if w_zero else "int8"
    low, high = np.iinfo(x_dtype).min, np.iinfo(x_dtype).max
    x = rng.integers(low, high + 1, (2, c, side, side), x_dtype)
    w = rng.integers(np.iinfo(w_dtype).min, np.iinfo(w_dtype).max + 1, (k, c // groups, taps, taps), w_dtype)
    bias = rng.integers(-9999, 9999, k, np.int32)
    q = Quantization(x=(0.02, x_zero), w=(np.linspace(0.001, 0.01, k), np.full(k, w_zero)), output=output)
    return x, w, bias, q, {"padding": taps // 2, "groups": groups, "stride": stride}


def moved(library: str) -> tuple[Any, Any]:
    """Functions that move an array to the GPU and back."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if library == "torch":
        import torch

        return lambda array: torch.from_numpy(array).cuda(), lambda array: array.cpu().numpy()
    if library == "cupy":
        import cupy

        return cupy.asarray, cupy.asnumpy
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return jax.device_put, np.asarray


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_the_bits_of_the_cpu(library: str, case: Any) -> None:
    x, w, bias, q, options = arrays(case)
    expected = convforge.conv2d(x, w, bias, quantization=q, **options)
    there, back = moved(library)
    y = convforge.conv2d(there(x), there(w), there(bias), quantization=q, **options)
    np.testing.assert_array_equal(back(y), expected)
    layer = convforge.Filter(there(w), there(bias), quantization=q, **options)
    np.testing.assert_array_equal(back(layer(there(x))), expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_gives_the_same_bits(case: Any, layout: str) -> None:
    there, back = moved("torch")
    x, w, bias, q, options = arrays(case)
    expected = convforge.conv2d(x, w, bias, quantization=q, **options)
    if layout == "NHWC":
        x, expected = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), expected.transpose(0, 2, 3, 1)
    asked = 0
    methods = [found for found in convforge.algorithms(device="cuda") if found.ours and found.operation == "conv2d"]
    for name in [method.name for method in methods]:
        try:
            y = convforge.conv2d(
                there(x), there(w), there(bias), quantization=q, layout=layout, algorithm=name, **options
            )
        except convforge.UnsupportedProblem:
            continue
        np.testing.assert_array_equal(back(y), expected, err_msg=name)
        asked += 1
    assert asked >= 3
