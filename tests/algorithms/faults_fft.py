"""Planted faults of the FFT's kernels: see faults.py."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.fft.device import FftConfig
from convforge.algorithms.fft.fused import FusedConfig

# Several channels and filters, tiles that do not divide the output.
PLAIN, STRIDED = "n2c3h9w37_k4r3s3_p1_f32_nchw", "n2c3h17w37_k4r3s3_st2_p1_f32_nchw"
GROUPED, TALL_FILTER = "n1c4h9w37_k4r3s3_p1_g2_f32_nchw", "n1c2h9w37_k3r3s2_p1_f32_nchw"

# All tiles of all groups in a chunk; a chunk for each tile of each group; pixels of several channels.
FFT = Run("fft", PLAIN, FftConfig(8, 12, 1))
FFT_CHUNKS = replace(FFT, problem="n2c4h9w37_k6r3s3_p1_g2_f32_nchw", config=FftConfig(8, 12, 0))
FFT_NEAR = replace(FFT, problem="n2c33h6w30_k34r3s3_p1_f32_nhwc")

# Pairs of tiles, an odd one at the end; one pair of all.
FUSED = Run("fft_fused", "n2c3h21w70_k6r5s4_p2_g3_f32_nchw", FusedConfig(32, 64))
FUSED_STRIDED = replace(FUSED, problem="n1c3h41w50_k3r5s4_p2_st2x3_g3_f32_nhwc")

# Outputs whose windows lie in the padding, on every side, and between pixels of an image narrower than the dilation. Of
# faults that leave some of them out, which is within a transform's tolerance, test_outside.py knows.
OUTSIDE = replace(FFT, problem="n2c2h4w6_k4r3s3_p5x4x7x6_g2_f32_nchw", config=FftConfig(12, 16, 1))
OUTSIDE_STEPS = replace(OUTSIDE, problem="n1c2h5w7_k4r2s3_p16_st2x3_d6x8_g2_f32_nchw", config=FftConfig(16, 32, 1))

FFT_FAULTS = [
    *of_file("host/outside.cu", OUTSIDE,
        ("a window too few before the image", "skipped < TAPS &&", "skipped < TAPS - 1 &&"),
        ("a window too few behind the image", "< size;", "< size - 1;"),
        ("height for width", "conv.left, conv.W)", "conv.left, conv.H)"),
        ("padding of rows for that of columns", "cfg::STRIDE_W - conv.left", "cfg::STRIDE_W - conv.top"),
        ("stride 1 for stride 2", "p * cfg::STRIDE_H", "p", OUTSIDE_STEPS),
    ),
    *of_file("fft/fused.cu", FUSED,
        ("no barrier before an outer stage", "__syncthreads();  // the stage before this outer", "// outer"),
        ("no barrier before an inner stage", "__syncthreads();  // the stage before this inner", "// inner"),
        ("no barrier before the products", "__syncthreads();  // the outer stage of rows", "// the outer stage"),
        ("no barrier before the outputs", "__syncthreads();  // the inner stage of columns", "// the inner stage"),
        ("no barrier before a spectrum is stored", "__syncthreads();  // the spectrum", "// the spectrum"),
        ("numbers not turned", "BACK ? v[a] : v[a] * twiddles[n * a];", "v[a];"),
        ("numbers not turned back", "BACK ? v[b] * conjugate(twiddles[k * b]) : v[b];", "v[b];"),
        ("rows turned as the first", "v[a] * twiddles[row * a]", "v[a]"),
        ("products not turned back", "v[b] * conjugate(twiddles[i * b])", "v[b]"),
        ("not conjugated", "conjugate(spectrum[b * SIZE])", "spectrum[b * SIZE]"),
        ("spectrum not transposed", "item % SIZE * PITCH + item / SIZE]", "item / SIZE * PITCH + item % SIZE]"),
        ("one filter for all outputs", "static_cast<long long>(k) * SIZE", "static_cast<long long>(0) * SIZE"),
        ("not divided by the points", "value.re / (SIZE * SIZE)", "value.re"),
        ("every output its own channel", "c = k / cfg::K_GROUP", "c = k % 3"),
        ("the first tile of a pair twice", "2 * pair + 1)", "2 * pair)"),
        ("one part of a pair for both", "row + a * cfg::B, column, v[a].im", "row + a * cfg::B, column, v[a].re"),
        ("one picture for all", "pixel(conv, n, c,", "pixel(conv, 0, c,"),
        ("columns for rows", "(tile - row * args.across) * args.tile_q", "row * args.tile_q"),
        ("stride 1 for stride 2", "corner.q * cfg::STRIDE_W", "corner.q", FUSED_STRIDED),
        ("outputs between the strided ones", "row % cfg::STRIDE_H != 0 || column", "column", FUSED_STRIDED),
        ("outputs of what wrapped round", "i < args.tile_p && j < args.tile_q &&", ""),
        ("no check at the last row", "p < args.conv.P && q < args.conv.Q", "q < args.conv.Q",
         replace(FUSED, problem="n1c3h41w20_k3r5s4_p2_g3_f32_nchw")),
        ("no check at the ragged edge", "p < args.conv.P && q < args.conv.Q", "p < args.conv.P"),
        ("columns repeated in the dilation's holes", "s * cfg::DILATION_W == column", "true",
         replace(FUSED, problem="n1c2h21w40_k2r3s4_p2_d2_g2_f32_nchw")),
    ),
    *of_file("device/fft.cuh", FUSED,
        ("turned the wrong way", "s = BACK ? -cosine", "s = BACK ? cosine"),
        ("a quarter of a turn the wrong way", "{s * z.im, -s * z.re}", "{-s * z.im, s * z.re}"),
        ("halves in each other's place", "v[i + N / 2] = even[i] - other;", "v[i + N / 2] = other - even[i];"),
        ("an eighth of a turn inexact", "0.70710678118654752440", "0.707"),
        ("a sixteenth of a turn inexact", "0.92387953251128675613", "0.9238",
         replace(FUSED, config=FusedConfig(128, 512))),
        ("not conjugated at all", "return {a.re, -a.im};", "return a;"),
    ),
    *of_file("fft/gather.cu", FFT,
        ("stride 1 for stride 2", "corner.q * cfg::STRIDE_W", "corner.q", replace(FFT, problem=STRIDED)),
        ("rows for columns", "corner.p * cfg::STRIDE_H - conv.top + row", "corner.q * cfg::STRIDE_H - conv.top + row"),
        ("padding left out", "- conv.left + column", "+ column"),
        ("the first group's channels for all", "args.tiles.channel + c", "c", FFT_CHUNKS),
        ("numbers of the next row", "&& column < tiles.pitch)", ")"),
        ("numbers of the next channel", "row < tiles.size_h && column", "column"),
        ("channels of the next tile", "if (at < BOX && c < tiles.channels &&", "if (at < BOX &&", FFT_NEAR),
        ("no barrier before the box is turned", "__syncthreads();", "", FFT_NEAR),
        ("the box not turned", "values[e] = transposed[at / COLUMNS][at % COLUMNS];", ";", FFT_NEAR),
    ),
    *of_file("fft/filter.cu", FFT,
        ("filter not flipped", "r = cfg::R - 1 - r;", "", replace(FFT, problem=PLAIN.replace("_f32", "_flip_f32"))),
        ("not divided by the points", "value * args.scale", "value"),
        ("rows repeated in the dilation's holes", "r * cfg::DILATION_H == i &&", "",
         replace(FFT, problem="n1c2h9w37_k3r3s3_p2_d2_f32_nchw")),
        ("taps below the last", "r < cfg::R && s < cfg::S &&", "s < cfg::S &&"),
        ("transposed filter", "r * args.strides[2] + s * args.strides[3]", "s * args.strides[2] + r * args.strides[3]",
         replace(FFT, problem=TALL_FILTER)),
        ("one filter for all outputs", "k = plane / cfg::C_GROUP", "k = 0"),
        ("one filter channel for all channels", "c = plane % cfg::C_GROUP", "c = 0"),
        ("no zeros round the filter", "acc_t value = 0;", "acc_t value;"),
    ),
    *of_file("fft/multiply.cu", FFT,
        ("not conjugated", "multiply_add(a.im, b.im, sum.re)", "multiply_add(-a.im, b.im, sum.re)"),
        ("the first channel alone", "c < cfg::C_GROUP; c++", "c < 1; c++"),
        ("one filter for all outputs", "min(k0 + k, cfg::K_GROUP - 1)", "0"),
        ("the first group's filters for all", "(group * cfg::K_GROUP + min", "(min", replace(FFT, problem=GROUPED)),
        ("the first group's channels for all", "args.groups + group) * (cfg::C_GROUP", "args.groups) * (cfg::C_GROUP",
         replace(FFT, problem=GROUPED)),
        ("one tile's spectra for all", "min(i0 + t, args.count - 1)", "i0"),
        ("uninitialised accumulators", "sums[cfg::TILE_T][cfg::TILE_K] = {};", "sums[cfg::TILE_T][cfg::TILE_K];"),
        ("tiles beyond the last", "i0 + t < args.count && ", "", replace(FFT, problem="n1c3h9w47_k4r3s3_p1_f32_nchw")),
        ("outputs beyond the last", " && k0 + k < cfg::K_GROUP)", ")",
         replace(FFT, problem="n2c3h9w37_k5r3s3_p1_f32_nchw")),
        ("frequencies of the next spectrum", "if (f >= args.frequencies) return;", ""),
    ),
    *of_file("fft/scatter.cu", FFT,
        ("stride 1 for stride 2", "[column * cfg::STRIDE_W]", "[column]", replace(FFT, problem=STRIDED)),
        ("stride 1 for stride 2 down", "row * cfg::STRIDE_H", "row", replace(FFT, problem=STRIDED)),
        ("no check at the last row", "min(tiles.tile_p, conv.P - corner.p)", "tiles.tile_p"),
        ("no check at the ragged edge", "min(tiles.tile_q, conv.Q - corner.q)", "tiles.tile_q"),
        ("the first group's outputs for all", "tiles.channel + c", "c", FFT_CHUNKS),
        ("one picture for all", "store_output(conv, corner.n", "store_output(conv, 0"),
        ("no barrier before the box is turned", "__syncthreads();", "", FFT_NEAR),
        ("outputs of channels beyond the last", "if (at < BOX && c < tiles.channels &&", "if (at < BOX &&", FFT_NEAR),
    ),
    *of_file("device/fft.cuh", FFT,
        ("rows for columns", "tiles.down) * tiles.tile_p", "tiles.down) * tiles.tile_q"),
        ("every chunk the first", "tile = tiles.first + i", "tile = i", FFT_CHUNKS),
        ("one channel for all", "* tiles.channels + c)", "* tiles.channels)"),
        ("the first box of every tile", "part = blockIdx.x - group * (across * down)", "part = 0",
         replace(FFT, problem="n1c2h60w40_k2r3s3_p1_f32_nchw", config=FftConfig(40, 44, 1))),
    ),
]  # fmt: skip
