"""The runner: every case, every method, every config asked for; small rows first, each stored as soon as it is done."""

from __future__ import annotations

import difflib
import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from convforge.algorithms import refusal
from convforge.backends.runtime import Runtime
from convforge.benchmark.budget import (
    PROBE_FLOPS,
    QUICK_ROW_CALLS,
    ROW_CALLS,
    SCALABLE_GPU_S,
    SCALABLE_S,
    Budget,
    Forecast,
    smaller,
    weight,
)
from convforge.benchmark.copying import CopyTimes
from convforge.benchmark.digests import digest
from convforge.benchmark.finals import finalists, hold_final
from convforge.benchmark.material import Checker, Material, checker, memory_refusal, truth_runtime
from convforge.benchmark.records import Result, Run
from convforge.benchmark.row import AnyAlgorithm, Row, fastest_config, in_words, measure_row
from convforge.benchmark.store import Store, load_run, run_id
from convforge.benchmark.suites import Case
from convforge.errors import Reason, UnsupportedProblem
from convforge.problem import Problem
from convforge.timing.ceilings import Ceilings, measure_ceilings
from convforge.timing.copies import Copies
from convforge.timing.machine import device_slug, machine_table, repository, versions
from convforge.timing.ring import Ring
from convforge.timing.stopping import StoppingRule

QUICK = StoppingRule(samples=5, narrow=0.03, patience_s=0.05)
Watch = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run.

    Attributes
    ----------
    methods : tuple of str
        Patterns of names (``direct*``); all methods where empty.
    sizes, strides : tuple of int
        See :func:`convforge.benchmark.suites.select`; all where empty.
    budget_s : float or None
        Seconds for the whole run.
    all_configs : bool
        Every config that a method offers, not its default alone.
    search : int
        Of each of our methods, the fastest of so many configs that it puts first, as a search finds it; 0: its default.
    workspace_limit : int or None
        Bytes that a plan may ask for.
    quick : bool
        Fewer samples, a shorter check, no timing with prepared weights.
    heavy : bool
        Run the suite's heavy cases too.
    transfer : bool
        Also time calls from host arrays to host arrays, on a device that is not the host.
    steps : bool
        Also time each step of a call by itself.
    """

    methods: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    budget_s: float | None = None
    all_configs: bool = False
    search: int = 0
    workspace_limit: int | None = None
    quick: bool = False
    heavy: bool = False
    transfer: bool = False
    steps: bool = False

    @property
    def rule(self) -> StoppingRule:
        """The number of samples to take."""
        return QUICK if self.quick else StoppingRule()

    def to_table(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def choice(self) -> dict[str, Any]:
        """Settings that decide a run's rows: only a run with the same can be resumed."""
        return {name: value for name, value in self.to_table().items() if name not in ("budget_s", "quick")}


def choose(
    patterns: Sequence[str], backend: str, operations: set[str], known: Sequence[AnyAlgorithm]
) -> list[AnyAlgorithm]:
    """The methods of a backend whose names match any pattern, in the list's order.

    Raises
    ------
    ValueError
        A pattern matches none; the text names the nearest.
    """
    able = [a for a in known if a.backend == backend and a.operation in operations]
    names = sorted({a.name for a in able})
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            near = difflib.get_close_matches(pattern.strip("*?"), names, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"no method on {backend} matches {pattern!r}{hint} There are: {', '.join(names)}")
    return [a for a in able if not patterns or any(fnmatch.fnmatchcase(a.name, p) for p in patterns)]


def begin(folder: Path, suite: str, runtime: Runtime, settings: Settings) -> Store:
    """Open a new run's file in ``folder/<device>/``, its first line written."""
    now, device = datetime.now(UTC), device_slug(runtime.facts)
    commit, dirty = repository()
    header = {
        "run": run_id(suite, now),
        "started": now.isoformat(timespec="seconds"),
        "suite": suite,
        "device": device,
        "machine": machine_table(runtime.facts),
        "versions": versions(),
        "commit": commit,
        "dirty": dirty,
        "settings": settings.to_table(),
    }
    return Store.create(folder / device, header)


