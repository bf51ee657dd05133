"""The direct ladder of CUDA kernels: on the emulator, by value."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.judged import judge_of

from convforge.algorithms.direct.device import (
    ConstantConfig,
    DirectConstant,
    DirectNaive,
    DirectShared,
    DirectTiled,
    NaiveConfig,
    SharedConfig,
    TiledConfig,
)
from convforge.backends.emulator import emulator_runtime
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Judge, check_plan, make_inputs

METHODS = [DirectNaive("emulator"), DirectConstant("emulator"), DirectShared("emulator"), DirectTiled("emulator")]
ANY = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem


def check(method: Any, text: str, config: Any = None) -> None:
    """Run a plan on the emulator and hold it against the truth."""
    problem = problem_of(text)
    runtime = emulator_runtime()
    config = method.configs(problem, runtime.facts)[0] if config is None else config
    verdict = check_plan(method.plan(problem, config, runtime), judge_of(text, "normal"))
    assert verdict.ok, verdict.message


@pytest.mark.one_in(9)
@needs_emulator
@ANY
@pytest.mark.parametrize("text", ["n2c3h37w71_k5r3s3_st1_p1_f32_nchw", "n1c4h37w71_k6r3s3_st2_p1x2_d2_g2_f32_nhwc"])
def test_every_config(method: Any, text: str) -> None:
    configs = method.configs(problem_of(text), H200)
    assert len(set(configs)) == len(configs) > 1
    for config in configs:
        check(method, text, config)


# Beyond the 65535 blocks that a grid has along y and z.


@pytest.mark.one_in(4)
@needs_emulator
@ANY
def test_more_planes_than_a_grid_has(method: Any) -> None:
    check(method, "n66000c1h1w2_k1r1s1_f32_nchw")


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize(
    ("method", "config"),
    [
        (METHODS[0], NaiveConfig(32, 1)),
        (METHODS[1], ConstantConfig(32, 1)),
        (METHODS[2], SharedConfig(32, 1, 1)),
        (METHODS[3], TiledConfig(32, 1, 1, 1)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_more_rows_than_a_grid_has(method: Any, config: Any) -> None:
    check(method, "n1c1h66000w1_k1r3s1_p1x0_f32_nchw", config)


# Vectors: rows that allow them, and rows that do not.

VECTORS = [
    "n1c3h20w300_k1r3s3_p1_f32_nchw",
    "n1c3h20w300_k3r3s3_p1_f32_nhwc",
    "n1c4h20w300_k4r3s3_p1_f32_nhwc",
    "n1c2h20w300_k3r3s3_p1_f32_nhwc-kcrs-nchw",
    "n1c3h20w304_k3r3s3_p1_f32_nchw-krsc-nhwc",
    "n1c3h20w600_k2r3s3_st2_p1_f32_nchw",
    "n1c3h20w900_k2r3s3_st3_p1_f32_nchw",
    "n1c3h20w600_k2r3s3_st2_p1_f32_nhwc",
    "n1c1h20w300_k1r5s5_p2_f32_nchw",
    "n1c1h20w300_k2r3s3_p2_d2_f32_nchw",
    "n1c1h20w301_k2r3s3_p1_f32_nchw",
    "n1c2h20w600_k2r3s3_p1_f16_nchw",
    "n1c3h20w600_k3r3s3_p1_u8-f32-u8-f32_nhwc",
    "n1c2h20w300_k2r3s3_p1_f64_nchw",
    "n1c4h20w300_k6r3s3_p1_g2_f32_nchw_+bias+residual+relu",
]


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("text", VECTORS)
def test_rows_of_several_blocks(text: str) -> None:
    problem = problem_of(text)
    for config in METHODS[3].configs(problem, H200)[::4]:
        check(METHODS[3], text, config)


@needs_emulator
@ANY
def test_arrays_that_no_vector_fits(method: Any) -> None:
    problem = problem_of("n1c2h20w300_k2r3s3_p1_f32_nchw")
    inputs, runtime = make_inputs(problem), emulator_runtime()
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    prepared, judge = plan.prepare(inputs.w), Judge(problem, inputs)
    raw = np.zeros((1, 2, 20, 303), np.float32)
    shifted = np.zeros(inputs.x.size + 1, np.float32)[1:].reshape(inputs.x.shape)
    turned = np.zeros(inputs.x.shape[::-1], np.float32).T
    for x in (raw[..., 1:301], raw[..., :300], shifted, turned, np.zeros_like(inputs.x)[:, ::-1, ::-1, ::-1]):
        x[...] = inputs.x
        for shape in ((1, 2, 20, 300), (1, 2, 20, 302)):
            out = np.full(shape, np.nan, np.float32)[..., :300]
            plan({"x": x, "w": prepared, "out": out})
            verdict = judge.verdict("strict", out)
            assert verdict.ok, verdict.message


# Constant memory: a filter holds a module of its own.


@needs_emulator
@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: method.name)
def test_prepared_filters_do_not_disturb_each_other(method: Any) -> None:
    problem = problem_of("n1c3h9w10_k4r3s3_p1_f32_nchw")
    runtime = emulator_runtime()
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    again = method.plan(problem, plan.config, runtime)
    inputs = make_inputs(problem)
    prepared = [plan.prepare(inputs.w), plan.prepare(2 * inputs.w), again.prepare(3 * inputs.w)]
    results = []
    for owner, filter_ in zip((plan, plan, again), prepared, strict=True):
        out = np.full(problem.out_shape, np.nan, np.float32)
        owner({"x": inputs.x, "w": filter_, "out": out})
        results.append(out)
    np.testing.assert_array_equal(results[1], 2 * results[0])
    np.testing.assert_allclose(results[2], 3 * results[0], rtol=1e-5, atol=1e-5)


@needs_emulator
def test_a_module_serves_the_next_filter_of_its_stream_alone() -> None:
    problem = problem_of("n1c3h9w10_k4r3s3_p1_f32_nchw")
    runtime = emulator_runtime()
    plan = METHODS[1].plan(problem, ConstantConfig(), runtime)
    inputs, out = make_inputs(problem), np.zeros(problem.out_shape, np.float32)

    def kernel_after(streams: list[int]) -> Any:
        prepared = plan.prepare(inputs.w)
        kernel = prepared.tensors["module"].kernel
        for stream in streams:
            plan({"x": inputs.x, "w": prepared, "out": out}, stream)
        del prepared
        gc.collect()
        return kernel

    first = kernel_after([])
    assert kernel_after([0]) is first
    assert kernel_after([0, 7]) is first
    assert kernel_after([0]) is not first  # it may still run on stream 7


# What is refused, with its figures.


def test_a_filter_beyond_constant_memory_is_refused_by_the_constant_step_alone() -> None:
    problem = problem_of("n1c128h9w10_k15r3s3_p1_f32_nchw")
    assert str(METHODS[1].refuses(problem, H200)) == (
        "the filter's 17280 weights take 69120 bytes as float32; constant memory holds 65536"
    )
    assert all(method.refuses(problem, H200) is None for method in (METHODS[0], METHODS[2], METHODS[3]))


@needs_emulator
@pytest.mark.parametrize("method", METHODS[2:], ids=lambda method: method.name)
def test_a_filter_beyond_constant_memory_is_read_from_global_memory(method: Any) -> None:
    check(method, "n1c128h5w6_k15r3s3_p1_f32_nchw")


def test_a_tile_beyond_shared_memory_is_refused() -> None:
    problem = problem_of("n1c1h900w900_k1r2s2_d400_f32_nchw")
    assert str(METHODS[2].refuses(problem, H200)) == (
        "the tile of 1 channels with its halo takes 665856 bytes of shared memory; a block has 232448"
    )
    small = dataclasses.replace(H200, block_shared_bytes=48 << 10)
    assert METHODS[2].refuses(problem_of("n1c3h90w90_k1r3s3_p1_f32_nchw"), small) is None


@pytest.mark.parametrize("text", ["n1c64h90w90_k8r3s3_p1_f32_nchw", "n1c3h90w90_k1r31s31_p15_f64_nchw"])
@pytest.mark.parametrize("limit", [48 << 10, 227 << 10])
def test_tiles_stay_within_shared_memory(text: str, limit: int) -> None:
    problem, facts = problem_of(text), dataclasses.replace(H200, block_shared_bytes=limit)
    if METHODS[2].refuses(problem, facts) is None:
        for config in METHODS[2].configs(problem, facts):
            tile_h = (config.block_y * config.per_p - 1) + problem.r
            tile_w = config.block_x - 1 + problem.s
            assert config.tile_c * tile_h * tile_w * (8 if problem.acc_dtype == "float64" else 4) <= limit


def test_a_window_beyond_the_registers_is_refused() -> None:
    reason = METHODS[3].refuses(problem_of("n1c1h9w900_k1r1s200_f32_nchw"), H200)
    assert "201 registers; 192 are to be had" in str(reason)


@pytest.mark.parametrize(
    ("method", "config", "reason"),
    [
        (METHODS[0], NaiveConfig(4, 4), "a block has 32 to 1024 threads; 4 x 4 are 16"),
        (METHODS[0], NaiveConfig(32, 8, "diagonal"), "partition='diagonal' must be one of"),
        (METHODS[1], ConstantConfig(64, 32), "64 x 32 are 2048"),
        (METHODS[2], SharedConfig(32, 8, 0), "per_p=0 must be at least 1"),
        (METHODS[2], SharedConfig(32, 32, 64, 64), "bytes of shared memory; a block has"),
        (METHODS[3], TiledConfig(32, 4, 16, 16), "registers; 192 are to be had"),
    ],
)
@needs_emulator
def test_a_config_that_cannot_be_says_why(method: Any, config: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        method.plan(problem_of("n1c3h32w32_k1r3s3_p1_f32_nchw"), config, emulator_runtime())
