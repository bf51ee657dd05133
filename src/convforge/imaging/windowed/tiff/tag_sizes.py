"""Sizes of the tags in directories, checked before tifffile reads them into memory.

tifffile reads the tables of a page, and most texts, whole: a tag of a sparse file of some kilobytes can name gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from convforge.imaging.formats import exif
from convforge.imaging.windowed.byte_ranges import open_bytes
from convforge.imaging.windowed.tiff import directories as td
from convforge.imaging.windowed.tiff.directories import Entry, TiffBytes, open_tiff

# The most numbers and the most bytes in the tags of the directories that tifffile reads. A table takes two numbers for
# each strip or tile, and a number about 40 bytes as an object of Python. OME-XML takes about 100 bytes for each plane.
MOST_NUMBERS, MOST_BYTES = 2**24, 2**27

# A table may have so many entries more than there are strips or tiles.
SPARE = 2**10

BYTES = {1, 2, 6, 7}  # field types of one byte
LSM = 34412
TILE_DEPTH = 32998

Listed = tuple[list[tuple[int, Entry]], int]


def check_tags(tiff: TiffBytes, *, every: bool = False) -> None:
    """Raise ``ImageError`` for tags beyond the file, or too large, in the directories that tifffile will read.

    These are the first one, and with `every` or for LSM all of the chain and their SubIFDs.
    """
    total = _Total(tiff)
    for listed in _directories(tiff, every=every):
        entries = dict(listed)
        for code, entry in listed:
            if entry.inline is None and entry.at + exif.SIZES.get(entry.kind, 1) * entry.count > tiff.ranges.size:
                raise tiff.damaged(f"{exif.tag_name(code)} ends beyond its {tiff.ranges.size} bytes")
            total.add(code, entry)
        tiles, strips = _segments(tiff, entries)
        for code, most in (
            (td.TILE_OFFSETS, tiles), (td.TILE_COUNTS, tiles), (td.STRIP_OFFSETS, strips), (td.STRIP_COUNTS, strips),
        ):  # fmt: skip
            if code in entries and entries[code].count > most + SPARE:
                raise tiff.damaged(f"{exif.tag_name(code)} has {entries[code].count} values, and {most} are needed")


def check_file(path: Path) -> None:
    """Raise ``ImageError`` if the tags of a local file, in all directories, are too large for memory."""
    with closing(open_bytes(path)) as ranges:
        tiff = open_tiff(path, ranges)
        total = _Total(tiff)
        for listed in _directories(tiff, every=True):
            for code, entry in listed:
                total.add(code, entry)


class _Total:
    """The numbers and the bytes in the tags of a file."""

    def __init__(self, tiff: TiffBytes) -> None:
        self._tiff, self._numbers, self._bytes = tiff, 0, 0

    def add(self, code: int, entry: Entry) -> None:
        """Count a tag; ``ImageError`` if there are too many."""
        self._numbers += 0 if entry.kind in BYTES else entry.count
        self._bytes += entry.count if entry.kind in BYTES else 0
        if self._numbers > MOST_NUMBERS or self._bytes > MOST_BYTES:
            raise self._tiff.damaged(
                f"{exif.tag_name(code)} has {entry.count} values; the tags of a file may hold {MOST_NUMBERS} numbers "
                f"and {MOST_BYTES} bytes"
            )


def _directories(tiff: TiffBytes, *, every: bool) -> Iterator[list[tuple[int, Entry]]]:
    is_ndpi = tiff.place.suffix.lower() == ".ndpi" and not tiff.is_big and tiff.form.order == "<"
    at = struct.unpack("<Q", tiff.exactly(4, 8, "the header"))[0] if is_ndpi else tiff.first
    seen = set[int]()
    left = [at]
    while left:
        at = left.pop()
        if not at or at in seen:
            continue
        seen.add(at)
        if len(seen) > td.MOST_DIRECTORIES:
            raise tiff.damaged("its chain of pages does not end")
        listed, following = _ndpi(tiff, at) if is_ndpi else tiff.listed(at)
        yield listed
        entries = dict(listed)
        if every or LSM in entries:
            every = True
            left.append(following)
            if (inner := entries.get(td.SUBIFDS)) is not None and not is_ndpi:
                if inner.count > 64:
                    raise tiff.damaged(f"a page has {inner.count} SubIFDs")
                left += tiff.values(inner).tolist()


def _ndpi(tiff: TiffBytes, at: int) -> Listed:
    """Return the entries of a directory of Hamamatsu's form: behind it are 32 more bits of each value."""
    (count,) = struct.unpack("<H", tiff.exactly(at, 2, "the directory"))
    if count > td.MOST_ENTRIES:
        raise tiff.damaged(f"the directory at {at} has {count} entries")
    raw = tiff.exactly(at + 2, 16 * count + 8, "the directory")
    found = []
    for number in range(count):
        code, kind, values, low = struct.unpack_from("<HHII", raw, 12 * number)
        (high,) = struct.unpack_from("<I", raw, 12 * count + 8 + 4 * number)
        inline = exif.SIZES.get(kind, 1) * values <= 4
        place = at + 2 + 12 * number + 8
        found.append((code, Entry(kind, values, place, raw[place - at - 2 :][:4]))
                     if inline else (code, Entry(kind, values, low | high << 32, None)))  # fmt: skip
    return found, struct.unpack_from("<Q", raw, 12 * count)[0]


def _segments(tiff: TiffBytes, entries: td.Entries) -> tuple[int, int]:
    """Return the number of tiles and of strips of a page; 0 if its size is not told."""

    def number(code: int, default: int) -> int:
        return tiff.number(entries, code, default)

    width, height, depth = number(td.WIDTH, 0), number(td.LENGTH, 0), number(td.DEPTH, 1)
    planes = number(td.SAMPLES, 1) if number(td.PLANAR, 1) == 2 else 1
    rows, across, down = number(td.ROWS, height) or 1, number(td.TILE_WIDTH, 0), number(td.TILE_LENGTH, 0)
    strips = planes * depth * -(-height // rows)
    if not across or not down:
        return 0, strips
    return planes * -(-depth // (number(TILE_DEPTH, 1) or 1)) * -(-height // down) * -(-width // across), strips
