"""im2col and implicit GEMM on the emulator: chunks, every product, every tile."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import Compiling, compiled
from tests.backends.emulated import needs_emulator

from convforge.algorithms.gemm.device import LADDER
from convforge.algorithms.im2col.device import MOST_CHUNKS, Im2col, Im2colConfig
from convforge.algorithms.implicit_gemm import device
from convforge.algorithms.implicit_gemm.device import ImplicitGemm
from convforge.backends.emulator.runtime import emulator_runtime
from convforge.problem import parse_problem
from convforge.verify import Judge, check_plan, make_inputs

pytestmark = needs_emulator

IM2COL, IMPLICIT = Im2col("emulator"), ImplicitGemm("emulator")
PROBLEMS = [
    "n2c3h17w19_k5r3s3_st2_p1_f32_nchw",
    "n2c6h11w13_k4r3s2_st1x2_p1x0x2x1_d2x1_g2_f32_nchw_+bias+residual+relu",
    "n2c32h9w10_k24r3s3_p1_g2_f32_nhwc_+scale:channel+bias",  # a step of implicit GEMM has one tap
    "n1c16h8w8_k20r3s3_p2_reflect_f32_nchw",
    "n2c16h8w9_k12r2s3_p1_flip_f16_nhwc",
    "n2c16h8w8_k8r3s3_p1_f64_nhwc_+bias",
    "n2c6h7w9_k20r3s3_p1_g2_constant2.5_bf16_nchw_+bias+residual+relu",
    "n1c24h6w7_k18r3s3_st2_p1_f16-f16-f32-f32_nhwc",
    "n1c16h8w10_k8r3s3_p1_constant1.5_f32_nhwc-kcrs-nchw",
    "n2c4h12w12_k4r3s3_p2_circular_f32_nchw-kcrs-nhwc",
    "n1c16h12w13_k6r3s3_p1_u8-i8-i32-i32_nhwc_+zero:113",
    "n1c8h12w13_k6r3s3_p1_u8-i8-u8-i32_nchw_+zero:7+scale:channel+relu",
    "n2c8h6w7_k5r1s1_f32_nhwc",
    "n0c2h9w10_k3r3s3_p1_f32_nchw",
]


@pytest.mark.one_in(11)
@pytest.mark.parametrize("algorithm", [IM2COL, IMPLICIT], ids=lambda a: a.name)
@pytest.mark.parametrize("text", PROBLEMS)
def test_convolutions(algorithm: Any, text: str) -> None:
    runtime, problem = emulator_runtime(), parse_problem(text)
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    for kind in ("normal", "integers"):
        verdict = check_plan(plan, Judge(problem, make_inputs(problem, kind)))
        assert verdict.ok, verdict.message


@pytest.mark.one_in(6)
@pytest.mark.parametrize("order", ["backward", "shuffled"])
@pytest.mark.parametrize("text", ["n2c16h13w12_k70r3s3_st2_p1_f32_nhwc", "n2c5h13w12_k70r3s3_p1_f32_nchw_+bias"])
def test_every_tile_of_implicit_gemm(text: str, order: str) -> None:
    runtime, problem = emulator_runtime(order), parse_problem(text)
    judge = Judge(problem, make_inputs(problem))
    for config in IMPLICIT.configs(problem, runtime.facts):
        verdict = check_plan(IMPLICIT.plan(problem, config, runtime), judge)
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("most", [64, 100, 37])
@pytest.mark.parametrize("text", ["n2c16h13w12_k12r3s3_st2_p1_f32_nhwc", "n2c5h13w12_k12r3s3_p1_f32_nchw_+bias"])
def test_more_columns_than_implicit_gemm_counts_take_several_launches(
    text: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "MOST_COLUMNS", most)
    runtime, problem = emulator_runtime(), parse_problem(text)
    plan = IMPLICIT.plan(problem, IMPLICIT.configs(problem, runtime.facts)[0], runtime)
    assert len(plan.launches) == -(-problem.n * problem.p * problem.q // most)
    verdict = check_plan(plan, Judge(problem, make_inputs(problem)))
    assert verdict.ok, verdict.message


@pytest.mark.one_in(5)
@pytest.mark.parametrize("gemm", LADDER)
@pytest.mark.parametrize("text", ["n2c18h13w12_k10r3s3_st2_p1_f32_nhwc_+relu", "n2c5h13w12_k10r3s3_p1_f32_nchw_+bias"])
def test_every_product_in_chunks(text: str, gemm: str) -> None:
    runtime, problem = emulator_runtime(), parse_problem(text)
    judge = Judge(problem, make_inputs(problem))
    for columns in (1 << 20, 37, 64):
        verdict = check_plan(IM2COL.plan(problem, Im2colConfig(columns, gemm), runtime), judge)
        assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [(IM2COL, None), (IM2COL, Im2colConfig(16, "gemm_split_mma")), (IMPLICIT, None)],
    ids=["im2col", "im2col by gemm_split_mma", "implicit_gemm"],
)
def test_pictures_and_outputs_of_any_strides(algorithm: Any, config: Any) -> None:
    runtime = emulator_runtime()
    for text in ("n2c16h6w8_k8r3s3_p1_f32_nchw_+residual", "n2c16h6w8_k8r3s3_p1_f32_nhwc_+residual"):
        problem = parse_problem(text)
        inputs = make_inputs(problem)
        plan = algorithm.plan(problem, config or algorithm.configs(problem, runtime.facts)[0], runtime)
        for place in (np.s_[1:, :, :, :], np.s_[:, 1:, :, :], np.s_[:, :, :, 1:], np.s_[:, :, :, ::-1]):
            x, residual = _placed(inputs.x, place), _placed(inputs.operands["residual"], place)
            out = _placed(np.full(problem.out_shape, np.nan, np.float32), place)
            plan(plan.buffers(x, plan.prepare(inputs.w), {"residual": residual}, out))
            verdict = Judge(problem, inputs).verdict("strict", np.ascontiguousarray(out))
            assert verdict.ok, f"{text} {place}: {verdict.message}"


def _placed(given: Any, place: Any) -> Any:
    """The same numbers in an array whose part `place` is as large."""
    shape = [size + 1 if part.start else size for size, part in zip(given.shape, place, strict=True)]
    found = np.zeros(shape, np.float32)[place]
    found[...] = given
    return found


def test_chunks_keep_to_a_workspace() -> None:
    problem = parse_problem("n32c64h56w56_k64r3s3_p1_f32_nchw")
    facts = dataclasses.replace(emulator_runtime().facts, memory_bytes=140 << 30, l2_bytes=60 << 20)
    chunks = [config.columns for config in IM2COL.configs(problem, facts) if config.gemm == "gemm_warp_tiled"]
    assert chunks[0] == 32 * 56 * 56
    assert min(chunks) * 64 * 9 * 4 < 4 << 20


def test_chunks_are_so_many_that_a_host_launches_them_in_time() -> None:
    problem = parse_problem("n32c1h2160w3840_k1r3s3_p1_f32_nchw")
    facts = dataclasses.replace(emulator_runtime().facts, memory_bytes=140 << 30, l2_bytes=60 << 20)
    columns = min(config.columns for config in IM2COL.configs(problem, facts))
    assert -(-32 * 2160 * 3840 // columns) <= MOST_CHUNKS


@pytest.mark.one_in(3)
@compiled
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("text", "columns", "kernels"),
    [
        ("n32c64h56w56_k64r3s3_p1_f32_nchw", 32 * 56 * 56, ["im2col", "split_pixels", "gemm_split_mma"]),
        ("n32c64h56w56_k64r3s3_p1_f32_nhwc_+bias+relu", 16 * 56 * 56, ["im2col", "split_pixels", "gemm_split_mma"] * 2),
        ("n1c512h7w7_k512r3s3_p1_f32_nchw", 49, ["im2col", "split_pixels", "gemm_split_mma", "sum_shares"]),
    ],
)
def test_products_of_halves_compile(text: str, columns: int, kernels: list[str], architecture: str) -> None:
    runtime: Any = Compiling(architecture)
    plan = Im2col().plan(parse_problem(text), Im2colConfig(columns, "gemm_split_mma"), runtime)
    assert [launch.kernel for launch in plan.launches] == kernels
    assert plan.preparation is not None
    assert [step.info.kernel for step in plan.preparation.steps] == ["pack_weights", "split_filters"]
    assert {step.name for step in plan.steps} == {"expansion", "product"}
    assert not any(launch.spills for launch in plan.launches)


@pytest.mark.parametrize("config", [Im2colConfig(0), Im2colConfig(8, "gemm"), Im2colConfig(8, tile=99)])
def test_configs_that_make_no_sense_are_refused(config: Im2colConfig) -> None:
    runtime, problem = emulator_runtime(), parse_problem("n1c3h9w9_k2r3s3_f32_nchw")
    with pytest.raises(ValueError, match=r"columns=0|gemm='gemm'|tile=99"):
        IM2COL.plan(problem, config, runtime)


def test_the_matrix_has_numbers_of_16_bits_where_those_are_multiplied() -> None:
    for types, nbytes in (("f16", 2), ("bf16", 2), ("f16-f32-f16-f32", 4), ("f32", 4)):
        problem = parse_problem(f"n2c16h9w9_k8r3s3_p1_{types}_nchw")
        assert IM2COL.work_for(problem).moved == problem.least_bytes + 2 * nbytes * (2 * 16 * 9 * 81)
