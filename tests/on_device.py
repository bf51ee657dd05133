"""Common part of the tests on GPUs and on the emulator: the same methods and cases in different runtimes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.cases import WORKED, Case, worked_inputs
from tests.judged import allowed, judge_of

from convforge.algorithms import refusal
from convforge.backends.facts import DeviceFacts
from convforge.problem import Conv2dProblem, GemmProblem, Pool2dProblem, parse_problem
from convforge.problem.types import FP8, is_integer, itemsize
from convforge.verify import Inputs, Judge, check_plan

OTHER = {"NCHW": "NHWC", "NHWC": "NCHW"}


def in_the_other_layout(text: str) -> str | None:
    """Return the same problem in NHWC instead of NCHW, or the reverse; None for problems without channels."""
    problem = parse_problem(text)
    if isinstance(problem, Conv2dProblem):
        return str(problem.replace(x_layout=OTHER[problem.x_layout], out_layout=OTHER[problem.out_layout]))
    if isinstance(problem, Pool2dProblem):
        return str(dataclasses.replace(problem, layout=OTHER[problem.layout]))
    return None


def takes(algorithm: Any, text: str) -> bool:
    """True if a method must accept a problem; methods not named here must accept every problem of their operation."""
    problem = parse_problem(text)
    if problem.operation != algorithm.operation:
        return False
    if isinstance(problem, GemmProblem):
        return _takes_product(algorithm, problem)
    stored = {array.dtype for array in (*problem.operands, *problem.results)}
    if isinstance(problem, Conv2dProblem) and stored & FP8 and not algorithm.takes_fp8:
        return False
    if isinstance(problem, Conv2dProblem) and algorithm.name.startswith("depthwise_"):
        if algorithm.name == "depthwise_rows":
            return _has_whole_rows(problem)
        if algorithm.name == "depthwise_mma":
            return _is_of_halves(problem)
        if algorithm.name == "depthwise_batch":
            return _is_of_halves(problem) and _has_few_rows(problem)
        if algorithm.name == "depthwise_dp4a":
            span_h, span_w = (
                (size - 1) * apart + 1 for size, apart in zip((problem.r, problem.s), problem.dilation, strict=True)
            )
            ring, words = -(-span_h // problem.stride[0]), -(-span_w // 4)
            kept = problem.r * -(-problem.s // 4) if problem.r * -(-problem.s // 4) <= 3 else 1
            small = span_w <= 32 and 4 * (ring + 1 + kept + words + 4) + span_w <= 200
            return _is_of_words_of_channels(problem) and small
        side_by_side = problem.x_layout == "NHWC" or algorithm.name != "depthwise_channels"
        return problem.groups == problem.c and side_by_side
    if isinstance(problem, Conv2dProblem) and algorithm.name == "direct_boxes":
        pixel = problem.c if problem.x_layout == "NHWC" else 1
        taps = problem.k * problem.c_per_group * problem.r * (-(-problem.s * itemsize(problem.acc_dtype) // 16) * 16)
        return pixel <= 4 and problem.w * pixel * itemsize(problem.x_dtype) % 16 == 0 and taps <= 8192
    if isinstance(problem, Conv2dProblem) and algorithm.name == "direct_mma":
        pixel = problem.c if problem.x_layout == "NHWC" else 1
        alone = problem.groups == problem.c or pixel == problem.c
        bytes_ = all(is_integer(dtype) and itemsize(dtype) == 1 for dtype in (problem.x_dtype, problem.w_dtype))
        dense = problem.stride == problem.dilation == (1, 1) and problem.w * pixel % 16 == 0
        beside = problem.k == problem.c and (problem.x_layout == problem.out_layout or problem.c == 1)
        side_by_side = 16 % pixel == 0 or 12 % pixel == 0
        return bytes_ and dense and beside and alone and side_by_side and problem.epilogue.x_zero_point == 0
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_wgmma":
        return _is_for_tensor_cores(problem, {"float16"}, {"bfloat16"})
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_int8":
        types = problem.x_dtype, _type_of_factors(problem)
        bytes_ = all(is_integer(dtype) and itemsize(dtype) == 1 for dtype in types)
        return bytes_ and problem.out_dtype != "float64" and (problem.groups == 1 or problem.c_per_group >= 8)
    if algorithm.name in ("implicit_gemm_fp8", "implicit_gemm_fp8_fast"):
        return isinstance(problem, Conv2dProblem) and problem.x_dtype in FP8
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_mma":
        alike = {problem.x_dtype, problem.w_dtype} in ({"float16"}, {"bfloat16"})
        return alike and problem.out_dtype in (problem.x_dtype, "float32")
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_few_channels":
        alike = {problem.x_dtype, problem.w_dtype} in ({"float16"}, {"bfloat16"})
        alike &= problem.out_dtype in (problem.x_dtype, "float32")
        if problem.x_dtype in ("int8", "uint8") and is_integer(problem.acc_dtype):
            alike = problem.w_dtype in ("int8", "uint8") and problem.largest_sum < 2**24
        return alike and problem.groups == 1 and problem.c <= 4
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_few_outputs":
        alike = {problem.x_dtype, problem.w_dtype} in ({"float16"}, {"bfloat16"})
        few = problem.groups == 1 and problem.stride == (1, 1) and problem.k * problem.r * problem.s <= 64
        return alike and problem.out_dtype in (problem.x_dtype, "float32") and few
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_split_few_channels":
        alike = {problem.x_dtype, problem.w_dtype, problem.out_dtype} == {"float32"}
        return alike and problem.groups == 1 and problem.c <= 4 and problem.taps >= 16
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_tf32_mma":
        return {problem.x_dtype, problem.w_dtype, problem.out_dtype} == {"float32"}
    if isinstance(problem, Conv2dProblem) and algorithm.name in (
        "implicit_gemm_int8_mma",
        "implicit_gemm_fp8_mma",
        "implicit_gemm_dp4a",
    ):
        weights = _type_of_factors(problem) if algorithm.name == "implicit_gemm_int8_mma" else problem.w_dtype
        return {problem.x_dtype, weights} <= {*algorithm.types} and problem.out_dtype in algorithm.results
    if isinstance(problem, Conv2dProblem) and algorithm.name == "direct_dp4a":
        bytes_ = {problem.x_dtype, problem.w_dtype} <= {*algorithm.types} and problem.out_dtype in algorithm.results
        return bytes_ and (problem.s - 1) * problem.dilation[1] < 120
    if isinstance(problem, Conv2dProblem) and algorithm.name == "im2col_tf32":
        return problem.acc_dtype == problem.out_dtype == "float32"
    if isinstance(problem, Conv2dProblem) and algorithm.name == "implicit_gemm_tf32":
        return _is_for_tensor_cores(problem, {"float32"})
    if isinstance(problem, Conv2dProblem) and algorithm.name in ("implicit_gemm_split", "implicit_gemm_split_mma"):
        return _is_for_tensor_cores(problem, {"float32"}) and problem.taps >= 32
    if isinstance(problem, Conv2dProblem) and algorithm.name == "direct_small":
        taps = problem.k * problem.c_per_group * problem.r * (-(-problem.s * itemsize(problem.acc_dtype) // 16) * 16)
        planes = problem.n * problem.groups * -(-problem.k_per_group // 4)
        window = problem.taps * -(-itemsize(problem.acc_dtype) // 4)
        return window <= 80 and taps <= 8192 and max(planes, problem.p // 8) < 65536
    if isinstance(problem, Conv2dProblem) and algorithm.name == "fft_fused" and problem.groups != problem.c:
        return False
    if isinstance(problem, Conv2dProblem) and algorithm.name in ("separable", "fft", "fft_fused"):
        return not is_integer(problem.acc_dtype)
    return True


def _type_of_factors(problem: Conv2dProblem) -> str:
    """The type of weights; int8 for those of int16 from -255 to 255, which are differences of two numbers of int8."""
    return "int8" if problem.w_dtype == "int16" and 0 < problem.w_bound < 256 else problem.w_dtype


def _takes_product(algorithm: Any, problem: GemmProblem) -> bool:
    """True if a GEMM method must accept the dtype and the sizes of a problem; TMA needs rows of whole 16 bytes."""
    narrow, some = itemsize(problem.dtype) == 2, problem.outputs * problem.k > 0
    if algorithm.name in ("gemm_tf32", "gemm_tf32_mma", "gemm_split", "gemm_split_mma"):
        enough = problem.k >= 32 or algorithm.precision == "tf32"
        return problem.dtype == "float32" and some and enough
    if algorithm.name == "gemm_mma":
        return narrow or is_integer(problem.dtype)
    if is_integer(problem.dtype):
        return False
    if algorithm.name != "gemm_wgmma":
        return not narrow or algorithm.name in ("gemm_naive", "gemm_shared")
    rows = [operand.shape[-1] for operand in (*problem.operands, *problem.results)]
    return narrow and some and all(row % 8 == 0 for row in rows)


def _has_whole_rows(problem: Conv2dProblem) -> bool:
    """True if a row of pixels and its outputs fit the registers of depthwise_rows, and the plane is small enough."""
    blank = problem.padding_mode == "zeros" and not is_integer(problem.acc_dtype)
    seen = (problem.q - 1) * problem.stride[1] + problem.dilation[1] * (problem.s - 1) + 1
    row = min(seen, problem.w) if blank else seen
    numbers = (problem.q + row) * -(-itemsize(problem.acc_dtype) // 4) + 24
    alone = problem.groups == problem.c == problem.k and problem.x_layout == problem.out_layout == "NCHW"
    small = max(problem.h, problem.w) <= 64
    return alone and small and numbers <= 190 and problem.p <= 1024


def _is_of_words_of_channels(problem: Conv2dProblem) -> bool:
    """True for depthwise problems of 8-bit integers in NHWC, with an output for each of a multiple of four channels."""
    alone = problem.groups == problem.c == problem.k and problem.x_layout == problem.out_layout == "NHWC"
    bytes_ = all(is_integer(dtype) and itemsize(dtype) == 1 for dtype in (problem.x_dtype, problem.w_dtype))
    return alone and bytes_ and problem.c % 4 == 0 and problem.out_dtype != "float64"


def _is_of_halves(problem: Conv2dProblem) -> bool:
    """True for depthwise problems of 16-bit floats in NCHW, padded with zeros, with planes that fit a block."""
    alone = problem.groups == problem.c == problem.k and problem.x_layout == problem.out_layout == "NCHW"
    halves = {problem.x_dtype, problem.w_dtype} in ({"float16"}, {"bfloat16"}) and problem.acc_dtype == "float32"
    narrow = not is_integer(problem.out_dtype) and itemsize(problem.out_dtype) == 2
    pixels = (problem.h + sum(problem.padding[:2])) * (problem.w + sum(problem.padding[2:]))
    whole = problem.padding_mode == "zeros" and problem.w % 2 == 0 and pixels < 80000
    return alone and halves and narrow and whole


def _is_for_tensor_cores(problem: Conv2dProblem, *types: set[str]) -> bool:
    """True if x and w both have one of these types, and a group has at least 8 channels or is the only one."""
    alike = {problem.x_dtype, problem.w_dtype} in types and problem.out_dtype in (problem.x_dtype, "float32")
    return alike and (problem.groups == 1 or problem.c_per_group >= 8)


def _has_few_rows(problem: Conv2dProblem) -> bool:
    """True if the filter rows and their sums fit the registers of depthwise_batch, and the plane is small enough."""
    (top, bottom), below = problem.padding[:2], (problem.r - 1) * problem.dilation[0]
    left = problem.padding[2]
    window = left % 2 + 7 * problem.stride[1] + (problem.s - 1) * problem.dilation[1] + 1
    steps = -(-min(window, problem.w if problem.q <= 8 else window) // 16)
    few = problem.r * steps <= 16 and below // problem.stride[0] + 2 <= 12
    return max(problem.h, problem.w) <= 64 and few and max(top, bottom) <= below and problem.q <= 128


def check_accepted(algorithm: Any, texts: Iterable[str], facts: DeviceFacts) -> None:
    """Assert that a method accepts exactly the problems for which `takes` is true, and refuses others with a reason."""
    mine = [text for text in texts if parse_problem(text).operation == algorithm.operation]
    reasons = {text: refusal(algorithm, allowed(parse_problem(text), algorithm), facts) for text in mine}
    assert any(reason is None for reason in reasons.values())
    for text, reason in reasons.items():
        assert (reason is None) == takes(algorithm, text), f"{algorithm.name} {text}: {reason}"
        assert reason is None or len(str(reason)) > 10


def check_case(algorithm: Any, case: Case, runtime: Any, *, text: str = "", every_config: bool = False) -> None:
    """Assert that a method's results for a case, or for `text` instead, are correct, or that it refuses it."""
    text = text or case.text
    problem = allowed(parse_problem(text), algorithm)
    if (reason := refusal(algorithm, problem, runtime.facts)) is not None:
        assert len(str(reason)) > 10, f"{algorithm.name} refuses {text} with {reason!r}"
        return
    configs = algorithm.configs(problem, runtime.facts)
    for config in configs if every_config and case.every_config else configs[:1]:
        plan = algorithm.plan(problem, config, runtime)
        for kind in case.kinds:
            verdict = check_plan(plan, judge_of(text, kind))
            assert verdict.ok, verdict.message


