"""implicit_gemm_int8_mma and implicit_gemm_fp8_mma on a GPU or the emulator: zero points, tiles, shares, NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.hopper import hopper, is_gpu, method_of, needs_hopper, some
from tests.gpu.test_implicit_gemm_mma import shared
from tests.judged import judge_of

from convforge.algorithms.implicit_gemm.mma import ImplicitMmaConfig
from convforge.problem import PADDING_MODES, parse_problem
from convforge.problem.types import limits
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

INT8: Any = method_of("conv2d", "implicit_gemm_int8_mma")
FP8: Any = method_of("conv2d", "implicit_gemm_fp8_mma")
pytestmark = needs_hopper

# Zero points; whole pieces of 16 channels and others; both layouts, borders, groups, strides, dilation; every result.
INTEGERS = [
    "n2c32h9w10_k24r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
    "n1c16h7w8_k40r3s3_p1_u8-i8-i8-i32_nchw_+zero:3+scale:channel+bias+relu",
    "n1c48h9w7_k33r3s2_st2_p2x1x1x0_d1x2_i8-u8-i32-i32_nhwc_+zero:-5",
    "n3c32h5w5_k70r1s1_i8-i8-i8-i32_nhwc_+scale:tensor",
    "n2c13h9w7_k7r3s2_p1x0x2x1_reflect_u8-u8-u8-i32_nchw_+zero:9+bias",
    "n1c32h6w7_k12r3s3_p1_constant9.0_g2_u8-i8-f32-i32_nhwc_+zero:7+scale:tensor+residual+silu",
    "n1c20h6w8_k10r3s3_p1_g2_u8-i8-f16-i32_nchw_+zero:200+scale:channel+bias+relu",
    "n2c21h6w7_k36r3s3_i8-i8-u8-i32_nchw_+relu",
    "n2c48h5w7_k30r3s3_p2_g2_u8-i8-bf16-i32_nhwc_+zero:50+scale:channel+bias",
    "n1c33h5w6_k15r3s3_p1_g3_u8-i8-i16-i32_nhwc_+zero:50",
    "n0c16h5w5_k8r3s3_u8-i8-u8-i32_nhwc_+zero:1",
    "n2c32h9w10_k24r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:128+scale:channel+bias",
    "n2c40h6w7_k14r3s2_st2x1_p1x0x2x1_flip_g2_i8-i16-i32-i32_nchw_wmax255_+zero:-77",
    "n1c13h6w7_k7r3s3_p1_reflect_u8-i16-i8-i32_nchw_wmax9_+scale:tensor+bias+relu",
]  # fmt: skip
FLOATS = [
    "n2c32h9w10_k24r3s3_p1_f8e4m3-f8e5m2-f16-f32_nhwc_math-fp8",
    "n1c32h7w8_k40r3s3_p1_f8e4m3_nchw_+scale:channel+bias+relu_math-fp8",
    "n2c13h9w7_k7r3s2_st2_p1x0x2x1_reflect_f8e5m2-f8e5m2-f32-f32_nchw_math-fp8",
    "n1c160h5w6_k33r3s3_p1_f8e5m2-f8e4m3-f8e5m2-f32_nhwc_math-fp8",
    "n1c32h6w7_k12r3s3_p1_constant8.0_g2_f8e5m2-f8e4m3-bf16-f32_nhwc_+bias+silu_math-fp8",
]  # fmt: skip
# Warps of 32 filters, whose lanes store eight results as one, and of 16.
WIDE, NARROW = ImplicitMmaConfig(32, 32, 64, 16, 32, 3), ImplicitMmaConfig(32, 32, 64, 32, 16, 3)


def at_the_bound(problem: Any) -> Judge:
    """The judge of inputs with the largest magnitudes, so that sums are close to 2^31: of both signs, odd and even."""
    inputs = make_inputs(problem)
    low, high = limits(problem.x_dtype)
    x = np.full_like(inputs.x, high if problem.x_dtype == "uint8" else low)
    w = np.zeros(problem.w_shape, np.int16)
    w += np.resize([-255, 255, -254, 254, -253, 1, -1, 0], problem.k)[:, None, None, None].astype(np.int16)
    return Judge(problem, replace(inputs, x=x, w=w))


def of(text: str) -> tuple[Any, Any]:
    problem: Any = parse_problem(text)
    return (INT8 if problem.acc_dtype == "int32" else FP8), problem


@pytest.mark.one_in(32)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", [*INTEGERS, *FLOATS])
def test_tiles_are_right(text: str, kind: str) -> None:
    method, problem = of(text)
    every = some(method.configs(problem, hopper().facts), 9 if is_gpu() else 2)
    others = (
        NARROW,
        replace(WIDE, repacked=True),
        shared(problem, WIDE, 3),
        replace(shared(problem, WIDE, 2), repacked=True),
    )
    for config in dict.fromkeys((*every, WIDE, *others)):
        verdict = check_plan(method.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("border", PADDING_MODES)
def test_zero_points_at_every_border(border: str) -> None:
    mode = {"zeros": "", "constant": "constant9.0_"}.get(border, f"{border}_")
    for layout, what in (
        ("nhwc", "u8-i8-u8-i32_nhwc_+zero:77+scale:channel+bias"),
        ("nchw", "i8-i8-i32-i32_nchw_+zero:-7"),
    ):
        text = f"n2c32h7w9_k20r3s2_st2x1_p1x2x2x1_{mode}g2_{what}"
        for config in (WIDE, replace(WIDE, repacked=True), shared(parse_problem(text), WIDE, 2)):  # type: ignore[arg-type]
            verdict = check_plan(INT8.plan(parse_problem(text), config, hopper()), judge_of(text, "normal"))
            assert verdict.ok, f"{layout} {config}: {verdict.message}"


@pytest.mark.parametrize("x_type", ["u8", "i8"])
@pytest.mark.parametrize("shares", [1, 2])
def test_sums_of_two_passes_at_the_bound_of_int32(x_type: str, shares: int) -> None:
    what = {"u8": "u8-i16-i32-i32_nhwc_wmax255", "i8": "i8-i16-i32-i32_nhwc_wmax255_+zero:127"}[x_type]
    problem: Any = parse_problem(f"n1c33024h1w3_k8r1s1_{what}")
    judge = at_the_bound(problem)
    assert problem.largest_sum == np.abs(judge.inputs.x.astype(np.int64) - 127 * (x_type == "i8")).max() * 255 * 33024
    verdict = check_plan(INT8.plan(problem, replace(WIDE, block_k=256, split_k=shares), hopper()), judge)
    assert verdict.ok, verdict.message


def test_weights_of_int16_are_differences_of_two_bytes() -> None:
    problem: Any = parse_problem("n1c511h1w1_k2r1s1_u8-i16-i32-i32_nhwc_wmax255")
    w = np.stack([np.arange(-255, 256), np.arange(255, -256, -1)]).astype(np.int16).reshape(2, 511, 1, 1)
    packed = INT8.plan(problem, WIDE, hopper()).prepare(hopper().upload(w)).tensors["w"]
    rounded_up, rounded_down = np.asarray(hopper().download(packed)).astype(int).reshape(2, 2, 512)
    np.testing.assert_array_equal(rounded_down - rounded_up, np.pad(w[:, :, 0, 0], ((0, 0), (0, 1))))


def test_bytes_are_stored_eight_at_a_time() -> None:
    for text, config, together in (
        ("n2c16h4w8_k24r3s3_p1_u8-i8-u8-i32_nhwc_+scale:channel+bias", WIDE, 8),
        ("n2c16h4w8_k22r3s3_p1_u8-i8-u8-i32_nhwc_+scale:channel+bias", WIDE, 2),
        ("n2c16h4w8_k5r3s3_p1_u8-i8-u8-i32_nchw_+scale:channel+bias", ImplicitMmaConfig(64, 16, 64, 64, 16, 3), 8),
        ("n2c16h4w8_k24r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8", WIDE, 8),
    ):  # fmt: skip
        method, problem = of(text)
        plan = method.plan(problem, config, hopper())
        judge = judge_of(text, "normal")
        assert check_plan(plan, judge).ok
        out = hopper().empty(problem.out_shape, np.uint8)
        x, w = hopper().upload(judge.inputs.x), plan.prepare(hopper().upload(judge.inputs.w))
        operands = {name: hopper().upload(array) for name, array in judge.inputs.operands.items()}
        launch = next(step for step in plan.steps if step.info.kernel == method.name)
        assert launch.fill(plan.buffers(x, w, operands, out)).store_width == together


@pytest.mark.one_in(2)
@pytest.mark.parametrize("text", [FLOATS[0], FLOATS[2]])
def test_a_nan_reaches_the_outputs_whose_window_holds_it(text: str) -> None:
    method, problem = of(text)
    for config in (WIDE, shared(problem, WIDE, 2)):
        verdict = check_nan_spread(method.plan(problem, config, hopper()), "nan")
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.thorough
def test_parts_of_large_filters_end_with_whole_pieces() -> None:
    """A part that is packed together has 16 of 24 channels; the zeros after the last channel are written too."""
    text = "n1c24h36w36_k2r35s35_f8e4m3-f8e4m3-f32-f32_nhwc_math-fp8"
    verdict = check_plan(FP8.plan(parse_problem(text), WIDE, hopper()), judge_of(text, "normal"))
    assert verdict.ok, verdict.message


def test_long_sums_of_8_bit_floats_are_of_two_levels() -> None:
    """Sums of 4608 products, which the units' 14 bits alone would not hold."""
    text = "n1c512h3w3_k16r3s3_p1_f8e4m3-f8e4m3-f32-f32_nhwc_math-fp8"
    verdict = check_plan(FP8.plan(parse_problem(text), replace(WIDE, block_k=256), hopper()), judge_of(text, "normal"))
    assert verdict.ok, verdict.message


