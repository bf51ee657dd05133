"""A table's note on libraries that offer several ways: how many there are, how many ran, and why others did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from convforge.benchmark.cells import some
from convforge.benchmark.records import Result


def way_notes(results: Sequence[Result], label: Callable[[Result], str]) -> list[str]:
    """A note for each method whose results say what became of a library's ways, over all its cases."""
    methods: dict[str, list[Result]] = {}
    for r in results:
        if r.ways:
            methods.setdefault(label(r), []).append(r)
    return [_note(name, found) for name, found in methods.items()]


def _note(name: str, results: Sequence[Result]) -> str:
    ways = [way for r in results for way in r.ways]
    count = Counter(outcome for _, outcome, _ in ways)
    said = [f"{count['run']} run"]
    said += [f"{count['large']} want more workspace than the limit"] * bool(count["large"])
    if count["failed"]:
        said.append(f"{count['failed']} failed ({some(words for _, outcome, words in ways if outcome == 'failed')})")
    excluded = f"; {count['excluded']} excluded for their arithmetic" if count["excluded"] else ""
    cases = len({r.case for r in results})
    total = f"{len(ways) - count['excluded']} on {cases} case{'s' * (cases > 1)}"
    return f"{name}: the fastest of the library's own plans: {total}, {', '.join(said)}{excluded}."
