"""The GEMM ladder's kernels on the emulator: every step, every way that operands and the output may lie."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator

from convforge.algorithms import find
from convforge.algorithms.gemm.device import LADDER, BlockConfig, GemmNaive, GemmShared, SquareConfig
from convforge.algorithms.gemm.product import operand
from convforge.backends.emulator.runtime import emulator_runtime
from convforge.problem import parse_problem
from convforge.verify import Judge, check_plan, make_inputs

pytestmark = needs_emulator

STEPS = [step("emulator") for step in LADDER.values()]


@pytest.mark.one_in(10)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@pytest.mark.parametrize("order", ["backward", "shuffled"])
def test_every_config_in_other_orders_of_threads(step: Any, order: str) -> None:
    runtime, problem = emulator_runtime(order), parse_problem("m140n133k37_f32")
    judge = Judge(problem, make_inputs(problem))
    for config in step.configs(problem, runtime.facts):
        verdict = check_plan(step.plan(problem, config, runtime), judge)
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@pytest.mark.parametrize("text", ["m40n36k32_f32", "m40n36k32_ta_tb_f32"])
def test_operands_and_outputs_of_any_strides_and_alignment(step: Any, text: str) -> None:
    runtime, problem = emulator_runtime(), parse_problem(text)
    inputs = make_inputs(problem)
    judge = Judge(problem, inputs)
    plan = step.plan(problem, step.configs(problem, runtime.facts)[0], runtime)

    def gaps(array: np.ndarray) -> np.ndarray:
        return np.repeat(np.repeat(array, 2, axis=0), 3, axis=1)[::2, ::3]

    def shifted(array: np.ndarray) -> np.ndarray:  # rows begin at any multiple of an element
        wide = np.zeros((array.shape[0], array.shape[1] + 5), array.dtype)
        wide[:, 3:-2] = array
        return wide[:, 3:-2]

    def backwards(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]

    def columns_first(array: np.ndarray) -> np.ndarray:
        return np.asfortranarray(array)

    for how in (gaps, shifted, backwards, columns_first):
        out = how(np.full((problem.m, problem.n), np.nan, problem.dtype))
        plan({"a": how(inputs.x), "b": plan.prepare(how(inputs.w)), "c": out})
        verdict = judge.verdict("strict", np.ascontiguousarray(out))
        assert verdict.ok, f"{how.__name__}: {verdict.message}"


def test_sixteen_bytes_are_loaded_at_once_only_where_they_are_aligned() -> None:
    assert operand(256, 4, 1, 8, False).vectors
    assert operand(256, 4, 8, 1, True).vectors
    assert not operand(260, 4, 1, 8, False).vectors
    assert not operand(256, 4, 1, 7, False).vectors
    assert not operand(256, 4, 2, 8, False).vectors
    assert not operand(256, 4, 1, 8, False, group=6).vectors
    with pytest.raises(ValueError, match="make the matrix contiguous first"):
        operand(256, 4, 1, 2**31, False)


def test_blocks_that_no_kernel_has_are_refused() -> None:
    runtime, problem = emulator_runtime(), parse_problem("m8n8k8_f32")
    with pytest.raises(ValueError, match="32 to 1024 threads"):
        GemmNaive("emulator").plan(problem, BlockConfig(64, 32), runtime)
    with pytest.raises(ValueError, match="sides of 6 to 32"):
        GemmShared("emulator").plan(problem, SquareConfig(48), runtime)
    with pytest.raises(ValueError, match="a grid has at most"):
        GemmNaive("emulator").plan(dataclasses.replace(problem, m=2**22, n=2**22), BlockConfig(8, 8), runtime)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("gemm_tile_1d", {"thread_m": 7}, "do not cover 64 x 64 exactly"),
        ("gemm_tile_1d", {"thread_n": 2}, "a thread has one column of sums, not 2"),
        ("gemm_tile_1d", {"block_n": 48}, "must be a multiple of 32"),
        ("gemm_tile_2d", {"block_n": 65}, "do not cover 128 x 65 exactly"),
        ("gemm_tile_2d", {"block_m": 8, "block_n": 16}, "32 to 1024 threads, not 2"),
        ("gemm_vectorised", {"thread_m": 2}, "squares of 4 x 4, not 2 x 8"),
        ("gemm_vectorised", {"block_k": 12}, "eight neighbours along K"),
        ("gemm_vectorised", {"block_m": 96}, "192 threads do not load block_n=128 in whole rows"),
        ("gemm_warp_tiled", {"block_n": 65}, "do not cover 128 x 65 exactly"),
        ("gemm_warp_tiled", {"thread_m": 3}, "do not cover 32 x 64 exactly"),
        ("gemm_warp_tiled", {"thread_m": 4}, "a warp has 32 threads in pairs of rows, not 8 x 8"),
        ("gemm_warp_tiled", {"warp_m": 8, "thread_m": 2}, "squares of 4 x 4, not 2 x 8"),
        ("implicit_gemm", {"block_n": 65}, "x 65 exactly"),
        ("implicit_gemm", {"block_m": 8}, "do not cover 8 x "),
    ],
)
def test_tiles_that_threads_cannot_share_are_refused_in_words(name: str, change: dict[str, int], says: str) -> None:
    """Where a compiler would have said so at length."""
    runtime = emulator_runtime()
    conv = name == "implicit_gemm"
    method = find("conv2d" if conv else "gemm", "emulator", name)
    problem = parse_problem("n1c64h64w64_k128r3s3_f32_nchw" if conv else "m2048n2048k64_f32")
    large = next(c for c in method.configs(problem, H200) if c.block_n == (64 if name == "gemm_tile_1d" else 128))
    with pytest.raises(ValueError, match=says):
        method.plan(problem, dataclasses.replace(large, **change), runtime)


def test_small_products_get_small_tiles() -> None:
    runtime = emulator_runtime()
    facts = dataclasses.replace(runtime.facts, cores=132)
    step = LADDER["gemm_warp_tiled"]("emulator")
    sides = [step.configs(parse_problem(f"m{n}n{n}k{n}_f32"), facts)[0].block_m for n in (256, 8192)]
    assert sides[0] < sides[1]
