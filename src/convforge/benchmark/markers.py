"""Tables in documents, generated from stored results. Never edit the text between two markers by hand.

<!-- table:images sizes=512,2048 strides=1 methods=direct*,opencv* device=amd-epyc-2c -->
...
<!-- end -->

docs/measuring.md lists the options. The first word is a suite, a kind of sheet, "goals" or "headline". The last two
read goals.toml and headline.toml, next to the folder of results.

python -m convforge.benchmark.markers README.md docs/*.md [--check]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from convforge.benchmark import choice_tables, config_tables, peer_tables
from convforge.benchmark.frame import select
from convforge.benchmark.large_tables import LargeGoal, large_goal_lines
from convforge.benchmark.peer_tables import Goal, Headline
from convforge.benchmark.records import Result, Run
from convforge.benchmark.sheet_tables import sheet_markdown
from convforge.benchmark.sheets import KINDS, Sheet, load_sheets
from convforge.benchmark.store import load_runs
from convforge.benchmark.table import Table, markdown
from convforge.benchmark.tables import markdown_table

_BLOCK = re.compile(
    r"^(?P<open><!-- table:(?P<spec>[^\n]+?) -->[ \t]*\n)(?P<body>.*?)^(?P<close><!-- end -->)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_OPEN = re.compile(r"^<!-- table:", re.MULTILINE)
# View of a run -> function that makes its tables, legend, and the message if a run has no results for it.
_VIEWS: dict[str, tuple[Callable[[Run, Sequence[Result]], list[Table]], str, str]] = {
    "blocks": (config_tables.block_tables, config_tables.BY_SHAPE,
               "no method with several shapes of block: measure with --all-configs"),
    "configs": (config_tables.config_tables, config_tables.BY_CHANGE,
                "no method with one field of its config changed: measure with --all-configs"),
    "fields": (config_tables.field_tables, config_tables.BY_FIELD,
               "no method with two values of a field: measure with --all-configs"),
    "steps": (config_tables.step_tables, config_tables.STEPS, "no times of steps of these: measure with --steps"),
    "ahead": (peer_tables.ahead_tables, peer_tables.AHEAD, ""),
    "choices": (choice_tables.choice_tables, choice_tables.LEGEND, "no case that two methods of ours were timed on"),
}  # fmt: skip
_SELECTED = ("methods", "cases", "sizes", "strides")  # options that select results of a run
_SWITCHES = ("best", "copy")
# Option -> regular expression of its values.
_OPTIONS = {
    **dict.fromkeys(("methods", "cases", "device", "run"), ".+"), **dict.fromkeys(("sizes", "strides"), r"\d+(,\d+)*"),
    **dict.fromkeys(_SWITCHES, "yes|no"), "view": "|".join(("cases", *_VIEWS, "sentence")),
}  # fmt: skip


def marker_specs(text: str) -> list[str]:
    """The specs (text after ``table:``) of all markers in order; ``ValueError`` if a marker is not closed."""
    found = [match["spec"] for match in _BLOCK.finditer(text)]
    if len(found) != len(_OPEN.findall(text)) or any(_OPEN.search(match["body"]) for match in _BLOCK.finditer(text)):
        raise ValueError("a table's marker is not closed: each needs a line <!-- end --> before the next begins")
    return found


def update_markers(text: str, tables: Mapping[str, str]) -> str:
    """Replace the tables between markers; `tables` maps specs to Markdown. ``ValueError`` for an unknown spec."""
    for spec in marker_specs(text):
        if spec not in tables:
            raise ValueError(f"a marker names table {spec!r}; there are: {', '.join(tables) or 'none'}")
    return _BLOCK.sub(lambda match: f"{match['open']}\n{tables[match['spec']].strip()}\n\n{match['close']}", text)


def table_of(
    spec: str,
    runs: Sequence[Run],
    sheets: Sequence[Sheet] = (),
    goals: Iterable[Goal] = (),
    headlines: Iterable[Headline] = (),
    large_goals: Iterable[LargeGoal] = (),
) -> str:
    """Markdown of a marker: from the newest complete run of its suite, or from the best sheets of its kind.

    ``ValueError`` if an option is unknown or does not apply to its view, or if no complete run matches.
    """
    if spec == "goals":
        more = large_goal_lines(large_goals, sheets)
        return peer_tables.goals_markdown(goals, lambda of: _found(of, runs), more)
    if spec == "headline":
        return peer_tables.headline_markdown(headlines, lambda of: _found(of, runs))
    suite, view, chosen = _read(spec)
    if suite in KINDS:
        devices = chosen.pop("device", ())
        if chosen or view != "cases":
            raise ValueError(f"table {spec!r}: a sheet takes device= alone")
        return sheet_markdown(suite, sheets, devices)
    run, results = _found(spec, runs)
    if view == "cases":
        return markdown_table(run, results, **{name: chosen[name] for name in _SWITCHES if name in chosen})
    return peer_tables.ahead_sentence(run, results) if view == "sentence" else view_markdown(view, run, results)


def view_markdown(view: str, run: Run, results: Sequence[Result]) -> str:
    """Markdown of the tables of a view; ``ValueError`` if the results have none."""
    tables, legend, lacks = _VIEWS[view]
    if not (found := tables(run, results)):
        raise ValueError(f"{run.path} holds {lacks}")
    return markdown([run], found, legend)


def _read(spec: str) -> tuple[str, str, dict[str, Any]]:
    """Parse a marker: suite or kind of sheet, view, and the other options."""
    suite, *options = spec.split()
    chosen: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if not re.fullmatch(_OPTIONS.get(name, "(?!)"), value):
            forms = ", ".join(f"{known}={form if '|' in form else '...'}" for known, form in _OPTIONS.items())
            raise ValueError(f"option {option!r} of table {spec!r} is unknown; there are {forms}")
        items = value.split(",")
        chosen[name] = value == "yes" if name in _SWITCHES else value if name == "view" else items
        if name in ("sizes", "strides"):
            chosen[name] = [int(number) for number in items]
    view = chosen.pop("view", "cases")
    if view != "cases" and (odd := [switch for switch in _SWITCHES if switch in chosen]):
        raise ValueError(f"table {spec!r}: {', '.join(odd)} goes with view=cases alone")
    if view in ("ahead", "sentence") and "methods" in chosen:
        raise ValueError(f"table {spec!r}: view={view} judges cases by all methods of the run; leave out methods=")
    return suite, view, chosen


def _found(spec: str, runs: Sequence[Run]) -> tuple[Run, Sequence[Result]]:
    """The run that a marker names, and the results that its options select."""
    suite, _, chosen = _read(spec)
    devices, named = chosen.get("device"), chosen.get("run")
    able = [run for run in runs if run.suite == suite and (not devices or run.device in devices)]
    able = [run for run in able if (run.run in named if named else run.complete)]
    if not able:
        raise ValueError(f"no complete run is stored for table {spec!r}: run `convforge bench {suite}` first")
    run = max(able, key=lambda run: run.started)
    return run, select(run, **{name: chosen[name] for name in _SELECTED if name in chosen})


def update_files(files: Iterable[Path], results: Path, *, check: bool = False) -> list[Path]:
    """Update the tables of documents from a folder of stored runs; return the changed files.

    With `check`, nothing is written.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    specs = {file: found for file, text in texts.items() if (found := marker_specs(text))}
    if not specs:
        return []
    stored = (
        load_runs(results), load_sheets(results),
        peer_tables.load_rows(results.parent / "goals.toml", "goal", Goal),
        peer_tables.load_rows(results.parent / "headline.toml", "row", Headline),
        peer_tables.load_rows(results.parent / "goals.toml", "large", LargeGoal),
    )  # fmt: skip
    changed = []
    for file, wanted in specs.items():
        after = update_markers(texts[file], {spec: table_of(spec, *stored) for spec in wanted})
        if after != texts[file]:
            changed.append(file)
            if not check:
                file.write_text(after, encoding="utf-8")
    return changed


def main(
    files: Annotated[list[Path], typer.Argument(help="Documents with markers.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a table is out of date.")] = False,
    results: Annotated[Path, typer.Option(help="Folder of stored runs.")] = Path("benchmarks/results"),
) -> None:
    """Update the tables between markers from the stored results."""
    try:
        changed = update_files(files, results, check=check)
    except (ValueError, OSError) as fault:
        typer.echo(f"markers: {fault}", err=True)
        raise typer.Exit(2) from None
    for file in changed:
        typer.echo(f"{file}: {'out of date' if check else 'updated'}", err=check)
    if check and changed:
        typer.echo("run: python -m convforge.benchmark.markers " + " ".join(str(file) for file in changed), err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
