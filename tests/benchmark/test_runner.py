"""The runner: cheats get no time, an interrupt loses nothing, budgets hold and say so."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.benchmark import fakes
from tests.benchmark.fakes import cases, run_bench

from convforge.algorithms import ON_DEVICE
from convforge.algorithms.contract import Plan
from convforge.backends.cpu.runtime import CpuRuntime, cpu_runtime
from convforge.backends.runtime import Runtime
from convforge.benchmark.budget import PROBE_FLOPS, ROW_LIMIT_S, Budget, Forecast, _Sizes, smaller
from convforge.benchmark.material import Material, gaussian_weights, memory_refusal
from convforge.benchmark.records import CopyTime
from convforge.benchmark.row import Row, time_transfers
from convforge.benchmark.runner import Settings, choose, rows_of
from convforge.benchmark.store import load_run
from convforge.benchmark.suites import Case
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, GemmProblem, Problem, parse_problem
from convforge.timing.ceilings import Ceilings
from convforge.timing.copies import Copies
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing


def test_an_honest_method_gets_both_times_its_error_and_its_config(tmp_path: Path) -> None:
    run = run_bench(tmp_path, cases(8), [fakes.Honest()], Settings())
    (result,) = run.results
    assert run.complete
    assert (result.status, result.reason, result.config, result.ours) == ("ok", None, "tile=8", True)
    assert result.time is not None
    assert result.prepared_time is not None
    assert result.error is not None
    assert result.error.rms is not None
    assert result.error.rms < 1e-6
    assert result.first_call_s is not None
    assert result.prepare_s is not None
    assert "as it is" in str(result.note)
    assert result.launches[0]["kernel"] == "honest"
    assert result.time.ring == 256
    assert not result.time.cold


def test_a_time_from_host_to_host_where_it_is_asked_for(tmp_path: Path) -> None:
    (plain,) = run_bench(tmp_path / "a", cases(8), [fakes.Honest()]).results
    assert plain.transfer_time is None
    run = run_bench(tmp_path / "b", cases(8), [fakes.Honest()], Settings(quick=True, transfer=True))
    (result,) = run.results
    assert result.transfer_time is not None
    assert result.transfer_time.ring == 2, "two sets of inputs, so that a stale result shows"
    assert len(result.transfer_time.samples) >= 3
    assert load_run(run.path).results[0].transfer_time == result.transfer_time, "as it was stored"


@needs_emulator
def test_the_copies_to_and_from_a_device_are_inside_that_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.backends.emulator import EmulatorRuntime

    copies = {"upload": 0, "download": 0}

    class Counting(EmulatorRuntime):
        def upload(self, array: Any, stream: Any = None) -> Any:
            copies["upload"] += 1
            return super().upload(array, stream)

        def download(self, array: Any, stream: Any = None, *, room: Any = None) -> Any:
            copies["download"] += 1
            return super().download(array, stream, room=room)

    method = next(a for a in ON_DEVICE if a.key == ("gemm", "emulator", "gemm_naive"))
    runtime, case = Counting(), cases(8)[0]
    material = Material(case, runtime)
    plan = method.plan(case.problem, method.configs(case.problem, runtime.facts)[0], runtime)
    copies.update(upload=0, download=0)
    timing, outs = time_transfers(plan, material, StoppingRule(samples=3, sample_s=0.0))
    assert all(judge.verdict("strict", out).ok for judge, out in zip(material.judges, outs, strict=True))
    calls = 1 + len(timing.samples)
    assert copies == {"upload": 2 * calls, "download": calls}, "A and B up, C down, on every call"


def test_what_comes_back_to_the_host_must_be_right_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convforge.benchmark.row.execute", lambda plan, x, w, operands, out, *rest: None)
    (bad,) = run_bench(tmp_path, cases(8), [fakes.Honest()], Settings(transfer=True)).results
    assert bad.status == "failed"
    assert str(bad.reason).startswith("on host arrays: ")
    assert (bad.time, bad.prepared_time, bad.transfer_time) == (None, None, None)


@pytest.mark.parametrize("cheat", [fakes.Silent, fakes.Stale, fakes.Tired])
def test_a_cheat_gets_no_time(tmp_path: Path, cheat: Callable[[], fakes.Honest]) -> None:
    run = run_bench(tmp_path, cases(8), [cheat(), fakes.Honest()])
    bad, good = run.results
    assert bad.status == "failed"
    assert bad.reason
    assert bad.time is None
    assert bad.prepared_time is None
    assert good.status == "ok"


def test_one_that_fails_while_it_is_timed_says_so(tmp_path: Path) -> None:
    (bad,) = run_bench(tmp_path, cases(8), [fakes.Tired()]).results
    assert str(bad.reason).startswith("after timing: ")


def test_a_method_that_raises_ends_its_row_alone(tmp_path: Path) -> None:
    broken, honest = run_bench(tmp_path, cases(8), [fakes.Broken(), fakes.Honest()]).results
    assert (broken.status, str(broken.reason)) == ("error", "ArithmeticError: it broke")
    assert honest.status == "ok"


def test_a_refusal_is_stored_with_its_reason(tmp_path: Path) -> None:
    (picky,) = run_bench(tmp_path, cases(8), [fakes.Picky()]).results
    assert (picky.status, str(picky.reason)) == ("refused", "it would rather not")


def test_the_workspace_limit_takes_another_config_or_refuses(tmp_path: Path) -> None:
    fits, none = Settings(quick=True, workspace_limit=5000), Settings(quick=True, workspace_limit=100)
    (result,) = run_bench(tmp_path / "a", cases(8), [fakes.Hungry()], fits).results
    assert (result.status, result.config, result.workspace_bytes) == ("ok", "tile=4", 4096)
    (result,) = run_bench(tmp_path / "b", cases(8), [fakes.Hungry()], none).results
    assert result.status == "refused"
    assert "limit is 100" in str(result.reason)


def test_all_configs(tmp_path: Path) -> None:
    run = run_bench(tmp_path, cases(8), [fakes.Honest()], Settings(quick=True, all_configs=True))
    assert [r.config for r in run.results] == ["tile=8", "tile=16"]


@pytest.mark.parametrize(("search", "config"), [(0, "tile=8"), (2, "tile=8"), (3, "tile=32"), (4, "tile=32")])
def test_the_fastest_of_the_first_configs_is_looked_for(tmp_path: Path, search: int, config: str) -> None:
    """Of ours; and a run that goes on does not look for it again."""
    settings, methods = Settings(quick=True, search=search), [fakes.Choosy(), fakes.Rival()]
    run = run_bench(tmp_path, cases(8, 16), methods, settings)
    assert [(r.algorithm, r.config, r.status) for r in run.results] == [
        ("choosy", config, "ok"), ("rival", "tile=8", "ok"),
    ] * 2  # fmt: skip
    assert {r.config for final in run.finals for r in final.contestants} <= {config, "tile=8"}
    (path,) = tmp_path.rglob("*.jsonl")
    before = path.read_text().count('"kind":"result"')
    again = run_bench(tmp_path, cases(8, 16), methods, settings, path=path)
    assert path.read_text().count('"kind":"result"') == before == 4
    assert [r.key for r in again.results] == [r.key for r in run.results]


def test_a_search_and_a_budget(tmp_path: Path) -> None:
    run = run_bench(tmp_path, cases(8), [fakes.Choosy()], Settings(quick=True, search=4, budget_s=5.0))
    assert [(r.config, r.status) for r in run.results] == [("tile=32", "ok")]


def test_small_cases_come_first(tmp_path: Path) -> None:
    assert run_bench(tmp_path, cases(32, 4, 16), [fakes.Honest()]).cases == ("square_4", "square_16", "square_32")


@pytest.mark.parametrize("at", range(1, 6))
def test_after_an_interrupt_exactly_the_missing_rows_are_run(tmp_path: Path, at: int) -> None:
    wanted, first = cases(4, 8), [fakes.Honest(), fakes.Interrupting(at)]
    with contextlib.suppress(KeyboardInterrupt):  # the later ones are never reached
        run_bench(tmp_path, wanted, first)
    (path,) = tmp_path.rglob("*.jsonl")
    before = load_run(path)
    again = [fakes.Honest(), fakes.Interrupting(-1)]
    after = run_bench(tmp_path, wanted, again, path=path)
    assert after.complete
    assert {r.key for r in after.results} == {
        (f"square_{n}", f"m{n}n{n}k{n}_f32", "cpu", name, "tile=8")
        for n in (4, 8)
        for name in ("honest", "interrupting")
    }
    kept = {r.key: r for r in before.results}
    assert all(kept.get(r.key, r) == r for r in after.results)  # finished rows were not measured again
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(line["kind"] == "result" for line in lines) == 4


def test_the_interrupted_run_says_that_it_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_bench(tmp_path, cases(4, 8), [fakes.Honest(), fakes.Interrupting(1)])
    (path,) = tmp_path.rglob("*.jsonl")
    run = load_run(path)
    assert not run.complete
    assert [(r.case, r.algorithm) for r in run.results] == [("square_4", "honest")]


def test_a_row_whose_sources_changed_is_measured_again(tmp_path: Path) -> None:
    first = run_bench(tmp_path, cases(4), [fakes.Honest()])
    changed = fakes.Honest()
    changed.versions = lambda: {"numpy": "another"}  # type: ignore[method-assign]
    second = run_bench(tmp_path, cases(4), [changed], path=first.path)
    assert len(second.results) == 1
    assert second.results[0].library_versions == {"numpy": "another"}


class Telling(CpuRuntime):
    """A runtime on which the calls of a run take as long as the test says."""

    seconds = 100.0

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Run, and tell."""
        super().time(run, repeats)
        return self.seconds * repeats


