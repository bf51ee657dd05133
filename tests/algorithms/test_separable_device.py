"""The separable kernel on the emulator: rank one and two, every config, views with gaps, refusals, what is chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.judged import judge_of
from tests.on_device import check_views

from convforge.algorithms import refusal
from convforge.algorithms.direct.device import DirectNaive
from convforge.algorithms.separable.device import FusedConfig, Separable, modelled_cycles
from convforge.backends.emulator import emulator_runtime
from convforge.problem import PADDING_MODES, Conv2dProblem, parse_problem
from convforge.tuning.heuristic import choose
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

METHOD = Separable("emulator")
SMALL = FusedConfig(4, 2, 16, 8, 2)


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem.replace(precision="separable")


def of_rank(problem: Conv2dProblem, rank: int) -> NDArray[Any]:
    """Random filters that are sums of so many products, shape (K, C / groups, R, S)."""
    rng = np.random.default_rng(5)
    columns, rows = (rng.standard_normal((*problem.w_shape[:2], rank, taps)) for taps in (problem.r, problem.s))
    return np.einsum("kcir,kcis->kcrs", columns, rows).astype(problem.w_dtype)


def check(problem: Conv2dProblem, rank: int = 1, config: FusedConfig | None = None) -> str:
    """Hold a plan against the truth on filters of a rank; gives the prepared filter's note."""
    runtime = emulator_runtime("shuffled")
    inputs = dataclasses.replace(make_inputs(problem), w=of_rank(problem, rank))
    config = METHOD.configs(problem, runtime.facts)[0] if config is None else config
    plan = METHOD.plan(problem, config, runtime)
    verdict = check_plan(plan, Judge(problem, inputs))
    assert verdict.ok, f"{config}: {verdict.message}"
    return str(plan.prepare(inputs.w).note)


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("text", [
    "n2c3h37w53_k3r9s11_st1_p4x5_g3_f32_nchw", "n1c3h41w46_k3r7s5_st1_p3x2_g3_f32_nhwc",
    "n1c3h43w45_k3r5s9_st2x3_p2x4_g3_f16_nchw", "n1c4h40w48_k4r5s5_st1_p2_reflect_g4_u8-f32-u8-f32_nhwc",
])  # fmt: skip
def test_every_config(text: str) -> None:
    problem = problem_of(text)
    configs = METHOD.configs(problem, H200)
    assert len(set(configs)) == len(configs) > 1
    for config in configs:
        check(problem, config=config)


@pytest.mark.one_in(19)
@needs_emulator
@pytest.mark.parametrize("dtypes", ["f32", "f16", "u8-f32-u8-f32", "f64"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "nchw-kcrs-nhwc"])
@pytest.mark.parametrize("mode", PADDING_MODES)
def test_borders_and_types(mode: str, layout: str, dtypes: str) -> None:
    token = {"constant": "_constant7.0", "zeros": ""}.get(mode, f"_{mode}")
    problem = problem_of(f"n2c3h21w40_k3r5s7_p1x3x6x2_g3{token}_{dtypes}_{layout}")
    check(problem, config=SMALL)


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_and_dilation(stride: tuple[int, int], dilation: tuple[int, int], layout: str) -> None:
    problem = Conv2dProblem(n=1, c=4, h=50, w=64, k=4, r=3, s=5, stride=stride, dilation=dilation, groups=2,
                            padding=(2, 1, 0, 3), padding_mode="reflect", x_layout=layout, out_layout=layout,
                            precision="separable")  # fmt: skip
    assert check(problem).startswith("rank 1")
    assert check(problem, 2, SMALL).startswith("rank 2")


@pytest.mark.one_in(2)
@needs_emulator
@pytest.mark.parametrize("text", [
    "n1c3h60w70_k3r31s31_p15_g3_f32_nchw",  # all taps at once
    "n1c3h60w72_k3r37s33_p18x16_g3_f32_nhwc",  # chunks and what they leave
    "n1c1h60w72_k2r48s41_p20_f32_nchw_flip",
    "n1c2h40w41_k2r19s21_p9_f64_nchw",
])  # fmt: skip
def test_long_filters(text: str) -> None:
    assert check(problem_of(text)).startswith("rank 1")


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_epilogues_and_channels_that_are_summed(layout: str) -> None:
    assert check(problem_of(f"n2c5h19w23_k6r5s3_p2x1_f32_{layout}_+bias+relu"), 2).startswith("rank 2")
    note = check(problem_of(f"n2c4h19w23_k6r5s3_p2x1_g2_f16_{layout}_+scale:channel+bias+residual+relu"))
    assert note.startswith("rank 3"), "rounded to float16, nothing is of rank one"


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize("planes", [1, 3])
@pytest.mark.parametrize("text", [
    "n2c6h21w40_k6r5s7_p2x3_g6_f32_nhwc", "n1c6h21w40_k6r15s9_p7x4_g6_f32_nchw_flip",
    "n1c3h21w40_k2r9s11_p4x5_f32_nchw", "n1c6h21w40_k6r5s7_p2x3_g6_f64_nhwc",
])  # fmt: skip
def test_filters_of_unlike_rank_in_one_block(text: str, planes: int) -> None:
    problem, runtime = problem_of(text), emulator_runtime("shuffled")
    plan = METHOD.plan(problem, dataclasses.replace(SMALL, planes=planes), runtime)
    judge = judge_of(str(problem), "ranks")
    verdict = check_plan(plan, judge)
    assert verdict.ok, verdict.message
    ranks = plan.prepare(judge.inputs.w).tensors["ranks"]
    assert len(set(ranks.ravel())) > 3