def check_views(plan: Any, inputs: Inputs, ahead: int) -> None:
    """Assert that a plan is correct on views that begin `ahead` elements into each row, and writes nothing else."""

    def within(shape: tuple[int, ...], dtype: str) -> tuple[NDArray[Any], tuple[slice, ...]]:
        part = (*(slice(1, size + 1) for size in shape[:3]), slice(ahead, ahead + shape[3]))
        return np.full([size + 2 for size in shape[:3]] + [shape[3] + 8], 7, dtype), part

    pixels, inner = within(plan.problem.x_shape, plan.problem.x_dtype)
    around, part = within(plan.problem.out_shape, plan.problem.out_dtype)
    pixels[inner] = inputs.x
    plan(plan.buffers(pixels[inner], plan.prepare(inputs.w), inputs.operands, around[part]))
    verdict = Judge(plan.problem, inputs).verdict(plan.algorithm.precision, np.ascontiguousarray(around[part]))
    assert verdict.ok, verdict.message
    around[part] = 7
    assert (around == 7).all(), "nothing around the output is written"


def check_worked_values(algorithm: Any, runtime: Any, configs: int = 4) -> None:
    """Assert that a method's first configs give the results that were calculated by hand."""
    for worked in WORKED:
        problem: Any = parse_problem(worked.text)
        inputs = worked_inputs(worked)
        for config in algorithm.configs(problem, runtime.facts)[:configs]:
            plan = algorithm.plan(problem, config, runtime)
            out = runtime.empty(problem.out_shape, problem.out_dtype)
            plan(plan.buffers(runtime.upload(inputs.x), plan.prepare(runtime.upload(inputs.w)), inputs.operands, out))
            got = runtime.download(out)
            assert np.rint(got).tolist() == worked.expected
            assert algorithm.precision != "strict" or got.tolist() == worked.expected
