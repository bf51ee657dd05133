"""depthwise_dp4a on a GPU or the emulator: configs, borders, ties, biases, equal bits, faults."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.algorithms.faults_depthwise_dp4a import DEPTHWISE_DP4A_FAULTS
from tests.algorithms.planted import Fault
from tests.gpu.hopper import hopper, is_gpu, method_of, needs_hopper, on_gpu_alone, some
from tests.gpu.planted import check_that_it_is_noticed
from tests.judged import judge_of

from convforge.algorithms.depthwise.device import DepthwiseDp4aConfig
from convforge.problem import PADDING_MODES, parse_problem
from convforge.verify import Inputs, check_plan, make_inputs
from convforge.verify.plans import upload_inputs

METHOD: Any = method_of("conv2d", "depthwise_dp4a")
OTHER: Any = method_of("conv2d", "depthwise_channels")
pytestmark = needs_hopper

# All types of x, w and results; zero points; strides, dilation, filters of even size; numbers of channels that
# fill blocks and none; filters of few words of taps and of many.
PROBLEMS = [
    "n2c32h9w10_k32r3s3_p1_g32_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
    "n1c4h17w18_k4r3s3_st2_p1_g4_i8-u8-i8-i32_nhwc_+zero:-3+scale:channel+bias+relu",
    "n2c52h9w7_k52r5s5_p2_g52_u8-u8-i32-i32_nhwc_+zero:255",
    "n1c24h12w11_k24r5s4_st1x2_p2x1x0x3_g24_i8-i8-u8-i32_nhwc_+scale:tensor+relu",
    "n1c12h9w20_k12r7s7_p3_g12_u8-i8-f16-i32_nhwc_+zero:9+scale:channel+bias",
    "n1c8h9w12_k8r2s1_g8_u8-i8-f32-i32_nhwc_+zero:9+scale:tensor+residual+silu",
    "n1c16h7w9_k16r3s3_p1_g16_i8-i8-bf16-i32_nhwc_+bias+gelu",
    "n1c20h8w8_k20r1s1_g20_i8-i8-i16-i32_nhwc",
    "n1c8h10w9_k8r3s5_p1x2_g8_u8-i8-u16-i32_nhwc_+zero:100",
    "n2c20h8w9_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias+residual:0.37+relu+out:0.7:7",
    "n1c16h9w9_k16r3s3_p1_g16_u8-i8-u8-i32_nhwc_+over:6",
    "n1c16h9w9_k16r6s8_p3x4_g16_u8-u8-u8-i32_nhwc_+zero:255+scale:channel+bias",
    "n0c16h5w5_k16r3s3_g16_u8-i8-u8-i32_nhwc_+zero:1",
    "n1c24h13w14_k24r3s3_p2_d2_g24_u8-i8-u8-i32_nhwc_+zero:50+scale:channel+bias",
    "n1c8h13w14_k8r5s2_st2x1_p3x1_d1x4_g8_i8-i8-i32-i32_nhwc_+zero:-50",
    "n1c8h23w14_k8r3s3_st2x1_p3_d3_g8_i8-i8-i32-i32_nhwc_+zero:-50",
    "n1c8h23w14_k8r3s3_st4x3_p3_d1x2_g8_i8-i8-i32-i32_nhwc",
]  # fmt: skip
# Blocks of some channels and of all, whose tiles begin in one strip and end in another; low strips and high ones.
STRIPS = (DepthwiseDp4aConfig(2, 3, 2, 8), DepthwiseDp4aConfig(1, 2, 5, 7), DepthwiseDp4aConfig(4, 5, 1, 32))
# Real layers: of MobileNet, EfficientNet, ConvNeXt; one that no tile divides.
LAYERS = (
    "c32h112w112_k32r3s3_p1_g32", "c96h112w112_k96r3s3_st2_p1_g96", "c144h56w56_k144r3s3_p1_g144",
    "c240h28w28_k240r5s5_p2_g240", "c672h14w14_k672r5s5_st2_p2_g672", "c96h56w56_k96r7s7_p3_g96",
    "c100h61w67_k100r3s3_st1x2_p1x0x2x1_g100",
)  # fmt: skip


def configs(problem: Any, count: int) -> list[Any]:
    """Some configs that are valid for a problem."""
    facts = hopper().facts
    return list(dict.fromkeys([*some(METHOD.configs(problem, facts), count), *METHOD.valid(problem, STRIPS, facts)]))


def bits(method: Any, problem: Any, config: Any, inputs: Inputs) -> NDArray[Any]:
    """The bytes of a method's results."""
    plan, there = method.plan(problem, config, hopper()), upload_inputs(hopper(), inputs)
    out = hopper().upload(np.zeros(problem.out_shape, problem.out_dtype))
    plan(plan.buffers(there.x, plan.prepare(there.w), there.operands, out))
    return np.asarray(hopper().download(out)).view(np.uint8)


@pytest.mark.one_in(31)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_tiles_are_right(text: str, kind: str) -> None:
    problem = parse_problem(text)
    for config in configs(problem, 9):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(12)
@pytest.mark.parametrize("border", PADDING_MODES)
def test_zero_points_at_every_border(border: str) -> None:
    """With small images too, of which a tile reaches far beyond the border."""
    mode = {"zeros": "", "constant": "constant9.0_"}.get(border, f"{border}_")
    for size in ("n2c20h11w13_k20r3s2_st2x1_p1x2x2x1", "n1c8h3w4_k8r5s5_p2"):
        for what in ("u8-i8-u8-i32_nhwc_+zero:77+scale:channel+bias", "i8-i8-i32-i32_nhwc_+zero:-7"):
            text = f"{size}_{mode}g{size.split('_')[0].split('c')[1].split('h')[0]}_{what}"
            problem = parse_problem(text)
            for config in configs(problem, 2):
                verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, "normal"))
                assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("result", ["u8", "i8"])