def test_a_row_predicted_to_take_too_long_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def predict(self: Forecast, keys: Any, *rest: object) -> tuple[float, dict[str, str]] | None:
        return (100.0, {"known": "1 s", "problem": "a smaller one"}) if ("gemm", "honest") in keys else None

    monkeypatch.setattr(Forecast, "predict", predict)
    method = fakes.Interrupting(1)  # it must not even be planned
    method.name = "honest"  # type: ignore[misc]
    (result,) = run_bench(tmp_path, cases(8), [method], Settings(quick=True, budget_s=30.0)).results
    assert result.status == "skipped"
    said = str(result.reason)
    assert said.startswith("a call would take about 100 s (1 s for a smaller one); its row and the cheaper ones")
    assert said.endswith("of it for this row; 30.0 s of 30 s are left")


def test_a_row_whose_call_turns_out_too_slow_is_skipped_with_the_reason(tmp_path: Path) -> None:
    runtime = Telling(cpu_runtime().facts)
    (result,) = run_bench(tmp_path, cases(8), [fakes.Honest()], Settings(budget_s=30.0), runtime=runtime).results
    assert (result.status, result.time) == ("skipped", None)
    # ROW_CALLS of 100 s each.
    assert str(result.reason) == (
        "a call takes 100 s; its row and the cheaper ones to come need about 1800 s, 1800 s of it for this row; "
        "30.0 s of 30 s are left"
    )


