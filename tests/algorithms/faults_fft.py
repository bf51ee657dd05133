"""Planted faults of the FFT's kernels: see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.fft.device import FftConfig

# Several channels and filters, tiles that do not divide the output.
PLAIN, STRIDED = "n2c3h9w37_k4r3s3_p1_f32_nchw", "n2c3h17w37_k4r3s3_st2_p1_f32_nchw"
GROUPED, TALL_FILTER = "n1c4h9w37_k4r3s3_p1_g2_f32_nchw", "n1c2h9w37_k3r3s2_p1_f32_nchw"

# All tiles of all groups in a chunk; a chunk for each tile of each group; pixels of several channels.
FFT = Run("fft", PLAIN, FftConfig(8, 12, 1))
FFT_CHUNKS = replace(FFT, problem="n2c4h9w37_k6r3s3_p1_g2_f32_nchw", config=FftConfig(8, 12, 0))
FFT_NEAR = replace(FFT, problem="n2c33h6w30_k34r3s3_p1_f32_nhwc")

FFT_FAULTS = [
    *of_file("fft/gather.cu", FFT,
        ("stride 1 for stride 2", "corner.q * STRIDE_W", "corner.q", replace(FFT, problem=STRIDED)),
        ("rows for columns", "corner.p * STRIDE_H - conv.top + row", "corner.q * STRIDE_H - conv.top + row"),
        ("padding left out", "- conv.left + column", "+ column"),
        ("the first group's channels for all", "args.tiles.channel + c", "c", FFT_CHUNKS),
        ("numbers of the next row", "&& column < tiles.pitch)", ")"),
        ("numbers of the next channel", "row < tiles.size_h && column", "column"),
        ("channels of the next tile", "if (at < BOX && c < tiles.channels &&", "if (at < BOX &&", FFT_NEAR),
        ("no barrier before the box is turned", "__syncthreads();", "", FFT_NEAR),
        ("the box not turned", "values[e] = turned[at / COLUMNS][at % COLUMNS];", ";", FFT_NEAR),
    ),
    *of_file("fft/filter.cu", FFT,
        ("filter not flipped", "r = R - 1 - r;", "", replace(FFT, problem=PLAIN.replace("_f32", "_flip_f32"))),
        ("not divided by the points", "value * args.scale", "value"),
        ("rows repeated in the dilation's holes", "r * DILATION_H == i &&", "",
         replace(FFT, problem="n1c2h9w37_k3r3s3_p2_d2_f32_nchw")),
        ("taps below the last", "r < R && s < S &&", "s < S &&"),
        ("transposed filter", "r * args.strides[2] + s * args.strides[3]", "s * args.strides[2] + r * args.strides[3]",
         replace(FFT, problem=TALL_FILTER)),
        ("one filter for all outputs", "k = plane / C_GROUP", "k = 0"),
        ("one filter channel for all channels", "c = plane % C_GROUP", "c = 0"),
        ("no zeros round the filter", "acc_t value = 0;", "acc_t value;"),
    ),
    *of_file("fft/multiply.cu", FFT,
        ("not conjugated", "multiply_add(a.im, b.im, sum.re)", "multiply_add(-a.im, b.im, sum.re)"),
        ("the first channel alone", "c < C_GROUP; c++", "c < 1; c++"),
        ("one filter for all outputs", "min(k0 + k, K_GROUP - 1)", "0"),
        ("the first group's filters for all", "(group * K_GROUP + min", "(min", replace(FFT, problem=GROUPED)),
        ("the first group's channels for all", "args.groups + group) * (C_GROUP", "args.groups) * (C_GROUP",
         replace(FFT, problem=GROUPED)),
        ("one tile's spectra for all", "min(i0 + t, args.count - 1)", "i0"),
        ("uninitialised accumulators", "sums[TILE_T][TILE_K] = {};", "sums[TILE_T][TILE_K];"),
        ("tiles beyond the last", "i0 + t < args.count && ", "", replace(FFT, problem="n1c3h9w47_k4r3s3_p1_f32_nchw")),
        ("outputs beyond the last", " && k0 + k < K_GROUP)", ")", replace(FFT, problem="n2c3h9w37_k5r3s3_p1_f32_nchw")),
        ("frequencies of the next spectrum", "if (f >= args.frequencies) return;", ""),
    ),
    *of_file("fft/scatter.cu", FFT,
        ("stride 1 for stride 2", "[column * STRIDE_W]", "[column]", replace(FFT, problem=STRIDED)),
        ("stride 1 for stride 2 down", "row * STRIDE_H", "row", replace(FFT, problem=STRIDED)),
        ("no check at the last row", "min(tiles.tile_p, conv.P - corner.p)", "tiles.tile_p"),
        ("no check at the ragged edge", "min(tiles.tile_q, conv.Q - corner.q)", "tiles.tile_q"),
        ("the first group's outputs for all", "tiles.channel + c", "c", FFT_CHUNKS),
        ("one picture for all", "finish(conv, corner.n", "finish(conv, 0"),
        ("no barrier before the box is turned", "__syncthreads();", "", FFT_NEAR),
        ("outputs of channels beyond the last", "if (at < BOX && c < tiles.channels &&", "if (at < BOX &&", FFT_NEAR),
    ),
    *of_file("include/device/tiles.cuh", FFT,
        ("rows for columns", "tiles.down) * tiles.tile_p", "tiles.down) * tiles.tile_q"),
        ("every chunk the first", "tile = tiles.first + i", "tile = i", FFT_CHUNKS),
        ("one channel for all", "* tiles.channels + c)", "* tiles.channels)"),
        ("the first box of every tile", "part = blockIdx.x - group * (across * down)", "part = 0",
         replace(FFT, problem="n1c2h60w40_k2r3s3_p1_f32_nchw", config=FftConfig(40, 44, 1))),
    ),
]  # fmt: skip
