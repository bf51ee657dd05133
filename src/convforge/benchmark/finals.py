"""The final of a case: its fastest methods timed again in turns, before one is called the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from convforge.benchmark.material import Material
from convforge.benchmark.records import Finalist, Finalists, Result
from convforge.benchmark.row import Rig, Row
from convforge.errors import Reason
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import interleave

# A method this much slower than the fastest needs no second look.
CLOSE = 1.5


def finalists(results: Iterable[Result], precision: str) -> list[Result]:
    """The two fastest, and the fastest of ours and of the peers, where they are close; fewer than two: no final.

    Results compete that have a time, in strict arithmetic or the case's precision.
    """
    timed = [(r.time.median_s, r) for r in results if r.time is not None and r.precision in ("strict", precision)]
    able = sorted(timed, key=lambda pair: pair[0])
    chosen = able[:2]
    for ours in (True, False):
        chosen += [pair for pair in able if pair[1].ours is ours][:1]
    close = {id(r): r for seconds, r in chosen if seconds <= CLOSE * chosen[0][0]}
    return list(close.values()) if len(close) > 1 else []


def hold_final(
    rows: Sequence[Row],
    results: Sequence[Result],
    material: Material,
    rule: StoppingRule,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Finalists | None, list[Result]]:
    """Time the finalists of a case again in turns, on the same ring.

    Return the final, None where no two are close or one failed, and the results, without times, of methods that were
    right before and are wrong now.
    """
    case, runtime, by_key = rows[0].case, material.runtime, {row.key: row for row in rows}
    chosen = finalists(results, case.problem.precision)
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
    """The result without its times where the method is wrong now; None where it is still right."""
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
