"""Output shared by commands: failures, tables, a progress bar, names of files, and numbers with a unit prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from convforge.benchmark.runner import Watch


class Failure(Exception):
    """The work itself failed (exit code 1); a message of one line. Wrong use is a ``ValueError`` (exit code 2)."""


def plain_table() -> Table:
    """Make a table without a frame."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))


@contextmanager
def progress(*, measuring: bool = True, remaining: bool = True) -> Iterator[Watch]:
    """Show a progress bar if standard error is a terminal.

    While `measuring`, it is redrawn only between rows, because a drawing thread would disturb the measurement.
    Otherwise it is redrawn all the time, and shows the time that the `remaining` rows take if each takes the same.
    """
    from rich import progress as columns
    from rich.console import Console

    console = Console(stderr=True)
    with columns.Progress(
        columns.BarColumn(),
        columns.MofNCompleteColumn(),
        columns.TimeElapsedColumn(),
        *((columns.TimeRemainingColumn(),) if remaining and not measuring else ()),
        columns.TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
        auto_refresh=not measuring,
        refresh_per_second=4,
    ) as bar:
        task = bar.add_task("", total=None)

        def watch(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label, refresh=measuring)

        yield watch


@contextmanager
def steps(
    names: Sequence[str], *, after: float = 1.0, console: Console | None = None
) -> Iterator[Callable[[str], None]]:
    """Show which of the named steps runs, if the terminal of standard error takes it and `after` seconds have passed.

    The yielded function begins a step. Nothing stays on the terminal, and on no terminal nothing is written.
    """
    from rich import progress as columns
    from rich.console import Console

    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda name: None
        return
    bar = columns.Progress(
        columns.BarColumn(),
        columns.MofNCompleteColumn(),
        columns.TimeElapsedColumn(),
        columns.TextColumn("{task.description}"),
        console=console,
        transient=True,
        refresh_per_second=4,
    )
    task = bar.add_task(names[0], total=len(names))
    timer = Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda name: bar.update(task, completed=names.index(name), description=name)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()


def shown(text: str) -> str:
    r"""Return a text in one line, with escapes for what a terminal cannot show, such as bytes that are no UTF-8.

    Examples
    --------
    >>> print(shown("caf\udce9\n.png"))
    caf\udce9\n.png
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def si_text(value: float, unit: str) -> str:
    """Write a number with three digits, a decimal prefix and its unit.

    Examples
    --------
    >>> si_text(0, "B"), si_text(98304, "B"), si_text(5.9e13, "FLOP/s")
    ('0 B', '98.3 kB', '59 TFLOP/s')
    """
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"
