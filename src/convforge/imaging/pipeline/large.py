"""Filter an image larger than memory: units of the result are read, filtered and written, a few at a time.

A :class:`LargeFilter` is a plan, which can be shown before the run starts. The result is written beside its
place, under a name that ends in `.incomplete`, and gets its name when every unit is written. A journal beside it
records the finished units, so that the same command continues a run that ended early.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Never

import numpy as np

from convforge.call.arguments import IntPair, check_word, pair, refuse_others, whole_number
from convforge.imaging.axes import Axes
from convforge.imaging.filtering import ELSEWHERE, kernel_array
from convforge.imaging.image import Array, Image, ImageError
from convforge.imaging.pipeline.flow import flow
from convforge.imaging.pipeline.heap import trim
from convforge.imaging.pipeline.journal import Journal
from convforge.imaging.pipeline.lanes import LANES, Clock, Lane, lanes_of
from convforge.imaging.pipeline.large_plan import LargePlan
from convforge.imaging.pipeline.recipe import Recipe
from convforge.imaging.pipeline.units import Division
from convforge.imaging.windowed import WindowWriter
from convforge.imaging.windowed.result import publish, remove
from convforge.problem import padding_mode_of

INCOMPLETE, JOURNAL = ".incomplete", ".journal"

# The stages of a unit, each with the steps of the clock that count for it.
STAGES = {"read": ("read", "gray", "widen"), "filter": ("upload", "filter", "download"), "write": ("convert", "write")}

Watch = Callable[[int, int, str], None]


class Rate(NamedTuple):
    """Progress of a run: bytes of samples in and out by second, and the stage whose threads are busiest."""

    bytes_per_second: float
    slowest: str

    def __str__(self) -> str:
        return f"{self.bytes_per_second / 1e9:.3g} GB/s, slowest: {self.slowest}"


class Outcome(NamedTuple):
    """Record of a finished run: units done now and by earlier runs, seconds, rate, and metadata that is lost."""

    units: int
    resumed: int
    seconds: float
    rate: Rate
    lost: tuple[str, ...]


@dataclass(frozen=True)
class _Loaded:
    number: int
    stack: Array


class LargeFilter(LargePlan):
    """A run of a recipe from one file to another in units; see :class:`LargePlan` for its parameters."""

    def __call__(self, watch: Watch = lambda done, total, label: None, clock: Clock | None = None) -> Outcome:
        """Filter every unit that no earlier run has finished, and give the result its name.

        `watch` gets the number of finished units, of all units, and a text with the rate. After an error or an
        interrupt the finished units stay, and the same run continues.
        """
        clock = clock or Clock()
        incomplete = self._beside(INCOMPLETE)
        journal = self._journal()
        try:
            if journal.finished and not incomplete.exists():
                if len(journal.finished) == len(self.division) and self.place.exists():  # killed after the renaming
                    journal.remove()
                    return Outcome(0, len(self.division), 0.0, Rate(0.0, ""), ())
                journal.restart(self._described())
            resumed = len(journal.finished)
            writer = self._writer(incomplete, journal)
            begin = perf_counter()
            try:
                rate = self._run(journal, writer, watch, clock, begin)
            except BaseException:
                if not journal.finished:  # nothing to resume: leave no trace
                    remove(incomplete)
                    journal.remove()
                raise
            writer.finish()
            publish(incomplete, self.place)
            journal.remove()
        finally:
            journal.close()
        done = len(self.division) - resumed
        return Outcome(done, resumed, perf_counter() - begin, rate, self.format.lost(self.reader, self.result))

    def finished(self) -> frozenset[int]:
        """Return the units that an earlier run has finished; its division becomes that of this run."""
        if not self._beside(JOURNAL).exists():
            return frozenset()
        with closing(self._journal()) as journal:
            return frozenset(journal.finished if self._beside(INCOMPLETE).exists() else ())

    def _journal(self) -> Journal:
        """Open the journal; a run that it continues keeps its division."""
        journal = Journal(self._beside(JOURNAL), self._described(), {"unit": self.division.unit})
        try:
            unit = tuple(journal.kept["unit"])
            if unit != self.division.unit:
                self.division = Division(**{**_fields(self.division), "unit": unit})
                self.settle()
        except BaseException:
            journal.close()
            raise
        return journal

    def _beside(self, ending: str) -> Path:
        return self.place.with_name(self.place.name + ending)

    def _described(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the first, by the names of its options."""
        recipe = self.recipe
        return {
            "the version of convforge": _version(),
            "IN": os.path.realpath(self.source),
            "the content of IN": self.reader.fingerprint(),
            "--kernel": hashlib.sha256(repr((recipe.taps.shape, recipe.taps.tobytes())).encode()).hexdigest(),
            "--channels": recipe.channels,
            "--border": recipe.border,
            "--cval": recipe.cval,
            "--stride": recipe.stride,
            "--out-dtype": self.dtype.name,
            "--abs": recipe.magnitude,
            "--scale": recipe.scale,
            "--gray": recipe.gray,
            "--axes": recipe.axes,
            "--device": recipe.device,
            "the method": self.method,
        }

    def _writer(self, incomplete: Path, journal: Journal) -> WindowWriter:
        """Return the writer of the incomplete result: that of the earlier run, or a new one."""
        if journal.finished:
            writer = self.format.reopen(incomplete, self.result, self.reader)
            if (writer.layout.shape, writer.layout.dtype) != (self.result.shape, self.result.dtype):
                raise ImageError(f"{incomplete}: is of another result; remove it and {journal.path} to begin anew")
            return writer
        try:
            remove(incomplete)
            return self.format.create(incomplete, self.result, self.reader)
        except BaseException as error:
            with suppress(OSError):  # a cleanup error must not hide the first error
                remove(incomplete)
            journal.remove()
            if isinstance(error, OSError):
                raise ImageError(f"{self.target}: cannot be written ({error.strerror or error})") from error
            raise

    def _run(self, journal: Journal, writer: WindowWriter, watch: Watch, clock: Clock, begin: float) -> Rate:
        recipe, division, config = self.recipe, self.division, self.plan.config
        convolver = recipe.convolver(clock)
        moved = 0

        def load(number: int) -> _Loaded:
            window = division.window(division.region(number))
            with clock("read"):
                pixels = window.read(self.reader)
            try:
                stack = recipe.stack(Image(pixels, pages=True), clock)
            except ImageError as error:
                raise ImageError(f"{self.source}: {error}") from error
            return _Loaded(number, window.padded(stack, division.problem.padding_value))

        def compute(lane: Lane, loaded: _Loaded) -> tuple[int, Array]:
            plan = self.plan_of(loaded.stack.shape, config)
            return loaded.number, convolver.run(lane, plan, loaded.stack, self.weights[: plan.problem.k]).sums

        def store(computed: tuple[int, Array]) -> int:
            number, sums = computed
            region = division.region(number)
            samples = recipe.samples(sums, self.dtype, clock)
            axes = Axes(self.result.axes)
            sizes = dict(zip(self.result.axes, region, strict=True))
            pages = tuple(sizes[letter].stop - sizes[letter].start for letter in axes.pages)
            with clock("write"):
                writer.write(region, axes.unstack(samples, pages))
            journal.record(number)
            trim()
            return samples.nbytes

        left = [number for number in range(len(division)) if number not in journal.finished]
        share = self.reader.layout.nbytes // len(division)
        results = flow(
            left, load, compute, store, workers=self.workers, lanes=lanes_of(self.runtime),
            size=lambda loaded: self.unit_bytes, nbytes=self.memory, ordered=False,
        )  # fmt: skip
        rate = Rate(0.0, "read")
        with closing(results):
            watch(len(journal.finished), len(division), "")
            for _, future in results:
                moved += future.result() + share
                rate = Rate(moved / (perf_counter() - begin), self._slowest(clock))
                watch(len(journal.finished), len(division), str(rate))
        return rate

    def _slowest(self, clock: Clock) -> str:
        """Return the stage whose threads are busiest."""
        lanes = LANES[self.runtime.facts.backend]
        threads = {"read": self.workers, "filter": lanes, "write": self.workers}
        busy = {name: sum(clock.seconds.get(part, 0.0) for part in parts) for name, parts in STAGES.items()}
        return max(STAGES, key=lambda name: busy[name] / threads[name])


