"""Sizes beyond what one grid or 32 bits hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu, need_gpu
from tests.judged import allowed, judge_of, named
from tests.on_device import takes

from convforge.algorithms import ON_DEVICE, refusal
from convforge.problem import parse_problem
from convforge.verify import check_plan

need_gpu()

CONVOLUTIONS = [a for a in ON_DEVICE if a.backend == "cuda" and a.operation == "conv2d"]
# More planes than a grid has blocks along y or z: a batch of 70,000; channels of their own; filters.
MANY_PLANES = ("n70000c1h3w4_k1r3s3_p1_f32_nchw", "n1c70000h3w4_k70000r3s3_p1_g70000_f32_nchw",
               "n1c1h3w4_k70000r3s3_p1_f32_nhwc")  # fmt: skip
# 2^31 elements and more, in x and in the output.
SIDE = 46400
# No two rows or columns alike, and so few that a byte holds their sum with pixels of 16.
BYTE_TAPS = (1, 2, 0, 3, 1, 2, 0, 1, 4)
# x and the output in float16, what the methods take beside them, and as much again to be safe.
NEEDED_BYTES = 24 << 30


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Several processes may run these tests on one GPU, so none keeps memory that it does not use."""
    yield
    gpu().release()


@pytest.mark.parametrize("text", MANY_PLANES)
@pytest.mark.parametrize("algorithm", CONVOLUTIONS, ids=named)
def test_more_planes_than_a_grid_has_blocks(algorithm: Any, text: str) -> None:
    runtime, problem = gpu(), allowed(parse_problem(text), algorithm)
    if (reason := refusal(algorithm, problem, runtime.facts)) is not None:
        assert not takes(algorithm, text) or algorithm.name == "direct_constant", reason
        assert not takes(algorithm, text) or "constant memory holds" in str(reason)
        return
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    verdict = check_plan(plan, judge_of(text, "integers"))
    assert verdict.ok, verdict.message


def test_a_row_of_more_blocks_than_65535() -> None:
    runtime, text = gpu(), "n1c1h2200000w3_k1r3s3_p1_f32_nchw"
    problem = parse_problem(text)
    for algorithm in (a for a in CONVOLUTIONS if takes(a, text)):
        plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
        verdict = check_plan(plan, judge_of(text, "integers"))
        assert verdict.ok, verdict.message


OTHERS = (
    "depthwise_rows", "depthwise_mma", "depthwise_batch", "implicit_gemm_wgmma", "implicit_gemm_tf32",
    "implicit_gemm_split", "implicit_gemm_split_mma", "implicit_gemm_tf32_mma", "implicit_gemm_mma",
    "implicit_gemm_few_channels", "implicit_gemm_split_few_channels", "im2col_tf32",
    "implicit_gemm_int8_mma", "implicit_gemm_fp8_mma", "implicit_gemm_dp4a", "direct_dp4a",
    "depthwise_dp4a",
)  # fmt: skip


@pytest.mark.large
@pytest.mark.skipif(
    gpu().facts.memory_bytes < NEEDED_BYTES,
    reason=f"needs {NEEDED_BYTES >> 30} GiB of GPU memory; there are {gpu().facts.memory_bytes >> 30}",
)
@pytest.mark.parametrize(
    "algorithm",
    [a for a in CONVOLUTIONS if a.name not in OTHERS],
    ids=named,
)
def test_more_than_two_to_the_31_elements(algorithm: Any) -> None:
    """Whole numbers, so that sums are exact; rows at both ends and around the element 2^31 are compared.

    depthwise_rows refuses such rows, depthwise_mma and depthwise_batch such planes; those of tensor cores such types,
    or one channel; depthwise_dp4a one channel.
    """
    runtime = gpu()
    layout = "nhwc" if algorithm.name == "depthwise_channels" else "nchw"
    dtypes, least = ("u8-i8-u8-i32", 0) if algorithm.name == "direct_mma" else ("f16", -8)
    problem: Any = parse_problem(f"n1c1h{SIDE}w{SIDE}_k1r3s3_p1_{dtypes}_{layout}")
    assert problem.h * problem.w > 2**31
    x = _picture(problem.x_dtype, least)
    taps = BYTE_TAPS if algorithm.name == "direct_mma" else np.arange(1, 10)
    w = np.asarray(taps, problem.w_dtype).reshape(1, 1, 3, 3)
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    there, out = runtime.upload(x.reshape(problem.x_shape)), runtime.empty(problem.out_shape, problem.out_dtype)
    runtime.fill(out, 0xFF)
    plan(plan.buffers(there, plan.prepare(runtime.upload(w)), out=out))
    runtime.synchronize()
    wide = 2**31 // SIDE
    for row in (0, 1, SIDE // 2, wide - 1, wide, wide + 1, SIDE - 2, SIDE - 1):
        expected = _row_of_output(x, w[0, 0].astype(np.float32), row)
        got = runtime.download(out[0, 0, row] if layout == "nchw" else out[0, row, :, 0])
        assert np.array_equal(got, expected.astype(problem.out_dtype)), f"{algorithm.name}: row {row}"


def _picture(dtype: str, least: int) -> Any:
    """Seventeen whole numbers from `least` on, no two rows alike nearby."""
    columns = np.arange(SIDE)
    return np.stack([((columns * 7 + row * 13 + row // 17) % 17 + least).astype(dtype) for row in range(SIDE)])


def _row_of_output(x: Any, w: Any, row: int) -> Any:
    """One row of the 3x3 correlation with a padding of 1, in float32, where these sums are exact."""
    total = np.zeros(SIDE, np.float32)
    for r in range(3):
        if 0 <= row + r - 1 < SIDE:
            padded = np.pad(x[row + r - 1].astype(np.float32), 1)
            for s in range(3):
                total += w[r, s] * padded[s : s + SIDE]
    return total
