"""Blocks of EXIF made by hand, in either order of bytes, with all that cameras put into one."""

from __future__ import annotations

import struct

ASCII, SHORT, LONG, RATIONAL, UNDEFINED = 2, 3, 4, 5, 7
SIZES = {ASCII: 1, SHORT: 2, LONG: 4, RATIONAL: 8, UNDEFINED: 1}

Tag = tuple[int, int, bytes]


def text(code: int, words: str) -> Tag:
    return code, ASCII, words.encode() + b"\0"


def directory(order: str, at: int, tags: list[Tag], following: int = 0) -> bytes:
    """A directory that begins at `at`."""
    table, values = struct.pack(f"{order}H", len(tags)), b""
    beyond = at + 2 + 12 * len(tags) + 4
    for code, kind, body in sorted(tags):
        table += struct.pack(f"{order}HHI", code, kind, len(body) // SIZES[kind])
        if len(body) <= 4:
            table += body.ljust(4, b"\0")
        else:
            table += struct.pack(f"{order}I", beyond + len(values))
            values += body + bytes(len(body) % 2)
    return table + struct.pack(f"{order}I", following) + values


def block(order: str, orientation: int = 1, *, thumbnail: bool = True) -> bytes:
    """A block of a camera: maker, times, exposure, the maker's note, place, thumbnail."""

    def numbers(code: int, *values: int) -> Tag:
        return code, SHORT, struct.pack(f"{order}{len(values)}H", *values)

    def pointer(code: int, value: int) -> Tag:
        return code, LONG, struct.pack(f"{order}I", value)

    def ratio(code: int, *values: int) -> Tag:
        return code, RATIONAL, struct.pack(f"{order}{len(values)}I", *values)

    camera_at, place_at, next_at, small_at = 500, 900, 1100, 1200
    main = [
        text(271, "Maker & Söhne"), text(272, "M1"), text(305, "Firmware 2"), text(306, "2024:05:06 07:08:09"),
        text(315, "Ada Lovelace"), text(33432, "nobody"), numbers(274, orientation), ratio(282, 300, 1),
        ratio(283, 300, 1), numbers(296, 2), pointer(34665, camera_at), pointer(34853, place_at),
    ]  # fmt: skip
    camera = [
        ratio(33434, 1, 250), numbers(34855, 400), text(36867, "2024:05:06 07:08:09"), numbers(41488, 2),
        (37510, UNDEFINED, b"UNICODE\0" + "größer".encode("utf-16-le" if order == "<" else "utf-16-be")),
        (37500, UNDEFINED, b"the maker's own, with offsets"), numbers(40962, 4000), numbers(40963, 3000),
        ratio(41486, 5000, 1), numbers(37396, 10, 20), pointer(40965, next_at),
    ]  # fmt: skip
    place = [text(1, "N"), ratio(2, 51, 1, 30, 1, 26, 1)]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    parts = {
        0: head,
        8: directory(order, 8, main, small_at if thumbnail else 0),
        camera_at: directory(order, camera_at, camera),
        place_at: directory(order, place_at, place),
        next_at: directory(order, next_at, [text(1, "R98")]),
        small_at: directory(order, small_at, [numbers(259, 6)]),
    }
    made = b""
    for at, part in parts.items():
        assert len(made) <= at
        made = made.ljust(at, b"\0") + part
    return made
