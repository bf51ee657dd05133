"""The plan that a call gets: by rule, by a stored choice, or by measuring first; and when it may measure."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.benchmark.fakes import Silent
from tests.tuning.played import PlayedGpu, Table, entry, fastest

import convforge
from convforge import UnsupportedProblem, conv2d
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.backends.kernel import KernelSource
from convforge.call import dispatch
from convforge.problem import parse_problem
from convforge.tuning import CHOICES, compile_for, decide, may_measure, remembered, tune
from convforge.tuning.choices import Tried, bucket_of, environment_of
from convforge.tuning.heuristic import choose
from convforge.tuning.search import EFFORTS, candidates_for
from convforge.tuning.trial import kernels_of

TEXT = "n1c8h24w24_k8r3s3_p1_f32_nchw"
PROBLEM: Any = parse_problem(TEXT)
ALIKE: Any = parse_problem("n1c8h20w28_k8r3s3_p1_f32_nchw")
X = np.arange(8 * 24 * 24, dtype=np.float32).reshape(1, 8, 24, 24) % 13
W = np.arange(8 * 8 * 9, dtype=np.float32).reshape(8, 8, 3, 3) % 7


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedGpu:
    """A GPU under every device's name, measured by :func:`table`."""
    runtime = PlayedGpu()
    monkeypatch.setattr(dispatch, "runtime_of", lambda device: runtime)
    dispatch._find_plan.cache_clear()
    return runtime


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """What measures, in place of the device: direct_shared, or im2col on the CPU, is fastest."""
    found = Table({"direct_shared": 1e-6, "im2col": 1e-6}, workspaces={"im2col": 1 << 20})
    monkeypatch.setattr("convforge.tuning.trial.DeviceTrial", lambda *words: found)
    return found


def taken(problem: Any = PROBLEM, algorithm: str = "auto", **more: Any) -> str:
    """The method of the plan that a call gets."""
    limit = more.pop("workspace_limit", None)
    return dispatch.find_plan(problem, algorithm, None, None, limit, **more).algorithm.name


BY_RULE = "direct_tiled"


def test_on_a_gpu_auto_measures_a_bucket_once(gpu: PlayedGpu, table: Table) -> None:
    assert choose(PROBLEM, gpu).algorithm.name == BY_RULE, "or this test shows nothing"
    assert taken() == "direct_shared"
    measured = len(table.timed)
    assert measured > 1
    assert taken() == taken(ALIKE) == "direct_shared"
    assert len(table.timed) == measured
    assert taken(parse_problem("n1c8h24w40_k8r3s3_p1_f32_nchw")) == "direct_shared"
    assert len(table.timed) > measured, "another bucket"


