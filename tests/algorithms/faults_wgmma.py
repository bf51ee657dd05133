"""Planted faults of implicit_gemm_wgmma, which a GPU must notice, as the emulator has no wgmma: see faults.py.

None of them lets a block wait for ever.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

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
# More tiles than two for each multiprocessor.
MANY = replace(PATCHES, problem="n40c64h14w13_k72r3s3_p1_f16_nhwc")

WGMMA_FAULTS = [
    *of_file("include/device/wgmma_tiles.cuh", PATCHES,
        ("the next tap's pixels", "tap % S * DILATION_W) * ROW_BYTES : 0", "tap % S * DILATION_W + 1) * ROW_BYTES : 0"),
        ("taps as if not dilated", "tap % S * DILATION_W) * ROW_BYTES : 0", "tap % S) * ROW_BYTES : 0"),
        ("rows of a patch as if it were narrower", "PIXEL_PITCH = PATCH ? PATCH_W * ROW_BYTES",
         "PIXEL_PITCH = PATCH ? EIGHT_ROWS"),
        ("the first slice of filters twice", "step / TAPS * ROW_CHANNELS, step % TAPS, k,", "0, step % TAPS, k,"),
        ("one tap of the filters for all", "step / TAPS * ROW_CHANNELS, step % TAPS, k,",
         "step / TAPS * ROW_CHANNELS, 0, k,"),
        ("the first filters for every tile", "step % TAPS, k, 0,", "step % TAPS, 0, 0,"),
        ("the residual of the tile's first row", "at.p + pixel / TILE_W", "at.p"),
        ("every tile from the first column on", "q = number - row * columns.by;", "q = 0;", STRIDED),
    ),
    *of_file("implicit_gemm/wgmma.cu", PATCHES,
        ("the first slice of channels twice", "c = (PATCH ? i : i / TAPS) * ROW_CHANNELS", "c = 0"),
        ("16 channels of each row alone", "of_filters + PIECE * i, of_pixels + PIECE * i", "of_filters, of_pixels"),
        ("no padding above", "h = at.p * STRIDE_H - conv.top", "h = at.p * STRIDE_H"),
        ("no padding on the left", "w = at.q * STRIDE_W - conv.left", "w = at.q * STRIDE_W"),
        ("the neighbour's bias", "finished(conv, out.n, k[i], out.p, out.q, sums[i])",
         "finished(conv, out.n, k[i] ^ 1, out.p, out.q, sums[i])"),
        ("pieces of a result in plain order", "(piece ^ pixel % 8) * 16", "piece * 16"),
        ("pairs of a result the wrong way round", "narrow_pair<out_t>(first, second)",
         "narrow_pair<out_t>(second, first)",
         replace(PATCHES, problem="n1c64h13w11_k64r3s3_p1_f16_nhwc")),
        ("the first picture for all", "args.pixels, c, w, h, at.n, there);", "args.pixels, c, w, h, 0, there);"),
        ("sums that go on from tile to tile", "step | i);\n                        else",
         "1);\n                        else", MANY),
        ("the upper rows of pixels twice", "row * 8 * PIXEL_PITCH", "0", PIXELS),
        ("the first tap's pixels for all", "tap % S * DILATION_W,\n", "0,\n", PIXELS),
        ("results of the upper rows at those of the lower", "pixel = FILTERS_ON_M ? 0 : 64 * row", "pixel = 0", PIXELS),
        ("filters of the first 64 of a box for all", "64 * (FILTERS_ON_M ? row : i)", "0",
         replace(PIXELS, config=replace(PIXELS.config, columns=128))),
        ("a stride that is not taken", "w = at.q * STRIDE_W - conv.left", "w = at.q - conv.left", STRIDED),
    ),
    *of_file("include/device/wgmma.cuh", PATCHES,
        ("no swizzle", "SWIZZLE_128 = 1ull << 62", "SWIZZLE_128 = 0ull"),
        ("addresses cut off", "& 0x3fff;", "& 0x3ff;"),
    ),
]  # fmt: skip
