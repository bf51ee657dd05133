"""Filter the images of a folder and write them to another folder."""

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

# The stages of an image in order, each with the threads that run it: file threads or lanes of the device.
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
    """Path of an image to read, and path of the result to write."""

    source: Path
    target: Path


class Listing(NamedTuple):
    """The images of a folder in order of their names, the number of other files, and errors of unreadable folders."""

    jobs: tuple[Job, ...]
    left_alone: int
    unreadable: tuple[OSError, ...] = ()


class Written(NamedTuple):
    """Record of a finished image: bytes of pixels and files in and out, the method, and the lost metadata."""

    pixels_in: int
    pixels_out: int
    file_in: int
    file_out: int
    method: str
    lost: tuple[str, ...] = ()


def list_folder(folder: Path, out: Path, *, recursive: bool = False, suffix: str | None = None) -> Listing:
    """List the images of a folder, each with its target: the same path under `out`, with `suffix` if given.

    An image is a file with a supported suffix. Hidden files and folders are ignored, links to folders are not followed,
    and `out` is skipped if it is inside `folder`. ``ValueError`` if `out` is `folder` or a file, if two images have the
    same target, or if a target is another image that has yet to be read.
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
    """Yield the files of a folder and, if `recursive`, of its sub-folders, in order of their names."""
    skipped = os.path.realpath(out)
    for place, folders, files in os.walk(folder, onerror=unreadable.append):
        seen = [name for name in folders if not name.startswith(".")] if recursive else []
        folders[:] = sorted(name for name in seen if os.path.realpath(os.path.join(place, name)) != skipped)
        for name in sorted(files):
            yield Path(place, name)


def _check_apart(jobs: Sequence[Job]) -> None:
    """Raise ``ValueError`` if a job would write a file that another job writes or reads."""

    def same(path: Path) -> str:
        """Return a text that is equal for all paths of a file, with links resolved."""
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
    """An image, its pixels as input of the convolution, and the size of its file in bytes."""

    job: Job
    image: Image
    stack: Array
    file_in: int


def filter_files(
    jobs: Sequence[Job], recipe: Recipe, clock: Clock, *, workers: int
) -> Generator[tuple[Job, Future[Written]], None, None]:
    """Filter files to files; yield each job when it is finished, with its result or its exception.

    A result replaces an existing file only when complete; missing folders are created. `clock` gets the busy seconds of
    each of `STAGES`; `workers` threads decode and encode.
    """
    convolver, inside = recipe.convolver(clock), Clock()  # times of parts of decode and encode are not reported

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
    """Busy seconds of a stage, summed over its threads, and their fraction of the total time of these threads."""

    stage: str
    seconds: float
    threads: int
    of_time: float


def shares_of(busy: dict[str, float], seconds: float, threads: dict[str, int]) -> list[Share]:
    """Return the share of each stage that took any time, in the order of the stages."""
    found = [(stage, busy.get(stage, 0.0), threads[whose]) for stage, whose in STAGES.items()]
    return [Share(stage, spent, count, spent / count / seconds) for stage, spent, count in found if spent]


def limit_of(shares: Sequence[Share]) -> str:
    """Return a text that names the busiest threads and their longest stage."""
    together = {FILES: 0.0, LANES: 0.0}
    for share in shares:
        together[STAGES[share.stage]] += share.of_time
    whose = max(together, key=together.__getitem__)
    most = max((share for share in shares if STAGES[share.stage] == whose), key=lambda share: share.seconds)
    kind = f"{'thread' if whose == FILES else 'lane'}{'' if most.threads == 1 else 's'}"
    at = "reading and writing" if whose == FILES else "of the device"
    what = " (kernels compiled or read from the cache)" if most.stage == "first call" else ""
    return f"{most.stage}{what}: {most.threads} {kind} {at} at work {together[whose]:.0%} of the time, on that most"
