"""Depthwise convolution on the CPU, beyond the shared cases: every way that vectors lie, and what is chosen when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.judged import judge_of
from tests.strategies import FIRST_DTYPES, dtypes_of

import convforge
from convforge.algorithms import find
from convforge.algorithms.depthwise import Depthwise, DepthwiseConfig
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import parse_problem
from convforge.tuning import choose
from convforge.verify import check_plan

WAYS = [
    # Channels that no vector divides, in one item and in several; a multiplier; strides; dilation; a last short strip.
    ("n2c19h13w11_k19r3s3_p1_g19_f32_nhwc", DepthwiseConfig("channels", 4, 16)),
    ("n1c20h12w9_k40r3s5_p1x2_g20_f32_nhwc_+scale:channel+bias+residual+silu", DepthwiseConfig("channels", 5, 8)),
    ("n1c16h15w17_k16r5s4_p2_st2x3_d1x2_g16_f16_nhwc", DepthwiseConfig("channels", 3, 16)),
    ("n1c17h9w12_k17r3s3_p1_g17_f32_nchw-kcrs-nhwc", DepthwiseConfig("channels", 9, 24)),
    ("n1c24h9w12_k24r3s3_p4_circular_g24_u8-i8-u8-i32_nhwc_+zero:7+scale:channel", DepthwiseConfig("channels", 2, 8)),
    ("n1c5h11w13_k5r3s3_p1_g5_f64_nhwc", DepthwiseConfig("channels", 4, 4)),
    # Pixels side by side: every number of channels that begins vectors differently, strides, types, an epilogue.
    *[(f"n2c{c}h12w21_k{c}r3s3_p1_reflect_g{c}_f32_nhwc", DepthwiseConfig("pixels", 5, c)) for c in range(2, 8)],
    ("n1c3h12w67_k3r5s3_p2x1_st2x3_g3_f32_nhwc", DepthwiseConfig("pixels", 2, 3)),
    ("n1c3h12w40_k6r3s3_p1_d2_g3_f32_nhwc_+bias+residual+relu", DepthwiseConfig("pixels", 4, 3)),
    ("n1c3h14w600_k3r3s3_p1_symmetric_g3_u8-f32-u8-f32_nhwc", DepthwiseConfig("pixels", 6, 3)),
    ("n1c3h14w30_k3r3s3_p1_replicate_g3_u16-i8-u16-i32_nhwc", DepthwiseConfig("pixels", 6, 3)),
    ("n1c4h9w30_k4r3s3_p1_constant9.0_g4_u8-i8-i32-i32_nhwc_+zero:7", DepthwiseConfig("pixels", 9, 4)),
    ("n1c3h9w20_k3r2s2_g3_f16_nhwc", DepthwiseConfig("pixels", 3, 3)),
    ("n1c3h9w20_k3r3s3_p1_g3_f64_nchw", DepthwiseConfig("pixels", 3, 3)),
    # Columns: rows narrower than a vector, wide rows, stride 2 and 3 to the last pixel of the array.
    ("n2c3h5w5_k3r3s3_p1_g3_f32_nhwc", DepthwiseConfig("columns", 2, 1)),
    ("n1c2h12w300_k4r3s3_p1_g2_f32_nchw", DepthwiseConfig("columns", 7, 1)),
    *[(f"n1c2h9w{w}_k2r3s3_st{st}_g2_{types}_nchw", DepthwiseConfig("columns", 4, 1))
      for w in (17, 33, 34, 35) for st in (2, 3) for types in ("f32", "u8-i8-i32-i32", "i16-f32-f32-f32")],
]  # fmt: skip


def way(text: str, config: DepthwiseConfig) -> Any:
    later = dtypes_of(parse_problem(text)) not in FIRST_DTYPES
    return pytest.param(text, config, id=f"{text}-{config.along}", marks=[pytest.mark.thorough] if later else [])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("text", "config"), [way(*found) for found in WAYS])
def test_every_way_is_right(text: str, config: DepthwiseConfig) -> None:
    plan = Depthwise().plan(parse_problem(text), config, cpu_runtime())
    for kind in ("normal", "integers"):
        verdict = check_plan(plan, judge_of(text, kind))
        assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("text", "along"),
    [
        ("n1c32h28w28_k32r3s3_st1_p1_g32_f32_nchw", "columns"),
        ("n1c32h28w28_k32r3s3_st1_p1_g32_f32_nhwc", "channels"),
        ("n1c3h28w28_k3r3s3_st1_p1_g3_f32_nhwc", "pixels"),
        ("n1c3h5w5_k3r3s3_st1_p1_g3_f32_nhwc", "columns"),  # rows of 15 numbers hold no three vectors
    ],
)
def test_vectors_lie_along_what_is_side_by_side(text: str, along: str) -> None:
    choice = choose(parse_problem(text), cpu_runtime())
    assert choice.algorithm.name == "depthwise"
    assert isinstance(choice.config, DepthwiseConfig)
    assert choice.config.along == along


@pytest.mark.parametrize("along", ["columns", "channels", "pixels"])
def test_pictures_with_gaps_and_turned_round(along: str) -> None:
    """Strides that no fast path is made for: parts of larger arrays, mirrored ones, both at once."""
    rng = np.random.default_rng(5)
    large, w = rng.standard_normal((2, 30, 60, 9), np.float32), rng.standard_normal((3, 1, 3, 3), np.float32)
    config = {"along": along, "tile_p": 4, "tile_c": 3}
    for x in (large[:, ::2, 3:43, 2:5], large[:, ::-1, ::-1, 5:2:-1], large[..., ::3], large[:, :, ::2, :3]):
        expected = convforge.conv2d(x.copy(), w, padding=1, groups=3, layout="NHWC", algorithm="direct_naive")
        out = np.zeros((2, x.shape[1], x.shape[2], 5), np.float32)[..., 1:4]
        got = convforge.conv2d(x, w, padding=1, groups=3, layout="NHWC", algorithm="depthwise", config=config, out=out)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "config", "reason"),
    [
        ("n1c8h9w9_k8r3s3_g8_f32_nhwc", DepthwiseConfig("rows", 4, 8), "along='rows' must be 'columns', 'channels' or"),
        ("n1c8h9w9_k8r3s3_g8_f32_nhwc", DepthwiseConfig("pixels", 4, 8), "fewer channels than that"),
        ("n1c3h9w9_k3r3s3_g3_f32_nhwc", DepthwiseConfig("pixels", 4, 3), "rows of at least 8 of them"),
    ],
)
def test_configs_that_cannot_be_are_named(text: str, config: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Depthwise().plan(parse_problem(text), config, cpu_runtime())


def test_groups_of_several_channels_are_refused() -> None:
    reason = find("conv2d", "cpu", "depthwise").refuses(parse_problem("n1c4h9w9_k4r3s3_g2_f32_nchw"), cpu_facts())
    assert str(reason) == "a filter must see one channel: groups=2 must equal C=4"


def test_prepared_weights_are_a_copy() -> None:
    rng = np.random.default_rng(6)
    for layout, shape in (("NCHW", (1, 8, 12, 12)), ("NHWC", (1, 12, 12, 8)), ("NHWC", (1, 12, 12, 3))):
        x = rng.standard_normal(shape, np.float32)
        channels = shape[layout.index("C")]
        w = rng.standard_normal((channels, 1, 3, 3), np.float32)
        kept = convforge.Filter(w, groups=channels, layout=layout, algorithm="depthwise")
        before = kept(x)
        w[:] = 0
        np.testing.assert_array_equal(kept(x), before)
