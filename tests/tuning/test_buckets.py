"""One config is one set of kernels in all of a bucket: a new size in a known bucket compiles nothing."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from tests.tuning.played import PlayedGpu

from convforge.algorithms import algorithms, make_config, refusal
from convforge.backends.kernel import KernelSource
from convforge.problem import Problem, compile_key, parse_problem, tuning_key

METHODS = [a for a in algorithms() if a.backend == "cuda"]

# Sizes from half of these on, and the whole, fall into one bucket, or a few. Layers, pictures, small planes.
FAMILIES = (
    "n1c3h1024w1024_k3r3s3_p1_f32_nchw", "n1c3h1024w1024_k1r3s3_st2_p1_f32_nhwc", "n1c1h512w1024_k1r7s7_p3_f16_nchw",
    "n4c3h512w512_k3r5s5_p2_reflect_g3_u8-f32-u8-f32_nhwc", "n1c3h512w512_k3r5s5_p2_constant9.0_g3_u8-i8-u8-i32_nchw",
    "n1c3h512w512_k3r31s31_p15_g3_f32_nchw", "n1c3h512w512_k3r31s31_p15_g3_f32_nchw_math-fft",
    "n1c3h512w512_k3r15s15_p7_g3_f32_nchw_math-separable", "n8c3h128w128_k8r11s11_p5x2x4x1_f32_nchw_math-fft",
    "n32c64h64w64_k64r3s3_p1_f32_nchw", "n32c64h64w64_k64r3s3_p1_f16_nhwc_+bias+relu", "n32c64h64w64_k64r1s1_f32_nhwc",
    "n8c16h64w64_k32r3s3_st2_p1_d2_g4_u8-i8-i32-i32_nchw", "n32c512h8w8_k512r3s3_p1_f32_nchw",
    "n32c64h64w64_k64r3s3_p1_f32_nhwc_math-tf32",
    "n32c64h64w64_k64r3s3_p1_u8-i8-u8-i32_nhwc_+zero:9+scale:channel+bias",
    *(f"n32c64h64w64_k64r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-{name}" for name in ("fp8", "fp8fast_+amax")),
    "n32c48h128w128_k48r3s3_p1_g48_f32_nchw", "n32c48h128w128_k96r5s4_st2x3_p2x1x0x3_d1x2_g48_f16_nchw",
    "n32c48h128w128_k48r3s3_p1_g48_u8-i8-u8-i32_nhwc_+zero:9",
    "n32c48h128w128_k48r9s9_p4_g48_f16_nhwc", "n32c512h14w14_k512r5s5_p2_g512_f32_nchw",
    "n32c96h56w56_k96r7s7_p3_g96_f16_nchw", "n32c128h56w56_k128r31s31_p15_g128_f16_nchw",
    "n32c96h128w128_k96r7s7_p3_g96_f16_nchw", "n32c32h8w96_k32r7s7_p3_g32_f16_nchw",
    "n16c3h16384w4096_k3r3s3_p1_f32_nchw", "max_n32c64h64w64_r3s3_st2_p1_f32_nchw",
    "max_n32c64h64w64_r3s3_p1x0x2x1_d2_u8_nhwc", "m1024n512k512_f32", "m512n512k512_tb_f64", "relu1000000_f16",
    "m1024n512k512_f16", "m4096n512k512_ta_f32", "m4096n512k512_f32_math-tf32",
)  # fmt: skip

# Sizes that the kernels of a method are made for, though they are not in the key: a product's columns and products are
# a convolution's filters and channels.
FIXED = {"gemm_split": "nk", "gemm_tf32": "nk", "gemm_split_mma": "nk", "gemm_tf32_mma": "nk"}


class Reading(PlayedGpu):
    """Keeps what it is asked to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()

    def compile(self, kernel: KernelSource) -> Any:
        self.texts.add(kernel.text())
        return super().compile(kernel)


