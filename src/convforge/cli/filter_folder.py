"""A folder of images through one kernel to another folder: a bar meanwhile, a table and the failures at the end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from convforge.cli.failure import Failure

if TYPE_CHECKING:
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.clock import Clock
    from convforge.imaging.pipeline.folder import Listing, Written
    from convforge.imaging.pipeline.recipe import Reading, Recipe

# The stages that an image goes through in turn, by whose threads: those for files, or the device's lanes.
FILES, LANES = "files", "lanes"
STAGES = {
    "decode": FILES,
    "plan": LANES,
    "first call": LANES,
    "upload": LANES,
    "filter": LANES,
    "download": LANES,
    "encode": FILES,
}


def filter_folder(
    folder: Path,
    out: Path,
    kernel: Kernel,
    recipe: Recipe,
    reading: Reading,
    *,
    recursive: bool,
    suffix: str | None,
    jobs: int,
) -> None:
    """Filter every image of a folder; those that fail are named at the end, and the exit code is then 1."""
    from convforge.imaging.files import WRITABLE_SUFFIXES
    from convforge.imaging.pipeline.clock import Clock
    from convforge.imaging.pipeline.folder import list_folder

    if out.suffix.lower() in WRITABLE_SUFFIXES and not out.exists():
        raise ValueError(f"{folder} is a folder, so OUT must name one; {out} names an image")
    listing = list_folder(folder, out, recursive=recursive, suffix=suffix)
    if not listing.jobs:
        for error in listing.unreadable:
            raise Failure(_reason(error, recipe)) from error
        deeper = "" if recursive else "; --recursive looks into its sub-folders"
        raise Failure(f"{folder}: holds no image ({_files(listing.left_alone)} left alone){deeper}")
    _make(out)
    jobs = min(jobs, len(listing.jobs))
    clock, tally = Clock(), _Tally()
    _run(listing, recipe, clock, tally, reading, jobs)
    _print_report(folder, out, kernel, recipe, listing, tally, clock, jobs)
    failures = [(str(error.filename), _reason(error, recipe)) for error in listing.unreadable]
    failures += [(str(path), reason) for path, reason in sorted(tally.failures.items())]
    for name, reason in failures:
        typer.echo(f"convforge: {reason if name in reason else f'{name}: {reason}'}", err=True)
    if failures:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Tally:
    """What has been done."""

    done: int = 0
    pixels_in: int = 0
    pixels_out: int = 0
    file_in: int = 0
    file_out: int = 0
    seconds: float = 0.0
    methods: Counter[str] = field(default_factory=Counter)
    failures: dict[Path, str] = field(default_factory=dict)
    lost: dict[tuple[str, ...], list[Path]] = field(default_factory=dict)

    def add(self, source: Path, written: Written) -> None:
        """Count an image."""
        if written.lost:
            self.lost.setdefault(written.lost, []).append(source)
        self.done += 1
        self.pixels_in += written.pixels_in
        self.pixels_out += written.pixels_out
        self.file_in += written.file_in
        self.file_out += written.file_out
        self.methods[written.method] += 1


def _make(out: Path) -> None:

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{out}: cannot be made ({error.strerror}); choose another place") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise Failure(f"{out}: cannot be written, no permission; choose another folder")


def _run(listing: Listing, recipe: Recipe, clock: Clock, tally: _Tally, reading: Reading, jobs: int) -> None:
    """Take every image through the pipeline; what is no image's fault ends it all."""
    from convforge.cli.filter_signals import interrupts
    from convforge.cli.filter_words import load_decoders
    from convforge.imaging.pipeline.folder import filter_files

    load_decoders(*{Path(f"_{path.suffix}") for job in listing.jobs for path in (job.source, job.target)})
    begin = perf_counter()
    try:
        with (
            interrupts() as interrupted,
            _progress(len(listing.jobs)) as advance,
            closing(filter_files(listing.jobs, recipe, clock, workers=jobs, reading=reading)) as results,
        ):
            for job, future in results:
                try:
                    tally.add(job.source, future.result())
                except (ValueError, OSError, MemoryError) as error:
                    tally.failures[job.source] = _reason(error, recipe)
                advance()
                if interrupted():
                    raise KeyboardInterrupt
    except KeyboardInterrupt as stop:
        done = f"{tally.done} of {len(listing.jobs)} images were filtered, and every file in OUT is complete"
        typer.echo(f"convforge: interrupted; {done}", err=True)
        raise typer.Exit(130) from stop
    tally.seconds = perf_counter() - begin


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=4, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _reason(error: Exception, recipe: Recipe) -> str:
    """Why an image failed, in one line."""
    from convforge.cli.filter_words import refusal_text
    from convforge.errors import UnsupportedProblem

    if isinstance(error, UnsupportedProblem):
        return refusal_text(recipe, error)
    if isinstance(error, MemoryError):
        return "there is not enough memory to filter it; take fewer --jobs, or cut it into parts first"
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
    return " ".join(str(error).split())