class Noting(PlayedGpu):
    """Notes which kernels are compiled ahead, a set a time."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: list[set[str]] = []

    def compile_ahead(self, kernels: Sequence[KernelSource]) -> None:
        self.ahead.append({kernel.digest() for kernel in kernels})


def default_kernels(problem: Any) -> set[str]:
    """Those of the default configs that a search measures first, the method by rule and the best predicted ones."""
    first = choose(problem, PlayedGpu()).algorithm.name
    methods = candidates_for(problem, H200, first)[: EFFORTS["auto"].methods]
    return {kernel.digest() for kernel in kernels_of(problem, [configs[0] for configs in methods], H200)}


def test_kernels_of_several_problems_are_compiled_ahead_defaults_first(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, other = Noting(), parse_problem("n8c64h56w56_k64r3s3_p1_f16_nhwc")
    defaults = default_kernels(PROBLEM) | default_kernels(other)
    monkeypatch.setattr("convforge.tuning.tuner.KERNELS_A_CORE", 1)
    monkeypatch.setattr("os.cpu_count", lambda: len(defaults))
    compile_for([PROBLEM, other, ALIKE], runtime)
    assert runtime.ahead[0] == defaults
    assert len(runtime.ahead) > 1
    every = [digest for kernels in runtime.ahead for digest in kernels]
    assert len(every) == len(set(every)), "no kernel twice, though one problem is like another"


def test_no_more_is_compiled_ahead_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, now = Noting(), iter(range(100))
    monkeypatch.setattr("convforge.tuning.tuner.KERNELS_A_CORE", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    compile_for([PROBLEM], runtime, 3.5, clock=lambda: next(now))
    assert [len(kernels) for kernels in runtime.ahead] == [1, 1, 1]


def test_nothing_is_compiled_ahead_for_what_is_remembered(gpu: PlayedGpu, table: Table) -> None:
    taken()
    runtime = Noting()
    compile_for([PROBLEM], runtime)
    assert runtime.ahead == []


def test_the_choice_by_rule_is_measured_first(gpu: PlayedGpu, table: Table) -> None:
    taken()
    assert table.timed[0].algorithm.name == BY_RULE


def test_a_new_size_in_a_known_bucket_compiles_nothing(gpu: PlayedGpu, table: Table) -> None:
    plan = dispatch.find_plan(PROBLEM, "auto", None, None, None)
    sources: list[str] = []
    honest = gpu.compile

    def compile_(kernel: Any) -> Any:
        sources.append(kernel.digest())
        return honest(kernel)

    gpu.compile = compile_  # type: ignore[method-assign]
    dispatch._find_plan.cache_clear()
    again = dispatch.find_plan(PROBLEM, "auto", None, None, None)
    known = set(sources)
    sources.clear()
    other = dispatch.find_plan(ALIKE, "auto", None, None, None)
    assert other.problem == ALIKE
    assert plan.config == again.config == other.config
    assert set(sources) <= known, "every kernel is one that the first size has"


def test_what_another_process_measured_is_not_measured_again(gpu: PlayedGpu, table: Table) -> None:
    taken()
    table.timed.clear()
    CHOICES.forget()
    assert taken() == "direct_shared"
    assert table.timed == []


def test_heuristic_and_deterministic_never_measure_and_never_change(gpu: PlayedGpu, table: Table) -> None:
    assert taken(algorithm="heuristic") == taken(deterministic=True) == taken(deterministic=True, tune=True) == BY_RULE
    assert table.timed == []
    taken()
    assert taken(algorithm="heuristic") == taken(algorithm="max", deterministic=True) == BY_RULE


def test_without_leave_to_measure_the_rule_holds_until_something_is_remembered(gpu: PlayedGpu, table: Table) -> None:
    assert taken(tune=False) == taken(algorithm="max", tune=False) == BY_RULE
    assert table.timed == []
    taken()
    assert taken(tune=False) == "direct_shared"
    assert taken(algorithm="max", tune=False) == "direct_shared", "a smaller search is better than none"


def test_nothing_is_measured_while_a_stream_is_captured(gpu: PlayedGpu, table: Table) -> None:
    asked: list[Any] = []
    gpu.is_capturing = lambda stream=None: not asked.append(stream)  # type: ignore[method-assign,func-returns-value]
    assert taken(stream="theirs") == taken(tune=True, stream="theirs") == BY_RULE
    assert asked == ["theirs", "theirs"], "it is the caller's stream that is asked"
    assert table.timed == []
    gpu.is_capturing = lambda stream=None: False  # type: ignore[method-assign]
    assert taken(stream="theirs") == "direct_shared", "afterwards it is"


def test_the_environment_may_forbid_all_measuring(
    gpu: PlayedGpu, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVFORGE_TUNE", "0")
    assert taken() == taken(tune=True) == taken(algorithm="max") == BY_RULE
    assert table.timed == []


def test_max_measures_what_auto_left_out(gpu: PlayedGpu, table: Table) -> None:
    taken()
    few = len(table.timed)
    table.timed.clear()
    table.times = {"direct_naive": 1e-7}
    assert taken(algorithm="max") == "direct_naive"
    assert len(table.timed) > 2 * few
    assert taken() == "direct_naive", "auto takes what max found"


@pytest.mark.parametrize("options", [{}, {"tune": None}, {"tune": False}])
def test_on_the_cpu_auto_goes_by_rule_unless_it_is_asked(table: Table, options: dict[str, Any]) -> None:
    by_rule = choose(PROBLEM, cpu_runtime()).algorithm.name
    assert by_rule != "im2col", "or this test shows nothing"
    assert taken(**options) == by_rule
    assert table.timed == []
    assert taken(tune=True) == "im2col"
    assert taken(**options) == "im2col", "what is remembered is taken"


def test_on_the_cpu_max_is_asking(table: Table) -> None:
    assert taken(algorithm="max") == "im2col"


def test_a_choice_that_was_made_without_a_limit_keeps_to_a_smaller_one(table: Table) -> None:
    assert taken(tune=True) == "im2col"
    needed = dispatch.find_plan(PROBLEM, "auto", None, None, None).workspace_bytes
    assert needed > 0, "or this test shows nothing"
    assert dispatch.find_plan(PROBLEM, "auto", None, None, needed - 1).workspace_bytes <= needed - 1
    assert taken(workspace_limit=0) != "im2col"
    assert taken(workspace_limit=needed) == "im2col"


def test_a_search_under_a_limit_says_nothing_about_none(table: Table) -> None:
    tune(PROBLEM, cpu_runtime(), "auto", 10)
    assert remembered(PROBLEM, cpu_runtime(), "auto", None) is None
    assert remembered(PROBLEM, cpu_runtime(), "auto", 9) is None
    assert remembered(PROBLEM, cpu_runtime(), "auto", 10) is not None
    for limit in (0, 9, 10):
        assert dispatch.find_plan(PROBLEM, "auto", None, None, limit).workspace_bytes <= limit


def test_a_wrong_method_is_not_even_the_choice_by_rule() -> None:
    by_rule = choose(PROBLEM, cpu_runtime()).algorithm.name
    words = "row 0 of picture 0, channel 0, column 0: expected 1.0, got 2.0"
    wrong = Tried(by_rule, "", True, 1e-3, fault=words, wrong=True)
    CHOICES.remember(entry(bucket_of(PROBLEM), environment_of("conv2d", cpu_facts()), wrong))
    choice = decide(PROBLEM, cpu_runtime())
    assert choice.algorithm.name != by_rule
    assert not choice.untuned


def test_all_methods_wrong_is_told_with_what_was_wrong() -> None:
    names = ["gemm_blas", "gemm_blocked", "gemm_loops"]
    problem = parse_problem("m8n8k8_f32")
    tried = [Tried(name, "", True, 1e-3, fault="a row is wrong", wrong=True) for name in names]
    CHOICES.remember(entry(bucket_of(problem), environment_of("gemm", cpu_facts()), *tried))
    with pytest.raises(UnsupportedProblem) as caught:
        decide(problem, cpu_runtime())
    assert caught.value.reasons == dict.fromkeys(names, "its result was wrong when it was measured")


@pytest.mark.parametrize("config", ["tile_p=0", "tile_x=3", "tile_p=many", ""])
def test_a_remembered_config_that_is_no_more_is_passed_over(config: str) -> None:
    where = environment_of("conv2d", cpu_facts())
    first, second = fastest("direct_rows", config), fastest("im2col", "", 2e-3)
    CHOICES.remember(entry(bucket_of(PROBLEM), where, first, fastest("no_such_method"), second))
    choice = decide(PROBLEM, cpu_runtime())
    assert choice.algorithm.name == ("im2col" if config else "direct_rows")
    assert "measured" in choice.reason


def test_a_search_that_fails_leaves_the_rule_and_is_not_tried_again(
    gpu: PlayedGpu, monkeypatch: pytest.MonkeyPatch, folder: Any
) -> None:
    tries: list[int] = []

    def fail(*words: Any) -> Any:
        tries.append(1)
        raise MemoryError("the GPU has no 3 bytes left")

    monkeypatch.setattr("convforge.tuning.trial.DeviceTrial", fail)
    assert taken() == taken() == BY_RULE
    assert len(tries) == 1
    found = remembered(PROBLEM, gpu)
    assert found is not None
    assert found.fault == "MemoryError: the GPU has no 3 bytes left"
    assert not folder.exists(), "another process may have more memory"


def test_many_threads_that_ask_for_one_bucket_measure_it_once(gpu: PlayedGpu, table: Table) -> None:
    barrier, got = threading.Barrier(8), list[str]()

    def ask(problem: Any) -> None:
        barrier.wait()
        got.append(taken(problem))

    threads = [threading.Thread(target=ask, args=(problem,)) for problem in (PROBLEM, ALIKE) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["direct_shared"] * 8
    each = [(c.algorithm.name, str(c.config)) for c in table.timed]
    assert len(each) == len(set(each))


def test_where_times_do_not_decide_nothing_is_measured(table: Table) -> None:
    problem = PROBLEM.replace(precision="separable")
    assert tune(problem, cpu_runtime()) is None
    assert not decide(problem, cpu_runtime()).untuned


@needs_emulator
def test_the_emulator_is_never_measured(table: Table) -> None:
    from convforge.backends.emulator import emulator_runtime

    assert tune(PROBLEM, emulator_runtime()) is None
    plan = dispatch.find_plan(PROBLEM, "max", None, "emulator", None, tune=True)
    assert plan.algorithm.name == choose(PROBLEM, emulator_runtime()).algorithm.name
    assert table.timed == []


def test_peers_are_chosen_only_where_the_environment_says_so(
    gpu: PlayedGpu, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.tuning.search import methods_for

    taken()
    assert all(candidate.algorithm.ours for candidate in table.timed)
    assert all(a.ours for a, _ in methods_for(PROBLEM, gpu.facts))
    cpu = environment_of("conv2d", cpu_facts())
    CHOICES.remember(entry(bucket_of(PROBLEM, peers=True), cpu, fastest("im2col")))
    assert decide(PROBLEM, cpu_runtime()).untuned
    assert decide(PROBLEM, cpu_runtime(), peers=True).algorithm.name == "im2col"


@pytest.mark.parametrize("level", ["heuristic", "auto", "max"])
def test_levels_take_no_config(level: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm is '{level}'"):
        conv2d(X, W, algorithm=level, config="tile_p=2")


def test_tune_is_yes_no_or_none() -> None:
    with pytest.raises(TypeError, match="tune='yes' must be True, False or None"):
        conv2d(X, W, tune="yes")  # type: ignore[arg-type]


def test_a_call_that_tunes_is_right_and_every_level_agrees() -> None:
    expected = conv2d(X, W, padding=1, algorithm="direct_naive")
    for options in ({"tune": True}, {"tune": False}, {"algorithm": "heuristic"}, {"deterministic": True}):
        np.testing.assert_array_equal(conv2d(X, W, padding=1, **options), expected)  # type: ignore[arg-type]
    found = remembered(PROBLEM, cpu_runtime())
    assert found is not None
    assert not any(tried.wrong for tried in found.tried), [tried.fault for tried in found.tried]
    assert found.tried[0].seconds is not None
    kept = convforge.Filter(W, padding=1, tune=True, deterministic=False)
    np.testing.assert_array_equal(kept(X), expected)


def test_a_method_that_turns_wrong_is_found_out_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice by rule of a product writes nothing: a search says so and takes another."""
    from convforge.algorithms.gemm import GemmBlas

    problem = parse_problem("m40n40k40_f32")
    monkeypatch.setattr(
        GemmBlas, "plan", lambda self, problem, config, runtime: Silent().plan(problem, config, runtime)
    )
    found = tune(problem, cpu_runtime())
    assert found is not None
    wrong = {tried.algorithm: tried.fault for tried in found.tried if tried.wrong}
    assert set(wrong) == {"gemm_blas"}
    assert "row 0, column 0: expected" in wrong["gemm_blas"]
    assert decide(problem, cpu_runtime()).algorithm.name == found.tried[0].algorithm != "gemm_blas"


@pytest.mark.parametrize(
    ("tune_", "level", "backend", "may"),
    [
        (None, "auto", "cuda", True), (None, "auto", "cpu", False), (None, "max", "cpu", True),
        (True, "auto", "cpu", True), (False, "max", "cuda", False), (False, "auto", "cuda", False),
    ],
)  # fmt: skip
def test_who_may_measure(tune_: bool | None, level: str, backend: str, may: bool) -> None:
    runtime: Any = PlayedGpu(dataclasses.replace(PlayedGpu().facts, backend=backend))
    assert may_measure(tune_, level, runtime) is may
