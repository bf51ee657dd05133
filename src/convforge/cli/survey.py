"""Every method on one problem: its plan or refusal, its time, and the device's least time."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convforge.algorithms import AnyAlgorithm, refusal
from convforge.algorithms.contract import Plan
from convforge.algorithms.pieces import pieces
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.timing.ceilings import Ceilings

if TYPE_CHECKING:
    from convforge.benchmark.records import Run
    from convforge.benchmark.runner import Watch

# Measurements of each ceiling: fewer than in the bench, because the times are quick too.
CEILING_REPEATS = 2
# A plan of this size costs a few seconds and hundreds of megabytes.
MOST_PIECES = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A method with its plan for the first config within the workspace limit, or the reason for none."""

    algorithm: AnyAlgorithm
    problem: Any
    plan: Plan | None
    refusal: Reason | None = None  # why there can be no plan
    unplanned: str | None = None  # why no plan was made


def survey(problem: Any, methods: Sequence[AnyAlgorithm], runtime: Runtime, limit: int | None) -> list[Entry]:
    """Return the entry of every method; `limit` is the largest workspace of a plan in bytes."""
    from convforge.tuning.heuristic import fit

    entries = []
    for algorithm in methods:
        asked = problem if algorithm.precision == "strict" else problem.allowing(algorithm.precision)
        refused = refusal(algorithm, asked, runtime.facts)
        unplanned = None if refused else _too_vast(algorithm, asked, runtime, limit)
        found = refused or (None if unplanned else fit(algorithm, asked, runtime, limit))
        plan, reason = (found, None) if isinstance(found, Plan) else (None, found)
        entries.append(Entry(algorithm, asked, plan, reason, unplanned))
    return entries


def check_size(problem: Any, runtime: Runtime, limit: int | None) -> None:
    """Raise ``ValueError`` if the choice by rule would plan too many pieces for a problem."""
    from convforge.tuning.heuristic import preferred

    for algorithm, _ in preferred(problem, runtime.facts):
        if refusal(algorithm, problem, runtime.facts) is None:
            if vast := _too_vast(algorithm, problem, runtime, limit):
                raise ValueError(f"{problem} gets {algorithm.name}: {vast}")
            return


def _too_vast(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, limit: int | None) -> str | None:
    """Say why a plan would be too large to show, under any config that the limit may lead to."""
    if runtime.facts.backend != "cpu":  # GPU plans have large chunks
        return None
    configs = algorithm.configs(problem, runtime.facts)
    count = max((pieces(algorithm, problem, config) for config in (configs if limit else configs[:1])), default=0)
    if count <= MOST_PIECES:
        return None
    return f"its plan has {count} pieces, and more than {MOST_PIECES} are not planned to be explained; ask for less"


def measure(
    problem: Any,
    entries: Sequence[Entry],
    runtime: Runtime,
    ceilings: Ceilings,
    budget_s: float,
    limit: int | None,
    watch: Watch | None = None,
) -> Run:
    """Check and time the plans as ``bench --quick`` does, in a temporary run.

    The slowest methods are skipped if they do not fit into `budget_s` seconds.
    """
    from convforge.benchmark.row import Row
    from convforge.benchmark.runner import Runner, Settings, begin
    from convforge.benchmark.suites import Case

    able = [entry for entry in entries if entry.plan is not None]
    settings = Settings(budget_s=budget_s, quick=True, workspace_limit=limit)
    case = Case(str(problem), problem)
    with (
        tempfile.TemporaryDirectory(prefix="convforge-") as folder,
        begin(Path(folder), "explain", runtime, settings) as store,
    ):
        runner = Runner([case], [], runtime, settings, store, watch=watch, ceilings=lambda _: ceilings,
                        copies=lambda _: None)  # fmt: skip
        runner.rows = [
            Row(case, entry.problem, entry.algorithm, entry.plan.config, runtime.facts) for entry in able if entry.plan
        ]
        return runner.run()


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time of a problem on a device, by its bytes and by its arithmetic."""

    memory_s: float  # every byte of x, w and the output once, at copy bandwidth
    # The direct method's operations at the FMA peak; None unless sums are float32, as no other peak is measured.
    arithmetic_s: float | None

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.arithmetic_s or 0.0)

    @property
    def bound(self) -> str:
        """The larger of the two: "memory" or "arithmetic"."""
        return "memory" if self.seconds == self.memory_s else "arithmetic"


def roofline(problem: Any, ceilings: Ceilings) -> Limit:
    """Return the limit of a problem.

    S. Williams et al., Roofline: an insightful visual performance model, CACM 52, 2009.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> limit = roofline(parse_problem("m1000n1000k1000_f32"), Ceilings(1e12, 1e12))
    >>> limit.bound, limit.seconds
    ('arithmetic', 0.002)
    """
    by_fma = problem.multiplies and problem.acc_dtype == "float32"
    arithmetic = problem.flops / ceilings.fma_flops_per_s if by_fma else None
    return Limit(problem.least_bytes / ceilings.copy_bytes_per_s, arithmetic)
