"""Steps timed by themselves: each alone, on the plan's own buffers, with the bytes that it must move."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.benchmark import fakes
from tests.benchmark.fakes import cases, run_bench

from convforge.algorithms import find
from convforge.algorithms.contract import Buffers, Call, Child, Chunks, Plan, Step
from convforge.algorithms.im2col.device import Im2col, Im2colConfig
from convforge.backends.cpu.runtime import CpuRuntime, cpu_runtime
from convforge.backends.emulator.runtime import emulator_runtime
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.benchmark.material import Material
from convforge.benchmark.row import Rig
from convforge.benchmark.runner import Settings
from convforge.benchmark.steps import least_bytes, measure_steps, only, step_names
from convforge.benchmark.store import load_run
from convforge.benchmark.suites import Case
from convforge.problem import Conv2dProblem, GemmProblem, parse_problem
from convforge.timing.stopping import StoppingRule

RULE = StoppingRule(samples=3, sample_s=0.0, patience_s=0.0)


class Doubling(fakes.Honest):
    """Two steps: twice A into the workspace, then half the product with B; it keeps the order of what ran."""

    name = "doubling"

    def __init__(self) -> None:
        self.ran: list[str] = []

    def plan(self, problem: GemmProblem, config: fakes.Tile, runtime: Runtime) -> Plan:
        def double(buffers: Buffers, stream: Any) -> None:
            self.ran.append("double")
            _matrix(buffers)[...] = 2 * buffers["a"]

        def multiply(buffers: Buffers, stream: Any) -> None:
            self.ran.append("multiply")
            buffers["c"][...] = _matrix(buffers) @ buffers["b"].tensors["w"] / 2

        def _matrix(buffers: Buffers) -> Any:
            return buffers["workspace"][: 4 * problem.m * problem.k].view(np.float32).reshape(problem.m, problem.k)

        nbytes = 4 * problem.m * problem.k
        launches = [Call(LaunchInfo("double_kernel", (1,), (1,)), double, "doubling", 2 * nbytes),
                    Call(LaunchInfo("multiply", (1,), (1,)), multiply)]  # fmt: skip
        return Plan(self, problem, config, runtime, steps=launches, prepare=self.prepare, workspace_bytes=nbytes)


def test_each_step_has_its_time_and_its_bytes_and_comes_back_as_stored(tmp_path: Path) -> None:
    method = Doubling()
    run = run_bench(tmp_path, cases(8), [method], Settings(steps=True))
    (result,) = run.results
    assert (result.status, result.reason) == ("ok", None)
    doubling, multiply = result.steps
    assert (doubling.name, doubling.launches, doubling.least_bytes) == ("doubling", 1, 512)
    assert (multiply.name, multiply.launches, multiply.least_bytes) == ("multiply", 1, None)
    assert all(len(step.time.samples) >= 3 and step.time.median_s > 0 for step in result.steps)
    assert doubling.bytes_per_s == pytest.approx(512 / doubling.time.median_s)
    assert run.copy_share(doubling) == pytest.approx(512 / doubling.time.median_s / 20e9)
    assert run.copy_share(multiply) is None
    assert load_run(run.path).results[0].steps == result.steps
    # Alone: where the doubling was timed the product did not run.
    first, last = method.ran.index("double"), len(method.ran) - method.ran[::-1].index("double")
    assert "multiply" in method.ran[first:last]
    assert set(method.ran[last - 3 : last]) == {"double"}
    assert set(method.ran[last:]) == {"multiply"}


def test_no_steps_where_none_are_asked_for_or_there_is_one(tmp_path: Path) -> None:
    assert run_bench(tmp_path / "a", cases(8), [Doubling()]).results[0].steps == ()
    (result,) = run_bench(tmp_path / "b", cases(8), [fakes.Honest()], Settings(quick=True, steps=True)).results
    assert (result.status, result.steps) == ("ok", ())


def test_a_method_that_is_wrong_has_no_steps(tmp_path: Path) -> None:
    class Wrong(Doubling):
        def prepare(self, w: Any, stream: Any = None) -> Any:
            return super().prepare(3 * w)

    (result,) = run_bench(tmp_path, cases(8), [Wrong()], Settings(quick=True, steps=True)).results
    assert (result.status, result.steps) == ("failed", ())


def _launch(name: str, nbytes: int | None = None) -> Call:
    return Call(LaunchInfo(name, (1,), (1,)), lambda buffers, stream: None, least_bytes=nbytes)


def test_steps_of_one_name_stay_in_their_chunks() -> None:
    method, problem = fakes.Honest(), parse_problem("m8n8k8_f32")
    assert isinstance(problem, GemmProblem)
    child = Child(method.plan(problem, fakes.Tile(), cpu_runtime()), lambda buffers: [buffers])
    chunks = Chunks(((_launch("a", 3), child), (_launch("a", 4), _launch("b"))), 2, 64, cpu_runtime())
    steps: list[Step] = [chunks, _launch("b", 5)]
    assert step_names(steps) == ["a", "honest", "b"]
    (found,) = only(steps, "a")
    assert isinstance(found, Chunks)
    assert (found.slots, found.slot_bytes) == (2, 64)
    assert found.groups == ((chunks.groups[0][0],), (chunks.groups[1][0],))
    (found,) = only(steps, "honest")
    assert isinstance(found, Chunks)
    assert found.groups == ((child,),)
    assert len(only(steps, "b")) == 2
    assert least_bytes(only(steps, "a")) == 7
    assert least_bytes(only(steps, "b")) is None, "one of the two does not say"
    assert least_bytes(only(steps, "honest")) is None


def test_im2col_on_the_cpu_expands_multiplies_and_stores(tmp_path: Path) -> None:
    case = Case("layer", parse_problem("n2c4h9w9_k5r3s3_st2_p1_f32_nchw_+bias"))
    method = find("conv2d", "cpu", "im2col")
    (result,) = run_bench(tmp_path, [case], [method], Settings(quick=True, steps=True)).results
    assert (result.status, result.reason) == ("ok", None)
    assert [step.name for step in result.steps] == ["im2col_expand", "gemm_blas", "im2col_store"]
    assert len({step.launches for step in result.steps}) == 1
    assert not any(step.time.cold for step in result.steps), "the chunks fit the cache"


# x under some window: all of 9 x 9; 5 of 9 rows and columns; 4 of 5; a dilated filter that skips a column of each.
SEEN = [
    ("n2c4h9w9_k5r3s3_st2_p1_f32_nchw", 2 * 4 * 81),
    ("n1c4h9w9_k5r1s1_st2_f32_nhwc", 4 * 25),
    ("n1c2h5w5_k3r2s2_st3_f32_nchw", 2 * 16),
    ("n3c2h5w3_k3r1s2_d1x2_f16_nchw", 3 * 2 * 5 * 2),
]


@needs_emulator
@pytest.mark.parametrize(("text", "seen"), SEEN)
@pytest.mark.parametrize("columns", [1 << 20, 7])
def test_what_an_expansion_must_move(text: str, seen: int, columns: int) -> None:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    plan = Im2col("emulator").plan(problem, Im2colConfig(columns), emulator_runtime())
    assert step_names(plan.steps) == ["expansion", "product"]
    written = 4 * problem.n * problem.p * problem.q * problem.c * problem.r * problem.s
    item = 2 if "f16" in text else 4
    assert least_bytes(only(plan.steps, "expansion")) == item * seen + written
    assert least_bytes(only(plan.steps, "product")) is None
    chunks = math.ceil(problem.n * problem.p * problem.q / columns)
    assert len(only(plan.steps, "expansion")) == len(only(plan.steps, "product")) == chunks


@needs_emulator
def test_a_step_on_a_device_is_its_launches_alone_and_all_together_are_the_call() -> None:
    from convforge.backends.emulator import EmulatorRuntime

    launched: list[str] = []

    class Listening(EmulatorRuntime):
        def launch(self, kernel: Any, info: LaunchInfo, args: Any, stream: Any = None) -> None:
            launched.append(info.kernel)
            super().launch(kernel, info, args, stream)

    runtime, problem = Listening(), parse_problem("n2c3h7w6_k5r3s3_p1_f32_nchw")
    material = Material(Case("layer", problem), runtime)
    method = Im2col("emulator")
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    slot = material.ring.slots[0]
    rig = Rig(plan, material, runtime.allocate(plan.workspace_bytes), [plan.prepare(slot.w)])
    launched.clear()
    expansion, product = measure_steps(rig, RULE)
    assert (expansion.name, product.name) == ("expansion", "product")
    turn = launched.index("gemm_warp_tiled")
    assert set(launched[:turn]) == {"im2col"}
    assert set(launched[turn:]) == {"gemm_warp_tiled"}

    material.ring.poison()
    buffers = plan.buffers(slot.x, rig.prepared[0], slot.operands, slot.out, rig.workspace)
    for name in step_names(plan.steps):
        for step in only(plan.steps, name):
            step.run(buffers, None)
    assert material.judges[slot.kind].verdict("strict", runtime.download(slot.out)).ok


@pytest.mark.parametrize(("cache", "cold"), [(1 << 14, False), (1 << 11, True)])
def test_a_step_is_cold_where_the_workspace_exceeds_the_cache_too(cache: int, cold: bool) -> None:
    facts = dataclasses.replace(cpu_runtime().facts, l1_bytes=0, l2_bytes=0, l3_bytes=cache)
    runtime, (case,) = CpuRuntime(facts), cases(32)
    material = Material(case, runtime)
    assert material.ring.size.cold
    assert isinstance(case.problem, GemmProblem)
    plan = Doubling().plan(case.problem, fakes.Tile(), runtime)
    assert plan.workspace_bytes == 1 << 12
    workspace = runtime.allocate(plan.workspace_bytes)
    rig = Rig(plan, material, workspace, [plan.prepare(material.ring.slots[0].w)])
    assert [step.time.cold for step in measure_steps(rig, RULE)] == [cold, cold]
