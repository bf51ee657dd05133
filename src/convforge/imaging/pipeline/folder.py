"""Filter a folder of images into another folder."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from convforge.call.dispatch import runtime_of
from convforge.imaging.files import WRITABLE_SUFFIXES, not_kept, write_image
from convforge.imaging.image import Array, Image
from convforge.imaging.pipeline.flow import flow
from convforge.imaging.pipeline.lanes import Clock, Convolved, Lane, lanes_of, memory_share
from convforge.imaging.pipeline.recipe import Recipe

# The stages of an image in their order, with the threads that run them: file threads or the device's lanes.
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


class Job(NamedTuple):
    """An image file to read, and the file to write."""

    source: Path
    target: Path


class Listing(NamedTuple):
    """The images of a folder by name, the number of other files, and the errors of unreadable folders."""

    jobs: tuple[Job, ...]
    left_alone: int
    unreadable: tuple[OSError, ...] = ()


class Written(NamedTuple):
    """A finished image: bytes of pixels and of files in and out, the method, and the lost metadata."""

    pixels_in: int
    pixels_out: int
    file_in: int
    file_out: int
    method: str
    lost: tuple[str, ...] = ()


def list_folder(folder: Path, out: Path, *, recursive: bool = False, suffix: str | None = None) -> Listing:
    """List the images of a folder, each with its target: the same path under `out`, with `suffix` if given.

    An image is a file with an ending that can be read. Hidden files and folders are ignored, links to folders are not
    followed, and `out` is skipped if it is inside `folder`. ``ValueError`` if `out` is `folder` or a file, if two
    images would become one file, or if one would overwrite another that is still to be read.
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
    """Yield every file of a folder and, if `recursive`, of its sub-folders, by name."""
    skipped = os.path.realpath(out)
    for place, folders, files in os.walk(folder, onerror=unreadable.append):
        seen = [name for name in folders if not name.startswith(".")] if recursive else []
        folders[:] = sorted(name for name in seen if os.path.realpath(os.path.join(place, name)) != skipped)
        for name in sorted(files):
            yield Path(place, name)


def _check_apart(jobs: Sequence[Job]) -> None:
    """Refuse a job that would write a file which another job writes or reads."""

    def same(path: Path) -> str:
        """Return one text for all names of a file, links resolved."""
        return os.path.normcase(os.path.realpath(path))

    sources = {same(job.source): job for job in jobs}
    targets: dict[str, Job] = {}
    for job in jobs:
        key = same(job.target)
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


class _Loaded(NamedTuple):
    """An image that was read, its pixels for the convolution, and the bytes of its file."""

    job: Job
    image: Image
    stack: Array
    file_in: int


def filter_files(
    jobs: Sequence[Job], recipe: Recipe, clock: Clock, *, workers: int
) -> Generator[tuple[Job, Future[Written]], None, None]:
    """Filter files to files; yield each job when it is done, with its result or its exception.

    A result is complete before it replaces an earlier file; folders are made when needed. The clock gets the busy
    seconds of `STAGES`; `workers` threads decode and encode.
    """
    convolver, inside = recipe.convolver(clock), Clock()  # parts of decode and encode are not reported

    def decode(job: Job) -> _Loaded:
        with clock("decode"):
            job.target.parent.mkdir(parents=True, exist_ok=True)
            image = recipe.read(job.source)
            recipe.check_target(job.target, image)
            return _Loaded(job, image, recipe.stack(image, inside), job.source.stat().st_size)

    def compute(lane: Lane, loaded: _Loaded) -> tuple[_Loaded, Convolved]:
        return loaded, recipe.convolved(loaded.image, loaded.stack, convolver, lane)

    def encode(computed: tuple[_Loaded, Convolved]) -> Written:
        loaded, convolved = computed
        target = loaded.job.target
        with clock("encode"):
            result = recipe.finished(loaded.image, convolved.sums, inside)
            write_image(target, result)
        return Written(
            loaded.image.pixels.nbytes, result.pixels.nbytes, loaded.file_in, target.stat().st_size,
            convolved.plan.algorithm.name, not_kept(target, result),
        )  # fmt: skip

    yield from flow(
        jobs, decode, compute, encode, workers=workers, lanes=lanes_of(runtime_of(recipe.device)),
        size=lambda loaded: loaded.image.pixels.nbytes + 2 * loaded.stack.nbytes, nbytes=memory_share(), ordered=False,
    )  # fmt: skip


class Share(NamedTuple):
    """A stage's busy seconds over all its threads, and their fraction of those threads' time."""

    stage: str
    seconds: float
    threads: int
    of_time: float


def shares_of(busy: dict[str, float], seconds: float, threads: dict[str, int]) -> list[Share]:
    """Return the share of each stage that used any time, in the order of the stages."""
    found = [(stage, busy.get(stage, 0.0), threads[whose]) for stage, whose in STAGES.items()]
    return [Share(stage, spent, count, spent / count / seconds) for stage, spent, count in found if spent]


def limit_of(shares: Sequence[Share]) -> str:
    """Name the busiest threads and their longest stage."""
    together = {FILES: 0.0, LANES: 0.0}
    for share in shares:
        together[STAGES[share.stage]] += share.of_time
    whose = max(together, key=together.__getitem__)
    most = max((share for share in shares if STAGES[share.stage] == whose), key=lambda share: share.seconds)
    kind = f"{'thread' if whose == FILES else 'lane'}{'' if most.threads == 1 else 's'}"
    at = "reading and writing" if whose == FILES else "of the device"
    what = " (kernels compiled or read from the cache)" if most.stage == "first call" else ""
    return f"{most.stage}{what}: {most.threads} {kind} {at} at work {together[whose]:.0%} of the time, on that most"
