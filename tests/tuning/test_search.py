"""The search: what is measured, in which order, and which of it is chosen."""

from __future__ import annotations

import dataclasses
import weakref
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.benchmark.fakes import Broken, Honest, Hungry, Rival, Silent
from tests.tuning.played import Seamed, Table, Wrong, candidates, single

from convforge.algorithms import find
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.backends.cuda.driver import CudaError
from convforge.backends.emulator import why_absent
from convforge.problem import parse_problem
from convforge.tuning.search import EFFORTS, Effort, candidates_for, methods_for, search
from convforge.tuning.trial import DeviceTrial
from convforge.verify import Sample

EFFORT = Effort(budget_s=10.0, methods=4, configs=8, promising=1.5, finalists=3)
PRODUCT: Any = parse_problem("m48n32k16_f32")


class First(Honest):
    name = "first"


class Second(Honest):
    name = "second"


class Third(Honest):
    name = "third"


def names(found: Any) -> list[str]:
    return [tried.algorithm for tried in found]


def test_the_fastest_is_first_and_the_rest_follow_by_time() -> None:
    found = search(
        candidates(First(), Second(), Third(), problem=PRODUCT),
        Table({"first": 3e-3, "second": 1e-3, "third": 2e-3}),
        EFFORT,
    )
    assert [(t.algorithm, t.config) for t in found[:2]] == [("second", "tile=8"), ("second", "tile=16")]
    assert names(found[2:]) == ["third", "first"], "their further configs are not worth trying"


def test_candidates_are_made_ready_in_groups_while_there_is_time() -> None:
    methods = [First(), Second(), Third()]
    table = Table({"first": 1e-3, "second": 1.1e-3, "third": 1.2e-3})
    table.at_once = 2
    search(candidates(*methods, problem=PRODUCT), table, EFFORT)
    assert [[(c.algorithm.name, str(c.config)) for c in group] for group in table.ready] == [
        [("first", "tile=8"), ("second", "tile=8")], [("third", "tile=8")],
        [("first", "tile=16"), ("second", "tile=16")], [("third", "tile=16")],
    ]  # fmt: skip
    assert table.timed == [candidate for group in table.ready for candidate in group]

    late = Table({"first": 1e-3, "second": 1.1e-3, "third": 1.2e-3})
    late.at_once = 2
    clock = count()  # a second each time that it is asked
    search(candidates(*methods, problem=PRODUCT), late, replace(EFFORT, budget_s=3.0), clock=lambda: float(next(clock)))
    assert len(late.ready) == 1, "nothing is made ready when the time is over"
    assert len(late.timed) < 3


def test_further_configs_are_those_of_methods_that_stay_close() -> None:
    table = Table({("first", "tile=8"): 1.4e-3, ("first", "tile=16"): 0.5e-3, "second": 1e-3, "third": 2e-3})
    found = search(candidates(First(), Second(), Third(), problem=PRODUCT), table, EFFORT)
    assert (found[0].algorithm, found[0].config) == ("first", "tile=16"), "a config that is no default may win"
    tried = [(c.algorithm.name, str(c.config)) for c in table.timed]
    assert tried == [("first", "tile=8"), ("second", "tile=8"), ("third", "tile=8"), ("second", "tile=16"),
                     ("first", "tile=16")]  # fmt: skip


def test_max_leaves_no_config_out() -> None:
    table = Table({"first": 1e-3, "second": 1.0, "third": "it broke"})
    search(candidates(First(), Second(), Third(), problem=PRODUCT), table, EFFORTS["max"])
    assert len(table.timed) == 6


def test_the_effort_bounds_methods_and_configs() -> None:
    table = Table()
    search(candidates(First(), Second(), Third(), problem=PRODUCT), table, replace(EFFORT, methods=2, configs=0))
    assert [c.algorithm.name for c in table.timed] == ["first", "second"]


def test_the_budget_ends_the_search_but_the_first_is_always_measured() -> None:
    many = candidates(First(), Second(), Third(), problem=PRODUCT)
    ticks = count(0, 3)  # seconds that pass between two looks at the clock
    table = Table()
    found = search(many, table, EFFORT, clock=lambda: float(next(ticks)))
    assert [c.algorithm.name for c in table.timed] == ["first", "second"]
    assert len(found) == 2
    table = Table()
    found = search(many, table, replace(EFFORT, budget_s=0.0))
    assert names(found) == ["first"]


def test_ties_go_to_the_smaller_workspace() -> None:
    table = Table({"first": 1.0e-3, "second": 1.01e-3}, spread=0.02, workspaces={"first": 100, "second": 0})
    found = search([single(First()), single(Second())], table, EFFORT)
    assert names(found) == ["second", "first"]
    assert [t.tied for t in found] == [True, True]
    assert table.finals == [["first", "second"]]


