"""Planted faults of implicit_gemm_int8, implicit_gemm_fp8 and implicit_gemm_fp8_fast.

See faults.py, and faults_wgmma.py of the same kernel.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.implicit_gemm.wgmma_tiles import WgmmaConfig

# Filters as rows of a product, two tiles of them; windows cut off at all sides; results that the TMA stores.
FILTERS = Run(
    "implicit_gemm_int8", "n2c144h13w12_k80r3s3_p1_u8-i8-i8-i32_nhwc_+zero:9+scale:channel+bias",
    WgmmaConfig(True, True, True, 1, 64, False, 2, 3),
)  # fmt: skip
# Pixels as rows, with boxes of 32 filters; and with a relu.
PIXELS = replace(FILTERS, config=WgmmaConfig(False, False, False, 1, 32, False, 3, 3))
RELU = replace(PIXELS, problem="n2c144h13w12_k80r3s3_p1_u8-i8-i8-i32_nhwc_+scale:channel+bias+relu")
POINTS = replace(FILTERS, problem="n2c144h8w8_k80r1s1_u8-i8-u8-i32_nhwc_+zero:9+scale:tensor")
STRIDED = replace(PIXELS, problem="n1c48h14w13_k32r5s3_st2x1_p2_d1x2_u8-u8-i32-i32_nhwc_+zero:200",
                  config=replace(PIXELS.config, scattered=True))  # fmt: skip
SHARED = replace(STRIDED, problem="n1c400h5w5_k32r1s1_u8-i8-i32-i32_nhwc_+zero:3",
                 config=replace(STRIDED.config, split_k=2))  # fmt: skip
# Weights of int16, in two passes over two slices.
TWICE = replace(PIXELS, problem="n2c144h9w8_k48r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:9+scale:channel")
RESIDUAL = replace(PIXELS, problem="n1c32h9w9_k32r3s3_p1_i8-i8-i8-i32_nhwc_+scale:channel+residual")
FLOATS = Run("implicit_gemm_fp8", "n1c272h9w9_k72r3s3_p1_f8e4m3-f8e5m2-f32-f32_nhwc_math-fp8",
             WgmmaConfig(False, True, False, 1, 64, False, 3, 3, scattered=True))  # fmt: skip
FAST = replace(FLOATS, method="implicit_gemm_fp8_fast", problem=FLOATS.problem.replace("fp8", "fp8fast"))

BYTES_FAULTS = [
    *of_file("implicit_gemm/wgmma.cu", FILTERS,
        ("every share subtracts the zero point", "cfg::ZERO_POINT && (cfg::SPLIT_K == 1 || at.share == 0)",
         "cfg::ZERO_POINT", SHARED),
        ("sums that are not negated between the passes", "slice == SLICES) negate(sums);", "slice == SLICES) ;", TWICE),
        ("sums negated a slice late", "slice == SLICES) negate(sums);", "slice == SLICES + 1) negate(sums);", TWICE),
        ("sums of a row that are not added", "sums[t][e] += sums_of_row[t][e];", "sums[t][e] = sums_of_row[t][e];",
         FLOATS),
        ("sums of rows that go on", "multiply_row(sums_of_row, pixel, filter, share, false);",
         "multiply_row(sums_of_row, pixel, filter, share, step > 0);", FLOATS),
        ("the sums of the last row alone", "multiply_row(sums, pixel, filter, share, step > 0);",
         "multiply_row(sums, pixel, filter, share, false);", FAST),
    ),
    *of_file("device/wgmma_tiles.cuh", TWICE,
        ("weights of the first pass in both", "cfg::PASSES == 1 ? 0 : slice / SLICES", "0"),
        ("channels beyond the last in the second pass", "cfg::PASSES == 1 ? slice : slice % SLICES", "slice"),
    ),
    *of_file("device/wgmma_results.cuh", FILTERS,
        ("the first filter's factor for all", "return memory->factors[warpgroup][filter];",
         "return memory->factors[warpgroup][0];"),
        ("the first filters' factors for every tile", "factor.bias = conv.bias[at.k + i];",
         "factor.bias = conv.bias[i];"),
        ("one scale for all filters", "conv.scale[(at.k + i) * conv.scale_channels]", "conv.scale[0]"),
        ("the upper row's sums of taps for both", "within[half] = of_filters[half][inside];",
         "within[half] = of_filters[0][inside];", POINTS),
        ("one class for both rows, of points alone", "sums[e] -= within[e / 2 % 2];", "sums[e] -= within[0];", POINTS),
        ("borders as if they were inside", "from == inside ?", "true ?"),
        ("the same pixel for both columns", "from = pixels.at[e % 2];", "from = pixels.at[0];"),
        ("the upper row's class for both", "0 : classes[first + 8 * half]", "0 : classes[first]", PIXELS),
        ("the first sums of taps for all filters", "classes[first + 8 * half]) + at.k + column",
         "classes[first + 8 * half]) + column", PIXELS),
        ("the classes of the first pixels alone", "i < BLOCK_PIXELS; i += WARPGROUP) {\n            const Output",
         "i < min(BLOCK_PIXELS, 32); i += WARPGROUP) {\n            const Output"),
        ("no relu", "values[i] = max(values[i], finish.low);", ";", RELU),
        ("the neighbour's residual", "output_value(args.conv, out.n, k, out.p, out.q, sums[i], largest)",
         "output_value(args.conv, out.n, k, out.p, out.q ? out.q - 1 : 0, sums[i], largest)", RESIDUAL),
        ("pieces of bytes in plain order", "piece_at(to, warp) * 16 + byte", "warp * 16 + byte"),
        ("pieces of a pixel in plain order", "piece_at(to, piece) * 16 + byte", "piece % PIECES * 16 + byte", PIXELS),
        ("words of the lower filters at those of the upper", "byte = lane / 8 % 2 * 8 + lane / 16 * 4;",
         "byte = lane / 16 * 4;"),
        ("words of both lanes at one place", "byte = lane % 2 * 8 + lane / 2 % 2 * 4;", "byte = lane / 2 % 2 * 4;",
         PIXELS),
    ),
    *of_file("device/bytes.cuh", FILTERS,
        ("bytes of four lanes as they are", "threadIdx.x / 8 % 2 ? 0x3276 : 0x5410", "0x3210"),
        ("bytes of two lanes as they are", "threadIdx.x / 4 % 2 ? 0x3715 : 0x6240", "0x3210"),
        ("halves of words as they are", "threadIdx.x % 2 ? 0x3276 : 0x5410", "0x3210", PIXELS),
    ),
    *of_file("device/zero_point.cuh", FILTERS,
        ("classes of rows alone", "(row * zero.across + column) * zero.pitch", "row * zero.across * zero.pitch"),
        ("classes of columns alone", "(row * zero.across + column) * zero.pitch", "column * zero.pitch"),
        ("the last rows as those before", "+ max(p - zero.last_h, 0)", ""),
        ("the last columns as those before", "+ max(q - zero.last_w, 0)", ""),
        ("the first columns as if they were inside", "column = min(q, zero.first_w) +", "column = zero.first_w +"),
    ),
    *of_file("implicit_gemm/tap_sums.cu", STRIDED,
        ("the first filter for all", "args.w + k * args.strides[0]", "args.w"),
        ("the first tap of a row for all", "+ seen % cfg::S * args.strides[3]", ""),
        ("the first 32 channels alone", "c < args.channels; c += 32", "c < min(args.channels, 32); c += 32"),
        ("the last lane left out", "step > 0; step /= 2", "step > 1; step /= 2"),
        ("a stride that is not taken", "output * axis.step;", "output;"),
        ("taps above as if they were not dilated", "(-start + axis.dilation - 1) / axis.dilation : 0", "-start : 0"),
        ("taps below the image", "range.end = room", "range.first += 0 * room"),
        ("zero point left out", "= args.zero * sum;", "= sum;"),
    ),
]  # fmt: skip
