"""TIFF files byte by byte: samples of any bits, interpretations and extra samples that no writer at hand makes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

SHORT, LONG = 3, 4


def packed(samples: np.ndarray[Any, Any], bits: int, byteorder: str) -> bytes:
    """Rows of (H, W, S) codes, the first in the highest bits, each row filled up to a byte; from 16 bits on, words."""
    if bits in (16, 32):
        return samples.astype(f"{byteorder}u{bits // 8}").tobytes()
    rows = samples.reshape(len(samples), -1)
    each = (rows[..., np.newaxis] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(each.reshape(len(rows), -1).astype(np.uint8), axis=-1).tobytes()


def tiff(
    samples: np.ndarray[Any, Any],
    bits: int,
    photometric: int,
    *,
    extra: tuple[int, ...] = (),
    colormap: np.ndarray[Any, Any] | None = None,
    planar: bool = False,
    tile: int = 0,
    byteorder: str = "<",
) -> bytes:
    """One page of (H, W, S) codes of `bits` bits each, in a strip or in tiles, plane by plane if asked."""
    height, width, count = samples.shape
    planes = [samples[..., i : i + 1] for i in range(count)] if planar else [samples]
    blocks = []
    for plane in planes:
        if not tile:
            blocks.append(packed(plane, bits, byteorder))
            continue
        room = ((0, -height % tile), (0, -width % tile), (0, 0))
        filled = np.pad(plane, room)
        for y in range(0, height, tile):
            blocks += [packed(filled[y : y + tile, x : x + tile], bits, byteorder) for x in range(0, width, tile)]
    starts = np.cumsum([8, *(len(block) for block in blocks)])
    tags: list[tuple[int, int, list[int]]] = [
        (256, LONG, [width]),
        (257, LONG, [height]),
        (258, SHORT, [bits] * count),
        (259, SHORT, [1]),
        (262, SHORT, [photometric]),
        (277, SHORT, [count]),
        (284, SHORT, [2 if planar else 1]),
    ]
    where, sizes = [int(start) for start in starts[:-1]], [len(block) for block in blocks]
    if tile:
        tags += [(322, LONG, [tile]), (323, LONG, [tile]), (324, LONG, where), (325, LONG, sizes)]
    else:
        tags += [(273, LONG, where), (278, LONG, [height]), (279, LONG, sizes)]
    if colormap is not None:
        tags.append((320, SHORT, [int(value) for value in colormap.reshape(-1)]))
    if extra:
        tags.append((338, SHORT, list(extra)))
    at = int(starts[-1]) + int(starts[-1]) % 2
    beyond = at + 2 + 12 * len(tags) + 4
    entries, values = b"", b""
    for tag, kind, numbers in sorted(tags):
        body = struct.pack(f"{byteorder}{len(numbers)}{'H' if kind == SHORT else 'I'}", *numbers)
        entries += struct.pack(f"{byteorder}HHI", tag, kind, len(numbers))
        if len(body) <= 4:
            entries += body.ljust(4, b"\0")
        else:
            entries += struct.pack(f"{byteorder}I", beyond + len(values))
            values += body + bytes(len(body) % 2)
    head = (b"II*\0" if byteorder == "<" else b"MM\0*") + struct.pack(f"{byteorder}I", at)
    directory = struct.pack(f"{byteorder}H", len(tags)) + entries + bytes(4)
    return (head + b"".join(blocks)).ljust(at, b"\0") + directory + values