def test_ties_of_equal_workspaces_go_to_the_simpler_method() -> None:
    naive, shared, tiled = (find("conv2d", "cuda", f"direct_{name}") for name in ("naive", "shared", "tiled"))
    table = Table({"direct_tiled": 1.0e-3, "direct_shared": 1.01e-3, "direct_naive": 1.3e-3}, spread=0.02)
    found = search([single(tiled), single(shared), single(naive)], table, EFFORT)
    assert names(found) == ["direct_shared", "direct_tiled", "direct_naive"], "the third is no tie"
    assert [t.tied for t in found] == [True, True, False]


def test_what_is_no_tie_is_decided_by_the_final() -> None:
    class Changing(Table):
        def final(self, wanted: Any, budget_s: float) -> Any:
            return [self._timing({"first": 1.2e-3, "second": 1.0e-3}[c.algorithm.name]) for c in wanted]

    found = search([single(First()), single(Second())], Changing({"first": 1e-3, "second": 1.05e-3}), EFFORT)
    assert names(found) == ["second", "first"]
    assert [t.seconds for t in found] == [1.0e-3, 1.2e-3], "the final's times count"
    assert not any(t.tied for t in found)


def test_what_goes_wrong_in_the_final_is_not_chosen() -> None:
    class Failing(Table):
        def final(self, wanted: Any, budget_s: float) -> Any:
            return ["row 3 is wrong" if c.algorithm.name == "first" else self._timing(1e-3) for c in wanted]

    found = search([single(First()), single(Second())], Failing({"first": 1e-3, "second": 1.05e-3}), EFFORT)
    assert names(found) == ["second", "first"]
    assert found[1].wrong
    assert found[1].fault == "row 3 is wrong"


@pytest.mark.parametrize("method", [Wrong(), Seamed(), Silent()], ids=lambda m: m.name)
def test_a_wrong_candidate_is_thrown_out_by_the_sampled_check(method: Any) -> None:
    trial = DeviceTrial(PRODUCT, cpu_runtime())
    found = search(candidates(method, Honest(), problem=PRODUCT), trial, EFFORT)
    assert found[0].algorithm == "honest"
    wrong = [t for t in found if t.algorithm == method.name]
    assert wrong
    assert all(t.wrong and t.seconds is None for t in wrong)
    assert "expected" in wrong[0].fault
    assert "row" in wrong[0].fault


def test_a_candidate_that_raises_is_remembered_with_what_it_said() -> None:
    found = search(candidates(Broken(), Honest(), problem=PRODUCT), DeviceTrial(PRODUCT, cpu_runtime()), EFFORT)
    assert found[0].algorithm == "honest"
    assert found[-1].fault == "ArithmeticError: it broke"
    assert not found[-1].wrong, "it may have been the memory: the rule may still take it"


def test_a_candidate_that_the_device_does_not_survive_is_named_and_ends_the_search() -> None:
    class Lost(type(cpu_runtime())):  # type: ignore[misc]
        def synchronize(self, stream: Any = None) -> None:
            raise CudaError("the CUDA driver says CUDA_ERROR_ILLEGAL_ADDRESS")

    trial = DeviceTrial(PRODUCT, Lost(cpu_facts()))
    with pytest.raises(RuntimeError, match=r"broken \[.*\]: ArithmeticError: it broke; this process can no longer use"):
        search(candidates(Broken(), Honest(), problem=PRODUCT), trial, EFFORT)


def test_a_candidate_beyond_the_limit_is_not_run() -> None:
    trial = DeviceTrial(PRODUCT, cpu_runtime(), workspace_limit=8192)
    found = search(candidates(Hungry(), problem=PRODUCT), trial, EFFORTS["max"])
    assert [(t.config, t.seconds is None, t.wrong) for t in found] == [
        ("tile=4", False, False),
        ("tile=16", True, False),
    ]
    assert found[1].fault == "it needs a workspace of 16384 bytes; the limit is 8192"


@pytest.mark.parametrize(("step", "allocations"), [(1, 1), (-1, 2)], ids=["the largest first", "the largest last"])
def test_candidates_share_one_workspace(step: int, allocations: int) -> None:
    alive: list[weakref.ref[Any]] = []
    before: list[list[int]] = []

    class Counting(type(cpu_runtime())):  # type: ignore[misc]
        def allocate(self, nbytes: int, stream: Any = None) -> Any:
            before.append([found.nbytes for ref in alive if (found := ref()) is not None])
            room = super().allocate(nbytes, stream)
            alive.append(weakref.ref(room))
            return room

    trial = DeviceTrial(PRODUCT, Counting(cpu_facts()))
    (configs,) = candidates(Hungry(), problem=PRODUCT)
    found = search([configs[::step]], trial, EFFORTS["max"])
    assert sorted((t.config, t.workspace_bytes) for t in found) == [("tile=16", 16384), ("tile=4", 4096)]
    assert all(t.seconds is not None for t in found), [t.fault for t in found]
    assert before == [[]] * allocations, "the smaller one is given back before the larger one is asked for"


