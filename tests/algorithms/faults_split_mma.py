"""Planted faults of split_mma.cu and border.cuh; see faults.py. gemm_split_mma runs the same kernels.

Where a fault makes sums NaN, their outputs are computed from floats, and are right: nobody can notice a tile that is
read before it is there, which the emulator fills with NaN.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.split_mma import SplitMmaConfig

# Ragged in every way, with steps of which the last is not whole; an even number of filters, which go to pairs; groups.
LAYER = Run(
    "implicit_gemm_split_mma", "n2c40h7w6_k37r3s2_st2x1_p1_d1x2_f32_nhwc_+bias", SplitMmaConfig(32, 32, 16, 16, 3)
)
EVEN = replace(LAYER, problem="n2c40h7w6_k38r3s2_p1_f32_nhwc")
GROUPS = replace(LAYER, problem="n2c80h6w5_k80r3s3_p1_g2_f32_nhwc")
SLICES = replace(LAYER, problem="n1c72h5w4_k33r3s3_p1_f32_nhwc", kind="binades")
SHARED = replace(SLICES, config=replace(SLICES.config, split_k=3))
BORDER = replace(LAYER, problem="n1c33h6w7_k20r3s3_p1x0x2x1_reflect_f32_nchw")
# Warps of two products each way.
WIDE = replace(LAYER, config=SplitMmaConfig(32, 32, 32, 32, 3))
# Kinds of split_inputs.py.
PIXEL, FILTER, CHANNEL, WIDELY = (
    replace(LAYER, problem="n1c34h5w4_k20r3s3_p1_f32_nhwc", kind=kind)
    for kind in ("far pixels", "far filters", "small channels", "wide")
)  # fmt: skip
GROUP_CHANNEL = replace(GROUPS, kind="small channels")
SHARED_FAR = replace(SHARED, kind="far filters")

SPLIT_MMA_FAULTS = [
    *of_file("implicit_gemm/split_mma.cu", LAYER,
        ("one copy too few waited for", "copy_async_wait<cfg::STAGES - 2>();", "copy_async_wait<cfg::STAGES - 1>();"),
        ("no barrier in a step", f"{SYNC}                // so has", "// so has"),
        ("uninitialised accumulators", "WarpSums sums = {};", "WarpSums sums;"),
        ("copies into the tile that is used next", "stages[stage == 0 ? cfg::STAGES - 1 : stage - 1]",
         "stages[stage + 1 == cfg::STAGES ? 0 : stage + 1]"),
        ("high halves of pixels twice", "from + lows, some", "from, some"),
        ("high halves of filters twice", "filter + further, there", "filter, there"),
        ("sums of low halves as large as those of high ones", "fmaf(cross[e], 1 / LOW, main[e])", "cross[e] + main[e]"),
        ("low times high left out", "mma_halves<half_t>(cross, rows[part][1], high);", ""),
        ("high times low left out", "mma_halves<half_t>(cross, rows[part][0], low);", ""),
        ("the first 16 of a step twice", "m0 + i * MMA_ROWS, part * MMA_HALVES", "m0 + i * MMA_ROWS, 0"),
        ("the first rows of a warp for all", "tiles.pixels[half], m0 + i * MMA_ROWS", "tiles.pixels[half], m0", WIDE),
        ("the first columns of a warp for all", "n0 + j * 16, part", "n0, part", WIDE),
        ("the upper rows' scales for the lower", "+ 8 * half + threadIdx", "+ threadIdx", SLICES),
        ("the first slice's scales for all", "(group * cfg::GROUP_PITCH + c) / SLICE", "0", SLICES),
        ("no dilation", "w = s * cfg::DILATION_W;", "w = s;"),
        ("no stride", "at.p * cfg::STRIDE_H - conv.top", "at.p - conv.top"),
        ("no padding", "at.q * cfg::STRIDE_W - conv.left + cfg::ROWS_LEFT", "at.q * cfg::STRIDE_W + cfg::ROWS_LEFT"),
        ("the border of rows that have it", "- conv.top + cfg::ROWS_TOP", "- conv.top", BORDER),
        ("what is on the left counts as inside", "0 <= window.w + w && ", ""),
        ("what is below counts as inside", " && window.h + h < args.height", ""),
        ("the first row of taps for all", "r += row_ends;", "r += 0;"),
        ("the first group's pixels for all", "args.pixels + group * cfg::GROUP_PITCH + own", "args.pixels + own",
         GROUPS),
        ("the first group's filters for all", "static_cast<long long>(group) * cfg::K_GROUP + tile_n",
         "static_cast<long long>(tile_n)", GROUPS),
        ("all shares from the first channel", "first_c(share * SHARE_SPANS * cfg::BLOCK_K)", "first_c(0)", SHARED),
        ("all shares in one place", "conv.out + share * pixels * cfg::K", "conv.out", SHARED),
        ("pixels beyond the last one", "if (m >= pixels) continue;", ""),
        ("filters beyond the last one", "if (n >= cfg::K_GROUP) continue;", ""),
        ("pairs where there are none", "if (args.pairs) {", "if (true) {"),
        ("the first of two outputs twice", "[i % 2 * 2 + v]", "[i % 2 * 2]", EVEN),
        ("the upper eight rows twice", "[i % 2 * 2 + v]", "[v]"),
        ("one filter's scale for all", "args.scales[k + v]", "args.scales[0]", WIDELY),
        ("pixels that halves do not hold taken as they are", "down < 0 ? float_of(0x7fffffffu) : down", "down", PIXEL),
        ("filters that halves do not hold taken as they are", "if (scale == 0 || sum != sum)", "if (sum != sum)",
         FILTER),
        ("another output computed from floats", "bit / 2 % COLUMNS, bit % 2", "bit / 2 % COLUMNS, 0", CHANNEL),
    ),
    *of_file("device/border.cuh", CHANNEL,
        ("the first row alone", "tap / cfg::S * of_w.h", "0"),
        ("the first column alone", "tap % cfg::S * of_w.w", "0"),
        ("the first filter for all", "k * of_w.n", "0"),
        ("without padding", "inside(output.p * cfg::STRIDE_H - conv.top", "inside(output.p * cfg::STRIDE_H"),
        ("the first group's channels", "offset_of(conv.x_strides, output.n, first_c, h, w)",
         "offset_of(conv.x_strides, output.n, 0, h, w)", GROUP_CHANNEL),
        ("the filter's first channels alone", "first * of_w.c", "0", SHARED_FAR),
    ),
]  # fmt: skip
