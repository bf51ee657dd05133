"""Where the time of a call goes: a line a method below the bench's tables, and a table of its own for documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from convforge.benchmark.cells import Cell, Table, labeller, markdown, natural, some, three
from convforge.benchmark.records import Result, Run, StepTime

LEGEND = (
    "Each step of a call timed by itself, over the same ring; several launches of one step are one time. The share of "
    "the copy ceiling is that of the bytes that a step must move if it reads and writes everything once. A step whose "
    "data stays in the cache may pass that ceiling. ~ noisy; * sources changed since."
)
# Cases whose steps a note tells; the table and the CSV have all.
TOLD = 3


def step_notes(run: Run, results: Sequence[Result], label: Callable[[Result], str]) -> Iterator[str]:
    """A line for each method whose steps were timed, with its largest cases."""
    methods: dict[str, list[Result]] = {}
    for r in results:
        if r.steps:
            methods.setdefault(label(r), []).append(r)
    for name, found in methods.items():
        told = sorted(found, key=lambda r: r.flops, reverse=True)[:TOLD]
        each = [(f"on {r.case} " if len(found) > 1 else "") + _words(run, r) for r in told]
        more = f"; and on {some(r.case for r in found if r not in told)}" if len(found) > len(told) else ""
        yield f"{name}: {'; '.join(each)}{more}"


def _words(run: Run, r: Result) -> str:
    return ", ".join(f"{step.name} {_ms(step)} ms{_share(run, step)}" for step in r.steps)


def _share(run: Run, step: StepTime) -> str:
    share = run.copy_share(step)
    if share is None:
        return ""
    return f" ({100 * share:.0f} % of the copy ceiling{'' if step.time.cold else ', hot in the cache'})"


def step_markdown(run: Run, results: Sequence[Result]) -> str:
    """The table of the steps of results as Markdown.

    Raises
    ------
    ValueError
        No step was timed of what is asked for.
    """
    stepped = [r for r in results if r.steps]
    if not stepped:
        raise ValueError(f"{run.path} holds no times of steps of these: measure with --steps")
    return markdown(run, [step_table(run, stepped)], LEGEND)


def step_table(run: Run, results: Sequence[Result]) -> Table:
    """A row for each step, and one for the call that they make up."""
    label = labeller(results)
    columns = ("case", "method", "step", "launches", "ms", "of all steps", "moves at least, MB", "GB/s",
               "of the copy ceiling", "data")  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for r in sorted(results, key=lambda r: natural(r.case)):
        total = sum(step.time.median_s for step in r.steps)
        for step in r.steps:
            share, rate = run.copy_share(step), step.bytes_per_s
            texts = (
                r.case, label(r), step.name, str(step.launches),
                ("~" if step.time.noisy else "") + ("*" if run.is_stale(r) else "") + _ms(step),
                f"{100 * step.time.median_s / total:.0f} %",
                "" if step.least_bytes is None else three(step.least_bytes / 1e6),
                "" if rate is None else three(rate / 1e9),
                "" if share is None else f"{100 * share:.0f} %",
                "cold" if step.time.cold else "hot in the cache",
            )  # fmt: skip
            rows.append(tuple(Cell(text) for text in texts))
        call = r.prepared_time or r.time
        if call is not None:
            name = "the call, prepared" if r.prepared_time else "the call"
            whole = [r.case, label(r), name, "", three(1e3 * call.median_s), f"{100 * call.median_s / total:.0f} %"]
            rows.append(tuple(Cell(text) for text in whole + [""] * (len(columns) - len(whole))))
    return Table(columns, tuple(rows), (), lead=3)


def _ms(step: StepTime) -> str:
    return three(1e3 * step.time.median_s)
