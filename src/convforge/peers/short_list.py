"""Times all of a library's ways to compute a problem, on random numbers out of cache, and finds the fastest.

A way that needs too much workspace, that the library refuses, or that fails when it runs stays in the list with the
reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from convforge.algorithms.contract import Buffers, PreparedFilter
from convforge.backends.cuda.driver import CudaError
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, numpy_dtype

# A way may use the device's memory divided by this as workspace, and at least so many bytes.
WORKSPACE_SHARE, LEAST_LIMIT = 4, 4 << 30
# Ways whose first timing is within this factor of the best are timed again, in turns.
CLOSE = 1.25
# Samples of each way's first and second timing, enough for ranks; seconds after which a noisy timing ends.
FIRST_SAMPLES, FINAL_SAMPLES = 5, 15
FIRST_S, FINAL_S = 0.3, 2.0
# Seconds after which a timing ends with fewer samples.
FIRST_BUDGET_S, FINAL_BUDGET_S = 1.0, 10.0
# Arrays repeat this many random numbers: a prime, so that no rows or planes are alike.
DIFFERENT = (1 << 16) + 1

Outcome = Literal["run", "large", "failed", "excluded"]


class LibraryFault(RuntimeError):
    """The library refused a call; the text is its message."""


class Excluded(LibraryFault):
    """A way that the caller excluded, such as for its arithmetic."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way of the library."""

    name: str
    outcome: Outcome
    reason: str = ""  # for a way that did not run
    seconds: float | None = None  # median time of a call

    @property
    def words(self) -> str:
        """Its time, or the reason why it has none."""
        return f"{1e6 * self.seconds:.4g} us" if self.seconds is not None else self.reason


@dataclass(frozen=True, slots=True)
class ShortList:
    """All ways of a library, and the fastest."""

    ways: tuple[Way, ...]
    best: int | None  # index of the fastest; None if none runs
    noun: str  # the library's name for its ways, in the plural
    limit_bytes: int  # workspace of a way
    exclusion: Reason | None = None  # the common property of the excluded ways

    @property
    def words(self) -> Reason:
        """Counts of the ways by outcome.

        Examples
        --------
        >>> ways = (Way("a", "run", "", 1e-6), Way("b", "large", "wants 9 GiB"), Way("c", "failed", "no such shape"))
        >>> ways = (*ways, Way("d", "excluded", ""))
        >>> print(ShortList(ways, 0, "plans", 8 << 30, Reason("tensor cores")).words)
        3 plans: 1 run, 1 wants more than 8 GiB of workspace, 1 failed: no such shape; excluded: tensor cores, 1
        """
        by = {o: [w for w in self.ways if w.outcome == o] for o in ("run", "large", "failed", "excluded")}
        total = len(self.ways) - len(by["excluded"])
        said, rest = _counted(self.noun, total, len(by["run"])), list[Reason]()
        if large := len(by["large"]):
            limit = gib(self.limit_bytes)
            one = Reason("{count} wants more than {limit} of workspace", count=large, limit=limit)
            many = Reason("{count} want more than {limit} of workspace", count=large, limit=limit)
            rest.append(one if large == 1 else many)
        failed = Counter(way.reason for way in by["failed"])
        rest += [Reason("{count} failed: {reason}", count=count, reason=reason) for reason, count in failed.items()]
        for outcome in rest:
            said = Reason("{first}, {rest}", first=said, rest=outcome)
        if self.exclusion is None or not by["excluded"]:
            return said
        excluded = Reason("excluded: {what}, {count}", what=self.exclusion, count=len(by["excluded"]))
        return Reason("{first}; {rest}", first=said, rest=excluded)

    def table(self) -> tuple[tuple[str, str, str], ...]:
        """Name, outcome, and time or reason of each way."""
        return tuple((way.name, way.outcome, way.words) for way in self.ways)


def _counted(noun: str, count: int, run: int) -> Reason:
    counts = {"count": count, "run": run}
    if noun == "plans":
        one, many = Reason("{count} plan: {run} run", **counts), Reason("{count} plans: {run} run", **counts)
    else:
        one = Reason("{count} algorithm: {run} run", **counts)
        many = Reason("{count} algorithms: {run} run", **counts)
    return one if count == 1 else many


def gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


