"""Depthwise kernels on the emulator: every config, views with gaps, refusals, and what the host works out for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.judged import judge_of
from tests.on_device import check_views

from convforge.algorithms.depthwise.device import (
    ChannelsConfig,
    DepthwiseBatch,
    DepthwiseBatchConfig,
    DepthwiseChannels,
    DepthwiseDp4a,
    DepthwiseMma,
    DepthwiseMmaConfig,
    DepthwisePlanes,
    DepthwiseRows,
    PlanesConfig,
    RowsConfig,
)
from convforge.algorithms.depthwise.mma import walks
from convforge.algorithms.depthwise.planes import modelled_cycles
from convforge.algorithms.direct.device import DirectNaive
from convforge.backends.emulator import emulator_runtime
from convforge.problem import Conv2dProblem, parse_problem
from convforge.tuning.cost import predicted_s
from convforge.tuning.heuristic import choose
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

CHANNELS, PLANES, ROWS = DepthwiseChannels("emulator"), DepthwisePlanes("emulator"), DepthwiseRows("emulator")
MMA, BATCH = DepthwiseMma("emulator"), DepthwiseBatch("emulator")
DP4A = DepthwiseDp4a("emulator")
# What warps of depthwise_mma walk down: strips as high as the filter, one window, a filter of one row. Where they take
# tiles: low planes, strides, dilation, many windows, long rows, a filter larger than its plane.
WALKED = (
    "n1c5h56w56_k5r7s7_p3_g5", "n1c3h24w20_k3r5s5_p2_g3", "n2c3h33w6_k3r2s3_p1x0_g3", "n1c3h7w40_k3r1s9_p0x4_g3",
    "n1c3h40w30_k3r4s4_p2x2x1x2_st1x2_g3", "n1c3h40w30_k3r4s2_p2x2x4x1_d1x5_g3",
)  # fmt: skip
TILED = (
    "n2c9h14w14_k9r7s7_p3_g9", "n2c3h9w16_k3r5s3_st2x3_p2x1x3x4_g3", "n1c3h21w14_k3r3s3_d2_p2_g3",
    "n1c3h13w130_k3r3s3_p1_g3", "n1c2h20w34_k2r21s31_p10x15_g2", "n1c3h14w14_k3r27s27_p13_g3",
)  # fmt: skip
# What warps of depthwise_batch go down: pictures that do not fill the last product, a row that is the window and has an
# odd number of outputs, strides, dilation, filters of even size, padding that makes outputs more than pixels, windows
# of two products, as many windows as a product has rows, and, beyond what is unrolled, a loop that ends within a turn.
BATCHED = (
    "n9c3h14w14_k3r7s7_p3_g3", "n5c2h28w28_k2r5s5_p2_g2", "n17c2h14w14_k2r5s5_st2_p2_g2",
    "n3c2h12w20_k2r3s5_st2x1_p1x2_g2", "n5c2h9w10_k2r2s4_st3x2_p1_d1x2_g2", "n2c2h10w12_k2r3s3_p2_g2",
    "n3c2h15w22_k2r4s2_p2x1x0x3_g2", "n4c2h9w18_k2r3s13_p1x6_g2", "n2c2h5w64_k2r3s3_p1x33_g2",
    "n3c2h63w64_k2r9s9_p4_g2", "n9c2h7w6_k2r1s1_g2",
)  # fmt: skip
EACH = [
    (CHANNELS, "n2c8h21w26_k8r3s3_st1_p1_g8_f32_nhwc"),
    (CHANNELS, "n1c6h19w22_k12r5s3_st2x1_p2x1_g6_f16_nhwc"),
    (CHANNELS, "n1c4h19w22_k4r7s7_st1_p3_g4_f32_nhwc"),
    (PLANES, "n2c5h21w28_k5r3s3_st1_p1_g5_f32_nchw"),
    (PLANES, "n1c6h33w40_k12r5s7_st1x2_p2x3_g6_f16_nchw"),
    (PLANES, "n1c8h18w21_k8r13s15_st1_p6x7_g8_f32_nhwc"),
    (PLANES, "n1c3h40w36_k3r31s31_st1_p15_g3_u8-i8-i32-i32_nchw_+zero:3"),
    (ROWS, "n2c9h14w14_k9r5s5_st2_p2_g9_f16_nchw"),
    (ROWS, "n1c3h56w56_k3r7s7_p3_g3_f32_nchw"),
    (ROWS, "n1c5h14w14_k5r27s27_p13_g5_f32_nchw"),
    (ROWS, "n2c3h9w16_k3r5s3_st2x3_p2x1x3x4_constant2.5_g3_f32_nchw"),
    (ROWS, "n1c5h9w13_k5r12s2_d1_p6_g5_f64_nchw_+scale:channel+bias+residual+relu"),
    (ROWS, "n1c5h9w16_k5r3s3_p1_circular_g5_u8-i8-u8-i32_nchw_+zero:3"),
    (DP4A, "n2c52h19w22_k52r3s3_p1_g52_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu"),
    (DP4A, "n1c20h33w70_k20r5s4_st2_p2x1x0x3_d1x2_reflect_g20_i8-u8-i32-i32_nhwc_+zero:-9"),
    *((MMA, f"{text}_f16_nchw") for text in (WALKED + TILED)),
    *((BATCH, f"{text}_f16_nchw") for text in BATCHED),
    (BATCH, "n9c3h13w18_k3r4s6_p2x2x1x2_flip_g3_f16_nchw_+scale:channel+bias+residual+relu"),
    (MMA, "n1c3h24w18_k3r4s5_p2x2x1x2_flip_g3_f16_nchw_+scale:channel+bias+residual+relu"),
    (MMA, "n1c3h11w18_k3r9s6_p4x4x2x2_flip_g3_f16_nchw_+scale:channel+bias+residual+relu"),
]


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem


def check(method: Any, text: str, config: Any = None) -> None:
    problem, runtime = problem_of(text), emulator_runtime()
    config = method.configs(problem, runtime.facts)[0] if config is None else config
    verdict = check_plan(method.plan(problem, config, runtime), judge_of(text, "normal"))
    assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(71)
@needs_emulator
@pytest.mark.parametrize(("method", "text"), EACH, ids=[f"{m.name}-{text}" for m, text in EACH])
def test_every_config(method: Any, text: str) -> None:
    configs = method.configs(problem_of(text), H200)
    assert len(set(configs)) == len(configs) > 1
    for config in configs:
        check(method, text, config)


@pytest.mark.one_in(10)
@needs_emulator
@pytest.mark.parametrize("border", ["zeros", "constant2", "reflect", "symmetric", "replicate", "circular"])
@pytest.mark.parametrize("dtypes", ["f32", "f16", "u8-i8-u8-i32"])
def test_rows_of_planes_with_every_border(border: str, dtypes: str) -> None:
    border = "" if border == "zeros" else f"_{border}"
    for size, filter_, padding in (("h7w9", "r3s3", "p1"), ("h7w16", "r5s4", "p2x3x4x1"), ("h6w6", "r11s11", "p5")):
        text = f"n2c3{size}_k3{filter_}_{padding}{border}_g3_{dtypes}_nchw"
        for out_p in (1, 3):
            check(ROWS, text, RowsConfig(planes=4, out_p=out_p))


@pytest.mark.one_in(7)
@needs_emulator
@pytest.mark.parametrize("out_p", [2, 3, 7])
@pytest.mark.parametrize("steps", ["st1_p1_d1", "st2_p2_d1", "st1_p3_d2", "st3x2_p2_d2x1", "st2_p6_d3"])
def test_rows_of_outputs_that_share_rows_of_pixels(out_p: int, steps: str) -> None:
    """The window of several rows of outputs, some of which may be none, with rows that belong to one of them alone."""
    for size, filter_ in (("h15w14", "r3s3"), ("h14w16", "r5s4"), ("h20w10", "r6s3")):
        check(ROWS, f"n2c3{size}_k3{filter_}_{steps}_g3_f16_nchw", RowsConfig(planes=4, out_p=out_p))
    check(ROWS, "n2c3h6w10_k3r11s3_p5x1_g3_f16_nchw", RowsConfig(planes=4, out_p=out_p))


@needs_emulator
def test_what_is_left_of_a_last_plane_comes_whole_with_two_threads() -> None:
    """A block of two planes of four pixels, of which the last has one: half a vector, and more pixels than threads."""
    check(ROWS, "n1c3h2w2_k3r2s1_g3_f16_nchw", RowsConfig(planes=2))


def test_two_rows_are_tried_where_pixels_are_converted_and_sums_find_room() -> None:
    def tried(text: str) -> set[int]:
        return {config.out_p for config in ROWS.configs(problem_of(text), H200)}

    assert tried("n32c384h14w14_k384r7s7_p3_g384_f16_nchw") == {2}
    assert tried("n32c384h14w14_k384r7s7_p3_g384_f32_nchw") == {1}
    assert tried("n32c672h14w14_k672r5s5_st2_p2_g672_f16_nchw") == {1}
    assert tried("n32c240h28w28_k240r5s5_p2_g240_f16_nchw") == {1}


@needs_emulator
def test_more_rows_and_pictures_than_a_grid_has() -> None:
    check(CHANNELS, "n1c1h66000w1_k1r3s1_p1x0_f32_nhwc", ChannelsConfig(1, 1, 1, 1, 32, 1))
    check(CHANNELS, "n66000c1h1w2_k1r1s1_f32_nhwc")
    check(PLANES, "n66000c1h1w2_k1r1s1_f32_nchw")
    check(ROWS, "n66000c1h1w2_k1r1s1_f32_nchw")


@needs_emulator
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize(("method", "layout"), [(CHANNELS, "nhwc"), (PLANES, "nchw"), (PLANES, "nhwc"), (ROWS, "nchw")])
def test_views_with_gaps(method: Any, layout: str, ahead: int) -> None:
    """Parts of larger arrays, `ahead` elements behind their rows' first: vectors only where they are aligned."""
    text = f"n2c8h12w16_k8r3s3_p1_g8_f32_{layout}_+bias"
    problem, runtime = problem_of(text), emulator_runtime()
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    check_views(plan, make_inputs(problem), ahead)


