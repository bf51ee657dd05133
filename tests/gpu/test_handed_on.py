"""Arrays that cannot be copied as they lie, by the TMA or by threads: another plan does the whole call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu.hopper import hopper, method_of, needs_hopper

from convforge.problem import parse_problem
from convforge.verify import make_inputs

pytestmark = needs_hopper

# Few tiles, whose sums may be shared out, and one that has enough; epilogues, gaps that no 16 bytes divide.
CASES = (
    ("implicit_gemm_wgmma", "n1c320h9w7_k72r3s3_p1_f16_nhwc_+scale:channel+bias+residual+relu"),
    ("implicit_gemm_wgmma", "n2c64h9w9_k64r3s3_p1_bf16_nhwc"),
    ("implicit_gemm_mma", "n1c320h9w7_k72r3s3_p1_f16_nhwc_+scale:channel+bias+residual+relu"),
    ("implicit_gemm_mma", "n2c64h9w9_k64r3s3_p1_bf16_nhwc"),
    ("implicit_gemm_tf32", "n2c200h5w9_k65r1s1_f32_nhwc_+residual+silu_math-tf32"),
    ("implicit_gemm_split", "n1c320h9w7_k72r3s3_p1_f32_nhwc_+scale:channel+bias+residual+relu"),
    ("gemm_split", "m100n72k520_f32"), ("gemm_split", "m100n72k520_tb_f32"), ("gemm_tf32", "m100n72k520_f32_math-tf32"),
    ("gemm_wgmma", "m100n72k520_f16"),
)  # fmt: skip


def off_16_bytes(array: Any, runtime: Any) -> Any:
    """An array on the device whose first element lies one element behind a multiple of 16 bytes."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
    wide[..., 1:] = array
    return runtime.upload(wide)[..., 1:]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "text"), CASES)
def test_such_a_call_gives_the_result_of_others(name: str, text: str) -> None:
    problem: Any = parse_problem(text)
    method, runtime = method_of("gemm" if name.startswith("gemm") else "conv2d", name), hopper()
    inputs = make_inputs(problem, "integers")
    # Where pixels are split first, another kernel reads x, whose alignment does not matter.
    found = [c for c in method.configs(problem, runtime.facts) if not getattr(c, "split_first", False)]
    shared = [config for config in found if getattr(config, "split_k", 1) > 1]
    assert shared or name in ("gemm_wgmma", "gemm_tf32") or "k64" in text
    for config in (found[0], *shared[:1]):
        plan = method.plan(problem, config, runtime)
        assert any(getattr(step, "otherwise", None) for step in plan.steps)
        operands = {operand: runtime.upload(array) for operand, array in inputs.operands.items()}
        results = []
        for x in (runtime.upload(inputs.x), off_16_bytes(inputs.x, runtime)):
            out = runtime.upload(np.full(problem.out_shape, 7, problem.out_dtype))
            plan(plan.buffers(x, plan.prepare(runtime.upload(inputs.w)), operands, out))
            results.append(np.asarray(runtime.download(out)))
        np.testing.assert_array_equal(*results, err_msg=str(config))