def resized(problem: Any, generator: random.Random, fixed: str = "") -> Any:
    """The problem with sizes that are run-time arguments drawn anew, but for `fixed` ones, from half of each on."""
    names = [name for name in ("n", "h", "w", "m", "size") if hasattr(problem, name)]
    names += ["k"] if problem.operation == "gemm" else []
    names = [name for name in names if name not in fixed]
    drawn = {name: generator.randint(getattr(problem, name) // 2 + 1, getattr(problem, name)) for name in names}
    if problem.operation == "gemm" and problem.dtype == "float16":  # in rows of whole 16 bytes
        drawn = {name: -(-size // 8) * 8 for name, size in drawn.items()}
    return dataclasses.replace(problem, **drawn)


def alike(text: str, fixed: str = "") -> list[list[Problem]]:
    """Problems of several sizes, those of a bucket together."""
    generator = random.Random(text)
    buckets: dict[str, list[Problem]] = {}
    for _ in range(150):
        problem = resized(parse_problem(text), generator, fixed)
        buckets.setdefault(tuning_key(problem), []).append(problem)
    return [found[:4] for found in buckets.values() if len(found) > 1]


def texts_of(method: Any, problem: Problem, config: str) -> set[str] | None:
    """What is compiled for a problem; None where this size or its config is refused."""
    runtime = Reading()
    if refusal(method, problem, runtime.facts) is not None:
        return None
    try:
        method.plan(problem, make_config(method, problem, runtime.facts, config), runtime)
    except ValueError:
        return None
    return runtime.texts


@pytest.mark.one_in(19)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_config_is_the_same_kernels_in_all_of_a_bucket(method: Any) -> None:
    compared = 0
    for text in FAMILIES:
        if parse_problem(text).operation != method.operation:
            continue
        for first, *others in alike(text, FIXED.get(method.name, ""))[:6]:
            if refusal(method, first, Reading().facts) is not None:
                continue
            for config in map(str, method.configs(first, Reading().facts)[:3]):
                expected = texts_of(method, first, config)
                for other in others:
                    found = texts_of(method, other, config)
                    assert found is None or found == expected, f"{config}: {first} compiles other kernels than {other}"
                    compared += found is not None
    assert compared >= 5


@pytest.mark.parametrize("text", FAMILIES)
def test_what_is_of_one_bucket_has_one_compile_key(text: str) -> None:
    buckets = alike(text)
    assert len(buckets) > 1 or len(buckets[0]) > 1
    for found in buckets:
        assert len(set(map(compile_key, found))) == 1


def test_sizes_that_kernels_see_are_of_other_buckets() -> None:
    def key(text: str) -> str:
        return tuning_key(parse_problem(text)).removeprefix("n32c48").split("_k48")[0]

    assert key("n32c48h100w60_k48r3s3_p1_g48_f32_nchw") == key("n32c48h128w64_k48r3s3_p1_g48_f32_nchw") == "h128w64"
    assert key("n32c48h60w60_k48r3s3_p1_g48_f32_nchw") == "h60w60"
    assert key("n32c48h60w60_k48r3s3_p1_g48_f32_nhwc") == key("n32c48h60w60_k48r3s3_p1_g24_f32_nchw") == "h64w64"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("n1c3h100w1000_k3r3s3_p1_f32_nchw", "f32_nchw"),
        ("n1c3h100w1001_k3r3s3_p1_f32_nchw", "f32_nchw_v4"),
        ("n1c3h100w1000_k3r3s3_f32_nchw", "f32_nchw_v16x8"),
        ("n1c3h100w1000_k3r3s3_p1_u8-f32-f32-f32_nchw", "f32_nchw_v8x16"),
        ("n1c3h100w1001_k3r3s3_p1_f32_nhwc", "f32_nhwc_v4"),
        ("n1c4h100w1001_k8r3s3_p1_f32_nhwc", "f32_nhwc"),
        ("n3c256h2048w2047_k256r3s3_p1_f32_nchw", "f32_nchw_v4_wide"),
        ("max_n64c64h1024w1024_r3s3_st2_p1_f32_nchw", "f32_nchw_wide"),
    ],
)
def test_vectors_and_wide_places_are_in_the_key(text: str, end: str) -> None:
    for key in (tuning_key, compile_key):
        assert key(parse_problem(text)).endswith(end)