@needs_emulator
@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_nan_reaches_exactly_the_windows_that_hold_it(kind: str, layout: str) -> None:
    problem, runtime = problem_of(f"n1c3h40w61_k3r9s11_p4x5_g3_f32_{layout}"), emulator_runtime()
    verdict = check_nan_spread(METHOD.plan(problem, SMALL, runtime), kind)
    assert verdict.ok, verdict.message


@needs_emulator
def test_more_planes_than_a_grid_has_along_y() -> None:
    check(problem_of("n66000c1h1w2_k1r1s1_f32_nchw"))
    check(problem_of("n1c1h66000w1_k1r3s1_p1x0_f32_nhwc"))


@needs_emulator
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_views_with_gaps(layout: str, ahead: int) -> None:
    """Parts of larger arrays, `ahead` elements behind their rows' first: vectors only where they are aligned."""
    problem, runtime = problem_of(f"n2c3h19w32_k3r5s7_p2x3_g3_f32_{layout}_+bias"), emulator_runtime()
    inputs = dataclasses.replace(make_inputs(problem), w=of_rank(problem, 1))
    check_views(METHOD.plan(problem, SMALL, runtime), inputs, ahead)


@needs_emulator
def test_reversed_axes() -> None:
    problem, runtime = problem_of("n1c3h19w32_k3r5s7_p2x3_g3_f32_nhwc"), emulator_runtime()
    x, w = make_inputs(problem).x, of_rank(problem, 1)
    plan = METHOD.plan(problem, SMALL, runtime)
    naive = DirectNaive("emulator")
    other = naive.plan(problem, naive.configs(problem, runtime.facts)[0], runtime)
    out, expected = np.empty(problem.out_shape, np.float32), np.empty(problem.out_shape, np.float32)
    plan({"x": x[:, ::-1, ::-1], "w": plan.prepare(w), "out": out})
    other({"x": np.ascontiguousarray(x[:, ::-1, ::-1]), "w": other.prepare(w), "out": expected})
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)


@needs_emulator
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_filter_with_nan_makes_its_own_outputs_nan(layout: str, number: float) -> None:
    problem, runtime = problem_of(f"n1c3h9w12_k3r3s3_g3_f32_{layout}"), emulator_runtime()
    x, w = make_inputs(problem).x, of_rank(problem, 1)
    w[1, 0, 2, 1] = number
    plan = METHOD.plan(problem, dataclasses.replace(SMALL, planes=3), runtime)
    prepared, out = plan.prepare(w), np.zeros(problem.out_shape, np.float32)
    plan({"x": x, "w": prepared, "out": out})
    outputs = np.moveaxis(out, -1, 1) if layout == "nhwc" else out
    assert np.isnan(outputs).all(axis=(0, 2, 3)).tolist() == [False, True, False]
    assert np.isfinite(outputs[:, [0, 2]]).all()
    assert str(prepared.note) == "a filter holds NaN or Inf, so its outputs are NaN"


def test_refusals_say_why() -> None:
    assert "int32" in str(METHOD.refuses(problem_of("n1c3h9w9_k2r3s3_u8-i8-i32-i32_nchw"), H200))
    huge = problem_of("n1c1h900w900_k1r801s801_p400_f32_nchw")
    assert "bytes of shared memory; a block has 232448" in str(METHOD.refuses(huge, H200))
    strict = problem_of("n1c3h9w9_k2r3s3_f32_nchw").replace(precision="strict")
    assert "ask for it by name" in str(refusal(Separable(), strict, H200))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (FusedConfig(0, 2, 16), "out_p=0 must be at least 1"),
        (FusedConfig(4, 1, 16), "32 to 1024 threads; 16"),
        (FusedConfig(4, 8, 128, 8, 2), "32 to 1024 threads; 2048"),
        (FusedConfig(4, 2, 24, 16), "along=16 must divide tile_q=24"),
        (FusedConfig(4, 2, 18, 6), "multiple of 4"),
        (FusedConfig(160, 2, 16), "160 are to be had"),
        (FusedConfig(24, 8, 128), "bytes of shared memory"),
    ],
    ids=str,
)
@needs_emulator
def test_what_cannot_be_is_refused(config: FusedConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        METHOD.plan(problem_of("n1c3h299w320_k3r31s31_p15_g3_f32_nchw"), config, emulator_runtime())


def test_the_tile_grows_with_the_filter() -> None:
    """Halos of a large filter ask for many rows; the model expects a blur of a large picture to be bound by FMA."""
    blur = problem_of("n1c3h2048w2048_k3r31s31_p15_g3_f32_nchw")
    best = Separable().configs(blur, H200)[0]
    assert best.strips_y * best.out_p >= 64
    assert 30e-6 < modelled_cycles(blur, best, H200) / 1.755e9 < 74e-6
    pixels = Separable().configs(blur.replace(x_layout="NHWC", out_layout="NHWC"), H200)[0]
    assert pixels.planes == 3, "the channels of a pixel are copied together"


@needs_emulator
def test_auto_takes_it_where_the_problem_allows_its_arithmetic() -> None:
    problem = problem_of("n1c3h20w20_k3r9s9_p4_g3_f32_nhwc")
    assert choose(problem, emulator_runtime()).algorithm.name == "separable"
    assert choose(problem.replace(precision="strict"), emulator_runtime()).algorithm.name != "separable"
