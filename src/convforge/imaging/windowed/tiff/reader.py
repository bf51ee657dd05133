"""TIFF files in windows: any window of uncompressed strips, and the strips or tiles that a window touches of others."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convforge.imaging.formats import exif, tiff_tags
from convforge.imaging.formats.tiff import (
    APERIO_YCBCR,
    ASSOCIATED,
    COLOURS,
    MIN_IS_WHITE,
    PALETTE,
    STRANGE_COLOURS,
    UNASSOCIATED,
    YCBCR,
    extra_samples,
)
from convforge.imaging.formats.tiff_log import listening
from convforge.imaging.image import SAMPLE_DTYPES, Array, ImageError, is_sample_dtype
from convforge.imaging.windowed.byte_ranges import RangeFile, open_bytes
from convforge.imaging.windowed.contract import Layout, Place, Region
from convforge.imaging.windowed.tiff import directories as td
from convforge.imaging.windowed.tiff.codec_headers import JPEG
from convforge.imaging.windowed.tiff.codec_memory import decoding_bytes
from convforge.imaging.windowed.tiff.directories import TiffBytes, open_tiff
from convforge.imaging.windowed.tiff.ome_xml import read_ome
from convforge.imaging.windowed.tiff.segments import Segments, check_page, check_stored, read_window
from convforge.imaging.windowed.tiff.series import Series, asked, series_of
from convforge.imaging.windowed.tiff.slides import SLIDES, is_sorted_by_tifffile, sorted_by_tifffile
from convforge.imaging.windowed.tiff.tag_sizes import check_tags

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

WHOLE = "or leave --memory out, so that the image is read whole"

# Segments whose positions are checked when a file is opened; of larger files, only those of the first and last page.
CHECKED = 2**14


class TiffReader:
    """The image of a TIFF, from strips or tiles; `warnings` are those of tifffile.

    `layout.shards` are the strips or tiles, so that a result can have them too; of uncompressed strips, of which any
    window can be read, `layout.chunks` is None. `warnings` are those of tifffile.
    """

    def __init__(self, place: Place) -> None:
        self.path, self.attributes = place, dict[str, Any]()
        self._ranges = open_bytes(place)
        self.tiff = open_tiff(place, self._ranges)
        try:
            with listening() as said:
                self._open()
            self.warnings = said.first
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # tifffile meets damage in many ways
            fault = " ".join(str(error).split()) or type(error).__name__
            raise self.tiff.damaged(f"its tags contradict each other ({fault})") from error

    def _open(self) -> None:
        self.file = open_tifffile(self.tiff)
        self.series = _image_of(self.tiff, self.file)
        self.first = self.series.first
        _check_kind(self.path, self.first)
        check_page(self.tiff, self.first)
        self.segments = Segments(self.first, jfif=_is_jfif(self.tiff, self.first))
        self._pages = tuple(self.series.pages.values()) if self.plane_count > 1 else ()
        self._check_stored()
        self.layout = self._layout()

    @property
    def is_slide(self) -> bool:
        """True for the files of slide scanners, whose descriptions tell of further images."""
        return self.is_sorted_by_tifffile and any(getattr(self.file, f"is_{kind}") for kind in SLIDES)

    @property
    def is_sorted_by_tifffile(self) -> bool:
        """True for these files, and for those of two kinds of microscopes."""
        return is_sorted_by_tifffile(self.file)

    @property
    def plane_count(self) -> int:
        return math.prod(self.series.pages.values())

    def absent(self) -> tuple[int, int]:
        """Return the number of strips or tiles that are not stored, and of all, whose tables are in memory."""
        absent, each = 0, self.segments.grid.count
        for plane in range(self.plane_count):
            _, source, page = self.series.planes.at(plane)
            offsets, counts = source.segments(page, 0, each) if page >= 0 else ([0], [0])
            absent += sum(not at or not count for at, count in zip(offsets, counts, strict=True)) if page >= 0 else each
        return absent, each * self.plane_count

    def read(self, region: Region) -> Array:
        return read_window(self.series.planes, self.segments, self._pages, region)

    def fingerprint(self) -> str:
        return "; ".join(tiff.ranges.fingerprint() for tiff, _ in self.series.planes.files)

    def _layout(self) -> Layout:
        grid, pages = self.segments.grid, self.series.pages if self._pages else {}
        letters = "".join(pages) + ("SYX" if grid.planes > 1 else "YXS" if grid.samples > 1 else "YX")
        sizes = dict(pages) | {"Y": grid.height, "X": grid.width, "S": grid.planes * grid.samples}
        stored = dict.fromkeys(pages, 1) | {"Y": grid.rows, "X": grid.columns, "S": grid.samples}
        segment = tuple(stored[letter] for letter in letters)
        levels = tuple(
            tuple({**sizes, "Y": height, "X": width}[letter] for letter in letters)
            for height, width in self.series.levels
        )
        spacing = self.series.spacing
        return Layout(
            tuple(sizes[letter] for letter in letters), self.segments.dtype, "" if self.series.unclear else letters,
            chunks=None if self.segments.is_plain else segment, shards=segment, levels=levels,
            spacing=tuple(spacing.get(letter) for letter in letters) if spacing else (),
            channels=self.series.channels, alpha=self._alpha(), decoding=self._decoding(math.prod(segment)),
        )  # fmt: skip

    def _decoding(self, samples: int) -> int:
        """Return the bytes that decoding a segment takes; of uncompressed strips, only the wanted rows are read."""
        if self.segments.is_plain:
            return 0
        size = max(tiff.ranges.size for tiff, _ in self.series.planes.files)
        return decoding_bytes(
            self.segments.compression, int(self.first.predictor), self.segments.dtype.itemsize, samples, size
        )

    def _alpha(self) -> bool:
        grid = self.segments.grid
        extra = extra_samples(self.first, grid.planes * grid.samples)
        opacity = [kind in (ASSOCIATED, UNASSOCIATED) for kind in extra]
        if any(opacity[:-1]):
            raise ImageError(f"{self.path}: alpha is not the last sample of a pixel; save it as RGBA, {WHOLE}")
        return bool(opacity) and opacity[-1]

    def _check_stored(self) -> None:
        count = self.plane_count
        few = count * self.segments.grid.count <= CHECKED
        for plane in range(count) if few else (0, count - 1):
            tiff, source, page = self.series.planes.at(plane)
            if page >= 0:
                check_stored(tiff, source, page, self.segments)


def _image_of(tiff: TiffBytes, file: TiffFile) -> Series:
    if is_sorted_by_tifffile(file):
        return sorted_by_tifffile(tiff, file)
    return series_of(tiff, file, sorted_by_tifffile)


def spacing_of_slice(path: Path) -> Mapping[str, float]:
    """Return the distances in micrometres by axis that a file of one plane tells, along Z too; {} if it is damaged.

    Unlike a reader, it opens no further files of an OME-TIFF, which may be as many as the slices.
    """
    try:
        tiff = open_tiff(path, open_bytes(path))
        file = open_tifffile(tiff)
        if file.is_ome:
            return read_ome(asked(tiff, lambda: file.pages.first.description), path.name).spacing
        return _image_of(tiff, file).spacing
    except ImageError:
        return {}


def open_tifffile(tiff: TiffBytes) -> TiffFile:
    """Open a TIFF by tifffile, after a check of the sizes in its first directory."""
    from tifffile import TiffFile

    check_tags(tiff)
    if tiff.place.suffix.lower() != ".ndpi":  # Hamamatsu's directories have positions of a form of their own
        _check_first(tiff)
    try:
        handle = io.BufferedReader(RangeFile(tiff.ranges, tiff.place.name))
        return TiffFile(handle, name=tiff.place.name)
    except ImageError:
        raise
    except Exception as error:
        raise tiff.damaged(f"tifffile says: {' '.join(str(error).split()) or type(error).__name__}") from error


def _check_first(tiff: TiffBytes) -> None:
    entries, _ = tiff.entries(tiff.first)
    for code in (td.WIDTH, td.LENGTH):
        if not tiff.number(entries, code, 0):
            raise tiff.damaged(f"its first page has no {exif.tag_name(code)}")
    for code in td.SINGLE & entries.keys():
        if entries[code].count != 1:
            raise tiff.damaged(f"{exif.tag_name(code)} has {entries[code].count} values")


def _is_jfif(tiff: TiffBytes, page: TiffPage) -> bool | None:
    """Return True if the first JPEG data of a page whose first tile is absent have a JFIF header."""
    if int(page.compression) not in JPEG or not len(page.dataoffsets) or page.dataoffsets[0]:
        return None
    at = next((offset for offset in page.dataoffsets if offset), 0)
    return tiff.ranges.read(at, 10)[6:10] == b"JFIF"


def _check_kind(place: Place, page: TiffPage) -> None:
    """Raise ``ImageError`` for samples and colours that are not filtered in windows; the message tells what to do."""
    colours, name = int(page.photometric), None
    if page.shaped[1] > 1 or page.tiledepth > 1:
        raise ImageError(f"{place}: a volume (ImageDepth {page.shaped[1]}); save its slices as pages")
    if page.dtype is None or not is_sample_dtype(page.dtype) or page.bitspersample != 8 * page.dtype.itemsize:
        what = f"{page.bitspersample} bits of format {page.sampleformat}"
        raise ImageError(f"{place}: samples are {what}; convert the image to {SAMPLE_DTYPES} first, {WHOLE}")
    if colours == PALETTE:
        name = "palette"
    elif colours == MIN_IS_WHITE:
        name = "inverted (zero is white)"
    elif colours == YCBCR and int(page.compression) not in JPEG:
        name = "YCbCr"  # the decoders of JPEG 2000 convert none that has no JP2 header
    elif int(page.compression) == APERIO_YCBCR and page.samplesperpixel == 3:
        name = "YCbCr (Aperio's JPEG 2000, compression 33003)"
    if COLOURS.get(colours, 1) > page.samplesperpixel:
        raise ImageError(
            f"{place}: damaged, {page.samplesperpixel} samples cannot be RGB; get it again from its source"
        )
    name = STRANGE_COLOURS.get(colours, name)
    if name is not None:
        way = f", {WHOLE}" if colours in (PALETTE, MIN_IS_WHITE) else ""
        raise ImageError(f"{place}: {name} colours; convert the image to RGB or gray first{way}")
    if (turned := tiff_tags.orientation_of(page)) != 1:
        raise ImageError(f"{place}: is stored rotated or flipped (orientation {turned}); save it upright, {WHOLE}")
