"""One row: a method in one config on one case. Planned, called once, checked, timed twice, checked again."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convforge.algorithms.contract import Algorithm, Config, Plan, PreparedFilter
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.digests import digest
from convforge.benchmark.material import Material
from convforge.benchmark.records import TIMES, Error, Result
from convforge.benchmark.steps import measure_steps
from convforge.benchmark.suites import Case
from convforge.benchmark.transfer import Transfers
from convforge.errors import Reason, UnsupportedProblem
from convforge.problem import Problem
from convforge.timing.ring import Cycle, RingSize, ring_limit, ring_size
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, measure

AnyAlgorithm = Algorithm[Any, Any]
# Of a row's budget, for calling it on every slot of the ring before it is timed.
LAP_SHARE = 0.1
# Of a row's budget, at least this much is for the timings, however long the check took.
TIMING_SHARE = 0.3
# Samples of a config of which the fastest is looked for.
SEARCHED = StoppingRule(samples=5, narrow=0.03, patience_s=0.02, budget_s=0.3)


@dataclass(frozen=True, slots=True)
class Row:
    """A row to measure.

    Attributes
    ----------
    case : Case
    problem : Problem
        The case's, with the precision that the method must be asked for.
    algorithm : Algorithm
    config : Config or None
        None where the method refuses.
    facts : DeviceFacts
        Of the device that is to be measured.
    refusal : Reason or None
    first : bool
        Whether the config is the first of the method's rows on this case.
    others : tuple of Config
        Further configs of which the fastest is to be measured in the place of this one.
    asked : tuple of str
        The key of the row whose place this one took.
    """

    case: Case
    problem: Problem
    algorithm: AnyAlgorithm
    config: Config | None
    facts: DeviceFacts
    refusal: Reason | None = None
    first: bool = True
    others: tuple[Config, ...] = ()
    asked: tuple[str, ...] = ()

    def by(self, config: Config) -> Row:
        """The row with the config that was found."""
        return replace(self, config=config, others=(), asked=self.place)

    @property
    def place(self) -> tuple[str, ...]:
        """The key that it had before its config was looked for."""
        return self.asked or self.key

    @property
    def key(self) -> tuple[str, ...]:
        """The key of its result."""
        config = "" if self.config is None else str(self.config)
        return (self.case.name, str(self.case.problem), self.algorithm.backend, self.algorithm.name, config)

    @property
    def forecast_keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Under which its times are forecast: its config's, and its method's where that config was not seen."""
        method = (self.algorithm.operation, self.algorithm.name)
        return (*method, "" if self.config is None else str(self.config)), method

    def result(self, status: Any, reason: Reason | None, **more: Any) -> Result:
        """A result of this row."""
        return Result(
            case=self.case.name,
            problem=str(self.case.problem),
            operation=self.algorithm.operation,
            algorithm=self.algorithm.name,
            backend=self.algorithm.backend,
            ours=self.algorithm.ours,
            precision=self.algorithm.precision,
            config="" if self.config is None else str(self.config),
            status=status,
            reason=reason,
            flops=self.case.problem.flops,
            least_bytes=self.case.problem.least_bytes,
            digest=digest(self.algorithm, self.problem, self.config, self.facts),
            library_versions=self.algorithm.versions(),
            weights=self.case.weights,
            **more,
        )


@dataclass(slots=True)
class Rig:
    """A plan with its workspace and prepared weights, ready to be called on the slots of a ring."""

    plan: Plan
    material: Material
    workspace: Any
    prepared: Sequence[PreparedFilter]

    def each_call(self) -> Cycle:
        """Calls that prepare the weights themselves, as ``conv2d`` does."""
        return self.material.ring.calls(self.plan, self.workspace)

    def prepared_calls(self) -> Cycle:
        """Calls with weights prepared before, as ``Filter`` does; over as many slots as have prepared weights."""
        plan, slots, workspace, prepared = self.plan, self.material.ring.slots, self.workspace, self.prepared
        laid = self.material.ring.laid(plan)

        def call(i: int) -> None:
            slot = slots[i]
            out = None if plan.allocates else slot.out
            slot.result = plan(plan.buffers(laid[i], prepared[i], slot.operands, out, workspace))

        return Cycle(len(prepared), call)


