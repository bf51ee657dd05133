"""Every method on one problem: its plan or why it refuses, its time, and how long the machine takes at the least."""

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

# Of each ceiling: fewer than the bench takes, for a figure to set a quick time against.
CEILING_REPEATS = 2
# Of a plan: a few seconds and hundreds of megabytes to make.
MOST_PIECES = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A method on a problem.

    Attributes
    ----------
    algorithm : Algorithm
    problem : Problem
        What was asked, with the precision that the method must be asked for.
    plan : Plan or None
        Of the first config that keeps to the workspace limit.
    refusal : Reason or None
        Why there can be no plan.
    unplanned : str or None
        Why none was made.
    """

    algorithm: AnyAlgorithm
    problem: Any
    plan: Plan | None
    refusal: Reason | None = None
    unplanned: str | None = None


def survey(problem: Any, methods: Sequence[AnyAlgorithm], runtime: Runtime, limit: int | None) -> list[Entry]:
    """The entry of every method; `limit` is the most bytes of workspace that a plan may take."""
    from convforge.tuning.heuristic import fit

    entries = []
    for algorithm in methods:
        asked = problem if algorithm.precision == "strict" else problem.allowing(algorithm.precision)
        found: Plan | Reason | None = refusal(algorithm, asked, runtime.facts)
        if found is None and (vast := _too_vast(algorithm, asked, runtime, limit)):
            entries.append(Entry(algorithm, asked, None, None, vast))
            continue
        if found is None:
            found = fit(algorithm, asked, runtime, limit)
        if isinstance(found, Plan):
            entries.append(Entry(algorithm, asked, found))
        else:
            entries.append(Entry(algorithm, asked, None, found))
    return entries


def check_size(problem: Any, runtime: Runtime, limit: int | None) -> None:
    """Refuse a problem for which the choice by rule would make a plan of too many pieces.

    Raises
    ------
    ValueError
        It is one.
    """
    from convforge.tuning.heuristic import preferred

    for algorithm, _ in preferred(problem, runtime.facts):
        if refusal(algorithm, problem, runtime.facts) is None:
            if vast := _too_vast(algorithm, problem, runtime, limit):
                raise ValueError(f"{problem} gets {algorithm.name}: {vast}")
            return


def _too_vast(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, limit: int | None) -> str | None:
    """Why a plan is not made to be shown: any that the limit may lead to counts."""
    if runtime.facts.backend != "cpu":  # GPUs take large chunks
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
    """Check and time the plans as ``bench --quick`` does, in a run that is not kept.

    Parameters
    ----------
    ceilings : Ceilings
        Of the device, measured already.
    budget_s : float
        Seconds for all; the dearest methods are skipped where they do not fit.
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
    """The least time that a problem takes on a device: that of its bytes or that of its arithmetic.

    Attributes
    ----------
    memory_s : float
        Every byte of x, w and the output once, at copy bandwidth.
    arithmetic_s : float or None
        The direct method's operations at the FMA peak; None where sums are not float32, whose peak alone is measured.
    """

    memory_s: float
    arithmetic_s: float | None

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.memory_s, self.arithmetic_s or 0.0)

    @property
    def bound(self) -> str:
        """Which of the two it is."""
        return "memory" if self.seconds == self.memory_s else "arithmetic"


def roofline(problem: Any, ceilings: Ceilings) -> Limit:
    """The limit of a problem (S. Williams et al., Roofline: an insightful visual performance model, CACM 52, 2009).

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
