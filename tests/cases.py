"""The cases that every backend runs: small problems, mostly with sizes that are not multiples of a tile.

The text of a case is the problem in the form that `parse_problem` reads, and the name of the test. A method may refuse
a case; otherwise its results must be correct for every kind of inputs of the case.

On GPUs and on the emulator, every method compiles a kernel for each combination of C, K, R, S, stride, dilation,
groups, border, types, layouts and epilogue. So a case that tests sizes or padding uses the combination of another case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convforge.problem import parse_problem
from convforge.verify import Inputs, make_inputs

FLOATS = ("normal", "integers")
WHOLE = ("normal",)
TOLD_APART = ("impulse", "normal")


@dataclass(frozen=True, slots=True)
class Case:
    """A problem, with the kinds of inputs and the configs to test.

    Attributes
    ----------
    text : str
        Text form of the problem.
    kinds : tuple of str
        Kinds of the inputs.
    every_config : bool
        Test all configs, not only the default.
    """

    text: str
    kinds: tuple[str, ...] = WHOLE
    every_config: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Worked:
    """A problem with its result, calculated by hand."""

    text: str
    expected: list[Any]
    x: str  # "rows": rows 1 2 3 4 5 and 6 7 8 9 0, w = 1 ... 9; "ramp": x = 0, 1, ... and w = 1, 2, ...


_ROWS = [[384, 606, 723, 570, 312], [318, 513, 648, 603, 354], [483, 738, 873, 648, 339], [318, 513, 648, 603, 354],
         [150, 228, 291, 264, 150]]  # fmt: skip
WORKED = [
    Worked("n1c3h5w5_k1r3s3_st1_p1_f32_nchw", [[_ROWS]], "rows"),
    Worked("n1c3h5w5_k1r3s3_st2_p1_f32_nchw", [[[[384, 723, 312], [483, 873, 339], [150, 291, 150]]]], "rows"),
    Worked("n1c3h5w5_k1r3s3_st3_p1_f32_nchw", [[[[384, 570], [318, 603]]]], "rows"),
    Worked("n1c2h3w4_k2r2s3_f32_nchw", [[[[962, 1040], [1274, 1352]], [[2258, 2480], [3146, 3368]]]], "ramp"),
    Worked("n1c2h3w4_k2r2s3_st2_p1_f32_nchw", [[[[294, 496], [870, 1352]], [[606, 1072], [2070, 3368]]]], "ramp"),
]


def worked_inputs(worked: Worked) -> Inputs:
    """Make the inputs of a result that was calculated by hand."""
    problem = parse_problem(worked.text)
    inputs = make_inputs(problem)
    if worked.x == "rows":
        rows = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]] * 3)[:5]
        x, w = np.broadcast_to(rows, inputs.x.shape), np.broadcast_to(np.arange(1, 10).reshape(3, 3), inputs.w.shape)
    else:
        x, w = np.arange(24).reshape(inputs.x.shape), np.arange(1, 25).reshape(inputs.w.shape)
    return Inputs(x.astype(inputs.x.dtype), w.astype(inputs.w.dtype), inputs.operands)


CONV2D = [
    # Sizes and strides that divide a tile and that do not; filters of many sizes, square and not.
    Case("n1c3h16w16_k4r3s3_st1_p1_f32_nchw", ("impulse", *FLOATS), every_config=True),
    Case("n1c3h17w31_k5r3s3_st1_p1_f32_nchw", FLOATS, every_config=True),
    Case("n1c3h17w31_k5r3s3_st2_p1_f32_nchw", FLOATS, every_config=True),
    Case("n1c3h17w31_k5r3s3_st3_p1_f32_nchw", FLOATS),
    Case("n1c3h19w14_k5r3s3_st4_p1_f32_nchw", FLOATS),
    Case("n1c2h19w23_k3r3s3_st1x2_p1_f32_nchw", FLOATS),
    Case("n1c2h19w23_k3r3s3_st3x1_p1_f32_nchw", FLOATS),
    Case("n1c2h19w23_k3r3s3_st2x4_f32_nchw", FLOATS),
    Case("n1c3h13w40_k3r1s1_f32_nchw", FLOATS, every_config=True),
    Case("n2c17h7w9_k16r1s1_f32_nchw", FLOATS),
    Case("n1c5h9w11_k3r1s1_st2_f32_nchw", FLOATS),
    Case("n1c3h9w11_k3r1s1_p1_f32_nchw"),
    Case("n1c2h11w12_k3r2s2_f32_nchw", FLOATS),
    Case("n1c2h11w12_k3r2s2_st2_p1_f32_nchw", TOLD_APART),
    Case("n1c2h11w12_k3r4s4_p1x2x2x1_f32_nchw", FLOATS),
    Case("n1c2h14w15_k3r5s5_p2_f32_nchw", FLOATS, every_config=True),
    Case("n1c2h13w21_k3r1s7_p0x3_f32_nchw", FLOATS),
    Case("n1c2h21w13_k3r7s1_p3x0_f32_nchw", FLOATS),
    Case("n1c1h25w23_k2r11s5_p5x2_f32_nchw", FLOATS),
    Case("n1c1h23w25_k2r5s11_p2x5_st2_f32_nchw", FLOATS),
    Case("n1c2h18w18_k2r7s7_p3_st2_f32_nchw", FLOATS),
    Case("n1c1h40w37_k1r13s13_p6_f32_nchw", FLOATS, every_config=True),
    Case("n1c2h3w4_k2r3s4_f32_nchw", FLOATS),
    # Convolution (flipped filter) as opposed to correlation.
    Case("n1c2h9w8_k3r3s3_p1_flip_f32_nchw", ("impulse", *FLOATS)),
    Case("n3c3h9w8_k2r2s5_p1x0x3x1_flip_f32_nhwc", ("impulse", *FLOATS)),
    Case("n1c2h12w12_k3r3s3_p1_st2_flip_f32_nchw", TOLD_APART),
    # Numbers of channels and images, extreme sizes.
    Case("n1c1h12w13_k1r3s3_p1_f32_nchw", FLOATS),
    Case("n1c1h12w13_k17r3s3_p1_f32_nchw"),
    Case("n1c7h12w13_k1r3s3_p1_f32_nchw"),
    Case("n1c16h10w11_k16r3s3_p1_f32_nchw", FLOATS, every_config=True),
    Case("n2c17h9w10_k13r3s3_p1_f32_nchw", FLOATS),
    # Channels in slices of 3, 5 and others; the last slice has fewer channels.
    Case("n1c13h20w33_k5r3s3_p1_f32_nchw", FLOATS, every_config=True),
    Case("n2c16h29w14_k8r1s1_st2_f32_nchw", FLOATS, every_config=True),
    Case("n3c2h9w10_k3r3s3_p1_f32_nchw", FLOATS),
    Case("n0c2h9w10_k3r3s3_p1_f32_nchw"),
    Case("n0c3h9w10_k4r3s3_p1_st2_f32_nhwc_+bias+residual+relu"),
    Case("n1c3h1w1_k3r1s1_f32_nchw"),
    Case("n2c3h1w1_k4r3s3_p1_f32_nchw", FLOATS),
    Case("n1c3h1w9_k4r1s3_p0x1_f32_nchw", FLOATS),
    Case("n1c3h9w1_k4r3s1_p1x0_f32_nchw", FLOATS),
    Case("n1c2h2w2_k3r2s2_f32_nchw", FLOATS),
    Case("n1c1h6w130_k2r3s3_p1_f32_nchw", FLOATS),
    Case("n1c1h130w6_k2r3s3_p1_f32_nchw", FLOATS),
    # Padding: asymmetric, wider than the filter, on one side only.
    Case("n1c2h9w10_k3r3s3_p2x0x1x3_f32_nchw", FLOATS),
    Case("n1c2h9w10_k3r3s3_p0x0x0x2_st2_f32_nchw"),
    Case("n1c2h5w6_k3r3s3_p5_f32_nchw", FLOATS),
    Case("n1c2h5w6_k3r3s3_p7x4_st2x4_f32_nchw", FLOATS),
    # Dilation.
    Case("n1c2h13w14_k3r3s3_p2_d2_f32_nchw", FLOATS, every_config=True),
    Case("n1c2h13w17_k3r3s3_p1x3_d1x3_f32_nchw", FLOATS),
    Case("n1c2h13w17_k3r3s2_p2x3_d3x2_st2_f32_nchw", FLOATS),
    Case("n1c2h13w17_k3r3s3_p2_d2_st3x2_f32_nhwc"),
    # Groups and depthwise.
    Case("n1c4h9w10_k6r3s3_p1_g2_f32_nchw", FLOATS, every_config=True),
    Case("n2c6h9w10_k6r3s3_p1_g6_f32_nchw", FLOATS, every_config=True),
    Case("n1c5h9w10_k15r3s3_p1_g5_st2_f32_nchw", FLOATS),
    Case("n2c6h9w10_k3r3s5_p1x2_g3_f32_nhwc", FLOATS),
    Case("n1c4h7w8_k8r1s1_g4_f32_nchw"),
    Case("n1c6h10w9_k6r3s3_p1_g2_d2_flip_f32_nchw"),
    # Depthwise: several outputs per channel, filters small, large, even and not square, planes smaller and larger than
    # a tile, numbers of channels that are not multiples of a vector, borders, epilogues, types of 8 and 16 bits.
    Case("n2c8h17w22_k8r3s3_p1_g8_f32_nhwc", FLOATS, every_config=True),
    Case("n2c8h16w24_k8r3s3_p1_g8_f32_nchw", FLOATS, every_config=True),
    Case("n2c6h13w12_k12r3s3_p1_g6_f32_nhwc", FLOATS),
    Case("n1c5h12w11_k15r3s3_p1_g5_f32_nchw", FLOATS),
    Case("n2c7h14w15_k7r5s5_p2_g7_f32_nhwc", FLOATS),
    Case("n2c12h14w16_k12r5s5_p2_g12_st2_f32_nhwc", FLOATS, every_config=True),
    Case("n3c5h7w7_k5r7s7_p3_g5_f32_nchw", FLOATS, every_config=True),
    Case("n1c4h19w25_k4r7s7_p3_g4_f32_nhwc", FLOATS),
    Case("n1c3h14w14_k3r31s31_p15_g3_f32_nchw", FLOATS, every_config=True),
    Case("n1c4h9w40_k4r13s27_p6x13_g4_f32_nhwc", FLOATS),
    Case("n1c6h20w21_k6r4s2_p2x1x0x1_g6_f32_nchw", FLOATS),
    Case("n1c6h20w21_k12r2s6_p0x1x3x2_g6_flip_f32_nhwc", FLOATS),
    Case("n2c4h40w70_k4r3s3_p1_g4_st2_f32_nchw", FLOATS),
    Case("n1c4h23w26_k4r3s5_p2x6_d2x3_g4_st1x2_f32_nchw", FLOATS),
    Case("n1c8h18w19_k8r3s3_p2_d2_g8_st2x1_f32_nhwc"),
    Case("n1c4h6w9_k4r5s5_p7x4x5x6_g4_reflect_f32_nchw"),
    Case("n1c4h6w9_k4r3s3_p4_g4_circular_f32_nhwc"),
    Case("n1c4h12w16_k4r9s12_p4x4x5x6_g4_constant1.75_f16_nchw", FLOATS),
    Case("n2c8h15w16_k8r3s3_p1_g8_f16_nhwc_+scale:channel+bias+residual+relu", FLOATS),
    Case("n2c4h16w24_k8r5s5_p2_g4_f16_nchw_+bias+silu", FLOATS),
    Case("n1c3h24w20_k3r5s4_p2x2x1x2_g3_f16_nchw", FLOATS),
    Case("n2c3h14w16_k3r7s7_p3_st2x1_g3_f16_nchw_+scale:channel+bias+residual+relu", FLOATS),
    Case("n1c6h12w20_k6r3s3_p1_g6_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu", FLOATS),
    Case("n2c4h12w32_k4r5s3_p2x1_g4_u8-i8-i32-i32_nchw_+zero:7"),
    Case("n1c4h12w20_k4r3s3_p1_constant9.0_g4_u8-i8-i32-i32_nchw_+zero:7"),
    Case("n2c20h9w11_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu", FLOATS),
    Case("n1c12h10w9_k12r5s4_st2x1_p2x1x1x2_reflect_g12_i8-u8-i32-i32_nhwc_+zero:-7"),
    Case("n1c4h11w12_k4r3s3_p1_g4_f64_nhwc", FLOATS),
    Case("n1c4h11w12_k8r11s13_p5x6_g4_f64_nchw", FLOATS),
    Case("n2c4h9w10_k8r3s3_p1_g4_f32_nhwc-kcrs-nchw", FLOATS),
    Case("n2c4h9w12_k4r3s3_p1_g4_f32_nchw-kcrs-nhwc_+residual", FLOATS),
    # Layouts.
    Case("n2c3h9w10_k4r3s3_p1_f32_nhwc", FLOATS, every_config=True),
    Case("n2c3h9w10_k4r3s3_p1_st2_f32_nhwc", FLOATS),
    Case("n2c3h9w10_k4r3s3_p1_f32_nhwc-kcrs-nchw", FLOATS),
    Case("n2c3h9w10_k4r3s3_p1_f32_nchw-krsc-nhwc", FLOATS),
    Case("n2c8h6w7_k5r1s1_f32_nhwc", FLOATS),
    # Borders, also with padding larger than the image.
    *[Case(f"n1c2h9w10_k3r3s5_p1x1x2x2_{mode}_f32_nchw", FLOATS) for mode in
      ("constant1.5", "reflect", "symmetric", "replicate", "circular")],
    *[Case(f"n1c2h3w4_k3r3s5_p7x5x9x4_{mode}_f32_nchw") for mode in
      ("constant-2.0", "reflect", "symmetric", "replicate", "circular")],
    *[Case(f"n2c2h8w7_k2r3s3_p2_st2_{mode}_f32_nhwc") for mode in ("reflect", "symmetric", "replicate", "circular")],
    Case("n1c1h1w1_k1r3s3_p3_reflect_f32_nchw"),
    Case("n1c2h9w10_k2r4s2_p3x0x0x2_d1x2_symmetric_flip_f32_nchw"),
    # Epilogues.
    Case("n1c3h9w10_k4r3s3_p1_f32_nchw_+bias", FLOATS),
    Case("n1c3h9w10_k4r3s3_p1_f32_nchw_+bias+relu", FLOATS, every_config=True),
    Case("n2c3h9w10_k4r3s3_p1_st2_f32_nhwc_+bias+residual+relu", FLOATS),
    Case("n2c3h9w10_k4r3s3_p1_f32_nchw-kcrs-nhwc_+residual", FLOATS),
    Case("n1c3h9w10_k4r3s3_p1_f32_nchw_+scale:tensor", FLOATS),
    Case("n1c3h9w10_k4r3s3_p1_f32_nchw_+scale:channel+bias+clippedrelu:6.0", FLOATS),
    *[Case(f"n1c3h9w10_k4r3s3_p1_f32_nchw_+bias+{name}") for name in
      ("leakyrelu:0.2", "sigmoid", "tanh", "silu", "gelu")],
    Case("n1c4h7w8_k8r1s1_f32_nchw_+bias+silu"),
    Case("n1c3h9w12_k3r3s3_p1_g3_reflect_u8-f32-u8-f32_nhwc_+over:9", FLOATS),
    Case("n1c4h9w12_k4r5s3_p2x1_g4_u8-i8-u8-i32_nchw_+over:6"),
    Case("n1c2h9w10_k2r6s5_p3x2x2x2_g2_u16-f64-u16-f64_nchw_math-separable_+over:30"),
    # Other types.
    Case("n1c3h11w12_k4r3s3_p1_f64_nchw", FLOATS, every_config=True),
    Case("n2c4h11w12_k4r5s3_p2x1_st2_g2_f64_nhwc_+bias+tanh"),
    Case("n1c2h9w10_k4r3s3_p2_reflect_f64_nchw", FLOATS),
    Case("n1c3h11w12_k4r3s3_p1_f16_nchw", FLOATS, every_config=True),
    Case("n1c3h11w12_k4r3s3_p1_st2_f16_nhwc_+bias+residual+relu", FLOATS),
    Case("n1c3h8w9_k4r3s3_p3_replicate_f16_nchw"),
    Case("n2c3h9w21_k5r3s3_p1_bf16_nchw", FLOATS),
    Case("n2c3h9w21_k5r3s3_st2_p1_bf16_nhwc_+bias+relu", FLOATS),
    Case("n1c16h10w12_k16r3s3_p1_g2_d2_reflect_bf16_nchw", FLOATS),
    Case("n1c8h7w8_k16r1s1_bf16_nhwc", FLOATS),
    Case("n2c24h13w11_k40r3s2_p1_f16_nhwc_+bias+relu", FLOATS),
    Case("n2c4h9w24_k4r3s3_p1_g4_bf16_nhwc_+bias", FLOATS),
    Case("n2c4h11w24_k8r5s5_p2_g4_bf16_nchw", FLOATS),
    Case("n2c3h24w20_k3r5s5_p2_g3_bf16_nchw_+bias+residual", FLOATS),
    Case("n1c3h14w16_k3r9s9_p4_g3_bf16_nchw_+bias", FLOATS),
    Case("n2c3h11w12_k4r3s3_p1_bf16-f32-bf16-f32_nhwc", FLOATS),
    Case("n1c3h17w18_k4r3s3_p1_u8_nchw", WHOLE, every_config=True),
    Case("n1c3h17w18_k4r3s3_p1_st2_i8_nhwc"),
    Case("n1c3h17w18_k4r3s3_p1_u8-i8-i32-i32_nhwc", (*FLOATS, "impulse")),
    Case("n1c4h12w13_k4r3s3_p2_g2_u8-i8-i32-i32_nchw_+zero:113"),
    Case("n1c4h12w13_k4r3s3_p2_reflect_u8-i8-i32-i32_nchw_+zero:7"),
    Case("n1c3h12w13_k4r3s3_p2_constant9.0_u8-i8-i32-i32_nchw_+zero:7"),
    Case("n1c3h12w13_k4r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu", FLOATS),
    Case("n1c3h12w13_k4r3s3_p1_i8-i8-i8-i32_nchw_+scale:tensor", FLOATS),
    Case("n1c3h12w13_k4r3s3_p1_u8-i8-f32-i32_nchw_+scale:channel+bias+gelu"),
    Case("n2c3h21w80_k3r5s5_p2_replicate_g3_u8-i8-u8-i32_nhwc", every_config=True),
    Case("n1c2h19w48_k2r4s3_p2x1_g2_i8-i8-i32-i32_nchw_+scale:channel+bias"),
    # A scale of the residual; a scale and a zero point of the output.
    Case("n1c4h12w13_k4r3s3_p1_g4_u8-i8-u8-i32_nchw_+zero:99+scale:channel+bias+residual:0.37+relu+out:0.7:7", FLOATS),
    Case("n1c3h12w13_k4r3s3_p1_i8-i8-i8-i32_nchw_+scale:tensor+silu+out:0.03:-7"),
    Case("n2c3h9w10_k4r3s3_p1_f32_nchw_+bias+residual:-0.37+gelu+out:0.3:0", FLOATS),
    Case("n2c32h9w10_k24r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu", FLOATS),
    # Weights of 8 bits minus their zero point.
    Case("n2c20h9w10_k24r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:128+scale:channel+bias", FLOATS),
    # 8-bit floats, of both kinds.
    Case("n1c24h9w10_k20r3s3_p1_f8e4m3-f8e5m2-f16-f32_nhwc_+bias", FLOATS),
    Case("n2c16h7w9_k18r2s3_st2_p1_f8e5m2-f8e4m3-f32-f32_nchw"),
    # Integer biases and residuals of any size: float32 cannot represent most of them.
    Case("n1c4h12w16_k4r3s3_p1_g4_u8-i8-i32-i32_nchw_+bias+residual+relu"),
    Case("n1c8h7w8_k8r1s1_u8-i8-i32-i32_nchw_+bias+residual"),
    Case("n1c3h9w16_k4r3s3_p1_i8-i8-f32-i32_nhwc_+bias+leakyrelu:0.1"),
    Case("n1c3h9w16_k4r3s3_p1_i16-i8-i32-i32_nchw_+zero:-32768+bias+clippedrelu:2000000001.0"),
    Case("n1c3h24w25_k3r3s3_p1_reflect_g3_u8-f32-u8-f32_nhwc", FLOATS, every_config=True),
    Case("n1c1h24w25_k1r5s5_p2_symmetric_u8-f32-u8-f32_nchw", FLOATS),
    Case("n1c1h24w25_k1r3s3_p1_replicate_u8-f32-f32-f32_nchw", FLOATS),
    Case("n1c3h14w15_k1r3s3_p1_u16-f32-u16-f32_nhwc", FLOATS),
    Case("n1c1h14w15_k1r3s3_p1_i16-f32-i16-f32_nchw"),
]  # fmt: skip

GEMM = [
    Case("m1n1k1_f32", FLOATS),
    Case("m17n33k29_f32", FLOATS, every_config=True),
    Case("m65n3k200_f32", FLOATS),
    Case("m3n130k7_f32", FLOATS),
    Case("m64n64k64_f64", FLOATS, every_config=True),
    Case("m33n40k21_ta_f32", FLOATS),
    Case("m33n40k21_tb_f32", FLOATS),
    Case("m33n40k21_ta_tb_f64", FLOATS),
    Case("m132n136k20_ta_f32", FLOATS),
    Case("m132n136k24_tb_f32", FLOATS),
    Case("m0n5k3_f32"),
    Case("m4n0k3_f32"),
    Case("m4n5k0_f32"),
    Case("m130n600k140_f32", FLOATS, every_config=True),
    Case("m17n33k29_f16", FLOATS),
    Case("m72n136k40_f16", FLOATS),
    Case("m72n136k200_ta_tb_bf16", FLOATS, every_config=True),
    Case("m17n33k29_i8", FLOATS),
    Case("m72n80k160_u8-i8", every_config=True),
    Case("m48n136k40_ta_tb_i8-u8"),
    Case("m4n5k0_i8"),
]

POOL = [
    Case("max_n1c3h9w10_r2s2_st2_p0_f32_nchw", every_config=True),
    Case("max_n2c3h9w10_r3s3_st2_p1_f32_nchw", every_config=True),
    Case("max_n2c3h9w11_r3s3_st2_p1_f32_nhwc"),
    Case("max_n1c2h9w10_r3s2_st1_p1x0x0x1_f32_nchw"),
    Case("max_n1c2h13w14_r3s3_st3x1_p1_d2_f32_nchw"),
    Case("max_n1c2h10w11_r3s3_st2_p1_f32_nchw_ceil"),
    Case("max_n1c2h10w11_r2s2_st2_p0_f16_nchw"),
    Case("max_n1c8h10w32_r3s3_st2_p1_bf16_nchw"),
    Case("max_n1c2h10w11_r3s3_st2_p1_u8_nhwc"),
    Case("max_n1c2h10w11_r3s3_st1_p1_i32_nchw"),
    Case("max_n1c2h10w11_r3s3_st1_p1_f64_nchw_ceil"),
    Case("max_n0c2h10w11_r3s3_st1_p1_f32_nchw"),
]

RELU = [Case(f"relu{size}_{dtype}") for size, dtype in
        ((0, "f32"), (1, "f32"), (1000, "f32"), (33, "f64"), (100, "f16"), (3000, "bf16"), (77, "i8"))]  # fmt: skip

CASES = [*CONV2D, *GEMM, *POOL, *RELU]