@pytest.mark.one_in(7)
@needs_emulator
@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
@pytest.mark.parametrize("size", ["n2c4h24w16", "n2c4h9w16", "n2c4h24w18", "n2c4h9w22"])
def test_halves_in_views_with_gaps(size: str, ahead: int) -> None:
    """Copies of 4 and 16 bytes, or of pixels by themselves; by warps that walk, and by tiles."""
    problem, runtime = problem_of(f"{size}_k4r3s3_p1_g4_f16_nchw_+bias"), emulator_runtime()
    for method in (MMA, BATCH):
        plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
        check_views(plan, make_inputs(problem), ahead)


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
@pytest.mark.parametrize("c", [16, 8, 12])
def test_bytes_in_views_with_gaps(c: int, ahead: int) -> None:
    """Words of four channels, or bytes; distances between pixels that are no constants."""
    problem, runtime = problem_of(f"n2c{c}h9w20_k{c}r3s3_p1_g{c}_u8-i8-i32-i32_nhwc_+zero:9"), emulator_runtime()
    plan = DP4A.plan(problem, DP4A.configs(problem, runtime.facts)[0], runtime)
    check_views(plan, make_inputs(problem), ahead)


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("text", WALKED + TILED)
def test_what_is_not_finite_stays_in_its_windows(text: str) -> None:
    """Zeros of a matrix times an Inf would be NaN elsewhere; in the filter too."""
    problem, runtime = problem_of(f"{text}_f16_nchw"), emulator_runtime()
    plan = MMA.plan(problem, MMA.configs(problem, runtime.facts)[0], runtime)
    assert check_nan_spread(plan).ok
    inputs = make_inputs(problem)
    inputs.w[1, 0, -1, problem.s // 2] = np.inf
    naive = DirectNaive("emulator")
    found = []
    for one in (plan, naive.plan(problem, naive.configs(problem, runtime.facts)[0], runtime)):
        found.append(np.empty(problem.out_shape, np.float16))
        one({"x": inputs.x, "w": one.prepare(inputs.w), "out": found[-1]})
    got, expected = found
    assert not np.isfinite(expected[:, 1]).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))


