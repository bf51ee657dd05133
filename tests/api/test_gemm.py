"""gemm by every rung of its ladder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.api.definition import whole

from convforge import UnsupportedProblem, algorithms, gemm
from convforge.problem.types import numpy_dtype

GEMMS = ["auto", *(a.name for a in algorithms() if a.operation == "gemm" and a.ours and a.backend == "cpu")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (5, 7, 3), (65, 3, 130), (3, 129, 2), (0, 4, 3), (4, 0, 3), (4, 3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gemm(name: str, m: int, n: int, k: int, dtype: str) -> None:
    a, b = (whole(*shape).astype(numpy_dtype(dtype)) for shape in ((m, k), (k, n)))
    result = gemm(a, b, algorithm=name)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype))


@pytest.mark.parametrize("name", GEMMS)
def test_gemm_of_views(name: str) -> None:
    a, b = whole(9, 14), whole(14, 11)
    for seen_a, seen_b in (
        (a[::2, ::-1], b[::-1, ::3]),
        (np.asfortranarray(a), b.T.copy().T),
        (np.broadcast_to(a[:1], a.shape), np.broadcast_to(b[:, :1], b.shape)),
        (a.astype(">f4"), b.astype(">f4")),
    ):
        result = gemm(seen_a, seen_b, algorithm=name)
        np.testing.assert_array_equal(result, np.array(seen_a, np.float64) @ np.array(seen_b, np.float64))
    for out in (
        np.full((9, 11), np.nan, np.float32), np.full((11, 9), np.nan, np.float32).T,
        np.full((18, 33), np.nan, np.float32)[::2, ::3], np.full((9, 11), np.nan, np.float32)[::-1, ::-1],
    ):  # fmt: skip
        assert gemm(a, b, algorithm=name, out=out) is out
        np.testing.assert_array_equal(out, a.astype(np.float64) @ b)
    square, other = whole(8, 8), whole(8, 8)
    expected = square.astype(np.float64) @ other
    np.testing.assert_array_equal(gemm(square, other, algorithm=name, out=square), expected)
    expected = other.astype(np.float64) @ other
    np.testing.assert_array_equal(gemm(other, other, algorithm=name, out=other), expected)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", ["auto", "gemm_loops", "gemm_blocked"])
@pytest.mark.parametrize("types", [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
def test_bytes_are_summed_in_int32(name: str, types: tuple[str, str]) -> None:
    a, b = (np.arange(size, dtype=np.uint8).view(kind) for size, kind in zip((5 * 40, 40 * 6), types, strict=True))
    a, b = a.reshape(5, 40), b.reshape(40, 6)
    for seen_a, seen_b in ((a, b), (a[:, ::-1], b[:, ::2]), (np.asfortranarray(a), b)):
        result = gemm(seen_a, seen_b, algorithm=name)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, seen_a.astype(np.int64) @ seen_b.astype(np.int64))


def test_a_blas_multiplies_floats() -> None:
    with pytest.raises(UnsupportedProblem, match="a BLAS multiplies floats, not int8"):
        gemm(np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), algorithm="gemm_blas")


def test_another_arithmetic_may_be_allowed() -> None:
    """Strict methods are always allowed, and are all that the CPU has."""
    a, b = whole(9, 14), whole(14, 11)
    np.testing.assert_array_equal(gemm(a, b, precision="tf32"), gemm(a, b))
    np.testing.assert_array_equal(gemm(a, b, precision="tf32", algorithm="gemm_blocked"), gemm(a, b))


@pytest.mark.parametrize(
    "a, b, options, error, says",
    [
        (np.ones((2, 3)), np.ones((2, 3)), {}, ValueError, ("3 columns", "2 rows")),
        (np.ones((2, 3)), np.ones((3, 2), np.float32), {}, ValueError, ("float64", "float32", "cast")),
        (np.ones(3), np.ones((3, 2)), {}, ValueError, ("a has 1 axes",)),
        (np.ones((2, 3), np.int32), np.ones((3, 2), np.int32), {}, ValueError, ("int32", "float64, float16")),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.float32), {}, ValueError, ("int8", "float32", "cast")),
        (np.ones((2, 3), np.float16), np.ones((3, 2)), {}, ValueError, ("float16", "float64", "cast")),
        *(
            (np.ones((2, 3), kind), np.ones((3, 2), kind), {}, TypeError, (f"a has dtype {kind}", "float32, float64"))
            for kind in ("uint32", "int64", "bool", "complex64")
        ),
        ([[1.0]], np.ones((1, 1)), {}, TypeError, ("a must be", "list")),
        (np.ones((2, 3)), np.ones((3, 2)), {"algorithm": "gemm_bias"}, ValueError, ("did you mean 'gemm_blas'",)),
        (np.ones((2, 3)), np.ones((3, 2)), {"out": np.ones((3, 2))}, ValueError, ("(3, 2)", "(2, 2)")),
        (np.ones((2, 3)), np.ones((3, 2)), {"config": "tile=2"}, ValueError, ("auto", "by name")),
        (np.ones((2, 3)), np.ones((3, 2)), {"device": "gpu"}, ValueError, ("'gpu'",)),
        (np.ones((2, 3)), np.ones((3, 2)), {"precision": "tf16"}, ValueError, ("'tf16'", "strict", "tf32")),
        (np.ones((2, 3)), np.ones((3, 2)), {"precision": 32}, TypeError, ("precision=32", "string")),
    ],
)  # fmt: skip
def test_mistakes_in_gemm(a: Any, b: Any, options: dict[str, Any], error: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        gemm(a, b, **options)
    for word in says:
        assert word in str(caught.value)
