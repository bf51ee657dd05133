"""Planted faults of split_patch.cuh, and of what few_channels.cu has for float32 alone; see faults.py.

A patch that is taken for one that halves do not hold is computed from floats, and is right: nobody can notice that.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.split_few_channels import SplitFewChannelsConfig

# An odd number of steps, whose taps fill up no step, and of filters; dilation; a stride.
LAYER = Run("implicit_gemm_split_few_channels", "n2c3h13w43_k37r3s5_st2x1_p1_d1x2_f32_nchw_+bias",
            SplitFewChannelsConfig(4, 16, 32, 2, 16))  # fmt: skip
# Few steps in straight-line code; two parts of the filters, and two columns of warps in one of them.
ODD = replace(LAYER, problem="n1c3h9w21_k20r5s5_p1_f32_nhwc")
WIDE = replace(ODD, problem="n1c3h9w70_k40r3s3_p1_f32_nhwc", config=SplitFewChannelsConfig(2, 32, 32, 2, 16))
# Kinds of split_inputs.py.
SMALL = Run("implicit_gemm_split_few_channels", "n1c3h9w20_k20r3s3_p1_f32_nhwc",
            SplitFewChannelsConfig(2, 16, 16, 1, 16))  # fmt: skip
WIDELY, FAR, PIXELS, CHANNEL, FILTERS = (
    replace(SMALL, kind=kind) for kind in ("wide", "far pixels", "small pixels", "unseen channel", "uneven filters")
)

CROSS = "mma_halves<math_t>(cross"

SPLIT_FEW_CHANNELS_FAULTS = [
    *of_file("implicit_gemm/few_channels.cu", LAYER,
        ("no barrier after the halves", f"{SYNC}  // the halves", "// the halves"),
        ("the first part's filters for all", "(i / COUNT * PARTS + part) * COUNT", "(i / COUNT * PARTS) * COUNT"),
        ("the high halves of filters twice", "(i / COUNT * PARTS + part) * COUNT", "part * COUNT"),
        ("scales left in sums", "unscale(sums, *shared, warp_n);", ""),
        ("the first filters' scales for all", "unscale(sums, *shared, warp_n);", "unscale(sums, *shared, 0);", WIDE),
        ("patches that halves do not hold taken as they are", "if (some_plain || is_lost(*shared))",
         "if (some_plain)", FAR),
        ("filters that halves do not hold taken as they are", "if (some_plain || is_lost(*shared))",
         "if (is_lost(*shared))", FILTERS),
    ),
    *of_file("implicit_gemm/few_filters.cu", LAYER,
        ("the high halves of filters twice", "args.filter.taps + blockIdx.y * args.lows", "args.filter.taps"),
        ("low halves over high ones", "((blockIdx.y * ACROSS + tile) * STEPS", "((tile) * STEPS"),
    ),
    *of_file("device/split_patch.cuh", LAYER,
        ("no barrier before the scale", f"{SYNC}  // the largest", "// the largest"),
        ("no barrier before the sums are replaced", f"{SYNC}  // the sums", "// the sums", FILTERS),
        ("the scale of a warp's pixels", "for (int i = 0; i < THREADS / 32; i++) largest",
         "for (int i = threadIdx.x / 32; i < 1; i++) largest"),
        ("one channel's scale for all", "most = max(most, largest[c]);", "most = largest[c];", CHANNEL),
        ("no scale", "numbers[number] = given * scale.up;", "numbers[number] = given;"),
        ("another scale taken back", "shared.down = scale.down;", "shared.down = scale.up;"),
        ("numbers out of reach", "cannot_split(float_of(most)) ? MOST_LOST + 1 : 0", "0", FAR),
        ("a channel that loses bits", "* scale.up < IN_FULL) lost += MOST_LOST + 1;", "* scale.up < 0) lost += 1;",
         replace(CHANNEL, problem="n1c3h1w1_k20r3s3_p1_f32_nhwc")),
        ("pixels that lose bits", "kept[j] == 0 ? MOST_LOST + 1 : small[j]", "kept[j] < 0 ? MOST_LOST + 1 : 0", PIXELS),
        ("the first word's halves twice", "split_pair(numbers[2 * j], numbers[2 * j + 1]",
         "split_pair(numbers[0], numbers[1]"),
        ("high halves for low ones", "shared.patches[1], i, low);", "shared.patches[1], i, high);"),
        ("floats of one pixel twice", "shared.patches[number / cfg::C][0]", "shared.patches[0][0]"),
        ("high halves of pixels twice", "pixels + half * LOW_PIXELS", "pixels"),
        ("the first 16 of a step twice", "words, first + part)", "words, first)", ODD),
        ("a step beyond the last",
         "if (STEPS % STEP_PARTS && first + part == STEPS) continue;\n                    mma_halves",
         "mma_halves", ODD),
        ("high halves of filters twice", "half * STEPS + first + part", "first + part"),
        ("the first 16 filters of a warp for all", "* NEXT_STEP + j * 32]", "* NEXT_STEP]",
         replace(WIDE, config=SplitFewChannelsConfig(2, 32, 32, 2, 32))),
        ("the first eight filters twice", "main, a[part][0][fragment], b[part][0].words[eight]",
         "main, a[part][0][fragment], b[part][0].words[0]"),
        ("low times high left out", f"{CROSS}, a[part][1][fragment], b[part][0].words[eight]);", ""),
        ("high times low left out", f"{CROSS}, a[part][0][fragment], b[part][1].words[eight]);", ""),
        ("sums of low halves as large as those of high ones", "fmaf(cross[e], 1 / LOW, main[e])", "cross[e] + main[e]"),
        ("one filter's scale for all", "+ 2 * (threadIdx.x % 4) + e % 2]", "]", WIDELY),
        ("the first block's filters' scales for all", "args.scales[n0 + i] : 1", "args.scales[i] : 1",
         replace(WIDELY, problem="n1c3h9w20_k40r3s3_p1_f32_nhwc")),
        ("every filter computed from floats but those", "shared.scales[k - n0] != 0) continue;",
         "shared.scales[k - n0] == 0) continue;", FILTERS),
        ("one row of outputs computed from floats", "tile.p + i / cfg::TILE_W, tile.q", "tile.p, tile.q", FAR),
    ),
]  # fmt: skip
