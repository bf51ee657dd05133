"""Survey of all methods on one problem, for `convforge explain`: plan or refusal, time, and the device's least time."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from convforge.algorithms import AnyAlgorithm, refusal
from convforge.algorithms.contract import Plan
from convforge.algorithms.pieces import pieces
from convforge.backends.facts import DeviceFacts, cores_in_words
from convforge.backends.runtime import Runtime
from convforge.benchmark.formats import error, percent, seconds
from convforge.benchmark.records import Result, Run
from convforge.benchmark.row import Row
from convforge.benchmark.runner import Runner, Settings, Watch, begin, choose
from convforge.benchmark.suites import Case
from convforge.benchmark.verdicts import judge
from convforge.cli.output import plain_table, progress, si_text
from convforge.peers import every_algorithm
from convforge.problem import tuning_key
from convforge.problem.types import allows
from convforge.timing import ceilings as limits
from convforge.timing.ceilings import Ceilings
from convforge.tuning import Choice, SearchResult, decide, remembered, with_peers
from convforge.tuning.cost import predicted_s
from convforge.tuning.heuristic import fit, preferred

# Measurements of each ceiling: fewer than in the bench, because the times are quick ones too.
CEILING_REPEATS = 2
# Largest plan to show: it takes a few seconds and hundreds of megabytes.
MOST_PIECES = 100_000


@dataclass(slots=True)
class Entry:
    """A method with its plan for the first config within the workspace limit, or with the reason why it has none."""

    algorithm: AnyAlgorithm
    problem: Any
    plan: Plan | None = None
    reason: str = ""  # why there is no plan
    result: Result | None = None  # with its final timing

    @property
    def launches(self) -> tuple[Any, ...]:
        return () if self.plan is None else self.plan.launches


class Limit(NamedTuple):
    """The least time of a problem on a device: limited by memory, and by arithmetic."""

    memory_s: float  # x, w and output each moved once, at copy bandwidth
    # The direct method's FLOPs at the FMA peak. None if sums are not float32, because only that peak is measured.
    arithmetic_s: float | None

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.arithmetic_s or 0.0)

    @property
    def bound(self) -> str:
        """The larger of the two: "memory" or "arithmetic"."""
        return "memory" if self.seconds == self.memory_s else "arithmetic"


def print_survey(
    problem: Any, runtime: Runtime, methods: Sequence[str], limit: int | None, budget_s: float | None, *,
    peers: bool, verbose: bool,
) -> None:  # fmt: skip
    """Print the choice for a problem, and a table of all methods.

    `limit` is the largest workspace of a plan in bytes. `budget_s` is the time for measurements; None: no measurement.
    Raises ``ValueError`` if the plan that is chosen by rule would be too large to show.
    """
    facts = runtime.facts
    known = choose(methods, facts.backend, {problem.operation}, every_algorithm())
    listed = [algorithm for algorithm in known if methods or peers or algorithm.ours]
    _check_size(problem, runtime, limit)
    choice = decide(problem, runtime, "auto", limit, peers=with_peers())
    tuned = remembered(problem, runtime, "auto", limit, peers=with_peers())
    console = Console(highlight=False, markup=False)
    _print_problem(console, problem, facts)
    entries = [_entry(algorithm, problem, runtime, limit) for algorithm in listed]
    run = roof = None
    if budget_s is not None and facts.backend != "emulator":
        with progress() as watch:
            watch(0, len(entries), "ceilings")
            ceilings = limits.measure_ceilings(runtime, CEILING_REPEATS)
            roof = roofline(problem, ceilings)
            run = _measure(problem, entries, runtime, ceilings, budget_s, limit, watch)
    _print_limit(console, problem, run, roof, facts.backend)
    _print_choice(console, choice, tuned, run, problem)
    if not verbose:
        _print_ways(console, choice.algorithm.ways(problem, choice.config))
    _print_table(console, entries, choice.algorithm, tuned, roof, facts)
    left_out = [algorithm.name for algorithm in known if algorithm not in listed]
    for line in notes(problem, entries, tuned, run, left_out, facts.backend):
        console.print(line)
    if verbose:
        for entry in entries:
            print_details(console, entry)


def _entry(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, limit: int | None) -> Entry:
    allowed = allows(problem.precision, algorithm.precision)
    asked = problem if allowed else problem.allowing(algorithm.precision)
    if refused := refusal(algorithm, asked, runtime.facts):
        return Entry(algorithm, asked, reason=f"refuses: {refused}")
    if vast := _too_vast(algorithm, asked, runtime, limit):
        return Entry(algorithm, asked, reason=f"not planned: {vast}")
    found = fit(algorithm, asked, runtime, limit)
    return Entry(algorithm, asked, *((found,) if isinstance(found, Plan) else (None, f"refuses: {found}")))


def _check_size(problem: Any, runtime: Runtime, limit: int | None) -> None:
    for algorithm, _ in preferred(problem, runtime.facts):
        if refusal(algorithm, problem, runtime.facts) is None:
            if vast := _too_vast(algorithm, problem, runtime, limit):
                raise ValueError(f"{problem} gets {algorithm.name}: {vast}")
            return


def _too_vast(algorithm: AnyAlgorithm, problem: Any, runtime: Runtime, limit: int | None) -> str:
    """Return the reason why a plan would be too large to show in some config that the limit may lead to, or ""."""
    if runtime.facts.backend != "cpu":  # GPU plans have large chunks
        return ""
    configs = algorithm.configs(problem, runtime.facts)
    count = max((pieces(algorithm, problem, config) for config in (configs if limit else configs[:1])), default=0)
    if count <= MOST_PIECES:
        return ""
    return f"its plan has {count} pieces, and more than {MOST_PIECES} are not planned to be explained; ask for less"


def _measure(
    problem: Any, entries: Sequence[Entry], runtime: Runtime, ceilings: Ceilings, budget_s: float, limit: int | None,
    watch: Watch,
) -> Run:  # fmt: skip
    """Check and time the plans as ``bench --quick`` does, in a temporary run; the slowest may be skipped."""
    settings = Settings(budget_s=budget_s, quick=True, workspace_limit=limit)
    case = Case(str(problem), problem)
    with (
        tempfile.TemporaryDirectory(prefix="convforge-") as folder,
        begin(Path(folder), "explain", runtime, settings) as store,
    ):
        runner = Runner([case], [], runtime, settings, store, watch=watch, ceilings=lambda _: ceilings,
                        copies=lambda _: None)  # fmt: skip
        runner.rows = [Row(case, e.problem, e.algorithm, e.plan.config, runtime.facts) for e in entries if e.plan]
        run = runner.run()
    results = {result.algorithm: replace(result, time=run.timing(result)) for result in run.results}
    for entry in entries:
        entry.result = results.get(entry.algorithm.name)
    return run


def roofline(problem: Any, ceilings: Ceilings) -> Limit:
    """Return the least times of a problem (roofline model; Williams, Waterman and Patterson, CACM 52, 2009)."""
    by_fma = problem.multiplies and problem.acc_dtype == "float32"
    arithmetic = problem.flops / ceilings.fma_flops_per_s if by_fma else None
    return Limit(problem.least_bytes / ceilings.copy_bytes_per_s, arithmetic)


def _print_problem(console: Console, problem: Any, facts: DeviceFacts) -> None:
    console.print(str(problem), style="bold")
    console.print(f"  on {facts.name}, {cores_in_words(facts.cores, facts.backend)}")
    if problem.stride:
        console.print(f"  x {problem.x_shape} -> out {problem.out_shape}")
    intensity = problem.flops / max(problem.least_bytes, 1)
    flops, least = si_text(problem.flops, "FLOP"), si_text(problem.least_bytes, "B")
    console.print(f"  {flops}, at least {least} moved: {intensity:.1f} FLOP a byte")
    console.print(f"  tuning key {tuning_key(problem)}")


def _print_limit(console: Console, problem: Any, run: Run | None, roof: Limit | None, backend: str) -> None:
    if roof is None or run is None or (best := run.best_ceilings) is None:
        why = "the emulator's times say nothing about a GPU" if backend == "emulator" else "nothing was measured"
        console.print(f"  limit and times: none, {why}")
        return
    console.print(f"  limit {seconds(roof.seconds)}, by {roof.bound}")
    moved, bandwidth = si_text(problem.least_bytes, "B"), si_text(best.copy_bytes_per_s, "B/s")
    console.print(f"    memory {seconds(roof.memory_s)} for {moved} at {bandwidth} (copy)")
    if roof.arithmetic_s is not None:
        flops, rate = si_text(problem.flops, "FLOP"), si_text(best.fma_flops_per_s, "FLOP/s")
        console.print(f"    arithmetic {seconds(roof.arithmetic_s)} for {flops} at {rate} (float32 FMA)")


def _print_choice(console: Console, choice: Choice, tuned: SearchResult | None, run: Run | None, problem: Any) -> None:
    console.print(Text.assemble("\nauto takes ", (choice.algorithm.name, "bold"), f": {choice.reason}"))
    if str(choice.config):
        console.print(f"  with {choice.config}", soft_wrap=True)
    if choice.untuned:
        console.print(
            "  nothing is measured yet of problems like it: convforge tune does that, and tune=True in a call"
        )
    if tuned is not None and tuned.tried:
        spent = f"in {seconds(tuned.spent_s)} " if tuned.spent_s else ""
        console.print(f"  {len(tuned.tried)} candidates were tried {spent}at level {tuned.level} on {tuned.problem}")
    if run is not None:
        console.print(f"fastest now: {judge(run, str(problem)).words()}")


def _print_ways(console: Console, ways: Sequence[tuple[str, str, Any]]) -> None:
    for name, _, words in ways:
        console.print(Padding(Text(f"{name}: {words}"), (0, 0, 0, 2)))


def _print_table(
    console: Console, entries: Sequence[Entry], chosen: AnyAlgorithm, tuned: SearchResult | None, roof: Limit | None,
    facts: DeviceFacts,
) -> None:  # fmt: skip
    planned = [entry for entry in entries if entry.plan is not None]
    columns: dict[str, Callable[[Entry], str]] = {}
    if roof is not None:
        columns |= {"time": _time, "of limit": lambda e: _share(e, roof.seconds)}
    columns["launches"] = lambda e: str(len(e.launches))
    if facts.backend == "cuda":
        columns |= {"registers": _registers, "occupancy": _occupancy}
    else:
        name = "tile" if facts.backend == "cpu" else "shared"
        columns[name] = lambda e: si_text(max((i.scratch_bytes for i in e.launches), default=0), "B")
    columns["workspace"] = lambda e: si_text(e.plan.workspace_bytes if e.plan else 0, "B")
    if facts.backend != "emulator":
        order = sorted(planned, key=lambda e: predicted_s(e.algorithm, e.problem, facts, e.plan))
        places = {entry.algorithm.name: f"{place}." for place, entry in enumerate(order, start=1)}
        columns["place"] = lambda e: places[e.algorithm.name]
    if tuned is not None:
        columns["tuned"] = lambda e: _tuned(e, tuned)

    table = plain_table()
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for entry in planned:
        style = "bold" if entry.algorithm is chosen else ""
        table.add_row(Text(entry.algorithm.name), *(Text(cell(entry)) for cell in columns.values()), style=style)
    console.print()
    if table.row_count:
        console.print(table)


def notes(
    problem: Any, entries: Sequence[Entry], tuned: SearchResult | None, run: Run | None, left_out: Sequence[str],
    backend: str,
) -> Iterator[str]:  # fmt: skip
    """Yield notes on methods that must be named, refuse or have no time, with reasons; then explain the columns."""
    for entry in entries:
        if entry.plan is not None and entry.problem != problem:
            yield f"{entry.algorithm.name}: only where {entry.algorithm.precision!r} is asked for"
        if entry.plan is not None and entry.plan.choice:
            yield f"{entry.algorithm.name}: {entry.plan.choice}"
    for entry in entries:
        if entry.plan is None:
            yield f"{entry.algorithm.name}: {entry.reason}"
        elif entry.result is not None and entry.result.status != "ok":
            yield f"{entry.algorithm.name}: {entry.result.status}: {entry.result.reason}"
    for tried in () if tuned is None else tuned.tried:
        if tried.tied:
            yield f"{tried.algorithm}: tied with the fastest when it was tuned, with {tried.config or 'no config'}"
        if tried.seconds is None:
            name = " ".join(filter(None, (tried.algorithm, tried.config)))
            yield f"{name}: no time when it was tuned{', and never chosen' * tried.wrong}: {tried.fault}"
    if tuned is not None and tuned.fault:
        yield f"could not be tuned: {tuned.fault}"
    timings = [entry.result.time for entry in entries if entry.result is not None and entry.result.time is not None]
    if timings:
        where = "from memory" if all(t.cold for t in timings) else "warm in the cache, where memory is no limit"
        yield f"\ntimes: checked against float64 first; weights prepared on every call; {where}; ~ noisy"
        yield "of limit: of the direct method's operations and bytes, whatever the method does"
    if run is not None and any(r.status == "skipped" for r in run.results):
        yield "what was skipped may fit a longer --budget"
    if backend != "emulator":
        yield "place: the order in which the cost model would try the methods; it is no time"
    if left_out:
        yield f"other libraries with --peers: {', '.join(left_out)}"


def print_details(console: Console, entry: Entry) -> None:
    """Print config, rates, error, launches and ways of a method, if it can compute the problem."""
    plan, result = entry.plan, entry.result
    if plan is None:
        return
    console.print(Text.assemble("\n", (entry.algorithm.name, "bold"), f": {entry.algorithm.summary}"))
    if str(plan.config):
        console.print(f"  config {plan.config}", soft_wrap=True)
    if result is not None and result.time is not None:
        taken = result.time.median_s
        rates = f"{si_text(result.flops / taken, 'FLOP/s')}, {si_text(result.least_bytes / taken, 'B/s')}"
        console.print(f"  {seconds(taken)} +- {percent(result.time.spread)}: {rates}, by the nominal cost")
    if result is not None and result.error is not None and result.error.rms is not None:
        console.print(f"  RMS error {error(result.error.rms)} of the result's RMS")
    for words in launch_lines(plan.launches, entry.algorithm.backend):
        console.print(f"  {words}")
    _print_ways(console, plan.ways)


def launch_lines(launches: Sequence[Any], backend: str) -> list[str]:
    """Describe launches; equal ones appear once with their count."""
    grid, block, scratch = "grid", "block", "of shared memory"
    if backend == "cpu":
        grid, block, scratch = "work items", "at a time", "tile a thread"
    counts: Counter[str] = Counter()
    for info in launches:
        sizes = {name: " x ".join(map(str, value)) for name, value in ((grid, info.grid), (block, info.block))}
        words = f"{info.kernel}: {', '.join(f'{name} {size}' for name, size in sizes.items())}"
        if info.scratch_bytes:
            words += f", {si_text(info.scratch_bytes, 'B')} {scratch}"
        if info.registers is not None:
            words += f", {info.registers} registers, {info.spills or 0} B spilled"
        if info.occupancy is not None:
            words += f", occupancy {100 * info.occupancy:.0f} %"
        counts[words] += 1
    return [words if count == 1 else f"{count} x {words}" for words, count in counts.items()]


def _registers(entry: Entry) -> str:
    spills = max((info.spills or 0 for info in entry.launches), default=0)
    registers = max((info.registers for info in entry.launches if info.registers is not None), default="-")
    return str(registers) + (f" +{si_text(spills, 'B')}" if spills else "")


def _occupancy(entry: Entry) -> str:
    known = [info.occupancy for info in entry.launches if info.occupancy is not None]
    return f"{100 * min(known):.0f} %" if known else "-"


def _tuned(entry: Entry, tuned: SearchResult) -> str:
    times = [t.seconds for t in tuned.tried if t.algorithm == entry.algorithm.name and t.seconds is not None]
    return seconds(min(times)) if times else "-"


def _time(entry: Entry) -> str:
    if entry.result is None or entry.result.time is None:
        return "-" if entry.result is None else entry.result.status
    return f"{'~' if entry.result.time.noisy else ''}{seconds(entry.result.time.median_s)}"


def _share(entry: Entry, least_s: float) -> str:
    if entry.result is None or entry.result.time is None:
        return "-"
    share = 100 * least_s / entry.result.time.median_s
    return f"{share:.0f} %" if share >= 1 else f"{share:.1g} %"
