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

# Pixels that another kernel splits first; many slices of channels; sums whose channels are shared out; a border.
FIRST = replace(PATCHES, config=SplitConfig(False, False, False, 1, 64, False, 3, 3, split_first=True))
MANY_SLICES = replace(FIRST, problem="n1c330h9w7_k40r1s1_f32_nhwc", kind="binades")
SHARED = replace(FIRST, problem="n1c130h9w7_k40r1s1_f32_nhwc", config=replace(FIRST.config, split_k=2))
SHARED_FAR = replace(SHARED, kind="far filters")
REFLECTED = replace(FIRST, problem="n2c20h9w11_k24r3s3_p1x0x2x1_reflect_f32_nchw")


def first_of(kind: str) -> Run:
    return replace(FIRST, problem="n1c72h13w12_k70r3s3_p1_f32_nhwc", kind=kind)


SPLIT_FAULTS = [
    *of_file("implicit_gemm/split.cu", PATCHES,
        ("the first slice of channels twice", "at.c + (cfg::PATCH ? i : i / TAPS) * ROW_CHANNELS", "at.c"),
        ("the first half of a slice twice", "first_c + half * RAW_CHANNELS", "first_c"),
        ("the first picture for all", "here.w, here.h, here.n, there);", "here.w, here.h, 0, there);"),
        ("halves of a stage in plain order", "2 * part + (i ^ upper))", "2 * part + i)"),
        ("raw pixels in plain order", "(piece ^ pixel % PIECES) * 16", "piece * 16"),
        ("no low halves of pixels", "make_uint4(l[0], l[1], l[2], l[3])", "make_uint4(0, 0, 0, 0)"),
        ("low times high left out", "wgmma(cross, a_high + at, b_low + at, tap",
         "wgmma(cross, a_high + at, b_high + at, tap"),
        ("sums of low halves as large as those of high ones", "down[e / 2 % 2] * (1 / LOW)", "down[e / 2 % 2]"),
        ("16 channels of each 32 alone", "wgmma(main, a_high + at, b_high + at, j)",
         "wgmma(main, a_high, b_high, j)"),
        ("sums of low halves that go on from stage to stage", "tap | part | j", "1"),
        ("no scale of a stage", "down[j] = downs[0];", "down[j] = 1;"),
        ("the next filter's scale", "? args.scales[k] : 1", "? args.scales[k ^ 1] : 1", replace(PATCHES, kind="wide")),
        ("the upper rows of pixels twice", " : share * 8 * PIXEL_PITCH;", " : 0;", PIXELS),
        ("one warpgroup's pixels for both", "share * cfg::BLOCK_N / 8 * PIXEL_PITCH", "0", BY_PIXELS),
        ("results of one warpgroup's pixels for both", "cfg::BY_PIXELS ? cfg::BLOCK_N * share : 0", "0", BY_PIXELS),
        ("the first tap's scales for all", "at.n, tap % cfg::S * cfg::DILATION_W", "at.n, 0",
         replace(FIRST, kind="binades")),
        ("scales as if nothing stood outside", "w = at.q * cfg::STRIDE_W - conv.left", "w = at.q * cfg::STRIDE_W",
         replace(FIRST, kind="binades")),
        ("the first group's channels for all", "first_c = at.c + (cfg::PATCH", "first_c = (cfg::PATCH", GROUPS),
        ("small channels split as they are", "largest.least * scale.up >= IN_FULL", "true", UNSEEN),
        ("small pixels split as they are", "full >= FULL || some << 1 == 0", "true", PIXEL),
        ("numbers out of reach split as they are", "&& !cannot_split(largest.all)", "", FAR),
        ("computed plainly, of the first row alone", "column + e / 4 * 8 + e % 2, k", "column + e % 2, k", CHANNEL),
        ("high halves twice", "from.n + half * conv.N", "from.n", FIRST),
        ("the first slices' scales for all", "first_c / ROW_CHANNELS / SCALES * SCALES", "0", MANY_SLICES),
        ("the first of four scales for all", "(at.c / ROW_CHANNELS + i / TAPS) % SCALES", "0", FIRST),
        ("one row's scale for both", "[row + 8 * j]", "[row]", FIRST),
        ("one warpgroup's scales for both", "row = 64 * share + threadIdx.x %", "row = threadIdx.x %", FIRST),
        ("the tap on the right before the border", "from.w += cfg::ROWS_LEFT, ", "from.w = max(from.w, 0), ",
         REFLECTED),
        ("the tap below before the border", ", from.h += cfg::ROWS_TOP", ", from.h = max(from.h, 0)", REFLECTED),
        ("pixels that halves do not hold unnoticed", "plain |= down[j] < 0;", "", first_of("far pixels")),
        ("scales that nobody waits for", "(cfg::SPLIT_FIRST ? PIXEL_ROWS * SCALES * 4 : 0)", "0", FIRST),
    ),
    *of_file("device/wgmma_tiles.cuh", replace(PATCHES, config=replace(PATCHES.config, pairs="filters")),
        ("both blocks of a pair bring the high halves", "cfg::HALVES == 1 ? plane : half", "0"),
    ),
]  # fmt: skip

