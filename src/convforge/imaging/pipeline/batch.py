"""Filter many files to files: several images at a time in memory, then the others in units, one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from convforge.call.dispatch import runtime_of
from convforge.imaging.files import declared_of, not_kept, write_image
from convforge.imaging.formats.tiff import LOOSEST_RATIO
from convforge.imaging.image import Array, Image, ImageError, check_proportion, check_size
from convforge.imaging.pipeline.demand import Demand
from convforge.imaging.pipeline.flow import Size, flow
from convforge.imaging.pipeline.folder import UNIT_STAGES, Job, Written
from convforge.imaging.pipeline.folder_journal import FolderJournal, State
from convforge.imaging.pipeline.heap import Heap, return_large_blocks
from convforge.imaging.pipeline.lanes import Clock, Convolved, Lane, lanes_of
from convforge.imaging.pipeline.large import LargeFilter, Watch
from convforge.imaging.pipeline.recipe import Recipe
from convforge.imaging.windowed import Place, Url, format_of

Finished = Generator[tuple[Job, Future[Written]], None, None]


class _Task(NamedTuple):
    """A job that is done in memory, its size, and why it is refused, if it is."""

    job: Job
    source: Path
    size: Size
    fault: ImageError | None = None


class _Loaded(NamedTuple):
    """An image, its pixels as input of the convolution, and the state of its file before it was read."""

    task: _Task
    image: Image
    stack: Array
    state: State | None


class _Computed(NamedTuple):
    """As `_Loaded`, with the result of the convolution in place of its input."""

    task: _Task
    image: Image
    convolved: Convolved
    state: State | None


class Batch:
    """A run of a recipe over many files.

    Parameters
    ----------
    recipe : Recipe
    clock : Clock
        Gets the busy seconds of each of `folder.STAGES`.
    journal : FolderJournal
        Gets a record of each finished image.
    workers : int
        Threads that decode and encode.
    memory : int
        Limit in bytes of all images in work.
    in_units : callable
        True for a job that is done in units, whatever its size.
    watch : callable
        Called with a run before its units are filtered; returns the function that gets its progress.
    """

    def __init__(
        self, recipe: Recipe, clock: Clock, journal: FolderJournal, *, workers: int, memory: int,
        in_units: Callable[[Job], bool], watch: Callable[[LargeFilter], Watch],
    ) -> None:  # fmt: skip
        self._recipe, self._clock, self._journal = recipe, clock, journal
        self._workers, self._memory, self._in_units, self._watch = workers, memory, in_units, watch
        self._demand, self._heap = Demand(recipe), Heap(memory)
        self._is_stopped = False
        self._lanes = lanes_of(runtime_of(recipe.device))
        self._convolver, self._inside = recipe.convolver(clock), Clock()  # times of parts of a stage are not reported

    def __call__(self, jobs: Sequence[Job]) -> Finished:
        """Filter files to files; yield each job when it is finished, with its result or its exception.

        A result replaces an existing file only when complete; missing folders are created. An image goes in units if
        `in_units` says so, or if it takes more memory than the limit and its formats can be read and written so.
        """
        return_large_blocks()
        large: list[Job] = []
        done = flow(
            self._tasks(jobs, large), self._decode, self._compute, self._encode,
            workers=min(self._workers, max(len(jobs), 1)),
            lanes=self._lanes, size=lambda task: task.size, nbytes=self._memory, ordered=False,
        )  # fmt: skip
        try:
            for task, future in done:
                yield task.job, future
        finally:
            done.close()
        for job in large:
            if self._is_stopped:
                return
            future = Future[Written]()
            try:
                future.set_result(self._run_in_units(job))
            except Exception as error:
                future.set_exception(error)
            yield job, future

    def stop(self) -> None:
        """Begin no further image; those in work are finished and yielded."""
        self._is_stopped = True

    def _tasks(self, jobs: Sequence[Job], large: list[Job]) -> Iterator[_Task]:
        """Yield the jobs that are done in memory; append the others to `large`."""
        for job in jobs:
            if self._is_stopped:
                return
            if isinstance(job.source, Url) or self._in_units(job):
                large.append(job)
                continue
            source = Path(job.source)
            try:
                size = self._demand.of(source, job.target)
            except (ValueError, OSError):  # reported when it is read
                size = Size()
            if (needed := size.item + len(self._lanes) * size.lane) <= self._memory:
                yield _Task(job, source, size)
            elif format_of(source) is not None and format_of(job.target) is not None:
                large.append(job)
            else:
                yield _Task(job, source, Size(), self._too_large(source, needed))

    def _too_large(self, source: Path, needed: int) -> ImageError:
        """Return why an image is not read: too many pixels, a damaged header, or more memory than the limit."""
        found = declared_of(source, axes=self._recipe.axes)
        try:
            check_size(
                source, found.height, found.width, bands=found.bands, pages=found.pages,
                max_pixels=self._recipe.max_pixels,
            )  # fmt: skip
            check_proportion(source, found.nbytes, source.stat().st_size, LOOSEST_RATIO)
        except ImageError as error:
            return error
        return ImageError(
            f"{source}: takes {-(-needed // 10**6)} MB of memory, and the limit is {self._memory / 1e6:.0f} MB; allow "
            "more (--memory), or convert it to TIFF and write TIFF, which is filtered in parts"
        )

    def _decode(self, task: _Task) -> _Loaded:
        with self._clock("decode"):
            if task.fault is not None:
                raise task.fault
            state = State.of(task.source)
            task.job.target.parent.mkdir(parents=True, exist_ok=True)
            image = self._recipe.read(task.source)
            self._recipe.check_target(task.job.target, image)
            return _Loaded(task, image, self._recipe.stack(image, self._inside), state)

    def _compute(self, lane: Lane, loaded: _Loaded) -> _Computed:
        task, image, stack, state = loaded
        return _Computed(task, image, self._recipe.convolved(image, stack, self._convolver, lane), state)

    def _encode(self, computed: _Computed) -> Written:
        (job, source, *_), image, convolved, state = computed
        with self._clock("encode"):
            result = self._recipe.finished(image, convolved.sums, self._inside)
            write_image(job.target, result)
        self._journal.record(source, state, job.target)
        self._heap.trim()
        return Written(
            image.pixels.nbytes, result.pixels.nbytes, stored(source), stored(job.target),
            convolved.plan.algorithm.name, not_kept(job.target, result),
        )  # fmt: skip

    def _run_in_units(self, job: Job) -> Written:
        state = State.of(job.source)
        job.target.parent.mkdir(parents=True, exist_ok=True)
        run = LargeFilter(job.source, job.target, self._recipe, memory=self._memory, workers=self._workers)
        clock = Clock()
        notes = run.notes
        outcome = run(self._watch(run), clock)
        for step, seconds in clock.seconds.items():
            self._clock.add(UNIT_STAGES.get(step, step), seconds)
        self._journal.record(job.source, state, job.target)
        return Written(
            run.reader.layout.nbytes, run.result.nbytes, stored(job.source), stored(job.target), run.passes[0].method,
            outcome.lost, outcome.units + outcome.resumed, notes,
        )  # fmt: skip


def stored(place: Place) -> int:
    """Return the bytes of a file, or of all files of an array in a folder; 0 for a URL."""
    if isinstance(place, Url):
        return 0
    if not place.is_dir():
        return place.stat().st_size
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(place) for name in names)
