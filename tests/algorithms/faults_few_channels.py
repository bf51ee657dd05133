"""Planted faults of few_channels.cu and transpose.cuh; see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.few_channels import FewChannelsConfig

# A layer in NCHW, whose rows of results are stored one by one; others of whole 16 bytes, and of pairs.
LAYER = Run("implicit_gemm_few_channels", "n2c3h13w43_k37r3s5_st2x1_p1_d1x2_f16_nchw_+bias",
            FewChannelsConfig(4, 16, 32, 2, 16))  # fmt: skip
EIGHTS = replace(LAYER, problem="n2c3h9w40_k24r3s3_p1_bf16_nchw_+bias")
PAIRS = replace(LAYER, problem="n2c3h9w42_k24r3s3_p1_bf16_nchw_+bias")
# Filters of an output side by side: eight, two and one.
FILTERS = replace(LAYER, problem="n2c3h9w21_k40r3s3_p1_f16_nhwc_+bias", config=FewChannelsConfig(4, 16, 32, 2, 32))
FILTER_PAIRS = replace(FILTERS, problem="n2c3h9w21_k42r3s3_p1_f16_nhwc")
ODD_FILTERS = replace(FILTERS, problem="n2c3h9w21_k37r3s3_p1_f16_nhwc")
# Pixels of several rows; of two numbers; wide tiles; more steps than are unrolled.
FOLDED = replace(LAYER, problem="n2c1h15w43_k20r5s4_p1_d2_f16_nchw")
TWO = replace(LAYER, problem="n2c1h13w100_k20r5s20_st2_p2_d1x2_f16_nchw")
BORDER = replace(LAYER, problem="n2c3h9w43_k20r3s3_p1_constant9.0_f16_nchw")
WIDE = replace(LAYER, problem="n2c3h9w70_k20r3s3_p1_f16_nhwc", config=FewChannelsConfig(2, 32, 32, 2, 16))
NAN = replace(EIGHTS, kind="nan")
NAN_FOLDED = replace(NAN, problem="n2c1h13w43_k20r3s5_p1_d2_f16_nchw")

STORE_PAIR = "store_vector(conv.out + place(conv.out_strides, at.n, own, at.p, q), pair)"

FEW_CHANNELS_FAULTS = [
    *of_file("implicit_gemm/few_channels.cu", LAYER,
        ("uninitialised accumulators", "WarpSums sums = {};", "WarpSums sums;"),
        ("no barrier before the next patch", f"{SYNC}  // all have read", "// all have read"),
        ("no barrier after the patch", f"{SYNC}  // the patch is", "// the patch is"),
        ("the first row of taps for all", "row * FOLD * DILATION_H * PITCH + step", "step"),
        ("one row of pixels for several rows of taps", "row * FOLD * DILATION_H * PITCH", "row * DILATION_H * PITCH",
         FOLDED),
        ("the first taps of a row for all", " + step * TAPS * DILATION_W);", ");"),
        ("no dilation between steps", "step * TAPS * DILATION_W", "step * TAPS"),
        ("no dilation within a step", "lane % 4 * DILATION_W", "lane % 4"),
        ("no dilation between the words of a lane", "PLANE : 4 * DILATION_W", "PLANE : 4", TWO),
        ("no dilation down a folded pixel", "h + fold * DILATION_H", "h + fold", FOLDED),
        ("no stride down a tile", "row_of(i) * STRIDE_H * PITCH", "row_of(i) * PITCH"),
        ("no stride of warps", "(row * STRIDE_H * PITCH", "(row * PITCH"),
        ("no stride between outputs", "(column + lane / 4) * STRIDE_W", "(column + lane / 4)", TWO),
        ("no stride between halves of a fragment", "word % 2 * 8 * STRIDE_W", "word % 2 * 8", TWO),
        ("no stride of tiles", "tile.q * STRIDE_W - conv.left", "tile.q - conv.left", TWO),
        ("the first columns of a tile for all", "column_of(i) * STRIDE_W);", "0);", WIDE),
        ("no padding", "tile.q * STRIDE_W - conv.left", "tile.q * STRIDE_W"),
        ("the first picture for all", "place(conv.x_strides, tile.n, 0, at, w)", "place(conv.x_strides, 0, 0, at, w)"),
        ("zeros for the border's value", "else if (BORDER == CONSTANT)", "else if (false)", BORDER),
        ("pixels beyond the border", "if (there) number", "if (true) number"),
        ("a column alone inside", "const bool there = at >= 0 && w >= 0;", "const bool there = w >= 0;"),
        ("neighbours in memory for channels", "from[c * static_cast<index_t>(conv.x_strides.c)]", "from[c]"),
        ("the first channel for all", "from[c * static_cast<index_t>(conv.x_strides.c)]", "from[0]"),
        ("the fourth number as it was", "pixel.words[j].word = {};", "pixel.words[j].word.bits = 0x7fff7fffu;", EIGHTS),
        ("taps beyond the filter in a product", "if (TAPS_BEYOND && step", "if (false && step", NAN),
        ("rows beyond the filter in a product", "if (ROWS_BEYOND && row", "if (false && row", NAN_FOLDED),
        ("taps in the filter left out", "a[i][word] &= tap_mask[word / 2];", "a[i][word] = 0;"),
        ("the first filters of a block for all", "filters[0][warp_n / 16][lane]", "filters[0][0][lane]"),
        ("the first block's filters for all", "keep_filters(*shared, args.filter, tile_n);",
         "keep_filters(*shared, args.filter, 0);"),
        ("eight filters twice", "16 * column + 8 * eight + lane / 4", "16 * column + lane / 4"),
        ("the first half of a row of tiles", "const index_t across = (conv.Q + TILE_W - 1) / TILE_W",
         "const index_t across = conv.Q / TILE_W"),
        ("height for width", "static_cast<int>(i % across) * TILE_W", "static_cast<int>(i % down) * TILE_W"),
        ("the bias of the next filter", "own + 1, at.p, q, pair[1]", "own, at.p, q, pair[1]"),
        ("the upper eight outputs twice", "sums[i % GROUP] + 2 * upper", "sums[i % GROUP]"),
        ("one column of sums for all", "sums[fragment] + column);", "sums[fragment]);",
         replace(EIGHTS, config=FewChannelsConfig(4, 16, 32, 2, 32))),
        ("outputs beyond the last row", "if (at.p >= args.conv.P || at.q", "if (at.q"),
        ("outputs beyond the end of a row", "if (q >= conv.Q || own >= K) continue;", "if (own >= K) continue;"),
        ("filters beyond the last one", "if (q >= conv.Q || own >= K) continue;", "if (q >= conv.Q) continue;"),
        ("a filter beyond the last one of a pair", "if (own + 1 < K) to[", "if (true) to[", ODD_FILTERS),
        ("pairs where there are none", "if (!ALONG_Q && args.together > 1) {", "if (true) {"),
        ("pairs of filters that are not aligned", "if (!ALONG_Q && args.together > 1) {", "if (!ALONG_Q) {",
         ODD_FILTERS),
        ("one filter of two", "            store_vector(to, pair);", "            to[0] = pair.at[0];", FILTER_PAIRS),
        ("eight filters of the first product", "k += threadIdx.x % 4 * EIGHT;", "", FILTERS),
        ("eight filters of other lanes left out", "turn_lanes(eight.word.bits);\n        if (q <", "if (q <", FILTERS),
        ("eight filters beyond the last", "if (q < conv.Q && k < K)", "if (q < conv.Q)", FILTERS),
        ("filters for outputs", "turn_matrix(results[v % 2][v / 2].word.bits)", "results[v % 2][v / 2].word.bits",
         EIGHTS),
        ("eight outputs of other lanes left out", "turn_lanes(eight.word.bits);\n        const", "const", EIGHTS),
        ("eight outputs of the first filters twice", "k + 8 * (t / 2) + g", "k + g", EIGHTS),
        ("eight outputs twice", "at.q + 8 * (t % 2)", "at.q", EIGHTS),
        ("eight outputs beyond the last filter", "q = at.q + 8 * (t % 2);\n        if (own < K && ",
         "q = at.q + 8 * (t % 2);\n        if (", EIGHTS),
        ("two outputs of the first filters twice", "k + 8 * (v / 2) + g", "k + g", PAIRS),
        ("two outputs of a lane for all", "at.q + 8 * (v % 2) + 2 * t;", "at.q + 8 * (v % 2);", PAIRS),
        ("two outputs beyond the end of a row", f"q < conv.Q) {STORE_PAIR}", f"true) {STORE_PAIR}", PAIRS),
    ),
    *of_file("include/device/transpose.cuh", EIGHTS,
        ("a word for another", "upper ? low : high, bit", "high, bit"),
        ("one exchange of two", "bit = 1; bit <= 2", "bit = 1; bit <= 1"),
        ("rows for columns", "4 * (2 * t + i) + g / 2", "4 * g + t"),
    ),
]  # fmt: skip
