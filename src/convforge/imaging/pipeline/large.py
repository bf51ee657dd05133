"""Filter an image larger than memory: units of the result are read, filtered and written, a few at a time.

:class:`LargeFilter` plans a run, which can be shown before it starts, and runs it. The result is written beside its
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

from convforge.algorithms.contract import Plan
from convforge.call.arguments import IntPair, check_word, pair, refuse_others, whole_number
from convforge.call.dispatch import find_plan, runtime_of
from convforge.errors import UnsupportedProblem
from convforge.imaging.axes import Axes
from convforge.imaging.filtering import ELSEWHERE, kernel_array
from convforge.imaging.image import Array, Image, ImageError
from convforge.imaging.pipeline.flow import flow, in_flight
from convforge.imaging.pipeline.heap import trim
from convforge.imaging.pipeline.journal import Journal
from convforge.imaging.pipeline.lanes import LANES, Clock, Lane, lanes_of, memory_share
from convforge.imaging.pipeline.recipe import COMPUTABLE, Recipe
from convforge.imaging.pipeline.units import LARGEST_RESULT, Division, bytes_of, decoded
from convforge.imaging.windowed import WindowWriter, format_of, open_windows
from convforge.imaging.windowed.result import check_places, letters_of, publish, remove, result_layout
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


class LargeFilter:
    """A run of a recipe from one file to another in units, within `memory` bytes.

    Parameters
    ----------
    source, target : Path
        Zarr arrays or `.npy` files, one of each or two of a kind; they may be the same.
    recipe : Recipe
    memory : int, optional
        Limit in bytes of all units in work; by default a quarter of the machine's memory.
    workers : int, optional
        Threads that read and write; by default the number of cores, at least 2.

    Attributes
    ----------
    reader : WindowReader
    result : Layout
    division : Division
    plan : Plan
        Plan of a whole unit. Its method is chosen for the whole image, and its config for a whole unit.
    most : int
        Units in work at the same time.
    needs : int
        Bytes of them.

    Raises
    ------
    ImageError, ValueError, UnsupportedProblem
        A file cannot be read or written, `memory` does not suffice for one unit, no method computes the filter.
    """

    def __init__(
        self, source: Path, target: Path, recipe: Recipe, *, memory: int | None = None, workers: int | None = None
    ) -> None:
        self.reader = open_windows(source)
        self.source, self.target, self.recipe = source, target, recipe
        self.memory = memory_share() if memory is None else memory
        self.workers = workers or max(runtime_of("cpu").facts.cores, 2)
        self._runtime = runtime_of(recipe.device)
        kind = format_of(target)
        if kind is None or kind.suffix != target.suffix.lower():
            raise ImageError(f"{target}: is not written in windows; write .zarr or .npy")
        self._format = kind
        self._place = Path(os.path.realpath(target))  # the target of a symbolic link is replaced, not the link
        check_places(source, target)
        if self._place.exists() and not kind.is_own(self._place):
            raise ImageError(f"{target}: exists and is no {kind.name} array, so it is not replaced; name another")
        letters = letters_of(self.reader.path, self.reader.layout, recipe.axes)
        self._dtype = recipe.out_dtype or self.reader.layout.dtype
        problem, self._weights = self._whole_problem(letters)
        layout = result_layout(
            self.reader.layout, letters, self._dtype, named=bool(recipe.axes or self.reader.layout.axes),
            bands=self._bands, stride=recipe.stride,
        )  # fmt: skip
        self.result = kind.arranged(layout)
        unit = tuple(map(min, self.result.shards or self.result.shape, self.result.shape))
        whole = Division(problem, letters, self.reader.layout.shape, self.result.axes, self.result.shape, unit)
        self._method = self._method_for(whole)
        self.division = self._largest_that_fits(whole)
        self._settle()

    def _settle(self) -> None:
        """Set what follows from the division."""
        self.plan = self._plan(self._unit_shape(self.division))
        self.unit_bytes = self._bytes_of_unit(self.division)
        most = min(in_flight(self.workers, LANES[self._runtime.facts.backend]), len(self.division))
        self.most = min(most, self.memory // self.unit_bytes)
        if not self.most:
            raise ImageError(
                f"{self.source}: a memory of {self.memory} bytes is too small: one unit of "
                f"{' x '.join(map(str, self.division.unit))} samples needs {self.unit_bytes}; allow that many "
                "(--memory), or write smaller shards"
            )
        self.needs = self.most * self.unit_bytes

    # The plan of a run.

    def _whole_problem(self, letters: str) -> tuple[Any, Array]:
        """Return the problem of the whole image as one stack, and the weights; nothing is read."""
        recipe, axes = self.recipe, Axes(letters)
        sizes = axes.sizes(self.reader.layout.shape)
        bands, pages = sizes.get(axes.bands, 1), int(np.prod([sizes[letter] for letter in axes.pages], dtype=object))
        if recipe.gray and bands > 1:
            if bands != 3:
                raise ValueError(f"--gray needs red, green and blue; the image has {bands} bands")
            bands = 1
        dtype = self.reader.layout.dtype
        dtype = dtype if dtype.name in COMPUTABLE else np.dtype(np.float64)
        stack = np.broadcast_to(np.zeros((), dtype), (pages, sizes["Y"], sizes["X"], bands))
        problem, weights = recipe.problem(stack, self._dtype)
        self._bands = problem.k if bands > 1 else 1
        return problem, weights

    def _method_for(self, whole: Division) -> str:
        """Return the method for the whole image; if none can hold it at once, that for a unit."""
        algorithm = self.recipe.algorithm
        if algorithm != "auto":
            return algorithm
        try:
            plan = find_plan(whole.problem, algorithm, None, self.recipe.device, None, tune=False)
            find_plan(whole.problem_of(self._unit_shape(whole)), plan.algorithm.name, None, self.recipe.device, None)
        except UnsupportedProblem:
            problem = whole.problem_of(self._unit_shape(whole))
            plan = find_plan(problem, algorithm, None, self.recipe.device, None, tune=False)
        return plan.algorithm.name

    def _plan(self, stack: tuple[int, ...], config: Any = None) -> Plan:
        """Return the plan of a unit; where "auto" chose a method that refuses a unit at the end, of another method."""
        problem, device = self.division.problem_of(stack), self.recipe.device
        try:
            return find_plan(problem, self._method, config, device, None, tune=False)
        except UnsupportedProblem:
            if self.recipe.algorithm != "auto":
                raise
            return find_plan(problem, "auto", None, device, None, tune=False)

    def _unit_shape(self, division: Division) -> tuple[int, int, int, int]:
        """Return the shape (T, H, W, C) of a whole unit's input."""
        axes = Axes(division.letters_in)
        sizes = axes.sizes(division.shape_read)
        pages = int(np.prod([sizes[letter] for letter in axes.pages], dtype=object))
        return pages, sizes["Y"], sizes["X"], 1 if self.recipe.gray else sizes.get(axes.bands, 1)

    def _largest_that_fits(self, division: Division) -> Division:
        """Return the division with the largest units of which enough fit into memory to keep all threads busy."""
        most = in_flight(self.workers, LANES[self._runtime.facts.backend])
        for larger in division.grown():
            if bytes_of(self._dtype, *larger.unit) > LARGEST_RESULT or most * self._bytes_of_unit(larger) > self.memory:
                break
            division = larger
        return division

    def _bytes_of_unit(self, division: Division) -> int:
        """Return the most bytes that a unit takes at any time; its arrays are freed from stage to stage."""
        layout, shape = self.reader.layout, self._unit_shape(division)
        problem = division.problem_of(shape)
        window = bytes_of(layout.dtype, *division.shape_read)
        stack, sums = bytes_of(problem.x_dtype, *shape), bytes_of(problem.out_dtype, *problem.out_shape)
        result = bytes_of(self._dtype, *division.unit)
        # Chunks in the store, the window, the same with its axes in order; then gray or float64, and with the border.
        loading = decoded(division.shape_read, layout) * layout.dtype.itemsize + 2 * max(window, stack)
        copies = 1 if self._runtime.facts.backend == "cpu" else 2  # pinned memory
        method = find_plan(problem, self._method, None, self.recipe.device, None, tune=False)
        workspace = method.workspace_bytes if self._runtime.facts.backend == "cpu" else 0
        filtering = copies * (stack + sums) + workspace
        storing = sums + 3 * result  # converted, copied by the store, encoded
        return max(loading, filtering, storing)

    # The run.

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
                if len(journal.finished) == len(self.division) and self._place.exists():  # killed after the renaming
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
            publish(incomplete, self._place)
            journal.remove()
        finally:
            journal.close()
        lost = bool(self.reader.attributes) and not (
            self._format.keeps_attributes and self.result.shape == self.reader.layout.shape
        )
        done = len(self.division) - resumed
        return Outcome(done, resumed, perf_counter() - begin, rate, ("attributes",) if lost else ())

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
                self._settle()
        except BaseException:
            journal.close()
            raise
        return journal

    def _beside(self, ending: str) -> Path:
        return self._place.with_name(self._place.name + ending)

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
            "--out-dtype": self._dtype.name,
            "--abs": recipe.magnitude,
            "--scale": recipe.scale,
            "--gray": recipe.gray,
            "--axes": recipe.axes,
            "--device": recipe.device,
            "the method": self._method,
        }

    def _writer(self, incomplete: Path, journal: Journal) -> WindowWriter:
        """Return the writer of the incomplete result: that of the earlier run, or a new one."""
        if journal.finished:
            writer = self._format.reopen(incomplete)
            if (writer.layout.shape, writer.layout.dtype) != (self.result.shape, self.result.dtype):
                raise ImageError(f"{incomplete}: is of another result; remove it and {journal.path} to begin anew")
            return writer
        try:
            remove(incomplete)
            return self._format.create(incomplete, self.result, self.reader)
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
            plan = self._plan(loaded.stack.shape, config)
            return loaded.number, convolver.run(lane, plan, loaded.stack, self._weights[: plan.problem.k]).sums

        def store(computed: tuple[int, Array]) -> int:
            number, sums = computed
            region = division.region(number)
            samples = recipe.samples(sums, self._dtype, clock)
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
            left, load, compute, store, workers=self.workers, lanes=lanes_of(self._runtime),
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
        lanes = LANES[self._runtime.facts.backend]
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