def test_a_prediction_comes_from_the_largest_row_so_far() -> None:
    forecast, key = Forecast(), ("gemm", "honest")
    small, middle, large = (parse_problem(f"m{n}n{n}k{n}_f32") for n in (100, 200, 400))

    def probe(problem: Problem) -> float:
        raise AssertionError("there was an earlier row")

    forecast.learn(key, small, 0.01)
    forecast.learn(key, middle, 0.02)
    predicted = forecast.predict([key], large, probe)
    assert predicted is not None
    assert predicted[0] == pytest.approx(0.16)
    assert predicted[1]["problem"] == "m200n200k200_f32"
    assert forecast.predict([("gemm", "other")], small, probe) is None


def test_a_config_that_was_seen_speaks_for_itself_and_the_first_one_for_the_others() -> None:
    forecast = Forecast()
    slow, quick, unseen = (("gemm", "honest", f"tile={tile}") for tile in (8, 16, 32))
    method, small, large = ("gemm", "honest"), parse_problem("m100n100k100_f32"), parse_problem("m200n200k200_f32")

    def probe(problem: Problem) -> float:
        raise AssertionError("there was an earlier row")

    for key, seconds in ((slow, 1.0), (quick, 0.01), (method, 0.02)):
        forecast.learn(key, small, seconds)
    for key, seconds in ((slow, 8.0), (quick, 0.08), (unseen, 0.16)):
        predicted = forecast.predict([key, method], large, probe)
        assert predicted is not None
        assert predicted[0] == pytest.approx(seconds)
        assert forecast.seconds_per_flop(key, method) == pytest.approx(seconds / large.flops)


