"""Timing mistakes: each is made on the same cases as the correct timing.

A wrong time is stored as a result of the arithmetic class "mistaken", which is never ranked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from convforge.algorithms import find
from convforge.algorithms.contract import Plan
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.benchmark.material import Material
from convforge.benchmark.records import Error, Run
from convforge.benchmark.row import Row
from convforge.benchmark.runner import QUICK
from convforge.benchmark.store import Store
from convforge.benchmark.suites import Case
from convforge.course.studies.finding import Datum, Finding, undecided
from convforge.course.studies.readings import by_case, data_of, readings
from convforge.course.studies.study import Part, padded, study
from convforge.errors import Reason
from convforge.timing.ranking import order
from convforge.timing.ring import Cycle
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, measure

MISTAKEN = "mistaken"
METHOD = {"cuda": "direct_tiled", "cpu": "direct_rows"}
PEERS = ("cudnn", "torch_conv2d")
# The clocks are read one after the other, so a smaller difference may be a drift of the machine.
MARGIN = 0.10
# Mistakes that include extra work in the time, read from the host's clock after synchronizing.
ON_HOST_CLOCK = ("allocating", "planning")
# Upper limit of the time spent on each mistake.
MISTAKE_S = 2.0


def _cases(quick: bool) -> list[Case]:
    sizes = (64,) if quick else (128, 1024)
    return [Case(f"rgb_to_1_{n}_s1", padded(n, 3, 1)) for n in sizes]


def _mistaken_cases(backend: str, quick: bool) -> list[Case]:
    """Cases of the mistakes; the first on a GPU is a call of milliseconds, far longer than its launch.

    Only there does a clock that does not wait show too little. On short calls it shows the host's longer work.
    """
    long = [Case("rgb_to_1_2048_31x31", padded(2048, 3, 1, 31))] if backend == "cuda" and not quick else []
    return [*long, *_cases(quick)]


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """Return correct timings of a method of ours and of libraries; :func:`mistakes` adds the wrong ones."""
    peers = () if quick else PEERS
    return [Part(_cases(quick), (METHOD.get(facts.backend, "direct_naive"), *peers), transfer=True)]


class HostClock:
    """Reads the host's clock with or without waiting for the device; with waiting, it adds only launch and wait."""

    def __init__(self, runtime: Runtime, *, waits: bool) -> None:
        self.runtime, self.waits = runtime, waits

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """See :class:`convforge.timing.timer.Clock`."""
        self.runtime.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
            if self.waits:
                self.runtime.synchronize()
        taken = time.perf_counter() - begin
        self.runtime.synchronize()
        return taken


def mistakes(runtime: Runtime, store: Store, quick: bool) -> None:
    """Time the same calls in the wrong ways, and store the clock readings."""
    rule = replace(QUICK if quick else StoppingRule(), budget_s=0.2 if quick else MISTAKE_S)
    method = find("conv2d", runtime.facts.backend, METHOD.get(runtime.facts.backend, "direct_naive"))
    for case in _mistaken_cases(runtime.facts.backend, quick):
        if refused := method.refuses(case.problem, runtime.facts):
            store.append(Row(case, case.problem, method, None, runtime.facts).result("refused", refused).to_record())
            continue
        config = method.configs(case.problem, runtime.facts)[0]
        row = Row(case, case.problem, method, config, runtime.facts)
        material = Material(case, runtime)
        plan = method.plan(row.problem, config, runtime)
        error, reason = _checked(plan, material)
        if reason is not None:
            store.append(row.result("failed", Reason.quoted(reason)).to_record())
            continue
        timings = _timings(row, plan, material, rule)
        for name, timing in timings.items():
            cold = material.ring.size.cold and name != "same_arrays"
            taken = replace(timing, ring=1 if name == "same_arrays" else material.ring.size.slots, cold=cold)
            result = row.result("ok", None, time=taken, error=error)
            store.append(replace(result, precision=MISTAKEN, config=f"clock={name}").to_record())
    store.append({"kind": "end", "complete": True})


