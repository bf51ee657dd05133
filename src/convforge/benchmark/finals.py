"""The final of a case: its fastest methods timed again in turns, before one is called the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from convforge.backends.runtime import Runtime
from convforge.benchmark.material import Material
from convforge.benchmark.records import Finalist, Finalists, Result
from convforge.benchmark.row import Rig, Row
from convforge.benchmark.suites import Case
from convforge.errors import Reason
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import interleave

# A method this much slower than the fastest needs no second look.
CLOSE = 1.5


def contenders(results: Sequence[Result], asked: str) -> list[Result]:
    """The results that compete, the fastest first: timed, in the precision that the problem allows."""
    able = [r for r in results if r.time is not None and r.precision in ("strict", asked)]
    return sorted(able, key=lambda r: r.time.median_s if r.time else 0.0)


def finalists(results: Sequence[Result], asked: str) -> list[Result]:
    """The two fastest, and the fastest of ours and of the peers, where they are close; fewer than two: no final."""
    able = contenders(results, asked)
    chosen = able[:2]
    for ours in (True, False):
        best = next((r for r in able if r.ours is ours), None)
        if best is not None and best not in chosen:
            chosen.append(best)
    fastest = chosen[0].time if chosen else None
    close = [r for r in chosen if r.time and fastest and r.time.median_s <= CLOSE * fastest.median_s]
    return close if len(close) > 1 else []


def hold_final(
    case: Case,
    rows: Sequence[Row],
    results: Sequence[Result],
    material: Material,
    runtime: Runtime,
    rule: StoppingRule,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Finalists | None, list[Result]]:
    """Time the finalists again in turns, on the same ring.

    Returns
    -------
    final : Finalists or None
        None where no two are close, or one failed.
    failed : list of Result
        Methods that were right before and are wrong now: their results, without times.
    """
    chosen = finalists(results, case.problem.precision)
    if not chosen:
        return None, []
    by_key = {row.key: row for row in rows}
    rigs = []
    for result in chosen:
        row = by_key[result.key]
        assert row.config is not None
        plan = row.algorithm.plan(row.problem, row.config, runtime)
        workspace: Any = runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None
        rigs.append(Rig(plan, material, workspace, []))
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
    """The result without its times where the method is wrong now; None where it is still right."""
    rig.material.ring.poison()
    call = rig.each_call()
    for _ in range(min(len(rig.material.ring.slots), len(rig.material.judges))):
        call()
    rig.plan.runtime.synchronize()
    verdict = rig.material.verify(result.precision, call.reached, {})
    if verdict.ok:
        return None
    reason = Reason.quoted(f"after the final: {verdict.message}")
    return replace(result, status="failed", reason=reason, time=None, prepared_time=None, transfer_time=None, steps=())
