"""Planted faults of depthwise_bytes and depthwise_dp4a, and of what they share: see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.depthwise.device import DepthwiseBytesConfig, DepthwiseDp4aConfig

# Of depthwise_bytes. Several tiles a block, along both axes and over images; a zero point; 40 of 48 channels.
BYTES = Run("depthwise_bytes", "n3c40h9w17_k40r3s3_p1_g40_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias",
            DepthwiseBytesConfig(2, 2, 4, 16, 5))  # fmt: skip
# Sums as they are; windows of an odd number of rows and columns, which differ; an odd number of taps.
SUMS = replace(BYTES, problem="n2c20h11w13_k20r5s3_st2x1_p2x1_d1x2_g20_i8-u8-i32-i32_nhwc_+zero:-7")
# Pixels outside the image that are neither the zero point nor 0.
OUTSIDE = replace(SUMS, problem="n2c20h11w13_k20r3s3_p1_constant9.0_g20_u8-i8-i32-i32_nhwc_+zero:7")
DILATED = replace(SUMS, problem="n2c20h11w13_k20r3s3_p2_d2_g20_i8-i8-i32-i32_nhwc")
# Many ties, which float must leave to double.
TIES = replace(BYTES, problem="n2c16h9w12_k16r2s2_g16_u8-i8-u8-i32_nhwc_+scale:channel+bias", kind="integers")
RESIDUAL = replace(BYTES, problem="n2c20h9w12_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc_+scale:channel+bias+residual")

# Of depthwise_dp4a. Ragged strips and columns; tiles inside the image and at its edges.
DP4A = Run("depthwise_dp4a", "n2c20h11w25_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc_+zero:99+scale:channel+bias",
           DepthwiseDp4aConfig(4, 4, 1, 3, 4))  # fmt: skip
# Filters in shared memory, of two words a row; strides; rows that are loaded ahead; more channels than a block has.
WORDS = Run("depthwise_dp4a", "n2c20h13w23_k20r5s6_st2x1_p2x3_g20_i8-u8-i32-i32_nhwc_+zero:-7",
            DepthwiseDp4aConfig(2, 3, 3, 2, 8))  # fmt: skip
SHIFTED = replace(DP4A, problem="n2c20h11w25_k20r3s3_p1_reflect_g20_u8-i8-i32-i32_nhwc_+zero:9")
BESIDE = replace(DP4A, problem="n2c20h11w25_k20r3s3_p1_constant9.0_g20_u8-i8-i32-i32_nhwc_+zero:7")

DEPTHWISE_BYTES_FAULTS = [
    *of_file("depthwise/bytes.cu", BYTES,
        ("no barrier after the matrices", f"    {SYNC}                                 // matrices are written\n", ""),
        ("no barrier after the copies",
         f"        {SYNC}  // pixels have landed, and those of the last tile have been used\n", ""),
        ("copies not waited for", "        copy_async_wait();\n", ""),
        ("the next tile's pixels in place of these", "held + (stage ^ 1) * (ROWS * LINE), tile_at",
         "held + stage * (ROWS * LINE), tile_at"),
        ("the first tile's pixels for all", "compute<ALIGNED>(args, held + stage * (ROWS * LINE)",
         "compute<ALIGNED>(args, held"),
        ("a tile after the last", "i < args.tiles; i += args.step", "i <= args.tiles; i += args.step"),
        ("a block's first tile alone", "i += args.step, stage ^= 1", "i += args.tiles, stage ^= 1"),
        ("the first image for all", "n = quotient(strip, args.down);", "n = 0;"),
        ("rows of the first tile for all", "(strip - n * args.down.by) * cfg::TILE_P", "0 * cfg::TILE_P"),
        ("columns of the first tile for all", "(i - strip * args.across.by) * cfg::TILE_Q", "0 * cfg::TILE_Q"),
        ("the first channels for all", "block_k = blockIdx.x % BLOCKS_C * BLOCK_K;", "block_k = 0;"),
        ("no padding on the left", "w0 = tile.q * cfg::STRIDE_W - conv.left;", "w0 = tile.q * cfg::STRIDE_W;"),
        ("no padding above", "h0 = tile.p * cfg::STRIDE_H - conv.top,", "h0 = tile.p * cfg::STRIDE_H,"),
        ("rows that no thread copies", "last = min(first + SHARE, ROWS);", "last = min(first + SHARE - 1, ROWS);"),
        ("columns that no thread copies", "i < COLUMNS * PIECES * SHARES;", "i < (COLUMNS - 1) * PIECES * SHARES;"),
        ("rows outside the image not written", "if (!there || h < 0) {",
         "if (!there || h < 0) {\n                if (h < 0) continue;"),
        ("one value for all pixels outside", "words.at[e] = outside;", "words.at[e] = 0;", OUTSIDE),
        ("the second tap left out", "tap = 2 * pair + e % 2;", "tap = 2 * pair;"),
        ("taps beyond the last", "if (tap < TAPS && channel < cfg::K)", "if (channel < cfg::K)", SUMS),
        ("one filter for all channels", "filter.taps[offset_of(filter.strides, channel, 0,",
         "filter.taps[offset_of(filter.strides, k, 0,"),
        ("a byte of the word's first channel", "words.at[e / 2][e % 2] = word << 8 * byte;",
         "words.at[e / 2][e % 2] = word;"),
        ("columns of the matrix without a diagonal", "of[i] = diagonal ? matrices.of[group][i][column] : Pair{};",
         "of[i] = matrices.of[group][i][column];"),
        ("the first group's matrices for all", "const Taps taps(matrices, group);", "const Taps taps(matrices, 0);"),
        ("the first group's pixels for all", "lane / 8 % 2 * (cfg::STRIDE_H * LINE) + group * GROUP);",
         "lane / 8 % 2 * (cfg::STRIDE_H * LINE));"),
        ("one row of outputs for two", "lane / 8 % 2 * (cfg::STRIDE_H * LINE) +", "lane / 8 % 2 * 0 +"),
        ("the first product's matrix for both", "a, of[i].at[j], sums[j]);", "a, of[i].at[0], sums[j]);"),
        ("the pair's first tap for both", "lane < 16 ? tap_at(2 * i) : tap_at(2 * i + 1);", "tap_at(2 * i);"),
        ("the first pair's pixels for all", "window + at[pair]); });", "window + at[0]); });"),
        ("the zero point left out", "if (conv.zero != 0)\n", "if (false)\n"),
        ("the same rows of pixels again", "window += 2 * cfg::STRIDE_H * LINE;", "window += 0 * LINE;"),
        ("columns beyond the last", "there = q < conv.Q && k < cfg::K;", "there = k < cfg::K;"),
        ("channels beyond the last", "there = q < conv.Q && k < cfg::K;", "there = q < conv.Q;"),
        ("rows beyond the last", "if (there && row < left) store_four", "if (there) store_four"),
        ("columns of the first unit for all", "window = pixels + ((unit * UNIT + lane % 8)",
         "window = pixels + ((lane % 8)"),
        ("some units left out", "unit < UNITS; unit += cfg::PARTS", "unit < UNITS - 1; unit += cfg::PARTS"),
        ("another row in double", "values[row] = channels.exactly<out_t>(conv, four(row),",
         "values[row] = channels.exactly<out_t>(conv, four(0),", RESIDUAL),
        ("the first row's residual for all", "tile.n, k, p + row, q);", "tile.n, k, p, q);", RESIDUAL),
        ("rows of a tile's residual again", "p = tile.p + rows - left;", "p = tile.p;",
         replace(RESIDUAL, config=DepthwiseBytesConfig(2, 2, 6, 16))),
    ),
    *of_file("depthwise/bytes.cu", SUMS,
        ("stride 1 for stride 2", "lane / 8 % 2 * (cfg::STRIDE_H * LINE) + group", "lane / 8 % 2 * LINE + group"),
        ("columns of taps for rows", "tap / cfg::S * (cfg::DILATION_H * LINE)",
         "tap / cfg::R * (cfg::DILATION_H * LINE)"),
        ("neighbouring columns for dilated ones", "tap % cfg::S * (cfg::DILATION_W * PITCH)", "tap % cfg::S * PITCH"),
        ("taps of another place", "tap / cfg::S, tap % cfg::S)", "tap % cfg::R, tap / cfg::R)"),
    ),
    *of_file("depthwise/bytes.cu", DILATED,
        ("neighbouring rows for dilated ones", "tap / cfg::S * (cfg::DILATION_H * LINE)", "tap / cfg::S * LINE"),
    ),
    *of_file("device/four_channels.cuh", BYTES,
        ("the zero point added", "start[c] = START - static_cast<int>(", "start[c] = START + static_cast<int>("),
        ("the bits of a float in double", "own[c] = sums.at[c] - START;", "own[c] = sums.at[c];", TIES),
        ("the first channel's residual for all", "output_value(conv, n, k + c, p, q, sums.at[c])",
         "output_value(conv, n, k, p, q, sums.at[c])", RESIDUAL),
        ("the first output for all", "store_vector(to, values);", "store_vector(to, Vector<out_t, CHANNELS>{});", SUMS),
    ),
    *of_file("depthwise/dp4a.cu", DP4A,
        ("no barrier after the filters", f"    {SYNC}\n    if (word >= WORDS", "    if (word >= WORDS"),
        ("channels beyond the last", "if (word >= WORDS || i >= args.tiles) return;", "if (i >= args.tiles) return;"),
        ("one filter for all channels", "k = min(first + i % PITCH, cfg::K - 1);", "k = min(first, cfg::K - 1);"),
        ("bytes of taps in one place", "r, s + e)]) << 8 * e;", "r, s + e)]);"),
        ("the zero point left out", "    filters.add_up(sums);\n", ""),
        ("the first image for all", "const Tile tile = {n, word * CHANNELS,", "const Tile tile = {0, word * CHANNELS,"),
        ("rows of a strip beyond the last", "min(args.height, conv.P - p)}", "args.height}"),
        ("no padding on the left", "w0 = tile.q * cfg::STRIDE_W - conv.left;", "w0 = tile.q * cfg::STRIDE_W;"),
        ("no padding above", "first = tile.p * cfg::STRIDE_H - conv.top;", "first = tile.p * cfg::STRIDE_H;"),
        ("tiles at the left edge as inside", "args.dense && left >= 0 &&", "args.dense &&"),
        ("tiles at the right edge as inside", "left + COLUMNS <= conv.W &&", "true &&",
         replace(DP4A, problem=DP4A.problem.replace("w25", "w24"))),
        ("columns beyond the last", "if (KNOWN != INSIDE && tile.q + j >= conv.Q) break;\n", ""),
        ("sums not begun anew", "sums[d % RING][c][q] = channels.start[c];",
         "sums[d % RING][c][q] += channels.start[c];"),
        ("a ring that does not turn", "sums[(last - age + RING) % RING][c][q];", "sums[age][c][q];"),
        ("another row of outputs stored", "sums[(d + 1) % RING], tile, to,", "sums[d % RING], tile, to,"),
        ("windows that begin at words", "0x3210 + 0x1111 * shift", "0x3210"),
        ("pixels of another channel", "turned[c][to] = columns[c];", "turned[c][to] = columns[c ^ 1];"),
        ("taps of the first channel for all", "dp4a<x_t, w_t>(windows[c][q], taps.at[c], sum);",
         "dp4a<x_t, w_t>(windows[c][q], taps.at[0], sum);"),
        ("the same row of pixels again", "u + cfg::AHEAD, last));", "u, last));"),
        ("rows of the residual", "tile, to, tile.p + p);", "tile, to, tile.p);",
         replace(DP4A, problem=RESIDUAL.problem)),
    ),
    *of_file("depthwise/dp4a.cu", WORDS,
        ("the first channels for all", "stage(args.filter, taps, block_c * CHANNELS);", "stage(args.filter, taps, 0);"),
        ("the first word of taps for all", "s = row % TAP_WORDS * 4, k", "s = 0 * 4, k"),
        ("the first words of pixels for all", "q * cfg::STRIDE_W + 4 * i);", "q * cfg::STRIDE_W);"),
        ("taps beyond the last", "            if (s + e < cfg::S) word |=", "            word |="),
        ("rows of filters one after the other", "r = u + age * cfg::STRIDE_H;", "r = u + age;"),
        ("rows that were loaded ahead once", "ahead = (d * cfg::STRIDE_H + u) % cfg::AHEAD;", "ahead = 0;"),
        ("the last pixels of a row left out", "if constexpr (COLUMNS % 4 != 0) turn<COLUMNS % 4>",
         "if constexpr (false) turn<1>"),
    ),
    *of_file("depthwise/dp4a.cu", SHIFTED,
        ("columns outside as those of the edge", "across[j] = max(w, 0) *", "across[j] = max(w0 + j, 0) *"),
    ),
    *of_file("depthwise/dp4a.cu", BESIDE,
        ("one value for all pixels outside", "row[j] = outside;", "row[j] = 0;"),
    ),
]  # fmt: skip