def _version() -> str:
    try:
        return version("convforge")
    except PackageNotFoundError:  # a frozen or copied package
        return "unknown"


def _fields(division: Division) -> dict[str, Any]:
    return {name: getattr(division, name) for name in Division.__dataclass_fields__}


def filter_large(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    kernel: Array | str | os.PathLike[str],
    *,
    channels: str = "each",
    border: str = "reflect",
    cval: float = 0.0,
    stride: IntPair = 1,
    out_dtype: Any = None,
    device: str | None = None,
    algorithm: str = "auto",
    axes: str | None = None,
    memory: int | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    **others: Never,
) -> Outcome:
    """Filter an image that may be larger than memory, from a file to a file; continue a run that ended early.

    Parameters
    ----------
    source, target : path-like
        A Zarr array (`.zarr`) or a `.npy` file each. The target is replaced when the result is complete. Until then it
        is written beside it, to a name that ends in `.incomplete`, with a journal that ends in `.journal`.
    kernel, channels, border, cval, stride, out_dtype, device, algorithm, axes
        As in :func:`convforge.filter`; without `axes`, those that the file names, or those that follow from its shape.
    memory : int, optional
        Limit in bytes of all parts of the image in work; by default a quarter of the machine's memory.
    workers : int, optional
        Threads that read and write; by default the number of cores, at least 2.
    watch : callable, optional
        Called with the number of finished units, of all units, and the rate as a text.

    Returns
    -------
    Outcome
        Units done now and before, seconds, and rate.

    Raises
    ------
    ValueError, TypeError
        As :func:`convforge.filter`; also if a file cannot be read or written, if `memory` does not suffice for one
        unit, or if an unfinished run with other arguments has left its journal.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "a.npy"), Path(folder, "b.npy")
    ...     np.save(source, np.full((1000, 40), 9, np.uint8))
    ...     outcome = filter_large(source, target, "box:3", memory=100_000)
    ...     outcome.units, np.load(target).max()
    (16, np.uint8(9))
    """
    refuse_others("filter_large", others, ELSEWHERE)
    if memory is not None and whole_number(memory, "memory") < 1:
        raise ValueError(f"memory={memory} bytes must be at least 1")
    if workers is not None and whole_number(workers, "workers") < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    if axes is not None:
        check_word(axes, "axes")
    check_word(channels, "channels")
    recipe = Recipe(
        taps=kernel_array(kernel), channels=channels, border=padding_mode_of(border, "border"), cval=cval,
        stride=pair(stride, "stride"), device=device or "cpu", algorithm=algorithm,
        out_dtype=None if out_dtype is None else np.dtype(out_dtype), magnitude=False, scale=1.0, gray=False,
        axes=None if axes is None else Axes(axes.upper()).letters,
    )  # fmt: skip
    run = LargeFilter(Path(source), Path(target), recipe, memory=memory, workers=workers)
    return run() if watch is None else run(watch)
