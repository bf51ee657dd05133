"""implicit_gemm_tf32_mma and gemm_tf32_mma on a GPU or the emulator: any layer, every tile, shares, products, NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.hopper import hopper, method_of, needs_hopper, some
from tests.judged import judge_of

from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan

METHOD: Any = method_of("conv2d", "implicit_gemm_tf32_mma")
pytestmark = needs_hopper

# Whole pieces of four channels and others, both layouts, every border, groups, strides, dilation, epilogues.
PROBLEMS = [
    "n2c12h7w8_k24r3s3_p1_f32_nhwc_math-tf32", "n1c36h6w5_k40r3s2_p1_d1x2_f32_nhwc_+bias+relu_math-tf32",
    "n3c20h6w5_k33r1s1_f32_nhwc_math-tf32", "n1c13h7w8_k7r3s2_st2_p1x0x2x1_reflect_f32_nchw_math-tf32",
    "n1c24h6w7_k21r3s3_p1_constant9.0_g3_f32_nhwc_math-tf32", "n1c10h6w8_k16r3s3_p1_g2_f32_nchw_math-tf32",
    "n1c8h6w6_k12r3s3_p2_circular_f32_nchw_+scale:channel+bias+residual+silu_math-tf32",
    "n0c16h5w5_k8r3s3_f32_nhwc_math-tf32",
]  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_tiles_are_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    every = METHOD.configs(problem, hopper().facts)
    for config in dict.fromkeys((*some(every, 6), replace(every[-1], repacked=not every[-1].repacked))):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize("text", PROBLEMS[:4])
def test_a_nan_reaches_the_outputs_whose_window_holds_it(text: str) -> None:
    problem: Any = parse_problem(text)
    for kind in ("nan", "inf"):
        verdict = check_nan_spread(METHOD.plan(problem, METHOD.configs(problem, hopper().facts)[0], hopper()), kind)
        assert verdict.ok, verdict.message


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", ["m37n40k40_f32", "m45n33k70_ta_f32", "m33n40k64_tb_f32", "m20n24k7_ta_tb_f32"])
def test_products_of_matrices(text: str) -> None:
    product, asked = method_of("gemm", "gemm_tf32_mma"), f"{text}_math-tf32"
    problem: Any = parse_problem(asked)
    for config in dict.fromkeys(some(product.configs(problem, hopper().facts), 4)):
        for kind in ("normal", "integers"):
            verdict = check_plan(product.plan(problem, config, hopper()), judge_of(asked, kind))
            assert verdict.ok, f"{config}: {verdict.message}"


def test_what_is_refused_and_where_auto_takes_it() -> None:
    ampere, turing = (replace(hopper().facts, architecture=name) for name in ("sm_80", "sm_75"))
    layer: Any = parse_problem("n8c64h56w56_k64r3s3_p1_f32_nchw_math-tf32")
    assert METHOD.refuses(layer, ampere) is None
    assert METHOD.preference_for(layer, ampere) is not None
    assert "came with sm_80" in str(METHOD.refuses(layer, turing))
    halves: Any = parse_problem("n8c64h56w56_k64r3s3_p1_f16_nchw")
    assert "must be of one type of float32" in str(METHOD.refuses(halves, ampere))
    assert METHOD.precision == method_of("gemm", "gemm_tf32_mma").precision == "tf32"
