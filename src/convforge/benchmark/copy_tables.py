"""How near the methods come to a copy of the bytes that a case must move: a note below tables, and cells of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from convforge.benchmark.cells import Cell, three
from convforge.benchmark.records import Result, Run
from convforge.benchmark.verdicts import TERMS

LEGEND = (
    "ms / share of a copy; weights prepared on every call. The share is that of the bandwidth of our copy kernel over "
    "as many bytes as the case must move at least, half read and half written, over a ring like the case's. Bold: our "
    "best; italics: the best peer; ~ noisy; * sources changed since; a method with its arithmetic in parentheses must "
    "be asked for by name and does not compete. " + TERMS
)


def copy_cell(run: Run, case: str) -> Cell:
    """The copy of a case: ms and GB/s."""
    copy = run.copy_of(case)
    if copy is None:
        return Cell("-")
    signs = "~" if copy.time.noisy else ""
    return Cell(f"{signs}{three(1e3 * copy.time.median_s)} / {three(copy.bytes_per_s / 1e9)} GB/s")


def percent(share: float | None) -> str:
    """A share, or that there is none.

    >>> percent(0.934), percent(None)
    ('93 %', '-')
    """
    return "-" if share is None else f"{100 * share:.0f} %"


def copy_notes(run: Run, results: Iterable[Result], label: Callable[[Result], str]) -> Iterator[str]:
    """A line with every method's lowest and highest share, of the cases that memory bounds."""
    shares: dict[str, list[float]] = {}
    for r in results:
        share = run.of_copy(r, run.timing(r))
        if share is not None and bound_by_memory(run, r):
            shares.setdefault(label(r), []).append(share)
    if shares:
        each = "; ".join(f"{name} {_range(found)}" for name, found in shares.items())
        yield f"Of a copy of the same bytes, where memory is the limit: {each}."


def bound_by_memory(run: Run, r: Result) -> bool:
    """Whether moving a case's bytes takes at least as long as the direct method's operations, by the run's ceilings."""
    best = run.best_ceilings
    return best is None or r.flops / best.fma_flops_per_s <= r.least_bytes / best.copy_bytes_per_s


def _range(shares: list[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
