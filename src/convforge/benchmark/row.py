"""Measure one row (a method in one config on one case): plan, call, check, time twice, check again. And hold the final
of a case, in which its fastest methods are timed again alternately.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Config, Plan, PreparedFilter
from convforge.backends.cpu import cpu_runtime
from convforge.backends.facts import DeviceFacts
from convforge.benchmark.digests import digest
from convforge.benchmark.formats import seconds
from convforge.benchmark.material import Material
from convforge.benchmark.records import TIMES, Error, Finalist, Finalists, Result
from convforge.benchmark.steps import measure_steps
from convforge.benchmark.suites import Case
from convforge.call.dispatch import execute
from convforge.errors import Reason, UnsupportedProblem
from convforge.problem import Problem
from convforge.timing.ring import Cycle, RingSize, poison_of, ring_limit, ring_size
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, interleave, measure
from convforge.verify import Verdict, check_plan

AnyAlgorithm = Algorithm[Any, Any]
# Largest share of a row's budget for calling it on every slot of the ring before it is timed.
LAP_SHARE = 0.1
# Least share of a row's budget for the timings, even if the check took long.
TIMING_SHARE = 0.3
# Methods slower than the fastest by this factor do not take part in the final.
CLOSE = 1.5
# Samples of each config in the search for the fastest.
SEARCHED = StoppingRule(samples=5, narrow=0.03, patience_s=0.02, budget_s=0.3)
# Samples of transfers: fewer than of kernels, because copies over a bus vary little.
TRANSFERS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a run: a method in one config on one case."""

    case: Case
    problem: Problem  # the case's, with the method's precision if the method must be named
    algorithm: AnyAlgorithm
    config: Config | None  # None if the method refuses the problem
    facts: DeviceFacts  # of the measured device
    refusal: Reason | None = None
    first: bool = True  # True for the first config of the method on this case
    others: tuple[Config, ...] = ()  # configs to search: the fastest replaces this row's
    searched: tuple[str, ...] = ()  # key of the row before a search replaced its config

    def by(self, config: Config) -> Row:
        """The same row with the config that a search found."""
        return replace(self, config=config, others=(), searched=self.place)

    @property
    def place(self) -> tuple[str, ...]:
        """The key before the search for its config, which stays the same during a run."""
        return self.searched or self.key

    @property
    def key(self) -> tuple[str, ...]:
        """The key of its result in a run."""
        return (self.case.name, str(self.case.problem), self.algorithm.backend, self.algorithm.name, self._config)

    @property
    def forecast_keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys of its forecast time: the config's, then the method's as fallback."""
        method = (self.algorithm.operation, self.algorithm.name)
        return (*method, self._config), method

    @property
    def _config(self) -> str:
        return "" if self.config is None else str(self.config)

    def is_current(self, result: Result | None) -> bool:
        """True if this is a stored result of this row with today's digest and library versions."""
        now = digest(self.algorithm, self.problem, self.config, self.facts)
        return result is not None and (result.digest, result.library_versions) == (now, self.algorithm.versions())

    def result(self, status: Any, reason: Reason | None, **more: Any) -> Result:
        """Make a result of this row."""
        method, problem = self.algorithm, self.case.problem
        return Result(
            case=self.case.name, problem=str(problem), operation=method.operation, algorithm=method.name,
            backend=method.backend, ours=method.ours, precision=method.precision, config=self._config, status=status,
            reason=reason, flops=problem.flops, least_bytes=problem.least_bytes, weights=self.case.weights,
            digest=digest(method, self.problem, self.config, self.facts), library_versions=method.versions(), **more,
        )  # fmt: skip


@dataclass(slots=True)
class Rig:
    """A plan with workspace and prepared weights, ready to be called on the slots of a ring."""

    plan: Plan
    material: Material
    workspace: Any
    prepared: Sequence[PreparedFilter]

    @classmethod
    def of(cls, plan: Plan, material: Material) -> Rig:
        """A rig with a new workspace and no prepared weights."""
        return cls(plan, material, plan.runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None, ())

    def each_call(self) -> Cycle:
        """Calls that include the preparation of weights, as ``conv2d`` does."""
        return self.material.ring.calls(self.plan, self.workspace)

    def prepared_calls(self) -> Cycle:
        """Calls with prepared weights, as ``Filter`` does, on those slots that have prepared weights."""
        plan, slots, workspace, prepared = self.plan, self.material.ring.slots, self.workspace, self.prepared
        laid = self.material.ring.laid(plan)

        def call(i: int) -> None:
            slot, (x, operands) = slots[i], laid[i]
            out = None if plan.allocates else slot.out
            slot.result = plan(plan.buffers(x, prepared[i], operands, out, workspace))

        return Cycle(len(prepared), call)


