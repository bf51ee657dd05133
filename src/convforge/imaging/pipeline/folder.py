"""A folder of images to another: which files, under which names, and all of them through the pipeline."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from convforge.call.dispatch import runtime_of
from convforge.imaging.files import WRITABLE_SUFFIXES, check_writable, not_kept, write_image
from convforge.imaging.image import Image
from convforge.imaging.pipeline.clock import Clock
from convforge.imaging.pipeline.convolver import Convolved
from convforge.imaging.pipeline.flow import flow
from convforge.imaging.pipeline.lanes import Lane, lanes_of, memory_share
from convforge.imaging.pipeline.recipe import Array, Reading, Recipe


@dataclass(frozen=True, slots=True)
class Job:
    """An image to read, and the file to write."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds.

    Attributes
    ----------
    jobs : tuple of Job
        In the order of their names.
    left_alone : int
        Files that are hidden, or whose ending is no image's.
    unreadable : tuple of OSError
        Folders that could not be looked into.
    """

    jobs: tuple[Job, ...]
    left_alone: int
    unreadable: tuple[OSError, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """An image that is done: bytes of pixels in and out, of files in and out, the method, and what was not kept."""

    pixels_in: int
    pixels_out: int
    file_in: int
    file_out: int
    method: str
    lost: tuple[str, ...] = ()


def list_folder(folder: Path, out: Path, *, recursive: bool = False, suffix: str | None = None) -> Listing:
    """The images of a folder, and where each goes: to the same place under `out`, with another ending if asked.

    An image is a file with an ending that can be read. Hidden files and folders are left alone, links to folders are
    not followed, and `out` is left out where it stands inside `folder`.

    Parameters
    ----------
    folder, out : Path
        `folder` is there; `out` need not be.
    recursive : bool
        Sub-folders too.
    suffix : str, optional
        Such as ".png": the format of all results; by default each keeps its own.

    Raises
    ------
    ValueError
        `out` is `folder`, or a file; or two images would become one file; or one would overwrite another that is
        still to be read.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for file in ("b.tif", "a.PNG", "notes.txt", ".hidden.png"):
    ...         Path(name, file).touch()
    ...     found = list_folder(Path(name), Path(name, "out"), suffix=".jpg")
    >>> [(job.source.name, job.target.name) for job in found.jobs], found.left_alone
    ([('a.PNG', 'a.jpg'), ('b.tif', 'b.jpg')], 2)
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: is a file, and {folder} is a folder; name a folder for the results")
    if os.path.realpath(out) == os.path.realpath(folder):
        raise ValueError(f"{out}: is the folder of the images, which would be overwritten; name another")
    jobs, left_alone, unreadable = [], 0, list[OSError]()
    for path in _files(folder, out, recursive, unreadable):
        if path.name.startswith(".") or path.suffix.lower() not in WRITABLE_SUFFIXES:
            left_alone += 1
            continue
        target = out / path.relative_to(folder)
        jobs.append(Job(path, target if suffix is None else target.with_suffix(suffix)))
    _check_apart(jobs)
    return Listing(tuple(jobs), left_alone, tuple(unreadable))


def _files(folder: Path, out: Path, recursive: bool, unreadable: list[OSError]) -> Iterator[Path]:
    """Every file of a folder and, if asked, of its sub-folders, in the order of their names."""
    skipped = os.path.realpath(out)
    for place, folders, files in os.walk(folder, onerror=unreadable.append):
        seen = [name for name in folders if not name.startswith(".")] if recursive else []
        folders[:] = sorted(name for name in seen if os.path.realpath(os.path.join(place, name)) != skipped)
        for name in sorted(files):
            yield Path(place, name)


def _check_apart(jobs: Sequence[Job]) -> None:
    """Refuse jobs of which one would write what another writes or reads."""
    sources = {_same(job.source): job for job in jobs}
    targets: dict[str, Job] = {}
    for job in jobs:
        key = _same(job.target)
        if key in targets:
            raise ValueError(
                f"{targets[key].source} and {job.source} would both become {job.target}; rename one of them, or keep "
                "their formats"
            )
        if key in sources:
            raise ValueError(
                f"{job.source} would overwrite {sources[key].source}, which is to be filtered too; name another folder "
                "for the results"
            )
        targets[key] = job


def _same(path: Path) -> str:
    """The same text for every name of one file, links followed."""
    return os.path.normcase(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class _Sheet:
    """An image that was read; its pixels as they are convolved; bytes of its file."""

    job: Job
    image: Image
    stack: Array
    file_in: int


def filter_files(
    jobs: Sequence[Job], recipe: Recipe, clock: Clock, *, workers: int, reading: Reading
) -> Generator[tuple[Job, Future[Written]], None, None]:
    """Filter files to files; each job comes back when it is done, with what was written or why not.

    A result is complete before it replaces what is there; folders are made as they are needed.

    Parameters
    ----------
    jobs : sequence of Job
    recipe : Recipe
    clock : Clock
        Gets the busy seconds of "decode", "plan", "first call", "upload", "filter", "download" and "encode".
    workers : int
        Threads that decode and encode.
    reading : Reading
    """
    convolver, inside = recipe.convolver(clock), Clock()  # decode and encode are told as wholes

    def decode(job: Job) -> _Sheet:
        with clock("decode"):
            job.target.parent.mkdir(parents=True, exist_ok=True)
            image = reading(job.source)
            check_writable(
                job.target, recipe.dtype(image), bands=recipe.bands(image), pages=image.pages,
                alpha=image.alpha is not None,
            )  # fmt: skip
            return _Sheet(job, image, recipe.loaded(image, inside), job.source.stat().st_size)

    def compute(lane: Lane, sheet: _Sheet) -> tuple[_Sheet, Convolved]:
        return sheet, recipe.convolved(sheet.image, sheet.stack, convolver, lane)

    def encode(computed: tuple[_Sheet, Convolved]) -> Written:
        sheet, convolved = computed
        with clock("encode"):
            result = recipe.finished(sheet.image, convolved.sums, inside)
            write_image(sheet.job.target, result)
        return Written(
            sheet.image.pixels.nbytes, result.pixels.nbytes, sheet.file_in, sheet.job.target.stat().st_size,
            convolved.plan.algorithm.name, not_kept(sheet.job.target, result),
        )  # fmt: skip

    yield from flow(
        jobs, decode, compute, encode, workers=workers, lanes=lanes_of(runtime_of(recipe.device)), size=_nbytes,
        nbytes=memory_share(), ordered=False,
    )  # fmt: skip


def _nbytes(sheet: _Sheet) -> int:
    """What an image, the pixels that are filtered and the result take, roughly."""
    return sheet.image.pixels.nbytes + 2 * sheet.stack.nbytes