# What is said.


def _print_report(
    folder: Path, out: Path, kernel: Kernel, recipe: Recipe, listing: Listing, tally: _Tally, clock: Clock, jobs: int
) -> None:
    """One line a fact, under the names in the first column; then where the time went."""
    from rich.filesize import decimal

    from convforge.cli.filter_words import kernel_text

    shares = shares_of(clock.seconds, tally.seconds, _threads(recipe, jobs))
    gigabytes = (tally.pixels_in + tally.pixels_out) / 1e9
    methods = ", ".join(f"{name} ({_images(count)})" for name, count in tally.methods.most_common())
    left = f"; {_files(listing.left_alone)} left alone" if listing.left_alone else ""
    failed = f"; {len(tally.failures)} failed" if tally.failures else ""
    for name, text in (
        ("in", f"{folder}: {_images(len(listing.jobs))}{left}"),
        ("out", f"{out}: {_images(tally.done)}{failed}"),
        ("kernel", kernel_text(kernel, recipe)),
        ("method", methods or "none"),
        ("pixels", f"{decimal(tally.pixels_in)} in, {decimal(tally.pixels_out)} out"),
        ("files", f"{decimal(tally.file_in)} in, {decimal(tally.file_out)} out"),
        ("time", f"{tally.seconds:.3g} s"),
        (
            "rate",
            f"{tally.done / tally.seconds:.3g} images/s, {gigabytes / tally.seconds:.3g} GB/s of pixels, in and out",
        ),
        ("limit", _limit(shares)),
    ):
        typer.echo(f"{name:<11} {text}")
    for words, sources in sorted(tally.lost.items(), key=lambda item: min(item[1])):
        typer.echo(f"{'not kept':<11} {', '.join(words)} of {_names(folder, sources)}")
    typer.echo()
    _print_stages(shares)


def _threads(recipe: Recipe, jobs: int) -> dict[str, int]:
    from convforge.call.dispatch import runtime_of
    from convforge.imaging.pipeline import lanes

    return {FILES: jobs, LANES: lanes.LANES[runtime_of(recipe.device).facts.backend]}


@dataclass(frozen=True, slots=True)
class Share:
    """A stage's busy seconds over all its threads, and the part of those threads' time that this was."""

    stage: str
    seconds: float
    threads: int
    of_time: float


def shares_of(busy: dict[str, float], seconds: float, threads: dict[str, int]) -> list[Share]:
    """The share of each stage that took any time, in the order of the stages.

    Examples
    --------
    >>> shares_of({"filter": 1.0, "decode": 3.0}, 2.0, {"files": 2, "lanes": 1})[0]
    Share(stage='decode', seconds=3.0, threads=2, of_time=0.75)
    """
    found = [(stage, busy.get(stage, 0.0), threads[whose]) for stage, whose in STAGES.items()]
    return [Share(stage, spent, count, spent / count / seconds) for stage, spent, count in found if spent]


def _limit(shares: Sequence[Share]) -> str:
    """Which threads were busiest, and with what most."""
    together = {FILES: 0.0, LANES: 0.0}
    for share in shares:
        together[STAGES[share.stage]] += share.of_time
    whose = max(together, key=together.__getitem__)
    most = max((share for share in shares if STAGES[share.stage] == whose), key=lambda share: share.seconds)
    kind = f"{'thread' if whose == FILES else 'lane'}{'' if most.threads == 1 else 's'}"
    at = "reading and writing" if whose == FILES else "of the device"
    what = " (kernels compiled or read from the cache)" if most.stage == "first call" else ""
    return f"{most.stage}{what}: {most.threads} {kind} {at} at work {together[whose]:.0%} of the time, on that most"


def _print_stages(shares: Sequence[Share]) -> None:
    """The busy seconds of every stage."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("stage", no_wrap=True)
    for name in ("busy", "threads", "of their time"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in shares:
        table.add_row(share.stage, f"{share.seconds:.3g} s", str(share.threads), f"{share.of_time:.0%}")
    Console(file=sys.stdout, highlight=False).print(table)


def _names(folder: Path, sources: Sequence[Path]) -> str:
    """Up to three images by name; of more, how many there are."""
    names = [str(path.relative_to(folder)) for path in sorted(sources)]
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _files(count: int) -> str:
    return f"{count} other file{'' if count == 1 else 's'}"
