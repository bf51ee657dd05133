"""The truth that a GPU computes, held against the host's loops: the same numbers to the last bit."""

from __future__ import annotations

import time

import pytest
from tests.gpu.present import gpu, need_gpu
from tests.verify.truths import TEXTS, expect_the_loops_truth

from convforge.problem import parse_problem
from convforge.verify import make_inputs, truth, truth_device

need_gpu()

# Large enough to be a GPU's by themselves: images and layers in both layouts, groups, whole numbers, products.
LARGE = (
    "n1c3h1024w1024_k3r3s3_p1_f32_nchw", "n1c3h512w513_k4r5s5_st2_p2_reflect_f32_nhwc_+bias+relu",
    "n4c64h28w28_k32r3s3_p1_f16_nhwc", "n8c96h33w35_k96r3s3_p1_g96_f32_nchw", "n1c3h512w512_k3r3s3_p1_u8_nchw",
    "m700n650k600_f32", "m700n650k600_ta_tb_f32", "n70000c1h3w4_k1r3s3_p1_f32_nchw",
)  # fmt: skip
# Seconds that the truth of m4096n4096k4096 may take on any GPU, copies to the host included; the loops take about 30.
MOST_S = 5.0


@pytest.mark.parametrize("text", TEXTS)
def test_the_sums_are_those_of_the_loops(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth_device, "DEVICE_FLOPS", 0)
    problem = parse_problem(text)
    expect_the_loops_truth(problem, make_inputs(problem), gpu())


@pytest.mark.parametrize("text", LARGE)
def test_the_sums_of_large_problems(text: str) -> None:
    problem = parse_problem(text)
    expect_the_loops_truth(problem, make_inputs(problem), gpu())


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_numbers_that_are_none(kind: str) -> None:
    problem = parse_problem("n1c3h512w512_k3r3s3_p1_f32_nchw")
    expect_the_loops_truth(problem, make_inputs(problem, kind), gpu())


def test_a_large_product_takes_seconds() -> None:
    problem = parse_problem("m4096n4096k4096_f32")
    inputs = make_inputs(problem)
    truth(problem, inputs, gpu())  # compiles
    begin = time.perf_counter()
    truth(problem, inputs, gpu())
    assert time.perf_counter() - begin < MOST_S
