"""Planted faults of few_channels.cu, few_filters.cu and few_channels.cuh; see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.few_channels import FewChannelsConfig

# A layer in NCHW, whose results are stored one by one; others of runs, of one fragment's outputs and of two.
LAYER = Run("implicit_gemm_few_channels", "n2c3h13w43_k37r3s5_st2x1_p1_d1x2_f16_nchw_+bias",
            FewChannelsConfig(4, 16, 32, 2, 16, run=1))  # fmt: skip
ONE_PATCH = replace(LAYER, config=FewChannelsConfig(4, 16, 32, 2, 16, 1))
RUNS = replace(LAYER, problem="n2c3h9w42_k22r3s3_p1_bf16_nchw_+bias", config=FewChannelsConfig(4, 16, 32, 2, 16))
ODD_RUNS = replace(RUNS, problem="n2c3h9w41_k22r3s3_p1_bf16_nchw_+bias")
WIDE_RUNS = replace(RUNS, problem="n2c3h9w44_k22r3s3_p1_bf16_nchw_+bias", config=FewChannelsConfig(2, 32, 32, 2, 16))
# Filters of an output side by side: eight, two and one.
FILTERS = replace(LAYER, problem="n2c3h9w21_k40r3s3_p1_f16_nhwc_+bias", config=FewChannelsConfig(4, 16, 32, 2, 32))
FILTER_PAIRS = replace(FILTERS, problem="n2c3h9w21_k42r3s3_p1_f16_nhwc")
ODD_FILTERS = replace(FILTERS, problem="n2c3h9w21_k37r3s3_p1_f16_nhwc")
# Dilation along both axes; two columns of pixels from one output to the next; a patch that takes several rounds.
DILATED = replace(LAYER, problem="n2c1h15w43_k20r5s4_p1_d2_f16_nchw")
TWO = replace(LAYER, problem="n2c1h13w101_k20r5s20_st2_p2_f16_nchw")
ROUNDS = replace(FILTERS, problem="n2c3h33w131_k20r4s4_st4_p0_f16_nhwc")
BORDER = replace(LAYER, problem="n2c3h9w43_k20r3s3_p1_constant9.0_f16_nchw")
NAN = replace(RUNS, kind="nan")
# Bytes: eight filters of an output, one, runs, results of the epilogue in double; ties.
BYTES = replace(FILTERS, problem="n2c3h9w21_k40r3s3_p1_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias")
ODD_BYTES = replace(BYTES, problem="n2c3h9w21_k37r3s3_p1_i8-u8-i8-i32_nhwc_+zero:-9+scale:channel+bias+relu")
BYTE_RUNS = replace(RUNS, problem="n2c3h9w42_k22r3s3_p1_u8-i8-i8-i32_nchw_+zero:9+scale:channel+bias")
BYTE_SUMS = replace(FILTERS, problem="n2c3h9w21_k40r3s3_p1_u8-i8-i8-i32_nhwc_+zero:99+scale:channel+bias+residual")
TIES = replace(BYTES, problem="n4c4h12w12_k32r1s1_u8-i8-u8-i32_nhwc_+scale:channel+bias", kind="integers")

FIRST = "\n        out_t *const first = conv.out + offset_of(conv.out_strides, tile.n, 0, p, q);\n"
BEYOND, OF_FILTERS, OF_RUNS = "if (p >= conv.P || q >= conv.Q) continue;", f"{FIRST}        const", f"{FIRST}#pragma"

FEW_CHANNELS_FAULTS = [
    *of_file("implicit_gemm/few_channels.cu", LAYER,
        ("uninitialised accumulators", "WarpSums sums = {};", "WarpSums sums;"),
        ("no barrier between patches", f"{SYNC}  // filters, lists", "// filters, lists"),
        ("no barrier after the only patch", f"{SYNC}  // the only", "// the only", ONE_PATCH),
        ("no wait for the filters", "    copy_async_wait();\n    for", "    for"),
        ("the first pairs for all", "words[(kind * STEPS + step) * 4]", "words[kind * STEPS * 4]"),
        ("no dilation down", "pair.row() * cfg::DILATION_H * PITCH", "pair.row() * PITCH", DILATED),
        ("no dilation along", "pair.column() * cfg::DILATION_W * cfg::C", "pair.column() * cfg::C"),
        ("the word before an odd number", "(from + 1) / 2", "from / 2"),
        ("the first copy for all", "from % 2 * COPY", "0 * COPY"),
        ("no stride down a tile", "row_of(i) * cfg::STRIDE_H * PITCH", "row_of(i) * PITCH"),
        ("no stride of warps", "row * cfg::STRIDE_H * PITCH + (column", "row * PITCH + (column"),
        ("no stride between outputs", "lane / 4 * cfg::OUTPUT_RUN) * cfg::STRIDE_W * cfg::C",
         "lane / 4 * cfg::OUTPUT_RUN) * cfg::C", TWO),
        ("no stride between a lane's outputs", "% LANE_OUTPUTS) * cfg::STRIDE_W * cfg::C", "% LANE_OUTPUTS) * cfg::C",
         TWO),
        ("no stride of tiles", "tile.q * cfg::STRIDE_W - conv.left", "tile.q - conv.left", TWO),
        ("no padding", "tile.q * cfg::STRIDE_W - conv.left", "tile.q * cfg::STRIDE_W"),
        ("the first picture for all", "offset_of(conv.x_strides, tile.n, 0, h, 0)",
         "offset_of(conv.x_strides, 0, 0, h, 0)"),
        ("zeros for the border's value", "cfg::BORDER == CONSTANT || HAS_ZERO ? stored<x_t>::of(conv.outside) : x_t{}",
         "x_t{}", BORDER),
        ("zeros for the zero point outside", "cfg::BORDER == CONSTANT || HAS_ZERO ?", "cfg::BORDER == CONSTANT ?",
         BYTES),
        ("the zero point left in", "static_cast<int>(number) - static_cast<int>(conv.zero)", "static_cast<int>(number)",
         BYTES),
        ("pixels beyond the border", "if (!there) continue;", ""),
        ("a column alone inside", "needed && h >= 0 && column >= 0", "needed && column >= 0"),
        ("neighbours in memory for channels", ": from[c * step];", ": from[c];"),
        ("the first channel for all", ": from[c * step];", ": from[0];"),
        ("the first channel for all neighbours", "step == 1 ? from[c]", "step == 1 ? from[0]", FILTERS),
        ("the number before a shifted word left out", "shifted[1] = number(0);", "", RUNS),
        ("the number behind a shifted word left out", "shifted[2 * cfg::C] = number(2 * cfg::C - 1);", ""),
        ("what a thread holds is not stored", "if (step > 0) put(step / HELD_STEPS - 1);", "", ROUNDS),
        ("the last round is not stored", "if (cfg::PATCHES > 1) put(ROUNDS - 1);", "", ROUNDS),
        ("the next patch over this one", "patches[(now + 1) % cfg::PATCHES],\n", "patches[now],\n"),
        ("this tile's pixels for the next one", "tile_of(i + stride), i + stride", "tile_of(i), i + stride"),
        ("numbers beyond a run in a product", "if (step >= WHOLE_STEPS) a", "if (false) a", NAN),
        ("numbers of a run left out", "a[i][word] &= mask;", "a[i][word] = 0;"),
        ("the first filters of a block for all", "filters[0][0][warp_n / 16][lane]", "filters[0][0][0][lane]"),
        ("the first block's filters for all", "args.filters, blockIdx.x % PARTS)", "args.filters, 0)"),
        ("the first half of a row of tiles", "const index_t across = (conv.Q + cfg::TILE_W - 1) / cfg::TILE_W",
         "const index_t across = conv.Q / cfg::TILE_W"),
        ("height for width", "static_cast<int>(i % across) * cfg::TILE_W", "static_cast<int>(i % down) * cfg::TILE_W"),
        ("neighbouring outputs for runs", "lane / 4 * cfg::OUTPUT_RUN", "lane / 4", RUNS),
        ("one kind of outputs for both", "from % 2 * (KINDS - 1)", "0", RUNS),
    ),
    *of_file("device/few_channels_results.cuh", LAYER,
        ("the first filters' factors for all products", "filters(conv, n, cfg::K", "filters(conv, n0, cfg::K",
         BYTES),
        ("the neighbour's sum", "own[v] = sums[i / 2][j + v / 2][i % 2 * 2 + v % 2];",
         "own[v] = sums[i / 2][j + v / 2][i % 2 * 2];", BYTES),
        ("bytes beyond the last filter", "if (n + v < cfg::K) first[v", "first[v", ODD_BYTES),
        ("the first output's sum of a run", "own[v] = sum_of(v);", "own[v] = sum_of(0);", BYTE_RUNS),
        ("the first filter's factors for runs", "RescaledFilters<Out, 1>(conv, n,",
         "RescaledFilters<Out, 1>(conv, n0,", BYTE_RUNS),
        ("half of eight bytes", "else eight.at[2 * v] = pair.at[0], eight.at[2 * v + 1] = pair.at[1];",
         "else eight.at[2 * v] = pair.at[0], eight.at[2 * v + 1] = pair.at[0];", BYTE_SUMS),
        ("the bias of the next filter", "n + 1, p, q, own[1]", "n, p, q, own[1]"),
        ("the upper eight outputs twice", "sums[i / 2][j] + i % 2 * 2", "sums[i / 2][j]"),
        ("outputs beyond the last row", f"{BEYOND}{OF_FILTERS}", f"if (q >= conv.Q) continue;{OF_FILTERS}"),
        ("outputs beyond the end of a row", f"{BEYOND}{OF_FILTERS}", f"if (p >= conv.P) continue;{OF_FILTERS}"),
        ("filters beyond the last one", "if (n >= cfg::K) continue;\n            const Vector", "const Vector"),
        ("a filter beyond the last one of a pair", "if (n + 1 < cfg::K) first[", "if (true) first[", ODD_FILTERS),
        ("pairs where there are none", "if (!cfg::ALONG_Q && args.store_width > 1) {", "if (true) {"),
        ("pairs of filters that are not aligned",
         "if (!cfg::ALONG_Q && args.store_width > 1) {", "if (!cfg::ALONG_Q) {",
         ODD_FILTERS),
        ("one filter of two", "store_vector(first + n, pair);", "first[n] = pair.at[0];", FILTER_PAIRS),
        ("eight filters of the first product", "pair = pair_of(j + v);", "pair = pair_of(j);", FILTERS),
        ("eight filters beyond the last", "n < cfg::K) store_vector(first + n, eight",
         "true) store_vector(first + n, eight",
         FILTERS),
        ("one output of a run for all", "sums[(i + v) / 2]", "sums[i / 2]", WIDE_RUNS),
        ("the first lane's run for all", "% LANE_OUTPUTS) + g * cfg::OUTPUT_RUN", "% LANE_OUTPUTS)", RUNS),
        ("runs beyond the last row", f"{BEYOND}{OF_RUNS}", f"if (q >= conv.Q) continue;{OF_RUNS}", RUNS),
        ("runs beyond the end of a row", f"{BEYOND}{OF_RUNS}", f"if (p >= conv.P) continue;{OF_RUNS}", RUNS),
        ("outputs of a run beyond the end of a row", "if (q + v < conv.Q) to", "to", ODD_RUNS),
        ("runs beyond the last filter", "if (cfg::K % cfg::BLOCK_N && n >= cfg::K) continue;", "", RUNS),
        ("the first filter of two twice", "lane_column<false>(j / 2, t) + j % 2", "lane_column<false>(j / 2, t)", RUNS),
    ),
    *of_file("implicit_gemm/few_filters.cu", LAYER,
        ("eight neighbours as they come", "column_at<IN_EIGHTS>(8 * eight + lane / 4)", "(8 * eight + lane / 4)",
         FILTERS),
        ("numbers beyond a run", "j % 2 < pair.count && k < cfg::K", "k < cfg::K", NAN),
        ("the first channel for all", "const int c = number % cfg::C", "const int c = 0"),
        ("the first row of taps for all", "pair.row(), s)", "0, s)"),
        ("the first step for all", "step = i / (4 * cfg::BLOCK_N) % STEPS", "step = i / (4 * cfg::BLOCK_N) * 0"),
        ("eight filters twice", "words[eight % 2]", "words[0]"),
    ),
    *of_file("device/few_channels.cuh", LAYER,
        ("the last numbers of odd runs left out", "i < PAIRS ? 1 : 0", "0"),
        ("the first run for all", "i / OF_RUN : i - WHOLE", "0 : i - WHOLE"),
        ("one pair of a lane for both", "step * STEP_PAIRS + 4 * word + t", "step * STEP_PAIRS + t"),
    ),
    *of_file("device/mma.cuh", FILTERS,
        ("lanes in another order", "line / 2 % 4 * 8", "(3 - line / 2 % 4) * 8"),
        ("products in another order", "line / 8 % 4 * 2", "(3 - line / 8 % 4) * 2"),
    ),
]  # fmt: skip
