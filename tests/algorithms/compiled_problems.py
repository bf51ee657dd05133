"""The problems that every method is compiled for, on a card of each architecture; no GPU is needed."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tests.algorithms import nvrtc12
from tests.algorithms.compiling import H200, Compiling, compiled
from tests.algorithms.nvrtc12 import compiled12

from convforge.algorithms import ON_DEVICE, refusal
from convforge.backends.architecture import Architecture
from convforge.backends.cuda.compiler import Compiled
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource
from convforge.problem import parse_problem

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _card(
    architecture: str, name: str, cores: int, l2: int, memory: int, block_shared: int, shared: int, threads: int
) -> DeviceFacts:
    return DeviceFacts(
        "cuda", name, cores, 0, l2 * MIB, 0, memory * GIB, 16, architecture, block_shared * KIB, shared * KIB, 65536,
        threads,
    )  # fmt: skip


# A card of each architecture: SMs, MiB of L2, GiB of memory; KiB of shared memory that a block may ask for
# and that an SM has, and its threads (CUDA C++ Programming Guide, technical specifications).
CARDS = {
    card.architecture: card
    for card in (
        _card("sm_61", "GeForce GTX 1080", 20, 2, 8, 48, 96, 2048),
        _card("sm_70", "V100", 80, 6, 16, 96, 96, 2048),
        _card("sm_75", "T4", 40, 4, 16, 64, 64, 1024),
        _card("sm_80", "A100", 108, 40, 40, 163, 164, 2048),
        _card("sm_86", "GeForce RTX 3090", 82, 6, 24, 99, 100, 1536),
        _card("sm_89", "GeForce RTX 4090", 128, 72, 24, 99, 100, 1536),
        H200,
        _card("sm_100", "B200", 148, 126, 180, 227, 228, 2048),
        _card("sm_120", "GeForce RTX 5090", 170, 96, 32, 99, 100, 1536),
    )
}
# The architectures that NVRTC 13 no longer compiles for.
OLD = ("sm_61", "sm_70")

# The architectures that have all of EVERYWHERE: the oldest, the first with asynchronous copies, the first with boxes,
# the newest. Those between them have what one of these has, and a compiler's time is long: of them the first problem of
# each method, which is every kernel once.
BRACKETS = ("sm_61", "sm_80", "sm_90", "sm_120")

# On every architecture: a picture in both layouts and a layer; a large product and a small one.
EVERYWHERE = {
    "conv2d": (
        "n1c3h1024w1024_k1r3s3_p1_f32_nchw", "n1c3h1024w1024_k1r3s3_p1_f32_nhwc", "n32c64h56w56_k64r3s3_p1_f32_nchw",
    ),
    "gemm": ("m4096n4096k4096_f32", "m256n256k256_f32"),
    "max_pool2d": ("max_n32c64h56w56_r3s3_st2_p1_f32_nchw", "max_n32c64h56w56_r3s3_st2_p1_f32_nhwc"),
    "relu": ("relu16777216_f32",),
}  # fmt: skip

# And for the methods that are made for problems of one kind: first on every architecture, then on sm_90 alone.
OWN = {
    "depthwise_channels": (
        ("n32c144h56w56_k144r3s3_p1_g144_f32_nhwc", "n32c240h28w28_k240r5s5_p2_g240_f16_nhwc"),
        (
            "n32c144h56w56_k144r3s3_p1_g144_f16_nhwc", "n32c96h112w112_k96r3s3_p1_st2_g96_f32_nhwc",
            "n32c240h28w28_k240r5s5_p2_g240_f32_nhwc", "n32c672h14w14_k672r5s5_p2_st2_g672_f32_nhwc",
            "n32c96h56w56_k96r7s7_p3_g96_f32_nhwc", "n32c64h56w56_k128r3s3_p1_g64_f64_nhwc",
            "n32c144h56w56_k144r3s3_p1_g144_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu",
        ),
    ),
    "depthwise_planes": (
        ("n32c144h56w56_k144r3s3_p1_g144_f32_nchw", "n32c128h56w56_k128r31s31_p15_g128_f32_nchw"),
        (
            "n32c144h56w56_k144r3s3_p1_g144_f16_nchw", "n32c96h112w112_k96r3s3_p1_st2_g96_f32_nchw",
            "n32c240h28w28_k240r5s5_p2_g240_f32_nchw", "n32c96h56w56_k96r7s7_p3_g96_f16_nchw",
            "n32c128h56w56_k128r31s31_p15_g128_f16_nhwc", "n32c512h14w14_k512r27s27_p13_g512_f32_nchw",
            "n32c64h56w56_k128r3s3_p1_g64_f64_nchw", "n1c3h2160w3840_k3r11s11_p5_reflect_g3_u8-f32-u8-f32_nhwc",
        ),
    ),
    "depthwise_rows": (
        ("n32c672h14w14_k672r5s5_p2_st2_g672_f16_nchw", "n32c512h14w14_k512r27s27_p13_g512_f32_nchw"),
        (
            "n32c240h28w28_k240r5s5_p2_g240_f32_nchw", "n32c96h56w56_k96r7s7_p3_g96_f16_nchw",
            "n32c128h56w56_k128r31s31_p15_g128_f32_nchw", "n32c384h14w14_k384r7s7_p3_g384_f32_nchw_+bias+relu",
            "n32c64h14w14_k64r3s3_p1_reflect_g64_f64_nchw",
        ),
    ),
    "depthwise_mma": (
        ("n32c96h56w56_k96r7s7_p3_g96_f16_nchw", "n32c128h56w56_k128r31s31_p15_g128_f16_nchw"),
        (
            "n32c96h56w56_k96r7s7_p3_g96_bf16_nchw_+scale:channel+bias+residual+relu",
            "n32c384h14w14_k384r7s7_p3_g384_f16_nchw", "n32c672h14w14_k672r5s5_p2_st2_g672_f16_nchw",
            "n32c240h28w28_k240r5s5_p2_g240_bf16_nchw", "n32c512h14w14_k512r27s27_p13_g512_f16_nchw",
            "n8000c96h56w56_k96r7s7_p3_g96_f16_nchw",
        ),
    ),
    "implicit_gemm_wgmma": (
        ("n32c64h56w56_k64r3s3_p1_f16_nhwc", "n32c128h56w56_k128r3s3_st2_p1_f16_nhwc"),
        (
            "n32c256h14w14_k256r3s3_p1_bf16_nhwc", "n32c64h56w56_k256r1s1_f16_nhwc",
            "n8c512h64w64_k512r3s3_p1_f16_nhwc", "n2c8h9w7_k8r3s3_p1_bf16_nhwc",
            "n32c512h7w7_k512r3s3_p1_f16_nhwc_+scale:channel+bias+residual+relu", "n32c64h56w56_k64r3s3_p1_f16_nchw",
            "n32c224h28w28_k224r3s3_p1_g4_bf16_nhwc", "n2c12h9w7_k40r3s3_p1_reflect_f16-f16-f32-f32_nhwc",
            "n1c512h7w7_k512r3s3_p1_f16_nhwc_+bias+relu",
        ),
    ),
    "implicit_gemm_mma": (
        ("n1c512h7w7_k512r3s3_p1_bf16_nchw", "n32c64h56w56_k64r3s3_p1_f16_nhwc"),
        (
            "n32c256h14w14_k256r3s3_p1_bf16_nhwc", "n32c64h56w56_k256r1s1_f16_nhwc_+scale:channel+bias+residual+relu",
            "n32c3h224w224_k64r7s7_st2_p3_f16_nchw", "n2c12h9w7_k40r3s3_p1_reflect_g2_f16-f16-f32-f32_nhwc",
        ),
    ),
    "implicit_gemm_few_channels": (
        ("n32c3h224w224_k64r7s7_st2_p3_f16_nchw", "n32c3h224w224_k64r3s3_p1_bf16_nhwc"),
        (
            "n32c3h224w224_k96r4s4_st4_f16_nhwc_+bias", "n32c3h227w227_k96r11s11_st4_f16_nchw",
            "n32c1h161w700_k32r5s20_st2_f16_nchw", "n32c1h28w28_k16r3s3_p1_f16-f16-f32-f32_nchw",
            "n32c3h224w224_k64r7s7_st2_p3_bf16_nhwc_+scale:channel+bias+residual+relu",
            "n32c3h224w224_k64r7s7_st2_p3_u8-i8-u8-i32_nhwc_+zero:110+scale:channel+bias+relu",
            "n32c3h224w224_k64r7s7_st2_p3_i8-i8-i8-i32_nchw_+scale:channel+bias+relu",
            "n32c3h224w224_k32r3s3_st2_p1_u8-i8-f16-i32_nhwc_+zero:110+scale:channel+bias+residual",
        ),
    ),
    "implicit_gemm_few_outputs": (
        ("n1c128h512w512_k3r3s3_p1_f16_nhwc", "n1c128h512w512_k3r3s3_p1_f16_nchw"),
        (
            "n1c64h512w512_k3r3s3_p1_bf16_nhwc_+bias", "n1c32h512w512_k1r5s5_p2_f16_nchw",
            "n1c512h64w64_k4r4s4_f16-f16-f32-f32_nhwc", "n1c64h512w512_k1r7s7_p3_f16_nhwc",
            "n1c100h60w62_k2r3s3_p1_reflect_d2_bf16_nchw_+scale:channel+bias+residual+relu",
        ),
    ),
    "implicit_gemm_split_few_channels": (
        ("n32c3h224w224_k64r7s7_st2_p3_f32_nchw", "n32c3h224w224_k64r3s3_p1_f32_nhwc"),
        (
            "n32c3h224w224_k96r4s4_st4_f32_nhwc_+bias", "n32c3h227w227_k96r11s11_st4_f32_nchw",
            "n32c1h161w700_k32r5s20_st2_f32_nchw", "n32c1h28w28_k16r5s5_p1_f32_nchw",
            "n32c3h224w224_k64r7s7_st2_p3_f32_nhwc_+scale:channel+bias+residual+relu",
        ),
    ),
    "gemm_mma": (
        ("m4096n4096k4096_f16", "m4096n4096k4096_tb_bf16", "m4096n4096k4096_tb_i8", "m4096n4096k4096_u8-i8"),
        (
            "m4096n4096k4096_ta_tb_f16", "m256n256k256_bf16", "m4099n4093k4091_f16", "m4096n4096k4096_ta_tb_u8",
            "m256n256k256_ta_i8-u8",
        ),
    ),
    "gemm_wgmma": (
        ("m4096n4096k4096_tb_f16", "m4096n4096k4096_bf16"),
        ("m4096n4096k4096_ta_f16", "m256n256k256_ta_tb_bf16", "m8192n64k8192_f16"),
    ),
    "gemm_split": (("m4096n4096k4096_f32",), ("m4096n4096k4096_ta_f32", "m1000n72k100_tb_f32", "m100000n64k64_f32")),
    "gemm_tf32_mma": (("m4096n4096k4096_f32_math-tf32",), ("m1000n72k100_ta_tb_f32_math-tf32",)),
    "implicit_gemm_tf32_mma": (
        ("n32c64h56w56_k64r3s3_p1_f32_nhwc_math-tf32",), ("n32c128h28w28_k128r3s3_p1_f32_nchw_+bias+relu_math-tf32",),
    ),
    "implicit_gemm_int8_mma": (
        (
            "n32c64h56w56_k64r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:128+scale:channel+bias",
            "n32c64h56w56_k64r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
            "n1c512h7w7_k512r3s3_p1_u8-i8-u8-i32_nchw_+zero:128+scale:channel+bias",
        ),
        (
            "n32c128h28w28_k128r3s3_p1_u8-i8-u8-i32_nchw_+zero:128+scale:channel+bias+relu",
            "n32c64h56w56_k256r1s1_i8-i8-f16-i32_nhwc_+zero:3+scale:channel+bias+residual+relu",
            "n2c12h9w7_k40r3s3_p1_reflect_g2_u8-i8-f32-i32_nhwc_+zero:9+bias",
            "n32c64h56w56_k64r3s3_p1_i8-i8-i32-i32_nhwc",
        ),
    ),
    "direct_dp4a": (
        (
            "n32c128h56w56_k128r3s3_p1_g32_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
            "n32c128h56w56_k128r3s3_p1_g32_u8-i8-u8-i32_nchw_+scale:channel+bias+relu",
        ),
        (
            "n32c256h28w28_k256r3s3_st2_p1_g32_i8-i8-f16-i32_nhwc_+zero:3+scale:channel+bias+residual+relu",
            "n32c512h14w14_k512r3s3_p1_g32_u8-u8-i32-i32_nhwc", "n32c3h224w224_k64r7s7_st2_p3_u8-i8-u8-i32_nhwc",
            "n2c14h9w7_k10r3s3_p1_reflect_g2_i8-u8-f32-i32_nchw_+zero:9+bias",
        ),
    ),
    "implicit_gemm_dp4a": (
        (
            "n32c64h56w56_k64r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
            "n32c3h224w224_k64r7s7_st2_p3_u8-i8-u8-i32_nchw_+zero:128+scale:channel+bias",
        ),
        (
            "n32c128h28w28_k128r3s3_p1_u8-i8-u8-i32_nchw_+zero:128+scale:channel+bias+relu",
            "n32c64h56w56_k256r1s1_i8-i8-f16-i32_nhwc_+zero:3+scale:channel+bias+residual+relu",
            "n2c12h9w7_k40r3s3_p1_reflect_g2_u8-i8-f32-i32_nhwc_+zero:9+bias",
            "n32c1h28w28_k16r3s3_p1_u8-u8-u8-i32_nchw_+scale:channel+bias",
            "n32c128h56w56_k128r3s3_p1_g32_i8-u8-i32-i32_nhwc",
        ),
    ),
    "implicit_gemm_fp8_mma": (
        (
            "n32c64h56w56_k64r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8_+amax",
            "n32c64h56w56_k64r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8",
            "n1c512h7w7_k512r3s3_p1_f8e5m2-f8e4m3-f32-f32_nchw_+scale:channel+bias_math-fp8",
        ),
        ("n32c128h28w28_k128r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_+bias+residual+relu_math-fp8",),
    ),
    "im2col_tf32": (
        ("n32c64h56w56_k64r3s3_p1_f32_nhwc_math-tf32",), ("n32c128h28w28_k128r3s3_p1_f32_nchw_+bias+relu_math-tf32",),
    ),
    "gemm_split_mma": (("m4096n4096k4096_f32",), ("m1000n72k100_ta_tb_f32",)),
    "gemm_tf32": (("m4096n4096k4096_f32_math-tf32",), ("m4096n4096k4096_ta_tb_f32_math-tf32",)),
    "implicit_gemm_tf32": (
        ("n32c64h56w56_k64r3s3_p1_f32_nhwc_math-tf32",),
        ("n32c128h28w28_k128r3s3_p1_f32_nchw_math-tf32", "n32c64h56w56_k256r1s1_f32_nhwc_+residual+relu_math-tf32"),
    ),
    "implicit_gemm_int8": (
        ("n32c128h28w28_k128r3s3_p1_i8-i8-i8-i32_nhwc_+scale:channel+bias",),
        (
            "n32c256h14w14_k256r3s3_p1_u8-i8-u8-i32_nhwc_+zero:9+scale:channel+bias",
            "n2c2560h16w16_k1280r3s3_p1_u8-i8-i32-i32_nhwc_+zero:9",
            "n32c64h56w56_k256r1s1_i8-i8-f16-i32_nchw_+scale:channel+bias+relu",
            "n32c256h14w14_k256r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:9+scale:channel+bias",
        ),
    ),
    "implicit_gemm_fp8": (
        ("n32c128h28w28_k128r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8_+scale:tensor",),
        (
            "n32c256h14w14_k256r3s3_p1_f8e5m2-f8e4m3-f8e4m3-f32_nhwc_math-fp8_+scale:tensor+bias+relu",
            "n32c256h28w28_k256r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8_+scale:tensor+bias+relu+amax:0.5",
        ),
    ),
    "implicit_gemm_fp8_fast": (
        ("n32c256h28w28_k256r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8fast_+scale:tensor",),
        (
            "n32c256h14w14_k256r3s3_p1_f8e5m2-f8e4m3-f8e4m3-f32_nhwc_math-fp8fast_+scale:tensor+bias+relu",
            "n32c256h28w28_k256r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8fast_+scale:tensor+bias+relu+amax:0.5",
        ),
    ),
    "implicit_gemm_split_mma": (
        ("n32c64h56w56_k64r3s3_p1_f32_nhwc", "n1c512h7w7_k512r3s3_p1_f32_nchw"),
        (
            "n32c256h14w14_k256r3s3_p1_f32_nhwc_+scale:channel+bias+residual+relu",
            "n2c40h9w7_k33r3s3_p1_reflect_f32_nchw_+bias", "n2c80h9w7_k80r3s3_p1_g2_f32_nhwc",
        ),
    ),
    "implicit_gemm_split": (
        ("n32c64h56w56_k64r3s3_p1_f32_nhwc", "n32c128h56w56_k128r3s3_st2_p1_f32_nchw"),
        (
            "n32c128h56w56_k128r3s3_st2_p1_f32_nhwc", "n32c64h56w56_k64r3s3_p1_f32_nchw",
            "n32c64h56w56_k256r1s1_f32_nhwc_+residual+relu", "n8c512h64w64_k512r3s3_p1_f32_nhwc",
            "n2c40h9w7_k33r3s3_p1_reflect_f32_nchw_+scale:channel+bias+silu", "n2c80h9w7_k80r3s3_p1_g2_f32_nhwc",
            "n1c512h7w7_k512r3s3_p1_f32_nhwc",
        ),
    ),
    "depthwise_batch": (
        ("n32c240h28w28_k240r5s5_p2_g240_f16_nchw", "n32c672h14w14_k672r5s5_p2_st2_g672_f16_nchw"),
        (
            "n32c384h14w14_k384r7s7_p3_g384_f16_nchw", "n32c96h56w56_k96r7s7_p3_g96_bf16_nchw",
            "n32c240h28w28_k240r5s5_p2_g240_bf16_nchw_+scale:channel+bias+residual+relu",
            "n32c96h64w64_k96r9s9_p4_g96_f16_nchw", "n8000c96h56w56_k96r3s3_p1_g96_f16_nchw",
        ),
    ),
    "depthwise_dp4a": (
        (
            "n32c144h56w56_k144r3s3_p1_g144_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
            "n32c240h28w28_k240r5s5_p2_g240_i8-i8-i8-i32_nhwc_+scale:channel+bias+relu",
        ),
        (
            "n32c96h112w112_k96r3s3_st2_p1_g96_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
            "n32c672h14w14_k672r5s5_st2_p2_g672_u8-i8-i32-i32_nhwc_+zero:128",
            "n32c96h56w56_k96r7s7_p3_g96_u8-u8-u8-i32_nhwc_+zero:128+scale:channel+bias",
            "n32c144h56w56_k144r3s3_p1_reflect_g144_i8-i8-f16-i32_nhwc_+scale:channel+bias+residual+relu",
        ),
    ),
    "fft": (
        ("n1c3h2048w2048_k3r31s31_p15_g3_f32_nchw_math-fft", "n32c64h56w56_k64r7s7_p3_f32_nhwc_math-fft"),
        (
            "n32c64h56w56_k64r7s7_p3_f32_nchw_math-fft", "n1c3h2048w2048_k3r31s31_p15_g3_f16_nhwc_math-fft",
            "n1c3h2160w3840_k3r15s15_p7_reflect_g3_u8-f32-u8-f32_nhwc_math-fft",
            "n8c6h512w512_k12r31s31_p15_st2_g3_f32_nchw_+bias+residual+relu_math-fft",
            "n1c1h2048w2048_k1r31s31_p15_f64_nchw_math-fft", "n1c1h50000w50000_k1r63s63_p31_f32_nchw_math-fft",
        ),
    ),
    "fft_fused": (
        # The first has outputs whose windows lie in the padding, which is what outside.cu is for.
        ("n1c3h2048w2048_k3r31s31_p31_g3_f32_nchw_math-fft", "n1c3h2160w3840_k3r9s9_p4_g3_f32_nhwc_math-fft"),
        (
            "n1c3h2160w3840_k3r15s15_p7_reflect_g3_u8-f32-u8-f32_nhwc_math-fft",
            "n8c6h512w512_k12r31s31_p15_st2_g6_f16_nchw_+bias+residual+relu_math-fft",
            "n1c1h2048w2048_k1r31s31_p15_f64_nchw_math-fft", "n1c1h50000w50000_k1r63s63_p31_f32_nchw_math-fft",
        ),
    ),
    "direct_boxes": (
        (
            "n1c3h2048w2048_k1r3s3_p1_f32_nchw", "n1c3h1024w1024_k3r3s3_p1_f32_nchw",
            "n1c3h4096w4096_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc",
        ),
        (
            "n1c3h512w512_k1r3s3_p1_f32_nchw", "n1c3h2048w2048_k3r3s3_p1_st2_f32_nchw",
            "n1c3h2048w2048_k1r3s3_p1_st3_f32_nchw", "n1c3h2048w2048_k3r3s3_p1_f32_nhwc",
            "n1c3h2048w2048_k1r3s3_p1_f16_nchw", "n1c1h4000w4000_k1r5s5_p2_f32_nchw",
            "n1c1h4000w4000_k1r15s15_p7_f32_nchw", "n1c3h2048w2048_k3r3s3_p1_reflect_f32_nchw_+bias+relu",
            "n1c3h2048w2048_k1r3s3_p1_f64_nchw",
        ),
    ),
    "direct_small": (
        ("n1c3h256w256_k3r3s3_p1_f32_nchw", "n1c3h64w64_k1r5s5_p2_reflect_f32_nhwc"),
        (
            "n1c3h256w256_k1r3s3_p1_f32_nchw", "n1c3h256w256_k3r3s3_p1_st3_f32_nchw", "n8c3h64w64_k16r3s3_p1_f16_nchw",
            "n1c3h256w256_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc", "n1c3h256w256_k1r3s3_p1_f64_nchw_+bias+relu",
        ),
    ),
    "direct_mma": (
        (
            "n1c3h4096w4096_k3r5s5_p2_replicate_g3_u8-i8-u8-i32_nhwc",
            "n1c1h4000w4000_k1r7s7_p3_replicate_u8-i8-u8-i32_nchw",
        ),
        (
            "n1c3h4096w4096_k3r3s3_p1_reflect_g3_u8-i8-u8-i32_nhwc", "n1c4h4096w4096_k4r5s5_p2_g4_u8-i8-u8-i32_nhwc",
            "n1c1h4000w4000_k1r15s15_p7_u8-i8-u8-i32_nchw",
            "n1c3h4096w4096_k3r3s3_p1_g3_u8-i8-u8-i32_nchw_+scale:channel+bias+relu",
        ),
    ),
    "separable": (
        (
            "n1c3h2048w2048_k3r31s31_p15_g3_f32_nchw_math-separable",
            "n1c3h2048w2048_k3r9s9_p4_g3_f32_nhwc_math-separable",
        ),
        (
            "n1c3h2048w2048_k3r31s31_p15_g3_f32_nhwc_math-separable",
            "n1c3h2048w2048_k3r5s5_p2_g3_f32_nchw_math-separable",
            "n1c3h2160w3840_k3r15s15_p7_reflect_g3_u8-f32-u8-f32_nhwc_math-separable",
            "n1c1h2048w2048_k1r45s45_p22_f32_nchw_math-separable",
            "n1c1h2048w2048_k1r21s21_p10_st2_f16_nchw_math-separable",
            "n1c1h2048w2048_k1r15s15_p7_f64_nchw_+bias+relu_math-separable",
        ),
    ),
}  # fmt: skip

# Methods that need what came with an architecture, by its number: they refuse everything on those before it.
FIRST_ARCHITECTURE = {
    "direct_boxes": 90, "direct_mma": 80, "depthwise_mma": 80, "depthwise_batch": 80,
    "gemm_mma": 80,
    "implicit_gemm_mma": 80, "sum_shares": 80, "pack_channels": 80, "byte_pairs": 80, "implicit_gemm_few_channels": 80,
    "implicit_gemm_tf32_mma": 80, "gemm_tf32_mma": 80, "im2col_tf32": 80,
    "implicit_gemm_split_few_channels": 80, "few_filters": 80, "implicit_gemm_few_outputs": 80, "tap_columns": 80,
    "implicit_gemm_int8_mma": 80, "implicit_gemm_fp8_mma": 89, "clear_amax": 89,
    "implicit_gemm_split_mma": 80, "gemm_split_mma": 80, "split_filters": 80, "split_pixels": 80, "pixel_rows": 80,
}  # fmt: skip
# Methods of instructions that one architecture alone has, and what prepares their filters.
ONLY_ARCHITECTURE = {
    "implicit_gemm_wgmma": 90, "implicit_gemm_tf32": 90, "implicit_gemm_split": 90, "implicit_gemm_int8": 90,
    "implicit_gemm_fp8": 90, "implicit_gemm_fp8_fast": 90,
    "gemm_wgmma": 90, "gemm_tf32": 90, "gemm_split": 90,
}  # fmt: skip

# The kernels that spill or have a stack frame, and bytes of a thread, by architecture; all others have neither.
# gemm_vectorised: with the 138 and 132 registers that it would take, an SM would hold one block of it, not
# two. direct_boxes spills nothing, but has a stack frame. implicit_gemm_split spills once a tile: 112 columns have 168
# sums in a thread. implicit_gemm_int8_mma: an address that is the same in every step, and on Blackwell a stack
# frame for eight bytes of results near a tie. depthwise_dp4a spills nothing, but has a stack frame for four results of
# 16 bits.
SPILLS = {
    "gemm_vectorised": {"sm_61": 8, "sm_70": 48}, "direct_boxes": {"sm_120": 8}, "implicit_gemm_split": {"sm_90": 24},
    "implicit_gemm_int8_mma": {"sm_80": 4, "sm_100": 8, "sm_120": 8}, "depthwise_dp4a": {"sm_90": 8},
}  # fmt: skip

# On sm_90 alone, as each compile takes its time: the layer in NHWC, stride 2, other types, an epilogue, places that
# need 64 bits, transposed operands; other windows.
ONCE = {
    "conv2d": (
        "n32c64h56w56_k64r3s3_p1_f32_nhwc", "n1c3h1024w1024_k3r3s3_st2_p1_f32_nchw",
        "n32c64h56w56_k64r3s3_p1_f16_nchw", "n1c3h1024w1024_k1r3s3_p1_f16_nhwc", "n1c3h1024w1024_k1r3s3_p1_f64_nchw",
        "n32c64h56w56_k64r3s3_p1_f32_nchw_+bias+residual+relu",
        "n1c3h1024w1024_k3r3s3_p1_reflect_u8-f32-u8-f32_nhwc", "n1c3h40000w40000_k3r3s3_p1_f32_nchw",
    ),
    "gemm": ("m4096n4096k4096_f64", "m4096n4096k4096_ta_f32", "m4096n4096k4096_tb_f32"),
    "max_pool2d": (
        *(f"max_n32c64h112w112_{what}_{layout}" for layout in ("nchw", "nhwc")
          for what in ("r2s2_st2_p0_f32", "r3s3_st2_p1_f16", "r3s3_st1_p1_u8", "r9s9_st1_p4_f32")),
        "max_n64c64h1024w1024_r3s3_st2_p1_f32_nchw", "max_n64c64h1024w1024_r2s2_st2_p0_bf16_nhwc",
    ),
    "relu": ("relu67108864_bf16", "relu67108864_u8", "relu9000000000_f16"),
}  # fmt: skip


class _OnCard(Compiling):
    """Compiles as for the card of an architecture, by the NVRTC that knows it."""

    def __init__(self, architecture: str) -> None:
        self.facts, self.kernels = CARDS[architecture], {}

    def compile(self, kernel: KernelSource) -> Compiled:
        if self.facts.architecture not in OLD:
            return super().compile(kernel)
        self.kernels[kernel.name] = nvrtc12.compile_kernel(kernel, self.facts.architecture)
        return self.kernels[kernel.name]


class Made(NamedTuple):
    """Resources of a kernel's machine code."""

    problem: str
    config: str
    kernel: Compiled


