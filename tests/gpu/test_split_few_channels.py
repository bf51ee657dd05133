"""implicit_gemm_split_few_channels on a GPU or the emulator: any first layer, numbers that halves hold badly.

test_few_channels.py has borders, NaN, and arrays with gaps, for both methods.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.split_inputs import KINDS, REDONE, SPLIT, split_inputs, split_judge
from tests.gpu.hopper import assert_preferred, assert_same_bits, hopper, method_of, needs_hopper, some
from tests.judged import judge_of

import convforge
from convforge.algorithms.implicit_gemm.few_channels import patch_of, shared_bytes
from convforge.algorithms.implicit_gemm.split_few_channels import MOST_LOST, TILES, SplitFewChannelsConfig
from convforge.problem import parse_problem
from convforge.verify import Judge, check_plan, make_inputs

METHOD: Any = method_of("conv2d", "implicit_gemm_split_few_channels")
pytestmark = needs_hopper

# Every tile as a config of a layer.
CONFIGS = list(TILES)
# Of 1 to 4 channels, in even runs of numbers and odd ones; strides of 1 to 4; numbers of steps even and odd.
PROBLEMS = (
    "n2c3h19w21_k16r7s7_st2_p3_f32_nchw", "n1c3h9w32_k40r3s3_p1_f32_nchw_+bias+relu", "n1c3h11w37_k72r3s3_p1_f32_nhwc",
    "n2c4h17w19_k24r4s4_st4_f32_nhwc", "n1c3h41w39_k36r11s11_st4_p2_f32_nchw", "n1c1h21w90_k32r5s20_st2_p2x9_f32_nchw",
    "n1c2h9w37_k33r3s5_p2_d2_f32_nhwc", "n1c1h5w40_k20r1s17_f32_nchw", "n1c2h31w36_k10r9s1_st3x1_flip_f32_nchw",
    "n1c4h9w20_k8r2s6_st1x3_p1x2x0x3_flip_f32_nhwc", "n1c3h9w37_k20r3s3_p1_f32_nhwc_+scale:channel+bias+residual+silu",
    "n1c3h3w3_k1r3s3_f32_nchw", "n1c3h9w20_k17r5s7_p2x7_d1x2_f32_nchw-kcrs-nhwc", "n0c3h5w5_k8r3s3_f32_nhwc",
)  # fmt: skip


@pytest.mark.one_in(21)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_tile_is_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    for config in some(CONFIGS, len(CONFIGS)):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(11)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["n2c3h9w20_k20r3s3_p1_f32_nhwc_+bias", "n1c2h9w20_k18r5s5_st2_p2_reflect_f32_nchw"])
def test_numbers_that_halves_hold_badly(text: str, kind: str) -> None:
    """As good as sums of floats, whatever the range; and only where it must be by multiply-adds."""
    problem: Any = parse_problem(text)
    inputs, runtime = split_inputs(problem, kind), hopper()
    plan = METHOD.plan(problem, CONFIGS[-1], runtime)
    verdict = check_plan(plan, split_judge(text, kind))
    assert verdict.ok, verdict.message
    prepared = plan.prepare(runtime.upload(inputs.w))
    operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    plan(plan.buffers(runtime.upload(inputs.x), prepared, operands, runtime.empty(problem.out_shape, "float32")))
    redone = int(np.asarray(runtime.download(prepared.tensors["redone"])).view(np.uint32)[0])
    assert kind not in REDONE or redone or kind == "far filters"
    assert kind not in SPLIT or not redone


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spread", ["each number", "sparse", "a dark half", "a dark channel"])
@pytest.mark.parametrize("text", ["n1c1h20w20_k8r5s5_p2_f32_nchw", "n1c3h20w20_k8r3s3_p1_f32_nhwc"])
def test_images_of_a_wide_range(text: str, spread: str) -> None:
    """Outputs that see the small numbers alone are as exact as others."""
    problem: Any = parse_problem(text)
    made = make_inputs(problem, "normal")
    rng = np.random.default_rng(5)
    x = np.array(made.x)
    if spread == "each number":
        x *= 10.0 ** rng.uniform(-30, 15, x.shape)
    elif spread == "sparse":
        x *= 10.0 ** rng.integers(-12, 1, x.shape) * (rng.random(x.shape) < 0.05)
    elif spread == "a dark half":
        (x if x.shape[1] == 20 else x.swapaxes(1, 2))[:, :10] *= 1e-12
    else:
        x[..., 1:2] *= 1e-12
    judge = Judge(problem, replace(made, x=x.astype(np.float32), kind="given"))
    for config in (CONFIGS[0], CONFIGS[-1]):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge)
        assert verdict.ok, f"{config}: {verdict.message}"


def test_every_tile_gives_the_same_bits_and_a_picture_does_not_depend_on_its_batch() -> None:
    problem: Any = parse_problem("n3c3h19w21_k20r5s5_st2_p2_f32_nchw")
    inputs = split_inputs(problem, "binades")
    assert_same_bits(METHOD, problem, inputs, CONFIGS[1::4])


def test_the_note_says_what_was_computed_from_floats() -> None:
    x, w = np.ones((1, 3, 9, 20), np.float32), np.ones((8, 3, 3, 3), np.float32)
    layer = convforge.Filter(w, device="emulator", algorithm="implicit_gemm_split_few_channels")
    assert not np.isnan(layer(x)).any()
    assert not layer.note
    x[0, 1, 4, 9] = np.inf
    out = layer(x)
    assert not np.isnan(out).any()
    assert np.isinf(out).sum() == 8 * 9
    assert "multiply-adds of float32" in str(layer.note)


def test_a_block_takes_the_shared_memory_that_it_is_said_to_take() -> None:
    problem: Any = parse_problem("n1c3h64w64_k64r7s7_st2_p3_f32_nchw")
    config = SplitFewChannelsConfig(16, 16, 64, 2, 64)
    assert patch_of(problem, config) == (37, 3 * 38)
    filters, places, patch = 10 * 16 * 64 * 2, 10 * 4 * 8, ((37 * 3 * 19 + 1) // 32 * 32 + 48) * 4
    scales, largest = 65 * 4, 8 * 3 * 4
    assert shared_bytes(problem, config) == 2 * (filters + patch) + places + -(-(scales + largest + 4) // 16) * 16


def test_configs_fit_the_device_and_the_filters() -> None:
    facts = replace(hopper().facts, block_shared_bytes=99 << 10, shared_bytes=100 << 10)
    for text in ("n32c3h224w224_k64r7s7_st2_p3_f32_nchw", "n32c1h28w28_k16r5s5_p1_f32_nchw",
                 "n32c3h227w227_k96r11s11_st4_f32_nchw", "n1c3h224w224_k64r3s3_p1_f32_nhwc"):  # fmt: skip
        problem: Any = parse_problem(text)
        found = METHOD.configs(problem, facts)
        assert 3 <= len(set(found)) == len(found) <= 10
        assert all(shared_bytes(problem, config) <= facts.block_shared_bytes for config in found)
        assert all(config.block_n <= 2 * problem.k for config in found)


def test_configs_that_cannot_be_are_refused() -> None:
    problem: Any = parse_problem("n1c3h32w32_k64r7s7_f32_nchw")
    for config, words in (
        (SplitFewChannelsConfig(warp_n=64, fragments=4), "a lane would have 128 sums; it has room for 64"),
        (SplitFewChannelsConfig(16, 24, 64, 2, 64), "tile_w=24 is no multiple of 16"),
        (SplitFewChannelsConfig(4, 16, 1024, 2, 32), "at most 32 warps, not 64"),
        (SplitFewChannelsConfig(4, 16, 512, 2, 64), "bytes of shared memory; a block has"),
    ):
        with pytest.raises(ValueError, match=words):
            METHOD.plan(problem, config, hopper())


def test_auto_by_rule_takes_it_for_few_channels() -> None:
    assert_preferred(METHOD, {
        "n8c3h224w224_k64r7s7_st2_p3_f32_nhwc": True, "n8c3h224w224_k32r3s3_st2_p1_f32_nchw": True,
        "n8c3h224w224_k96r4s4_st4_f32_nchw": True, "n8c1h161w700_k32r5s20_st2_f32_nchw": True,
        "n8c3h224w224_k4r7s7_p3_f32_nchw": False, "n8c1h64w64_k16r3s3_p1_f32_nchw": False,
        "n8c8h56w56_k64r3s3_p1_f32_nhwc": False, "n8c3h56w56_k64r3s3_p1_f16_nhwc": False,
    })  # fmt: skip


def test_other_problems_are_refused() -> None:
    facts = hopper().facts
    for text, words in (
        ("n1c3h5w5_k16r3s3_f16_nhwc", "must all be float32"),
        ("n1c1h5w5_k16r3s3_f32_nchw", "fewer than 16 products"),
        ("n1c5h5w5_k16r3s3_f32_nchw", "it is made for 4 channels at most, not 5"),
        ("n1c4h5w5_k16r3s3_g2_f32_nchw", "there are 2 groups"),
        ("n1c3h400w400_k16r99s99_f32_nchw", "bytes of shared memory; a block has"),
    ):
        assert words in str(METHOD.refuses(parse_problem(text), facts)), text
    old = replace(facts, architecture="sm_75")
    assert "came with sm_80" in str(METHOD.refuses(parse_problem(PROBLEMS[0]), old))


def test_the_kernel_allows_as_many_lost_numbers_as_the_plan_says() -> None:
    text = (Path(convforge.__file__).parent / "algorithms/device/split_patch.cuh").read_text(encoding="utf-8")
    assert re.findall(r"MOST_LOST = (\d+)", text) == [str(MOST_LOST)]
