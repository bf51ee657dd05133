"""Host memory that the filter of a whole image takes, known from the header of its file before it is decoded."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convforge.call.dispatch import find_plan, runtime_of
from convforge.errors import UnsupportedProblem
from convforge.imaging.files import Declared, declared_of
from convforge.imaging.pipeline.flow import Size
from convforge.imaging.pipeline.recipe import COMPUTABLE, Recipe
from convforge.problem import Conv2dProblem

# Workspaces are looked up for sides rounded up to multiples of this many pixels: to plan each size takes longer.
GRAIN = 256

# Share that is added for what is not counted: buffers of the libraries, and free memory that the C library keeps.
MARGIN = 0.1


class Codec(NamedTuple):
    """Most memory of a format's reader and writer.

    Attributes
    ----------
    file : float
        Copies of the file that the reader holds.
    samples : float
        Copies of the decoded samples that the reader holds at once. One is the image; others are made to remove alpha,
        to turn the image upright, to change the byte order, or to stack pages.
    encoded : float
        Copies of the result that the writer holds, encoded or on the way to it. An encoded result may be as large as
        its samples.
    block : int
        Bytes of a buffer that the writer fills with samples; 0 if it has none.
    """

    file: float
    samples: float
    encoded: float
    block: int = 0


# The numbers of copies were measured; the thorough tests of `test_demand` compare them with the peak of a process. The
# source of those of JPEG: Pillow holds RGB in 4 bytes a pixel, which is 4/3 of a copy. To read them, its
# `Image.tobytes` makes a list of pieces and joins it, two more copies: 3.33, rounded up. To write takes the 4/3 alone,
# rounded up.
JPEG = Codec(1, 3.4, 1.4)
TIFF = Codec(1, 3, 1)
CODECS = {
    ".png": Codec(2, 2, 2),  # the chunks are joined before they are decoded
    ".jpg": JPEG,
    ".jpeg": JPEG,
    ".tif": TIFF,
    ".tiff": TIFF,
    ".npy": Codec(0, 2, 0, 2**24),  # numpy.save writes blocks of 16 MiB
}


class Demand:
    """The host memory of images that a recipe filters as a whole."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._on_host = runtime_of(recipe.device).facts.backend == "cpu"
        self._workspace = lru_cache(maxsize=1024)(self._workspace_of)

    def of(self, source: Path, target: Path) -> Size:
        """Return the memory that a file takes on its way to another; ``ValueError`` if it cannot be filtered."""
        found = declared_of(source, axes=self._recipe.axes)
        reader, writer = CODECS[source.suffix.lower()], CODECS[target.suffix.lower()]
        return self._of_declared(found, source.stat().st_size, reader, writer)

    def _of_declared(self, found: Declared, file_bytes: int, reader: Codec, writer: Codec) -> Size:
        """Return the memory of an image in a file of `file_bytes`: the most of its three stages."""
        recipe, raw = self._recipe, found.nbytes
        bands = recipe.filtered_bands(found.bands)
        is_gray, is_computable = bands != found.bands, found.dtype.name in COMPUTABLE
        x_dtype = found.dtype if is_computable else np.dtype(np.float64)
        problem = self._problem(found._replace(bands=bands, dtype=x_dtype))
        stack, sums = (
            _bytes(shape, np.dtype(dtype))
            for shape, dtype in ((problem.x_shape, problem.x_dtype), (problem.out_shape, problem.out_dtype))
        )
        copied = stack if is_gray or not is_computable else 0
        reading = reader.file * file_bytes + reader.samples * raw
        if is_gray:  # summed in float64
            luma = found.pages * found.height * found.width * np.dtype(np.float64).itemsize
            reading = max(reading, raw + 2 * luma + copied)
        filtering = raw + copied + sums + self._workspace(_rounded(problem))
        dtype = recipe.out_dtype or found.dtype
        result = _bytes(problem.out_shape, dtype)
        is_converted = recipe.magnitude or recipe.scale != 1 or dtype.name not in COMPUTABLE
        alpha = result // problem.k if found.alpha else 0
        encoding = alpha + (result + alpha) * bool(alpha) + writer.encoded * (result + alpha)
        writing = raw + sums + result * is_converted + encoding + min(result, writer.block)
        most = max(reading, filtering, writing)
        return Size(int(most * (1 + MARGIN)), 0 if self._on_host else stack + sums)

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


def _bytes(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
