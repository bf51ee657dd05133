"""implicit_gemm_few_channels on a GPU or the emulator: any first layer, every tile, equal bits, unaligned arrays.

What its sibling for float32 has in common with it, too; see test_split_few_channels.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.hopper import (
    assert_preferred,
    assert_same_bits,
    hopper,
    method_of,
    needs_hopper,
    on_gpu_alone,
    some,
)
from tests.judged import judge_of
from tests.on_device import check_views

import convforge
from convforge.algorithms.implicit_gemm.few_channels import (
    TILES,
    FewChannelsConfig,
    patch_of,
    shared_bytes,
    steps_of,
)
from convforge.algorithms.implicit_gemm.split_few_channels import TILES as SPLIT_TILES
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan, make_inputs

METHOD: Any = method_of("conv2d", "implicit_gemm_few_channels")
pytestmark = needs_hopper

# Every tile as a config of a layer.
CONFIGS = list(TILES)
SPLIT: Any = method_of("conv2d", "implicit_gemm_split_few_channels")
BOTH = pytest.mark.parametrize(
    ("method", "configs", "dtype"),
    [(METHOD, CONFIGS, "f16"), (SPLIT, list(SPLIT_TILES), "f32")],
    ids=["f16", "f32"],
)
# Of 1 to 4 channels, in even runs of numbers and odd ones; strides of 1 to 4; stores of 8, 2 and 1 results; many steps.
PROBLEMS = [
    "n2c3h19w21_k16r7s7_st2_p3_f16_nchw", "n1c3h9w32_k40r3s3_p1_bf16_nchw_+bias+relu", "n1c3h11w37_k72r3s3_p1_f16_nhwc",
    "n2c4h17w19_k24r4s4_st4_f16_nhwc", "n1c3h41w39_k36r11s11_st4_p2_f16_nchw", "n1c1h21w90_k32r5s20_st2_p2x9_bf16_nchw",
    "n1c1h13w28_k16r3s3_p1_f16-f16-f32-f32_nchw", "n1c2h9w37_k33r3s5_p2_d2_f16_nhwc", "n1c1h5w40_k20r1s11_f16_nchw",
    "n1c2h11w36_k10r5s1_st3x1_flip_f16_nchw", "n1c4h9w20_k8r2s6_st1x3_p1x2x0x3_flip_bf16_nhwc",
    "n1c3h9w37_k20r3s3_p1_f16-f16-f32-f32_nhwc_+scale:channel+bias+residual+silu", "n1c1h3w3_k1r3s3_f16_nchw",
    "n2c2h10w34_k48r3s3_p1_f16_nchw_+scale:channel+bias+residual+gelu", "n1c3h9w20_k17r9s14_p4x14_d1x2_bf16_nchw",
    "n0c3h5w5_k8r3s3_f16_nhwc", "n1c3h3w130_k8r1s98_f16_nchw",
    "n2c3h19w21_k16r7s7_st2_p3_u8-i8-u8-i32_nhwc_+zero:110+scale:channel+bias+relu",
    "n1c3h9w36_k37r3s3_p1_i8-i8-i8-i32_nchw_+scale:channel+bias+relu",
    "n1c2h9w37_k33r3s5_p2_d2_u8-u8-i32-i32_nhwc_+zero:9",
    "n1c4h9w20_k40r3s3_p1_reflect_i8-u8-u8-i32_nhwc_+zero:-5+scale:channel+bias+residual+silu",
    "n2c1h9w21_k40r3s3_p1_u8-i16-f16-i32_nhwc_wmax255_+zero:200+scale:tensor",
]  # fmt: skip
BORDERS = ("constant9.0", "reflect", "symmetric", "replicate", "circular")


@pytest.mark.one_in(15)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_tile_is_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    for config in some(CONFIGS, len(CONFIGS)):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize(("dtype", "pixel", "r", "s"), [("uint8", 255, 8, 8), ("int8", -128, 16, 15)])
def test_sums_of_the_largest_bytes_are_exact(dtype: str, pixel: int, r: int, s: int) -> None:
    """Sums are near 2^24, up to which float32 represents every integer."""
    rng = np.random.default_rng(1)
    x, w = np.full((1, 24, 40, 4), pixel, dtype), np.full((16, 4, r, s), pixel, dtype)
    x[0, ::3, ::5] = pixel - pixel // abs(pixel)
    w[:, 1, 1::2, ::3] = rng.integers(1, 100, w[:, 1, 1::2, ::3].shape)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), (r, s), (1, 2))
    expected = np.einsum("npqcrs,kcrs->npqk", windows, w.astype(np.int64))
    w[0] = pixel
    expected[..., 0] = np.einsum("npqcrs,crs->npq", windows, w[0].astype(np.int64))
    assert 0.9 * 2**24 < expected.max() < 2**24
    sums = convforge.Quantization(x=(1, 0), w=(1, 0))
    device = hopper().facts.backend
    found = convforge.conv2d(x, w, layout="NHWC", device=device, algorithm=METHOD.name, quantization=sums)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_tile_is_right_in_both_layouts(config: FewChannelsConfig) -> None:
    for layout in ("nchw", "nhwc"):
        text = f"n2c3h10w40_k40r3s3_st1x2_p1_f16_{layout}"
        verdict = check_plan(METHOD.plan(parse_problem(text), config, hopper()), judge_of(text, "normal"))
        assert verdict.ok, verdict.message


@pytest.mark.one_in(6)
@BOTH
@pytest.mark.parametrize("border", BORDERS)
def test_every_border(method: Any, configs: list[Any], dtype: str, border: str) -> None:
    for text in (f"n1c3h7w19_k8r5s5_p4x2x3x4_{border}_{dtype}_nchw", f"n1c2h9w21_k9r3s3_p2_d2_{border}_{dtype}_nhwc"):
        problem: Any = parse_problem(text)
        verdict = check_plan(method.plan(problem, configs[-1], hopper()), judge_of(text, "normal"))
        assert verdict.ok, verdict.message


def test_every_tile_gives_the_same_bits_and_a_picture_does_not_depend_on_its_batch() -> None:
    problem: Any = parse_problem("n3c3h19w21_k20r5s5_st2_p2_f16_nchw")
    inputs = make_inputs(problem, "normal")
    assert_same_bits(METHOD, problem, inputs, CONFIGS[1::4])


@pytest.mark.one_in(4)
@BOTH
@pytest.mark.parametrize(
    "layer", ["n1c3h12w19_k8r3s3_p1_{}_nchw", "n1c1h12w19_k16r5s5_p2_{}_nhwc", "n1c2h12w40_k8r3s7_st1x2_{}_nchw",
              "n1c1h9w40_k8r1s17_{}_nhwc"],
)  # fmt: skip
def test_a_nan_reaches_the_outputs_whose_window_holds_it(
    method: Any, configs: list[Any], dtype: str, layer: str
) -> None:  # fmt: skip
    """Beside the last number of an odd run is a pixel that the output does not see."""
    problem: Any = parse_problem(layer.format(dtype))
    for config in (configs[0], configs[-1]):
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(method.plan(problem, config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


def test_an_infinite_pixel_gives_infinite_results() -> None:
    """A product of it with a tap that does not exist would be NaN."""
    x, w = np.ones((1, 3, 9, 20), np.float16), np.ones((8, 3, 3, 3), np.float16)
    x[0, 1, 4, 9] = np.inf
    out = convforge.conv2d(x, w, device="emulator", algorithm="implicit_gemm_few_channels")
    assert not np.isnan(out).any()
    assert np.isinf(out).sum() == 8 * 9


@BOTH
@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@on_gpu_alone
def test_parts_of_larger_arrays(method: Any, configs: list[Any], dtype: str, layout: str, ahead: int) -> None:
    """Rows with gaps; results that begin at no multiple of 16 bytes, or of 4."""
    torch = pytest.importorskip("torch")
    number = torch.float16 if dtype == "f16" else torch.float32
    wide = torch.randint(-2, 3, (2, 20, 20, 64), device="cuda").to(number)
    w = torch.randint(-2, 3, (40, 3, 3, 3), device="cuda").to(number)
    x = wide[:, 1:18, 2:19, ahead : ahead + 3]
    if layout == "nchw":
        x = wide.permute(0, 3, 1, 2)[:, 5:8, 1:18, ahead : ahead + 16]
    planes = x if layout == "nchw" else x.permute(0, 3, 1, 2)
    expected = torch.nn.functional.conv2d(planes.double(), w.double(), padding=1)
    found = convforge.conv2d(x, w, padding=1, layout=layout.upper(), algorithm=method.name)
    same = found if layout == "nchw" else found.permute(0, 3, 1, 2)
    torch.testing.assert_close(same, expected.to(number), rtol=0, atol=0)


@pytest.mark.one_in(5)
@BOTH
@pytest.mark.skipif(method_of("relu", "relu").backend != "emulator", reason="arrays of the host")
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_results_with_gaps_around_them(method: Any, configs: list[Any], dtype: str, layout: str, ahead: int) -> None:
    problem: Any = parse_problem(f"n2c3h6w16_k16r3s3_p1_{dtype}_{layout}")
    check_views(method.plan(problem, configs[-1], hopper()), make_inputs(problem, "integers"), ahead)


def test_runs_of_numbers_fill_up_steps() -> None:
    """A step is eight pairs; an odd run leaves half a pair, and with dilation each tap is a run."""
    for text, steps in (
        ("n1c3h9w9_k8r7s7_f16_nchw", 10), ("n1c4h9w9_k8r3s3_f16_nchw", 3), ("n1c1h9w9_k8r3s3_f16_nchw", 1),
        ("n1c2h9w9_k8r3s3_f16_nchw", 2), ("n1c1h9w30_k8r5s20_f16_nchw", 7), ("n1c3h9w9_k8r3s3_d2_f16_nchw", 3),
    ):  # fmt: skip
        assert steps_of(parse_problem(text)) == steps, text  # type: ignore[arg-type]


def test_a_block_takes_the_shared_memory_that_it_is_said_to_take() -> None:
    problem: Any = parse_problem("n1c3h64w64_k64r7s7_st2_p3_f16_nchw")
    config = FewChannelsConfig(16, 16, 64, 4, 64)
    # 15 x 2 + 7 rows, and one more column.
    assert patch_of(problem, config) == (37, 3 * 38)
    filters, places, patch = 10 * 16 * 64 * 2, 10 * 4 * 8, ((37 * 3 * 19 + 1) // 32 * 32 + 48) * 4
    assert shared_bytes(problem, config) == filters + places + 2 * patch
    odd: Any = parse_problem("n1c3h64w64_k64r7s7_p3_f16_nchw")  # two copies of each patch, two lists of places
    rows, pitch = patch_of(odd, config)
    assert (rows, pitch) == (22, 3 * 22)
    patch = ((22 * 3 * 11 + 1) // 32 * 32 + 48) * 4
    assert shared_bytes(odd, config) == filters + 2 * places + 4 * patch


def test_configs_fit_the_device_and_the_filters() -> None:
    facts = replace(hopper().facts, block_shared_bytes=99 << 10, shared_bytes=100 << 10)
    for text in ("n32c3h224w224_k64r7s7_st2_p3_f16_nchw", "n32c1h28w28_k16r3s3_p1_f16_nchw",
                 "n32c3h227w227_k96r11s11_st4_f16_nchw", "n1c3h224w224_k64r3s3_p1_f16_nhwc"):  # fmt: skip
        problem: Any = parse_problem(text)
        found = METHOD.configs(problem, facts)
        assert 4 <= len(set(found)) == len(found) <= 10
        assert all(shared_bytes(problem, config) <= facts.block_shared_bytes for config in found)
        assert all(config.block_n <= 2 * problem.k for config in found)
    one: Any = parse_problem("n1c3h32w32_k1r3s3_f16_nchw")
    assert {config.block_n for config in METHOD.configs(one, facts)} == {16}


def test_configs_that_cannot_be_are_refused() -> None:
    problem: Any = parse_problem("n1c3h32w32_k64r7s7_f16_nchw")
    default = FewChannelsConfig()
    for config, words in (
        (replace(default, tile_w=24), "tile_w=24 is no multiple of 16"),
        (replace(default, tile_h=3), "do not cover 3 x 16"),
        (replace(default, tile_w=48, fragments=2), "do not cover 16 x 48 in parts of a row or whole rows"),
        (replace(default, warp_n=24, block_n=24), "do not cover 24 exactly"),
        (replace(default, warp_n=64, block_n=96), "do not cover 96 exactly"),
        (replace(default, fragments=8), "a lane would have 256 sums"),
        (replace(default, tile_h=64, fragments=1, warp_n=16), "at most 32 warps, not 256"),
        (replace(default, tile_w=1024, fragments=4, tile_h=1, block_n=1024), "at most 32 warps"),
        (replace(default, block_n=1024, tile_h=4), "bytes of shared memory; a block has"),
    ):
        with pytest.raises(ValueError, match=words):
            METHOD.plan(problem, config, hopper())


def test_auto_by_rule_takes_it_for_few_channels() -> None:
    assert_preferred(METHOD, {
        "n8c3h224w224_k64r7s7_st2_p3_f16_nhwc": True, "n8c1h64w64_k16r3s3_p1_bf16_nchw": True,
        "n8c3h224w224_k4r3s3_p1_f16_nchw": False, "n8c8h56w56_k64r3s3_p1_f16_nhwc": False,
        "n8c4h56w56_k8r3s3_p1_g2_f16_nhwc": False, "n8c3h56w56_k64r3s3_p1_f32_nhwc": False,
        "n8c3h224w224_k64r7s7_st2_p3_u8-i8-u8-i32_nhwc_+zero:110+scale:channel+bias+relu": True,
    })  # fmt: skip


def test_other_problems_are_refused() -> None:
    facts = hopper().facts
    for text, words in (
        ("n1c3h5w5_k16r3s3_f32_nhwc", "x and w must be of one type of float16"),
        ("n1c3h5w5_k16r3s3_f16-bf16-f32-f32_nhwc", "x and w must be of one type of float16"),
        ("n1c3h5w5_k16r3s3_i8-f32-f32-f32_nhwc", "x and w must be of one type of float16"),
        ("n1c3h5w5_k16r3s3_u8-i16-i32-i32_nhwc", "weights up to 32768 are not exact in float16"),
        ("n1c4h50w50_k16r20s20_u8-i8-i32-i32_nhwc", "sums up to 52224000 are not exact in float32"),
        ("n1c5h5w5_k16r3s3_f16_nchw", "it is made for 4 channels at most, not 5"),
        ("n1c4h5w5_k16r3s3_g2_f16_nchw", "there are 2 groups"),
        ("n1c3h400w400_k16r99s99_f16_nchw", "bytes of shared memory; a block has"),
    ):
        assert words in str(METHOD.refuses(parse_problem(text), facts)), text
    old = replace(facts, architecture="sm_75")
    assert "came with sm_80" in str(METHOD.refuses(parse_problem(PROBLEMS[0]), old))
