"""Planted faults of amax, the largest absolute value of the results: see faults.py. A GPU must notice them too."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.implicit_gemm.mma import ImplicitMmaConfig
from convforge.algorithms.implicit_gemm.wgmma_tiles import WgmmaConfig

# Results that the TMA stores, most of which saturate; that threads store, of negative numbers too; of few tiles, whose
# channels are shared out.
BYTES = Run("implicit_gemm_fp8",
            "n1c80h9w9_k80r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8_+bias+out:0.0625:0+amax:0.5",
            WgmmaConfig(False, True, False, 1, 64, False, 3, 3))  # fmt: skip
HALVES = replace(BYTES, problem="n1c80h9w9_k80r3s3_p1_f8e4m3-f8e5m2-f16-f32_nhwc_math-fp8_+bias+amax")
THREADS = replace(BYTES, problem="n2c48h9w9_k24r3s3_p1_f8e4m3-f8e5m2-f32-f32_nhwc_math-fp8_+bias+clippedrelu:40.0+amax",
                  config=replace(BYTES.config, scattered=True))  # fmt: skip
SHARES = replace(THREADS, problem="n1c400h5w5_k32r1s1_f8e4m3-f8e4m3-f32-f32_nhwc_math-fp8_+amax",
                 config=replace(THREADS.config, split_k=2))  # fmt: skip
WARPS = Run("implicit_gemm_fp8_mma", "n2c32h9w10_k24r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8_+bias+amax",
            ImplicitMmaConfig(32, 32, 64, 16, 32, 3))  # fmt: skip

AMAX_FAULTS = [
    *of_file("device/amax.cuh", BYTES,
        ("negative numbers as if they were the largest", "bits_of(value) & 0x7fffffffu); }", "bits_of(value)); }"),
        ("the first lane alone", "__reduce_max_sync(0xffffffffu, bits)", "bits", HALVES),
        ("the last warp alone", "if (threadIdx.x % 32 == 0)", "if (threadIdx.x / 32 == blockDim.x / 32 - 1)", HALVES),
        ("a scale that is left out", "float_of(most) * args.amax.scale", "float_of(most)"),
    ),
    *of_file("device/epilogue.cuh", BYTES,
        ("amax in units of the result", "    seen(value);\n    return conv.requantization.of_result(value);",
         "    value = conv.requantization.of_result(value);\n    seen(value);\n    return value;"),
        ("amax of saturated results", "return stored<out_t>::of(epilogue_value(conv, n, k, p, q, sum, seen));",
         "const out_t y = stored<out_t>::of(epilogue_value(conv, n, k, p, q, sum));\n"
         "    seen(as<epilogue_t>(y) * 0.0625f);\n    return y;"),
        ("amax before the activation", "    value = activated(value, conv.alpha);\n    seen(value);",
         "    seen(value);\n    value = activated(value, conv.alpha);", THREADS),
    ),
    *of_file("device/wgmma_results.cuh", HALVES,
        ("amax of results outside the output", "(!(cfg::RESIDUAL || HAS_AMAX) || out.there)", "true",
         replace(HALVES, problem="n1c48h8w9_k32r1s9_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8_+amax",
                 config=WgmmaConfig(True, True, True, 1, 64, False, 2, 3))),
    ),
    *of_file("implicit_gemm/wgmma.cu", HALVES,
        ("no amax", "largest.store(args);", ""),
    ),
    *of_file("implicit_gemm/mma.cu", WARPS, ("no amax", "largest.store(args);", "")),
    *of_file("implicit_gemm/sum_shares.cu", SHARES, ("no amax", "largest.store(args);", "")),
    *of_file("implicit_gemm/clear_amax.cu", WARPS, ("amax that is not reset", "*args.largest = 0;", "")),
]  # fmt: skip
