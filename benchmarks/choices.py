"""Compare auto and the heuristic with the best of the full search: python benchmarks/choices.py --device cuda

The cases are the image grid at batch 1, and layers.csv at batch 1 and 32. Each case has three steps. First, choose by
rule, by auto and by the full search, each with its own stored choices. Then time the choices alternately in the same
run, with each output checked before and after. Then store the row. Small problems go first. A case that does not fit is
skipped with a reason. If the budget ends early, the table shows that rows are missing, and --resume measures them. The
result goes to benchmarks/results/DEVICE/choices-TIME.json.

Most of the time of a first search is compiling. --compile only compiles, with one process per core. On a machine with
several GPUs of one kind, --device cuda:0,cuda:1 uses one process per GPU, which takes the next case when it is idle.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from convforge.backends.cache import cache_root
from convforge.backends.runtime import Runtime
from convforge.benchmark.compiling import compile_ahead
from convforge.benchmark.digests import digest
from convforge.benchmark.material import memory_refusal
from convforge.benchmark.sheets import Sheet
from convforge.benchmark.suites import Case, load
from convforge.call.dispatch import runtime_of
from convforge.errors import UnsupportedProblem
from convforge.problem import Conv2dProblem, Problem
from convforge.timing.timer import Timing
from convforge.tuning import CHOICES, Choice, SearchResult, decide, tune
from convforge.tuning.search import EFFORTS, Candidate, candidates_for
from convforge.tuning.trial import DeviceTrial

# Suite -> its batch sizes.
SUITES: dict[str, tuple[int, ...]] = {"images": (1,), "layers": (1, 32)}
# The full search of a case gets this many times an even share of the remaining time, and at most `search_s` seconds.
GENEROUS = 3.0
# Most seconds for timing the choices of one case.
TIMED_S = 3.0
# Parts of a case's time: inputs and truth; choosing at all levels; timing the choices.
PARTS = ("inputs", "choosing", "timing")
# A case is left for another run if its full search would get fewer seconds.
LEAST_SEARCH_S = 0.5


def cases_of(named: Mapping[str, Sequence[int]], pattern: str = "*") -> list[Case]:
    """The cases of suites at given batches, each once, smallest problems first; `source` is set to suite and batch."""
    found: dict[Conv2dProblem, Case] = {}
    for suite, batches in named.items():
        for case in load([suite])[1]:
            for n in batches:
                if isinstance(case.problem, Conv2dProblem) and fnmatch.fnmatch(case.name, pattern):
                    problem = case.problem.replace(n=n)
                    found.setdefault(problem, Case(f"{case.name}_b{n}", problem, f"{suite}, batch {n}"))
    return sorted(found.values(), key=lambda case: case.problem.flops)


@contextmanager
def choices_in(folder: Path) -> Iterator[None]:
    """Use only the choices stored in this folder."""
    before = CHOICES.folder
    try:
        CHOICES.folder = folder
        CHOICES.forget()
        yield
    finally:
        CHOICES.folder = before
        CHOICES.forget()


def chosen(
    problem: Problem, runtime: Runtime, trial: DeviceTrial, search_s: float, folder: Path
) -> tuple[dict[str, Choice], SearchResult]:
    """Choose at each level; the full search measures this exact problem.

    Both searches share one trial, because its inputs and truth cost more time than most searches. ``RuntimeError`` with
    the reason if nothing could be measured.
    """
    levels = {"heuristic": decide(problem, runtime, "heuristic")}
    for level in ("auto", "max"):
        with choices_in(folder / level):
            effort = replace(EFFORTS[level], budget_s=min(EFFORTS[level].budget_s, search_s))
            found = tune(problem, runtime, level, again=level == "max", effort=effort, trial=lambda: trial)
            if found is None or found.fault:
                raise RuntimeError(
                    f"nothing was measured: {'times say nothing here' if found is None else found.fault}"
                )
            levels[level] = decide(problem, runtime, level)
    return levels, found


def timed(trial: DeviceTrial, choices: Sequence[Choice]) -> list[tuple[Choice, Timing]]:
    """Time each method and config once, alternately; ``RuntimeError`` names one that is wrong or cannot run."""
    once = {(choice.algorithm.name, str(choice.config)): choice for choice in choices}
    candidates = [Candidate(choice.algorithm, choice.config, 0.0) for choice in once.values()]
    for candidate in candidates:
        tried = trial.time(candidate, TIMED_S / 10)
        if tried.seconds is None:
            raise RuntimeError(f"{tried.algorithm} [{tried.config}]: {tried.fault}")
    found = []
    for choice, timing in zip(once.values(), trial.final(candidates, TIMED_S), strict=True):
        if isinstance(timing, str):
            raise RuntimeError(f"{choice.algorithm.name} [{choice.config}]: {timing}")
        found.append((choice, timing))
    return found


def row_of(case: Case, backend: str, **found: Any) -> dict[str, Any]:
    """Make the row of a case; its reason (text or exception) says why a time is missing."""
    if isinstance(fault := found.get("reason"), Exception):
        found["reason"] = " ".join(f"{type(fault).__name__}: {fault}".split())[:400]
    return {"case": case.name, "group": case.source, "problem": str(case.problem), "backend": backend} | found


def measured(case: Case, runtime: Runtime, search_s: float, folder: Path) -> dict[str, Any]:
    """Choose at all levels and time the choices."""
    facts = runtime.facts
    if (reason := memory_refusal(case.problem, facts)) is not None:
        return row_of(case, facts.backend, reason=str(reason))
    laps = [monotonic()]
    try:
        trial = DeviceTrial(case.problem, runtime)
        laps.append(monotonic())
        levels, found = chosen(case.problem, runtime, trial, search_s, folder)
        laps.append(monotonic())
        times = timed(trial, list(levels.values()))
    except (UnsupportedProblem, RuntimeError, MemoryError, ValueError) as fault:
        return row_of(case, facts.backend, reason=fault)
    finally:
        runtime.release()

    def named(choice: Choice, **more: Any) -> dict[str, Any]:
        return {"algorithm": choice.algorithm.name, "config": str(choice.config), **more}

    laps.append(monotonic())
    tried, every = len(found.tried), sum(map(len, candidates_for(case.problem, facts)))
    return row_of(
        case, facts.backend, levels={level: named(choice, why=choice.reason) for level, choice in levels.items()},
        times=[named(one, time=timing.to_table(), digest=digest(one.algorithm, case.problem, one.config, facts))
               for one, timing in times],
        search_s=found.spent_s, tried=tried, whole=tried >= every,
        spent_s={part: after - before for part, (before, after) in zip(PARTS, pairwise(laps), strict=True)},
    )  # fmt: skip


def compiled(cases: Sequence[Case], device: str) -> list[str]:
    """Compile all candidates of all cases ahead of time; return the failed ones with their reasons."""
    facts = runtime_of(device).facts
    jobs = [
        (c.algorithm, case.problem, c.config)
        for case in cases
        for configs in candidates_for(case.problem, facts)
        for c in configs
    ]
    faults = zip(jobs, compile_ahead(jobs, facts), strict=True)
    return [f"{method.name} [{config}] {problem}: {fault}" for (method, problem, config), fault in faults if fault]


def measured_there(case: Case, device: str, search_s: float, folder: Path) -> tuple[dict[str, Any], bool]:
    """Measure a case in another process; return its row, and False if a kernel's fault made that process unusable."""
    runtime = runtime_of(device)
    try:
        row = measured(case, runtime, search_s, folder)
        runtime.synchronize()
    except Exception as fault:
        return row_of(case, runtime.facts.backend, reason=fault), False
    return row, True


