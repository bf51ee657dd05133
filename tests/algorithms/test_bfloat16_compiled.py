"""bfloat16 has instructions of its own since sm_80: kernels of it are about as long as those of float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.algorithms.compiling import H200, Compiling, compiled

from convforge.algorithms import find
from convforge.benchmark.machine_code import sections
from convforge.problem import parse_problem

# Converted by integer arithmetic, these were 1.2 to 2 times as long.
LONGER = 1.15
CASES = [
    ("implicit_gemm_wgmma", "n32c64h56w56_k256r1s1_{}_nhwc_+bias+relu", "sm_90"),
    ("implicit_gemm_wgmma", "n32c64h56w56_k256r1s1_{}_nchw", "sm_90"),
    ("implicit_gemm_few_channels", "n32c3h224w224_k64r7s7_st2_p3_{}_nhwc_+bias+relu", "sm_80"),
    ("depthwise_channels", "n32c96h56w56_k96r3s3_p1_g96_{}_nhwc_+bias+relu", "sm_120"),
    ("direct_tiled", "n1c3h512w512_k3r3s3_p1_{}_nchw", "sm_100"),
]


def code_bytes(name: str, text: str, architecture: str) -> int:
    """Bytes of machine code of all kernels of a method's default config."""
    problem: Any = parse_problem(text)
    method: Any = find(problem.operation, "cuda", name)
    runtime: Any = Compiling(architecture)
    method.plan(problem, method.configs(problem, H200)[0], runtime)
    found = [section for kernel in runtime.kernels.values() for section in sections(kernel.code)]
    return sum(section.size for section in found if section.name.startswith(".text."))


@pytest.mark.one_in(4)
@compiled
@pytest.mark.parametrize(("name", "text", "architecture"), CASES, ids=str)
def test_bfloat16_is_converted_by_the_hardware(
    name: str, text: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path))
    of_float16 = code_bytes(name, text.format("f16"), architecture)
    of_bfloat16 = code_bytes(name, text.format("bf16"), architecture)
    assert 0 < of_bfloat16 <= LONGER * of_float16
