"""TIFF files in windows: classic and BigTIFF, OME-TIFF, and the files of slide scanners, which are read only."""

from __future__ import annotations

import contextlib
from pathlib import Path

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.byte_ranges import SCHEMES
from convforge.imaging.windowed.contract import Layout, Place, WindowFormat, WindowReader
from convforge.imaging.windowed.tiff.create import create, description_of, is_ome, lost, notes, reopen
from convforge.imaging.windowed.tiff.reader import TiffReader
from convforge.imaging.windowed.tiff.storage import arranged, storage_of

__all__ = ["FORMAT", "is_tiff", "source_notes"]

HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(path: Path) -> bool:
    """True for a file that begins as a TIFF does."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(4) in HEADERS
    return False


def checked(layout: Layout, place: Place, source: WindowReader) -> Layout:
    """Return the layout of :func:`arranged`; ``ImageError`` if the result is an OME-TIFF that cannot hold it."""
    found = arranged(layout, place, source)
    if is_ome(source, place.name):
        try:
            description_of(found, source, storage_of(found, source, place.name), place.name)
        except ImageError as error:
            raise ImageError(str(error).replace(place.name, str(place), 1)) from error
    return found


def source_notes(source: WindowReader) -> tuple[str, ...]:
    """Return how many tiles of a slide are not stored: scanners leave out those without tissue."""
    if not isinstance(source, TiffReader) or not source.is_slide:
        return ()
    absent, total = source.absent()
    if not absent:
        return ()
    return (f"{source.path}: {absent} of {total} tiles are not stored; they are read as 0, which is black in RGB",)


FORMAT = WindowFormat(
    "TIFF", (".tif", ".tiff", ".tf2", ".tf8", ".btf"), is_tiff, TiffReader, checked, create, reopen, lost, SCHEMES,
    notes=notes, source_notes=source_notes, reads=(".svs", ".ndpi", ".scn", ".bif", ".qptiff", ".lsm", ".stk"),
)  # fmt: skip
