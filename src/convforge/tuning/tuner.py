"""Choice of a method from stored measurements, else by rule; it measures if ``may_measure`` allows it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from convforge.algorithms import find, import_libraries, make_config, refusal
from convforge.backends.forks import after_fork_in_child
from convforge.backends.kernel import KernelSource
from convforge.backends.recording import Recording
from convforge.backends.runtime import Runtime
from convforge.errors import UnsupportedProblem
from convforge.peers import every_algorithm
from convforge.problem import PRECISIONS, Problem
from convforge.problem.protocol import check_word
from convforge.tuning.choices import CHOICES, SearchResult, Tried, bucket_of, environment_of
from convforge.tuning.heuristic import Choice, choose

if TYPE_CHECKING:
    from convforge.tuning.search import Effort, Trial

PROMISING = 2  # further configs of this many best predicted methods are compiled ahead
KERNELS_A_CORE = 4  # number compiled ahead per core between two checks of the budget
LEVELS = ("heuristic", "auto", "max")  # values of `algorithm` besides methods' names

# One search at a time: two would disturb each other's times.
_SEARCHING = threading.RLock()


def _unlock() -> None:
    """Replace the lock in a forked process, where the searching thread does not exist."""
    global _SEARCHING
    _SEARCHING = threading.RLock()


after_fork_in_child(_unlock)


def check_method(operation: str, backend: str, algorithm: str, precision: str, tune: bool | None) -> None:
    """Check a call's choice of method when the call makes no plan; ``ValueError`` or ``TypeError``."""
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm={algorithm!r} must be a string")
    if algorithm not in LEVELS:
        find(operation, backend, algorithm, every_algorithm())
    check_word("precision", precision, PRECISIONS)
    if tune is not None and not isinstance(tune, bool):
        raise TypeError(f"tune={tune!r} must be True, False or None")


def decide(
    problem: Problem, runtime: Runtime, level: str = "auto", workspace_limit: int | None = None, *, peers: bool = False
) -> Choice:
    """Choose a method for a level of :data:`LEVELS` without measuring.

    With `peers` it uses searches that include other libraries. The choice is `untuned` if the level would measure and
    nothing is stored. Raises ``UnsupportedProblem`` if no method supports the problem within the limit.
    """
    if level == "heuristic" or not _is_tunable(problem, runtime):
        return choose(problem, runtime, workspace_limit)
    found = remembered(problem, runtime, level, workspace_limit, peers=peers)
    if found is None and level == "max":  # a smaller search is better than a rule
        smaller = decide(problem, runtime, "auto", workspace_limit, peers=peers)
        return replace(smaller, untuned=True)
    if found is None:
        return replace(choose(problem, runtime, workspace_limit), untuned=True)
    wrong = {tried.algorithm for tried in found.tried if tried.wrong}
    return _planned(found, problem, runtime, workspace_limit) or choose(problem, runtime, workspace_limit, wrong)


def remembered(
    problem: Problem, runtime: Runtime, level: str = "auto", workspace_limit: int | None = None, *, peers: bool = False
) -> SearchResult | None:
    """Find a bucket's stored search: the one without a limit if a candidate fits, else the one with this limit."""
    if not _is_tunable(problem, runtime):
        return None
    for limit in dict.fromkeys((None, workspace_limit)):
        found = CHOICES.find(problem.operation, runtime.facts, bucket_of(problem, limit, peers=peers), level)
        if found is not None and (limit == workspace_limit or _planned(found, problem, runtime, workspace_limit)):
            return found
    return None


