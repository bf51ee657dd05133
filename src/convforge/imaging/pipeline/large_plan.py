"""Plan of a filter in units: the files, the method for the whole image, the units, and the memory that they take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from convforge.algorithms.contract import Plan
from convforge.call.dispatch import find_plan, runtime_of
from convforge.errors import UnsupportedProblem
from convforge.imaging.axes import Axes
from convforge.imaging.image import Array, ImageError, is_sample_dtype
from convforge.imaging.pipeline.flow import in_flight
from convforge.imaging.pipeline.lanes import LANES, memory_share
from convforge.imaging.pipeline.recipe import COMPUTABLE, Recipe
from convforge.imaging.pipeline.units import LARGEST_RESULT, Division, bytes_of, decoded
from convforge.imaging.windowed import format_of, known_suffixes, open_windows
from convforge.imaging.windowed.result import check_places, letters_of, result_layout


class LargePlan:
    """The plan of a run of a recipe from one file to another in units, within `memory` bytes; nothing is written.

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
        self.runtime = runtime_of(recipe.device)
        kind = format_of(target)
        if kind is None or target.suffix.lower() not in kind.suffixes:
            raise ImageError(f"{target}: is not written in windows; write {known_suffixes()}")
        self.format = kind
        self.place = Path(os.path.realpath(target))  # the target of a symbolic link is replaced, not the link
        check_places(source, target)
        if self.place.exists() and not kind.is_own(self.place):
            raise ImageError(f"{target}: exists and is no {kind.name} array, so it is not replaced; name another")
        letters = letters_of(self.reader.path, self.reader.layout, recipe.axes)
        self.dtype = recipe.out_dtype or self.reader.layout.dtype
        if not is_sample_dtype(self.dtype):
            raise ImageError(f"{target}: {self.dtype} is no sample type of an image; choose uint8 or float32")
        problem, self.weights = self._whole_problem(letters)
        layout = result_layout(
            self.reader.layout, letters, self.dtype, named=bool(recipe.axes or self.reader.layout.axes),
            bands=self._bands, stride=recipe.stride,
        )  # fmt: skip
        self.result = kind.arranged(layout, target, self.reader)
        unit = tuple(map(min, self.result.shards or self.result.shape, self.result.shape))
        whole = Division(problem, letters, self.reader.layout.shape, self.result.axes, self.result.shape, unit)
        self.method = self._method_for(whole)
        self.division = self._largest_that_fits(whole)
        self.settle()

    def settle(self) -> None:
        """Set what follows from the division."""
        self.plan = self.plan_of(self._unit_shape(self.division))
        self.unit_bytes = self._bytes_of_unit(self.division)
        most = min(in_flight(self.workers, LANES[self.runtime.facts.backend]), len(self.division))
        self.most = min(most, self.memory // self.unit_bytes)
        if not self.most:
            raise ImageError(
                f"{self.source}: a memory of {self.memory} bytes is too small: one unit of "
                f"{' x '.join(map(str, self.division.unit))} samples needs {self.unit_bytes}; allow that many "
                "(--memory), or write smaller shards"
            )
        self.needs = self.most * self.unit_bytes

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
        problem, weights = recipe.problem(stack, self.dtype)
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

    def plan_of(self, stack: tuple[int, ...], config: Any = None) -> Plan:
        """Return the plan of a unit; where "auto" chose a method that refuses a unit at the end, of another method."""
        problem, device = self.division.problem_of(stack), self.recipe.device
        try:
            return find_plan(problem, self.method, config, device, None, tune=False)
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
        most = in_flight(self.workers, LANES[self.runtime.facts.backend])
        for larger in division.grown():
            if bytes_of(self.dtype, *larger.unit) > LARGEST_RESULT or most * self._bytes_of_unit(larger) > self.memory:
                break
            division = larger
        return division

    def _bytes_of_unit(self, division: Division) -> int:
        """Return the most bytes that a unit takes at any time; its arrays are freed from stage to stage."""
        layout, shape = self.reader.layout, self._unit_shape(division)
        problem = division.problem_of(shape)
        window = bytes_of(layout.dtype, *division.shape_read)
        stack, sums = bytes_of(problem.x_dtype, *shape), bytes_of(problem.out_dtype, *problem.out_shape)
        result = bytes_of(self.dtype, *division.unit)
        # Chunks in the store, the window, the same with its axes in order; then gray or float64, and with the border.
        loading = decoded(division.shape_read, layout) * layout.dtype.itemsize + 2 * max(window, stack)
        copies = 1 if self.runtime.facts.backend == "cpu" else 2  # pinned memory
        plan = find_plan(problem, self.method, None, self.recipe.device, None, tune=False)
        workspace = plan.workspace_bytes if self.runtime.facts.backend == "cpu" else 0
        filtering = copies * (stack + sums) + workspace
        storing = sums + 3 * result  # converted, copied by the store, encoded
        return max(loading, filtering, storing)
