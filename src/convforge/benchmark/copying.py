"""The copy of each case: timed once a run, before the case's own data are made, and stored beside its results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from convforge.benchmark.records import CopyTime
from convforge.benchmark.store import Store
from convforge.benchmark.suites import Case
from convforge.timing.copies import Copies
from convforge.timing.stopping import StoppingRule

# A copy is an easy thing to time: what is noisy after this long stays so.
PATIENCE_S = 0.1
BUDGET_S = 1.0


class CopyTimes:
    """Times a copy for each case that has none yet.

    Parameters
    ----------
    copies : Copies or None
        None: no copy is timed.
    rule : StoppingRule
        That of the run's results; its patience is less here.
    store : Store
    """

    def __init__(self, copies: Copies | None, rule: StoppingRule, store: Store) -> None:
        self._copies, self._store = copies, store
        self._rule = replace(rule, patience_s=min(rule.patience_s, PATIENCE_S), budget_s=BUDGET_S)
        self._done: set[str] = set()

    def skip(self, done: Iterable[CopyTime]) -> None:
        """Leave out the cases whose copies are stored already."""
        self._done |= {copy.case for copy in done}

    def add(self, case: Case) -> None:
        """Time and store the copy of a case; a device that has no room for it goes without."""
        if self._copies is None or case.name in self._done:
            return
        self._done.add(case.name)
        try:
            nbytes, timing = self._copies.time(case.problem.least_bytes, self._rule)
        except MemoryError:
            return
        self._store.append(CopyTime(case.name, nbytes, timing).to_record())
