"""TIFF files in windows: classic and BigTIFF, OME-TIFF, and the files of slide scanners, which are read only."""

from __future__ import annotations

import contextlib
from pathlib import Path

from convforge.imaging.windowed.byte_ranges import SCHEMES
from convforge.imaging.windowed.contract import WindowFormat
from convforge.imaging.windowed.tiff_create import create, lost, notes, reopen
from convforge.imaging.windowed.tiff_reader import TiffReader
from convforge.imaging.windowed.tiff_storage import arranged

HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(path: Path) -> bool:
    """True for a file that begins as a TIFF does."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(4) in HEADERS
    return False


FORMAT = WindowFormat(
    "TIFF", (".tif", ".tiff", ".tf2", ".tf8", ".btf"), is_tiff, TiffReader, arranged, create, reopen, lost, SCHEMES,
    notes=notes, reads=(".svs", ".ndpi", ".scn", ".bif", ".qptiff", ".lsm", ".stk"),
)  # fmt: skip
