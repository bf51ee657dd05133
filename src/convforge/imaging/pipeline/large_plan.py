"""Plan of a filter in units: the files, the passes over the image and its reduced copies, and their memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np

from convforge.algorithms.contract import Plan
from convforge.backends.cache import cache_root, make_private
from convforge.call.dispatch import devices_of, runtime_of
from convforge.imaging.axes import Axes
from convforge.imaging.files import WRITABLE_SUFFIXES
from convforge.imaging.formats.tiff import refuse_read_only
from convforge.imaging.image import ImageError, is_sample_dtype
from convforge.imaging.pipeline.lanes import memory_share
from convforge.imaging.pipeline.passes import Limits, Pass
from convforge.imaging.pipeline.recipe import Depth, Recipe
from convforge.imaging.pipeline.units import Division, decoded
from convforge.imaging.windowed import (
    FORMATS,
    Layout,
    Place,
    Url,
    WindowFormat,
    WindowReader,
    format_of,
    open_windows,
    place_of,
    suffixes_of,
)
from convforge.imaging.windowed.result import check_places, factors_of, letters_of, respaced, result_layout
from convforge.imaging.windowed.selected import Selected

INCOMPLETE, JOURNAL = ".incomplete", ".journal"


class LargePlan:
    """The plan of a run of a recipe from one file to another in units, within `memory` bytes; nothing is written.

    Parameters
    ----------
    source, target : path or URL
        Arrays of the formats of :mod:`convforge.imaging.windowed`; they may be the same local file.
    recipe : Recipe
        Its device "cuda" stands for all GPUs of the machine, "cuda:0,cuda:2" for some of them.
    memory : int, optional
        Limit in bytes of all units in work; by default a quarter of the machine's memory.
    workers : int, optional
        Threads that read and write; by default the number of cores, at least 2.
    formats : sequence of WindowFormat
        The formats that are known.

    Attributes
    ----------
    reader : WindowReader
    letters : str
        The axes of the whole file.
    result : Layout
    passes : list of Pass
        The filter, then one for each reduced copy of the result, made of the copy before.

    Raises
    ------
    ImageError, ValueError, UnsupportedProblem
        A file cannot be read or written, `memory` does not suffice for one unit, no method computes the filter.
    """

    def __init__(
        self, source: str | Place, target: str | Place, recipe: Recipe, *, memory: int | None = None,
        workers: int | None = None, formats: Sequence[WindowFormat] = FORMATS,
    ) -> None:  # fmt: skip
        self.source, self.target, self.recipe = place_of(source), place_of(target), recipe
        self.reader, self.formats = open_windows(self.source, formats), formats
        self.memory = memory_share() if memory is None else memory
        self.workers = workers or max(runtime_of("cpu").facts.cores, 2)
        self.devices = devices_of(recipe.device)
        self.format = self._target_format(formats)
        file = self.reader
        letters = letters_of(self.source, file.layout, recipe.axes)
        self.letters, named = letters, bool(recipe.axes or file.layout.axes)
        if recipe.selection is not None:
            if recipe.depth is not None and recipe.selection.z is not None:
                raise ValueError(
                    "--z goes with filters of planes, and this kernel reaches along Z; filter all, then take some "
                    "of the result with --kernel identity --z"
                )
            self.reader = Selected(file, recipe.selection, letters)
            letters = self.reader.layout.axes
        source_layout = respaced(self.reader.layout, letters, recipe.spacing or {})
        dtype = recipe.out_dtype or source_layout.dtype
        if not is_sample_dtype(dtype):
            raise ImageError(f"{self.target}: {dtype} is no sample type of an image; choose uint8 or float32")
        if recipe.depth is not None and "Z" not in letters:
            raise ImageError(
                f"{self.source}: has no axis Z ({letters}), along which the kernel reaches; name it --axes"
            )
        layout = result_layout(
            source_layout, letters, dtype, named=named, bands=_bands_of_result(recipe, source_layout, letters),
            stride=recipe.stride, part=self._part(letters),
        )  # fmt: skip
        self.result = self.format.arranged(layout, self.target, self.file)
        self.passes = self._passes(letters)

    @property
    def file(self) -> WindowReader:
        """The reader of the whole file."""
        return self.reader.file if isinstance(self.reader, Selected) else self.reader

    @property
    def notes(self) -> tuple[str, ...]:
        """Texts for the user to read before the run starts."""
        read = format_of(self.source, self.formats)
        found = self.format.notes(self.file, self.result)
        if "Z" in (self.recipe.spacing or ()) and "Z" not in self.letters:
            found += (f"The spacing along Z is not used: the axes of {self.source} are {self.letters}.",)
        return (read.source_notes(self.file) if read else ()) + found

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Names of what the file holds and the result does not."""
        found, read = self.format.lost(self.file, self.result), format_of(self.source, self.formats)
        return found if read is None or read is self.format else (*found, *read.beside(self.file, self.result))

    def _part(self, letters: str) -> tuple[slice, slice] | None:
        """Return the rows and columns of the filter's result that are wanted; None for all."""
        selection, sizes = self.recipe.selection, dict(zip(letters, self.reader.layout.shape, strict=True))
        if selection is None or selection.region is None:
            return None
        return selection.in_result(sizes["Y"], sizes["X"], self.recipe.stride)

    @property
    def division(self) -> Division:
        """Units of the filter."""
        return self.passes[0].division

    @property
    def plan(self) -> Plan:
        """Plan of the filter's whole unit."""
        return self.passes[0].plan

    @property
    def units(self) -> int:
        """Number of units of all passes."""
        return sum(len(each.division) for each in self.passes)

    @property
    def traffic(self) -> list[tuple[int, int]]:
        """Bytes of the samples that each pass reads and writes; halos, which are read again, do not count."""
        return [traffic_of(each) for each in self.passes]

    @property
    def needs(self) -> int:
        """Bytes of the units in work."""
        return max(each.needs for each in self.passes)

    def _target_format(self, formats: Sequence[WindowFormat]) -> WindowFormat:
        """Return the target's format, and set its place: the target of a symbolic link is replaced, not the link."""
        target, kind = self.target, format_of(self.target, formats)
        refuse_read_only(target)
        if kind is None or target.suffix.lower() not in kind.suffixes:
            hint = ""
            if (suffix := target.suffix.lower()) in WRITABLE_SUFFIXES:
                hint = f"; of a small result, write .tif, and make {suffix} of it by --kernel identity"
            raise ImageError(f"{target}: is not written in parts; name it {suffixes_of(formats)}{hint}")
        self.place: Place = target if isinstance(target, Url) else Path(os.path.realpath(target))
        check_places(self.source, target)
        if isinstance(target, Url):
            if target.scheme not in kind.written_schemes:
                known = " or ".join(f"{scheme}://" for scheme in sorted(kind.written_schemes))
                hint = f"write to {known}, or to a local disk" if known else "write it to a local disk, and copy it"
                raise ImageError(f"{target}: {kind.name} is not written to {target.scheme}://; {hint}")
        elif target.exists() and not kind.is_own(Path(os.path.realpath(target))):
            raise ImageError(f"{target}: exists and is no {kind.name} array, so it is not replaced; name another")
        return kind

    @property
    def incomplete(self) -> Place:
        """The place of the unfinished result: beside its final place, or in an object store there, but not visible."""
        return self.place if isinstance(self.place, Url) else self.place.with_name(self.place.name + INCOMPLETE)

    @property
    def journal_path(self) -> Path:
        """The journal: beside a local result; that of a URL in the folder of the caches."""
        if not isinstance(self.place, Url):
            return self.place.with_name(self.place.name + JOURNAL)
        folder = cache_root() / "journals"
        make_private(folder)
        digest = hashlib.sha256(self.place.text.rstrip("/").encode()).hexdigest()[:16]
        return folder / f"{self.place.name}-{digest}{JOURNAL}"

    def _passes(self, letters: str) -> list[Pass]:
        limits = Limits(self.memory, self.workers, self.devices)
        try:
            part = self._part(letters)
            origin = (0, 0) if part is None else (part[0].start, part[1].start)
            passes = [
                Pass(
                    self.reader.layout, letters, self.result, self.recipe, limits, origin=origin, decoded=self._decoded
                )
            ]
            shapes = [self.result.shape, *self.result.levels]
            for larger, smaller in pairwise(shapes):
                factors = factors_of(self.result.axes, larger, smaller)
                if factors is None:
                    raise ImageError(f"a reduced copy of shape {smaller} has no whole part of {larger}")
                recipe = _reduction(self.recipe.device, self.result.axes, larger, factors)
                copies = [replace(self.result, shape=shape, levels=(), alpha=False) for shape in (larger, smaller)]
                passes.append(Pass(copies[0], self.result.axes, copies[1], recipe, limits, before=(0, 0)))
        except ImageError as error:
            raise type(error)(f"{self.source}: {error}") from error
        return passes

    def _decoded(self, shape: tuple[int, ...]) -> int:
        """Return the most samples that the file's chunks hold of a window."""
        if isinstance(self.reader, Selected):
            return decoded(self.reader.shape_in_file(shape), self.reader.file.layout)
        return decoded(shape, self.reader.layout)


