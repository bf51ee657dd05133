"""implicit_gemm_split_mma on a GPU or the emulator: numbers that halves hold badly, any layer, every tile, shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.algorithms.split_inputs import KINDS, REDONE, SCALED, SPLIT, split_inputs, split_judge
from tests.gpu.hopper import assert_same_bits, hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.judged import judge_of

import convforge
from convforge.algorithms.implicit_gemm.split_mma import TILES, SplitMmaConfig, spans_of
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import check_nan_spread, check_plan

METHOD: Any = method_of("conv2d", "implicit_gemm_split_mma")
pytestmark = needs_hopper

CONFIGS = list(TILES)
# Ragged tiles, slices of channels that are not whole, every border, strides, dilation, groups, epilogues, both layouts.
PROBLEMS = (
    "n2c8h9w7_k8r3s3_p1_f32_nhwc", "n2c24h7w6_k40r3s2_p1_f32_nhwc_+bias+relu", "n3c64h6w5_k64r1s1_f32_nhwc",
    "n1c72h7w6_k70r3s3_p2_d2_f32_nhwc_+scale:channel+bias+residual+silu", "n2c16h9w9_k24r3s3_st2_p1_f32_nhwc",
    "n2c70h5w7_k33r3s3_p1_f32_nhwc", "n1c33h6w9_k17r3s3_p1_reflect_f32_nchw_+bias",
    "n1c20h7w8_k30r3s3_p2_constant9.0_f32_nchw", "n1c40h5w6_k20r3s3_p2_circular_f32_nhwc",
    "n1c36h6w6_k40r3s3_p1_g2_f32_nchw", "n1c130h4w4_k20r3s3_p1_f32_nhwc", "n1c4h9w9_k1r3s3_p1_flip_f32_nchw",
    "n1c2h7w9_k5r17s1_p8x8x0x0_f32_nchw", "n2c64h5w4_k32r3s3_p1x0x2x1_symmetric_f32_nchw-kcrs-nhwc",
    "n0c16h5w5_k8r3s3_f32_nhwc",
)  # fmt: skip


def shared(problem: Conv2dProblem, config: SplitMmaConfig, count: int) -> SplitMmaConfig:
    """The config with about so many blocks that share a tile's channels."""
    spans = spans_of(problem)
    return replace(config, split_k=-(-spans // -(-spans // min(count, spans))))


@pytest.mark.one_in(20)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_tile_is_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    every = some(CONFIGS, len(CONFIGS))
    judge = split_judge(text, kind)
    for config in (*every, shared(problem, every[-1], 3)):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge)
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(41)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["n1c34h5w4_k20r3s3_p1_f32_nhwc_+bias", "n1c70h4w4_k18r3s3_p1_reflect_f32_nchw", PROBLEMS[8]]
)
def test_numbers_that_halves_hold_badly(text: str, kind: str) -> None:
    """As good as sums of floats, whatever the range; and only where it must be by multiply-adds."""
    problem: Any = parse_problem(text)
    inputs, runtime = split_inputs(problem, kind), hopper()
    for config in (CONFIGS[-1], shared(problem, CONFIGS[-1], 2)):
        plan = METHOD.plan(problem, config, runtime)
        verdict = check_plan(plan, split_judge(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"
        prepared = plan.prepare(runtime.upload(inputs.w))
        operands = {name: runtime.upload(array) for name, array in inputs.operands.items()}
        out = runtime.empty(problem.out_shape, problem.out_dtype)
        plan(plan.buffers(runtime.upload(inputs.x), prepared, operands, out))
        redone = int(np.asarray(runtime.download(prepared.tensors["redone"])).view(np.uint32)[0])
        assert kind not in REDONE or redone or kind in SCALED
        assert kind not in SPLIT or (not redone and prepared.note is None)


def test_every_tile_gives_the_same_bits_and_a_picture_does_not_depend_on_its_batch() -> None:
    problem: Any = parse_problem("n3c72h7w6_k20r3s3_p1_f32_nhwc")
    inputs = split_inputs(problem, "binades")
    assert_same_bits(METHOD, problem, inputs, CONFIGS[1::3])


@pytest.mark.parametrize("text", [PROBLEMS[0], PROBLEMS[6], PROBLEMS[10]])
def test_a_nan_reaches_the_outputs_whose_window_holds_it(text: str) -> None:
    problem: Any = parse_problem(text)
    for config in (CONFIGS[-1], shared(problem, CONFIGS[-1], 2)):
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(METHOD.plan(problem, config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


def test_few_tiles_share_their_channels_out() -> None:
    facts = replace(hopper().facts, cores=100)
    few: Any = parse_problem("n1c512h7w7_k512r3s3_p1_f32_nhwc")
    first = METHOD.configs(few, facts)[0]
    assert first.split_k > 1
    many: Any = parse_problem("n64c64h56w56_k64r3s3_p1_f32_nhwc")
    assert all(config.split_k == 1 for config in METHOD.configs(many, facts))
    for split_k in (0, 17, 1000):
        with pytest.raises(ValueError, match=f"steps of a tap are not shared out among {split_k} blocks"):
            METHOD.plan(few, replace(first, split_k=split_k), hopper())
    with pytest.raises(ValueError, match="a lane would have 128 sums; it has bits for 64"):
        METHOD.plan(few, SplitMmaConfig(128, 128, 64, 64, 3), hopper())


def test_auto_by_rule_takes_it_where_there_is_no_wgmma() -> None:
    facts = replace(hopper().facts, architecture="sm_80")
    layer = parse_problem("n8c64h56w56_k64r3s3_p1_f32_nchw")
    assert METHOD.refuses(layer, facts) is None
    assert METHOD.preference_for(layer, facts) is not None
    for text in ("n8c3h56w56_k64r3s3_p1_f32_nchw", "n8c64h56w56_k8r3s3_p1_f32_nchw"):
        assert METHOD.preference_for(parse_problem(text), facts) is None


def test_others_are_refused() -> None:
    facts = hopper().facts
    for text, words in (
        ("n1c16h5w5_k16r3s3_f16_nhwc", "must all be float32"), ("n1c3h5w5_k16r3s3_f32_nhwc", "fewer than 32 products"),
        ("n1c16h5w5_k16r3s3_g4_f32_nhwc", "a group has 4"),
    ):  # fmt: skip
        assert words in str(METHOD.refuses(parse_problem(text), facts))
    old = replace(facts, architecture="sm_75")
    assert "came with sm_80" in str(METHOD.refuses(parse_problem(PROBLEMS[0]), old))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("text", ["m37n40k40_f32", "m45n33k70_ta_f32", "m33n40k64_tb_f32", "m20n24k72_ta_tb_f32"])
def test_products_of_matrices(text: str) -> None:
    product, config = method_of("gemm", "gemm_split_mma"), CONFIGS[-1]
    for kind in ("normal", "integers"):
        verdict = check_plan(product.plan(parse_problem(text), config, hopper()), judge_of(text, kind))
        assert verdict.ok, verdict.message


def test_products_are_refused_on_older_gpus_and_preferred_where_there_is_no_wgmma() -> None:
    product, large = method_of("gemm", "gemm_split_mma"), parse_problem("m512n512k512_f32")
    ampere, turing = (replace(hopper().facts, architecture=name) for name in ("sm_80", "sm_75"))
    assert product.refuses(large, ampere) is None
    assert product.preference_for(large, ampere) is not None
    assert "came with sm_80" in str(product.refuses(large, turing))
    assert "multiplies float32, not float16" in str(product.refuses(parse_problem("m64n64k64_f16"), ampere))


@on_gpu_alone
def test_layers_of_their_own_size() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    for layout in (x, x.contiguous(memory_format=torch.channels_last)):
        found = convforge.conv2d(layout, w, padding=1, algorithm=METHOD.name)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-4)
