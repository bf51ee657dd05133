"""Planted faults of implicit_gemm_dp4a and direct_dp4a: see faults.py. The former's loop and squares are gemm.cuh's."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.direct.dp4a import StripConfig
from convforge.algorithms.implicit_gemm.dp4a import Dp4aConfig

# Sixteen bytes a load, of several taps a step, with ragged tiles; one tap a step; words; bytes of channels; three
# channels; several taps a word; results of filters of a pixel, and of pixels; other types.
SMALL = Dp4aConfig(16, 128, 8, 16, 32, 4, 4)
SIXTEEN = Run(
    "implicit_gemm_dp4a", "n2c16h9w11_k21r3s2_st2x1_p1_d1x2_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias", SMALL
)
ONE_TAP = replace(SIXTEEN, problem="n1c64h7w8_k24r3s3_p1_u8-i8-u8-i32_nhwc_+zero:9+scale:channel+bias+relu")
WORDS = replace(SIXTEEN, problem="n1c20h7w8_k24r3s3_p1_g2_i8-u8-i32-i32_nhwc_+zero:-7")
BYTES = replace(SIXTEEN, problem="n2c13h6w8_k38r3s3_p1_u8-i8-i8-i32_nchw_+zero:9+scale:channel+bias")
THREE = replace(SIXTEEN, problem="n1c3h13w11_k16r5s4_st2_p2_i8-i8-i32-i32_nhwc_+zero:-3")
TAPS = replace(SIXTEEN, problem="n1c1h9w12_k16r3s6_p1_u8-i8-i32-i32_nchw_+zero:5")
FLIPPED = replace(SIXTEEN, problem="n1c2h9w12_k40r3s5_p1_flip_u8-i8-i32-i32_nchw")
SINGLE = replace(SIXTEEN, problem="n1c16h5w5_k9r3s3_p1_u8-i8-u8-i32_nhwc_+scale:channel+bias")
# Filters of a group, stored as vectors of filters; of pixels; groups that no thread divides, bytes of seven channels, a
# dilation; results of another type.
GROUPS = Run("direct_dp4a", "n2c32h9w11_k32r3s2_st2x1_p1_d1x2_g8_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias",
             StripConfig(32, 4, 4))  # fmt: skip
PLANES = replace(GROUPS, problem="n2c16h7w8_k16r3s3_p1_g2_i8-u8-u8-i32_nchw_+zero:-9+scale:channel+bias")
RAGGED = replace(GROUPS, problem="n1c14h6w7_k10r3s3_p1_g2_u8-i8-i32-i32_nchw_+zero:5")
FEW = replace(GROUPS, problem="n1c14h6w7_k10r3s3_p1_g2_u8-i8-u8-i32_nhwc_+scale:channel+bias")

DP4A_FAULTS = [
    *of_file("implicit_gemm/dp4a.cu", SIXTEEN,
        ("pixels and weights of one type", "dp4a<x_t, w_t>(pixels", "dp4a<x_t, x_t>(pixels"),
        ("the zero point left out", "sums[i][j] -= zero;", "sums[i][j] -= 0;"),
        ("the first group's zero points", "args.zero[tile.group * cfg::K_GROUP + row]", "args.zero[row]", WORDS),
        ("zeros for the zero point outside", "conv.outside) * 0x01010101u", "0) * 0x01010101u"),
        ("the zero point in one byte of four", "conv.outside) * 0x01010101u", "conv.outside)"),
        ("zeros for the zero point of bytes outside", "byte_at(pixel + (c + b) * step) : conv.outside;",
         "byte_at(pixel + (c + b) * step) : 0;", BYTES),
        ("zeros for the zero point of taps outside", "byte_at(pixel + c * step) : conv.outside;",
         "byte_at(pixel + c * step) : 0;", TAPS),
        ("the first word for all four", "to[v][0] = several.at[v];", "to[v][0] = several.at[0];"),
        ("channels side by side in NCHW", "byte_at(pixel + (c + b) * step)", "byte_at(pixel + c + b)", BYTES),
        ("bytes in another order", "bytes[0], bytes[1], 0x0040);\n", "bytes[1], bytes[0], 0x0040);\n", BYTES),
        ("the last of three bytes twice", "BYTES == 3 ? bytes[BYTES - 1] :", "BYTES == 3 ? bytes[1] :", THREE),
        ("the first column's taps for all", "pixel_of(conv, corner, at.r, s) : nullptr",
         "pixel_of(conv, corner, at.r, at.s) : nullptr", TAPS),
        ("columns without dilation", "corner.w + s * cfg::DILATION_W", "corner.w + s"),
        ("rows of the first tap", "corner.h + r * cfg::DILATION_H", "corner.h"),
        ("columns without the stride", "column.p * cfg::STRIDE_H - conv.top", "column.p - conv.top"),
        ("the first group's channels", "group * cfg::C_GROUP, 0, 0)", "0, 0, 0)", WORDS),
        ("channels of a step without their place in it", "first.c + 4 * k);", "4 * k);", ONE_TAP),
        ("one tap for all steps", "pixel_of(conv, corner, first.r, first.s) : nullptr",
         "pixel_of(conv, corner, 0, 0) : nullptr", ONE_TAP),
        ("no barrier after the corners", f"{SYNC}\n    const MatrixLoader", "const MatrixLoader"),
        ("corners of the first tile", "min(tile.n + n, product.N - 1)", "min(n, product.N - 1)",
         replace(WORDS, problem="n3c20h7w8_k24r3s3_p1_g2_i8-u8-i32-i32_nhwc_+zero:-7")),
        ("one filter's factors for four", "(cfg::C_M_MAJOR ? 0 : u, own)", "(0, own)", BYTES),
        ("the first group's factors", "filters(conv, first_k + m,", "filters(conv, m,",
         replace(WORDS, problem="n1c20h7w8_k24r3s3_p1_g2_i8-u8-u8-i32_nhwc_+scale:channel+bias")),
        ("pixels for filters", "cfg::C_M_MAJOR ? sums[i + v][j + u]", "cfg::C_M_MAJOR ? sums[i + u][j + v]"),
        ("filters beyond the last one", "if (row < M && n + column < N) starts", "if (n + column < N) starts", SINGLE),
        ("vectors beyond the last pixel", "store.vectors && m + 4 <= M && n + 4 <= N", "store.vectors && m + 4 <= M",
         replace(SINGLE, problem="n1c16h5w5_k8r3s3_p1_u8-i8-u8-i32_nhwc_+scale:channel+bias")),
    ),
    *of_file("device/words.cuh", TAPS,
        ("taps of one row alone", "r(i / (ACROSS * WORDS))", "r(0)"),
        ("the first taps of a row for all", "s(i / WORDS % ACROSS * TAPS)", "s(i / WORDS % ACROSS)"),
        ("the first channels of a tap for all", "c(i % WORDS * CHANNELS)", "c(0)", WORDS),
        ("taps beyond the last one", "(cfg::S % TAPS == 0 || s < cfg::S)", "true"),
        ("channels beyond the last one", "(cfg::C_GROUP % CHANNELS == 0 || c < cfg::C_GROUP)", "true", BYTES),
    ),
    *of_file("implicit_gemm/pack_words.cu", FLIPPED,
        ("no barrier after the square", SYNC, ""),
        ("rows as they lie in a flipped filter", "args.flip ? cfg::R - 1 - at.r : at.r", "at.r"),
        ("columns as they lie in a flipped filter", "args.flip ? cfg::S - 1 - s : s", "s"),
        ("all bytes at the first place", "byte << 8 * b", "byte"),
        ("the first filters again", "+ k0 + x] = square", "+ x] = square"),
        ("a square that is not transposed", "square[x][i];", "square[i][x];"),
    ),
    *of_file("direct/dp4a.cu", GROUPS,
        ("pixels and weights of one type", "dp4a<x_t, w_t>(pixels", "dp4a<x_t, x_t>(pixels"),
        ("the zero point left out", "sums[k][q] = -zero;", "sums[k][q] = 0;"),
        ("the first group's zero points", "args.zero[at.group * cfg::K_GROUP + at.k", "args.zero[at.k"),
        ("zeros for the zero point outside", "conv.outside) * 0x01010101u", "0) * 0x01010101u"),
        ("the first group's weights", "conv.w) + (at.group * cfg::K_GROUP + at.k)", "conv.w) + at.k"),
        ("the first group's channels", "at.n, at.group * cfg::C_GROUP, 0, 0)", "at.n, 0, 0, 0)"),
        ("weights of the first word", "* KWords::WORDS + c) * cfg::K", "* KWords::WORDS) * cfg::K", PLANES),
        ("weights of the first row", "(r * cfg::S + s) * KWords", "s * KWords"),
        ("pixels without dilation", "+ s * cfg::DILATION_W], taps", "+ s], taps"),
        ("rows without the stride", "at.p * cfg::STRIDE_H - conv.top", "at.p - conv.top"),
        ("rows without dilation", "+ r * cfg::DILATION_H, conv.H", ", conv.H",
         replace(GROUPS, problem="n1c32h9w11_k32r3s3_p1_d2x1_g8_u8-i8-i32-i32_nhwc")),
        ("strips begin at the same pixel", "strip * cfg::TILE_Q,", "0,"),
        ("columns beyond the image", "first + SEEN <= conv.W", "true"),
        ("columns before the image", "first >= 0 && first", "first"),
        ("channels of the first word", "(c + b) * static_cast<index_t>(conv.x_strides.c)",
         "b * static_cast<index_t>(conv.x_strides.c)", PLANES),
        ("filters beyond the last one", "from[min(k, left - 1)]", "from[0]", RAGGED),
        ("results beyond the last filter", "(EVEN || at.k + filter(i, v) < cfg::K_GROUP) && ", "", RAGGED),
        ("results beyond the last pixel", " && at.q + pixel(i, v) < conv.Q;", ";", RAGGED),
        ("vectors of some", "if (vectors && exists(i, COUNT - 1))", "if (vectors)"),
        ("the first filter's factors for all", "bytes<OF_FILTERS>(", "bytes<0>("),
        ("the first filter's factors for all runs", "(filter(i, 0), own)", "(0, own)", PLANES),
        ("the first group's factors", "filters(conv, first_k + at.k,", "filters(conv, at.k,"),
        ("pixels for filters", "sums[filter(i, v)][pixel(i, v)];", "sums[pixel(i, v)][filter(i, v)];"),
        ("threads beyond the last one", "* args.strips * UNITS) return;", "* args.strips * UNITS + 40) return;", FEW),
        ("more filters a group than it has", "unit % BLOCKS * cfg::FILTERS", "0", FEW),
    ),
]  # fmt: skip
