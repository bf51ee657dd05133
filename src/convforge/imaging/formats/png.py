"""PNG files: libpng (imagecodecs) decodes pixels and keeps 16 bits; other chunks are read and written here.

Pillow would convert 16-bit RGB to 8 bits. libpng accepts a file without its end, so every chunk is checked here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from convforge.imaging.axes import Axes, as_named
from convforge.imaging.formats.exif import block_for, carried_of
from convforge.imaging.image import (
    Array,
    Declared,
    Image,
    ImageError,
    Metadata,
    Unit,
    alpha_as,
    check_proportion,
    check_size,
    upright,
    upright_pair,
)

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # colour type -> samples per pixel; type 3 has palette indices
TEXTS = {b"tEXt", b"zTXt", b"iTXt"}
XMP = b"XML:com.adobe.xmp"

# Chunks with pixels, chunks that are read, chunks that are copied unchanged, and names of some others.
DECODED = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
READ = DECODED | {b"eXIf", b"pHYs", b"iCCP", b"acTL"}
COLOURS = {b"gAMA", b"cHRM", b"sRGB", b"cICP", b"mDCV", b"cLLI", b"tIME"}
INSTEAD_OF_PROFILES = {b"sRGB", b"cICP"}
LEFT = {b"bKGD": "background colour", b"sBIT": "significant bits", b"hIST": "histogram of the palette",
        b"sPLT": "suggested palette", b"pCAL": "calibration", b"sCAL": "physical scale", b"oFFs": "offset",
        b"sTER": "stereo"}  # fmt: skip

DEFLATE_RATIO = 1032  # largest compression ratio of deflate, by zlib's technical notes
LARGEST_TEXT = 2**20
HEADER_BYTES = len(SIGNATURE) + 12 + 13  # signature and IHDR; our chunks follow


def read(path: Path, max_pixels: int, axes: Axes | None) -> Image:
    """Read a PNG of 1 to 16 bits; expand palettes and low bit depths, convert transparency to alpha."""
    import imagecodecs

    data = path.read_bytes()
    chunks: dict[bytes, bytes] = {}
    texts: list[tuple[bytes, bytes]] = []
    stored = 0
    pieces = [SIGNATURE]
    for kind, body, whole in _chunks(path, data):
        if kind in DECODED:
            pieces.append(whole)
        if kind == b"IDAT":
            stored += len(body)
        elif kind in TEXTS:
            texts.append((kind, body))
        else:
            chunks.setdefault(kind, body)
    _check_header(path, chunks, stored, max_pixels)
    pixels: Array = imagecodecs.png_decode(b"".join(pieces))  # libpng would warn about other chunks
    exif, description, orientation, left = carried_of(chunks.get(b"eXIf", b""))
    pixels = upright(pixels, orientation)
    alpha = None
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        alpha = np.ascontiguousarray(pixels[..., -1])
        pixels = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 2 else pixels[..., :3])
    metadata = Metadata(
        *_resolution(chunks.get(b"pHYs"), orientation),
        _description(texts) or description,
        _inflate(chunks[b"iCCP"].partition(b"\0")[2][1:], limit=16 * LARGEST_TEXT) if b"iCCP" in chunks else None,
        exif=exif,
        png=tuple(
            (kind, body) for kind, body in [*texts, *chunks.items()] if kind in COLOURS or _is_kept_text(kind, body)
        ),
        left=(*left, *_left_behind(chunks, texts)),
    )
    return as_named(axes, Image(pixels, alpha=alpha, metadata=metadata))


def header(path: Path) -> tuple[bytes, bool, int]:
    """Return the header, whether there is transparency, and the orientation; chunks of pixels are skipped."""
    found: dict[bytes, bytes] = {}
    with path.open("rb") as file:
        file.seek(len(SIGNATURE))
        while len(start := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", start)
            if kind == b"IHDR" or (kind in (b"tRNS", b"eXIf") and length <= LARGEST_TEXT):
                found[kind] = file.read(length)
                length = 0
            file.seek(length + 4, 1)
    return found[b"IHDR"], b"tRNS" in found, carried_of(found.get(b"eXIf", b""))[2]


def declared(path: Path, axes: Axes | None) -> Declared:
    """Return what the header declares; nothing behind the first chunk of pixels is read."""
    header, transparent = b"", False
    with path.open("rb") as file:
        file.seek(len(SIGNATURE))
        while len(start := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", start)
            if kind == b"IDAT":
                break
            if kind == b"IHDR":
                header = file.read(13)
                length -= len(header)
            transparent |= kind == b"tRNS"
            file.seek(length + 4, 1)
    if len(header) != 13 or header[9] not in SAMPLES:
        raise ImageError(f"{path}: damaged PNG, it has no header; get it again from its source")
    width, height, bits, colour = struct.unpack_from(">IIBB", header)
    bands = {0: 1, 4: 1}.get(colour, 3)
    return Declared(1, height, width, bands, transparent or colour in (4, 6), np.dtype(f"u{max(bits // 8, 1)}"))


def write(file: BinaryIO, image: Image) -> None:
    """Write an 8- or 16-bit gray or RGB image, with its alpha if any."""
    import imagecodecs

    pixels = image.pixels[..., 0] if image.pixels.shape[2:] == (1,) else image.pixels
    if image.alpha is not None:
        alpha = alpha_as(image.alpha, pixels.dtype)
        if image.metadata.premultiplied:  # colours of a PNG are never premultiplied
            top = float(np.iinfo(pixels.dtype).max)
            share = (alpha if pixels.ndim == 2 else alpha[..., np.newaxis]) / top
            plain = np.divide(pixels, share, out=np.zeros(pixels.shape), where=share > 0)
            pixels = np.rint(np.minimum(plain, top)).astype(pixels.dtype)
        pixels = np.dstack([pixels, alpha])
    data = imagecodecs.png_encode(np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder("=")), level=6)
    file.write(data[:HEADER_BYTES])
    for kind, body in _metadata_chunks(image):
        file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    file.write(data[HEADER_BYTES:])


def _chunks(path: Path, data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the name, the body and all bytes of each chunk."""
    offset = len(SIGNATURE)
    while offset + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, offset)
        end = offset + 12 + length
        if end > len(data):
            break
        yield kind, data[offset + 8 : end - 4], data[offset:end]
        if kind == b"IEND":
            return
        offset = end
    raise ImageError(f"{path}: truncated PNG, {len(data)} bytes without its end; get it again from its source")


