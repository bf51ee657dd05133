"""The planted faults of the separable method's two kernels; see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.separable.device import FusedConfig

# Separable: rows of whole vectors, two products; filters in chunks; channels that are summed; pixels of three planes.
SEPARABLE = Run("separable", "n2c3h21w40_k3r5s7_p2x3_g3_f32_nchw", FusedConfig(4, 2, 16, 8))
SEPARABLE_LONG = replace(SEPARABLE, problem="n1c1h40w40_k1r37s41_p18x20_f32_nchw")
SEPARABLE_SUMMED = replace(SEPARABLE, problem="n1c4h21w40_k2r5s7_p2x3_g2_f32_nchw")
SEPARABLE_STEPS = replace(SEPARABLE, problem="n4c3h61w160_k3r5s7_p2x3_g3_f32_nchw")  # several tiles a block
SEPARABLE_NEAR = replace(SEPARABLE, problem="n2c4h21w40_k4r5s7_p2x3_g4_f32_nhwc", config=FusedConfig(4, 2, 16, 8, 3))
# Its factors, of filters that need rotations and others: several warps a filter; lines that are columns.
SEPARABLE_RANKS = replace(SEPARABLE_NEAR, problem="n1c6h21w40_k6r5s7_p2x3_g6_f32_nhwc", kind="ranks")
FACTORS = Run("separable", "n1c2h20w20_k8r15s17_f32_nchw", FusedConfig(4, 2, 16, 8), kind="factors")
FACTORS_TALL = replace(FACTORS, problem="n1c2h20w20_k8r17s14_f32_nchw")

SEPARABLE_FAULTS = [
    *of_file("separable/fused.cu", SEPARABLE,
        ("no barrier behind the copies", f"{SYNC}  // pixels and factors have landed", "//"),
        ("no barrier between the passes", f"{SYNC}  // sums along rows are written", "//"),
        ("copies not waited for", "        copy_async_wait();\n", ""),
        ("pixels of the next step over those of this one", "copy_async_wait();",
         "ask(args, *held, held->factors[turn ^ 1], next);\n        copy_async_wait();"),
        ("no halo rows", "ROWS = (TILE_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1",
         "ROWS = (TILE_P - 1) * cfg::STRIDE_H + 1"),
        ("no halo columns", "+ (cfg::TILE_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;",
         "+ (cfg::TILE_Q - 1) * cfg::STRIDE_W + 1;"),
        ("no border above", "const bool there = h >= 0 && whole;", "const bool there = whole;"),
        ("no border beside", "const bool there = h >= 0 && whole;", "const bool there = h >= 0;"),
        ("vectors not shifted by the padding", "v + e - cfg::SHIFT - q * cfg::STRIDE_W", "v + e - q * cfg::STRIDE_W"),
        ("rows for columns",
         "tap < cfg::S ? args.rows + product * cfg::S + tap : args.columns + product * cfg::R + tap - cfg::S",
         "tap < cfg::R ? args.columns + product * cfg::R + tap : args.rows + product * cfg::S + tap - cfg::R",
         replace(SEPARABLE, problem="n2c3h21w40_k3r7s7_p3_g3_f32_nchw")),
        ("the first product alone", "++step.i < step.products", "false"),
        ("the first product again", "filter * MOST_PRODUCTS + i;", "filter * MOST_PRODUCTS;"),
        ("the first plane's rank for all", "slot < cfg::PLANES; slot++", "slot < 1; slot++", SEPARABLE_RANKS),
        ("products beyond a plane's rank", "cfg::PLANES == 1 || i < args.ranks[filter]", "true", SEPARABLE_RANKS),
        ("one filter for all outputs", "(tile.k + slot) % cfg::K) * cfg::C_GROUP",
         "(0 * slot) % cfg::K) * cfg::C_GROUP"),
        ("the first channel alone", "++step.c == cfg::C_GROUP", "true", SEPARABLE_SUMMED),
        ("one channel's factors for all", "% cfg::K) * cfg::C_GROUP + c;", "% cfg::K) * cfg::C_GROUP;",
         SEPARABLE_SUMMED),
        ("the first group's channels for all", "k % cfg::K / cfg::K_GROUP * cfg::C_GROUP + c, 0, 0)", "c, 0, 0)",
         SEPARABLE_SUMMED),
        ("the last taps of a row left out", "if constexpr (LEFT > 0) add_along", "if constexpr (false) add_along",
         SEPARABLE_LONG),
        ("the last taps of a column left out", "if constexpr (LEFT > 0) add_down", "if constexpr (false) add_down",
         SEPARABLE_LONG),
        ("the first taps of a row again", "factor + s);\n        if", "factor);\n        if", SEPARABLE_LONG),
        ("the first taps of a column again", "factor + r);", "factor);", SEPARABLE_LONG),
        ("columns that a window steps over", "beyond % cfg::DILATION_W != 0 ||", "",
         replace(SEPARABLE, problem="n1c3h21w40_k3r5s7_p4x6_d2_g3_f32_nchw")),
        ("rows that a window steps over", "beyond % cfg::DILATION_H != 0 ||", "",
         replace(SEPARABLE, problem="n1c3h21w40_k3r5s7_p4x6_d2_g3_f32_nchw")),
        ("stride 1 for stride 2", "w0 = tile.q * cfg::STRIDE_W", "w0 = tile.q",
         replace(SEPARABLE, problem="n1c3h21w80_k3r5s7_p2x3_st2_g3_f32_nchw")),
        ("uninitialised accumulators along", "sums[cfg::ALONG] = {};", "sums[cfg::ALONG];"),
        ("sums of the tile before", "sums[p] = acc_t(0);", ";", SEPARABLE_STEPS),
        ("the tile before again", "step.tile = tile_of(args, step.at);", "", SEPARABLE_STEPS),
        ("the next step's factors for this one", "held->factors[turn].columns", "held->factors[turn ^ 1].columns",
         SEPARABLE_STEPS),
        ("factors over those that are read", "held->factors[turn ^ 1], next", "held->factors[turn], next",
         SEPARABLE_STEPS),
        ("uninitialised accumulators down", "sums[cfg::OUT_P] = {};", "sums[cfg::OUT_P];"),
        ("no check at the last row", "if (p < left) *to", "*to"),
        ("no check at the ragged edge", "p0 < conv.P && q < conv.Q;", "p0 < conv.P;"),
        ("planes beyond the last", "slot < tile.planes && p0", "p0", SEPARABLE_NEAR),
        ("planes of the next picture", "tile.n + k / cfg::K, k % cfg::K / cfg::K_GROUP",
         "tile.n, k % cfg::K / cfg::K_GROUP", SEPARABLE_NEAR),
        ("outputs of the next picture", "store(conv, sums, tile.n + k / cfg::K,", "store(conv, sums, tile.n,",
         SEPARABLE_NEAR),
        ("a vector's first plane for all", "slot = i / FILLS + vector % INTERLEAVED", "slot = i / FILLS",
         SEPARABLE_NEAR),
        ("one plane's rows for all", "factors.rows + slot * ROW_PITCH;", "factors.rows;", SEPARABLE_NEAR),
    ),
    *of_file("separable/factor.cu", FACTORS,
        ("no barrier behind the surveys", f"{SYNC}  // each warp's survey is written", ""),
        ("no barrier before a cross is subtracted", f"{SYNC}  // column and row are written", "//"),
        ("no barrier behind the lengths", f"{SYNC}  // all lengths are written", ""),
        ("no barrier behind the factors", f"{SYNC}  // all factors are written", ""),
        ("one filter for all outputs", "args.w + k * args.strides[0]", "args.w"),
        ("one channel for all", "+ c * args.strides[1], 0, true};", ", 0, true};"),
        ("rows of w for its columns", "r * filter.args.strides[2] + s * filter.args.strides[3]",
         "s * filter.args.strides[2] + r * filter.args.strides[3]"),
        ("not flipped", "if (filter.args.flip) r", "if (false) r",
         replace(FACTORS, problem="n1c2h20w20_k8r15s17_f32_nchw_flip")),
        ("flipped one way", "r = cfg::R - 1 - r, s = cfg::S - 1 - s;", "r = cfg::R - 1 - r;",
         replace(FACTORS, problem="n1c2h20w20_k8r15s17_f32_nchw_flip")),
        ("the power of two forgotten", "value * power(filter.exponent));", "value);"),
        ("not brought near 1", "filter.exponent = min", "filter.exponent = 0 * min",
         replace(FACTORS, problem="n1c2h20w20_k8r3s5_f64_nchw")),
        ("squares of a warp's first lane alone", "add(mine, {__shfl", "add(mine, {0 * __shfl"),
        ("one product alone", "while (crosses < LINES && found.squares > noise);", "while (false);"),
        ("as many products as crosses", "crosses == 1 || ldexp", "true || ldexp"),
        ("crosses that miss too much", "lost > noise) {\n                put", "false) {\n                put"),
        ("rotations of what the crosses left", "load(filter, matrix, shared, turn);\n            orth", "orth"),
        ("a sweep alone", "sweep < MOST_SWEEPS", "sweep < 1"),
        ("a round left out", "round < MOVING", "round < MOVING - 1"),
        ("nobody plays the one who stays", "pair == 0 ? MOVING : ", "pair == 0 ? LINES : ", FACTORS_TALL),
        ("rotated the wrong way", "copysign(1 / ", "-copysign(1 / "),
        ("lengths in no order", "shared.order[place] = t;", "shared.order[t] = t;"),
        ("noise counted too", "max(__syncthreads_count(tail > noise), 1)", "max(__syncthreads_count(tail > 0), 1)"),
        ("no rank for zero", "int turn = 0, rank = 1;", "int turn = 0, rank = 0;"),
        ("a row's length forgotten", "product / shared.squares[line]", "product * rsqrt(shared.squares[line])"),
        ("a column's length forgotten", "value * rsqrt(shared.squares[line])", "value", FACTORS_TALL),
        ("one line's products for all", "other = e % LINES", "other = 0"),
        ("the error of nothing", "double rest = back - tap(filter, r, s);", "double rest = 0 * back;"),
    ),
]  # fmt: skip
