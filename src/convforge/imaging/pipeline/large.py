"""Filter an image larger than memory: units of the result are read, filtered and written, a few at a time.

A :class:`LargeFilter` is a plan, which can be shown before the run starts. The result is written beside its
place, under a name that ends in `.incomplete`, and gets its name when every unit is written. A journal beside it
records the finished units, so that the same command continues a run that ended early.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, NamedTuple

from convforge.call.dispatch import runtime_of
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.flow import flow, quick_turns
from convforge.imaging.pipeline.heap import Heap
from convforge.imaging.pipeline.journal import Journal
from convforge.imaging.pipeline.lanes import Clock, HostRing, Lane
from convforge.imaging.pipeline.large_plan import LargePlan, traffic_of
from convforge.imaging.pipeline.passes import Computed, Loaded, Pass, lanes_on
from convforge.imaging.windowed import Url, Windows, WindowWriter
from convforge.imaging.windowed.result import inode_of, publish, remove, remove_replaced

# The stages of a unit, each with the steps of the clock that count for it.
STAGES = {"read": ("read", "gray", "widen"), "filter": ("upload", "filter", "download"), "write": ("convert", "write")}

CONTENT = "the content of IN"

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


class LargeFilter(LargePlan):
    """A run of a recipe from one file to another in units; see :class:`LargePlan` for its parameters."""

    def __call__(self, watch: Watch = lambda done, total, label: None, clock: Clock | None = None) -> Outcome:
        """Filter every unit that no earlier run has finished, and give the result its name.

        `watch` gets the number of finished units, of all units, and a text with the rate. After an error or an
        interrupt the finished units stay, and the same run continues.
        """
        clock = clock or Clock()
        lost = self.lost  # now: the result may replace the source
        journal = self._journal()
        try:
            if self._is_published(journal):
                remove_replaced(self.incomplete, self.place)
                journal.remove()
                return Outcome(0, self.units, 0.0, Rate(0.0, ""), ())
            if journal.finished and not self._is_begun():
                journal.restart(self._described())
            resumed = len(journal.finished)
            writer = self._writer(journal)
            begin = perf_counter()
            try:
                with quick_turns():
                    rate = self._run(journal, writer, watch, clock, begin)
                self._check_source(journal)
                writer.finish()
            except BaseException:
                if not journal.finished:  # nothing to resume: leave no trace
                    remove(self.incomplete)
                    journal.remove()
                raise
            journal.publish(inode_of(self.incomplete))
            publish(self.incomplete, self.place)
            journal.remove()
        finally:
            journal.close()
        return Outcome(self.units - resumed, resumed, perf_counter() - begin, rate, lost)

    def finished(self) -> frozenset[int]:
        """Return the units that an earlier run has finished; its division becomes that of this run."""
        if not self.journal_path.exists():
            return frozenset()
        with closing(self._journal()) as journal:
            return frozenset(journal.finished if self._is_begun() else ())

    @cached_property
    def _content(self) -> str:
        """The content of the source at the begin."""
        return self.reader.fingerprint()

    def _check_source(self, journal: Journal) -> None:
        """Raise ``ImageError`` if the source has changed: a chunk that Zarr lacks would be the fill value."""
        try:
            same = self.reader.fingerprint() == self._content
        except OSError:
            same = False
        if not same:
            raise ImageError(
                f"{self.source}: changed or was removed while it was read, so the result is not kept; remove "
                f"{journal.path} and {self.incomplete}, and repeat the command"
            )

    def _is_begun(self) -> bool:
        """True if an earlier run's result may be there; an object store tells it when it is opened."""
        return isinstance(self.incomplete, Url) or self.incomplete.exists()

    def _is_published(self, journal: Journal) -> bool:
        """True if an earlier run was killed when its result had its name already, before it removed the journal."""
        if len(journal.finished) < self.units or isinstance(self.place, Url) or not self.place.exists():
            return False
        return not self._is_begun() or journal.result == inode_of(self.place)

    def _journal(self) -> Journal:
        """Open the journal; a run that it continues keeps its divisions."""
        units = [each.division.unit for each in self.passes]
        in_place = os.path.realpath(str(self.source)) == str(self.place)
        journal = Journal(self.journal_path, self._described(), {"units": units}, (CONTENT,) if in_place else ())
        try:
            for each, unit in zip(self.passes, journal.kept["units"], strict=True):
                each.take(tuple(unit))
        except BaseException:
            journal.close()
            raise
        return journal

    def _described(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the first, by the names of its options."""
        recipe = self.recipe
        kernel = (recipe.taps.shape, recipe.taps.tobytes(), recipe.depth)
        return {
            "the version of convforge": _version(),
            "IN": str(self.source) if isinstance(self.source, Url) else os.path.realpath(self.source),
            CONTENT: self._content,
            "--kernel": hashlib.sha256(repr(kernel).encode()).hexdigest(),
            "--channels": recipe.channels,
            "--border": recipe.border,
            "--cval": recipe.cval,
            "--stride": recipe.stride,
            "--out-dtype": self.result.dtype.name,
            "--abs": recipe.magnitude,
            "--scale": recipe.scale,
            "--gray": recipe.gray,
            "--axes": recipe.axes,
            "--spacing": dict(recipe.spacing or {}),
            "--region, --channel, --z or --time": None if recipe.selection is None else str(recipe.selection),
            "--device": recipe.device,
            "the method": self.passes[0].method,
        }

    def _writer(self, journal: Journal) -> WindowWriter:
        """Return the writer of the incomplete result: that of the earlier run, or a new one."""
        place = self.incomplete
        if journal.finished:
            other = ImageError(f"{place}: is of another result; remove it and {journal.path} to begin anew")
            if journal.result not in (None, inode_of(place)):
                raise other
            writer = self.format.reopen(place, self.result, self.file)
            if (writer.layout.shape, writer.layout.dtype) != (self.result.shape, self.result.dtype):
                raise other
            return writer
        try:
            remove(place)
            return self.format.create(place, self.result, self.file)
        except BaseException as error:
            with suppress(OSError):  # a cleanup error must not hide the first error
                remove(place)
            journal.remove()
            if isinstance(error, OSError):
                raise ImageError(f"{self.target}: cannot be written ({error.strerror or error})") from error
            raise

    def _run(self, journal: Journal, writer: WindowWriter, watch: Watch, clock: Clock, begin: float) -> Rate:
        """Run every pass: that of the filter, then those of the reduced copies, each of the copy before."""
        sources: list[Windows] = [self.reader, writer, *writer.levels[:-1]]
        rate, moved, first = Rate(0.0, "read"), 0, 0
        heap = Heap(self.needs)
        watch(len(journal.finished), self.units, "")
        for step, reader, target in zip(self.passes, sources, [writer, *writer.levels], strict=False):
            for nbytes in self._pass(step, first, reader, target, journal, clock, heap):
                moved += nbytes
                rate = Rate(moved / (perf_counter() - begin), self._slowest(clock))
                watch(len(journal.finished), self.units, str(rate))
            first += len(step.division)
        return rate

    def _pass(
        self, step: Pass, first: int, reader: Windows, writer: WindowWriter, journal: Journal, clock: Clock,
        heap: Heap,
    ) -> Iterator[int]:  # fmt: skip
        """Compute the units of a pass that are left; yield the bytes in and out of each. Its first unit is `first`."""
        convolvers = {device: step.recipe.convolver(clock, device) for device in self.devices}
        share = traffic_of(step)[0] // len(step.division)
        ring = HostRing(runtime_of(self.devices[0]), step.buffer_bytes)

        def load(number: int) -> Loaded:
            try:
                return step.load(reader, number, ring, clock)
            except ImageError as error:
                if str(error).startswith(str(self.source)):
                    raise
                raise ImageError(f"{self.source}: {error}") from error

        def compute(lane: tuple[str, Lane], loaded: Loaded) -> Computed:
            device, own = lane
            return step.compute(own, device, convolvers[device], loaded, ring)

        def store(computed: Computed) -> int:
            nbytes = step.store(writer, computed, ring, clock)
            journal.record(first + computed.number)
            heap.trim()
            return nbytes

        left = (number for number in range(len(step.division)) if first + number not in journal.finished)
        results = flow(
            left, load, compute, store, workers=self.workers, lanes=lanes_on(self.devices),
            most=step.most, ordered=False,
        )  # fmt: skip
        with closing(results):
            for _, future in results:
                yield future.result() + share

    def _slowest(self, clock: Clock) -> str:
        """Return the stage whose threads are busiest."""
        threads = {"read": self.workers, "filter": self.passes[0].limits.lanes, "write": self.workers}
        busy = {name: sum(clock.seconds.get(part, 0.0) for part in parts) for name, parts in STAGES.items()}
        return max(STAGES, key=lambda name: busy[name] / threads[name])


def _version() -> str:
    try:
        return version("convforge")
    except PackageNotFoundError:  # a frozen or copied package
        return "unknown"
