"""Plans on the caller's stream and on every GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu, gpu_count, need_gpu
from tests.judged import allowed, judge_of, named

from convforge.algorithms import ON_DEVICE, refusal
from convforge.problem import parse_problem
from convforge.problem.types import numpy_dtype
from convforge.verify import check_plan, make_inputs

need_gpu()

METHODS = [a for a in ON_DEVICE if a.backend == "cuda"]
# A problem of every operation, of several launches where a method has them.
PROBLEMS = {"conv2d": "n2c3h40w41_k5r3s3_p1_f32_nchw", "gemm": "m130n70k90_f32",
            "max_pool2d": "max_n2c3h40w41_r3s3_st2_p1_f32_nchw", "relu": "relu5000_f32"}  # fmt: skip
DEPTHWISE = "n2c4h40w41_k8r3s3_p1_g4_f32_nhwc"
WHOLE_ROWS = "n2c3h40w44_k5r3s3_p1_f32_nchw"  # of multiples of 16 bytes
BYTES = "n2c3h40w48_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc"
PLANES = "n20c40h14w14_k40r5s5_p2_g40_f32_nchw"
HALVES = "n20c40h28w28_k40r7s7_p3_g40_f16_nchw"
DEPTHWISE_BYTES = "n20c48h28w28_k48r5s5_p2_g48_u8-i8-u8-i32_nhwc_+zero:9"
LAYER = "n8c64h28w28_k64r3s3_p1_f16_nhwc"
# Written again and again, so that the stream is busy for milliseconds while the host goes on.
BUSY_BYTES, BUSY_TIMES = 256 << 20, 40


def text_for(algorithm: Any) -> str:
    """A problem that the method takes."""
    if algorithm.name == "direct_boxes":
        return WHOLE_ROWS
    if algorithm.name == "direct_mma":
        return BYTES
    if algorithm.name == "depthwise_rows":
        return PLANES
    if algorithm.name in ("depthwise_mma", "depthwise_batch"):
        return HALVES
    if algorithm.name == "depthwise_dp4a":
        return DEPTHWISE_BYTES
    if algorithm.name in ("implicit_gemm_wgmma", "implicit_gemm_mma"):
        return LAYER
    if algorithm.name == "implicit_gemm_few_channels":
        return "n8c3h56w56_k64r3s3_p1_f16_nhwc"
    if algorithm.name == "implicit_gemm_few_outputs":
        return "n8c64h56w56_k3r3s3_p1_f16_nhwc"
    if algorithm.name == "implicit_gemm_split_few_channels":
        return "n8c3h56w56_k64r3s3_p1_f32_nhwc"
    if algorithm.name in ("gemm_wgmma", "gemm_mma"):
        return "m136n72k96_bf16"
    if algorithm.name in ("gemm_tf32", "gemm_split", "gemm_tf32_mma", "gemm_split_mma"):
        return "m136n72k96_ta_f32"  # of several launches
    if algorithm.name in (
        "implicit_gemm_tf32",
        "implicit_gemm_split",
        "implicit_gemm_tf32_mma",
        "implicit_gemm_split_mma",
    ):
        return LAYER.replace("f16", "f32")
    if algorithm.name in ("implicit_gemm_int8", "implicit_gemm_int8_mma", "implicit_gemm_dp4a", "direct_dp4a"):
        return LAYER.replace("f16", "u8-i8-u8-i32")
    if algorithm.name in ("implicit_gemm_fp8", "implicit_gemm_fp8_fast", "implicit_gemm_fp8_mma"):
        return LAYER.replace("f16", "f8e4m3-f8e4m3-f16-f32")
    depthwise = algorithm.name.startswith("depthwise_") or algorithm.name == "fft_fused"
    return DEPTHWISE if depthwise else PROBLEMS[algorithm.operation]


@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_work_stays_on_the_callers_stream(algorithm: Any) -> None:
    """x and w arrive late, on that stream alone: work and preparation on any other find NaN, or the largest numbers."""
    from cuda.core import Device

    runtime, problem = gpu(), parse_problem(text_for(algorithm))
    device = Device(runtime.device)
    device.set_current()
    stream = device.create_stream()
    inputs = make_inputs(problem)
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    sources = [runtime.upload(array) for array in (inputs.x, inputs.w) if array is not None]
    late = [runtime.empty(array.shape, array.dtype) for array in sources]
    judge = judge_of(str(problem), "normal")
    out = runtime.empty(judge.truth.value.shape, numpy_dtype(problem.out_dtype))
    busy = runtime.allocate(BUSY_BYTES)
    for array in (*late, out):
        runtime.fill(array, 0xFF)
    runtime.synchronize()

    for _ in range(BUSY_TIMES):
        runtime.fill(busy, 0, stream)
    for array, source in zip(late, sources, strict=True):
        runtime.copy(array.address, source.address, source.nbytes, stream)
    prepared = plan.prepare(late[1] if len(late) > 1 else None, stream)
    plan(plan.buffers(late[0], prepared, out=out), stream)
    runtime.synchronize(stream)
    verdict = judge.verdict(algorithm.precision, runtime.download(out))
    assert verdict.ok, verdict.message


def test_two_streams_at_once_do_not_race() -> None:
    """Two filters of one plan, each on a stream of its own, many times over: neither sees the other's."""
    from cuda.core import Device

    runtime = gpu()
    device = Device(runtime.device)
    device.set_current()
    streams = [device.create_stream() for _ in range(2)]
    large = parse_problem("n1c3h256w256_k8r3s3_p1_f32_nchw")
    for algorithm in (a for a in METHODS if a.operation == "conv2d"):
        taken = refusal(algorithm, allowed(large, algorithm), runtime.facts) is None
        problem: Any = large if taken else parse_problem(text_for(algorithm))
        sets = [make_inputs(problem, "integers", seed) for seed in range(2)]
        plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
        alone, calls = [], []
        for inputs in sets:
            x, prepared = runtime.upload(inputs.x), plan.prepare(runtime.upload(inputs.w))
            out = runtime.empty(problem.out_shape, numpy_dtype(problem.out_dtype))
            plan(plan.buffers(x, prepared, out=out))
            runtime.synchronize()
            alone.append(np.array(runtime.download(out)))
            calls.append((x, prepared, runtime.empty(problem.out_shape, numpy_dtype(problem.out_dtype))))
        assert not np.array_equal(*alone)
        for _ in range(20):
            for (x, prepared, out), stream in zip(calls, streams, strict=True):
                plan(plan.buffers(x, prepared, out=out), stream)
        for (_, _, out), stream, expected in zip(calls, streams, alone, strict=True):
            runtime.synchronize(stream)
            assert np.array_equal(runtime.download(out), expected), algorithm.name


