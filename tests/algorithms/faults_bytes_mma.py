"""Planted faults of implicit_gemm_int8_mma and implicit_gemm_fp8_mma, and what they share with others: see faults.py.

The rest of their kernel, mma.cu, has its faults in faults.py.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.mma import ImplicitMmaConfig

# A zero point, ragged tiles, results of eight filters at once; of pairs and single ones; of pixels; of another type.
EIGHTS = Run("implicit_gemm_int8_mma", "n2c40h9w11_k40r3s2_st2x1_p1_d1x2_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias",
             ImplicitMmaConfig(32, 32, 64, 16, 32, 3))  # fmt: skip
PAIRS = replace(EIGHTS, problem="n2c13h6w7_k38r3s3_p1_u8-i8-i8-i32_nhwc_+zero:9+scale:channel+bias+relu")
SINGLE = replace(EIGHTS, problem="n2c13h5w7_k37r3s3_p1_i8-u8-i8-i32_nhwc_+zero:-9+scale:tensor+bias")
PIXELS = replace(EIGHTS, problem="n3c16h4w8_k21r3s3_p1_u8-i8-u8-i32_nchw_+zero:9+scale:channel+bias")
SUMS = replace(EIGHTS, problem="n2c24h7w9_k24r3s3_p1_g2_i8-i8-i32-i32_nhwc_+zero:-7")
ODD = replace(EIGHTS, problem="n2c24h7w9_k22r3s3_p1_g2_i8-i8-i32-i32_nhwc_+zero:-7")
RESIDUAL = replace(EIGHTS, problem="n2c24h7w9_k40r3s3_p1_u8-i8-u8-i32_nhwc_+zero:7+scale:channel+bias+residual")
SHARES = replace(SUMS, config=replace(EIGHTS.config, split_k=2))
FLIPPED = replace(SUMS, problem="n1c24h7w9_k24r3s3_p1_flip_i8-i8-i32-i32_nhwc_+zero:-7")
# Weights of int16, in two passes, of two groups.
TWICE = replace(EIGHTS, problem="n2c48h7w9_k48r3s3_p1_g2_u8-i16-i32-i32_nhwc_wmax255_+zero:99")
TIES = Run("implicit_gemm_int8_mma", "n4c16h12w12_k32r1s1_u8-i8-u8-i32_nhwc_+scale:channel+bias",
           EIGHTS.config, "integers")  # fmt: skip
FLOATS = Run("implicit_gemm_fp8_mma", "n2c72h7w9_k37r3s2_p1_f8e4m3-f8e5m2-f16-f32_nhwc_math-fp8", EIGHTS.config)
LONG = replace(FLOATS, problem="n1c512h3w3_k16r3s3_p1_f8e4m3-f8e4m3-f32-f32_nhwc_math-fp8")

BYTES_MMA_FAULTS = [
    *of_file("implicit_gemm/mma.cu", EIGHTS,
        ("the zero point in every share", "(cfg::SPLIT_K == 1 || part.share == 0)", "true", SHARES),
        ("the zero point left out", "sums[i / 2][j][i % 2 * 2] = begun(own.at[0])",
         "sums[i / 2][j][i % 2 * 2] = 0"),
        ("all taps of every window", "of_pixel == whole ? usual[j] : pair_at(of_pixel, j)", "usual[j]"),
        ("weights of the first product for all", "usual[j] = pair_at(whole, j);", "usual[j] = pair_at(whole, 0);"),
        ("the first group's weights at the border", "at.p, at.q) + first_k;", "at.p, at.q);", SUMS),
        ("pairs of weights of an odd group", "if (cfg::GROUPS == 1 || cfg::K_GROUP % 2 == 0) return load",
         "if (cfg::GROUPS > 1) return load", ODD),
        ("filters of the first product for all", "sums[i / 2][j + v / 2][i % 2 * 2 + v % 2]",
         "sums[i / 2][j][i % 2 * 2 + v % 2]"),
        ("the first filters' factors for all products", "filters(conv, first_k + n,", "filters(conv, first_k + n0,"),
        ("sums that are not negated between the passes", "negate(sums);", ";", TWICE),
        ("weights of the first pass in both", "load.begin(part, pass);", "load.begin(part);", TWICE),
        ("the next group's weights in the second pass", "pass * cfg::GROUPS + part.group", "pass + part.group", TWICE),
        ("a zero point of the wrong sign with two passes", "return cfg::PASSES == 1 ? -taken : taken;",
         "return -taken;", TWICE),
        ("pixels beyond the last one", "if (!(inside >> i & 1) || n >= cfg::K_GROUP) continue;",
         "if (n >= cfg::K_GROUP) continue;"),
        ("eight outputs beyond the last filter", "if (!(inside >> i & 1) || n >= cfg::K_GROUP) continue;",
         "if (!(inside >> i & 1)) continue;"),
        ("pairs where there are none", "if (args.store_width > 1 && cfg::OUT_CHANNELS_LAST)", "if (true)", SINGLE),
        ("filters beyond the last one", "if (n + v >= cfg::K_GROUP) break;", "", PAIRS),
        ("the first pixel of a run for all", "sums[v] = sum_of(v);", "sums[v] = sum_of(0);", PIXELS),
        ("the next filter's scale for pixels", "filter(conv, first_k + n,", "filter(conv, first_k + n + 1,",
         replace(PIXELS, problem="n3c16h4w8_k21r3s3_p1_u8-i8-u8-i32_nchw_+scale:channel+bias")),
        ("half of eight bytes", "else eight.at[2 * v] = pair.at[0], eight.at[2 * v + 1] = pair.at[1];",
         "else eight.at[2 * v] = pair.at[0], eight.at[2 * v + 1] = pair.at[0];", RESIDUAL),
    ),
    *of_file("device/rescaled.cuh", EIGHTS,
        ("a residual left out", "!cfg::RESIDUAL && ", "", RESIDUAL),
        ("one scale for all filters", "conv.scale[k * conv.scale_channels]", "conv.scale[0]"),
        ("the neighbour's bias", "bias = conv.bias[k];", "bias = conv.bias[k ^ 1];"),
        ("the first filter's factors for all", "return factors[first + i * STEP];", "return factors[first];"),
        ("the first filter's scale in double", "exactly(first + i * STEP, sum)", "exactly(first, sum)", TIES),
        ("one filter's factors for the next ones", "min(k + i, last)", "min(k, last)"),
    ),
    *of_file("device/bytes.cuh", EIGHTS,
        ("another bias in double", "wide(sum) * scale + bias);", "wide(sum) * scale + bias + 1);", TIES),
        ("a number's result in every word", "i == which / 4 ? (words", "true ? (words", TIES),
        ("a number's result in the first place", "& 255u) << place;", "& 255u);", TIES),
        ("the first number's sum for all", "sum = i == which ? sums[i] : sum;", "sum = sums[0];", TIES),
        ("numbers in another order", "__byte_perm(bytes[i + 2 * j], bytes[i + 2 * j + 1], 0x0040)",
         "__byte_perm(bytes[i + 2 * j + 1], bytes[i + 2 * j], 0x0040)"),
        ("no relu", "LEAST = RELU ? 0.0f : ", "LEAST = ", PAIRS),
        ("the range of another type", "scale = nearest_float(by) * (1.0f / SPREAD);",
         "scale = nearest_float(by) * (1.0f / 256);"),
        ("a bias that begins at 0", "fmaf(near, 1.0f / SPREAD, -LEAST * (1.0f / SPREAD))", "near * (1.0f / SPREAD)",
         SINGLE),
        ("float where it is not certain", "sure = sure & (fabsf(", "sure = sure | (fabsf(", TIES),
        ("float for every tie", "floats ? 0.5f - units * 5.9604644775390625e-8f", "floats ? 1.0f", TIES),
        ("the sign of a scale left out", "return float_of(sign | ((", "return float_of(((", EIGHTS),
        ("small numbers of a wrong size", "- (896u << 20)) << 3", "- (895u << 20)) << 3"),
    ),
    *of_file("device/zero_point.cuh", SUMS,
        ("every column in the middle", "min(q, zero.first_w) + max(q - zero.last_w, 0)", "zero.first_w"),
        ("every row in the middle", "min(p, zero.first_h) + max(p - zero.last_h, 0)", "zero.first_h"),
        ("classes of rows for columns", "row * zero.across", "row", EIGHTS),
    ),
    *of_file("implicit_gemm/tap_sums.cu", SUMS,
        ("no barrier after the taps", SYNC, ""),
        ("one channel of 32", "for (int c = lane; c < args.channels; c += 32)", "for (int c = lane; c < 1; c += 32)"),
        ("taps as they lie in a flipped filter", "args.flip ? TAPS - 1 - tap : tap", "tap", FLIPPED),
        ("weights without the zero point", "= args.zero * sum;", "= sum;"),
        ("all taps of every class", "int sum = 0;\n        for (int r = rows.first; r < rows.end; r++)",
         "int sum = 0;\n        for (int r = 0; r < cfg::R; r++)"),
        ("the first output's class for the last", "axis.last + number - axis.first", "0"),
    ),
    *of_file("implicit_gemm/byte_pairs.cu", TWICE,
        ("both bytes of a pair in one plane", "pairs[args.count + i]", "pairs[i]"),
        ("halves that are both rounded down", "lower - w);", "-lower);"),
        ("the first filter for all", "k * args.strides[0] +", ""),
        ("the first channel for all", "c * args.strides[1] +", ""),
        ("rows for columns", "r * args.strides[2] + s * args.strides[3]", "s * args.strides[2] + r * args.strides[3]"),
    ),
    *of_file("device/mma_tiles.cuh", LONG,
        ("sums of units never added", "add_sums(sums, of_units);", ";"),
        ("sums of units added twice", ", others[i][j][e] = 0;", ";"),
    ),
    *of_file("device/mma.cuh", FLOATS,
        ("one type of 8-bit floats for both", '"e4m3.e4m3" : "e4m3.e5m2"', '"e4m3.e4m3" : "e4m3.e4m3"'),
        ("pixels for filters of 8-bit floats", "types, sums, a, b);\n}\n\ninline const char *type_name",
         "types, sums, a, a);\n}\n\ninline const char *type_name"),
    ),
]  # fmt: skip
