"""`convforge explain`: the choice of "auto" with its reason, and the cost or the refusal of every method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convforge.cli.output import plain_table, progress, seconds_text, si_text
from convforge.cli.values import parse_bytes, parse_seconds, words_of

if TYPE_CHECKING:
    from rich.console import Console

    from convforge.algorithms import AnyAlgorithm
    from convforge.backends.facts import DeviceFacts
    from convforge.benchmark.records import Result, Run
    from convforge.cli.survey import Entry, Limit
    from convforge.tuning import Choice, Remembered


def explain(
    problem: Annotated[str, typer.Argument(help="Text form, such as n1c3h1024w1024_k3r3s3_st1_p1_f32_nchw.")],
    device: Annotated[str, typer.Option(help="Where it would run.")] = "cpu",
    methods: Annotated[str, typer.Option(help="Only these: names or patterns, such as 'direct*,im2col'.")] = "",
    peers: Annotated[bool, typer.Option("--peers", help="Other libraries too.")] = False,
    time: Annotated[bool, typer.Option(help="Check and time every method; else nothing is computed.")] = True,
    budget: Annotated[str, typer.Option(help="For the times, such as 5s; the slowest methods are left out.")] = "10s",
    workspace_limit: Annotated[
        str | None, typer.Option(help="Pass over what needs more workspace: bytes, or 64MB, 1GB.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Config, rates, launches and ways of each.")] = False,
) -> None:
    """Say which method a problem gets and why, and what every method takes."""
    from rich.console import Console

    from convforge.call.dispatch import runtime_of
    from convforge.cli.survey import CEILING_REPEATS, check_size, measure, roofline, survey
    from convforge.problem import parse_problem
    from convforge.tuning import decide, remembered, with_peers

    asked: Any = parse_problem(problem)
    budget_s = parse_seconds(budget)
    limit = None if workspace_limit is None else parse_bytes(workspace_limit)
    runtime = runtime_of(device)
    listed, left_out = _methods(asked.operation, runtime.facts.backend, methods, peers)
    check_size(asked, runtime, limit)
    choice = decide(asked, runtime, "auto", limit, peers=with_peers())
    tuned = remembered(asked, runtime, "auto", limit, peers=with_peers())
    console = Console(highlight=False)
    _print_problem(console, asked, runtime.facts)
    entries = survey(asked, listed, runtime, limit)

    run: Run | None = None
    roof: Limit | None = None
    if time and runtime.facts.backend != "emulator":  # the emulator's times say nothing about a GPU
        from convforge.timing.ceilings import measure_ceilings

        with progress() as watch:
            watch(0, len(entries), "ceilings")
            ceilings = measure_ceilings(runtime, CEILING_REPEATS)
            roof = roofline(asked, ceilings)
            run = measure(asked, entries, runtime, ceilings, budget_s, limit, watch)
    _print_limit(console, asked, run, roof, runtime.facts.backend)
    _print_choice(console, choice, tuned, run, asked)
    if not verbose:
        _print_ways(console, choice.algorithm.ways(asked, choice.config))
    _print_table(console, entries, choice.algorithm, tuned, run, roof, runtime.facts)
    _print_notes(console, asked, entries, tuned, run, left_out, runtime.facts)
    if verbose:
        _print_details(console, entries, run, roof)


def _methods(operation: str, backend: str, patterns: str, peers: bool) -> tuple[list[AnyAlgorithm], list[str]]:
    """Return the methods to list, and the names of the peers that are left out."""
    from convforge.benchmark.runner import choose
    from convforge.peers import every_algorithm

    words = words_of(patterns)
    found = choose(words, backend, {operation}, every_algorithm())
    if words or peers:
        return found, []
    return [a for a in found if a.ours], [a.name for a in found if not a.ours]


def _print_problem(console: Console, problem: Any, facts: Any) -> None:
    from convforge.backends.facts import cores_in_words
    from convforge.problem import tuning_key

    console.print(f"[bold]{problem}[/bold]\n  on {facts.name}, {cores_in_words(facts.cores, facts.backend)}")
    if problem.stride:
        console.print(f"  x {problem.x_shape} -> out {problem.out_shape}")
    intensity = problem.flops / max(problem.least_bytes, 1)
    flops, least = si_text(problem.flops, "FLOP"), si_text(problem.least_bytes, "B")
    console.print(f"  {flops}, at least {least} moved: {intensity:.1f} FLOP a byte")
    console.print(f"  tuning key {tuning_key(problem)}")


def _print_limit(console: Console, problem: Any, run: Run | None, roof: Limit | None, backend: str) -> None:
    """Print the least time on the device, by memory and by arithmetic."""
    if roof is None or run is None or run.best_ceilings is None:
        why = "the emulator's times say nothing about a GPU" if backend == "emulator" else "nothing was measured"
        console.print(f"  limit and times: none, {why}")
        return
    best = run.best_ceilings
    console.print(f"  limit {seconds_text(roof.seconds)}, by {roof.bound}")
    moved, bandwidth = si_text(problem.least_bytes, "B"), si_text(best.copy_bytes_per_s, "B/s")
    console.print(f"    memory {seconds_text(roof.memory_s)} for {moved} at {bandwidth} (copy)")
    if roof.arithmetic_s is not None:
        flops, rate = si_text(problem.flops, "FLOP"), si_text(best.fma_flops_per_s, "FLOP/s")
        console.print(f"    arithmetic {seconds_text(roof.arithmetic_s)} for {flops} at {rate} (float32 FMA)")


def _print_choice(console: Console, choice: Choice, tuned: Remembered | None, run: Run | None, problem: Any) -> None:
    """Print the choice of "auto" and its reason, and what is fastest now."""
    console.print(f"\nauto takes [bold]{choice.algorithm.name}[/bold]: {choice.reason}")
    if str(choice.config):
        console.print(f"  with {choice.config}", soft_wrap=True)
    if choice.untuned:
        console.print(
            "  nothing is measured yet of problems like it: convforge tune does that, and tune=True in a call"
        )
    if tuned is not None and tuned.tried:
        spent = f"in {seconds_text(tuned.spent_s)} " if tuned.spent_s else ""
        console.print(f"  {len(tuned.tried)} candidates were tried {spent}at level {tuned.level} on {tuned.problem}")
    if run is not None:
        from convforge.benchmark.verdicts import judge

        console.print(f"fastest now: {judge(run, str(problem)).words()}")


def _print_ways(console: Console, ways: Sequence[tuple[str, str, Any]]) -> None:
    """Print the paths that a call may take, with their conditions."""
    from rich.padding import Padding
    from rich.text import Text

    for name, _, words in ways:
        console.print(Padding(Text(f"{name}: {words}"), (0, 0, 0, 2)))


def _print_words(console: Console, name: str, words: str) -> None:
    """Print text that may hold brackets, which rich would read as markup."""
    from rich.text import Text

    console.print(Text(f"{name}: {words}"))


def _print_table(
    console: Console,
    entries: Sequence[Entry],
    chosen: AnyAlgorithm,
    tuned: Remembered | None,
    run: Run | None,
    roof: Limit | None,
    facts: DeviceFacts,
) -> None:
    """Print a row for every method that can compute the problem."""
    from rich.text import Text

    backend = facts.backend
    columns: dict[str, Callable[[Entry], str]] = {}
    if run is not None and roof is not None:
        columns |= {"time": lambda e: _time(_result(e, run)), "of limit": lambda e: _share(_result(e, run), roof)}
    columns["launches"] = lambda e: str(len(_launches(e)))
    if backend == "cuda":
        columns |= {"registers": _registers, "occupancy": _occupancy}
    else:
        name = "tile" if backend == "cpu" else "shared"
        columns[name] = lambda e: si_text(max((i.scratch_bytes for i in _launches(e)), default=0), "B")
    columns["workspace"] = lambda e: si_text(e.plan.workspace_bytes if e.plan else 0, "B")
    if backend != "emulator":
        places = _places(entries, facts)
        columns["place"] = lambda e: f"{places[e.algorithm.name]}." if e.plan else "-"
    if tuned is not None:
        columns["tuned"] = lambda e: _tuned(e, tuned)

    table = plain_table()
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        if entry.plan is not None:
            style = "bold" if entry.algorithm is chosen else ""
            table.add_row(Text(entry.algorithm.name), *(Text(cell(entry)) for cell in columns.values()), style=style)
    console.print()
    if table.row_count:
        console.print(table)


def _print_notes(
    console: Console,
    problem: Any,
    entries: Sequence[Entry],
    tuned: Remembered | None,
    run: Run | None,
    left_out: Sequence[str],
    facts: DeviceFacts,
) -> None:
    """Print the methods that must be named, refuse or have no time, each with its reason; then explain the columns."""
    for entry in entries:
        if entry.plan is not None and entry.problem != problem:
            _print_words(console, entry.algorithm.name, f"only where {entry.algorithm.precision!r} is asked for")
        if entry.plan is not None and entry.plan.choice:
            _print_words(console, entry.algorithm.name, str(entry.plan.choice))
    for entry in entries:
        result = None if run is None else _result(entry, run)
        if entry.refusal is not None:
            _print_words(console, entry.algorithm.name, f"refuses: {entry.refusal}")
        elif entry.unplanned is not None:
            _print_words(console, entry.algorithm.name, f"not planned: {entry.unplanned}")
        elif result is not None and result.status != "ok":
            _print_words(console, entry.algorithm.name, f"{result.status}: {result.reason}")
    for tried in () if tuned is None else tuned.tried:
        if tried.tied:
            tie = f"tied with the fastest when it was tuned, with {tried.config or 'no config'}"
            _print_words(console, tried.algorithm, tie)
        if tried.seconds is None:
            name = " ".join(filter(None, (tried.algorithm, tried.config)))
            _print_words(console, name, f"no time when it was tuned{', and never chosen' * tried.wrong}: {tried.fault}")
    if tuned is not None and tuned.fault:
        console.print(f"could not be tuned: {tuned.fault}")
    timings = [t for r in run.results if (t := run.timing(r)) is not None] if run is not None else []
    if timings:
        where = "from memory" if all(t.cold for t in timings) else "warm in the cache, where memory is no limit"
        console.print(
            f"\ntimes: checked against float64 first; weights prepared on every call; {where}; ~ noisy\n"
            "of limit: of the direct method's operations and bytes, whatever the method does"
        )
    if run is not None and any(r.status == "skipped" for r in run.results):
        console.print("what was skipped may fit a longer --budget")
    if facts.backend != "emulator":
        console.print("place: the order in which the cost model would try the methods; it is no time")
    if left_out:
        console.print(f"other libraries with --peers: {', '.join(left_out)}")


def _print_details(console: Console, entries: Sequence[Entry], run: Run | None, roof: Limit | None) -> None:
    """Print config, rates, error and launches of every method that can compute the problem."""
    for entry in entries:
        if entry.plan is None:
            continue
        plan, result = entry.plan, None if run is None else _result(entry, run)
        console.print(f"\n[bold]{entry.algorithm.name}[/bold]: {entry.algorithm.summary}")
        if str(plan.config):
            console.print(f"  config {plan.config}", soft_wrap=True)
        timing = None if run is None or result is None else run.timing(result)
        if result is not None and timing is not None:
            taken = timing.median_s
            rates = f"{si_text(result.flops / taken, 'FLOP/s')}, {si_text(result.least_bytes / taken, 'B/s')}"
            console.print(f"  {seconds_text(taken)} +- {100 * timing.spread:.1f} %: {rates}, by the nominal cost")
        if result is not None and result.error is not None and result.error.rms is not None:
            console.print(f"  RMS error {result.error.rms:.1e} of the result's RMS")
        for info in _distinct(plan.launches, entry.algorithm.backend):
            console.print(f"  {info}")
        _print_ways(console, plan.ways)


def _distinct(launches: Sequence[Any], backend: str) -> list[str]:
    """Describe launches, equal ones once with their count."""
    grid, block, scratch = "grid", "block", "of shared memory"
    if backend == "cpu":
        grid, block, scratch = "work items", "at a time", "tile a thread"
    counts: Counter[str] = Counter()
    for info in launches:
        words = f"{info.kernel}: {grid} {_by(info.grid)}, {block} {_by(info.block)}"
        if info.scratch_bytes:
            words += f", {si_text(info.scratch_bytes, 'B')} {scratch}"
        if info.registers is not None:
            words += f", {info.registers} registers, {info.spills or 0} B spilled"
        if info.occupancy is not None:
            words += f", occupancy {100 * info.occupancy:.0f} %"
        counts[words] += 1
    return [words if count == 1 else f"{count} x {words}" for words, count in counts.items()]


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _launches(entry: Entry) -> tuple[Any, ...]:
    return () if entry.plan is None else entry.plan.launches


def _registers(entry: Entry) -> str:
    """Return the largest register count of a launch, and the bytes that spill."""
    known = [(info.registers, info.spills or 0) for info in _launches(entry) if info.registers is not None]
    if not known:
        return "-"
    spills = max(spilled for _, spilled in known)
    return str(max(registers for registers, _ in known)) + (f" +{si_text(spills, 'B')}" if spills else "")


def _occupancy(entry: Entry) -> str:
    known = [info.occupancy for info in _launches(entry) if info.occupancy is not None]
    return f"{100 * min(known):.0f} %" if known else "-"


def _places(entries: Sequence[Entry], facts: DeviceFacts) -> dict[str, int]:
    """Rank methods by the cost model, 1 the fastest; the model does not predict times."""
    from convforge.tuning.cost import predicted_s

    planned = [entry for entry in entries if entry.plan is not None]
    planned.sort(key=lambda e: predicted_s(e.algorithm, e.problem, facts, e.plan))
    return {entry.algorithm.name: place for place, entry in enumerate(planned, start=1)}


def _tuned(entry: Entry, tuned: Remembered) -> str:
    """Return the method's best remembered time over its configs."""
    times = [t.seconds for t in tuned.tried if t.algorithm == entry.algorithm.name and t.seconds is not None]
    return seconds_text(min(times)) if times else "-"


def _result(entry: Entry, run: Run) -> Result | None:
    """Return a method's result with its final timing."""
    import dataclasses

    for result in run.results:
        if result.algorithm == entry.algorithm.name:
            return dataclasses.replace(result, time=run.timing(result))
    return None


def _time(result: Result | None) -> str:
    if result is None or result.time is None:
        return "-" if result is None else result.status
    return f"{'~' if result.time.noisy else ''}{seconds_text(result.time.median_s)}"


def _share(result: Result | None, roof: Limit) -> str:
    if result is None or result.time is None:
        return "-"
    share = 100 * roof.seconds / result.time.median_s
    return f"{share:.0f} %" if share >= 1 else f"{share:.1g} %"
