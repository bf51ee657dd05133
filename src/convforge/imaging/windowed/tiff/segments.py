"""Pixels of planes of a TIFF: windows cut from strips and tiles, which tifffile and imagecodecs decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from convforge.imaging.formats.tiff import BEST_RATIO, LOOSEST_RATIO
from convforge.imaging.image import Array, ImageError, check_proportion
from convforge.imaging.windowed.contract import Region
from convforge.imaging.windowed.tiff.codec_headers import declared_size, has_header
from convforge.imaging.windowed.tiff.directories import TiffBytes

if TYPE_CHECKING:
    from tifffile import TiffPage

    from convforge.imaging.windowed.tiff.series import Planes, Source

# Compressed data take at most twice the size of the pixels, and this many bytes more, for profiles and the like.
MORE = 2**20


@dataclass(frozen=True)
class Grid:
    """Size of an image, and of the strips or tiles that it is stored in."""

    height: int
    width: int
    rows: int  # of a segment
    columns: int
    samples: int  # of a segment
    planes: int  # planes of samples of a page
    tiled: bool

    @property
    def down(self) -> int:
        return -(-self.height // self.rows)

    @property
    def across(self) -> int:
        return -(-self.width // self.columns)

    @property
    def count(self) -> int:
        """Number of segments of a page."""
        return self.planes * self.down * self.across


def grid_of(page: TiffPage) -> Grid:
    planes, _, height, width, samples = page.shaped
    rows, columns = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, width)
    return Grid(height, width, int(rows), int(columns), samples, planes, bool(page.is_tiled))


class Segments:
    """Strips or tiles of pages that are alike.

    Parameters
    ----------
    first : TiffPage
        One of these pages.
    jfif : bool, optional
        JPEG data have JFIF headers, which tell their colours; by default as in the first strip or tile of the page.
    """

    def __init__(self, first: TiffPage, *, jfif: bool | None = None) -> None:
        self.grid, self.dtype = grid_of(first), np.dtype(first.dtype).newbyteorder("=")
        self.compression = int(first.compression)
        self._stored = self.dtype.newbyteorder(first.parent.byteorder)
        self._header = first.jpegheader
        if jfif is not None:
            first.is_jfif = jfif  # tifffile asks it when it makes the decoder
        first.init_decode()
        self._decode = first.decode
        # Any row of an uncompressed strip can be read alone.
        self.is_plain = self.compression == 1 and not first.is_tiled and first.predictor == 1 and first.fillorder == 1

    def read(
        self, tiff: TiffBytes, source: Source, page: int, sample: int, y: slice, x: slice, band: slice, out: Array
    ) -> None:
        """Copy a window of a plane of samples into `out` (h, w, s), which is zeros; absent segments stay zeros."""
        grid = self.grid
        if self.is_plain:
            self._read_rows(tiff, source, page, sample, y, x, band, out)
            return
        left, right = x.start // grid.columns, -(-x.stop // grid.columns)
        tables = source.jpeg_tables(page)
        for down in range(y.start // grid.rows, -(-y.stop // grid.rows)):
            first = (sample * grid.down + down) * grid.across + left
            offsets, counts = source.segments(page, first, right - left)
            for number, (at, count) in enumerate(zip(offsets, counts, strict=True)):
                if not count or not at:
                    continue
                top, side = down * grid.rows, (left + number) * grid.columns
                decoded = self._decoded(tiff, at, count, first + number, tables)
                rows = slice(max(y.start, top), min(y.stop, top + decoded.shape[0]))
                columns = slice(max(x.start, side), min(x.stop, side + decoded.shape[1]))
                part = decoded[rows.start - top : rows.stop - top, columns.start - side : columns.stop - side, band]
                out[rows.start - y.start : rows.stop - y.start, columns.start - x.start : columns.stop - x.start] = part

    def _decoded(self, tiff: TiffBytes, at: int, count: int, index: int, tables: bytes | None) -> Array:
        """Return a segment's samples (h, w, s); those at the end of an image may be clipped."""
        grid = self.grid
        top = index // grid.across % grid.down * grid.rows
        side = index % grid.across * grid.columns
        clipped = (min(grid.rows, grid.height - top), min(grid.columns, grid.width - side))
        size = (grid.rows if grid.tiled else clipped[0]) * grid.columns * grid.samples * self.dtype.itemsize
        if at + count > tiff.ranges.size:
            raise tiff.damaged(f"pixel data at {at} end beyond its {tiff.ranges.size} bytes")
        check_proportion(str(tiff.place), size, count, BEST_RATIO.get(self.compression, LOOSEST_RATIO))
        if self.compression == 1:
            count = min(count, size)  # some writers count more
        elif count > 2 * size + MORE:
            raise tiff.damaged(f"the {count} bytes of pixel data at {at} are too many for a segment of {size} bytes")
        data = tiff.exactly(at, count, "pixel data")
        self._check_header(tiff, data, at, size)
        try:
            decoded, _, _ = self._decode(data, index, jpegtables=tables, jpegheader=self._header)
        except Exception as error:  # each codec raises its own
            fault = " ".join(str(error).split()) or type(error).__name__
            raise tiff.damaged(f"pixel data at {at} cannot be decoded ({fault})") from error
        array: Array = decoded[0]
        whole = (grid.rows, grid.columns) if grid.tiled else clipped
        if array.shape[2] != grid.samples or array.dtype != self.dtype or array.shape[:2] not in (whole, clipped):
            raise tiff.damaged(f"pixel data at {at} are {array.shape} x {array.dtype}, and {whole} is expected")
        return array

    def _check_header(self, tiff: TiffBytes, data: bytes, at: int, size: int) -> None:
        """Refuse data that declare an image larger than the segment, before they are decoded."""
        if not has_header(self.compression):
            return
        found, grid = declared_size(self.compression, self._header or data, 2 * size + MORE), self.grid
        if found is None:
            raise tiff.damaged(f"pixel data at {at} cannot be decoded (they have no header that tells their size)")
        if found.height > grid.rows + 16 or found.width > grid.columns + 16:
            raise tiff.damaged(f"pixel data at {at} declare {found.width} x {found.height} pixels in a segment")
        if found.samples > grid.samples or found.itemsize > self.dtype.itemsize:
            raise tiff.damaged(
                f"pixel data at {at} declare {found.samples} samples of {found.itemsize} bytes, and {grid.samples} of "
                f"{self.dtype.itemsize} is expected"
            )

    def _read_rows(
        self, tiff: TiffBytes, source: Source, page: int, sample: int, y: slice, x: slice, band: slice, out: Array
    ) -> None:
        grid = self.grid
        pixel = grid.samples * self.dtype.itemsize
        row = grid.width * pixel
        strips = range(y.start // grid.rows, -(-y.stop // grid.rows))
        offsets, counts = source.segments(page, sample * grid.down + strips.start, len(strips))
        for strip, at, count in zip(strips, offsets, counts, strict=True):
            if not count or not at:
                continue
            top = strip * grid.rows
            start, stop = max(y.start, top), min(y.stop, top + grid.rows)
            if count < (min(grid.height, top + grid.rows) - top) * row:
                raise tiff.damaged(f"a strip of {count} bytes is too short for its rows of {row} bytes")
            target = out[start - y.start : stop - y.start]
            if x.stop - x.start == grid.width:
                data = tiff.exactly(at + (start - top) * row, (stop - start) * row, "pixel data")
                rows = np.frombuffer(data, self._stored).reshape(stop - start, grid.width, grid.samples)
                target[...] = rows[..., band]
                continue
            for number in range(start, stop):
                begin = at + (number - top) * row + x.start * pixel
                data = tiff.exactly(begin, (x.stop - x.start) * pixel, "pixel data")
                target[number - start] = np.frombuffer(data, self._stored).reshape(-1, grid.samples)[:, band]


def read_window(planes: Planes, segments: Segments, pages: tuple[int, ...], region: Region) -> Array:
    """Return a window as a new array; `pages` are the sizes of the page axes, with which `region` begins."""
    grid, number = segments.grid, len(pages)
    region = tuple(slice(int(part.start), int(part.stop)) for part in region)
    shape = tuple(part.stop - part.start for part in region)
    out: Array = np.zeros(shape, segments.dtype)
    rest = region[number:]
    y, x = rest[1:3] if grid.planes > 1 else rest[:2]
    band = rest[2] if grid.samples > 1 else slice(0, 1)
    for index in np.ndindex(shape[:number]):
        at = tuple(part.start + i for part, i in zip(region, index, strict=False))
        tiff, source, page = planes.at(int(np.ravel_multi_index(at, pages)) if at else 0)
        if page < 0:
            continue
        for sample in range(rest[0].start, rest[0].stop) if grid.planes > 1 else (0,):
            target = out[(*index, sample - rest[0].start)] if grid.planes > 1 else out[index]
            target = target if grid.samples > 1 else target[..., np.newaxis]
            segments.read(tiff, source, page, sample, y, x, band, target)
    return out


def check_page(tiff: TiffBytes, first: TiffPage) -> None:
    """Raise ``ImageError`` for an absurd grid, a table of another length, or more pixels than data can hold."""
    grid = grid_of(first)
    if min(grid.height, grid.width, grid.rows, grid.columns, grid.samples, grid.planes) < 1:
        raise ImageError(f"{tiff.place}: declares {grid.width} x {grid.height} pixels; the file holds no image")
    if grid.count > 2**32 or max(grid.height, grid.width) >= 2**31:
        raise tiff.damaged(f"it declares {grid.count} strips or tiles")
    if len(first.dataoffsets) != grid.count or len(first.databytecounts) != grid.count:
        raise tiff.damaged(f"its tables have {len(first.dataoffsets)} entries, and {grid.count} are needed")


def check_stored(tiff: TiffBytes, source: Source, page: int, segments: Segments) -> None:
    """Raise ``ImageError`` if segments of a page end beyond the file, or hold too little for its pixels."""
    grid, size, stored, filled = segments.grid, tiff.ranges.size, 0, 0
    step = 2**16
    for first in range(0, grid.count, step):
        offsets, counts = (
            np.array(part, object) for part in source.segments(page, first, min(step, grid.count - first))
        )
        held = (offsets > 0) & (counts > 0)
        if not held.any():
            continue
        if (end := (offsets + counts)[held].max()) > size:
            raise tiff.damaged(f"pixel data end at {end}, beyond its {size} bytes")
        stored, filled = stored + int(counts[held].sum()), filled + int(held.sum())
    declared = grid.height * grid.width * grid.samples * grid.planes * segments.dtype.itemsize
    # A segment without bytes means zeros, so only the others need bytes.
    ratio = BEST_RATIO.get(segments.compression, LOOSEST_RATIO)
    check_proportion(str(tiff.place), declared * filled // grid.count, stored, ratio)
