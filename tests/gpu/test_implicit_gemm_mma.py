"""implicit_gemm_mma on a GPU or the emulator: any layer, every tile, rows in a workspace, shares, equal bits, NCHW."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.hopper import (
    assert_preferred,
    assert_same_bits,
    bits_of,
    hopper,
    method_of,
    needs_hopper,
    on_gpu_alone,
    some,
)
from tests.judged import judge_of

import convforge
from convforge.algorithms.implicit_gemm.mma import TILES, ImplicitMmaConfig, steps_of
from convforge.problem import PADDING_MODES, Conv2dProblem, parse_problem
from convforge.verify import check_nan_spread, check_plan, make_inputs

METHOD: Any = method_of("conv2d", "implicit_gemm_mma")
pytestmark = needs_hopper

# Every tile as a config of a layer.
CONFIGS = list(TILES)
PROBLEMS = [
    "n2c16h9w10_k24r3s3_p1_f16_nhwc", "n1c64h7w7_k72r3s3_p1_bf16_nhwc_+bias+relu", "n3c40h8w5_k33r1s1_f16_nhwc",
    "n1c13h9w10_k7r3s2_st2_p1x0x2x1_reflect_f16_nchw", "n1c3h19w21_k16r7s7_st2_p3_f16_nchw",
    "n2c24h9w8_k36r5s3_d1x2_p2_constant9.0_g3_f16_nhwc", "n1c6h9w8_k10r3s3_p1_g2_f16-f16-f32-f32_nchw",
    "n2c20h6w7_k12r3s3_p1_circular_bf16_nhwc_+scale:channel+bias+residual+silu", "n1c1h5w5_k1r2s2_f16_nhwc",
    "n1c9h8w8_k18r3s3_p1_g9_f16_nhwc", "n0c16h5w5_k8r3s3_f16_nhwc",
]  # fmt: skip
# Warps of 32 filters, whose lanes can store eight outputs as one, and of 16.
WIDE, NARROW = ImplicitMmaConfig(32, 32, 32, 16, 32, 3), ImplicitMmaConfig(32, 32, 32, 16, 16, 3)


def shared(problem: Conv2dProblem, config: ImplicitMmaConfig, count: int) -> ImplicitMmaConfig:
    """The config with about so many blocks that share a tile's steps."""
    steps = steps_of(problem, config.block_k)
    return replace(config, split_k=-(-steps // -(-steps // min(count, steps))))


@pytest.mark.one_in(24)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_tile_is_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    every = some(CONFIGS, len(CONFIGS))
    few = shared(problem, every[-1], 3)
    for config in (*every, few, replace(every[0], repacked=True), replace(few, repacked=True)):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("border", PADDING_MODES)
def test_every_border_as_x_lies_and_as_rows(border: str) -> None:
    mode = {"zeros": "", "constant": "constant9.0_"}.get(border, f"{border}_")
    for layout in ("nhwc", "nchw"):
        text = f"n2c24h7w9_k20r3s2_st2x1_p1x2x2x1_{mode}g2_f16_{layout}"
        problem: Any = parse_problem(text)
        plans = [METHOD.plan(problem, replace(WIDE, repacked=turned), hopper()) for turned in (False, True)]
        for plan in plans:
            verdict = check_plan(plan, judge_of(text, "normal"))
            assert verdict.ok, f"{plan.config}: {verdict.message}"
        inputs = make_inputs(problem, "normal")
        np.testing.assert_array_equal(bits_of(plans[0], inputs), bits_of(plans[1], inputs))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", ["h6w8", "h5w6", "h5w7", "h1w24", "h24w1"])
def test_results_in_nchw(size: str) -> None:
    """Planes of a multiple of eight pixels, of an even number, and of an odd one; tiles reach over several pictures."""
    layers = ("c16{}_k21r3s3_p1_f16_nhwc-krsc-nchw", "c12{}_k42r1s1_g2_bf16_nchw_+scale:channel+bias+residual+silu")
    for layer in layers:
        text = f"n3{layer.format(size)}"
        for config in (WIDE, NARROW, shared(parse_problem(text), WIDE, 2)):  # type: ignore[arg-type]
            verdict = check_plan(METHOD.plan(parse_problem(text), config, hopper()), judge_of(text, "normal"))
            assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize(("size", "together"), [("h4w8", 8), ("h5w2", 2), ("h4w6", 1)])
def test_planes_of_a_larger_array(size: str, together: int) -> None:
    """Pixels are stored as one where every plane begins at a multiple of so many; nothing is written beside them."""
    problem: Any = parse_problem(f"n3c16{size}_k21r3s3_p1_f16_nchw")
    run = math.gcd(problem.p * problem.q, 8)
    plan = METHOD.plan(problem, replace(WIDE, block_m=64, warp_m=64, run=run), hopper())
    inputs = make_inputs(problem, "integers")
    n, k, p, q = problem.out_shape
    wide = hopper().upload(np.full((n, k, p + 1, q), 7, np.float16))
    x, w = hopper().upload(inputs.x), plan.prepare(hopper().upload(inputs.w))
    buffers = plan.buffers(x, w, {}, wide[:, :, 1:])
    assert plan.steps[0].fill(buffers).store_width == together
    plan(buffers)
    found = np.asarray(hopper().download(wide))
    np.testing.assert_array_equal(found[:, :, 1:], bits_of(plan, inputs).view(np.float16))
    assert (found[:, :, 0] == 7).all()


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("n2c64h20w20_k64r3s3_p1_f16_nhwc", False), ("n2c64h20w20_k64r3s3_p1_f16_nchw", True),
        ("n2c13h20w20_k64r3s3_p1_f16_nhwc", True), ("n2c64h20w20_k64r3s3_p1_reflect_bf16_nhwc", True),
        ("n2c64h20w20_k64r3s3_reflect_bf16_nhwc", False), ("n2c24h20w20_k64r3s3_p1_g2_f16_nhwc", True),
        ("n2c24h20w20_k24r3s3_p1_g24_f16_nchw", False),
    ],
)  # fmt: skip
def test_x_is_first_written_as_rows_where_it_cannot_be_copied(text: str, turned: bool) -> None:
    found = METHOD.configs(parse_problem(text), hopper().facts)
    assert len(found) > 2
    plain = [config for config in found if not config.repacked]
    assert plain == (found[-1:] if turned else found)