class Runner:
    """Runs cases and stores what comes out. :meth:`run` may be interrupted at any time, and resumed.

    Parameters
    ----------
    cases : sequence of Case
    methods : sequence of Algorithm
    runtime : Runtime
    settings : Settings
    store : Store
        Rows that it already holds with the same digests and libraries are not measured again.
    watch : callable
        Called with rows done, rows in all and what is under way.
    check : Checker
    ceilings : callable
        Runtime -> Ceilings.
    copies : callable
        Runtime -> Copies, or None: no copy is timed.
    clock : callable
        Seconds, for budgets.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        methods: Sequence[AnyAlgorithm],
        runtime: Runtime,
        settings: Settings,
        store: Store,
        *,
        watch: Watch | None = None,
        check: Checker | None = None,
        ceilings: Callable[[Runtime], Ceilings] = measure_ceilings,
        copies: Callable[[Runtime], Copies | None] = Copies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.store = store
        self._check = check
        self._watch = watch or (lambda done, total, label: None)
        self._ceilings = ceilings
        self._copies = CopyTimes(copies(runtime), settings.rule, store)
        self._clock = clock
        self._forecast = Forecast(SCALABLE_GPU_S if runtime.facts.backend == "cuda" else SCALABLE_S)
        ordered = sorted(cases, key=lambda case: weight(case.problem))
        self.rows = [row for case in ordered for row in rows_of(case, methods, runtime, settings)]
        self._done = 0

    def run(self) -> Run:
        """Measure every row that the store lacks."""
        stored = load_run(self.store.path)
        finished = {result.key: result for result in stored.results}
        self.rows = [_found_before(row, stored.results) for row in self.rows]
        todo = [row for row in self.rows if not _is_finished(row, finished.get(row.key))]
        keys = {row.key for row in todo}
        decided = {final.case for final in stored.finals}
        self._copies.skip(stored.copies)
        self._done = len(self.rows) - len(todo)
        complete = False
        try:
            self._watch(self._done, len(self.rows), "ceilings")
            self._store_ceilings("before")
            self._watch(self._done, len(self.rows), "compiling the check")
            self._warm_check(todo)
            calls = QUICK_ROW_CALLS if self.settings.quick else ROW_CALLS
            budget = Budget(self.settings.budget_s, todo, self._forecast, calls=calls, clock=self._clock)
            for name, group in groupby(self.rows, key=lambda row: row.case.name):
                rows = list(group)
                missing = [row for row in rows if row.key in keys]
                if missing or name not in decided:
                    self._case(rows, missing, finished, budget)
            self._watch(self._done, len(self.rows), "ceilings")
            self._store_ceilings("after")
            complete = True
        finally:
            self.store.append({"kind": "end", "complete": complete})
        return load_run(self.store.path)

    def _case(
        self, rows: list[Row], missing: list[Row], finished: Mapping[tuple[str, ...], Result], budget: Budget
    ) -> None:
        """All missing rows of one case, then its final."""
        results = [finished[row.key] for row in rows if row.key not in {row.key for row in missing}]
        able = [row for row in missing if row.refusal is None]
        refused = [row for row in missing if row.refusal is not None]
        results += [self._finish(row, row.result("refused", row.refusal), budget) for row in refused]
        case = rows[0].case
        if not able and not finalists(results, case.problem.precision):
            return
        self._watch(self._done, len(self.rows), f"{case.name}: truth")
        check = self._check or checker()
        reason = self._case_refusal(case, able, check, budget) if able else None
        if reason is not None:
            for row in able:
                self._finish(row, row.result("skipped", reason), budget)
            return
        if able:
            self._copies.add(case)
        begin = self._clock()
        try:
            material = Material(case, self.runtime, check)
        except MemoryError as fault:
            for row in able:
                self._finish(row, row.result("skipped", Reason("not enough memory: {fault}", fault=str(fault))), budget)
            return
        taken = self._clock() - begin
        self._forecast.learn(self._truth_key(case, check), case.problem, taken)
        if able:
            budget.learn_case(able[0], taken)
        for row in able:
            self._watch(self._done, len(self.rows), f"{case.name}: {row.algorithm.name}")
            found, result = self._row(row, material, budget)
            rows[rows.index(row)] = found
            results.append(self._finish(found, result, budget))
        self._watch(self._done, len(self.rows), f"{case.name}: final")
        rule = replace(self.settings.rule, budget_s=budget.final_share(case.name))
        final, failed = hold_final(case, rows, results, material, self.runtime, rule, clock=self._clock)
        for result in failed:
            self.store.append(result.to_record())
        if final is not None:
            self.store.append(final.to_record())

    def _row(self, row: Row, material: Material, budget: Budget) -> tuple[Row, Result]:
        """The result of a row, and the row with the config that was measured."""
        if budget.remaining_s <= 0:
            return row, row.result("skipped", budget.spent)
        try:
            most = budget.share(row) / budget.calls
            predicted = self._forecast.predict(
                row.forecast_keys, row.problem, lambda small: self._probe(row, small, material.check, budget), most
            )
        except UnsupportedProblem as fault:
            return row, row.result("refused", fault.reason_of(row.algorithm.name))
        except Exception as fault:  # the probe met what the row itself would meet: it is the row's result
            text = f"{type(fault).__name__} on a smaller problem: {' '.join(str(fault).split())}"
            return row, row.result("error", Reason.quoted(text))
        if predicted is not None and (why := budget.refusal(row, predicted[0])) is not None:
            long = Reason(
                "a call would take about {time} ({known} for {problem})", time=in_words(predicted[0]), **predicted[1]
            )
            return row, row.result("skipped", Reason.joined([long, why]))
        if row.others:
            begin = self._clock()
            row = row.by(fastest_config(row, material, self.runtime))
            budget.forgive(self._clock() - begin)
        rule = replace(self.settings.rule, budget_s=budget.share(row))
        limit = self.settings.workspace_limit

        def why_not(seconds: float) -> Reason | None:
            self._learn(row, seconds)
            return budget.refusal(row, seconds)

        result = measure_row(
            row,
            material,
            self.runtime,
            rule,
            workspace_limit=limit,
            thorough=not self.settings.quick,
            transfer=self.settings.transfer,
            steps=self.settings.steps,
            compiled=budget.forgive,
            refusal=why_not,
            clock=self._clock,
        )
        if result.time is not None:
            self._learn(row, min(result.time.samples))
        return row, result

    def _learn(self, row: Row, seconds: float) -> None:
        """A call of a row took so long: that is forecast for its config, and the first config for its method."""
        config, method = row.forecast_keys
        self._forecast.learn(config, row.problem, seconds)
        if row.first:
            self._forecast.learn(method, row.problem, seconds)

    def _case_refusal(self, case: Case, rows: Sequence[Row], check: Checker, budget: Budget) -> Reason | None:
        """Return why no row of a case can be measured (its inputs, or the time of its truth), or None."""
        if reason := memory_refusal(case.problem, self.runtime.facts):
            return reason
        if budget.remaining_s <= 0:
            return budget.spent

        def truth_time(problem: Problem) -> float:
            inputs = check.make_inputs(problem)
            check.Judge(problem, inputs, runtime=truth_runtime(self.runtime))  # compiles
            begin = self._clock()
            check.Judge(problem, inputs, runtime=truth_runtime(self.runtime))
            return self._clock() - begin

        most = budget.case_share(rows)
        predicted = self._forecast.predict([self._truth_key(case, check)], case.problem, truth_time, most)
        if predicted is not None and predicted[0] > most:
            time, left = in_words(predicted[0]), in_words(budget.remaining_s)
            long = Reason("the truth would take about {time} ({known} for {problem})", time=time, **predicted[1])
            share = Reason("its case has {share}", share=in_words(most))
            rest = Reason("{left} of {budget} are left", left=left, budget=f"{budget.total_s:g} s")
            return Reason.joined([long, share, rest])
        return None

    def _truth_key(self, case: Case, check: Checker) -> tuple[str, ...]:
        """Under which the forecast keeps what truths take: a GPU's rate says nothing about the host's."""
        on_device = check.truth_on_device(case.problem, truth_runtime(self.runtime))
        return (case.problem.operation, "truth", "device" if on_device else "host")

    def _probe(self, row: Row, problem: Problem, check: Checker, budget: Budget) -> float | None:
        """Seconds of a call of a row's method on a smaller problem; None where the method refuses that one."""
        if refusal(row.algorithm, problem, self.runtime.facts) is not None:
            return None
        config = row.algorithm.configs(problem, self.runtime.facts)[0]
        plan = row.algorithm.plan(problem, config, self.runtime)
        inputs = check.make_inputs(problem)
        there = Ring(problem, [inputs], self.runtime, limit_bytes=1).slots[0]

        def call() -> None:
            plan(plan.buffers(there.x, plan.prepare(there.w), there.operands, there.out))

        begin = self._clock()
        call()  # compiles
        budget.forgive(self._clock() - begin)
        return self.runtime.time(call, 1)

    def _finish(self, row: Row, result: Result, budget: Budget) -> Result:
        self.store.append(result.to_record())
        budget.done(row)
        self._done += 1
        return result

    def _warm_check(self, rows: Sequence[Row]) -> None:
        """Compile what the check needs, with a small problem of every operation and type: no budget pays for it."""
        check, seen = self._check or checker(), set()
        for row in rows:
            problem = row.case.problem
            on_device = check.truth_on_device(problem, truth_runtime(self.runtime))
            kind = (problem.operation, problem.input.dtype, on_device)
            if row.refusal is not None:
                continue
            check.warm_up(problem)
            if kind in seen:
                continue
            small = problem if problem.flops <= PROBE_FLOPS else smaller(problem)
            if small is not None:
                seen.add(kind)
                judge = check.Judge(small, check.make_inputs(small), runtime=truth_runtime(self.runtime))
                judge.verdict("strict", judge.truth.value.astype(small.out_dtype))

    def _store_ceilings(self, when: str) -> None:
        self.store.append({"kind": "ceilings", "when": when, **asdict(self._ceilings(self.runtime))})