@pytest.mark.one_in(5)
@needs_emulator
@pytest.mark.parametrize("text", BATCHED)
def test_what_is_not_finite_stays_in_its_windows_of_pictures(text: str) -> None:
    """In the filter too, of which products with what stands outside the image are left out."""
    problem, runtime = problem_of(f"{text}_f16_nchw"), emulator_runtime()
    plan = BATCH.plan(problem, BATCH.configs(problem, runtime.facts)[0], runtime)
    assert check_nan_spread(plan).ok
    inputs = make_inputs(problem)
    top, left, (r, s) = problem.padding[0], problem.padding[2], (problem.r - 1, problem.s // 2)
    inputs.w[1, 0, r, s] = np.nan
    got = np.empty(problem.out_shape, np.float16)
    plan({"x": inputs.x, "w": plan.prepare(inputs.w), "out": got})
    h = np.arange(problem.p) * problem.stride[0] + r * problem.dilation[0] - top
    w = np.arange(problem.q) * problem.stride[1] + s * problem.dilation[1] - left
    seen = ((h >= 0) & (h < problem.h))[:, None] & ((w >= 0) & (w < problem.w))
    assert seen.any()
    np.testing.assert_array_equal(np.isnan(got[:, 1]), np.broadcast_to(seen, got[:, 1].shape))
    assert np.isfinite(got[:, 0]).all()


@needs_emulator
def test_halves_of_no_picture() -> None:
    check(BATCH, "n0c3h14w14_k3r7s7_p3_g3_f16_nchw")
    check(BATCH, "n0c4h56w56_k4r7s7_p3_g4_f16_nchw")
    check(MMA, "n0c3h24w20_k3r5s5_p2_g3_f16_nchw")
    check(MMA, "n0c3h14w14_k3r7s7_p3_g3_f16_nchw")


@needs_emulator
def test_reversed_axes() -> None:
    problem, runtime = problem_of("n1c4h9w12_k4r3s3_p1_g4_f32_nhwc"), emulator_runtime()
    inputs = make_inputs(problem)
    for method in (CHANNELS, PLANES):
        plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
        out = np.empty(problem.out_shape, np.float32)
        plan({"x": inputs.x[:, ::-1, ::-1], "w": plan.prepare(inputs.w), "out": out})
        naive = DirectNaive("emulator")
        other = naive.plan(problem, naive.configs(problem, runtime.facts)[0], runtime)
        expected = np.empty(problem.out_shape, np.float32)
        other({"x": np.ascontiguousarray(inputs.x[:, ::-1, ::-1]), "w": other.prepare(inputs.w), "out": expected})
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_refusals_say_why() -> None:
    plain = problem_of("n1c8h9w12_k8r3s3_p1_g4_f32_nhwc")
    assert str(PLANES.refuses(plain, H200)) == "a filter must see one channel: groups=4 must equal C=8"
    assert CHANNELS.refuses(plain.replace(groups=8), H200) is None
    reason = CHANNELS.refuses(plain.replace(groups=8, x_layout="NCHW"), H200)
    assert str(reason) == "channels must lie side by side: x_layout=NCHW must be NHWC"
    assert str(ROWS.refuses(plain.replace(groups=8), H200)) == "planes must lie by themselves: NCHW, not NHWC and NHWC"
    apart = plain.replace(groups=8, x_layout="NCHW", out_layout="NCHW")
    assert ROWS.refuses(apart, H200) is None
    assert "an output must have a plane of its own: K=16" in str(ROWS.refuses(apart.replace(k=16), H200))
    assert "at most 64 x 64; these are 9 x 65" in str(ROWS.refuses(apart.replace(w=65), H200))
    assert "a row of 60 pixels" in str(ROWS.refuses(problem_of("n1c8h9w60_k8r3s3_p1_g8_f64_nchw"), H200))
    large = problem_of("n1c8h64w64_k8r241s241_p120_g8_f32_nchw")
    assert "planes and their filters take" in str(ROWS.refuses(large, H200))
    assert "1060 are asked for" in str(ROWS.refuses(problem_of("n1c8h60w8_k8r1s1_p500x0_g8_f32_nchw"), H200))
    halves = apart.replace(x_dtype="float16", w_dtype="float16", out_dtype="float16")
    assert MMA.refuses(halves, H200) is None
    brain = halves.replace(x_dtype="bfloat16", w_dtype="bfloat16", out_dtype="bfloat16")
    assert DepthwiseMma().refuses(brain, H200) is None
    turing = dataclasses.replace(H200, architecture="sm_75")
    assert str(DepthwiseMma().refuses(halves, turing)) == "these tensor cores came with sm_80; this is sm_75"
    assert "float32 and float32 in float32" in str(MMA.refuses(apart, H200))
    assert "float16 and bfloat16" in str(DepthwiseMma().refuses(halves.replace(w_dtype="bfloat16"), H200))
    reason = MMA.refuses(halves.replace(out_dtype="float32"), H200)
    assert str(reason) == "tensor cores cut sums off, which 16-bit floats hide: outputs must be such, not float32"
    assert "not NCHW and NHWC" in str(MMA.refuses(halves.replace(out_layout="NHWC"), H200))
    assert "K=16" in str(MMA.refuses(halves.replace(k=16), H200))
    assert "zeros must stand outside" in str(MMA.refuses(halves.replace(padding_mode="reflect"), H200))
    assert "W=13 must be even" in str(MMA.refuses(halves.replace(w=13), H200))
    assert "1 planes and their filters take" in str(MMA.refuses(halves.replace(h=400, w=400), H200))
    assert BATCH.refuses(halves, H200) is None
    assert str(DepthwiseBatch().refuses(halves, turing)) == "these tensor cores came with sm_80; this is sm_75"
    assert "float32 and float32 in float32" in str(BATCH.refuses(apart, H200))
    assert "W=13 must be even" in str(BATCH.refuses(halves.replace(w=13), H200))
    assert "at most 64 x 64; these are 9 x 66" in str(BATCH.refuses(halves.replace(w=66), H200))
    reason = BATCH.refuses(halves.replace(padding=(1, 3, 1, 1)), H200)
    assert str(reason) == "every output must see a row of pixels: padding 1 above and 3 below, of windows of 3 rows"
    assert "a row has 17 windows" in str(BATCH.refuses(halves.replace(padding=(1, 1, 60, 60), w=12), H200))
    assert "these are 17 and 18" in str(BATCH.refuses(halves.replace(r=17, h=40), H200))
    huge = problem_of("n1c1h600w600_k1r301s301_p150_f32_nchw")
    assert "bytes of shared memory; a block has 232448" in str(PLANES.refuses(huge, H200))


@pytest.mark.parametrize(
    ("method", "config", "reason"),
    [
        (CHANNELS, ChannelsConfig(3, 1, 1, 8, 4, 1), "vec=3 must divide the 8 channels"),
        (CHANNELS, ChannelsConfig(8, 1, 1, 8, 4, 1), "more than a load of 16 bytes"),
        (CHANNELS, ChannelsConfig(4, 1, 1, 2, 4, 1), "32 to 1024 threads; these are 8"),
        (CHANNELS, ChannelsConfig(4, 16, 16, 2, 4, 4), "200 are to be had"),
        (CHANNELS, ChannelsConfig(4, 0, 1, 2, 4, 4), "at least 1"),
        (CHANNELS, ChannelsConfig(4, 1, 1, 1, 1, 65), "block_p=65 must be at most 64: a block's third axis"),
        (PLANES, PlanesConfig(0, 8, 1, 1, 1), "out_p=0 must be at least 1"),
        (PLANES, PlanesConfig(7, 8, 8, 8, 32), "at most 1024 threads; 2048"),
        (PLANES, PlanesConfig(63, 8, 1, 1, 1), "160 are to be had"),
        (PLANES, PlanesConfig(7, 8, 8, 8, 16), "bytes of shared memory"),
    ],
    ids=str,
)
@needs_emulator
def test_what_cannot_be_is_refused(method: Any, config: Any, reason: str) -> None:
    problem = problem_of("n1c8h99w120_k8r3s3_p1_g8_f32_nhwc")
    with pytest.raises(ValueError, match=reason):
        method.plan(problem, config, emulator_runtime())


def test_a_vector_is_one_load() -> None:
    problem = problem_of("n1c6h8w8_k6r3s3_p1_g6_f32_nhwc")
    with pytest.raises(ValueError, match="vec=3 must be a power of two"):
        CHANNELS.plan(problem, ChannelsConfig(3, 1, 1, 2, 4, 4), emulator_runtime())


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize("size", ["n3c4h260w4_k4", "n1c8h520w1_k8", "n2c1h300w8_k1"])
def test_blocks_of_tall_pictures_are_as_a_gpu_takes_them(size: str) -> None:
    """A block has at most 64 threads along its third axis."""
    problem = problem_of(f"{size}r3s1_p1x0_g{size.rpartition('k')[2]}_f32_nhwc")
    for config in CHANNELS.configs(problem, H200):
        assert config.block_p <= 64
        check(CHANNELS, str(problem), config)


@needs_emulator
@pytest.mark.parametrize(
    ("text", "strides"),
    [
        ("n1c1h1w8_k1r1s1_p1x0_f32_nchw", (48, 48, 16, 1)),
        ("n1c4h1w8_k4r1s1_p1x0_g4_f32_nchw", (96, 24, -8, 1)),
        ("n1c4h8w1_k4r1s1_p0x4_g4_f32_nchw", (288, 72, 9, -1)),
        ("n2c4h3w8_k4r3s1_g4_f32_nchw", (32, 8, 100, 1)),
    ],
)
def test_outputs_follow_each_other_by_their_own_sizes(text: str, strides: tuple[int, ...]) -> None:
    """Padding makes several rows of one, or columns; what stride an axis of one row has says nothing."""
    problem, runtime = problem_of(text), emulator_runtime()
    inputs = make_inputs(problem)
    plan = ROWS.plan(problem, RowsConfig(2), runtime)
    room = np.full(2048, 7, np.float32)
    out = np.lib.stride_tricks.as_strided(room[512:], problem.out_shape, [4 * stride for stride in strides])
    plan({"x": inputs.x, "w": plan.prepare(inputs.w), **inputs.operands, "out": out})
    assert Judge(problem, inputs).verdict(ROWS.precision, out.copy()).ok
    out[...] = 7
    assert (room == 7).all(), "it wrote beside its output"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (RowsConfig(0), "planes=0 must be at least 1"),
        (RowsConfig(1, 0), "out_p=0 must be at least 1"),
        (RowsConfig(1, 16), "a row of 14 pixels and its 224 outputs take 262 registers; 190 are to be had"),
        (RowsConfig(150, 2), "at most 1024 threads; 1050 are asked for"),
        (RowsConfig(1024, 14), "registers"),
    ],
    ids=str,
)
@needs_emulator
def test_what_rows_cannot_be_is_refused(config: RowsConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ROWS.plan(problem_of("n2c9h14w14_k9r7s7_p3_g9_f16_nchw"), config, emulator_runtime())


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [
        (TILED[0], DepthwiseMmaConfig(0, 1, 1), "planes=0 must be at least 1"),
        (TILED[0], DepthwiseMmaConfig(1, 1, -1), "tiles=-1 must be at least 0"),
        (TILED[0], DepthwiseMmaConfig(8, 8, 1), "2048 are asked for"),
        (TILED[0], DepthwiseMmaConfig(1024, 1, 1), "at most 1024 threads; 32768"),
        (WALKED[0], DepthwiseMmaConfig(32, 1, 0), "32 planes and their filters take"),
        *((text, DepthwiseMmaConfig(1, 1, 0), "tiles=0: a warp goes down a plane") for text in TILED[1:]),
    ],
    ids=str,
)
@needs_emulator
def test_what_no_warp_can_be_is_refused(text: str, config: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MMA.plan(problem_of(f"{text}_f16_nchw"), config, emulator_runtime())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (DepthwiseBatchConfig(0), "channels=0 must be at least 1"),
        (DepthwiseBatchConfig(33), "at most 1024 threads; 1056 are asked for"),
        (DepthwiseBatchConfig(32), "32 channels of the images take"),
    ],
    ids=str,
)
@needs_emulator
def test_what_no_pictures_can_be_is_refused(config: DepthwiseBatchConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        BATCH.plan(problem_of("n9c64h56w56_k64r3s3_p1_g64_f16_nchw"), config, emulator_runtime())


@needs_emulator
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_warps_without_a_channel_have_nothing_to_do(channels: int) -> None:
    check(BATCH, "n9c5h14w14_k5r5s5_p2_g5_f16_nchw", DepthwiseBatchConfig(channels))


def test_which_warps_walk() -> None:
    assert all(walks(problem_of(f"{text}_f16_nchw")) for text in WALKED)
    assert not any(walks(problem_of(f"{text}_f16_nchw")) for text in TILED)


def test_tensor_cores_are_expected_where_they_won() -> None:
    """The first config, and the method, on layers that were measured on an H200."""
    measured = (
        ("n32c96h56w56_k96r7s7_p3_g96_f16_nchw", {(1, 2, 0), (2, 2, 0)}, True),
        ("n32c128h56w56_k128r31s31_p15_g128_f16_nchw", {(1, 4, 7), (2, 4, 7)}, True),
        ("n32c384h14w14_k384r7s7_p3_g384_f16_nchw", {(4, 1, 1), (4, 1, 2)}, False),
        ("n32c240h28w28_k240r5s5_p2_g240_f16_nchw", {(2, 1, 0), (4, 1, 0)}, False),
        ("n32c512h14w14_k512r27s27_p13_g512_f16_nchw", {(2, 1, 2), (4, 1, 2)}, False),
    )
    for text, best, won in measured:
        problem = problem_of(text)
        first = DepthwiseMma().configs(problem, H200)[0]
        assert (first.planes, first.plane_warps, first.tiles) in best
        ours, other = (predicted_s(method, problem, H200) for method in (DepthwiseMma(), DepthwiseRows()))
        assert (ours < other) == won


def test_the_tile_follows_the_plane() -> None:
    """A plane of 56 x 56 is one tile without waste; small planes share a block; large filters take large tiles."""
    layer = problem_of("n32c128h56w56_k128r31s31_st1_p15_g128_f32_nchw")
    best = DepthwisePlanes().configs(layer, H200)[0]
    assert best.strips_y * best.out_p == best.strips_x * best.out_q == 56
    assert best.out_p * best.out_q >= 28
    small = DepthwisePlanes().configs(problem_of("n32c384h7w7_k384r7s7_st1_p3_g384_f32_nchw"), H200)[0]
    assert small.planes > 1
    assert small.threads >= 32
    assert modelled_cycles(layer, best, H200) / 1.755e9 < 0.85e-3


@needs_emulator
def test_auto_takes_them() -> None:
    runtime = emulator_runtime()
    many = 4 * runtime.facts.cores
    for text, name in (
        ("n1c8h14w14_k8r3s3_p1_g8_f32_nhwc", "depthwise_channels"),
        (f"n1c{many - 1}h14w14_k{many - 1}r3s3_p1_g{many - 1}_f32_nchw", "depthwise_planes"),
        (f"n1c{many}h14w14_k{many}r3s3_p1_g{many}_f32_nchw", "depthwise_rows"),
        (f"n1c{many}h30w30_k{many}r3s3_p1_g{many}_f32_nchw", "depthwise_planes"),
        (f"n1c{many}h30w30_k{many}r9s9_p4_g{many}_f32_nchw", "depthwise_rows"),
        (f"n1c{many}h28w28_k{many}r9s9_p4_g{many}_f16_nchw", "depthwise_rows"),
        (f"n1c{many}h30w30_k{many}r9s9_p4_g{many}_f16_nchw", "depthwise_mma"),
        (f"n1c{many - 1}h30w30_k{many - 1}r9s9_p4_g{many - 1}_f16_nchw", "depthwise_planes"),
        (f"n16c{many}h28w28_k{many}r5s5_p2_g{many}_f16_nchw", "depthwise_batch"),
        (f"n16c{many}h28w28_k{many}r5s5_p2_g{many}_f32_nchw", "depthwise_rows"),
        (f"n16c{many}h28w28_k{many}r3s3_p1_g{many}_f16_nchw", "depthwise_rows"),
        (f"n16c{many}h28w28_k{many}r5s5_st2_p2_g{many}_f16_nchw", "depthwise_rows"),
        ("n1c8h14w14_k8r9s9_p4_g8_f32_nhwc", "depthwise_planes"),
        ("n1c1h14w14_k1r3s3_p1_f32_nchw", "direct_small"),
        ("n1c8h14w14_k8r3s3_p1_g8_u8-i8-u8-i32_nhwc", "depthwise_dp4a"),
        ("n1c8h14w14_k8r3s3_p1_g8_u8-i8-f64-i32_nhwc", "depthwise_channels"),
    ):
        assert choose(problem_of(text), runtime).algorithm.name == name
