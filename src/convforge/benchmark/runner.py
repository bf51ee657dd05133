"""The runner: measures every method and config on every case, small rows first, and stores each row when it is done."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from convforge.algorithms import refusal
from convforge.backends.runtime import Runtime
from convforge.benchmark.budget import PROBE_FLOPS, Budget, Forecast, smaller, weight
from convforge.benchmark.digests import with_precision
from convforge.benchmark.formats import nearest, seconds
from convforge.benchmark.material import Material, memory_refusal, truth_runtime
from convforge.benchmark.records import CopyTime, Result, Run
from convforge.benchmark.row import AnyAlgorithm, Row, fastest_config, finalists, hold_final, measure_row
from convforge.benchmark.store import Store, begin_header, load_run
from convforge.benchmark.suites import Case
from convforge.errors import Reason, UnsupportedProblem
from convforge.problem import Problem
from convforge.timing.ceilings import Ceilings, measure_ceilings
from convforge.timing.copies import Copies
from convforge.timing.ring import Ring
from convforge.timing.stopping import StoppingRule
from convforge.verify import Judge, make_inputs, truth_on_device, warm_up

QUICK = StoppingRule(samples=5, narrow=0.03, patience_s=0.05)
# Seconds for timing the copy of a case. More patience does not make a noisy copy quieter.
COPY_PATIENCE_S, COPY_S = 0.1, 1.0
Watch = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run."""

    methods: tuple[str, ...] = ()  # patterns of names (``direct*``); empty for all methods
    sizes: tuple[int, ...] = ()  # see suites.select; empty for all
    strides: tuple[int, ...] = ()
    budget_s: float | None = None  # for the whole run
    all_configs: bool = False  # measure every config that a method offers, not only its default
    search: int = 0  # use the fastest of the first so many configs of our methods; 0: the default
    workspace_limit: int | None = None  # largest workspace of a plan in bytes
    quick: bool = False  # fewer samples, a shorter check, no timing with prepared weights
    heavy: bool = False  # include the heavy cases of the suite
    transfer: bool = False  # also time calls from host arrays to host arrays, on devices other than the CPU
    steps: bool = False  # also time each step of a call by itself

    @property
    def rule(self) -> StoppingRule:
        """The stopping rule of a timing."""
        return QUICK if self.quick else StoppingRule()

    def to_table(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def choice(self) -> dict[str, Any]:
        """Settings that determine the rows: a run can only be resumed with the same ones."""
        return {name: value for name, value in self.to_table().items() if name not in ("budget_s", "quick")}


def choose(
    patterns: Sequence[str], backend: str, operations: set[str], known: Sequence[AnyAlgorithm]
) -> list[AnyAlgorithm]:
    """The methods of a backend with names that match a pattern; ``ValueError`` for a pattern without a match."""
    able = [a for a in known if a.backend == backend and a.operation in operations]
    names = sorted({a.name for a in able})
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            hint = nearest(pattern.strip("*?"), names)
            raise ValueError(f"no method on {backend} matches {pattern!r}{hint} There are: {', '.join(names)}")
    return [a for a in able if not patterns or any(fnmatch.fnmatchcase(a.name, p) for p in patterns)]


def begin(folder: Path, suite: str, runtime: Runtime, settings: Settings) -> Store:
    """Create the file of a new run in ``folder/<device>/`` and write its first line."""
    header = begin_header(suite, runtime.facts, settings.to_table())
    return Store.create(folder / header["device"], header)


@dataclass(eq=False)
class Runner:
    """Runs cases and stores the results. :meth:`run` may be interrupted at any time, and resumed.

    Rows in `store` with the same digests and library versions are not measured again. `watch` is called with the number
    of finished rows, of all rows, and a label of the current work. `ceilings` and `copies` measure the device; if
    `copies` returns None, no copy is timed.
    """

    cases: Sequence[Case]
    methods: Sequence[AnyAlgorithm]
    runtime: Runtime
    settings: Settings
    store: Store
    watch: Watch | None = field(default=None, kw_only=True)
    ceilings: Callable[[Runtime], Ceilings] = field(default=measure_ceilings, kw_only=True)
    copies: Callable[[Runtime], Copies | None] = field(default=Copies, kw_only=True)
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)

    def __post_init__(self) -> None:
        self._copies = self.copies(self.runtime)
        self._truth_runtime = truth_runtime(self.runtime)
        self._forecast = Forecast(self.runtime.facts.backend)
        self._budget = Budget(None, [], self._forecast)
        cases = sorted(self.cases, key=lambda case: weight(case.problem))
        self.rows = [row for case in cases for row in rows_of(case, self.methods, self.runtime, self.settings)]
        self._done = 0

    def run(self) -> Run:
        """Measure every row that is missing in the store, and return the run."""
        stored = load_run(self.store.path)
        finished = {result.key: result for result in stored.results}
        self.rows = [_found_before(row, stored.results) for row in self.rows]
        todo = [row for row in self.rows if not row.is_current(finished.get(row.key))]
        keys = {row.key for row in todo}
        decided, copied = {final.case for final in stored.finals}, {copy.case for copy in stored.copies}
        self._done = len(self.rows) - len(todo)
        complete = False
        try:
            self._store_ceilings("before")
            self._show("compiling the check")
            self._warm_check(todo)
            self._budget = Budget(self.settings.budget_s, todo, self._forecast, self.settings.quick, self.clock)
            for name, group in groupby(self.rows, key=lambda row: row.case.name):
                rows = list(group)
                missing = [row for row in rows if row.key in keys]
                if missing or name not in decided:
                    self._case(rows, missing, finished, copy=name not in copied)
            self._store_ceilings("after")
            complete = True
        finally:
            self.store.append({"kind": "end", "complete": complete})
        return load_run(self.store.path)

    def _show(self, label: str) -> None:
        if self.watch is not None:
            self.watch(self._done, len(self.rows), label)

    def _case(
        self, rows: list[Row], missing: list[Row], finished: Mapping[tuple[str, ...], Result], *, copy: bool
    ) -> None:
        """Measure the missing rows of one case, then hold its final."""
        case, budget, unmeasured = rows[0].case, self._budget, {row.key for row in missing}
        results = [finished[row.key] for row in rows if row.key not in unmeasured]
        results += [self._finish(row, row.result("refused", row.refusal)) for row in missing if row.refusal is not None]
        able = [row for row in missing if row.refusal is None]
        if not able and not finalists(results):
            return
        self._show(f"{case.name}: truth")
        reason, material = self._case_refusal(case, able) if able else None, None
        if reason is None:
            if able and copy:
                self._copy(case)
            begin = self.clock()
            try:
                material = Material(case, self.runtime)
            except MemoryError as fault:
                reason = Reason("not enough memory: {fault}", fault=str(fault))
        if material is None:
            for row in able:
                self._finish(row, row.result("skipped", reason))
            return
        taken = self.clock() - begin
        self._forecast.learn(self._truth_key(case), case.problem, taken)
        if able:
            budget.learn_case(able[0], taken)
        for row in able:
            self._show(f"{case.name}: {row.algorithm.name}")
            found, result = self._row(row, material)
            rows[rows.index(row)] = found
            results.append(self._finish(found, result))
        self._show(f"{case.name}: final")
        rule = replace(self.settings.rule, budget_s=budget.final_share(case.name))
        final, failed = hold_final(rows, results, material, rule, self.clock)
        for record in (*failed, *filter(None, [final])):
            self.store.append(record.to_record())

    def _copy(self, case: Case) -> None:
        """Time and store the copy of a case; store nothing if the device has too little memory."""
        rule = self.settings.rule
        rule = replace(rule, patience_s=min(rule.patience_s, COPY_PATIENCE_S), budget_s=COPY_S)
        try:
            if self._copies is not None:
                copy = CopyTime(case.name, *self._copies.time(case.problem.least_bytes, rule))
                self.store.append(copy.to_record())
        except MemoryError:
            return

    def _row(self, row: Row, material: Material) -> tuple[Row, Result]:
        """Measure a row; return the row with the config that was measured, and its result."""
        budget, settings = self._budget, self.settings
        if budget.remaining_s <= 0:
            return row, row.result("skipped", budget.spent)
        try:
            most = budget.share(row) / budget.calls
            predicted = self._forecast.predict(
                row.forecast_keys, row.problem, lambda small: self._probe(row, small), most
            )
        except UnsupportedProblem as fault:
            return row, row.result("refused", fault.reason_of(row.algorithm.name))
        except Exception as fault:  # a method's own error on the smaller problem is the row's result
            text = f"{type(fault).__name__} on a smaller problem: {' '.join(str(fault).split())}"
            return row, row.result("error", Reason.quoted(text))
        if predicted is not None and (why := budget.refusal(row, predicted[0])) is not None:
            time = seconds(predicted[0])
            long = Reason("a call would take about {time} ({known} for {problem})", time=time, **predicted[1])
            return row, row.result("skipped", Reason.joined([long, why]))
        if row.others:
            begin = self.clock()
            row = row.by(fastest_config(row, material))
            budget.forgive(self.clock() - begin)

        def learn(call_s: float) -> Reason | None:
            for key in row.forecast_keys[: 1 + row.first]:  # only a method's first config sets the method's forecast
                self._forecast.learn(key, row.problem, call_s)
            return budget.refusal(row, call_s)

        result = measure_row(
            row, material, replace(settings.rule, budget_s=budget.share(row)),
            workspace_limit=settings.workspace_limit, thorough=not settings.quick, transfer=settings.transfer,
            steps=settings.steps, compiled=budget.forgive, refusal=learn, clock=self.clock,
        )  # fmt: skip
        if result.time is not None:
            learn(min(result.time.samples))
        return row, result

    def _case_refusal(self, case: Case, rows: Sequence[Row]) -> Reason | None:
        """Return the reason why no row of a case can be measured (too large, or its truth too slow), or None."""
        budget = self._budget
        if reason := memory_refusal(case.problem, self.runtime.facts):
            return reason
        if budget.remaining_s <= 0:
            return budget.spent

        def truth_time(problem: Problem) -> float:
            inputs = make_inputs(problem)
            Judge(problem, inputs, runtime=self._truth_runtime)  # compiles
            begin = self.clock()
            Judge(problem, inputs, runtime=self._truth_runtime)
            return self.clock() - begin

        most = budget.case_share(rows)
        predicted = self._forecast.predict([self._truth_key(case)], case.problem, truth_time, most)
        if predicted is None or predicted[0] <= most:
            return None
        long = Reason(
            "the truth would take about {time} ({known} for {problem})", time=seconds(predicted[0]), **predicted[1]
        )
        share = Reason("its case has {share}", share=seconds(most))
        left, total = seconds(budget.remaining_s), f"{budget.total_s:g} s"
        return Reason.joined([long, share, Reason("{left} of {budget} are left", left=left, budget=total)])

    def _truth_key(self, case: Case) -> tuple[str, ...]:
        """The key of the truth's forecast: the rates of GPU and host are separate."""
        on_device = truth_on_device(case.problem, self._truth_runtime)
        return (case.problem.operation, "truth", "device" if on_device else "host")

    def _probe(self, row: Row, problem: Problem) -> float | None:
        """Seconds of a call of a row's method on a smaller problem; None if the method refuses that problem."""
        if refusal(row.algorithm, problem, self.runtime.facts) is not None:
            return None
        config = row.algorithm.configs(problem, self.runtime.facts)[0]
        plan = row.algorithm.plan(problem, config, self.runtime)
        slot = Ring(problem, [make_inputs(problem)], self.runtime, limit_bytes=1).slots[0]
        operands = plan.lay_operands(slot.operands)

        def call() -> None:
            plan(plan.buffers(slot.x, plan.prepare(slot.w), operands, slot.out))

        begin = self.clock()
        call()  # compiles
        self._budget.forgive(self.clock() - begin)
        return self.runtime.time(call, 1)

    def _finish(self, row: Row, result: Result) -> Result:
        self.store.append(result.to_record())
        self._budget.done(row)
        self._done += 1
        return result

    def _warm_check(self, rows: Sequence[Row]) -> None:
        """Compile the kernels of the check, with a small problem of each operation and type, outside the budget."""
        seen = set()
        for problem in dict.fromkeys(row.case.problem for row in rows if row.refusal is None):
            kind = (problem.operation, problem.input.dtype, truth_on_device(problem, self._truth_runtime))
            warm_up(problem)
            small = problem if problem.flops <= PROBE_FLOPS else smaller(problem)
            if kind not in seen and small is not None:
                seen.add(kind)
                judge = Judge(small, make_inputs(small), runtime=self._truth_runtime)
                with np.errstate(invalid="ignore"):  # sums beyond an integer result's type
                    judge.verdict("strict", judge.truth.value.astype(small.out_dtype))

    def _store_ceilings(self, when: str) -> None:
        self._show("ceilings")
        self.store.append({"kind": "ceilings", "when": when, **asdict(self.ceilings(self.runtime))})


def rows_of(case: Case, methods: Sequence[AnyAlgorithm], runtime: Runtime, settings: Settings) -> Iterator[Row]:
    """Yield the rows of one case: each method for its operation, in the method's precision."""
    for algorithm in methods:
        if algorithm.operation != case.problem.operation:
            continue
        problem = with_precision(algorithm, case.problem)
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
    """The default config, or the first config that can be planned within the workspace limit."""
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
    """The row with the config that a search found before the run was resumed, else the row unchanged."""
    for config in (row.config, *row.others) if row.others else ():
        assert config is not None
        found = row.by(config)
        if any(result.key == found.key and result.status != "skipped" for result in results):
            return found
    return row
