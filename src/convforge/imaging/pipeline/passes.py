"""A pass over an image in units: the method and the units, chosen once, and the three steps of a unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from convforge.algorithms.contract import Plan
from convforge.call.dispatch import find_plan, runtime_of
from convforge.errors import UnsupportedProblem
from convforge.imaging.axes import Axes
from convforge.imaging.image import Array, Image, ImageError, alpha_as
from convforge.imaging.pipeline.lanes import LANES, Clock, Convolver, HostRing, Lane, lanes_of
from convforge.imaging.pipeline.part import plan_of_part
from convforge.imaging.pipeline.recipe import COMPUTABLE, Recipe
from convforge.imaging.pipeline.units import LARGEST_RESULT, Division, bytes_of, size_text
from convforge.imaging.pipeline.units import decoded as samples_in_chunks
from convforge.imaging.windowed import Layout, Windows, WindowWriter

# The filter along Z reads each plane's result many times; this method holds a block of pixels in the cache.
ALONG_Z = "separable"

# Rows and columns of an image beyond which the choice of a method does not change.
LARGEST_SIDE = 2**15


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a pass: bytes of all units in work, threads that read and write, and devices of one kind."""

    memory: int
    workers: int
    devices: tuple[str, ...]

    @property
    def lanes(self) -> int:
        """Number of units that the devices filter at the same time."""
        return len(self.devices) * LANES[self.backend]

    @property
    def units(self) -> int:
        """Number of units that keep all threads busy: one each for those that read and write, and two for a lane."""
        return self.workers + 2 * self.lanes

    @property
    def backend(self) -> str:
        return runtime_of(self.devices[0]).facts.backend


class Needs(NamedTuple):
    """Bytes of host memory: of an array of the ring, of a unit beside it, and of a unit that is being filtered."""

    buffer: int
    beside: int
    filtering: int

    def of(self, units: int, lanes: int) -> int:
        """Return the most bytes of so many units in work: those being filtered have two arrays of the ring."""
        filtered = min(units, lanes)
        return units * (self.buffer + self.beside) + filtered * (self.buffer + self.filtering)


@dataclass(frozen=True)
class Loaded:
    """A unit's pixels with the border's, (T, H, W, C), and its opacity at the result's pixels, (T, P, Q, 1)."""

    number: int
    stack: Array
    pages: int  # stacks along Z in it, where the filter reads several planes
    alpha: Array | None


@dataclass(frozen=True)
class Computed:
    number: int
    sums: Array  # (T, P, Q, K)
    alpha: Array | None


