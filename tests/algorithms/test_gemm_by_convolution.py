"""gemm_split and gemm_tf32 without a GPU: what they refuse, what "auto" takes, how matrices are seen, compiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200, Compiling, compiled
from tests.backends.emulated import needs_emulator

from convforge.algorithms import find, refusal
from convforge.algorithms.gemm.by_convolution import (
    Chained,
    Columns,
    convolution_of,
    filters_of,
    pixels_of,
    results_of,
)
from convforge.algorithms.implicit_gemm.split import SplitFilters
from convforge.backends.emulator import EmulatorRuntime
from convforge.problem import parse_problem
from convforge.tuning.heuristic import preferred

METHODS: dict[str, Any] = {name: find("gemm", "cuda", name) for name in ("gemm_split", "gemm_tf32")}
TRANSPOSES = ("", "_ta", "_tb", "_ta_tb")


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("gemm_split", "m64n64k64_f64", "it multiplies float32, not float64"),
        ("gemm_split", "m64n64k64_f16", "it multiplies float32, not float16"),
        ("gemm_split", "m64n64k31_f32", "fewer than 32 products"),
        ("gemm_split", "m64n0k64_f32", "at least one element"),
        ("gemm_split", "m0n64k64_f32", "at least one element"),
        ("gemm_split", "m64n64k0_f32", "at least one element"),
        ("gemm_split", "m64n64k5000000_f32", "K is at most 4194240, not 5000000"),
        ("gemm_split", "m600000000n64k64_f32", "M is at most 536870912, not 600000000"),
        ("gemm_tf32", "m64n64k64_f32", "its arithmetic is 'tf32'; the problem allows 'strict'"),
        ("gemm_tf32", "m64n64k64_f64_math-tf32", "it multiplies float32, not float64"),
        *(("gemm_split", f"m1n1k32{way}_f32", "") for way in TRANSPOSES),
        *(("gemm_tf32", f"m3n2k1{way}_f32_math-tf32", "") for way in TRANSPOSES),
        ("gemm_split", "m500000000n1k32_f32", ""),
        ("gemm_split", "m1n500000000k32_f32", ""),
        ("gemm_split", "m64n64k4194240_ta_f32", ""),
    ],
)
def test_what_is_refused(name: str, text: str, says: str) -> None:
    reason = refusal(METHODS[name], parse_problem(text), H200)
    assert (says in str(reason)) if says else reason is None, reason


def test_other_devices_are_refused() -> None:
    for architecture in ("sm_80", "sm_100", "sm_120"):
        for name, text in (("gemm_split", "m64n64k64_f32"), ("gemm_tf32", "m64n64k64_f32_math-tf32")):
            reason = METHODS[name].refuses(parse_problem(text), Compiling(architecture).facts)
            assert "sm_90 alone" in str(reason)


@pytest.mark.parametrize(
    "text, first",
    [
        ("m64n64k4096_f32", "gemm_split"), ("m4096n4096k4096_ta_f32", "gemm_split"),
        ("m64n64k4095_f32", "gemm_warp_tiled"), ("m63n64k8192_f32", "gemm_warp_tiled"),
        ("m4096n63k4096_f32", "gemm_warp_tiled"), ("m4096n4096k31_f32", "gemm_warp_tiled"),
        ("m64n64k4096_f32_math-tf32", "gemm_tf32"),
        ("m64n64k64_f64", "gemm_warp_tiled"), ("m64n64k64_f16", "gemm_wgmma"),
    ],
)  # fmt: skip
def test_what_auto_takes_by_rule(text: str, first: str) -> None:
    problem = parse_problem(text)
    able = [method.name for method, _ in preferred(problem, H200) if refusal(method, problem, H200) is None]
    assert able[0] == first


@pytest.mark.parametrize("way", TRANSPOSES)
def test_matrices_are_seen_as_a_convolutions_arrays(way: str) -> None:
    """A convolution of the views, by its definition, is the product."""
    problem: Any = parse_problem(f"m5n7k6{way}_f32")
    conv = convolution_of(problem)
    rng = np.random.default_rng(0)
    wide = [rng.integers(-4, 5, (9, 19)).astype(np.float32)[1:, 1::2] for _ in range(3)]
    shapes = [array.shape for array in (*problem.operands, *problem.results)]
    a, b, c = (array[:rows, :columns] for array, (rows, columns) in zip(wide, shapes, strict=True))
    c[...] = 0

    def seen(view: Any, array: Any) -> Any:
        assert view.address == array.__array_interface__["data"][0]
        assert view.itemsize == array.itemsize
        return np.lib.stride_tricks.as_strided(array, view.shape, view.strides)

    x, w, out = seen(pixels_of(a, problem), a), seen(filters_of(b, problem), b), seen(results_of(c), c)
    assert (x.shape, w.shape, out.shape) == (conv.x_shape, conv.w_shape, conv.out_shape)
    pixels = x[0, 0] if conv.x_layout == "NHWC" else x[0, :, 0].T
    out[0, 0] = pixels @ w[:, :, 0, 0].T
    np.testing.assert_array_equal(c, (a.T if problem.transpose_a else a) @ (b.T if problem.transpose_b else b))


def test_a_matrix_of_one_row_may_have_any_stride() -> None:
    problem: Any = parse_problem("m1n8k32_f32")
    a = np.zeros((1, 32), np.float32)
    odd = np.lib.stride_tricks.as_strided(a, a.shape, (4, 4))
    assert pixels_of(odd, problem).strides == pixels_of(a, problem).strides == (128, 128, 128, 4)


def test_rows_are_written_first_where_the_tma_cannot_load_a() -> None:
    for text, turned in (("m64n64k64_f32", False), ("m64n64k66_f32", True), ("m64n64k64_ta_f32", True),
                         ("m64n66k64_tb_f32", False)):  # fmt: skip
        problem = parse_problem(text)
        found = METHODS["gemm_split"].configs(problem, H200)
        assert {config.repacked for config in found if not config.split_first} == {turned}
        assert any(config.split_first for config in found)


@pytest.mark.one_in(3)
@compiled
@pytest.mark.parametrize(
    "name, text, kernels",
    [
        ("gemm_split", "m2000n3288k136_f32", ["split_pixels", "gemm_split"]),
        ("gemm_split", "m64n64k64_f32", ["gemm_split"]),
        ("gemm_split", "m200n328k1360_f32", ["gemm_split", "sum_shares"]),
        ("gemm_split", "m2000n3288k136_ta_tb_f32", ["split_pixels", "gemm_split"]),
        ("gemm_split", "m1000000n64k70_f32", ["split_pixels", "gemm_split"]),
        ("gemm_tf32", "m2000n3288k136_ta_tb_f32_math-tf32", ["pixel_rows", "gemm_tf32"]),
        ("gemm_tf32", "m2000n3288k136_tb_f32_math-tf32", ["gemm_tf32"]),
    ],
)
def test_it_compiles(name: str, text: str, kernels: list[str]) -> None:
    runtime: Any = Compiling("sm_90")
    problem, method = parse_problem(text), METHODS[name]
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    assert [launch.kernel for launch in plan.launches] == kernels
    assert plan.preparation is not None
    assert (plan.workspace_bytes > 0) == (len(kernels) > 1)


@needs_emulator
@pytest.mark.parametrize("way", ["", "_tb"])
def test_columns_of_b_are_split_as_filters(way: str) -> None:
    """By pixel_rows where neighbours of B are columns; to the bits of filters that lie along K."""
    runtime = EmulatorRuntime()
    for k in (70, 64):
        problem: Any = parse_problem(f"m64n37k{k}{way}_f32")
        b = np.random.default_rng(0).standard_normal((problem.n, problem.k)).astype(np.float32)
        b[3] *= 1e30
        b[5, 7] = np.nan
        filters = SplitFilters(convolution_of(problem), runtime)
        expected = filters(np.ascontiguousarray(b)[:, :, None, None])
        columns = Columns(filters, filters, problem, runtime)
        given = b if problem.transpose_b else np.ascontiguousarray(b.T)
        assert isinstance(columns.of(given), Chained) == (not problem.transpose_b)
        made = columns(given)
        assert set(made.tensors) - set(expected.tensors) == ({"workspace"} if not problem.transpose_b else set())
        for name, tensor in expected.tensors.items():
            np.testing.assert_array_equal(made.tensors[name], tensor, err_msg=name)


@compiled
def test_columns_of_b_are_taken_where_they_lie() -> None:
    """TF32 multiplies rows along K: B stored as (N, K) has them, and of any other they are made."""
    runtime: Any = Compiling("sm_90")
    for text, first, taken in (("m64n72k40_tb", 0, True), ("m64n72k40", 0, False), ("m64n72k40_tb", 1, False),
                               ("m64n72k38_tb", 0, False)):  # fmt: skip
        problem: Any = parse_problem(f"{text}_f32_math-tf32")
        method = METHODS["gemm_tf32"]
        plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
        room = np.zeros(problem.n * problem.k + 8, np.float32)
        first += -(room.__array_interface__["data"][0] // 4) % 4
        b = room[first : first + problem.n * problem.k].reshape(problem.operands[1].shape)
        assert plan.preparation is not None
        assert (not plan.preparation.of(b).pieces) == taken
        made = plan.packing
        assert made is not None
        assert made.of(b).pieces