def tune(
    problem: Problem, runtime: Runtime, level: str = "auto", workspace_limit: int | None = None, *, peers: bool = False,
    again: bool = False, effort: Effort | None = None, trial: Callable[[], Trial] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult | None:  # fmt: skip
    """Measure a problem's bucket, once for all threads, unless a result is stored.

    The problem is measured at its own size, and the result applies to its bucket. `level` is "auto" or "max".
    Candidates that need more than `workspace_limit` bytes of workspace are not run. With `peers` other libraries are
    candidates too; `again` ignores a stored result. `effort` replaces the level's effort; `trial` makes a
    :class:`Trial` to use instead of the device's. Returns None if times do not decide: on the emulator, and for
    precision "separable", where the best method depends on the weights' values.
    """
    if not _is_tunable(problem, runtime):
        return None
    with _SEARCHING:
        if not again and (known := remembered(problem, runtime, level, workspace_limit, peers=peers)) is not None:
            return known
        from convforge.tuning.search import EFFORTS, candidates_for, search

        begin = clock()
        where = environment_of(problem.operation, runtime.facts)
        bucket = bucket_of(problem, workspace_limit, peers=peers)
        found = SearchResult(bucket, where, level, str(problem), ())
        try:
            first = choose(problem, runtime, workspace_limit).algorithm.name
            candidates = candidates_for(problem, runtime.facts, first, peers=peers)
            if sum(map(len, candidates)) == 1:
                ((only,),) = candidates
                words = "the only candidate"
                tried = [Tried(only.algorithm.name, str(only.config), True, only.predicted_s, fault=words)]
            else:
                from convforge.tuning.trial import DeviceTrial

                device = DeviceTrial(problem, runtime, workspace_limit) if trial is None else trial()
                tried = search(candidates, device, effort or EFFORTS[level], clock=clock)
        except UnsupportedProblem:
            raise
        except Exception as fault:  # for example no memory for the buffers: this process chooses by rule
            found = replace(found, fault=f"{type(fault).__name__}: {fault}")
            CHOICES.remember(found, disk=False)
            return found
        finally:
            runtime.release()
        found = replace(found, tried=tuple(tried), spent_s=clock() - begin)
        CHOICES.remember(found)
        return found


def compile_for(
    problems: Iterable[Problem], runtime: Runtime, budget_s: float | None = None, *,
    clock: Callable[[], float] = time.monotonic,
) -> None:  # fmt: skip
    """Compile the kernels of later "auto" searches in advance, on all cores of the host, until the budget is spent.

    A search may take two seconds, and compiling may take longer. Default configs of all problems come first; problems
    with a stored result are skipped. `budget_s` is checked between groups of kernels.
    """
    from convforge.tuning.search import EFFORTS, candidates_for
    from convforge.tuning.trial import kernels_of

    effort, facts, end = EFFORTS["auto"], runtime.facts, clock() + (math.inf if budget_s is None else budget_s)
    rounds: list[list[KernelSource]] = [[] for _ in range(1 + effort.configs)]
    for problem in problems:
        if not _is_tunable(problem, runtime) or remembered(problem, runtime) is not None:
            continue
        recording: Any = Recording(facts)
        try:
            first = choose(problem, recording).algorithm.name
        except UnsupportedProblem:  # the call itself raises it
            continue
        methods = candidates_for(problem, facts, first)
        rounds[0] += kernels_of(problem, [configs[0] for configs in methods[: effort.methods]], facts)
        for i in range(1, 1 + effort.configs):
            further = [configs[i] for configs in methods[:PROMISING] if i < len(configs)]
            rounds[i] += kernels_of(problem, further, facts)
    wanted = list({(kernel.digest(), kernel.name): kernel for kernel in chain(*rounds)}.values())
    at_once = KERNELS_A_CORE * (os.cpu_count() or 1)
    for begin in range(0, len(wanted), at_once):
        if clock() >= end:
            return
        runtime.compile_ahead(wanted[begin : begin + at_once])


def may_measure(tune: bool | None, level: str, runtime: Runtime, stream: Any = None) -> bool:
    """True if a call may measure a bucket that is not yet tuned.

    If `tune` is None, calls measure on GPUs, and at level "max"; on a CPU, compiling each method takes seconds.
    CONVFORGE_TUNE=0 forbids all measurements. A captured stream is never measured.
    """
    asked = tune if tune is not None else level == "max" or runtime.facts.backend == "cuda"
    return asked and os.environ.get("CONVFORGE_TUNE", "") != "0" and not runtime.is_capturing(stream)


def with_peers() -> bool:
    """True if other libraries may be chosen: CONVFORGE_PEERS=1."""
    return os.environ.get("CONVFORGE_PEERS", "") == "1"


def _is_tunable(problem: Problem, runtime: Runtime) -> bool:
    """True if times decide: not on the emulator, not if the weights' values decide, not for an empty problem."""
    by_values = problem.precision == "separable"
    return runtime.facts.backend != "emulator" and not by_values and problem.flops > 0


def _planned(found: SearchResult, problem: Problem, runtime: Runtime, workspace_limit: int | None) -> Choice | None:
    """Plan the first stored candidate that supports this problem within the workspace limit; None if none does."""
    for tried in (tried for tried in found.tried if tried.seconds is not None):
        try:
            algorithm = find(problem.operation, runtime.facts.backend, tried.algorithm, every_algorithm())
            if refusal(algorithm, problem, runtime.facts) is not None:
                continue
            import_libraries(algorithm)
            config = make_config(algorithm, problem, runtime.facts, tried.config)
            plan = algorithm.plan(problem, config, runtime)
        except ValueError:  # a method or field that no longer exists, a config that does not fit, UnsupportedProblem
            continue
        if workspace_limit is None or plan.workspace_bytes <= workspace_limit:
            return Choice(algorithm, config, plan, _reason(tried, found))
    return None


def _reason(tried: Tried, found: SearchResult) -> str:
    timed = [one for one in found.tried if one.seconds is not None]
    others = dict.fromkeys(one.algorithm for one in timed if one.tied and one.algorithm != tried.algorithm)
    words = f"the fastest of {len(timed)}{'' if tried is timed[0] else ' that fits'}"
    if tried is timed[0] and tried.tied and others:
        words = f"in a tie with {', '.join(others)}, of {len(timed)}"
    origin = f" by {found.origin}" if found.origin else ""
    peer = "" if tried.ours else "; it is another library's"
    return f"measured: {words}, for {found.bucket}{origin}{peer}"
