"""Planted faults of depthwise_mma, of warps that take tiles, and of those that walk: see faults.py.

Nobody can notice sums that begin with what the emulator fills them with: they are not finite, and are taken again.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.depthwise.device import DepthwiseMmaConfig

# Two planes a block, of which the last has one; two warps a plane; windows that begin at an odd column, of which the
# last of a row is not whole. Tiles two at a time; strips that end beyond the plane.
TILES = Run("depthwise_mma", "n1c5h18w22_k5r9s4_p4x1_g5_f16_nchw", DepthwiseMmaConfig(2, 2, 2))
WALK = Run("depthwise_mma", "n1c5h28w22_k5r5s4_p2x1_g5_f16_nchw", DepthwiseMmaConfig(2, 2, 0))
# Windows of two products, and an even number of outputs.
LONG = Run("depthwise_mma", "n1c3h18w20_k3r13s13_p6_g3_f16_nchw", DepthwiseMmaConfig(2, 2, 2))
STRIDED = replace(TILES, problem="n2c3h18w34_k3r5s4_st2x3_d2x1_p2x1_g3_f16_nchw")

MMA_FAULTS = [
    *of_file("depthwise/mma.cu", TILES,
        ("zeros not written", "store_vector(held + 8 * i, zeros);", "(void)zeros;"),
        ("zeros not waited for", "    __syncthreads();  // zeros are written\n", ""),
        ("copies not waited for", "    copy_async_wait();\n", ""),
        ("no barrier behind the copies", "    __syncthreads();  // pixels and taps have landed\n", ""),
        ("planes beyond the last", "    if (n >= args.conv.N) return;\n", ""),
        ("the first plane's pixels for all", "offset_of(conv.x_strides, plane.n, plane.k, 0, 0)",
         "offset_of(conv.x_strides, plane.n, 0, 0, 0)"),
        ("one filter for all planes", "offset_of(filter.strides, plane.k, 0, r, s)",
         "offset_of(filter.strides, 0, 0, r, s)"),
        ("mirrored filter", "plane.k, 0, r, s)", "plane.k, 0, r, cfg::S - 1 - s)"),
        ("a team's planes in one place", "slot * args.plane + args.first", "args.first"),
        ("rows of pixels as memory has them", "plane.pixels + (h * args.pitch + w), from",
         "plane.pixels + (h * conv.W + w), from"),
        ("columns of the matrix all alike", "2 * plane.t - plane.g * cfg::STRIDE_W)", "2 * plane.t)"),
        ("lines of taps not behind each other", "plane.lines + (r * LINE + BEFORE", "plane.lines + (BEFORE"),
        ("the upper half of a matrix twice", "(MMA_HALVES * step + 8 * half)", "(MMA_HALVES * step)"),
        ("the second tap of two left out", "static_cast<unsigned>(two[1].bits) << 16", "0"),
        ("windows that begin at odd columns", "- args.conv.left - cfg::LEAD +", "- args.conv.left +"),
        ("one window for two", "(e % 2 == 0 ? first : second)", "first"),
        ("the first product's pixels again", "(MMA_HALVES * step + 8 * (e / 2))", "(8 * (e / 2))", LONG),
        ("stride 1 for stride 2", "((p * cfg::STRIDE_H - args.conv.top) * args.pitch + w)",
         "((p - args.conv.top) * args.pitch + w)", STRIDED),
        ("stride 1 for stride 3", "i * (MMA_COLUMNS * cfg::STRIDE_W)", "i * MMA_COLUMNS", STRIDED),
        ("dilation 1 for dilation 2", "from[i][0] += cfg::DILATION_H * args.pitch", "from[i][0] += args.pitch",
         STRIDED),
        ("the first tile's windows for all", "m = (tile + i * cfg::PLANE_WARPS) * MMA_ROWS", "m = tile * MMA_ROWS"),
        ("the first tile's place for all", "sums[i], tile + i * cfg::PLANE_WARPS)", "sums[i], tile)"),
        ("the first warp's tiles for all", "int tile = plane.warp;", "int tile = 0;"),
        ("rows beyond the last", "p < args.conv.P && q < args.conv.Q ?", "q < args.conv.Q ?"),
        ("windows beyond the last", "p < args.conv.P && q < args.conv.Q ?", "p < args.conv.P ?", LONG),
        ("columns beyond the last", "if (at.q + 1 < conv.Q) to[", "to["),
        ("the second of two outputs left out", "if (at.q + 1 < conv.Q) to[", "if (false) to["),
        ("an Inf in windows that do not see it", "if (has_odd(sums)) recompute(args, plane, sums, at[0], at[1]);", "",
         replace(TILES, kind="nan")),
        ("one window's sums for both", "i < 2 ? first : second", "first", replace(TILES, kind="nan")),
        ("an Inf in a lane's other outputs", "(sums[0] + sums[1]) + (sums[2] + sums[3])", "sums[0] + sums[1]",
         replace(TILES, kind="nan")),
        ("a window of its own that begins elsewhere", "w = q * cfg::STRIDE_W - args.conv.left;",
         "w = q * cfg::STRIDE_W;",
         replace(TILES, kind="nan")),
    ),
    *of_file("depthwise/mma.cu", WALK,
        ("a ring that does not turn", "sums[(d - r + cfg::R) % cfg::R]", "sums[(cfg::R - r) % cfg::R]"),
        ("a row of sums before it is whole", "sums[(d + 1) % cfg::R], row + d", "sums[d], row + d"),
        ("sums not begun anew", "        sums[2 * half] = sums[2 * half + 1] = acc_t(0);\n", ""),
        ("rows beyond a strip", "if (0 <= row && row < strip.rows)", "if (0 <= row)"),
        ("rows before a strip", "if (0 <= row && row < strip.rows)", "if (row < strip.rows)"),
        ("the first warp's strips for all", "(plane.warp * args.strips + strip) *", "strip *"),
        ("strips all at the top", "(plane.warp * args.strips + strip) *", "plane.warp *"),
        ("rows beyond the last", "min(args.height, conv.P - p)", "args.height"),
        ("the same row of pixels again", "        strip.from += args.pitch;\n", ""),
        ("the same row of outputs again", "        strip.to += args.conv.out_strides.h;\n", ""),
        ("a row of outputs too early", "p - (cfg::R - 1), q)", "p - cfg::R, q)"),
        ("the first windows for all", "strip_of(args, plane, plane.g + 8)", "strip_of(args, plane, plane.g)"),
        ("an Inf in strips that do not see it",
         "if (has_odd(sums)) recompute(args, plane, sums, two_at(strips[0], row), two_at(strips[1], row));", "",
         replace(WALK, kind="nan")),
        ("another row's sums taken again", "two_at(strips[0], row), two_at(", "two_at(strips[0], row + 1), two_at(",
         replace(WALK, kind="nan")),
    ),
    *of_file("device/mma.cuh", TILES,
        ("bfloat16 for float16", 'type_name(half_t) { return "f16"; }', 'type_name(half_t) { return "bf16"; }'),
        ("the planes' fragments for the taps'", "type_name(T{}), sums, a, b)", "type_name(T{}), sums, a, a)"),
    ),
]  # fmt: skip
