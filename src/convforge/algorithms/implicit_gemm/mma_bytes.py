"""Implicit GEMM of bytes on the tensor cores of any GPU that has them: integers, and 8-bit floats (mma.cu)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, Preparation
from convforge.algorithms.gemm.mma import PRODUCTS, device_refusal
from convforge.algorithms.implicit_gemm import stages
from convforge.algorithms.implicit_gemm.byte_pairs import in_byte_pairs
from convforge.algorithms.implicit_gemm.mma import ImplicitGemmMma, Put
from convforge.algorithms.implicit_gemm.wgmma_bytes import ImplicitGemmFp8, ImplicitGemmInt8, bytes_refusal
from convforge.algorithms.implicit_gemm.zero_point import WithTapSums, ZeroPoint, zero_point_of
from convforge.algorithms.traits import Mark, Rank
from convforge.backends.architecture import Architecture
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

FIRST_FP8 = 89  # first architecture with tensor cores for 8-bit floats
# On these architectures mma of 8-bit floats is compiled to conversions and products of float16.
CONVERTED = range(90, 120)


class _OfBytes(ImplicitGemmMma):
    """The kernel of mma.cu for types of one byte; x and w may have different ones."""

    results: ClassVar[tuple[str, ...]]  # types of the result
    products = 2 * PRODUCTS
    lines = ("#define FACTORS_ARE_BYTES",)

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        passes = stages.passes_of(problem)
        return bytes_refusal(problem, self.types, self.results, passes) or device_refusal(facts)


class ImplicitGemmInt8Mma(_OfBytes):
    """Implicit GEMM of 8-bit integers on tensor cores, with exact sums in int32.

    The kernel multiplies stored pixels, and zeros outside the image. From each sum it subtracts the zero point of x
    times the weights of the taps inside the image, whose sums are prepared with the weights. Weights of int16 from -255
    to 255, those of 8 bits minus a zero point, are multiplied in two passes. See PTX ISA, mma.m16n8k32.
    """

    name = "implicit_gemm_int8_mma"
    summary = "implicit GEMM of 8-bit integers on tensor cores, with exact sums; sm_80"
    since = "implicit_gemm_mma"
    look = Mark("moss", "circle")
    types = tuple(ImplicitGemmInt8.types)
    results = ImplicitGemmInt8.results
    why = "8-bit integers and many channels: tensor cores, whose factors warps hold"
    rank = Rank.BYTES

    def fields(self, problem: Conv2dProblem, loaded: Conv2dProblem) -> tuple[Mapping[str, Any], Put]:
        if not problem.epilogue.x_zero_point:
            return super().fields(problem, loaded)

        def put(args: Any, buffers: Buffers) -> None:
            args.zero = zero_point_of(_with_border(loaded), buffers)

        return {"zero": ZeroPoint}, put

    def prepared(self, problem: Conv2dProblem, loaded: Conv2dProblem, runtime: Runtime) -> Preparation:
        packer = super().prepared
        packed = in_byte_pairs(problem, runtime, lambda both: packer(both, loaded, runtime))
        if not problem.epilogue.x_zero_point:
            return packed
        return WithTapSums(packed, problem, _with_border(loaded), runtime)


class ImplicitGemmFp8Mma(_OfBytes):
    """Implicit GEMM of 8-bit floats on tensor cores.

    The units may keep as few as 14 bits of a sum. So they add up 128 products at most, and these sums are added to
    others in float32 (DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 3.3.2).
    """

    name = "implicit_gemm_fp8_mma"
    summary = "implicit GEMM of 8-bit floats on tensor cores, with float32 sums of two levels; sm_89"
    since = "implicit_gemm_int8_mma"
    look = Mark("moss", "cross")
    types = tuple(ImplicitGemmFp8.types)
    results = ImplicitGemmFp8.results
    why = "8-bit floats and many channels: tensor cores, whose factors warps hold"
    takes_fp8 = takes_amax = True
    precision = "fp8"

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if Architecture.parse(facts.architecture).number < FIRST_FP8:
            return Reason("these tensor cores came with sm_{first}; this is {architecture}",
                          first=FIRST_FP8, architecture=facts.architecture)  # fmt: skip
        return super().refuses(problem, facts)

    def most_sums(self, facts: DeviceFacts) -> int:
        return 32 if Architecture.parse(facts.architecture).number in CONVERTED else 64  # sums are of two levels


def _with_border(loaded: Conv2dProblem) -> Conv2dProblem:
    """The problem with a border other than zeros as part of the image: all taps of a window are stored pixels."""
    return stages.rows_problem(loaded, loaded.c_per_group)
