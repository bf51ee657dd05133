"""amax of conv2d and Filter: the largest absolute value of a result, beside results of 8-bit floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

import convforge
from convforge import Quantization, UnsupportedProblem
from convforge.problem import parse_problem

E4M3: Any = ml_dtypes.float8_e4m3fn


def drawn(seed: int = 0, n: int = 2) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 32, 7, 9)).astype(E4M3)
    w = rng.standard_normal((24, 32, 3, 3)).astype(E4M3)
    return x, w, rng.standard_normal(24).astype(np.float32)


def real(x: Any, w: Any, bias: Any, q: Quantization | None, activation: Any = None) -> Any:
    """The results before they are divided by the output's scale."""
    multiplier = 1 if q is None or q.output is None else q.real_multiplier.reshape(-1, 1, 1)
    sums = convforge.conv2d(*(a.astype(np.float32) for a in (x, w)), padding=1, algorithm="direct_naive")
    y = sums * multiplier + bias.reshape(-1, 1, 1)
    if activation == "relu":
        return np.maximum(y, 0)
    return y / (1 + np.exp(-y)) if activation == "silu" else y


OPTIONS: Any = {"padding": 1, "precision": "fp8", "device": "emulator"}


@needs_emulator
@pytest.mark.one_in(5)
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize(
    "q",
    [
        Quantization(x=(0.25, 0), w=(0.5, 0), output="float16"),
        Quantization(x=(0.25, 0), w=(np.linspace(0.1, 1, 24), 0), output=(0.03, 0)),  # saturates
        Quantization(x=(0.25, 0), w=(0.5, 0)),
        None,
    ],
    ids=["float16", "float8", "sums", "plain"],
)
def test_it_is_the_largest_absolute_value(q: Quantization | None, activation: Any) -> None:
    x, w, bias = drawn()
    options = {**OPTIONS, "quantization": q, "activation": activation}
    amax = np.full((1,), 1e9, np.float32)  # is set, and not raised
    y = convforge.conv2d(x, w, bias, amax=amax, **options)
    expected = np.abs(real(x, w, bias, q, activation)).max()
    np.testing.assert_allclose(amax, expected, rtol=2e-3)
    assert y.tobytes() == convforge.conv2d(x, w, bias, **options).tobytes()
    layer = convforge.Filter(w, bias, **options)
    for seed in (0, 1):
        other, number = drawn(seed)[0], np.zeros((), np.float32)
        assert layer(other, amax=number).tobytes() == layer(other).tobytes()
        np.testing.assert_allclose(number, np.abs(real(other, w, bias, q, activation)).max(), rtol=2e-3)


@needs_emulator
def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x, w, bias = drawn()
    expected, amax = np.zeros(1, np.float32), torch.zeros(1, 1, 1, 1)
    q = Quantization(x=(0.25, 0), w=(0.5, 0), output=(0.5, 0))
    convforge.conv2d(x, w, bias, quantization=q, amax=expected, **OPTIONS)
    there = [torch.from_numpy(one.view(np.uint8)).view(torch.float8_e4m3fn) for one in (x, w)]
    convforge.conv2d(*there, torch.from_numpy(bias), quantization=q, amax=amax, **OPTIONS)
    assert amax.item() == expected.item()


@needs_emulator
def test_one_image_nan_and_no_images() -> None:
    x, w, bias = drawn()
    amax = np.zeros(1, np.float32)
    convforge.conv2d(x[0], w, bias, amax=amax, **OPTIONS)
    np.testing.assert_allclose(amax, np.abs(real(x[:1], w, bias, None)).max(), rtol=2e-3)
    x[1, 3, 2, 2] = np.nan
    convforge.conv2d(x, w, bias, amax=amax, **OPTIONS)
    assert np.isnan(amax).all()
    convforge.conv2d(x[:0], w, bias, amax=amax, **OPTIONS)
    assert amax == 0


@pytest.mark.parametrize(
    ("amax", "error", "words"),
    [
        (np.zeros(2, np.float32), ValueError, r"amax has shape \(2,\) and dtype float32; it must be one number of"),
        (np.zeros(1, np.float64), ValueError, "dtype float64; it must be one number of float32"),
        (np.broadcast_to(np.float32(0), (1,)), ValueError, "amax is read-only"),
        (0.5, TypeError, "amax must be a NumPy array"),
    ],
)
def test_what_cannot_be_set_is_refused(amax: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        convforge.conv2d(*drawn(), amax=amax, **OPTIONS)


def test_amax_in_the_memory_of_x_is_refused() -> None:
    x, w, bias = drawn()
    amax = x.reshape(-1)[:4].view(np.float32)
    with pytest.raises(ValueError, match="amax shares memory with another array"):
        convforge.conv2d(x, w, bias, amax=amax, **OPTIONS)


def test_arrays_of_jax_are_refused() -> None:
    jax = pytest.importorskip("jax")
    x, w, bias = (jax.numpy.asarray(array) for array in drawn())
    with pytest.raises(TypeError, match="amax is a JAX array, which cannot be written to; pass x, w and amax as"):
        convforge.conv2d(x, w, bias, amax=jax.numpy.zeros(1), **OPTIONS)


def test_other_types_are_refused_with_a_reason() -> None:
    amax = np.zeros(1, np.float32)
    floats, integers = (np.ones((1, 8, 4, 4), dtype) for dtype in (np.float32, np.int8))
    with pytest.raises(UnsupportedProblem, match="it does not compute amax, the largest absolute value of the results"):
        convforge.conv2d(floats, floats[:, :, :3, :3], amax=amax)
    with pytest.raises(ValueError, match="amax goes with sums of float32 alone; these are of int32"):
        convforge.conv2d(integers, integers[:, :, :3, :3], amax=amax)
    with pytest.raises(
        TypeError, match="Filter takes no option amax; it takes conv2d's, except out, residual and amax"
    ):
        convforge.Filter(floats, amax=amax)


def test_the_problem_has_two_results() -> None:
    text = "n1c32h9w9_k16r3s3_st1_p1_f8e4m3_nchw_math-fp8_+bias+amax:0.5"
    problem: Any = parse_problem(text)
    assert str(problem) == text
    assert [(one.name, one.role, one.shape, one.dtype) for one in problem.results[1:]] == [
        ("amax", "output", (), "float32")
    ]
    assert str(problem.replace(epilogue=problem.epilogue.bucket)).endswith("+amax:2.0")
    with pytest.raises(ValueError, match=r"amax_scale=2\.0 goes with amax alone"):
        convforge.problem.Epilogue(amax_scale=2.0)