def fastest_config(row: Row, material: Material, runtime: Runtime) -> Config:
    """The config of a row, or one of the others, whose calls take the least time: what a search finds.

    Nothing is checked here: the row that is then measured is. A config that cannot be planned or run is passed over.
    """
    assert row.config is not None
    times: dict[Config, float] = {}
    for config in (row.config, *row.others):
        try:
            plan = row.algorithm.plan(row.problem, config, runtime)
            workspace = runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None
            calls = material.ring.calls(plan, workspace)
            calls()
            runtime.synchronize()
            times[config] = measure(calls, runtime, SEARCHED).median_s
        except Exception:  # the default's fault is that of its row
            continue
        finally:
            material.ring.poison()
    return min(times, key=times.__getitem__, default=row.config)


def measure_row(
    row: Row,
    material: Material,
    runtime: Runtime,
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
    """Measure a row; its result says what went wrong where something did.

    Parameters
    ----------
    rule : StoppingRule
        Its budget is that of the whole row: what is left after plan and check goes to the timings.
    workspace_limit : int or None
        Bytes; a plan that needs more is refused.
    compiled : callable
        Told the seconds of plan and first call, which no budget pays for, before `refusal` is asked.
    refusal : callable
        Why a row may not go on whose calls take so many seconds, None where it may; asked once that is known.
    thorough : bool
        Check poisons, guard bands, stale results and every slot of the ring before the timing, and time prepared
        weights too. Otherwise the output of each set of inputs, poisoned before, is compared, and what the timed calls
        wrote: as much as a result needs.
    transfer : bool
        Also time calls from host arrays to a host array.
    steps : bool
        Also time each step of a plan of several by itself.
    """
    assert row.config is not None
    begin = clock()
    try:
        plan = row.algorithm.plan(row.problem, row.config, runtime)
        about: dict[str, Any] = {
            "workspace_bytes": plan.workspace_bytes,
            "launches": tuple(dataclasses.asdict(info) for info in plan.launches),
            "ways": () if row.algorithm.ours else plan.ways,
        }
        if workspace_limit is not None and plan.workspace_bytes > workspace_limit:
            need, limit = plan.workspace_bytes, workspace_limit
            reason = Reason("it needs {need} bytes of workspace; the limit is {limit}", need=need, limit=limit)
            return row.result("refused", reason, **about)
        workspace = runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None
        slot = material.ring.slots[0]
        first = plan.prepare(slot.w)
        buffers = plan.buffers(slot.x, first, slot.operands, slot.out, workspace)
        plan(buffers)
        runtime.synchronize()
        about["first_call_s"] = clock() - begin
        compiled(about["first_call_s"])
        taken = runtime.time(lambda: plan(buffers), 1)
        if (why := refusal(taken)) is not None:
            taken_so = Reason("a call takes {time}", time=in_words(taken))
            return row.result("skipped", Reason.joined([taken_so, why]), **about)
        rig = Rig(plan, material, workspace, [first])
        return _checked(row, rig, about, rule, begin, clock, thorough=thorough, transfer=transfer, steps=steps)
    except UnsupportedProblem as fault:  # seen in the weights alone, such as a rank
        return row.result("refused", fault.reason_of(row.algorithm.name))
    except Exception as fault:  # recorded as the row's result: one method's fault must not end the others' run
        text = " ".join(str(fault).split()) or "no message"
        return row.result("error", Reason.quoted(f"{type(fault).__name__}: {text}"))


def in_words(seconds: float) -> str:
    """A forecast: two digits and a unit.

    Examples
    --------
    >>> in_words(0.00057), in_words(0.0131), in_words(32.4), in_words(432.0)
    ('570 us', '13 ms', '32 s', '430 s')
    """
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if seconds * f >= 1), ("us", 1e6))
    return f"{float(f'{seconds * factor:.2g}'):g} {unit}"


