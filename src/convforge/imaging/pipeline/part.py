"""A part of an image in memory: planes are picked before the filter, a region is filtered with its real neighbours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convforge.algorithms.contract import Plan
from convforge.call.dispatch import find_plan
from convforge.errors import UnsupportedProblem
from convforge.imaging.axes import Axes
from convforge.imaging.formats.exif import main_of, pack_block, without_pixels
from convforge.imaging.image import Array, Image, Metadata
from convforge.imaging.pipeline.lanes import Convolved, Convolver, Lane
from convforge.imaging.selection import Selection
from convforge.problem import Conv2dProblem
from convforge.problem.borders import indices_between


def picked(image: Image, selection: Selection, pages: Mapping[str, int], channels: Sequence[str]) -> Image:
    """Return the planes that a selection picks; alpha and metadata follow. ``SelectionError`` if there are none.

    Parameters
    ----------
    image : Image
    selection : Selection
    pages : mapping
        Sizes of the page axes that the file names, by their letters. Pages without names are those of Z if the
        selection picks some of Z, else of T.
    channels : sequence of str
        Names of the channels in the file.

    Examples
    --------
    >>> image = Image(np.zeros((4, 5, 6, 3), np.uint8), pages=True)
    >>> picked(image, Selection(channel=1, z=slice(0, 2)), {}, ()).pixels.shape
    (2, 5, 6)
    """
    letters, page_sizes = image.axes
    if letters:
        pages = dict(zip(Axes(letters).pages, page_sizes, strict=True))
    elif image.pages and not pages:
        pages = {"T" if selection.z is None else "Z": image.page_count}
    elif not image.pages:
        pages = {}
    bands = Axes(letters).bands if letters else "" if image.bands == 1 else "S" if "C" in pages else "C"
    sizes = {**pages, "Y": image.height, "X": image.width, **({bands: image.bands} if bands else {})}
    picks = selection.picks(sizes, channels)
    index = tuple(_index(picks.get(letter)) for letter in pages)
    kept = [at for at, letter in enumerate(pages) if not isinstance(picks.get(letter), int)]
    band = picks.get(bands)
    plane = (slice(None), slice(None))
    divided = image.pixels.reshape(*pages.values(), image.height, image.width, image.bands)
    pixels = divided[(*index, *plane, slice(band, band + 1) if isinstance(band, int) else _index(band))]
    rest = pixels.shape[: len(kept)]
    merged = (-1,) if kept else ()
    pixels = np.ascontiguousarray(pixels).reshape(*merged, *pixels.shape[len(kept) :])
    alpha = image.alpha
    if alpha is not None:
        alpha = alpha.reshape(*pages.values(), image.height, image.width)[(*index, *plane)]
        alpha = np.ascontiguousarray(alpha).reshape(*merged, image.height, image.width)
    left_out = {letter for letter, pick in picks.items() if isinstance(pick, int)}
    return replace(
        image,
        pixels=pixels[..., 0] if pixels.shape[-1] == 1 else pixels,
        alpha=alpha,
        metadata=_of_pages(image.metadata, len(pixels) if kept else 1) if pages else image.metadata,
        pages=bool(kept),
        axes=("".join(letter for letter in letters if letter not in left_out), rest if letters else ()),
    )


def _index(pick: int | range | None) -> int | slice:
    if pick is None:
        return slice(None)
    return pick if isinstance(pick, int) else slice(pick.start, pick.stop, pick.step)


def _of_pages(metadata: Metadata, count: int) -> Metadata:
    """Return metadata without a description by ImageJ that counts another number of pages."""
    found = re.search(r"^images=([0-9]{1,9})", metadata.description, re.MULTILINE)
    if not metadata.description.startswith("ImageJ=") or found is None or int(found[1]) == count:
        return metadata
    return replace(metadata, description="", left=(*metadata.left, "ImageJ's description"))


def convolved_region(
    problem: Conv2dProblem,
    weights: Array,
    rows_columns: tuple[slice, slice],
    stack: Array,
    algorithm: str,
    convolver: Convolver,
    lane: Lane,
    device: str,
) -> Convolved:
    """Compute a region of a convolution, bit for bit as that of the whole image by the same method.

    `problem` is that of the whole stack (T, H, W, C), for which "auto" chooses the method; `rows_columns` are the
    region's rows and columns in the result (T, P, Q, K). Methods whose rounding depends on the size of the image, such
    as "fft", give results within their error bounds.
    """
    whole = find_plan(problem, algorithm, None, device, None, tune=False)
    x, p = stack, problem
    sides = ((p.h, p.r, p.padding[0]), (p.w, p.s, p.padding[2]))
    for axis, (part, step, (size, taps, before)) in enumerate(zip(rows_columns, p.stride, sides, strict=True), start=1):
        first, last = part.start * step - before, (part.stop - 1) * step - before + taps
        indices = indices_between(size, first, last, p.padding_mode)
        x = np.take(x, np.maximum(indices, 0), axis=axis)
        if (outside := indices < 0).any():
            x[(slice(None),) * axis + (outside,)] = p.padding_value
    unit = p.replace(h=x.shape[1], w=x.shape[2], padding=(0, 0, 0, 0), padding_mode="zeros", padding_value=0.0)
    plan = plan_of_part(unit, whole.algorithm.name, algorithm, device)
    return convolver.run(lane, [(plan, weights)], np.ascontiguousarray(x))


def plan_of_part(problem: Conv2dProblem, method: str, algorithm: str, device: str, config: Any = None) -> Plan:
    """Return the plan of a part by the method of the whole image, or of another if "auto" chose one that refuses it."""
    try:
        return find_plan(problem, method, config, device, None, tune=False)
    except UnsupportedProblem:
        if algorithm != "auto":
            raise
        return find_plan(problem, "auto", None, device, None, tune=False)


def cut(image: Image, selection: Selection, stride: tuple[int, int]) -> Image:
    """Return the region of an image whose filter with this stride is the region's result; alpha follows.

    EXIF entries that count pixels, and GeoTIFF's place, are removed if the region is smaller than the image.
    """
    parts = selection.in_result(image.height, image.width, stride)
    rows, columns = (slice(p.start * s, (p.stop - 1) * s + 1) for p, s in zip(parts, stride, strict=True))
    front = (slice(None),) if image.pages else ()
    pixels = image.pixels[(*front, rows, columns)]
    alpha = None if image.alpha is None else image.alpha[(*front, rows, columns)]
    metadata = image.metadata
    smaller = selection.rows_columns(image.height, image.width) != (slice(0, image.height), slice(0, image.width))
    if metadata.exif is not None and smaller:
        kept, lost = without_pixels(main_of(metadata.exif))
        metadata = replace(metadata, exif=pack_block(kept), left=(*metadata.left, *lost))
    return replace(image, pixels=pixels, alpha=alpha, metadata=metadata)
