"""The steps of a call on a GPU: captured, and timed by its clock, as calls are."""

from __future__ import annotations

import pytest
from tests.gpu.present import gpu, need_gpu

from convforge.algorithms.im2col.device import Im2col, Im2colConfig
from convforge.benchmark.material import Material
from convforge.benchmark.row import Rig
from convforge.benchmark.steps import measure_steps
from convforge.benchmark.suites import Case
from convforge.problem import parse_problem
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import measure

need_gpu()

RULE = StoppingRule(samples=5, budget_s=5.0)
COLUMNS = 8 * 56 * 56


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS // 4], ids=["whole", "chunks"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_steps_of_im2col_take_about_what_its_call_takes(layout: str, columns: int) -> None:
    runtime, problem = gpu(), parse_problem(f"n8c64h56w56_k64r3s3_p1_f32_{layout}")
    material = Material(Case("layer", problem), runtime)
    plan = Im2col("cuda").plan(problem, Im2colConfig(columns), runtime)
    rig = Rig(plan, material, runtime.allocate(plan.workspace_bytes), [plan.prepare(material.ring.slots[0].w)])
    call = measure(rig.prepared_calls(), runtime, RULE)
    expansion, product = measure_steps(rig, RULE)
    assert (expansion.name, product.name) == ("expansion", "product")
    assert expansion.launches == product.launches == COLUMNS // columns
    together = expansion.time.median_s + product.time.median_s
    assert 0.6 < together / call.median_s < 1.6, (expansion.time, product.time, call)
    assert expansion.bytes_per_s is not None
