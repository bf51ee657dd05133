"""Formats that are read and written in windows, one module each, for images larger than memory.

A module provides a reader, a writer and a :class:`~convforge.imaging.windowed.contract.WindowFormat`, which is listed
here.
"""

from __future__ import annotations

from pathlib import Path

from convforge.imaging.image import ImageError
from convforge.imaging.windowed import npy, tiff, zarr
from convforge.imaging.windowed.contract import (
    Layout,
    Place,
    Region,
    Url,
    WindowFormat,
    WindowReader,
    WindowWriter,
    local,
    place_of,
)

__all__ = [
    "FORMATS",
    "Layout",
    "Place",
    "Region",
    "Url",
    "WindowFormat",
    "WindowReader",
    "WindowWriter",
    "format_of",
    "known_suffixes",
    "local",
    "open_windows",
    "place_of",
]

FORMATS = (zarr.FORMAT, npy.FORMAT, tiff.FORMAT)


def known_suffixes() -> str:
    """Return the suffixes of files that are written in windows, as a text."""
    *most, last = (suffix for kind in FORMATS for suffix in kind.suffixes)
    return f"{', '.join(most)} or {last}"


def format_of(place: Place) -> WindowFormat | None:
    """Return the format that a suffix names, or None; a local Zarr array or TIFF may have another suffix."""
    for kind in FORMATS:
        if place.suffix.lower() in kind.suffixes + kind.reads:
            return kind
    if isinstance(place, Path):
        return zarr.FORMAT if zarr.is_zarr(place) else tiff.FORMAT if tiff.is_tiff(place) else None
    return None


def open_windows(place: Place) -> WindowReader:
    """Open an array for reading in windows; ``ImageError`` if the file is missing, damaged or of another format."""
    kind = format_of(place)
    if kind is None:
        raise ImageError(f"{place}: cannot be read in windows; convert it to {known_suffixes()}")
    if isinstance(place, Path) and not place.exists():
        raise ImageError(f"{place}: no such file; check the name and the folder")
    if isinstance(place, Url) and place.scheme not in kind.schemes:
        known = ", ".join(sorted(kind.schemes)) or "none"
        raise ImageError(f"{place}: {kind.name} is not read from {place.scheme}:// (schemes that are: {known})")
    return kind.open(place)
