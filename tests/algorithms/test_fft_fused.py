"""The fused FFT on the emulator: every config, borders, pairs of tiles, NaN, views, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.on_device import check_views

from convforge.algorithms.fft.fused import STAGES, FftFused, FusedConfig, numbers
from convforge.backends.emulator import emulator_runtime
from convforge.problem import PADDING_MODES, Conv2dProblem, parse_problem
from convforge.tuning.heuristic import choose
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

METHOD = FftFused("emulator")
BLUR = "n1c3h2048w2048_k3r31s31_st1_p15_g3_f32_nchw"
SMALL = FusedConfig(32, 64)


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem.replace(precision="fft")


def check(problem: Conv2dProblem, config: FusedConfig = SMALL) -> None:
    """Hold a plan against the truth."""
    plan = METHOD.plan(problem, config, emulator_runtime("shuffled"))
    verdict = check_plan(plan, Judge(problem, make_inputs(problem)))
    assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(6)
@needs_emulator
@pytest.mark.parametrize("text", [
    "n2c3h67w83_k3r9s11_st1_p4x5_g3_f32_nchw", "n1c2h143w50_k4r31s30_st2x3_p9_g2_f16_nhwc",
    "n1c3h30w40_k3r5s5_st1_p2_reflect_g3_u8-f32-u8-f32_nhwc", "n2c2h40w41_k2r7s5_p3_d2_g2_flip_f64_nchw_+bias+relu",
])  # fmt: skip
def test_every_config(text: str) -> None:
    problem = problem_of(text)
    configs = METHOD.configs(problem, emulator_runtime().facts)
    assert len(set(configs)) == len(configs) > 3
    assert [numbers(problem, c.size) for c in configs] == sorted(numbers(problem, c.size) for c in configs)
    for config in configs:
        check(problem, config)


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", PADDING_MODES)
def test_borders_and_odd_numbers_of_tiles(mode: str, layout: str) -> None:
    """Three by three tiles: the last pair has one."""
    token = {"constant": "_constant7.0", "zeros": ""}.get(mode, f"_{mode}")
    check(problem_of(f"n2c3h68w74_k3r5s7_p1x3x6x2_g3{token}_f32_{layout}"))


@needs_emulator
def test_a_whole_picture_that_shares_its_zeros() -> None:
    """20 rows and 6 of padding on either side: 26 of 32 hold them; so do 32 columns for 26."""
    check(problem_of("n3c2h20w26_k2r13s13_p6_g2_f32_nchw"))
    check(problem_of("n1c1h1w2_k1r1s1_f32_nchw"))


@needs_emulator
def test_more_pictures_than_a_grid_has_along_y() -> None:
    """Their blocks lie along x alone; that so many are right is for tests/gpu/test_large.py, as each is a transform."""
    plan = METHOD.plan(problem_of("n66000c1h1w2_k1r1s1_f32_nchw"), SMALL, emulator_runtime())
    (launch,) = plan.launches
    assert launch.grid == (66000,)
    check(problem_of("n700c1h1w2_k1r1s1_f32_nchw"))


@needs_emulator
@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_stays_in_its_plane(kind: str) -> None:
    problem = problem_of("n3c3h40w61_k3r9s11_p4x5_g3_f32_nchw")
    verdict = check_nan_spread(METHOD.plan(problem, SMALL, emulator_runtime()), kind)
    assert verdict.ok, verdict.message
    inputs = make_inputs(problem)
    x = inputs.x.copy()
    x[1, 2, 3, 4] = np.nan
    plan = METHOD.plan(problem, SMALL, emulator_runtime())
    out = np.empty(problem.out_shape, np.float32)
    plan({"x": x, "w": plan.prepare(inputs.w), "out": out})
    assert np.isnan(out[1, 2]).any()
    out[1, 2] = 0
    assert np.isfinite(out).all(), "planes are not paired with each other"


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_views_with_gaps(layout: str) -> None:
    problem, runtime = problem_of(f"n2c3h39w32_k3r5s7_p2x3_g3_f32_{layout}_+bias"), emulator_runtime()
    check_views(METHOD.plan(problem, SMALL, runtime), make_inputs(problem), 1)


def test_refusals_say_why() -> None:
    assert "int32" in str(METHOD.refuses(problem_of("n1c3h9w9_k3r3s3_g3_u8-i8-i32-i32_nchw"), H200))
    assert "groups=1 must equal C=3" in str(METHOD.refuses(problem_of("n1c3h9w9_k2r3s3_f32_nchw"), H200))
    assert "must hold the filter's 129 x 5" in str(METHOD.refuses(problem_of("n1c1h200w9_k1r129s5_f32_nchw"), H200))
    wide = problem_of("n1c1h200w200_k1r65s5_f64_nchw")
    assert "bytes of shared memory; a block has 232448" in str(METHOD.refuses(wide, H200))
    small = dataclasses.replace(H200, block_shared_bytes=48 << 10)
    assert [c.size for c in METHOD.configs(problem_of(BLUR), small)] == [64, 64, 32, 32]
    assert [c.size for c in METHOD.configs(problem_of(BLUR), H200)] == [128, 128, 64, 64, 32, 32]


@pytest.mark.parametrize(("config", "reason"), [
    (FusedConfig(48, 64), "size=48 must be one of 32, 64, 128"), (FusedConfig(32, 48), "threads=48 must be a multiple"),
    (FusedConfig(32, 2048), "threads=2048"), (FusedConfig(32, 0), "threads=0"),
])  # fmt: skip
@needs_emulator
def test_what_cannot_be_is_refused(config: FusedConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        METHOD.plan(problem_of("n1c3h40w40_k3r5s5_g3_f32_nchw"), config, emulator_runtime())


def test_stages_multiply_to_sizes() -> None:
    assert all(outer * inner == size for size, (outer, inner) in STAGES.items())


@needs_emulator
def test_auto_takes_it_for_filters_that_see_one_channel() -> None:
    problem = problem_of("n1c3h60w60_k3r15s15_p7_g3_f32_nchw")
    assert choose(problem, emulator_runtime()).algorithm.name == "fft_fused"
    assert choose(problem.replace(precision="strict"), emulator_runtime()).algorithm.name != "fft_fused"
