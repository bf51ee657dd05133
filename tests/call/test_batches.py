"""An image's result has the same bits in a batch as alone: conv2d(x)[i] and conv2d(x[i:i+1])."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.judged import allowed

from convforge.algorithms import ON_DEVICE, OURS, refusal
from convforge.backends.cpu import cpu_runtime
from convforge.backends.emulator import EmulatorRuntime
from convforge.problem import parse_problem
from convforge.verify import make_inputs

# Methods of which docs/accuracy.md says that they may differ: libraries that multiply matrices or transform take other
# ways for other sizes.
DIFFERENT = {("cpu", "im2col"), ("cpu", "fft"), ("emulator", "fft")}

METHODS = [a for a in (*OURS, *ON_DEVICE) if a.operation == "conv2d" and a.backend != "cuda"]
TEXTS = (
    "n3c8h13w14_k8r3s3_p1_f32_nchw", "n3c3h21w22_k4r5s5_p2_f32_nhwc", "n3c8h14w14_k8r3s3_p1_g8_f16_nchw",
    "n3c8h13w14_k8r3s3_p1_g8_f32_nhwc", "n3c64h7w7_k64r3s3_p1_f32_nchw", "n3c16h9w9_k24r1s1_f32_nhwc",
    "n3c16h9w9_k24r3s3_p1_f16_nhwc", "n3c3h20w32_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc", "n3c3h20w32_k3r3s3_p1_f32_nchw",
    "n3c3h21w22_k16r5s5_st2_p2_f16_nchw", "n3c16h9w16_k3r3s3_p1_f16_nchw", "n3c8h9w14_k8r3s3_p1_g2_u8-i8-u8-i32_nhwc",
    "n3c16h9w14_k16r3s3_p1_g16_u8-i8-u8-i32_nhwc", "n3c16h9w9_k24r3s3_p1_u8-i8-u8-i32_nhwc",
    "n3c16h9w9_k24r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc",
)  # fmt: skip


def outputs(method: Any, problem: Any, config: Any, runtime: Any, x: Any, w: Any) -> Any:
    plan = method.plan(problem, config, runtime)
    out = runtime.empty(problem.out_shape, problem.out_dtype)
    plan(plan.buffers(runtime.upload(x), plan.prepare(runtime.upload(w)), {}, out))
    return np.asarray(runtime.download(out))


def marks_of(method: Any) -> list[Any]:
    """Numba compiles most of the CPU's methods for this test alone."""
    if method.backend == "emulator":
        return [needs_emulator]
    return [] if method.name in ("direct_naive", "im2col", "fft") else [pytest.mark.thorough]


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    "method",
    [pytest.param(a, marks=marks_of(a)) for a in METHODS],
    ids=lambda a: f"{a.backend}-{a.name}",
)
def test_a_picture_has_the_same_bits_in_a_batch_as_alone(method: Any) -> None:
    runtime: Any = cpu_runtime() if method.backend == "cpu" else EmulatorRuntime()
    same = []
    for text in TEXTS:
        problem = allowed(parse_problem(text), method)
        if refusal(method, problem, runtime.facts) is not None:
            continue
        inputs: Any = make_inputs(problem)
        config = method.configs(problem, runtime.facts)[0]
        together = outputs(method, problem, config, runtime, inputs.x, inputs.w)
        x = np.ascontiguousarray(inputs.x[1:2])
        alone = outputs(method, problem.replace(n=1), config, runtime, x, inputs.w)
        same.append(np.array_equal(together[1:2], alone))
        np.testing.assert_allclose(together[1:2].astype(float), alone.astype(float), rtol=1e-3, atol=1e-3)
    assert same
    assert all(same) or (method.backend, method.name) in DIFFERENT
