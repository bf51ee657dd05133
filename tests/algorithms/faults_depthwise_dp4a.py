"""Planted faults of depthwise_dp4a and of its headers: see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.depthwise.device import DepthwiseDp4aConfig

# Ragged strips and columns; tiles inside the image and at its edges; a zero point.
DP4A = Run("depthwise_dp4a", "n2c20h11w25_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias",
           DepthwiseDp4aConfig(4, 4, 3, 4))  # fmt: skip
# Sums as they are: filters in shared memory, of two words a row; strides; more channels than a block has.
WORDS = Run("depthwise_dp4a", "n2c20h13w23_k20r5s6_st2x1_p2x3_g20_i8-u8-i32-i32_nhwc_+zero:-7",
            DepthwiseDp4aConfig(2, 3, 2, 8))  # fmt: skip
SHIFTED = replace(DP4A, problem="n2c20h11w25_k20r3s3_p1_reflect_g20_u8-i8-i32-i32_nhwc_+zero:9")
# Pixels outside the image that are neither the zero point nor 0.
BESIDE = replace(DP4A, problem="n2c20h11w25_k20r3s3_p1_constant9.0_g20_u8-i8-i32-i32_nhwc_+zero:7")
DILATED = replace(DP4A, problem="n2c20h11w13_k20r3s3_p2_d2_g20_i8-i8-i32-i32_nhwc")
# Many ties, which float must leave to double.
TIES = replace(DP4A, problem="n2c16h9w12_k16r2s2_g16_u8-i8-u8-i32_nhwc_+scale:channel+bias", kind="integers")
RELU = replace(DP4A, problem="n2c16h9w12_k16r3s3_p1_g16_u8-i8-i8-i32_nhwc_+scale:channel+bias+relu")
RESIDUAL = replace(DP4A, problem="n2c20h9w12_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc_+scale:channel+bias+residual")

DEPTHWISE_DP4A_FAULTS = [
    *of_file("device/four_channels.cuh", DP4A,
        ("the zero point added", "start[c] = START - static_cast<int>(", "start[c] = START + static_cast<int>("),
        ("one scale for four channels", "filter_of(const Conv &conv, int k, int c) { return {conv, min(k + c,",
         "filter_of(const Conv &conv, int k, int c) { return {conv, min(k,"),
        ("the first sum in double for all", "(c == 0 ? sums[0][j] : sums[1][j])", "sums[0][j]", TIES),
        ("the first output's sum in double for all", "(c == 0 ? sums[0][j] : sums[1][j])",
         "(c == 0 ? sums[0][0] : sums[1][0])", TIES),
        ("the bits of a float in double", "(sum - START, by.scale, by.bias)", "(sum, by.scale, by.bias)", TIES),
        ("bytes in double in one place", "|= (byte & 255u) << 8 * c;", "|= byte & 255u;", TIES),
        ("no relu in double", "rescaled_exactly<Out, cfg::ACTIVATION == RELU>", "rescaled_exactly<Out, false>",
         replace(RELU, kind="integers")),
        ("the first channel's residual for all", "output_value(conv, n, k + c, p, q + j, sums[c][j])",
         "output_value(conv, n, k, p, q + j, sums[c][j])", RESIDUAL),
        ("the first output's residual for all", "output_value(conv, n, k + c, p, q + j, sums[c][j])",
         "output_value(conv, n, k + c, p, q, sums[c][j])", RESIDUAL),
        ("zeros stored", "store_vector(to, values);", "store_vector(to, Vector<out_t, CHANNELS>{});", WORDS),
    ),
    *of_file("depthwise/dp4a.cu", DP4A,
        ("no barrier after the filters", f"    {SYNC}\n    if (idle)", "    if (idle)"),
        ("channels beyond the last", "idle = word >= WORDS || i >= args.tiles;", "idle = i >= args.tiles;"),
        ("one filter for all channels", "k = min(first + i % PITCH, cfg::K - 1);", "k = min(first, cfg::K - 1);"),
        ("bytes of taps in one place", "r, s + e)]) << 8 * e;", "r, s + e)]);"),
        ("the zero point left out", "    filters.add_up(sums);\n", ""),
        ("the first image for all", "tile.n += gridDim.y, begun", "tile.n = conv.N, begun",
         replace(DP4A, problem="n66000c4h1w2_k4r1s1_g4_u8-i8-i32-i32_nhwc_+zero:9")),
        ("rows of the image before", "        if (!begun) source.begin(rows);\n", "",
         replace(DP4A, problem="n66000c4h1w2_k4r1s1_g4_u8-i8-i32-i32_nhwc_+zero:9")),
        ("rows of a strip beyond the last", "min(args.height, conv.P - p)}", "args.height}"),
        ("no padding on the left", "const int w0 = tile.q * cfg::STRIDE_W - conv.left;",
         "const int w0 = tile.q * cfg::STRIDE_W;"),
        ("no padding above", "first = tile.p * cfg::STRIDE_H - conv.top;", "first = tile.p * cfg::STRIDE_H;"),
        ("columns outside as inside", "columns >> j & 1", "columns != 0"),
        ("rows outside as inside", "static_cast<unsigned>(h) < static_cast<unsigned>(conv.H)", "h < conv.H"),
        ("columns beyond the last", "if (tile.q + j < conv.Q) store_four", "store_four"),
        ("sums not begun anew", "sums[max(age - 1, 0)][c][q] : channels.start[c];",
         "sums[max(age - 1, 0)][c][q] : sum + channels.start[c];"),
        ("sums that stay in their row", "age > 0 ? sums[max(age - 1, 0)][c][q]", "age > 0 ? sums[age][c][q]"),
        ("another row of outputs stored", "sums[RING - 1], tile, to,", "sums[0], tile, to,"),
        ("windows that begin at words", "0x3210 + 0x1111 * shift", "0x3210"),
        ("pixels of another channel", "words[c][i] = four.at[c];", "words[c][i] = four.at[c ^ 1];"),
        ("taps of the first channel for all", "dp4a<x_t, w_t>(pixels[q].at[c], taps.at[c], sum);",
         "dp4a<x_t, w_t>(pixels[q].at[c], taps.at[0], sum);"),
        ("the same row of pixels again", "cfg::STRIDE_H + u + AHEAD);", "cfg::STRIDE_H + u);"),
        ("float where it is not certain", "if (!sure) channels.exactly", "if (false) channels.exactly", TIES),
        ("rows of the residual", "tile, to, tile.p + p);", "tile, to, tile.p);",
         replace(DP4A, problem=RESIDUAL.problem)),
    ),
    *of_file("depthwise/dp4a.cu", WORDS,
        ("the first channels for all", "stage(args.filter, taps, block_c * CHANNELS);", "stage(args.filter, taps, 0);"),
        ("the first word of taps for all", "s = row % TAP_WORDS * 4, k", "s = 0 * 4, k"),
        ("the first words of pixels for all", "q * cfg::STRIDE_W + 4 * i * cfg::DILATION_W);", "q * cfg::STRIDE_W);"),
        ("taps beyond the last", "            if (s + e < cfg::S) word |=", "            word |="),
        ("rows of filters one after the other", "down = u + age * cfg::STRIDE_H,", "down = u + age,"),
        ("one row of pixels ahead", "rows[u % AHEAD], (p", "rows[0], (p"),
        ("the first of two rows again", "windows(rows[u % AHEAD]);", "windows(rows[0]);"),
    ),
    *of_file("depthwise/dp4a.cu", DILATED,
        ("rows without dilation", "r = down / cfg::DILATION_H;", "r = down;"),
        ("rows between those of the filter", "adds = down % cfg::DILATION_H == 0 && r < cfg::R;", "adds = r < cfg::R;"),
        ("neighbours for dilated columns", "first + j * cfg::DILATION_W, COLUMNS - 1", "first + j, COLUMNS - 1"),
    ),
    *of_file("depthwise/dp4a.cu", SHIFTED,
        ("columns outside as those of the edge", "across[j] = max(w, 0) *", "across[j] = max(w0 + j, 0) *"),
        ("rows outside left out", "h = SHIFTED ? inside(first + i, conv.H) : first + i;", "h = first + i;"),
    ),
    *of_file("depthwise/dp4a.cu", BESIDE,
        ("one value for all pixels outside", "row[j] = outside;", "row[j] = 0;"),
    ),
]  # fmt: skip