def test_scales_and_biases_of_any_size(result: str) -> None:
    """Large, infinite and NaN ones, and those that make many ties, are left to double."""
    scales = np.array([0.01, 0.5, -0.25, 2.0**-24, 0.0, 1e-300, 1e39, np.inf, np.nan, 1 / 512, 3.0, 0.037])
    biases = np.array([0.0, 0.5, -7.5, 262143.5, -262144.5, 3e8, -1e308, np.inf, -np.inf, np.nan, 5e-324, 128.0])
    k, relu = len(scales) * len(biases), "+relu" if result == "i8" else ""
    for filter_ in ("r3s3_p1", "r7s7_p3"):  # sums that are the bits of a float, and, of uint8 by uint8, others
        types = f"u8-u8-{result}-i32" if filter_ == "r7s7_p3" else f"u8-i8-{result}-i32"
        problem: Any = parse_problem(f"n1c{k}h6w9_k{k}{filter_}_g{k}_{types}_nhwc_+zero:3+scale:channel+bias{relu}")
        inputs = make_inputs(problem, "integers")
        inputs.operands["scale"][...] = np.repeat(scales, len(biases))
        inputs.operands["bias"][...] = np.tile(biases, len(scales))
        expected = bits(OTHER, problem, OTHER.configs(problem, hopper().facts)[0], inputs)
        for config in configs(problem, 2):
            np.testing.assert_array_equal(bits(METHOD, problem, config, inputs), expected, str(config))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_have_the_bits_of_another_method(layer: str) -> None:
    """Random bytes of the full range, in every config; on the emulator a part of the layer."""
    problem: Any = parse_problem(f"n8{layer}_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias")
    if not is_gpu():
        few = min(problem.c, 36)
        problem = problem.replace(n=1, c=few, k=few, groups=few, h=max(14, problem.h // 4), w=max(14, problem.w // 4))
    inputs = make_inputs(problem)
    root = np.sqrt(problem.largest_sum)  # so that few results are cut off
    inputs.operands["scale"][...] = np.linspace(0.5, 2, problem.k) / root
    expected = bits(OTHER, problem, OTHER.configs(problem, hopper().facts)[0], inputs)
    assert len(np.unique(expected)) > 100
    found = METHOD.configs(problem, hopper().facts)
    for config in found if is_gpu() else configs(problem, 2):
        np.testing.assert_array_equal(bits(METHOD, problem, config, inputs), expected, str(config))


def test_more_images_than_a_grid_has_rows() -> None:
    text = "n66000c4h1w2_k4r1s1_g4_u8-i8-i32-i32_nhwc_+zero:9"
    problem = parse_problem(text)
    for config in METHOD.configs(problem, hopper().facts)[:1]:
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, "normal"))
        assert verdict.ok, f"{config}: {verdict.message}"


def test_what_is_refused_and_where_auto_takes_them() -> None:
    facts = {number: replace(hopper().facts, architecture=f"sm_{number}") for number in (60, 61, 75, 80, 90, 100, 120)}
    layer: Any = parse_problem("n8c64h56w56_k64r3s3_p1_g64_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias")
    assert [number for number in facts if METHOD.refuses(layer, facts[number]) is None] == [61, 75, 80, 90, 100, 120]
    assert str(METHOD.refuses(layer, facts[60])) == "dp4a came with sm_61; this is sm_60"
    for other, words in (
        (layer.replace(groups=1), "a filter must see one channel"),
        (layer.replace(x_dtype="int16"), "x and w must be of int8, uint8; these are int16 and int8"),
        (layer.replace(out_layout="NCHW"), "x and out must be NHWC, not NHWC and NCHW"),
        (layer.replace(out_dtype="float64"), "4 results of float64 are more than one store of 16 bytes"),
        (layer.replace(k=128), "C=64 must be a multiple of it, and K=128 equal C"),
        (layer.replace(c=66, k=66, groups=66), "words hold 4 channels: C=66"),
        (layer.replace(r=1, s=33), "needs 33 pixels of a row, more than 32"),
        (layer.replace(dilation=(1, 16)), "needs 33 pixels of a row, more than 32"),
        (layer.replace(h=200, r=90, s=32, stride=(10, 1)), "is too long to be unrolled"),
        (layer.replace(r=50), "registers; 200 are to be had"),
    ):
        assert words in str(METHOD.refuses(other, facts[90]))
    assert METHOD.preference_for(layer, facts[90]) is not None


def test_no_tile_has_more_pixels_of_a_row_than_a_word_has_bits() -> None:
    problem: Any = parse_problem("n1c8h20w90_k8r3s5_st1x4_p1x2_g8_u8-i8-i32-i32_nhwc_+zero:3")
    found = METHOD.configs(problem, hopper().facts)
    assert max((config.out_q - 1) * 4 + 5 for config in found) <= 32
    verdict = check_plan(METHOD.plan(problem, found[0], hopper()), judge_of(str(problem), "normal"))
    assert verdict.ok, verdict.message


# Wrong arithmetic, which a GPU shows in each run. Others read beyond an array, or depend on the order of threads.
SHOWN = [
    fault
    for fault in DEPTHWISE_DP4A_FAULTS
    if (fault.file == "device/four_channels.cuh" or re.search("taps|zero point|filter|byte", fault.name))
    and "barrier" not in fault.name
]


@on_gpu_alone
@pytest.mark.parametrize("fault", SHOWN, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    check_that_it_is_noticed(METHOD, fault, judge_of(fault.run.problem, fault.run.kind), tmp_path)
