"""Max pooling's CUDA kernel on the emulator: every window, type, alignment and stride."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator

import convforge
from convforge.algorithms.pool import device
from convforge.algorithms.pool.device import MaxPool, MaxPoolConfig
from convforge.backends.emulator import emulator_runtime
from convforge.problem import Pool2dProblem, parse_problem, pool2d
from convforge.verify import Judge, check_plan, make_inputs

POOL = MaxPool("emulator")
RANDOM = np.random.default_rng(11)


def problem_of(text: str) -> Pool2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Pool2dProblem)
    return problem


def plan_of(text: str, config: MaxPoolConfig | None = None, order: str = "forward") -> Any:
    runtime, problem = emulator_runtime(order), problem_of(text)
    return POOL.plan(problem, config or POOL.configs(problem, runtime.facts)[0], runtime)


def by_cpu(problem: Pool2dProblem, x: Any) -> Any:
    """Result of the CPU's method."""
    padding = (problem.padding[:2], problem.padding[2:])
    return convforge.max_pool2d(x, (problem.r, problem.s), problem.stride, padding, problem.dilation,
                                problem.ceil_mode, layout=problem.layout)  # fmt: skip


# Ragged sizes, whole vectors, windows on every side of the picture, and tiles that hang over.
TEXTS = [
    "max_n2c3h37w71_r3s3_st2_p1_f32_nchw",
    "max_n2c3h36w72_r3s3_st2_p1_f32_nchw",
    "max_n2c12h17w22_r3s3_st2_p1_f32_nhwc",
    "max_n1c6h16w23_r2s2_st2_p0_f16_nhwc",
    "max_n1c3h32w64_r2s2_st2_p0_f16_nchw",
    "max_n2c2h20w32_r3s3_st1_p1_f32_nchw",
]


