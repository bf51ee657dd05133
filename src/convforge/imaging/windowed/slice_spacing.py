"""Distances of the samples of a stack in the files of its slices: what each format holds, and how it is read again."""

from __future__ import annotations

import math
from pathlib import Path

from convforge.imaging.formats.jpeg import LARGEST_DENSITY
from convforge.imaging.image import Metadata
from convforge.imaging.spacing import IMAGEJ, imagej_described, resolution_for, spacing_by
from convforge.imaging.windowed import tiff
from convforge.imaging.windowed.contract import Layout
from convforge.imaging.windowed.tiff.reader import spacing_of_slice

TIFF = (".tif", ".tiff")

# Most samples by the centimetre: JPEG has 16 bits for them, PNG 31 bits for those by the metre.
MOST = {".npy": 0.0, ".png": 2**31 / 100 - 1, ".jpg": LARGEST_DENSITY, ".jpeg": LARGEST_DENSITY}

VERSION = f"{IMAGEJ}1.11a"  # as tifffile writes it


def spacing_of_slices(first: Path, metadata: Metadata, axes: int) -> tuple[float | None, ...]:
    """Return the distance of the samples along Z, Y, X and C in micrometres, as the first file tells it.

    A TIFF may tell that of the planes too, in ImageJ's description or in OME-XML. Of other files it is the resolution
    by the centimetre, as of a microscope; one by the inch is that of a screen or of paper, and says nothing about the
    sample.
    """
    known = spacing_of_slice(first) if tiff.is_tiff(first) else {}
    known = known or spacing_by(metadata)
    return tuple(map(known.get, "ZYXC"[:axes])) if known else ()


def kept_spacing(layout: Layout, suffix: str) -> set[str]:
    """Return the letters of the axes whose spacing the files of a suffix keep."""
    spacing = layout.spacing_by_letter
    resolution = resolution_for(spacing)
    if resolution is None or max(resolution) > MOST.get(suffix, math.inf):
        return set()
    return spacing.keys() & ({"Z", "Y", "X"} if suffix in TIFF else {"Y", "X"})


def metadata_of_slices(layout: Layout, suffix: str) -> Metadata:
    """Return the metadata of each file: its resolution; a TIFF has the distance of the planes as ImageJ writes it."""
    spacing, kept = layout.spacing_by_letter, kept_spacing(layout, suffix)
    if not kept:
        return Metadata()
    if "Z" in kept:
        return Metadata(resolution_for(spacing, per=1.0), "none", imagej_described(VERSION, spacing))
    return Metadata(resolution_for(spacing), "centimeter")
