"""cuDNN's plans without a GPU: each is counted, each that does not run says why, the fastest is found out of cache."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.benchmark import fakes
from tests.cases import CASES
from tests.peers import host_gpu
from tests.peers.host_cudnn import PlayedFrontend, PlayedPlan
from tests.peers.host_gpu import FACTS, TEXTS, HostRuntime, asked, checked, peer_of

from convforge.algorithms import refusal
from convforge.benchmark.records import Result
from convforge.benchmark.row import Row, measure_row
from convforge.benchmark.suites import Case
from convforge.benchmark.tables import tables_of, way_notes
from convforge.errors import UnsupportedProblem
from convforge.peers import cudnn as cudnn_peer
from convforge.peers.contract import random_array
from convforge.peers.cudnn import gib, workspace_limit
from convforge.problem import parse_problem
from convforge.timing.ring import ring_limit, ring_size
from convforge.timing.stopping import StoppingRule
from convforge.tuning.heuristic import fit
from convforge.verify import check_nan_spread

PROBLEM = parse_problem(TEXTS["conv2d"])
LIMIT = workspace_limit(FACTS)
PLANS = (
    PlayedPlan("eng0", slow_s=0.002),
    PlayedPlan("eng1", 4096),
    PlayedPlan("eng2", LIMIT + 1),
    PlayedPlan("eng3", LIMIT + 9),
    PlayedPlan("eng4", unbuilt="CUDNN_STATUS_NOT_SUPPORTED:\n  no such knob"),
    PlayedPlan("eng5", unrun="CUDNN_STATUS_EXECUTION_FAILED"),
    PlayedPlan("eng6", notes=("TENSOR_CORE",)),
    PlayedPlan("eng7", notes=("WINOGRAD",)),
)
WORDS = (
    f"6 plans: 2 run, 2 want more than {gib(LIMIT)} of workspace, 1 failed: CUDNN_STATUS_NOT_SUPPORTED: no such knob, "
    "1 failed: CUDNN_STATUS_EXECUTION_FAILED; excluded: tensor cores, Winograd or FFT, 2"
)


class ClockRuntime(HostRuntime):
    """A host whose clock runs."""

    def time(self, run: Any, repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return time.perf_counter() - begin


@pytest.fixture
def installed(monkeypatch: Any) -> Iterator[Callable[..., PlayedFrontend]]:
    """A function that installs a frontend with these plans."""

    def install(*plans: PlayedPlan) -> PlayedFrontend:
        cudnn_peer._graph.cache_clear()
        played = PlayedFrontend(*plans)
        monkeypatch.setitem(sys.modules, "cudnn", played)
        return played

    monkeypatch.setattr(cudnn_peer, "FIRST_S", 0.0)
    monkeypatch.setattr(cudnn_peer, "FINAL_S", 0.0)
    yield install
    cudnn_peer._graph.cache_clear()


def peer() -> Any:
    return peer_of("conv2d", "cudnn")


def test_every_plan_is_counted_and_says_why_it_did_not_run(installed: Any) -> None:
    installed(*PLANS)
    plan = peer().plan(PROBLEM, cudnn_peer.CudnnConfig(), ClockRuntime())
    assert str(plan.choice) == WORDS
    assert plan.launches[0].kernel == "1: eng1", "the fastest"
    outcomes = {name: words for name, _, words in plan.ways}
    assert [outcome for _, outcome, _ in plan.ways] == ["run"] * 2 + ["large"] * 2 + ["failed"] * 2 + ["excluded"] * 2
    assert list(outcomes) == [f"{number}: eng{number}" for number in range(8)]
    assert outcomes["2: eng2"] == f"wants {gib(LIMIT + 1)} of workspace; the limit is {gib(LIMIT)}"
    assert outcomes["4: eng4"] == "CUDNN_STATUS_NOT_SUPPORTED: no such knob"
    assert outcomes["5: eng5"] == "CUDNN_STATUS_EXECUTION_FAILED"
    assert outcomes["6: eng6"] == "Deselecting execution plan"
    assert outcomes["0: eng0"].endswith(" us")
    assert float(outcomes["0: eng0"].split()[0]) >= 2000
    prepared = plan.prepare(ClockRuntime().empty(PROBLEM.w_shape, "float32"))
    assert str(prepared.note) == f"plan 1: eng1; {WORDS}"


def test_tensor_cores_are_not_excluded_where_they_are_allowed(installed: Any) -> None:
    installed(*PLANS)
    found = peer_of("conv2d", "cudnn_tf32")
    plan = found.plan(asked(TEXTS["conv2d"], found), cudnn_peer.CudnnConfig(), ClockRuntime())
    assert str(plan.choice).startswith("8 plans: 4 run, 2 want more than")
    assert "excluded" not in str(plan.choice)


def test_plans_are_timed_on_random_numbers_in_a_ring(installed: Any) -> None:
    played = installed(PlayedPlan("eng0"), PlayedPlan("eng1"))
    peer().plan(PROBLEM, cudnn_peer.CudnnConfig(), HostRuntime())
    runtime = HostRuntime()
    nbytes = sum(runtime.empty(s, "float32").nbytes for s in (PROBLEM.x_shape, PROBLEM.w_shape, PROBLEM.out_shape))
    slots = ring_size(nbytes, FACTS, ring_limit(FACTS)).slots
    for number in (0, 1):
        addresses = [address for n, address, _ in played.seen if n == number]
        assert len(addresses) >= cudnn_peer.FIRST_SAMPLES + cudnn_peer.FINAL_SAMPLES, "enough samples for ranks"
        assert all(a != b for a, b in pairwise(addresses)), "each call takes the next slot"
        assert len(set(addresses)) >= min(slots, cudnn_peer.FINAL_SAMPLES), "of a ring as large as the bench's"
    for _, _, numbers in played.seen:
        assert len(set(numbers.tolist())) > 60, "not one number everywhere"
        assert 0.5 < numbers.std() < 2.0


def test_only_the_librarys_own_exceptions_are_caught(installed: Any, monkeypatch: Any) -> None:
    installed(*PLANS)
    monkeypatch.setattr(cudnn_peer._Graph, "execute", lambda *a: {}["no such key"])
    with pytest.raises(KeyError, match="no such key"):
        peer().plan(PROBLEM, cudnn_peer.CudnnConfig(), HostRuntime())


def test_a_workspace_that_does_not_fit_is_a_reason(installed: Any) -> None:
    class Full(HostRuntime):
        def allocate(self, nbytes: int, stream: Any = None) -> Any:
            raise MemoryError(f"the GPU has no {nbytes} bytes left")

    installed(PlayedPlan("eng0"), PlayedPlan("eng1", 4096))
    plan = peer().plan(PROBLEM, cudnn_peer.CudnnConfig(), Full())
    assert str(plan.choice) == "2 plans: 1 run, 1 failed: the GPU has no 4096 bytes left"


def test_what_cudnn_has_no_plan_for_is_refused_in_its_words(installed: Any) -> None:
    installed(PlayedPlan("eng6", notes=("TENSOR_CORE",)))
    assert str(refusal(peer(), PROBLEM, FACTS)) == "cuDNN has no plan for it: No execution plans support the graph."
    installed(PlayedPlan("eng0", unrun="CUDNN_STATUS_EXECUTION_FAILED"))
    assert refusal(peer(), PROBLEM, FACTS) is None
    with pytest.raises(UnsupportedProblem, match="none of cuDNN's plans can be run: 1 plan: 0 run, 1 failed: CUDNN_ST"):
        peer().plan(PROBLEM, cudnn_peer.CudnnConfig(), HostRuntime())
    installed(PlayedPlan("eng0", unbuilt="CUDNN_STATUS_NOT_SUPPORTED"), PlayedPlan("eng1"))
    with pytest.raises(UnsupportedProblem, match="CUDNN_STATUS_NOT_SUPPORTED"):
        peer().plan(PROBLEM, cudnn_peer.CudnnConfig("0"), HostRuntime())


def test_a_plan_that_is_refused_late_ends_neither_explain_nor_a_bench(installed: Any) -> None:
    from convforge.benchmark.runner import Settings, rows_of

    runtime: Any = HostRuntime()
    installed(PlayedPlan("eng0", unbuilt="CUDNN_STATUS_NOT_SUPPORTED"))
    reason = fit(peer(), PROBLEM, runtime, 32)
    assert str(reason) == "none of cuDNN's plans can be run: 1 plan: 0 run, 1 failed: CUDNN_STATUS_NOT_SUPPORTED"
    installed(PlayedPlan("eng0", notes=("FFT",)), PlayedPlan("eng1", 64), PlayedPlan("eng2", 16, slow_s=0.02))
    (row,) = rows_of(Case("rgb", PROBLEM), [peer()], ClockRuntime(), Settings(workspace_limit=32))
    assert str(row.config) == "plan=2"
    assert str(fit(peer(), PROBLEM, runtime, 8)) == "it needs a workspace of at least 16 bytes; the limit is 8"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", [case.text for case in CASES if parse_problem(case.text).operation == "conv2d"])
def test_convolutions_by_a_played_frontend(text: str, installed: Any) -> None:
    installed(PlayedPlan("eng0"))
    problem = parse_problem(text)
    if (reason := refusal(peer(), problem, FACTS)) is not None:
        assert len(str(reason)) > 20
        return
    if problem.x_layout == "NHWC":
        checked(peer(), problem, cudnn_peer.CudnnConfig("0"), runtime=host_gpu.PackingRuntime())
        return
    assert [config.plan for config in peer().configs(problem, FACTS)] == ["best", "0"]
    checked(peer(), problem, cudnn_peer.CudnnConfig("0"))


def test_arrays_with_gaps_are_not_handed_to_cudnn(installed: Any) -> None:
    installed(PlayedPlan("eng0"))
    runtime: Any = HostRuntime()
    plan = peer().plan(PROBLEM, cudnn_peer.CudnnConfig("0"), runtime)
    w, out = runtime.empty(PROBLEM.w_shape, "float32"), runtime.empty(PROBLEM.out_shape, "float32")
    x = runtime.empty((1, 3, 9, 16), "float32")[..., ::2]
    with pytest.raises(ValueError, match="cuDNN takes arrays whose elements lie side by side; one of shape"):
        plan({"x": x, "w": plan.prepare(w), "out": out})


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_and_inf_spread_as_declared(kind: str, installed: Any) -> None:
    installed(PlayedPlan("eng0"))
    runtime: Any = HostRuntime()
    plan = peer().plan(parse_problem("n2c2h13w12_k3r3s3_st2_p1_f32_nchw"), cudnn_peer.CudnnConfig("0"), runtime)
    with np.errstate(invalid="ignore"):
        verdict = check_nan_spread(plan, kind)
    assert verdict.ok, verdict.message


def test_a_row_of_the_bench_keeps_every_plan(installed: Any) -> None:
    from convforge.benchmark.material import Material

    installed(*PLANS)
    runtime: Any = ClockRuntime()
    case = Case("rgb", PROBLEM)
    row = Row(case, PROBLEM, peer(), cudnn_peer.CudnnConfig(), FACTS)
    rule = StoppingRule(samples=3, patience_s=0.0, budget_s=5.0)
    result = measure_row(row, Material(case, runtime), rule, thorough=False)
    assert result.status == "ok", result.reason
    assert len(result.ways) == 8
    assert WORDS in str(result.note)
    assert Result.from_record(json.loads(json.dumps(result.to_record()))).ways == result.ways
    assert way_notes([result], lambda r: r.algorithm) == [
        "cudnn: the fastest of the library's own plans: 6 on 1 case, 2 run, 2 want more workspace than the limit, "
        "2 failed (CUDNN_STATUS_NOT_SUPPORTED: no such knob, CUDNN_STATUS_EXECUTION_FAILED); "
        "2 excluded for their arithmetic."
    ]
    both = [result, dataclasses.replace(result, case="other", ways=(("0: eng0", "run", "1 us"),))]
    assert way_notes(both, lambda r: r.algorithm)[0].startswith(
        "cudnn: the fastest of the library's own plans: 7 on 2 cases, 3 run, 2 want"
    )
    (table,) = tables_of(fakes.run(result))
    assert any("2 failed (CUDNN_STATUS_NOT_SUPPORTED" in note for note in table.notes)
    plain = dataclasses.replace(result, ways=())
    assert "ways" not in plain.to_record()
    assert Result.from_record(plain.to_record()) == plain


def test_explain_shows_the_count_and_each_plan_where_more_is_asked(installed: Any) -> None:
    from rich.console import Console

    from convforge.cli.survey import Entry, notes, print_details

    installed(*PLANS)
    entry = Entry(peer(), PROBLEM, peer().plan(PROBLEM, cudnn_peer.CudnnConfig(), ClockRuntime()))
    assert f"cudnn: {WORDS}" in notes(PROBLEM, [entry], None, None, [], FACTS.backend)
    console = Console(file=io.StringIO(), width=1000)
    print_details(console, entry)
    assert f"3: eng3: wants {gib(LIMIT + 9)} of workspace" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "int8", "int16", "int32", "bfloat16"])
def test_random_arrays_of_every_type(dtype: str) -> None:
    runtime: Any = HostRuntime()
    found = random_array((3, 5, 4097), dtype, runtime, 0).described
    assert found.shape == (3, 5, 4097)
    assert len(np.unique(found)) > 8
    assert not np.array_equal(found, random_array((3, 5, 4097), dtype, runtime, 1).described)
    assert np.isfinite(found.astype(np.float64)).all()


def test_no_peer_swallows_exceptions_that_it_does_not_know() -> None:
    for path in Path(cudnn_peer.__file__).parent.glob("*.py"):
        assert "except Exception" not in path.read_text(), path.name
