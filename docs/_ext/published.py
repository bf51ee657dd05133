"""Tables that others published beside our stored results, and the findings of a study's rules on both, as Markdown.

Nothing is measured; every figure of ours is of a stored result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from kernel_pages import in_words, stored_runs

from convforge.problem import parse_problem

# Their names for what ours have too.
_SAME = {"cudnn_second_run": "cudnn"}
# Tables whose figures are GFLOP/s; of the others, ms.
RATES = ("D",)


def page_of(name: str, study: str, rules: list[str]) -> str:
    """The Markdown of a table."""
    from convforge.course.studies import find_study
    from convforge.course.studies.published import TABLES

    published = TABLES[name]
    theirs = published.findings(find_study(study))
    doubts = "\n".join(f"- {in_words(doubt.words)}" for doubt in published.doubts)
    mine = ours(published.run)
    parts = [f"**{in_words(published.about)}.** Doubts:\n\n{doubts}", beside(name, published.run, mine)]
    parts.append(f"By the rules of `{study}`, theirs:\n\n{sentences(rules, theirs, supported=True)}")
    if any(finding.rule in rules and not finding.supported for finding in theirs):
        parts.append(f"Resting on doubtful figures:\n\n{sentences(rules, theirs, supported=False)}")
    gpu = [run for run in mine if run.machine["facts"]["backend"] == "cuda"]
    if gpu:
        parts.append(f"Ours, by the same rules:\n\n{sentences(rules, find_study(study).findings(gpu[0]))}")
    return "\n\n".join(parts)


def ours(run: Any) -> list[Any]:
    """The newest complete runs that hold what a published run holds, cut down to that: of a GPU, and of a CPU."""
    found = []
    for backend in dict.fromkeys(r.backend for r in run.results):
        asked = {
            (problem, _SAME.get(r.algorithm, r.algorithm))
            for r in run.results
            for problem in likely(r.problem)
            if r.backend == backend
        }
        able = []
        for stored in stored_runs():
            results = [r for r in stored.results if (r.problem, r.algorithm) in asked and r.backend == backend]
            if stored.complete and any(r.status == "ok" for r in results):
                able.append(dataclasses.replace(stored, results=tuple(results)))
        if able:
            found.append(max(able, key=lambda stored: (len({r.problem for r in stored.results}), stored.started)))
    return sorted(found, key=lambda stored: stored.machine["facts"]["backend"] != "cuda")


def likely(problem: str) -> tuple[str, ...]:
    """The problem itself, and the same with a padding of 1, which has a few outputs more."""
    return problem, problem.replace("_p0_", "_p1_")


def beside(name: str, run: Any, mine: list[Any]) -> str:
    """Theirs and ours, a row a case, and the fastest of our methods on a GPU in the last column."""
    from convforge.benchmark.table import markdown_line

    rate = name in RATES
    best = {stored.machine["facts"]["backend"]: fastest(stored.results) for stored in mine}
    columns: dict[str, list[str]] = {}
    cases = {r.problem: r.case.removesuffix("_host") for r in reversed(run.results)}
    problems = list(dict.fromkeys(r.problem for r in run.results))
    theirs = {(r.problem, r.algorithm, r.backend): r for r in run.results}
    more = 1.0  # outputs of ours over theirs
    for method, backend in dict.fromkeys((r.algorithm, r.backend) for r in run.results):
        word = in_words(method) + (" on the CPU" if backend == "cpu" else "")
        columns[f"{word}, theirs"] = [figure(theirs.get((p, method, backend)), rate) for p in problems]
        stored, same = best.get(backend, {}), _SAME.get(method, method)
        found = [next((stored[q, same] for q in likely(p) if (q, same) in stored), None) for p in problems]
        more = max([more, *(r.flops / parse_problem(p).flops for p, r in zip(problems, found, strict=True) if r)])
        if any(found):
            columns[f"{word}, ours"] = [figure(r, rate) for r in found]
    gpu = [stored.path for stored in mine if stored.machine["facts"]["backend"] == "cuda"]
    strict = [r for stored in stored_runs() if stored.path in gpu for r in stored.results
              if r.ours and r.precision == "strict"]  # fmt: skip
    columns["fastest of ours"] = [winner(p, strict, rate) for p in problems]
    lines = [markdown_line(["case", *columns]), markdown_line(["---", *["---:"] * len(columns)])]
    lines += [markdown_line([in_words(cases[p]), *row])
              for p, *row in zip(problems, *columns.values(), strict=True)]  # fmt: skip
    notes = [f"{'Nominal GFLOP/s' if rate else 'ms a call'}; ours are the fastest of the configs that are stored."]
    notes += [f"Ours: {stored.where}, `{stored.path.name}`." for stored in mine]
    if more > 1:
        notes.append(f"Ours have a padding of 1, theirs none: up to {100 * (more - 1):.1f} % more outputs.")
    if any("cudnn" in r.algorithm for r in run.results):
        notes.append(
            "cuDNN, ours: the fastest of its plans without tensor cores, and nothing but the call in its time."
        )
    return "\n".join(lines) + "\n\n" + " ".join(notes)


def winner(problem: str, results: list[Any], rate: bool) -> str:
    """The fastest of some results on a problem, and its method."""
    found = fastest(r for r in results if r.problem in likely(problem)).values()
    best = min(found, key=lambda r: r.time.median_s, default=None)
    return "" if best is None else f"{figure(best, rate)} ({in_words(best.algorithm)})"


def fastest(results: Iterable[Any]) -> dict[tuple[str, str], Any]:
    """Problem and method -> the result of the fastest config."""
    found: dict[tuple[str, str], Any] = {}
    timed = (r for r in results if r.status == "ok" and r.time is not None)
    for r in sorted(timed, key=lambda r: r.time.median_s):
        found.setdefault((r.problem, r.algorithm), r)
    return found


def figure(result: Any, rate: bool) -> str:
    """A result in ms, or in GFLOP/s."""
    from convforge.benchmark.formats import milliseconds, three

    if result is None or result.time is None:
        return ""
    return three(result.gflops) if rate else milliseconds(result.time.median_s)


def sentences(rules: list[str], findings: list[Any], supported: bool | None = None) -> str:
    """The findings of some rules with their details; only those that are supported, or are not, where asked."""
    wanted = [f for f in findings if f.rule in rules and (supported is None or f.supported is supported)]
    lines = [line for f in wanted for line in (f"- {f.sentence}", *(f"  - {d}" for d in f.details))]
    return "\n".join(map(in_words, lines)) or "- Nothing."
