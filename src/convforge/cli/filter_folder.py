"""`convforge filter` of many images: those of a folder, or several that are named; a bar, then a table and failures."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from convforge.cli.filter_large import filter_large, is_large
from convforge.cli.filter_places import is_folder_of_images, names_an_image
from convforge.cli.filter_report import count_of, kernel_text, line, reason_of
from convforge.cli.filter_streams import STREAM
from convforge.cli.output import Failure, plain_table, progress

if TYPE_CHECKING:
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.folder import Listing, Share, Written
    from convforge.imaging.pipeline.lanes import Clock
    from convforge.imaging.pipeline.recipe import Recipe
    from convforge.imaging.windowed import Place

Failures = list[tuple[str, str]]
"""Names of images and the reasons why they failed."""


def filter_folder(
    folder: Path, out: Path, kernel: Kernel, recipe: Recipe, *, recursive: bool, suffix: str | None, jobs: int
) -> None:
    """Filter the images of a folder to another folder."""
    from convforge.imaging.pipeline.folder import list_folder

    _check_folder(out, f"{folder} is a folder")
    listing = list_folder(folder, out, recursive=recursive, suffix=suffix)
    left = f"{count_of(listing.left_alone, 'other file')} left alone"
    if not listing.jobs:
        for error in listing.unreadable:
            raise Failure(reason_of(error, recipe)) from error
        deeper = "" if recursive else "; --recursive looks into its sub-folders"
        raise Failure(f"{folder}: holds no image ({left}){deeper}")
    _make(out)
    source = f"{folder}: {count_of(len(listing.jobs), 'image')}{f'; {left}' if listing.left_alone else ''}"
    failures = [(str(error.filename), reason_of(error, recipe)) for error in listing.unreadable]
    _end(failures + _filter_listing(listing, source, folder, out, kernel, recipe, jobs))


def filter_several(
    sources: Sequence[str],
    out: Path,
    kernel: Kernel,
    recipe: Recipe,
    *,
    suffix: str | None,
    jobs: int,
    memory: int | None,
) -> None:
    """Filter several images to a folder, each to its own name; those that go in units follow one by one."""
    from convforge.imaging.pipeline.folder import Job, Listing

    _check_folder(out, "several images go to a folder")
    pairs = _pairs(sources, out, suffix)
    large = [pair for pair in pairs if is_large(*pair, None, recipe.max_pixels, volume=recipe.depth is not None)]
    small = [
        Job(source, target) for source, target in pairs if isinstance(source, Path) and (source, target) not in large
    ]
    _make(out)
    failures: Failures = []
    if small:
        listing = Listing(tuple(small), 0)
        failures += _filter_listing(listing, count_of(len(small), "image"), None, out, kernel, recipe, jobs)
    for source, target in large:
        typer.echo()
        try:
            filter_large(source, target, kernel, recipe, memory=memory, jobs=jobs)
        except (Failure, ValueError) as error:
            failures.append((str(source), str(error)))
    _end(failures)


def _pairs(sources: Sequence[str], out: Path, suffix: str | None) -> list[tuple[Place, Path]]:
    """Return each place with its target; ``ValueError`` if two have the same target, or one overwrites another."""
    from convforge.imaging.windowed import Url, place_of

    pairs: list[tuple[Place, Path]] = []
    read = {os.path.realpath(text) for text in sources}
    written: dict[str, str] = {}
    for text in sources:
        place = place_of(text)
        if text == STREAM:
            raise ValueError(f"{STREAM} (standard input) is one image; it does not go with others")
        if is_folder_of_images(place):
            raise ValueError(f"{place}: is a folder; several IN are images, and a folder is filtered by itself")
        target = out / (place.name if suffix is None else f"{Path(place.name).stem}{suffix}")
        key = os.path.normcase(os.path.realpath(target))
        if key in written:
            raise ValueError(f"{written[key]} and {text} would both become {target}; rename one of them")
        if key in read:
            raise ValueError(f"{text} would overwrite {target}, which is to be filtered too; name another folder")
        written[key] = text
        pairs.append((place if isinstance(place, Url) else Path(place), target))
    return pairs


def _check_folder(out: Path, why: str) -> None:
    """Raise ``ValueError`` if OUT is an image or has the name of one."""
    if out.exists() and not is_folder_of_images(out):
        raise ValueError(
            f"{out}: is {'an array' if out.is_dir() else 'a file'}, and {why}; name a folder for the results"
        )
    if not out.exists() and names_an_image(out):
        raise ValueError(f"{why}, so OUT must name one; {out} names an image")


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{out}: cannot be made ({error.strerror}); choose another place") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise Failure(f"{out}: cannot be written, no permission; choose another folder")


def _end(failures: Failures) -> None:
    """Print the failures; with any, the exit code is 1."""
    for name, reason in failures:
        typer.echo(f"convforge: {reason if name in reason else f'{name}: {reason}'}", err=True)
    if failures:
        raise typer.Exit(1)


def _filter_listing(
    listing: Listing, source: str, folder: Path | None, out: Path, kernel: Kernel, recipe: Recipe, jobs: int
) -> Failures:
    """Filter images, print the report, and return the failures; the report calls them `source`."""
    from convforge.call.dispatch import runtime_of
    from convforge.imaging.files import load_decoders
    from convforge.imaging.pipeline.folder import FILES, LANES, shares_of
    from convforge.imaging.pipeline.lanes import Clock, lanes_of

    load_decoders(*(path for job in listing.jobs for path in (job.source, job.target)))
    clock, jobs = Clock(), min(jobs, len(listing.jobs))
    begin = perf_counter()
    written, failed = _run(listing, recipe, clock, jobs)
    seconds = perf_counter() - begin
    shares = shares_of(clock.seconds, seconds, {FILES: jobs, LANES: len(lanes_of(runtime_of(recipe.device)))})
    line("in", source)
    if recipe.selection is not None:
        line("part", str(recipe.selection))
    line("out", f"{out}: {count_of(len(written), 'image')}{f'; {len(failed)} failed' if failed else ''}")
    line("kernel", kernel_text(kernel, recipe))
    _print_folder(folder, written, seconds, shares)
    return [(str(path), reason) for path, reason in sorted(failed.items())]


def _run(listing: Listing, recipe: Recipe, clock: Clock, jobs: int) -> tuple[dict[Path, Written], dict[Path, str]]:
    """Filter every image; return the results, and the reasons of failed images. Other errors end the run."""
    from convforge.imaging.pipeline.folder import filter_files
    from convforge.imaging.replacing import interrupts

    written: dict[Path, Written] = {}
    failed: dict[Path, str] = {}
    try:
        with (
            interrupts() as interrupted,
            progress(measuring=False) as watch,
            closing(filter_files(listing.jobs, recipe, clock, workers=jobs)) as results,
        ):
            watch(0, len(listing.jobs), "")
            for count, (job, future) in enumerate(results, start=1):
                try:
                    written[job.source] = future.result()
                except (ValueError, OSError, MemoryError) as error:
                    failed[job.source] = reason_of(error, recipe)
                watch(count, len(listing.jobs), "")
                if interrupted():
                    raise KeyboardInterrupt
    except KeyboardInterrupt as stop:
        done = f"{len(written)} of {len(listing.jobs)} images were filtered, and every file in OUT is complete"
        typer.echo(f"convforge: interrupted; {done}", err=True)
        raise typer.Exit(130) from stop
    return written, failed


def _print_folder(folder: Path | None, written: dict[Path, Written], seconds: float, shares: Sequence[Share]) -> None:
    from rich.console import Console
    from rich.filesize import decimal

    from convforge.imaging.pipeline.folder import limit_of

    done = written.values()
    pixels_in, pixels_out = sum(one.pixels_in for one in done), sum(one.pixels_out for one in done)
    files_in, files_out = sum(one.file_in for one in done), sum(one.file_out for one in done)
    methods = [f"{name} ({count_of(n, 'image')})" for name, n in Counter(one.method for one in done).most_common()]
    gigabytes = (pixels_in + pixels_out) / 1e9 / seconds
    line("method", ", ".join(methods) or "none")
    line("pixels", f"{decimal(pixels_in)} in, {decimal(pixels_out)} out")
    line("files", f"{decimal(files_in)} in, {decimal(files_out)} out")
    line("time", f"{seconds:.3g} s")
    line("rate", f"{len(done) / seconds:.3g} images/s, {gigabytes:.3g} GB/s of pixels, in and out")
    line("limit", limit_of(shares))
    lost: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(written):
        lost.setdefault(written[path].lost, []).append(str(path if folder is None else path.relative_to(folder)))
    for words, names in lost.items():
        if words:
            more = f" and {len(names) - 2} more" if len(names) > 3 else ""
            line("not kept", f"{', '.join(words)} of {', '.join(names[:2] if more else names)}{more}")
    typer.echo()
    table = plain_table()
    table.add_column("stage", no_wrap=True)
    for name in ("busy", "threads", "of their time"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in shares:
        table.add_row(share.stage, f"{share.seconds:.3g} s", str(share.threads), f"{share.of_time:.0%}")
    Console(file=sys.stdout, highlight=False).print(table)
