"""implicit_gemm_int8, _fp8 and _fp8_fast on a GPU or the emulator: configs, ties, equal bits, faults."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_wgmma_bytes import BYTES_FAULTS
from tests.algorithms.planted import Fault
from tests.gpu.hopper import hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.gpu.planted import check_that_it_is_noticed
from tests.gpu.test_bytes_mma import at_the_bound
from tests.judged import judge_of

from convforge.algorithms import refusal
from convforge.algorithms.implicit_gemm.wgmma_tiles import PAIRS, WgmmaConfig
from convforge.problem import parse_problem
from convforge.problem.types import numpy_dtype
from convforge.tuning.heuristic import preferred
from convforge.verify import Judge, check_plan, make_inputs

NAMES = "implicit_gemm_int8", "implicit_gemm_fp8", "implicit_gemm_fp8_fast"
METHODS: Any = {name: method_of("conv2d", name) for name in NAMES}
pytestmark = needs_hopper

# Zero points with borders at all sides, strides, dilation; all types; scales for which a tile's results are within the
# range of integers (of the tensor) and for which they are not (of channels); activations, residuals; results that
# threads store; groups; pixels that are repacked; few tiles, whose channels are shared out; weights in two passes.
WHOLE = (
    "n2c48h9w7_k160r3s2_p1x2x0x1_st2x1_u8-i8-u8-i32_nhwc_+zero:77+scale:channel+bias",
    "n2c144h13w11_k96r3s3_p1_i8-i8-i8-i32_nhwc_+zero:-5+scale:tensor+bias+relu+out:1.0:-7",
    "n1c64h8w9_k64r1s1_u8-i8-u8-i32_nhwc_+zero:200+scale:tensor+bias+residual:0.7+clippedrelu:40.0+out:1.0:9",
    "n2c128h8w8_k160r1s1_u8-u8-i8-i32_nhwc_+scale:channel+residual", "n1c32h9w9_k48r3s3_p1_i8-u8-i32-i32_nhwc",
    "n1c64h9w9_k96r3s3_p1_i8-i8-i8-i32_nhwc_+scale:tensor+residual+out:0.5:3+sigmoid",
    "n1c272h7w7_k130r3s3_p2_d2_u8-u8-i32-i32_nhwc_+zero:200",
    "n2c24h9w10_k20r3s3_p1_i8-i8-f16-i32_nchw_+zero:-3+scale:tensor",
    "n2c64h9w9_k256r3s3_p1_g2_i8-u8-i8-i32_nhwc_+scale:channel+bias+relu",
    "n1c40h9w8_k48r3s3_p1_g4_u8-i8-f32-i32_nhwc_+zero:3",
    "n2c40h9w7_k40r3s3_p1_reflect_u8-i8-u8-i32_nhwc_+zero:9+scale:channel+bias",
    "n1c3h20w21_k32r7s7_st2_p3_u8-i8-u8-i32_nhwc_+zero:128+scale:tensor",
    "n2c144h9w11_k96r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:128+scale:channel+bias",
    "n1c400h5w5_k32r1s1_i8-i16-i32-i32_nchw_wmax255_+zero:-3",
    "n2c64h9w9_k128r3s2_st2x1_p1x0x0x1_flip_g2_u8-i16-i8-i32_nhwc_wmax255_+scale:tensor+relu",
)  # fmt: skip
FLOATS = (
    "n1c128h9w9_k160r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8_+scale:tensor",
    "n1c300h9w9_k64r3s3_p1_f8e5m2-f8e4m3-f32-f32_nhwc_math-fp8_+bias",
    "n1c48h9w9_k48r3s3_p1_f8e4m3-f8e4m3-f8e4m3-f32_nhwc_math-fp8_+scale:tensor+residual",
    "n2c72h7w9_k64r3s3_st2_p1_f8e4m3-f8e5m2-bf16-f32_nchw_math-fp8_+scale:channel+bias+relu",
)  # fmt: skip
FAST = tuple(text.replace("math-fp8", "math-fp8fast") for text in FLOATS)
ALL = (*WHOLE, *FLOATS, *FAST)


def method(text: str) -> Any:
    name = "implicit_gemm_fp8_fast" if "fp8fast" in text else "implicit_gemm_fp8"
    return METHODS[name if "f8" in text else "implicit_gemm_int8"]


def configs(text: str) -> list[WgmmaConfig]:
    """The default, others from all along the list, one of each way."""
    found = list(method(text).configs(parse_problem(text), hopper().facts))
    ways: dict[Any, WgmmaConfig] = {}
    for config in found:
        ways.setdefault((config.patch, config.filters_on_m, config.scattered, config.split_k > 1), config)
    pairs = [config for kind in PAIRS[1:] for config in [c for c in found if c.pairs == kind][:1]]
    repacked = replace(found[0], repacked=True, scattered=True)
    return list(dict.fromkeys([*some(found, 4), *ways.values(), *pairs, repacked]))


@pytest.mark.one_in(30)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", ALL)
def test_every_config_is_right(text: str, kind: str) -> None:
    found = configs(text)
    assert len(found) >= 2
    for config in found:
        verdict = check_plan(method(text).plan(parse_problem(text), config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize("on_m", [False, True])
def test_filters_of_both_passes_stay_in_shared_memory(on_m: bool) -> None:
    text = "n2c64h17w16_k64r3s3_p1_u8-i16-u8-i32_nhwc_wmax255_+zero:128+scale:channel+bias"
    problem: Any = parse_problem(text)
    found = [c for c in method(text).configs(problem, hopper().facts) if c.resident and c.filters_on_m == on_m]
    assert found
    verdict = check_plan(method(text).plan(problem, found[0], hopper()), judge_of(text, "normal"))
    assert verdict.ok, f"{found[0]}: {verdict.message}"


@pytest.mark.parametrize("what", ["u8-i16-i32-i32_nhwc_wmax255", "i8-i16-i32-i32_nhwc_wmax255_+zero:127"])
def test_sums_of_two_passes_at_the_bound_of_int32(what: str) -> None:
    text = f"n1c33024h1w3_k8r1s1_{what}"
    problem: Any = parse_problem(text)
    for config in (replace(c, split_k=1) for c in method(text).configs(problem, hopper().facts)[:1]):
        verdict = check_plan(method(text).plan(problem, config, hopper()), at_the_bound(problem))
        assert verdict.ok, verdict.message


def test_tiles_of_one_level_are_as_wide_as_those_of_integers() -> None:
    text = "n32c256h28w28_k256r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8fast"
    columns = {name: {c.columns for c in METHODS[name].configs(parse_problem(text), hopper().facts)} for name in NAMES}
    assert max(columns["implicit_gemm_fp8_fast"]) == 256 > max(columns["implicit_gemm_fp8"])
    refused = replace(METHODS["implicit_gemm_fp8_fast"].configs(parse_problem(text), hopper().facts)[0], rows=2)
    assert "more sums than a thread has registers" in str(replace(refused, columns=256).refusal(
        parse_problem(text), hopper().facts
    ))  # fmt: skip


def test_fp8_fast_allows_fp8_and_not_the_other_way_round() -> None:
    text, facts = FLOATS[0], hopper().facts
    fast = [a.name for a, _ in preferred(parse_problem(text.replace("math-fp8", "math-fp8fast")), facts)]
    assert fast[:2] == ["implicit_gemm_fp8_fast", "implicit_gemm_fp8"]
    assert "implicit_gemm_fp8_fast" not in [a.name for a, _ in preferred(parse_problem(text), facts)]
    refused = refusal(METHODS["implicit_gemm_fp8_fast"], parse_problem(text), facts)
    assert str(refused) == "its arithmetic is 'fp8_fast'; the problem allows 'fp8': ask for it by name"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("on_m", [False, True])
@pytest.mark.parametrize("out", ["uint8", "int8"])
def test_ties_and_bounds(out: str, on_m: bool) -> None:
    """Results that are halves, and sums whose factors bring them beyond 2^31 or just beside it."""
    dtype = {"uint8": "u8", "int8": "i8"}[out]
    text = f"n1c32h8w8_k64r1s1_i8-i8-{dtype}-i32_nhwc_+scale:channel+bias"
    problem: Any = parse_problem(text)
    inputs = make_inputs(problem, "normal")
    found = next(c for c in method(text).configs(problem, hopper().facts) if c.filters_on_m == on_m and not c.scattered)
    plan = method(text).plan(problem, found, hopper())
    for scales in ([0.5, 0.25, 2.0**-9, 2.0**-3], [2.0**20, 2.0**12, 0.5, 2.0**-40]):
        scale = np.resize(scales, problem.k)
        operands = {"scale": scale, "bias": np.resize([0.0, 0.25, -0.5, 2.0**30, -(2.0**31)], problem.k)}
        judge = Judge(problem, dataclasses.replace(inputs, operands=operands))
        verdict = check_plan(plan, judge)
        assert verdict.ok, verdict.message


@pytest.mark.one_in(8)
@pytest.mark.parametrize("text", FLOATS)
def test_configs_of_floats_give_the_same_bits(text: str) -> None:
    """A row of 128 channels is added at a time by every tile that has all channels."""
    problem: Any = parse_problem(text)
    inputs, seen = make_inputs(problem, "normal"), []
    for config in [config for config in configs(text) if config.split_k == 1]:
        plan = method(text).plan(problem, config, hopper())
        out = hopper().upload(np.zeros(problem.out_shape, numpy_dtype(problem.out_dtype)))
        there = {name: hopper().upload(array) for name, array in inputs.operands.items()}
        plan(plan.buffers(hopper().upload(inputs.x), plan.prepare(hopper().upload(inputs.w)), there, out))
        seen.append(np.asarray(hopper().download(out)).tobytes())
    assert len(set(seen)) == 1


@on_gpu_alone
@pytest.mark.parametrize("fault", BYTES_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    run = fault.run
    check_that_it_is_noticed(METHODS[run.method], fault, judge_of(run.problem, run.kind), tmp_path)