def test_what_is_refused_and_where_auto_takes_it() -> None:
    facts = {number: replace(hopper().facts, architecture=f"sm_{number}") for number in (75, 80, 86, 89, 90, 120)}
    layer: Any = parse_problem("n8c64h56w56_k64r3s3_p1_u8-i8-u8-i32_nchw_+zero:128+scale:channel+bias")
    floats: Any = parse_problem("n8c64h56w56_k64r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8")
    assert [number for number in facts if INT8.refuses(layer, facts[number]) is None] == [80, 86, 89, 90, 120]
    assert [number for number in facts if FP8.refuses(floats, facts[number]) is None] == [89, 90, 120]
    assert "came with sm_80" in str(INT8.refuses(layer, facts[75]))
    assert "came with sm_89" in str(FP8.refuses(floats, facts[86]))
    halves: Any = parse_problem("n8c64h56w56_k64r3s3_p1_f16_nchw")
    for method in (INT8, FP8):
        assert "x and w must be of types" in str(method.refuses(halves, facts[89]))
    for number in (80, 89, 120):
        assert INT8.preference_for(layer, facts[number]) is not None
    wide: Any = parse_problem("n8c64h56w56_k64r3s3_p1_u8-i16-u8-i32_nchw_wmax255_+zero:128+scale:channel+bias")
    assert [number for number in facts if INT8.refuses(wide, facts[number]) is None] == [80, 86, 89, 90, 120]
    assert INT8.work_for(wide).flops == 2 * INT8.work_for(layer).flops
    for refused in (wide.replace(w_bound=256), parse_problem("n1c64h9w9_k64r3s3_i16-i16-i32-i32_nhwc_wmax1")):
        assert "x and w must be of types" in str(INT8.refuses(refused, facts[80]))
    few: Any = parse_problem("n8c3h56w56_k64r3s3_p1_u8-i8-u8-i32_nchw")
    assert INT8.preference_for(few, facts[80]) is None
