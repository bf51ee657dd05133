"""implicit_gemm_few_outputs on a GPU or the emulator: few filters, every tile, borders, unaligned arrays."""

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
from convforge.algorithms.implicit_gemm.few_outputs import (
    TILES,
    FewOutputsConfig,
    config_refusal,
    grid_of,
    shared_bytes,
)
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan, make_inputs

METHOD: Any = method_of("conv2d", "implicit_gemm_few_outputs")
pytestmark = needs_hopper

CONFIGS = [replace(tile, rows=3, resident=512) for tile in TILES]
# A narrow strip, bands of several rows that go down and up.
SMALL = FewOutputsConfig(2, 1, 32, 3, rows=4)
# Of one chunk of channels and of several, with one that is not full; factors in registers and in shared memory; columns
# that fill up products, or not; one filter and many; pieces of 16 bytes, and numbers one by one.
PROBLEMS = [
    "n2c24h11w40_k3r3s3_p1_f16_nhwc", "n2c24h11w40_k3r3s3_p1_f16_nchw", "n1c72h9w37_k1r5s5_p2_bf16_nhwc_+bias+relu",
    "n1c20h9w37_k1r5s5_p2_bf16_nchw_+bias+relu", "n1c130h7w24_k3r3s3_p1_d2_f16_nchw", "n1c3h9w21_k3r3s3_p1_f16_nhwc",
    "n1c136h17w40_k2r3s5_p4x3x2x1_d3x2_f16_nhwc_+scale:channel+bias+residual+silu", "n1c300h5w20_k7r3s3_p1_f16_nhwc",
    "n1c16h9w20_k64r1s1_f16_nhwc", "n1c16h9w24_k64r1s1_f16-f16-f32-f32_nchw", "n1c32h70w9_k1r64s1_f16_nchw",
    "n1c8h3w3_k1r1s1_f16_nhwc", "n2c8h10w130_k3r3s3_p1_flip_bf16_nhwc", "n1c32h9w40_k4r2s8_p0x1x5x3_f16_nchw-krsc-nhwc",
    "n1c520h5w16_k1r7s7_p3_bf16_nchw_+residual", "n1c16h5w24_k2r3s3_p9_d5x4_f16_nhwc", "n0c8h5w5_k3r3s3_f16_nhwc",
]  # fmt: skip
BORDERS = ("constant9.0", "reflect", "symmetric", "replicate", "circular")


def fitting(problem: Any) -> list[FewOutputsConfig]:
    """The configs that can be."""
    return [config for config in CONFIGS if config_refusal(problem, config, hopper().facts) is None]


@pytest.mark.one_in(17)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_tile_is_right(text: str, kind: str) -> None:
    problem: Any = parse_problem(text)
    for config in some(fitting(problem), len(CONFIGS)):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(11)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_tile_is_right_in_both_layouts(config: FewOutputsConfig) -> None:
    for layout in ("nchw", "nhwc"):
        text = f"n1c80h8w104_k3r3s3_p1_f16_{layout}"
        verdict = check_plan(METHOD.plan(parse_problem(text), config, hopper()), judge_of(text, "normal"))
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 100])
def test_bands_of_any_number_of_rows(rows: int) -> None:
    for text in ("n2c16h11w40_k3r3s3_p1_f16_nhwc", "n1c16h13w40_k2r3s3_p2_d2_bf16_nchw", "n1c16h6w40_k1r6s1_f16_nhwc",
                 "n1c16h20w24_k3r7s1_p1_f16_nhwc"):  # fmt: skip
        plan = METHOD.plan(parse_problem(text), replace(SMALL, rows=rows), hopper())
        assert check_plan(plan, judge_of(text, "normal")).ok, text


@pytest.mark.one_in(3)
@pytest.mark.parametrize("border", BORDERS)
def test_every_border(border: str) -> None:
    for text in (
        f"n1c16h9w24_k3r3s5_p4x2x3x4_{border}_f16_nhwc", f"n1c16h9w24_k3r3s5_p4x2x3x4_{border}_f16_nchw",
        f"n1c17h9w21_k1r3s3_p2_d2_{border}_bf16_nhwc", f"n1c17h9w21_k1r3s3_p2_d2_{border}_bf16_nchw",
    ):  # fmt: skip
        problem: Any = parse_problem(text)
        verdict = check_plan(METHOD.plan(problem, SMALL, hopper()), judge_of(text, "normal"))
        assert verdict.ok, verdict.message


