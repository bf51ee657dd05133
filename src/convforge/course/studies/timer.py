"""What goes wrong when a clock is read at the wrong time: each mistake is made, beside the right way, on one case.

A mistaken time is stored as a result of the arithmetic "mistaken", which competes with nothing.
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
from convforge.benchmark.material import Material, checker
from convforge.benchmark.records import Error, Run
from convforge.benchmark.row import Row
from convforge.benchmark.runner import QUICK
from convforge.benchmark.store import Store
from convforge.benchmark.suites import Case
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.readings import Reading, by_case, readings
from convforge.course.studies.study import Part, Study
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.timing.ranking import order
from convforge.timing.ring import Cycle
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, measure

MISTAKEN = "mistaken"
METHOD = {"cuda": "direct_tiled", "cpu": "direct_rows"}
PEERS = ("cudnn", "torch_conv2d")
# The clocks are read one after the other: what is closer than this may be a drift of the machine.
MARGIN = 0.10
# What is done inside the time, which the host's clock reads, with a wait.
ON_HOST_CLOCK = ("allocating", "planning")
# Of each mistake no more time than this is taken.
MISTAKE_S = 2.0


def _cases(quick: bool) -> list[Case]:
    sizes = (64,) if quick else (128, 1024)
    return [
        Case(f"rgb_to_1_{n}_s1", Conv2dProblem(n=1, c=3, h=n, w=n, k=1, r=3, s=3, padding=(1, 1, 1, 1))) for n in sizes
    ]


def _mistaken_cases(backend: str, quick: bool) -> list[Case]:
    """What the mistakes are made on; on a GPU first a call of milliseconds, far longer than handing it over takes.

    There alone a clock that does not wait shows too little; on short calls it shows the host's work, which is more.
    """
    long = Conv2dProblem(n=1, c=3, h=2048, w=2048, k=1, r=31, s=31, padding=(15, 15, 15, 15))
    return [*([Case("rgb_to_1_2048_31x31", long)] if backend == "cuda" and not quick else []), *_cases(quick)]


def parts(facts: DeviceFacts, quick: bool) -> Sequence[Part]:
    """The right times, of a method of ours and of libraries; :func:`mistakes` adds the wrong ones."""
    peers = () if quick else PEERS
    return [Part(_cases(quick), (METHOD.get(facts.backend, "direct_naive"), *peers), transfer=True)]


class Impatient:
    """The host's clock, read without waiting for the device: the wait comes after."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """See :class:`convforge.timing.timer.Clock`."""
        self.runtime.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        taken = time.perf_counter() - begin
        self.runtime.synchronize()
        return taken


class Waiting(Impatient):
    """The host's clock, read once the device is done: right, but for what it costs the host to launch and to wait."""

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """See :class:`convforge.timing.timer.Clock`."""
        self.runtime.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
            self.runtime.synchronize()
        return time.perf_counter() - begin


def mistakes(runtime: Runtime, store: Store, quick: bool) -> None:
    """Time the same calls the wrong ways, and store what the clocks say."""
    rule = replace(QUICK if quick else StoppingRule(), budget_s=0.2 if quick else MISTAKE_S)
    method = find("conv2d", runtime.facts.backend, METHOD.get(runtime.facts.backend, "direct_naive"))
    for case in _mistaken_cases(runtime.facts.backend, quick):
        if refused := method.refuses(case.problem, runtime.facts):
            store.append(Row(case, case.problem, method, None, runtime.facts).result("refused", refused).to_record())
            continue
        config = method.configs(case.problem, runtime.facts)[0]
        row = Row(case, case.problem, method, config, runtime.facts)
        material = Material(case, runtime, checker())
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
    """The error of the calls that are to be timed, or why they have none: nothing wrong is timed, even wrongly."""
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
    """The right time, and what each mistake shows."""
    problem: Any = row.problem
    method, config, slots = row.algorithm, row.config, material.ring.slots
    assert config is not None
    runtime = plan.runtime

    def room() -> Any:
        return runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None

    workspace = room()

    def one(i: int) -> None:
        slot = slots[0]
        plan(plan.buffers(slot.x, plan.borrow(slot.w), slot.operands, slot.out, workspace))

    def allocating(i: int) -> None:
        slot = slots[i]
        out = runtime.empty(problem.out_shape, slot.out.dtype)
        plan(plan.buffers(slot.x, plan.borrow(slot.w), slot.operands, out, room()))

    def planning(i: int) -> None:
        slot, own = slots[i], method.plan(problem, config, runtime)
        own(own.buffers(slot.x, own.prepare(slot.w), slot.operands, slot.out))

    calls, waiting = material.ring.calls(plan, workspace), Waiting(runtime)
    return {
        "right": measure(calls, runtime, rule),
        "no_wait": measure(calls, Impatient(runtime), rule),
        "host_clock": measure(calls, waiting, rule),
        "allocating": measure(Cycle(len(slots), allocating), waiting, rule),
        "planning": measure(Cycle(len(slots), planning), waiting, rule),
        "same_arrays": measure(Cycle(1, one), runtime, rule),
    }


def _clocks(run: Run) -> Iterator[dict[str, Reading]]:
    """Of each case the clocks' readings by name."""
    found = [r for r in readings(run, "conv2d", every_config=True) if r.result.precision == MISTAKEN]
    for rs in by_case(found).values():
        names = {r.result.config.partition("=")[2]: r for r in rs}
        if "right" in names:
            yield names