def test_every_tile_gives_the_same_bits_and_a_picture_does_not_depend_on_its_batch() -> None:
    problem: Any = parse_problem("n3c24h9w7_k20r3s3_p1_f16_nhwc")
    inputs = make_inputs(problem, "normal")
    assert_same_bits(METHOD, problem, inputs, CONFIGS[1::4])


@pytest.mark.parametrize("text", ["n1c16h9w9_k24r3s3_p1_f16_nhwc", "n1c13h9w7_k8r3s3_p1_g1_bf16_nchw"])
def test_a_nan_reaches_the_outputs_whose_window_holds_it(text: str) -> None:
    problem: Any = parse_problem(text)
    for config in (CONFIGS[-1], shared(problem, CONFIGS[-1], 2), replace(CONFIGS[-1], repacked=True)):
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(METHOD.plan(problem, config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


def test_few_tiles_share_their_steps_out() -> None:
    facts = replace(hopper().facts, cores=100)
    few: Any = parse_problem("n1c512h7w7_k512r3s3_p1_f16_nhwc")
    first = METHOD.configs(few, facts)[0]
    assert first.split_k > 1
    many: Any = parse_problem("n64c64h56w56_k64r3s3_p1_f16_nhwc")
    assert all(config.split_k == 1 for config in METHOD.configs(many, facts))
    for split_k in (0, 73, 1000):
        with pytest.raises(ValueError, match=f"steps are not shared out among {split_k} blocks"):
            METHOD.plan(few, replace(first, split_k=split_k), hopper())


def test_auto_by_rule_takes_it_where_there_are_many_channels_and_filters() -> None:
    assert_preferred(METHOD, {
        "n8c64h56w56_k64r3s3_p1_f16_nhwc": True, "n8c64h56w56_k64r3s3_p1_f16_nchw": True,
        "n8c3h224w224_k64r7s7_f16_nhwc": False, "n8c21h9w9_k64r3s3_reflect_f16_nchw": True,
        "n8c60h9w9_k64r3s3_g4_f16_nhwc": False, "n8c80h9w9_k80r3s3_g4_f16_nhwc": True,
        "n8c64h56w56_k8r3s3_p1_f16_nhwc": False, "n8c64h56w56_k64r3s3_p1_f32_nhwc": False,
    })  # fmt: skip


def test_other_types_are_refused() -> None:
    for text in ("n1c16h5w5_k16r3s3_f32_nhwc", "n1c16h5w5_k16r3s3_f16-bf16-f32-f32_nhwc", "n1c16h5w5_k16r3s3_u8_nhwc"):
        assert str(METHOD.refuses(parse_problem(text), hopper().facts)).startswith(
            "x and w must be of one type of float16"
        )
    old = replace(hopper().facts, architecture="sm_75")
    assert "came with sm_80" in str(METHOD.refuses(parse_problem(PROBLEMS[0]), old))


@on_gpu_alone
@pytest.mark.parametrize("ahead", [8, 3])
def test_parts_of_larger_arrays(ahead: int) -> None:
    """Channels that begin at no multiple of 16 bytes, rows with gaps, outputs in a part of an array."""
    torch = pytest.importorskip("torch")
    wide = torch.randint(-2, 3, (2, 20, 20, 64), device="cuda").half()
    x, w = wide[:, 1:18, 2:19, ahead : ahead + 24], torch.randint(-2, 3, (40, 24, 3, 3), device="cuda").half()
    expected = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).double(), w.double(), padding=1).permute(0, 2, 3, 1)
    found = convforge.conv2d(x, w, padding=1, layout="NHWC", algorithm="implicit_gemm_mma")
    torch.testing.assert_close(found, expected.half(), rtol=0, atol=0)
