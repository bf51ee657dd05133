"""Host memory that the filter of a whole image takes, known from the header of its file before it is decoded."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from convforge.call.dispatch import find_plan, runtime_of
from convforge.errors import UnsupportedProblem
from convforge.imaging.files import Declared, declared_of
from convforge.imaging.pipeline.flow import Size
from convforge.imaging.pipeline.recipe import COMPUTABLE, Recipe
from convforge.problem import Conv2dProblem

# Workspaces are looked up for sides rounded up to multiples of this many pixels: to plan each size takes longer.
GRAIN = 256


class Demand:
    """The host memory of images that a recipe filters as a whole."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._on_host = runtime_of(recipe.device).facts.backend == "cpu"
        self._workspace = lru_cache(maxsize=1024)(self._workspace_of)

    def of(self, path: Path) -> Size:
        """Return the memory that a file takes; ``ValueError`` if it cannot be read or filtered."""
        return self.of_declared(declared_of(path, axes=self._recipe.axes), path.stat().st_size)

    def of_declared(self, found: Declared, file_bytes: int) -> Size:
        """Return the memory of an image in a file of `file_bytes`: the most of its three stages."""
        recipe = self._recipe
        raw = found.nbytes
        pixels = found.pages * found.height * found.width
        bands = recipe.filtered_bands(found.bands)
        # The file, the decoder's pixels, and copies without alpha, upright, in native byte order or of stacked pages.
        reading = 2 * file_bytes + 3 * raw
        if bands != found.bands:  # gray is summed in float64
            reading = max(reading, raw + pixels * (2 * 8 + found.dtype.itemsize))
        computable = found.dtype.name in COMPUTABLE
        is_copied = bands != found.bands or not computable
        problem = self._problem(found._replace(bands=bands, dtype=found.dtype if computable else np.dtype(float)))
        stack, sums = _bytes(problem.x_shape, problem.x_dtype), _bytes(problem.out_shape, problem.out_dtype)
        copied = stack if is_copied else 0
        filtering = raw + copied + sums + self._workspace(_rounded(problem))
        dtype = recipe.out_dtype or found.dtype
        alpha = sums // problem.k // np.dtype(problem.out_dtype).itemsize * dtype.itemsize if found.alpha else 0
        result = sums // np.dtype(problem.out_dtype).itemsize * dtype.itemsize
        # The result in its type, with alpha, in the encoder's pixels (4 bytes for RGB in JPEG), and encoded twice.
        writing = raw + sums + result + 2 * alpha + 4 * (result + alpha)
        return Size(max(reading, filtering, writing), 0 if self._on_host else stack + sums)

    def _problem(self, found: Declared) -> Conv2dProblem:
        stack = np.broadcast_to(np.zeros((), found.dtype), (found.pages, found.height, found.width, found.bands))
        return self._recipe.problem(stack, self._recipe.out_dtype or found.dtype)[0]

    def _workspace_of(self, problem: Conv2dProblem) -> int:
        if not self._on_host:
            return 0
        try:
            plan = find_plan(problem, self._recipe.algorithm, None, self._recipe.device, None, tune=False)
        except UnsupportedProblem:  # reported where the image is filtered
            return 0
        return plan.workspace_bytes


def _rounded(problem: Conv2dProblem) -> Conv2dProblem:
    return problem.replace(h=-(-problem.h // GRAIN) * GRAIN, w=-(-problem.w // GRAIN) * GRAIN)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
