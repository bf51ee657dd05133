"""EXIF, and TIFF tags that describe the image rather than its storage, copied entry by entry.

Pillow and tifffile guess the types of entries when they write, and lose characters outside ASCII; so this module reads
and packs entries itself. A block is a small TIFF, as in a PNG's eXIf chunk. Our blocks are little-endian, and have no
entries that a filter makes wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

DESCRIPTION, ORIENTATION, CAMERA, GPS, INTEROPERABILITY = 0x010E, 0x0112, 0x8769, 0x8825, 0xA005
MAKER_NOTE, USER_COMMENT, WIDTH, HEIGHT = 0x927C, 0x9286, 0xA002, 0xA003
POINTERS = {CAMERA, GPS, INTEROPERABILITY}
BELOW: dict[int, tuple[int, ...]] = {CAMERA: (INTEROPERABILITY,), GPS: ()}

# Tags of the main directory that describe the image: names, dates, people, colours, keywords.
CARRIED = {
    269, 271, 272, 285, 286, 287, 305, 306, 315, 316, 318, 319, 18246, 18249, 33432, 40091, 40092, 40093, 40094, 40095,
    CAMERA, GPS,
}  # fmt: skip

# Tags of GeoTIFF: correct as long as no pixel moves.
GEOGRAPHIC = {33550, 33922, 34264, 34735, 34736, 34737}

# Tags of the camera's directory that count pixels of the original image.
IN_PIXELS = {0x9214: "SubjectArea", 0xA20E: "FocalPlaneXResolution", 0xA20F: "FocalPlaneYResolution",
             0xA210: "FocalPlaneResolutionUnit", 0xA214: "SubjectLocation"}  # fmt: skip

# Tags of the storage, and tags that are read elsewhere or written anew: they do not count as lost.
STORAGE = {
    *range(254, 260), *range(262, 267), DESCRIPTION, *range(273, 275), *range(277, 285), 288, 289, 292, 293, 296, 297,
    317, 320, *range(322, 326), 330, 332, 334, 336, *range(338, 342), 347, *range(512, 522), *range(529, 533), 559,
    32995, 32996, 32997, 32998, 34675, 65420,
}  # fmt: skip

# Names that are clearer than those of the tags.
WORDS = {700: "XMP", 33723: "IPTC", 34377: "Photoshop data", 37724: "Photoshop data", 50341: "PrintIM",
         50838: "ImageJ's own data", 50839: "ImageJ's own data", 42112: "GDAL's metadata",
         42113: "GDAL's value of no data", 34118: "SEM data", 34412: "LSM data"}  # fmt: skip

# Bytes of an element by field type, and bytes of a word for the byte order: a ratio has two words.
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
SHORT, LONG, RATIONAL, SRATIONAL, LONG8 = 3, 4, 5, 10, 16
WIDTHS = SIZES | {RATIONAL: 4, SRATIONAL: 4}
KINDS_OF_BLOCKS = range(1, 14)

LARGEST = 2**20
"""Most bytes that the entries of one image may have."""


class ExifError(ValueError):
    """Directories are damaged; the image is readable without them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a directory: TIFF field type, number of elements, little-endian bytes."""

    kind: int
    count: int
    data: bytes


Directory = dict[int, "Entry | Directory"]


class Form(NamedTuple):
    """Struct formats of a directory: number of entries; tag, type and element count of an entry; offset or data."""

    order: str  # byte order, as in struct
    number: struct.Struct
    head: struct.Struct
    offset: struct.Struct


def form_of(order: str = "<", *, big: bool = False) -> Form:
    """Return the struct formats of the directories of a TIFF, or of a BigTIFF with 64-bit numbers."""
    wide = "Q" if big else "I"
    return Form(order, *(struct.Struct(order + codes) for codes in ("Q" if big else "H", f"HH{wide}", wide)))


def read_block(block: bytes) -> tuple[Directory, bool]:
    """Return a block's directories, and True if it has a thumbnail; ``ExifError`` for a damaged block."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        raise ExifError("no header of a block")
    file, form = BytesIO(block), form_of(order)
    (start,) = form.offset.unpack_from(block, 4)
    main = read_directory(file, start, form)
    behind = start + form.number.size + len(list(_heads(file, start, form))) * (form.head.size + form.offset.size)
    following = block[behind : behind + form.offset.size]
    return main, len(following) == form.offset.size and any(following)


def main_of(block: bytes | None) -> Directory:
    """Return the main directory of a block, or an empty one for None."""
    return {} if block is None else read_block(block)[0]


