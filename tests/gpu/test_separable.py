"""Filters factored on a GPU: held against NumPy's decomposition, and inside a graph."""

from __future__ import annotations

import numpy as np
import pytest
from tests.algorithms.ranks import fault_of_factors, filters_of_every_rank
from tests.gpu.present import gpu, need_gpu
from tests.judged import judge_of

from convforge.algorithms.separable.device import Separable
from convforge.algorithms.separable.factor import DeviceFactors
from convforge.problem import parse_problem

need_gpu()


@pytest.mark.parametrize("types", ["f32", "f64", "f16", "u8-u8-u8-f32"])
@pytest.mark.parametrize("size", ["r3s3", "r13s6", "r1s63", "r31s31", "r63s63", "r180s180"])
def test_factors_of_every_rank(size: str, types: str) -> None:
    runtime, problem = gpu(), parse_problem(f"n1c2h200w200_k8{size}_{types}_nchw_math-separable")
    w = filters_of_every_rank(problem.w_shape, problem.w_dtype, problem.acc_dtype)
    found = DeviceFactors(problem, runtime)(runtime.upload(w))
    runtime.synchronize()
    tensors = {name: np.asarray(runtime.download(array)) for name, array in found.tensors.items()}
    assert fault_of_factors(w, tensors, problem.acc_dtype) is None
    assert str(found.note) == f"rank {tensors['ranks'].max()}, factor error {tensors['errors'].max():.0e}"


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_call_that_prepares_its_filter_can_be_captured(layout: str) -> None:
    runtime, problem = gpu(), parse_problem(f"n1c6h100w140_k6r5s7_p2x3_g6_f32_{layout}_math-separable")
    judge = judge_of(str(problem), "ranks")
    method = Separable("cuda")
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    x, w, out = runtime.upload(judge.inputs.x), runtime.upload(judge.inputs.w), runtime.empty(problem.out_shape, "f4")
    plan({"x": x, "w": plan.prepare(w), "out": out})
    runtime.fill(out, 0xFF)
    assert runtime.time(lambda: plan({"x": x, "w": plan.prepare(w), "out": out}), 3) > 0
    verdict = judge.verdict("separable", np.ascontiguousarray(runtime.download(out)))
    assert verdict.ok, verdict.message
