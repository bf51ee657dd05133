"""Separable filters: the factors, the rank, and the kernel on problems of all kinds."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.cases import WORKED, worked_inputs
from tests.strategies import FLOAT_SUMS, conv2d_problems, first_and_all

from convforge.algorithms.separable import Separable
from convforge.algorithms.separable.factors import factor
from convforge.algorithms.separable.separable import SeparableConfig, _even
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import PADDING_MODES, Conv2dProblem, parse_problem
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

LAPLACIAN = [[1, 1, 1], [1, -8, 1], [1, 1, 1]]


def gaussian(size: int, dtype: str = "float64") -> NDArray[Any]:
    line = np.exp(-0.5 * ((np.arange(size) - size // 2) / (size / 6)) ** 2)
    line /= line.sum()
    return np.outer(line, line).astype(dtype)


def default_plan(problem: Conv2dProblem) -> Any:
    method = Separable()
    assert method.refuses(problem, cpu_facts()) is None
    return method.plan(problem, method.configs(problem, cpu_facts())[0], cpu_runtime())


def checked(problem: Conv2dProblem, w: NDArray[Any], config: SeparableConfig | None = None) -> Any:
    """Hold a plan against the truth on these weights, and return what it prepared."""
    inputs = dataclasses.replace(make_inputs(problem), w=w.astype(problem.w_dtype))
    plan = default_plan(problem) if config is None else Separable().plan(problem, config, cpu_runtime())
    verdict = check_plan(plan, Judge(problem, inputs))
    assert verdict.ok, verdict.message
    return plan.prepare(inputs.w)


@pytest.mark.parametrize(("w", "rank", "exact"), [
    ([[1, 0, -1], [2, 0, -2], [1, 0, -1]], 1, True),
    (np.ones((5, 7)), 1, True),
    (np.outer([1, 4, 6, 4, 1], [1, 2, 1]), 1, True),
    (LAPLACIAN, 2, True),
    (np.arange(1, 10).reshape(3, 3), 2, False),
    (np.eye(4), 4, True),
    (np.zeros((3, 3)), 1, True),
    (gaussian(31, "float32"), 1, False),
    (gaussian(5, "float16"), 3, False),
])  # fmt: skip
def test_rank_and_error_of_known_filters(w: Any, rank: int, exact: bool) -> None:
    found = factor(np.array(w)[None, None], "float32")
    assert found.ranks.tolist() == [[rank]]
    assert found.error < 4 * np.finfo("f4").eps
    if exact:
        assert found.error == 0
    assert found.vertical.dtype == found.horizontal.dtype == np.float32


@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.sampled_from(["float32", "float64"]), st.integers(0))
@settings(max_examples=50, deadline=None)
def test_as_many_products_as_were_added(rank: int, r: int, s: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = np.einsum("ir,is->rs", rng.standard_normal((rank, r)), rng.standard_normal((rank, s)))
    found = factor(w[None, None], dtype)
    assert int(found.ranks[0, 0]) <= min(rank, r, s)
    assert found.error < 8 * np.finfo(dtype).eps


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["float32", "float64"]), st.integers(0))
@settings(max_examples=100, deadline=None)
def test_the_error_is_that_of_the_factors_and_no_rank_below_would_do(
    rank: int, r: int, s: int, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    unlike = 10.0 ** -np.arange(rank)
    w = np.einsum("i,ir,is->rs", unlike, rng.standard_normal((rank, r)), rng.standard_normal((rank, s))).astype(dtype)
    found = factor(w[None, None], dtype)
    back = np.einsum("ir,is->rs", found.vertical[0, 0].astype("g"), found.horizontal[0, 0].astype("g"))
    error = float(np.linalg.norm((back - w).astype("f8")) / np.linalg.norm(w.astype("f8")))
    np.testing.assert_allclose(found.error, error, rtol=1e-3, atol=np.finfo("f8").eps)
    values = np.linalg.svd(w.astype("f8"), compute_uv=False)  # what k products leave: Eckart and Young, 1936
    left = [np.linalg.norm(values[k:]) / np.linalg.norm(values) for k in range(len(values) + 1)]
    kept = int(found.ranks[0, 0])
    assert left[kept] <= 4 * np.finfo(dtype).eps < left[kept - 1]


@pytest.mark.parametrize("exponent", [-1000, -600, 0, 600, 1000])
def test_tiny_and_huge_filters_have_the_same_factors(exponent: int) -> None:
    """Squares of their elements are no float64 numbers."""
    w = np.array([[LAPLACIAN, np.eye(3)]])
    found, scaled = factor(w, "float64"), factor(np.ldexp(w, exponent), "float64")
    assert scaled.ranks.tolist() == [[2, 3]]
    assert scaled.error == 0
    np.testing.assert_array_equal(scaled.vertical, found.vertical)
    np.testing.assert_array_equal(scaled.horizontal, np.ldexp(found.horizontal, exponent))


def test_filters_of_unlike_rank_keep_their_own() -> None:
    found = factor(np.array([[gaussian(3), LAPLACIAN], [np.zeros((3, 3)), np.eye(3)]]), "float64")
    assert found.ranks.tolist() == [[1, 2], [1, 3]]
    assert (found.horizontal[0, 0, 1:] == 0).all()


def test_filters_with_nan_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or Inf"):
        factor(np.full((1, 1, 3, 3), np.nan), "float32")


@first_and_all(FLOAT_SUMS)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), tile_p=st.integers(1, 9), tile_q=st.integers(1, 30))
def test_random_problems(dtypes: Any, data: Any, tile_p: int, tile_q: int) -> None:
    problem = data.draw(conv2d_problems(largest=24, dtypes=dtypes)).replace(precision="separable")
    plan = Separable().plan(problem, SeparableConfig(tile_p, tile_q), cpu_runtime())
    verdict = check_plan(plan)
    assert verdict.ok, verdict.message


@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    "dtypes", ["f32", "u8-f32-u8-f32", *(pytest.param(types, marks=pytest.mark.thorough) for types in ("f16", "f64"))]
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", PADDING_MODES)
def test_one_blur_for_every_channel(mode: str, layout: str, dtypes: str) -> None:
    border = "constant7.0" if mode == "constant" else mode
    token = "" if mode == "zeros" else f"_{border}"
    for size, tile in ((5, None), (11, None), (5, SeparableConfig(7, 16)), (7, SeparableConfig(40, 24))):
        text = f"n2c3h41w53_k3r{size}s{size}_p{size // 2}x{size}x{size // 2}x3_g3{token}_{dtypes}_{layout}"
        problem = parse_problem(text)
        assert isinstance(problem, Conv2dProblem)
        problem = problem.replace(precision="separable")
        w = np.broadcast_to(gaussian(size), (3, 1, size, size))
        note = str(checked(problem, w, tile).note)
        assert note.startswith("rank 1, factor error") == (dtypes != "f16"), note


def test_channels_that_lie_apart_are_filtered_one_by_one() -> None:
    problem = Conv2dProblem(n=1, c=3, h=20, w=31, k=3, r=5, s=5, groups=3, x_layout="NHWC", precision="separable")
    inputs = make_inputs(problem)
    w = np.ascontiguousarray(np.broadcast_to(gaussian(5, "float32"), (3, 1, 5, 5)))
    plan = default_plan(problem)
    prepared = plan.prepare(w)
    assert prepared.tensors["ranks"].shape == (1, 1)
    together, apart = np.empty(problem.out_shape, "f4"), np.empty(problem.out_shape, "f4")
    wide = np.zeros((1, 20, 31, 7), "f4")
    wide[..., 1:7:2] = inputs.x
    plan({"x": inputs.x, "w": prepared, "out": together})
    plan({"x": wide[..., 1:7:2], "w": prepared, "out": apart})
    np.testing.assert_allclose(together, apart, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_strides_and_dilation(stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    problem = Conv2dProblem(n=1, c=2, h=50, w=61, k=4, r=3, s=5, stride=stride, dilation=dilation, groups=2,
                            padding=(2, 1, 0, 3), padding_mode="reflect", precision="separable")  # fmt: skip
    w = np.random.default_rng(3).standard_normal((4, 1, 3, 1)) * np.array([1, 2, 3, 4, 5])
    assert str(checked(problem, w).note).startswith("rank 1")
    full = checked(problem, np.random.default_rng(4).standard_normal((4, 1, 3, 5)))
    assert str(full.note).startswith("rank 3")


@pytest.mark.parametrize("worked", WORKED, ids=lambda w: w.text)
def test_worked_values(worked: Any) -> None:
    problem = parse_problem(worked.text)
    assert isinstance(problem, Conv2dProblem)
    plan, inputs = default_plan(problem.replace(precision="separable")), worked_inputs(worked)
    out = plan(
        {"x": inputs.x, "w": plan.prepare(inputs.w), **inputs.operands, "out": np.full(problem.out_shape, np.nan, "f4")}
    )
    assert np.rint(out).tolist() == worked.expected
    np.testing.assert_allclose(out, worked.expected, rtol=1e-5)


@pytest.mark.parametrize("types", ["u16-f64-u16-f64", "f32"])
def test_rows_that_are_made_together_have_the_bits_of_rows_made_alone(types: str) -> None:
    random = np.random.default_rng(6)
    for taps, width in itertools.product((9, 10, 17), (1, 3, 7, 8, 9, 16, 31, 70)):
        problem = parse_problem(f"n1c2h41w{width + 2}_k3r{taps}s3_{types}_nchw")
        assert isinstance(problem, Conv2dProblem)
        inputs = make_inputs(problem)
        w = random.standard_normal((3, 2, taps, 3)).astype(problem.w_dtype)
        results = []
        for rows in (1, 4, 7, 41):
            plan = Separable().plan(problem, SeparableConfig(rows, 64), cpu_runtime())
            out = np.zeros(problem.out_shape, problem.out_dtype)
            plan({"x": inputs.x, "w": plan.prepare(w), "out": out})
            results.append(out)
        assert results[0].any()
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("text", [
    "n2c2h24w25_k3r3s3_st1_p1_f32_nchw", "n1c2h13w40_k2r5s5_p2_reflect_f32_nchw",
    "n1c4h13w12_k4r3s3_st2_p1_g2_f32_nhwc", "n1c2h31w25_k2r9s3_p1_f32_nchw", "n1c2h17w25_k2r4s3_p1_f16_nchw",
    pytest.param("n1c3h22w23_k3r4s3_d2x3_g3_f64_nhwc", marks=pytest.mark.thorough),
])  # fmt: skip
def test_nan_reaches_exactly_the_windows_that_hold_it(text: str, kind: str) -> None:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    verdict = check_nan_spread(default_plan(problem.replace(precision="separable")), kind)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("w", [LAPLACIAN, np.eye(3), [[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.zeros((3, 3))])
@pytest.mark.parametrize("width", [6, 30])
def test_nan_under_a_zero_tap_arrives(w: Any, width: int) -> None:
    problem = Conv2dProblem(n=1, c=1, h=9, w=width, k=1, r=3, s=3, precision="separable")
    x = np.random.default_rng(1).standard_normal(problem.x_shape).astype("f4")
    x[0, 0, 4, 3] = np.nan
    plan = default_plan(problem)
    out = plan({"x": x, "w": plan.prepare(np.array(w, "f4")[None, None]), "out": np.zeros(problem.out_shape, "f4")})
    expected = np.zeros(problem.out_shape, bool)
    expected[0, 0, 2:5, 1:4] = True
    assert (np.isnan(out) == expected).all()


def test_integer_sums_are_refused() -> None:
    reason = Separable().refuses(parse_problem("n1c3h9w9_k2r3s3_u8-i8-i32-i32_nchw"), cpu_facts())
    assert "int32" in str(reason)


def test_a_tile_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        Separable().plan(Conv2dProblem(n=1, c=1, h=8, w=8, k=1, r=3, s=3), SeparableConfig(0, 8), cpu_runtime())


def test_a_picture_that_cannot_be_written_is_taken() -> None:
    problem = Conv2dProblem(n=1, c=1, h=8, w=40, k=1, r=3, s=3, precision="separable")
    inputs, plan = make_inputs(problem), default_plan(problem)
    frozen = inputs.x.copy()
    frozen.flags.writeable = False
    results = [
        plan({"x": x, "w": plan.prepare(inputs.w), "out": np.zeros(problem.out_shape, "f4")})
        for x in (inputs.x, frozen)
    ]
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize(("columns", "most", "width"), [
    (4112, 4096, 2112), (4096, 4096, 4096), (4096, 2048, 2048), (100, 4096, 100), (65, 64, 64), (7, 3, 3),
])  # fmt: skip
def test_strips_are_about_equal(columns: int, most: int, width: int) -> None:
    assert _even(columns, most, 64) == width
