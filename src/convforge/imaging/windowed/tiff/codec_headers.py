"""Sizes of images in the headers of compressed data, so that a small file cannot make a decoder fill the memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Numbers of TIFF's compressions.
JPEG, JPEG_2000, LERC, PNG, WEBP, JPEG_XL, JPEG_XR = (
    {6, 7, 33007, 34892}, {33003, 33004, 33005, 34712}, {34887}, {34933}, {50001, 34927}, {50002, 52546},
    {22610, 34934},
)  # fmt: skip


class Declared(NamedTuple):
    """Size of an image in the header of compressed data: pixels, samples of a pixel, bytes of a sample.

    `samples` and `itemsize` are 1 if the header does not tell them plainly.
    """

    height: int
    width: int
    samples: int = 1
    itemsize: int = 1


def has_header(compression: int) -> bool:
    """True for compressions of images, whose data name their size."""
    return any(compression in codes for codes, _ in READERS)


def declared_size(compression: int, data: bytes, most: int) -> Declared | None:
    """Return the size in a header, or None for other compressions and for headers that are not understood.

    LERC may be compressed once more; of its data no more than `most` bytes are then decoded.
    """
    reader = next((reader for codes, reader in READERS if compression in codes), None)
    try:
        if compression in LERC:
            data = _unpacked(data, most)
        return None if reader is None else reader(data)
    except (struct.error, IndexError, ValueError):  # too short, or no such header
        return None


def _jpeg(data: bytes) -> Declared | None:
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while True:
        at = data.index(b"\xff", at) + 1  # decoders skip what is no marker
        marker = data[at]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            bits, height, width, samples = struct.unpack_from(">BHHB", data, at + 3)
            return Declared(height, width, samples, 1 if bits <= 8 else 2)
        if marker in (0xD9, 0xDA):  # the end, or pixels without a size
            return None
        if marker not in (0x00, 0x01, 0xFF) and not 0xD0 <= marker <= 0xD8:  # those have no body
            at += 1 + struct.unpack_from(">H", data, at + 1)[0]


def _jpeg_2000(data: bytes) -> Declared | None:
    at = 0
    if data[4:8] == b"jP  ":
        at = next(start for kind, start in _boxes(data) if kind == b"jp2c")
    if data[at : at + 4] != b"\xff\x4f\xff\x51":
        return None
    width, height, left, top = struct.unpack_from(">IIII", data, at + 8)
    (samples,) = struct.unpack_from(">H", data, at + 40)
    bits = max((data[place] & 0x7F) + 1 for place in range(at + 42, at + 42 + 3 * samples, 3))
    return Declared(height - top, width - left, samples, -(-bits // 8))


def _boxes(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield kind and start of the content of the boxes of JPEG 2000 and JPEG XL; ``ValueError`` behind the last."""
    at = 0
    while True:
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, at + 8), 16
        yield kind, at + head
        if size < head:  # 0: up to the end
            raise ValueError("no further box")
        at += size


def _unpacked(data: bytes, most: int) -> bytes:
    """Return LERC data that Deflate or zstd has compressed once more; ``ValueError`` if they are larger than `most`."""
    import imagecodecs

    decode = {b"\x28\xb5": imagecodecs.zstd_decode, b"\x78": imagecodecs.zlib_decode}
    found = next((codec for mark, codec in decode.items() if data.startswith(mark)), None)
    try:
        return data if found is None else bytes(found(data, out=most))
    except Exception as error:  # each codec raises its own
        raise ValueError(str(error)) from error


def _lerc(data: bytes) -> Declared | None:
    if data[:10] == b"CntZImage ":  # version 1
        height, width = struct.unpack_from("<II", data, 18)
        return Declared(height, width, itemsize=4)
    at, height, width, samples, largest = 0, 0, 0, 0, 1
    while data[at : at + 6] == b"Lerc2 ":  # one for each band, if the bands are apart
        (version,) = struct.unpack_from("<i", data, at + 6)
        place = at + (14 if version >= 3 else 10)  # version 3 has a checksum
        height, width = struct.unpack_from("<II", data, place)
        depth = 1
        if version >= 4:
            (depth,) = struct.unpack_from("<I", data, place + 8)
            place += 4
        size, kind = struct.unpack_from("<iI", data, place + 16)
        samples += depth
        largest = max(largest, LERC_ITEMSIZES[kind])
        if size <= 0:
            return None
        at += size
    return Declared(height, width, samples, largest) if samples else None