def test_one_slow_config_does_not_keep_the_others_from_a_larger_case(tmp_path: Path) -> None:
    """The second config takes 10 s for the small case: the large one is too dear for it, and not for the first."""
    passed = [0.0]

    class Uneven(fakes.Honest):
        def plan(self, problem: GemmProblem, config: fakes.Tile, runtime: Runtime) -> Plan:
            plan = super().plan(problem, config, runtime)
            runtime.seconds = 0.01 if config.tile == 8 else 0.5  # type: ignore[attr-defined]
            return plan

    runtime = Telling(cpu_runtime().facts)
    settings = Settings(quick=True, budget_s=100.0, all_configs=True)
    run = run_bench(tmp_path, cases(100, 400), [Uneven()], settings, runtime=runtime, clock=lambda: passed[0])
    found = {(result.case, result.config): result for result in run.results}
    assert found["square_100", "tile=16"].status == "ok"
    assert found["square_400", "tile=8"].status == "ok"
    last = found["square_400", "tile=16"]
    assert last.status == "skipped"
    assert "a call would take about 32.0 s (500 ms for m100n100k100_f32)" in str(last.reason)


def test_a_smaller_problem_that_the_method_refuses_is_no_error(tmp_path: Path) -> None:
    class Large(fakes.Honest):
        def refuses(self, problem: GemmProblem, facts: Any) -> Reason | None:
            return None if problem.m >= 400 else Reason("it takes 400 rows and more")

    (result,) = run_bench(tmp_path, cases(400), [Large()], Settings(quick=True)).results
    assert (result.status, result.reason) == ("ok", None)


def test_a_prediction_that_would_refuse_is_made_again_from_a_larger_problem() -> None:
    large = parse_problem("m4000n4000k4000_f32")
    probed: list[Problem] = []

    def probe(problem: Problem) -> float:  # the small one takes ten times as long as its size says
        probed.append(problem)
        return problem.flops * (1e-9 if len(probed) == 1 else 1e-10)

    first = Forecast().predict([("truth",)], large, probe)
    assert first is not None
    assert first[0] == pytest.approx(1e-9 * large.flops)
    probed.clear()
    again = Forecast().predict([("truth",)], large, probe, most=20.0)
    assert again is not None
    assert again[0] == pytest.approx(1e-10 * large.flops)
    assert probed[0].flops < probed[1].flops <= 16 * PROBE_FLOPS
    probed.clear()
    hopeless = Forecast().predict([("truth",)], large, probe, most=0.1)
    assert hopeless is not None
    assert len(probed) == 1, "a larger problem would take too long itself"


def test_probes_grow_until_a_calls_fixed_time_no_longer_hides_what_its_size_takes() -> None:
    probed: list[Problem] = []

    def probe(problem: Problem) -> float:
        probed.append(problem)
        return 0.01 + 1e-12 * problem.flops

    large = parse_problem("m4000n4000k4000_f32")
    predicted = Forecast().predict([("fast",)], large, probe, most=1.0)
    assert predicted is not None
    assert 0.01 + 1e-12 * large.flops < predicted[0] < 1.0
    assert len(probed) == 3


def test_what_a_case_took_is_forecast_for_the_next() -> None:
    rows = _rows(400, 2000)
    budget = Budget(200.0, rows, Forecast(), clock=lambda: 0.0)
    assert budget.refusal(rows[1]) is None
    budget.learn_case(rows[0], 8.0)
    assert budget.refusal(rows[1]), "25 times the outputs, 200 s"


def test_the_truth_of_a_case_may_take_what_its_rows_do_not_need() -> None:
    rows = _rows(8, 9, 10, 11)
    budget = Budget(100.0, rows, Forecast(), clock=lambda: 0.0)
    assert budget.case_share(rows[:1]) == pytest.approx(max(25.0, budget.share(rows[0])))
    for row in rows[:3]:
        budget.done(row)
        budget.final_share(row.case.name)
    assert budget.case_share(rows[3:]) == pytest.approx(100.0)


def test_without_an_earlier_row_a_smaller_problem_is_tried(tmp_path: Path) -> None:
    runtime = Telling(cpu_runtime().facts)
    (result,) = run_bench(tmp_path, cases(400), [fakes.Honest()], runtime=runtime).results
    assert result.status == "skipped"
    assert f"for {smaller(parse_problem('m400n400k400_f32'))}" in str(result.reason)


