"""TIFF files written in windows: encoded strips or tiles are appended, and then named in their page's table.

The file has all its pages from the beginning, with tables of zeros. A strip or tile is first written behind the end of
the file and flushed to the disk, then its position and size are written into the table and flushed. So a process that
ends at any moment leaves a valid file. A strip or tile that is written again is appended again.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convforge.imaging.image import Array, ImageError
from convforge.imaging.windowed.byte_ranges import LocalBytes
from convforge.imaging.windowed.contract import Layout, Region
from convforge.imaging.windowed.tiff_directories import CODES, Entry, Tables, TiffBytes
from convforge.imaging.windowed.tiff_segments import Segments, read_window
from convforge.imaging.windowed.tiff_series import Planes
from convforge.imaging.windowed.tiff_storage import JPEG, PageForm, Storage


class Appended:
    """An open TIFF that grows: each thread writes to its own part behind the end."""

    def __init__(self, file: LocalBytes, tiff: TiffBytes) -> None:
        self.file, self.tiff = file, tiff
        self._turn = threading.Lock()
        self._end = file.size

    def append(self, parts: Sequence[bytes]) -> list[int]:
        """Append parts and return their positions; not yet flushed."""
        with self._turn:
            begin = self._end + self._end % 2
            starts = [
                begin,
                *(begin + total for total in itertools.accumulate(len(part) + len(part) % 2 for part in parts)),
            ]
            if not self.tiff.is_big and starts[-1] >= 2**32:
                raise ImageError(
                    f"{self.file.path}: grew beyond the 4 GB of a classic TIFF; name the result .btf, which is BigTIFF"
                )
            self._end = starts[-1]
        self.file.write(begin, b"".join(part + bytes(len(part) % 2) for part in parts))
        return starts[:-1]

    def patch(self, entry: Entry, first: int, values: Sequence[int]) -> None:
        """Write numbers into the table of an entry."""
        code = CODES[entry.kind]
        form = f"{self.tiff.form.order}{len(values)}{code}"
        try:
            data = struct.pack(form, *values)
        except struct.error as error:
            raise ImageError(f"{self.file.path}: a strip or tile of {max(values)} bytes is too large") from error
        self.file.write(entry.at + first * struct.calcsize(f"={code}"), data)


class TiffLevel:
    """An image of a TIFF, written in windows of whole strips or tiles."""

    def __init__(
        self, appended: Appended, layout: Layout, storage: Storage, tables: Tables, segments: Segments
    ) -> None:
        self.layout = layout
        self.levels: tuple[TiffLevel, ...] = ()
        self._appended, self._storage, self._tables, self._segments = appended, storage, tables, segments
        self._form = PageForm.of(layout.axes)
        self._planes = Planes([(appended.tiff, tables)])

    def write(self, region: Region, array: Array) -> None:
        form, file = self._form, self._appended.file
        sizes, parts = form.page_sizes(self.layout.shape), dict(zip(form.letters, region, strict=True))
        planes = np.asarray(array, self._storage.dtype)
        if not form.band:
            planes = planes[..., np.newaxis, :, :, np.newaxis]
        elif form.planar:
            planes = planes[..., np.newaxis]
        else:
            planes = planes[..., np.newaxis, :, :, :]
        bands = parts[form.band] if form.planar else slice(0, 1)
        count = len(form.pages)
        found: list[tuple[int, int, list[bytes]]] = []
        for index in np.ndindex(planes.shape[:count]):
            at = [parts[letter].start + i for letter, i in zip(form.pages, index, strict=True)]
            page = int(np.ravel_multi_index(at, sizes)) if at else 0
            for sample in range(bands.start, bands.stop):
                plane = planes[(*index, sample - bands.start)]
                if self._segments.is_plain:
                    self._write_rows(page, sample, parts["Y"], plane)
                else:
                    found += [(page, first, row) for first, row in self._encoded(sample, parts["Y"], parts["X"], plane)]
        if found:
            self._publish(found)
        file.sync()

    def _encoded(self, sample: int, y: slice, x: slice, plane: Array) -> list[tuple[int, list[bytes]]]:
        """Encode a window (h, w, s); return, for each row of segments, the number of the first one and their bytes."""
        grid = self._segments.grid
        if y.start % grid.rows or x.start % grid.columns:
            raise ImageError(f"{self._appended.file.path}: a window at {y.start}, {x.start} is not of whole segments")
        rows = []
        for top in range(y.start, y.stop, grid.rows):
            height = grid.rows if grid.tiled else min(grid.rows, grid.height - top)
            encoded = []
            for left in range(x.start, x.stop, grid.columns):
                part = plane[top - y.start :, left - x.start :][:height, : grid.columns]
                missing = [(0, height - part.shape[0]), (0, grid.columns - part.shape[1]), (0, 0)]
                if any(more for _, more in missing):
                    part = np.pad(part, missing, mode="edge" if self._storage.compression == JPEG else "constant")
                encoded.append(self._encode(part))
            first = (sample * grid.down + top // grid.rows) * grid.across + x.start // grid.columns
            rows.append((first, encoded))
        return rows

    def _encode(self, part: Array) -> bytes:
        try:
            return self._storage.encoded(part)
        except MemoryError:
            raise
        except Exception as error:  # each codec raises its own
            fault = " ".join(str(error).split()) or type(error).__name__
            raise ImageError(f"{self._appended.file.path}: a strip or tile cannot be encoded ({fault})") from error

    def _publish(self, found: Sequence[tuple[int, int, list[bytes]]]) -> None:
        """Append segments, flush them, and only then name them in the tables."""
        appended = self._appended
        positions = iter(appended.append([part for _, _, row in found for part in row]))
        appended.file.sync()
        for page, first, row in found:
            offsets, counts = self._tables.places(page)
            appended.patch(offsets, first, list(itertools.islice(positions, len(row))))
            appended.patch(counts, first, [len(part) for part in row])

    def _write_rows(self, page: int, sample: int, y: slice, plane: Array) -> None:
        """Write whole rows (h, w, s) to their place in uncompressed strips."""
        grid = self._segments.grid
        strips = range(y.start // grid.rows, -(-y.stop // grid.rows))
        offsets, _ = self._tables.segments(page, sample * grid.down + strips.start, len(strips))
        stored = np.ascontiguousarray(plane, self._storage.stored)
        for strip, at in zip(strips, offsets, strict=True):
            top = strip * grid.rows
            start, stop = max(y.start, top), min(y.stop, top + grid.rows)
            row = stored[0].nbytes
            self._appended.file.write(at + (start - top) * row, stored[start - y.start : stop - y.start].tobytes())

    def read(self, region: Region) -> Array:
        form = self._form
        band = region[form.letters.index(form.band)] if form.band else None
        inner = list(region)
        if form.band and self._storage.samples == 1:  # an axis of one sample, which the file has not
            del inner[form.letters.index(form.band)]
        sizes = form.page_sizes(self.layout.shape)
        array = read_window(self._planes, self._segments, sizes, tuple(inner))
        if band is not None and self._storage.samples == 1:
            array = np.expand_dims(array, form.letters.index(form.band))
        return array

    def finish(self) -> None:
        """Do nothing: every window is on the disk."""


class TiffWriter(TiffLevel):
    """A TIFF and its reduced copies, written in windows."""

    def __init__(self, base: TiffLevel, levels: Sequence[TiffLevel]) -> None:
        super().__init__(base._appended, base.layout, base._storage, base._tables, base._segments)
        self.levels = tuple(levels)

    def finish(self) -> None:
        """Close the file, also for the reduced copies."""
        self._appended.file.close()


def level_layout(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a reduced copy."""
    spacing = tuple(
        None if one is None else one * whole / part
        for one, whole, part in zip(layout.spacing, layout.shape, shape, strict=False)
    )
    return replace(layout, shape=shape, levels=(), spacing=spacing)