def fastest_config(row: Row, material: Material) -> Config:
    """The fastest of a row's config and the other configs to search.

    Outputs are not checked here, because the chosen config is checked when its row is measured. Configs that cannot be
    planned or run are skipped.
    """
    assert row.config is not None
    times: dict[Config, float] = {}
    for config in (row.config, *row.others):
        try:
            calls = Rig.of(row.algorithm.plan(row.problem, config, material.runtime), material).each_call()
            calls()
            material.runtime.synchronize()
            times[config] = measure(calls, material.runtime, SEARCHED).median_s
        except Exception:  # if the default fails, its row reports the error
            continue
        finally:
            material.ring.poison()
    return min(times, key=times.__getitem__, default=row.config)


class _Wrong(Exception):
    """Raised if a check rejects the outputs: the step before the check, and its verdict."""

    def __init__(self, when: str, verdict: Verdict) -> None:
        super().__init__(f"{when}{verdict.message if verdict.fault is None else f'{verdict.fault}: {verdict.message}'}")
        self.error = _error(verdict)


def measure_row(
    row: Row,
    material: Material,
    rule: StoppingRule,
    *,
    workspace_limit: int | None = None,
    compiled: Callable[[float], None] = lambda seconds: None,
    refusal: Callable[[float], Reason | None] = lambda seconds: None,
    thorough: bool = True,
    transfer: bool = False,
    steps: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Measure a row; errors are stored in its result.

    The budget of `rule` is for the whole row: the timings get the time left after plan and check. A plan that needs
    more workspace than the limit is refused. `compiled` receives the seconds of plan and first call, which are outside
    the budget. Then `refusal` receives the seconds of a call; if it returns a reason, the row is skipped.

    A thorough row checks poisons, guard bands, stale results and every slot of the ring before timing, and also times
    prepared weights. Other rows only compare outputs, poisoned before: one for each set of inputs, and those of the
    timed calls. `transfer` also times calls from host arrays to a host array. `steps` also times each step of a plan
    by itself.
    """
    assert row.config is not None
    begin, about = clock(), dict[str, Any]()
    try:
        plan = row.algorithm.plan(row.problem, row.config, material.runtime)
        about |= {
            "workspace_bytes": plan.workspace_bytes,
            "launches": tuple(dataclasses.asdict(info) for info in plan.launches),
            "ways": () if row.algorithm.ours else plan.ways,
        }
        if workspace_limit is not None and plan.workspace_bytes > workspace_limit:
            need, limit = plan.workspace_bytes, workspace_limit
            reason = Reason("it needs {need} bytes of workspace; the limit is {limit}", need=need, limit=limit)
            return row.result("refused", reason, **about)
        rig, slot = Rig.of(plan, material), material.ring.slots[0]
        rig.prepared = [plan.prepare(slot.w)]
        operands = plan.lay_operands(slot.operands)
        buffers = plan.buffers(slot.x, rig.prepared[0], operands, slot.out, rig.workspace)
        plan(buffers)
        plan.runtime.synchronize()
        about["first_call_s"] = clock() - begin
        compiled(about["first_call_s"])
        taken = plan.runtime.time(lambda: plan(buffers), 1)
        if (why := refusal(taken)) is not None:
            slow = Reason("a call takes {time}", time=seconds(taken))
            return row.result("skipped", Reason.joined([slow, why]), **about)
        # The first call compiles. It counts in the whole run's time but not in the time for the row's samples.
        _check_and_time(rig, about, rule, begin + about["first_call_s"], clock, thorough, transfer, steps)
        return row.result("ok", None, note=_note(rig, about, rule), **about)
    except _Wrong as wrong:
        untimed = {name: value for name, value in about.items() if name not in (*TIMES, "error")}
        return row.result("failed", Reason.quoted(str(wrong)), error=wrong.error, **untimed)
    except UnsupportedProblem as fault:  # raised because of the weights' values, such as their rank
        return row.result("refused", fault.reason_of(row.algorithm.name))
    except Exception as fault:  # becomes the row's result: an error of one method must not end the run
        text = " ".join(str(fault).split()) or "no message"
        return row.result("error", Reason.quoted(f"{type(fault).__name__}: {text}"))


def _check_and_time(
    rig: Rig,
    about: dict[str, Any],
    rule: StoppingRule,
    begin: float,
    clock: Callable[[], float],
    thorough: bool,
    transfer: bool,
    steps: bool,
) -> None:
    """Check, time, and check again; store the times and the largest error in `about`."""
    plan, material, accepted = rig.plan, rig.material, dict[int, Any]()
    precision = plan.algorithm.precision

    def accept(verdict: Verdict | None, when: str = "") -> None:
        if verdict is not None and not verdict.ok:
            raise _Wrong(when, verdict)
        if verdict is not None and ("error" not in about or verdict.rms > about["error"].rms):
            about["error"] = _error(verdict)

    if thorough:
        accept(check_plan(plan, material.judges[0], rig.prepared[0]))
    material.ring.poison()
    lap, lap_begin = rig.each_call(), clock()
    for i in range(len(material.ring.slots) if thorough else len(material.judges)):
        # Call on every slot; if calls are slow, on at least one slot for each set of inputs. The outputs of timed
        # calls are checked in any case.
        if i >= len(material.judges) and clock() - lap_begin > LAP_SHARE * rule.budget_s:
            break
        lap()
    plan.runtime.synchronize()
    accept(material.verify(precision, lap.reached, accepted))
    runs: list[tuple[str, Callable[[], Cycle], RingSize]] = [("time", rig.each_call, material.ring.size)]
    if material.ring.slots[0].w is not None and thorough:
        about["prepare_s"] = _prepare_all(rig, rule, clock)
        runs.append(("prepared_time", rig.prepared_calls, _prepared_size(rig)))

    left = max(rule.budget_s - (clock() - begin), TIMING_SHARE * rule.budget_s)
    share = replace(rule, budget_s=left / (len(runs) + transfer + steps))
    for name, make_calls, size in runs:
        calls = make_calls()
        material.ring.poison()
        about[name] = replace(measure(calls, plan.runtime, share, clock=clock), ring=size.slots, cold=size.cold)
        accept(material.verify(precision, calls.reached, accepted), "after timing: ")
    if transfer:
        about["transfer_time"], outs = time_transfers(plan, material, share, clock)
        for judge, out in zip(material.judges, outs, strict=True):
            verdict = judge.verdict(precision, out)
            if not verdict.ok:
                raise _Wrong("on host arrays: ", verdict)
    if steps:
        about["steps"] = measure_steps(rig, share, clock)


def time_transfers(
    plan: Plan, material: Material, rule: StoppingRule, clock: Callable[[], float] = time.monotonic
) -> tuple[Timing, list[Any]]:
    """Time calls from host arrays to a host array by the host's clock; return also the output of each set of inputs.

    The calls do the work of ``conv2d(x, w, device="cuda")`` on NumPy arrays after its arguments are checked: upload the
    inputs from pageable memory, prepare the weights, run the plan, download the output.
    """
    shape, dtype = material.problem.out_shape, np.dtype(material.problem.out_dtype)
    outs = [np.empty(shape, dtype) for _ in material.judges]
    for out in outs:
        out.view(np.uint8).fill(poison_of(dtype))

    def call(i: int) -> None:
        inputs = material.judges[i].inputs
        execute(plan, inputs.x, inputs.w, inputs.operands, outs[i])

    rule = replace(rule, samples=min(TRANSFERS, rule.samples), fewest=min(3, rule.samples))
    return replace(measure(Cycle(len(outs), call), cpu_runtime(), rule, clock=clock), ring=len(outs)), outs


def _prepare_all(rig: Rig, rule: StoppingRule, clock: Callable[[], float]) -> float:
    """Prepare the weights of as many slots as memory and a tenth of the budget allow; return the seconds of one."""
    slots, prepared = rig.material.ring.slots, list(rig.prepared)
    room = max(ring_limit(rig.plan.runtime.facts) // max(prepared[0].nbytes, 1), 1)
    taken, begin = list[float](), clock()
    for slot in slots[1:] or slots:
        start = clock()
        if taken and (len(prepared) >= room or start - begin > rule.budget_s / 10):
            break
        made = rig.plan.prepare(slot.w)
        taken.append(clock() - start)
        if len(prepared) < min(room, len(slots)):
            prepared.append(made)
    rig.prepared = prepared
    return statistics.median(taken)


def _prepared_size(rig: Rig) -> RingSize:
    """Ring size of calls with prepared weights: there may be fewer slots, and prepared weights differ in size."""
    ring, prepared = rig.material.ring, rig.prepared
    if len(prepared) == ring.size.slots:
        return ring.size
    bytes_each = ring.slot_bytes - ring.slots[0].w.nbytes + prepared[0].nbytes
    wanted = ring_size(bytes_each, rig.plan.runtime.facts)
    return RingSize(len(prepared), wanted.cold and len(prepared) >= wanted.slots)


def _note(rig: Rig, about: dict[str, Any], rule: StoppingRule) -> Reason | None:
    def few(name: str) -> dict[str, int]:
        timing: Timing | None = about.get(name)
        return {"k": len(timing.samples), "n": rule.samples} if timing is not None and timing.few else {}

    notes = [] if (note := rig.prepared[0].note) is None else [note]
    if counts := few("time"):
        notes.append(Reason("weights per call: {k} of {n} samples, the budget ended", **counts))
    if counts := few("prepared_time"):
        notes.append(Reason("prepared: {k} of {n} samples, the budget ended", **counts))
    return Reason.joined(notes)


def _error(verdict: Verdict) -> Error:
    return Error(float(verdict.rms), float(verdict.max_error), float(verdict.bound_ratio))


def finalists(results: Iterable[Result]) -> list[Result]:
    """The two fastest, and the fastest of ours and of the peers, if within CLOSE times the fastest; else empty."""
    able = sorted(((r.time.median_s, r) for r in results if r.time and r.allowed), key=lambda pair: pair[0])
    chosen = able[:2]
    for ours in (True, False):
        chosen += [pair for pair in able if pair[1].ours is ours][:1]
    close = {id(r): r for seconds, r in chosen if seconds <= CLOSE * chosen[0][0]}
    return list(close.values()) if len(close) > 1 else []


def hold_final(
    rows: Sequence[Row], results: Sequence[Result], material: Material, rule: StoppingRule, clock: Callable[[], float]
) -> tuple[Finalists | None, list[Result]]:
    """Time the finalists of a case again, alternately on the same ring, before one is called the fastest.

    Return the final and the failed results. The final is None if no two are close or one fails its check now; failed
    results have no times.
    """
    case, runtime, by_key = rows[0].case, material.runtime, {row.key: row for row in rows}
    chosen = finalists(results)
    if not chosen:
        return None, []
    rigs = []
    for result in chosen:
        row = by_key[result.key]
        assert row.config is not None
        rigs.append(Rig.of(row.algorithm.plan(row.problem, row.config, runtime), material))
    timings = interleave([rig.each_call() for rig in rigs], runtime, rule, clock=clock)
    failed = [bad for result, rig in zip(chosen, rigs, strict=True) if (bad := _recheck(result, rig)) is not None]
    if failed:
        return None, failed
    size = material.ring.size
    contestants = tuple(
        Finalist(result.algorithm, result.config, replace(timing, ring=size.slots, cold=size.cold))
        for result, timing in zip(chosen, timings, strict=True)
    )
    return Finalists(case.name, contestants), []


def _recheck(result: Result, rig: Rig) -> Result | None:
    """Check again: a result without times if the method is wrong now, None if it is still right."""
    material, call = rig.material, rig.each_call()
    material.ring.poison()
    for _ in range(min(len(material.ring.slots), len(material.judges))):
        call()
    material.runtime.synchronize()
    verdict = material.verify(result.precision, call.reached, {})
    if verdict is None or verdict.ok:
        return None
    reason = Reason.quoted(f"after the final: {verdict.message}")
    return replace(result, status="failed", reason=reason, time=None, prepared_time=None, transfer_time=None, steps=())