@pytest.mark.one_in(4)
@needs_emulator
@pytest.mark.parametrize("text", TEXTS)
def test_every_config_in_several_orders_of_threads(text: str) -> None:
    problem = problem_of(text)
    configs, judge = POOL.configs(problem, H200), Judge(problem, make_inputs(problem))
    assert len(set(configs)) == len(configs) > 4
    for i, config in enumerate(configs):
        verdict = check_plan(plan_of(text, config, ("forward", "backward", "shuffled")[i % 3]), judge)
        assert verdict.ok, verdict.message


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize(
    "text",
    [
        "max_n1c2h19w24_r3s5_st1x2_p1x0x2x1_f32_nchw",
        "max_n1c2h19w24_r5s3_st3x1_p2x1x0x2_f32_nhwc",
        "max_n1c2h21w28_r3s3_st2_p2_d2_f32_nchw",
        "max_n1c4h21w28_r3s3_st3x2_p2_d3x2_f32_nhwc",
        "max_n1c2h21w29_r3s3_st1x3_p2_d2_f32_nchw",
        "max_n1c3h21w29_r3s3_st3x1_p2_d2_f32_nhwc",
        "max_n1c2h20w24_r3s3_st2_p1_f32_nchw_ceil",
        "max_n1c2h23w24_r4s4_st5_p0_f32_nchw_ceil",
        "max_n1c2h5w64_r1s1_st1_p0_f32_nchw",
        "max_n1c2h40w48_r17s35_st2_p8x17_f32_nchw",
        "max_n1c4h40w48_r17s35_st2_p8x17_f32_nhwc",
        "max_n1c1h40w88_r3s2_st1x4_p3x0_d19x41_f32_nchw",
        "max_n3c5h1w1_r1s1_st1_p0_f32_nchw",
        "max_n1c1h9w4_r9s4_st1_p0_f32_nchw",
        "max_n0c5h9w10_r2s2_st2_p0_f32_nhwc",
    ],
)
def test_windows_of_every_kind(text: str) -> None:
    problem = problem_of(text)
    configs, judge = POOL.configs(problem, H200), Judge(problem, make_inputs(problem))
    for config in (configs[0], MaxPoolConfig(64, 2, 4), MaxPoolConfig(32, 3, 1)):
        verdict = check_plan(plan_of(text, config), judge)
        assert verdict.ok, verdict.message


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f64", "f16", "u8", "i8", "u16", "i16", "i32"])
def test_every_type(dtype: str, layout: str) -> None:
    for text in (f"max_n1c16h12w32_r3s3_st2_p1_{dtype}_{layout}", f"max_n1c3h11w19_r2s3_st1_p1_{dtype}_{layout}"):
        problem = problem_of(text)
        verdict = check_plan(plan_of(text, POOL.configs(problem, H200)[-1]))
        assert verdict.ok, verdict.message


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_least_values_win_where_there_is_nothing_else(layout: str) -> None:
    for dtype in ("f32", "i8", "i32"):
        problem = problem_of(f"max_n1c4h9w16_r3s3_st2_p1_{dtype}_{layout}")
        least = -np.inf if dtype == "f32" else np.iinfo(problem.dtype).min
        x, out = np.full(problem.x_shape, least, problem.dtype), np.zeros(problem.out_shape, problem.dtype)
        plan = plan_of(str(problem))
        plan({"x": x, "out": out})
        assert (out == least).all()


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f32", *(pytest.param(t, marks=pytest.mark.thorough) for t in ("f16", "f64"))])
def test_nan_wins_over_all_and_reaches_its_windows_alone(dtype: str, layout: str) -> None:
    text = f"max_n2c4h16w24_r3s3_st2_p1_{dtype}_{layout}"
    problem = problem_of(text)
    x = RANDOM.normal(size=problem.x_shape).astype(problem.dtype)
    x.reshape(-1)[RANDOM.choice(x.size, x.size // 20, replace=False)] = np.nan
    x.reshape(-1)[RANDOM.choice(x.size, x.size // 20, replace=False)] = np.inf
    for config in POOL.configs(problem, H200)[:3]:
        plan, out = plan_of(text, config), np.zeros(problem.out_shape, problem.dtype)
        plan({"x": x, "out": out})
        assert np.isnan(out).any()
        assert np.isfinite(out).any()
        np.testing.assert_array_equal(out, by_cpu(problem, x))


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_bfloat16_by_the_cpus_rows(layout: str) -> None:
    text = f"max_n1c8h10w32_r3s3_st2_p1_bf16_{layout}"
    problem = problem_of(text)
    x = RANDOM.normal(size=problem.x_shape).astype("bfloat16")
    out, plan = np.zeros(problem.out_shape, "bfloat16"), plan_of(text)
    plan({"x": x, "out": out})
    np.testing.assert_array_equal(out, by_cpu(problem, x))


# Where elements come one by one, and where vectors do.


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_arrays_of_any_strides_and_alignment(layout: str) -> None:
    problem = problem_of(f"max_n2c4h12w32_r3s3_st2_p1_f32_{layout}")
    x = RANDOM.normal(size=problem.x_shape).astype(np.float32)
    expected = by_cpu(problem, x)

    def as_it_is(a: Any) -> Any:
        return a.copy()

    def shifted(a: Any) -> Any:
        return np.zeros(a.size + 1, a.dtype)[1:].reshape(a.shape)

    def with_gaps(a: Any) -> Any:
        return np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2]

    def pitched(a: Any) -> Any:
        return np.zeros((*a.shape[:-1], a.shape[-1] + 4), a.dtype)[..., : a.shape[-1]]

    def raggedly_pitched(a: Any) -> Any:
        return np.zeros((*a.shape[:-1], a.shape[-1] + 3), a.dtype)[..., : a.shape[-1]]

    def reversed_axes(a: Any) -> Any:
        return np.zeros(a.shape, a.dtype)[::-1, ::-1, ::-1, ::-1]

    def turned(a: Any) -> Any:
        return np.zeros(a.shape[::-1], a.dtype).T

    forms = (as_it_is, shifted, with_gaps, pitched, raggedly_pitched, reversed_axes, turned)
    for config in POOL.configs(problem, H200)[:2]:
        plan = plan_of(str(problem), config)
        for form in forms:
            for target in (as_it_is, form):
                source, out = form(x), target(expected)
                source[...], out[...] = x, np.nan
                plan({"x": source, "out": out})
                np.testing.assert_array_equal(out, expected, err_msg=f"{form.__name__}, {target.__name__}")


def test_vectors_are_for_memory_that_is_cut_so() -> None:
    raw = np.zeros(4096, np.float32)
    raw = raw[-raw.ctypes.data % 16 // 4 :][:4000]  # aligned to 16 bytes
    picture = raw[: 2 * 3 * 8 * 16].reshape(2, 3, 8, 16)
    assert device._lies_in_vectors(picture, 4)
    assert device._lies_in_vectors(picture[:1, :1, :, :12], 4)
    assert device._lies_in_vectors(raw[1:257].reshape(1, 1, 16, 16), 1)
    assert not device._lies_in_vectors(raw[1:257].reshape(1, 1, 16, 16), 4)  # begins elsewhere
    assert not device._lies_in_vectors(picture[..., :14], 4)  # the last vector is no whole one
    assert not device._lies_in_vectors(raw[:450].reshape(2, 15, 15)[None, :, :, :12], 4)  # rows begin elsewhere
    assert not device._lies_in_vectors(picture[..., ::2], 4)
    assert device._lies_in_vectors(raw[:15].reshape(1, 1, 1, 15)[..., :12], 4)  # one row: its pitch does not matter


def test_a_thread_takes_sixteen_bytes_of_channels_where_they_allow_it() -> None:
    def vectors(text: str, config: MaxPoolConfig) -> tuple[Any, ...]:
        return dataclasses.astuple(device._vectors(problem_of(text), config))

    two = MaxPoolConfig(256, 2, 2)
    assert vectors("max_n1c64h8w8_r3s3_st2_p1_f32_nhwc", two) == (4, 4, 4, 0)
    assert vectors("max_n1c6h8w8_r3s3_st2_p1_f32_nhwc", two) == (2, 2, 2, 0)
    assert vectors("max_n1c48h8w8_r3s3_st2_p1_u8_nhwc", two) == (16, 16, 16, 0)
    assert vectors("max_n1c3h8w8_r3s3_st2_p1_f32_nchw", two) == (1, 4, 2, 3)
    assert vectors("max_n1c3h8w8_r3s3_st3_p0_f32_nchw", two) == (1, 2, 2, 0)


# Grids and sizes.


@pytest.mark.one_in(2)
@needs_emulator
@pytest.mark.parametrize("text", ["max_n70001c1h2w3_r2s2_st1_p1_f32_nchw", "max_n3c70001h2w3_r2s2_st1_p1_i8_nhwc"])
def test_more_pictures_and_channels_than_a_grid_has(text: str) -> None:
    verdict = check_plan(plan_of(text))
    assert verdict.ok, verdict.message


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_more_tiles_than_a_grid_has_threads(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MOST_BLOCKS", 2)
    plan = plan_of(f"max_n3c4h13w24_r3s3_st2_p1_f32_{layout}", MaxPoolConfig(32, 1, 1))
    assert plan.launches[0].grid == (2,)
    verdict = check_plan(plan)
    assert verdict.ok, verdict.message


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_wide_places_give_the_same(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool2d, "WIDE", 100)
    plan = plan_of(f"max_n2c4h13w24_r3s3_st2_p1_f32_{layout}")
    verdict = check_plan(plan)
    assert verdict.ok, verdict.message


def test_places_are_wide_where_an_array_needs_it() -> None:
    problem = problem_of("max_n64c64h1024w1024_r3s3_st2_p1_f32_nchw")
    assert problem.needs_wide_index
    assert not dataclasses.replace(problem, n=16).needs_wide_index


@needs_emulator
def test_an_array_beyond_narrow_places_says_so() -> None:
    problem = problem_of("max_n2c1h4w4_r2s2_st2_p0_u8_nchw")
    plan, one = plan_of(str(problem)), np.zeros(1, np.uint8)
    x = np.lib.stride_tricks.as_strided(one, problem.x_shape, (2**31, 16, 4, 1))
    with pytest.raises(ValueError, match="make it contiguous first"):
        plan({"x": x, "out": np.zeros(problem.out_shape, np.uint8)})


def test_small_pictures_get_small_tiles() -> None:
    large, small = (POOL.configs(problem_of(f"max_n{n}c64h112w112_r3s3_st2_p1_f32_nchw"), H200)[0] for n in (32, 1))
    assert (large.out_p, large.out_q) == (2, 2)
    assert small.out_p * small.out_q < 4


@needs_emulator
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MaxPoolConfig(16), "block=16: a block has 32 to 1024 threads"),
        (MaxPoolConfig(256, 0, 1), "at least one row and one column"),
        (MaxPoolConfig(256, 16, 16), "256 outputs in registers; 64 are to be had"),
    ],
)
def test_a_config_that_cannot_be_says_why(config: MaxPoolConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        plan_of("max_n1c3h9w10_r2s2_st2_p0_f32_nchw", config)


@needs_emulator
def test_users_reach_it_by_naming_the_device() -> None:
    x = RANDOM.normal(size=(2, 3, 17, 20)).astype(np.float32)
    for arguments in ((2,), (3, 2, 1), ((3, 2), (2, 1), "same"), (3, 2, 1, 2, True)):
        np.testing.assert_array_equal(
            convforge.max_pool2d(x, *arguments, device="emulator"), convforge.max_pool2d(x, *arguments)
        )
    last, expected = x.transpose(0, 2, 3, 1), convforge.max_pool2d(x, 3, 2, 1)
    result = convforge.max_pool2d(last, 3, 2, 1, layout="NHWC", device="emulator")
    np.testing.assert_array_equal(result, expected.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(convforge.max_pool2d(x[0], 3, 2, 1, device="emulator"), expected[0])
    assert convforge.max_pool2d(x[:0], 3, device="emulator").shape == (0, 3, 5, 6)
    out = np.full_like(expected, np.nan)[..., ::-1]
    assert convforge.max_pool2d(x, 3, 2, 1, device="emulator", out=out) is out
    np.testing.assert_array_equal(out, expected)
    own = x.copy()
    np.testing.assert_array_equal(
        convforge.max_pool2d(own, 3, 1, 1, device="emulator", out=own), convforge.max_pool2d(x, 3, 1, 1)
    )
