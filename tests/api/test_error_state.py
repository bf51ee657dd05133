"""Calls under a caller's ``np.errstate(all="raise")``: results are IEEE 754's, nothing is raised, nothing warns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

from convforge import Filter, conv2d, filter, filter_many, gemm, max_pool2d, relu  # noqa: A004
from convforge.errors import UnsupportedProblem
from convforge.peers import every_algorithm

HUGE, TINY = 3e38, 1e-40
# Of each image what stands in it, and its only possible sum in the middle under a 3x3 filter of ones.
PLANES = [(HUGE, np.inf), (-HUGE, -np.inf), (np.inf, np.inf), (np.nan, np.nan), (TINY, None)]
METHODS = [
    pytest.param(a, marks=[needs_emulator] if a.backend == "emulator" else [], id=f"{a.backend}-{a.name}")
    for a in every_algorithm()
    if a.operation == "conv2d" and a.backend in ("cpu", "emulator")
]
FORMS = {"dense": (2, 3, 3, 1, 1), "depthwise": (2, 2, 3, 2, 1), "pointwise": (2, 3, 1, 1, 0)}


def same_as_unwatched(compute: Callable[[], Any]) -> Any:
    """The result of a call that runs under an error state that raises, held to that of one whose state ignores."""
    with np.errstate(all="raise"):
        result = compute()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(result, compute())
    return result


def images(dtype: str, channels: int) -> Any:
    """One image of (channels, 6, 6) for each of PLANES."""
    with np.errstate(all="ignore"):
        values = np.array([value for value, _ in PLANES]).astype(dtype)
    return np.broadcast_to(values[:, None, None, None], (len(PLANES), channels, 6, 6)).copy()


@pytest.mark.one_in(28)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_conv2d(method: Any, form: str) -> None:
    channels, k, side, groups, padding = FORMS[form]
    accepted = 0
    for dtype in ("float32", "float16") if method.backend == "cpu" else ("float32",):
        x, w = images(dtype, channels), np.ones((k, channels // groups, side, side), dtype)
        options = {"padding": padding, "groups": groups, "algorithm": method.name, "device": method.backend}
        try:
            result = same_as_unwatched(lambda x=x, w=w, o=options: conv2d(x, w, **o))
        except UnsupportedProblem:
            continue
        accepted += 1
        if method.precision == "strict" and method.ours:
            for image, (_, expected) in zip(result, PLANES, strict=True):
                if expected is not None and form != "pointwise":
                    np.testing.assert_array_equal(image[:, 2, 2], np.full(k, expected, dtype))
    assert accepted or not method.ours or form != "dense" or method.name in SPECIALISTS


SPECIALISTS = {
    *("gemm_1x1", "depthwise", "depthwise_channels", "depthwise_planes", "depthwise_rows", "depthwise_mma"),
    *("depthwise_batch", "fft_fused", "separable", "direct_mma", "direct_small", "direct_boxes"),
    *("implicit_gemm_mma", "implicit_gemm_wgmma", "implicit_gemm_tf32", "implicit_gemm_split"),
    *("implicit_gemm_few_channels", "implicit_gemm_tf32_mma", "implicit_gemm_split_mma"),
    *("implicit_gemm_split_few_channels", "implicit_gemm_few_outputs"),
    *("implicit_gemm_int8_mma", "implicit_gemm_fp8_mma", "implicit_gemm_dp4a", "direct_dp4a"),
    *("depthwise_dp4a", "depthwise_int8", "implicit_gemm_int8"),
    *("implicit_gemm_fp8", "implicit_gemm_fp8_fast"),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulator", marks=needs_emulator)])
def test_biases_of_the_widest_range(device: str) -> None:
    """float64's largest bias is cast to the operands' float32 on devices, an activation overflows on its way."""
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((2, 1, 3, 3), np.float32)
    bias = np.array([1e300, -1e300])
    for activation, expected in (("silu", [np.inf, 0]), ("sigmoid", [1, 0]), ("relu", [np.inf, 0])):
        for call in (
            lambda a=activation: conv2d(x, w, bias, activation=a, device=device),
            lambda a=activation: Filter(w, bias, activation=a, device=device)(x),
        ):
            found = same_as_unwatched(call)[0, :, 0, 0]
            assert found[0] == expected[0]
            assert found[1] == expected[1] or (activation == "silu" and np.isnan(found[1]))  # -inf / inf


KERNELS: dict[str, Any] = {
    "small": np.full((5, 5), 1e-60), "large": np.full((5, 5), 3e38), "gaussian": "gaussian:9:0.2", "log": "log:9:0.3",
}  # fmt: skip


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "dtype", ["uint8", "float32", *(pytest.param(t, marks=pytest.mark.thorough) for t in ("int16", "float16"))]
)
@pytest.mark.parametrize("algorithm", ["auto", "im2col", "separable", "fft"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_pictures_under_kernels_of_the_widest_range(kernel: Any, algorithm: str, dtype: str) -> None:
    image = np.arange(49, dtype=dtype).reshape(7, 7)
    found = same_as_unwatched(lambda: filter(image, kernel, algorithm=algorithm, channels="sum"))
    assert (found.shape, found.dtype) == ((7, 7), dtype)


@pytest.mark.thorough
def test_sums_saturate_and_nan_becomes_zero() -> None:
    image = np.full((5, 5), 200, np.uint8)
    assert same_as_unwatched(lambda: filter(image, np.full((3, 3), 3e37)))[2, 2] == 255
    floats = np.full((5, 5), np.inf, np.float32)
    found = same_as_unwatched(lambda: filter(floats, "laplacian", out_dtype="uint8", algorithm="direct_naive"))
    assert found.dtype == np.uint8


def test_the_other_entry_points() -> None:
    x = images("float32", 2)
    assert np.isnan(same_as_unwatched(lambda: max_pool2d(x, 2))[3]).all()
    assert same_as_unwatched(lambda: relu(x))[:3, 0, 0, 0].tolist() == [np.float32(HUGE), 0, np.inf]
    a = np.full((4, 4), HUGE, np.float32)
    for name in (m.name for m in every_algorithm() if m.operation == "gemm" and m.backend == "cpu" and m.ours):
        assert np.isposinf(same_as_unwatched(lambda n=name: gemm(a, a, algorithm=n))).all()
    with np.errstate(all="raise"):
        (found,) = filter_many([np.full((6, 6), HUGE, np.float32)], np.ones((3, 3)))
    assert np.isposinf(found).all()


def test_measuring_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONVFORGE_TUNE")
    x, w = images("float32", 1), np.ones((1, 1, 3, 3), np.float32)
    result = same_as_unwatched(lambda: conv2d(x, w, padding=1, algorithm="max"))
    assert np.isnan(result[3]).all()
