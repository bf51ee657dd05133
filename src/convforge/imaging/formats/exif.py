"""EXIF, and the tags of a TIFF that describe the image and not its storage, copied entry by entry.

Pillow and tifffile guess types anew when they write, and lose letters beyond ASCII; so this module reads and packs
entries itself. A block is a small TIFF, as in a PNG's eXIf; ours are little-endian, without entries that a filter makes
untrue.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

DESCRIPTION, ORIENTATION, CAMERA, GPS, INTEROPERABILITY = 0x010E, 0x0112, 0x8769, 0x8825, 0xA005
MAKER_NOTE, USER_COMMENT, WIDTH, HEIGHT = 0x927C, 0x9286, 0xA002, 0xA003
POINTERS = {CAMERA, GPS, INTEROPERABILITY}
BELOW: dict[int, tuple[int, ...]] = {CAMERA: (INTEROPERABILITY,), GPS: ()}

# Tags of the main directory that describe the image: names, times, people, colours, keywords.
CARRIED = {
    269, 271, 272, 285, 286, 287, 305, 306, 315, 316, 318, 319, 18246, 18249, 33432, 40091, 40092, 40093, 40094, 40095,
    CAMERA, GPS,
}  # fmt: skip

# GeoTIFF: true as long as every pixel stays where it is.
GEOGRAPHIC = {33550, 33922, 34264, 34735, 34736, 34737}

# Tags of the camera's directory that count pixels of the original image.
IN_PIXELS = {0x9214: "SubjectArea", 0xA20E: "FocalPlaneXResolution", 0xA20F: "FocalPlaneYResolution",
             0xA210: "FocalPlaneResolutionUnit", 0xA214: "SubjectLocation"}  # fmt: skip

# Tags of the storage, and tags that are read elsewhere or made anew: their absence is no loss.
STORAGE = {
    *range(254, 260), *range(262, 267), DESCRIPTION, *range(273, 275), *range(277, 285), 288, 289, 292, 293, 296, 297,
    317, 320, *range(322, 326), 330, 332, 334, 336, *range(338, 342), 347, *range(512, 522), *range(529, 533), 559,
    32995, 32996, 32997, 32998, 34675, 65420,
}  # fmt: skip

# Clearer names than the tag's own.
WORDS = {700: "XMP", 33723: "IPTC", 34377: "Photoshop data", 37724: "Photoshop data", 50341: "PrintIM",
         50838: "ImageJ's own data", 50839: "ImageJ's own data", 42112: "GDAL's metadata",
         42113: "GDAL's value of no data", 34118: "SEM data", 34412: "LSM data"}  # fmt: skip

# Bytes of one element by the kind of an entry, and of one word for the byte order: a ratio has two words.
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
SHORT, LONG, RATIONAL, SRATIONAL, LONG8 = 3, 4, 5, 10, 16
WIDTHS = SIZES | {RATIONAL: 4, SRATIONAL: 4}
KINDS_OF_BLOCKS = range(1, 14)

LARGEST = 2**20
"""Most bytes that the entries of one image may have."""


class ExifError(ValueError):
    """Damaged directories; the image is whole without them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory."""

    kind: int  # TIFF field type
    count: int  # elements
    data: bytes  # little-endian


Directory = dict[int, "Entry | Directory"]


@dataclass(frozen=True, slots=True)
class Form:
    """Storage of directories."""

    order: str = "<"  # byte order, as in struct
    big: bool = False  # BigTIFF, with 64-bit numbers

    @property
    def count(self) -> struct.Struct:
        """Number of entries of a directory."""
        return struct.Struct(f"{self.order}{'Q' if self.big else 'H'}")

    @property
    def head(self) -> struct.Struct:
        """Tag, kind and number of elements of an entry."""
        return struct.Struct(f"{self.order}HH{'Q' if self.big else 'I'}")

    @property
    def offset(self) -> struct.Struct:
        """Offset in the file, or the data of a short entry."""
        return struct.Struct(f"{self.order}{'Q' if self.big else 'I'}")


def read_block(block: bytes) -> tuple[Directory, bool]:
    """Read a block's directories, and tell whether it has a thumbnail; ``ExifError`` for a damaged block."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        raise ExifError("no header of a block")
    form = Form(order)

    def fetch(at: int, size: int) -> bytes:
        return block[at : at + size]

    (start,) = form.offset.unpack_from(block, 4)
    main = read_directory(fetch, start, form)
    behind = start + form.count.size + len(list(_heads(fetch, start, form))) * (form.head.size + form.offset.size)
    following = fetch(behind, form.offset.size)
    return main, len(following) == form.offset.size and form.offset.unpack(following)[0] > 0