def _checked(
    row: Row,
    rig: Rig,
    about: dict[str, Any],
    rule: StoppingRule,
    begin: float,
    clock: Callable[[], float],
    *,
    thorough: bool,
    transfer: bool,
    steps: bool,
) -> Result:
    """Check, time, check again."""
    material, accepted = rig.material, dict[int, Any]()
    verdict: Any = None
    if thorough:
        verdict = material.check.check_plan(rig.plan, material.judges[0], rig.prepared[0])
    if verdict is None or verdict.ok:
        material.ring.poison()
        lap, lap_begin = rig.each_call(), clock()
        for i in range(len(material.ring.slots) if thorough else len(material.judges)):
            # Every slot, but where calls are slow and the budget is short at least one of each set of inputs; what the
            # timed calls wrote is checked in any case.
            if i >= len(material.judges) and clock() - lap_begin > LAP_SHARE * rule.budget_s:
                break
            lap()
        rig.plan.runtime.synchronize()
        verdict = _worse(verdict, material.verify(row.algorithm.precision, lap.reached, accepted))
    if not verdict.ok:
        return row.result("failed", Reason.quoted(_said(verdict)), error=_error(verdict), **about)
    if material.has_weights and thorough:
        about["prepare_s"] = _prepare_all(rig, rule, clock)

    # The first call compiles: it counts in the whole run's budget, but leaves the row's samples alone.
    spent = clock() - begin - about["first_call_s"]
    left = max(rule.budget_s - spent, TIMING_SHARE * rule.budget_s)
    runs = [("time", rig.each_call(), material.ring.size)]
    if material.has_weights and thorough:
        runs.append(("prepared_time", rig.prepared_calls(), _prepared_size(rig)))
    share = replace(rule, budget_s=left / (len(runs) + transfer + steps))
    for name, cycle, size in runs:
        material.ring.poison()
        timing = measure(cycle, rig.plan.runtime, share, clock=clock)
        about[name] = replace(timing, ring=size.slots, cold=size.cold)
        after = material.verify(row.algorithm.precision, cycle.reached, accepted)
        if after is not None and not after.ok:
            return _wrong(row, "after timing", after, about)
        verdict = _worse(verdict, after)
    if transfer:
        transfers = Transfers(rig.plan, material)
        about["transfer_time"] = transfers.measure(share, clock)
        after = transfers.verdict(row.algorithm.precision)
        if not after.ok:
            return _wrong(row, "from host to host", after, about)
    if steps:
        about["steps"] = measure_steps(rig, share, clock)
    return row.result("ok", None, error=_error(verdict), note=_note(rig, about, rule), **about)


def _wrong(row: Row, when: str, verdict: Any, about: dict[str, Any]) -> Result:
    """The result of a row whose calls went wrong while they were timed: it has no time."""
    untimed = {name: value for name, value in about.items() if name not in TIMES}
    return row.result("failed", Reason.quoted(f"{when}: {_said(verdict)}"), error=_error(verdict), **untimed)


def _prepare_all(rig: Rig, rule: StoppingRule, clock: Callable[[], float]) -> float:
    """Prepare the weights of as many slots as memory and a tenth of the budget allow; seconds of one preparation."""
    slots, first = rig.material.ring.slots, rig.prepared[0]
    room = max(ring_limit(rig.plan.runtime.facts) // max(first.nbytes, 1), 1)
    prepared, taken, begin = [first], list[float](), clock()
    for slot in slots[1:]:
        if len(prepared) >= room or clock() - begin > rule.budget_s / 10:
            break
        start = clock()
        prepared.append(rig.plan.prepare(slot.w))
        taken.append(clock() - start)
    if not taken:
        start = clock()
        rig.plan.prepare(slots[0].w)
        taken.append(clock() - start)
    rig.prepared = prepared
    return statistics.median(taken)


def _prepared_size(rig: Rig) -> RingSize:
    """The ring of calls with prepared weights: it may have fewer slots, and its weights take other room."""
    ring, prepared = rig.material.ring, rig.prepared
    bytes_each = ring.slot_bytes - ring.slots[0].w.nbytes + prepared[0].nbytes
    if len(prepared) == ring.size.slots:
        return RingSize(len(prepared), ring.size.cold)
    wanted = ring_size(bytes_each, rig.plan.runtime.facts)
    return RingSize(len(prepared), wanted.cold and len(prepared) >= wanted.slots)


def _note(rig: Rig, about: dict[str, Any], rule: StoppingRule) -> Reason | None:
    notes = [] if (note := rig.prepared[0].note) is None else [note]
    if (few := _few(about.get("time"), rule)) is not None:
        notes.append(Reason("weights per call: {k} of {n} samples, the budget ended", **few))
    if (few := _few(about.get("prepared_time"), rule)) is not None:
        notes.append(Reason("prepared: {k} of {n} samples, the budget ended", **few))
    return Reason.joined(notes)


def _few(timing: Timing | None, rule: StoppingRule) -> dict[str, int] | None:
    """Note of too few samples: how many there are, of how many."""
    return None if timing is None or not timing.few else {"k": len(timing.samples), "n": rule.samples}


def _worse(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return b if not b.ok or b.rms > a.rms else a


def _error(verdict: Any) -> Error:
    return Error(float(verdict.rms), float(verdict.max_error), float(verdict.bound_ratio))


def _said(verdict: Any) -> str:
    return str(verdict.message if verdict.fault is None else f"{verdict.fault}: {verdict.message}")
