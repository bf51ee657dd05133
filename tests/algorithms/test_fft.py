"""The FFT method: overlap-save tiles of every size, the cost model, the workspace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases import WORKED, worked_inputs
from tests.strategies import FLOAT_SUMS, conv2d_problems, first_and_all

from convforge.algorithms.fft import Fft
from convforge.algorithms.fft.fft import FftConfig, modelled_flops
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.errors import WorkspaceTooSmall
from convforge.problem import PADDING_MODES, Conv2dProblem, parse_problem
from convforge.verify import check_nan_spread, check_plan, make_inputs


@first_and_all(FLOAT_SUMS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), more=st.tuples(st.integers(3, 20), st.integers(3, 20)), tiles=st.integers(1, 5))
def test_random_problems(dtypes: Any, data: Any, more: tuple[int, int], tiles: int) -> None:
    problem = data.draw(conv2d_problems(largest=24, dtypes=dtypes)).replace(precision="fft")
    config = FftConfig(problem.extent_h + more[0], problem.extent_w + more[1], tiles)
    verdict = check_plan(Fft().plan(problem, config, cpu_runtime()))
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_large_filters_at_every_border(mode: str) -> None:
    value = 1.5 if mode == "constant" else 0.0
    problem = Conv2dProblem(n=2, c=4, h=61, w=47, k=6, r=15, s=11, padding=(9, 7, 20, 0), groups=2, padding_mode=mode,
                            padding_value=value, x_layout="NHWC", out_layout="NCHW", precision="fft")  # fmt: skip
    configs = Fft().configs(problem, cpu_facts())
    assert len(set(configs)) == len(configs) > 1
    for config in configs:
        verdict = check_plan(Fft().plan(problem, config, cpu_runtime()))
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("worked", WORKED, ids=lambda w: w.text)
def test_worked_values(worked: Any) -> None:
    problem = parse_problem(worked.text)
    assert isinstance(problem, Conv2dProblem)
    problem, inputs = problem.replace(precision="fft"), worked_inputs(worked)
    for config in Fft().configs(problem, cpu_facts()):
        plan = Fft().plan(problem, config, cpu_runtime())
        out = plan(
            {
                "x": inputs.x,
                "w": plan.prepare(inputs.w),
                **inputs.operands,
                "out": np.full(problem.out_shape, np.nan, "f4"),
            }
        )
        assert np.rint(out).tolist() == worked.expected
        np.testing.assert_allclose(out, worked.expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_stays_in_its_picture(kind: str) -> None:
    problem = Conv2dProblem(n=3, c=2, h=40, w=41, k=2, r=7, s=7, precision="fft")
    for config in Fft().configs(problem, cpu_facts()):
        verdict = check_nan_spread(Fft().plan(problem, config, cpu_runtime()), kind)
        assert verdict.ok, verdict.message


def test_nan_stays_in_the_tiles_that_read_it() -> None:
    problem = Conv2dProblem(n=1, c=1, h=64, w=64, k=1, r=5, s=5, precision="fft")
    inputs = make_inputs(problem)
    x = inputs.x.copy()
    x[0, 0, 30, 2] = np.nan
    plan = Fft().plan(problem, FftConfig(16, 16, 3), cpu_runtime())  # tiles of 12 x 12 outputs, 24 to 35 the third
    out = plan({"x": x, "w": plan.prepare(inputs.w), "out": np.empty(problem.out_shape, "f4")})
    expected = np.zeros(problem.out_shape, bool)
    expected[0, 0, 24:36, 0:12] = True
    assert (np.isnan(out) == expected).all()


def test_chunks_bound_the_workspace() -> None:
    problem = Conv2dProblem(n=1, c=3, h=900, w=900, k=2, r=9, s=9, precision="fft")
    plans = [Fft().plan(problem, FftConfig(64, 64, tiles), cpu_runtime()) for tiles in (1, 8)]
    assert plans[0].workspace_bytes < plans[1].workspace_bytes < 8 * plans[0].workspace_bytes + 64
    assert len(plans[0].launches) > len(plans[1].launches)
    inputs = make_inputs(problem)
    results = [p({"x": inputs.x, "w": p.prepare(inputs.w), "out": np.empty(problem.out_shape, "f4")}) for p in plans]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)
    with pytest.raises(WorkspaceTooSmall, match="fft needs"):
        plans[1](
            {"x": inputs.x, "w": plans[1].prepare(inputs.w), "out": results[0], "workspace": np.empty(64, np.uint8)}
        )


def test_default_chunks_and_their_temporaries_are_bounded() -> None:
    problem = Conv2dProblem(n=8, c=3, h=2048, w=2048, k=3, r=31, s=31, groups=3, precision="fft")
    plan = Fft().plan(problem, Fft().configs(problem, cpu_facts())[0], cpu_runtime())
    assert plan.workspace_bytes + max(launch.scratch_bytes for launch in plan.launches) < 33 << 20


def test_the_model_prefers_larger_transforms_for_larger_filters() -> None:
    def best(size: int) -> int:
        problem = Conv2dProblem(n=1, c=1, h=2048, w=2048, k=1, r=size, s=size, precision="fft")
        return Fft().configs(problem, cpu_facts())[0].size_h

    assert best(5) < best(31) < best(101)
    problem = Conv2dProblem(n=1, c=1, h=512, w=512, k=1, r=9, s=9)
    sizes = [(c.size_h, c.size_w) for c in Fft().configs(problem, cpu_facts())]
    assert [modelled_flops(problem, *s) for s in sizes] == sorted(modelled_flops(problem, *s) for s in sizes)


@pytest.mark.parametrize(("text", "reason"), [
    ("n1c3h9w9_k2r3s3_u8-i8-i32-i32_nchw", "int32"),
    ("n1c4096h9w9_k4096r7s7_f32_nchw", "MiB"),
])  # fmt: skip
def test_refusals_name_their_reason(text: str, reason: str) -> None:
    assert reason in str(Fft().refuses(parse_problem(text), cpu_facts()))


@pytest.mark.parametrize("config", [FftConfig(2, 8, 1), FftConfig(8, 2, 1), FftConfig(8, 8, 0)])
def test_impossible_configs_are_refused(config: FftConfig) -> None:
    with pytest.raises(ValueError, match="must hold the filter"):
        Fft().plan(Conv2dProblem(n=1, c=1, h=8, w=8, k=1, r=3, s=3), config, cpu_runtime())