def _check_header(path: Path, chunks: dict[bytes, bytes], stored: int, max_pixels: int) -> None:
    header = chunks.get(b"IHDR", b"")
    if len(header) != 13:
        raise ImageError(f"{path}: damaged PNG, it has no header; get it again from its source")
    width, height, bits, colour = struct.unpack_from(">IIBB", header)
    if colour not in SAMPLES:
        raise ImageError(f"{path}: damaged PNG, colour type {colour} does not exist; get it again from its source")
    check_size(path, height, width, max_pixels=max_pixels)
    row = (width * SAMPLES[colour] * bits + 7) // 8 + 1  # each row begins with a byte for its filter
    check_proportion(path, row * height, stored, DEFLATE_RATIO)
    if len(chunks.get(b"acTL", b"")) == 8 and struct.unpack_from(">I", chunks[b"acTL"])[0] > 1:
        raise ImageError(f"{path}: an animated PNG; save its frames as the pages of a TIFF")


def _resolution(body: bytes | None, orientation: int) -> tuple[tuple[float, float] | None, Unit]:
    if body is None or len(body) != 9:
        return None, "inch"
    x, y, metric = struct.unpack(">IIB", body)
    if x == 0 or y == 0 or (metric != 1 and x == y):
        return None, "inch"
    x, y = upright_pair((x, y), orientation)
    return ((x / 100, y / 100), "centimeter") if metric == 1 else ((float(x), float(y)), "none")


def _description(texts: list[tuple[bytes, bytes]]) -> str:
    for kind, body in texts:
        keyword, _, rest = body.partition(b"\0")
        if keyword != b"Description":
            continue
        if kind == b"tEXt":
            return rest.decode("latin-1")
        if kind == b"zTXt":
            return (_inflate(rest[1:], limit=LARGEST_TEXT) or b"").decode("latin-1")
        packed, text = rest[:1] == b"\1", rest[2:].split(b"\0", 2)[-1]  # after language and translated keyword
        return ((_inflate(text, limit=LARGEST_TEXT) or b"") if packed else text).decode("utf-8", "replace")
    return ""


def _is_kept_text(kind: bytes, body: bytes) -> bool:
    keyword = body.partition(b"\0")[0]
    return kind in TEXTS and keyword not in (b"Description", XMP) and not keyword.startswith(b"Raw profile type ")


def _left_behind(chunks: dict[bytes, bytes], texts: list[tuple[bytes, bytes]]) -> list[str]:
    """List the chunks that are not copied to a result."""
    keywords = [body.partition(b"\0")[0] for _, body in texts]
    found = ["XMP"] if XMP in keywords else []
    found += [word.decode("latin-1") for word in keywords if word.startswith(b"Raw profile type ")]
    return found + [LEFT.get(kind, f"chunk {kind.decode('latin-1')}") for kind in chunks if kind not in READ | COLOURS]


def _inflate(packed: bytes, *, limit: int) -> bytes | None:
    """Unpack metadata of at most `limit` bytes; return None if it is larger or damaged."""
    engine = zlib.decompressobj()
    try:
        plain = engine.decompress(packed, limit)
    except zlib.error:
        return None
    return plain if engine.eof else None


def _metadata_chunks(image: Image) -> Iterator[tuple[bytes, bytes]]:
    metadata = image.metadata
    profile = metadata.profile_for(image.bands)
    if profile is not None:
        yield b"iCCP", b"ICC profile\0\0" + zlib.compress(profile)
    per_cm = metadata.pixels_per("centimeter")
    sides = (per_cm[0] * 100, per_cm[1] * 100) if per_cm is not None else metadata.resolution
    if sides is not None and all(1 <= round(side) < 2**31 for side in sides):
        yield b"pHYs", struct.pack(">IIB", round(sides[0]), round(sides[1]), per_cm is not None)
    block = block_for(metadata.exif, image.width, image.height)
    if block is not None:
        yield b"eXIf", block
    yield from ((kind, body) for kind, body in metadata.png if profile is None or kind not in INSTEAD_OF_PROFILES)
    text = metadata.description.replace("\0", "")
    if text:
        try:
            yield b"tEXt", b"Description\0" + text.encode("latin-1")
        except UnicodeEncodeError:
            yield b"iTXt", b"Description\0\0\0\0\0" + text.encode()