def test_every_tile_gives_the_same_bits_and_a_picture_does_not_depend_on_its_batch() -> None:
    problem: Any = parse_problem("n3c72h9w40_k3r3s3_p1_f16_nhwc")
    inputs = make_inputs(problem, "normal")
    # With several bands of rows, some blocks go up and some down.
    configs = [replace(config, rows=rows) for rows, config in zip((0, 1, 2, 4), fitting(problem)[1::5], strict=True)]
    assert_same_bits(METHOD, problem, inputs, configs)


@pytest.mark.parametrize(
    "text", ["n1c20h9w40_k3r3s3_p1_f16_nchw", "n1c24h9w21_k1r3s5_p1x2_bf16_nhwc", "n1c20h9w21_k5r3s3_d2_f16_nhwc",
             "n1c40h9w24_k2r3s3_p1_constant2.0_f16_nchw"],
)  # fmt: skip
def test_a_nan_reaches_the_outputs_whose_window_holds_it(text: str) -> None:
    for kind in ("nan", "inf"):
        verdict = check_nan_spread(METHOD.plan(parse_problem(text), SMALL, hopper()), kind)
        assert verdict.ok, verdict.message


def test_an_infinite_pixel_gives_infinite_results() -> None:
    """A product of it with a channel or a column that does not exist would be NaN."""
    x, w = np.ones((1, 12, 9, 24), np.float16), np.ones((3, 12, 3, 3), np.float16)
    x[0, 1, 4, 9] = np.inf
    out = convforge.conv2d(x, w, device="emulator", algorithm="implicit_gemm_few_outputs")
    assert not np.isnan(out).any()
    assert np.isinf(out).sum() == 3 * 9


@pytest.mark.parametrize("ahead", [0, 1, 4, 8])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@on_gpu_alone
def test_parts_of_larger_arrays(layout: str, ahead: int) -> None:
    """Rows with gaps, and arrays that begin at no multiple of 16 bytes."""
    torch = pytest.importorskip("torch")
    wide = torch.randint(-2, 3, (2, 20, 20, 64), device="cuda").half()
    w = torch.randint(-2, 3, (3, 16, 3, 3), device="cuda").half()
    x = wide[:, 1:18, 2:19, ahead : ahead + 16]
    if layout == "nchw":
        x = wide.permute(0, 1, 2, 3)[:, 2:18, 1:18, ahead : ahead + 24]
    planes = x if layout == "nchw" else x.permute(0, 3, 1, 2)
    expected = torch.nn.functional.conv2d(planes.double(), w.double(), padding=1)
    found = convforge.conv2d(x, w, padding=1, layout=layout.upper(), algorithm=METHOD.name)
    same = found if layout == "nchw" else found.permute(0, 3, 1, 2)
    torch.testing.assert_close(same, expected.half(), rtol=0, atol=0)


@pytest.mark.skipif(method_of("relu", "relu").backend != "emulator", reason="arrays of the host")
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_results_with_gaps_around_them(layout: str, ahead: int) -> None:
    problem: Any = parse_problem(f"n2c16h6w24_k3r3s3_p1_f16_{layout}")
    check_views(METHOD.plan(problem, SMALL, hopper()), make_inputs(problem, "integers"), ahead)


