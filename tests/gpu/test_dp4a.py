"""implicit_gemm_dp4a and direct_dp4a on a GPU or the emulator: zero points, borders, types, words and bytes, groups."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.gpu.hopper import hopper, is_gpu, method_of, needs_hopper, on_gpu_alone, some
from tests.judged import judge_of
from tests.on_device import check_views

import convforge
from convforge.algorithms.direct.dp4a import StripConfig
from convforge.algorithms.implicit_gemm.dp4a import Dp4aConfig
from convforge.problem import PADDING_MODES, parse_problem
from convforge.verify import check_plan, make_inputs

DP4A: Any = method_of("conv2d", "implicit_gemm_dp4a")
DIRECT: Any = method_of("conv2d", "direct_dp4a")
pytestmark = needs_hopper

# Sixteen channels a load, four, and bytes; several taps a word; both layouts, borders, groups, strides, dilation; every
# type of result.
PROBLEMS = [
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
    "n1c32h9w8_k32r3s3_p1_g8_u8-i8-u8-i32_nhwc_+zero:5+scale:channel+bias+relu",
    "n2c3h15w14_k16r7s7_st2_p3_u8-i8-u8-i32_nhwc_+zero:120+scale:channel+bias+relu",
    "n2c3h15w16_k16r5s5_st2_p2_i8-i8-i8-i32_nchw_+zero:-9+scale:channel+bias",
    "n2c2h9w11_k20r3s5_p1_flip_u8-u8-i32-i32_nhwc_+zero:4",
    "n2c1h13w11_k16r3s6_p1_d1x2_i8-i8-u8-i32_nchw_+zero:7+scale:channel+bias",
    "n1c16h6w8_k16r3s3_p1_u8-i8-u8-i32_nhwc_+zero:5+scale:channel+bias+residual+out:0.5:3",
    "n0c16h5w5_k8r3s3_u8-i8-u8-i32_nhwc_+zero:1",
]  # fmt: skip
SMALL = Dp4aConfig(16, 128, 8, 16, 32, 4, 4)
STRIP = StripConfig(32, 4, 4)
# Small groups: words and bytes, vectors of filters and of pixels, strips that end beyond a row, every type of result.
GROUPS = [
    "n2c32h9w10_k32r3s3_p1_g8_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
    "n2c16h7w16_k16r3s3_p1_g4_u8-i8-i8-i32_nchw_+zero:3+scale:channel+bias+relu",
    "n1c24h9w7_k48r3s2_st2_p2x1x1x0_d1x2_g3_i8-u8-i32-i32_nhwc_+zero:-5",
    "n2c14h9w7_k10r3s2_p1x0x2x1_reflect_g2_u8-u8-u8-i32_nchw_+zero:9+bias",
    "n1c32h6w7_k12r3s3_p1_constant9.0_g2_u8-i8-f32-i32_nhwc_+zero:7+scale:tensor+residual+silu",
    "n1c20h6w8_k40r3s3_p1_g5_i8-i8-f16-i32_nhwc_+scale:channel+bias+relu",
    "n2c3h15w14_k16r7s7_st2_p3_u8-i8-u8-i32_nhwc_+zero:120+scale:channel+bias+relu",
    "n1c64h5w6_k64r3s3_p1_flip_g8_u8-i8-i16-i32_nchw_+zero:50",
    "n1c16h6w8_k16r3s3_p1_g2_u8-i8-u8-i32_nhwc_+zero:5+scale:channel+bias+residual+out:0.5:3",
    "n1c8h6w7_k8r3s3_p1_g8_u8-i8-u8-i32_nhwc_+zero:5",
    "n0c16h5w5_k8r3s3_g2_u8-i8-u8-i32_nhwc_+zero:1",
]  # fmt: skip


@pytest.mark.one_in(17)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_tiles_are_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    configs = some(DP4A.configs(problem, hopper().facts), 20 if is_gpu() else 2)
    for config in dict.fromkeys((*configs, SMALL, replace(SMALL, words=False))):
        verdict = check_plan(DP4A.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(10)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", GROUPS)
def test_strips_are_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    for config in some(DIRECT.configs(problem, hopper().facts), 20 if is_gpu() else 2):
        verdict = check_plan(DIRECT.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("x", "w"), list(product(("u8", "i8"), repeat=2)))
def test_every_pair_of_types(x: str, w: str) -> None:
    for what in (f"c16h5w6_k9r3s3_p1_{x}-{w}-i32-i32_nhwc_+zero:3", f"c3h5w6_k9r3s3_p1_{x}-{w}-i32-i32_nchw_+zero:3"):
        text = f"n1{what}"
        for method, config in ((DP4A, SMALL), (DIRECT, STRIP)):
            verdict = check_plan(method.plan(parse_problem(text), config, hopper()), judge_of(text, "normal"))
            assert verdict.ok, f"{method.name} {text}: {verdict.message}"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("border", PADDING_MODES)
def test_zero_points_at_every_border(border: str) -> None:
    mode = {"zeros": "", "constant": "constant9.0_"}.get(border, f"{border}_")
    for what in (
        "c32h7w9_k20r3s2_st2x1_p1x2x2x1_{}g2_u8-i8-u8-i32_nhwc_+zero:77+scale:channel+bias",
        "c6h7w9_k20r3s2_st2x1_p1x2x2x1_{}g2_i8-i8-i32-i32_nchw_+zero:-7",
        "c2h7w9_k20r3s5_p1x2x2x1_{}g2_i8-i8-i32-i32_nhwc_+zero:-7",
    ):
        text = f"n2{what.format(mode)}"
        for method, config in ((DP4A, SMALL), (DIRECT, STRIP)):
            if method.refuses(parse_problem(text), hopper().facts) is None:
                verdict = check_plan(method.plan(parse_problem(text), config, hopper()), judge_of(text, "normal"))
                assert verdict.ok, f"{method.name} {text}: {verdict.message}"


@on_gpu_alone
@pytest.mark.parametrize("method", ["implicit_gemm_dp4a", "direct_dp4a"])
@pytest.mark.parametrize("ahead", [16, 4, 3])
def test_parts_of_larger_arrays(method: str, ahead: int) -> None:
    """Channels that begin at a multiple of 16 bytes, or not; rows with gaps."""
    torch = pytest.importorskip("torch")
    wide = torch.randint(0, 256, (2, 20, 20, 64), device="cuda").to(torch.uint8)
    w = torch.randint(-128, 128, (40, 32, 3, 3), device="cuda").to(torch.int8)
    x = wide[:, 1:18, 2:19, ahead : ahead + 32]
    expected = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).double(), w.double(), padding=1).permute(0, 2, 3, 1)
    found = convforge.conv2d(
        x, w, padding=1, layout="NHWC", algorithm=method,
        quantization=convforge.Quantization(x=(1.0, 0), w=(1.0, 0), output=None),
    )  # fmt: skip
    torch.testing.assert_close(found, expected.to(torch.int32), rtol=0, atol=0)


@pytest.mark.skipif(is_gpu(), reason="arrays of the host")
@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_arrays_with_gaps_around_them(layout: str, ahead: int) -> None:
    """Pixels that are aligned for words and those that are not, which another plan loads byte by byte."""
    problem: Any = parse_problem(f"n2c16h6w16_k24r3s3_p1_u8-i8-u8-i32_{layout}_+zero:5")
    for method, config in ((DP4A, SMALL), (DIRECT, STRIP)):
        check_views(method.plan(problem, config, hopper()), make_inputs(problem, "integers"), ahead)


@on_gpu_alone
@pytest.mark.parametrize(
    "text",
    [
        "n4c3h224w224_k64r7s7_st2_p3_u8-i8-u8-i32_{}_+zero:128+scale:channel+bias+relu",
        "n4c64h56w56_k64r3s3_p1_u8-i8-u8-i32_{}_+zero:128+scale:channel+bias",
        "n4c128h56w56_k128r3s3_p1_g32_i8-i8-i8-i32_{}_+scale:channel+bias",
    ],
)
def test_layers_of_networks(text: str) -> None:
    for layout in ("nhwc", "nchw"):
        own = text.format(layout)
        for method in (DP4A, DIRECT):
            for config in method.configs(parse_problem(own), hopper().facts):
                verdict = check_plan(method.plan(parse_problem(own), config, hopper()), judge_of(own, "normal"))
                assert verdict.ok, f"{method.name} {config}: {verdict.message}"


def test_what_is_refused_and_where_auto_takes_it() -> None:
    facts = {number: replace(hopper().facts, architecture=f"sm_{number}") for number in (60, 61, 70, 75, 80, 90, 120)}
    layer: Any = parse_problem("n8c64h56w56_k64r3s3_p1_u8-i8-u8-i32_nchw_+zero:128+scale:channel+bias")
    assert [number for number in facts if DP4A.refuses(layer, facts[number]) is None] == [61, 70, 75, 80, 90, 120]
    assert "dp4a came with sm_61" in str(DP4A.refuses(layer, facts[60]))
    assert "x and w must be of types" in str(DP4A.refuses(parse_problem("n8c64h56w56_k64r3s3_p1_f16_nchw"), facts[75]))
    first: Any = parse_problem("n8c3h56w56_k64r3s3_p1_u8-i8-u8-i32_nchw")
    depthwise: Any = parse_problem("n8c64h56w56_k64r3s3_p1_g64_u8-i8-u8-i32_nchw")
    taken = [DP4A.preference_for(problem, facts[75]) is not None for problem in (layer, first, depthwise)]
    assert taken == [True, True, False]
    wide: Any = parse_problem("n1c4h9w200_k4r1s130_u8-i8-i32-i32_nhwc")
    assert "fit in its registers" in str(DIRECT.refuses(wide, facts[75]))
    groups: Any = parse_problem("n8c128h56w56_k128r3s3_p1_g32_u8-i8-u8-i32_nchw")
    assert [DIRECT.preference_for(problem, facts[75]) is not None for problem in (layer, depthwise, groups)] == [
        False,
        False,
        True,
    ]
