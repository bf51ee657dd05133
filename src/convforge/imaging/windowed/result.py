"""Axes of a source, the layout of its result, and the places of a result while it is written and afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes, check_clear
from convforge.imaging.image import ImageError
from convforge.imaging.replacing import exchange
from convforge.imaging.windowed.contract import Layout, Place, Url

LENGTHS = "ZYX"  # axes whose samples have a distance in micrometres

MOST_BYTES = 2**62  # of all samples of an image; positions in it are 64-bit integers


def letters_of(path: Place, layout: Layout, named: str | None) -> str:
    """Return a letter for each axis: those the user names, else those the file names, else by a clear shape."""
    try:
        if len(layout.shape) < 2:
            raise ImageError(f"an array of shape {layout.shape}; an image has rows and columns")
        if 0 in layout.shape:
            raise ImageError(f"shape {layout.shape} has no pixel")
        if layout.nbytes > MOST_BYTES:
            raise ImageError(f"shape {layout.shape} has more samples than any disk holds; the file is damaged")
        letters = named or layout.axes
        if letters:
            Axes(letters).sizes(layout.shape)
            return letters
    except ImageError as error:
        raise type(error)(f"{path}: {error}") from error
    check_clear(str(path), layout.shape)
    return {2: "YX", 3: "YXC"}.get(len(layout.shape), "TYXC")


def respaced(layout: Layout, letters: str, given: Mapping[str, float]) -> Layout:
    """Return a layout with the spacing that the user names, in micrometres of the file's samples by letter.

    Other axes keep the spacing of the file, except axes that are no lengths by the `letters`, such as those of times.
    If the layout has every second plane of the file, the distance of its planes is twice that of the file.

    Examples
    --------
    >>> source = Layout((5, 8, 9), np.dtype(np.uint8), spacing=(None, 0.5, 0.5), steps=(2, 1, 1))
    >>> respaced(source, "ZYX", {"Z": 1.5}).spacing
    (3.0, 0.5, 0.5)
    """
    axes = len(letters)
    steps = layout.steps or (1,) * axes
    spacing = tuple(
        given[letter] * step if letter in given else gap if letter in LENGTHS else None
        for letter, gap, step in zip(letters, layout.spacing or (None,) * axes, steps, strict=True)
    )
    return replace(
        layout, spacing=spacing if any(spacing) else (), respaced="".join(part for part in letters if part in given)
    )


def result_layout(
    source: Layout, letters: str, dtype: np.dtype[Any], *, named: bool, bands: int, stride: tuple[int, int],
    part: tuple[slice, slice] | None = None,
) -> Layout:  # fmt: skip
    """Return the layout of a filter's result, which has the source's axes and grid, but `bands` bands.

    `part` are the rows and columns of the whole image's result that are wanted. `bands` count alpha. The reduced copies
    have the source's factors, or 2 where these are no whole numbers.

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
    rows, columns = part or (slice(0, -(-sizes["Y"] // step_y)), slice(0, -(-sizes["X"] // step_x)))
    result = sizes | {"Y": rows.stop - rows.start, "X": columns.stop - columns.start}
    if axes.bands:
        if source.alpha:
            result[axes.bands] = bands
        elif (named and sizes[axes.bands] != bands) or (not named and bands == 1 and not axes.pages):
            del result[axes.bands]
        else:
            result[axes.bands] = bands
    kept = [at for at, letter in enumerate(letters) if letter in result]
    grid = [None if part is None else tuple(part[at] for at in kept) for part in (source.chunks, source.shards)]
    steps = {"Y": step_y, "X": step_x}
    spacing = [
        None if gap is None else gap * steps.get(letter, 1)
        for letter, gap in zip(letters, source.spacing, strict=False)
    ]
    layout = Layout(
        tuple(result.values()), dtype, "".join(result), chunks=grid[0], shards=grid[1],
        spacing=tuple(spacing[at] for at in kept) if spacing else (),
        channels=source.channels if result.get("C") == sizes.get("C") else (), alpha=source.alpha,
        respaced=source.respaced,
    )  # fmt: skip
    origin = dict(zip(letters, source.origin or (0,) * len(letters), strict=True))
    apart = dict(zip(letters, source.steps or (1,) * len(letters), strict=True))
    for letter, step, wanted in (("Y", step_y, rows), ("X", step_x, columns)):
        origin[letter] += wanted.start * step * apart[letter]
        apart[letter] *= step
    layout = replace(
        layout, origin=tuple(origin[letters[at]] for at in kept), steps=tuple(apart[letters[at]] for at in kept)
    )
    before = [tuple(shape[at] for at in kept) for shape in (source.shape, *source.levels)]
    return replace(layout, levels=_levels(layout, before))


def _levels(layout: Layout, source: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the reduced copies of a result; `source` are those of its source, the whole one first."""
    shapes = [layout.shape]
    for larger, smaller in pairwise(source):
        factors = factors_of(layout.axes, larger, smaller)
        if factors is None:
            halves = [2 if letter in "YX" else 1 for letter in layout.axes]
            shapes.append(tuple(-(-size // by) for size, by in zip(shapes[-1], halves, strict=True)))
            continue
        # Sizes are rounded down if the source's are, else up.
        cut = [had // by == has and had % by for had, has, by in zip(larger, smaller, factors, strict=True)]
        sizes = zip(shapes[-1], factors, cut, strict=True)
        shapes.append(tuple(max(size // by, 1) if down else -(-size // by) for size, by, down in sizes))
    return tuple(shapes[1:])


def factors_of(letters: str, larger: tuple[int, ...], smaller: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the whole factor of each axis by which a copy is reduced; None if there is none, or not in Z, Y and X.

    Examples
    --------
    >>> factors_of("CYX", (3, 2001, 1000), (3, 1001, 500)), factors_of("YX", (100, 100), (70, 70))
    ((1, 2, 2), None)
    """
    factors = []
    for letter, had, has in zip(letters, larger, smaller, strict=True):
        near = (had // has, -(-had // has)) if 0 < has <= had else ()
        by = next((by for by in near if has in (max(had // by, 1), -(-had // by))), 0)
        if not by or (by > 1 and letter not in "ZYX"):
            return None
        factors.append(by)
    return tuple(factors)


def check_places(source: Place, target: Place) -> None:
    """Raise ``ImageError`` if the target's folder takes no files, or if one of two different paths is in the other.

    A URL is checked when the result is made.
    """
    if isinstance(target, Url):
        if str(source).rstrip("/") == str(target).rstrip("/"):
            raise ImageError(f"{target}: is read; name another place for the result")
        return
    there, here = Path(os.path.realpath(str(source))), Path(os.path.realpath(target))
    if not here.parent.is_dir():
        raise ImageError(f"{target}: cannot be written, the folder {here.parent} does not exist; make it first")
    if not os.access(here.parent, os.W_OK | os.X_OK):
        raise ImageError(f"{target}: cannot be written, no permission to write in {here.parent}; choose another folder")
    if there in here.parents:
        raise ImageError(f"{target}: is inside {source}, which is read; name a place outside")
    if here in there.parents:
        raise ImageError(f"{source}: is inside {target}, which would be replaced; name another place for the result")


def publish(incomplete: Place, place: Place) -> None:
    """Give a complete result its name; a result that has it is replaced. A URL has it from the beginning.

    A folder is exchanged with the one that it replaces in one step. Where that is not possible, the old one is renamed
    first, so that for a moment no folder has the name. If the process is killed, the old folder stays under another
    name, and :func:`remove_replaced` removes it.
    """
    if isinstance(incomplete, Url) or isinstance(place, Url):
        return
    try:
        if not (place.is_dir() and incomplete.is_dir()):
            incomplete.replace(place)
        elif not exchange(incomplete, place):
            _rename_both(incomplete, place)
        remove_replaced(incomplete, place)
    except OSError as error:
        state = "is complete" if incomplete.exists() else "was removed while it was written"
        raise ImageError(f"{place}: cannot be written ({error.strerror or error}); {incomplete} {state}") from error


def _rename_both(incomplete: Path, place: Path) -> None:
    before = _replaced(place)
    shutil.rmtree(before, ignore_errors=True)
    place.rename(before)
    try:
        incomplete.rename(place)
    except OSError:
        before.rename(place)
        raise


def _replaced(place: Path) -> Path:
    """Return the name of the folder that a result replaces, where the two are not exchanged."""
    return place.with_name(f".convforge-{place.name}.old")


def remove_replaced(incomplete: Place, place: Place) -> None:
    """Remove the folder that a published result has replaced."""
    if isinstance(incomplete, Path) and isinstance(place, Path):
        for old in (incomplete, _replaced(place)):
            shutil.rmtree(old, ignore_errors=True)


def inode_of(place: Place) -> int | None:
    """Return the number by which a local file or folder is known whatever its name; None if it is not there."""
    try:
        return None if isinstance(place, Url) else place.stat().st_ino
    except OSError:
        return None


def remove(path: Place) -> None:
    """Remove a local file or folder, if it is there; an object store keeps what was written."""
    if isinstance(path, Url):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            path.unlink()
