"""Every method that runs on GPUs, on every case, on the emulator: the same CUDA C++, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.emulated import needs_emulator
from tests.cases import CASES, WORKED, Case
from tests.judged import allowed, named
from tests.on_device import check_accepted, check_case, check_worked_values, takes

from convforge.algorithms import ON_DEVICE
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread

METHODS = [a for a in ON_DEVICE if a.backend == "emulator"]
CONVOLUTIONS = [a for a in METHODS if a.operation == "conv2d"]
PAIRS = [(a, case) for a in METHODS for case in CASES if parse_problem(case.text).operation == a.operation]
# `make test` has every twelfth case of a method, and every 48th of a method that takes nearly all cases. Each method
# has other cases than the one before, so that many cases are tested.
SOME, FEW = 12, 48
GENERAL = (
    "direct_naive", "direct_constant", "direct_shared", "direct_tiled", "direct_small", "im2col", "implicit_gemm",
    "fft", "fft_fused", "separable", "depthwise_planes", "direct_boxes", "implicit_gemm_split",
    "implicit_gemm_split_mma", "implicit_gemm_tf32_mma", "im2col_tf32",
)  # fmt: skip


def pair(algorithm: Any, case: Case) -> Any:
    """A method on a case, now or in ``make test-all``."""
    later = (METHODS.index(algorithm) + CASES.index(case)) % (FEW if algorithm.name in GENERAL else SOME)
    return pytest.param(algorithm, case, id=f"{named(algorithm)}-{case}", marks=[pytest.mark.thorough] if later else [])


SPREADS = (
    "n2c3h13w14_k4r3s3_p1_f32_nchw", "n1c2h9w10_k3r2s3_st2_p1_reflect_f32_nhwc", "n2c16h13w12_k9r3s3_st2_p1_f32_nhwc",
    "n2c6h23w24_k6r7s7_p3_g6_f32_nchw", "n2c8h13w14_k8r3s3_p1_g8_f32_nhwc", "n1c3h20w19_k3r13s12_p6_g3_f32_nhwc",
    "m37n21k19_f32", "max_n2c3h16w24_r3s3_st2_p1_f32_nchw", "max_n2c4h16w24_r3s3_st2_p1_f16_nhwc", "relu3001_f32",
)  # fmt: skip
SPREAD_PAIRS = [(a, text) for a in METHODS for text in SPREADS if takes(a, text)]


@needs_emulator
@pytest.mark.parametrize(("algorithm", "case"), [pair(*found) for found in PAIRS])
def test_case(algorithm: Any, case: Case) -> None:
    from convforge.backends.emulator import emulator_runtime

    check_case(algorithm, case, emulator_runtime("shuffled"))


@needs_emulator
@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_every_case_is_accepted_that_is_its_own(algorithm: Any) -> None:
    from convforge.backends.emulator import emulator_runtime

    check_accepted(algorithm, [case.text for case in CASES], emulator_runtime().facts)


@pytest.mark.one_in(41)
@needs_emulator
@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize(("algorithm", "text"), SPREAD_PAIRS, ids=[f"{named(a)}-{text}" for a, text in SPREAD_PAIRS])
def test_nan_and_inf_spread_as_declared(algorithm: Any, text: str, kind: str) -> None:
    from convforge.backends.emulator import emulator_runtime

    runtime, problem = emulator_runtime(), allowed(parse_problem(text), algorithm)
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    verdict = check_nan_spread(plan, kind)
    assert verdict.ok, verdict.message


@pytest.mark.one_in(8)
@needs_emulator
@pytest.mark.parametrize("algorithm", [a for a in CONVOLUTIONS if takes(a, WORKED[0].text)], ids=named)
def test_worked_values(algorithm: Any) -> None:
    """By the default config; the others are held to the truth in tests/algorithms, method by method."""
    from convforge.backends.emulator import emulator_runtime

    check_worked_values(algorithm, emulator_runtime(), configs=1)