LERC_ITEMSIZES = (1, 1, 2, 2, 4, 4, 4, 8)  # of the types of samples by their number


def _png(data: bytes) -> Declared | None:
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    return Declared(height, width, {2: 3, 4: 2, 6: 4}.get(colour, 1), -(-bits // 8))


def _webp(data: bytes) -> Declared | None:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Declared(height & 0x3FFF, width & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Declared((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    if kind != b"VP8X" or len(data) < 30:
        return None
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    return Declared(height, width)


def _jpeg_xl(data: bytes) -> Declared | None:
    """Return the size in SizeHeader, and the extra channels and bits of ImageMetadata (ISO/IEC 18181-1, annex D)."""
    if data[4:8] == b"JXL ":
        kind, start = next((kind, start) for kind, start in _boxes(data) if kind in (b"jxlc", b"jxlp"))
        data = data[start + (4 if kind == b"jxlp" else 0) :]  # a part begins with its number
    if data[:2] != b"\xff\x0a":
        return None
    bits = _Bits(data[2:40])
    height, width = bits.size()
    if bits.take(1):  # all is as usual: three colours of 8 bits
        return Declared(height, width)
    if bits.take(1):
        bits.take(3)  # orientation
        if bits.take(1):
            bits.size()
        if bits.take(1) or bits.take(1):  # a preview, an animation
            return None
    if bits.take(1):
        depth = bits.chosen((32, 0), (16, 0), (24, 0), (1, 6))
        bits.take(4)
    else:
        depth = bits.chosen((8, 0), (10, 0), (12, 0), (1, 6))
    bits.take(1)
    extra = bits.chosen((0, 0), (1, 0), (2, 4), (1, 12))
    return Declared(height, width, 1 + extra, -(-depth // 8))


class _Bits:
    """Bits of a JPEG XL header, the lowest first."""

    def __init__(self, data: bytes) -> None:
        self._bits, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the number in the next bits; ``ValueError`` behind the end."""
        if self._left < count:
            raise ValueError("the header is too short")
        found = self._bits & ((1 << count) - 1)
        self._bits, self._left = self._bits >> count, self._left - count
        return found

    def chosen(self, *forms: tuple[int, int]) -> int:
        """Return a number in one of four forms: a constant, and bits of a number that is added."""
        constant, count = forms[self.take(2)]
        return constant + self.take(count)

    def size(self) -> tuple[int, int]:
        """Return height and width."""
        small = self.take(1)

        def side() -> int:
            return (self.take(5) + 1) * 8 if small else self.chosen((1, 9), (1, 13), (1, 18), (1, 30))

        height, ratio = side(), self.take(3)
        above, below = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio - 1]
        return height, height * above // below if ratio else side()


def _jpeg_xr(data: bytes) -> Declared | None:
    """Return the size in the first codestream, not in the directory before it (ITU-T T.832, 8.3)."""
    at = data.index(b"WMPHOTO\0") + 8
    width, height = struct.unpack_from(">HH" if data[at + 2] & 0x80 else ">II", data, at + 4)
    return Declared(height + 1, width + 1, itemsize=JPEG_XR_ITEMSIZES.get(data[at + 3] & 15, 1))


JPEG_XR_ITEMSIZES = {2: 2, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4}

READERS: tuple[tuple[set[int], Callable[[bytes], Declared | None]], ...] = (
    (JPEG, _jpeg), (JPEG_2000, _jpeg_2000), (LERC, _lerc), (PNG, _png), (WEBP, _webp), (JPEG_XL, _jpeg_xl),
    (JPEG_XR, _jpeg_xr),
)  # fmt: skip