class Clocked(type(cpu_runtime())):  # type: ignore[misc]
    """A call takes `taken` seconds, and to time any number of them `begin` more."""

    def __init__(self, taken: float, begin: float = 0.0) -> None:
        super().__init__(cpu_facts())
        self.asked: list[int] = []
        self.taken, self.begin = taken, begin

    def time(self, run: Any, repeats: int) -> float:
        self.asked.append(repeats)
        run()
        return self.begin + self.taken * repeats


def test_a_candidate_that_is_far_behind_is_timed_once() -> None:
    runtime = Clocked(1e-3)
    trial = DeviceTrial(PRODUCT, runtime)
    (fast, *_), (slow, *_) = candidates(First(), Second(), problem=PRODUCT)
    assert trial.time(fast, 1.0).seconds == pytest.approx(1e-3)
    runtime.asked, runtime.taken = [], 5e-3
    assert trial.time(slow, 1.0).seconds == pytest.approx(5e-3)
    assert runtime.asked == [1]


def test_a_single_call_is_held_against_single_calls() -> None:
    runtime = Clocked(1e-6, begin=1e-4)
    trial = DeviceTrial(PRODUCT, runtime)
    (first, *_), (second, *_) = candidates(First(), Second(), problem=PRODUCT)
    many = trial.time(first, 1.0).seconds
    assert many is not None
    assert many < 1e-5, "a single call takes 1.01e-4, many take little more than 1e-6 each"
    runtime.asked = []
    assert trial.time(second, 1.0).seconds == pytest.approx(many, rel=0.5)
    assert max(runtime.asked) > 1


def test_peers_are_candidates_only_where_they_are_asked_for() -> None:
    ours = {a.name for a, _ in methods_for(PRODUCT, cpu_facts())}
    both = methods_for(PRODUCT, cpu_facts(), peers=True)
    assert ours == {a.name for a, _ in both if a.ours}
    assert "torch_matmul" not in ours
    found = search([single(First()), single(Rival())], Table({"first": 2e-3, "rival": 1e-3}), EFFORT)
    assert [(t.algorithm, t.ours) for t in found] == [("rival", False), ("first", True)], "marked"


def test_the_chosen_by_rule_goes_first_then_the_best_predicted() -> None:
    problem = parse_problem("n32c64h56w56_k64r3s3_p1_f32_nchw")
    ranked = [a.name for a, _ in methods_for(problem, H200)]
    assert ranked[0] == "implicit_gemm_split"
    assert ranked.index("direct_naive") > ranked.index("direct_shared") > ranked.index("direct_tiled")
    first = [configs[0].algorithm.name for configs in candidates_for(problem, H200, "direct_shared")]
    assert first == ["direct_shared", *(name for name in ranked if name != "direct_shared")]


def test_methods_of_an_arithmetic_that_was_not_asked_for_are_no_candidates() -> None:
    problem: Any = parse_problem("n1c16h20w20_k16r3s3_p1_f32_nchw")
    assert "winograd_f4" not in {a.name for a, _ in methods_for(problem, cpu_facts())}
    assert "winograd_f4" in {a.name for a, _ in methods_for(problem.replace(precision="winograd"), cpu_facts())}


@pytest.mark.one_in(2)
@pytest.mark.skipif(why_absent() is not None, reason=f"no emulator: {why_absent()}")
@pytest.mark.parametrize("text", ["n1c3h9w12_k4r3s3_p1_bf16_nchw_+bias", "n2c8h8w8_k8r3s3_p1_g8_bf16_nhwc"])
def test_candidates_in_bfloat16_are_checked_and_timed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that are off by a part in a hundred are found out."""
    from convforge.backends.emulator import EmulatorRuntime

    runtime: Any = EmulatorRuntime("shuffled")
    runtime.facts = dataclasses.replace(runtime.facts, l2_bytes=1 << 10, l3_bytes=0, l1_bytes=0)
    problem = parse_problem(text)
    found = [configs[0] for configs in candidates_for(problem, runtime.facts)]
    tried = [DeviceTrial(problem, runtime).time(candidate, 0.05) for candidate in found]
    assert len(tried) >= 2
    assert [f"{one.algorithm}: {one.fault}" for one in tried if one.seconds is None] == []
    brought = Sample._brought
    monkeypatch.setattr(Sample, "_brought", lambda *given: brought(*given).astype(np.float32) * np.float32(1.01))
    assert DeviceTrial(problem, runtime).time(found[0], 0.05).wrong