def test_a_spent_budget_skips_what_is_left_and_says_so(tmp_path: Path) -> None:
    ticks = iter(range(10**9))
    run = run_bench(
        tmp_path, cases(4, 8, 16), [fakes.Honest()], Settings(quick=True, budget_s=1.0), clock=lambda: next(ticks)
    )
    assert {r.status for r in run.results} == {"skipped"}
    assert all(str(r.reason) == "the budget of 1 s was spent" for r in run.results)


def _cost(budget: Budget, row: Row) -> float:
    return budget._cost(_Sizes.of(row))


def _rows(*sizes: int) -> list[Row]:
    runtime, settings = cpu_runtime(), Settings()
    return [row for case in cases(*sizes) for row in rows_of(case, [fakes.Honest()], runtime, settings)]


def test_a_budget_is_shared_by_cost_and_what_is_left_over_is_the_others() -> None:
    now = [0.0]
    rows = _rows(64, 512)
    budget = Budget(100.0, rows, Forecast(), clock=lambda: now[0])
    small, large = (budget.share(row) for row in rows)
    assert large / small == pytest.approx(_cost(budget, rows[1]) / _cost(budget, rows[0]))
    assert 0 < small < large < 100
    now[0] = small / 10
    budget.done(rows[0])
    budget.final_share(rows[0].case.name)
    assert budget.share(rows[1]) > large
    assert budget.share(rows[1]) + budget.final_share(rows[1].case.name) <= budget.remaining_s


def test_where_not_everything_fits_the_dearest_rows_are_skipped() -> None:
    rows = _rows(300, 301, 302, 303, 1200)
    forecast = Forecast()
    costs = [_cost(Budget(1.0, [row], forecast), row) for row in rows]
    budget = Budget(6 * sum(costs[:4]), rows, forecast, clock=lambda: 0.0)
    assert [budget.refusal(row) is None for row in rows] == [True, True, True, True, False]
    assert all(budget.share(row) >= _cost(budget, row) for row in rows[:4])
    assert budget.refusal(rows[0], call_s=100.0)


def test_a_budget_knows_what_a_method_took_before() -> None:
    (row,) = _rows(400)
    forecast = Forecast()
    before = _cost(Budget(1.0, [row], forecast), row)
    forecast.learn(("gemm", "honest"), parse_problem("m200n200k200_f32"), 10.0)
    assert _cost(Budget(1.0, [row], forecast), row) == pytest.approx(18 * 80.0, rel=0.01)
    assert before < 10


def test_compiling_is_not_the_budgets() -> None:
    now = [0.0]
    budget = Budget(10.0, _rows(8), Forecast(), clock=lambda: now[0])
    now[0] = 4.0
    budget.forgive(3.0)
    assert budget.remaining_s == 9.0


def test_a_row_that_compiles_longer_than_the_budget_is_timed_all_the_same(tmp_path: Path) -> None:
    passed, ticks = [0.0], itertools.count()

    class Compiling(fakes.Honest):
        def plan(self, problem: GemmProblem, config: fakes.Tile, runtime: Runtime) -> Plan:
            passed[0] += 100.0
            return super().plan(problem, config, runtime)

    run = run_bench(
        tmp_path, cases(8), [Compiling()], Settings(quick=True, budget_s=30.0),
        clock=lambda: passed[0] + 1e-4 * next(ticks),
    )  # fmt: skip
    (result,) = run.results
    assert (result.status, result.reason) == ("ok", None)
    assert result.first_call_s is not None
    assert result.first_call_s >= 100


def test_without_a_budget_a_row_has_a_limit() -> None:
    (row,) = _rows(8)
    budget = Budget(None, [row], Forecast())
    assert budget.share(row) == ROW_LIMIT_S
    assert budget.refusal(row) is None
    assert budget.refusal(row, ROW_LIMIT_S)


@pytest.mark.parametrize(
    "text",
    [
        "n32c64h56w56_k64r3s3_st1_p1_f32_nchw",
        "n1c3h8192w8192_k3r3s3_st3_p1_f32_nchw",
        "n1c1h700w700_k1r31s31_st1_p15_f32_nhwc",
        "n8c2048h33w33_k256r3s3_st1_p12_d12_f32_nchw",
        "n32c512h14w14_k512r27s27_st1_p13_g512_f32_nchw",
        "m8192n8192k8192_f32",
    ],
)
def test_probes_are_small_and_of_the_same_kind(text: str) -> None:
    problem = parse_problem(text)
    small = smaller(problem)
    assert small is not None
    assert 0 < small.flops <= 3 * PROBE_FLOPS
    if isinstance(problem, Conv2dProblem):
        assert isinstance(small, Conv2dProblem)
        for name in ("stride", "padding", "dilation", "r", "s", "c_per_group", "x_layout"):
            assert getattr(small, name) == getattr(problem, name)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("width", "multiple"), [(2048, 64), (4000, 16), (1040, 16), (64, 64), (48, 16), (2047, 1)])