@pytest.mark.parametrize("view", [
    lambda a: a, lambda a: a[2, :, 3], lambda a: a[2, 1:3, 3, 1:4], lambda a: a[:, 1, :, 2], lambda a: a[..., ::2],
    lambda a: a[1, ::-1, 4], lambda a: a[1, :, :, 0], lambda a: a[2, :, 3, :0], lambda a: a.transpose(3, 1, 0, 2),
])  # fmt: skip
def test_views_come_to_the_host_as_they_are(view: Any) -> None:
    runtime = gpu()
    numbers = np.arange(3 * 4 * 5 * 6, dtype=np.float32).reshape(3, 4, 5, 6)
    np.testing.assert_array_equal(runtime.download(view(runtime.upload(numbers))), view(numbers))


@pytest.mark.skipif(gpu_count() < 2, reason=f"needs two GPUs; the driver sees {gpu_count()}")
@pytest.mark.parametrize("algorithm", METHODS, ids=named)
def test_every_gpu_in_turn(algorithm: Any) -> None:
    text = text_for(algorithm)
    problem = parse_problem(text)
    plans = []
    for device in range(gpu_count()):
        runtime = gpu(device)
        plans.append(algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime))
    for plan in (*plans, *plans):  # back to the first after the last was used
        verdict = check_plan(plan, judge_of(text, "normal"))
        assert verdict.ok, verdict.message
