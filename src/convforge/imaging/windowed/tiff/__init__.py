"""TIFF files in windows: classic and BigTIFF, OME-TIFF, and the files of slide scanners, which are read only."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

from convforge.imaging.formats.tiff import READ_ONLY
from convforge.imaging.image import ImageError
from convforge.imaging.windowed.byte_ranges import SCHEMES
from convforge.imaging.windowed.contract import Layout, Place, WindowFormat, WindowReader
from convforge.imaging.windowed.tiff.codec_memory import decoding_bytes, encoding_bytes
from convforge.imaging.windowed.tiff.create import beside, create, description_of, is_ome, lost, notes, reopen
from convforge.imaging.windowed.tiff.directories import MOST_DIRECTORIES
from convforge.imaging.windowed.tiff.reader import TiffReader
from convforge.imaging.windowed.tiff.storage import PageForm, arranged, storage_of
from convforge.imaging.windowed.tiff.tag_sizes import MOST_NUMBERS

__all__ = ["FORMAT", "is_tiff", "source_notes"]

# OME-XML has an element for each channel.
MOST_CHANNELS = 2**14

HEADERS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(path: Path) -> bool:
    """True for a file that begins as a TIFF does."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(4) in HEADERS
    return False


def checked(layout: Layout, place: Place, source: WindowReader) -> Layout:
    """Return the layout of :func:`arranged`; ``ImageError`` if a TIFF, or an OME-TIFF, cannot hold the result."""
    found = arranged(layout, place, source)
    form = PageForm.of(found.axes)
    sizes, stored = form.sizes(found.shape), form.sizes(found.shards or found.shape)
    pages = math.prod(form.page_sizes(found.shape))
    planes = form.samples(found.shape) if form.planar else 1
    segments = planes * math.prod(-(-sizes[letter] // stored[letter]) for letter in "YX")
    channels = sizes.get("C", 1) if is_ome(source, place.name) else 1
    for count, most, what in (
        (pages, MOST_DIRECTORIES, "pages"), (channels, MOST_CHANNELS, "channels"),
        (segments, MOST_NUMBERS // 2, "strips or tiles of a page"),
    ):  # fmt: skip
        if count > most:
            raise ImageError(f"{place}: would have {count} {what}, more than {most}; write a Zarr array (.zarr)")
    if is_ome(source, place.name):
        try:
            description_of(found, source, storage_of(found, source, place.name), place.name)
        except ImageError as error:
            raise ImageError(str(error).replace(place.name, str(place), 1)) from error
    storage = storage_of(found, source, place.name)
    codec = storage.compression, storage.predictor, storage.dtype.itemsize, math.prod(found.shards or found.shape)
    is_plain = found.chunks is None
    return replace(
        found, encoding=encoding_bytes(*codec), decoding=0 if is_plain else decoding_bytes(*codec, found.nbytes)
    )


def source_notes(source: WindowReader) -> tuple[str, ...]:
    """Return the warnings of tifffile, and how many tiles of a slide scanners have left out, for lack of tissue."""
    if not isinstance(source, TiffReader):
        return ()
    said = tuple(f"{source.path}: tifffile says: {text}" for text in source.warnings)
    absent, total = source.absent() if source.is_slide else (0, 0)
    if not absent:
        return said
    return (
        *said,
        f"{source.path}: {absent} of {total} tiles are not stored; they are read as 0, which is black in RGB, and the "
        "kernel mixes it into the pixels beside them; leave out that margin, or filter a part without them (--region)",
    )


FORMAT = WindowFormat(
    "TIFF", (".tif", ".tiff", ".tf2", ".tf8", ".btf"), is_tiff, TiffReader, checked, create, reopen, lost, SCHEMES,
    notes=notes, source_notes=source_notes, beside=beside, reads=READ_ONLY,
)  # fmt: skip