def _checked(plan: Plan, material: Material) -> tuple[Error | None, str | None]:
    """Error of the calls to be timed, or the reason why it is missing; wrong results are never timed."""
    ring = material.ring
    ring.poison()
    calls = ring.calls(plan)
    for _ in ring.slots:
        calls()
    plan.runtime.synchronize()
    verdict = material.verify(plan.algorithm.precision, len(ring.slots), {})
    if not verdict.ok:
        return None, str(verdict.message)
    return Error(float(verdict.rms), float(verdict.max_error), float(verdict.bound_ratio)), None


def _timings(row: Row, plan: Plan, material: Material, rule: StoppingRule) -> dict[str, Timing]:
    """Return the correct timing, and the timing by each mistake."""
    problem: Any = row.problem
    method, config, slots = row.algorithm, row.config, material.ring.slots
    assert config is not None
    runtime = plan.runtime

    def call(slot: Any, out: Any, workspace: Any) -> None:
        plan(plan.buffers(slot.x, plan.borrow(slot.w), slot.operands, out, workspace))

    def room() -> Any:
        return runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None

    def planning(i: int) -> None:
        slot, own = slots[i], method.plan(problem, config, runtime)
        own(own.buffers(slot.x, own.prepare(slot.w), slot.operands, slot.out))

    def allocating(i: int) -> None:
        call(slots[i], runtime.empty(problem.out_shape, slots[i].out.dtype), room())

    workspace = room()
    calls, waiting = material.ring.calls(plan, workspace), HostClock(runtime, waits=True)
    same = Cycle(1, lambda _: call(slots[0], slots[0].out, workspace))
    return {
        "right": measure(calls, runtime, rule),
        "no_wait": measure(calls, HostClock(runtime, waits=False), rule),
        "host_clock": measure(calls, waiting, rule),
        "allocating": measure(Cycle(len(slots), allocating), waiting, rule),
        "planning": measure(Cycle(len(slots), planning), waiting, rule),
        "same_arrays": measure(same, runtime, rule),
    }


def clocks(run: Run) -> Iterator[Finding]:
    """Compare each mistake with the correct time, or with the host's clock if it only adds work to the time."""
    mistaken = [r for r in readings(run, "conv2d", every_config=True) if r.result.precision == MISTAKEN]
    cases = [{r.result.config.partition("=")[2]: r for r in rs} for rs in by_case(mistaken).values()]
    cases = [names for names in cases if "right" in names]
    if not cases:
        yield undecided("clocks", "clocks/none")
    for names in cases:
        for name, r in names.items():
            # These mistakes use the host's clock, so they are compared with it: its own cost cancels out.
            right = names.get("host_clock" if name in ON_HOST_CLOCK else "right")
            if name == "right" or right is None:
                continue
            ratio = r.seconds / right.seconds
            verdict = order(r.timing, right.timing) if abs(ratio - 1) > MARGIN else "level"
            values = {"case": r.case, "method": r.result.algorithm, "clock": r.result.config,
                      "right": right.result.config, "right_s": right.seconds, "wrong_s": r.seconds, "ratio": ratio,
                      "difference_s": abs(r.seconds - right.seconds),
                      "margin": MARGIN if verdict == "level" else None}  # fmt: skip
            form = {"faster": "less", "slower": "more"}.get(verdict, verdict)
            if name == "same_arrays" and form == "less" and not right.timing.cold:
                form = "hot"
            form = "clocks/unsure" if verdict == "unsure" else f"clocks/{name}-{form}"
            yield Finding(name.replace("_", "-"), form, values, data_of((right, r)), verdict in ("faster", "slower"))


def first_calls(run: Run) -> Iterator[Finding]:
    """Compare a first call, which includes planning and all other one-time work, with a later one."""
    found = [r for r in readings(run, "conv2d") if r.result.precision != MISTAKEN and r.result.first_call_s is not None]
    largest = {r.method: r for r in sorted(found, key=lambda r: r.result.flops)}
    for r in largest.values():
        first = r.result.first_call_s or 0.0
        ratio = first / r.seconds
        values = {"method": r.method, "case": r.case, "first_s": first, "later_s": r.seconds, "ratio": ratio}
        form = ("ours" if r.result.ours else "peer") if ratio > 1 else "none"
        data = (r.datum(), Datum(r.case, r.method, r.result.config, "first_call_s", first))
        yield Finding("first-call", f"first/{form}", values, data)


STUDY = study("timer", parts, (clocks, first_calls), extra=mistakes)