# Noticed by the halves and the scales: a result is right, if slow, where a scale says that it is computed plainly.
PIXEL_FAULTS = [
    *of_file("implicit_gemm/split_pixels.cu", FIRST,
        ("the largest of 16 channels for that of 64", "most = largest_of(most, largest[i][at]);", ""),
        ("scales of no slice left out", "slice < cfg::SLICES", "slice < 0"),
        ("high halves for low ones", "square[line + i][of_high + PAIRS]", "square[line + i][of_high]"),
        ("words in plain order", "lane / PAIRS * OF_PART + lane % PAIRS", "lane"),
        ("the first square for all", "% args.squares * SIDE", "% args.squares * 0"),
        ("the first slice for all", "c0 = blockIdx.y * SIDE;", "c0 = 0;"),
        ("a small channel split as it is", "lost || ", ""),
        ("numbers beside a huge one split as they are", "balance[at] > 0 || ", ""),
        ("numbers out of reach split as they are", " || cannot_split(most)", ""),
        ("small pixels scaled beyond the floats", "most = SMALLEST;", "most = most;"),
        ("floats before all are there", f"balance[thread] = 0;\n    {SYNC}", "balance[thread] = 0;"),
        ("the largest before all have theirs", f"largest[part][at] = most;\n    {SYNC}", "largest[part][at] = most;"),
        ("scales before all are there", f"ups[at] = scale.up;\n    {SYNC}", "ups[at] = scale.up;"),
        ("channels before all have theirs", f"bits_of(kept));\n    {SYNC}", "bits_of(kept));"),
        ("rows before all halves are there", f"float_of(low[i]);\n    }}\n    {SYNC}", "float_of(low[i]);\n    }"),
    ),
]  # fmt: skip

FILTER_FAULTS = [
    *of_file("implicit_gemm/split_filters.cu", PATCHES,
        ("high halves twice", "args.halves[((rows + row) * cfg::CHANNELS + c) / 2] = low",
         "args.halves[((rows + row) * cfg::CHANNELS + c) / 2] = high"),
        ("the next channel's weight", "b = weight(args, held, c + 1, tap)", "b = weight(args, held, c, tap)"),
        ("one filter for all", "k * args.strides[0] + c * args.strides[1]", "c * args.strides[1]"),
        ("a convolution that is not turned", "if (args.flip) tap = TAPS - 1 - tap;", ""),
        ("a channel's taps before their place", "held[c * PITCH + tap] = given", "held[c * TAPS + tap - 1] = given"),
        ("the largest of a warp for the largest of all", "largest = largest_of(largest, largest_of_warp[i]);", ""),
        ("small channels of a filter split as they are",
         "least = fminf(least, unless_zero(most));\n    }\n    for (int lanes", "}\n    for (int lanes"),
        ("small taps split as they are", "        least = fminf(least, unless_zero(most));\n    }\n    for (int c =",
         "    }\n    for (int c ="),
        ("filters out of reach split as they are", "cannot_split(largest) || least", "least"),
        ("floats of filters left out", "if (cfg::KEEPS && c < cfg::C) args.plain[row * cfg::C + c] = a;", ""),
        ("tiles counted on from before", "if (threadIdx.x == 0 && k == 0) *args.redone = 0;", ""),
        ("the largest before all warps have theirs", f"least_of_warp[warp] = least;\n    {SYNC}",
         "least_of_warp[warp] = least;"),
        ("weights before all are there", f"given(args, k, c, tap);\n        }}\n        {SYNC}",
         "given(args, k, c, tap);\n        }"),
        ("the next group's filters for neighbours", "in_group = k % cfg::K_GROUP", "in_group = k"),
        ("neighbours beyond the group", "min(cfg::NEIGHBOURS, cfg::K_GROUP - (in_group - before))", "cfg::NEIGHBOURS"),
        ("a channel that no filter sees well split as it is", "__syncthreads_or(lost) || ", "__syncthreads_or(0) || "),
        ("filters of many small numbers split as they are", " || balance > 0;", ";"),
        ("neighbours' scales before all are there", f"scale_of(most, 0).up;\n    }}\n    {SYNC}",
         "scale_of(most, 0).up;\n    }"),
    ),
    *of_file("device/split.cuh", PATCHES,
        ("low halves as they are", "(first - a) * LOW", "(first - a)"),
        ("the largest of signed numbers", "fmaxf(fabsf(a), fabsf(b))", "fmaxf(a, b)"),
        ("a scale too large by 2", "up = TOP - exponent;", "up = TOP + 2 - exponent;"),
    ),
]  # fmt: skip