def read_directory(
    file: Any,
    at: int,
    form: Form,
    wanted: Callable[[int], bool] = lambda code: True,
    below: Mapping[int, tuple[int, ...]] = BELOW,
) -> Directory:
    """Read the directory at an offset of an open file, and the directories that it points to.

    Only entries of `wanted` tags have their bytes. `below` maps each tag that points to another directory to the tags
    that may point further from there, which prevents cycles. ``ExifError`` for offsets beyond the file, unknown field
    types, or more than `LARGEST` bytes.
    """
    found: Directory = {}
    room = LARGEST
    for code, kind, count, where in _heads(file, at, form):
        if not wanted(code):
            found[code] = Entry(kind, count, b"")
            continue
        size = SIZES.get(kind, 0) * count
        room -= size
        if kind not in SIZES or room < 0:
            raise ExifError(f"tag {code} is of kind {kind} and has {count} elements")
        if size > form.offset.size:
            (where,) = form.offset.unpack(_exactly(file, where, form.offset.size))
        data = swapped(_exactly(file, where, size), code, kind, form.order)
        if code in below:
            further = dict.fromkeys(below[code], ())
            found[code] = read_directory(file, int.from_bytes(data, "little"), form, below=further)
        elif code not in POINTERS and kind in KINDS_OF_BLOCKS:
            found[code] = Entry(kind, count, data)
    return found


def _heads(file: Any, at: int, form: Form) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag, field type, element count and data offset of each entry."""
    (count,) = form.number.unpack(_exactly(file, at, form.number.size))
    step = form.head.size + form.offset.size
    table = _exactly(file, at + form.number.size, min(count, 2**16) * step)
    for i in range(0, len(table), step):
        yield *form.head.unpack_from(table, i), at + form.number.size + i + form.head.size


def _exactly(file: Any, at: int, size: int) -> bytes:
    file.seek(at)
    data: bytes = file.read(size)
    if len(data) < size:
        raise ExifError(f"{size} bytes at {at} are beyond the end")
    return data


def swapped(data: bytes, code: int, kind: int, order: str) -> bytes:
    """Convert an entry's bytes from little-endian to a byte order, or from that to little-endian."""
    width, head = WIDTHS[kind], b""
    if code == USER_COMMENT and data.startswith(b"UNICODE\0"):  # UTF-16 in the block's byte order
        head, data, width = data[:8], data[8:], 2
    if order == "<":
        return head + data
    return head + b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))


def pack_directory(
    directory: Mapping[int, Entry | Directory], at: int, *, big: bool = False, order: str = "<"
) -> bytes:
    """Pack a directory, and those that it points to, as bytes for the offset `at`; none follows."""
    form = form_of(order, big=big)
    beyond = at + form.number.size + len(directory) * (form.head.size + form.offset.size) + form.offset.size
    table, values = form.number.pack(len(directory)), b""
    for code, entry in sorted(directory.items()):
        values += bytes((beyond + len(values)) % 2)
        place = beyond + len(values)
        if isinstance(entry, dict):
            table += _pointer(form, code, place)
            values += pack_directory(entry, place, big=big, order=order)
            continue
        data = swapped(entry.data, code, entry.kind, order)
        if len(data) <= form.offset.size:
            table += form.head.pack(code, entry.kind, entry.count) + data.ljust(form.offset.size, b"\0")
        else:
            table += form.head.pack(code, entry.kind, entry.count) + form.offset.pack(place)
            values += data
    return table + bytes(form.offset.size) + values


def _pointer(form: Form, code: int, place: int) -> bytes:
    return form.head.pack(code, LONG8 if form.offset.size == 8 else LONG, 1) + form.offset.pack(place)


def pack_block(directory: Mapping[int, Entry | Directory]) -> bytes | None:
    """Pack a block with this main directory; return None if it is empty."""
    return b"II*\0\x08\0\0\0" + pack_directory(directory, 8) if directory else None


def point_to(file: BinaryIO, directories: Mapping[int, Directory]) -> None:
    """Append directories to a TIFF, and point to them from its first directory by these tags.

    tifffile cannot write such entries, so for each the file must have an entry of tag - 1, which is replaced.
    """
    head = _exactly(file, 0, 4)
    order, big = "<" if head[:2] == b"II" else ">", 43 in head[2:]
    form = form_of(order, big=big)
    (start,) = form.offset.unpack(_exactly(file, 8 if big else 4, form.offset.size))
    places = {code: where for code, _, _, where in _heads(file, start, form)}
    for code, directory in directories.items():
        at = file.seek(0, 2)
        at += file.write(bytes(at % 2))
        file.write(pack_directory(directory, at, big=big, order=order))
        file.seek(places[code - 1] - form.head.size)
        file.write(_pointer(form, code, at))