def rows_of(
    cases: Sequence[Case], devices: Sequence[str], search_s: float, end: float, folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield rows as they finish, until the time is up; there is one process per device."""

    def process() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"))

    idle, running = [(device, process()) for device in devices], {}
    waiting = list(reversed(cases))
    while waiting or running:
        while waiting and idle:
            share = GENEROUS * (end - monotonic()) * len(devices) / len(waiting)
            if share < LEAST_SEARCH_S:
                waiting.clear()
                break
            (device, pool), case = idle.pop(), waiting.pop()
            future = pool.submit(measured_there, case, device, min(search_s, share), folder)
            running[future] = (case, device, pool)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            case, device, pool = running.pop(future)
            try:
                row, able = future.result()
            except BrokenProcessPool as fault:
                row, able = row_of(case, device.partition(":")[0], reason=fault), False
            if not able:
                pool.shutdown(wait=False)
                pool = process()
            idle.append((device, pool))
            yield row
    for _, pool in idle:
        pool.shutdown()


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; several GPUs of a kind by commas.")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds in all; what it cuts off, --resume goes on with.")] = 540.0,
    search: Annotated[float, typer.Option(help="Seconds for the full search of a case, at most.")] = 30.0,
    cases: Annotated[str, typer.Option(help="Only cases of these names, such as 'resnet*'.")] = "*",
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile every candidate ahead, and measure none.")
    ] = False,
) -> None:
    """Choose at every level, then time the choices."""
    devices, end = device.split(","), monotonic() + budget
    runtime, every = runtime_of(devices[0]), cases_of(SUITES, cases)
    if compile_:
        for fault in compiled(every, devices[0]):
            typer.echo(f"not compiled: {fault}")
        return
    kind = devices[0].partition(":")[0]
    settings = {"device": kind, "search_s": search, "cases": cases, "count": len(every),
                "suites": {suite: list(batches) for suite, batches in SUITES.items()}}  # fmt: skip
    sheet = Sheet.begin(out, "choices", runtime.facts, settings, resume=resume)
    folder = cache_root() / "chosen" / sheet.path.stem
    todo = [case for case in every if not sheet.has(case=case.name)]
    for row in rows_of(todo, devices, search, end, folder):
        sheet.add(row)
        typer.echo(f"{row['case']:36} {row.get('reason') or line_of(row)}")
    if left := sum(not sheet.has(case=case.name) for case in every):
        typer.echo(f"The budget of {budget:g} s was spent; {left} cases are left: go on with --resume.")
        typer.echo(f"so far stored in {sheet.path}")
        return
    sheet.finish()
    typer.echo(f"stored in {sheet.path}")


def line_of(row: Mapping[str, Any]) -> str:
    """Format a row as one line."""
    best = min(t["time"]["median_s"] for t in row["times"])
    times = {(t["algorithm"], t["config"]): t["time"]["median_s"] for t in row["times"]}
    shown = []
    for level, choice in row["levels"].items():
        over = times[choice["algorithm"], choice["config"]] / best
        shown.append(f"{level} {choice['algorithm']} {over:.2f}x")
    return f"{1e6 * best:10.1f} us  {', '.join(shown)}  (search {row['search_s']:.1f} s of {row['tried']})"


if __name__ == "__main__":
    typer.run(main)