def clocks(run: Run) -> Iterator[Finding]:
    """What each mistake shows against the right time; what is done inside the time, against that clock without it."""
    any_found = False
    for names in _clocks(run):
        any_found = True
        for name, r in names.items():
            # What is read with the host's clock is held to that clock: else its own cost would be called theirs.
            right = names.get("host_clock" if name in ON_HOST_CLOCK else "right")
            if name == "right" or right is None:
                continue
            ratio = r.seconds / right.seconds
            verdict = order(r.timing, right.timing) if abs(ratio - 1) > MARGIN else "level"
            values = {
                "case": r.case,
                "method": r.result.algorithm,
                "clock": r.result.config,
                "right_s": right.seconds,
                "wrong_s": r.seconds,
                "ratio": ratio,
                "cold": right.timing.cold,
                "difference_s": abs(r.seconds - right.seconds),
                "margin": MARGIN,
            }
            if verdict == "unsure":
                yield Finding(
                    name.replace("_", "-"), "clocks/unsure", values, (right.datum(), r.datum()), supported=False
                )
                continue
            form = {"faster": "less", "slower": "more", "level": "level"}[verdict]
            if name == "same_arrays" and form == "less" and not right.timing.cold:
                form = "less-hot"
            yield Finding(name.replace("_", "-"), f"{name}/{form}", values, (right.datum(), r.datum()), form != "level")
    if not any_found:
        yield Finding("clocks", "clocks/none", {}, supported=False)


def first_calls(run: Run) -> Iterator[Finding]:
    """What a first call takes against a later one: planning, and whatever is done only once, is inside."""
    found = [r for r in readings(run, "conv2d") if r.result.precision != MISTAKEN and r.result.first_call_s is not None]
    largest = {r.method: r for r in sorted(found, key=lambda r: r.result.flops)}
    for r in largest.values():
        first = r.result.first_call_s or 0.0
        values: dict[str, Any] = {
            "method": r.method,
            "case": r.case,
            "first_s": first,
            "later_s": r.seconds,
            "ratio": first / r.seconds,
        }
        form = ("ours" if r.result.ours else "peer") if values["ratio"] > 1 else "none"
        rests = (r.datum(), Datum(r.case, r.method, r.result.config, "first_call_s", first))
        yield Finding("first-call", f"first/{form}", values, rests)


_LEVEL = ", within {margin:percent} or the spreads"
_WAS = " ({wrong_s:time} for {right_s:time}, {method} on {case})."
ENGLISH = {
    "no_wait/less": "Without waiting for the device the clock shows {ratio:percent} of the time: what handing over a "
    "call takes, and not what the call takes" + _WAS,
    "no_wait/more": "Without waiting for the device the clock shows {ratio:times} the time: handing over a call "
    "takes the host longer than the call takes the device" + _WAS,
    "no_wait/level": "Not waiting makes no difference here"
    + _LEVEL
    + ": a call has ended when it returns, or handing it over "
    "takes as long as it runs" + _WAS,
    "host_clock/less": "The host's clock, with waiting, shows {ratio:percent} of the time" + _WAS,
    "host_clock/more": "The host's clock, with waiting, adds what launching and waiting cost: {ratio:times} the time, "
    "{difference_s:time} more" + _WAS,
    "host_clock/level": "The host's clock, with waiting, shows the right time here" + _LEVEL + _WAS,
    "allocating/less": "With the output allocated inside the time the host's clock shows {ratio:percent} of what it "
    "shows without" + _WAS,
    "allocating/more": "Allocating the output inside the time adds {difference_s:time}: {ratio:times} what the host's "
    "clock, with waiting, shows without" + _WAS,
    "allocating/level": "Allocating the output inside the time makes no difference to the host's clock here"
    + _LEVEL
    + _WAS,
    "planning/less": "With the plan made and the weights prepared inside the time the host's clock shows "
    "{ratio:percent} of what it shows without" + _WAS,
    "planning/more": "Planning and preparing the weights inside the time adds {difference_s:time}: {ratio:times} what "
    "the host's clock, with waiting, shows without" + _WAS,
    "planning/level": "Planning and preparing the weights inside the time makes no difference to the host's clock here"
    + _LEVEL
    + _WAS,
    "same_arrays/less": "Calling on the same arrays again and again shows {ratio:percent} of the time that a ring "
    "shows which exceeds the cache" + _WAS,
    "same_arrays/less-hot": "Calling on the same arrays again and again shows {ratio:percent} of the time, although "
    "the ring that the right way uses fits the last cache too" + _WAS,
    "same_arrays/more": "Calling on the same arrays again and again takes {ratio:times} the time here" + _WAS,
    "same_arrays/level": "Calling on the same arrays again and again makes no difference here" + _LEVEL + _WAS,
    "clocks/unsure": "What {clock} shows cannot be told: it is too noisy to rank" + _WAS,
    "clocks/none": "What a mistaken clock shows cannot be said: the run holds no such times.",
    "first/ours": "The first call of {method} on {case} takes {first_s:time}, {ratio:.0f} times a later one "
    "({later_s:time}): planning, compiling or loading, and preparing the weights are inside.",
    "first/peer": "The first call of {method} on {case} takes {first_s:time}, {ratio:.0f} times a later one "
    "({later_s:time}): whatever the library does only once is inside.",
    "first/none": "The first call of {method} on {case} takes no longer than a later one ({first_s:time}, "
    "{later_s:time}).",
}

STUDY = Study(
    "timer",
    "What do mistakes of timing show: not waiting, first calls, allocation, planning, the same arrays again?",
    parts,
    (clocks, first_calls),
    ENGLISH,
    gpu_s=25.0,
    cpu_s=40.0,
    extra=mistakes,
    answered_by=("no-wait", "first-call", "allocating", "planning", "same-arrays"),
)
