"""Directories of a TIFF by position: their entries, their chain, and the tables of their strips or tiles.

tifffile reads every table whole into Python integers, which takes gigabytes for large stacks. Here only the offset of
each directory is held, and the parts of the tables that a window needs are read when it needs them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from convforge.imaging.formats import exif
from convforge.imaging.image import ImageError
from convforge.imaging.windowed.byte_ranges import ByteRanges
from convforge.imaging.windowed.contract import Place

SUBFILE, WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, DESCRIPTION = 254, 256, 257, 258, 259, 262, 270
STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS, STRIP_COUNTS, PLANAR, PREDICTOR = 273, 274, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_LENGTH, TILE_OFFSETS, TILE_COUNTS, SUBIFDS, EXTRA, FORMAT, TABLES = (
    322,
    323,
    324,
    325,
    330,
    338,
    339,
    347,
)
DEPTH = 32997

# Tags that are equal in all pages of a stack.
ALIKE = (
    WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, ORIENTATION, SAMPLES, ROWS, PLANAR, PREDICTOR, TILE_WIDTH,
    TILE_LENGTH, EXTRA, FORMAT, DEPTH,
)  # fmt: skip

# Tags of one value.
SINGLE = {
    WIDTH, LENGTH, COMPRESSION, PHOTOMETRIC, 266, ORIENTATION, SAMPLES, PLANAR, 296, PREDICTOR, TILE_WIDTH, TILE_LENGTH,
    DEPTH,
}  # fmt: skip

# The most directories of a file and entries of a directory; more are a sign of damage.
MOST_DIRECTORIES, MOST_ENTRIES = 2**24, 4096

CODES = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}  # of field types of whole numbers


@dataclass(slots=True)
class Entry:
    """An entry of a directory: field type, number of values, position of the first value."""

    kind: int
    count: int
    at: int
    inline: bytes | None  # the values, if they are in the entry

    def in_file(self) -> Entry:
        """Return an entry whose values are read from the file each time."""
        return Entry(self.kind, self.count, self.at, None)


Entries = dict[int, Entry]


@dataclass(frozen=True)
class TiffBytes:
    """The bytes of a TIFF and the form of its directories."""

    place: Place
    ranges: ByteRanges
    form: exif.Form
    first: int  # position of the first directory

    @property
    def is_big(self) -> bool:
        return self.form.offset.size == 8

    def damaged(self, fault: str) -> ImageError:
        return ImageError(f"{self.place}: truncated or damaged TIFF, {fault}; get it again from its source")

    def exactly(self, at: int, count: int, what: str) -> bytes:
        data = self.ranges.read(at, count)
        while 0 < len(data) < count and (more := self.ranges.read(at + len(data), count - len(data))):
            data += more
        if len(data) != count:
            raise self.damaged(f"{what} at {at} ends beyond its {self.ranges.size} bytes")
        return data

    def entries(self, at: int) -> tuple[Entries, int]:
        """Return the entries of the directory at a position, and the position of the next directory or 0."""
        found, following = self.listed(at)
        return dict(found), following

    def listed(self, at: int) -> tuple[list[tuple[int, Entry]], int]:
        """Return the same with the entries in order; a tag may occur again."""
        number, head, offset = self.form.number, self.form.head, self.form.offset
        raw = self.ranges.read(at, 512)
        if at < 8 or len(raw) < number.size:
            raise self.damaged(f"a directory at {at} is beyond its {self.ranges.size} bytes")
        (count,) = number.unpack_from(raw)
        if count > MOST_ENTRIES:
            raise self.damaged(f"the directory at {at} has {count} entries")
        step = head.size + offset.size
        size = number.size + count * step + offset.size
        raw = raw if len(raw) >= size else self.exactly(at, size, "the directory")
        found = list[tuple[int, Entry]]()
        for start in range(number.size, size - offset.size, step):
            code, kind, values = head.unpack_from(raw, start)
            where = start + head.size
            if exif.SIZES.get(kind, 1) * values > offset.size:
                found.append((code, Entry(kind, values, offset.unpack_from(raw, where)[0], None)))
            else:
                found.append((code, Entry(kind, values, at + where, raw[where : where + offset.size])))
        return found, offset.unpack_from(raw, size - offset.size)[0]

    def values(self, entry: Entry, first: int = 0, count: int | None = None) -> npt.NDArray[Any]:
        """Return whole numbers of an entry, in native byte order."""
        code = CODES.get(entry.kind)
        if code is None:
            raise self.damaged(f"an entry of field type {entry.kind}, where a number is expected")
        dtype = np.dtype(f"{self.form.order}{code}")
        count = entry.count - first if count is None else count
        if first + count > entry.count:
            raise self.damaged(f"a table has {entry.count} entries, and entry {first + count} is needed")
        start, size = first * dtype.itemsize, count * dtype.itemsize
        inline = entry.inline
        data = self.exactly(entry.at + start, size, "a table") if inline is None else inline[start : start + size]
        return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))

    def number(self, entries: Entries, code: int, default: int) -> int:
        entry = entries.get(code)
        return default if entry is None or not entry.count else int(self.values(entry, 0, 1)[0])

    def kind(self, entries: Entries) -> tuple[tuple[int, ...] | None, ...]:
        """Return the values of the tags that are equal in all pages of a stack."""
        return tuple(tuple(self.values(entries[code]).tolist()) if code in entries else None for code in ALIKE)

    def mark(self, entries: Entries) -> tuple[Any, ...]:
        """Return what :meth:`kind` depends on, as bytes, which takes less time."""
        found: list[Any] = []
        for code in ALIKE:
            if (entry := entries.get(code)) is not None:
                if entry.count > 2**16:
                    raise self.damaged(f"{exif.tag_name(code)} has {entry.count} values")
                found += [code, entry.kind, self.values(entry).tobytes() if entry.inline is None else entry.inline]
        return tuple(found)


def open_tiff(place: Place, ranges: ByteRanges) -> TiffBytes:
    """Read the header of a TIFF; ``ImageError`` if it is none."""
    head = ranges.read(0, 16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    version = struct.unpack(f"{order}H", head[2:4])[0] if order and len(head) >= 8 else 0
    if version not in (42, 43) or order is None:
        raise ImageError(f"{place}: is no TIFF, its first bytes are {head[:4]!r}; check the name")
    big = version == 43
    if big and (len(head) < 16 or struct.unpack(f"{order}HH", head[4:8]) != (8, 0)):
        raise ImageError(f"{place}: is a damaged BigTIFF; get it again from its source")
    form = exif.form_of(order, big=big)
    return TiffBytes(place, ranges, form, form.offset.unpack_from(head, 8 if big else 4)[0])


@dataclass(frozen=True)
class Chain:
    """The directories of a file: position, kind and subfile type of each; `kinds` are indices into `known`."""

    offsets: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    known: Sequence[tuple[Any, ...]]
    subfiles: npt.NDArray[np.int64]


def chain_of(tiff: TiffBytes) -> Chain:
    """Follow the chain of directories; ``ImageError`` if it ends early or in a circle."""
    at, offsets, kinds, subfiles = tiff.first, list[int](), list[int](), list[int]()
    seen: set[int] = set()
    numbers: dict[tuple[Any, ...], int] = {}
    marks: dict[tuple[Any, ...], int] = {}
    while at:
        if at in seen or len(seen) >= MOST_DIRECTORIES:
            raise tiff.damaged("its chain of pages does not end")
        seen.add(at)
        entries, following = tiff.entries(at)
        offsets.append(at)
        mark = tiff.mark(entries)
        if mark not in marks:
            marks[mark] = numbers.setdefault(tiff.kind(entries), len(numbers))
        kinds.append(marks[mark])
        subfiles.append(tiff.number(entries, SUBFILE, 0))
        at = following
    if not offsets:
        raise tiff.damaged("it has no page")
    return Chain(np.array(offsets, np.int64), np.array(kinds, np.int64), list(numbers), np.array(subfiles, np.int64))


class Tables:
    """Positions and byte counts of the strips or tiles of pages, and their JPEG tables, read when they are needed.

    Parameters
    ----------
    tiff : TiffBytes
    offsets : ndarray of int64
        Position of the directory of each page.
    level : int, optional
        Take the SubIFD of this number of each page instead of the page.
    """

    def __init__(self, tiff: TiffBytes, offsets: npt.NDArray[np.int64], level: int | None = None) -> None:
        self.tiff, self.offsets, self._level = tiff, offsets, level
        self._last: tuple[int, Entries] = (-1, {})

    def entries(self, page: int) -> Entries:
        last = self._last  # read once: another thread may replace it
        if last[0] == page:
            return last[1]
        found = self.tiff.entries(int(self.offsets[page]))[0]
        if self._level is not None:
            found = self.tiff.entries(int(self.tiff.values(found[SUBIFDS], self._level, 1)[0]))[0]
        self._last = (page, found)
        return found

    def places(self, page: int) -> tuple[Entry, Entry]:
        """Return the entries of the positions and of the byte counts, whose values a writer may change."""
        entries = self.entries(page)
        pairs = ((TILE_OFFSETS, TILE_COUNTS), (STRIP_OFFSETS, STRIP_COUNTS))
        for offsets, counts in pairs:
            if offsets in entries and counts in entries:
                found = entries[offsets], entries[counts]
                return found[0].in_file(), found[1].in_file()
        raise self.tiff.damaged(f"page {page + 1} has no table of its pixel data")

    def segments(self, page: int, first: int, count: int) -> tuple[list[int], list[int]]:
        """Return positions and byte counts of `count` strips or tiles."""
        offsets, counts = (self.tiff.values(entry, first, count).tolist() for entry in self.places(page))
        return offsets, counts

    def jpeg_tables(self, page: int) -> bytes | None:
        entry = self.entries(page).get(TABLES)
        if entry is None:
            return None
        if entry.count > 2**20:
            raise self.tiff.damaged(f"JPEG tables of {entry.count} bytes")
        return self.tiff.exactly(entry.at, entry.count, "JPEG tables")


class HeldTables:
    """Positions and byte counts that tifffile has computed, for slides whose files do not store them plainly."""

    def __init__(self, pages: Sequence[Any]) -> None:
        self._offsets = [np.asarray(page.dataoffsets, np.int64) for page in pages]
        self._counts = [np.asarray(page.databytecounts, np.int64) for page in pages]
        self._jpeg = [page.jpegtables for page in pages]

    def segments(self, page: int, first: int, count: int) -> tuple[list[int], list[int]]:
        part = slice(first, first + count)
        return self._offsets[page][part].tolist(), self._counts[page][part].tolist()

    def jpeg_tables(self, page: int) -> bytes | None:
        tables: bytes | None = self._jpeg[page]
        return tables
