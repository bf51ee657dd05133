"""Every CPU method of the list on every case: right, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases import CASES, CONV2D, WORKED, Case, worked_inputs
from tests.judged import allowed, judge_of, named
from tests.strategies import DTYPES, FIRST_DTYPES, conv2d_problems, dtypes_of, first_and_all

from convforge.algorithms import algorithms, refusal
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import parse_problem
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

METHODS = [a for a in algorithms() if a.backend == "cpu"]
CONVOLUTIONS = [a for a in METHODS if a.operation == "conv2d"]
STRICT = [a for a in CONVOLUTIONS if a.precision == "strict"]
PAIRS = [(a, case) for a in METHODS for case in CASES if parse_problem(case.text).operation == a.operation]

# A method that accepts fewer of its operation's cases says so here, with what it is for.
SPECIALISTS: dict[str, str] = {
    "gemm_1x1": "1x1 filters",
    "depthwise": "groups of one channel",
    "depthwise_int8": "groups of one channel, of 8-bit integers",
    "implicit_gemm_int8": "8-bit integers",
    "winograd_f2": "3x3 filters at stride 1",
    "winograd_f4": "3x3 filters at stride 1",
    "fft": "float pictures",
    "separable": "filters that factor",
}


def pair(algorithm: Any, case: Case | str) -> Any:
    """A method on a case, now or in ``make test-all``."""
    first = DTYPES if algorithm.name == "direct_naive" else FIRST_DTYPES
    later = dtypes_of(parse_problem(str(case))) not in first
    return pytest.param(algorithm, case, id=f"{algorithm.name}-{case}", marks=[pytest.mark.thorough] if later else [])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("algorithm", "case"), [pair(*found) for found in PAIRS])
def test_case(algorithm: Any, case: Case) -> None:
    problem = allowed(parse_problem(case.text), algorithm)
    reason = refusal(algorithm, problem, cpu_facts())
    if reason is not None:
        assert len(str(reason)) > 10, f"{algorithm.name} refuses {case} with {reason!r}"
        return
    configs = algorithm.configs(problem, cpu_facts())
    assert len(set(configs)) == len(configs) > 0
    for config in configs if case.every_config else configs[:1]:
        plan = algorithm.plan(problem, config, cpu_runtime())
        for kind in case.kinds:
            verdict = check_plan(plan, judge_of(case.text, kind))
            assert verdict.ok, verdict.message


@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_a_method_accepts_its_share_of_the_cases(algorithm: Any) -> None:
    problems = [allowed(parse_problem(case.text), algorithm) for case in CASES]
    mine = [p for p in problems if p.operation == algorithm.operation]
    accepted = [p for p in mine if refusal(algorithm, p, cpu_facts()) is None]
    least = 2 if algorithm.name in SPECIALISTS else 0.8 * len(mine)
    assert len(accepted) >= least, f"{algorithm.name} accepts {len(accepted)} of {len(mine)} cases"


@pytest.mark.parametrize("worked", WORKED, ids=lambda w: w.text)
@pytest.mark.parametrize("algorithm", CONVOLUTIONS, ids=named)
def test_worked_values(algorithm: Any, worked: Any) -> None:
    problem = allowed(parse_problem(worked.text), algorithm)
    if reason := refusal(algorithm, problem, cpu_facts()):
        assert len(str(reason)) > 10
        return
    inputs = worked_inputs(worked)
    for config in algorithm.configs(problem, cpu_facts()):
        plan = algorithm.plan(problem, config, cpu_runtime())
        out = np.full(problem.out_shape, np.nan, problem.out_dtype)
        plan(plan.buffers(inputs.x, plan.prepare(inputs.w), inputs.operands, out))
        assert np.rint(out).astype(int).tolist() == worked.expected
        if algorithm.precision == "strict":
            assert out.tolist() == worked.expected


SPREADS = [
    "n2c2h24w25_k3r3s3_st1_p1_f32_nchw",
    "n2c4h13w12_k4r3s3_st2_p1_g2_f32_nhwc",
    "n2c3h9w10_k4r1s1_f32_nchw",
    "n1c2h30w31_k2r5s5_p2_reflect_f32_nchw_+bias",
    "n1c2h9w10_k2r3s3_p1_f16_nchw",
    "n1c2h9w10_k2r3s3_p1_bf16_nchw",
    "n2c2h9w9_k2r3s3_p1_f64_nchw_+relu",
    "m9n8k7_f32",
    "m9n8k7_ta_tb_f64",
    "max_n2c2h9w10_r3s3_st2_p1_f32_nchw",
    "relu100_f32",
]
SPREAD_PAIRS = [(a, text) for a in METHODS for text in SPREADS if parse_problem(text).operation == a.operation]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize(("algorithm", "text"), [pair(*found) for found in SPREAD_PAIRS])
def test_nan_and_inf_spread_as_declared(algorithm: Any, text: str, kind: str) -> None:
    problem = allowed(parse_problem(text), algorithm)
    if reason := refusal(algorithm, problem, cpu_facts()):
        assert len(str(reason)) > 10
        return
    plan = algorithm.plan(problem, algorithm.configs(problem, cpu_facts())[0], cpu_runtime())
    verdict = check_nan_spread(plan, kind)
    assert verdict.ok, verdict.message


def laid_out(array: np.ndarray, how: str) -> np.ndarray:
    """The same numbers in an array of other strides."""
    if how == "sliced":
        wide = np.full([2 * size + 3 for size in array.shape], 99, array.dtype)
        seen = wide[tuple(slice(1, 1 + 2 * size, 2) for size in array.shape)]
    elif how == "reversed":
        seen = np.full(array.shape, 99, array.dtype)[::-1, ::-1, ::-1, ::-1]
    elif how == "transposed":
        seen = np.full(array.shape[::-1], 99, array.dtype).transpose()
    elif how == "packed":  # a field of records: strides that are no whole elements
        seen = np.zeros(array.shape, np.dtype([("tag", "u1"), ("value", array.dtype)]))["value"]
    elif how == "unaligned":
        raw = np.zeros(array.nbytes + 1, np.uint8)
        seen = raw[1:].view(array.dtype).reshape(array.shape)
    else:
        seen = np.full(array.shape, 99, array.dtype)
    seen[...] = array
    if how == "read-only":
        seen.flags.writeable = False
    return seen


STRIDED = [
    "n2c3h9w10_k4r3s3_p1_f32_nchw",
    "n2c3h9w10_k4r3s3_p1_f32_nhwc",
    "n2c3h9w10_k4r1s1_f32_nchw",
    "n2c3h9w10_k4r3s3_p1_f32_nchw_+bias+residual",
    "n2c3h9w10_k4r3s3_p1_bf16_nhwc_+bias+residual",
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", ["sliced", "reversed", "transposed", "packed", "unaligned", "read-only"])
@pytest.mark.parametrize("text", STRIDED)
@pytest.mark.parametrize("algorithm", CONVOLUTIONS, ids=named)
def test_arrays_of_any_strides(algorithm: Any, text: str, how: str) -> None:
    problem = allowed(parse_problem(text), algorithm)
    if reason := refusal(algorithm, problem, cpu_facts()):
        assert len(str(reason)) > 10
        return
    judge = judge_of(text, "normal")
    inputs, operands = judge.inputs, judge.inputs.operands
    if "residual" in operands:
        operands = {**operands, "residual": laid_out(operands["residual"], how)}
    plan = algorithm.plan(problem, algorithm.configs(problem, cpu_facts())[0], cpu_runtime())
    for x, w, out_as in ((how, "plain", "plain"), ("plain", how, "plain"), ("plain", "plain", how)):
        if out_as == "read-only":
            continue
        out = laid_out(np.full(problem.out_shape, np.nan, problem.out_dtype), out_as)
        plan(plan.buffers(laid_out(inputs.x, x), plan.prepare(laid_out(inputs.w, w)), operands, out))
        verdict = judge.verdict(algorithm.precision, out)
        assert verdict.ok, verdict.message


@first_and_all(DTYPES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(0, 99))
def test_random_problems(dtypes: Any, data: Any, seed: int) -> None:
    problem = data.draw(conv2d_problems(dtypes=dtypes))
    judge = Judge(problem, make_inputs(problem, seed=seed))
    tried = 0
    for algorithm in CONVOLUTIONS:
        wanted = allowed(problem, algorithm)
        if refusal(algorithm, wanted, cpu_facts()) is not None:
            continue
        plan = algorithm.plan(wanted, algorithm.configs(wanted, cpu_facts())[0], cpu_runtime())
        verdict = check_plan(plan, judge)
        assert verdict.ok, verdict.message
        tried += 1
    assert tried >= 2


def test_the_weights_may_change_after_they_are_prepared() -> None:
    """A prepared filter owns its copies."""
    for algorithm in CONVOLUTIONS:
        for case in CONV2D[:2]:
            problem = allowed(parse_problem(case.text), algorithm)
            if refusal(algorithm, problem, cpu_facts()) is not None:
                continue
            judge = judge_of(case.text, "normal")
            w = judge.inputs.w.copy()
            plan = algorithm.plan(problem, algorithm.configs(problem, cpu_facts())[0], cpu_runtime())
            prepared = plan.prepare(w)
            w[...] = np.nan
            out = np.empty(problem.out_shape, problem.out_dtype)
            plan(plan.buffers(judge.inputs.x, prepared, judge.inputs.operands, out))
            verdict = judge.verdict(algorithm.precision, out)
            assert verdict.ok, verdict.message


def test_a_large_picture_is_checked_on_a_sample_of_its_rows() -> None:
    """More FLOPs than the gate looks at: a border row and seams between tiles are among what it does."""
    problem = parse_problem("n1c3h900w1111_k3r3s3_p1_f32_nchw")
    algorithm = STRICT[-1] if refusal(STRICT[-1], problem, cpu_facts()) is None else STRICT[0]
    plan = algorithm.plan(problem, algorithm.configs(problem, cpu_facts())[0], cpu_runtime())
    verdict = check_plan(plan)
    assert verdict.ok, verdict.message
