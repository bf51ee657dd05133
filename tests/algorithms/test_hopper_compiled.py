"""ptxas's report of Hopper's kernels in each variant: no spills, no products that wait for each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.algorithms.compiling import H200, Compiling, compiled

from convforge.algorithms import find
from convforge.backends.cuda import compiler
from convforge.problem import parse_problem

SPLIT, TAPS = "implicit_gemm_split", "n32c256h14w14_k256r3s3_p1_f32_nhwc"
FAR, POINTS = "n4c256h33w33_k256r3s3_p2_d2_f32_nhwc", "n32c64h56w56_k256r1s1_f32_nhwc"
# Method, problem, fields by which a config is found, and fields that are then changed: one of each way of the kernels.
WAYS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    *(("implicit_gemm_wgmma", "n32c256h14w14_k256r3s3_p1_f16_nhwc", {"patch": pairs == "filters"}, {"pairs": pairs})
      for pairs in ("filters", "pixels")),
    ("implicit_gemm_wgmma", "n32c128h56w56_k128r3s3_st2_p1_f16_nhwc", {"patch": True}, {}),
    ("implicit_gemm_wgmma", "n32c64h56w56_k256r1s1_f16_nhwc", {"ping_pong": True}, {}),
    ("implicit_gemm_tf32", f"{TAPS}_math-tf32", {}, {"pairs": "filters"}),
    *((SPLIT, TAPS, {"patch": True, "columns": 112}, {"pairs": pairs}) for pairs in ("none", "filters")),
    *((SPLIT, FAR, {"split_first": first, "patch": False, "columns": columns}, {"pairs": "pixels"})
      for first, columns in ((True, 128), (False, 96))),
    *((SPLIT, POINTS, {"split_first": first, "ping_pong": True, "columns": 96}, {}) for first in (True, False)),
    ("gemm_wgmma", "m4096n4096k4096_f16", {"paired": True}, {}),
]  # fmt: skip


@pytest.mark.one_in(4)
@compiled
@pytest.mark.parametrize(("name", "text", "way", "changes"), WAYS, ids=str)
def test_products_run_on_beside_each_other(
    name: str, text: str, way: dict[str, Any], changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, resources = [], compiler.resources

    def noted(log: str, kernel: str) -> dict[str, int]:
        logs.append(log)
        return resources(log, kernel)

    monkeypatch.setattr(compiler, "resources", noted)
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path))
    problem: Any = parse_problem(text)
    method: Any = find(problem.operation, "cuda", name)
    config = next(c for c in method.configs(problem, H200) if all(getattr(c, key) == way[key] for key in way))
    runtime: Any = Compiling("sm_90")
    method.plan(problem, replace(config, **changes), runtime)
    assert logs, "what is kept on the disk has no log"
    # C75..: products are made to wait, or registers are not given from one warpgroup to the other.
    assert not [line for log in logs for line in log.splitlines() if "C75" in line or "Performance" in line]
    assert {kernel.spill_bytes for kernel in runtime.kernels.values()} == {0}