def main_of(block: bytes | None) -> Directory:
    """Return the main directory of a block; empty for None."""
    return {} if block is None else read_block(block)[0]


Fetch = Callable[[int, int], bytes]
"""Reads bytes of the file from an offset on, as many as asked for or fewer at its end."""


def read_directory(
    fetch: Fetch,
    at: int,
    form: Form,
    wanted: Callable[[int], bool] = lambda code: True,
    below: Mapping[int, tuple[int, ...]] = BELOW,
) -> Directory:
    """Read the directory at `at`, and those that it points to.

    Entries of tags that are not `wanted` have no bytes. `below` maps the tags that point to another directory to the
    tags that may do so in that one, which prevents cycles. ``ExifError`` for offsets beyond the file, unknown kinds, or
    more than `LARGEST` bytes.
    """
    found: Directory = {}
    room = LARGEST
    for code, kind, count, where in _heads(fetch, at, form):
        if not wanted(code):
            found[code] = Entry(kind, count, b"")
            continue
        size = SIZES.get(kind, 0) * count
        room -= size
        if kind not in SIZES or room < 0:
            raise ExifError(f"tag {code} is of kind {kind} and has {count} elements")
        if size > form.offset.size:
            (where,) = form.offset.unpack(_exactly(fetch, where, form.offset.size))
        data = _little_endian(_exactly(fetch, where, size), code, kind, form.order)
        if code in below:
            further = dict.fromkeys(below[code], ())
            found[code] = read_directory(fetch, int.from_bytes(data, "little"), form, below=further)
        elif code not in POINTERS and kind in KINDS_OF_BLOCKS:
            found[code] = Entry(kind, count, data)
    return found