def test_strips_are_alike_and_blocks_fill_the_device() -> None:
    problem: Any = parse_problem("n1c128h512w512_k3r3s3_p1_f16_nhwc")
    strip = FewOutputsConfig(11, 1, 64, 5)
    # 176 pixels see 174 outputs: three strips of 171; 44 blocks each of 132.
    assert grid_of(problem, strip, 132) == (171, 12, 129)
    assert grid_of(problem, replace(strip, rows=20), 132) == (171, 20, 78)
    # In NCHW seven pixels may stand before those that are seen; with dilation each row has every second one.
    near: Any = parse_problem("n1c128h512w512_k3r3s3_p2_d2_f16_nchw")
    assert grid_of(near, replace(strip, rows=16), 132) == (128, 16, 4 * 2 * 16)
    # More images than blocks that run at once: a few rounds of whole images, or of parts of them.
    many: Any = parse_problem("n100c128h64w64_k3r3s3_p1_f16_nhwc")
    useful, rows, blocks = grid_of(many, FewOutputsConfig(8), 132)
    assert (useful, blocks) == (64, 100 * -(-64 // rows))
    nothing: Any = parse_problem("n0c8h5w5_k3r3s3_f16_nhwc")
    assert grid_of(nothing, strip, 132).blocks == 0


def test_a_block_takes_the_shared_memory_that_it_is_said_to_take() -> None:
    pixels, products = 4 * 128 * 64 * 2, 2 * 27 * 132 * 4
    for channels, factors in ((128, 256), (512, 32 * 512 * 2)):  # in registers, or in shared memory
        problem: Any = parse_problem(f"n1c{channels}h512w512_k3r3s3_p1_f16_nhwc")
        assert shared_bytes(problem, FewOutputsConfig(8, 1, 64, 4)) == -(-(pixels + factors + products) // 128) * 128


def test_configs_fit_the_device() -> None:
    facts = replace(hopper().facts, block_shared_bytes=99 << 10, shared_bytes=100 << 10)
    for text in ("n1c128h512w512_k3r3s3_p1_f16_nhwc", "n1c512h64w64_k4r4s4_f16_nchw", "n8c64h64w64_k1r8s8_f16_nhwc",
                 "n1c16h512w512_k64r1s1_f16_nchw", "n1c32h512w512_k1r64s1_f16_nhwc"):  # fmt: skip
        problem: Any = parse_problem(text)
        found = METHOD.configs(problem, facts)
        assert 1 <= len(set(found)) == len(found) <= 12
        assert all(config_refusal(problem, config, facts) is None for config in found)


def test_configs_that_cannot_be_are_refused() -> None:
    problem: Any = parse_problem("n1c64h32w32_k3r3s3_d10_f16_nhwc")
    default = FewOutputsConfig()
    for config, words in (
        (replace(default, fragments=3), "1, 2 or 4 runs of 16 pixels, not 3"),
        (replace(default, chunk=48), "32, 64 or 128 channels, not 48"),
        (replace(default, warps=33), "at most 32 warps, not 33"),
        (replace(default, stages=1), "stages=1"),
        (replace(default, warps=1), "a filter reads 21 columns; a strip has 16"),
        (replace(default, stages=40), "bytes of shared memory; a block has"),
    ):
        with pytest.raises(ValueError, match=words):
            METHOD.plan(problem, config, hopper())
    wide: Any = parse_problem("n1c64h32w32_k64r1s1_f16_nhwc")
    with pytest.raises(ValueError, match="a lane would have 128 sums"):
        METHOD.plan(wide, replace(default, fragments=4), hopper())
    with pytest.raises(ValueError, match="a thread would take 176 registers; it may have 128"):
        METHOD.plan(wide, replace(default, warps=16, fragments=2), hopper())


def test_auto_by_rule_takes_it_for_few_filters() -> None:
    assert_preferred(METHOD, {
        "n1c128h512w512_k3r3s3_p1_f16_nhwc": True, "n8c64h64w64_k1r5s5_p1_bf16_nchw": True,
        "n1c128h512w512_k3r3s3_st2_p1_f16_nhwc": False, "n8c4h56w56_k3r3s3_p1_f16_nhwc": False,
        "n8c64h56w56_k8r3s3_p1_f16_nhwc": False, "n8c64h56w56_k3r3s3_p1_f32_nhwc": False,
        "n8c64h56w57_k3r3s3_p1_f16_nchw": False, "n8c64h56w57_k3r3s3_p1_f16_nhwc": True,
        "n8c64h56w56_k16r1s1_f16_nhwc": False,
    })  # fmt: skip


def test_other_problems_are_refused() -> None:
    facts = hopper().facts
    for text, words in (
        ("n1c8h5w5_k1r3s3_f32_nhwc", "x and w must be of one type of float16"),
        ("n1c8h5w5_k1r3s3_f16-bf16-f32-f32_nhwc", "x and w must be of one type of float16"),
        ("n1c8h5w5_k8r3s3_f16_nchw", "it is made for 64 taps of all filters at most, not 72"),
        ("n1c4h5w5_k2r3s3_g2_f16_nchw", "there are 2 groups"),
        ("n1c4h5w5_k2r3s3_st1x2_f16_nchw", "the stride must be 1, not 1 x 2"),
        ("n1c3h400w400_k1r3s3_d150_f16_nchw", "a filter reads"),
    ):
        assert words in str(METHOD.refuses(parse_problem(text), facts)), text
    old = replace(facts, architecture="sm_75")
    assert "came with sm_80" in str(METHOD.refuses(parse_problem(PROBLEMS[0]), old))