# Entries that stay true for a filtered image.


def carried(main: Directory, *, moved: bool) -> tuple[Directory, list[str]]:
    """Return the entries of a main directory that stay correct in a filtered image, and the names of the rest.

    `moved` is true if the pixels were rotated or flipped, so that positions in pixels have changed.
    """
    kept = {code: entry for code, entry in main.items() if code in CARRIED | GEOGRAPHIC}
    left = [tag_name(code) for code in main if code not in CARRIED | GEOGRAPHIC | STORAGE]
    kept, lost = _without_in_camera(kept, {MAKER_NOTE: "MakerNote", WIDTH: "", HEIGHT: ""})
    left += [name for name in lost if name]
    if moved:
        kept, lost = without_pixels(kept)
        left += lost
    return {code: entry for code, entry in kept.items() if entry != {}}, list(dict.fromkeys(left))


def carried_of(block: bytes) -> tuple[bytes | None, str, int, list[str]]:
    """Return the entries of a block that are copied, its description, the orientation, and the names of the rest."""
    if not block:
        return None, "", 1, []
    try:
        main, thumbnail = read_block(block)
    except ExifError:  # the image is readable without it
        return None, "", 1, ["damaged EXIF"]
    entry = main.get(ORIENTATION)
    orientation = 1
    if isinstance(entry, Entry) and entry.kind in (SHORT, LONG) and entry.data:
        orientation = int.from_bytes(entry.data[: SIZES[entry.kind]], "little")
    kept, left = carried(main, moved=orientation != 1)
    text = main.get(DESCRIPTION)
    data = text.data.split(b"\0")[0] if isinstance(text, Entry) else b""
    try:
        description = data.decode()
    except UnicodeDecodeError:
        description = data.decode("latin-1")
    return pack_block(kept), description, orientation, left + (["thumbnail"] if thumbnail else [])


def without_pixels(main: Directory) -> tuple[Directory, list[str]]:
    """Return a main directory without the entries that count pixels, and the names of those entries."""
    kept = {code: entry for code, entry in main.items() if code not in GEOGRAPHIC}
    left = ["GeoTIFF's place"] if len(kept) < len(main) else []
    kept, lost = _without_in_camera(kept, IN_PIXELS)
    return kept, left + lost


def _without_in_camera(main: Directory, names: Mapping[int, str]) -> tuple[Directory, list[str]]:
    """Return a main directory without these tags of its EXIF directory, and the names of the removed ones."""
    camera = main.get(CAMERA)
    if not isinstance(camera, dict):
        return main, []
    kept: Directory = {code: entry for code, entry in camera.items() if code not in names}
    return main | {CAMERA: kept}, [name for code, name in names.items() if code in camera]


def tag_name(code: int) -> str:
    from PIL.ExifTags import TAGS
    from tifffile import TIFF

    return WORDS.get(code) or TAGS.get(code) or str(TIFF.TAGS.get(code, f"tag {code}"))


def in_words(block: bytes) -> str:
    """Return a text that describes a block by the names of its first tags."""
    main = main_of(block)
    names = [tag_name(code) for code, entry in main.items() if isinstance(entry, Entry)]
    camera = main.get(CAMERA)
    names += [tag_name(code) for code in camera] if isinstance(camera, dict) else []
    names += ["GPS"] if GPS in main else []
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    word = "EXIF" if CAMERA in main or GPS in main else "tags"
    return f"{word} ({', '.join(names[:3] if more else names)}{more})"


def block_for(block: bytes | None, width: int, height: int, description: str = "") -> bytes | None:
    """Pack a block for a JPEG or PNG of this size, without tags that are specific to TIFF."""
    whole = {code: entry for code, entry in main_of(block).items() if code not in GEOGRAPHIC}
    camera = whole.get(CAMERA)
    if isinstance(camera, dict):
        size = {WIDTH: width, HEIGHT: height}
        whole[CAMERA] = camera | {code: Entry(LONG, 1, side.to_bytes(4, "little")) for code, side in size.items()}
    if description:
        data = description.encode() + b"\0"
        whole[DESCRIPTION] = Entry(2, len(data), data)
    return pack_block(whole)