def _heads(fetch: Fetch, at: int, form: Form) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag, kind, element count and data offset of each entry."""
    (count,) = form.count.unpack(_exactly(fetch, at, form.count.size))
    step = form.head.size + form.offset.size
    table = _exactly(fetch, at + form.count.size, min(count, 2**16) * step)
    for i in range(0, len(table), step):
        yield *form.head.unpack_from(table, i), at + form.count.size + i + form.head.size


def _exactly(fetch: Fetch, at: int, size: int) -> bytes:
    data = fetch(at, size)
    if len(data) < size:
        raise ExifError(f"{size} bytes at {at} are beyond the end")
    return data


def _little_endian(data: bytes, code: int, kind: int, order: str) -> bytes:
    width, head = WIDTHS[kind], b""
    if code == USER_COMMENT and data.startswith(b"UNICODE\0"):  # UTF-16 in the block's byte order
        head, data, width = data[:8], data[8:], 2
    if order == "<":
        return head + data
    return head + b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))


def pack_directory(directory: Mapping[int, Entry | Directory], at: int, *, big: bool = False) -> bytes:
    """Pack a directory and those below it as little-endian bytes for the offset `at`, as the last directory."""
    form = Form(big=big)
    entries = sorted(directory.items())
    beyond = at + form.count.size + len(entries) * (form.head.size + form.offset.size) + form.offset.size
    table, values = form.count.pack(len(entries)), b""
    for code, entry in entries:
        values += bytes((beyond + len(values)) % 2)
        if isinstance(entry, dict):
            table += form.head.pack(code, LONG8 if big else LONG, 1) + form.offset.pack(beyond + len(values))
            values += pack_directory(entry, beyond + len(values), big=big)
        elif len(entry.data) <= form.offset.size:
            table += form.head.pack(code, entry.kind, entry.count) + entry.data.ljust(form.offset.size, b"\0")
        else:
            table += form.head.pack(code, entry.kind, entry.count) + form.offset.pack(beyond + len(values))
            values += entry.data
    return table + bytes(form.offset.size) + values


def pack_block(directory: Mapping[int, Entry | Directory]) -> bytes | None:
    """Pack a block with this main directory; None if it is empty."""
    return b"II*\0\x08\0\0\0" + pack_directory(directory, 8) if directory else None


def point_to(file: BinaryIO, directories: Mapping[int, Directory]) -> None:
    """Append directories to a little-endian TIFF, and point to them from its first one by these tags.

    tifffile writes no entries that point, so the file must have an entry of tag - 1 for each, which is replaced.
    """

    def fetch(at: int, size: int) -> bytes:
        file.seek(at)
        return file.read(size)

    form = Form(big=fetch(2, 2) == b"+\0")
    (start,) = form.offset.unpack(fetch(8 if form.big else 4, form.offset.size))
    places = {code: where for code, _, _, where in _heads(fetch, start, form)}
    for code, directory in directories.items():
        at = file.seek(0, 2)
        at += file.write(bytes(at % 2))
        file.write(pack_directory(directory, at, big=form.big))
        file.seek(places[code - 1] - form.head.size)
        file.write(form.head.pack(code, LONG8 if form.big else LONG, 1) + form.offset.pack(at))


# Entries that stay true for a filtered image.


def carried(main: Directory, *, moved: bool) -> tuple[Directory, list[str]]:
    """Return the part of a main directory that is true for a filtered image, and the names of the rest.

    `moved` means that the pixels were turned, so that positions in pixels have changed.
    """
    kept: Directory = {}
    left: list[str] = []
    for code, entry in main.items():
        if code in CARRIED or (code in GEOGRAPHIC and not moved):
            kept[code] = entry
        elif code not in STORAGE:
            left.append("GeoTIFF's place" if code in GEOGRAPHIC else tag_name(code))
    camera = kept.get(CAMERA)
    if isinstance(camera, dict):
        left += ["MakerNote"] if MAKER_NOTE in camera else []
        kept[CAMERA] = {code: entry for code, entry in camera.items() if code not in (MAKER_NOTE, WIDTH, HEIGHT)}
    kept = {code: entry for code, entry in kept.items() if entry != {}}
    if moved:
        kept, lost = without_pixels(kept)
        left += lost
    return kept, list(dict.fromkeys(left))


def carried_of(block: bytes) -> tuple[Directory, int, list[str]]:
    """Return the carried part of a block with its description, the orientation, and the names of the rest."""
    if not block:
        return {}, 1, []
    try:
        main, thumbnail = read_block(block)
    except ExifError:  # the image is whole without it
        return {}, 1, ["damaged EXIF"]
    entry = main.get(ORIENTATION)
    orientation = 1
    if isinstance(entry, Entry) and entry.kind in (SHORT, LONG) and entry.data:
        orientation = int.from_bytes(entry.data[: SIZES[entry.kind]], "little")
    kept, left = carried(main, moved=orientation != 1)
    kept |= {code: entry for code, entry in main.items() if code == DESCRIPTION}
    return kept, orientation, left + (["thumbnail"] if thumbnail else [])


def without_pixels(main: Directory) -> tuple[Directory, list[str]]:
    """Return a main directory without the entries that count pixels, and the names of these."""
    kept = {code: entry for code, entry in main.items() if code not in GEOGRAPHIC}
    left = ["GeoTIFF's place"] if len(kept) < len(main) else []
    camera = kept.get(CAMERA)
    if isinstance(camera, dict):
        left += [name for code, name in IN_PIXELS.items() if code in camera]
        kept[CAMERA] = {code: entry for code, entry in camera.items() if code not in IN_PIXELS}
    return kept, left


def tag_name(code: int) -> str:
    from PIL.ExifTags import TAGS
    from tifffile import TIFF

    return WORDS.get(code) or TAGS.get(code) or str(TIFF.TAGS.get(code, f"tag {code}"))


def in_words(block: bytes) -> str:
    """Describe a block by the names of its first tags."""
    from PIL.ExifTags import TAGS

    main = main_of(block)
    names = [tag_name(code) for code, entry in main.items() if isinstance(entry, Entry)]
    camera = main.get(CAMERA)
    names += [TAGS.get(code, f"tag {code}") for code in camera] if isinstance(camera, dict) else []
    names += ["GPS"] if GPS in main else []
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    word = "EXIF" if CAMERA in main or GPS in main else "tags"
    return f"{word} ({', '.join(names[:3] if more else names)}{more})"


def text_of(main: Directory, code: int) -> str:
    """Return the text of a tag, or ""."""
    entry = main.get(code)
    if not isinstance(entry, Entry):
        return ""
    data = entry.data.split(b"\0")[0]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def block_for(main: Directory, width: int, height: int, description: str = "") -> bytes | None:
    """Pack a block for a JPEG or PNG of this size, without the tags that only a TIFF has."""
    whole = {code: entry for code, entry in main.items() if code not in GEOGRAPHIC}
    camera = whole.get(CAMERA)
    if isinstance(camera, dict):
        size = {WIDTH: width, HEIGHT: height}
        whole[CAMERA] = camera | {code: Entry(LONG, 1, side.to_bytes(4, "little")) for code, side in size.items()}
    if description:
        data = description.encode() + b"\0"
        whole[DESCRIPTION] = Entry(2, len(data), data)
    return pack_block(whole)
