"""A progress bar of what `replace` measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int, wanted: bool) -> Iterator[Callable[[str], None]]:
    """Show a bar on standard error if that is a terminal and `wanted`; remove it at the end.

    Yields a function to call with the name of each of the `total` things before it is measured.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda name: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    # Redrawn only between measurements: a thread that draws would take time from them.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task, begun = bar.add_task("", total=total), 0

        def next_is(name: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=name, refresh=True)
            begun += 1

        yield next_is
