"""Formats that are read and written in windows, one module each, for images larger than memory.

A module provides a reader, a writer and a :class:`~convforge.imaging.windowed.contract.WindowFormat`, which is listed
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convforge.imaging.image import ImageError
from convforge.imaging.windowed import npy, slices, tiff, zarr
from convforge.imaging.windowed.contract import (
    Layout,
    Place,
    Region,
    Url,
    WindowFormat,
    WindowReader,
    Windows,
    WindowWriter,
    local,
    place_of,
    read_into,
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
    "Windows",
    "format_of",
    "local",
    "open_windows",
    "place_of",
    "read_into",
    "suffixes_of",
]

FORMATS = (zarr.FORMAT, npy.FORMAT, tiff.FORMAT, slices.FORMAT)


# Suffixes before which `.ome` asks for OME's metadata.
OME = frozenset({".zarr", ".tif", ".tiff"})


def suffixes_of(formats: Sequence[WindowFormat]) -> str:
    """Return the suffixes of files that are written in windows, as a text.

    Examples
    --------
    >>> suffixes_of((npy.FORMAT, zarr.FORMAT))
    '.npy, .zarr or .ome.zarr'
    """
    *most, last = (
        name
        for kind in formats
        for suffix in kind.suffixes
        for name in (suffix, f".ome{suffix}")[: 1 + (suffix in OME)]
    )
    return f"{', '.join(most)} or {last}" if most else last


def format_of(place: Place, formats: Sequence[WindowFormat] = FORMATS) -> WindowFormat | None:
    """Return the format that a suffix names, or None.

    Local files and folders, and places in a Zarr group, may have other suffixes: a file may be a TIFF, a folder with
    Zarr's metadata is a Zarr array or group, any other a folder of slices.
    """
    if isinstance(place, slices.SliceFolder):
        return slices.format_for(place)
    for kind in formats:
        if place.suffix.lower() in kind.suffixes + kind.reads:
            return kind
    if isinstance(place, Url):
        return zarr.FORMAT if ".zarr/" in place.text.lower() else None
    if place.is_dir():
        return zarr.FORMAT if zarr.is_zarr(place) else slices.FORMAT
    return tiff.FORMAT if tiff.is_tiff(place) else None


def open_windows(place: Place, formats: Sequence[WindowFormat] = FORMATS) -> WindowReader:
    """Open an array for reading in windows; ``ImageError`` if the file is missing, damaged or of another format."""
    kind = format_of(place, formats)
    if kind is None:
        known = suffixes_of(formats)
        raise ImageError(f"{place}: cannot be read in parts; convert it to {known}")
    if isinstance(place, Path) and not place.exists():
        raise ImageError(f"{place}: no such file; check the name and the folder")
    if isinstance(place, Url) and place.scheme not in kind.schemes:
        known = ", ".join(sorted(kind.schemes)) or "none"
        raise ImageError(f"{place}: {kind.name} is not read from {place.scheme}:// (schemes that are: {known})")
    return kind.open(place)
