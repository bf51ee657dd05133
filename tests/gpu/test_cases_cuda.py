"""Every method that runs on GPUs, on every case, in both layouts, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases import CASES, Case
from tests.gpu.present import gpu, need_gpu
from tests.judged import allowed, named
from tests.on_device import BFLOAT16, check_bfloat16, check_case, check_worked_values, in_the_other_layout

from convforge.algorithms import ON_DEVICE, refusal
from convforge.check import check_nan_spread
from convforge.problem import parse_problem

need_gpu()

METHODS = [a for a in ON_DEVICE if a.backend == "cuda"]
CONVOLUTIONS = [a for a in METHODS if a.operation == "conv2d"]
LAID_OUT = [(case, text) for case in CASES for text in (case.text, in_the_other_layout(case.text)) if text]
ROWS = [
    (a, case, text) for a in METHODS for case, text in LAID_OUT if parse_problem(case.text).operation == a.operation
]
SPREADS = ("n2c3h13w14_k4r3s3_p1_f32_nchw", "n1c2h9w10_k3r2s3_st2_p1_reflect_f32_nhwc")


@pytest.mark.parametrize(("algorithm", "case", "text"), ROWS, ids=[f"{named(a)}-{text}" for a, _, text in ROWS])
def test_case(algorithm: Any, case: Case, text: str) -> None:
    check_case(algorithm, case, gpu(), text=text, every_config=text == case.text)


@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_every_case_is_accepted(algorithm: Any) -> None:
    mine = [p for p in (parse_problem(text) for _, text in LAID_OUT) if p.operation == algorithm.operation]
    assert mine
    assert [refusal(algorithm, p, gpu().facts) for p in mine] == [None] * len(mine)


@pytest.mark.parametrize("text", SPREADS)
@pytest.mark.parametrize("algorithm", CONVOLUTIONS, ids=named)
def test_a_nan_spreads_as_far_as_the_method_says(algorithm: Any, text: str) -> None:
    problem = allowed(parse_problem(text), algorithm)
    plan = algorithm.plan(problem, algorithm.configs(problem, gpu().facts)[0], gpu())
    verdict = check_nan_spread(plan)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("algorithm", CONVOLUTIONS, ids=named)
def test_worked_values(algorithm: Any) -> None:
    check_worked_values(algorithm, gpu())


@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", BFLOAT16)
@pytest.mark.parametrize("algorithm", CONVOLUTIONS, ids=named)
def test_bfloat16(algorithm: Any, text: str, kind: str) -> None:
    check_bfloat16(algorithm, text, kind, gpu())
