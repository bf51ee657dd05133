"""im2col of float32 on tensor cores, a GPU's or the emulator's: any layer, chunks, numbers that halves hold badly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.algorithms.split_inputs import KINDS, REDONE, SCALED, SPLIT, split_inputs, split_judge
from tests.gpu.hopper import hopper, is_gpu, method_of, needs_hopper
from tests.judged import judge_of

from convforge.algorithms import refusal
from convforge.algorithms.im2col.by_convolution import chunks_of
from convforge.algorithms.im2col.device import Im2colConfig
from convforge.problem import parse_problem
from convforge.problem.types import WIDE
from convforge.verify import check_nan_spread, check_plan

METHOD: Any = method_of("conv2d", "im2col")
pytestmark = needs_hopper

GEMM = METHOD.convolved
TF32: Any = method_of("conv2d", "im2col_tf32")
PROBLEMS = (
    "n2c4h11w13_k5r3s3_st1x2_p1x0x2x1_d2x1_f32_nchw_+bias+residual+relu", "n3c16h7w6_k9r3s3_st2_p1_flip_f32_nhwc",
    "n2c32h5w6_k24r3s3_p1_g2_f32_nhwc_+scale:channel+bias+residual+silu", "n2c12h5w6_k20r3s2_p1_g2_f32_nchw",
    "n1c16h8w8_k20r3s3_p2_reflect_f32_nchw-kcrs-nhwc", "n2c17h5w7_k6r3s3_p1_constant1.5_f32_nhwc-krsc-nchw",
    "n2c4h7w7_k4r3s3_p2_circular_f32_nhwc_+bias", "n2c33h4w5_k7r1s1_f32_nhwc", "n1c5h9w37_k3r3s3_p1_f32_nchw",
    "n2c6h6w7_k8r3s3_p1_u8-f32-f32-f32_nchw", "n1c2h7w9_k5r17s1_p8x8x0x0_f32_nchw", "n0c8h5w5_k8r3s3_f32_nhwc",
)  # fmt: skip


def chunks(text: str) -> tuple[int, ...]:
    """Columns of chunks: everything, an image, and two rows of one."""
    problem: Any = parse_problem(text)
    return 1 << 20, problem.p * problem.q, 2 * problem.q + 1


@pytest.mark.one_in(20)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_chunk_is_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    judge = split_judge(text, kind)
    for columns in chunks(text):
        verdict = check_plan(METHOD.plan(problem, Im2colConfig(columns, GEMM), hopper()), judge)
        assert verdict.ok, f"{columns}: {verdict.message}"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_chunk_in_tf32_is_right(text: str) -> None:
    """With rows that begin at 16 bytes, and with those that are written so first."""
    problem: Any = parse_problem(text).allowing("tf32")
    judge = judge_of(str(problem), "normal")
    for columns in chunks(text):
        verdict = check_plan(TF32.plan(problem, Im2colConfig(columns, TF32.convolved), hopper()), judge)
        assert verdict.ok, f"{columns}: {verdict.message}"


def test_numbers_rounded_to_tf32_are_asked_for_by_name() -> None:
    facts, problem = hopper().facts, parse_problem("n2c16h7w6_k9r3s3_f32_nhwc")
    assert "its arithmetic is 'tf32'" in str(refusal(TF32, problem, facts))
    asked = problem.allowing("tf32")
    assert refusal(TF32, asked, facts) is None
    assert TF32.preference_for(asked, facts) is None
    assert {config.gemm for config in TF32.configs(asked, facts)} == {"gemm_tf32_mma"}
    assert "came with sm_80" in str(TF32.refuses(asked, replace(facts, architecture="sm_75")))
    with pytest.raises(ValueError, match="of im2col_tf32 is unknown; choose one of gemm_tf32_mma"):
        TF32.plan(asked, Im2colConfig(42, "gemm_split_mma"), hopper())
    for text in ("n2c16h7w6_k9r3s3_f64_nhwc", "n2c16h7w6_k9r3s3_f16_nhwc"):
        assert TF32.refuses(parse_problem(text), facts) is not None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", PROBLEMS[1:4])
def test_every_config_is_right(text: str) -> None:
    problem: Any = parse_problem(text)
    found = [config for config in METHOD.configs(problem, hopper().facts) if config.gemm == GEMM]
    assert {config.tile for config in found} == {0, 1, 2, 3}
    for config in found:
        verdict = check_plan(METHOD.plan(problem, config, hopper()), split_judge(text, "normal"))
        assert verdict.ok, f"{config}: {verdict.message}"


def test_few_columns_share_their_entries_out() -> None:
    text = "n1c32h4w4_k16r3s3_p1_f32_nhwc_+bias"
    problem: Any = parse_problem(text)
    plan = METHOD.plan(problem, Im2colConfig(16, GEMM), hopper())
    assert is_gpu() or plan.launches[-1].kernel == "sum_shares"
    verdict = check_plan(plan, split_judge(text, "normal"))
    assert verdict.ok, verdict.message


@pytest.mark.one_in(20)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["n2c34h5w4_k20r3s3_p1_f32_nhwc_+bias", "n1c20h4w4_k18r3s3_p1_reflect_f32_nchw"])
def test_numbers_that_halves_hold_badly(text: str, kind: str) -> None:
    """As good as sums of floats, whatever the range, and a note tells where multiply-adds computed them."""
    problem: Any = parse_problem(text)
    inputs, runtime = split_inputs(problem, kind), hopper()
    plan = METHOD.plan(problem, Im2colConfig(2 * problem.q, GEMM), runtime)
    verdict = check_plan(plan, split_judge(text, kind))
    assert verdict.ok, verdict.message
    prepared = plan.prepare(runtime.upload(inputs.w))
    operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
    plan(plan.buffers(runtime.upload(inputs.x), prepared, operands, runtime.empty(problem.out_shape, "float32")))
    redone = int(np.asarray(runtime.download(prepared.tensors["redone"])).view(np.uint32)[0])
    assert kind not in REDONE or redone or kind in SCALED
    assert kind not in SPLIT or (not redone and prepared.note is None)


@pytest.mark.parametrize("text", [PROBLEMS[0], PROBLEMS[1], PROBLEMS[4]])
def test_a_nan_reaches_the_outputs_whose_window_holds_it(text: str) -> None:
    problem: Any = parse_problem(text)
    for columns in chunks(text)[1:]:
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(METHOD.plan(problem, Im2colConfig(columns, GEMM), hopper()), kind)
            assert verdict.ok, f"{columns}: {verdict.message}"


def test_chunks_are_images_or_rows_of_one() -> None:
    problem: Any = parse_problem("n5c4h6w10_k4r3s3_p1_f32_nchw")  # 60 outputs of an image, 10 of a row
    assert [chunk.images for chunk in chunks_of(problem, 1 << 20)] == [5]
    assert [chunk.images for chunk in chunks_of(problem, 4 * 60 + 59)] == [3, 2]
    for columns, heights in ((59, [5, 1]), (25, [2, 2, 2]), (1, [1] * 6)):
        found = chunks_of(problem, columns)
        assert [(chunk.image, chunk.height) for chunk in found] == [(n, rows) for n in range(5) for rows in heights]
        assert [chunk.row for chunk in found[: len(heights)]] == [sum(heights[:i]) for i in range(len(heights))]


def test_it_is_offered_behind_the_first_and_to_float32_alone() -> None:
    facts = hopper().facts
    first, second, *_ = METHOD.configs(parse_problem(PROBLEMS[1]), facts)
    assert (first.gemm, second.gemm) == ("gemm_warp_tiled", GEMM)
    old = replace(facts, architecture="sm_75")
    for text, words in (
        ("n1c16h5w5_k16r3s3_f16_nhwc", "must all be float32"), ("n1c3h5w5_k16r3s3_f32_nhwc", "fewer than 32 products"),
        ("n1c16h5w5_k16r3s3_f64_nhwc", "multiplies float32, not float64"), ("n1c8h5w5_k8r1s3_g8_f32_nchw", "fewer"),
        ("n1c65536h9w9_k1r9s9_f32_nchw", "at most 4194240 entries, not 5308416"),
        (f"n1c4h{1 << 15}w{1 << 15}_k3r3s3_p1_f32_nchw", f"at most {WIDE} numbers"),
    ):  # fmt: skip
        problem = parse_problem(text)
        assert all(config.gemm != GEMM for config in METHOD.configs(problem, facts))
        with pytest.raises(ValueError, match=words):
            METHOD.plan(problem, Im2colConfig(1 << 20, GEMM), hopper())
    assert all(config.gemm != GEMM for config in METHOD.configs(parse_problem(PROBLEMS[1]), old))
    with pytest.raises(ValueError, match="tile=99 of im2col: gemm_split_mma has tilings 0 to"):
        METHOD.plan(parse_problem(PROBLEMS[1]), Im2colConfig(1 << 20, GEMM, 99), hopper())
