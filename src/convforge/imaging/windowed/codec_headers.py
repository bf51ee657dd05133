"""Sizes of images in the headers of compressed data, so that a small file cannot make a decoder fill the memory."""

from __future__ import annotations

import struct
from collections.abc import Callable

# Numbers of TIFF's compressions.
JPEG, JPEG_2000, LERC, PNG, WEBP, JPEG_XL = (
    {6, 7, 33007, 34892}, {33003, 33004, 33005, 34712}, {34887}, {34933}, {50001, 34927}, {50002, 52546},
)  # fmt: skip

Size = tuple[int, int]


def declared_size(compression: int, data: bytes) -> Size | None:
    """Return height and width in a header, or None for other compressions and headers that are not understood."""
    reader = next((reader for codes, reader in READERS if compression in codes), None)
    try:
        return None if reader is None else reader(data)
    except (struct.error, IndexError):  # too short: the decoder tells the fault
        return None


def _jpeg(data: bytes) -> Size | None:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return height, width
        if marker == 0xFF:  # a byte of filling
            at += 1
        elif 0xD0 <= marker <= 0xD8:  # a marker without a body
            at += 2
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _jpeg_2000(data: bytes) -> Size | None:
    at = data.find(b"\xff\x4f\xff\x51", 0, 4096)
    if at < 0:
        return None
    width, height, left, top = struct.unpack_from(">IIII", data, at + 8)
    return height - top, width - left


def _lerc(data: bytes) -> Size | None:
    if data[:6] != b"Lerc2 ":
        return None
    (version,) = struct.unpack_from("<i", data, 6)
    height, width = struct.unpack_from("<II", data, 14 if version >= 3 else 10)  # version 3 has a checksum
    return height, width


def _png(data: bytes) -> Size | None:
    width, height = struct.unpack_from(">II", data, 16)
    return height, width


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    return height, width


def _jpeg_xl(data: bytes) -> Size | None:
    if data[:2] != b"\xff\x0a":  # in a container
        return None
    bits, at = int.from_bytes(data[2:16], "little"), 0

    def take(count: int) -> int:
        nonlocal at
        at += count
        return bits >> (at - count) & ((1 << count) - 1)

    small = take(1)

    def side() -> int:
        return (take(5) + 1) * 8 if small else take((9, 13, 18, 30)[take(2)]) + 1

    height = side()
    ratio = take(3)
    above, below = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio - 1]
    return height, height * above // below if ratio else side()


READERS: tuple[tuple[set[int], Callable[[bytes], Size | None]], ...] = (
    (JPEG, _jpeg), (JPEG_2000, _jpeg_2000), (LERC, _lerc), (PNG, _png), (WEBP, _webp), (JPEG_XL, _jpeg_xl),
)  # fmt: skip
