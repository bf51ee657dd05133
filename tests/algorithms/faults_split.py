"""Planted faults of implicit_gemm_split: see faults.py. A GPU must notice them too.

So none of them lets a block wait for ever. Those of its filters are noticed by what is made of them.
gemm_split runs the same kernels.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.split_tiles import SplitConfig

# Ragged in every way: 13 x 11 outputs of tiles 8 wide, two slices of channels, two tiles of filters.
PATCHES = Run(
    "implicit_gemm_split", "n2c72h13w12_k70r3s2_p1_d1x2_f32_nhwc_+scale:channel+bias+residual+relu",
    SplitConfig(True, True, True, 1, 64, False, 2, 3),
)  # fmt: skip
PIXELS = replace(PATCHES, config=SplitConfig(False, False, False, 1, 64, False, 3, 3))
BY_PIXELS = replace(PATCHES, config=SplitConfig(True, True, False, 1, 64, False, 2, 3, by_pixels=True))
GROUPS = replace(PATCHES, problem="n2c80h13w11_k80r3s3_p1_g2_f32_nhwc")
# Kinds of split_inputs.py.
CHANNEL, PIXEL, UNSEEN, FAR = (
    replace(PATCHES, problem="n1c72h13w12_k70r3s3_p1_f32_nhwc", kind=kind)
    for kind in ("small channels", "small pixels", "unseen channel", "far pixels")
)

SPLIT_FAULTS = [
    *of_file("implicit_gemm/split.cu", PATCHES,
        ("the first slice of channels twice", "at.c + (PATCH ? i : i / TAPS) * ROW_CHANNELS", "at.c"),
        ("the first half of a slice twice", "first_c + half * RAW_CHANNELS", "first_c"),
        ("no padding above", "h = at.p * STRIDE_H - conv.top;", "h = at.p * STRIDE_H;"),
        ("no padding on the left", "w = at.q * STRIDE_W - conv.left, h", "w = at.q * STRIDE_W, h"),
        ("the first picture for all", "args.pixels, c, w, h, at.n, there);", "args.pixels, c, w, h, 0, there);"),
        ("halves of a stage in plain order", "2 * part + (i ^ upper))", "2 * part + i)"),
        ("raw pixels in plain order", "(piece ^ pixel % PIECES) * 16", "piece * 16"),
        ("no low halves of pixels", "make_uint4(l[0], l[1], l[2], l[3])", "make_uint4(0, 0, 0, 0)"),
        ("low times high left out", "multiply(cross, a_high + at, b_low + at, tap",
         "multiply(cross, a_high + at, b_high + at, tap"),
        ("sums of low halves as large as those of high ones", "down * (1 / LOW)", "down"),
        ("16 channels of each 32 alone", "multiply(main, a_high + at, b_high + at, j)",
         "multiply(main, a_high, b_high, j)"),
        ("sums of low halves that go on from stage to stage", "tap | part | j", "1"),
        ("the scale of the stage before", "downs = bars.down[pixels.stage], down = downs[0]",
         "downs = bars.down[pixels.stage], down = 1"),
        ("the next filter's scale", "? args.scales[k] : 1", "? args.scales[k ^ 1] : 1", replace(PATCHES, kind="wide")),
        ("the upper rows of pixels twice", " : share * 8 * PIXEL_PITCH;", " : 0;", PIXELS),
        ("one warpgroup's pixels for both", "share * BLOCK_N / 8 * PIXEL_PITCH", "0", BY_PIXELS),
        ("results of one warpgroup's pixels for both", "BY_PIXELS ? BLOCK_N * share : 0", "0", BY_PIXELS),
        ("the first tap's pixels for all", "at.n, tap % S * DILATION_W", "at.n, 0", PIXELS),
        ("the first group's channels for all", "first_c = at.c + (PATCH", "first_c = (PATCH", GROUPS),
        ("computed plainly from the first group's channels", "place(conv.x_strides, out.n, at.c, h, w)",
         "place(conv.x_strides, out.n, 0, h, w)", replace(GROUPS, kind="small channels")),
        ("small channels split as they are", "largest.least * scale.up >= IN_FULL", "true", UNSEEN),
        ("small pixels split as they are", "full >= FULL || some << 1 == 0", "true", PIXEL),
        ("numbers out of reach split as they are", "&& !cannot_split(largest.all)", "", FAR),
        ("computed plainly from the first tap alone", "(static_cast<long long>(k) * TAPS + tap) * FILTER_CHANNELS",
         "static_cast<long long>(k) * TAPS * FILTER_CHANNELS", CHANNEL),
        ("computed plainly, of the first row alone", "column + e / 4 * 8 + e % 2, k", "column + e % 2, k", CHANNEL),
        ("computed plainly, without padding", "inside(out.p * STRIDE_H - conv.top", "inside(out.p * STRIDE_H", CHANNEL),
    ),
]  # fmt: skip

FILTER_FAULTS = [
    *of_file("implicit_gemm/split_filters.cu", PATCHES,
        ("high halves twice", "args.halves[((rows + row) * CHANNELS + c) / 2] = low",
         "args.halves[((rows + row) * CHANNELS + c) / 2] = high"),
        ("the next channel's weight", "b = weight(args, held, c + 1, tap)", "b = weight(args, held, c, tap)"),
        ("one filter for all", "blockIdx.x * args.strides[0] + c * args.strides[1]", "c * args.strides[1]"),
        ("a convolution that is not turned", "if (args.flip) tap = TAPS - 1 - tap;", ""),
        ("a channel's taps before their place", "held[c * PITCH + tap] = given", "held[c * TAPS + tap - 1] = given"),
        ("the largest of a warp for the largest of all", "largest = largest_of(largest, largest_of_warp[i]);", ""),
        ("small channels of a filter split as they are",
         "least = fminf(least, unless_zero(most));\n    }\n    for (int lanes", "}\n    for (int lanes"),
        ("small taps split as they are", "        least = fminf(least, unless_zero(most));\n    }\n    for (int c =",
         "    }\n    for (int c ="),
        ("filters out of reach split as they are", "cannot_split(largest) || least", "least"),
        ("floats of filters left out", "if (c < C) args.plain[row * C + c] = a;", ""),
        ("tiles counted on from before", "if (threadIdx.x == 0 && k == 0) *args.redone = 0;", ""),
        ("the largest before all warps have theirs", f"least_of_warp[warp] = least;\n    {SYNC}",
         "least_of_warp[warp] = least;"),
        ("weights before all are there", f"given(args, c, tap);\n        }}\n        {SYNC}",
         "given(args, c, tap);\n        }"),
    ),
    *of_file("include/device/split.cuh", PATCHES,
        ("low halves as they are", "(first - a) * LOW", "(first - a)"),
        ("the largest of signed numbers", "fmaxf(fabsf(a), fabsf(b))", "fmaxf(a, b)"),
        ("a scale too large by 2", "up = TOP - exponent;", "up = TOP + 2 - exponent;"),
    ),
]  # fmt: skip