class Pass:
    """A filter from an array to an array in units of one shape.

    Parameters
    ----------
    source, result : Layout
        `letters` name the axes of the source, `result.axes` those of the result.
    recipe : Recipe
    limits : Limits
    before : (int, int), optional
        Rows above and columns left of an output's first pixel that it reads; by default the kernel is centred.
    origin : (int, int)
        Row and column of the filter's result at which `result` begins.
    decoded : callable, optional
        Returns the most samples that the source's chunks hold of a window of some shape.

    Attributes
    ----------
    division : Division
    method : str
        Chosen for the whole image; the config is chosen for a whole unit.
    plan : Plan
        Of a whole unit.
    buffer_bytes, most, needs : int
        Bytes of an array of the ring, the most units in work at the same time, and the bytes of these.

    Raises
    ------
    ImageError, ValueError, UnsupportedProblem
        The memory does not suffice for one unit, no method computes the filter.
    """

    def __init__(
        self, source: Layout, letters: str, result: Layout, recipe: Recipe, limits: Limits, *,
        before: tuple[int, int] | None = None, origin: tuple[int, int] = (0, 0),
        decoded: Callable[[tuple[int, ...]], int] | None = None,
    ) -> None:  # fmt: skip
        self.source, self.result, self.recipe, self.limits = source, result, recipe, limits
        self._alpha = int(source.alpha)
        self._decoded = decoded or (lambda shape: samples_in_chunks(shape, source))
        problem, self.weights = self._whole_problem(letters)
        if before is not None:
            after = [
                max((-(-size // step) - 1) * step + taps - size - first, 0)
                for size, step, taps, first in zip(
                    (problem.h, problem.w), recipe.stride, recipe.taps.shape, before, strict=True
                )
            ]
            problem = problem.replace(padding=(before[0], after[0], before[1], after[1]))
        unit = dict(zip(result.axes, map(min, result.shards or result.shape, result.shape), strict=True))
        if self._alpha:  # it has no filter's method of its own, so a unit has all bands
            unit[Axes(result.axes).bands] = result.shape[result.axes.index(Axes(result.axes).bands)]
        whole = Division(
            problem, letters, source.shape, result.axes, result.shape, tuple(unit.values()), recipe.depth, origin
        )
        self.method = self._method_for(whole)
        self.division = self._largest_that_fits(whole)
        self.settle()

    def settle(self) -> None:
        """Set what follows from the division."""
        limits = self.limits
        self.division.check_count()
        self._plans: dict[tuple[tuple[int, ...], str], Plan] = {}
        self.plan = self._plan_of(self.division, self._unit_shape(self.division), limits.devices[0])
        needs = self._needs_of(self.division)
        self.buffer_bytes = needs.buffer
        if (least := needs.of(1, limits.lanes)) > limits.memory:
            needed = size_text(least, up=True)
            raise ImageError(
                f"a memory of {size_text(limits.memory)} is too small: one unit of "
                f"{' x '.join(map(str, self.division.unit))} samples needs {needed}; allow that much "
                f"(--memory {needed}){self._smaller_target()}"
            )
        most = range(min(limits.units, len(self.division)), 0, -1)
        self.most = next(units for units in most if needs.of(units, limits.lanes) <= limits.memory)
        self.needs = needs.of(self.most, limits.lanes)

    def _smaller_target(self) -> str:
        """Return the advice to write `.npy`, whose units are the source's chunks or rows, if they fit into memory."""
        chunks = self.source.chunks or (*(1 for _ in self.source.shape[:-1]), self.source.shape[-1])
        sides = dict(zip(self.division.letters_in, chunks, strict=True))
        result = zip(self.result.axes, self.result.shape, strict=True)
        unit = tuple(size if self._alpha and letter in "CS" else min(sides[letter], size) for letter, size in result)
        least = self._needs_of(replace(self.division, unit=unit)).of(1, self.limits.lanes)
        return f", or write .npy, which needs {size_text(least, up=True)}" if least <= self.limits.memory else ""

    def take(self, unit: tuple[int, ...]) -> None:
        """Use units of another shape: those of a run that is continued."""
        if unit != self.division.unit:
            self.division = replace(self.division, unit=unit)
            self.settle()

    # The three steps of a unit.

    def load(self, reader: Windows, number: int, ring: HostRing, clock: Clock) -> Loaded:
        """Read a unit's input into an array of the ring."""
        window = self.division.window(self.division.region(number))
        pages = 1 if self.division.depth is None else window.around_z(1)
        if not self._changes_input and window.is_direct():
            with clock("read"):
                stack = ring.take(window.shape, self.source.dtype)
                window.fill(reader, stack, self.division.problem.padding_value)
            return Loaded(number, stack, pages, None)
        with clock("read"):
            pixels = window.read(reader)
        alpha = None
        if self._alpha:
            pixels, opacity = pixels[..., :-1], pixels[..., -1:]
            alpha = self._at_centres(window.padded(np.ascontiguousarray(opacity), 0.0))
            pixels = np.ascontiguousarray(pixels)
        stack = self.recipe.stack(Image(pixels, pages=True), clock)
        with clock("read"):
            padded = window.padded(stack, self.division.problem.padding_value)
            stack = ring.take(padded.shape, padded.dtype)
            np.copyto(stack, padded)
        return Loaded(number, stack, pages, alpha)

    def compute(self, lane: Lane, device: str, convolver: Convolver, loaded: Loaded, ring: HostRing) -> Computed:
        """Filter a unit on a lane of a device; its input goes back to the ring."""
        filters = self._filters(loaded, device)
        last = filters[-1][0].problem
        out = ring.take(last.out_shape, last.out_dtype)
        for array in (loaded.stack, out):
            ring.pin(array)
        convolver.run(lane, filters, loaded.stack, out)
        ring.give(loaded.stack)
        p, q, k = filters[0][0].problem.out_shape[1:]
        return Computed(loaded.number, out.reshape(-1, p, q, k), loaded.alpha)

    def _filters(self, loaded: Loaded, device: str) -> list[tuple[Plan, Array]]:
        """Return the plans of a unit, each with its weights: that of the planes, and one along Z."""
        division, shape = self.division, loaded.stack.shape
        plan = self._plans.get((shape, device))
        if plan is None:
            plan = self._plans[shape, device] = self._plan_of(division, shape, device, self.plan.config)
        filters = [(plan, self.weights[: plan.problem.k])]
        if (depth := division.depth) is not None:
            lines = self.recipe.depth_problem(depth, plan.problem, loaded.pages, self.result.dtype)
            taps = np.array(depth.taps, lines.w_dtype).reshape(1, 1, -1, 1)
            filters.append((find_plan(lines, ALONG_Z, None, device, None, tune=False), taps))
        return filters

    def store(self, writer: WindowWriter, computed: Computed, ring: HostRing, clock: Clock) -> int:
        """Write a unit; its result goes back to the ring. Return the bytes of its samples."""
        samples = self.recipe.samples(computed.sums, self.result.dtype, clock)
        if computed.alpha is not None:
            samples = np.concatenate([samples, alpha_as(computed.alpha, samples.dtype)], axis=-1)
        region, axes = self.division.region(computed.number), Axes(self.result.axes)
        sizes = dict(zip(self.result.axes, region, strict=True))
        pages = tuple(sizes[letter].stop - sizes[letter].start for letter in axes.pages)
        with clock("write"):
            writer.write(region, axes.unstack(samples, pages))
        ring.give(computed.sums)
        return samples.nbytes

    @property
    def _changes_input(self) -> bool:
        """True if the filter does not read the source's samples as they are."""
        return bool(self._alpha or self.recipe.gray or self.source.dtype.name not in COMPUTABLE)

    def _at_centres(self, opacity: Array) -> Array:
        """Return the samples at which the outputs of a unit are centred."""
        for axis, letter in ((1, "Y"), (2, "X")):
            side = self.division.sides[letter]
            count = (opacity.shape[axis] - side.taps) // side.step + 1
            first = side.before
            opacity = opacity[(slice(None),) * axis + (slice(first, first + (count - 1) * side.step + 1, side.step),)]
        return np.ascontiguousarray(opacity)

    # What is chosen once.

    def _whole_problem(self, letters: str) -> tuple[Any, Array]:
        """Return the problem of the whole image as one stack, and the weights; nothing is read."""
        recipe, axes = self.recipe, Axes(letters)
        sizes = axes.sizes(self.source.shape)
        bands, pages = self._bands(sizes, axes), math.prod(sizes[letter] for letter in axes.pages)
        dtype = self.source.dtype
        dtype = dtype if dtype.name in COMPUTABLE else np.dtype(np.float64)
        stack = np.broadcast_to(np.zeros((), dtype), (pages, sizes["Y"], sizes["X"], bands))
        return recipe.problem(stack, self.result.dtype)

    def _bands(self, sizes: dict[str, int], axes: Axes) -> int:
        """Return the number of bands that are filtered."""
        return self.recipe.filtered_bands(sizes.get(axes.bands, 1) - self._alpha)

    def _method_for(self, whole: Division) -> str:
        """Return the method for the whole image; if none can hold it at once, that for a unit."""
        algorithm, device = self.recipe.algorithm, self.limits.devices[0]
        if algorithm != "auto":
            return algorithm
        p = whole.problem
        try:  # a larger image has the method of this one
            image = p.replace(h=min(p.h, LARGEST_SIDE), w=min(p.w, LARGEST_SIDE))
            plan = find_plan(image, algorithm, None, device, None, tune=False)
            find_plan(whole.problem_of(self._unit_shape(whole)), plan.algorithm.name, None, device, None, tune=False)
        except UnsupportedProblem:
            problem = whole.problem_of(self._unit_shape(whole))
            plan = find_plan(problem, algorithm, None, device, None, tune=False)
        return plan.algorithm.name

    def _plan_of(self, division: Division, stack: tuple[int, ...], device: str, config: Any = None) -> Plan:
        """Return the plan of a unit."""
        return plan_of_part(division.problem_of(stack), self.method, self.recipe.algorithm, device, config)

    def _unit_shape(self, division: Division) -> tuple[int, int, int, int]:
        """Return the shape (T, H, W, C) of a whole unit's input, without alpha."""
        axes = Axes(division.letters_in)
        sizes = axes.sizes(division.shape_read)
        pages = math.prod(sizes[letter] for letter in axes.pages)
        return pages, sizes["Y"], sizes["X"], self._bands(sizes, axes)

    def _largest_that_fits(self, division: Division) -> Division:
        """Return the division with the largest units of which enough fit into memory to keep all threads busy."""
        limits = self.limits
        most = limits.units
        for larger in division.grown():
            if (
                bytes_of(self.result.dtype, *larger.unit) > LARGEST_RESULT
                or self._needs_of(larger).of(most, limits.lanes) > limits.memory
            ):
                break
            division = larger
        return division

    def _needs_of(self, division: Division) -> Needs:
        """Return the host memory of whole units: the most of each stage, whose arrays are freed before the next."""
        source, shape, on_host = self.source, self._unit_shape(division), self.limits.backend == "cpu"
        problem = division.problem_of(shape)
        window = bytes_of(source.dtype, *division.shape_read)
        stack, sums = bytes_of(problem.x_dtype, *shape), bytes_of(problem.out_dtype, *problem.out_shape)
        computed, between = sums, 0
        if division.depth is not None:
            lines = self.recipe.depth_problem(division.depth, problem, 1, self.result.dtype)
            computed, between = bytes_of(lines.out_dtype, *division.unit), sums
        result = bytes_of(self.result.dtype, *division.unit)
        alpha = window // shape[-1] if self._alpha else 0
        # Chunks in the store; at the border the window, and the same in gray or float64, and with the border's pixels.
        chunks = self._decoded(division.shape_read) * source.dtype.itemsize
        loading = chunks + max(source.decoding + window, 2 * max(window, stack))
        plan = find_plan(problem, self.method, None, self.limits.devices[0], None, tune=False)
        filtering = plan.workspace_bytes + between if on_host else 0
        chunks = samples_in_chunks(division.unit, self.result) * self.result.dtype.itemsize
        converted = result if self._alpha or not self.recipe.is_direct(self.result.dtype) else 0
        storing = max(2 * result + chunks, converted + self.result.encoding)
        return Needs(max(stack, computed), max(loading, storing) + alpha, filtering)


def lanes_on(devices: Sequence[str]) -> list[AbstractContextManager[tuple[str, Lane]]]:
    """Return the lanes of several devices, each with its device."""

    @contextmanager
    def named(device: str, lane: AbstractContextManager[Lane]) -> Iterator[tuple[str, Lane]]:
        with lane as entered:
            yield device, entered

    return [named(device, lane) for device in devices for lane in lanes_of(runtime_of(device))]
