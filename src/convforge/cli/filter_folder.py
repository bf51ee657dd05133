"""`convforge filter` of many images: of a folder, or several that are named: the plan, a bar, a table, failures."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import typer

from convforge.cli.filter_folder_forecast import size_text, sizes_of, watched
from convforge.cli.filter_folder_report import print_folder
from convforge.cli.filter_forecast import disk_warning
from convforge.cli.filter_large import is_large
from convforge.cli.filter_places import is_folder_of_images, names_an_image
from convforge.cli.filter_report import count_of, kernel_text, line, reason_of, say_waiting
from convforge.cli.filter_streams import STREAM
from convforge.cli.output import Failure, shown

if TYPE_CHECKING:
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.folder import Job, Listing, Written
    from convforge.imaging.pipeline.folder_journal import FolderJournal
    from convforge.imaging.pipeline.lanes import Clock
    from convforge.imaging.pipeline.large import LargeFilter, Watch
    from convforge.imaging.pipeline.recipe import Recipe
    from convforge.imaging.windowed import Place

Failures = list[tuple[str, str]]
"""Names of images and the reasons why they failed."""

# Endings of files that are left alone, which are named.
ENDINGS = 4

# Names of options whose fields of a recipe have other names; those without a name change no pixel of a result.
OPTIONS = {
    "taps": "--kernel", "depth": "--kernel along Z", "algorithm": "--method", "magnitude": "--abs", "max_pixels": "",
    "selection": "--region, --channel, --z or --time",
}  # fmt: skip


def filter_folder(
    folder: Path, out: Path, kernel: Kernel, recipe: Recipe, *, recursive: bool, suffix: str | None, jobs: int,
    memory: int | None,
) -> None:  # fmt: skip
    """Filter the images of a folder to another folder."""
    from convforge.imaging.pipeline.folder import list_folder

    _check_folder(out, f"{folder} is a folder")
    listing = list_folder(folder, out, recursive=recursive, suffix=suffix)
    left = _left_alone(listing)
    is_complete = not listing.left_alone
    if listing.subfolders:
        pronoun = "it" if listing.subfolders == 1 else "them"
        deeper = (
            f"{count_of(listing.subfolders, 'sub-folder')} with images left alone; --recursive filters {pronoun} too"
        )
        left = deeper if is_complete else f"{left}; {deeper}"
        is_complete = False
    if not listing.jobs:
        for error in listing.unreadable:
            raise Failure(reason_of(error, recipe)) from error
        raise Failure(f"{folder}: holds no image ({left})")
    _make(out)
    source = f"{folder}: {count_of(len(listing.jobs), 'image')}{'' if is_complete else f'; {left}'}"
    failures = [(str(error.filename), reason_of(error, recipe)) for error in listing.unreadable]
    _end(failures + _filter_listing(listing, source, folder, out, kernel, recipe, jobs, memory))


def _left_alone(listing: Listing) -> str:
    """Return the number of files that are no images here, with their most frequent endings, and of slides."""
    most = sorted(listing.left_alone, key=lambda ending: (-listing.left_alone[ending], ending))
    endings = ", ".join(most[:ENDINGS]) + (", ..." if len(most) > ENDINGS else "")
    text = f"{count_of(sum(listing.left_alone.values()), 'other file')} left alone"
    text += f" ({endings})" if endings else ""
    if listing.slides:
        text += f", {count_of(listing.slides, 'slide')} among them, which --format tif would filter"
    return text


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
    """Filter several images to a folder, each to its own name."""
    from convforge.imaging.pipeline.folder import Listing

    _check_folder(out, "several images go to a folder")
    listing = Listing(tuple(_jobs(sources, out, suffix)), {})
    _make(out)
    source = count_of(len(listing.jobs), "image")
    _end(_filter_listing(listing, source, None, out, kernel, recipe, jobs, memory))


def _jobs(sources: Sequence[str], out: Path, suffix: str | None) -> list[Job]:
    """Return each image with its target; ``ValueError`` if two have the same target, or one overwrites another."""
    from convforge.imaging.pipeline.folder import Job
    from convforge.imaging.windowed import place_of

    jobs: list[Job] = []
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
        jobs.append(Job(place, target))
    return jobs


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
        known = reason.startswith(" ".join(name.split()))
        typer.echo(f"convforge: {shown(reason if known else f'{name}: {reason}')}", err=True)
    if failures:
        raise typer.Exit(1)


class _Done(NamedTuple):
    """The results of a run, the reasons of failed images, and the number of images that an earlier run has finished."""

    written: dict[Place, Written]
    failed: dict[Place, str]
    before: int


def _filter_listing(
    listing: Listing, source: str, folder: Path | None, out: Path, kernel: Kernel, recipe: Recipe, jobs: int,
    memory: int | None,
) -> Failures:  # fmt: skip
    """Filter images between the plan and the report; return the failures. The plan calls the images `source`."""
    from rich.filesize import decimal

    from convforge.call.dispatch import runtime_of
    from convforge.imaging.files import load_decoders
    from convforge.imaging.pipeline.folder import FILES, LANES, shares_of
    from convforge.imaging.pipeline.folder_journal import FolderJournal
    from convforge.imaging.pipeline.lanes import Clock, lanes_of, memory_share
    from convforge.imaging.windowed import Url

    load_decoders(*(Path(place.name) for job in listing.jobs for place in job))
    runtime = runtime_of(recipe.device)
    journal = FolderJournal(out, _options(recipe))
    if journal.differs:
        names = ", ".join(journal.differs)
        typer.echo(f"convforge: {out}: an unfinished run differs in {names}; all images are filtered again", err=True)
    line("in", source)
    if recipe.selection is not None:
        line("part", str(recipe.selection))
    line("kernel", kernel_text(kernel, recipe))
    limit = memory_share() if memory is None else memory
    sizes = sizes_of(listing.jobs)
    left = [job for job in listing.jobs if not journal.has(*job)]
    remote = sum(isinstance(place, Url) for place in sizes)
    line("size", size_text(sizes, [job.source for job in left], remote))
    line("memory", f"{decimal(limit)} at most for all images in work")
    sys.stdout.flush()
    clock = Clock()
    begin = perf_counter()
    done = _run(left, sizes, recipe, clock, journal, jobs, limit)
    seconds = perf_counter() - begin
    in_units = any(one.units for one in done.written.values())
    shares = shares_of(
        clock.seconds,
        seconds,
        {FILES: jobs if in_units else min(jobs, len(listing.jobs)), LANES: len(lanes_of(runtime))},
    )
    before = f"; {done.before} were finished before" if done.before else ""
    failed = f"; {len(done.failed)} failed" if done.failed else ""
    rest = len(listing.jobs) - done.before - len(done.written) - len(done.failed)
    not_begun = f"; {rest} not begun" if rest else ""
    line("out", f"{out}: {count_of(len(done.written), 'image')}{before}{failed}{not_begun}")
    print_folder(folder, done.written, seconds, shares)
    failures = [(str(place), reason) for place, reason in sorted(done.failed.items(), key=lambda each: str(each[0]))]
    if rest:
        failures.append((str(out), "the disk is full; make room, and the same command does the rest"))
    return failures


def _options(recipe: Recipe) -> dict[str, str]:
    """Return what the results of a recipe depend on, by the names of the options."""
    from convforge import __version__

    found = {"the version of convforge": __version__}
    for field in fields(recipe):
        if name := OPTIONS.get(field.name, f"--{field.name.replace('_', '-')}"):
            found[name] = str(getattr(recipe, field.name))
    kernel = repr((recipe.taps.shape, recipe.taps.dtype.name, recipe.taps.tobytes()))
    return {**found, "--kernel": hashlib.sha256(kernel.encode()).hexdigest()}


def _run(
    left: Sequence[Job], sizes: Mapping[Place, int], recipe: Recipe, clock: Clock, journal: FolderJournal, jobs: int,
    memory: int,
) -> _Done:  # fmt: skip
    """Filter the images of `sizes` that are left by an earlier run. Errors that are no image's end the run."""
    from convforge.imaging.pipeline.batch import Batch
    from convforge.imaging.replacing import interrupts

    done = _Done({}, {}, len(sizes) - len(left))
    finished = is_warned = False
    in_parts: LargeFilter | None = None
    try:
        with (
            interrupts(say_waiting) as interrupted,
            watched({job.source: sizes[job.source] for job in left}, done.before) as forecast,
        ):

            def watch(run: LargeFilter) -> Watch:
                nonlocal is_warned, in_parts
                in_parts = run
                if not is_warned and (warning := disk_warning(run, 0)):
                    is_warned = True
                    typer.echo(f"convforge: {shown(warning)}", err=True)
                return forecast.units(run.source, run.target.name)

            batch = Batch(
                recipe, clock, journal, workers=jobs, memory=memory,
                in_units=lambda job: is_large(
                    *job, None, recipe.max_pixels, volume=recipe.depth is not None, spacing=recipe.spacing
                ),
                watch=watch,
            )  # fmt: skip
            forecast.start()
            with closing(batch(left)) as results:
                for job, future in results:
                    try:
                        done.written[job.source] = future.result()
                    except (ValueError, OSError, MemoryError) as error:
                        done.failed[job.source] = reason_of(error, recipe)
                        if _is_disk_full(error):
                            batch.stop()
                    forecast.finish(job.source, failed=job.source in done.failed)
                    if interrupted():
                        raise KeyboardInterrupt
            finished = not done.failed  # images that were not begun follow a failure
    except KeyboardInterrupt as stop:
        count = f"{done.before + journal.recorded} of {len(sizes)} images were filtered"
        rest = journal.fault or "the same command does the rest"
        is_partial = in_parts is not None and in_parts.source not in {*done.written, *done.failed}
        if in_parts is not None and is_partial and (units := len(in_parts.finished())):
            rest = f"of {in_parts.target} {units} of {count_of(in_parts.units, 'unit')} are finished; {rest}"
        typer.echo(f"convforge: interrupted; {shown(f'{count}, and every image in OUT is complete; {rest}')}", err=True)
        raise typer.Exit(130) from stop
    finally:
        journal.close(finished=finished)
    return done


def _is_disk_full(error: BaseException | None) -> bool:
    """True if an error, or what has caused it, is a full disk or a quota that is used up."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        seen.add(id(error))  # an error may be its own cause
        error = error.__cause__
    return False