def test_a_probes_width_is_divided_by_what_divides_the_problems(width: int, multiple: int, layout: str) -> None:
    for more in ("c30h2048w{}_k10r3s3_p1", "c512h4096w{}_k512r3s3_p1", "c1h4096w{}_k1r31s31"):
        problem = parse_problem(f"n1{more.format(width)}_f32_{layout}")
        small = smaller(problem)
        assert isinstance(small, Conv2dProblem)
        assert isinstance(problem, Conv2dProblem)
        assert small.flops < problem.flops
        assert small.w % min(multiple, 16) == 0
        assert small.w < 64 or small.w % multiple == 0
        assert small.s <= small.w <= problem.w


def test_a_small_probe_of_a_product_keeps_whole_vectors() -> None:
    small = smaller(parse_problem("m8192n4112k1000_f32"))
    assert isinstance(small, GemmProblem)
    assert (small.m % 64, small.n % 16) == (0, 0)
    assert small.m > 128
    assert smaller(parse_problem("m0n64k5_f32")) == parse_problem("m0n64k5_f32")


def test_methods_are_asked_for_by_name_for_their_own_arithmetic() -> None:
    class Narrow(fakes.Honest):
        name = "narrow"
        precision = "tf32"

    (row,) = rows_of(cases(8)[0], [Narrow()], cpu_runtime(), Settings())
    assert row.refusal is None
    assert isinstance(row.problem, GemmProblem)
    assert row.problem.precision == "tf32"
    assert row.result("skipped", "why").problem == "m8n8k8_f32"


def test_patterns_choose_methods_and_a_wrong_one_names_the_nearest() -> None:
    known = [fakes.Honest(), fakes.Rival(), fakes.Hungry()]
    assert [a.name for a in choose(["h*"], "cpu", {"gemm"}, known)] == ["honest", "hungry"]
    assert choose([], "cpu", {"gemm"}, known) == known
    with pytest.raises(ValueError, match=r"'honets'.*did you mean 'honest'"):
        choose(["honets"], "cpu", {"gemm"}, known)


def test_close_methods_hold_a_final(tmp_path: Path) -> None:
    run = run_bench(tmp_path, cases(64), [fakes.Honest(), fakes.Rival()])
    times = [r.time.median_s for r in run.results if r.time]
    if max(times) <= 1.5 * min(times):
        (final,) = run.finals
        assert {c.algorithm for c in final.contestants} == {"honest", "rival"}
        assert run.timing(run.results[0]) != run.results[0].time
    else:
        assert not run.finals


def test_a_machine_that_changed_is_flagged(tmp_path: Path) -> None:
    found = iter([Ceilings(20e9, 100e9), Ceilings(10e9, 100e9)])
    run = run_bench(tmp_path, cases(4), [fakes.Honest()], ceilings=lambda runtime: next(found))
    assert "copy bandwidth" in str(run.moved)
    assert run_bench(tmp_path / "still", cases(4), [fakes.Honest()]).moved is None


def test_a_case_beyond_memory_is_refused_before_it_is_made() -> None:
    facts = dataclasses.replace(cpu_runtime().facts, memory_bytes=1 << 30)
    assert memory_refusal(parse_problem("n1c3h8w8_k3r3s3_st1_p1_bf16_nchw"), facts) is None
    assert "GiB" in str(memory_refusal(parse_problem("n1c3h8192w8192_k3r3s3_st1_p1_f32_nchw"), facts))
    assert memory_refusal(parse_problem("n1c3h512w512_k3r3s3_st1_p1_f32_nchw"), facts) is None


