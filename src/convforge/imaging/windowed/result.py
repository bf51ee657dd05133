"""Axes of a source, the layout of its result, and the places of a result while it is written and afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes, check_clear
from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Layout, Place


def letters_of(path: Place, layout: Layout, named: str | None) -> str:
    """Return a letter for each axis: those the user names, else those the file names, else by a clear shape."""
    try:
        if len(layout.shape) < 2:
            raise ImageError(f"an array of shape {layout.shape}; an image has rows and columns")
        if 0 in layout.shape:
            raise ImageError(f"shape {layout.shape} has no pixel")
        letters = named or layout.axes
        if letters:
            Axes(letters).sizes(layout.shape)
            return letters
    except ImageError as error:
        raise type(error)(f"{path}: {error}") from error
    check_clear(str(path), layout.shape)
    return {2: "YX", 3: "YXC"}.get(len(layout.shape), "TYXC")


def result_layout(
    source: Layout, letters: str, dtype: np.dtype[Any], *, named: bool, bands: int, stride: tuple[int, int]
) -> Layout:
    """Return the layout of a filter's result, which has the source's axes and grid, but `bands` bands.

    A band axis that the filter removes is left out. Of axes without names, a single band has no axis either, as in
    `read_image`, except behind pages, where it says that there are pages.

    Examples
    --------
    >>> source = Layout((8, 9, 3), np.dtype(np.uint8), chunks=(4, 4, 3), shards=(8, 8, 3))
    >>> result = result_layout(source, "YXC", source.dtype, named=False, bands=1, stride=(2, 2))
    >>> result.shape, result.axes, result.chunks
    ((4, 5), 'YX', (4, 4))
    """
    axes, (step_y, step_x) = Axes(letters), stride
    sizes = axes.sizes(source.shape)
    result = sizes | {"Y": -(-sizes["Y"] // step_y), "X": -(-sizes["X"] // step_x)}
    if axes.bands:
        if (named and sizes[axes.bands] != bands) or (not named and bands == 1 and not axes.pages):
            del result[axes.bands]
        else:
            result[axes.bands] = bands
    kept = [at for at, letter in enumerate(letters) if letter in result]
    grid = [None if part is None else tuple(part[at] for at in kept) for part in (source.chunks, source.shards)]
    return Layout(tuple(result.values()), dtype, "".join(result), chunks=grid[0], shards=grid[1])


def check_places(source: Path, target: Path) -> None:
    """Raise ``ImageError`` if the target's folder takes no files, or if one of two different paths is in the other."""
    there, here = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if not here.parent.is_dir():
        raise ImageError(f"{target}: cannot be written, the folder {here.parent} does not exist; make it first")
    if not os.access(here.parent, os.W_OK | os.X_OK):
        raise ImageError(f"{target}: cannot be written, no permission to write in {here.parent}; choose another folder")
    if there in here.parents:
        raise ImageError(f"{target}: is inside {source}, which is read; name a place outside")
    if here in there.parents:
        raise ImageError(f"{source}: is inside {target}, which would be replaced; name another place for the result")


def publish(incomplete: Path, place: Path) -> None:
    """Give a complete result its name; a result that has it is replaced."""
    try:
        if not (place.is_dir() and incomplete.is_dir()):
            incomplete.replace(place)
            return
        before = place.with_name(f".convforge-{secrets.token_hex(6)}.old")  # a folder replaces only an empty folder
        place.rename(before)
        try:
            incomplete.rename(place)
        except OSError:
            before.rename(place)
            raise
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise ImageError(f"{place}: cannot be written ({error.strerror or error}); {incomplete} is complete") from error


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            path.unlink()
