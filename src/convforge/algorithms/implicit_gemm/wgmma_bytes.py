"""Implicit GEMM of bytes on Hopper's tensor cores: integers with exact sums, and 8-bit floats (wgmma.cu)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from convforge.algorithms.contract import Buffers, Preparation
from convforge.algorithms.implicit_gemm.byte_pairs import in_byte_pairs
from convforge.algorithms.implicit_gemm.stages import passes_of
from convforge.algorithms.implicit_gemm.wgmma import ImplicitGemmWgmma, Put, group_refusal
from convforge.algorithms.implicit_gemm.wgmma_tiles import OneLevelConfig
from convforge.algorithms.implicit_gemm.zero_point import WithTapSums, ZeroPoint, zero_point_of
from convforge.algorithms.traits import Mark
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem


def bytes_refusal(
    problem: Conv2dProblem, taken: Collection[str], results: Collection[str], passes: int = 1
) -> Reason | None:
    """The reason to refuse the types of x, w (each of `taken`) or the result (of `results`); None if all are known.

    With two `passes`, w has int16 and is divided into numbers of int8.
    """
    weights = "int8" if passes == 2 else problem.w_dtype
    if {problem.x_dtype, weights} <= set(taken) and problem.out_dtype in results:
        return None
    return Reason(
        "x and w must be of types {names}, and the result of types {results}; these are {types}",
        names=", ".join(taken), results=", ".join(results),
        types=", ".join((problem.x_dtype, problem.w_dtype, problem.out_dtype)),
    )  # fmt: skip


class _OfBytes(ImplicitGemmWgmma):
    """The kernel of wgmma.cu for types of one byte; x and w may have different ones."""

    results: ClassVar[tuple[str, ...]]  # types of the result

    def problem_refusal(self, problem: Conv2dProblem) -> Reason | None:
        passes = passes_of(problem)
        return bytes_refusal(problem, self.types, self.results, passes) or group_refusal(problem)


class ImplicitGemmInt8(_OfBytes):
    """Implicit GEMM of 8-bit integers on Hopper's tensor cores, with exact sums in int32.

    The kernel multiplies stored pixels. From each sum it subtracts the zero point of x times the weights of the taps
    inside the image, whose sums are prepared with the weights: the TMA loads zeros outside. Weights of int16 from -255
    to 255, those of 8 bits minus a zero point, are multiplied in two passes.
    """

    name = "implicit_gemm_int8"
    summary = "implicit GEMM of 8-bit integers on the tensor cores of Hopper, with exact sums; sm_90"
    since = "implicit_gemm_wgmma"
    look = Mark("moss", "triangle-left")
    types = MappingProxyType({"uint8": "u8", "int8": "s8"})
    results = ("int32", "uint8", "int8", "float16", "bfloat16", "float32", "int16", "uint16")
    why = "8-bit integers and many channels: tensor cores, whose tiles the TMA loads"

    def fields(self, problem: Conv2dProblem, loaded: Conv2dProblem) -> tuple[Mapping[str, Any], Put]:
        if not problem.epilogue.x_zero_point:
            return super().fields(problem, loaded)

        def put(args: Any, buffers: Buffers) -> None:
            args.zero = zero_point_of(loaded, buffers)

        return {"zero": ZeroPoint}, put

    def prepared(self, problem: Conv2dProblem, loaded: Conv2dProblem, runtime: Runtime) -> Preparation:
        packer = super().prepared
        packed = in_byte_pairs(problem, runtime, lambda both: packer(both, loaded, runtime))
        return WithTapSums(packed, problem, loaded, runtime) if problem.epilogue.x_zero_point else packed


class ImplicitGemmFp8(_OfBytes):
    """Implicit GEMM of 8-bit floats on Hopper's tensor cores.

    The units keep about 14 bits of a sum. So after every tap and 128 channels their sums are added to others in float32
    (DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 3.3.2).
    """

    name = "implicit_gemm_fp8"
    summary = "implicit GEMM of 8-bit floats on the tensor cores of Hopper, with float32 sums of two levels; sm_90"
    since = "implicit_gemm_int8"
    look = Mark("moss", "triangle-right")
    types = MappingProxyType({"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"})
    results = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
    why = "8-bit floats and many channels: tensor cores, whose tiles the TMA loads"
    two_levels = takes_fp8 = takes_amax = True
    precision = "fp8"


class ImplicitGemmFp8Fast(ImplicitGemmFp8):
    """The same kernel with whole sums in the tensor cores, which keep about 14 bits of them.

    Their error grows with the number of products. No second sum takes registers, so tiles have up to 256 columns.
    """

    name = "implicit_gemm_fp8_fast"
    summary = "implicit GEMM of 8-bit floats on the tensor cores of Hopper, with sums of about 14 bits; sm_90"
    look = Mark("magenta", "triangle-down")
    config_type = OneLevelConfig
    why = "8-bit floats, many channels, and sums of 14 bits are allowed: tensor cores, which keep the sums"
    two_levels = False
    precision = "fp8_fast"