def needs(architecture: str) -> list[pytest.MarkDecorator]:
    """Requirements of a test that compiles for an architecture."""
    return [compiled, compiled12] if architecture in OLD else [compiled]


def methods() -> list[Any]:
    """Every method that runs on NVIDIA GPUs."""
    return [method for method in ON_DEVICE if method.backend == "cuda"]


def is_for(method: str, architecture: str) -> bool:
    """True if an architecture has what a method needs."""
    number = Architecture.parse(architecture).number
    return number == ONLY_ARCHITECTURE.get(method, number) and number >= FIRST_ARCHITECTURE.get(method, 0)


def problems_of(method: Any, architecture: str) -> tuple[str, ...]:
    """Problems for which a method is compiled."""
    everywhere, once = OWN.get(method.name, (EVERYWHERE[method.operation], ONCE[method.operation]))
    if architecture not in BRACKETS:
        return everywhere[:1]
    return everywhere + (once if architecture == "sm_90" else ())


def accepted(method: Any, architecture: str) -> list[Any]:
    """Of these problems those that the method takes on the architecture's card."""
    asked = [parse_problem(text) for text in problems_of(method, architecture)]
    return [problem for problem in asked if refusal(method, problem, CARDS[architecture]) is None]


def compiled_for(method: Any, architecture: str, part: slice) -> list[Made]:
    """Compile the default config of a method for some of the problems that it takes."""
    found = []
    for problem in accepted(method, architecture)[part]:
        runtime = _OnCard(architecture)
        config = method.configs(problem, runtime.facts)[0]
        plan = method.plan(problem, config, runtime)
        launched = {launch.kernel: launch.scratch_bytes for launch in plan.launches}
        for name, kernel in runtime.kernels.items():
            room, dynamic = runtime.facts.block_shared_bytes, launched.get(name, 0)
            assert kernel.shared_bytes + dynamic <= room, f"{name} [{config}] takes {dynamic} of {room} bytes"
            found.append(Made(str(problem), str(config), kernel))
    return found
