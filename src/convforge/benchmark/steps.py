"""Time each step of a plan by itself, to show how the time of a call is spent.

Steps with the same name, such as the expansions of all chunks of im2col, have one timing. They run in sequence, in the
plan's order and chunks, without the other steps in between. The sum of all timings may differ from the time of a call:
in a call, a step may find data of the previous step in the cache, and on a CPU chunks overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from convforge.algorithms.contract import Call, Chunks, Launch, Single, Step
from convforge.benchmark.records import StepTime
from convforge.timing.ring import COLD_FACTOR, Cycle, last_level_cache
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import measure

if TYPE_CHECKING:
    from convforge.benchmark.row import Rig


def step_names(steps: Iterable[Step]) -> list[str]:
    """Different names of steps, in the order of a call."""
    return list(dict.fromkeys(step.name for step in _flat(steps)))


def only(steps: Iterable[Step], name: str) -> tuple[Step, ...]:
    """Select the steps with one name; steps in chunks stay in their chunks."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Chunks):
            groups = tuple(kept for group in step.groups if (kept := tuple(s for s in group if s.name == name)))
            found += [replace(step, groups=groups)] if groups else []
        elif step.name == name:
            found.append(step)
    return tuple(found)


def least_bytes(steps: Iterable[Step]) -> int | None:
    """Sum of the bytes that steps must move at least; None if one of them does not declare it."""
    each = [step.least_bytes if isinstance(step, Launch | Call) else None for step in _flat(steps)]
    known = [nbytes for nbytes in each if nbytes is not None]
    return sum(known) if known and len(known) == len(each) else None


def measure_steps(
    rig: Rig, rule: StoppingRule, clock: Callable[[], float] = time.monotonic
) -> tuple[StepTime, ...]:  # fmt: skip
    """Time each step of a plan with several, on the ring with prepared weights, within the budget of `rule`.

    The plan must have been called before: then each step finds an earlier step's output in the workspace. From which
    call does not matter for its time. The outputs in the ring are meaningless afterwards.
    """
    plan, ring = rig.plan, rig.material.ring
    names = step_names(plan.steps)
    if len(names) < 2:
        return ()
    share = replace(rule, budget_s=rule.budget_s / len(names))
    cache = COLD_FACTOR * last_level_cache(plan.runtime.facts)
    cold = ring.size.cold and (not plan.workspace_bytes or plan.workspace_bytes >= cache)
    operands = [plan.lay_operands(slot.operands) for slot in ring.slots]
    found = []
    for name in names:
        steps = only(plan.steps, name)

        def call(i: int, steps: tuple[Step, ...] = steps) -> None:
            slot, prepared = ring.slots[i], rig.prepared[i % len(rig.prepared)]
            out = plan.runtime.writable(slot.out)
            buffers = plan.buffers(slot.x, prepared, operands[i], out, rig.workspace)
            for step in steps:
                step.run(buffers, None)

        timing = measure(Cycle(len(ring.slots), call), plan.runtime, share, clock=clock)
        timing = replace(timing, ring=ring.size.slots, cold=cold)
        found.append(StepTime(name, timing, len(list(_flat(steps))), least_bytes(steps)))
    return tuple(found)


def _flat(steps: Iterable[Step]) -> Iterator[Single]:
    for step in steps:
        if isinstance(step, Chunks):
            for group in step.groups:
                yield from group
        else:
            yield step