def workspace_limit(facts: DeviceFacts) -> int:
    return max(facts.memory_bytes // WORKSPACE_SHARE, LEAST_LIMIT)


def short_list(
    problem: Conv2dProblem,
    runtime: Runtime,
    names: Sequence[str],
    build: Callable[[int], int],
    execute: Callable[[int, Buffers], None],
    *,
    noun: str,
    exclusion: Reason | None = None,
) -> ShortList:
    """Try every way, and time those that run.

    A way is known by its index in `names`. `build` prepares it and returns its workspace in bytes; `execute` runs it on
    the buffers of a call. Both raise :class:`LibraryFault` where the library refuses.
    """
    from convforge.timing.ring import Cycle
    from convforge.timing.stopping import StoppingRule
    from convforge.timing.timer import interleave, measure

    limit, slots = workspace_limit(runtime.facts), _slots(problem, runtime)
    ways, needs = list[Way](), dict[int, int]()

    def cycle(number: int, workspace: Any) -> Cycle:
        calls = [{"x": x, "w": PreparedFilter({"w": w}, 0), "out": out, "workspace": workspace} for x, w, out in slots]
        return Cycle(len(calls), lambda i: execute(number, calls[i]))

    rule = StoppingRule(samples=FIRST_SAMPLES, patience_s=FIRST_S, budget_s=FIRST_BUDGET_S)
    for number, name in enumerate(names):
        try:
            needs[number] = build(number)
            if needs[number] > limit:
                ways.append(Way(name, "large", f"wants {gib(needs[number])} of workspace; the limit is {gib(limit)}"))
                continue
            run = cycle(number, runtime.allocate(needs[number]) if needs[number] else None)
            run()
            runtime.synchronize()
            ways.append(Way(name, "run", "", measure(run, runtime, rule).median_s))
        except Excluded as fault:
            ways.append(Way(name, "excluded", _line(fault)))
        except (LibraryFault, CudaError, MemoryError) as fault:
            ways.append(Way(name, "failed", _line(fault)))
    taken = {number: way.seconds for number, way in enumerate(ways) if way.seconds is not None}
    if not taken:
        return ShortList(tuple(ways), None, noun, limit, exclusion)

    close = [number for number, seconds in taken.items() if seconds <= CLOSE * min(taken.values())]
    best = close[0]
    if len(close) > 1:
        most = max(needs[number] for number in close)  # one workspace for all: they run one after the other
        workspace = runtime.allocate(most) if most else None
        final = StoppingRule(samples=FINAL_SAMPLES, patience_s=FINAL_S, budget_s=FINAL_BUDGET_S)
        runs = [cycle(number, workspace if needs[number] else None) for number in close]
        timings = dict(zip(close, interleave(runs, runtime, final), strict=True))
        for number, timing in timings.items():
            ways[number] = Way(names[number], "run", "", timing.median_s)
        best = min(close, key=lambda number: timings[number].median_s)
    return ShortList(tuple(ways), best, noun, limit, exclusion)


def random_array(shape: tuple[int, ...], dtype: str, runtime: Runtime, seed: int) -> Any:
    """Random normal numbers on a device; for an integer type, whole numbers of the lower half of its bits."""
    count, rng = math.prod(shape), np.random.default_rng(seed)
    some = rng.standard_normal(min(count, DIFFERENT)).astype(np.float32)
    kind = numpy_dtype(dtype)
    if is_integer(dtype):
        some = np.abs(some) if kind.kind == "u" else some
        return runtime.upload(np.resize(np.rint(some * 2.0 ** (4 * kind.itemsize - 3)).astype(kind), shape))
    return runtime.upload(np.resize(some.astype(kind), shape))


def _slots(problem: Conv2dProblem, runtime: Runtime) -> list[tuple[Any, Any, Any]]:
    """x, w and output of each call of a ring, so large that no call finds them in the cache."""
    from convforge.timing.ring import ring_limit, ring_size

    new = partial(random_array, runtime=runtime)
    x, w = new(problem.x_shape, problem.x_dtype, seed=0), new(problem.w_shape, problem.w_dtype, seed=1)
    out = runtime.empty(problem.out_shape, problem.out_dtype)
    slots = [(x, w, out)]
    count = ring_size(x.nbytes + w.nbytes + out.nbytes, runtime.facts, ring_limit(runtime.facts)).slots
    for seed in range(2, 2 * count, 2):
        x, w = new(problem.x_shape, problem.x_dtype, seed=seed), new(problem.w_shape, problem.w_dtype, seed=seed + 1)
        slots.append((x, w, runtime.empty(problem.out_shape, problem.out_dtype)))
    return slots


def _line(fault: BaseException) -> str:
    """A library's message on one line."""
    return " ".join(str(fault).split()) or type(fault).__name__
