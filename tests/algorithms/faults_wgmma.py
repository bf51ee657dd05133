"""Planted faults of implicit_gemm_wgmma: see faults.py. A GPU must notice them too.

So none of them lets a block wait for ever. Those of pixel_rows, sum_shares and pack_channels are noticed by what
these make.
gemm_tf32 runs the same kernels.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import SYNC, Run, of_file

from convforge.algorithms.implicit_gemm.wgmma_tiles import WgmmaConfig

# Ragged in every way: 13 x 11 outputs of tiles 8 wide, two slices of channels, two tiles of filters.
PATCHES = Run(
    "implicit_gemm_wgmma", "n2c72h13w12_k72r3s2_p1_d1x2_f16_nhwc_+scale:channel+bias+residual+relu",
    WgmmaConfig(True, True, True, 1, 64, False, 2, 3),
)  # fmt: skip
PIXELS = replace(PATCHES, config=WgmmaConfig(False, False, False, 1, 64, False, 3, 3))
STRIDED = Run(
    "implicit_gemm_wgmma", "n2c72h14w13_k72r3s3_st2_p1_f16_nhwc", WgmmaConfig(False, True, True, 1, 64, False, 2, 2)
)
PHASES = replace(STRIDED, config=WgmmaConfig(True, True, True, 1, 64, False, 2, 3))
# Groups whose tiles are not whole; pictures that are turned, results that threads store; TF32.
GROUPS = Run("implicit_gemm_wgmma", "n2c64h13w11_k80r3s3_p1_g2_f16_nhwc_+scale:channel+bias",
             replace(PATCHES.config, scattered=True))  # fmt: skip
TURNED = Run("implicit_gemm_wgmma", "n2c60h13w11_k72r3s2_p1_reflect_g2_f16_nchw_+scale:channel+bias+residual+relu",
             replace(PATCHES.config, repacked=True, scattered=True))  # fmt: skip
FOUR = replace(TURNED, problem="n2c64h12w12_k72r3s3_p1_f16_nchw")
TWO = replace(TURNED, problem="n2c64h12w14_k72r3s3_p1_f16_nchw")
IN_NHWC = Run("implicit_gemm_wgmma", "n2c70h13w11_k70r3s2_p1_constant9.0_f16_nhwc_+bias",
              replace(PIXELS.config, repacked=True, scattered=True))  # fmt: skip
TF32 = Run("implicit_gemm_tf32", "n2c40h13w12_k72r3s2_p1_f32_nhwc_math-tf32",
           replace(PIXELS.config, scattered=True))  # fmt: skip
PAIRS = replace(PATCHES, config=replace(PATCHES.config, pairs="filters"))
PAIRED = replace(PIXELS, config=replace(PIXELS.config, pairs="pixels"))
# More tiles than two for each SM.
MANY = replace(PATCHES, problem="n40c64h14w13_k72r3s3_p1_f16_nhwc")

WGMMA_FAULTS = [
    *of_file("device/wgmma_tiles.cuh", PATCHES,
        ("the next tap's pixels", "+ right / cfg::STRIDE_W) * cfg::ROW_BYTES",
         "+ right / cfg::STRIDE_W + 1) * cfg::ROW_BYTES"),
        ("taps as if not dilated", "right = tap % cfg::S * cfg::DILATION_W;", "right = tap % cfg::S;"),
        ("rows of a patch as if it were narrower", "PIXEL_PITCH = cfg::PATCH ? PATCH_W * cfg::ROW_BYTES",
         "PIXEL_PITCH = cfg::PATCH ? EIGHT_ROWS"),
        ("the first slice of filters twice", "+ channel_of(step / TAPS), tap", ", tap"),
        ("one tap of the filters for all", "tap = step % TAPS;", "tap = 0;"),
        ("the first filters for every tile", "channel, tap, k, plane,", "channel, tap, 0, plane,"),
        ("both blocks of a pair bring to the same place", "+ half * FILTER_BYTES / 2, map", ", map", PAIRS),
        ("both blocks of a pair bring the same filters", "half * BLOCK_FILTERS / 2 : 0", "0 : 0", PAIRS),
        ("both blocks of a pair take the same pixels", "t * OF_CLUSTER + tile % OF_CLUSTER", "t * OF_CLUSTER", PAIRS),
        ("both blocks of a pair take the same filters", "k += tile % OF_CLUSTER * BLOCK_FILTERS", "k += 0", PAIRED),
        ("both blocks of a pair bring the same pixels", "at.first + cluster_rank() * BLOCK_PIXELS / 2", "at.first",
         PAIRED),
        ("both blocks of a pair bring pixels to one place", "to + cluster_rank() * BLOCK_PIXELS", "to + 0", PAIRED),
        ("the residual of the tile's first row", "at.p + pixel / TILE_W", "at.p"),
        ("the first group's filters for all", "k = group * cfg::K_GROUP + (i", "k = (i", GROUPS),
        ("channels of the first group for all", "c = group * cfg::C_GROUP + share", "c = share", GROUPS),
        ("tiles of a group counted on in the next", "(i - group * OF_GROUP) * CLUSTER_FILTERS", "i * CLUSTER_FILTERS",
         GROUPS),
        ("the neighbour's bias", "pairs[r].at[i] = output_value(conv, out.n, k, out.p",
         "pairs[r].at[i] = output_value(conv, out.n, k ^ 1, out.p", TURNED),
        ("results of the upper rows at those of the lower", "k = at.k + row + 8 * half;", "k = at.k + row;", TURNED),
        ("pixels of the neighbouring lane left out", "odd ? first : second, 1)", "odd ? first : second, 0)", FOUR),
        ("four pixels one row too high", "to[AT_ONCE - 1] - 2 : to[0]", "to[0] - 2 : to[0]", FOUR),
        ("a pair of pixels one too far", "*>(to[r]) = pairs[r]", "*>(to[r] + 2) = pairs[r]", TWO),
        ("the second of two pixels left out", "if (next.there) results", "if (false) results", TURNED),
        ("the neighbour's pixel", "sum = sums[4 * (j + r) + 2 * half + i]", "sum = sums[4 * (j + r) + 2 * half]",
         TURNED),
        ("a pair of filters one too far", "*>(here) = pair;", "*>(here + 2) = pair;", IN_NHWC),
        ("the second of two filters left out", "here[of_k] = pair.at[1];", "(void)of_k;",
         replace(TURNED, config=IN_NHWC.config)),
        ("slices of floats as if they were of 16 bits", "ROW_CHANNELS = cfg::ROW_BYTES / cfg::NUMBER_BYTES",
         "ROW_CHANNELS = 64",
         TF32),
        ("phases of a row alone", "down % cfg::STRIDE_H * PHASES_W", "0", PHASES),
        ("taps in a phase as far apart as in the picture", "PHASE_BYTES + (down / cfg::STRIDE_H", "PHASE_BYTES + (down",
         PHASES),
        ("no padding above", "p * cfg::STRIDE_H - conv.top", "p * cfg::STRIDE_H"),
        ("no padding on the left", "{q * cfg::STRIDE_W - conv.left", "{q * cfg::STRIDE_W"),
        ("the first tap's pixels for all", "right = tap % cfg::S * cfg::DILATION_W, down = tap / cfg::S",
         "right = 0, down = tap / cfg::S",
         PIXELS),
        ("a stride that is not taken", "{q * cfg::STRIDE_W - conv.left", "{q - conv.left", STRIDED),
        ("every tile from the first column on", "q = number - row * columns.by;", "q = 0;", STRIDED),
    ),
    *of_file("implicit_gemm/wgmma.cu", PATCHES,
        ("the first slice of channels twice", "c = at.c + channel_of(cfg::PATCH ? i : i / TAPS)", "c = at.c"),
        ("16 channels of each row alone", "PIXEL_PITCH) + PIECES * i", "PIXEL_PITCH)"),
        ("the first picture for all", "from.h + i / PHASES_W, from.n, there);", "from.h + i / PHASES_W, 0, there);"),
        ("the first column's phase for all", "c, from.w + i % PHASES_W,", "c, from.w,", PHASES),
        ("the first row's phase for all", "from.h + i / PHASES_W, from.n", "from.h, from.n", PHASES),
        ("sums that go on from tile to tile", "of_filters, of_pixels, adds || i > 0", "of_filters, of_pixels, true",
         MANY),
        ("every group's channels those of the first", "c = at.c + channel_of(", "c = channel_of(", GROUPS),
        ("the upper rows of pixels twice", "row * 8 * PIXEL_PITCH", "0", PIXELS),
    ),
    *of_file("device/wgmma_results.cuh", PATCHES,
        ("the neighbour's bias", "epilogue_value(conv, out.n, k[i], out.p, out.q, sums[i], largest)",
         "epilogue_value(conv, out.n, k[i] ^ 1, out.p, out.q, sums[i], largest)"),
        ("pieces of a result in plain order", "cfg::BLOCK_N + pixel) * RESULT_BYTES + piece_at(pixel, piece)",
         "cfg::BLOCK_N + pixel) * RESULT_BYTES + piece"),
        ("pairs of a result the wrong way round", "odd_float(first), odd_float(second)",
         "odd_float(second), odd_float(first)",
         replace(PATCHES, problem="n1c64h13w11_k64r3s3_p1_f16_nhwc")),
        ("pairs of a finished result the wrong way round", "odd_float(values[0]), odd_float(values[1])",
         "odd_float(values[1]), odd_float(values[0])"),
        ("results of the upper rows at those of the lower", "pixel = cfg::FILTERS_ON_M ? 0 : 64 * row", "pixel = 0",
         PIXELS),
        ("filters of the first 64 of a box for all", "64 * row : BOX_FILTERS * i)", "64 * row : 0)",
         replace(PIXELS, config=replace(PIXELS.config, columns=128))),
    ),
    *of_file("device/wgmma.cuh", PATCHES,
        ("no swizzle", "SWIZZLE = (ROW == 128", "SWIZZLE = 0 * (ROW == 128"),
        ("addresses cut off", "& 0x3fff;\n    return at | LEADING", "& 0x3ff;\n    return at | LEADING"),
    ),
]  # fmt: skip

ROWS_FAULTS = [
    *of_file("device/pixels.cuh", TURNED,
        ("the next pixel", "row = pixel / args.width;", "row = (pixel + 1) / args.width;"),
        ("no padding on the left", "row * args.width - args.left", "row * args.width"),
        ("the first group's channels for all", "(group * cfg::C_GROUP + in_group) *", "in_group *"),
        ("the next group's channels behind a group's own", "in_group < cfg::C_GROUP", "true"),
        ("the first picture for all", "offset_of(conv.x_strides, n, 0, h", "offset_of(conv.x_strides, 0, 0, h"),
        ("zeros for what stands outside", "stored<x_t>::of(args.conv.outside)", "x_t{}", IN_NHWC),
    ),
    *of_file("implicit_gemm/pixel_rows.cu", TURNED,
        ("the first square for all", "% args.squares * SIDE", "% args.squares * 0"),
        ("rows turned before all have come", "    __syncthreads();\n", ""),
        ("lines as if they were dense", "+ first + line) * cfg::PITCH", "+ first + line) * cfg::CHANNELS", IN_NHWC),
    ),
]  # fmt: skip

SHARES = Run("implicit_gemm_wgmma", "n2c8h5w7_k12r1s1_f16_nhwc", WgmmaConfig())
SHARES_FAULTS = [
    *of_file("implicit_gemm/sum_shares.cu", SHARES,
        ("the last share left out", "share < cfg::SPLIT_K; share++", "share < cfg::SPLIT_K - 1; share++"),
        ("the second share for all", "static_cast<long long>(share) * args.count", "args.count"),
        ("one filter for all", "first - pixel * cfg::K + i", "first - pixel * cfg::K"),
        ("the first picture for all", "n = row / conv.P;", "n = 0 * row;"),
        ("the first pixel of a row for all", "pixel - row * conv.Q", "0 * pixel"),
        ("the last outputs left out", "first >= args.count", "first >= args.count - 4"),
    ),
]  # fmt: skip

PACKING = Run("implicit_gemm_wgmma", "n1c300h9w9_k3r3s3_f16_nhwc", WgmmaConfig())
PACKING_FAULTS = [
    *of_file("host/pack_channels.cu", PACKING,
        ("the first channels for all", "c0 = blockIdx.x % args.parts * args.channels", "c0 = 0"),
        ("the first filter for all", "k = blockIdx.x / args.parts, c0", "k = 0, c0"),
        ("the last vector left out", "i < whole; i += threads", "i < whole - 1; i += threads"),
        ("what is no whole vector left out", "i < all; i += threads", "i < whole; i += threads"),
        ("written before all have come", f"        {SYNC}\n    }}", "    }"),
        ("taps of a convolution as they are", "args.flip ? taps - 1 - tap : tap", "tap"),
        ("height for width", "seen - row * args.S", "seen - row * args.R"),
        ("nothing behind a tap's channels", "c < room; c += blockDim.x) to[c] = c < count ? part",
         "c < count; c += blockDim.x) to[c] = c < count ? part"),
        ("nothing behind channels that lie apart", "c < room; c += blockDim.x) to[c] = c < count ? at",
         "c < count; c += blockDim.x) to[c] = c < count ? at"),
        ("a tap's channels as if whole", "to += blockDim.y * args.pitch", "to += blockDim.y * args.C"),
    ),
]  # fmt: skip
