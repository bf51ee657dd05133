"""Metadata of an OME-Zarr result: those of its source made true again, or new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes
from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Layout, Place
from convforge.imaging.windowed.zarr.ome import MICROMETRES, OmeImage

TYPES = {"T": "time", "C": "channel", "S": "channel", "Z": "space", "Y": "space", "X": "space"}
NAMES = {"S": "c"}  # the bands of pixels are channels
ORDER = "TCSZYX"
"""Order that the specification demands of the axes."""

COLORS = ("FFFFFF", "00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF")

# A new image gets levels of half the size until the largest side of the last has at most this many pixels.
LARGEST_LAST = 512


def halved(layout: Layout) -> Layout:
    """Return a layout with the levels that a new image gets.

    Examples
    --------
    >>> halved(Layout((3, 2001, 900), np.dtype(np.uint8), "CYX")).levels
    ((3, 1001, 450), (3, 501, 225))
    """
    levels, sizes = [], dict(zip(layout.axes, layout.shape, strict=True))
    while max(sizes["Y"], sizes["X"]) > LARGEST_LAST:
        sizes |= {letter: -(-sizes[letter] // 2) for letter in "YX"}
        levels.append(tuple(sizes.values()))
    return replace(layout, levels=tuple(levels))


def order_of(path: Place, layout: Layout) -> tuple[int, ...]:
    """Return the axes of a layout in the order in which OME-Zarr stores them; ``ImageError`` for an axis that it lacks.

    Examples
    --------
    >>> from pathlib import Path
    >>> order_of(Path("a.ome.zarr"), Layout((8, 9, 3), np.dtype(np.uint8), "YXS"))
    (2, 0, 1)
    """
    letters = layout.axes
    if not set(letters) <= set(ORDER) or {"S", "C"} <= set(letters):
        raise ImageError(
            f"{path}: OME-Zarr has the axes t, c, z, y and x, and the result has {letters}; name it .zarr, or name "
            "other axes (--axes)"
        )
    return tuple(sorted(range(len(letters)), key=lambda at: ORDER.index(letters[at])))


def kept_axes(source: Layout, layout: Layout) -> tuple[int, ...] | None:
    """Return the source's axis of each axis of the result; None if their names do not tell it."""
    if len(source.shape) == len(layout.shape):
        return tuple(range(len(layout.shape)))
    if source.axes and set(layout.axes) <= set(source.axes):
        return tuple(map(source.axes.index, layout.axes))
    return None