def rows_of(case: Case, methods: Sequence[AnyAlgorithm], runtime: Runtime, settings: Settings) -> Iterator[Row]:
    """The rows of one case: every method of its operation, asked by name for its own precision."""
    for algorithm in methods:
        if algorithm.operation != case.problem.operation:
            continue
        problem: Any = case.problem
        if algorithm.precision not in ("strict", problem.precision):
            problem = replace(problem, precision=algorithm.precision)
        if reason := refusal(algorithm, problem, runtime.facts):
            yield Row(case, problem, algorithm, None, runtime.facts, reason)
            continue
        configs = list(algorithm.configs(problem, runtime.facts))
        offered = configs[: settings.search] if algorithm.ours else []
        if not settings.all_configs:
            configs = [_fitting(algorithm, problem, configs, runtime, settings.workspace_limit)]
        for config in configs:
            others = tuple(other for other in offered if other != config)
            yield Row(case, problem, algorithm, config, runtime.facts, first=config == configs[0], others=others)


def _fitting(algorithm: AnyAlgorithm, problem: Any, configs: list[Any], runtime: Runtime, limit: int | None) -> Any:
    """The default config, or the first whose plan keeps to the workspace limit.

    A config that a library refuses only when its plan is made does not; the row of the default says why it has no time.
    """
    if limit is not None:
        for config in configs:
            try:
                plan = algorithm.plan(problem, config, runtime)
            except UnsupportedProblem:
                continue
            if plan.workspace_bytes <= limit:
                return config
    return configs[0]


def _found_before(row: Row, results: Sequence[Result]) -> Row:
    """A row whose config was looked for and found when the run began; else the row as it is."""
    for config in (row.config, *row.others) if row.others else ():
        assert config is not None
        found = row.by(config)
        if any(result.key == found.key and result.status != "skipped" for result in results):
            return found
    return row


def _is_finished(row: Row, result: Result | None) -> bool:
    if result is None:
        return False
    now = digest(row.algorithm, row.problem, row.config, row.facts)
    return result.digest == now and result.library_versions == row.algorithm.versions()
