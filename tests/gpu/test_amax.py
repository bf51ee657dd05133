"""amax of the methods of 8-bit floats, on a GPU or the emulator: configs, shares, arrays, captured calls, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_amax import AMAX_FAULTS
from tests.algorithms.planted import Fault
from tests.gpu.hopper import hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.gpu.planted import check_that_it_is_noticed
from tests.judged import judge_of

import convforge
from convforge import Quantization
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan

pytestmark = needs_hopper

NAMES = ("implicit_gemm_fp8", "implicit_gemm_fp8_fast", "implicit_gemm_fp8_mma")
# Results that saturate; ragged tiles, with a residual; threads that store; groups, whose tiles reach into others; few
# tiles, whose channels are shared out; pixels that are repacked.
PROBLEMS = (
    "n2c80h9w11_k80r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_+scale:tensor+bias+out:0.03:0+amax",
    "n1c48h9w9_k48r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_+scale:tensor+residual+amax:0.5",
    "n2c72h7w9_k64r3s3_st2_p1_f8e4m3-f8e5m2-bf16-f32_nchw_+scale:channel+bias+relu+amax",
    "n1c128h6w7_k256r3s3_p1_g2_f8e5m2-f8e4m3-f16-f32_nhwc_+bias+amax",
    "n1c512h7w7_k48r3s3_p1_f8e4m3-f8e4m3-f8e5m2-f32_nhwc_+bias+silu+out:0.5:0+amax",
    "n1c40h9w10_k36r3s3_p1_reflect_f8e4m3-f8e4m3-f32-f32_nchw_+amax",
)


def text_for(name: str, text: str) -> str:
    return f"{text}_math-{'fp8fast' if name.endswith('fast') else 'fp8'}"


@pytest.mark.one_in(11)
@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_right(name: str, text: str) -> None:
    problem: Any = parse_problem(text_for(name, text))
    method = method_of("conv2d", name)
    found = list(method.configs(problem, hopper().facts))
    shared = [config for config in found if config.split_k > 1][:1]
    for config in dict.fromkeys([*some(found, 6), *shared]):
        plan = method.plan(problem, config, hopper())
        assert plan.launches[0].kernel == "clear_amax"
        verdict = check_plan(plan, judge_of(str(problem), "normal"))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_arrives(name: str, kind: str) -> None:
    text = "n1c64h9w9_k32r3s3_p1_f8e5m2-f8e5m2-f16-f32_nhwc_+bias+amax"
    problem: Any = parse_problem(text_for(name, text))
    method = method_of("conv2d", name)
    plan = method.plan(problem, method.configs(problem, hopper().facts)[0], hopper())
    verdict = check_nan_spread(plan, kind)
    assert verdict.ok, verdict.message


@on_gpu_alone
@pytest.mark.parametrize("fault", AMAX_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    run = fault.run
    check_that_it_is_noticed(method_of("conv2d", run.method), fault, judge_of(run.problem, run.kind), tmp_path)


def layer(torch: Any, precision: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    torch.manual_seed(0)
    x, w = (torch.randn(size, device="cuda").to(torch.float8_e4m3fn) for size in ((4, 64, 14, 14), (96, 64, 3, 3)))
    q = Quantization(x=(0.25, 0), w=(0.5, 0), output=(0.02, 0))
    return x, w, torch.randn(96, device="cuda"), {"padding": 1, "precision": precision, "quantization": q}


def expected_of(torch: Any, x: Any, w: Any, bias: Any) -> float:
    y = torch.nn.functional.conv2d(x.double(), w.double(), padding=1) * 0.125 + bias.double().reshape(-1, 1, 1)
    return float(y.abs().max())


@on_gpu_alone
@pytest.mark.parametrize("precision", ["fp8", "fp8_fast"])
def test_tensors_on_a_gpu(precision: str) -> None:
    torch = pytest.importorskip("torch")
    x, w, bias, options = layer(torch, precision)
    amax = torch.full((), 1e9, device="cuda")
    y = convforge.conv2d(x, w, bias, amax=amax, **options)
    assert amax.item() == pytest.approx(expected_of(torch, x, w, bias), rel=5e-3)
    held = convforge.Filter(w, bias, **options)
    for scale in (1.0, 2.0, 0.5, 1.0):  # the later calls are those of the call cache
        other = (x.float() * scale).to(torch.float8_e4m3fn)
        got = held(other, amax=amax)
        assert amax.item() == pytest.approx(expected_of(torch, other, w, bias), rel=5e-3)
        assert torch.equal(got.view(torch.uint8), held(other).view(torch.uint8))
    assert torch.equal(y.view(torch.uint8), held(x).view(torch.uint8))
    elsewhere = torch.zeros(1, device="cuda")
    held(x, amax=elsewhere)
    assert elsewhere.item() == pytest.approx(expected_of(torch, x, w, bias), rel=5e-3)


@on_gpu_alone
def test_a_captured_call_sets_it_each_time() -> None:
    torch = pytest.importorskip("torch")
    x, w, bias, options = layer(torch, "fp8")
    held, amax = convforge.Filter(w, bias, **options), torch.zeros(1, device="cuda")
    held(x, amax=amax)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        held(x, amax=amax)  # prepares the weights for this stream
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            held(x, amax=amax)
    for scale in (2.0, 0.5):
        x.copy_((x.float() * scale).to(torch.float8_e4m3fn))
        graph.replay()
        torch.cuda.synchronize()
        assert amax.item() == pytest.approx(expected_of(torch, x, w, bias), rel=5e-3)


@on_gpu_alone
def test_a_call_without_it_launches_as_before() -> None:
    text = "n2c64h14w14_k96r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8_+scale:tensor+bias"
    method = method_of("conv2d", "implicit_gemm_fp8")
    plans = [
        method.plan(problem, method.configs(problem, hopper().facts)[0], hopper())
        for problem in (parse_problem(text), parse_problem(text + "+amax"))
    ]
    kernels = [[info.kernel for info in plan.launches] for plan in plans]
    assert kernels == [["implicit_gemm_fp8"], ["clear_amax", "implicit_gemm_fp8"]]
    assert np.prod(plans[0].launches[0].grid) == np.prod(plans[1].launches[1].grid)
