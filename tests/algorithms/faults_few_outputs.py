"""Planted faults of few_outputs.cu, tap_columns.cu and filter.cuh; see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.few_outputs import FewOutputsConfig

# Several images, strips and bands that go down and up; chunks of channels, the last one not full.
LAYER = Run("implicit_gemm_few_outputs", "n2c40h11w45_k3r3s3_p1x2_d2x1_f16_nhwc_+bias",
            FewOutputsConfig(2, 1, 32, 3, rows=2))  # fmt: skip
# In NCHW, where pieces are of pixels; filters in shared memory; two and four runs of pixels of a warp.
PLANES = replace(LAYER, problem="n2c40h9w48_k3r3s3_p1_bf16_nchw_+bias", config=FewOutputsConfig(2, 1, 32, 3, rows=4))
SHARED = replace(LAYER, problem="n1c272h7w40_k2r3s3_p1_f16_nhwc")
TWO = replace(LAYER, problem="n1c40h7w70_k3r3s3_p1_f16_nhwc", config=FewOutputsConfig(2, 2, 32, 3, rows=4))
FOUR = replace(TWO, problem="n1c40h7w130_k3r3s3_p1_f16_nchw", config=FewOutputsConfig(2, 4, 32, 3, rows=4))
# More rows of a filter than are kept by row.
TALL = replace(LAYER, problem="n1c24h20w24_k3r7s1_p2_f16_nhwc")
# Number by number; borders.
ODD = replace(LAYER, problem="n1c21h7w45_k3r3s3_p1_f16_nhwc")
ODD_PLANES = replace(LAYER, problem="n1c21h7w45_k3r3s3_p1_f16_nchw")
CONSTANT = replace(LAYER, problem="n1c24h7w45_k3r3s3_p2_constant9.0_f16_nhwc")
CONSTANT_PLANES = replace(LAYER, problem="n1c24h7w40_k3r3s3_p2_constant9.0_f16_nchw")
REFLECT = replace(LAYER, problem="n1c24h7w45_k3r3s3_p2_reflect_f16_nhwc")
REFLECT_PLANES = replace(LAYER, problem="n1c24h7w40_k3r3s3_p2_reflect_f16_nchw")
NAN = replace(LAYER, kind="nan")
NAN_PLANES = replace(PLANES, kind="nan")

FEW_OUTPUTS_FAULTS = [
    *of_file("implicit_gemm/few_outputs.cu", LAYER,
        ("uninitialised sums", "Sums sums = {};", "Sums sums;"),
        ("no barrier after a row", f"{SYNC}  // the row is", "// the row is"),
        ("no barrier after the factors", f"{SYNC}  // the factors", "// the factors", SHARED),
        ("no wait for the factors", "copy_async_wait<cfg::STAGES - 1>();", "", SHARED),
        ("no wait for pixels", "copy_async_wait<cfg::STAGES - 2>();", "copy_async_wait<cfg::STAGES - 1>();"),
        ("one row for two", "put_products(shared.products[i % 2]", "put_products(shared.products[0]"),
        ("the row before", "outputs.add(shared.products[i % 2]", "outputs.add(shared.products[(i + 1) % 2]"),
        ("the first stage for all", "multiply_chunk(sums, stages[stage]", "multiply_chunk(sums, stages[0]"),
        ("a stage that is in use", "if (left > 0) ask(stages[stage]);", "if (left > 0) ask(stages[0]);"),
        ("the first chunk for all of x", "const int c = chunk * cfg::BLOCK_K + piece * PIECE",
         "const int c = piece * PIECE"),
        ("the first chunk for all of planes", "const int c = chunk * cfg::BLOCK_K + own", "const int c = own", PLANES),
        ("the first chunk for all factors", "const int step = chunk * CHUNK_STEPS + k", "const int step = k"),
        ("channels that do not exist", "w >= 0 && c < cfg::C;", "w >= 0;", NAN),
        ("channels of planes that do not exist", "row >= 0 && seen && c < cfg::C", "row >= 0 && seen", NAN_PLANES),
        ("the first factors for 16 channels", "own[(step * PRODUCTS + j) * 32]", "own[j * 32]", SHARED),
        ("the first lane's factors", "factors[i * 32 + lane]", "factors[i * 32]"),
        ("one lane's factors in shared memory", "shared->factors + lane", "shared->factors", SHARED),
        ("half of the factors", "i < FACTORS / 2; i += THREADS", "i < FACTORS / 4; i += THREADS", SHARED),
        ("down for up", "band.up() ? FACTORS : 0", "0"),
        ("from the first row up", "up ? first + count - 1 : first", "first"),
        ("no rows beyond the last", "(up() ? (cfg::R - 1) * cfg::DILATION_H : 0)", "0"),
        ("no dilation down", "up ? -cfg::DILATION_H : cfg::DILATION_H, count", "up ? -1 : 1, count"),
        ("one phase for all", "phase + (up", "(up"),
        ("the first image for all", "return {other / cfg::DILATION_H, phase", "return {0, phase"),
        ("no padding above", "p - conv.top + (up()", "p + (up()"),
        ("no padding beside", "band.q - conv.left", "band.q"),
        ("the first strip for all", "strip * args.useful};", "0};"),
        ("rows of the next band", "min(args.rows, of_phase - first)", "args.rows"),
        ("columns of the next strip", "column(j) >= useful || ", ""),
        ("outputs beyond a row", "column(j) >= useful || q >= conv.Q", "column(j) >= useful"),
        ("filters beyond the last", "if (k >= cfg::K || column", "if (column"),
        ("no turn of lines", "load_rows<cfg::CHANNELS_LAST>(a[i], tile", "load_rows<!cfg::CHANNELS_LAST>(a[i], tile",
         PLANES),
        ("the first run of pixels for all", "tile, i * MMA_ROWS, k * MMA_HALVES", "tile, 0, k * MMA_HALVES", TWO),
        ("16 channels for all", "tile, i * MMA_ROWS, k * MMA_HALVES", "tile, i * MMA_ROWS, 0"),
        ("columns beyond the last",
         "if (TapMatrix::COLUMNS % MMA_COLUMNS && column >= TapMatrix::COLUMNS) continue;", ""),
        ("the first warp's pixels for all", "put_products(shared.products[i % 2], warp * cfg::WARP_M",
         "put_products(shared.products[i % 2], 0"),
        ("the first warp's columns for all", "first + warp * cfg::WARP_M, end", "first, end"),
        ("the upper pixels twice", "sums[i / 2][j][i % 2 * 2 + e]", "sums[i / 2][j][e]"),
        ("one column of two", "sums[i / 2][j][i % 2 * 2 + e]", "sums[i / 2][j][i % 2 * 2]"),
        ("the first pixels of a warp", "[first + 8 * i + g]", "[first + g]"),
        ("one tap of a row", "for (int s = 1; s < cfg::S; s++)\n", "for (int s = 1; s < 1; s++)\n"),
        ("no dilation along", "s * cfg::DILATION_W]", "s]",
         replace(LAYER, problem="n1c24h9w45_k3r3s3_p2_d1x2_f16_nhwc")),
        ("the oldest sums are lost", "float sum = own[WAITING - 1][0];", "float sum = 0;"),
        ("a row left out on the way down", "i < COUNT; i++) sum += own[WAITING - 1][i]", "i < 1; i++) sum += 0"),
        ("the last row left out on the way down", "sum += taps[cfg::R - 1];", ""),
        ("a row left out on the way up", "i = COUNT - 1; i >= 0; i--", "i = COUNT - 1; i > 0; i--"),
        ("sums that stay where they are", "own[i][j] = own[i - 1][j]", "own[i][j] = own[i][j]"),
        ("sums of the first row for all", "own[i][i] = taps[i]", "own[i][i] = taps[0]"),
        ("sums of many rows that are not added", "else own[i][0] += taps[i]", "else own[i][0] = taps[i]", TALL),
        ("first sums are lost", "own[0][0] = taps[0]", "own[0][0] = 0"),
        ("an output too early", "i - (cfg::R - 1)", "i - (cfg::R - 2)"),
        ("no rows left over", "int rows() const { return count + cfg::R - 1; }", "int rows() const { return count; }"),
        ("the columns of two warps", "j % PASSES * THREADS", "0", FOUR),
        ("one filter for both passes", "2 * j : j / PASSES", "2 * j : j", FOUR),
        ("every filter for every second", "threadIdx.x / cfg::BLOCK_M + 2 * j", "threadIdx.x / cfg::BLOCK_M + j",
         replace(LAYER, problem="n1c24h7w45_k5r2s3_p1_f16_nhwc")),
        ("columns of other strips in memory", "threadIdx.x % cfg::BLOCK_M : threadIdx.x", "threadIdx.x : threadIdx.x"),
        ("pieces that are not aligned", "seen : seen & ~(PIECE - 1)", "seen : seen", PLANES),
        ("pieces before those that are seen", "band, args.useful, seen - first", "band, args.useful, 0", PLANES),
        ("lines of one piece", "threadIdx.x % 32 / PIECES", "0"),
        ("one piece of a line", "piece(threadIdx.x % PIECES)", "piece(0)"),
        ("the first lines for all", "const int own = line + i * TOGETHER;", "const int own = line;"),
        ("columns beyond the image", "static_cast<unsigned>(w) < static_cast<unsigned>(end) ? w : -1", "w"),
        ("columns beyond the end", "max(0, min(end, conv.W))", "max(0, end)"),
        ("columns of planes beyond the image", "0 <= w && w < min(end, conv.W)", "w < min(end, conv.W)", PLANES),
        ("rows beyond the image", "const bool there = row >= 0 && w >= 0", "const bool there = w >= 0"),
        ("rows of planes beyond the image", "there = row >= 0 && seen", "there = seen", PLANES),
        ("zeros for a border's value", "(cfg::BORDER != CONSTANT || there)", "true", CONSTANT),
        ("zeros for a plane's border", "(cfg::BORDER == ZEROS || there)", "true", CONSTANT_PLANES),
        ("a border's value for channels that do not exist", "if (own_c >= cfg::C) continue;", "",
         replace(CONSTANT, problem="n1c20h7w45_k3r3s3_p2_constant9.0_f16_nhwc", kind="inf")),
        ("zeros outside for all borders", "numbers.at[j] = stored<math_t>::of(conv.outside);",
         "numbers.at[j] = math_t{};", CONSTANT_PLANES),
        ("columns that are not reflected", "w < end ? inside(w, conv.W) : -1",
         "w < end && w < conv.W ? w : -1", REFLECT),
        ("rows that are not reflected", "chunk = 0, left--, h += step;\n        row = inside(h, conv.H);",
         "chunk = 0, left--, h += step;\n        row = h < conv.H ? h : -1;", REFLECT),
        ("the first row is not reflected", "row(inside(h, conv.H))", "row(h < conv.H ? h : -1)", REFLECT),
        ("planes that are not reflected", "cfg::CHANNELS_LAST ? w : inside(w + j, conv.W)",
         "cfg::CHANNELS_LAST ? w : w + j < conv.W ? w + j : -1", REFLECT_PLANES),
        ("one number for a piece", "const int own_c = cfg::CHANNELS_LAST ? c + j : c", "const int own_c = c", ODD),
        ("one pixel for a piece", "inside(w + j, conv.W)", "inside(w, conv.W)", ODD_PLANES),
        ("pixels outside number by number", "if (row >= 0 && own_w >= 0) numbers", "if (row >= 0) numbers", ODD),
        ("one stage after all others", "stage = stage + 1 == cfg::STAGES ? 0 : stage + 1;\n        if",
         "stage = stage + 1 == cfg::STAGES ? 1 : stage + 1;\n        if"),
    ),
    *of_file("implicit_gemm/tap_columns.cu", LAYER,
        ("the first products for all", "i / 32 % PRODUCTS * 8", "0"),
        ("the first channels for all", "const int c = step * 16 + j", "const int c = j"),
        ("two channels for four", "j / 2 * 8 + lane", "lane"),
        ("rows as they are for blocks that go up", "i < FACTORS ? row : cfg::R - 1 - row", "row"),
        ("channels that do not exist", "column < TapMatrix::COLUMNS && c < cfg::C", "column < TapMatrix::COLUMNS", NAN),
        ("filters of the way down alone", "if (i >= 2 * FACTORS) return;", "if (i >= FACTORS) return;"),
        ("the upper channels twice", "args.packed[i].words[1] = factors.word.bits[1]",
         "args.packed[i].words[1] = factors.word.bits[0]"),
    ),
    *of_file("device/filter.cuh", LAYER,
        ("filters before columns of taps", "return (r * cfg::S + s) * cfg::K + k;",
         "return (k * cfg::R + r) * cfg::S + s;"),
        ("one product too few", "(COLUMNS + 7) / 8", "COLUMNS / 8"),
        ("channels that are left over", "(cfg::C + 15) / 16", "cfg::C / 16"),
    ),
]  # fmt: skip
