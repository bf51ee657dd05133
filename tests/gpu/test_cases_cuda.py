"""Every method that runs on GPUs, on every case, in both layouts, on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.cases import CASES, WORKED, Case
from tests.gpu.present import gpu, need_gpu
from tests.judged import allowed, named
from tests.on_device import (
    check_accepted,
    check_case,
    check_worked_values,
    in_the_other_layout,
    takes,
)

from convforge.algorithms import ON_DEVICE
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread

need_gpu()

METHODS = [a for a in ON_DEVICE if a.backend == "cuda"]
CONVOLUTIONS = [a for a in METHODS if a.operation == "conv2d"]
LAID_OUT = [(case, text) for case in CASES for text in (case.text, in_the_other_layout(case.text)) if text]
ROWS = [
    (a, case, text) for a in METHODS for case, text in LAID_OUT if parse_problem(case.text).operation == a.operation
]
SPREADS = (
    "n2c3h13w14_k4r3s3_p1_f32_nchw", "n1c2h9w10_k3r2s3_st2_p1_reflect_f32_nhwc", "n2c6h23w24_k6r7s7_p3_g6_f32_nchw",
    "n2c8h13w14_k8r3s3_p1_g8_f32_nhwc",
)  # fmt: skip


def pairs_of(texts: Iterable[str]) -> list[tuple[Any, str]]:
    """Convolutions and the problems that they take."""
    return [(a, text) for a in CONVOLUTIONS for text in texts if takes(a, text)]


@pytest.mark.parametrize(("algorithm", "case", "text"), ROWS, ids=[f"{named(a)}-{text}" for a, _, text in ROWS])
def test_case(algorithm: Any, case: Case, text: str) -> None:
    check_case(algorithm, case, gpu(), text=text, every_config=text == case.text)


@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_every_case_is_accepted_that_is_its_own(algorithm: Any) -> None:
    check_accepted(algorithm, [text for _, text in LAID_OUT], gpu().facts)


@pytest.mark.parametrize(("algorithm", "text"), pairs_of(SPREADS), ids=str)
def test_a_nan_spreads_as_far_as_the_method_says(algorithm: Any, text: str) -> None:
    problem = allowed(parse_problem(text), algorithm)
    plan = algorithm.plan(problem, algorithm.configs(problem, gpu().facts)[0], gpu())
    verdict = check_nan_spread(plan)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("algorithm", [a for a in CONVOLUTIONS if takes(a, WORKED[0].text)], ids=named)
def test_worked_values(algorithm: Any) -> None:
    check_worked_values(algorithm, gpu())