def traffic_of(step: Pass) -> tuple[int, int]:
    """Return the bytes of the samples that a pass reads and writes; halos, which are read again, do not count."""
    whole = step.division.window(tuple(slice(0, size) for size in step.division.shape_out))
    read = 1
    for letter, part in whole.region.items():
        seen = whole.reaches[letter].inside if letter in whole.reaches else part
        read *= seen.stop - seen.start
    return read * step.source.dtype.itemsize, prod(step.result.shape) * step.result.dtype.itemsize


def spacing_of(source: str | Place, axes: str | None) -> dict[str, float | None]:
    """Return the distance of a file's samples in micrometres by the letter of the axis, as far as it is known."""
    reader = open_windows(place_of(source))
    letters = letters_of(reader.path, reader.layout, axes)
    return dict(zip(letters, reader.layout.spacing, strict=False))


def _bands_of_result(recipe: Recipe, source: Layout, letters: str) -> int:
    """Return the number of the result's bands, with alpha."""
    alpha = int(source.alpha)
    bands = recipe.filtered_bands(dict(zip(letters, source.shape, strict=True)).get(Axes(letters).bands, 1) - alpha)
    return (1 if recipe.channels == "sum" else bands) + alpha


def _reduction(device: str, letters: str, shape: tuple[int, ...], factors: tuple[int, ...]) -> Recipe:
    """Return the recipe of a reduced copy: means of blocks."""
    by = dict(zip(letters, factors, strict=True))
    planes, deep = dict(zip(letters, shape, strict=True)).get("Z", 1), by.get("Z", 1)
    depth = Depth((1 / deep,) * deep, 0, -planes % deep, deep) if deep > 1 else None
    return Recipe(
        taps=np.full((by["Y"], by["X"]), 1 / (by["Y"] * by["X"])), channels="each", border="replicate", cval=0.0,
        stride=(by["Y"], by["X"]), device=device, algorithm="auto", out_dtype=None, magnitude=False, scale=1.0,
        gray=False, axes=letters, depth=depth,
    )  # fmt: skip