def factors(shapes: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
    """Return by how much each level is smaller than the first, along each axis.

    Levels are usually made by an integer factor, and their sizes are rounded up or down.

    Examples
    --------
    >>> factors([(1, 61), (1, 31), (1, 15)])
    [(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]
    """
    found = [(1.0,) * len(shapes[0])]
    for before, shape in pairwise(shapes):
        steps = map(factor, before, shape)
        found.append(tuple(total * step for total, step in zip(found[-1], steps, strict=True)))
    return found


def factor(size: int, reduced: int) -> float:
    """Return the integer factor that makes a size another, rounded up or else down; else their quotient."""
    up, down = -(-size // reduced), size // reduced
    if -(-size // up) == reduced:
        return float(up)
    return float(down) if down and size // down == reduced else size / reduced


def omero_of_result(image: OmeImage, source: Layout, layout: Layout) -> dict[str, Any] | None:
    """Return the settings of the result's channels: all of its source's, or those of the names in its layout."""
    if image.omero is None:
        return None
    kept, at = kept_axes(source, layout), image.letters.find("C")
    if at < 0 or (kept is not None and at in kept and layout.shape[kept.index(at)] == source.shape[at]):
        return dict(image.omero)
    known = dict(zip(image.channels, image.omero["channels"], strict=True)) if image.channels else {}
    if not layout.channels or len(known) < len(image.channels) or not set(layout.channels) <= set(known):
        return None
    return {**image.omero, "channels": [known[name] for name in layout.channels]}


def attributes_of_result(image: OmeImage, source: Layout, layout: Layout, paths: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of a filtered image: those of its source, made true for the result.

    Parameters
    ----------
    image : OmeImage
    source, layout : Layout
        Of the source and of the result; spacings that both know give the stride.
    paths : sequence of str
        Of the levels of the result.
    """
    kept = kept_axes(source, layout) if image.axes else None
    version = image.version
    older = version.startswith(("0.1", "0.2")) and len(layout.shape) != len("tczyx")  # they have five axes
    if older or (version < "0.4" and layout.respaced):  # versions before 0.4 have no spacing
        version, kept = "0.4", None
    named = image.multiscale.get("name")
    multiscale: dict[str, Any] = {"name": named} if isinstance(named, str) else {}
    if kept is None:
        axes, scale = new_axes(layout), tuple(side or 1.0 for side in layout.spacing) or (1.0,) * len(layout.shape)
        translations = None
    else:
        image = _respaced(image, layout, kept)
        axes, own = [dict(image.axes[at]) for at in kept], image.levels[0].scale or (1.0,) * len(image.axes)
        strides = _strides(source, layout, kept)
        scale = tuple(own[at] * stride for at, stride in zip(kept, strides, strict=True))
        translations = _translations(image, own, kept, strides, layout.origin)
        if parts := [(kind, getattr(image.whole, kind)) for kind in ("scale", "translation")]:
            whole = [{"type": kind, kind: [found[at] for at in kept]} for kind, found in parts if found]
            multiscale |= {"coordinateTransformations": whole} if whole else {}
    if version.startswith("0.3"):
        multiscale["axes"] = [axis["name"] for axis in axes]
    elif version >= "0.4":
        multiscale["axes"] = axes
    multiscale["datasets"] = _datasets(paths, scale, translations, layout, bare=version < "0.4")
    return _attributes(version, multiscale, omero_of_result(image, source, layout), nested=image.nested)


def new_attributes(name: str, source: Layout, layout: Layout, paths: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of a new image of version 0.5, which has the spacing and the channels of its layout.

    The position of its first sample is that in the source.
    """
    scale = tuple(side or 1.0 for side in layout.spacing) or (1.0,) * len(layout.shape)
    datasets = _datasets(paths, scale, _centres(scale, layout), layout, bare=False)
    multiscale = {"name": name, "axes": new_axes(layout), "datasets": datasets}
    return _attributes("0.5", multiscale, _omero(source, layout), nested=True)


def _centres(scale: tuple[float, ...], layout: Layout) -> list[list[float]] | None:
    """Return the position of the first sample of each level of a new image; None if all are 0.

    That of level 0 is its place in the source. A sample of another level is in the centre of those of level 0 whose
    mean it is.

    Examples
    --------
    >>> _centres((0.5, 0.5), Layout((8, 6), np.dtype(np.uint8), "YX", levels=((4, 3),), origin=(10, 0), steps=(1, 1)))
    [[5.0, 0.0], [5.25, 0.25]]
    """
    none = (0,) * len(scale)
    steps, origin = layout.steps or tuple(1 for _ in none), layout.origin or none
    begins = [
        index * side / step if TYPES.get(letter) in ("space", "time") else 0.0
        for letter, index, side, step in zip(layout.axes, origin, scale, steps, strict=True)
    ]
    found = [
        [begin + (by - 1) / 2 * side for begin, by, side in zip(begins, each, scale, strict=True)]
        for each in factors([layout.shape, *layout.levels])
    ]
    return found if any(map(any, found)) else None


def new_axes(layout: Layout) -> list[dict[str, Any]]:
    spacing = layout.spacing or (None,) * len(layout.shape)
    return [
        {"name": NAMES.get(letter, letter.lower()), "type": TYPES.get(letter)}
        | ({"unit": "micrometer"} if side and TYPES.get(letter) == "space" else {})
        for letter, side in zip(layout.axes, spacing, strict=True)
    ]


def _omero(source: Layout, layout: Layout) -> dict[str, Any] | None:
    """Return the channels' names with what must come with them: a colour, and the range of values to show."""
    bands = Axes(layout.axes).bands
    if len(layout.channels) != (layout.shape[layout.axes.index(bands)] if bands else 1):
        return None
    ranged = next((kind for kind in (layout.dtype, source.dtype) if kind.kind in "iu"), None)
    low, high = (0, 1) if ranged is None else (int(np.iinfo(ranged).min), int(np.iinfo(ranged).max))
    window = {"min": low, "max": high, "start": low, "end": high}
    return {
        "channels": [
            {"label": label, "color": COLORS[at % len(COLORS)], "window": window, "active": True}
            for at, label in enumerate(layout.channels)
        ]
    }


def _respaced(image: OmeImage, layout: Layout, kept: tuple[int, ...]) -> OmeImage:
    """Return the image with the spacing that the user has named; its axes keep their units, if these are lengths.

    Positions are those of the same samples, so they change as the spacing does.
    """
    if not layout.respaced:
        return image
    count = len(image.axes)
    axes, own = [dict(axis) for axis in image.axes], list(image.levels[0].scale or (1.0,) * count)
    whole, ratios, more = list(image.whole.scale or (1.0,) * count), [1.0] * count, [1.0] * count
    for at, origin in enumerate(kept):
        if layout.axes[at] not in layout.respaced:
            continue
        axis, gap = axes[origin], (layout.spacing[at] or 1.0) / (layout.steps[at] if layout.steps else 1)
        unit = MICROMETRES.get(str(axis.get("unit"))) if axis.get("type") == "space" else None
        if unit is None:
            axis |= {"type": "space", "unit": "micrometer"}
        before, own[origin] = own[origin], gap / (unit or 1.0)
        ratios[origin] = own[origin] / (before * whole[origin]) if before * whole[origin] else 1.0
        more[origin], whole[origin] = whole[origin], 1.0

    def moved(translation: tuple[float, ...] | None, by: list[list[float]]) -> tuple[float, ...] | None:
        return translation and tuple(float(np.prod([at, *steps])) for at, *steps in zip(translation, *by, strict=True))

    levels = tuple(replace(level, translation=moved(level.translation, [ratios, more])) for level in image.levels)
    levels = (replace(levels[0], scale=tuple(own)), *levels[1:])  # the others follow from their sizes
    of_all = replace(
        image.whole, scale=image.whole.scale and tuple(whole), translation=moved(image.whole.translation, [ratios])
    )
    return replace(image, axes=tuple(axes), levels=levels, whole=of_all)


def _strides(source: Layout, layout: Layout, kept: tuple[int, ...]) -> list[float]:
    """Return by how much the samples of the result are farther apart than the source's, along each axis."""
    if layout.steps:
        return [float(step) for step in layout.steps]
    strides = []
    for at, origin in enumerate(kept):
        before = source.spacing[origin] if source.spacing else None
        after = layout.spacing[at] if layout.spacing else None
        guess = factor(source.shape[origin], layout.shape[at]) if layout.axes[at : at + 1] in ("Y", "X") else 1.0
        stride = after / before if before and after else guess
        whole = round(stride)
        strides.append(float(whole) if abs(stride - whole) < 1e-6 else stride)
    return strides


def _translations(
    image: OmeImage, own: tuple[float, ...], kept: tuple[int, ...], strides: list[float], origin: tuple[int, ...]
) -> list[list[float]] | None:
    """Return the position of the first sample of each level; None if it is 0 in the source and in the result.

    That of level 0 is that of the source's sample. Those of the others are displaced by as many samples of level 0 as
    in the source, where some writers name the centre of the first samples that were averaged, and others do not.
    """
    if not any(level.translation for level in image.levels) and not any(origin):
        return None
    none = (0.0,) * len(own)
    first = image.levels[0].translation or none
    begins = [first[at] + own[at] * index for at, index in zip(kept, origin or (0,) * len(kept), strict=True)]
    found = []
    for level in image.levels:
        shifts = [(level.translation or none)[at] - first[at] for at in kept]
        found.append([begin + shift * step for begin, shift, step in zip(begins, shifts, strides, strict=True)])
    return found


def _datasets(
    paths: Sequence[str],
    scale: tuple[float, ...],
    translations: list[list[float]] | None,
    layout: Layout,
    *,
    bare: bool,
) -> list[dict[str, Any]]:
    if bare:
        return [{"path": path} for path in paths]
    datasets = []
    for at, (path, steps) in enumerate(zip(paths, factors([layout.shape, *layout.levels]), strict=True)):
        scaled = [side * step for side, step in zip(scale, steps, strict=True)]
        transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scaled}]
        if translations:
            transformations.append({"type": "translation", "translation": translations[at]})
        datasets.append({"path": path, "coordinateTransformations": transformations})
    return datasets


def _attributes(version: str, multiscale: dict[str, Any], omero: Any, *, nested: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"omero": dict(omero)} if omero else {}
    if nested:
        return {"ome": {"version": version, "multiscales": [multiscale], **found}}
    return {"multiscales": [{"version": version, **multiscale}], **found}
