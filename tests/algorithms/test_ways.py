"""The ways that a call of a plan may go, as the plan, `explain` and `algorithms` name them, beside what plans do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200, Compiling, compiled

import convforge
from convforge.algorithms import algorithms, find
from convforge.algorithms.contract import Algorithm, Launch, Plan, PreparedFilter
from convforge.algorithms.implicit_gemm.split_tiles import IN_FULL, REACH, TOP
from convforge.backends.recording import Recording
from convforge.problem import parse_problem

NHWC, HALVES = "n2c64h28w28_k64r3s3_st1_p1_f32_nhwc", "n2c64h28w28_k64r3s3_st1_p1_f16_nhwc"
MANY_HALVES = "n32c64h56w56_k64r3s3_st1_p1_f16_nhwc"
PROBLEMS = (
    *(NHWC, HALVES, "n2c64h28w28_k64r3s3_st1_p1_f32_nchw", "n2c64h28w28_k64r3s3_st1_p1_f16-f16-f32-f32_nhwc"),
    *("n1c65h20w20_k64r3s3_st1_p1_reflect_f16_nchw", "n1c96h20w20_k96r3s3_st2_p1_g8_bf16_nhwc"),
    *(
        "n1c3h256w256_k3r3s3_p1_u8-i8-i32-i32_nhwc",
        "n2c32h56w56_k32r5s5_p2_g32_f32_nchw",
        "n1c1h512w512_k1r9s9_f32_nchw",
    ),
    *("m256n256k256_f16", "m256n256k256_tb_bf16", "m256n256k256_f32"),
    *("n2c3h56w56_k16r3s3_st1_p1_f16_nchw", "n2c3h56w56_k16r3s3_st1_p1_f32_nchw"),
    *("n1c64h56w56_k3r3s3_st1_p1_f16_nhwc", "n1c64h56w57_k3r3s3_st1_p1_f16_nchw"),
    *("n1c64h56w57_k64r3s3_st1_p1_f8e4m3-f8e4m3-f16-f32_nhwc", "n1c64h56w57_k64r3s3_st1_p1_u8-i8-u8-i32_nhwc"),
)


def plans(text: str, runtime: Any = None) -> Iterator[Plan]:
    """The default plan of every method of GPUs that takes the problem."""
    asked: Any = parse_problem(text)
    for method in algorithms():
        if (method.operation, method.backend) != (asked.operation, "cuda"):
            continue
        problem = asked if method.precision == "strict" else asked.allowing(method.precision)
        if method.refuses(problem, H200) is None:
            yield method.plan(problem, method.configs(problem, H200)[0], runtime or Recording(H200))


def plan_of(name: str, text: str) -> Plan:
    (plan,) = (plan for plan in plans(text) if plan.algorithm.name == name)
    return plan


def said(plan: Plan) -> dict[tuple[str, str], str]:
    return {(name, outcome): str(words) for name, outcome, words in plan.ways}


@pytest.mark.parametrize("text", PROBLEMS)
def test_plans_that_hand_calls_on_say_so_and_no_others(text: str) -> None:
    seen = 0
    for plan in plans(text):
        hands_on = any(isinstance(step, Launch) and step.otherwise is not None for step in plan.steps)
        words = [str(words) for _, outcome, words in plan.ways if outcome == "arrays"]
        assert len(words) == hands_on, plan
        assert all("compiled when it is first needed" in said for said in words)
        assert all(re.search(r" no multiple of (4|16) bytes", said) for said in words)
        rows = any(info.kernel == "pixel_rows" for info in plan.launches)
        assert rows == (("pixel_rows", "default") in said(plan)), plan
        assert {outcome for _, outcome, _ in plan.ways} <= {"default", "arrays", "values"}
        seen += 1
    assert seen


def test_every_plan_with_another_one_behind_it_is_among_these() -> None:
    found = {plan.algorithm.name for text in PROBLEMS for plan in plans(text) if plan.ways}
    assert found == {
        *("implicit_gemm_split", "implicit_gemm_wgmma", "implicit_gemm_tf32", "gemm_wgmma", "direct_boxes"),
        *("direct_mma", "gemm_split", "gemm_tf32", "implicit_gemm_mma", "implicit_gemm_few_channels"),
        *("implicit_gemm_split_mma", "gemm_split_mma", "implicit_gemm_tf32_mma", "gemm_tf32_mma"),
        "im2col_tf32",
        *("implicit_gemm_split_few_channels", "implicit_gemm_few_outputs"),
        *("implicit_gemm_int8", "implicit_gemm_fp8", "implicit_gemm_int8_mma", "implicit_gemm_fp8_mma"),
        *("implicit_gemm_dp4a", "direct_dp4a"),
        "implicit_gemm_fp8_fast",
    }
    found |= {"im2col"}  # its default has one way, other configs several
    assert found == {a.name for a in algorithms() if a.backend == "cuda" and type(a).ways is not Algorithm.ways}


def test_the_range_is_that_of_the_kernel() -> None:
    text = (Path(convforge.__file__).parent / "algorithms/device/split.cuh").read_text(encoding="utf-8")
    assert float(re.findall(r"IN_FULL = ([\d.]+)f", text)[0]) == 2.0**IN_FULL
    assert re.findall(r"\b(TOP|REACH) = (\d+)", text) == [("TOP", str(TOP)), ("REACH", str(REACH))]


def test_the_split_names_its_three_paths() -> None:
    ways = said(plan_of("implicit_gemm_split", NHWC))
    assert list(ways) == [
        ("tensor_cores", "default"), ("plain_tiles", "values"), ("plain_filters", "values"), ("pixel_rows", "arrays"),
    ]  # fmt: skip
    assert "3 products" in ways["tensor_cores", "default"]
    for name in ("plain_tiles", "plain_filters"):
        words = ways[name, "values"]
        for part in ("Inf or NaN", "2^101", "2^-12", "2^-26", "multiply-adds of float32", "Filter.note"):
            assert part in words, (name, part)
    assert "below 2^-100" in ways["plain_tiles", "values"]
    one_tap = said(plan_of("implicit_gemm_split", NHWC.replace("r3s3", "r1s1")))["plain_filters", "values"]
    assert "a quarter of its values" in one_tap
    assert "16 neighbouring filters" in one_tap
    assert "64 channels of a tile" in ways["plain_tiles", "values"]


def test_a_product_of_im2col_by_a_convolution_says_so() -> None:
    method, problem = find("conv2d", "cuda", "im2col"), parse_problem(NHWC)
    first, by_halves, *_ = method.configs(problem, H200)
    assert method.ways(problem, first) == ()
    ways = {way.name: str(way.words) for way in method.ways(problem, by_halves)}
    assert list(ways) == ["convolution", "tensor_cores", "plain_pixels", "plain_filters", "split_pixels"]
    assert "columns of the matrix are pixels" in ways["convolution"]
    rounded = said(plan_of("im2col_tf32", NHWC))
    assert list(rounded) == [("convolution", "default"), ("tensor_cores", "default")]
    planes = said(plan_of("im2col_tf32", NHWC.replace("nhwc", "nchw")))
    assert "x is in NCHW" in planes["pixel_rows", "default"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n2c64h28w28_k64r3s3_st1_p1_f32_nchw", ["x is in NCHW"]),
        ("n2c64h28w28_k64r3s3_st1_p1_reflect_f32_nhwc", ["the border is reflect"]),
        ("n2c65h28w28_k64r3s3_st1_p1_f32_nhwc", ["a pixel has 260 bytes"]),
        ("n2c68h28w28_k68r3s3_st1_p1_g4_f32_nhwc", ["a group has 17 channels, which take the room of 2"]),
        ("n2c65h28w28_k64r3s3_st1_p1_circular_f32_nchw", ["NCHW", "the border is circular", "a pixel has 260 bytes"]),
    ],
)
def test_why_every_call_writes_x_as_rows(text: str, why: list[str]) -> None:
    for name in ("implicit_gemm_split", "implicit_gemm_tf32"):
        ways = said(plan_of(name, text))
        words = ways["pixel_rows", "default"]
        assert ("pixel_rows", "arrays") not in ways
        parts = words.split(" bytes: ")[1].split("; ")
        assert len(parts) == len(why)
        assert all(reason in part for reason, part in zip(why, parts, strict=True)), words


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n2c64h28w28_k64r3s3_st1_p1_f16_nchw", ["the result is in NCHW"]),
        ("n2c64h28w28_k64r3s3_st1_p1_f16-f16-f32-f32_nhwc", ["its numbers are of float32, not of 8 or 16 bits"]),
        ("n2c64h28w28_k65r3s3_st1_p1_f16_nhwc", ["a pixel of it has 130 bytes"]),
        ("n2c128h28w28_k192r3s3_st1_p1_g2_f16_nhwc", ["a group has 96 filters, which are no multiple of 64"]),
    ],
)
def test_why_threads_store(text: str, why: list[str]) -> None:
    words = said(plan_of("implicit_gemm_wgmma", text))["thread_stores", "default"]
    parts = words.split("not the TMA: ")[1].split("; ")
    assert all(reason in part for reason, part in zip(why, parts, strict=True)), words


class Placed:
    """An array that begins so many bytes behind a multiple of 256."""

    def __init__(self, shape: tuple[int, ...], dtype: str, offset: int) -> None:
        size = np.dtype(dtype).itemsize
        memory = np.zeros(int(np.prod(shape)) + 256 // size, dtype)
        first = (offset - memory.ctypes.data) % 256 // size
        self.array = memory[first : first + int(np.prod(shape))].reshape(shape)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n2c64h28w28_k64r3s3_st1_p1_f16_nchw", "x is in NCHW"),
        ("n2c64h28w28_k64r3s3_st1_p1_reflect_f16_nhwc", "the border is reflect, and a copy fills in zeros"),
        ("n2c65h28w28_k64r3s3_st1_p1_f16_nhwc", "a group has 65 channels, no multiple of 8"),
        ("n2c65h28w28_k64r3s3_st1_p1_circular_f16_nchw", "x is in NCHW; the border is circular, and a copy fills in"),
    ],
)
def test_why_threads_copy_rows_of_x(text: str, why: str) -> None:
    ways = said(plan_of("implicit_gemm_mma", text))
    assert f"at multiples of 16 bytes: {why}" in ways["pixel_rows", "default"]
    assert "copy 8 channels of a pixel at once" in ways["tensor_cores", "default"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("implicit_gemm_split", NHWC), ("implicit_gemm_wgmma", HALVES), ("implicit_gemm_mma", MANY_HALVES)],
)
def test_such_arrays_get_the_other_plan(name: str, text: str) -> None:
    plan = plan_of(name, text)
    (launch,) = plan.steps
    assert isinstance(launch, Launch)
    problem: Any = plan.problem
    dtype = problem.x_dtype
    x = Placed(problem.x_shape, dtype, 8).array
    out = Placed(problem.out_shape, problem.out_dtype, 0).array
    assert launch.fill({"x": x, "w": PreparedFilter({}, 0), "out": out}) is None
    assert launch.otherwise is not None
    other = launch.otherwise()
    assert [info.kernel for info in other.launches] == ["pixel_rows", name]
    assert "the config asks for it (repacked)" in said(other)["pixel_rows", "default"]
    assert not [outcome for _, outcome, _ in other.ways if outcome == "arrays"]


@compiled
def test_compiled_plans_have_the_same_ways() -> None:
    runtime = Compiling("sm_90")
    for recorded, made in zip(plans(HALVES), plans(HALVES, runtime), strict=True):
        assert said(recorded) == said(made)
    assert "implicit_gemm_wgmma" in runtime.kernels


def test_algorithms_lists_the_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convforge.api.runtime_of", lambda device: Recording(H200))
    found = {a.name: a for a in convforge.algorithms(NHWC, "cuda")}
    ways = dict(found["implicit_gemm_split"].ways)
    assert list(ways) == ["tensor_cores", "plain_tiles", "plain_filters", "pixel_rows"]
    assert "Filter.note" in ways["plain_tiles"]
    assert found["implicit_gemm_tf32"].refusal is not None
    assert found["implicit_gemm_tf32"].ways == ()
    assert found["direct_naive"].ways == ()
    (product,) = (a for a in convforge.algorithms("m256n256k256_f16", "cuda") if a.name == "gemm_wgmma")
    assert [name for name, _ in product.ways] == ["tensor_cores", "gemm_mma"]
    assert all(a.ways == () for a in convforge.algorithms(None, "cuda"))
