"""Every method that runs on GPUs, on every case, on the emulator: the same CUDA C++, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.emulated import needs_emulator
from tests.cases import CASES, WORKED, Case, worked_inputs
from tests.judged import allowed, judge_of, named

from convforge.algorithms import ON_DEVICE, refusal
from convforge.check import check_nan_spread, check_plan
from convforge.problem import parse_problem

METHODS = [a for a in ON_DEVICE if a.backend == "emulator"]
PAIRS = [(a, case) for a in METHODS for case in CASES if parse_problem(case.text).operation == a.operation]
SPREADS = ("n2c3h13w14_k4r3s3_p1_f32_nchw", "n1c2h9w10_k3r2s3_st2_p1_reflect_f32_nhwc")


@needs_emulator
@pytest.mark.parametrize(("algorithm", "case"), PAIRS, ids=[f"{named(a)}-{case}" for a, case in PAIRS])
def test_case(algorithm: Any, case: Case) -> None:
    from convforge.backends.emulator import emulator_runtime

    runtime = emulator_runtime("shuffled")
    problem = allowed(parse_problem(case.text), algorithm)
    if (reason := refusal(algorithm, problem, runtime.facts)) is not None:
        assert len(reason) > 10, f"{algorithm.name} refuses {case} with {reason!r}"
        return
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    for kind in case.kinds:
        verdict = check_plan(plan, judge_of(case.text, kind))
        assert verdict.ok, verdict.message


@needs_emulator
@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_every_case_is_accepted(algorithm: Any) -> None:
    from convforge.backends.emulator import emulator_runtime

    facts = emulator_runtime().facts
    mine = [p for p in (parse_problem(case.text) for case in CASES) if p.operation == algorithm.operation]
    assert mine
    assert [refusal(algorithm, p, facts) for p in mine] == [None] * len(mine)


@needs_emulator
@pytest.mark.parametrize("text", SPREADS)
@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_a_nan_spreads_as_far_as_the_method_says(algorithm: Any, text: str) -> None:
    from convforge.backends.emulator import emulator_runtime

    runtime, problem = emulator_runtime(), allowed(parse_problem(text), algorithm)
    if algorithm.operation != problem.operation:
        return
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    verdict = check_nan_spread(plan)
    assert verdict.ok, verdict.message


@needs_emulator
@pytest.mark.parametrize("algorithm", [a for a in METHODS if a.operation == "conv2d"], ids=named)
def test_worked_values(algorithm: Any) -> None:
    from convforge.backends.emulator import emulator_runtime

    runtime = emulator_runtime()
    for worked in WORKED:
        problem = parse_problem(worked.text)
        inputs = worked_inputs(worked)
        for config in algorithm.configs(problem, runtime.facts)[:4]:
            plan = algorithm.plan(problem, config, runtime)
            out = runtime.empty(problem.out_shape, problem.out_dtype)
            plan(inputs.x, plan.prepare(inputs.w), inputs.operands, out)
            assert out.tolist() == worked.expected