def test_blurs_have_filters_of_rank_one_that_all_differ() -> None:
    problem = parse_problem("n1c3h9w9_k3r5s5_st1_p2_g3_f32_nchw")
    assert isinstance(problem, Conv2dProblem)
    material = Material(Case("blur", problem, weights="gaussian"), cpu_runtime())
    w = material.ring.slots[0].w
    assert w.dtype == "float32"
    assert len({float(k[0, 2, 2]) for k in w}) == 3
    assert abs(gaussian_weights(problem) - w).max() < 1e-6


@pytest.mark.parametrize("text", ["n1c3h9w9_k3r5s4_st1_p2_g3_u8-f32-u8-f32_nhwc", "n1c3h9w9_k1r3s3_st1_p1_f32_nchw",
                                  "n1c3h9w9_k3r3s3_st1_p1_g3_u8-i8-u8-i32_nhwc"])  # fmt: skip
def test_shared_filters_are_one_for_all_channels_and_keep_the_range(text: str) -> None:
    problem: Any = parse_problem(text)
    ring = Material(Case("shared", problem, weights="shared"), cpu_runtime()).ring
    w, other = ring.slots[0].w, ring.slots[1].w
    assert (w == w[:1, :1]).all()
    assert abs(float(w[0].sum()) - 1) < 1e-6
    assert np.linalg.matrix_rank(w[0, 0].astype(np.float64)) == min(w.shape[2:])
    assert not (w == other).all(), "another set of inputs, another filter"


def test_a_slot_that_is_wrong_is_found_among_right_ones() -> None:
    material = Material(cases(8)[0], cpu_runtime())
    for slot in material.ring.slots:
        slot.out[...] = slot.x @ slot.w
    assert material.verify("strict", 256, {}).ok
    material.ring.slots[200].out[3, 3] = 7.0
    assert material.verify("strict", 200, {}).ok
    assert not material.verify("strict", 256, {}).ok


class Copying:
    """Times no copy, and notes what was asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self.asked: list[int] = []

    def time(self, nbytes: int, rule: StoppingRule) -> tuple[int, Timing]:
        self.asked.append(nbytes)
        assert rule.patience_s <= 0.1
        return nbytes + 7, Timing((1e-3,) * 3, ring=3, cold=True)


def test_a_copy_of_its_bytes_is_stored_with_every_case(tmp_path: Path) -> None:
    made: list[Copying] = []

    def copies(runtime: Runtime) -> Any:
        made.append(Copying(runtime))
        return made[-1]

    methods = [fakes.Honest(), fakes.Rival(), fakes.Picky()]
    run = run_bench(tmp_path, cases(8, 4), methods, copies=copies)
    assert [copying.asked for copying in made] == [[4 * 3 * 16, 4 * 3 * 64]], "once a case, the small one first"
    assert run.copies == tuple(
        CopyTime(f"square_{n}", 12 * n * n + 7, Timing((1e-3,) * 3, ring=3, cold=True)) for n in (4, 8)
    )
    kinds = [(line["kind"], line.get("case")) for line in map(json.loads, run.path.read_text().splitlines())]
    assert kinds.index(("copy", "square_4")) < kinds.index(("result", "square_8"))
    again = run_bench(tmp_path, cases(8, 4, 2), methods, copies=copies, path=run.path)
    assert made[-1].asked == [4 * 3 * 4], "what is stored is not timed again"
    assert [copy.case for copy in again.copies] == ["square_4", "square_8", "square_2"]


def test_a_case_that_nothing_can_do_gets_no_copy(tmp_path: Path) -> None:
    made = Copying(cpu_runtime())
    run = run_bench(tmp_path, cases(8), [fakes.Picky()], copies=lambda _: made)
    assert (made.asked, run.copies) == ([], ())


def test_where_there_is_no_room_for_a_copy_the_case_goes_on(tmp_path: Path) -> None:
    class Full(Copying):
        def time(self, nbytes: int, rule: StoppingRule) -> tuple[int, Timing]:
            raise MemoryError("full")

    run = run_bench(tmp_path, cases(8), [fakes.Honest()], copies=Full)
    assert run.copies == ()
    assert run.results[0].status == "ok"


def test_the_cpus_own_copies(tmp_path: Path) -> None:
    run = run_bench(tmp_path, cases(8), [fakes.Honest()], copies=Copies)
    (copy,) = run.copies
    assert copy.bytes == 768
    assert copy.time.ring == 256
    share = run.of_copy(run.results[0], run.timing(run.results[0]))
    assert share is not None
    assert share > 0
