"""Formats that are read and written in windows, one module each, for images larger than memory.

A module provides a reader, a writer and a :class:`~convforge.imaging.windowed.contract.WindowFormat`, which is listed
here.
"""

from __future__ import annotations

from pathlib import Path

from convforge.imaging.image import ImageError
from convforge.imaging.windowed import npy, zarr
from convforge.imaging.windowed.contract import Layout, Region, WindowFormat, WindowReader, WindowWriter

__all__ = ["FORMATS", "Layout", "Region", "WindowFormat", "WindowReader", "WindowWriter", "format_of", "open_windows"]

FORMATS = (zarr.FORMAT, npy.FORMAT)


def format_of(path: Path) -> WindowFormat | None:
    """Return the format that a file's suffix names, or None; a Zarr array inside a group needs no suffix."""
    for kind in FORMATS:
        if path.suffix.lower() == kind.suffix:
            return kind
    return zarr.FORMAT if zarr.is_zarr(path) else None


def open_windows(path: Path) -> WindowReader:
    """Open an array for reading in windows; ``ImageError`` if the file is missing, damaged or of another format."""
    kind = format_of(path)
    if kind is None:
        known = " or ".join(kind.suffix for kind in FORMATS)
        raise ImageError(f"{path}: cannot be read in windows; convert it to {known}")
    if not path.exists():
        raise ImageError(f"{path}: no such file; check the name and the folder")
    return kind.open(path)
